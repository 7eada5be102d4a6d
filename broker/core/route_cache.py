"""The routes of topics that were published to before, each kept until a subscription that matches
its topic changes.

A change of a filter without wildcards forgets the route of one topic. Which of very many topics a
filter with wildcards matches is not looked up when it changes, but when their next message comes:
until then their routes are doubtful. Those that no changed filter matches stay.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

from mqttree.broker.base import costs
from mqttree.broker.core.route import Beyond, Found, Interned, Route
from mqttree.routing.subscription_trie import SubscriptionTrie
from mqttree.routing.topic_filter import is_wildcard

if TYPE_CHECKING:
    from mqttree.broker.core.limits import CoreLimits

EVICTED: Final = 64
"""routes that make room at a time: all of them at once would take long."""


class Viewer(Protocol):
    """A client that finds routes in its own table, as rules say which topics it may publish to."""

    @property
    def routes(self) -> dict[bytes, Route]:
        """Kept routes by topic (UTF-8): those that this client may publish to."""


class RouteCache:
    """Routes by topic. Topics with the same receivers share one."""

    __slots__ = (
        "_changed",
        "_doubtful",
        "_limits",
        "_receivers",
        "_shared",
        "_shared_count",
        "_stale",
        "_viewing",
        "interned",
        "routes",
        "viewers",
    )

    def __init__(self, limits: CoreLimits) -> None:
        self._limits = limits
        self.routes: dict[bytes, Route] = {}
        """Those that are valid; always this object, as clients look into it."""
        self.interned: Interned = {}
        # Routes of before the filters in `_changed` were added or removed.
        self._doubtful: dict[bytes, Route] = {}
        self._changed: SubscriptionTrie[bool] = SubscriptionTrie()
        # By who else gets them, then by subscriptions: a route holds both tuples anyway.
        self._shared: dict[Beyond, dict[Found, Route]] = {}
        self._shared_count = 0
        self._receivers = 0  # in all of these
        self._stale = False  # `interned` may hold sessions that have ended
        self.viewers: dict[bytes, set[Viewer]] = {}
        """By topic, the clients that have its route among their own."""
        self._viewing: set[Viewer] = set()

    def __len__(self) -> int:
        """Return the number of topics."""
        return len(self.routes) + len(self._doubtful)

    @property
    def memory(self) -> int:
        """Bytes that it takes, about."""
        return (
            len(self) * costs.TOPIC_MEMORY
            + self._shared_count * costs.ROUTE_MEMORY
            + self._receivers * costs.RECEIVER_MEMORY
        )

    @property
    def ages(self) -> bool:
        """Whether `age` is to be called."""
        return self._stale or bool(self._doubtful)

    # ---------------------------------------------------------------- finding

    def valid(self, topic: bytes, name: str) -> Route | None:
        """Return the route of a topic that is not among `routes`, if no filter that matches `name`,
        the topic as text, has changed. From now on it is among them."""
        if not self._doubtful:
            return None
        route = self._doubtful.pop(topic, None)
        if route is None:
            return None
        if self._changed.match(name):
            self._release(route)
            return None
        self.routes[topic] = route
        return route

    def shared(self, found: Found, beyond: Beyond) -> Route | None:
        """Return the route that topics share which these subscriptions match (`found`) and which
        others get, too (`beyond`), if there is one."""
        routes = self._shared.get(beyond)
        return None if routes is None else routes.get(found)

    def keep(self, topic: bytes, route: Route, found: Found) -> None:
        """Keep the `route` of a `topic` for its next message, and for all topics with the same
        receivers. `found`: the subscriptions that match it. Too many topics, or too many receivers:
        those go that came first."""
        routes = self.routes
        if len(routes) + len(self._doubtful) >= self._limits.route_cache:
            self._evict()
        if not route.topics:
            self._share(route, found)
        route.topics += 1
        routes[topic] = route

    def _share(self, route: Route, found: Found) -> None:
        limits = self._limits
        while self._receivers > limits.route_cache_deliveries and len(self):
            self._evict()
        if len(self.interned) >= limits.interned_receivers:
            self.interned.clear()
        route.found = found
        routes = self._shared.get(route.beyond)
        if routes is None:
            routes = self._shared[route.beyond] = {}
        routes[found] = route
        self._shared_count += 1
        self._receivers += len(route.deliveries)

    def _evict(self, count: int = EVICTED) -> None:
        """Forget the routes of `count` topics, those that came first."""
        for topic in list(islice(self._doubtful or self.routes, count)):
            self._forget(topic)
        if not self._doubtful:
            self._settled()

    def _settled(self) -> None:
        """No route is doubtful any more."""
        if len(self._changed):
            self._changed = SubscriptionTrie()

    # ---------------------------------------------------------------- forgetting

    def invalidate(self, topic_filter: str) -> None:
        """Forget the routes of the topics that a filter matches which was added or removed."""
        self._stale = bool(self.interned)
        if not is_wildcard(topic_filter):
            self._forget(topic_filter.encode())
            return
        self._doubt()
        if self._doubtful:
            self._changed.insert(topic_filter, 0, True)
            if len(self._changed) > self._limits.changed_filters:
                self.clear()

    def _doubt(self) -> None:
        """Have each route looked at before it is used again."""
        if not self._doubtful:
            self._settled()
        if self.routes:
            self._doubtful.update(self.routes)
            self.routes.clear()
        if self._viewing:
            self._unshow(self._viewing)

    def _unshow(self, viewers: Iterable[Viewer]) -> None:
        for viewer in viewers:
            viewer.routes.clear()
        self._viewing.clear()
        self.viewers.clear()

    def _forget(self, topic: bytes) -> None:
        route = self.routes.pop(topic, None) or self._doubtful.pop(topic, None)
        if route is not None:
            self._release(route)
        if self.viewers:
            for viewer in self.viewers.pop(topic, ()):
                viewer.routes.pop(topic, None)

    def _release(self, route: Route) -> None:
        route.topics -= 1
        if route.topics:
            return
        routes = self._shared.get(route.beyond)
        if routes is not None and routes.pop(route.found, None) is not None:
            self._shared_count -= 1
            self._receivers -= len(route.deliveries)
            if not routes:
                del self._shared[route.beyond]

    def age(self) -> None:
        """Forget some routes that have been doubtful for long, to be called once a second: they may
        hold sessions that have ended."""
        if self._doubtful:
            self._evict(self._limits.routes_aged)
        if self._stale:
            self._stale = False
            self.interned.clear()

    def clear(self) -> None:
        """Forget all routes, and take those that clients have in tables of their own back."""
        self._unshow(self._viewing)
        self.routes.clear()
        self._doubtful.clear()
        self._settled()
        self._shared.clear()
        self._shared_count = 0
        self.interned.clear()
        self._stale = False
        self._receivers = 0

    # ---------------------------------------------------------------- rules

    def show(self, route: Route, topic: bytes, viewer: Viewer) -> None:
        """Let a client (`viewer`) that may publish to a `topic` find its `route` without being
        asked again, as long as the route is kept."""
        if self.routes.get(topic) is route:
            self.viewers.setdefault(topic, set()).add(viewer)
            self._viewing.add(viewer)
            viewer.routes[topic] = route

    def hide(self, viewer: Viewer) -> None:
        """Forget what a client was shown."""
        if viewer in self._viewing:
            self._viewing.discard(viewer)
            for topic in viewer.routes:
                viewers = self.viewers.get(topic)
                if viewers is not None:
                    viewers.discard(viewer)
                    if not viewers:
                        del self.viewers[topic]
            viewer.routes.clear()
