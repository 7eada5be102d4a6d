"""Messages towards one client: what is queued, what is in flight, and when the next one is sent
(MQTT-4.3, MQTT-4.4).

* *Receive Maximum* (MQTT-3.3.4-9) is enforced here: QoS 1 and 2 messages beyond `receive_maximum`
  in flight wait in `queue`; `fill_window` sends them as acknowledgements come. So is the client's
  Maximum Packet Size (MQTT-3.1.2-24).
* *Message expiry* on the way to a client (MQTT-3.3.2-5, -6): a queued message that has expired is
  dropped (`fill_window`), another one is sent with the seconds that are left (`Message.packet`).
* A queue has a limit of its own (`max_queued`), and shares the memory of all (`memory_limit`).
"""

from __future__ import annotations

from collections import deque
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, Protocol

from mqttree.broker.base import costs
from mqttree.broker.core.core_broker import CoreBroker
from mqttree.broker.core.message import Message, message_in, size_of
from mqttree.broker.wire.constants import MAX_PACKET_SIZE
from mqttree.broker.wire.publish_header import (
    PACKET_IDS,
    PUBACK_HEAD,
    PUBCOMP_HEAD,
    PUBREC_HEAD,
    PUBREL_HEAD,
)

if TYPE_CHECKING:
    from mqttree.broker.core.connection import Backpressure, Connection
    from mqttree.broker.core.publish_run import PublishRun
    from mqttree.broker.core.topic_alias import TopicAliases

MAX_MISSED_BYTES: Final = 1024 * 1024
"""bytes of QoS 0 messages for a client that is away."""


Flight = tuple[Any, ...]
"""A PUBLISH as it was sent on this connection, and the name of its message: origin and number. It
is not typed further, as compiled code would check all three whenever it needs one."""


class Outgoing:
    """A QoS 1 or 2 message towards one session, waiting or in flight."""

    __slots__ = ("ids", "message", "qos", "retain")

    def __init__(self, message: Message, qos: int, retain: bool, ids: bytes) -> None:
        """`message`: what is sent; `qos`, `retain`: of its PUBLISH; `ids`: encoded Subscription
        Identifiers."""
        self.message = message
        self.qos = qos
        self.retain = retain
        self.ids = ids


class Repeat(Outgoing):
    """Waits for the window of a new connection with the packet identifier that it had on the last
    one."""

    __slots__ = ("original", "packet_id")

    def __init__(self, original: Outgoing, packet_id: int) -> None:
        super().__init__(original.message, original.qos, original.retain, original.ids)
        self.original = original
        self.packet_id = packet_id


APART: Final = 1 << 15
"""How far packet identifiers of a session that goes on from a copy are from those of its broker,
which may have sent more. One that goes on from an old disk takes half of that."""

RELEASED: Final = Outgoing(Message(b"", b"", 2, False, b"", None, None), 2, False, b"")
"""Stands in `inflight` for a QoS 2 message whose PUBREC came: PUBREL is what is repeated now
(MQTT-4.4.0-1)."""


class SessionRecorder(Protocol):
    """Records what changes in one durable session, so that the session survives its broker
    (docs/decisions/0021). Each method is called right after the change, unless it says otherwise.
    """

    @property
    def number(self) -> int:
        """Of the session in the journal; less than 1 << 32."""

    def record_attributes(self) -> None:
        """The will, the owner or another attribute of the session has changed."""

    def record_all(self) -> None:
        """Everything has changed: what was recorded before is not needed any more."""

    def subscribed(self, topic_filter: str) -> None:
        """The subscription to a filter is new, or has other options."""

    def unsubscribed(self, topic_filter: str) -> None:
        """The subscription to a filter has ended."""

    def record_starts(self) -> None:
        """The subscriptions begin behind other sequence numbers (`subscription_start`)."""

    def record_delivered(self) -> None:
        """More is known of what the session has had at other brokers (`evaluated`)."""

    def record_absorbed(self) -> None:
        """An older session was merged into it."""

    def record_owed(self) -> None:
        """The session alone is owed other messages than before (`evaluated`)."""

    def queued(self, outgoing: Outgoing, source: Connection | None) -> None:
        """A message is the last one of the queue. `source`: its publisher, which hears of it once
        that is durable."""

    def sent(self, packet_id: int, outgoing: Outgoing, source: Connection | None) -> None:
        """A message (`outgoing`) that was not in the queue is in flight as `packet_id`. `source`:
        as of `queued`."""

    def sent_run(self, packet_id: int, run: PublishRun, source: Connection | None) -> None:
        """A `run` of messages that were not in the queue is in flight, from `packet_id` on.
        `source`: as of `queued`."""

    def dequeued(self, packet_id: int, count: int, first: Message, qos: int) -> None:
        """`count` messages of the queue are in flight, from `packet_id` on.

        Those ahead of `first` have expired. `qos` is the highest of the messages in flight.
        """

    def acknowledged(self, packets: bytes) -> None:
        """The client has sent PUBACK, PUBREC, PUBREL or PUBCOMP: whole packets of one type, four
        bytes each. What they bring about is recorded after them."""

    def received(self, packet_ids: bytes) -> None:
        """The client has published at QoS 2 with these identifiers, two bytes each."""


class QueueRoom(Protocol):
    """Says whether full queues take more."""

    def room(self, queue: DeliveryQueue, size: int, /) -> bool:
        """Whether a full queue may have one more message of `size` bytes: it was on its way when
        publishers at other brokers were asked to wait."""


class QueueCluster(Protocol):
    """What a queue asks of the cluster."""

    @property
    def remote_flow_control(self) -> QueueRoom:
        """Says whether a full queue takes more."""


class QueueMemory(Protocol):
    """Counts what sessions have queued."""

    appended: int
    """Bytes that were ever queued."""

    @property
    def brink(self) -> int:
        """`appended` from which on `takes_queued` is to be asked."""

    def takes_queued(self, queue: DeliveryQueue, /) -> bool:
        """Whether a message may be queued."""


class Listening(Protocol):
    """The events that plugins subscribe to."""

    @property
    def events(self) -> frozenset[str]:
        """The names of the events that some plugin wants."""


class QueueHost(CoreBroker, Protocol):
    """What a queue asks of its broker."""

    @property
    def dirty(self) -> list[Connection | DeliveryQueue]:
        """Connections and sessions whose outbox is not empty."""

    @property
    def hooks(self) -> Listening:
        """The events that plugins subscribe to."""

    @property
    def cluster(self) -> QueueCluster:
        """The federation, as far as this module needs it."""

    @property
    def memory(self) -> QueueMemory:
        """How much memory queues may take."""

    def event(self, name: str, **arguments: Any) -> None:
        """Tell plugins, if one listens to this."""

    @property
    def flow_control(self) -> Backpressure:
        """Says which connections are not read."""


class DeliveryQueue:
    """The messages towards one client id, connected or not. An outlet like `Connection`: `outbox`
    is the connection's own list while there is one."""

    __slots__ = (
        "aliases",
        "checked",
        "conn",
        "counters",
        "dirty",
        "dropped_full",
        "dropped_large",
        "held",
        "inflight",
        "limited",
        "max_queued",
        "max_queued_bytes",
        "maximum_packet_size",
        "missed",
        "missed_bytes",
        "next_packet_id",
        "node",
        "outbox",
        "paused",
        "queue",
        "queued_bytes",
        "receive_maximum",
        "recorder",
        "unsent",
        "version",
        "window",
    )

    def __init__(self, node: QueueHost) -> None:
        self.node = node
        # The broker's: every message needs them.
        self.counters = node.counters
        self.dirty = node.dirty
        self.conn: Connection | None = None
        self.outbox: list[bytes] = []
        self.version = 4
        self.inflight: dict[int, Outgoing | Flight] = {}
        self.unsent: set[int] = set()  # of these, what its last connection ended before
        self.queue: deque[Outgoing] = deque()
        self.queued_bytes = 0
        # What may be queued; messages beyond are dropped, and counted here, too.
        self.max_queued = node.limits.max_queued
        self.max_queued_bytes = node.limits.max_queued_bytes
        self.dropped_full = 0
        self.dropped_large = 0  # than the client takes
        self.missed: list[Outgoing] | None = None  # at QoS 0, while away
        self.missed_bytes = 0
        self.next_packet_id = 0
        # Of the client, or of this broker for a client of 3.1.1: most messages in flight.
        self.window = self.receive_maximum = node.limits.max_inflight
        # It has just come from another broker, and its older messages are on their way: none is
        # sent.
        self.held = False
        self.paused = False  # no message at QoS 1 and 2 is sent, for this or another reason
        self.maximum_packet_size = MAX_PACKET_SIZE
        self.limited = False  # announced a maximum packet size: every packet is measured
        self.aliases: TopicAliases | None = None  # of this connection
        self.checked = False  # either of these two
        # None: the session is not durable, it ends with its broker at the latest.
        self.recorder: SessionRecorder | None = None

    def open_window(self, most: int) -> None:
        """Have at most so many messages in flight from now on, or none while they are held."""
        self.window = most
        self.receive_maximum = 0 if self.paused else most

    def pause(self) -> None:
        """Queue messages at QoS 1 and 2, and repeat none, until `release`."""
        self.paused, self.receive_maximum = True, 0

    def hold(self) -> None:
        """Pause: older messages are to come."""
        self.held = True
        self.pause()

    def release(self) -> None:
        """Send what was held."""
        self.held = self.paused = False
        self.receive_maximum = self.window
        if self.conn is not None:
            self.fill_window()

    def send_packet(self, data: bytes) -> None:
        """Queue bytes (whole packets) for the client."""
        if not self.outbox:
            self.dirty.append(self)
        self.outbox.append(data)

    def deliver(
        self, message: Message, qos: int, retain: bool, ids: bytes, source: Connection | None
    ) -> None:
        """Send `message`, or queue it.

        `qos`: min(published, granted) (MQTT-3.8.4-8); `retain`: the RETAIN flag; `ids`: encoded
        subscription identifiers. `source`: the connection that the message came on, which waits
        for this client and for the journal; None: no connection has to wait.
        """
        node = self.node
        if qos == 0:
            if self.conn is None:
                if (
                    node.config.keep_missed
                    and (message.retain or message.qos == 0)
                    and self._takes_missed()
                ):
                    self.store_missed(message, retain, ids)
                return
            if not ids and message.expires_at is None:
                head, tail = message.halves(self.version, 0, retain)
                data = head + tail
            else:
                data = message.packet(
                    self.version, 0, retain, 0, now=node.now, subscription_ids=ids
                )
            if self.checked:
                data = self._fit(data)
                if not data:
                    return
            if not self.outbox:
                self.dirty.append(self)
            self.outbox.append(data)
            self.counters.delivered += 1
            return
        if self.conn is None or self.queue or len(self.inflight) >= self.receive_maximum:
            self._enqueue(Outgoing(message, qos, retain, ids), source)
        else:
            self._transmit(Outgoing(message, qos, retain, ids), source)

    @property
    def window_room(self) -> int:
        """How many messages at QoS 1 or 2 may be sent now, as bytes."""
        if self.conn is None or self.queue or self.checked:
            return 0
        return self.receive_maximum - len(self.inflight)

    def deliver_batch(self, batch: PublishRun, source: Connection | None) -> None:
        """Send a run of QoS 1 or 2 packets in the form for this client, for which there is
        `room`. `source`: as of `deliver`."""
        inflight = self.inflight
        count = batch.count
        first = self.next_packet_id % 65535 + 1
        numbers = range(first, first + count)
        if numbers[-1] > 65535 or (inflight and not inflight.keys().isdisjoint(numbers)):
            for message in batch.messages():  # the free identifiers are not in one piece
                self.deliver(message, batch.qos, False, b"", source)
            return
        data = batch.numbered(first)
        size = batch.size
        packets = [data[at : at + size] for at in range(0, len(data), size)]
        names = range(batch.sequence, batch.sequence + count)
        inflight.update(
            zip(numbers, zip(packets, repeat(batch.origin), names, strict=False), strict=True)
        )
        self.next_packet_id = numbers[-1]
        if not self.outbox:
            self.dirty.append(self)
        self.outbox.append(data)
        self.counters.delivered += count
        if self.recorder is not None:
            self.recorder.sent_run(first, batch, source)

    def deliver_outgoing(self, outgoing: Outgoing, source: Connection | None) -> bool:
        """Send a message (`outgoing`), or queue it. Returns whether it is queued or in flight now:
        not at QoS 0, when it is too large for the client, or when the queue is full. `source`: as
        of `deliver`."""
        if outgoing.qos == 0:
            self.deliver(outgoing.message, 0, outgoing.retain, outgoing.ids, source)
            return False
        if self.conn is None or self.queue or len(self.inflight) >= self.receive_maximum:
            self._enqueue(outgoing, source)
            return bool(self.queue) and self.queue[-1] is outgoing
        self._transmit(outgoing, source)
        return self.inflight.get(self.next_packet_id) is outgoing

    def _transmit(
        self, outgoing: Outgoing, source: Connection | None, *, waited: bool = False
    ) -> None:
        """Send a message and have it in flight, unless it is too large for the client.

        `waited`: it was the first one of the queue.
        """
        message = outgoing.message
        inflight = self.inflight
        packet_id = self.next_packet_id % 65535 + 1
        while packet_id in inflight:
            packet_id = packet_id % 65535 + 1
        self.next_packet_id = packet_id
        if not outgoing.ids and message.expires_at is None:
            head, tail = message.halves(self.version, outgoing.qos, outgoing.retain)
            data = b"%b%b%b" % (head, PACKET_IDS[packet_id], tail)
        else:
            data = message.packet(
                self.version,
                outgoing.qos,
                outgoing.retain,
                packet_id,
                now=self.node.now,
                subscription_ids=outgoing.ids,
            )
        if self.checked:
            data = self._fit(data)
            if not data:
                self._on_settled(outgoing)
                if waited and self.recorder is not None:
                    self.recorder.dequeued(packet_id, 1, message, outgoing.qos)
                    self.recorder.acknowledged(PUBACK_HEAD + PACKET_IDS[packet_id])
                return
        inflight[packet_id] = outgoing
        if not self.outbox:
            self.dirty.append(self)
        self.outbox.append(data)
        self.counters.delivered += 1
        if self.recorder is not None:
            if waited:
                self.recorder.dequeued(packet_id, 1, message, outgoing.qos)
            else:
                self.recorder.sent(packet_id, outgoing, source)

    def _fit(self, data: bytes) -> bytes:
        """Return a PUBLISH with its alias; b"" when it is too large for the client (MQTT-3.1.2-24,
        -25: as if delivered)."""
        if self.aliases is not None:
            data = self.aliases.apply(data, self.maximum_packet_size)
        if len(data) > self.maximum_packet_size:
            self.counters.dropped_too_large += 1
            self.dropped_large += 1
            return b""
        return data

    # ---------------------------------------------------------------- at QoS 0, for a client that
    # is away

    def _takes_missed(self) -> bool:
        limits = self.node.limits
        return self.missed is None or (
            len(self.missed) < limits.max_missed and self.missed_bytes < MAX_MISSED_BYTES
        )

    def store_missed(self, message: Message, retain: bool, ids: bytes) -> None:
        """Keep a QoS 0 `message` for a client that is away, if it was published with RETAIN, or to
        a subscription at QoS 1 or 2: amqtt's users expect it when they come back. The standard
        allows it (3.1.1, 3.1.2.4: "QoS 0 messages pending transmission"). `retain`: of its PUBLISH;
        `ids`: encoded Subscription Identifiers."""
        if message.retain or self.wants_missed(message.topic.decode()):
            self.queue_offline(Outgoing(message, 0, retain, ids), None, tell=True)

    def wants_missed(self, topic: str) -> bool:
        """Whether QoS 0 messages of a topic are kept while the client is away.

        Raises NotImplementedError: the session knows its subscriptions.
        """
        raise NotImplementedError

    def queue_offline(self, outgoing: Outgoing, source: Connection | None, *, tell: bool) -> None:
        """Keep a message (`outgoing`) until the client comes. `source`: as of `deliver`. `tell`:
        plugins, too; else it was kept for it already, perhaps elsewhere."""
        if outgoing.qos:
            if not self._append(outgoing, source, kept=not tell):
                return
        elif self._takes_missed():
            if self.missed is None:
                self.missed = []
            self.missed.append(outgoing)
            self.missed_bytes += size_of(outgoing.message)
        else:
            return
        if tell and self.node.hooks.events:
            self.node.event(
                "broker_retained_message", message=outgoing.message, session=self, qos=outgoing.qos
            )

    def _send_missed(self) -> None:
        missed, self.missed, self.missed_bytes = self.missed or [], None, 0
        for outgoing in missed:
            if outgoing.message.expired(self.node.now):
                self.counters.expired += 1
            else:
                self.deliver(outgoing.message, 0, outgoing.retain, outgoing.ids, None)

    # ---------------------------------------------------------------- queued, at QoS 1 and 2

    def _append(self, outgoing: Outgoing, source: Connection | None, *, kept: bool = False) -> bool:
        size = size_of(outgoing.message)
        full = (
            len(self.queue) >= self.max_queued or self.queued_bytes + size > self.max_queued_bytes
        )
        if full and not kept and not self.node.cluster.remote_flow_control.room(self, size):
            self.counters.dropped_queue_full += 1
            self.dropped_full += 1
            return False
        memory = self.node.memory
        memory.appended += size + costs.QUEUED_MEMORY
        if memory.appended >= memory.brink and not kept and not memory.takes_queued(self):
            memory.appended -= size + costs.QUEUED_MEMORY
            self.counters.dropped_memory += 1
            return False
        self.queue.append(outgoing)
        self.queued_bytes += size
        if self.recorder is not None:
            self.recorder.queued(outgoing, source)
        return True

    def _enqueue(self, outgoing: Outgoing, source: Connection | None) -> None:
        conn = self.conn
        if conn is None:
            self.queue_offline(outgoing, source, tell=True)
        elif self._append(outgoing, source) and (
            len(self.queue) >= self.node.limits.hold_queued
            or self.queued_bytes >= self.node.limits.hold_queued_bytes
        ):
            self.node.flow_control.hold_publishers(conn, source)

    def fill_window(self) -> None:
        """Move waiting messages into the window as far as it goes."""
        queue = self.queue
        now = self.node.now
        while queue and len(self.inflight) < self.receive_maximum:
            if len(queue) > 1 and not self.checked and self._send_plain():
                continue
            outgoing = queue.popleft()
            self.queued_bytes -= size_of(outgoing.message)
            if type(outgoing) is Repeat:
                self._retransmit(outgoing.packet_id, outgoing.original)
            elif outgoing.message.expired(now):
                self.counters.expired += 1
                self._on_settled(outgoing)
            else:
                self._transmit(outgoing, None, waited=True)
        conn = self.conn
        if conn is not None:
            conn.waiting_since = now
            if (
                len(queue) < self.node.limits.hold_queued // 2
                and self.queued_bytes < self.node.limits.hold_queued_bytes // 2
                and not conn.backlog
            ):
                conn.stalled = False
                self.node.flow_control.release(conn)

    def _send_plain(self) -> bool:
        """Send what needs nothing but a number from the head of the queue, as bytes; False when
        there is none."""
        queue, inflight, version = self.queue, self.inflight, self.version
        head_of_queue = queue[0].message
        first = self.next_packet_id % 65535 + 1
        numbers = range(
            first, first + min(len(queue), self.receive_maximum - len(inflight), 65536 - first)
        )
        if not inflight.keys().isdisjoint(numbers):
            return False
        packets: list[bytes] = []
        size = 0
        for number in numbers:
            outgoing = queue[0]
            message = outgoing.message
            if (
                type(outgoing) is not Outgoing
                or outgoing.ids
                or outgoing.retain
                or outgoing.qos != message.qos
                or message.expires_at is not None
            ):
                break
            queue.popleft()
            size += len(message.payload) + len(message.topic) + len(message.properties)
            head, tail = message.halves(version, outgoing.qos, False)
            packet = b"%b%b%b" % (head, PACKET_IDS[number], tail)
            inflight[number] = (packet, message.origin, message.sequence)
            packets.append(packet)
        if not packets:
            return False
        self.queued_bytes -= size
        self.next_packet_id = first + len(packets) - 1
        if not self.outbox:
            self.dirty.append(self)
        self.outbox += packets
        self.counters.delivered += len(packets)
        if self.recorder is not None:
            qos = max(packet[0] >> 1 & 3 for packet in packets)
            self.recorder.dequeued(first, len(packets), head_of_queue, qos)
        return True

    # ---------------------------------------------------------------- acknowledgements

    def qos_in_flight(self, packet_id: int) -> int:
        """QoS of the message in flight with this identifier, 0 when there is none."""
        sent = self.inflight.get(packet_id)
        if sent is None:
            return 0
        if isinstance(sent, tuple):
            packet: bytes = sent[0]
            return packet[0] >> 1 & 3
        return sent.qos

    def unpack(self) -> None:
        """Turn packets in flight into messages: the next connection may speak another version."""
        for packet_id, sent in self.inflight.items():
            if isinstance(sent, tuple):
                self.inflight[packet_id] = self.unpacked(sent)

    def unpacked(self, sent: Flight) -> Outgoing:
        """Return the message of a packet that was sent on this connection."""
        packet, origin, sequence = sent
        message = message_in(packet, self.version, self.node.now).named(origin, sequence)
        return Outgoing(message, message.qos, False, b"")

    def on_puback(self, packet_id: int) -> bool:
        """PUBACK: free the identifier; False when it was not in use (MQTT-4.3.2-3)."""
        if self.qos_in_flight(packet_id) != 1:
            return False
        if self.recorder is not None:
            self.recorder.acknowledged(PUBACK_HEAD + PACKET_IDS[packet_id])
        self._on_settled(self.inflight.pop(packet_id))
        if self.queue:
            self.fill_window()
        return True

    def _on_settled(self, sent: Outgoing | Flight) -> None:
        """Note that a message is acknowledged, or that the client is not to get it any more."""

    def on_pubrec(self, packet_id: int, reason: int) -> bool:
        """PUBREC: from now on PUBREL is repeated; a failure code ends the exchange (MQTT-4.3.3-1).
        False: unknown."""
        if self.qos_in_flight(packet_id) != 2:
            return False
        if self.recorder is not None:
            ends = reason >= 0x80
            self.recorder.acknowledged(
                (PUBCOMP_HEAD if ends else PUBREC_HEAD) + PACKET_IDS[packet_id]
            )
        self._on_settled(self.inflight[packet_id])
        if reason >= 0x80:
            del self.inflight[packet_id]
            self.fill_window()
        else:
            self.inflight[packet_id] = RELEASED
        return True

    def on_pubcomp(self, packet_id: int) -> bool:
        """PUBCOMP: the end of a QoS 2 exchange. False: unknown."""
        if self.inflight.get(packet_id) is not RELEASED:
            return False
        if self.recorder is not None:
            self.recorder.acknowledged(PUBCOMP_HEAD + PACKET_IDS[packet_id])
        del self.inflight[packet_id]
        if self.queue:
            self.fill_window()
        return True

    def redeliver(self) -> None:
        """On reconnection: repeat what is in flight, in its order, with DUP (MQTT-4.4.0-1), then
        what waited.

        What exceeds the Receive Maximum of the new connection waits for its turn (MQTT-3.3.4-9).
        """
        inflight = self.inflight
        self.unsent.clear()
        room = self.receive_maximum - sum(outgoing is RELEASED for outgoing in inflight.values())
        late: list[Repeat] = []
        for packet_id, outgoing in list(inflight.items()):
            assert isinstance(outgoing, Outgoing)  # see `unpack`
            if outgoing is RELEASED:
                self.send_packet(PUBREL_HEAD + PACKET_IDS[packet_id])
                self.counters.to_clients.other += 4
            elif room > 0:
                room -= 1
                self._retransmit(packet_id, outgoing)
            else:
                del inflight[packet_id]
                late.append(Repeat(outgoing, packet_id))
                self.queued_bytes += size_of(outgoing.message)
        self.queue.extendleft(reversed(late))
        self.fill_window()
        if self.missed is not None:
            self._send_missed()

    def _retransmit(self, packet_id: int, outgoing: Outgoing) -> None:
        data = outgoing.message.packet(
            self.version,
            outgoing.qos,
            outgoing.retain,
            packet_id,
            now=self.node.now,
            dup=True,
            subscription_ids=outgoing.ids,
        )
        if self.limited and len(data) > self.maximum_packet_size:
            self.counters.dropped_too_large += 1
            self.dropped_large += 1
            self.inflight.pop(packet_id, None)
            self._on_settled(outgoing)
            if self.recorder is not None:
                self.recorder.acknowledged(PUBACK_HEAD + PACKET_IDS[packet_id])
        else:
            self.inflight[packet_id] = outgoing
            self.send_packet(data)
