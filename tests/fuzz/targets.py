"""Everything that is fuzzed, by name: the decoder, a whole node, a link, records of protected
links, announcements, PROXY headers, HTTP requests.

The bytes of an input are a programme (`tape`); what must never happen raises, whatever they are.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from mqttree.broker.base.counters import Counters
from mqttree.broker.cluster.link.record_layer import RECORD_BYTES, RecordLayer
from mqttree.broker.config.node_config import NodeConfig
from mqttree.broker.core.connection import Connection
from mqttree.broker.core.connection_states import State
from mqttree.broker.io import proxy_protocol
from mqttree.broker.io.admin_access import AdminAccess
from mqttree.broker.io.admin_http import _REASONS, AdminProtocol
from mqttree.broker.io.api.routes import RequestError, Route
from mqttree.broker.io.http_request import parse_request
from mqttree.broker.limits import DEFAULTS
from mqttree.broker.node import Node
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.errors import WireError
from mqttree.broker.wire.packets import Connect, Packet
from mqttree.broker.wire.publish_header import packet_size
from mqttree.broker.wire.reader import PacketReader
from mqttree.discovery import announcement
from mqttree.discovery.announcement import AnnouncementError
from tests.fuzz.link import link
from tests.fuzz.node import node
from tests.fuzz.tape import Tape, Target, check
from tests.kit.decoder import Decoder

# ------------------------------------------------------------------ decoder


def decoder(data: bytes) -> None:
    """A stream of packets: nothing but WireError; the cuts do not matter; what is accepted is the
    same when written and read again; and `Decoder` says what `PacketReader` and its parts say."""
    tape = Tape(data)
    options = tape.byte()
    version = (3, 4, 5, 5)[options & 3]
    stream = tape.data[1:]
    whole, fault = _decoded([stream], version)
    pieces = [
        stream[at : at + 1 + (options >> 2)] for at in range(0, len(stream), 1 + (options >> 2))
    ]
    again, other = _decoded(pieces, version)
    check(whole == again, "packets depend on the cuts")
    check(str(fault) == str(other), "the fault depends on the cuts")
    for packet in whole:
        if isinstance(packet, Connect):
            version = packet.version
        encoded = encode_packet(packet, version)
        found, fault = _decoded([encoded], version)
        check(fault is None, f"what was accepted is refused when written again: {packet} {fault}")
        check(found == [packet], f"{packet} is another one when written and read again: {found}")
    for first, body in _cut(stream):
        for each in (3, 4, 5):
            _decoded([bytes((first,)) + _varint(len(body)) + body], each)


def _decoded(pieces: list[bytes], version: int) -> tuple[list[Packet], WireError | None]:
    reader = Decoder(version)
    packets: list[Packet] = []
    for piece in pieces:
        try:
            packets += reader.receive(piece)
        except WireError as error:
            return packets + error.packets, error
    return packets, None


def _cut(stream: bytes) -> list[tuple[int, bytes]]:
    try:
        return PacketReader().feed(stream)
    except WireError as error:
        return error.packets


def _varint(value: int) -> bytes:
    out = bytearray()
    while True:
        out.append(value & 0x7F | (0x80 if value > 0x7F else 0))
        value >>= 7
        if not value:
            return bytes(out)


# ------------------------------------------------------------------ records of protected links


class _Reader:
    """Stands for a link: it takes whole packets and remembers what came."""

    def __init__(self) -> None:
        node: Any = SimpleNamespace(counters=Counters(), limits=DEFAULTS, dirty=[])
        here: Any = self
        self.conn = Connection(node, "peer:1", "tcp", here, 0.0)
        self.layer: Any = None
        self.came = bytearray()
        self.written = bytearray()
        self.fault = ""

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.conn.state = State.CLOSING

    def packets(self, data: bytes, now: float) -> int:
        position = 0
        while position < len(data):
            size = packet_size(data[position : position + 5])
            if not size or position + size > len(data):
                break
            self.came += data[position : position + size]
            position += size
        return position

    def tampered(self, what: str) -> None:
        check(what.isprintable() and not self.fault, "more than one line")
        self.fault = what
        self.conn.state = State.CLOSED

    def protect(self, layer: RecordLayer) -> None:
        self.layer = layer

    def on_connection_lost(self, reason: str, now: float) -> None:
        """Nothing is told of its end."""

    def control_first(self) -> bytes:
        return b""

    def drained(self, now: float) -> None:
        """It keeps nothing."""


def records(data: bytes) -> None:
    """What one end of a protected link writes, bent and cut on the way: the other end gets a
    beginning of it, packet by packet, and nothing else."""
    tape = Tape(data)
    ends = (_Reader(), _Reader())
    keys = (b"a" * 32, b"b" * 32)
    for end, (ours, theirs) in zip(ends, (keys, keys[::-1]), strict=True):
        RecordLayer(end, ours, theirs, DEFAULTS.records_per_key)
    sender, receiver = ends
    said = bytearray()
    for _ in range(1 + tape.byte() % 8):
        size = (3, 50, RECORD_BYTES, 3 * RECORD_BYTES)[tape.byte() & 3] + tape.byte()
        packet = b"\x30" + _varint(size) + bytes(size)
        said += packet
        sender.layer.write(packet)
    stream = bytearray(sender.written)
    bent = len(stream)
    while tape.left:
        at = int.from_bytes(tape.bytes(3), "big") % (len(stream) + 1)
        code = tape.byte()
        if code & 3 == 0:
            stream[at : at + 1] = bytes((code,))
        elif code & 3 == 1:
            stream[at:at] = tape.string()
        elif code & 3 == 2:
            del stream[at : at + 1 + (code >> 2)]
        else:
            stream[at:at] = stream[: code * 100]
        bent = min(bent, at)
        if len(stream) > 4_000_000:
            break
    step = 500 + (bent * 7919) % 50_000
    rest = b""
    for at in range(0, len(stream), step):
        rest += bytes(stream[at : at + step])
        if not receiver.conn.closed:
            rest = rest[receiver.layer.packets(rest, 0.0) :]
    check(said.startswith(receiver.came), "something came that was not said")
    if bytes(stream) == bytes(sender.written):
        check(receiver.came == said and not rest and not receiver.fault, "not all of it came")


# ------------------------------------------------------------------ announcements


def announcements(data: bytes) -> None:
    """Datagrams: nothing but AnnouncementError; what is accepted reads the same again; a node lives
    on."""
    tape = Tape(data)
    options = tape.byte()
    secret = b"secret" if options & 1 else None
    world = Node(
        NodeConfig(discovery="multicast", routing="flood", secret=secret, id=b"m" * 8),
        1000.0,
        1.7e9,
        random.Random(1),
        log=_one_line,
    )
    now = 1000.0
    while tape.left:
        datagram = tape.string()
        if tape.byte() & 1 and secret is not None:  # signed as it should be
            datagram = (
                datagram[:5] + bytes((datagram[5] | 4,)) + datagram[6:]
                if len(datagram) > 5
                else datagram
            )
            datagram += bytes(10) + b"\xff\xff" + bytes((tape.byte() & 1, 0, 0, 9))
            datagram += announcement._mac(secret, datagram)
        for each in (secret, None, b"x"):
            try:
                said = announcement.decode(datagram, each, "mqttree")
            except AnnouncementError as error:
                check(
                    error.kind in ("garbage", "version", "cluster", "secret", "source"),
                    "kind of error",
                )
                continue
            check(
                announcement.decode(said.encode(each), each) == said,
                "an announcement is another one when told again",
            )
        source = (("127.0.0.1", "1.0.0.9", "fe80::1")[tape.byte() % 3], 1 + tape.byte())
        world.datagram_received(datagram, source, now)
        now += (0.0, 0.01, 0.5, 5.0)[tape.byte() % 4]
        for _ in range(100):
            due = world.next_deadline()
            if due is None or due > now:
                break
            world.tick(now)
        else:
            check(False, "the node never comes to rest")
        for effect in world.take_effects():
            world.answer(effect, "connection refused", now)
        world.output.flush()
    check(not world.dirty, "outlets are left after a flush")


def _one_line(_level: str, text: str) -> None:
    check(text.isprintable(), f"a log line that is more than one: {text!r}")


# ------------------------------------------------------------------ PROXY


def proxy_header(data: bytes) -> None:
    """A PROXY header as the driver reads it, piece by piece: nothing but ProxyError, never a byte
    more than the header."""
    seen = 0
    try:
        while number := proxy_protocol.wanted(data[:seen]):
            check(0 < number <= 4096, f"{number} bytes are wanted")
            if seen + number > len(data):
                return
            seen += number
        header = proxy_protocol.parse(data[:seen])
    except proxy_protocol.ProxyError as error:
        check(str(error).isprintable(), "an error that is more than one line")
        return
    finally:
        check(seen <= 4096, "a header without end")
    if header.peer:
        host, _, port = header.peer.rpartition(":")
        check(
            host and 0 <= int(port) < 65536 and header.peer.isprintable(), f"peer {header.peer!r}"
        )
    for end in range(seen):  # whoever stops there has to be waited for
        check(_wants(data[:end]), "the header is whole before its end")


def _wants(data: bytes) -> bool:
    return proxy_protocol.wanted(data) > 0


# ------------------------------------------------------------------ HTTP


class _Transport:
    def __init__(self) -> None:
        self.written = b""
        self.closed = self.ended = False

    def write(self, data: bytes) -> None:
        check(not self.closed and not self.ended, "written after the end")
        self.written += data

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def close(self) -> None:
        self.closed = True

    abort = close

    def get_extra_info(self, name: str) -> tuple[str, int]:
        check(name in ("peername", "sockname"), name)
        return "127.0.0.1", 1

    def pause_reading(self) -> None:
        """Nothing."""

    resume_reading = pause_reading

    def is_closing(self) -> bool:
        return self.closed

    def unsent(self) -> int:
        return 0


class _Api:
    """Has one answer, and no room for a reader of events, whose answer would have no end."""

    def ask(
        self,
        route: Route,
        names: Mapping[str, str],
        query: str,
        body: bytes,
        then: Callable[[int, Any], None],
        waits: Callable[[], bool],
    ) -> None:
        check(waits() and (route.body or not body), f"route {route.path!r}")
        then(200, {"query": query, "body": len(body)})

    def events(self) -> list[bytes]:
        raise RequestError(503, "too many readers of events")


class _Admin:
    def __init__(self) -> None:
        self.connections: dict[Any, None] = {}
        self.hosts = frozenset(("broker.example",))
        self.limits = DEFAULTS
        self.counters = SimpleNamespace(admin_refused=0)
        self.access = AdminAccess()
        self.api = _Api()
        handle = SimpleNamespace(cancel=lambda: None)
        self.loop = SimpleNamespace(time=lambda: 0.0, call_at=lambda _when, _call: handle)

    def make_room(self) -> None:
        """Nothing."""

    def refuse_host(self, name: str, peer: str) -> None:
        """Nothing."""

    def end_events(self, transport: Any) -> None:
        """Nothing."""

    def answer(self, path: str) -> tuple[int, str, str]:
        check(path.startswith("/"), f"path {path!r}")
        return (
            (200, "text/plain", "ok\n")
            if path == "/healthz"
            else (404, "text/plain", "not found\n")
        )


def http(data: bytes) -> None:
    """Requests to the admin port: answered with a status of ours, the same however they are cut."""
    tape = Tape(data)
    size = 1 + tape.byte()
    stream = tape.data[1:]
    parse_request(stream)
    whole, pieces = (
        _answers([stream]),
        _answers([stream[at : at + size] for at in range(0, len(stream), size)]),
    )
    check(whole == pieces, f"the answers depend on the cuts: {whole!r} {pieces!r}")


def _answers(pieces: list[bytes]) -> bytes:
    protocol = AdminProtocol(_Admin())  # type: ignore[arg-type]
    transport = _Transport()
    protocol.connection_made(transport)  # type: ignore[arg-type]
    for piece in pieces:
        protocol.data_received(piece)
    rest = transport.written
    while rest:
        head, found, rest = rest.partition(b"\r\n\r\n")
        lines = head.decode("ascii").split("\r\n")
        check(found and int(lines[0].split(" ")[1]) in _REASONS, f"answer {head!r}")
        fields = dict(line.split(": ", 1) for line in lines[1:])
        rest = rest[int(fields["Content-Length"]) :]
    return transport.written


TARGETS: dict[str, Target] = {
    "decoder": decoder,
    "node": node,
    "link": link,
    "records": records,
    "announcement": announcements,
    "proxy": proxy_header,
    "http": http,
}
