"""The way of a message that was published at this broker, one at a time: it is delivered here and
passed on to others. Runs of plain packets go by `qos_fast_path`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqttree.broker.core.message import Message
from mqttree.broker.core.serving_broker import ServingBroker

if TYPE_CHECKING:
    from mqttree.broker.core.connection import Connection


class Publisher:
    """Publishes messages of local clients and of this broker."""

    def __init__(self, broker: ServingBroker) -> None:
        self._broker = broker

    def publish(self, message: Message, source: Connection | None) -> None:
        """Take over an application message that was published here: deliver it here and pass it
        on. `source`: the publisher that waits for slow subscribers and for the journal, None for a
        will and for the broker's own."""
        broker = self._broker
        broker.counters.published_single += 1
        cluster, dispatcher = broker.cluster, broker.dispatcher
        if dispatcher.tally is not None:
            dispatcher.tally.add_single(message.topic)
        if message.retain:
            cluster.retained_sync.written(message, source)
        if cluster.sharing.has_remote_members:
            cluster.sharing.publish(dispatcher.route(message.topic), message, source)
            return
        cluster.forwarder.forward(message, source)  # first of all it gets its name
        dispatcher.publish(message, source)

    def publish_internal(self, topic: str, payload: bytes, qos: int, retain: bool) -> None:
        """Publish on behalf of the broker.

        `topic`: one that begins with `$` stays here; `payload`, `qos`, `retain`: as of a PUBLISH.
        """
        self._broker.counters.published_internally += 1
        self.publish(Message(topic.encode(), payload, qos, retain, b"", None, None), None)
