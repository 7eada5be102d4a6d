"""A connection to an MQTT client: packets in, state changes and packets out (MQTT-3, MQTT-4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker import limits
from broker.connection import Connection
from broker.effects import AuthorizePublish, AuthorizeSubscribe, Event
from broker.message import PACKET_IDS, Message
from broker.session import RELEASED, Session, Subscription
from broker.wire.constants import PacketType, ReasonCode
from broker.wire.decode import decode_packet
from broker.wire.encode import encode_packet
from broker.wire.errors import MalformedPacket, ProtocolViolation, WireError
from broker.wire.packets import (
    Connect,
    Disconnect,
    Pingreq,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
)
from broker.wire.properties import Property, encode_properties
from broker.wire.strings import shorten
from broker.wire.varint import read_length
from routing.topics import split_shared, valid_topic_filter

if TYPE_CHECKING:
    from broker.fanout import Route
    from broker.node import Node, Timer

PINGRESP = b"\xd0\x00"
NOT_FORWARDED = (Property.TOPIC_ALIAS, Property.SUBSCRIPTION_IDENTIFIER, Property.MESSAGE_EXPIRY_INTERVAL)


class Client:
    """What speaks on a connection once its CONNECT was accepted; see `broker.accept` for everything before."""

    __slots__ = ("_aliases", "conn", "connect", "keep_alive", "node", "routes", "session", "timer", "version")

    def __init__(self, node: Node, conn: Connection, session: Session, connect: Connect) -> None:
        self.node = node
        self.conn = conn
        self.session = session
        self.connect = connect
        self.version = connect.version
        self.routes = node.fanout.routes
        self.keep_alive = connect.keep_alive * 1.5  # s, MQTT-3.1.2-22
        self.timer: Timer | None = None  # of the keep-alive
        self._aliases: dict[int, bytes] = {}

    # ---------------------------------------------------------------- hot path

    def packets(self, data: bytes, now: float) -> int:
        """Handle the whole packets at the start of `data`; returns the bytes used. Runs of QoS 0 packets that begin alike
        are found and delivered as one piece."""
        position = 0
        size = len(data)
        conn = self.conn
        node = self.node
        routes = self.routes
        five = self.version == 5
        fast = node.fast
        measure = size > conn.max_packet_size  # else no packet in here can be too large
        raw: tuple[Session, ...] | None = None  # who gets the run data[begin:position], `messages` packets, as it is
        begin = messages = 0
        previous: Route | None = None
        node.counters.bytes_received += size
        try:
            while position + 2 <= size:
                length = data[position + 1]
                if length < 128:
                    body = position + 2
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
                if first == 0x30 and fast and length > 3:
                    start = body + 2 + (data[body] << 8 | data[body + 1])
                    route = routes.get(data[body + 2 : start])
                    if route is not None and (start < end and not data[start] if five else start <= end):
                        targets = None if node.forwarding else (route.raw5 if five else route.raw4)
                        if targets is None:
                            if raw is not None:
                                self._deliver_run(raw, data[begin:position], messages)
                                raw = None
                            position = self._publish_run(route, data, position, start + five, end)
                            continue
                        if raw is not targets:
                            if raw is not None:
                                self._deliver_run(raw, data[begin:position], messages)
                            raw = targets
                            begin = position
                            messages = 0
                        if route is previous:  # twice the same: more of it may follow
                            after = run_end(data, position, start + five, end)
                            messages += (after - position) // (end - position)
                            position = after
                        else:
                            previous = route
                            messages += 1
                            position = end
                        continue
                if raw is not None:
                    self._deliver_run(raw, data[begin:position], messages)
                    raw = previous = None
                if fast:
                    if length == 2:
                        after = self._acknowledgements(first, data, position, size)
                        if after > position:
                            position = after
                            continue
                    elif (
                        first in (0x32, 0x34)
                        and length > 4
                        and self._publish_acknowledged(first, data, position, body, end)
                    ):
                        position = end
                        continue
                self._packet(first, data[body:end])
                position = end
                if conn.closing or conn.closed or conn.waiting:
                    break
        except WireError as error:
            if raw is not None:
                self._deliver_run(raw, data[begin:position], messages)
            self.fail(error)
            return size
        if raw is not None:
            self._deliver_run(raw, data if position - begin == size else data[begin:position], messages)
        return position

    def _deliver_run(self, targets: tuple[Session, ...], chunk: bytes, messages: int) -> None:
        """Give a run of QoS 0 packets, perhaps of several topics, to those who all get all of it as it is."""
        counters = self.node.counters
        counters.published += messages
        counters.delivered += messages * len(targets)
        dirty = self.node.dirty
        for session in targets:
            outbox = session.outbox
            if not outbox:
                dirty.append(session)
            outbox.append(chunk)

    def _publish_run(self, route: Route, data: bytes, position: int, start: int, end: int) -> int:
        """Deliver and pass on a run of QoS 0 packets of one topic; returns where it ends."""
        node = self.node
        packet = end - position
        after = run_end(data, position, start, end)
        chunk = data[position:after]
        node.counters.published += len(chunk) // packet
        node.fanout.run(route, chunk, start - position, packet, self.version, self.session)
        if route.forward and node.federated:
            node.relay.forward_run(chunk, start - position, packet, self.version)
        return after

    def _acknowledgements(self, first: int, data: bytes, position: int, size: int) -> int:
        """Take a run of PUBACK, PUBREC, PUBREL or PUBCOMP without reason codes; returns where it ends.

        It ends before whatever is not as it should be: that takes the path for everything else.
        """
        session = self.session
        inflight = session.inflight
        answers: list[bytes] = []
        while position + 4 <= size and data[position] == first and data[position + 1] == 2:
            packet_id = data[position + 2] << 8 | data[position + 3]
            if first == 0x62:
                if packet_id not in session.incoming:
                    break
                session.incoming.discard(packet_id)
                answers.append(b"\x70\x02" + PACKET_IDS[packet_id])
            else:
                outgoing = inflight.get(packet_id)
                if outgoing is None:
                    break
                if first == 0x40:
                    if outgoing.qos != 1:
                        break
                    del inflight[packet_id]
                elif first == 0x50:
                    if outgoing.qos != 2 or outgoing is RELEASED:
                        break
                    inflight[packet_id] = RELEASED
                    answers.append(b"\x62\x02" + PACKET_IDS[packet_id])
                elif first == 0x70 and outgoing is RELEASED:
                    del inflight[packet_id]
                else:
                    break
            position += 4
        if answers:
            self.conn.send(b"".join(answers))
        if session.queue:
            session.pump()
        return position

    def _publish_acknowledged(self, first: int, data: bytes, position: int, body: int, end: int) -> bool:
        """Handle a QoS 1 or 2 PUBLISH without properties to a topic with a known route. False: it is not one of these."""
        start = body + 2 + (data[body] << 8 | data[body + 1])
        payload = start + 2
        if payload > end:
            return False
        if self.version == 5:
            if payload == end or data[payload]:
                return False
            payload += 1
        topic = data[body + 2 : start]
        packet_id = data[start] << 8 | data[start + 1]
        route = self.routes.get(topic)
        qos = first >> 1 & 3
        node = self.node
        if route is None or not packet_id or qos > node.config.max_qos:
            return False
        if qos == 1:
            answer = b"\x40\x02"
        elif packet_id in self.session.incoming:
            return False
        else:
            self.session.incoming.add(packet_id)
            answer = b"\x50\x02"
        message = Message(topic, data[payload:end], qos, False, b"", None, self.session)
        # A receiver of the same version gets the very bytes but for the packet identifier.
        message.cache = {self.version << 3 | qos << 1: (data[position:start], data[start + 2 : end])}
        node.counters.published += 1
        node.fanout.deliver(route, message)
        if route.forward and node.federated:
            node.relay.forward(message)
        outbox = self.conn.outbox
        if not outbox:
            node.dirty.append(self.conn)
        outbox.append(answer + PACKET_IDS[packet_id])
        return True

    # ---------------------------------------------------------------- everything else

    def _packet(self, first: int, body: bytes) -> None:
        kind = first >> 4
        if self.node.hooks.packets:
            self.node.effects.append(Event("mqtt_packet_received", {"client": self, "first": first, "body": body}))
        if kind == PacketType.CONNECT:
            raise ProtocolViolation("second CONNECT [MQTT-3.1.0-2]")
        packet = decode_packet(first, body, self.version)
        match packet:
            case Publish():
                self._publish(packet)
            case Puback():
                self._expect(packet, self.session.acknowledged(packet.packet_id))
            case Pubrec():
                self._pubrec(packet)
            case Pubrel():
                self._pubrel(packet)
            case Pubcomp():
                self._expect(packet, self.session.completed(packet.packet_id))
            case Pingreq():
                self.send(PINGRESP)
            case Subscribe():
                self._subscribe(packet)
            case Unsubscribe():
                self._unsubscribe(packet)
            case Disconnect():
                self._disconnect(packet)
            case _:
                name = PacketType(kind).name
                raise ProtocolViolation(f"{name} is not for a client to send here")

    def send(self, data: bytes) -> None:
        """Queue whole packets for this client."""
        if self.node.hooks.packets:
            self.node.effects.append(Event("mqtt_packet_sent", {"client": self, "data": data}))
        self.conn.send(data)

    def _publish(self, packet: Publish) -> None:
        properties = packet.properties
        topic = packet.topic.encode()
        expires_at: float | None = None
        encoded = b""
        if properties:
            topic = self._aliased(topic, properties.get(Property.TOPIC_ALIAS))
            if Property.SUBSCRIPTION_IDENTIFIER in properties:
                raise ProtocolViolation("Subscription Identifier from a client [MQTT-3.3.4-6]")
            expiry = properties.get(Property.MESSAGE_EXPIRY_INTERVAL)
            if expiry is not None:
                expires_at = self.node.now + expiry
            rest = {k: v for k, v in properties.items() if k not in NOT_FORWARDED}
            if rest:
                whole = encode_properties(rest)
                encoded = whole[1:] if whole[0] < 128 else whole[read_length(whole, 0)[1] :]
        if packet.qos > self.node.config.max_qos:
            raise ProtocolViolation("QoS above the Maximum QoS [MQTT-3.2.2-11]", ReasonCode.QOS_NOT_SUPPORTED)
        session = self.session
        packet_id = packet.packet_id or 0
        if packet.qos == 2 and packet_id in session.incoming:  # a repetition: answered, not delivered (MQTT-4.3.3-10)
            self.send(b"\x50\x02" + PACKET_IDS[packet_id])
            return
        message = Message(topic, packet.payload, packet.qos, packet.retain, encoded, expires_at, session)
        self._accept(message, packet_id)

    def _aliased(self, topic: bytes, alias: int | None) -> bytes:
        if alias is None:
            return topic
        if alias == 0 or alias > limits.TOPIC_ALIAS_MAXIMUM:
            raise ProtocolViolation("Topic Alias out of range [MQTT-3.3.2-9]", ReasonCode.TOPIC_ALIAS_INVALID)
        if topic:
            self._aliases[alias] = topic
            return topic
        known = self._aliases.get(alias)
        if known is None:
            raise ProtocolViolation("unknown Topic Alias", ReasonCode.PROTOCOL_ERROR)
        return known

    def _accept(self, message: Message, packet_id: int) -> None:
        node = self.node
        if message.topic.count(b"/") >= limits.MAX_TOPIC_LEVELS:
            raise ProtocolViolation("topic name has too many levels", ReasonCode.TOPIC_NAME_INVALID)
        node.fanout.route(message.topic)  # raises on a bad topic name before anything is asked
        if node.hooks.events:
            node.event("broker_message_received", client=self, message=message, packet_id=packet_id)
        if message.topic[:1] == b"$":
            self._refuse(message, packet_id)  # MQTT-4.7.2: the server's own; not between clients
        elif node.hooks.topics:
            self.conn.waiting = True
            node.effects.append(AuthorizePublish(self, message, packet_id))
        else:
            self._take(message, packet_id)

    def _take(self, message: Message, packet_id: int) -> None:
        node = self.node
        if message.qos == 1:
            self.send(b"\x40\x02" + PACKET_IDS[packet_id])
        elif message.qos == 2:
            self.session.incoming.add(packet_id)
            self.send(b"\x50\x02" + PACKET_IDS[packet_id])
        if node.hooks.events:
            node.event("broker_message_broadcast", client=self, message=message, packet_id=packet_id)
        node.publish(message)

    def _refuse(self, message: Message, packet_id: int) -> None:
        self.node.counters.publish_refused += 1
        reason = ReasonCode.NOT_AUTHORIZED if self.version == 5 else 0
        if message.qos == 1:
            self.send(encode_packet(Puback(packet_id, reason), self.version))
        elif message.qos == 2:
            if not reason:
                self.session.incoming.add(packet_id)
            self.send(encode_packet(Pubrec(packet_id, reason), self.version))

    def publish_answered(self, effect: AuthorizePublish, allowed: bool, now: float) -> None:
        """Go on after the topic plugins' answer."""
        if not (self.conn.closed or self.conn.closing):
            try:
                if allowed:
                    self._take(effect.message, effect.packet_id)
                else:
                    self._refuse(effect.message, effect.packet_id)
            except WireError as error:
                self.fail(error)
        self.conn.resume(now)

    def _pubrec(self, packet: Pubrec) -> None:
        if self.session.received(packet.packet_id, packet.reason):
            if packet.reason < 0x80:
                self.send(b"\x62\x02" + PACKET_IDS[packet.packet_id])
        elif packet.reason >= 0x80:
            self._expect(packet, False)  # an identifier that is not in use is in nobody's way
        elif packet.packet_id in self.session.inflight:
            self._expect(packet, self.session.inflight[packet.packet_id].qos == 2)
            self.send(b"\x62\x02" + PACKET_IDS[packet.packet_id])  # PUBREC repeated
        else:
            reason = ReasonCode.PACKET_IDENTIFIER_NOT_FOUND if self.version == 5 else 0
            self.send(encode_packet(Pubrel(packet.packet_id, reason), self.version))

    def _expect(self, packet: Puback | Pubrec | Pubcomp, done: bool) -> None:
        """An acknowledgement of another kind than its message asks for would leave that message in flight for ever.

        One of an identifier that is not in use is none: it may be the second answer to what was sent twice.
        """
        if not done and packet.packet_id in self.session.inflight:
            raise ProtocolViolation(f"{type(packet).__name__.upper()} for a message of another QoS or state [MQTT-4.3.2-3]")

    def _pubrel(self, packet: Pubrel) -> None:
        known = packet.packet_id in self.session.incoming
        self.session.incoming.discard(packet.packet_id)
        reason = 0 if known or self.version != 5 else ReasonCode.PACKET_IDENTIFIER_NOT_FOUND
        self.send(encode_packet(Pubcomp(packet.packet_id, reason), self.version))

    # ---------------------------------------------------------------- subscriptions

    def _subscribe(self, packet: Subscribe) -> None:
        if self.node.hooks.topics:
            self.conn.waiting = True
            self.node.effects.append(AuthorizeSubscribe(self, packet))
        else:
            self._subscribe_allowed(packet, [True] * len(packet.filters))

    def subscribe_answered(self, effect: AuthorizeSubscribe, allowed: list[bool], now: float) -> None:
        """Go on after the topic plugins' answer."""
        if not (self.conn.closed or self.conn.closing):
            try:
                self._subscribe_allowed(effect.packet, allowed)
            except WireError as error:
                self.fail(error)
        self.conn.resume(now)

    def _subscribe_allowed(self, packet: Subscribe, allowed: list[bool]) -> None:
        identifiers = (packet.properties or {}).get(Property.SUBSCRIPTION_IDENTIFIER)
        identifier = identifiers[0] if identifiers else 0
        codes = []
        retained: list[tuple[Message, Subscription]] = []
        for request, permitted in zip(packet.filters, allowed, strict=True):
            code = self._grant(request, permitted)
            codes.append(code)
            if code < 0x80:
                retained += self._add(request, code, identifier)
        self.send(encode_packet(Suback(packet.packet_id, codes), self.version))
        for request, code in zip(packet.filters, codes, strict=True):
            if code < 0x80 and self.node.hooks.events:
                self.node.event("broker_client_subscribed", client=self, topic=request.filter, qos=code)
        self.node.deliver_retained(self.session, retained)

    def _grant(self, request: SubscriptionRequest, permitted: bool) -> int:
        five = self.version == 5
        session = self.session
        code = 0
        if not acceptable(request.filter):
            code = ReasonCode.TOPIC_FILTER_INVALID
        elif not permitted:
            code = ReasonCode.NOT_AUTHORIZED
        elif (
            len(session.subscriptions) >= limits.MAX_SUBSCRIPTIONS and request.filter not in session.subscriptions
        ):
            code = ReasonCode.QUOTA_EXCEEDED
        if code:
            self.node.counters.subscriptions_refused += 1
            return int(code) if five else 0x80
        return min(request.qos, self.node.config.max_qos)

    def _add(self, request: SubscriptionRequest, qos: int, identifier: int) -> list[tuple[Message, Subscription]]:
        session = self.session
        group, inner = split_shared(request.filter)
        known = request.filter in session.subscriptions
        subscription = Subscription(
            session, request.filter, qos, request.no_local, request.retain_as_published, identifier
        )
        self.node.fanout.subscribe(subscription, group, inner)
        if group is not None or request.retain_handling == 2 or (request.retain_handling == 1 and known):
            return []  # MQTT-3.3.1-9 to -11; shared subscriptions get no retained messages
        return [(m, subscription) for m in self.node.retained.match(inner, self.node.now)]

    def _unsubscribe(self, packet: Unsubscribe) -> None:
        codes: list[int] = []
        for topic_filter in packet.filters:
            if not acceptable(topic_filter):
                codes.append(ReasonCode.TOPIC_FILTER_INVALID)
                continue
            group, inner = split_shared(topic_filter)
            known = self.node.fanout.unsubscribe(self.session, topic_filter, group, inner)
            codes.append(ReasonCode.SUCCESS if known else ReasonCode.NO_SUBSCRIPTION_EXISTED)
            if self.node.hooks.events:
                self.node.event("broker_client_unsubscribed", client=self, topic=topic_filter)
        self.send(encode_packet(Unsuback(packet.packet_id, codes), self.version))

    # ---------------------------------------------------------------- end

    def _disconnect(self, packet: Disconnect) -> None:
        properties: dict[int, Any] = packet.properties or {}
        expiry = properties.get(Property.SESSION_EXPIRY_INTERVAL)
        if expiry is not None:
            if expiry and not self.session.expiry:  # MQTT-3.14.2-2
                raise ProtocolViolation("Session Expiry Interval raised from zero by DISCONNECT")
            self.session.expire_after(expiry)
        if packet.reason == ReasonCode.NORMAL_DISCONNECTION:
            self.session.will = None  # MQTT-3.1.2-10, MQTT-3.14.4-3: with any other reason it is due
        self.conn.close()
        self.node.client_gone(self, "disconnected", graceful=True)

    def fail(self, error: WireError) -> None:
        """Close after bad input: one line, a counter, the reason code in MQTT 5 (MQTT-4.13.1-1)."""
        node = self.node
        if isinstance(error, MalformedPacket):
            node.counters.malformed += 1
        else:
            node.counters.protocol_errors += 1
        node.log("warning", f"client {shorten(self.session.client_id)} at {self.conn.peer}: {error.message}; closed")
        self.shut(error.reason)

    def shut(self, reason: int) -> None:
        """Close from our side; MQTT 5 clients are told why (MQTT-3.14)."""
        last = encode_packet(Disconnect(reason), 5) if self.version == 5 else b""
        self.conn.linger = reason != ReasonCode.SERVER_SHUTTING_DOWN  # then nobody waits for anybody
        self.conn.close(last)
        self.node.client_gone(self, f"closed ({int(reason):#04x})", graceful=False)

    def check_keep_alive(self, now: float) -> float | None:
        """Close a client that was silent for one and a half times its Keep Alive; returns when to look again (s)."""
        if self.conn.closed or self.conn.closing:
            return None
        due = self.conn.last_heard + self.keep_alive
        if self.conn.held or self.conn.waiting:  # we are the one who does not read
            return now + self.keep_alive
        if now < due:
            return due
        self.node.counters.keep_alive_timeout += 1
        self.node.log("info", f"client {shorten(self.session.client_id)} at {self.conn.peer}: keep-alive expired; closed")
        self.shut(ReasonCode.KEEP_ALIVE_TIMEOUT)
        return None

    def lost(self, reason: str, now: float) -> None:
        """Note that the connection broke: the will is due."""
        self.node.client_gone(self, reason, graceful=False)

    def control_first(self) -> bytes:
        """Nothing overtakes for clients."""
        return b""

    def drained(self, now: float) -> None:
        """Nothing to do: the session pumps on acknowledgements."""


def acceptable(topic_filter: str) -> bool:
    """Whether a client may subscribe to `topic_filter` as far as its form goes."""
    return topic_filter.count("/") < limits.MAX_TOPIC_LEVELS and valid_topic_filter(topic_filter)


def run_end(data: bytes, position: int, start: int, end: int) -> int:
    """Return where the run of packets ends that have the size and the first `start - position` bytes of the one at `position`."""
    prefix = data[position:start]
    packet = end - position
    last = len(data) - packet
    startswith = data.startswith
    while end <= last and startswith(prefix, end):
        end += packet
    return end
