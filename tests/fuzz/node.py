"""A whole node with four clients that do what the tape says, and two that are well behaved and must
notice nothing."""

from __future__ import annotations

from mqttree.broker.auth.acl_file import parse_rules
from mqttree.broker.auth.authorization import Access
from mqttree.broker.cluster.link.link import Link
from mqttree.broker.core.client import Client
from mqttree.broker.core.connection import Connection
from mqttree.broker.core.delivery_queue import RELEASED
from mqttree.broker.core.effects import (
    Authenticate,
    AuthorizePublish,
    AuthorizeReceive,
    AuthorizeSubscribe,
    Hooks,
)
from mqttree.broker.core.message import size_of
from mqttree.broker.core.session import Session
from mqttree.broker.limits import Limits
from mqttree.broker.node import Node
from mqttree.broker.wire.constants import MAX_PACKET_SIZE
from mqttree.broker.wire.decode import decode_packet
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Publish,
    Subscribe,
    SubscriptionRequest,
    Unsubscribe,
    Will,
)
from mqttree.broker.wire.properties import Property
from mqttree.broker.wire.reader import PacketReader
from mqttree.routing.topic_filter import split_shared
from tests.fuzz.tape import Tape, check
from tests.kit.node_harness import FakeClient, World

SMALL = Limits(
    max_queued=12,
    hold_queued=6,
    max_inflight=4,
    max_subscriptions=8,
    max_retained=4,
    route_cache=6,
    route_cache_deliveries=12,
    interned_receivers=3,
    client_backlog_bytes=2000,
    hold_backlog_bytes=300,
    max_sessions=5,
    permitted_topics=3,
    plugin_backlog_bytes=50,
    max_missed=5,
)
"""Limits at which programmes of some hundred bytes arrive."""

CONFIGURATIONS: list[dict[str, object]] = [
    {},
    {"receive_maximum": 2, "topic_alias_maximum": 1},
    {"keep_missed": True},
    {
        "max_qos": 1,
        "retain_available": False,
        "wildcard_subscriptions": False,
        "shared_subscriptions": False,
    },
    {"max_packet_size": 60, "max_keep_alive": 5, "session_expiry_max": 5, "topic_aliases_out": 1},
    {"discovery": "multicast"},
    {
        "max_connections": 4,
        "connection_rate": 3.0,
        "subscription_identifiers": False,
        "check_payload_format": False,
    },
    {"max_inflight_messages": 1},
]
RULES = (
    "deny publish a/b\nclient w\nallow publish a/%c\ndeny all b\neveryone\n"
    "allow all #\nallow all $SYS/#\n"
)

TOPICS = ("a", "a/b", "a/b/c/d", "long/topic/name", "$SYS/x", "b", "+", "a\0")
FILTERS = (
    "a",
    "#",
    "a/+",
    "+/b/#",
    "$share/g/#",
    "$share/g/a",
    "$SYS/#",
    "a/#/b",
    "long/topic/name",
    "$share//a",
    "b",
    "",
)
IDS = ("w", "x", "y", "")
HEALTHY = "healthy-00c0ffee-subscriber"
FIT = "healthy-00c0ffee-publisher"


class Slot:
    """One connection that the tape plays on."""

    def __init__(self, world: World) -> None:
        self.peer = FakeClient(world, 5)
        self.reader = PacketReader()
        self.owed: list[tuple[int, int]] = []  # acknowledgements: first byte, identifier
        self.unread: list[bytes] = []  # while the node does not read
        # the tape said something of its own: nothing is known of the version until a client is
        # there
        self.raw = False
        self.version: int | None = None
        self.largest = MAX_PACKET_SIZE
        self.aliases = 0
        self.ended = False


class Play:
    """One programme."""

    def __init__(self, data: bytes) -> None:
        self.tape = Tape(data)
        options = self.tape.byte()
        hooks = None
        if options & 0xC0 == 0x40:
            hooks = Hooks(
                authenticate=bool(options & 0x20),
                topics=True,
                events=frozenset({"broker_client_connected"}),
            )
        elif options & 0xC0 == 0x80:
            hooks = Hooks(
                packets=True,
                events=frozenset({"broker_message_received", "broker_retained_message"}),
            )
        self.world = World(hooks=hooks, limits=SMALL, **CONFIGURATIONS[options & 7])
        self.node: Node = self.world.node
        if options & 0xC0 == 0xC0:
            self.node.set_access(
                Access(None, parse_rules("rules", RULES, limits=Limits()), True), self.world.now
            )
        self.plugins = hooks is not None and hooks.topics
        self.slots: list[Slot | None] = [None] * 4
        self.bend: tuple[int, int] | None = None
        self.joined: list[bytes] = []
        self.cuts = False
        self.serial = 0
        self.serve()
        self.subscriber = self.world.connect(HEALTHY, 5)
        self.publisher = self.world.connect(FIT, 4)
        self.subscriber.send(Subscribe(1, [SubscriptionRequest("healthy/t", 1)]))
        self.subscriber.take()
        self.publisher.take()

    def serve(self) -> None:
        """Have the plugins' answers to well behaved clients come at once."""
        world = self.world
        settle = world.settle

        def settled(source: Connection | None = None) -> None:
            settle(source)
            again = True
            while again:
                again = False
                for effect in list(world.effects):
                    if isinstance(effect, AuthorizeReceive):
                        answer: object = set(effect.receivers)
                    elif isinstance(effect, Authenticate | AuthorizePublish | AuthorizeSubscribe):
                        if any(
                            slot is not None and slot.peer.conn is effect.client.conn
                            for slot in self.slots
                        ):
                            continue
                        answer = (
                            [True] * len(effect.packet.filters)
                            if isinstance(effect, AuthorizeSubscribe)
                            else True
                        )
                    else:
                        continue
                    world.effects.remove(effect)
                    world.node.answer(effect, answer, world.now)
                    settle()
                    again = True

        world.settle = settled  # type: ignore[method-assign]

    # ---------------------------------------------------------------- the programme

    def run(self) -> None:
        """Play it, and look at everything now and then."""
        self.healthy()
        step = 0
        while self.tape.left and step < 300:
            self.step()
            step += 1
            if step % 8 == 0:
                self.sound()
        self.sound()
        self.healthy()
        for slot in self.slots:
            if slot is not None and not slot.peer.closed:
                slot.peer.vanish()
        self.wait(11.0)
        self.sound()
        self.healthy()

    def step(self) -> None:
        """One operation: the low five bits say what, the high ones on which connection."""
        tape, world = self.tape, self.world
        code = tape.byte()
        number = code >> 5 & 3
        slot = self.slots[number]
        match code & 0x1F:
            case 0 | 1 | 2 | 3:
                if slot is None or slot.peer.closed or code & 0x80:
                    slot = self.slots[number] = Slot(world)
                self.connect(slot)
            case 4:
                if slot is None or slot.peer.closed:
                    slot = self.slots[number] = Slot(world)
                slot.raw = slot.raw or slot.version is None
                self.say(slot, tape.string())
            case 5 if slot is not None:
                slot.peer.vanish()
            case 6:
                self.wait((0.01, 0.3, 0.6, 2.0, 6.0, 12.0, 40.0, 80.0)[tape.byte() & 7])
            case 7:
                self.bend = tape.byte(), tape.byte()
            case 8:
                self.cuts = True
            case 9:
                self.answers(bool(tape.byte() & 1))
            case 10 if slot is not None and not slot.peer.closed:
                transport = slot.peer.transport
                transport.capacity = None if transport.capacity is not None else tape.byte()
                if transport.capacity is None:
                    self.collect(slot)
                    while slot.peer.conn.backlog and not slot.peer.closed:
                        slot.peer.conn.writable(world.now)
                        world.settle()
                        self.collect(slot)
                    if not slot.peer.closed:
                        slot.peer.conn.writable(world.now)
                        world.settle()
            case _ if slot is not None and not slot.peer.closed:
                self.packet(slot, code & 0x1F)
            case _:
                pass
        self.read()

    def wait(self, seconds: float) -> None:
        """Let the time pass; those who are well behaved keep their connections alive."""
        end = self.world.now + seconds
        while self.world.now < end:
            self.world.advance(min(5.0, end - self.world.now))
            self.subscriber.send(b"\xc0\x00")
            if self.publisher.transport.reading:
                self.publisher.send(b"\xc0\x00")

    def connect(self, slot: Slot) -> None:
        """A CONNECT that is all right."""
        options, more = self.tape.byte(), self.tape.byte()
        version = (3, 4, 5, 5)[options & 3]
        client_id = IDS[options >> 2 & 3]
        clean = bool(options & 0x10)
        five = version == 5
        properties = None
        if five:
            properties = (
                None,
                {Property.SESSION_EXPIRY_INTERVAL: 5, Property.TOPIC_ALIAS_MAXIMUM: 2},
                {Property.RECEIVE_MAXIMUM: 2, Property.SESSION_EXPIRY_INTERVAL: 0xFFFFFFFF},
                {
                    Property.MAXIMUM_PACKET_SIZE: 30,
                    Property.TOPIC_ALIAS_MAXIMUM: 3,
                    Property.SESSION_EXPIRY_INTERVAL: 50,
                },
            )[more & 3]
        will = None
        if more & 4:
            topic = TOPICS[more >> 3 & 3]
            will = Will(
                topic,
                b"will",
                (more >> 5) % 3,
                bool(more & 8),
                {Property.WILL_DELAY_INTERVAL: 2} if five else None,
            )
        keep_alive = 5 if options & 0x20 else 0
        name = "u" if options & 0x40 else None
        protocol = "MQIsdp" if version == 3 else "MQTT"
        if version == 3:
            client_id = client_id or "z"
        said = Connect(
            protocol, version, clean, keep_alive, client_id, name, None, will, properties
        )
        if slot.version is None and not slot.raw and self.bend is None:
            slot.version = version
        elif slot.version is None:
            slot.raw = True
        self.say(slot, encode_packet(said, version))

    def packet(self, slot: Slot, code: int) -> None:
        """Some packet of a client, as it should be."""
        tape = self.tape
        owner = slot.peer.conn.owner
        version = owner.version if isinstance(owner, Client) else slot.version or 5
        data = b""
        a = tape.byte()
        if code in (11, 12):
            count = 1 + (a & 1)
            requests = []
            for _ in range(count):
                text, o = tape.pick(FILTERS), tape.byte()
                five = version == 5
                no_local = five and bool(o & 4) and not text.startswith("$share")
                requests.append(
                    SubscriptionRequest(
                        text, o % 3, no_local, five and bool(o & 8), (o >> 4) % 3 if five else 0
                    )
                )
            properties = (
                {Property.SUBSCRIPTION_IDENTIFIER: [1 + (a >> 4)]}
                if version == 5 and a & 2
                else None
            )
            data = encode_packet(Subscribe(1 + (a >> 2), requests, properties), version)
        elif code in (13, 14, 15, 16):
            data = self.publish(version, a, code)
        elif code in (17, 18):
            data = b"".join(
                bytes((first, 2)) + number.to_bytes(2, "big") for first, number in slot.owed
            )
            slot.owed.clear()
        elif code == 19:
            head = bytes(((0x40, 0x50, 0x62, 0x70)[a & 3], 2))
            begin = a >> 2 & 7
            data = b"".join(
                head + number.to_bytes(2, "big") for number in range(begin, begin + 1 + (a >> 5))
            )
        elif code == 20:
            data = encode_packet(Unsubscribe(9, [tape.pick(FILTERS) or "x"]), version)
        elif code == 21:
            reason = (0, 4, 0, 0x81)[a & 3]
            properties = (
                {Property.SESSION_EXPIRY_INTERVAL: a >> 2} if version == 5 and a & 2 else None
            )
            data = encode_packet(Disconnect(reason if version == 5 else 0, properties), version)
        elif code == 22:
            data = b"\xc0\x00"
        elif code == 23 and version == 5:
            data = encode_packet(
                Auth(0x19 if a & 1 else 0, {Property.AUTHENTICATION_METHOD: "m"}), 5
            )
        elif code == 24:
            self.joined.append(bytes((a,)))
        elif code == 25:  # what follows goes with it, in one piece
            self.joined.append(b"\xc0\x00")
            return
        if data:
            self.say(slot, data)

    def publish(self, version: int, a: int, code: int) -> bytes:
        """A run of PUBLISH packets."""
        b = self.tape.byte()
        topic, qos, retain = TOPICS[a & 7], (a >> 3 & 3) % 3, bool(a & 0x20)
        count = (1, 1, 2, 9)[a >> 6]
        properties: dict[int, object] | None = None
        if version == 5 and code >= 15:
            properties = {}
            if b & 1:
                properties[Property.TOPIC_ALIAS] = 1 + (b >> 6)
                if b & 2:
                    topic = ""
            if b & 4:
                properties[Property.MESSAGE_EXPIRY_INTERVAL] = b >> 3 & 3
            if b & 8:
                properties[Property.USER_PROPERTY] = [("k", "v"), ("k", "")]
            if b & 0x10:
                properties[Property.PAYLOAD_FORMAT_INDICATOR] = 1
            if b & 0x20:
                properties[Property.RESPONSE_TOPIC] = "a"
        payload = (b"", b"x", bytes(40), b"\xff123456")[b >> 4 & 3]
        packets = []
        for number in range(count):
            packet_id = 1 + (b + number) % 20 if qos else None
            packets.append(
                Publish(
                    topic,
                    payload,
                    qos,
                    retain,
                    bool(qos and b & 0x80 and b & 0x40),
                    packet_id,
                    properties,
                )
            )
        return b"".join(encode_packet(p, version) for p in packets)

    def say(self, slot: Slot, data: bytes) -> None:
        """Send bytes, bent and cut if the tape said so before; what the node does not read
        waits."""
        data = b"".join((*self.joined, data))
        self.joined.clear()
        if self.bend is not None and data:
            at, value = self.bend
            at %= len(data)
            data = data[:at] + bytes((value,)) + data[at + 1 :]
            self.bend = None
        chunks = self.tape.cut(data) if self.cuts else [data]
        self.cuts = False
        slot.unread += chunks
        self.feed(slot)

    def feed(self, slot: Slot) -> None:
        """Give the node what it reads."""
        while slot.unread and slot.peer.transport.reading and not slot.peer.closed:
            slot.peer.chunks([slot.unread.pop(0)])
            self.look(slot)

    def look(self, slot: Slot) -> None:
        owner = slot.peer.conn.owner
        if isinstance(owner, Client):
            slot.version = owner.version
            slot.largest = owner.session.maximum_packet_size
            slot.aliases = (owner.connect.properties or {}).get(Property.TOPIC_ALIAS_MAXIMUM, 0)

    def answers(self, allowed: bool) -> None:
        """Have the plugins answer what they were asked."""
        world = self.world
        for kind in (Authenticate, AuthorizePublish):
            world.answer(kind, allowed)
        world.answer(AuthorizeSubscribe, lambda effect: [allowed] * len(effect.packet.filters))

    # ---------------------------------------------------------------- what comes back

    def read(self) -> None:
        """Everybody reads who does."""
        for slot in self.slots:
            if slot is not None:
                self.feed(slot)
                self.look(slot)
                if slot.peer.transport.capacity is None:
                    self.collect(slot)

    def collect(self, slot: Slot) -> None:
        """Read what was written to a client: packets that its version has, none too large, none
        behind the last."""
        data = bytes(slot.peer.transport.written)
        slot.peer.transport.written.clear()
        for first, body in slot.reader.feed(data):
            check(not slot.ended, "a packet behind the last one")
            if first in (0x32, 0x3A, 0x33, 0x3B, 0x34, 0x3C, 0x35, 0x3D):
                at = 2 + int.from_bytes(body[:2], "big")
                slot.owed.append(
                    (0x40 if first & 2 else 0x50, int.from_bytes(body[at : at + 2], "big"))
                )
            elif first == 0x62 or first == 0x50:
                slot.owed.append((0x70 if first == 0x62 else 0x62, int.from_bytes(body[:2], "big")))
            del slot.owed[:-40]
            if slot.version is None or isinstance(slot.peer.conn.owner, Link):
                continue
            packet: Packet = decode_packet(first, body, slot.version)
            size = 1 + (1 if len(body) < 128 else 2 if len(body) < 16384 else 3) + len(body)
            if isinstance(packet, Publish) and packet.properties:
                alias = packet.properties.get(Property.TOPIC_ALIAS, 0)
                check(
                    alias <= slot.aliases, f"alias {alias} for a client that takes {slot.aliases}"
                )
            check(size <= slot.largest, f"{size} bytes of {packet} are too large for the client")
            if isinstance(packet, Disconnect) or (isinstance(packet, Connack) and packet.code):
                slot.ended = True

    # ---------------------------------------------------------------- what must hold

    def sound(self) -> None:
        """Everything is where it belongs, and once."""
        node = self.node
        check(not node.dirty, "outlets are left after a flush")
        check(all(value >= 0 for value in node.counters.as_dict().values()), "a counter below zero")
        check(
            node.paused == sum(conn.paused for conn in node.connections),
            "paused connections are miscounted",
        )
        owners = [conn.owner for conn in node.connections if isinstance(conn.owner, Client)]
        connected = [s for s in node.sessions.values() if s.conn is not None]
        check(
            len(connected) == node.clients.connected,
            f"{node.clients.connected} clients are counted, {len(connected)} are there",
        )
        live = [owner for owner in owners if not owner.conn.closing]
        check(
            {id(owner.session) for owner in live} >= {id(s) for s in connected},
            "a session without its client",
        )
        for owner in live:
            check(
                node.sessions.get(owner.session.client_id) is owner.session,
                "a client whose session is another's",
            )
            check(
                owner.session.conn is owner.conn, "a session at another connection than its client"
            )
        subscriptions = 0
        groups = set()
        for client_id, session in node.sessions.items():
            self.sound_session(client_id, session)
            for topic_filter, subscription in session.subscriptions.items():
                check(subscription.session is session, "a subscription of another session")
                group, inner = split_shared(topic_filter)
                if group is None:
                    subscriptions += 1
                    check(
                        node.dispatcher.trie.get(inner, client_id) is subscription,
                        "a subscription that is not in the trie",
                    )
                else:
                    groups.add((group, inner))
        check(len(node.dispatcher.trie) == subscriptions, "subscriptions without a session")
        check(len(node.dispatcher.shared) == len(groups), "shared subscriptions without a session")
        self.sound_groups(groups)
        check(len(node.retained) <= SMALL.max_retained, "too many retained messages")
        for conn in node.connections:
            check(not conn.outbox, "bytes left in a connection's outbox")
            check(conn.backlog_bytes == sum(map(len, conn.backlog)), "the backlog is miscounted")

    def sound_session(self, client_id: str, session: Session) -> None:
        """A session and its connection belong together; its queues are counted and bounded."""
        node = self.node
        check(session.client_id == client_id, "a session under another name")
        conn = session.conn
        if conn is not None:
            check(conn in node.connections and not conn.closed, "a session at a closed connection")
            check(
                session.outbox is conn.outbox,
                "a session with another outbox than its connection's",
            )
        else:
            check(session.expiry > 0, "a session that should be over")
        check(not session.outbox, "bytes left in an outbox")
        check(
            session.queued_bytes == sum(size_of(o.message) for o in session.queue),
            "queued bytes are miscounted",
        )
        check(
            session.missed_bytes == sum(size_of(o.message) for o in session.missed or ()),
            "missed bytes are miscounted",
        )
        flying = sum(sent is not RELEASED for sent in session.inflight.values())
        check(
            conn is None or flying <= session.receive_maximum,
            "more in flight than the client takes",
        )
        check(
            not (conn is not None and session.queue and not session.inflight),
            "messages wait for nothing",
        )
        check(
            len(session.queue) <= SMALL.max_queued + session.receive_maximum + 70,
            "an endless queue",
        )
        check(len(session.subscriptions) <= SMALL.max_subscriptions, "too many subscriptions")

    def sound_groups(self, groups: set[tuple[str, str]]) -> None:
        """Groups of shared subscriptions know which members are connected."""
        node = self.node
        for name, inner in groups:
            group = node.dispatcher.group(name, inner)
            check(group is not None, "a group that is not in the trie")
            assert group is not None
            online = {
                client_id
                for client_id, member in group.members.items()
                if member.session.conn is not None
            }
            check(group.connected == online, "members whose connections are miscounted")

    def healthy(self) -> None:
        """A well behaved client's message reaches a well behaved subscriber, once."""
        world = self.world
        for _ in range(20):
            if self.publisher.transport.reading:
                break
            self.wait(0.5)
        check(self.publisher.transport.reading, "a publisher is held for ever")
        self.serial += 1
        payload = b"%d" % self.serial
        packet_id = self.serial
        self.publisher.send(Publish("healthy/t", payload, 1, packet_id=packet_id))
        check(
            not self.publisher.closed and not self.subscriber.closed,
            f"a well behaved client was closed: {world.logged[-3:]}",
        )
        came = [
            p for p in self.subscriber.take() if isinstance(p, Publish) and p.topic == "healthy/t"
        ]
        check([p.payload for p in came].count(payload) == 1, f"not served once: {came}")
        for packet in came:
            if packet.packet_id:
                self.subscriber.send(b"\x40\x02" + packet.packet_id.to_bytes(2, "big"))
        self.publisher.take()


def node(data: bytes) -> None:
    """Play one programme on a new node."""
    Play(data).run()
