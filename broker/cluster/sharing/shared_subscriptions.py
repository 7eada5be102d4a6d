"""Shared subscriptions over the whole federation: each message goes to one member of a group, here
if one can take it.

Every broker posts its groups with about how many of their members are connected (GROUP entries of
the directory). Where a message is published the choice is made (`group_selection`); it travels with
the PUBLISH (`receiver_assignment`), and what is not named there stays silent: so there is never
more than one receiver, whatever each broker knows of the others. A broker that is named and has no
member any more passes QoS 1 and 2 on, as a message of its own for that group alone, with the
promises of every message on the tree. A broker that is cut off is chosen last; what it is to get
waits in the logs as long as anything does (decision 15).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from typing import TYPE_CHECKING

from broker.base import limits
from broker.cluster.events import RouteChanged
from broker.cluster.link.receiver_assignment import ID, ReceiverAssignment, Tries
from broker.cluster.sharing.assignment_ledger import Ref
from broker.cluster.sharing.custody import ref_of
from broker.cluster.strategy.directory import GROUP, PACE, Changes
from broker.core.message import Message
from broker.core.wildcard_forms import filter_memory
from broker.wire.publish_header import topic_of
from routing.group_selection import (
    HERE,
    Own,
    Pool,
    Standing,
    Teller,
    decode_standing,
    encode_standing,
    mark_of,
    parse_key,
)
from routing.subscription_trie import SubscriptionTrie
from routing.topic_filter import SHARE_PREFIX, split_shared

if TYPE_CHECKING:
    from broker.cluster.cluster import Cluster
    from broker.cluster.delivery.replay_log import LogEntry
    from broker.cluster.link.link import Link
    from broker.core.dispatcher import Route, SharedGroup
    from broker.core.session import Session
    from broker.node import Node

AT_ONCE = 500
"""groups that a broker tells of in one moment and that are looked at then; the others follow in
pieces of so many, with what it does not tell any more behind them: a message for one of them goes
to other members until then, or is given late."""

PIECE = 400
"""of these, some 2 ms of work, every PACE."""

NOTED, NOTE_WORK = 500, 3
"""filters of a session that are looked at when it is connected, or is not any more; steps of work
for a shared one."""


class SharedSubscriptions:
    """What is known of the groups of other brokers, and who gets what."""

    __slots__ = (
        "_cluster",
        "_count",
        "_counted",
        "_next_look",
        "_node",
        "_noting",
        "_own",
        "_planned",
        "_pools",
        "_tellers",
        "_trie",
        "_who",
        "here",
        "memory",
    )

    def __init__(self, node: Node, cluster: Cluster) -> None:
        self._node = node
        self._cluster = cluster
        self._own = cluster.own.id
        self._who = self._own + cluster.own.boot.to_bytes(4, "big")
        self._pools: dict[bytes, Pool] = {}  # by mark
        self._trie: SubscriptionTrie[Pool] = SubscriptionTrie()
        self._tellers: dict[bytes, Teller] = {}  # brokers with members, by id
        # Who tells of groups in this moment, and of how many.
        self._counted, self._count = (b"", 0.0), 0
        # Sessions with very many groups, which are noted in steps.
        self._noting: dict[Session, Iterator[int]] = {}
        self._planned = False  # `_go_on` is going to look at what they tell
        self._next_look = node.now + limits.LOG_AGE
        self.memory = 0
        """Bytes that these take, about."""
        self.here: dict[bytes, SharedGroup] = {}
        """Groups with members here, by mark."""
        cluster.directory.watch(GROUP, self._posted, self._many_posted)

    @property
    def elsewhere(self) -> bool:
        """Whether any other broker has members of a group."""
        return bool(self._pools)

    # ---------------------------------------------------------------- members here

    def tell(self, group: SharedGroup) -> None:
        """Note that members of a group here came, went, connected or disconnected."""
        directory = self._cluster.directory
        if not group.members:
            group.told = b""
            self.here.pop(group.mark, None)
            self._perhaps_unknown(group.mark)
            directory.withdraw(GROUP + group.key)
            return
        if group.mark not in self.here:
            self.here[group.mark] = group
            self._cluster.catchup.known(group.mark)
            self._cluster.assignments.member_came(group.mark)
        told = encode_standing(len(group.connected))
        if told != group.told:
            group.told = told
            try:
                directory.post(GROUP + group.key, told)
            except ValueError:  # too many: its members get what is published here
                self._cluster.count("groups_refused")

    def session_changed(self, session: Session) -> None:
        """Note that a session has a connection now, or none any more; of very many groups some at a
        time."""
        if self._noting:
            self._noting.pop(session, None)
        if len(session.subscriptions) <= NOTED:
            self._note(session, session.subscriptions)
            return
        work = self._note_all(session, list(session.subscriptions))
        self._noting[session] = work
        self._node.turns.go(work, lambda: self._noting.get(session) is not work)

    def _note_all(self, session: Session, filters: list[str]) -> Iterator[int]:
        """Each is noted as the session is then: whatever it does meanwhile, all are right in the
        end. Of one that has ended the groups go by themselves, and its client may have another one
        in them."""
        for at in range(0, len(filters), NOTED):
            if self._node.sessions.get(session.client_id) is not session:
                break
            yield NOTE_WORK * self._note(session, filters[at : at + NOTED])
        self._noting.pop(session, None)

    def _note(self, session: Session, filters: Iterable[str]) -> int:
        """Note a session in its groups of these filters; how many there are."""
        found = 0
        for topic_filter in filters:
            if topic_filter.startswith(SHARE_PREFIX):
                name, inner = split_shared(topic_filter)
                group = self._node.dispatcher.group(name or "", inner)
                if group is not None:
                    found += 1
                    group.note(session)
                    self.tell(group)
        return found

    # ---------------------------------------------------------------- members elsewhere

    def _posted(self, broker_id: bytes, key: bytes, value: bytes | None) -> None:
        teller = self._tellers.get(broker_id)
        if teller is not None and teller.tells and value is not None:
            teller.news[key] = value
            return
        if value is None and self._cluster.directory.gone == broker_id:
            self._lost(teller)
            return
        if teller is not None and teller.told:
            teller.news[key] = None
            return
        if teller is None:
            if value is None:
                return
            teller = self._tellers[broker_id] = Teller(broker_id)
        self._back(teller)
        moment = (broker_id, self._node.now)
        self._count = self._count + 1 if moment == self._counted else 1
        self._counted = moment
        if not teller.news and self._count <= AT_ONCE:
            self._learn(teller, key, value)
        else:
            self._note_news(teller, key, value)
            self._perhaps_silent(teller)
            self._cluster.catchup.expect()
            self._soon()

    def _many_posted(self, broker_id: bytes, changes: Changes, gone: bool) -> None:
        """Take what a broker tells of very many groups in one moment: it is looked at in pieces,
        all of it."""
        teller = self._tellers.get(broker_id)
        if gone:
            self._lost(teller)
            return
        if teller is None:
            teller = self._tellers[broker_id] = Teller(broker_id)
        self._back(teller)
        if teller.tells:  # of each what it told last: it may not tell more than there is
            for key, value in teller.told:
                if key[1:] not in teller.news:  # which is newer
                    self._note_news(teller, key[1:], value)
            teller.told.clear()
            for key, value in changes:
                self._note_news(teller, key[1:], value)
            self._perhaps_silent(teller)
        else:
            teller.told.extend(changes)
        self._cluster.catchup.expect()
        self._soon()

    def _lost(self, teller: Teller | None) -> None:
        if teller is not None:
            teller.lost(self._node.now + limits.LOG_AGE)
            self._perhaps_silent(teller)

    def _note_news(self, teller: Teller, key: bytes, value: bytes | None) -> None:
        if value is not None or self._has_told(teller, key):
            teller.news[key] = value
        else:
            teller.news.pop(key, None)

    def _has_told(self, teller: Teller, key: bytes) -> bool:
        """Whether a group of a broker is known, rather than still to be looked at."""
        mark = mark_of(key)
        return mark in teller.marks or mark in teller.stale

    @property
    def looks(self) -> bool:
        """Whether brokers have told of groups that are still to be looked at."""
        return self._planned and any(teller.tells for teller in self._tellers.values())

    def _soon(self) -> None:
        if not self._planned:
            self._planned = True
            self._node.schedule(self._node.now + PACE, self._go_on)

    def _go_on(self, now: float) -> None:
        """Look at some of what brokers have told, and forget some of what they tell no more."""
        self._planned = False
        left = PIECE
        for teller in list(self._tellers.values()):
            while teller.busy and left:
                left -= 1
                if teller.told:
                    key, value = teller.told.popleft()
                    self._learn(teller, key[1:], value)
                elif teller.news:
                    self._learn(teller, *teller.news.popitem())
                else:
                    self._remove(teller, teller.stale.pop())
        if any(teller.busy for teller in self._tellers.values()):
            self._soon()
        else:
            self._cluster.catchup.rest()

    def _learn(self, teller: Teller, key: bytes, value: bytes | None) -> None:
        mark = mark_of(key)
        if value is None:
            self._remove(teller, mark)
            return
        broker_id, pool = teller.id, self._pools.get(mark)
        if (
            pool is None or broker_id not in pool.brokers
        ) and self.memory > limits.TOLD_GROUPS_MEMORY:
            self._cluster.count("groups_refused")
            return
        if pool is None:
            try:
                group, topic_filter = parse_key(key)
            except ValueError:
                self._cluster.count("groups_refused")
                return
            self.memory += limits.GROUP_MEMORY + filter_memory(topic_filter)
            pool = self._pools[mark] = Pool(mark, group, topic_filter)
            self._trie.insert(topic_filter, group, pool)
            self._node.dispatcher.invalidate(topic_filter)
        catchup = self._cluster.catchup
        standing = pool.brokers.get(broker_id)
        if standing is None:
            self.memory += limits.MEMBERS_MEMORY
            standing = pool.brokers[broker_id] = Standing(teller)
            standing.pending = catchup.wanted(mark)
            if not standing.pending:
                catchup.known(mark)
        teller.marks.add(pool.mark)
        teller.stale.discard(mark)
        if standing.pending:
            catchup.ask(broker_id, mark)
        standing.weight = decode_standing(value)
        self._cluster.assignments.member_came(mark)

    def caught_up(self, broker_id: bytes, mark: bytes) -> None:
        """Note that members of a group at a broker have what is older: they get what is new."""
        pool = self._pools.get(mark)
        if pool is not None and broker_id in pool.brokers:
            pool.brokers[broker_id].pending = False
            self._cluster.catchup.known(mark)

    def pool(self, mark: bytes) -> Pool | None:
        """Return a group that other brokers have members of."""
        return self._pools.get(mark)

    def _perhaps_unknown(self, mark: bytes) -> None:
        pool = self._pools.get(mark)
        if mark not in self.here and (
            pool is None or all(standing.pending for standing in pool.brokers.values())
        ):
            self._cluster.catchup.unknown(mark)

    def _remove(self, teller: Teller, mark: bytes) -> None:
        teller.marks.discard(mark)
        teller.stale.discard(mark)
        pool = self._pools.get(mark)
        if pool is not None and pool.brokers.pop(teller.id, None) is not None:
            self.memory -= limits.MEMBERS_MEMORY
            self._cluster.catchup.forget(teller.id, mark)
            if not pool.brokers:
                del self._pools[mark]
                self.memory -= limits.GROUP_MEMORY + filter_memory(pool.filter)
                self._trie.remove(pool.filter, pool.group)
                self._node.dispatcher.invalidate(pool.filter)
            self._perhaps_unknown(mark)
        self._perhaps_silent(teller)

    def _perhaps_silent(self, teller: Teller) -> None:
        if not (teller.marks or teller.busy):
            self._tellers.pop(teller.id, None)

    def route_changed(self, event: RouteChanged) -> None:
        """Give to other members what one that is gone would get, or count with it again."""
        broker_id, via = event.broker_id, event.via
        teller = self._tellers.get(broker_id)
        if via is None:  # it may have withdrawn all of them, and some are still to be looked at
            self._lost(teller)
        elif teller is not None:
            self._back(teller)  # it has told all its groups again
            self._forget(teller)

    def _back(self, teller: Teller) -> None:
        """A broker can be reached, perhaps again."""
        if teller.cut:
            teller.back()
            self._cluster.catchup.back(teller.id)

    def _forget(self, teller: Teller) -> None:
        """Forget what a broker tells no more."""
        if teller.tells or len(teller.stale) > AT_ONCE:
            self._soon()
            return
        while teller.stale:
            self._remove(teller, teller.stale.pop())

    def tick(self, now: float) -> None:
        """Forget brokers that are cut off for longer than logs last: nothing that waits for them is
        left."""
        for teller in list(self._tellers.values()):
            if teller.cut and teller.until <= now and teller.marks:
                teller.forget()
                self._forget(teller)
        if now >= self._next_look:
            self._next_look = now + limits.LOG_AGE / 4
            self._cluster.catchup.forget_old()

    def matching(
        self, topic: str, groups: list[SharedGroup]
    ) -> list[tuple[Pool, SharedGroup | None]]:
        """Return the groups for a topic that other brokers have members of, each with that of the
        same name here."""
        if not self._pools or topic.startswith("$"):
            return []
        here = {group.mark: group for group in groups}
        return [(pool, here.get(pool.mark)) for pool in self._trie.match(topic)]

    # ---------------------------------------------------------------- published here

    def waits(self, topic: str) -> bool:
        """Whether members elsewhere of a group for a topic wait for what is older (`catchup`), or
        may do so."""
        return self.looks or any(
            standing.pending
            for pool in self._trie.match(topic)
            for standing in pool.brokers.values()
        )

    def publish(self, route: Route, message: Message) -> None:
        """Deliver and pass on what is published here."""
        groups, choice = self._choose(route)
        dispatcher = self._node.dispatcher
        dispatcher.publish_along(route, message, groups)
        if route.forward and self._node.federated:
            forwarder = self._node.forwarder
            forwarder.forward(message, choice)
            if choice is not None and message.qos:
                self._cluster.assignments.given(forwarder.key, forwarder.own.top, choice, message)

    def publish_run(
        self,
        route: Route,
        chunk: bytes,
        prefix: int,
        size: int,
        version: int,
        properties: bytes,
        sender: Session,
    ) -> None:
        """The same of a run of QoS 0 packets (see `Dispatcher.run`): one by one, unless members
        here
        get all of it."""
        node = self._node
        if not properties and all(
            self._best(group, route.permitted) is Own.READY for _, group in route.elsewhere
        ):
            node.dispatcher.run(route, chunk, prefix, size, version, sender)
            if route.forward and node.federated:
                node.forwarder.forward_run(chunk, prefix, size, version)
            return
        topic = topic_of(chunk)
        for at in range(0, len(chunk), size):
            self.publish(
                route,
                Message(topic, chunk[at + prefix : at + size], 0, False, properties, None, sender),
            )

    def _choose(self, route: Route) -> tuple[list[SharedGroup], ReceiverAssignment | None]:
        """Return which groups get a message from their members here, and what other brokers are
        told."""
        groups = list(route.shared)
        entries: list[tuple[bytes, bytes]] = []
        busy = self._cluster.assignments.busy
        if self._node.federated:
            for pool, group in route.elsewhere:
                chosen = pool.choose(self._best(group, route.permitted), busy=busy)
                if not chosen:  # here, or nobody
                    continue
                if group is not None:
                    groups = [g for g in groups if g is not group]
                if len(entries) < limits.MAX_CHOICES:
                    entries.append((self._life(chosen), pool.mark))
                    self._node.counters.shared_elsewhere += 1
                else:
                    self._node.counters.shared_undelivered += 1
        return groups, ReceiverAssignment(entries) if entries else None

    def _life(self, broker_id: bytes) -> bytes:
        """Return id and boot of another broker."""
        listing = self._cluster.directory.database.listings.get(broker_id)
        return broker_id + (0 if listing is None else listing.boot).to_bytes(4, "big")

    def _best(self, group: SharedGroup | None, allowed: set[Session] | None) -> Own:
        """How the best of a group's members here is, of those that are allowed (None: all)."""
        best = Own.NONE
        if group is not None:
            for member in group.members.values():
                session = member.session
                if allowed is not None and session not in allowed:
                    continue
                if session.conn is None:
                    best = max(best, Own.AWAY)
                elif session.conn.backlog or len(session.queue) >= limits.SHARE_QUEUED:
                    best = Own.BUSY
                else:
                    return Own.READY
        return best

    # ---------------------------------------------------------------- received

    def received(self, message: Message, choice: ReceiverAssignment, *, ordinary: bool) -> None:
        """Deliver a message from a link with what it says of groups. Those named here get it,
        however old it is: nobody else does. `ordinary`: so do ordinary subscriptions, if it is for
        them."""
        dispatcher = self._node.dispatcher
        route = dispatcher.route(message.topic)
        message.choice = choice
        groups: list[SharedGroup] = []
        marks = {mark for who, mark in choice.entries if who == self._who}
        if marks:
            if choice.retain:
                message = Message(
                    message.topic,
                    message.payload,
                    message.qos,
                    True,
                    message.properties,
                    message.expires_at,
                    None,
                )
                message.choice = choice
            if choice.key and self._cluster.custody.claims(choice.key, message.qos):
                for mark in marks:
                    self._cluster.custody.hold((choice.key, choice.sequence, mark), message)
                marks.clear()
            for group in route.shared:
                if group.mark in marks:
                    marks.discard(group.mark)
                    if self.stays(group, message, route.permitted):
                        groups.append(group)
            for mark in marks:
                self.pass_on(mark, message)
        if ordinary and not choice.passed:
            dispatcher.publish_along(route, message, groups)
        elif groups:
            dispatcher.publish_along(route, message, groups, only=True)

    def stays(self, group: SharedGroup, message: Message, allowed: set[Session] | None) -> bool:
        """Whether a group's members here get a message that was given to them; else it has been
        passed on, as they are away or gone and others are connected."""
        pool = self._pools.get(group.mark)
        if pool is None or not message.qos or self._best(group, allowed) > Own.AWAY:
            return True
        visited = _visited(message)
        there = (
            s
            for s in pool.brokers.values()
            if s.weight and not s.teller.cut and s.id not in visited
        )
        if len(visited) >= limits.MAX_PASSES or not any(there):
            return True
        self.pass_on(
            group.mark,
            message,
            denied=bool(group.members) and self._best(group, allowed) is Own.NONE,
        )
        return False

    def pass_on(self, mark: bytes, message: Message, *, denied: bool = False) -> None:
        """Give a message for a group that has no member here, or (`denied`) none that may have it,
        to another broker; if it came from one and no other is known, back to that one."""
        node = self._node
        pool = self._pools.get(mark)
        ref = ref_of(message, mark)
        visited = (*_visited(message), self._own)
        target = None
        if (
            pool is not None
            and message.qos
            and len(visited) <= limits.MAX_PASSES
            and node.federated
        ):
            target = pool.choose(Own.NONE, visited)
        if target is not None:
            node.counters.shared_passed_on += 1
            self.give(target, mark, message, visited, retain=message.retain, tries=_tries(message))
            if ref is not None:
                self._cluster.custody.gave(ref)
        elif ref is not None and message.qos:
            self._cluster.custody.decline(ref, denied=denied)
        else:
            node.counters.shared_undelivered += 1

    # ---------------------------------------------------------------- given to one group

    def connected_elsewhere(self, mark: bytes) -> bool:
        """Whether a group has connected members at other brokers that can be reached."""
        pool = self._pools.get(mark)
        return pool is not None and any(
            s.weight and not s.teller.cut for s in pool.brokers.values()
        )

    def target(self, mark: bytes, message: Message, skip: tuple[bytes, ...]) -> bytes | None:
        """Return who may get a message that was given to a member before: `HERE`, a broker, or
        None. `skip`: not these."""
        group, pool = self.here.get(mark), self._pools.get(mark)
        own = (
            Own.NONE
            if self._own in skip
            else self._best(group, self._node.dispatcher.route(message.topic).permitted)
        )
        if pool is None:
            return HERE if own is not Own.NONE else None
        return pool.choose(own, skip, busy=self._cluster.assignments.busy, again=True)

    def others(self, mark: bytes, but: Container[bytes]) -> bool:
        """Whether other brokers than these have members of a group, whether they can be reached or
        not."""
        pool = self._pools.get(mark)
        return pool is not None and any(broker_id not in but for broker_id in pool.brokers)

    def give(
        self,
        target: bytes,
        mark: bytes,
        message: Message,
        visited: tuple[bytes, ...],
        *,
        retain: bool,
        tries: Tries | None = None,
    ) -> None:
        """Give a message to a group alone, here or at another broker. `visited`: those that had no
        member for it."""
        here = target == HERE
        copy = Message(
            message.topic,
            message.payload,
            message.qos,
            here and retain,
            message.properties,
            message.expires_at,
            None,
        )
        choice = ReceiverAssignment(
            [] if here else [(self._life(target), mark)],
            passed=True,
            retain=retain,
            visited=visited,
        )
        choice.tries = tries
        if here:
            copy.choice = choice  # should no member have it after all
            self.deliver_here(mark, copy)
            return
        forwarder = self._node.forwarder
        forwarder.forward(copy, choice)
        self._cluster.assignments.given(forwarder.key, forwarder.own.top, choice, copy)

    def give_late(self, ref: Ref, message: Message) -> None:
        """Give a message of ours to a group that was not known when it was published."""
        target = self.target(ref[2], message, ())
        if target is None:
            self._cluster.assignments.waiting(ref, message, (), retain=message.retain)
        else:
            self._node.counters.shared_late += 1
            self.give(target, ref[2], message, (), retain=message.retain)

    def deliver_here(self, mark: bytes, message: Message) -> None:
        """Give a message to a member here."""
        group, dispatcher = self.here.get(mark), self._node.dispatcher
        if group is None:
            self.pass_on(mark, message)
        else:
            dispatcher.publish_along(dispatcher.route(message.topic), message, [group], only=True)

    # ---------------------------------------------------------------- ways

    def chosen_behind(self, link: Link, entry: LogEntry) -> bool:
        """Whether a message in the log names a broker that is replayed to over a link."""
        choice = entry.choice
        if choice is None:
            return False
        leads_to, gone = self._cluster.strategy.leads_to, self._cluster.orphans.gone(entry.key)
        return any(leads_to(link, who[:ID], gone=gone) for who, _ in choice.entries)


def _visited(message: Message) -> tuple[bytes, ...]:
    """Return the brokers that had a message before this one and could not deliver it to a group."""
    choice: ReceiverAssignment | None = getattr(message, "choice", None)
    return () if choice is None else choice.visited


def _tries(message: Message) -> Tries | None:
    """Return which brokers gave a message back."""
    choice: ReceiverAssignment | None = getattr(message, "choice", None)
    return None if choice is None else choice.tries
