"""A connected MQTT client: what is known of it, what it is sent, and its end. Its packets are
handled in `client_packets`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from mqttree.broker.auth.enhanced_auth import Authentication
from mqttree.broker.core.capabilities import UNLIMITED, ReceiveWindow
from mqttree.broker.core.connection import Connection, Owner
from mqttree.broker.core.effects import Event
from mqttree.broker.core.reason_string import explain
from mqttree.broker.core.serving_broker import ServingBroker
from mqttree.broker.core.session import Session
from mqttree.broker.core.session_owner import LEG_LISTENER
from mqttree.broker.wire.constants import ReasonCode
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.errors import MalformedPacket, WireError
from mqttree.broker.wire.packets import (
    Connect,
    Disconnect,
    Puback,
    Pubrec,
    Suback,
)
from mqttree.broker.wire.properties import Properties, Property
from mqttree.broker.wire.strings import shorten

if TYPE_CHECKING:
    from collections.abc import Collection

    from mqttree.broker.auth.authorization import Rule
    from mqttree.broker.core.publisher import Publisher
    from mqttree.broker.core.retained_feed import RetainedFeeds
    from mqttree.broker.core.route import Route

CONNACK: Final = b"\x20"


class MemoryRoom(Protocol):
    """Says how much memory is left."""

    @property
    def takes_more(self) -> bool:
        """Whether there is room for new clients and filters."""


class ClientHost(ServingBroker, Protocol):
    """What a client asks of its broker."""

    @property
    def feeds(self) -> RetainedFeeds:
        """Sends retained messages to new subscriptions."""

    @property
    def memory(self) -> MemoryRoom:
        """How much memory is left."""

    @property
    def fast(self) -> bool:
        """Whether runs of PUBLISH packets need not be shown to plugins one by one."""

    @property
    def publisher(self) -> Publisher:
        """Takes over messages that were published here."""

    def event(self, name: str, **arguments: Any) -> None:
        """Tell plugins, if one listens to this."""

    def client_disconnected(self, client: Client, /) -> None:
        """A client's connection ended. Harmless when repeated."""


class Client(Owner):
    """The owner of a connection once its CONNECT was accepted; see `connect` for everything
    before."""

    __slots__ = (
        "_explains",
        "_refusal_logged",
        "aliases",
        "aliases_memory",
        "authentication",
        "conn",
        "connack_lsn",
        "connect",
        "dirty",
        "earlier",
        "fast_qos",
        "keep_alive",
        "most_incoming",
        "node",
        "packet_forwarder",
        "routes",
        "session",
        "tally",
        "timer",
        "version",
        "window",
    )

    def __init__(
        self, node: ClientHost, conn: Connection, session: Session, connect: Connect
    ) -> None:
        """`node`: this broker; `conn`: the client's connection; `session`: its session; `connect`:
        its CONNECT packet."""
        self.node = node
        self.conn = conn
        self.session = session
        self.connect = connect
        # The broker's: every message needs it.
        self.dirty = node.dirty
        self.packet_forwarder = node.cluster.forwarder
        self.tally = node.dispatcher.tally
        self.version = connect.version
        # The fanout's own, or with rules in force those that the client may publish to.
        self.routes: dict[bytes, Route] = {}
        self.choose_routes()
        self.keep_alive = connect.keep_alive * 1.5  # s, MQTT-3.1.2-22
        self.timer: int | None = None  # of the keep-alive
        # LSN of the frame of the journal that CONNACK waits for (`Journal.gate_output`).
        self.connack_lsn = 0
        self.authentication: Authentication | None = None  # enhanced (MQTT 5, 4.12)
        self.aliases: dict[int, bytes] = {}
        self.aliases_memory = 0  # bytes of their topics
        # whether the client wants to know why something was refused (MQTT-3.1.2-29)
        self._explains = (
            self.version == 5
            and (connect.properties or {}).get(Property.REQUEST_PROBLEM_INFORMATION, 1) != 0
        )
        config = node.config
        self.window: ReceiveWindow | None = (
            None  # the Receive Maximum towards us, when there is one
        )
        self.fast_qos = config.max_qos  # QoS 0 to this take the fast path,
        self.most_incoming = UNLIMITED  # while fewer messages at QoS 2 than this are not released
        if config.receive_maximum < UNLIMITED and self.version == 5:
            self.window = ReceiveWindow(config.receive_maximum, session.incoming)
            self.most_incoming = config.receive_maximum
        # Identifiers of messages at QoS 2 that came on an earlier connection and are not released.
        self.earlier: Collection[int] = set(session.incoming) if session.incoming else ()
        self._refusal_logged = False  # the log says that a rule refused something

    @property
    def bridge(self) -> bool:
        """Whether another broker's bridge connects as this client, with a version of MQTT that has
        no options of subscriptions: all of them have No Local and Retain As Published then. It says
        so by the top bit of the protocol level, as Mosquitto's bridges do."""
        return self.connect.bridge and self.version != 5

    def choose_routes(self) -> None:
        """Look routes up in the fanout, or with rules in force in a part of it: the topics that the
        client may publish to."""
        self.routes = self.node.dispatcher.routes if self.session.permissions is None else {}

    def forget_routes(self) -> None:
        """Have the rules asked again, or nothing more: the client goes."""
        if self.routes is not self.node.dispatcher.routes:
            self.node.dispatcher.cache.hide(self)

    def packets(self, data: bytes, now: float) -> int:
        """Handle the whole packets at the start of `data`; returns how many bytes were used up.
        `now`: s. Every client is a `ClientPackets`, which does it.

        Raises NotImplementedError.
        """
        raise NotImplementedError

    # ---------------------------------------------------------------- everything else

    def send(self, data: bytes) -> None:
        """Queue whole packets for this client."""
        if self.node.hooks.packets:
            self.node.effects.append(Event("mqtt_packet_sent", {"client": self, "data": data}))
        self.node.counters.answers_single += 1
        self.conn.send(data)

    def note_refusal(self, action: str, topic: str, why: str) -> None:
        """Log what was refused and `why`, at the level info once for each connection: the next ones
        at debug. A client before MQTT 5 does not hear of it otherwise. Legs drop what does not
        cross by such a topic, and count it.

        `action`: "publish to" or "subscribe to"; `topic`: a topic name or filter.
        """
        if self.conn.listener == LEG_LISTENER:
            return
        # Bridges of Mosquitto publish their state there, always.
        usual = self.bridge and topic.startswith("$SYS/")
        level = "debug" if usual or self._refusal_logged else "info"
        self._refusal_logged = self._refusal_logged or not usual
        user = self.session.username
        name = "" if user is None else f", user {shorten(user)},"
        client_id = shorten(self.session.client_id)
        text = (
            f"client {client_id}{name} at {self.conn.peer} may not {action} {shorten(topic)}: {why}"
        )
        self.node.log_limit.line(level, f"may not {action}", self.conn.peer, text)

    def reused(self, packet_id: int) -> None:
        """Note a PUBLISH at QoS 2 without DUP under an identifier, `packet_id`, that is not
        released. A client that counts so loses messages: each looks like a repetition (MQTT 5,
        4.3.3). On a new connection some clients repeat without DUP, which is harmless."""
        if packet_id in self.earlier:
            return
        node = self.node
        node.counters.packet_ids_reused += 1
        text = (
            f"client {shorten(self.session.client_id)} at {self.conn.peer}: a new message at QoS 2 "
            f"has the packet identifier {packet_id} of one that is not released: it is taken for a "
            "repetition, and is lost"
        )
        node.log_limit.line("warning", "packet identifier in use", self.conn.peer, text)

    def answer(self, packet: Puback | Pubrec | Suback, why: str) -> None:
        """Send an answer; `why` something was refused ("": nothing was) for clients that want to
        know."""
        if self._explains:
            self.send(explain(packet, why, self.session.maximum_packet_size))
        else:
            self.send(encode_packet(packet, self.version))

    # ---------------------------------------------------------------- end

    def fail(self, error: WireError) -> None:
        """Close after bad input: one line, a counter, the reason code in MQTT 5 (MQTT-4.13.1-1)."""
        node = self.node
        if isinstance(error, MalformedPacket):
            node.counters.malformed += 1
        else:
            node.counters.protocol_errors += 1
        text = (
            f"client {shorten(self.session.client_id)} at {self.conn.peer}: {error.message}; closed"
        )
        node.log_limit.line("warning", error.message, self.conn.peer, text)
        self.shut(error.reason, error.message)

    def shut(self, reason: int, why: str = "", properties: Properties | None = None) -> None:
        """Close the connection; an MQTT 5 client is told why with DISCONNECT (MQTT-3.14).

        `reason`: Reason Code; `why`: Reason String, "" for none; `properties`: more of DISCONNECT.
        """
        last = b""
        if self.version == 5:
            maximum = self.session.maximum_packet_size
            last = explain(Disconnect(reason, properties), why, maximum)
            if len(last) > maximum:
                last = encode_packet(Disconnect(reason), 5)
        # A broker that shuts down does not wait for its clients.
        self.conn.linger = reason != ReasonCode.SERVER_SHUTTING_DOWN
        self.conn.close(last)
        self.node.client_disconnected(self)

    def check_keep_alive(self, now: float) -> float | None:
        """Close a client that was silent for one and a half times its Keep Alive; returns when to
        look again (s)."""
        if self.conn.closed or self.conn.closing:
            return None
        due = self.conn.last_heard + self.keep_alive
        if self.conn.held or self.conn.waiting:  # it is this broker that does not read
            return now + self.keep_alive
        if now < due:
            return due
        self.node.counters.keep_alive_timeout += 1
        text = (
            f"client {shorten(self.session.client_id)} at {self.conn.peer}: "
            "keep-alive expired; closed"
        )
        self.node.log_limit.line("info", "keep-alive expired", self.conn.peer, text)
        self.shut(ReasonCode.KEEP_ALIVE_TIMEOUT)
        return None

    def on_connection_lost(self, reason: str, now: float) -> None:
        """Note that the connection broke: the will is due."""
        self.node.client_disconnected(self)

    def control_first(self) -> bytes:
        """Packets to clients keep their order."""
        return b""

    def drained(self, now: float) -> None:
        """Nothing to do: the session pumps on acknowledgements."""


def said_of(rule: Rule | None) -> str:
    """Return why the rules forbid something, for the log: this `rule` does, or none allows it."""
    return "no rule allows it" if rule is None else f"line {rule.line} of the rules"


def disconnect(session: Session, reason: int) -> bool:
    """Disconnect the client of a session, if it is connected; an MQTT 5 client is told the Reason
    Code `reason`. Returns whether it was."""
    conn = session.conn
    if conn is None or not isinstance(conn.owner, Client):
        return False
    conn.owner.shut(reason)
    return True
