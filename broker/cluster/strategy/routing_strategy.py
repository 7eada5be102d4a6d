"""What a way of routing messages decides (docs/decisions/0036).

There is one for each value of `--routing`, chosen in `selection`. No other module asks which one it
is: what differs between them is asked here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from broker.cluster.events import (
    LinkBehind,
    LinkDown,
    LinkDrained,
    LinkUp,
    NewsLearnt,
    RouteChanged,
)
from broker.cluster.link.link import Link
from broker.cluster.strategy.ports import Feed
from broker.core.receiver_assignment import ReceiverAssignment


class RoutingStrategy(Protocol):
    """Which links a message takes, and what follows from that when links and brokers come and go.

    Keys are origins (broker id and boot in base64, 16 characters), topics are UTF-8, times are s.
    """

    @property
    def name(self) -> str:
        """The word of `--routing`."""

    @property
    def leaves_out(self) -> bool:
        """Whether a message may never come to a broker that does not want it: then what is missing
        is no loss, and whoever wants more of an origin has to ask it (ordered feeds)."""

    @property
    def telling(self) -> bool:
        """Whether the other brokers are told which filters are wanted here."""

    @property
    def memory(self) -> int:
        """Bytes that filters take, here and of others."""

    # ---------------------------------------------------------------- next hops

    def next_hops(self, topic: bytes) -> list[Link]:
        """Return the links that a message takes which was published here."""

    def onward(self, topic: bytes, key: bytes, source: Link) -> list[Link]:
        """Return the links that a message of another broker takes from here. It came over `source`,
        which may be one of them; empty, or `source` alone: it goes no further."""

    def everywhere(self, key: bytes) -> list[Link]:
        """Return the links that a message for all brokers takes from here."""

    def assigned(self, choice: ReceiverAssignment, links: list[Link], key: bytes) -> list[Link]:
        """Return the links that a message takes which is assigned to brokers: those of its topic
        (`links`), and those that lead to these brokers."""

    def admit(self, key: bytes, feed: Feed | None, link: Link) -> None:
        """Note that a message of QoS 1 or 2 that came over `link` is about to be passed on; `feed`:
        what is here of its origin. Those behind us are told if it may be ahead of others."""

    def live_hop(self, message: bytes) -> Link | None:
        """Return the link that a routed message takes which must not leave the messages of its
        sender; None: it is dropped."""

    def passes_answer(self, receiver: bytes, sender: bytes) -> bool:
        """Whether an answer to the `receiver` goes on from here, as this broker knows what it
        wants."""

    def carries(self, link: Link) -> bool:
        """Whether messages may take a link now."""

    def uses(self, link: Link) -> bool:
        """Whether messages may take a link that the spanning tree has blocked."""

    # ---------------------------------------------------------------- what is wanted

    def filter_changed(self, topic_filter: str, *, wanted: bool) -> None:
        """Note the first subscription to a filter here, or that the last one has gone."""

    def on_posted(self, call: Callable[[], None]) -> None:
        """Have `call` called for each filter that the others are told."""

    def knows_behind(self, link: Link) -> bool:
        """Whether it is known what is wanted behind a link, as far as that decides what takes
        it."""

    def wanted_behind(self, link: Link, *, gone: bool = False) -> Callable[[bytes], bool]:
        """Return what tells whether a topic is wanted behind a link, in the live stream or not yet.
        `gone`: of an origin that cannot be reached."""

    def wanted_by(self, broker_id: bytes) -> Callable[[bytes], bool]:
        """Return what tells whether one broker wants a topic; if that is not known, it does."""

    def leads_to(self, link: Link, broker_id: bytes, *, gone: bool = False) -> bool:
        """Whether what is replayed to a link's neighbour reaches a broker. `gone`: see
        `wanted_behind`."""

    # ---------------------------------------------------------------- links and brokers

    def route_changed(self, event: RouteChanged) -> None:
        """Note that another neighbour leads to a broker over the spanning tree, or that none
        does."""

    def link_up(self, event: LinkUp) -> None:
        """Note that a handshake is complete."""

    def link_joining(self, link: Link) -> None:
        """Note that a link is about to enter the live stream: what goes over it from now on is not
        what went there before. Called once numbers are left out."""

    def live_changed(self) -> None:
        """Note that a link has entered or left the live stream."""

    def link_measured(self, link: Link) -> None:
        """Note a round trip."""

    def link_overflowed(self, event: LinkBehind) -> None:
        """Note that more waits for a link than it may keep."""

    def link_drained(self, event: LinkDrained) -> None:
        """Note that nothing waits for it any more."""

    def link_lost(self, event: LinkDown) -> None:
        """Note that a link is gone."""

    # ---------------------------------------------------------------- paths

    def path_changed(self, broker_id: bytes, old: Link | None) -> bool:
        """Note that the spanning tree leads another way to a broker, or not at all; `old`: the link
        that led there. Returns whether messages of that broker come another way. Called once
        numbers are left out."""

    def restarted(self, broker_id: bytes) -> bool:
        """Note that a broker may be another incarnation; returns whether what comes of it may not
        be whole for that."""

    def breaks(self, feed: Feed, link: Link | None) -> bool:
        """Whether a BREAK that came over `link` concerns a feed."""

    def precedes_directory(self) -> bool:
        """Whether a broker's messages may be here before the directory knows it."""

    def exchanging(self) -> list[Link]:
        """Return the links with whose neighbours we compare what is here of an origin that is gone,
        as they may have had other messages of it."""

    def astray(self) -> list[bytes]:
        """Return the brokers that the spanning tree has lost and that messages still go to and come
        from."""

    # ---------------------------------------------------------------- time

    def tick(self, now: float) -> None:
        """Do what is due at times."""

    def settle(self, now: float) -> bool:
        """Find paths again if anything has changed; False when nothing was done."""

    def next_deadline(self) -> float | None:
        """When `settle` is due (s); None: it is not."""

    def news_learnt(self, event: NewsLearnt) -> None:
        """Note that watchers of the directory have been told what is new, and neighbours have
        not."""

    def retire(self) -> None:
        """Have messages of others go around this broker, as it is going to stop."""

    def report(self) -> dict[str, Any]:
        """Return what /api/federation says of it besides its name."""
