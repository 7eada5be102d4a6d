"""Shared subscriptions over the whole federation: each message goes to one member of a group, here if one can take it.

Every broker posts its groups with about how many of their members are connected (GROUP entries of the directory). Where a
message is published the choice is made (`routing.share`); it travels with the PUBLISH (`broker.choice`), and what is not named
there stays silent: so there is never more than one receiver, whatever each broker knows of the others. A broker that is named and
has no member any more passes QoS 1 and 2 on, as a message of its own for that group alone, with the promises of every message on
the tree. A broker that is cut off is chosen last; what it is to get waits in the logs as long as anything does (decision 15).
"""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING

from broker import limits
from broker.choice import ID, Choice, Tries
from broker.custody import ref_of
from broker.fanout import topic_of
from broker.forms import filter_memory
from broker.ledger import Ref
from broker.listings import GROUP
from broker.message import Message
from broker.origin import split_key
from routing.share import HERE, Own, Pool, Standing, decode_standing, encode_standing, mark_of, parse_key
from routing.topics import SHARE_PREFIX, split_shared
from routing.trie import SubscriptionTrie

if TYPE_CHECKING:
    from broker.fanout import Route, SharedGroup
    from broker.federation import Federation
    from broker.link import Link
    from broker.log import Entry
    from broker.node import Node
    from broker.session import Session


class Sharing:
    """What is known of the groups of other brokers, and who gets what."""

    __slots__ = ("_cut", "_federation", "_next_look", "_node", "_own", "_pools", "_trie", "_who", "here", "memory")

    def __init__(self, node: Node, federation: Federation) -> None:
        self._node = node
        self._federation = federation
        self._own = federation.own.id
        self._who = self._own + federation.own.boot.to_bytes(4, "big")
        self._pools: dict[bytes, Pool] = {}  # by mark
        self._trie: SubscriptionTrie[Pool] = SubscriptionTrie()
        self._cut: dict[bytes, tuple[float, set[bytes]]] = {}  # broker that cannot be reached -> until when (s), its marks
        self._next_look = node.now + limits.LOG_AGE
        self.memory = 0
        """Bytes that these take, about."""
        self.here: dict[bytes, SharedGroup] = {}
        """Groups with members here, by mark."""
        federation.listings.watch(GROUP, self._posted)
        federation.listings.on_way.append(self._way_changed)

    @property
    def elsewhere(self) -> bool:
        """Whether any other broker has members of a group."""
        return bool(self._pools)

    # ---------------------------------------------------------------- members here

    def tell(self, group: SharedGroup) -> None:
        """Note that members of a group here came, went, connected or disconnected."""
        listings = self._federation.listings
        if not group.members:
            group.told = b""
            self.here.pop(group.mark, None)
            self._perhaps_unknown(group.mark)
            listings.withdraw(GROUP + group.key)
            return
        if group.mark not in self.here:
            self.here[group.mark] = group
            self._federation.catchup.known(group.mark)
            self._federation.assignments.member_came(group.mark)
        told = encode_standing(len(group.connected))
        if told != group.told:
            group.told = told
            try:
                listings.post(GROUP + group.key, told)
            except ValueError:  # too many: its members get what is published here
                self._federation.count("groups_refused")

    def session_changed(self, session: Session) -> None:
        """Note that a session has a connection now, or none any more."""
        for topic_filter in session.subscriptions:
            if topic_filter.startswith(SHARE_PREFIX):
                name, inner = split_shared(topic_filter)
                group = self._node.fanout.group(name or "", inner)
                if group is not None:
                    group.note(session)
                    self.tell(group)

    # ---------------------------------------------------------------- members elsewhere

    def _posted(self, broker_id: bytes, key: bytes, value: bytes | None) -> None:
        mark = mark_of(key)
        if value is None:
            listing = self._federation.listings.directory.listings.get(broker_id)
            if listing is not None and listing.via is None and GROUP + key in listing.entries:
                self._cut_off(broker_id, mark)
            else:
                self._remove(broker_id, mark)
            return
        pool = self._pools.get(mark)
        if (pool is None or broker_id not in pool.brokers) and self.memory > limits.TOLD_GROUPS_MEMORY:
            self._federation.count("groups_refused")
            return
        if pool is None:
            try:
                group, topic_filter = parse_key(key)
            except ValueError:
                self._federation.count("groups_refused")
                return
            self.memory += limits.GROUP_MEMORY + filter_memory(topic_filter)
            pool = self._pools[mark] = Pool(mark, group, topic_filter)
            self._trie.insert(topic_filter, group, pool)
            self._node.fanout.invalidate(topic_filter)
        catchup = self._federation.catchup
        standing = pool.brokers.get(broker_id)
        if standing is None:
            self.memory += limits.MEMBERS_MEMORY
            standing = pool.brokers[broker_id] = Standing(broker_id)
            standing.pending = catchup.wanted(mark)
            if not standing.pending:
                catchup.known(mark)
        if standing.pending:
            catchup.ask(broker_id, mark)
        standing.weight = decode_standing(value)
        standing.cut = False
        self._federation.assignments.member_came(mark)

    def caught_up(self, broker_id: bytes, mark: bytes) -> None:
        """Note that members of a group at a broker have what is older: they get what is new."""
        pool = self._pools.get(mark)
        if pool is not None and broker_id in pool.brokers:
            pool.brokers[broker_id].pending = False
            self._federation.catchup.known(mark)

    def pool(self, mark: bytes) -> Pool | None:
        """Return a group that other brokers have members of."""
        return self._pools.get(mark)

    def _perhaps_unknown(self, mark: bytes) -> None:
        pool = self._pools.get(mark)
        if mark not in self.here and (pool is None or all(standing.pending for standing in pool.brokers.values())):
            self._federation.catchup.unknown(mark)

    def _remove(self, broker_id: bytes, mark: bytes) -> None:
        pool = self._pools.get(mark)
        if pool is None or pool.brokers.pop(broker_id, None) is None:
            return
        self.memory -= limits.MEMBERS_MEMORY
        self._federation.catchup.forget(broker_id, mark)
        if not pool.brokers:
            del self._pools[mark]
            self.memory -= limits.GROUP_MEMORY + filter_memory(pool.filter)
            self._trie.remove(pool.filter, pool.group)
            self._node.fanout.invalidate(pool.filter)
        self._perhaps_unknown(mark)

    def _cut_off(self, broker_id: bytes, mark: bytes) -> None:
        pool = self._pools.get(mark)
        if pool is not None and broker_id in pool.brokers:
            pool.brokers[broker_id].cut = True
            _, marks = self._cut.setdefault(broker_id, (self._node.now + limits.LOG_AGE, set()))
            marks.add(mark)

    def _way_changed(self, broker_id: bytes, via: bytes | None) -> None:
        if via is not None and broker_id in self._cut:
            self._forget(broker_id)  # it is back and has told all its groups again

    def _forget(self, broker_id: bytes) -> None:
        """Forget what is known of a broker from before it was cut off."""
        for mark in self._cut.pop(broker_id)[1]:
            pool = self._pools.get(mark)
            if pool is not None and broker_id in pool.brokers and pool.brokers[broker_id].cut:
                self._remove(broker_id, mark)

    def tick(self, now: float) -> None:
        """Forget brokers that are cut off for longer than logs last: nothing that waits for them is left."""
        if self._cut:
            for broker_id in [b for b, (until, _) in self._cut.items() if until <= now]:
                self._forget(broker_id)
        if now >= self._next_look:
            self._next_look = now + limits.LOG_AGE / 4
            self._federation.catchup.forget_old()

    def matching(self, topic: str, groups: list[SharedGroup]) -> list[tuple[Pool, SharedGroup | None]]:
        """Return the groups for a topic that other brokers have members of, each with that of the same name here."""
        if not self._pools or topic.startswith("$"):
            return []
        here = {group.mark: group for group in groups}
        return [(pool, here.get(pool.mark)) for pool in self._trie.match(topic)]

    # ---------------------------------------------------------------- published here

    def waits(self, topic: str) -> bool:
        """Whether members elsewhere of a group for a topic wait for what is older (`broker.catchup`)."""
        return any(standing.pending for pool in self._trie.match(topic) for standing in pool.brokers.values())

    def publish(self, route: Route, message: Message) -> None:
        """Deliver and pass on what is published here."""
        groups, choice = self._choose(route)
        fanout = self._node.fanout
        fanout.publish_along(route, message, groups)
        if route.forward and self._node.federated:
            relay = self._node.relay
            relay.forward(message, choice)
            if choice is not None and message.qos:
                self._federation.assignments.given(relay.key, relay.own.top, choice, message)

    def publish_run(
        self, route: Route, chunk: bytes, prefix: int, size: int, version: int, properties: bytes, sender: Session
    ) -> None:
        """The same of a run of QoS 0 packets (see `Fanout.run`): one by one, unless members here get all of it."""
        node = self._node
        if not properties and all(self._best(group, route.permitted) is Own.READY for _, group in route.elsewhere):
            node.fanout.run(route, chunk, prefix, size, version, sender)
            if route.forward and node.federated:
                node.relay.forward_run(chunk, prefix, size, version)
            return
        topic = topic_of(chunk)
        for at in range(0, len(chunk), size):
            self.publish(route, Message(topic, chunk[at + prefix : at + size], 0, False, properties, None, sender))

    def _choose(self, route: Route) -> tuple[list[SharedGroup], Choice | None]:
        """Return which groups get a message from their members here, and what other brokers are told."""
        groups = list(route.shared)
        entries: list[tuple[bytes, bytes]] = []
        busy = self._federation.assignments.busy
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
        return groups, Choice(entries) if entries else None

    def adopt(self, topic: bytes) -> Choice | None:
        """Choose for a message of a broker that cannot; the first one that takes it from there does. None: no groups."""
        route = self._node.fanout.route(topic)
        groups, choice = self._choose(route)
        entries = [(self._who, group.mark) for group in groups[: limits.MAX_CHOICES]]
        if choice is not None:
            entries += choice.entries[: limits.MAX_CHOICES - len(entries)]
        return Choice(entries, adopted=True) if entries else None

    def _life(self, broker_id: bytes) -> bytes:
        """Return id and boot of another broker."""
        listing = self._federation.listings.directory.listings.get(broker_id)
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

    def received(self, message: Message, choice: Choice, *, ordinary: bool) -> None:
        """Deliver a message from a link with what it says of groups. Those named here get it, however old it is: nobody else
        does. `ordinary`: so do ordinary subscriptions, if it is for them."""
        fanout = self._node.fanout
        route = fanout.route(message.topic)
        message.choice = choice
        groups: list[SharedGroup] = []
        marks = {mark for who, mark in choice.entries if who == self._who}
        if marks:
            if choice.retain:
                message = Message(message.topic, message.payload, message.qos, True, message.properties, message.expires_at, None)
                message.choice = choice
            if choice.key and not choice.adopted and self._federation.custody.claims(choice.key, message.qos):
                for mark in marks:
                    self._federation.custody.hold((choice.key, choice.sequence, mark), message)
                marks.clear()
            for group in route.shared:
                if group.mark in marks:
                    marks.discard(group.mark)
                    if self.stays(group, message, route.permitted):
                        groups.append(group)
            for mark in marks:
                self.pass_on(mark, message)
        if ordinary and not choice.passed:
            fanout.publish_along(route, message, groups)
        elif groups:
            fanout.publish_along(route, message, groups, only=True)

    def stays(self, group: SharedGroup, message: Message, allowed: set[Session] | None) -> bool:
        """Whether a group's members here get a message that was given to them; else it has been passed on, as they are away or
        gone and others are connected."""
        pool = self._pools.get(group.mark)
        if pool is None or not message.qos or self._best(group, allowed) > Own.AWAY:
            return True
        visited = _visited(message)
        there = (s for s in pool.brokers.values() if s.weight and not s.cut and s.id not in visited)
        if len(visited) >= limits.MAX_PASSES or not any(there):
            return True
        self.pass_on(group.mark, message, denied=bool(group.members) and self._best(group, allowed) is Own.NONE)
        return False

    def pass_on(self, mark: bytes, message: Message, *, denied: bool = False) -> None:
        """Give a message for a group that has no member here, or (`denied`) none that may have it, to another broker; if it came
        from one and no other is known, back to that one."""
        node = self._node
        pool = self._pools.get(mark)
        ref = ref_of(message, mark)
        visited = (*_visited(message), self._own)
        target = None
        if pool is not None and message.qos and len(visited) <= limits.MAX_PASSES and node.federated:
            target = pool.choose(Own.NONE, visited)
        if target is not None:
            node.counters.shared_passed_on += 1
            self.give(target, mark, message, visited, retain=message.retain, tries=_tries(message))
            if ref is not None:
                self._federation.custody.gave(ref)
        elif ref is not None and message.qos:
            self._federation.custody.decline(ref, denied=denied)
        else:
            node.counters.shared_undelivered += 1

    # ---------------------------------------------------------------- given to one group

    def connected_elsewhere(self, mark: bytes) -> bool:
        """Whether a group has connected members at other brokers that can be reached."""
        pool = self._pools.get(mark)
        return pool is not None and any(s.weight and not s.cut for s in pool.brokers.values())

    def target(self, mark: bytes, message: Message, skip: tuple[bytes, ...]) -> bytes | None:
        """Return who may get a message that was given to a member before: `HERE`, a broker, or None. `skip`: not these."""
        group, pool = self.here.get(mark), self._pools.get(mark)
        own = Own.NONE if self._own in skip else self._best(group, self._node.fanout.route(message.topic).permitted)
        if pool is None:
            return HERE if own is not Own.NONE else None
        return pool.choose(own, skip, busy=self._federation.assignments.busy, again=True)

    def others(self, mark: bytes, but: Container[bytes]) -> bool:
        """Whether other brokers than these have members of a group, whether they can be reached or not."""
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
        """Give a message to a group alone, here or at another broker. `visited`: those that had no member for it."""
        here = target == HERE
        copy = Message(
            message.topic, message.payload, message.qos, here and retain, message.properties, message.expires_at, None
        )  # fmt: skip
        choice = Choice([] if here else [(self._life(target), mark)], passed=True, retain=retain, visited=visited)
        choice.tries = tries
        if here:
            copy.choice = choice  # should no member have it after all
            self.deliver_here(mark, copy)
            return
        relay = self._node.relay
        relay.forward(copy, choice)
        self._federation.assignments.given(relay.key, relay.own.top, choice, copy)

    def give_late(self, ref: Ref, message: Message) -> None:
        """Give a message of ours to a group that was not known when it was published."""
        target = self.target(ref[2], message, ())
        if target is None:
            self._federation.assignments.waiting(ref, message, (), retain=message.retain)
        else:
            self._node.counters.shared_late += 1
            self.give(target, ref[2], message, (), retain=message.retain)

    def deliver_here(self, mark: bytes, message: Message) -> None:
        """Give a message to a member here."""
        group, fanout = self.here.get(mark), self._node.fanout
        if group is None:
            self.pass_on(mark, message)
        else:
            fanout.publish_along(fanout.route(message.topic), message, [group], only=True)

    # ---------------------------------------------------------------- ways

    def links(self, choice: Choice, links: list[Link], key: bytes) -> list[Link]:
        """Return the links that a message of an origin takes: those of its topic, and those to the brokers chosen."""
        if not self._federation.interest.selective:
            return links
        overlays = self._federation.overlays
        if overlays.active:
            ways = overlays.onward(split_key(key)[0])
            chosen = (ways.get(who[:ID]) for who, _ in choice.entries)
            return list(dict.fromkeys((*(() if choice.passed else links), *(link for link in chosen if link is not None))))
        found = [link for link in self._node.forwarding if not link.selective] if choice.passed else list(links)
        for who, _ in choice.entries:
            link = self._federation.listings.link_to(who[:ID])
            if link is not None and link.live and link not in found:
                found.append(link)
        return found

    def chosen_behind(self, link: Link, entry: Entry) -> bool:
        """Whether a message in the log names a broker behind a link."""
        choice = entry.choice
        if choice is not None and self._federation.overlays.active and not self._federation.orphans.gone(entry.key):
            return link.peer is not None and any(who[:ID] == link.peer.id for who, _ in choice.entries)
        link_to = self._federation.listings.link_to
        return choice is not None and any(link_to(who[:ID]) is link for who, _ in choice.entries)


def _visited(message: Message) -> tuple[bytes, ...]:
    """Return the brokers that had a message before this one and could not deliver it to a group."""
    choice: Choice | None = getattr(message, "choice", None)
    return () if choice is None else choice.visited


def _tries(message: Message) -> Tries | None:
    """Return which brokers gave a message back."""
    choice: Choice | None = getattr(message, "choice", None)
    return None if choice is None else choice.tries
