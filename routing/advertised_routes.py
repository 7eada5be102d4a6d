"""SRT and PRT of one broker (Overlays 5.1, after PADRES; docs/decisions/0054).

A broker advertises each topic that is published at it to its neighbours in the spanning tree, and
these advertise it on. The *SRT* (subscription routing table) has the topics that each neighbour has
advertised: topic -> next hops towards its publishers. The *PRT* (publication routing table) has the
filters of local clients and of neighbours: filter -> who gets what matches it. A filter is sent to
those neighbours alone that have advertised a topic which it matches.

What a neighbour is to know follows from the tables, at any time, by two rules:

    topic   advertised to N   if it is published here, or advertised by another live neighbour
    filter  sent to N         if a client here or another live neighbour than N wants it, and it
                              matches a topic that N has advertised

`due` returns the difference to what it has been told. So withdrawals, several publishers of a
topic, wildcards, and tables that are rebuilt after a change of the tree need no rules of their own:
a link that is not live counts as one over which nothing was said, and as one over which nothing is
to be said. A topic that neighbours advertise to each other in a circle, while the tree has one,
goes when the circle does.

Invariants, when nothing is left to do and all that was due has arrived, on a tree of live links:

1. The SRT has a topic for a neighbour if and only if a broker behind that neighbour publishes it.
2. The PRT has a filter for a neighbour if and only if a broker behind it wants the filter and the
   filter matches a topic that is published on this side of the link.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import Final, NamedTuple

from mqttree.routing.subscription_trie import SubscriptionTrie
from mqttree.routing.topic_tree import TopicTree

ENTRY_MEMORY: Final = 500
"""bytes that a topic or a filter takes besides its text, about: levels, sets and dictionaries."""


SEARCHED: Final = 20_000
"""levels of topics, or nodes of the PRT, that are visited in one step, about: some ms of work, as
wildcards may match very many in vain."""


class Hop:
    """A neighbour, or the clients of this broker (`RoutingTables.here`): what it has said, what of
    that counts, and what it has been told."""

    __slots__ = (
        "due_filters",
        "due_topics",
        "filters",
        "id",
        "live",
        "memory",
        "sent_filters",
        "sent_topics",
        "told_filters",
        "told_topics",
        "topics",
    )

    def __init__(self, broker_id: bytes) -> None:
        """`broker_id`: of the neighbour."""
        self.id: Final = broker_id
        self.live = False
        """Whether messages may take the link; if not, nothing that it has said counts."""
        self.told_topics: dict[str, None] = {}
        """The topics that it has advertised."""
        self.told_filters: dict[str, float] = {}
        """The filters that it wants, and since when (s) a subscriber behind it waits."""
        self.topics = TopicTree()
        """Its part of the SRT."""
        self.filters: dict[str, float] = {}
        """Its part of the PRT: filter -> since when (s)."""
        self.sent_topics: dict[str, None] = {}
        self.sent_filters: dict[str, None] = {}
        # What may have to be said to it.
        self.due_topics: dict[str, None] = {}
        self.due_filters: dict[str, None] = {}
        self.memory = 0
        """Bytes of what it has said, about."""

    @property
    def due(self) -> bool:
        """Whether it may have to be told something."""
        return bool(self.due_topics or self.due_filters)


class Want(NamedTuple):
    """A row of the PRT."""

    hop: Hop
    filter: str


class Told(NamedTuple):
    """What a neighbour is to be told: a topic is advertised (`on`) or withdrawn, a filter is wanted
    or not, since so many s ago."""

    text: str
    on: bool
    age: float


class Arrival(NamedTuple):
    """A neighbour wants a filter which it did not want before, since a time (s)."""

    hop: Hop
    filter: str
    since: float


class RoutingTables:
    """SRT and PRT of one broker. Times are in s, and handed in."""

    def __init__(self, memory: int) -> None:
        """`memory`: bytes that the topics and filters of one neighbour may take, about; of more,
        those that come last are refused. The same for those of this broker's clients."""
        self._memory = memory
        self.here = Hop(b"")
        """The clients of this broker, which publish and subscribe as a neighbour does."""
        self.here.live = True
        self._neighbours: dict[Hop, None] = {}
        self._prt: SubscriptionTrie[Want] = SubscriptionTrie()
        # Topics (False) and filters (True) for which the tables may have to change.
        self._work: OrderedDict[tuple[Hop, bool, str], None] = OrderedDict()
        self.changed: dict[str, None] = {}
        """Filters for which other neighbours get messages than before; to be cleared by who reads
        them."""
        self.arrived: list[Arrival] = []
        """Filters of neighbours that are new in the PRT; to be cleared by who reads them."""

    @property
    def memory(self) -> int:
        """Bytes that all tables take, about."""
        return self.here.memory + sum([hop.memory for hop in self._neighbours])

    @property
    def published(self) -> int:
        """Topics that are published here."""
        return len(self.here.told_topics)

    def publishes(self, topic: str) -> bool:
        """Return whether a topic is known to be published here."""
        return topic in self.here.told_topics

    @property
    def topics(self) -> int:
        """Topics in the SRT, each counted once for each next hop."""
        return sum([len(hop.topics) for hop in self._neighbours])

    @property
    def filters(self) -> int:
        """Filters of neighbours in the PRT, each counted once for each neighbour."""
        return sum([len(hop.filters) for hop in self._neighbours])

    # ---------------------------------------------------------------- links

    def open(self, broker_id: bytes) -> Hop:
        """Return a neighbour whose link has come up, and which has said nothing yet."""
        hop = Hop(broker_id)
        self._neighbours[hop] = None
        return hop

    def close(self, hop: Hop, now: float) -> None:
        """Forget a neighbour whose link is gone."""
        self._neighbours.pop(hop, None)
        hop.live = False
        for topic_filter in hop.sent_filters:
            self._missing(topic_filter, hop, now)
        hop.sent_topics.clear()
        hop.sent_filters.clear()
        hop.due_topics.clear()
        hop.due_filters.clear()
        self._look_at_all(hop)

    def set_live(self, hop: Hop, live: bool) -> None:
        """Note whether messages may take the link of a neighbour."""
        if hop.live == live:
            return
        hop.live = live
        self._look_at_all(hop)
        if live:
            for other in (self.here, *self._neighbours):
                if other is not hop:
                    hop.due_topics.update(dict.fromkeys(other.topics))
        else:
            hop.due_topics.update(hop.sent_topics)
            hop.due_filters.update(hop.sent_filters)

    def _look_at_all(self, hop: Hop) -> None:
        for topic in hop.told_topics:
            self._work[hop, False, topic] = None
        for topic in hop.topics:
            self._work[hop, False, topic] = None
        for topic_filter in hop.told_filters:
            self._work[hop, True, topic_filter] = None

    # ---------------------------------------------------------------- what was said

    def advertised(self, hop: Hop, topic: str, on: bool) -> bool:
        """Note that a neighbour (`hop`) advertises a `topic`, or withdraws it (not `on`); `here`:
        that it is published here. Returns False if there is no room."""
        if (topic in hop.told_topics) != on:
            if on and not self._room(hop, topic):
                return False
            if on:
                hop.told_topics[topic] = None
            else:
                del hop.told_topics[topic]
                hop.memory -= cost(topic)
            self._work[hop, False, topic] = None
        return True

    def wanted(self, hop: Hop, topic_filter: str, since: float) -> bool:
        """Note that a neighbour (`hop`) wants a `topic_filter`, `since` a time (s); `here`: that
        clients do. Returns False if there is no room."""
        if topic_filter not in hop.told_filters and not self._room(hop, topic_filter):
            return False
        hop.told_filters[topic_filter] = since
        self._work[hop, True, topic_filter] = None
        return True

    def unwanted(self, hop: Hop, topic_filter: str) -> None:
        """Note that a neighbour, or clients (`here`), do not want a filter any more."""
        if hop.told_filters.pop(topic_filter, None) is not None:
            hop.memory -= cost(topic_filter)
            self._work[hop, True, topic_filter] = None

    def _room(self, hop: Hop, text: str) -> bool:
        size = cost(text)
        if hop.memory + size > self._memory:
            return False
        hop.memory += size
        return True

    # ---------------------------------------------------------------- the tables

    def work(self, most: int) -> bool:
        """Bring the tables up to date with what was said, `most` topics and filters at a time, or
        fewer if they match much. Returns whether more are left."""
        until = self._prt.steps + SEARCHED
        for _ in range(min(most, len(self._work))):
            if self._prt.steps > until:
                break
            (hop, is_filter, text), _ = self._work.popitem(last=False)
            if is_filter:
                self._filter(hop, text)
            else:
                self._topic(hop, text)
        return bool(self._work)

    def _topic(self, hop: Hop, topic: str) -> None:
        """Take a topic into the SRT, or out of it."""
        counts = hop.live and topic in hop.told_topics
        if counts == (topic in hop.topics):
            return
        if counts:
            hop.topics.add(topic)
        else:
            hop.topics.remove(topic)
        for other in self._neighbours:
            if other is not hop:
                other.due_topics[topic] = None
        if hop is not self.here:
            for want in self._prt.match(topic):
                if want.hop is not hop:
                    hop.due_filters[want.filter] = None

    def _filter(self, hop: Hop, topic_filter: str) -> None:
        """Take a filter into the PRT, or out of it."""
        since = hop.told_filters.get(topic_filter) if hop.live else None
        before = hop.filters.get(topic_filter)
        if since is None:
            if before is None:
                return
            del hop.filters[topic_filter]
            self._prt.remove(topic_filter, hop)
        else:
            hop.filters[topic_filter] = since
            if before is not None:
                return
            self._prt.insert(topic_filter, hop, Want(hop, topic_filter))
            if hop is not self.here:
                self.arrived.append(Arrival(hop, topic_filter, since))
        if hop is not self.here:
            self.changed[topic_filter] = None
        for other in self._neighbours:
            if other is not hop:
                other.due_filters[topic_filter] = None

    def wanting(self, topic: str) -> list[Want]:
        """Return the rows of the PRT that match a topic."""
        return self._prt.match(topic)

    def next_hops(self, topic: str) -> tuple[bytes, ...]:
        """Return the ids of the neighbours that get a topic, in a fixed order."""
        found = {want.hop.id for want in self._prt.match(topic) if want.hop is not self.here}
        return tuple(sorted(found))

    @property
    def steps(self) -> int:
        """What all look-ups of topics have cost, in nodes of the PRT."""
        return self._prt.steps

    # ---------------------------------------------------------------- what is to be said

    def due(self, hop: Hop, most: int, now: float) -> tuple[list[Told], list[Told]]:
        """Return the topics and the filters that a neighbour (`hop`) is to be told at `now` (s),
        `most` at a time, or fewer if these are hard to find; they count as told."""
        topics: list[Told] = []
        filters: list[Told] = []
        for topic in self._taken(hop.due_topics, most):
            on = hop.live and self._advertises(topic, hop)
            if on != (topic in hop.sent_topics):
                topics.append(Told(topic, on, 0.0))
                if on:
                    hop.sent_topics[topic] = None
                else:
                    del hop.sent_topics[topic]
        until = hop.topics.steps + SEARCHED
        for topic_filter in self._taken(hop.due_filters, most):
            if hop.topics.steps > until:
                hop.due_filters[topic_filter] = None
                continue
            since = self._since(topic_filter, hop)
            on = hop.live and since is not None and hop.topics.matches(topic_filter)
            if on == (topic_filter in hop.sent_filters):
                continue
            if on and since is not None:
                hop.sent_filters[topic_filter] = None
                filters.append(Told(topic_filter, True, max(0.0, now - since)))
            else:
                del hop.sent_filters[topic_filter]
                self._missing(topic_filter, hop, now)
                filters.append(Told(topic_filter, False, 0.0))
        return topics, filters

    def _taken(self, due: dict[str, None], most: int) -> list[str]:
        found = list(islice(due, most))
        for text in found:
            del due[text]
        return found

    def _advertises(self, topic: str, hop: Hop) -> bool:
        """Whether a topic is published here, or behind another neighbour than `hop`."""
        if topic in self.here.topics:
            return True
        return any(topic in other.topics for other in self._neighbours if other is not hop)

    def _since(self, topic_filter: str, hop: Hop) -> float | None:
        """Since when (s) a filter is wanted here, or behind another neighbour than `hop`."""
        times: list[float] = []
        for other in (self.here, *self._neighbours):
            since = other.filters.get(topic_filter)
            if other is not hop and since is not None:
                times.append(since)
        return min(times) if times else None

    def _missing(self, topic_filter: str, hop: Hop, now: float) -> None:
        """Note that messages no longer come from a neighbour that had been told of a filter: from
        now on, not earlier, messages may be missing."""
        for other in (self.here, *self._neighbours):
            if other is not hop and topic_filter in other.filters:
                other.filters[topic_filter] = now
                if topic_filter in other.told_filters:
                    other.told_filters[topic_filter] = now


def cost(text: str) -> int:
    """Return the bytes that a topic or filter takes, about."""
    return ENTRY_MEMORY + 2 * len(text)
