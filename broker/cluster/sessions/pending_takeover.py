"""One session that this broker takes from another one: where that has got to (`takeover` shows the
whole of it)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from broker.cluster.link.codec import Vector
from broker.cluster.sessions.message_vectors import need_of
from broker.cluster.sessions.session_parts import SessionParts

if TYPE_CHECKING:
    from broker.auth.authorization import Permissions
    from broker.cluster.delivery.subscription_start import SubscriptionStart
    from broker.cluster.sessions.session_codec import SessionState
    from broker.core.connect import ConnectHandshake
    from broker.core.session import Session

ASKING, READING, COVERING, RESTORING, SETTLING, RESTING, CLOSING = range(7)
"""States of a move."""

RETRY = 0.25
"""s between two requests for the same."""


class PendingTakeover:
    """A session that we take."""

    __slots__ = (
        "began",
        "client_id",
        "dropped",
        "handshake",
        "heard",
        "holder",
        "hops",
        "left",
        "parts",
        "seen",
        "session",
        "since",
        "stamp",
        "start",
        "state",
        "told",
        "waiting",
        "work",
    )

    def __init__(
        self, handshake: ConnectHandshake, client_id: str, stamp: int, holder: bytes, now: float
    ) -> None:
        self.handshake = handshake
        self.client_id = client_id
        self.stamp = stamp
        self.holder = holder
        self.hops = 0  # brokers that said who has it instead
        self.state = ASKING
        self.began = self.since = self.heard = now  # the move; this state; the holder's last word
        self.parts = SessionParts()
        self.work: Iterator[int] | None = None  # what is done in steps just now
        self.session: Session | None = None
        # An older one here that was added to it.
        self.left: tuple[int, Permissions | None, SessionState] | None = None
        self.seen: Vector = {}  # what the holder has offered it,
        self.waiting = 0  # and what of that waited
        self.start: SubscriptionStart | None = None  # what is published behind it comes here
        # Or what is published behind these numbers: their brokers had published them when they
        # heard of it.
        self.told: dict[bytes, int] = {}
        # with flooding: what has been here, but not at the holder, and is in our log no more
        self.dropped: Vector = {}

    def slow(self, last_heard: float) -> bool:
        """Whether the links to the holder are slow, rather than it silent: something has come over
        them (s) since it was asked. A new session cannot tell what comes late over them from what
        is new, and would get again what this one has had."""
        return last_heard > max(self.heard, self.since) + RETRY

    @property
    def need(self) -> Vector:
        """What has to have come to the session at its holder."""
        return self.dropped or need_of(
            (self.told, *((self.start.tops,) if self.start is not None else ()))
        )
