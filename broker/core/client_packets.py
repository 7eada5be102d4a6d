"""The packets of an MQTT client: bytes in, state changes and packets out (MQTT-3, MQTT-4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from mqttree.broker.base import costs
from mqttree.broker.core import unsent
from mqttree.broker.core.client import CONNACK, Client
from mqttree.broker.core.connection_states import State
from mqttree.broker.core.effects import Event
from mqttree.broker.core.message import Message
from mqttree.broker.core.output import deliver_run
from mqttree.broker.core.publish import first_route, publish
from mqttree.broker.core.qos_fast_path import ACKNOWLEDGED, acknowledgements, publish_run
from mqttree.broker.core.reauthentication import authenticate_again
from mqttree.broker.core.session import Session
from mqttree.broker.core.subscribe import receive_large, subscribe, unsubscribe
from mqttree.broker.core.topic_resolution import TAKEN, resolve
from mqttree.broker.wire.constants import PacketType, ReasonCode
from mqttree.broker.wire.decode import (
    decode_auth,
    decode_disconnect,
    decode_packet,
    decode_pingreq,
    decode_puback,
    decode_pubcomp,
    decode_publish,
    decode_pubrec,
    decode_pubrel,
    decode_subscribe,
    decode_unsubscribe,
)
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.errors import ProtocolViolation, WireError
from mqttree.broker.wire.packets import (
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
)
from mqttree.broker.wire.properties import (
    NOT_AS_IS,
    Property,
    inspect_cached,
    inspect_first,
    split_expiry,
)
from mqttree.broker.wire.publish_header import (
    PACKET_IDS,
    PUBLISH,
    PUBREL_HEAD,
    run_end,
    topic_end,
    topic_of,
)
from mqttree.broker.wire.varint import encode_varint, read_length

if TYPE_CHECKING:
    from mqttree.broker.core.ports import OutgoingBatch
    from mqttree.broker.core.route import Route

MAX_FILTERS_PACKET_BYTES: Final = 1280 * 1024
"""bytes of a SUBSCRIBE or UNSUBSCRIBE, 40,000 filters of 30 characters, or all that one session
may have of 10. Larger: 0x97 and close [protocol_errors]; a client that wants more filters sends
several."""

FILTER_BYTES_PER_TURN: Final = 20 * 1024
"""bytes of one that are decoded in one turn, 5,000 filters of one character; of a larger one so
many filters."""

READING: Final = State.READING
ENDED: Final = State.ENDED
"""States in which packets are handled."""

FILTERS: Final = frozenset((0x82, 0xA2))
"""First bytes of SUBSCRIBE and UNSUBSCRIBE."""

PINGRESP: Final = b"\xd0\x00"


class ClientPackets(Client):
    """Handles the packets of a client once its CONNECT was accepted; see `connect` for everything
    before."""

    __slots__ = ()

    # Longer than a screen, the only function that is: a call for each message, as small as one that
    # reads its length, costs 5 to 9 % of what a message at QoS 0 does.
    def packets(self, data: bytes, now: float) -> int:  # noqa: C901, PLR0912, PLR0915
        """Handle the whole packets at the start of `data`; returns the bytes used. Runs of QoS 0
        packets that begin alike are found and delivered as one piece. A MalformedPacket or
        ProtocolViolation in it closes the connection."""
        position = 0
        size = len(data)
        conn, node, routes = self.conn, self.node, self.routes
        five = self.version == 5
        fast = node.fast
        # What goes to other brokers, made for the first PUBLISH if there are any; not for one at
        # QoS 0 that is the whole chunk (`single`), as a client sends it that sends now and then.
        batch: OutgoingBatch | None = None
        single = False
        federated = node.federated
        measure = size > conn.max_packet_size  # else no packet in here can be too large
        # The sessions that get the run data[begin:position] as it is.
        raw: tuple[Session, ...] | None = None
        previous = last = b""  # topic of the run, and of one that was interrupted
        # Messages taken here, those ahead of the run, packets delivered in runs, and how often the
        # topic changed: counted here, as a counter costs more than a local name.
        begin = published = before = delivered = changes = 0
        failure: WireError | None = None
        try:
            while position + 2 <= size:
                length = data[position + 1]
                body = position + 2
                if length >= 128:
                    if body < size and (more := data[body]) < 128:
                        length += (more << 7) - 128
                        body += 1
                    else:
                        length, body = read_length(data, position + 1)
                        if body < 0:
                            break
                end = body + length
                if end > size or measure:
                    if end - position > conn.max_packet_size:
                        raise ProtocolViolation("packet too large", ReasonCode.PACKET_TOO_LARGE)
                    if end > size:
                        break
                first = data[position]
                if batch is None and federated and first & 0xF0 == PUBLISH:
                    single = first == PUBLISH and fast and not position and end == size
                    if not single:
                        batch = self.packet_forwarder.outgoing(data, self.version, conn)
                route: Route | None = None
                if first == PUBLISH and fast and length > 3:
                    start = body + 2 + (data[body] << 8 | data[body + 1])
                    section, alone = 0, False  # bytes of properties; see `inspect_first`
                    if start + five <= end:
                        topic = data[body + 2 : start]
                        route = routes.get(topic) or first_route(self, topic)
                        if five:
                            start += 1
                            if section := data[start - 1]:
                                behind = start + section
                                if section < 128 and not (
                                    inspect_cached(data[start:behind]) & NOT_AS_IS
                                ):
                                    start = behind
                                else:
                                    section, start, alone = inspect_first(data, start - 1, end)
                                    if alone:
                                        previous = b""
                                if start > end:
                                    route = None
                if (
                    route is not None
                    and (targets := route.raw5 if five else route.raw4) is not None
                ):
                    if raw is not targets:
                        if raw is not None:
                            chunk = data[begin:position]
                            delivered += deliver_run(self.dirty, raw, chunk, published - before)
                        raw = targets
                        begin = position
                        before = published
                    count, after = 1, end
                    if topic == previous:  # twice the same: more of it may follow
                        after = run_end(data, position, start, end)
                        count = (after - position) // (end - position)
                    else:
                        previous = topic
                        changes += 1
                    published += count
                    if batch is not None:
                        batch.add(route, position, after, count, 0)
                    elif single:
                        self.packet_forwarder.forward_packet(route, data, self.version, conn)
                    position = after
                    continue
                if raw is not None:
                    chunk = data[begin:position]
                    delivered += deliver_run(self.dirty, raw, chunk, published - before)
                    raw = None
                    last, previous = previous, b""
                if route is not None:
                    after = end if alone else run_end(data, position, start, end)
                    self._publish_run(route, data, position, start, end, after, section, batch)
                    position = after
                    continue
                if fast:
                    after = position
                    if length == 2:
                        after = acknowledgements(self, first, data, position, size)
                    elif length > 4 and first in ACKNOWLEDGED:
                        numbers = self.packet_forwarder.lone if batch is None else batch
                        after = publish_run(self, data, position, body, end, numbers)
                        if after > position and conn.state is not READING and conn.state.held:
                            position = after
                            break
                    if after > position:
                        position = after
                        continue
                if batch is not None:
                    batch.flush()
                after = self._single_packet(first, data, position, body, end, now)
                if after == position:
                    break
                position = after
                if conn.state is not READING and conn.state is not ENDED:
                    break
        except WireError as error:
            failure = error
        if raw is not None:
            delivered += deliver_run(self.dirty, raw, data[begin:position], published - before)
        if batch is not None:
            batch.flush()
        if failure is not None:
            position = size
        counters = conn.counters
        counters.bytes_received += position
        if published:
            counters.published_runs += published
            counters.delivered += delivered
            tally = self.tally
            if tally is not None:
                if changes > 1:
                    if tally.drawn is not None:
                        self._count_drawn(tally.drawn, data[:position])
                    tally.draw()
                else:
                    last = previous or last
                    try:  # one look-up less than asking first, for nearly all messages
                        tally.exact[last] += published
                    except KeyError:
                        tally.begin(last, published)
        if failure is not None:
            self.fail(failure)
        return position

    def _count_drawn(self, drawn: dict[bytes, int], data: bytes) -> None:
        """Count the QoS 0 packets in `data`, which were taken as runs of several topics."""
        position = 0
        five = self.version == 5
        while position < len(data):
            length, body = read_length(data, position + 1)
            if data[position] == PUBLISH:
                topic = data[body + 2 : topic_end(data, body)]
                route = self.routes.get(topic)
                if route is not None and (route.raw5 if five else route.raw4) is not None:
                    drawn[topic] = drawn.get(topic, 0) + 1
            position = body + length

    def _publish_run(
        self,
        route: Route,
        data: bytes,
        position: int,
        start: int,
        end: int,
        after: int,
        section: int,
        batch: OutgoingBatch | None,
    ) -> None:
        """Deliver a run of QoS 0 packets of one topic to receivers that need more than its bytes,
        and pass it on.

        `route`: of the topic; `data`: what came, `position`, `start`, `end`: where in it the first
        packet begins, where its payload begins, where it ends; `after`: where the run ends;
        `section`: bytes of its properties; `batch`: takes what goes to other brokers, None: there
        are none, or the packet came alone.
        """
        node = self.node
        packet = end - position
        chunk = data[position:after]
        count = len(chunk) // packet
        node.counters.published_runs += count
        if self.tally is not None:
            self.tally.add(topic_of(chunk), count)
        expires_at, properties = split_expiry(data[start - section : start], node.now)
        if route.elsewhere and batch is not None:
            batch.flush()
        if route.elsewhere and expires_at is None:
            prefix = start - position
            node.cluster.sharing.publish_run(
                route, chunk, prefix, packet, self.version, properties, self.session
            )
        elif section:
            topic = topic_of(chunk)
            for at in range(0, len(chunk), packet):
                payload = chunk[at + start - position : at + packet]
                message = Message(topic, payload, 0, False, properties, expires_at, self.session)
                if route.elsewhere:
                    node.cluster.sharing.publish(route, message, self.conn)
                else:
                    node.dispatcher.deliver(route, message, self.conn)
        else:
            node.dispatcher.run(route, chunk, start - position, packet, self.version, self.session)
        if route.elsewhere:
            return
        if batch is not None:
            batch.add(route, position, after, count, 0)
        elif node.federated:
            self.packet_forwarder.forward_packet(route, data, self.version, self.conn)

    def _single_packet(
        self, first: int, data: bytes, position: int, body: int, end: int, now: float
    ) -> int:
        """Handle a packet that is in no run; returns where it ends, or `position` if it has to wait
        for a later turn.

        `first`: its first byte; `data`: what came; `position`, `body`, `end`: where in it the
        packet begins, where its length ends, where it ends itself; `now`: s.
        """
        node, conn = self.node, self.conn
        # One packet of them may take all of a turn.
        if first in FILTERS and node.turns.full():
            node.turns.rest(conn)
            return position
        resolved = (
            resolve(self, data, position)
            if self.version == 5 and node.fast and first in TAKEN
            else None
        )
        if resolved is None:
            self._packet(first, data[body:end])
            position = end
        elif used := self.packets(resolved.packets, now):
            node.counters.bytes_received -= used
            position = resolved.position(used)
            if used < len(resolved.packets):
                return position
        handled = conn.state is READING or conn.state is ENDED
        if handled and node.turns.full() and position < len(data):
            node.turns.rest(conn)
        return position

    # ---------------------------------------------------------------- everything else

    def _very_many(self, first: int, body: bytes) -> None:
        """Take a packet with perhaps very many filters."""
        if self.node.hooks.packets:
            self.node.effects.append(
                Event("mqtt_packet_received", {"client": self, "first": first, "body": body})
            )
        receive_large(self, first, body)

    def _packet(self, first: int, body: bytes) -> None:
        kind = first >> 4
        counters = self.node.counters
        counters.packets_single += 1
        self.node.turns.work += costs.PACKET_WORK
        if kind != 3:
            counters.bytes_received_other += 1 + len(body) + len(encode_varint(len(body)))
            if kind in {PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE}:
                if len(body) > MAX_FILTERS_PACKET_BYTES:
                    raise ProtocolViolation(
                        "more filters than one packet may have", ReasonCode.QUOTA_EXCEEDED
                    )
                self.node.turns.work += len(body) // costs.FILTERS_DECODED
                self.conn.asked = costs.FILTERS_MEMORY * len(body)
                if len(body) > FILTER_BYTES_PER_TURN:
                    self._very_many(first, body)
                    return
        if self.node.hooks.packets:
            self.node.effects.append(
                Event("mqtt_packet_received", {"client": self, "first": first, "body": body})
            )
        HANDLERS[kind](self, first, body)

    def _publish(self, first: int, body: bytes) -> None:
        publish(self, decode_publish(first, body, self.version))

    def _puback(self, first: int, body: bytes) -> None:
        packet = decode_puback(first, body, self.version)
        self._expect(packet, self.session.on_puback(packet.packet_id))

    def _pubcomp(self, first: int, body: bytes) -> None:
        packet = decode_pubcomp(first, body, self.version)
        self._expect(packet, self.session.on_pubcomp(packet.packet_id))

    def _subscribe(self, first: int, body: bytes) -> None:
        subscribe(self, decode_subscribe(first, body, self.version))

    def _unsubscribe(self, first: int, body: bytes) -> None:
        unsubscribe(self, decode_unsubscribe(first, body, self.version))

    def _auth(self, first: int, body: bytes) -> None:
        authenticate_again(self, decode_auth(first, body, self.version), self.node.now)

    def _second_connect(self, first: int, body: bytes) -> None:
        raise ProtocolViolation("second CONNECT [MQTT-3.1.0-2]")

    def _not_for_clients(self, first: int, body: bytes) -> None:
        decode_packet(first, body, self.version)  # what cannot be read is malformed before all
        name = PacketType(first >> 4).name
        raise ProtocolViolation(f"{name} is not for a client to send here")

    def _pingreq(self, first: int, body: bytes) -> None:
        decode_pingreq(first, body, self.version)
        self._pong()

    def _pong(self) -> None:
        """Answer a PINGREQ, ahead of output that waits for the journal, as the connection is alive,
        but behind CONNACK."""
        conn = self.conn
        journal = self.node.journal
        first = conn.outbox[0][:1] if conn.outbox else b""
        greeted = self.connack_lsn <= journal.durable_lsn and first != CONNACK
        if (
            conn.gate
            and greeted
            and not (conn.paused or conn.backlog or conn.closing or self.node.hooks.packets)
        ):
            self.node.counters.answers_single += 1
            conn.traffic.sent += len(PINGRESP)
            conn.traffic.other += len(PINGRESP)
            conn.transport.write(PINGRESP)
        else:
            self.send(PINGRESP)

    def _pubrec(self, first: int, body: bytes) -> None:
        packet = decode_pubrec(first, body, self.version)
        if self.session.on_pubrec(packet.packet_id, packet.reason):
            if packet.reason < 0x80:
                self.send(PUBREL_HEAD + PACKET_IDS[packet.packet_id])
        elif packet.reason >= 0x80:
            self._expect(packet, False)  # an identifier that is not in use does no harm
        elif packet.packet_id in self.session.inflight:
            self._expect(packet, self.session.qos_in_flight(packet.packet_id) == 2)
            self.send(PUBREL_HEAD + PACKET_IDS[packet.packet_id])  # PUBREC repeated
        else:
            reason = ReasonCode.PACKET_IDENTIFIER_NOT_FOUND if self.version == 5 else 0
            self.send(encode_packet(Pubrel(packet.packet_id, reason), self.version))

    def _expect(self, packet: Puback | Pubrec | Pubcomp, done: bool) -> None:
        """An acknowledgement of another kind than its message asks for would leave that message in
        flight for ever.

        One of an identifier that is not in use is none: it may be the second answer to what was
        sent twice.
        """
        if not done and packet.packet_id in self.session.inflight:
            raise ProtocolViolation(
                f"{type(packet).__name__.upper()} for a message of another QoS or state "
                "[MQTT-4.3.2-3]"
            )

    def _pubrel(self, first: int, body: bytes) -> None:
        packet = decode_pubrel(first, body, self.version)
        known = packet.packet_id in self.session.incoming
        self.session.incoming.discard(packet.packet_id)
        if known and (recorder := self.session.recorder) is not None:
            recorder.acknowledged(PUBREL_HEAD + PACKET_IDS[packet.packet_id])
        reason = 0 if known or self.version != 5 else ReasonCode.PACKET_IDENTIFIER_NOT_FOUND
        self.send(encode_packet(Pubcomp(packet.packet_id, reason), self.version))

    def _disconnect(self, first: int, body: bytes) -> None:
        packet = decode_disconnect(first, body, self.version)
        properties: dict[int, Any] = packet.properties or {}
        expiry = properties.get(Property.SESSION_EXPIRY_INTERVAL)
        if expiry is not None:
            if expiry and not self.session.expiry:  # MQTT-3.14.2-2
                raise ProtocolViolation("Session Expiry Interval raised from zero by DISCONNECT")
            self.session.expire_after(expiry)
        if packet.reason == ReasonCode.NORMAL_DISCONNECTION:
            # MQTT-3.1.2-10, MQTT-3.14.4-3: with any other reason it is due.
            self.session.will = None
        unsent.disconnected(self)
        self.conn.close()
        self.node.client_disconnected(self)


HANDLERS: Final[tuple[Callable[[ClientPackets, int, bytes], None], ...]] = (
    ClientPackets._not_for_clients,  # reserved
    ClientPackets._second_connect,
    ClientPackets._not_for_clients,  # CONNACK
    ClientPackets._publish,
    ClientPackets._puback,
    ClientPackets._pubrec,
    ClientPackets._pubrel,
    ClientPackets._pubcomp,
    ClientPackets._subscribe,
    ClientPackets._not_for_clients,  # SUBACK
    ClientPackets._unsubscribe,
    ClientPackets._not_for_clients,  # UNSUBACK
    ClientPackets._pingreq,
    ClientPackets._not_for_clients,  # PINGRESP
    ClientPackets._disconnect,
    ClientPackets._auth,
)
"""What a packet brings about, by its type; called with its first byte and what is behind its
length."""
