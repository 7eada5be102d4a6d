"""The filters of all brokers (docs/decisions/0013).

Every broker posts the filters of its clients in the directory: a filter with its first subscription
until its last one, and only if no other filter covers it. The filters that the others have posted
are the table here: a topic leads to the filters that match it, and these to their brokers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from mqttree.broker.cluster.directory.link_state_directory import (
    EVERYTHING,
    INTEREST,
    POST_INTERVAL,
    WANTS_EVERYTHING,
    Changes,
    LinkStateDirectory,
)
from mqttree.broker.cluster.events import RouteChanged
from mqttree.broker.cluster.strategy.ports import Delivery, LinkedBroker, LostBrokers
from mqttree.broker.core.wildcard_forms import filter_memory
from mqttree.broker.wire.strings import is_own
from mqttree.routing.filter_aggregation import FilterAggregation
from mqttree.routing.subscription_trie import SubscriptionTrie
from mqttree.routing.topic_filter import well_formed

LINGER = 0.5
"""s for which a filter stays posted without subscribers: a client that comes back soon gets its
messages at once."""

LOAD, LOAD_PACE = 500, 0.02
"""filters that are handled at a time when the first other broker comes, and s in between: some ms
of work. As many filters without subscribers are withdrawn at a time, every POST_INTERVAL."""

ANY_OTHER = "\0"
"""A topic that filters with wildcards alone match, as no topic has this letter."""

FilterChange = tuple[bytes, bool, bool]
"""A filter, whether it is wanted, and if not, whether messages still go there
(`SourceTrees.keeps`); b"": none of those kept is."""


def _posted(changes: Changes, keeps: bool) -> Iterator[FilterChange]:
    for key, value in changes:
        yield key[1:], value is not None, keeps and value is None


class PostedFilters:
    """The filters that one broker has posted and that are still to be handled, in order. `wide`: it
    gets everything until then; `everything`: and after that, too, as it has asked for it."""

    __slots__ = ("changes", "count", "everything", "wide")

    def __init__(self) -> None:
        self.changes: deque[FilterChange | Iterator[FilterChange]] = deque()
        self.count = 0  # of all of them
        self.wide = self.everything = False

    def add(self, change: FilterChange) -> None:
        """Add a filter that the broker has posted or withdrawn."""
        self.changes.append(change)
        self.count += 1

    def add_many(self, changes: Changes, keeps: bool) -> None:
        """Add very many filters of one moment; `keeps`: messages still go to those that are
        gone."""
        self.changes.append(_posted(changes, keeps))
        self.count += len(changes)

    def take(self) -> FilterChange:
        """Return the oldest change. There has to be one."""
        while True:
            first = self.changes[0]
            if isinstance(first, tuple):
                self.count -= 1
                self.changes.popleft()
                return first
            for change in first:
                self.count -= 1
                return change
            self.changes.popleft()

    def ahead(self, filters: Iterable[str]) -> None:
        """Put first that none of these filters is posted any more, which were kept."""
        found: list[FilterChange] = [(kept.encode(), False, False) for kept in filters]
        self.changes.extendleft(found)
        self.count += len(found)


class InterestTable:
    """The filters of this broker, as it posts them, and those of the others."""

    def __init__(
        self,
        node: LinkedBroker,
        directory: LinkStateDirectory,
        delivery: Delivery,
        lost: LostBrokers,
    ) -> None:
        """`node`: this broker; `directory`: what brokers post; `delivery`: counts, logs and calls
        again; `lost`: decides about the filters of a broker that the tree has lost."""
        self._node = node
        self._limits = node.limits
        self._directory = directory
        self._delivery = delivery
        self._lost = lost
        """Called when a filter has been posted."""
        # The filters of other brokers; value: the broker's id.
        self._filters: SubscriptionTrie[bytes] = SubscriptionTrie()
        self.memory = 0  # bytes that these take, and those that are posted here
        # Those of brokers that the tree has lost, and to which messages still go.
        self._kept: dict[bytes, dict[str, None]] = {}
        self._taken: dict[bytes, int] = {}  # bytes that those of each take
        self._all_taken = 0  # and all of them, those that several have once
        self._unhandled: dict[bytes, PostedFilters] = {}  # of brokers that have posted many at once
        # The broker that posts filters in this moment, and how many.
        self._counted, self._count = (b"", 0.0), 0
        # Brokers that get everything: their filters, which are dropped some at a time.
        self._dropped: dict[bytes, deque[bytes]] = {}
        # Filters without subscribers -> until when (s) they stay posted.
        self._closing: dict[str, float] = {}
        self._planned = False  # `_close` is going to look at them
        # The filters that cover all that are wanted here: these are posted.
        self._cover = FilterAggregation()
        self._working = False
        # Filters from before the first other broker came, still to be posted.
        self._loading: deque[str] = deque()
        self._crowded = False  # there are more filters than can be posted
        self._full = False  # there were longer filters than can be posted
        self.posting = False
        """Whether filters are posted: since the first other broker has come. Before that, a
        subscription costs no more than at a lone broker."""
        self.generation = 0
        """Grows when messages may take other links to the same brokers than before."""
        directory.watch(INTEREST, self._posted, self._many_posted)

    def paths_changed(self) -> None:
        """Note that messages may take other links than before."""
        self.generation += 1

    # ---------------------------------------------------------------- what is wanted here

    def begin(self) -> None:
        """Begin to post filters, as another broker has come; "#", while many are handled in
        steps."""
        if not self.posting:
            self.posting = True
            self._loading.extend(self._node.dispatcher.filters())
            if len(self._loading) > LOAD:
                self._cover.add("")
                self._post()
            self._load(self._node.now)

    def _load(self, now: float) -> None:
        wants = self._node.dispatcher.wants
        for _ in range(min(LOAD, len(self._loading))):
            topic_filter = self._loading.popleft()
            if wants(topic_filter) and not is_own(topic_filter):
                self._want(topic_filter)
        if self._loading:
            self._node.timers.schedule(now + LOAD_PACE, self._load)
        elif not self._crowded:
            self._cover.remove("")
        self._post()

    def changed(self, topic_filter: str, wanted: bool) -> None:
        """Note the first subscription to a filter here, or that the last one has gone."""
        if self.posting and not is_own(topic_filter):  # no such topic crosses a link
            if wanted:
                self._closing.pop(topic_filter, None)
                self._want(topic_filter)
                self._post()
            else:
                if not self._planned:
                    self._planned = True
                    self._node.timers.schedule(self._node.now + LINGER, self._close)
                self._closing.pop(topic_filter, None)  # the dict is in the order of time
                self._closing[topic_filter] = self._node.now + LINGER

    def _want(self, topic_filter: str) -> None:
        if topic_filter not in self._cover:
            self.memory += filter_memory(topic_filter)
        self._cover.add(topic_filter)

    def _close(self, now: float) -> None:
        self._planned = False
        for topic_filter, until in list(islice(self._closing.items(), LOAD)):
            if until > now:
                break
            del self._closing[topic_filter]
            if topic_filter in self._cover:
                self.memory -= filter_memory(topic_filter)
            self._cover.remove(topic_filter)
        if self._closing:
            self._planned = True
            self._node.timers.schedule(
                max(next(iter(self._closing.values())), now + POST_INTERVAL), self._close
            )
        self._post()
        self._delivery.hurry(now)

    def _post(self) -> None:
        """Post the filters that cover all that are wanted here; if one replaces many, or many one,
        some at a time."""
        if not self._crowded and len(self._cover) > self._limits.max_interests:
            self._crowded = True
            self._cover.add("")
            self._node.counters.interest_widened += 1
        elif self._crowded and len(self._cover) - 1 <= self._limits.max_interests // 2:
            self._crowded = False
            self._cover.remove("")
        announced, withdrawn = self._cover.work(0 if self._working else self._limits.interest_step)
        directory = self._directory
        for topic_filter in announced:
            try:
                directory.post(INTEREST + topic_filter.encode())
            except ValueError:  # no room for such long filters: from now on this broker gets all
                directory.post(WANTS_EVERYTHING)
                self._full = True
                self._node.counters.interest_widened += 1
            self._delivery.barrier.on_filter_posted()
        if announced:
            self._lost.filter_posted()
        for topic_filter in withdrawn:
            if not (self._full and topic_filter.encode() == EVERYTHING):
                directory.withdraw(INTEREST + topic_filter.encode())
        if self._cover.busy and not self._working:
            self._working = True
            self._node.timers.schedule(self._node.now + POST_INTERVAL, self._go_on)

    def _go_on(self, now: float) -> None:
        self._working = False
        self._post()
        self._delivery.hurry(now)

    # ---------------------------------------------------------------- filters of other brokers

    def _posted(
        self, broker_id: bytes, key: bytes, value: bytes | None, gone: bool = False
    ) -> None:
        posted = self._unhandled.get(broker_id)
        if (
            posted is not None
            and posted.wide
            and value is not None
            and posted.count < self._limits.interest_changes
        ):
            posted.add((key, True, False))
            return
        keeps = value is None and self._lost.keeps(broker_id, gone=gone)
        if posted is None:
            moment = (broker_id, self._node.now)
            self._count = self._count + 1 if moment == self._counted else 1
            self._counted = moment
            if self._count <= self._limits.interest_at_once:
                self._learn(broker_id, key, value is not None, keeps)
                return
            posted = self._begin_steps(broker_id)
        if value is not None:
            self._give_everything(broker_id, posted)
        posted.add((key, value is not None, keeps))
        self._look_at_once(broker_id, posted)

    def _many_posted(self, broker_id: bytes, changes: Changes, gone: bool) -> None:
        """Take very many filters that a broker posts in one moment: they are handled in steps."""
        posted = self._unhandled.get(broker_id) or self._begin_steps(broker_id)
        if not gone:
            self._give_everything(broker_id, posted)
        self._look_at_once(broker_id, posted)  # if it posts too many
        posted.add_many(changes, self._lost.keeps(broker_id, gone=gone))

    def _look_at_once(self, broker_id: bytes, posted: PostedFilters) -> None:
        while posted.count > self._limits.interest_changes:
            self._look(broker_id, posted, posted.take())

    def _give_everything(self, broker_id: bytes, posted: PostedFilters) -> None:
        """Send a broker everything until its filters have been handled."""
        if not posted.wide:
            posted.wide = True
            posted.everything = self._filters.get(EVERYTHING.decode(), broker_id) is not None
            self._take(EVERYTHING.decode(), broker_id)

    def _begin_steps(self, broker_id: bytes) -> PostedFilters:
        posted = self._unhandled[broker_id] = PostedFilters()
        self._node.timers.schedule(
            self._node.now + POST_INTERVAL, lambda now: self._go_through(broker_id, now)
        )
        return posted

    def _go_through(self, broker_id: bytes, now: float) -> None:
        """Handle some of the filters that a broker has posted."""
        posted = self._unhandled[broker_id]
        for _ in range(min(self._limits.interest_step, posted.count)):
            self._look(broker_id, posted, posted.take())
        if posted.count:
            self._node.timers.schedule(
                now + POST_INTERVAL, lambda at: self._go_through(broker_id, at)
            )
            return
        del self._unhandled[broker_id]
        if posted.wide and not posted.everything and broker_id not in self._dropped:
            self._forget(EVERYTHING.decode(), broker_id)

    def _look(self, broker_id: bytes, posted: PostedFilters, change: FilterChange) -> None:
        key, wanted, keeps = change
        if not key:
            posted.ahead(self._kept.pop(broker_id, ()))
        elif key == EVERYTHING and posted.wide:
            posted.everything = wanted or keeps
            if keeps:
                self._kept.setdefault(broker_id, {})[EVERYTHING.decode()] = None
            elif wanted:
                self._kept.get(broker_id, {}).pop(EVERYTHING.decode(), None)
        else:
            self._learn(broker_id, key, wanted, keeps, late=True)

    def _learn(
        self, broker_id: bytes, key: bytes, wanted: bool, keeps: bool, *, late: bool = False
    ) -> None:
        """Note that a broker has posted or withdrawn a filter. `late`: it has got everything since
        it did that."""
        try:
            topic_filter = key.decode()
        except UnicodeDecodeError:
            topic_filter = ""
        if not topic_filter or "\0" in topic_filter or not well_formed(topic_filter):
            self._node.counters.interest_refused += 1
            return
        if broker_id in self._dropped:  # it gets everything
            if not wanted and topic_filter != EVERYTHING.decode():
                self._forget(topic_filter, broker_id)
            return
        if not wanted and keeps:
            self._kept.setdefault(broker_id, {})[topic_filter] = None
            return
        kept = self._kept.get(broker_id)
        if kept and topic_filter in kept:
            del kept[topic_filter]
            if wanted:
                return  # it is posted again, and it has counted as wanted all the time
        if not wanted:
            self._forget(topic_filter, broker_id)
        else:
            self._take(topic_filter, broker_id, late=late)
            if (
                self._taken[broker_id] > self._limits.told_filters_memory
                or self._all_taken > self._limits.all_filters_memory
            ):
                self._widen(broker_id)

    def _take(self, topic_filter: str, broker_id: bytes, *, late: bool = False) -> None:
        if self._filters.get(topic_filter, broker_id) is None:
            size = filter_memory(topic_filter)
            self._taken[broker_id] = self._taken.get(broker_id, 0) + size
            if self._filters.insert(topic_filter, broker_id, broker_id):
                self.memory += size
                self._all_taken += size
            self._node.dispatcher.invalidate(topic_filter)
        if not late:
            self._lost.learnt(broker_id, topic_filter)

    def _forget(self, topic_filter: str, broker_id: bytes) -> None:
        if self._filters.get(topic_filter, broker_id) is not None:
            size = filter_memory(topic_filter)
            self._taken[broker_id] -= size
            if not self._taken[broker_id]:
                del self._taken[broker_id]
            if self._filters.remove(topic_filter, broker_id):
                self.memory -= size
                self._all_taken -= size
            self._node.dispatcher.invalidate(topic_filter)

    def _widen(self, broker_id: bytes) -> None:
        """Send a broker everything that posts too many filters; no message is lost by that. Its
        filters are dropped, some at a time."""
        listing = self._directory.database.listings.get(broker_id)
        self._dropped[broker_id] = deque(
            () if listing is None else (key for key in listing.entries if key[:1] == INTEREST)
        )
        self._take(EVERYTHING.decode(), broker_id)
        self._node.counters.interest_widened += 1
        name = broker_id.hex()
        text = (
            f"broker {name} has more than {self._taken[broker_id] >> 20} MiB of topic filters; "
            "from now on it is sent every message"
        )
        self._node.log_limit.line("warning", "too many filters", name, text)
        self._node.timers.schedule(
            self._node.now + POST_INTERVAL, lambda now: self._drop(broker_id, now)
        )

    def _drop(self, broker_id: bytes, now: float) -> None:
        keys = self._dropped.get(broker_id, deque())
        for _ in range(min(self._limits.interest_step, len(keys))):
            topic_filter = keys.popleft()[1:].decode(errors="replace")
            if topic_filter != EVERYTHING.decode():
                self._forget(topic_filter, broker_id)
        if keys:
            self._node.timers.schedule(now + POST_INTERVAL, lambda at: self._drop(broker_id, at))

    def route_changed(self, event: RouteChanged) -> None:
        """Find links again; a broker that can be reached again posts its filters again."""
        broker_id, via = event.broker_id, event.via
        self.generation += 1
        if via is not None:
            self.forget(broker_id)
        elif self._dropped.pop(broker_id, None) is not None:
            # When it is back it posts its filters again.
            if self._lost.keeps(broker_id, gone=True):
                self._kept.setdefault(broker_id, {})[EVERYTHING.decode()] = None
            else:
                self._forget(EVERYTHING.decode(), broker_id)

    def forget(self, broker_id: bytes) -> None:
        """Forget the filters of a broker that it has not posted again since the tree lost it."""
        posted = self._unhandled.get(broker_id)
        if posted is None and len(self._kept.get(broker_id, ())) > self._limits.interest_at_once:
            posted = self._begin_steps(broker_id)
        if posted is not None:
            posted.add((b"", False, False))
            return
        for topic_filter in self._kept.pop(broker_id, ()):
            self._forget(topic_filter, broker_id)

    def brokers_wanting(self, topic: str) -> tuple[bytes, ...]:
        """Return the ids of the other brokers with a matching filter, in a fixed order."""
        filters = self._filters
        if not filters:
            return ()
        before = filters.steps
        found = filters.match(topic)
        if topic[:1] == "$":
            # A broker that asks for everything wants these, too, though no client's `#` matches.
            found = [*found, *filters.match(ANY_OTHER)]
        self._node.turns.work += filters.steps - before
        return tuple(found if len(found) < 2 else dict.fromkeys(found))

    def wanted_by(self, broker_id: bytes) -> Callable[[bytes], bool]:
        """Return a function that says whether one broker wants a topic."""
        return remembering(lambda topic: broker_id in self.brokers_wanting(topic.decode()))


def remembering(ask: Callable[[bytes], bool]) -> Callable[[bytes], bool]:
    """Return `ask` that is asked of each topic once."""
    known: dict[bytes, bool] = {}

    def answer(topic: bytes) -> bool:
        found = known.get(topic)
        if found is None:
            found = known[topic] = ask(topic)
        return found

    return answer
