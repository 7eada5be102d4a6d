"""The origins of messages: which of their numbers have been at this broker.

An origin is one incarnation of a broker: its id and boot number. What has been here of it is an
`OriginWindow`; this broker is an origin like all others, and so are earlier incarnations of it of
which the journal has brought back messages.
"""

from __future__ import annotations

from broker.base.broker_id import Identity
from broker.cluster.link.codec import LAST, OriginWindow, Vector, origin_key


class Origins:
    """All origins that are known here."""

    __slots__ = (
        "down",
        "highest",
        "key",
        "ours",
        "own",
        "own_id",
        "since",
        "sparse",
        "vector",
    )

    def __init__(self, own: Identity, now: float, *, sparse: bool) -> None:
        self.own_id = own.id
        self.key = origin_key(own.id, own.boot)
        """The origin that this broker is."""
        self.own = OriginWindow(0, now)
        self.vector: Vector = {self.key: self.own}
        """By origin, what has been here of it."""
        self.ours = {self.key}
        """This incarnation, and earlier ones of this broker of which the log has messages."""
        self.since = own.boot
        """What began later we miss from its first message on; sessions may be older than we are."""
        self.down = 0.0
        """s for which this broker was down before it started."""
        self.highest: dict[bytes, int] = {}
        """Origin -> the highest number that some session here has had elsewhere, or that was
        published before it subscribed. Empty as long as there is none: look here first."""
        self.sparse = sparse
        """Whether some broker routes by interest, so that numbers that do not come may be wanted by
        nobody: each origin has an ordered feed then."""

    def remember(self, key: bytes, last: int, now: float) -> None:
        """Go on with what an earlier incarnation of this broker published, up to number `last`:
        others may ask for it. Sessions here have had it."""
        window = self.vector.setdefault(key, OriginWindow(0, now))
        window.begin = LAST
        window.top = max(window.top, last)
        self.ours.add(key)

    def uncounted(self, key: bytes) -> float:
        """Return how much older (s) the messages of an origin are than our log says: it does not
        count the time in which this broker was down."""
        return self.down if key != self.key and key in self.ours else 0.0

    def forget(self, key: bytes) -> bool:
        """Forget an origin; returns whether it was an earlier incarnation of this broker."""
        del self.vector[key]
        self.highest.pop(key, None)
        if key in self.ours:
            self.ours.discard(key)
            return True
        return False
