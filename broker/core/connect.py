"""The first packet of a connection: CONNECT of a client or of a broker (MQTT-3.1, MQTT-3.2; MQTT-ST
II-C1)."""

from __future__ import annotations

import enum
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Protocol

from mqttree.broker.auth.certificate import common_name
from mqttree.broker.auth.enhanced_auth import Authentication, AuthenticationFailed
from mqttree.broker.core.bridge import BridgeHost, BridgePackets
from mqttree.broker.core.client import Client, MemoryRoom
from mqttree.broker.core.client_packets import ClientPackets
from mqttree.broker.core.connack import accepting, keep_alive, refusing
from mqttree.broker.core.connection import Connection, Owner
from mqttree.broker.core.delivery_queue import QueueMemory
from mqttree.broker.core.effects import Authenticate
from mqttree.broker.core.leg_packets import LegPackets
from mqttree.broker.core.reason_string import well_formed
from mqttree.broker.core.session_opening import OpeningHost, open_session
from mqttree.broker.core.session_owner import (
    LEG_LISTENER,
    OwningBroker,
    abandoned,
    belongs,
    owner_of,
)
from mqttree.broker.wire.constants import MAX_PACKET_SIZE, MAX_TOPIC_LEVELS, PacketType, ReasonCode
from mqttree.broker.wire.decode import decode_connect, decode_packet
from mqttree.broker.wire.encode import encode_packet, return_code
from mqttree.broker.wire.errors import ProtocolViolation, UnsupportedVersion, WireError
from mqttree.broker.wire.packets import Auth, Connack, Connect, Disconnect, Will
from mqttree.broker.wire.properties import Properties, Property
from mqttree.broker.wire.strings import shorten
from mqttree.broker.wire.varint import read_length

if TYPE_CHECKING:
    from mqttree.broker.auth.authorization import Access
    from mqttree.broker.base.rate_limit import RateLimit
    from mqttree.broker.core.ports import Draining
    from mqttree.broker.core.predecessor import Predecessors
    from mqttree.broker.core.session import Session
    from mqttree.broker.core.shutdown import Shutdown


MQTT_5 = (b"\x00\x04MQTT\x05", b"\x00\x04MQTT\x85")
"""How a CONNECT of MQTT 5 begins: a client's, and a broker's."""


class Memory(QueueMemory, MemoryRoom, Protocol):
    """Counts what sessions have queued, and says how much memory is left."""


class Handshakes(Protocol):
    """The connections that have sent no CONNECT yet."""

    def handshake_over(self, handshake: ConnectHandshake, /) -> None:
        """A connection's CONNECT was accepted or refused, or the connection is gone."""

    def forget(self, conn: Connection, /) -> None:
        """A connection that was refused has nothing more to say."""


class ConnectBroker(BridgeHost, OpeningHost, OwningBroker, Protocol):
    """What a CONNECT asks of the broker."""

    checking: int
    """Passwords that are being checked."""

    @property
    def memory(self) -> Memory:
        """How much memory clients and their queues may take."""

    @property
    def rate(self) -> RateLimit | None:
        """How many connections may be accepted in a second."""

    @property
    def drain(self) -> Draining | None:
        """What sends clients to other brokers, while it does."""

    @property
    def shutdown(self) -> Shutdown:
        """Says goodbye to all clients."""

    @property
    def predecessors(self) -> Predecessors:
        """Where new connections wait until the old ones are read to the end."""

    @property
    def connection_registry(self) -> Handshakes:
        """The connections of this broker, of which some have sent no CONNECT yet."""

    def client_connected(self, client: Client, now: float, /) -> None:
        """Note at `now` (s) that a client has been let in."""


class Wait(enum.Enum):
    """What a handshake waits for."""

    AUTH = "the client's next AUTH"
    CHECK = "the answer of the password check and of the authentication plugins"
    PLACEMENT = "where the client is to connect"
    CLUSTER = "that this broker joins the others"
    OLD_CONNECTION = "what the client sent on its older connection here"
    TAKEOVER = "the client's session from another broker"


class ConnectHandshake(Owner):
    """Owns a connection until its CONNECT was accepted; then a `Client` or a `Link` does.

    `_handshake` has the steps in their order, and yields what it waits for; the methods `on_...`
    bring the answers.
    """

    __slots__ = (
        "_steps",
        "authentication",
        "checking",
        "conn",
        "connect",
        "node",
        "owner",
        "timer",
        "version",
        "waits_for",
    )

    def __init__(self, node: ConnectBroker, conn: Connection) -> None:
        self.node = node
        self.conn = conn
        self.connect: Connect | None = None
        self.version = 4
        self.timer = 0  # see `ConnectionRegistry.handshake_over`
        self.checking = False  # the client's password
        self.authentication: Authentication | None = None
        self.owner: str | None = None  # the client's user, once it is let in: see `session_owner`
        self.waits_for: Wait | None = None
        self._steps: Generator[Wait, Any, None] | None = None

    def packets(self, data: bytes, now: float) -> int:
        """Take the CONNECT, and AUTH while the client authenticates; the packets behind are for the
        connection's next owner. Returns how many bytes of `data` were used. A MalformedPacket or
        ProtocolViolation in it is answered, and closes the connection. `now`: s."""
        conn = self.conn
        position = 0
        try:
            while (
                conn.owner is self
                and position < len(data)
                and not (conn.waiting or conn.closing or conn.closed)
            ):
                first = data[position]
                if self.connect is None and first >> 4 != PacketType.CONNECT:
                    raise ProtocolViolation("first packet is not CONNECT [MQTT-3.1.0-1]")
                length, body = read_length(data, position + 1)
                if body < 0:
                    return position
                if self.connect is None and data[body : body + 7] in MQTT_5:
                    self.version = 5  # also of a CONNECT that cannot be read further
                end = body + length
                if end - position > conn.max_packet_size:
                    raise ProtocolViolation("CONNECT is too large", ReasonCode.PACKET_TOO_LARGE)
                if end > len(data):
                    return position
                if self.connect is None:
                    self._connect(first, data[body:end], now)
                else:
                    self._exchange(first, data[body:end])
                position = end
        except WireError as error:
            self._refuse(error)
            return len(data)
        owner = conn.owner
        if (
            position < len(data)
            and owner is not self
            and owner is not None
            and not (conn.waiting or conn.closing)
        ):
            return position + owner.packets(data[position:], now)
        return position

    def _connect(self, first: int, body: bytes, now: float) -> None:
        connect = decode_connect(first, body)
        counters = self.node.counters
        counters.bytes_received += len(body) + 2
        counters.bytes_received_other += len(body) + 2
        self.connect = connect
        self.version = connect.version
        if not (connect.bridge and calls_as_broker(connect)):
            self._steps = self._handshake(connect, now)
            self._go(None)
        elif self.node.config.link_listener not in (None, self.conn.listener):
            raise ProtocolViolation(
                "a broker, but not on the listener for brokers", ReasonCode.NOT_AUTHORIZED
            )
        else:
            self.node.cluster.link_registry.accept(self.conn, connect, body, now)

    def _exchange(self, first: int, body: bytes) -> None:
        """Take a packet between CONNECT and CONNACK."""
        packet = (
            decode_packet(first, body, 5)
            if first >> 4 in (PacketType.AUTH, PacketType.DISCONNECT)
            else None
        )
        if isinstance(packet, Disconnect):
            self.conn.close()
            self.node.connection_registry.forget(self.conn)
        elif isinstance(packet, Auth):
            self._go(packet)
        else:
            raise ProtocolViolation("neither AUTH nor DISCONNECT before CONNACK [MQTT-3.1.2-30]")

    def _refuse(self, error: WireError) -> None:
        node = self.node
        node.counters.malformed += 1
        text = f"{self.conn.peer}: {error.message}; closed"
        node.log_limit.line("warning", error.message, self.conn.peer, text)
        last = b""
        # MQTT-3.1.2-2: 3.1.1 clients understand code 1.
        if self.version != 5 and isinstance(error, UnsupportedVersion):
            last = b"\x20\x02\x00\x01"
        elif self.version == 5:
            last = refusing(
                Connack(False, error.reason),
                error.message,
                None if self.connect is None else self.connect.properties,
            )
        self.conn.linger = True
        self.conn.close(last)
        node.connection_registry.forget(self.conn)

    # ---------------------------------------------------------------- steps and answers

    def _go(self, answer: object) -> None:
        """Go on to the next wait, or to the end, with the answer to what was waited for."""
        steps = self._steps
        if steps is not None:
            try:
                self.waits_for = steps.send(answer)
            except StopIteration:
                self.end()

    @property
    def goes_on_without_peer(self) -> bool:
        """Whether the steps go on when the peer has gone: it sent packets behind CONNECT, or
        CONNECT itself waits for those of its older connection. Another client has given up, and its
        session stays where it is."""
        return self.conn.unhandled > 0 or self.waits_for is Wait.OLD_CONNECTION

    def end(self) -> None:
        """Let go of the steps, which refer to this object: the CONNECT was accepted or refused, or
        the connection is gone."""
        self._steps = self.waits_for = None

    def _resume(self, wait: Wait, answer: object, now: float) -> None:
        """Go on at `now` (s) after the `answer` to a `wait`, unless the connection is gone."""
        conn = self.conn
        if self.waits_for is not wait:
            return
        conn.on_answer()
        if not conn.closed and not conn.closing:
            self._go(answer)
        if not conn.waiting:  # for something else
            conn.resume(now)

    def on_authenticated(self, allowed: bool, now: float) -> None:
        """Go on after the answer of the password check and of the authentication plugins."""
        if self.checking:
            self.checking = False
            self.node.checking -= 1
        self._resume(Wait.CHECK, allowed, now)

    def on_placement(self, where: str, now: float) -> None:
        """Go on: the client is to connect to the broker `where` ("HOST:PORT"), or is let in
        ("")."""
        self._resume(Wait.PLACEMENT, where, now)

    def on_cluster_joined(self, now: float) -> None:
        """Go on: this broker has joined the others, or there are none."""
        self._resume(Wait.CLUSTER, None, now)

    def on_predecessor_read(self, now: float) -> None:
        """Go on: what the client sent on its older connection is handled."""
        self._resume(Wait.OLD_CONNECTION, None, now)

    def on_takeover(self, stamp: int, now: float) -> None:
        """Go on: the client's session has come from another broker, or does not come."""
        self._resume(Wait.TAKEOVER, stamp, now)

    # ---------------------------------------------------------------- the handshake of a client

    def _handshake(self, connect: Connect, now: float) -> Generator[Wait, Any, None]:
        """Find out who a client is, get its session, and let it in."""
        answer: Properties = {}  # of CONNACK
        if not self._check_connect(connect, now):
            return
        method = (connect.properties or {}).get(Property.AUTHENTICATION_METHOD)
        if method is not None and not (yield from self._authenticate(connect, method, answer)):
            return
        checked = method is None and self.conn.listener == LEG_LISTENER
        if not checked and not (yield from self._check_user(connect)):
            return
        stamp = yield from self._claim_session(connect, answer)
        if stamp and (connect.client_id in self.node.sessions or self._check_new_session(connect)):
            self._accept(connect, stamp, answer)

    def _check_connect(self, connect: Connect, now: float) -> bool:
        """Refuse a client that is to go to another broker, is one too many, or whose CONNECT asks
        for what is not granted. A client certificate says who it is on some listeners."""
        if not self._check_rate(connect, now):
            return False
        if self.conn.listener in self.node.config.identity_listeners:
            connect.username = common_name(self.conn.secure)
            connect.password = None
            if connect.username is None:
                self.turn_away(ReasonCode.NOT_AUTHORIZED, "has no certificate with a common name")
                return False
        if not connect.client_id and (
            connect.version == 3 or (connect.version == 4 and not connect.clean_start)
        ):
            # MQTT-3.1.3-8; 3.1 asks for a client id always
            self.turn_away(
                ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "has no client id and no Clean Session"
            )
            return False
        return connect.will is None or self._check_will(connect, connect.will)

    def _check_will(self, connect: Connect, will: Will) -> bool:
        """Refuse a client with a will that could not be published."""
        config = self.node.config
        if will.qos > config.max_qos:  # MQTT-3.2.2-12
            self.turn_away(ReasonCode.QOS_NOT_SUPPORTED, "has a will above the Maximum QoS")
        elif will.topic.count("/") >= MAX_TOPIC_LEVELS:
            self.turn_away(ReasonCode.TOPIC_NAME_INVALID, "has a will with too many topic levels")
        elif will.retain and not config.retain_available and connect.version == 5:  # MQTT-3.2.2-13
            self.turn_away(ReasonCode.RETAIN_NOT_SUPPORTED, "has a will with RETAIN")
        elif config.check_payload_format and not well_formed(will.payload, will.properties):
            self.turn_away(
                ReasonCode.PAYLOAD_FORMAT_INVALID,
                "has a will whose payload is not the UTF-8 text that it claims to be",
            )
        else:
            return True
        return False

    def _check_rate(self, connect: Connect, now: float) -> bool:
        """Refuse a client that is to go to another broker, or is one too many."""
        node = self.node
        config = node.config
        if config.server_reference:
            node.counters.redirected += 1
            reason = (
                ReasonCode.SERVER_MOVED
                if config.redirect_permanent
                else ReasonCode.USE_ANOTHER_SERVER
            )
            why = f"is told to use {config.server_reference}"
            self.turn_away(reason, why, {Property.SERVER_REFERENCE: config.server_reference})
        elif node.rate is not None and not node.rate.take(now):
            self.turn_away(
                ReasonCode.CONNECTION_RATE_EXCEEDED,
                f"connects above the limit of {config.connection_rate:g} connections a second",
            )
        else:
            return self._check_capacity(connect)
        return False

    def _check_capacity(self, connect: Connect) -> bool:
        """Refuse a client that is one too many, at CONNECT and again when others may have come
        while it was being authenticated."""
        node = self.node
        if node.drain is not None or node.shutdown.under_way:
            self._send_elsewhere("" if node.drain is None else node.drain.reference())
            return False
        if node.cluster.id_conflict.refuses_clients:
            why = "connects while another broker uses the id of this one"
            self.turn_away(ReasonCode.SERVER_UNAVAILABLE, why, level="debug")
            return False
        if connect.bridge and (older := node.bridges.refuses(connect.client_id)):
            why = f"is a bridge that leads where {shorten(older)} does"
            self.turn_away(ReasonCode.SERVER_UNAVAILABLE, why, level="debug")
            return False
        most = node.config.max_connections
        if most and node.clients.connected >= most:
            old = node.sessions.get(connect.client_id)
            if old is None or old.conn is None:  # else it takes the place of another
                self.turn_away(
                    ReasonCode.QUOTA_EXCEEDED, f"connects above the limit of {most} connections"
                )
                return False
        return True

    def _send_elsewhere(self, where: str) -> None:
        """Refuse a client that is to connect to the broker `where`; "": this broker drains, and no
        other one takes clients."""
        if where:
            self.node.counters.redirected += 1
            properties: Properties = {Property.SERVER_REFERENCE: where}
            self.turn_away(
                ReasonCode.USE_ANOTHER_SERVER, f"is told to use {where}", properties, level="debug"
            )
        else:
            self.turn_away(
                ReasonCode.SERVER_UNAVAILABLE,
                "connects while this broker shuts down",
                level="debug",
            )

    # ---------------------------------------------------------------- who the client is

    @property
    def _proven(self) -> bool:
        """Whether enhanced authentication has proven a user name: no password is asked for."""
        return self.authentication is not None and bool(self.authentication.username)

    def _authenticate(
        self, connect: Connect, method: str, proof: Properties
    ) -> Generator[Wait, Auth, bool]:
        """Exchange AUTH packets with a client until it has proven who it is (MQTT 5, 4.12).

        `connect`: its CONNECT; `method`: its Authentication Method; `proof`: takes the properties
        that CONNACK is to have. Returns whether it has.
        """
        begin = self.node.methods.get(method)
        if begin is None:
            self.turn_away(
                ReasonCode.BAD_AUTHENTICATION_METHOD,
                f"asks for the authentication method {shorten(method)}",
            )
            return False
        authentication = self.authentication = Authentication(method, begin)
        try:
            packet = authentication.start(
                (connect.properties or {}).get(Property.AUTHENTICATION_DATA)
            )
            while authentication.running:
                if not self._send_auth(connect, packet):
                    return False
                packet = authentication.take((yield Wait.AUTH), connected=False)
            if connect.username not in (None, authentication.username):
                raise AuthenticationFailed("has proven to be another user than User Name says")
        except AuthenticationFailed as error:
            self.node.counters.authentication_failed += 1
            self.turn_away(
                ReasonCode.NOT_AUTHORIZED,
                f"failed to authenticate ({shorten(str(error))})",
                told="not authorized",
            )
            return False
        connect.username = authentication.username
        proof.update(packet.properties or {})
        return True

    def _send_auth(self, connect: Connect, packet: Auth) -> bool:
        data = encode_packet(packet, 5)
        if len(data) > (connect.properties or {}).get(
            Property.MAXIMUM_PACKET_SIZE, MAX_PACKET_SIZE
        ):
            self.turn_away(
                ReasonCode.PACKET_TOO_LARGE, "has a Maximum Packet Size that its AUTH exceeds"
            )
            return False
        self.conn.send(data)
        return True

    def _check_user(self, connect: Connect) -> Generator[Wait, bool, bool]:
        """Have the password and the plugins checked, where there are any; returns whether the
        client may connect."""
        node = self.node
        if node.access is not None and not self._check_name(node.access, connect):
            return False
        if not (self.checking or node.hooks.authenticate):
            if node.config.allow_anonymous or self.authentication is not None:
                return True
            self.turn_away(ReasonCode.NOT_AUTHORIZED, "is anonymous")
            return False
        self.conn.wait()
        node.effects.append(Authenticate(self, connect))
        if (yield Wait.CHECK):
            return True
        reason = ReasonCode.NOT_AUTHORIZED
        if connect.username is not None:
            reason = ReasonCode.BAD_USER_NAME_OR_PASSWORD
        self.turn_away(reason, "failed to authenticate")
        return False

    def _check_name(self, access: Access, connect: Connect) -> bool:
        """Refuse a client that needs a user name and has none, or one that is not checked; else
        find out whether its password must be checked."""
        node = self.node
        listener = self.conn.listener
        if owner_of(node, connect.username, listener, proven=self._proven) is None:
            if not access.lets_anonymous(listener):
                what = (
                    "no user name"
                    if connect.username is None
                    else "a user name that no plugin or users file checks"
                )
                self.turn_away(
                    ReasonCode.NOT_AUTHORIZED,
                    f"has {what}, and listener '{listener}' does not accept anonymous clients",
                )
                return False
        elif (
            access.users is not None
            and not self._proven
            and listener not in node.config.identity_listeners
        ):
            if node.checking >= node.limits.password_checks:
                self.turn_away(
                    ReasonCode.SERVER_BUSY, "connects while too many passwords are being checked"
                )
                return False
            self.checking = True
            node.checking += 1
        return True

    # ---------------------------------------------------------------- its session

    def _check_session(self, connect: Connect, answer: Properties) -> bool:
        """Give a client its id and its owner; refuse it if it is one too many, or if the session is
        another user's."""
        node = self.node
        if not self._check_capacity(connect):
            return False
        if not connect.client_id:
            connect.client_id = node.clients.new_client_id()
            answer[Property.ASSIGNED_CLIENT_IDENTIFIER] = connect.client_id
        self.owner = owner_of(
            node, connect.username, self.conn.listener, proven=self.authentication is not None
        )
        old = node.sessions.get(connect.client_id)
        if self.conn.ended and old is not None and self._is_overtaken(old):
            return False
        if old is not None and not belongs(node, old, self.owner):
            if not abandoned(node, old):
                self.turn_away_other_user()
                return False
            node.end_session(old, self.conn)  # another user must not get its queue
        return True

    def _is_overtaken(self, session: Session) -> bool:
        """Close a connection whose peer has gone if a newer one of the same client was let in while
        this one waited for an answer: it must not close that."""
        newer = session.conn
        if newer is None or newer.last_heard <= self.conn.last_heard:
            return False
        self.node.counters.takeover_unread += 1
        self.conn.close()
        self.node.connection_registry.forget(self.conn)
        return True

    def _check_new_session(self, connect: Connect) -> bool:
        """Return whether a new session begins; a client that gets none is turned away."""
        node, conn = self.node, self.conn
        if len(node.sessions) >= node.limits.max_sessions:
            node.counters.sessions_refused += 1
            self.turn_away(
                ReasonCode.QUOTA_EXCEEDED, "needs a session, and the limit of sessions is reached"
            )
        elif not node.memory.takes_more:
            self.turn_away(ReasonCode.SERVER_BUSY, "connects while memory is short")
        elif conn.says_goodbye and connect.will is None:
            # It has gone, and cannot learn that its session is a new one: at its next CONNECT it
            # would take that for the one that it had.
            conn.close()
            node.connection_registry.forget(conn)
        else:
            return True
        return False

    def _claim_session(self, connect: Connect, answer: Properties) -> Generator[Wait, Any, int]:
        """Have the session of a client here, if there is one anywhere, and the client at the broker
        where it is to be. What may have changed during a wait is checked again after it.

        `connect`: its CONNECT; `answer`: properties of CONNACK. Returns when its connection began
        (hybrid clock), 0: it is refused.
        """
        node = self.node
        if node.now < node.cluster.barrier.stale_until:
            node.counters.connections_abandoned += 1
            self.conn.close()
            node.connection_registry.forget(self.conn)
            return 0
        if not self._check_session(connect, answer):
            return 0
        if node.config.redirect_clients and not (yield from self._check_placement(connect, answer)):
            return 0
        barrier = node.cluster.barrier
        waits = barrier.closed or not connect.clean_start
        if waits and not barrier.admits(node.now, self.on_cluster_joined):
            self.conn.wait()
            yield Wait.CLUSTER
            if not self._check_session(connect, answer):
                return 0
        if node.predecessors.wait(self, connect.client_id, node.now):
            yield Wait.OLD_CONNECTION
            if not self._check_session(connect, answer):
                return 0
        stamp = node.cluster.takeover.begin(self, connect, node.now)
        if not stamp:
            stamp = yield Wait.TAKEOVER
            if not self._check_session(connect, answer):
                return 0
        return stamp

    def _check_placement(self, connect: Connect, answer: Properties) -> Generator[Wait, str, bool]:
        """Ask where a client should connect; returns whether that is here."""
        assigned = Property.ASSIGNED_CLIENT_IDENTIFIER in answer
        redirector = self.node.cluster.placement.redirector
        if not redirector.connecting(self, connect, assigned, self.node.now):
            return True
        where = yield Wait.PLACEMENT
        if where:
            self._send_elsewhere(where)
            return False
        return self._check_session(connect, answer)

    def _accept(self, connect: Connect, stamp: int, answer: Properties) -> None:
        """Let a client in. `stamp`: when its connection began; `answer`: properties of CONNACK."""
        node = self.node
        conn = self.conn
        session, present = open_session(node, conn, connect, self.owner, stamp, answer)
        node.cluster.posted_sessions.session_connected(session, present)
        client = self._client_of(session, connect)
        client.authentication = self.authentication
        client.keep_alive = keep_alive(connect, answer, node.config.max_keep_alive) * 1.5
        session.conn = conn
        connack = accepting(connect, present, answer, node.config)
        if len(connack) > session.maximum_packet_size:
            self._refuse_small_packets(client)
            return
        conn.outbox.append(connack)
        conn.traffic.other += len(connack)
        session.outbox = conn.outbox
        if len(conn.outbox) == 1:
            node.dirty.append(conn)
        conn.owner = client
        node.connection_registry.handshake_over(self)
        # What is larger a leg has dropped, under the topic that a message has there.
        leg = conn.listener == LEG_LISTENER
        conn.max_packet_size = MAX_PACKET_SIZE if leg else node.config.max_packet_size
        node.client_connected(client, node.now)
        connect.forget()
        node.journal.session_connected(session, present=present)
        if present:
            session.redeliver()

    def _client_of(self, session: Session, connect: Connect) -> ClientPackets:
        if self.conn.listener == LEG_LISTENER:
            return LegPackets(self.node, self.conn, session, connect)
        if connect.bridge:
            return BridgePackets(self.node, self.conn, session, connect)
        return ClientPackets(self.node, self.conn, session, connect)

    # ---------------------------------------------------------------- refusals

    def turn_away(
        self,
        reason: ReasonCode,
        why: str,
        properties: Properties | None = None,
        told: str = "",
        level: str = "warning",
    ) -> None:
        """Refuse the client with CONNACK, and close.

        `reason`: Reason Code; `why`: for the log, goes on with "client ... "; `properties`: more of
        CONNACK; `told`: Reason String, if it is not to be `why`; `level`: of the line in the log.
        """
        connect = self.connect
        assert connect is not None
        self.node.counters.connects_refused += 1
        name = "" if connect.username is None else f", user {shorten(connect.username)},"
        text = f"client {shorten(connect.client_id)}{name} at {self.conn.peer} {why}; refused"
        self.node.log_limit.line(level, f"refused ({reason.name})", self.conn.peer, text)
        self.conn.linger = True
        if connect.version == 5:
            self.conn.close(
                refusing(
                    Connack(False, reason, properties),
                    told or f"this client {why}",
                    connect.properties,
                )
            )
        else:
            self.conn.close(encode_packet(Connack(False, return_code(reason)), 4))
        self.node.connection_registry.forget(self.conn)

    def turn_away_other_user(self) -> None:
        """Refuse a client with the client id of another user's session."""
        self.node.counters.sessions_wrong_user += 1
        why = "connects with the client id of another user's session"
        self.turn_away(
            ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
            why,
            told="this client id belongs to another user",
        )

    def _refuse_small_packets(self, client: Client) -> None:
        """Close on a client whose Maximum Packet Size is below that of its CONNACK
        (MQTT-3.1.2-24)."""
        client.session.will = None
        self.turn_away(
            ReasonCode.PACKET_TOO_LARGE, "has a Maximum Packet Size that its CONNACK exceeds"
        )
        self.node.clients.refused(client)

    # ---------------------------------------------------------------- end

    def on_connection_lost(self, reason: str, now: float) -> None:
        """Do nothing: no session or link had begun."""
        self.node.connection_registry.handshake_over(self)

    def control_first(self) -> bytes:
        """Control packets overtake nothing here."""
        return b""

    def drained(self, now: float) -> None:
        """Do nothing: there is no queue here."""


def calls_as_broker(connect: Connect) -> bool:
    """Return whether a CONNECT with the top bit of the protocol level is that of a link. Bridges of
    other brokers, such as Mosquitto's, set that bit, too: they are clients (`Client.bridge`).
    Either of two properties is enough: a link that lacks the other one is told so."""
    said = (connect.properties or {}).get(Property.USER_PROPERTY, [])
    return connect.version == 5 and any(name in ("protocol", "boot") for name, _ in said)
