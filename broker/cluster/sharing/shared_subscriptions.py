"""Shared subscriptions over the whole federation: each message goes to one member of a group, a
local one if it can take it.

Every broker posts its groups with about how many of their members are connected (GROUP entries of
the directory). The broker at which a message is published chooses a member's broker
(`group_selection`). The choice travels with the PUBLISH (`receiver_assignment`), and no broker that
is not named there delivers it to the group: so there is never more than one receiver, whatever each
broker knows of the others. A chosen broker that has no member any more passes a message at QoS 1 or
2 on, as a message of its own for that group alone. A broker that is cut off is chosen last; its
messages stay in the logs as long as all others (docs/decisions/0015).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqttree.broker.base import costs
from mqttree.broker.cluster.link.origin_keys import split_key
from mqttree.broker.cluster.sharing.assignment_ledger import Ref
from mqttree.broker.cluster.sharing.assignments import Assignments
from mqttree.broker.cluster.sharing.catchup import Catchup
from mqttree.broker.cluster.sharing.custody import Custody, ref_of
from mqttree.broker.cluster.sharing.deputies import Deputies
from mqttree.broker.cluster.sharing.group_table import GroupTable
from mqttree.broker.core.message import Message
from mqttree.broker.core.receiver_assignment import (
    ID,
    MAX_CHOICES,
    MAX_PASSES,
    ReceiverAssignment,
    Tries,
)
from mqttree.broker.wire.publish_header import topic_of
from mqttree.routing.group_selection import HERE, Own

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mqttree.broker.base.broker_id import Identity
    from mqttree.broker.base.sequence_set import Ranges
    from mqttree.broker.cluster.delivery.forwarder import Forwarder
    from mqttree.broker.cluster.delivery.orphans import Orphans
    from mqttree.broker.cluster.delivery.ports import Above
    from mqttree.broker.cluster.delivery.replay_log import LogEntry
    from mqttree.broker.cluster.directory.link_state_directory import LinkStateDirectory
    from mqttree.broker.cluster.directory.unicast_bus import UnicastBus
    from mqttree.broker.cluster.link.link import Link
    from mqttree.broker.cluster.ports import Alarm, LeavingSessions, MemberBroker
    from mqttree.broker.cluster.strategy.routing_strategy import MessagePaths
    from mqttree.broker.core.connection import Connection
    from mqttree.broker.core.route import Route
    from mqttree.broker.core.session import Session, SharedGroup


class SharedSubscriptions:
    """Chooses and serves the members of groups, here and at other brokers."""

    def __init__(
        self,
        node: MemberBroker,
        own: Identity,
        *,
        directory: LinkStateDirectory,
        bus: UnicastBus,
        strategy: MessagePaths,
        orphans: Orphans,
        forwarder: Forwarder,
        leaving: LeavingSessions,
        alarm: Alarm,
        above: Above,
    ) -> None:
        """`node`: this broker, with the identity `own`; `leaving`: knows which sessions go to other
        brokers; `alarm`: calls the cluster again; `above`: has what was kept for brokers that were
        away; `directory`, `bus`, `strategy`, `orphans`, `forwarder`: the modules below that it
        uses."""
        self._node = node
        self._counters = node.counters
        self._dispatcher = node.dispatcher
        self._directory = directory
        self._strategy = strategy
        self._orphans = orphans
        self._forwarder = forwarder
        self._own = own.id
        self._who = own.id + own.boot.to_bytes(4, "big")
        self.groups = GroupTable(node, directory)
        self._pools = self.groups.pools
        database = directory.database
        self.deputies = Deputies(node, own.id, database)
        self.assignments = Assignments(
            node, own, self.deputies, database, bus, forwarder, self.groups, self, alarm, above
        )
        self.custody = Custody(
            node, own, self.deputies, bus, forwarder, self.groups, self, leaving, above
        )
        self.catchup = Catchup(node, database, bus, forwarder, self.groups, self, above)
        self.groups.connect(self.catchup, self.assignments.member_came)

    @property
    def has_remote_members(self) -> bool:
        """Whether any other broker has members of a group."""
        return bool(self._pools)

    @property
    def memory(self) -> int:
        """Bytes of memory of the groups, and of what was given and taken, about."""
        refs = len(self.assignments.ledger) + self.custody.count
        kept = self.assignments.ledger.size + self.custody.size + self.catchup.keeps
        return self.groups.memory + kept + refs * costs.REF_MEMORY

    # ---------------------------------------------------------------- for the journal

    def restore(
        self, covered: Iterable[tuple[bytes, bytes, Ranges, float | None]], closed: set[Ref]
    ) -> None:
        """Go on where earlier incarnations of this broker were: with what groups got (`covered`, as
        `covered()` returns it), and with messages that are not acknowledged (not in `closed`)."""
        self.catchup.restore(covered, closed)
        self.assignments.restore(closed)

    # ---------------------------------------------------------------- standbys

    def standby_lost(self, broker_id: bytes) -> None:
        """Note that the standby of this broker is lost: it may take the place of this one."""
        self.deputies.standby_lost(broker_id)
        self.assignments.standby_lost()

    # ---------------------------------------------------------------- messages

    def publish(self, route: Route, message: Message, source: Connection | None) -> None:
        """Deliver a `message` that is published here along its `route`, and pass it on. `source`:
        as of `Dispatcher.publish`."""
        groups, choice = self._choose(route)
        self._forwarder.forward(message, source, choice)  # first of all it gets its name
        self._node.dispatcher.publish_along(route, message, groups, source)
        if route.forward and choice is not None and message.qos:
            self.assignments.given(message.origin, message.sequence, choice, message, source)

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
        """Deliver and pass on a run of QoS 0 packets that is published here: as one, if local
        members get all of it, else one by one.

        `route`: of their topic; `chunk`: the packets, all of `size` bytes, of which `prefix` bytes
        are ahead of the payload; `version`: the publisher's protocol version; `properties`: theirs;
        `sender`: the publisher's session.
        """
        node = self._node
        if not properties and all(
            self.groups.best(group, route.permitted) is Own.READY for _, group in route.elsewhere
        ):
            self._dispatcher.run(route, chunk, prefix, size, version, sender)
            if route.forward and node.federated and sender.conn is not None:
                batch = self._forwarder.outgoing(chunk, version, sender.conn)
                batch.add(route, 0, len(chunk), len(chunk) // size, 0)
                batch.flush()
            return
        topic = topic_of(chunk)
        for at in range(0, len(chunk), size):
            self.publish(
                route,
                Message(topic, chunk[at + prefix : at + size], 0, False, properties, None, sender),
                sender.conn,
            )

    def _choose(self, route: Route) -> tuple[list[SharedGroup], ReceiverAssignment | None]:
        """Return the groups whose local members get a message, and the assignment that other
        brokers get."""
        groups = list(route.shared)
        entries: list[tuple[bytes, bytes]] = []
        busy = self.assignments.busy
        if self._node.federated:
            for pool, group in route.elsewhere:
                chosen = pool.choose(self.groups.best(group, route.permitted), busy=busy)
                if not chosen:  # a local member, or none
                    continue
                if group is not None:
                    groups = [g for g in groups if g is not group]
                if len(entries) < MAX_CHOICES:
                    entries.append((self._incarnation(chosen), pool.group_id))
                    self._counters.shared_assigned += 1
                else:
                    self._counters.shared_undelivered += 1
        return groups, ReceiverAssignment(entries) if entries else None

    def _incarnation(self, broker_id: bytes) -> bytes:
        """Return id and boot of another broker."""
        return broker_id + self._directory.database.boot(broker_id).to_bytes(4, "big")

    # ---------------------------------------------------------------- received

    def received(
        self,
        message: Message,
        choice: ReceiverAssignment,
        source: Connection | None,
        *,
        ordinary: bool,
    ) -> None:
        """Deliver a `message` from a link to the local members that its `choice` names, however old
        it is. `ordinary`: deliver it to ordinary subscribers, too, if it is for them. `source`: as
        of `Dispatcher.publish`."""
        dispatcher = self._node.dispatcher
        route = dispatcher.route(message.topic)
        message.choice = choice
        groups: list[SharedGroup] = []
        group_ids = {group_id: None for who, group_id in choice.entries if who == self._who}
        if group_ids:
            if choice.retain:
                name = message.origin, message.sequence
                message = message.as_retained().named(*name)
                message.choice = choice
            if choice.key and self.custody.claims(choice.key, message.qos):
                for group_id in group_ids:
                    self.custody.hold((choice.key, choice.sequence, group_id), message)
                group_ids.clear()
            for group in route.shared:
                if group.group_id in group_ids:
                    del group_ids[group.group_id]
                    if self.stays(group, message, route.permitted, source):
                        groups.append(group)
            for group_id in group_ids:
                self.pass_on(group_id, message, source)
        if ordinary and not choice.passed:
            dispatcher.publish_along(route, message, groups, source)
        elif groups:
            dispatcher.publish_along(route, message, groups, source, only=True)

    def stays(
        self,
        group: SharedGroup,
        message: Message,
        allowed: set[Session] | None,
        source: Connection | None,
    ) -> bool:
        """Whether the local members of a `group` get a `message` that was given to them. If they do
        not, it has been passed on, as they are away or gone and others are connected. `allowed`:
        the sessions that may receive it; None: all. `source`: as of `Dispatcher.publish`."""
        pool = self._pools.get(group.group_id)
        if pool is None or not message.qos or self.groups.best(group, allowed) > Own.AWAY:
            return True
        visited = _visited(message)
        there = (s for s in pool.brokers.values() if s.weight and not s.cut and s.id not in visited)
        if len(visited) >= MAX_PASSES or not any(there):
            return True
        self.pass_on(
            group.group_id,
            message,
            source,
            denied=bool(group.members) and self.groups.best(group, allowed) is Own.NONE,
        )
        return False

    def pass_on(
        self, group_id: bytes, message: Message, source: Connection | None, *, denied: bool = False
    ) -> None:
        """Give a `message` for the group `group_id` to another broker, as the group has no local
        member, or (`denied`) none that may receive it. If it came from a broker and no other one is
        known, it goes back there. `source`: as of `Dispatcher.publish`."""
        node = self._node
        pool = self._pools.get(group_id)
        ref = ref_of(message, group_id)
        visited = (*_visited(message), self._own)
        target = None
        if pool is not None and message.qos and len(visited) <= MAX_PASSES and node.federated:
            target = pool.choose(Own.NONE, visited)
        if target is not None:
            self._counters.shared_passed_on += 1
            retain, tries = message.retain, _tries(message)
            self.give(target, group_id, message, visited, retain=retain, tries=tries, source=source)
            if ref is not None:
                self.custody.gave(ref)
        elif ref is not None and message.qos:
            self.custody.decline(ref, denied=denied)
        else:
            self._counters.shared_undelivered += 1

    def took(self, ref: Ref, *, published: bool) -> bool:
        """Whether a local member of the group got the message `ref` that it has or had, as far as
        this broker has recorded it: one that was granted, or (if `published`) published here."""
        return ref in self.custody.taken or (published and self.assignments.published(ref))

    # ---------------------------------------------------------------- given to one group

    def target(self, group_id: bytes, message: Message, skip: tuple[bytes, ...]) -> bytes | None:
        """Return where a `message` for the group `group_id` may be given that was given to a member
        before: `HERE`, the id of a broker, or None. `skip`: ids of brokers that do not get it."""
        group, pool = self.groups.here.get(group_id), self._pools.get(group_id)
        own = (
            Own.NONE
            if self._own in skip
            else self.groups.best(group, self._dispatcher.route(message.topic).permitted)
        )
        if pool is None:
            return HERE if own is not Own.NONE else None
        return pool.choose(own, skip, busy=self.assignments.busy, again=True)

    def give(
        self,
        target: bytes,
        group_id: bytes,
        message: Message,
        visited: tuple[bytes, ...],
        *,
        retain: bool,
        tries: Tries | None = None,
        source: Connection | None = None,
    ) -> None:
        """Give a `message` to the group `group_id` alone. `target`: `HERE`, or the id of a broker;
        `visited`: brokers that had no member for it; `retain`: whether it was retained where it was
        published; `tries`: brokers that gave it back. `source`: its publisher; None: no connection
        has to wait."""
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
            [] if here else [(self._incarnation(target), group_id)],
            passed=True,
            retain=retain,
            visited=visited,
        )
        choice.tries = tries
        if here:
            copy.named(message.origin, message.sequence)
            copy.choice = choice  # in case that no member takes it
            self.deliver_here(group_id, copy)
            return
        self._forwarder.forward(copy, source, choice)
        self.assignments.given(copy.origin, copy.sequence, choice, copy, source)

    def give_late(self, group_id: bytes, message: Message) -> bool:
        """Give a message that was published here to a group that was not known then. Returns
        whether it has a member that can be reached."""
        target = self.target(group_id, message, ())
        if target is None:
            return False
        self._counters.shared_late += 1
        self.give(target, group_id, message, (), retain=message.retain)
        return True

    def is_closed(self, ref: Ref) -> bool:
        """Whether no member gets the message `ref` any more: another broker has given it, or keeps
        it for a member."""
        return self.assignments.ledger.moved(ref)

    def deliver_here(self, group_id: bytes, message: Message) -> None:
        """Give a message to a local member."""
        group, dispatcher = self.groups.here.get(group_id), self._node.dispatcher
        if group is None:
            self.pass_on(group_id, message, None)
        else:
            route = dispatcher.route(message.topic)
            dispatcher.publish_along(route, message, [group], None, only=True)

    # ---------------------------------------------------------------- paths

    def chosen_behind(self, link: Link, entry: LogEntry) -> bool:
        """Whether a message in the log was given to a broker that a replay over this link
        reaches."""
        choice = entry.choice
        if choice is None:
            return False
        brokers = [who[:ID] for who, _ in choice.entries]
        if self._strategy.source_rooted and not self._orphans.is_gone(entry.key):
            return link.peer is not None and link.peer.id in brokers
        return any(self._directory.link_to(broker_id) is link for broker_id in brokers)

    def published_behind(self, link: Link, key: bytes) -> bool:
        """Whether the broker of the origin `key` is behind a link, or at its end: what its disk
        lacks may be for its own members, and others ask it for the rest."""
        broker_id = split_key(key)[0]
        at_end = link.peer is not None and link.peer.id == broker_id
        return at_end or self._directory.link_to(broker_id) is link


def _visited(message: Message) -> tuple[bytes, ...]:
    """Return the brokers that had a message before this one and could not deliver it to a group."""
    choice: ReceiverAssignment | None = getattr(message, "choice", None)
    return () if choice is None else choice.visited


def _tries(message: Message) -> Tries | None:
    """Return which brokers gave a message back."""
    choice: ReceiverAssignment | None = getattr(message, "choice", None)
    return None if choice is None else choice.tries
