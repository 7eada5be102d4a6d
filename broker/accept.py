"""The first packet of a connection: CONNECT of a client or of a broker (MQTT-3.1, MQTT-3.2; MQTT-ST II-C1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker import limits
from broker.client import Client
from broker.connection import Connection
from broker.effects import Authenticate
from broker.proxy import common_name
from broker.session import NEVER, Session
from broker.wire.constants import ReasonCode
from broker.wire.decode import decode_connect
from broker.wire.encode import encode_packet, return_code
from broker.wire.errors import ProtocolViolation, UnsupportedVersion, WireError
from broker.wire.packets import Connack, Connect, Disconnect
from broker.wire.properties import Properties, Property
from broker.wire.strings import shorten
from broker.wire.varint import read_length

if TYPE_CHECKING:
    from broker.node import Node


class Handshake:
    """Owns a connection until its CONNECT was accepted; then a `Client` or a `Link` does."""

    __slots__ = ("conn", "connect", "node", "version")

    def __init__(self, node: Node, conn: Connection) -> None:
        self.node = node
        self.conn = conn
        self.connect: Connect | None = None
        self.version = 4

    def packets(self, data: bytes, now: float) -> int:
        """Take the CONNECT; everything behind it is for the connection's next owner."""
        conn = self.conn
        try:
            if not data:
                return 0
            if data[0] != 0x10:
                raise ProtocolViolation("first packet is not CONNECT [MQTT-3.1.0-1]")
            length, body = read_length(data, 1)
            if body < 0:
                return 0
            end = body + length
            if end > conn.max_packet_size:
                raise ProtocolViolation("CONNECT is too large", ReasonCode.PACKET_TOO_LARGE)
            if end > len(data):
                return 0
            connect = decode_connect(0x10, data[body:end])
            self.connect = connect
            self.version = connect.version
            if connect.bridge:
                if self.node.config.link_listener not in (None, conn.listener):
                    raise ProtocolViolation("a broker, but not on the listener for brokers", ReasonCode.NOT_AUTHORIZED)
                self.node.federation.accept(conn, connect, now)
            else:
                self._client(connect, now)
        except WireError as error:
            self._refuse(error)
            return len(data)
        if end < len(data) and conn.owner is not self and conn.owner is not None and not conn.closing:
            if conn.waiting:
                return end
            return end + conn.owner.packets(data[end:], now)
        return end

    def _refuse(self, error: WireError) -> None:
        node = self.node
        node.counters.malformed += 1
        node.log("warning", f"{self.conn.peer}: {error.message}; closed")
        last = b""
        if isinstance(error, UnsupportedVersion):  # MQTT-3.1.2-2: 3.1.1 clients understand code 1
            last = b"\x20\x02\x00\x01"
        elif self.version == 5 and self.connect is not None:
            last = encode_packet(Connack(False, error.reason), 5)
        self.conn.linger = True
        self.conn.close(last)
        node.forget(self.conn)

    # ---------------------------------------------------------------- clients

    def _client(self, connect: Connect, now: float) -> None:
        properties = connect.properties or {}
        if self.conn.listener in self.node.config.identity_listeners:
            connect.username = common_name(self.conn.secure)
            connect.password = None
            if connect.username is None:
                self._turn_away(ReasonCode.NOT_AUTHORIZED, "has no certificate with a common name")
                return
        if Property.AUTHENTICATION_METHOD in properties:
            self._turn_away(ReasonCode.BAD_AUTHENTICATION_METHOD, "asks for enhanced authentication")
        elif not connect.client_id and (connect.version == 3 or (connect.version == 4 and not connect.clean_start)):
            # MQTT-3.1.3-8; 3.1 asks for a client id always
            self._turn_away(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "has no client id and no Clean Session")
        elif connect.will is not None and connect.will.qos > self.node.config.max_qos:  # MQTT-3.2.2-12
            self._turn_away(ReasonCode.QOS_NOT_SUPPORTED, "has a will above the Maximum QoS")
        elif connect.will is not None and connect.will.topic.count("/") >= limits.MAX_TOPIC_LEVELS:
            self._turn_away(ReasonCode.TOPIC_NAME_INVALID, "has a will with too many topic levels")
        elif self.node.hooks.authenticate:
            self.conn.waiting = True
            self.node.effects.append(Authenticate(self, connect))
        elif not self.node.config.allow_anonymous:
            self._turn_away(ReasonCode.NOT_AUTHORIZED, "is anonymous")
        else:
            self._accept(connect, now)

    def answered(self, allowed: bool, now: float) -> None:
        """Go on after the authentication plugins' answer."""
        conn = self.conn
        if not conn.closed and not conn.closing and self.connect is not None:
            if allowed:
                self._accept(self.connect, now)
            else:
                reason = ReasonCode.NOT_AUTHORIZED
                if self.connect.username is not None:
                    reason = ReasonCode.BAD_USER_NAME_OR_PASSWORD
                self._turn_away(reason, "failed to authenticate")
        conn.resume(now)

    def _turn_away(self, reason: ReasonCode, why: str) -> None:
        connect = self.connect
        assert connect is not None
        self.node.counters.connects_refused += 1
        self.node.log("warning", f"client {shorten(connect.client_id)} at {self.conn.peer} {why}; refused")
        code = int(reason) if connect.version == 5 else return_code(reason)
        self.conn.linger = True
        self.conn.close(encode_packet(Connack(False, code), connect.version))
        self.node.forget(self.conn)

    def _accept(self, connect: Connect, now: float) -> None:
        node = self.node
        conn = self.conn
        answer: Properties = {}
        if not connect.client_id:
            connect.client_id = node.new_client_id()
            answer[Property.ASSIGNED_CLIENT_IDENTIFIER] = connect.client_id
        old = node.sessions.get(connect.client_id)
        if old is None and len(node.sessions) >= limits.MAX_SESSIONS:
            node.counters.sessions_refused += 1
            self._turn_away(ReasonCode.QUOTA_EXCEEDED, "is one session too many")
            return
        if old is not None and old.conn is not None:
            self._take_over(old)
            old = node.sessions.get(connect.client_id)  # gone when it was to end with its connection
        if old is not None and connect.clean_start:
            node.end_session(old)
            old = None
        present = old is not None
        session = old if old is not None else Session(node, connect.client_id)
        session.will = None  # a delayed one of the last connection is not sent (MQTT-3.1.3-9)
        session.stop_timers()
        node.sessions[connect.client_id] = session
        self._configure(session, connect, answer)
        client = Client(node, conn, session, connect)
        client.keep_alive = self._keep_alive(connect, answer) * 1.5
        session.conn = conn
        conn.outbox.append(self._connack(connect, present, answer))
        session.outbox = conn.outbox
        if len(conn.outbox) == 1:
            node.dirty.append(conn)
        conn.owner = client
        conn.max_packet_size = node.config.max_packet_size
        node.client_came(client, now)
        if present:
            session.redeliver()

    def _take_over(self, old: Session) -> None:
        """Disconnect the connection that a newer one with its client id replaces (MQTT-3.1.4-3)."""
        conn = old.conn
        assert conn is not None
        self.node.counters.taken_over += 1
        owner = conn.owner
        conn.outbox = list(old.outbox)  # what was queued on the old connection still goes out there
        old.outbox = []
        if isinstance(owner, Client):
            if conn.outbox:
                self.node.dirty.append(conn)
            last = encode_packet(Disconnect(ReasonCode.SESSION_TAKEN_OVER), 5) if owner.version == 5 else b""
            conn.linger = True
            conn.close(last)
            self.node.client_gone(owner, "taken over", graceful=False)

    def _configure(self, session: Session, connect: Connect, answer: Properties) -> None:
        node = self.node
        properties = connect.properties or {}
        maximum = properties.get(Property.MAXIMUM_PACKET_SIZE, limits.MAX_PACKET_SIZE)
        changed = session.version != connect.version or session.maximum_packet_size != maximum
        session.version = connect.version
        session.clean = connect.clean_start
        session.username = connect.username
        session.will = connect.will
        session.maximum_packet_size = maximum
        session.limited = maximum < limits.MAX_PACKET_SIZE
        if connect.version == 5:
            asked = properties.get(Property.SESSION_EXPIRY_INTERVAL, 0)
            session.expire_after(asked)
            if session.expiry not in (NEVER, asked):
                answer[Property.SESSION_EXPIRY_INTERVAL] = int(session.expiry)
            session.receive_maximum = min(
                properties.get(Property.RECEIVE_MAXIMUM, 65535), node.config.max_inflight_messages
            )
        else:
            session.expire_after(0 if connect.clean_start else 0xFFFFFFFF)
            session.receive_maximum = min(limits.MAX_INFLIGHT, node.config.max_inflight_messages)
        if changed:
            node.fanout.session_changed(session)

    def _keep_alive(self, connect: Connect, answer: Properties) -> int:
        maximum = self.node.config.max_keep_alive
        if maximum and connect.version == 5 and (connect.keep_alive == 0 or connect.keep_alive > maximum):
            answer[Property.SERVER_KEEP_ALIVE] = maximum
            return maximum
        return connect.keep_alive

    def _connack(self, connect: Connect, present: bool, answer: Properties) -> bytes:
        if connect.version == 5:
            config = self.node.config
            answer[Property.TOPIC_ALIAS_MAXIMUM] = limits.TOPIC_ALIAS_MAXIMUM
            if config.max_qos < 2:
                answer[Property.MAXIMUM_QOS] = config.max_qos
            if config.max_packet_size < limits.MAX_PACKET_SIZE:
                answer[Property.MAXIMUM_PACKET_SIZE] = config.max_packet_size
        return encode_packet(Connack(present and connect.version > 3, 0, answer or None), connect.version)

    # ---------------------------------------------------------------- end

    def lost(self, reason: str, now: float) -> None:
        """Nothing had begun: nothing to end."""

    def control_first(self) -> bytes:
        """Nothing overtakes here."""
        return b""

    def drained(self, now: float) -> None:
        """Nothing waits here."""
