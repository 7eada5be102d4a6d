"""What a routing strategy decides (docs/decisions/0036), by subject.

There is one strategy for each value of `--routing`, chosen in `selection`. No other module asks
which one it is: everything in which they differ is in one of these Protocols, and a module takes
the one that it needs.

Keys are origins (broker id and boot in base64, 16 characters), topics are UTF-8, times are s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from mqttree.broker.cluster.directory.unicast_bus import UnicastPaths
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
from mqttree.broker.core.ports import Interest
from mqttree.broker.core.receiver_assignment import ReceiverAssignment
from mqttree.broker.core.route import Route


class MessagePaths(UnicastPaths, Protocol):
    """Which kind of paths messages take. While these are `source_rooted`, a path of the spanning
    tree that changes is none of messages, a broker's messages may arrive before its directory
    entries, and neighbours may have had other messages of an origin that is gone."""

    @property
    def ordered(self) -> bool:
        """Whether messages of one origin come here over one path, so that each origin has an
        ordered feed. If not, topics have paths of their own, and messages overtake each other: a
        number that comes behind newer ones is taken, also at QoS 0."""

    def uses(self, link: Link) -> bool:
        """Whether messages may take a link that the spanning tree has blocked."""

    def astray(self) -> list[bytes]:
        """Return the brokers that the spanning tree has lost, but that messages still go to and
        come from."""

    def settle(self, now: float) -> bool:
        """Find paths again if anything has changed; `now`: s. Returns False if nothing was done."""

    def next_deadline(self) -> float | None:
        """When `settle` is due (s); None: it is not."""


class MessageHops(MessagePaths, Protocol):
    """Which links a message takes."""

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

    def everywhere(self, key: bytes) -> list[Link]:
        """Return the links that a message for all brokers takes from here."""

    def assigned(self, choice: ReceiverAssignment, links: list[Link], key: bytes) -> list[Link]:
        """Return the links that a message of the origin `key` takes that is given to members at
        brokers (`choice`): those of its topic (`links`), and those that lead to these brokers."""

    def announce_path_change(self, key: bytes, feed: Feed | None, link: Link) -> None:
        """Tell the brokers behind this one (BREAK) if a message at QoS 1 or 2 of the origin `key`
        that came over `link`, and is about to be passed on, may be ahead of older messages. `feed`:
        the origin's."""

    def on_live_links_changed(self) -> None:
        """Note that a link has become live, or is not live any more."""


class WantedTopics(MessagePaths, Interest, Protocol):
    """What is wanted here, and elsewhere. The answer of `brokers_wanting` is valid until
    `Dispatcher.invalidate` is called for a filter that matches the topic."""

    @property
    def posting(self) -> bool:
        """Whether this broker posts the filters that are wanted here."""

    def wanted_behind(self, link: Link, *, gone: bool = False) -> Callable[[bytes], bool]:
        """Return a function that says whether a topic is wanted behind a link, whether it is live
        or not; `every_topic` if all are.
        `gone`: the origin of the messages cannot be reached."""

    def wanted_by(self, broker_id: bytes) -> Callable[[bytes], bool]:
        """Return a function that says whether one broker wants a topic; it does if that is not
        known."""


class RoutingStrategy(MessageHops, WantedTopics, Protocol):
    """All that a strategy decides, and what it hears of links, brokers and time."""

    @property
    def memory(self) -> int:
        """Bytes that the filters take, those of this broker and of others."""

    @property
    def records(self) -> dict[int, Handler]:
        """What takes the records that brokers with this strategy send each other, by their type;
        none if all that they tell goes through the directory."""

    def on_link_open(self, event: LinkUp | LinkDrained) -> None:
        """Note that the handshake of a link is complete, or that its queue has drained."""

    def on_link_closed(self, event: LinkDown | LinkBehind) -> None:
        """Note that a link is gone, or that its queue has overflowed."""

    def on_link_measured(self, link: Link) -> None:
        """Note that the round-trip time of a link was measured again."""

    def on_route_changed(self, event: RouteChanged) -> None:
        """Note that the spanning tree's path to a broker leads over another neighbour, or that
        there is none."""

    def on_entries_handled(self, event: EntriesHandled) -> None:
        """Note that watchers of the directory have got its new entries, but neighbours have not
        yet."""

    def tick(self, now: float) -> None:
        """Do what is due at `now` (s). Called once a second."""

    def retire(self) -> None:
        """Have messages of other brokers take paths around this one, as it is going to stop."""

    def report(self) -> dict[str, Any]:
        """Return what /api/v1/federation says of the strategy besides its name."""


def every_topic(topic: bytes) -> bool:
    """Say of any `topic` that it is wanted: what `wanted_behind` returns where topics decide
    nothing, so that no message is looked into for its topic."""
    return True
