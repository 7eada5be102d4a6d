"""Which local subscribers get a topic, and how: found once for all topics with the same receivers,
and kept until subscriptions change (see `route_cache`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from broker.wire.varint import encode_varint

if TYPE_CHECKING:
    from broker.core.session import Session, SharedGroup, Subscription
    from routing.group_selection import Pool


Interned = dict["tuple[Session, ...]", "tuple[Session, ...]"]
"""Receivers, each tuple of them once."""

Key = tuple[
    "tuple[Subscription, ...]",
    "tuple[SharedGroup, ...]",
    "Sequence[tuple[Pool, SharedGroup | None]]",
    "frozenset[Session] | None",
    tuple[bytes, ...],
]
"""What decides about a route: the subscriptions that match the topic, in a fixed order; groups of
shared subscriptions with members here; those with members at other brokers, each with the one here;
members of groups that may receive the topic, None: all; other brokers with a matching filter, with
routing by interest or by topic."""

NO_KEY: Final[Key] = ((), (), (), None, ())

NO_LINKS: Final[list[Any]] = []
NO_WAYS: Final[dict[bytes, list[Any]]] = {}
"""Of routes for which they have not been looked up yet; both are replaced then, and stay empty."""


class Delivery:
    """How one session gets the messages of one topic: overlapping subscriptions merged
    (MQTT-3.3.4-2, -3; one copy, highest QoS)."""

    __slots__ = ("ids", "no_local", "own", "qos", "retain_as_published", "session")

    def __init__(self, session: Session, subscriptions: list[Subscription]) -> None:
        self.session = session
        self.qos = max(s.qos for s in subscriptions)
        self.no_local = any(s.no_local for s in subscriptions)
        # With No Local: what the session gets of its own messages (MQTT-3.8.3-3).
        self.own: Delivery | None = None
        if self.no_local:
            others = [s for s in subscriptions if not s.no_local]
            self.own = Delivery(session, others) if others else None
        self.retain_as_published = any(s.retain_as_published for s in subscriptions)
        self.ids = b"".join(encode_identifier(s.identifier) for s in subscriptions if s.identifier)

    @property
    def plain(self) -> bool:
        """Whether this session takes QoS 0 packets as they came, byte for byte."""
        return not (self.no_local or self.ids or self.session.limited)


class Route:
    """The sessions that get a topic, sorted by how, and where else it goes. All topics with the
    same receivers share one; a topic has it until a subscription that matches it changes."""

    __slots__ = (
        "brokers",
        "deliveries",
        "elsewhere",
        "forward",
        "generation",
        "granted",
        "key",
        "links",
        "onward",
        "permitted",
        "plain4",
        "plain5",
        "raw4",
        "raw5",
        "shared",
        "special",
        "topics",
    )

    def __init__(
        self,
        deliveries: Sequence[Delivery],
        shared: Sequence[SharedGroup],
        forward: bool,
        interned: Interned,
    ) -> None:
        """`deliveries`: what each session gets; `shared`: groups that get it; `forward`: whether
        other brokers may get it; `interned`: tuples of receivers, so that equal ones are one
        object."""
        # Empty tuples: many routes have hardly any receivers, and lists of theirs would be many for
        # the collector.
        self.deliveries = deliveries or ()
        self.shared = shared or ()
        # Groups that other brokers have members of, with ours.
        self.elsewhere: Sequence[tuple[Pool, SharedGroup | None]] = ()
        # What all receivers were granted at least; without one, any packet may go as it is.
        self.granted = min((d.qos for d in deliveries), default=2)
        self.forward = forward  # goes over links: every topic that does not begin with '$'
        # Members of `shared` that may receive the topic; None: all.
        self.permitted: set[Session] | None = None
        # The other brokers with a matching filter, with routing by interest or by topic.
        self.brokers: Sequence[bytes] = ()
        self.generation = -1  # of `InterestTable`, for which `links` is right
        # Those that lead to these brokers.
        self.links: list[Any] = NO_LINKS
        # The same for messages of other origins, with routing by topic.
        self.onward: dict[bytes, list[Any]] = NO_WAYS
        # What it is found by among the routes that topics share; how many topics have it.
        self.key = NO_KEY
        self.topics = 0
        self.plain4: Sequence[Session] = ()
        self.plain5: Sequence[Session] = ()
        self.special: Sequence[Delivery] = ()
        if deliveries:
            plain = [delivery.session for delivery in deliveries if delivery.plain]
            self.plain4 = [session for session in plain if session.version != 5] or ()
            self.plain5 = [session for session in plain if session.version == 5] or ()
            self.special = [delivery for delivery in deliveries if not delivery.plain] or ()
        # The sessions that get QoS 0 packets of 3.x and 5 clients byte for byte, when none needs
        # them otherwise. One tuple for all topics with the same receivers, so that packets of
        # different topics can go out as one piece.
        self.raw4: tuple[Session, ...] | None = None
        self.raw5: tuple[Session, ...] | None = None
        if not (self.special or self.shared):
            if not self.plain5:
                raw4 = tuple(self.plain4)
                self.raw4 = interned.setdefault(raw4, raw4)
            if not self.plain4:
                raw5 = tuple(self.plain5)
                self.raw5 = interned.setdefault(raw5, raw5)


def encode_identifier(identifier: int) -> bytes:
    """Encode a Subscription Identifier property (MQTT-3.3.2.3.8)."""
    return b"\x0b" + encode_varint(identifier)
