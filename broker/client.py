"""A connection to an MQTT client: packets in, state changes and packets out (MQTT-3, MQTT-4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker import limits
from broker.authentication import Authentication, authenticate_again
from broker.availability import UNLIMITED, Window, check_publish
from broker.connection import Connection
from broker.effects import AuthorizePublish, AuthorizeSubscribe, Event
from broker.exchange import ACKNOWLEDGED, acknowledgements, publish_run
from broker.fanout import topic_of
from broker.message import PACKET_IDS, Message
from broker.reasons import explain, well_formed
from broker.session import Session
from broker.subscribing import grant, subscribe, unsubscribe
from broker.wire.constants import PacketType, ReasonCode
from broker.wire.decode import decode_packet
from broker.wire.encode import encode_packet
from broker.wire.errors import MalformedPacket, ProtocolViolation, WireError
from broker.wire.packets import (
    Auth,
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
    Unsubscribe,
)
from broker.wire.properties import Properties, Property, encode_properties, forwardable_cached
from broker.wire.strings import shorten
from broker.wire.varint import read_length

if TYPE_CHECKING:
    from broker.access import Permissions, Rule
    from broker.fanout import Route
    from broker.node import Node

PINGRESP = b"\xd0\x00"
NOT_FORWARDED = (Property.TOPIC_ALIAS, Property.SUBSCRIPTION_IDENTIFIER, Property.MESSAGE_EXPIRY_INTERVAL)


class Client:
    """What speaks on a connection once its CONNECT was accepted; see `broker.accept` for everything before."""

    __slots__ = (
        "_aliases",
        "_explains",
        "_told",
        "_window",
        "authentication",
        "conn",
        "connect",
        "fast_qos",
        "keep_alive",
        "node",
        "routes",
        "session",
        "timer",
        "version",
    )

    def __init__(self, node: Node, conn: Connection, session: Session, connect: Connect) -> None:
        self.node = node
        self.conn = conn
        self.session = session
        self.connect = connect
        self.version = connect.version
        self.routes: dict[bytes, Route] = {}  # the fanout's own, or with rules in force those that the client may publish to
        self.choose_routes()
        self.keep_alive = connect.keep_alive * 1.5  # s, MQTT-3.1.2-22
        self.timer: int | None = None  # of the keep-alive
        self.authentication: Authentication | None = None  # enhanced (MQTT 5, 4.12)
        self._aliases: dict[int, bytes] = {}
        # whether the client wants to know why something was refused (MQTT-3.1.2-29)
        self._explains = self.version == 5 and (connect.properties or {}).get(Property.REQUEST_PROBLEM_INFORMATION, 1) != 0
        config = node.config
        self._window: Window | None = None  # the Receive Maximum towards us, when there is one
        self.fast_qos = config.max_qos  # QoS 0 to this take the fast path
        if config.receive_maximum < UNLIMITED and self.version == 5:
            self._window = Window(config.receive_maximum, session.incoming)
            self.fast_qos = 0
        self._told = False  # the log says that a rule refused something

    def choose_routes(self) -> None:
        """Look routes up in the fanout, or with rules in force in a part of it: the topics that the client may publish to."""
        self.routes = self.node.fanout.routes if self.session.permissions is None else {}

    def forget_routes(self) -> None:
        """Have the rules asked again, or nothing more: the client goes."""
        if self.routes is not self.node.fanout.routes:
            for route in self.routes.values():
                if route.viewers is not None:
                    route.viewers.discard(self)
            self.routes.clear()

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
                    section = 0  # bytes of properties
                    if route is not None and start + five <= end:
                        targets = None if node.forwarding else (route.raw5 if five else route.raw4)
                        if five:
                            start += 1
                            if section := data[start - 1]:
                                start += section
                                if section > 127 or start > end or not forwardable_cached(data[start - section : start]):
                                    route = None
                    else:
                        route = None
                    if route is not None:
                        if targets is None:
                            if raw is not None:
                                self._deliver_run(raw, data[begin:position], messages)
                                raw = None
                            position = self._publish_run(route, data, position, start, end, section)
                            continue
                        if raw is not targets:
                            if raw is not None:
                                self._deliver_run(raw, data[begin:position], messages)
                            raw = targets
                            begin = position
                            messages = 0
                        if route is previous:  # twice the same: more of it may follow
                            after = run_end(data, position, start, end)
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
                        after = acknowledgements(self, first, data, position, size)
                    elif length > 4 and first in ACKNOWLEDGED:
                        after = publish_run(self, first, data, position, body, end)
                    else:
                        after = position
                    if after > position:
                        position = after
                        continue
                self._packet(first, data[body:end])
                position = end
                if conn.closing or conn.closed or conn.waiting:
                    break
        except WireError as error:
            if raw is not None:
                self._deliver_run(raw, data[begin:position], messages)
            node.counters.bytes_received += size
            self.fail(error)
            return size
        if raw is not None:
            self._deliver_run(raw, data if position - begin == size else data[begin:position], messages)
        node.counters.bytes_received += position
        return position

    def _deliver_run(self, targets: tuple[Session, ...], chunk: bytes, messages: int) -> None:
        """Give a run of QoS 0 packets, perhaps of several topics, to those who all get all of it as it is."""
        counters = self.node.counters
        counters.published_runs += messages
        counters.delivered += messages * len(targets)
        dirty = self.node.dirty
        for session in targets:
            outbox = session.outbox
            if not outbox:
                dirty.append(session)
            outbox.append(chunk)

    def _publish_run(self, route: Route, data: bytes, position: int, start: int, end: int, section: int) -> int:
        """Deliver and pass on a run of QoS 0 packets of one topic; returns where it ends. `section`: bytes of properties."""
        node = self.node
        packet = end - position
        after = run_end(data, position, start, end)
        chunk = data[position:after]
        node.counters.published_runs += len(chunk) // packet
        if section:
            topic, properties = topic_of(chunk), data[start - section : start]
            for at in range(0, len(chunk), packet):
                payload = chunk[at + start - position : at + packet]
                message = Message(topic, payload, 0, False, properties, None, self.session)
                node.fanout.deliver(route, message)
                if route.forward and node.federated:
                    node.relay.forward(message)
            return after
        node.fanout.run(route, chunk, start - position, packet, self.version, self.session)
        if route.forward and node.federated:
            node.relay.forward_run(chunk, start - position, packet, self.version)
        return after

    # ---------------------------------------------------------------- everything else

    def _packet(self, first: int, body: bytes) -> None:
        kind = first >> 4
        self.node.counters.packets_single += 1
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
                subscribe(self, packet)
            case Unsubscribe():
                unsubscribe(self, packet)
            case Disconnect():
                self._disconnect(packet)
            case Auth():
                authenticate_again(self, packet, self.node.now)
            case _:
                name = PacketType(kind).name
                raise ProtocolViolation(f"{name} is not for a client to send here")

    def send(self, data: bytes) -> None:
        """Queue whole packets for this client."""
        if self.node.hooks.packets:
            self.node.effects.append(Event("mqtt_packet_sent", {"client": self, "data": data}))
        self.node.counters.answers_single += 1
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
        config = self.node.config
        check_publish(packet, self.version, config)
        session = self.session
        packet_id = packet.packet_id or 0
        if packet.qos and self._window is not None:
            self._window.check(session.incoming, packet_id)
            # QoS 1 need not be looked at while QoS 2 cannot have filled the window
            self.fast_qos = min(config.max_qos, 1) if len(session.incoming) + 1 < self._window.maximum else 0
        if packet.qos == 2 and packet_id in session.incoming:  # a repetition: answered, not delivered (MQTT-4.3.3-10)
            self.send(b"\x50\x02" + PACKET_IDS[packet_id])
            return
        message = Message(topic, packet.payload, packet.qos, packet.retain, encoded, expires_at, session)
        if properties and config.check_payload_format and not well_formed(packet.payload, properties):
            why = "the payload is not the UTF-8 text that its Payload Format Indicator promises"
            if not packet.qos:
                raise ProtocolViolation(why, ReasonCode.PAYLOAD_FORMAT_INVALID)
            self._refuse(message, packet_id, ReasonCode.PAYLOAD_FORMAT_INVALID, why)
            return
        self._accept(message, packet_id)

    def _aliased(self, topic: bytes, alias: int | None) -> bytes:
        if alias is None:
            return topic
        if alias == 0 or alias > self.node.config.topic_alias_maximum:
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
        route = node.fanout.route(message.topic)  # raises on a bad topic name before anything is asked
        if node.hooks.events:
            node.event("broker_message_received", client=self, message=message, packet_id=packet_id)
        if message.topic[:1] == b"$":
            self._refuse(message, packet_id, why="topics that begin with $ are the broker's own")  # MQTT-4.7.2
        elif (
            (permissions := self.session.permissions) is not None
            and message.topic not in self.routes
            and not self._permitted(permissions, message.topic, route)
        ):
            self._refuse(message, packet_id)
        elif node.hooks.topics:
            self.conn.waiting = True
            node.effects.append(AuthorizePublish(self, message, packet_id))
        else:
            self._take(message, packet_id)

    def _permitted(self, permissions: Permissions, topic: bytes, route: Route) -> bool:
        """Ask the rules about publishing; the answer yes is remembered as long as the route is."""
        rule = permissions.publish_rule(topic.decode())
        if rule is not None and rule.allow:
            if len(self.routes) >= limits.PERMITTED_TOPICS:
                self.forget_routes()
            self.node.fanout.show(route, topic, self)
            return True
        self.note_refusal("publish to", topic.decode(), rule)
        return False

    def note_refusal(self, action: str, topic: str, rule: Rule | None) -> None:
        """Say what was refused and why; at the level info once for a connection, as one that tries again is no news."""
        level = "debug" if self._told else "info"
        self._told = True
        why = "no rule allows it" if rule is None else f"line {rule.line} of the rules"
        user = self.session.username
        name = "" if user is None else f", user {shorten(user)},"
        client_id = shorten(self.session.client_id)
        self.node.log(level, f"client {client_id}{name} at {self.conn.peer} may not {action} {shorten(topic)}: {why}")

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

    def _refuse(
        self,
        message: Message,
        packet_id: int,
        reason: int = ReasonCode.NOT_AUTHORIZED,
        why: str = "not authorized to publish to this topic",
    ) -> None:
        self.node.counters.publish_refused += 1
        reason = reason if self.version == 5 else 0
        if message.qos == 1:
            self.answer(Puback(packet_id, reason), why)
        elif message.qos == 2:
            if not reason:
                self.session.incoming.add(packet_id)
            self.answer(Pubrec(packet_id, reason), why)

    def answer(self, packet: Puback | Pubrec | Suback, why: str) -> None:
        """Send an answer; `why` something was refused ("": nothing was) for clients that want to know."""
        if self._explains:
            self.send(explain(packet, why, self.session.maximum_packet_size))
        else:
            self.send(encode_packet(packet, self.version))

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
            self._expect(packet, self.session.qos_in_flight(packet.packet_id) == 2)
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

    def subscribe_answered(self, effect: AuthorizeSubscribe, allowed: list[bool], now: float) -> None:
        """Go on after the topic plugins' answer."""
        if not (self.conn.closed or self.conn.closing):
            try:
                grant(self, effect.packet, allowed)
            except WireError as error:
                self.fail(error)
        self.conn.resume(now)

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
        self.shut(error.reason, error.message)

    def shut(self, reason: int, why: str = "", properties: Properties | None = None) -> None:
        """Close from our side; MQTT 5 clients are told why (MQTT-3.14)."""
        last = b""
        if self.version == 5:
            maximum = self.session.maximum_packet_size
            last = explain(Disconnect(reason, properties), why, maximum)
            if len(last) > maximum:
                last = encode_packet(Disconnect(reason), 5)
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


def run_end(data: bytes, position: int, start: int, end: int) -> int:
    """Return where the run of packets ends that have the size and the first `start - position` bytes of the one at `position`."""
    prefix = data[position:start]
    packet = end - position
    last = len(data) - packet
    startswith = data.startswith
    while end <= last and startswith(prefix, end):
        end += packet
    return end
