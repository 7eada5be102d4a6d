"""A node, and neighbours that send what a test says."""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Iterable, Sequence
from typing import Any, Self

from mqttree.broker.cluster.delivery.feed_states import Input
from mqttree.broker.cluster.delivery.pull_messages import NO_TIMES, Pull
from mqttree.broker.cluster.delivery.replay_log import LogEntry
from mqttree.broker.cluster.delivery.resync import DIRECTORY_WAIT_S
from mqttree.broker.cluster.link.control_records import (
    BPDU,
    DIRECTORY,
    ROUTED,
    SEEN,
    decode_records,
    encode_record,
)
from mqttree.broker.cluster.link.handshake import LINK_PROTOCOL
from mqttree.broker.cluster.link.link import Link
from mqttree.broker.cluster.link.message_batch import MessageBatch, encode_batch, encode_message
from mqttree.broker.cluster.link.origin_keys import origin_key
from mqttree.broker.cluster.link.version_vector import OriginWindow, encode_vector
from mqttree.broker.core.message import Message, Stamp, encode_halves
from mqttree.broker.core.receiver_assignment import ReceiverAssignment
from mqttree.broker.wire.decode import decode_packet
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import Connack, Connect, Publish
from mqttree.broker.wire.properties import Property
from mqttree.broker.wire.reader import PacketReader
from mqttree.broker.wire.varint import encode_varint, read_length
from mqttree.routing.link_state import CHANGES, LISTING
from mqttree.routing.listing import NEIGHBOUR, UP, encode_changes
from mqttree.stp import bpdu as bpdus
from mqttree.stp.bpdu import Bpdu, Role
from mqttree.stp.priority_vector import RootVector
from tests.kit.node_harness import FakeTransport, World

OWN = b"m" * 8
FAR = b"f" * 8  # an origin somewhere behind the neighbour


def bridge(number: int, *, boot: int = 1, capability: float = 1.0, **values: str) -> Connect:
    """The CONNECT of broker `number`; values that are "" are left out."""
    told = {
        "cluster": "mqttree",
        "protocol": str(LINK_PROTOCOL),
        "boot": str(boot),
        "address": f"10.0.0.{number}:1883",
        "name": f"b{number}",
        "capability": str(capability),
    }
    told |= values
    client_id = told.pop("client_id", bid(number).hex())
    properties: Any = {
        Property.USER_PROPERTY: [(key, value) for key, value in told.items() if value]
    }
    return Connect("MQTT", 5, True, 2, client_id, None, None, None, properties, bridge=True)


def bid(number: int) -> bytes:
    return number.to_bytes(8, "big")


def ping(*records: tuple[int, bytes]) -> bytes:
    payload = b"".join(encode_record(kind, body) for kind, body in records)
    return b"\xc0" + encode_varint(len(payload)) + payload


Entries = Iterable[tuple[bytes, bytes | None]]


def listing(broker: int, entries: Entries, number: int, flags: int = 3, boot: int = 1) -> bytes:
    """A broker's listing of version `number`, or (`flags`) a part of it."""
    stamp = bid(broker) + boot.to_bytes(4, "big") + number.to_bytes(8, "big")
    return ping((DIRECTORY, bytes((LISTING,)) + stamp + bytes((flags,)) + encode_changes(entries)))


def listing_changes(broker: int, entries: Entries, before: int) -> bytes:
    """The next version of the listing of a broker of boot 1, which was `before`."""
    numbers = b"".join(number.to_bytes(8, "big") for number in (before, before + 1))
    head = bytes((CHANGES,)) + bid(broker) + (1).to_bytes(4, "big") + numbers
    return ping((DIRECTORY, head + encode_changes(entries)))


def routed(kind: int, *bodies: bytes, sender: bytes = b"\0" * 7 + b"\x65") -> bytes:
    """Messages to the node alone; `sender`: broker 101."""
    return ping(*((ROUTED, OWN + sender + bytes((0, kind)) + body) for body in bodies))


def pull_body(key: bytes, *lacks: tuple[int, int], behind: bool = False) -> bytes:
    """The body of a PULL for numbers of the origin `key`, of a broker whose filters are known."""
    return Pull(bytes(12), 0, key, behind, NO_TIMES, list(lacks)).encode()


def singles(first: int, body: bytes) -> list[tuple[int, bytes]]:
    """A packet; of a batch one for each message, with a property that tells origin and number."""
    if first >> 4 != 3:
        return [(first, body)]
    batch = MessageBatch.read(bytes((first,)) + encode_varint(len(body)) + body)
    found = []
    for number, one in batch.messages():
        origin = batch.key + b2a_base64(number.to_bytes(6, "big"), newline=False)
        properties = b"\x26\x00\x01o\x00\x18" + origin + one.properties
        if one.expires_at is not None:
            properties = b"\x02" + max(0, round(one.expires_at)).to_bytes(4, "big") + properties
        halves = encode_halves(one.topic, one.payload, 5, one.qos, one.retain, properties)
        packet = (b"\0\1" if one.qos else b"").join(halves)
        found.append((packet[0], packet[read_length(packet, 1)[1] :]))
    return found


def message(
    topic: bytes = b"t",
    payload: bytes = b"x",
    *,
    qos: int = 1,
    key: bytes = origin_key(FAR, 1),
    sequence: int = 1,
    properties: bytes = b"",
    first: int = 0,
    stamp: Stamp | None = None,
    choice: ReceiverAssignment | None = None,
) -> bytes:
    """A message as links carry it; `first`: another first byte, of the batch and of its packet."""
    head, tail = encode_halves(topic, payload, 5, qos, stamp is not None, properties)
    packet = bytearray(head + (b"\0\1" if qos else b"") + tail)
    packet[0] = first or packet[0]
    batch = MessageBatch(key, sequence, bytes(packet), 1, 5, qos, 0, stamp, choice)
    return bytes((packet[0],)) + batch.encode()[1:]


def batch_entry(
    key: bytes,
    sequence: int,
    messages: Sequence[tuple[bytes, bytes]],
    *,
    qos: int = 1,
    version: int = 4,
    at: float = 0.0,
) -> LogEntry:
    """The entry of a batch of messages, each with its topic and payload."""
    packets = b"".join(
        encode_packet(
            Publish(topic.decode(), payload, qos, packet_id=number if qos else None), version
        )
        for number, (topic, payload) in enumerate(messages, 7)
    )
    data = encode_batch(key, sequence, packets, len(messages), version, qos)
    return LogEntry(key, sequence, len(messages), data, at)


def entry_of(
    key: bytes,
    sequence: int,
    message: Message,
    at: float,
    choice: ReceiverAssignment | None = None,
) -> LogEntry:
    """The entry of one message that came at `at`."""
    return LogEntry(key, sequence, 1, encode_message(message, key, sequence, at, choice), at)


class Neighbour:
    """A broker that calls the node and sends what a test says."""

    def __init__(
        self, world: World, number: int, *, boot: int = 1, link: bool = True, **values: Any
    ) -> None:
        self.world = world
        self.number = number
        self.boot = boot
        self.capability = values.get("capability", 1.0)
        self.transport = FakeTransport()
        self.conn = world.node.connection_registry.made(
            f"10.0.0.{number}:40000", "tcp", self.transport, world.now
        )
        self.transport.conn = self.conn
        self.reader = PacketReader()
        self.told = 0
        self.answers = True  # to what asks whether it has handled what came before
        world.peers.append(self)  # type: ignore[arg-type]
        if link:
            self.send(
                encode_packet(bridge(number, boot=boot, **values), 5),
                encode_packet(Connack(False, 0), 5),
            )
            assert self.up, world.logged[-1:]

    def send(self, *data: bytes) -> None:
        self.conn.receive(b"".join(data), self.world.now)
        self.world.settle(self.conn)

    @property
    def up(self) -> bool:
        link = self.world.node.cluster.links.get(bid(self.number))
        return link is not None and link.conn is self.conn and link.up

    def link(self) -> Link:
        return self.world.node.cluster.links[bid(self.number)]

    def take(self) -> list[tuple[int, bytes]]:
        """Everything that came since the last look: (first byte, body). The messages of a batch
        are as if each had come by itself."""
        return [one for packet in self.packets() for one in singles(*packet)]

    def packets(self) -> list[tuple[int, bytes]]:
        """Everything that came since the last look, as it came: (first byte, body)."""
        data = bytes(self.transport.written)
        self.transport.written.clear()
        found = self.reader.feed(data)
        marks = [body[4:8] for first, body in found if first == 0xC0 and body[4] & 0x80]
        if marks and self.answers:
            self.send(*(b"\xd0\x04" + number for number in marks))
        return found

    def batches(self) -> list[MessageBatch]:
        """Batches that came; all else is left out."""
        return [
            MessageBatch.read(bytes((first,)) + encode_varint(len(body)) + body)
            for first, body in self.packets()
            if first >> 4 == 3
        ]

    def messages(self) -> list[bytes]:
        """Payloads of the messages that came."""
        found = [decode_packet(first, body, 5) for first, body in self.take() if first >> 4 == 3]
        return [packet.payload for packet in found if isinstance(packet, Publish)]

    def control(self) -> list[tuple[int, bytes]]:
        """The records that came: (type, body)."""
        return [
            record
            for first, body in self.take()
            if first == 0xC0
            for record in decode_records(body)
        ]

    def records(self, kind: int) -> list[bytes]:
        """Bodies of the records of a kind that came."""
        return [body for found, body in self.control() if found == kind]

    def routed(self, *kinds: int) -> list[bytes]:
        """Bodies of the messages to one broker that came, of these kinds."""
        return [body[18:] for body in self.records(ROUTED) if body[17] in kinds]

    def post(self, *entries: tuple[bytes, bytes | None], number: int = 1) -> None:
        """Send its whole listing, of version `number`: it has a link to the node, and these."""
        link = (NEIGHBOUR + self.world.node.config.id, UP + b"\xff" * 12)
        self.send(listing(self.number, [link, *entries], number, boot=self.boot))

    def known(self, *entries: tuple[bytes, bytes], number: int = 1) -> Self:
        """Announce itself with these entries, so that there is a way to it. `number`: of its
        listing. Returns the neighbour."""
        self.post(*entries, number=number)
        assert self.world.node.cluster.directory.database.via(bid(self.number)) == bid(self.number)
        return self

    def bpdu(self, root: RootVector, role: Role, echo: Role, seq: int = 1, **more: Any) -> None:
        self.told += 1
        cost = more.pop("path_cost_us", 0)
        said = Bpdu(
            root, seq, cost, round(self.capability * 10), role, echo, number=self.told, **more
        )
        self.send(ping((BPDU, bpdus.encode(said))))

    def child(self) -> Self:
        """Become a child of the node in the tree, which has nothing new to say: the link goes
        live. Returns the neighbour."""
        own = self.world.node.cluster.tree.root
        self.bpdu(own, Role.ROOT, Role.DESIGNATED, path_cost_us=50)
        self.send(ping((SEEN, b"")))
        self.send(ping((SEEN, encode_vector(self.world.node.cluster.forwarder.vector))))
        for _ in range(2):
            if not self.link().live:
                # It does not say which brokers are behind it; others were asked for what it may
                # lack, and do not answer.
                self.world.advance(DIRECTORY_WAIT_S)
        assert self.link().live
        self.take()
        return self


def let_through(neighbour: Neighbour, key: bytes = origin_key(FAR, 1)) -> None:
    """Have the messages of an origin behind a neighbour delivered as they come: it was asked in
    vain for too long."""
    cluster, now = neighbour.world.node.cluster, neighbour.world.now
    cluster.forwarder.learn({key: OriginWindow(0, now)}, neighbour.link(), now)
    feed = cluster.origins.vector[key].feed
    assert feed is not None
    feed.step(Input.OVERDUE)


def lone(**config: Any) -> World:
    values: dict[str, Any] = {
        "id": OWN,
        "boot": 1_000,
        "capability": 9.0,
        "host": "10.0.0.200",
        "seeds": (),
    } | config
    return World(discovery="static", **values)


def some_link(number: int = 1) -> Link:
    """A link of a broker that nobody else knows."""
    return Neighbour(lone(), number).link()


def unharmed(world: World) -> None:
    """Two good neighbours link, and messages go from the one to the other and to a client."""
    one, other = Neighbour(world, 101).child(), Neighbour(world, 102).child()
    client = world.connect("witness").subscribed("still/#", qos=2)
    key = origin_key(bid(101), 2_000)
    let_through(one, key)
    one.send(message(b"still/there", b"good", key=key, sequence=1))
    assert other.messages() == [b"good"]
    assert [packet.payload for packet in client.take() if isinstance(packet, Publish)] == [b"good"]


def warnings(world: World) -> list[str]:
    return [
        line
        for level, line in world.lines
        if level != "debug" and line.startswith(("broker at", "link to"))
    ]
