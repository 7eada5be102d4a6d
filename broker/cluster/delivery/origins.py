"""The origins of messages, and which of their sequence numbers have been at this broker.

An origin is one incarnation of a broker: its id and boot number. A `LocalWindow` says which of
its numbers have been here. This broker is an origin like all others, and so are earlier
incarnations of it whose messages the journal has brought back.
"""

from __future__ import annotations

from mqttree.broker.base.broker_id import Identity
from mqttree.broker.cluster.delivery.local_window import LocalVector, LocalWindow
from mqttree.broker.cluster.link.origin_keys import origin_key


class Origins:
    """The origins that are known here."""

    __slots__ = (
        "_most_gaps",
        "down",
        "highest",
        "key",
        "ours",
        "own",
        "own_id",
        "since",
        "vector",
    )

    def __init__(self, own: Identity, now: float, *, most_gaps: int) -> None:
        """`own`: the identity of this broker; `now`: s; `most_gaps`: so many gaps of one origin are
        remembered (`Limits.max_gaps`)."""
        self._most_gaps = most_gaps
        self.own_id = own.id
        self.key = origin_key(own.id, own.boot)
        """The origin of what is published here: this broker's id and boot number."""
        self.own = LocalWindow(0, now, None, most_gaps)
        self.vector: LocalVector = {self.key: self.own}
        """By origin: which of its numbers have been here."""
        self.ours: dict[bytes, None] = {self.key: None}
        """This incarnation, and earlier ones of this broker whose messages the log has."""
        self.since = own.boot
        """Boot number: of origins that started later, this broker wants all messages from the first
        one on. Sessions may be older than this incarnation."""
        self.down = 0.0
        """s for which this broker was down before it started."""
        self.highest: dict[bytes, int] = {}
        """Origin -> the highest number that some local session has had at another broker, or that
        was published before it subscribed. Above it, and while it is empty, no session has to be
        looked at."""

    def remember(self, key: bytes, last: int, now: float) -> None:
        """Add the origin `key`, an earlier incarnation of this broker that published up to number
        `last`: others may ask for its messages. Local sessions have had them. `now`: s."""
        self.recorded(key, last, now)
        self.ours[key] = None

    def recorded(self, key: bytes, last: int, now: float) -> None:
        """Note that the journal has what the earlier incarnation `key` of this broker published, up
        to number `last`. What is behind that only others have had, and no session here. `now`:
        s."""
        window = self.vector.setdefault(key, LocalWindow(0, now, None, self._most_gaps))
        window.begin = window.top = max(window.top, last)

    def uncounted(self, key: bytes) -> float:
        """Return how much older (s) the messages of an origin are than the log says, which does not
        count the time in which this broker was down."""
        return self.down if key != self.key and key in self.ours else 0.0

    def forget(self, key: bytes) -> bool:
        """Forget an origin. Returns whether it was an earlier incarnation of this broker."""
        del self.vector[key]
        self.highest.pop(key, None)
        if key in self.ours:
            del self.ours[key]
            return True
        return False
