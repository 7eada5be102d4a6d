"""Shared subscriptions over the whole federation: each message goes to one member of a group, here if one can take it.

Every broker posts its groups with about how many of their members are connected (GROUP entries of the directory). Where a message
is published the choice is made (`routing.share`); it travels with the PUBLISH (`broker.choice`), and what is not named there stays
silent: so there is never more than one receiver, whatever each broker knows of the others. A broker that is named and has no member
any more passes QoS 1 and 2 on, as a message of its own for that group alone, with the promises of every message on the tree.
A broker that is cut off is chosen last; what it is to get waits in the logs as long as anything does. docs/decisions/0015.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker import limits
from broker.choice import Choice
from broker.fanout import both
from broker.listings import GROUP
from broker.message import Message
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

    __slots__ = ("_cut", "_federation", "_node", "_own", "_pools", "_trie")

    def __init__(self, node: Node, federation: Federation) -> None:
        self._node = node
        self._federation = federation
        self._own = federation.own.id
        self._pools: dict[bytes, Pool] = {}  # by mark
        self._trie: SubscriptionTrie[Pool] = SubscriptionTrie()
        self._cut: dict[bytes, set[bytes]] = {}  # broker that cannot be reached -> marks of its groups
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
            listings.withdraw(GROUP + group.key)
            return
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
        if pool is None:
            try:
                group, topic_filter = parse_key(key)
            except ValueError:
                self._federation.count("groups_refused")
                return
            pool = self._pools[mark] = Pool(mark, topic_filter)
            self._trie.insert(topic_filter, group, pool)
            self._node.fanout.invalidate(topic_filter)
        standing = pool.brokers.get(broker_id)
        if standing is None:
            standing = pool.brokers[broker_id] = Standing(broker_id, 0)
        standing.weight = decode_standing(value)
        standing.cut_at = None

    def _cut_off(self, broker_id: bytes, mark: bytes) -> None:
        pool = self._pools.get(mark)
        if pool is not None and broker_id in pool.brokers:
            pool.brokers[broker_id].cut_at = self._node.now
            self._cut.setdefault(broker_id, set()).add(mark)

    def _remove(self, broker_id: bytes, mark: bytes) -> None:
        pool = self._pools.get(mark)
        if pool is not None and pool.brokers.pop(broker_id, None) is not None and not pool.brokers:
            del self._pools[mark]
            group = next(g for g, p in self._named(pool.filter) if p is pool)
            self._trie.remove(pool.filter, group)
            self._node.fanout.invalidate(pool.filter)

    def _way_changed(self, broker_id: bytes, via: bytes | None, attached: bytes) -> None:
        """A broker that is back has told all its groups again: it has no others any more."""
        if via is not None:
            self._forget(broker_id)

    def _forget(self, broker_id: bytes) -> None:
        for mark in self._cut.pop(broker_id, ()):
            pool = self._pools.get(mark)
            standing = None if pool is None else pool.brokers.get(broker_id)
            if standing is not None and standing.cut_at is not None:
                self._remove(broker_id, mark)

    def tick(self, now: float) -> None:
        """Forget the groups of brokers that are cut off for longer than logs last."""
        for broker_id, marks in list(self._cut.items()):
            since = [self._pools[m].brokers[broker_id].cut_at for m in marks if broker_id in getattr(self._pools.get(m), "brokers", ())]
