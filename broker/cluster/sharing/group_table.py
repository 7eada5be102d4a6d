"""Which shared subscriptions have members, here and at other brokers (docs/decisions/0015).

Every broker posts its groups with about how many of their members are connected (GROUP entries of
the directory). The entries of other brokers are handled here, in steps if there are many. A group
that is still to be handled counts as not known, so that no new message overtakes the old ones that
it gets late (`catchup`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from mqttree.broker.base import costs
from mqttree.broker.cluster.directory.link_state_directory import GROUP, Changes
from mqttree.broker.cluster.events import RouteChanged
from mqttree.broker.core.wildcard_forms import filter_memory
from mqttree.broker.wire.strings import is_own
from mqttree.routing.group_selection import (
    Announcer,
    Own,
    Pool,
    Standing,
    decode_standing,
    encode_standing,
    group_id_of,
    group_key,
    parse_key,
)
from mqttree.routing.subscription_trie import SubscriptionTrie
from mqttree.routing.topic_filter import SHARE_PREFIX, split_shared

if TYPE_CHECKING:
    from mqttree.broker.cluster.directory.link_state_directory import LinkStateDirectory
    from mqttree.broker.cluster.ports import MemberBroker
    from mqttree.broker.core.session import Session, SharedGroup

MEMBER_QUEUE_MESSAGES = 1000
"""messages waiting for a member of a shared subscription at which other brokers' members come
before it. Below it a member whose window is full for a moment keeps what is published beside
it."""

CUT_OFF_S = 5.0
"""s without a path to a broker after which its groups count as unknown: its members get what is
published meanwhile when it is back (`catchup`), from the log and its tail. Until then the broker is
given messages, which wait for it in memory: a repair of the tree takes less."""

NOTE_WORK = 3
"""steps of work for a shared filter of a session that connects or disconnects."""


class LateGroups(Protocol):
    """Gives groups the messages that were published before they were known (`catchup`)."""

    def known(self, group_id: bytes) -> None:
        """Note that a group gets the messages that are published here from now on."""

    def unknown(self, group_id: bytes) -> None:
        """Note that a group has no member at any broker."""

    def wanted(self, group_id: bytes) -> bool:
        """Whether the log may have messages for a group that another broker posts only now."""

    def ask(self, broker_id: bytes, group_id: bytes) -> None:
        """Ask a broker how old its group is."""

    def expect(self) -> None:
        """Keep entries that leave the log until all groups have been handled."""

    def rest(self) -> None:
        """Note that all groups that brokers have posted have been handled."""

    def back(self, broker_id: bytes) -> None:
        """Note that a broker can be reached again."""

    def forget(self, broker_id: bytes, group_id: bytes) -> None:
        """Note that a broker has no member of a group any more."""

    def forget_old(self) -> None:
        """Forget groups that have no members."""


class GroupTable:
    """The groups of this broker and of others, and which have members where."""

    _late: LateGroups
    _member_came: Callable[[bytes], None]

    def __init__(self, node: MemberBroker, directory: LinkStateDirectory) -> None:
        """`node`: this broker; `directory`: what brokers post."""
        self._node = node
        self._dispatcher = node.dispatcher
        self._limits = node.limits
        self._directory = directory
        self.pools: dict[bytes, Pool] = {}
        """Groups that other brokers have members of, by id."""
        self._trie: SubscriptionTrie[Pool] = SubscriptionTrie()
        self._announcers: dict[bytes, Announcer] = {}  # brokers with members, by id
        # The broker that announces groups in this moment, and how many.
        self._counted, self._count = (b"", 0.0), 0
        # Sessions with very many groups, which are noted in steps.
        self._noting: dict[Session, Iterator[int]] = {}
        self._planned = False  # `_resume` is going to handle their announcements
        self._next_look = node.now + node.limits.log_age_s
        self.memory = 0
        """Bytes of memory of all groups, about."""
        self.here: dict[bytes, SharedGroup] = {}
        """Groups with members here, by id."""
        directory.watch(GROUP, self._posted, self._many_posted)

    def connect(self, late: LateGroups, member_came: Callable[[bytes], None]) -> None:
        """Set who is notified of groups: `late` of those that may lack old messages, `member_came`
        (by id) of those that have new members."""
        self._late = late
        self._member_came = member_came

    # ---------------------------------------------------------------- local members

    def tell(self, group: SharedGroup) -> None:
        """Note that local members of a group came, went, connected or disconnected."""
        directory = self._directory
        if not group.members:
            group.announced = b""
            self.here.pop(group.group_id, None)
            self._perhaps_unknown(group.group_id)
            directory.withdraw(GROUP + group.key)
            return
        if group.group_id not in self.here:
            self.here[group.group_id] = group
            self._late.known(group.group_id)
            self._member_came(group.group_id)
        announced = encode_standing(len(group.connected))
        if announced != group.announced:
            group.announced = announced
            try:
                directory.post(GROUP + group.key, announced)
            except ValueError:  # too many groups: its members get only what is published here
                self._node.counters.groups_refused += 1

    def session_changed(self, session: Session) -> None:
        """Note that a session has connected or disconnected; if it is in very many groups, some of
        these at a time."""
        if self._noting:
            self._noting.pop(session, None)
        if len(session.subscriptions) <= self._limits.groups_noted:
            self._note(session, session.subscriptions)
            return
        work = self._note_all(session, list(session.subscriptions))
        self._noting[session] = work
        self._node.turns.go(work, lambda: self._noting.get(session) is not work)

    def _note_all(self, session: Session, filters: list[str]) -> Iterator[int]:
        """Note a session in its groups, some at a time. Each is noted as the session is at that
        time, so all are right in the end. One that has ended leaves its groups by itself, and its
        client may have another session in them."""
        for at in range(0, len(filters), self._limits.groups_noted):
            if self._node.sessions.get(session.client_id) is not session:
                break
            yield NOTE_WORK * self._note(session, filters[at : at + self._limits.groups_noted])
        self._noting.pop(session, None)

    def _note(self, session: Session, filters: Iterable[str]) -> int:
        """Note a session in its groups of these filters. Returns how many there are."""
        found = 0
        for topic_filter in filters:
            if topic_filter.startswith(SHARE_PREFIX):
                name, inner = split_shared(topic_filter)
                group = self._dispatcher.group(name or "", inner)
                if group is not None:
                    found += 1
                    group.note(session)
                    self.tell(group)
        return found

    # ---------------------------------------------------------------- members at other brokers

    def _posted(
        self, broker_id: bytes, key: bytes, value: bytes | None, gone: bool = False
    ) -> None:
        announcer = self._announcers.get(broker_id)
        if announcer is not None and announcer.unhandled and value is not None:
            announcer.updates[key] = value
            return
        if value is None and gone:
            self._lost(announcer)
            return
        if announcer is not None and announcer.earlier:
            announcer.updates[key] = None
            return
        if announcer is None:
            if value is None:
                return
            announcer = self._announcers[broker_id] = Announcer(broker_id)
        self._back(announcer)
        moment = (broker_id, self._node.now)
        self._count = self._count + 1 if moment == self._counted else 1
        self._counted = moment
        if not announcer.updates and self._count <= self._limits.groups_at_once:
            self._learn(announcer, key, value)
        else:
            self._note_update(announcer, key, value)
            self._perhaps_silent(announcer)
            self._late.expect()
            self._soon()

    def _many_posted(self, broker_id: bytes, changes: Changes, gone: bool) -> None:
        """Take very many groups that a broker posts in one moment: they are handled in steps."""
        announcer = self._announcers.get(broker_id)
        if gone:
            self._lost(announcer)
            return
        if announcer is None:
            announcer = self._announcers[broker_id] = Announcer(broker_id)
        self._back(announcer)
        if (
            announcer.unhandled
        ):  # of each group the last announcement: no more than there are groups
            for key, value in announcer.earlier:
                if key[1:] not in announcer.updates:  # which is newer
                    self._note_update(announcer, key[1:], value)
            announcer.earlier.clear()
            for key, value in changes:
                self._note_update(announcer, key[1:], value)
            self._perhaps_silent(announcer)
        else:
            announcer.earlier.extend(changes)
        self._late.expect()
        self._soon()

    def _lost(self, announcer: Announcer | None) -> None:
        if announcer is not None:
            announcer.lost(self._node.now + CUT_OFF_S)
            self._perhaps_silent(announcer)

    def _note_update(self, announcer: Announcer, key: bytes, value: bytes | None) -> None:
        if value is not None or self._has_announced(announcer, key):
            announcer.updates[key] = value
        else:
            announcer.updates.pop(key, None)

    def _has_announced(self, announcer: Announcer, key: bytes) -> bool:
        """Whether a group of a broker has been handled."""
        group_id = group_id_of(key)
        return group_id in announcer.group_ids or group_id in announcer.stale

    @property
    def looks(self) -> bool:
        """Whether brokers have posted groups that are still to be handled."""
        return self._planned and any(announcer.unhandled for announcer in self._announcers.values())

    def _soon(self) -> None:
        if not self._planned:
            self._planned = True
            self._node.timers.schedule(
                self._node.now + self._limits.groups_interval_s, self._resume
            )

    def _resume(self, now: float) -> None:
        """Handle some groups that brokers have posted, and forget some that they have withdrawn."""
        self._planned = False
        left = self._limits.groups_step
        for announcer in list(self._announcers.values()):
            while announcer.busy and left:
                left -= 1
                if announcer.earlier:
                    key, value = announcer.earlier.popleft()
                    self._learn(announcer, key[1:], value)
                elif announcer.updates:
                    self._learn(announcer, *announcer.updates.popitem())
                else:
                    self._remove(announcer, announcer.stale.popitem()[0])
        if any(announcer.busy for announcer in self._announcers.values()):
            self._soon()
        else:
            self._late.rest()

    def _learn(self, announcer: Announcer, key: bytes, value: bytes | None) -> None:
        group_id = group_id_of(key)
        if value is None:
            self._remove(announcer, group_id)
            return
        broker_id, pool = announcer.id, self.pools.get(group_id)
        if (
            pool is None or broker_id not in pool.brokers
        ) and self.memory > self._limits.told_groups_memory:
            self._node.counters.groups_refused += 1
            return
        if pool is None:
            try:
                group, topic_filter = parse_key(key)
            except ValueError:
                self._node.counters.groups_refused += 1
                return
            self.memory += costs.GROUP_MEMORY + filter_memory(topic_filter)
            pool = self.pools[group_id] = Pool(group_id, group, topic_filter)
            self._trie.insert(topic_filter, group, pool)
            self._dispatcher.invalidate(topic_filter)
        late = self._late
        standing = pool.brokers.get(broker_id)
        if standing is None:
            self.memory += costs.MEMBERS_MEMORY
            standing = pool.brokers[broker_id] = Standing(announcer)
            standing.pending = late.wanted(group_id)
            if not standing.pending:
                late.known(group_id)
        announcer.group_ids[pool.group_id] = None
        announcer.stale.pop(group_id, None)
        if standing.pending:
            late.ask(broker_id, group_id)
        standing.weight = decode_standing(value)
        self._member_came(group_id)

    def caught_up(self, broker_id: bytes, group_id: bytes) -> None:
        """Note that members of a group at a broker have got the old messages: they get new ones."""
        pool = self.pools.get(group_id)
        if pool is not None and broker_id in pool.brokers:
            pool.brokers[broker_id].pending = False
            self._late.known(group_id)

    def key_of(self, group_id: bytes) -> bytes | None:
        """Return the key of a group (`group_key`), None if it has no members."""
        if (group := self.here.get(group_id)) is not None:
            return group.key
        pool = self.pools.get(group_id)
        return None if pool is None else group_key(pool.group, pool.filter)

    def _perhaps_unknown(self, group_id: bytes) -> None:
        pool = self.pools.get(group_id)
        if group_id not in self.here and (
            pool is None or all(standing.pending for standing in pool.brokers.values())
        ):
            self._late.unknown(group_id)

    def _remove(self, announcer: Announcer, group_id: bytes) -> None:
        announcer.group_ids.pop(group_id, None)
        announcer.stale.pop(group_id, None)
        pool = self.pools.get(group_id)
        if pool is not None and pool.brokers.pop(announcer.id, None) is not None:
            self.memory -= costs.MEMBERS_MEMORY
            self._late.forget(announcer.id, group_id)
            if not pool.brokers:
                del self.pools[group_id]
                self.memory -= costs.GROUP_MEMORY + filter_memory(pool.filter)
                self._trie.remove(pool.filter, pool.group)
                self._dispatcher.invalidate(pool.filter)
            self._perhaps_unknown(group_id)
        self._perhaps_silent(announcer)

    def _perhaps_silent(self, announcer: Announcer) -> None:
        if not (announcer.group_ids or announcer.busy):
            self._announcers.pop(announcer.id, None)

    def route_changed(self, event: RouteChanged) -> None:
        """Leave out the members at a broker that cannot be reached, or count them again."""
        broker_id, via = event.broker_id, event.via
        announcer = self._announcers.get(broker_id)
        if via is None:  # it may have withdrawn all of them, and some are still to be looked at
            self._lost(announcer)
        elif announcer is not None:
            self._back(announcer)  # it has announced all its groups again
            self._forget(announcer)

    def _back(self, announcer: Announcer) -> None:
        """Count the members at a broker that can be reached, perhaps again."""
        if announcer.cut:
            announcer.back()
            self._late.back(announcer.id)

    def _forget(self, announcer: Announcer) -> None:
        """Forget the groups that a broker has withdrawn."""
        if announcer.unhandled or len(announcer.stale) > self._limits.groups_at_once:
            self._soon()
            return
        while announcer.stale:
            self._remove(announcer, announcer.stale.popitem()[0])

    def tick(self, now: float) -> None:
        """Forget the groups of brokers that have been cut off for long."""
        for announcer in list(self._announcers.values()):
            if announcer.cut and announcer.until <= now and announcer.group_ids:
                announcer.forget()
                self._forget(announcer)
        if now >= self._next_look:
            self._next_look = now + self._limits.log_age_s / 4
            self._late.forget_old()

    def matching(
        self, topic: str, groups: Sequence[SharedGroup]
    ) -> list[tuple[Pool, SharedGroup | None]]:
        """Return the groups for a topic of which other brokers have members, each with the local
        one of the same name."""
        if not self.pools or is_own(topic):
            return []
        here = {group.group_id: group for group in groups}
        return [(pool, here.get(pool.group_id)) for pool in self._trie.match(topic)]

    # ---------------------------------------------------------------- which brokers have members

    def waits(self, topic: str) -> bool:
        """Whether members of a group for a topic at other brokers wait for old messages
        (`catchup`), or may do so."""
        return self.looks or any(
            standing.pending
            for pool in self._trie.match(topic)
            for standing in pool.brokers.values()
        )

    def connected_elsewhere(self, group_id: bytes) -> bool:
        """Whether a group has connected members at other brokers that can be reached."""
        pool = self.pools.get(group_id)
        return pool is not None and any(s.weight and not s.cut for s in pool.brokers.values())

    def others(self, group_id: bytes, but: Container[bytes]) -> bool:
        """Whether other brokers than `but` have members of a group, even if they cannot be
        reached."""
        pool = self.pools.get(group_id)
        return pool is not None and any(broker_id not in but for broker_id in pool.brokers)

    def best(self, group: SharedGroup | None, allowed: set[Session] | None) -> Own:
        """Return how ready the best local member of a group is, of those in `allowed` (None:
        all)."""
        best = Own.NONE
        if group is not None:
            for member in group.members.values():
                session = member.session
                if allowed is not None and session not in allowed:
                    continue
                conn = session.conn
                if conn is None:
                    best = max(best, Own.AWAY)
                elif conn.backlog or len(session.queue) >= MEMBER_QUEUE_MESSAGES:
                    best = Own.BUSY
                else:
                    return Own.READY
        return best
