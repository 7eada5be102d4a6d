"""What one broker remembers of the clients that it may send to other brokers. Pure: a bounded
table, in which each client has a state of `redirect_states`.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from mqttree.broker.base.state_table import look_up
from mqttree.broker.cluster.placement.redirect_states import TRANSITIONS, Action, Input, State

DAY: Final = 86_400.0
"""s for which it is remembered that a client was sent away, came back, or would better be
elsewhere: a client that ignores where it is sent may come back the next morning."""

LASTING: Final = frozenset((State.KNOWN, State.SENT, State.KEPT))
"""States that last a day; the others end with an answer, or soon."""

MAX_REMEMBERED: Final = 1000
"""characters of the filters and topics of a client that are remembered for its next CONNECT; with
more of them none are."""


class Interest:
    """What a client subscribes to, and publishes."""

    __slots__ = ("publish", "subscribe")

    def __init__(self, subscribe: tuple[str, ...] = (), publish: tuple[str, ...] = ()) -> None:
        self.subscribe = subscribe
        self.publish = publish

    def __bool__(self) -> bool:
        return bool(self.subscribe or self.publish)

    @property
    def size(self) -> int:
        """Characters of all names."""
        return sum([len(name) for name in self.subscribe + self.publish])


NOTHING_KNOWN: Final = Interest()


class Entry:
    """One client."""

    __slots__ = ("interest", "number", "state", "until")

    def __init__(self) -> None:
        self.state = State.NEW
        self.until = 0.0
        """When a state that lasts is over (s)."""
        self.number = 0
        """Of the newest question or look: what comes of an older one is too late."""
        self.interest: Interest = NOTHING_KNOWN
        """What is remembered for its next CONNECT, or what its CONNECT has said."""


class RedirectTable:
    """All clients of which something is remembered."""

    def __init__(self, most: int) -> None:
        """`most`: clients; while there are as many, no further client is looked at."""
        self._most = most
        self._entries: dict[str, Entry] = {}
        # Those whose state lasts, the first to end first: all last equally long.
        self._lasting: OrderedDict[str, Entry] = OrderedDict()
        self._number = 0

    def __len__(self) -> int:
        """Return of how many clients something is remembered."""
        return len(self._entries)

    @property
    def waiting(self) -> int:
        """How many clients are to be asked about, or wait for the answer."""
        return len(self._entries) - len(self._lasting)

    def state(self, client: str, now: float) -> State:
        """Return the state of a `client` at `now` (s)."""
        self._expire(now)
        entry = self._entries.get(client)
        return State.NEW if entry is None else entry.state

    def interest(self, client: str) -> Interest:
        """Return what is remembered of the topics of a `client`."""
        entry = self._entries.get(client)
        return NOTHING_KNOWN if entry is None else entry.interest

    def remember(self, client: str, interest: Interest) -> None:
        """Remember what a `client` that is known subscribes to and publishes (`interest`), for its
        next CONNECT."""
        entry = self._entries.get(client)
        if entry is not None:
            entry.interest = interest if interest.size <= MAX_REMEMBERED else NOTHING_KNOWN

    def takes(self, client: str, now: float) -> bool:
        """Return whether something can be remembered of a `client` at `now` (s)."""
        self._expire(now)
        return client in self._entries or len(self._entries) < self._most

    def step(self, client: str, given: Input, now: float) -> Action:
        """Return what is to be done about a `client`, and go to its next state. The table must take
        it (`takes`).

        `given`: what has happened to it; `now`: s.

        Raises:
            ImpossibleInputError: that cannot happen in its state.
        """
        self._expire(now)
        entry = self._entries.get(client)
        if entry is None:
            entry = Entry()
        action, state = look_up(TRANSITIONS, entry.state, given, "a client to redirect")
        changed = state is not entry.state
        entry.state = state
        if state is State.NEW:
            self._entries.pop(client, None)
        else:
            self._entries[client] = entry
        if changed:
            self._lasting.pop(client, None)
            if state in LASTING:
                entry.until = now + DAY
                self._lasting[client] = entry
                if state is not State.KNOWN:
                    entry.interest = NOTHING_KNOWN
        return action

    def begin(self, client: str) -> int:
        """Return the number of a new question or look about a `client` that is known: what comes
        of older ones is too late from now on."""
        self._number += 1
        self._entries[client].number = self._number
        return self._number

    def awaits(self, client: str, number: int) -> bool:
        """Return whether a `client` still waits for the question or look with this `number`."""
        entry = self._entries.get(client)
        return entry is not None and entry.number == number and entry.state not in LASTING

    def _expire(self, now: float) -> None:
        lasting = self._lasting
        while lasting:
            client, entry = next(iter(lasting.items()))
            if entry.until > now:
                return
            del lasting[client], self._entries[client]
