"""The retained messages of this broker for a leg. It decides nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mqttree.broker.cluster.link.origin_keys import split_key
from mqttree.broker.core.message import Message
from mqttree.broker.core.retained_index import place_of
from mqttree.broker.leg.own_topics import stays
from mqttree.broker.leg.retained_history import Write
from mqttree.broker.leg.retained_values import read_section
from mqttree.broker.wire.packets import Publish
from mqttree.broker.wire.properties import NOT_FORWARDED, Property, encode_properties, lifetime
from mqttree.broker.wire.varint import read_length

if TYPE_CHECKING:
    from mqttree.broker.core.retained_store import RetainedStore
    from mqttree.broker.core.session import Session
    from mqttree.broker.node import Node


class RetainedHere:
    """What this broker has retained, as a leg may see it."""

    def __init__(self, node: Node, session: str) -> None:
        """`node`: this broker; `session`: the client id of the leg's session."""
        self._node = node
        self._store: RetainedStore = node.retained
        self._name = session
        self._all = 0
        self._mine = 0
        self.full = False

    @property
    def _session(self) -> Session | None:
        return self._node.sessions.get(self._name)

    @property
    def waiting(self) -> bool:
        """Return whether messages wait for the foreign broker, or what other brokers of the
        federation have retained still comes."""
        session, node = self._session, self._node
        queued = session is not None and bool(session.queue)
        return queued or node.cluster.retained_comparison.bringing(node.now)

    @property
    def dropped(self) -> int:
        """Return a number that rises when messages for the foreign broker may have been dropped."""
        session, counters = self._session, self._node.counters
        if session is None:
            return self._mine
        if counters.dropped_slow_consumer != self._all:
            self._all = counters.dropped_slow_consumer
            conn = session.conn
            self._mine += conn is None or bool(conn.backlog)
        return self._mine + session.dropped_full

    def get(self, topic: str, now: float) -> Publish | None:
        """Return the retained message of a `topic` at `now` (s); None: there is none."""
        message = self._store.get(topic)
        if message is None or message.expired(now):
            return None
        properties = read_section(message.properties)
        if message.expires_at is not None:
            left = max(1, round(message.expires_at - now))
            properties = {Property.MESSAGE_EXPIRY_INTERVAL: left} | (properties or {})
        return Publish(topic, message.payload, message.qos, True, properties=properties)

    def last_write(self, topic: str) -> Write:
        """Return when and where a `topic` was written or deleted last."""
        version = self._store.digests.get(place_of(topic.encode()))
        return Write(0, b"") if version is None else Write(version.time, split_key(version.key)[0])

    @property
    def broker_id(self) -> bytes:
        """The id of this broker."""
        return self._node.config.id

    def clock(self) -> int:
        """Return the time (hybrid clock)."""
        return self._node.cluster.clock.tick(self._node.now)

    def topics(self, topic_filter: str, now: float) -> Iterator[str | None]:
        """Yield the topics that a filter matches at `now` (s), and None for steps without one."""
        for message in self._store.search(topic_filter, now):
            yield None if message is None else message.topic.decode()

    def may_publish(self, topic: str) -> bool:
        """Return whether the rules let the leg publish to a `topic`."""
        session = self._session
        return session is not None and session.may_publish(topic)

    def may_receive(self, topic: str) -> bool:
        """Return whether the rules let the leg have messages of a `topic`."""
        session = self._session
        return session is not None and session.may_receive(topic)

    def publish(self, message: Publish, now: float) -> None:
        """Publish a `message` as the leg's session, which does not get it back. One that does not
        leave this federation is kept without being published. `now`: s."""
        if stays(topic := message.topic.encode()):
            self._node.now = now
            self._node.cluster.retained_sync.put(
                Message(topic, message.payload, 0, True, b"", None, None)
            )
            return
        session = self._session
        if session is None:
            return
        node = self._node
        node.now = now
        properties = message.properties or {}
        expiry = properties.get(Property.MESSAGE_EXPIRY_INTERVAL)
        rest = {name: value for name, value in properties.items() if name not in NOT_FORWARDED}
        encoded = encode_properties(rest)
        node.publisher.publish(
            Message(
                message.topic.encode(),
                message.payload,
                min(message.qos, node.config.max_qos),
                True,
                encoded[read_length(encoded, 0)[1] :],
                None if expiry is None else now + lifetime(expiry),
                session,
            ),
            None,
        )
