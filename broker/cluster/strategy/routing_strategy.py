"""What a routing strategy decides (docs/decisions/0036).

There is one strategy for each value of `--routing`, chosen in `selection`. No other module asks
which one it is: everything in which they differ is a method of this Protocol.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from mqttree.broker.cluster.events import (
    EntriesHandled,
    LinkBehind,
    LinkDown,
    LinkDrained,
    LinkUp,
    RouteChanged,
)
from mqttree.broker.cluster.link.link import Handler, Link
from mqttree.broker.cluster.strategy.ports import Feed
from mqttree.broker.core.receiver_assignment import ReceiverAssignment
from mqttree.broker.core.route import Route


class RoutingStrategy(Protocol):
    """Which links a message takes, and what follows from that when links and brokers come and go.

    Keys are origins (broker id and boot in base64, 16 characters), topics are UTF-8, times are s.
    """

    @property
    def name(self) -> str:
        """The value of `--routing` that chooses this strategy (`routing_modes.ROUTINGS`)."""

    @property
    def ordered(self) -> bool:
        """Whether messages of one origin come here over one path, so that each origin has an
        ordered feed. If not, topics have paths of their own, and messages overtake each other: a
        number that comes behind newer ones is taken, also at QoS 0."""

    @property
    def posting(self) -> bool:
        """Whether this broker posts the filters that are wanted here."""

    @property
    def memory(self) -> int:
        """Bytes that the filters take, those of this broker and of others."""

    @property
    def records(self) -> dict[int, Handler]:
        """What takes the records that brokers with this strategy send each other, by their type;
        none if all that they tell goes through the directory."""

    # ---------------------------------------------------------------- next hops

    def next_hops(self, topic: bytes) -> list[Link]:
        """Return the links that a message to `topic` takes that was published here."""

    @property
    def generation(self) -> int:
        """Grows when messages may take other links to the same brokers than before."""

    def links_of(self, route: Route) -> list[Link]:
        """Return the links that messages with this `route` take that were published here. They are
        in `route.links` as long as `route.generation` is `generation`."""

    def passes_on(self, key: bytes, source: Link) -> bool:
        """Whether messages of the origin `key` that come over `source` may take another link from
        here."""

    def links_onward(self, route: Route, key: bytes, source: Link) -> list[Link]:
        """Return the links that messages with this `route` take from here that came over `source`,
        which may be one of them; `key`: of their origin."""

    def brokers_wanting(self, topic: str) -> tuple[bytes, ...]:
        """Return the other brokers that want a `topic`, if these decide which links it takes. Valid
        until `Dispatcher.invalidate` is called for a filter that matches the topic."""

    def onward(self, topic: bytes, key: bytes, source: Link) -> list[Link]:
        """Return the links that a message to `topic` of the origin `key` takes from here. It came
        over `source`, which may be one of them; empty, or `source` alone: it goes no further."""

    def everywhere(self, key: bytes) -> list[Link]:
        """Return the links that a message for all brokers takes from here."""

    def assigned(self, choice: ReceiverAssignment, links: list[Link], key: bytes) -> list[Link]:
        """Return the links that a message of the origin `key` takes that is given to members at
        brokers (`choice`): those of its topic (`links`), and those that lead to these brokers."""

    def admit(self, key: bytes, feed: Feed | None, link: Link) -> None:
        """Note that a message at QoS 1 or 2 of the origin `key` that came over `link` is about to
        be passed on. `feed`: the origin's. The brokers behind this one hear of it (BREAK) if it may
        be ahead of older messages."""

    def live_hop(self, message: bytes) -> Link | None:
        """Return the link for a message to one broker that has to take the same path as the
        messages that its sender publishes; None: it is dropped."""

    def passes_answer(self, receiver: bytes, sender: bytes) -> bool:
        """Whether an answer of `sender` to `receiver` is passed on from here, as this broker knows
        the filters of the receiver."""

    def carries(self, link: Link) -> bool:
        """Whether messages may take a link now."""

    def uses(self, link: Link) -> bool:
        """Whether messages may take a link that the spanning tree has blocked."""

    # ---------------------------------------------------------------- what is wanted

    def filter_changed(self, topic_filter: str, *, wanted: bool) -> None:
        """Note the first subscription to a filter here, or that the last one has gone."""

    def on_posted(self, call: Callable[[], None]) -> None:
        """Have `call` called for each filter that is posted."""

    def knows_behind(self, link: Link) -> bool:
        """Whether the filters behind a link are known, if these decide which messages take it."""

    def wanted_behind(self, link: Link, *, gone: bool = False) -> Callable[[bytes], bool]:
        """Return a function that says whether a topic is wanted behind a link, whether it is live
        or not; `every_topic` if all are.
        `gone`: the origin of the messages cannot be reached."""

    def wanted_by(self, broker_id: bytes) -> Callable[[bytes], bool]:
        """Return a function that says whether one broker wants a topic; it does if that is not
        known."""

    def leads_to(self, link: Link, broker_id: bytes, *, gone: bool = False) -> bool:
        """Whether messages that are replayed to the neighbour at the end of `link` reach the broker
        `broker_id`. `gone`: see `wanted_behind`."""

    # ---------------------------------------------------------------- links and brokers

    def route_changed(self, event: RouteChanged) -> None:
        """Note that the spanning tree's path to a broker leads over another neighbour, or that
        there is none."""

    def link_up(self, event: LinkUp) -> None:
        """Note that a handshake is complete."""

    def link_joining(self, link: Link) -> None:
        """Note that a link is about to be live: other messages take it than before. Called only
        where messages are `ordered`."""

    def live_changed(self) -> None:
        """Note that a link has become live, or is not live any more."""

    def link_measured(self, link: Link) -> None:
        """Note that the round-trip time of a link was measured again."""

    def capability_changed(self, capability: float) -> None:
        """Note that the capability of this machine has changed."""

    def link_overflowed(self, event: LinkBehind) -> None:
        """Note that the queue of a link has overflowed."""

    def link_drained(self, event: LinkDrained) -> None:
        """Note that the queue of a link has drained."""

    def link_lost(self, event: LinkDown) -> None:
        """Note that a link is gone."""

    # ---------------------------------------------------------------- paths

    def path_changed(self, broker_id: bytes, old: Link | None) -> bool:
        """Note that the spanning tree's path to a broker has changed, or that there is none; `old`:
        the link that led there. Returns whether messages of that broker take another path. Called
        only where messages are `ordered`."""

    def restarted(self, broker_id: bytes) -> bool:
        """Note that a broker may be another incarnation. Returns whether messages of it may be
        missing because of that."""

    def breaks(self, feed: Feed, link: Link | None) -> bool:
        """Whether a BREAK that came over `link` concerns a feed."""

    def precedes_directory(self) -> bool:
        """Whether a broker's messages may arrive before its directory entries."""

    def exchanging(self) -> list[Link]:
        """Return the links with whose neighbours version vectors are exchanged when an origin is
        gone, as they may have had other messages of it."""

    def astray(self) -> list[bytes]:
        """Return the brokers that the spanning tree has lost, but that messages still go to and
        come from."""

    # ---------------------------------------------------------------- time

    def tick(self, now: float) -> None:
        """Do what is due at `now` (s). Called once a second."""

    def settle(self, now: float) -> bool:
        """Find paths again if anything has changed; `now`: s. Returns False if nothing was done."""

    def next_deadline(self) -> float | None:
        """When `settle` is due (s); None: it is not."""

    def entries_handled(self, event: EntriesHandled) -> None:
        """Note that watchers of the directory have got its new entries, but neighbours have not
        yet."""

    def retire(self) -> None:
        """Have messages of other brokers take paths around this one, as it is going to stop."""

    def report(self) -> dict[str, Any]:
        """Return what /api/v1/federation says of the strategy besides its name."""


def every_topic(topic: bytes) -> bool:
    """Say of any `topic` that it is wanted: what `wanted_behind` returns where topics decide
    nothing, so that no message is looked into for its topic."""
    return True
