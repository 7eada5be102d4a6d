"""Many clients at once, as at a start from nothing: placed in *blocks* of some thousand, by numpy.

The clients of a block choose their brokers at the same time, each as the greedy strategy says: what
costs nothing where, and the loads of brokers, are those of the moment. Two things would make much
traffic then, so a block goes in *waves*: clients whose choice is not good any more when those
before them are placed choose again in the next wave.

* Two clients pay for the same topic at two brokers. The second one would have found it at the
  broker of the first one.
* A broker has got as much as it may have. Those who come after that go elsewhere. While a broker is
  above its bound, waves are so short that it is below it again after one.

Of brokers that cost a client the same, the greedy strategy takes the one with the least load. That
would be the same one for the whole block. So one is drawn: each as likely as what it should get for
all to have the same load at the end of the block.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mqttree.bench.model.clients import Clients, Rows
from mqttree.bench.model.greedy import greedy
from mqttree.bench.model.state import Placement, Topic
from mqttree.placement.greedy import GAMMA
from mqttree.placement.question import SESSIONS

FIRST: Final = 5_000
"""Clients that are placed one by one before there are blocks: their choices weigh most, as all that
follow go where a topic is already."""

SHARE: Final = 1 / 32
"""Clients of a block, as a part of those that are placed."""

MAX_BLOCK_CLIENTS: Final = 4_096
"""clients of a block, at most: its arrays are in the caches then."""

NUMBERED: Final = 4_096
"""clients whose topics get their numbers at once."""

WAVES: Final = 64
"""Waves of a block until each next one has to be twice as large."""

MIN_SHARE: Final = 0.001
"""What a broker that has too much already gets at least of what is coming, as a part of the mean:
for clients that it costs least with others like it."""

NARROW: Final = 255
"""messages/s that a client's topics may have together so that a sum is one byte."""

Numbers = NDArray[np.intp]
Flags = NDArray[np.bool_]
Amounts = NDArray[np.float64]


@dataclass(frozen=True)
class Wanted:
    """Who wants which topics, by numbers: a matrix of clients and topics in compressed rows."""

    starts: Numbers
    """where the topics of each client begin in `numbers`, and at last where those of the last one
    end."""
    numbers: NDArray[np.int32]
    """topics; those of one client follow each other, are different, and in order."""

    @property
    def clients(self) -> int:
        """How many there are."""
        return len(self.starts) - 1


class Numbering:
    """Gives numbers to names of topics."""

    def __init__(self) -> None:
        self._numbers: defaultdict[str, int] = defaultdict()
        self._numbers.default_factory = self._numbers.__len__
        self._lengths: list[Numbers] = []
        self._topics: list[NDArray[np.int32]] = []

    @property
    def names(self) -> list[str]:
        """Topics by their numbers."""
        return list(self._numbers)

    def add(self, wanted: Iterable[Iterable[str]]) -> None:
        """Add clients, each with the names of its topics; one that is named twice counts once."""
        rows = [list(names) for names in wanted]
        lengths = np.fromiter(map(len, rows), np.intp, len(rows))
        flat = map(self._numbers.__getitem__, chain.from_iterable(rows))
        topics = np.fromiter(flat, np.int64, int(lengths.sum()))
        # Sorted by client and topic.
        pairs = np.repeat(np.arange(len(rows)) << 32, lengths) | topics
        pairs.sort()
        pairs = pairs[np.diff(pairs, prepend=-1) > 0]
        self._lengths.append(np.bincount(pairs >> 32, minlength=len(rows)))
        self._topics.append((pairs & 0xFFFFFFFF).astype(np.int32))

    def wanted(self) -> Wanted:
        """Return who wants what, with clients in the order in which they were added."""
        none = np.zeros(0, np.int32)
        lengths = np.concatenate([none, *self._lengths])
        starts = np.concatenate([[0], lengths.cumsum()])
        return Wanted(starts.astype(np.intp), np.concatenate([none, *self._topics]))


@dataclass(frozen=True)
class Placed:
    """Where clients are placed."""

    wanted: Wanted
    topics: list[Topic]
    """by their numbers."""
    slots: NDArray[np.uint8]
    """of the broker, for each of `wanted.numbers`."""
    sessions: Numbers
    """connections of each client."""

    def settle(self, clients: Clients, ids: Iterable[str]) -> None:
        """Note who the clients are, so that each can leave or move.

        `clients`: those of the same placement, none of these among them; `ids`: of each client.
        """
        rows = Rows(
            self.topics,
            self.wanted.starts.data,
            self.wanted.numbers.data,
            self.slots.tobytes(),
        )
        clients.settle_rows(ids, rows, int(self.sessions.sum()))


def join_all(
    clients: Clients,
    arriving: Iterable[tuple[str, Iterable[str]]],
    sessions: int = SESSIONS,
    seed: int = 1,
) -> None:
    """Place clients, as `Clients.join_all` does with the greedy strategy. Those that are there
    already are placed again. Raises ValueError if no broker takes clients.

    `clients`: who is placed, and where these are counted; `arriving`: ids, each with what the
    client subscribes to; `sessions`: connections of each at most; `seed`: of what is drawn.
    """
    # Of a client that comes twice, what it wants last.
    joining = dict(arriving)
    if not clients.placement.open:
        raise ValueError("no broker takes clients")
    for client in joining:
        if client in clients:
            clients.leave(client)
    numbering = Numbering()
    wanted = iter(joining.values())
    while part := list(islice(wanted, NUMBERED)):
        numbering.add(part)
    names = numbering.names
    placed = place(clients.placement, names, numbering.wanted(), sessions, clients.gamma, seed)
    placed.settle(clients, joining)


def place(
    placement: Placement,
    names: Sequence[str],
    wanted: Wanted,
    sessions: int = SESSIONS,
    gamma: float = GAMMA,
    seed: int = 1,
    first: int = FIRST,
    share: float = SHARE,
) -> Placed:
    """Count the subscriptions of many clients where they should be; return where that is.

    Args:
        `placement`: the brokers and topics, in which subscriptions are counted.
        `names`: of topics, by number, all different.
        `wanted`: who wants which.
        `sessions`: connections of a client at most, at least 1.
        `gamma`: how many times its due a broker may have.
        `seed`: of what is drawn.
        `first`: clients that are placed one by one before there are blocks.
        `share`: clients of a block, as a part of those that are placed.

    Raises:
        ValueError: no broker takes clients, or `wanted` is not as it should be.
    """
    _check(names, wanted)
    if not placement.open:
        raise ValueError("no broker takes clients")
    found = Placed(
        wanted,
        placement.known(names),
        np.empty(len(wanted.numbers), np.uint8),
        np.zeros(wanted.clients, np.intp),
    )
    # With affinity, the first subscriber of a topic without a publisher changes what it costs
    # everywhere: that is not known here.
    count = wanted.clients if placement.affinity else min(first, wanted.clients)
    for client in range(count):
        _place_one(placement, found, client, sessions, gamma)
    if count < wanted.clients:
        blocks = _Blocks(placement, found, gamma, seed)
        blocks.place_rest(count, sessions, share)
        _count(placement, found, count)
    placement.forget(found.topics)
    return found


def _check(names: Sequence[str], wanted: Wanted) -> None:
    """Raise ValueError if numbers do not say who wants what."""
    starts, numbers = wanted.starts, wanted.numbers
    if len(set(names)) != len(names):
        raise ValueError("a topic has two numbers")
    if not len(starts) or starts[0] or starts[-1] != len(numbers) or (np.diff(starts) < 0).any():
        raise ValueError("rows of clients do not follow each other")
    if not len(numbers):
        return
    if numbers.min() < 0 or numbers.max() >= len(names):
        raise ValueError("a number of no topic")
    falls = numbers[1:] <= numbers[:-1]
    # Where another client begins.
    begins = starts[(starts > 0) & (starts < len(numbers))]
    falls[begins - 1] = False
    if falls.any():
        raise ValueError("topics of a client are not in order")


def _place_one(
    placement: Placement, found: Placed, client: int, sessions: int, gamma: float
) -> None:
    """Place one client as it is done without numpy."""
    first, end = found.wanted.starts[client : client + 2]
    topics = [found.topics[number] for number in found.wanted.numbers[first:end].tolist()]
    where: dict[Topic, int] = {}
    chosen = greedy(placement, topics, sessions, gamma)
    for slot, taken in chosen.items():
        placement.place_all(taken, slot)
        where.update(dict.fromkeys(taken, slot))
    found.slots[first:end] = [where[topic] for topic in topics]
    found.sessions[client] = len(chosen)


def _count(placement: Placement, found: Placed, first: int) -> None:
    """Count the subscriptions of all clients from one on."""
    begin = found.wanted.starts[first]
    width = len(placement.names)
    cells = found.wanted.numbers[begin:].astype(np.intp) * width + found.slots[begin:]
    counts = np.bincount(cells)
    for cell in np.flatnonzero(counts).tolist():
        number, slot = divmod(cell, width)
        placement.place(found.topics[number], slot, int(counts[cell]))


class _Blocks:
    """What clients cost where, and the brokers' loads. A broker's column is its place among those
    that take clients."""

    def __init__(self, placement: Placement, found: Placed, gamma: float, seed: int) -> None:
        """Begin with what is counted.

        `placement`: the brokers; `found`: who wants what, and where it goes; `gamma`: how many
        times its due a broker may have; `seed`: of what is drawn.
        """
        slots, topics = placement.open, found.topics
        self.found = found
        self.slots = np.array(slots, np.uint8)
        self.brokers = len(slots)
        weights = np.array([topic.weight for topic in topics], np.float64)
        longest = int(np.diff(found.wanted.starts).max())
        heaviest = float(weights.max()) if len(weights) else 0.0
        narrow = not placement.fractions and longest * heaviest <= NARROW
        kind: type[Any] = np.uint8 if narrow else np.float64
        self.rates = weights.astype(kind)
        # What a subscriber spares, by topic and column: its whole rate where it costs nothing.
        width = -(-self.brokers // 8) * 8 if narrow else self.brokers
        self.spared = np.zeros((len(topics), width), kind)
        self.spared[:, : self.brokers] = _spared(placement, topics, weights)
        self.flat = self.spared.reshape(-1)
        # Eight sums of a byte each are one sum of a word.
        self.lanes = self.spared.view(np.uint64) if narrow else self.spared
        self.loads = np.array([placement.aeo[slot] for slot in slots], np.float64)
        # What brokers send that take no clients.
        self.elsewhere = sum(
            [load for slot, load in enumerate(placement.aeo) if slot not in slots], 0.0
        )
        self.capacities = np.array([placement.capacities[slot] for slot in slots], np.float64)
        # A broker's bound is this times the load of all.
        self.part = gamma * self.capacities / self.capacities.sum()
        self.drawn = np.random.default_rng(seed)

    def place_rest(self, placed: int, sessions: int, share: float) -> None:
        """Place all clients but so many.

        `placed`: how many are placed; `sessions`: connections of each client at most; `share`:
        clients of a block, as a part of those that are placed.
        """
        found, starts = self.found, self.found.wanted.starts
        while placed < found.wanted.clients:
            end = min(
                placed + min(int(placed * share) + 1, MAX_BLOCK_CLIENTS), found.wanted.clients
            )
            part = slice(starts[placed], starts[end])
            columns, found.sessions[placed:end] = self._place(
                found.wanted.numbers[part].astype(np.intp),
                np.diff(starts[placed : end + 1]),
                sessions,
            )
            found.slots[part] = self.slots.take(columns)
            placed = end

    def _place(self, numbers: Numbers, lengths: Numbers, sessions: int) -> tuple[Numbers, Numbers]:
        """Place the clients of a block; return the column for each of their topics, and the
        connections of each client.

        `numbers`: topics; `lengths`: how many of them each client has; `sessions`: connections of
        each at most.
        """
        columns = np.empty(len(numbers), np.intp)
        counts = np.zeros(len(lengths), np.intp)
        clients, pairs = np.flatnonzero(lengths), np.arange(len(numbers))
        lengths = lengths[clients]
        wave = 0
        while len(clients):
            size = max(self._ahead(numbers, len(clients)), 1 << max(wave - WAVES, 0))
            size = min(size, len(clients))
            wave += 1
            end = int(lengths[:size].sum())
            chosen, used, late = self._wave(numbers[:end], lengths[:size], sessions)
            placed = np.repeat(~late, lengths[:size])
            columns[pairs[:end][placed]] = chosen[placed]
            counts[clients[:size][~late]] = used[~late]
            left = np.flatnonzero(np.concatenate([late, np.ones(len(clients) - size, np.bool_)]))
            rest = np.concatenate([~placed, np.ones(len(numbers) - end, np.bool_)])
            numbers, pairs = numbers.compress(rest), pairs.compress(rest)
            clients, lengths = clients[left], lengths[left]
        return columns, counts

    def _total(self) -> float:
        """What all brokers send to subscribers (messages/s)."""
        return float(self.loads.sum()) + self.elsewhere

    def _ahead(self, numbers: Numbers, clients: int) -> int:
        """How many clients may choose before a broker is below its bound again."""
        total = self._total()
        above = self.loads >= self.part * total
        if not total or not above.any():
            return clients
        if above.all():
            # Only the one with the least load takes a client, and then others are below.
            return 1
        missing = (self.loads[above] / self.part[above]).min() - total
        mean = float(self.rates.take(numbers).sum(dtype=np.float64)) / clients
        return int(min(missing / mean, clients) + 1) if mean else clients

    def _wave(
        self, numbers: Numbers, lengths: Numbers, sessions: int
    ) -> tuple[Numbers, Numbers, Flags]:
        """Let clients choose, and count those whose choice is good; return the columns of all
        topics, the connections of each client, and who has to choose again: never the first."""
        rates = self.rates.take(numbers)
        columns, paid, used, prior = self._choices(numbers, lengths, rates, sessions)
        starts = lengths.cumsum() - lengths
        owners = starts.searchsorted(paid, "right") - 1
        late = self._contested(numbers[paid], columns[paid], owners, len(lengths))
        loads = np.bincount(columns, rates, self.brokers)
        if (self.loads + loads >= self.part * self._total()).any():
            late |= self._overfull(columns, lengths, rates, prior)
        if late.any():
            good = np.repeat(~late, lengths)
            paid = paid[good[paid]]
            loads = np.bincount(columns.compress(good), rates.compress(good), self.brokers)
        self.loads += loads
        self.flat[numbers[paid] * self.spared.shape[1] + columns[paid]] = rates[paid]
        return columns, used, late

    def _contested(
        self, numbers: Numbers, columns: Numbers, owners: Numbers, clients: int
    ) -> Flags:
        """Which clients pay for a topic that one before them pays for at another broker.

        `numbers`, `columns`, `owners`: topics that cost something, where, and whose.
        """
        late = np.zeros(clients, np.bool_)
        _, first, same = np.unique(numbers, return_index=True, return_inverse=True)
        late[owners[columns[first][same] != columns]] = True
        return late

    def _overfull(
        self, columns: Numbers, lengths: Numbers, rates: NDArray[Any], prior: Amounts
    ) -> Flags:
        """Which clients use a broker that is not below its bound when those before are placed.

        `prior`: what a client had elsewhere before it came to each column (messages/s).
        """
        cells = np.repeat(np.arange(len(lengths)) * self.brokers, lengths) + columns
        added = np.bincount(cells, rates, len(lengths) * self.brokers).reshape(-1, self.brokers)
        before = self.loads + added.cumsum(axis=0) - added
        totals = before.sum(axis=1, keepdims=True) + self.elsewhere + prior
        above = (added > 0) & (before >= totals * self.part) & (totals > 0)
        late: Flags = above.any(axis=1)
        late[0] = False
        return late

    def _choices(
        self, numbers: Numbers, lengths: Numbers, rates: NDArray[Any], sessions: int
    ) -> tuple[Numbers, Numbers, Numbers, Amounts]:
        """Return the column that each client chooses for each topic, the places of those that cost
        something there, how many columns each client uses, and what it had elsewhere before it
        came to each (messages/s)."""
        starts = lengths.cumsum() - lengths
        coming = np.add.reduceat(rates, starts, dtype=np.float64)
        liked = self._liked(len(lengths), float(coming.sum()))
        # Whether no broker can come to its bound by any one client.
        wide = bool((self.loads + coming.max() < self.part * self._total()).all())
        own = np.zeros((len(lengths), self.brokers))
        prior = np.zeros_like(own)
        columns = np.empty(len(numbers), np.intp)
        used = np.zeros((len(lengths), self.brokers), np.bool_)
        # Those clients that have topics left, and these topics.
        clients, pairs = np.arange(len(lengths)), np.arange(len(numbers))
        lanes = self.lanes.take(numbers, axis=0)
        paid: list[Numbers] = []
        while len(clients):
            starts = lengths.cumsum() - lengths
            spared = self._sums(lanes, starts)[:, : self.brokers]
            if not wide:
                spared = np.where(self._fair(own[clients]), spared, np.float64(-1))
            equal = spared == spared.max(axis=1, keepdims=True)
            chosen = np.where(equal, liked.take(clients, axis=0), 0).argmax(axis=1)
            if not wide:
                new = np.flatnonzero(~used[clients, chosen])
                prior[clients[new], chosen[new]] = own[clients[new]].sum(axis=1)
            used[clients, chosen] = True
            last = used.take(clients, axis=0).sum(axis=1) >= sessions
            owners = np.repeat(np.arange(len(clients)), lengths)
            at = chosen.take(owners)
            costs = rates - self.flat.take(numbers * self.spared.shape[1] + at)
            going = _going(costs, starts, owners, last)
            columns[pairs.compress(going)] = at.compress(going)
            if not wide:
                weights = np.where(going, rates, 0)
                own[clients, chosen] += np.add.reduceat(weights, starts, dtype=np.float64)
            paid.append(pairs.compress(going & (costs > 0)))
            rest = ~going
            lengths = np.bincount(owners.compress(rest), minlength=len(clients))
            left = np.flatnonzero(lengths)
            clients, lengths = clients.take(left), lengths.take(left)
            numbers, pairs, rates = (each.compress(rest) for each in (numbers, pairs, rates))
            lanes = lanes.compress(rest, axis=0)
        # In the order of clients.
        return columns, np.sort(np.concatenate(paid)), used.sum(axis=1), prior

    def _sums(self, lanes: NDArray[Any], starts: Numbers) -> NDArray[Any]:
        """What each client spares, by column."""
        return np.add.reduceat(lanes, starts, axis=0).view(self.spared.dtype)

    def _fair(self, own: Amounts) -> Flags:
        """Which columns are below their bound for each client, or have the least load where none
        is.

        `own`: what each client has in each column already (messages/s).
        """
        loads = self.loads + own
        total = own.sum(axis=1, keepdims=True) + self._total()
        fair: Flags = (loads < total * self.part) | (total == 0)
        none = np.flatnonzero(~fair.any(axis=1))
        fair[none, (loads[none] / self.capacities).argmin(axis=1)] = True
        return fair

    def _liked(self, clients: int, amount: float) -> NDArray[np.float32]:
        """How much each client likes each column, of those that cost it the same: drawn so that a
        column is liked most as often as it should get a part of what is coming.

        `amount`: what is coming (messages/s).
        """
        order = (self.loads / self.capacities).argsort(kind="stable")
        # As water fills hollows: the level if it came to the lowest ones only.
        levels = (self.loads[order].cumsum() + amount) / self.capacities[order].cumsum()
        below = np.flatnonzero(levels * self.capacities[order] > self.loads[order])
        level = levels[below[-1]] if len(below) else 0.0
        due = level * self.capacities - self.loads
        # Those that should get nothing are better than none.
        due = np.maximum(due, amount / self.brokers * MIN_SHARE) if amount else self.capacities
        waits = self.drawn.standard_exponential((clients, self.brokers), np.float32)
        # Never 0, by which nothing can be divided.
        waits += np.float32(1e-9)
        liked: NDArray[np.float32] = (due / due.sum()).astype(np.float32) / waits
        return liked


def _going(costs: NDArray[Any], starts: Numbers, owners: Numbers, last: Flags) -> Flags:
    """Which topics go to the broker that their client has chosen: those that cost nothing there, if
    there are none those that cost least, and all if it is the client's last broker.

    `costs`: of topics there; `starts`: where those of each client begin; `owners`: the client of
    each; `last`: whether it is its last broker.
    """
    least = np.minimum.reduceat(costs, starts)
    going: Flags = costs == least.take(owners)
    return going | last.take(owners)


def _spared(placement: Placement, topics: list[Topic], weights: Amounts) -> Amounts:
    """What a subscriber of each topic spares at each broker that takes clients (messages/s)."""
    slots = placement.open
    size = len(placement.names) // 8 + 1
    everywhere = (1 << 8 * size) - 1
    masks = b"".join([(topic.free & everywhere).to_bytes(size, "little") for topic in topics])
    bits = np.frombuffer(masks, np.uint8).reshape(len(topics), size)
    found = np.unpackbits(bits, axis=1, bitorder="little")[:, slots] * weights[:, np.newaxis]
    for number, topic in enumerate(topics):
        if len(topic.publishers) > 1:
            found[number] = [weights[number] - topic.cost(slot) for slot in slots]
    return found
