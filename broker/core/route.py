"""Which local subscribers get a topic, and how: found once for all topics with the same receivers,
and kept until subscriptions change (see `route_cache`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mqttree.broker.core.session import Subscription
from mqttree.routing.group_selection import Pool

if TYPE_CHECKING:
    from mqttree.broker.core.session import Session, SharedGroup


Interned = dict["tuple[Session, ...]", "tuple[Session, ...]"]
"""Receivers, each tuple of them once."""

Found = tuple[Subscription, ...]
"""The subscriptions that match a topic, in a fixed order: with `Beyond`, what decides about its
route."""


class Beyond(NamedTuple):
    """Who gets a topic besides the sessions whose own subscriptions match it."""

    shared: tuple[SharedGroup, ...]
    """Groups of shared subscriptions with members here."""

    elsewhere: tuple[tuple[Pool, SharedGroup | None], ...]
    """Those with members at other brokers, each with the one here."""

    permitted: frozenset[Session] | None
    """Members of groups that may receive the topic; None: all."""

    brokers: tuple[bytes, ...]
    """The other brokers with a matching filter, with routing by interest or by topic."""


NOTHING_BEYOND: Final = Beyond((), (), None, ())

NO_ONE: Final[set[Session]] = set()
NO_LINKS: Final[list[Any]] = []
NO_WAYS: Final[dict[bytes, list[Any]]] = {}
"""Who is permitted if no client is; links of routes for which they have not been looked up yet.
These are replaced, never added to."""


class Delivery(Subscription):
    """How one session gets the messages of one topic by several subscriptions, which overlap: these
    are merged (MQTT-3.3.4-2, -3; one copy, highest QoS)."""

    __slots__ = ("_own",)

    def __init__(self, session: Session, subscriptions: Sequence[Subscription]) -> None:
        """Merge the `subscriptions` of one `session`, at least one."""
        no_local = any(s.no_local for s in subscriptions)
        super().__init__(
            session,
            "",
            max(s.qos for s in subscriptions),
            no_local,
            any(s.retain_as_published for s in subscriptions),
        )
        self.ids = b"".join(s.ids for s in subscriptions)
        self._own: Subscription | None = None
        if no_local:
            others = [s for s in subscriptions if not s.no_local]
            self._own = Delivery(session, others) if others else None

    @property
    def own(self) -> Subscription | None:
        """With No Local: how the session gets its own messages (MQTT-3.8.3-3), None: not at all."""
        return self._own


def deliveries_of(found: Found) -> Found:
    """Return how each session gets a topic that the subscriptions `found` match: `found` itself, as
    long as no session has several of them."""
    if len(found) < 2:
        return found
    sessions: dict[Session, list[Subscription]] = {}
    for subscription in found:
        sessions.setdefault(subscription.session, []).append(subscription)
    if len(sessions) == len(found):
        return found
    return tuple(
        [
            several[0] if len(several) == 1 else Delivery(session, several)
            for session, several in sessions.items()
        ]
    )


class Route:
    """The sessions that get a topic, sorted by how, and where else it goes. All topics with the
    same receivers share one; a topic has it until a subscription that matches it changes.

    There may be very many that one topic has for itself. So it holds tuples, which take less than
    lists, and the same one in several places where it can.
    """

    __slots__ = (
        "beyond",
        "deliveries",
        "elsewhere",
        "forward",
        "found",
        "generation",
        "granted",
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
        self, deliveries: Sequence[Subscription], beyond: Beyond, forward: bool, interned: Interned
    ) -> None:
        """`deliveries`: what each session gets; `beyond`: who gets it besides; `forward`: whether
        other brokers may get it; `interned`: tuples of receivers, so that equal ones are one
        object."""
        self.deliveries: Found = tuple(deliveries)
        self.beyond = beyond
        self.shared = beyond.shared
        # Groups that other brokers have members of, with ours.
        self.elsewhere = beyond.elsewhere
        # What all receivers were granted at least; without one, any packet may go as it is.
        self.granted = min([delivery.qos for delivery in deliveries], default=2)
        self.forward = forward  # goes over links: every topic but the broker's own
        # Members of `shared` that may receive the topic; None: all.
        self.permitted: set[Session] | None = None
        if beyond.permitted is not None:
            self.permitted = set(beyond.permitted) if beyond.permitted else NO_ONE
        self.generation = -1  # of `InterestTable`, for which `links` is right
        # Those that lead to the brokers that want the topic.
        self.links: list[Any] = NO_LINKS
        # The same for messages of other origins, with routing by topic.
        self.onward: dict[bytes, list[Any]] = NO_WAYS
        # What it is found by among the routes that topics share, with `beyond`; how many topics
        # have it.
        self.found: Found = ()
        self.topics = 0
        self.plain4 = _plain(deliveries, interned, five=False)
        self.plain5 = _plain(deliveries, interned, five=True)
        self.special: Found = tuple([delivery for delivery in deliveries if not delivery.plain])
        # The sessions that get QoS 0 packets of 3.x and 5 clients byte for byte, when none needs
        # them otherwise. One tuple for all topics with the same receivers, so that packets of
        # different topics can go out as one piece.
        self.raw4: tuple[Session, ...] | None = None
        self.raw5: tuple[Session, ...] | None = None
        if not (self.special or self.shared or self.elsewhere):
            if not self.plain5:
                self.raw4 = self.plain4
            if not self.plain4:
                self.raw5 = self.plain5

    @property
    def brokers(self) -> tuple[bytes, ...]:
        """The other brokers with a matching filter, with routing by interest or by topic."""
        return self.beyond.brokers


def _plain(
    deliveries: Sequence[Subscription], interned: Interned, *, five: bool
) -> tuple[Session, ...]:
    """Return the sessions that take QoS 0 packets as they came, of MQTT 5 clients (`five`) or of
    older ones. `deliveries`, `interned`: as of `Route`."""
    found = tuple(
        [
            delivery.session
            for delivery in deliveries
            if delivery.plain and (delivery.session.version == 5) is five
        ]
    )
    return interned.setdefault(found, found)
