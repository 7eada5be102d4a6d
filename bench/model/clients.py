"""The clients that are placed: who has which topics at which broker."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from operator import attrgetter

from mqttree.bench.model.greedy import Assignment, choose, greedy
from mqttree.bench.model.state import Placement, Topic
from mqttree.bench.model.strategies import Strategy, load
from mqttree.placement.greedy import GAMMA
from mqttree.placement.question import SESSIONS

Session = tuple[str, tuple[str, ...]]
"""A broker, and a client's topics there."""

_NAME = attrgetter("name")
_SLOT = [bytes([slot]) for slot in range(256)]


_Client = tuple[tuple[Topic, ...], bytes]
"""The topics of a client, and for each of them the slot of its broker."""


class Rows:
    """What many clients have, in a few large objects: to make some for each takes as long as to
    place it, and twice the memory."""

    def __init__(
        self, topics: list[Topic], starts: Sequence[int], numbers: Sequence[int], slots: bytes
    ) -> None:
        """Note what they have.

        `topics`: by number; `starts`: where the topics of each client begin in `numbers`, and at
        last where those of the last one end; `numbers`: of topics; `slots`: of the broker of each.
        """
        self.topics = topics
        self.starts = starts
        self.numbers = numbers
        self.slots = slots

    def __len__(self) -> int:
        return len(self.starts) - 1

    def client(self, row: int) -> _Client:
        """Return the topics of a client, and the slot of each."""
        first, end = self.starts[row], self.starts[row + 1]
        topics = self.topics
        return tuple([topics[each] for each in self.numbers[first:end]]), self.slots[first:end]

    def slots_of(self, row: int) -> bytes:
        """Return the slot of each topic of a client."""
        return self.slots[self.starts[row] : self.starts[row + 1]]


class Clients:
    """Places clients that come and forgets those that leave."""

    def __init__(
        self, placement: Placement, gamma: float = GAMMA, strategy: Strategy = load
    ) -> None:
        """Begin without clients.

        `placement`: the brokers and topics, in which clients are counted; `gamma`: how many times
        its due a broker may have; `strategy`: where clients are placed.
        """
        self.placement = placement
        self.gamma = gamma
        self.strategy = strategy
        self.sessions = 0
        """connections of all clients together."""
        self._clients: dict[str, _Client] = {}
        self._in_rows: dict[str, int] = {}
        """The clients that are not in `_clients` -> their rows."""
        self._rows = Rows([], [0], [], b"")

    def __len__(self) -> int:
        return len(self._clients) + len(self._in_rows)

    def __contains__(self, client: str) -> bool:
        return client in self._clients or client in self._in_rows

    def join(
        self,
        client: str,
        topics: Iterable[str],
        sessions: int = SESSIONS,
        avoid: Iterable[str] = (),
    ) -> list[Session]:
        """Place a client; return its sessions. One that is there already is placed again. Raises
        ValueError if no broker takes clients.

        `client`: its id; `topics`: what it subscribes to; `sessions`: connections at most, at least
        1; `avoid`: ids of brokers that it cannot reach.
        """
        return self._sessions(self._join(client, topics, sessions, self._mask(avoid)))

    def join_all(self, clients: Iterable[tuple[str, Iterable[str]]], sessions: int) -> None:
        """Place clients one after the other, as `join` does, without telling where they are.

        `clients`: ids, each with what the client subscribes to; `sessions`: connections of each at
        most. Raises ValueError if no broker takes clients.
        """
        known = self.placement.known
        for client, topics in clients:
            if client in self:
                self.leave(client)
            self.join_known(client, known(topics), sessions)

    def join_known(self, client: str, topics: list[Topic], sessions: int) -> None:
        """Place a client that is not there, without telling where it is. Raises ValueError if no
        broker takes clients.

        `client`: its id; `topics`: of `Placement.known`; `sessions`: connections at most.
        """
        placement = self.placement
        try:
            choice = None
            if self.strategy is greedy:
                choice = choose(placement, topics, sessions, self.gamma)
            if choice is None:
                self._settle(client, self.strategy(placement, topics, sessions, self.gamma, 0))
                return
        except ValueError:
            placement.forget(topics)
            raise
        placement.place_each(choice.topics, choice.slots, choice.aeo)
        self.settled(client, tuple(choice.topics), bytes(choice.slots), choice.sessions)

    def settled(self, client: str, topics: tuple[Topic, ...], slots: bytes, sessions: int) -> None:
        """Note a client whose subscriptions are counted already.

        `client`: its id; `topics`: of the placement; `slots`: of the broker of each; `sessions`:
        how many brokers these are.
        """
        self._clients[client] = (topics, slots)
        self.sessions += sessions

    def settle_rows(self, clients: Iterable[str], rows: Rows, sessions: int) -> None:
        """Note many clients, none of which is there, whose subscriptions are counted already.
        Raises ValueError if there are not as many clients as rows, or one that is there.

        `clients`: the id of each row; `rows`: their topics and slots; `sessions`: how many brokers
        all of them use.
        """
        # Only those of one call are in rows, so that they do not pile up when clients leave.
        for client in list(self._in_rows):
            self._take_out(client)
        coming = {client: row for row, client in enumerate(clients)}
        if len(coming) != len(rows) or not coming.keys().isdisjoint(self._clients):
            raise ValueError(f"{len(coming)} new clients for {len(rows)} rows, or some are there")
        self._rows = rows
        self._in_rows = coming
        self.sessions += sessions

    def _take_out(self, client: str) -> None:
        """Keep what a client has by itself, and not in rows. Nothing happens if it does already."""
        row = self._in_rows.pop(client, -1)
        if row >= 0:
            self._clients[client] = self._rows.client(row)

    def _client(self, client: str) -> _Client:
        """What a client has; KeyError if it is not there."""
        row = self._in_rows.get(client, -1)
        return self._clients[client] if row < 0 else self._rows.client(row)

    def _join(self, client: str, topics: Iterable[str], sessions: int, avoid: int) -> Assignment:
        if client in self:
            self.leave(client)
        placement = self.placement
        # A topic that is named twice is one subscription.
        found = placement.known(topics)
        try:
            where = self.strategy(placement, found, sessions, self.gamma, avoid)
        except ValueError:
            placement.forget(found)
            raise
        self._settle(client, where)
        return where

    def add(self, client: str, topics: Iterable[str], sessions: int = SESSIONS) -> None:
        """Place further topics of a client, as those that a failed broker had; what it has stays
        where it is. Raises KeyError if the client is not there, ValueError if no broker takes
        clients.

        `client`: its id; `topics`: none that it has already; `sessions`: connections at most, with
        those that it has.
        """
        before, slots = self._client(client)
        placement = self.placement
        used = set(slots)
        found = placement.known(topics)
        avoid = 0
        if len(used) >= sessions:
            # No further broker: all but its own are left out.
            avoid = sum(1 << slot for slot in placement.open if slot not in used)
        try:
            most = max(1, sessions - len(used)) if len(used) < sessions else sessions
            where = self.strategy(placement, found, most, self.gamma, avoid)
        except ValueError:
            placement.forget(found)
            raise
        self._take_out(client)
        self._settle(client, where)
        added, at = self._clients[client]
        self._clients[client] = (before + added, slots + at)
        self.sessions -= len(used & set(where))

    def attach(self, client: str, sessions: Iterable[Session]) -> None:
        """Note a client that is where it is. Raises KeyError if a broker is not there.

        `client`: its id; `sessions`: brokers, each with the client's topics there.
        """
        slots = self.placement.slots
        there: Assignment = {}
        for broker, topics in sessions:
            there.setdefault(slots[broker], []).extend(map(self.placement.topic, topics))
        if client in self:
            self.leave(client)
        self._settle(client, there)

    def move(self, client: str, topic: str, broker: str) -> None:
        """Move one subscription of a client to another broker. Raises KeyError if the client has
        no such topic, or if the broker is not there.

        `client`: its id; `topic`: the topic's name; `broker`: where it goes.
        """
        topics, slots = self._client(client)
        slot = self.placement.slots[broker]
        index = next((i for i, each in enumerate(topics) if each.name == topic), None)
        if index is None:
            raise KeyError(topic)
        before, moved = slots[index], topics[index]
        if before == slot:
            return
        self._take_out(client)
        now = slots[:index] + _SLOT[slot] + slots[index + 1 :]
        self._clients[client] = (topics, now)
        # First where it goes: a topic without subscriptions would be forgotten.
        self.placement.place(moved, slot)
        self.placement.displace(moved, before)
        if slot not in slots:
            self.sessions += 1
        if before not in now:
            self.sessions -= 1

    def holders(self, wanted: Container[tuple[Topic, int]]) -> dict[tuple[Topic, int], list[str]]:
        """Return the clients that have some topics at some slots, in order of their ids.

        `wanted`: pairs of a topic and a slot.
        """
        found: dict[tuple[Topic, int], list[str]] = {}
        for client in sorted([*self._clients, *self._in_rows]):
            topics, slots = self._client(client)
            for pair in zip(topics, slots, strict=True):
                if pair in wanted:
                    found.setdefault(pair, []).append(client)
        return found

    def slots_of(self, client: str, without: Topic) -> set[int]:
        """Return the slots where a client has a session for other topics than one. Raises KeyError
        if it is not there.

        `client`: its id; `without`: the topic.
        """
        topics, slots = self._client(client)
        return {slot for topic, slot in zip(topics, slots, strict=True) if topic is not without}

    def leave(self, client: str) -> None:
        """Forget a client and its subscriptions. Raises KeyError if it is not there."""
        topics, slots = self._client(client)
        if self._in_rows.pop(client, -1) < 0:
            del self._clients[client]
        self.placement.displace_all(topics, slots)
        self.sessions -= len(set(slots))

    def sessions_of(self, client: str) -> list[Session]:
        """Return where a client is. Raises KeyError if it is not there."""
        found: dict[int, list[str]] = {}
        for topic, slot in zip(*self._client(client), strict=True):
            found.setdefault(slot, []).append(topic.name)
        name = self.placement.names.__getitem__
        return [(str(name(slot)), tuple(topics)) for slot, topics in found.items()]

    def at(self, broker: str) -> frozenset[str]:
        """Return the clients that have a session at a broker. Raises KeyError if it is not
        there."""
        # Nothing is kept for this: each client that comes or goes would pay for it.
        slot = self.placement.slots[broker]
        found = [name for name, (_, slots) in self._clients.items() if slot in slots]
        slots_of = self._rows.slots_of
        return frozenset(
            found + [name for name, row in self._in_rows.items() if slot in slots_of(row)]
        )

    def fail(self, broker: str) -> dict[str, tuple[str, ...]]:
        """Remove a broker; return its clients, each with the topics that it had there: they are
        placed nowhere. Raises KeyError if the broker is not there."""
        slot = self.placement.slots[broker]
        orphans: dict[str, tuple[str, ...]] = {}
        for client in sorted(self.at(broker)):
            pairs = list(zip(*self._client(client), strict=True))
            self._take_out(client)
            orphans[client] = tuple([topic.name for topic, at in pairs if at == slot])
            self._clients[client] = (
                tuple([topic for topic, at in pairs if at != slot]),
                bytes([at for _, at in pairs if at != slot]),
            )
            self.sessions -= 1
        self.placement.fail(broker)
        return orphans

    def _mask(self, brokers: Iterable[str]) -> int:
        slots = self.placement.slots
        mask = 0
        for broker in brokers:
            if broker in slots:
                mask |= 1 << slots[broker]
        return mask

    def _settle(self, client: str, assignment: Assignment) -> None:
        """Count a client's subscriptions where it is placed."""
        place_all = self.placement.place_all
        all_topics: list[Topic] = []
        slots = b""
        for slot, topics in assignment.items():
            place_all(topics, slot)
            all_topics += topics
            slots += _SLOT[slot] * len(topics)
        self._clients[client] = (tuple(all_topics), slots)
        self.sessions += len(assignment)

    def _sessions(self, assignment: Assignment) -> list[Session]:
        names = self.placement.names
        return [
            (str(names[slot]), tuple(map(_NAME, topics))) for slot, topics in assignment.items()
        ]
