"""A node with three neighbours: one that says what the tape says, an honest one, and behind it a
node that must understand everything that is passed on to it."""

from __future__ import annotations

from mqttree.broker.base.address import Address
from mqttree.broker.cluster.link.control_records import (
    ASK_SEEN,
    BPDU,
    DIGEST,
    FETCH,
    LIST,
    MEMBERS,
    ORIGINS,
    PARTS,
    PING,
    SEEN,
)
from mqttree.broker.cluster.link.link import Link
from mqttree.broker.cluster.link.message_batch import encode_batch
from mqttree.broker.cluster.link.origin_keys import origin_key
from mqttree.broker.core.message import Stamp, encode_halves
from mqttree.broker.limits import Limits
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import Connack
from mqttree.broker.wire.varint import encode_varint
from mqttree.discovery.gossip import encode_members
from mqttree.stp import bpdu as bpdus
from mqttree.stp.bpdu import Bpdu, ChangeNumber, Role, SeqRequest
from mqttree.stp.priority_vector import RootVector
from tests.fuzz.tape import Tape, check
from tests.kit.link_harness import bid
from tests.kit.node_harness import World
from tests.unit.cluster.test_link import FAR, OWN, Neighbour, bridge, message, ping, vector_of

KINDS = (PING, BPDU, MEMBERS, SEEN, ASK_SEEN, ORIGINS)
KINDS += (99, DIGEST, PARTS, LIST, FETCH)
TOPICS = (b"t", b"a/b", b"", b"#", b"\xff", b"$SYS/x", b"$TC", b"a" * 300)
SMALL = Limits(
    log_bytes=2000,
    max_replay=8000,
    link_backlog_bytes=500,
    max_origins=6,
    max_gaps=4,
    max_links=5,
)


class Play:
    """One programme."""

    def __init__(self, data: bytes) -> None:
        self.tape = Tape(data)
        self.world = World(id=OWN, boot=1, discovery="static", capability=2.0, limits=SMALL)
        self.other = World(
            id=b"o" * 8, boot=1_000, discovery="static", capability=1.0, limits=SMALL
        )
        self.world.advance(0.0)
        self.client = self.world.connect("c")
        self.client.subscribe("#", qos=1)
        self.client.take()
        self.honest = Neighbour(self.world, 2)
        self.honest.child()
        self.behind = Neighbour(self.other, 3)
        self.behind.take()
        self.liar: Neighbour | None = None
        self.serial = 0

    def run(self) -> None:
        """Play it."""
        tape = self.tape
        options = tape.byte()
        self.liar = Neighbour(self.world, 1, link=False)
        if options & 1:  # a CONNECT with something bent in it
            said = bytearray(encode_packet(bridge(1 + (options >> 4), capability=1.5), 5))
            for _ in range(1 + (options >> 1 & 3)):
                at, value = tape.byte() % len(said), tape.byte()
                said[at] = value
            self.say(bytes(said), encode_packet(Connack(False, 0), 5))
            taken = self.world.node.cluster.links.get(bid(self.honest.number))
            if taken is not None and taken is self.liar.conn.link:
                # Nothing that matters is bent: the honest neighbour seems to connect again, and
                # the new link rightly takes the place of the old one.
                return
        else:
            self.say(encode_packet(bridge(1), 5), encode_packet(Connack(False, 0), 5))
            check(self.liar.up, "an honest handshake is refused")
            if options & 2:
                self.tell_on()
                self.liar.child()  # that takes a second
                self.tell_on()
        steps = 0
        while tape.left and not self.liar.conn.closed and steps < 100:
            self.step()
            self.tell_on()
            steps += 1
        self.settled()

    def say(self, *data: bytes) -> None:
        """Send, unless the link is over."""
        assert self.liar is not None
        if not self.liar.conn.closed:
            self.liar.send(*data)

    def step(self) -> None:
        """One operation."""
        tape, world = self.tape, self.world
        assert self.liar is not None
        code = tape.byte()
        match code & 15:
            case 0:
                self.say(tape.string())
            case 1 | 2:
                records = [(tape.pick(KINDS), tape.string()) for _ in range(1 + (code >> 4) % 3)]
                self.say(ping(*records))
            case 3 | 4:
                self.bpdu(code >> 4)
            case 5 | 6 | 7:
                self.publish(code)
            case 8:
                self.publish_batch(code)
            case 9 | 10:
                vector = b"".join(self.vector() for _ in range(1 + (code >> 4) % 4))
                kind = (SEEN, ORIGINS)[tape.byte() & 1]
                self.say(ping((kind, vector)))
            case 11:
                members = [
                    (
                        bytes((tape.byte(),)) * 8,
                        tape.byte(),
                        [Address(f"10.0.0.{tape.byte()}", 1 + tape.byte())],
                        bool(code & 16),
                    )
                    for _ in range(1 + (code >> 4) % 5)
                ]
                self.say(ping((MEMBERS, encode_members(members))))
            case 12:
                world.advance((0.001, 0.1, 0.5, 1.0)[code >> 4 & 3])
                self.other.now = max(self.other.now, world.now)
            case 13:
                self.client.publish(
                    "l",
                    b"local",
                    qos=code >> 4 & 1,
                    packet_id=1 + (self.serial % 60_000) if code & 16 else None,
                )
                self.serial += 1
            case 14:
                self.publish_bent(code)
            case _:
                self.liar.transport.capacity = (
                    None if self.liar.transport.capacity is not None else 50
                )
                if self.liar.transport.capacity is None and not self.liar.conn.closed:
                    self.liar.take()
                    self.liar.conn.writable(world.now)
                    world.settle()

    def publish(self, code: int) -> None:
        """A message of some origin."""
        tape = self.tape
        o = tape.byte()
        key = origin_key((FAR, OWN, b"o" * 8, b"n" * 8)[o & 3], 1 + (o >> 6))
        sequence = (
            tape.byte()
            if o & 0x10
            else (1 << 48) - 1 - tape.byte()
            if o & 0x20
            else 1 + (code >> 4)
        )
        said = message(
            TOPICS[tape.byte() & 7],
            tape.string(),
            qos=(o >> 2 & 3) % 3,
            key=key,
            sequence=sequence,
            properties=tape.string() if o & 0x20 else b"",
            first=tape.byte() if o == 0xFF else 0,
        )
        self.say(said)

    def publish_batch(self, code: int) -> None:
        """Messages of one topic, as many as the batch says, or not."""
        tape = self.tape
        o = tape.byte()
        topic, payload, qos = TOPICS[o & 7], tape.string(), (o >> 3 & 3) % 3
        version = 5 if o & 0x40 else 4
        halves = encode_halves(
            topic, payload, version, qos, False, tape.string() if o & 0x20 else b""
        )
        count = 1 + (code >> 4)
        packets = (b"\0\1" if qos else b"").join(halves) * count
        said = tape.byte() if o & 0x80 else count
        key = origin_key(FAR, 1)
        self.say(encode_batch(key, tape.byte(), packets, said, version, qos))

    def publish_bent(self, code: int) -> None:
        """A message with one wrong byte."""
        tape = self.tape
        retained = code & 0x20
        stamp = Stamp(tape.byte() << 52, tape.byte() << 40, bool(code & 0x10)) if retained else None
        data = bytearray(message(payload=tape.string(), sequence=tape.byte(), qos=1, stamp=stamp))
        data[tape.byte() % len(data)] = tape.byte()
        self.say(bytes(data))

    def vector(self) -> bytes:
        tape = self.tape
        gaps = [(tape.byte(), tape.byte()) for _ in range(tape.byte() % 4)]
        whose = tape.byte()
        data = vector_of(tape.byte() << (40 if whose & 8 else 0), *gaps)
        return ((FAR, OWN, b"o" * 8, b"n" * 8)[whose & 3] + data[8:]) if whose & 4 else data

    def bpdu(self, more: int) -> None:
        """What could be the truth."""
        tape = self.tape
        assert self.liar is not None
        b = tape.byte()
        root = RootVector(
            (b"\0" * 7 + b"\1", OWN, FAR, b"\0" * 7 + b"\2")[b & 3],
            tape.byte(),
            tape.byte() * 10,
            (f"10.0.0.{1 + (b & 3)}", 1883),
        )
        request = SeqRequest((OWN, FAR)[b >> 2 & 1], tape.byte(), tape.byte()) if more & 1 else None
        changes = tuple(ChangeNumber(FAR, 1, tape.byte()) for _ in range(more >> 1 & 3))
        self.liar.told += 1
        said = Bpdu(
            root,
            tape.byte(),
            tape.byte() * 1000,
            15,
            Role(1 + (b >> 4) % 3),
            Role(b >> 6),
            hops=tape.byte(),
            age_ms=tape.byte() * 20,
            number=self.liar.told,
            request=request,
            changes=changes,
        )
        self.say(ping((BPDU, bpdus.encode(said))))

    def tell_on(self) -> None:
        """What the honest neighbour hears is understood by another node; it answers PINGREQ so that
        it stays."""
        if not self.honest.conn.closed:
            packets = self.honest.packets()
            for first, body in packets:
                if first not in (0x10, 0x20) and not self.behind.conn.closed:
                    self.behind.send(bytes((first,)) + encode_varint(len(body)) + body)
            if self.behind.conn.closed:
                check(False, f"what a neighbour is told is refused: {self.other.logged[-1:]}")
            self.behind.take()
            self.honest.send(ping())
        for packet in self.client.take():
            packet_id = getattr(packet, "packet_id", None)
            if packet_id and type(packet).__name__ == "Publish":
                self.client.send(b"\x40\x02" + packet_id.to_bytes(2, "big"))

    def settled(self) -> None:
        """The honest neighbour and the client have noticed nothing."""
        node = self.world.node
        check(not node.dirty, "outlets are left after a flush")
        check(self.honest.up, f"an honest neighbour lost its link: {self.world.logged[-4:]}")
        check(not self.client.closed, f"a client was closed: {self.world.logged[-3:]}")
        self.client.publish("after", b"served")
        came = [p.payload for p in self.client.take() if type(p).__name__ == "Publish"]
        check(came.count(b"served") == 1, "a client is not served")
        check(self.behind.up, f"what a neighbour is told is refused: {self.other.logged[-2:]}")
        for conn in node.connections:
            if isinstance(conn.link, Link):
                check(
                    conn.link.conn is conn and conn.link.state != "closed",
                    "a link at another connection",
                )
        for peer, link in node.cluster.links.items():
            check(link.peer is not None and link.peer.id == peer, "a link under another name")
        check(len(node.cluster.forwarder.vector) <= SMALL.max_origins + 1, "too many origins")
        for window in node.cluster.forwarder.vector.values():
            flat = [edge for gap in window.gaps for edge in gap]
            check(
                flat == sorted(flat) and len(window.gaps) <= SMALL.max_gaps, f"gaps {window.gaps}"
            )
        for line in self.world.logged:
            check(line.isprintable(), f"a log line that is more than one: {line!r}")
        if self.liar is not None and not self.liar.conn.closed:
            self.liar.conn.node.connection_lost(self.liar.conn, "reset", self.world.now)
            self.world.settle()
        for _ in range(2):
            self.world.advance(0.5)
            if not self.honest.conn.closed:
                self.honest.send(ping())
        check(self.honest.up, "an honest neighbour lost its link afterwards")


def link(data: bytes) -> None:
    """Play one programme on a new node."""
    Play(data).run()
