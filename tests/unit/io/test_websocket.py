"""WebSocket as browsers speak it, byte by byte on a virtual clock: the upgrade, frames, pings, and
every way to end.

The client's side is written here by hand (RFC 6455), so that it can break the rules, too."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, cast
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode
from websockets.protocol import OPEN

from mqttree.broker.config.node_config import NodeConfig
from mqttree.broker.core.connection import CLOSE_TIMEOUT_S
from mqttree.broker.core.effects import Authenticate, Hooks
from mqttree.broker.io.driver import Driver
from mqttree.broker.io.listener import Listener
from mqttree.broker.io.loop_turns import MAX_READ_S
from mqttree.broker.io.websocket import (
    CLOSE_TIMEOUT,
    HANDSHAKE_TIMEOUT,
    UNKNOWN,
    WebSocketProtocol,
)
from mqttree.broker.limits import DEFAULTS, Limits
from mqttree.broker.node import Node
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import (
    Connect,
    Disconnect,
    Publish,
    Subscribe,
    SubscriptionRequest,
    Will,
)
from mqttree.broker.wire.properties import Property
from tests.kit.effort import examples
from tests.kit.loop_harness import Loop, Socket

CONT, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
CONNECT = encode_packet(Connect("MQTT", 4, True, 60, "c"), 4)
CONNACK = b"\x20\x02\x00\x00"
PINGREQ, PINGRESP = b"\xc0\x00", b"\xd0\x00"

BROWSER = {
    "Host": "broker.example:8083",
    "Connection": "Upgrade",
    "Pragma": "no-cache",
    "Cache-Control": "no-cache",
    "User-Agent": "Mozilla/5.0",
    "Upgrade": "websocket",
    "Origin": "https://app.example",
    "Sec-WebSocket-Version": "13",
    "Accept-Encoding": "gzip, deflate, br",
    "Cookie": "session=1",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Extensions": "permessage-deflate; client_max_window_bits",
    "Sec-WebSocket-Protocol": "mqtt",
}
"""What a browser sends; the key is that of RFC 6455, 1.3."""


def request(path: str = "/mqtt", **changes: str | None) -> bytes:
    """An upgrade request, with other headers (None: without)."""
    headers: dict[str, str | None] = {
        **BROWSER,
        **{name.replace("_", "-"): value for name, value in changes.items()},
    }
    lines = [
        f"GET {path} HTTP/1.1",
        *(f"{name}: {value}" for name, value in headers.items() if value is not None),
    ]
    return "\r\n".join([*lines, "", ""]).encode()


def frame(
    opcode: int,
    payload: bytes = b"",
    *,
    end: bool = True,
    mask: bytes | None = b"\1\2\3\4",
    bits: int = 0,
) -> bytes:
    size = len(payload)
    masked = 0x80 if mask is not None else 0
    data = bytes([(0x80 if end else 0) | bits | opcode])
    if size < 126:
        data += bytes([masked | size])
    elif size < 65536:
        data += bytes([masked | 126]) + size.to_bytes(2, "big")
    else:
        data += bytes([masked | 127]) + size.to_bytes(8, "big")
    if mask is None:
        return data + payload
    return data + mask + bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))


def closing(code: int) -> bytes:
    return code.to_bytes(2, "big")


class Transport(Socket):
    """An asyncio transport; `half`: it can end one direction (TLS cannot)."""

    def __init__(self, half: bool) -> None:
        super().__init__()
        self.half = half
        self.protocol: Any = None
        self.ended = self.closed = self.aborted = False
        self.stuck = False  # the peer does not read

    def write(self, data: bytes) -> None:
        assert not self.ended and not self.closed
        super().write(data)

    def can_write_eof(self) -> bool:
        return self.half

    def write_eof(self) -> None:
        self.ended = True

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            if not self.stuck:
                self.protocol.connection_lost(None)

    def abort(self) -> None:
        if not self.aborted:
            self.aborted = self.closed = True
            self.protocol.connection_lost(None)


class Page:
    """A page's connection to a broker."""

    def __init__(
        self, half: bool = True, server: Listener | None = None, hooks: Hooks | None = None
    ) -> None:
        self.loop = Loop()
        self.node = Node(
            NodeConfig(discovery="off"), self.loop.now, 1.7e9, random.Random(1), hooks=hooks
        )
        self.driver = Driver(self.node, cast(asyncio.AbstractEventLoop, self.loop), lambda: None)
        self.driver.time = self.loop.time
        self.server = server or Listener("web", None, limits=Limits())
        self.socket = Transport(half)
        self.protocol = self.socket.protocol = WebSocketProtocol(self.driver, "web", self.server)
        self.protocol.connection_made(cast(asyncio.Transport, self.socket))

    def send(self, *data: bytes) -> None:
        """Have bytes read in one piece, and the loop go round."""
        if not self.socket.closed:
            self.protocol.data_received(b"".join(data))
        self.loop.run()

    def open(self, **changes: str | None) -> Page:
        self.send(request(**changes))
        assert self.answer().startswith(b"HTTP/1.1 101 ")
        return self

    def connected(self) -> Page:
        self.open().send(frame(BINARY, CONNECT))
        assert self.frames() == [(BINARY, CONNACK)]
        return self

    def answer(self) -> bytes:
        head, end, self.socket.written = self.socket.written.partition(b"\r\n\r\n")
        return head + end

    def frames(self) -> list[tuple[int, bytes]]:
        return list(self._frames())

    def _frames(self) -> Iterator[tuple[int, bytes]]:
        data, self.socket.written = self.socket.written, b""
        while data:
            assert data[0] & 0xF0 == 0x80 and data[1] < 128, (
                "one whole frame, no extension, not masked"
            )
            body = {126: 4, 127: 10}.get(data[1], 2)
            end = body + (data[1] if body == 2 else int.from_bytes(data[2:body], "big"))
            assert end <= len(data)
            yield data[0] & 15, data[body:end]
            data = data[end:]

    @property
    def count(self) -> tuple[int, int, int]:
        counters = self.node.counters
        return (
            counters.websocket_refused,
            counters.websocket_errors,
            counters.websocket_close_timeout,
        )


# -------------------------------------------------------------------- the upgrade


def test_a_browsers_upgrade_is_answered() -> None:
    page = Page()
    page.send(request())
    answer = page.answer().decode().lower()
    assert answer.startswith("http/1.1 101 ")
    assert "sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=" in answer  # RFC 6455, 1.3
    assert "sec-websocket-protocol: mqtt\r\n" in answer
    assert "sec-websocket-extensions" not in answer  # no compression
    page.send(frame(BINARY, CONNECT + PINGREQ))
    assert page.frames() == [(BINARY, CONNACK + PINGRESP)]
    assert page.node.sessions["c"].conn is page.protocol.conn
    page.loop.run(2 * HANDSHAKE_TIMEOUT)
    assert not page.socket.closed and page.count == (0, 0, 0)


@pytest.mark.parametrize("path", ["/", "/mqtt", "/any/where?token=1", "/%7Euser", "*"])
@pytest.mark.parametrize("origin", [None, "null", "https://else.where", "file://"])
def test_any_path_and_any_origin_are_accepted(path: str, origin: str | None) -> None:
    page = Page()
    page.send(request(path, Origin=origin))
    assert page.answer().startswith(b"HTTP/1.1 101 ")


@pytest.mark.statement("MQTT-6.0.0-4", "3.1.1/MQTT-6.0.0-4")
@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        ("mqtt", "mqtt"),
        ("mqttv3.1", "mqttv3.1"),
        ("soap, mqtt", "mqtt"),
        ("mqttv3.1, mqtt", "mqtt"),
    ],
)
def test_the_subprotocol_is_answered_as_it_was_offered(offered: str, chosen: str) -> None:
    page = Page()
    page.send(request(Sec_WebSocket_Protocol=offered))
    assert f"sec-websocket-protocol: {chosen}\r\n" in page.answer().decode().lower()


@pytest.mark.statement("MQTT-6.0.0-3", "3.1.1/MQTT-6.0.0-3")
@pytest.mark.parametrize(
    ("data", "status"),
    [
        (request(Sec_WebSocket_Protocol=None), b"400"),
        (request(Sec_WebSocket_Protocol="soap"), b"400"),
        (request(Sec_WebSocket_Version="8"), b"400"),
        (request(Sec_WebSocket_Key=None), b"400"),
        (request(Upgrade=None), b"426"),
        (b"POST / HTTP/1.1\r\nHost: x\r\n\r\n", b""),
        (b"GET / HTTP/1.1\r\nHost: x\r\nBad\x00 header\r\n\r\n", b""),
        (CONNECT + b"\r\n\r\n", b""),
        (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n", b""),
    ],
)
def test_other_requests_are_refused_and_counted(data: bytes, status: bytes) -> None:
    page = Page()
    page.send(data)
    assert page.socket.written[9:12] == status
    assert page.socket.closed and page.count == (1, 0, 0)
    assert not page.node.connections and not page.server.conn_count


def test_a_request_that_does_not_come_to_an_end() -> None:
    page = Page()
    for _ in range(4):
        page.send(b"GET")
        page.loop.run(HANDSHAKE_TIMEOUT / 5)
    assert not page.socket.closed
    page.loop.run(HANDSHAKE_TIMEOUT / 5)
    assert page.socket.aborted and page.count == (1, 0, 0)


def test_a_websocket_without_a_place_is_closed() -> None:
    server = Listener("web", None, 1, limits=Limits(max_parked=0))
    server.conn_count = 1
    page = Page(server=server).open()
    assert page.frames() == [(CLOSE, closing(1013))]
    page.send(frame(CLOSE, closing(1013)))
    assert page.socket.closed and page.count == (1, 0, 0)
    assert server.conn_count == 1


def test_a_parked_websocket_may_end() -> None:
    server = Listener("web", None, 1, limits=Limits())
    first, second, third = (Page(server=server) for _ in range(3))
    first.connected()
    second.open().send(frame(BINARY, CONNECT))
    third.open().send(frame(BINARY, CONNECT))
    second.send(frame(TEXT, b"text"))  # closing, still waiting
    first.send(frame(CLOSE, closing(1000)))
    assert second.protocol.conn is None
    second.send(frame(CLOSE, closing(1003)))
    third.loop.run()
    assert third.frames() == [(BINARY, CONNACK)]
    assert server.conn_count == 1


# -------------------------------------------------------------------- frames


@pytest.mark.statement("MQTT-6.0.0-2", "3.1.1/MQTT-6.0.0-2")
@pytest.mark.parametrize("step", [1, 2, 3, 7, 64])
def test_bytes_are_cut_anywhere(step: int) -> None:
    page = Page().open()
    data = b"".join(
        [
            frame(BINARY, CONNECT[:3], end=False),
            frame(PING, b"between"),
            frame(CONT, CONNECT[3:9], end=False),
            frame(CONT, b"", end=False),
            frame(CONT, CONNECT[9:] + PINGREQ[:1]),
            frame(BINARY),
            frame(PONG, b"unasked"),
            frame(BINARY, PINGREQ[1:]),
        ]
    )
    for at in range(0, len(data), step):
        page.send(data[at : at + step])
    found = page.frames()
    assert (PONG, b"between") in found
    assert b"".join(payload for opcode, payload in found if opcode == BINARY) == CONNACK + PINGRESP
    assert page.count == (0, 0, 0)


MESSAGES = st.builds(
    frame,
    st.just(BINARY),
    st.integers(0, 70_000).map(lambda size: encode_packet(Publish("t", bytes(size), 0), 4))
    | st.sampled_from((b"", PINGREQ, PINGREQ * 63, PINGREQ[:1])),
    mask=st.binary(min_size=4, max_size=4),
)
ANY_FRAMES = st.builds(
    frame,
    st.sampled_from((CONT, TEXT, BINARY, BINARY, BINARY, CLOSE, PING, PONG, 3, 11)),
    st.sampled_from((b"", PINGREQ, closing(1000), PINGREQ * 80)),
    end=st.sampled_from((True, True, False)),
    mask=st.sampled_from((b"abcd", b"abcd", b"abcd", None)),
    bits=st.sampled_from((0, 0, 0, 0, 0x40)),
)


def heard(data: bytes, cuts: list[int], *, known: bool) -> tuple[object, ...]:
    """What a page hears that sends `data`, cut at `cuts`; not `known`: all of it is read by the
    package, frame by frame."""
    page = Page().connected()
    if not known:
        page.protocol._left = UNKNOWN
    session = page.node.sessions["c"]
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    for begin, end in pairwise(places):
        page.send(data[begin:end])
    found = page.frames()
    messages = b"".join(payload for opcode, payload in found if opcode == BINARY)
    others = [each for each in found if each[0] != BINARY]
    node, socket = page.node, page.socket
    # Behind a malformed packet, bytes of the same piece are counted, those of a later one are not.
    size = 0 if session.conn is None else node.counters.bytes_received
    taken = node.counters.published_runs, size
    ended = socket.ended, socket.closed, socket.aborted, socket.reading
    return messages, others, taken, ended, page.count, session.conn is None


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(st.one_of(MESSAGES, MESSAGES, ANY_FRAMES), max_size=8),
    st.lists(st.integers(0, 200_000) | st.integers(0, 40), max_size=5),
)
def test_frames_in_one_piece_are_those_one_by_one(frames: list[bytes], cuts: list[int]) -> None:
    data = b"".join(frames)
    assert heard(data, cuts, known=True) == heard(data, cuts, known=False)


def test_whole_frames_do_not_pass_through_the_package() -> None:
    page = Page().connected()
    page.protocol._frames = Mock(wraps=page.protocol._frames)
    page.protocol._frames.state = OPEN
    page.protocol._frames.cur_size = None
    page.protocol._frames.max_size = 1000
    page.send(frame(BINARY, PINGREQ), frame(BINARY, PINGREQ))
    assert page.frames() == [(BINARY, PINGRESP * 2)]
    assert not page.protocol._frames.receive_data.called


def test_a_request_that_comes_with_frames_behind_it() -> None:
    """Where the frames begin is not known, and none of them is lost."""
    page = Page()
    page.send(request(), frame(BINARY, CONNECT)[:9])
    page.answer()
    page.send(frame(BINARY, CONNECT)[9:], frame(BINARY, b"\r\n\r\n", mask=b"\0\0\0\0"))
    assert page.socket.written[:2] == b"\x82\x04"


def test_part_of_a_long_frame_is_a_sign_of_life() -> None:
    page = Page().connected()  # keep-alive 60 s
    whole = frame(BINARY, encode_packet(Publish("t", bytes(1000), 1, packet_id=1), 4))
    page.send(whole[:10])
    for at in range(10, 1000, 200):
        page.loop.run(60.0)
        page.send(whole[at : at + 200])
    page.send(whole[1010:])
    assert page.frames() == [(BINARY, b"\x40\x02\x00\x01")]
    for _ in range(3):
        page.send(frame(PING))  # not MQTT's
        page.loop.run(60.0)
    assert page.socket.closed and page.node.counters.keep_alive_timeout == 1


@pytest.mark.statement("MQTT-6.0.0-1", "3.1.1/MQTT-6.0.0-1")
@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize(
    "data", [[frame(TEXT, b"x")], [frame(TEXT, b"x", end=False), frame(CONT, b"y")]]
)
def test_text_is_refused_with_everything_behind_it(data: list[bytes], half: bool) -> None:
    page = Page(half).connected()
    page.send(
        frame(BINARY, PINGREQ),
        *data,
        frame(BINARY, encode_packet(Publish("t", b"", 1, packet_id=1), 4)),
    )
    page.send(frame(BINARY, encode_packet(Publish("t", b"", 1, packet_id=2), 4)))
    found = page.frames()
    assert found[0][0] == CLOSE and found[0][1][:2] == closing(1003)
    assert page.node.counters.published == 0
    assert not page.socket.closed and page.count == (0, 1, 0)
    page.send(frame(CLOSE, closing(1003)))
    assert page.socket.closed and page.count == (0, 1, 0)
    assert not page.node.clients.connected


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(BINARY, PINGREQ, mask=None), 1002),
        (frame(BINARY, PINGREQ, bits=0x40), 1002),
        (frame(3, PINGREQ), 1002),
        (frame(PING, bytes(126)), 1002),
        (frame(PING, b"", end=False), 1002),
        (frame(CONT, PINGREQ), 1002),
        (frame(BINARY, b"", end=False) + frame(BINARY, PINGREQ), 1002),
        (frame(CLOSE, b"\x03"), 1002),
        (frame(CLOSE, closing(1005)), 1002),
        (frame(CLOSE, closing(1000) + b"\xff"), 1007),
    ],
)
@pytest.mark.parametrize("half", [True, False])
def test_frames_that_break_the_rules(data: bytes, code: int, half: bool) -> None:
    """The reason can be read although the peer was still sending: what it sends is taken for a
    while, and discarded."""
    page = Page(half).connected()
    page.send(data, frame(BINARY, PINGREQ))
    found = page.frames()
    assert [opcode for opcode, _ in found] == [CLOSE] and found[0][1][:2] == closing(code)
    assert page.socket.ended == half and page.socket.reading and not page.socket.closed
    for _ in range(9):
        page.send(frame(BINARY, PINGREQ))
        page.loop.run(DEFAULTS.linger_s / 10)
    assert not page.socket.closed
    page.loop.run(DEFAULTS.linger_s / 5)
    assert page.socket.closed and page.count == (0, 1, 0)
    assert not page.node.clients.connected


def test_only_who_was_let_in_may_send_large_packets() -> None:
    """The length of a packet is enough. That of a frame says nothing, unless it is a part of a
    message."""
    page = Page().open()
    will = Will("t", bytes(60_000), properties={Property.USER_PROPERTY: [("a", "x" * 60_000)] * 9})
    large = encode_packet(Connect("MQTT", 5, True, 60, "c", None, None, will), 5)
    data = frame(BINARY, large + bytes(2_000_000))
    page.send(data[:100])
    (_, connack), (opcode, reason) = page.frames()
    assert connack[3] == 0x95 and (opcode, reason) == (CLOSE, closing(1000))
    # What still comes of that frame is no frame.
    page.send(data[100:], frame(CLOSE, closing(1000)))
    assert page.socket.closed and page.count == (0, 0, 0)
    page = Page().open()
    page.send(frame(BINARY, bytes(2_000_000), end=False)[:100])
    assert page.frames()[0][1][:2] == closing(1009)
    page = Page().connected()
    page.send(frame(BINARY, encode_packet(Publish("t", bytes(2_000_000), 1, packet_id=1), 4)))
    assert page.frames() == [(BINARY, b"\x40\x02\x00\x01")]


@pytest.mark.parametrize("allowed", [True, False])
@pytest.mark.parametrize("early", [True, False])
def test_a_large_message_behind_a_connect_that_waits_for_its_password(
    early: bool, allowed: bool
) -> None:
    """`early`: it comes before the answer."""
    page = Page(hooks=Hooks(authenticate=True)).open()
    large = frame(BINARY, encode_packet(Publish("t", bytes(1_100_000), 1, packet_id=1), 4))
    page.send(frame(BINARY, CONNECT), large[: 100_000 * early])
    (effect,) = [e for e in page.node.take_effects() if isinstance(e, Authenticate)]
    assert page.frames() == []
    page.node.answer(effect, allowed, page.loop.now)
    page.driver.wake()
    page.loop.run()
    page.send(large[100_000 * early :])
    if allowed:
        assert page.frames() == [(BINARY, CONNACK), (BINARY, b"\x40\x02\x00\x01")]
    else:
        assert page.frames()[0] == (BINARY, b"\x20\x02\x00\x05")


def test_a_large_message_in_one_chunk_with_connect() -> None:
    page = Page().open()
    large = frame(BINARY, encode_packet(Publish("t", bytes(1_100_000), 1, packet_id=1), 4))
    page.send(frame(BINARY, CONNECT), large)
    assert page.frames() == [(BINARY, CONNACK + b"\x40\x02\x00\x01")]


@pytest.mark.statement("MQTT-6.0.0-2")
@pytest.mark.parametrize("size", [1, 4_000, 65_536, 3_000_000])
@pytest.mark.parametrize("password", [True, False])
def test_a_connect_and_a_large_message_may_be_one_frame(size: int, password: bool) -> None:
    """It comes in pieces of `size`, and ends with the beginning of another packet."""
    page = Page(hooks=Hooks(authenticate=True) if password else None).open()
    large = encode_packet(Publish("t", bytes(range(256)) * 8_192, 1, packet_id=1), 4)
    subscribe = encode_packet(Subscribe(2, [SubscriptionRequest("t", 1)]), 4)
    data = frame(BINARY, CONNECT + subscribe + large + PINGREQ[:1]) + frame(BINARY, PINGREQ[1:])
    pieces = [data[at : at + size] for at in range(0, len(data), size)] if size > 1 else []
    if size == 1:
        pieces = [*(data[at : at + 1] for at in range(60)), data[60:-40]]
        pieces += [data[at : at + 1] for at in range(len(data) - 40, len(data))]
    for piece in pieces:
        page.send(piece)
        for effect in page.node.take_effects():
            if isinstance(effect, Authenticate):
                page.node.answer(effect, True, page.loop.now)
                page.driver.wake()
                page.loop.run()
    found = b"".join(content for _, content in page.frames())
    assert found.startswith(CONNACK + b"\x90\x03\x00\x02\x01")
    assert bytes(range(256)) * 8_192 in found
    assert b"\x40\x02\x00\x01" in found
    assert found.endswith(PINGRESP)


# -------------------------------------------------------------------- pings


def test_pings_are_answered_with_what_they_carried() -> None:
    page = Page().connected()
    page.send(frame(PING, b"1"), frame(PING, b"22"), frame(BINARY, PINGREQ), frame(PING))
    assert sorted(page.frames()) == sorted(
        [(PONG, b"1"), (PONG, b"22"), (PONG, b""), (BINARY, PINGRESP)]
    )


def test_a_peer_that_does_not_read_gets_the_last_pong_only() -> None:
    page = Page().connected()
    page.protocol.pause_writing()
    for number in range(10_000):
        page.send(frame(PING, b"%d" % number))
    assert not page.socket.written
    page.protocol.resume_writing()
    assert page.frames() == [(PONG, b"9999")]
    page.send(frame(PING, b"again"))
    assert page.frames() == [(PONG, b"again")]


# -------------------------------------------------------------------- the end


def test_a_page_that_closes_gets_a_close_frame() -> None:
    page = Page().connected()
    last = encode_packet(Publish("t", b"last", 0), 4) + encode_packet(Disconnect(), 4)
    page.send(frame(BINARY, last), frame(CLOSE, closing(1001)))
    assert page.frames() == [(CLOSE, closing(1001))]
    assert page.node.counters.published == 1
    assert page.socket.closed and not page.socket.aborted and page.count == (0, 0, 0)
    assert not page.node.connections and not page.server.conn_count


def test_a_page_that_disappears_ends_its_connection() -> None:
    for end in (
        lambda page: page.protocol.eof_received(),
        lambda page: page.protocol.connection_lost(OSError("reset")),
    ):
        page = Page().connected()
        end(page)
        assert not page.node.connections and not page.server.conn_count
        page.loop.run(CLOSE_TIMEOUT_S)
        assert page.count == (0, 0, 0)


def test_disconnect_is_answered_by_a_close_frame_that_the_page_answers() -> None:
    page = Page().connected()
    page.send(frame(BINARY, encode_packet(Disconnect(), 4)))
    assert page.frames() == [(CLOSE, closing(1000))]
    assert not page.socket.closed
    page.send(frame(CLOSE, closing(1000)))
    assert page.socket.closed and not page.socket.ended and page.count == (0, 0, 0)


def test_a_close_frame_that_is_never_answered() -> None:
    """Whatever still comes does not put the end off."""
    page = Page().connected()
    assert page.protocol.conn is not None
    page.protocol.conn.hold()
    page.protocol.conn.close()
    assert page.socket.reading
    for _ in range(9):
        page.loop.run(CLOSE_TIMEOUT / 10)
        page.send(frame(BINARY, PINGREQ), frame(TEXT, b"x"))
    assert not page.socket.closed
    page.loop.run(CLOSE_TIMEOUT / 5)
    assert page.socket.closed and page.count == (0, 0, 1)
    assert page.frames() == [(CLOSE, closing(1000))]
    assert not page.node.connections


def test_a_peer_that_does_not_read_is_aborted() -> None:
    page = Page().connected()
    page.socket.stuck = True
    page.send(frame(TEXT, b"x"))
    page.loop.run(CLOSE_TIMEOUT)
    assert page.socket.closed and not page.socket.aborted
    page.loop.run(CLOSE_TIMEOUT_S)
    assert page.socket.aborted and page.count == (0, 1, 1)


def test_messages_to_who_is_closing_go_nowhere() -> None:
    page = Page().connected()
    page.send(frame(BINARY, encode_packet(Subscribe(1, [SubscriptionRequest("t", 0)]), 4)))
    page.frames()
    page.node.publisher.publish_internal("t", b"1", 0, False)
    page.driver.run()
    assert page.frames() == [(BINARY, b"\x30\x04\x00\x01t1")]
    page.send(frame(TEXT, b"x"))
    page.frames()
    page.node.publisher.publish_internal("t", b"2", 0, False)
    page.driver.run()
    assert not page.socket.written


def test_a_read_that_took_long_is_the_last_of_its_turn() -> None:
    page = Page().connected()
    page.driver.time = lambda: (
        setattr(page.loop, "now", page.loop.now + MAX_READ_S) or page.loop.now
    )  # type: ignore[func-returns-value]
    page.protocol.data_received(frame(BINARY, PINGREQ))
    assert not page.socket.reading
    page.loop.run()
    assert page.socket.reading


@pytest.mark.parametrize("size", [1, 125, 126, 127, 65_535, 65_536, 1_000_000])
def test_frames_of_every_size_are_as_the_library_makes_them(size: int) -> None:
    data = random.Random(size).randbytes(size)
    page = Page().connected()
    page.protocol.write(data)
    expected = Frame(Opcode.BINARY, data).serialize(mask=False)
    assert page.socket.written == expected


def test_the_answer_to_the_upgrade_is_ahead_of_an_answer_that_is_flushed_at_once() -> None:
    page = Page()
    # Somebody else is slow: what is read is flushed before the next one is read.
    page.node.paused = 1
    page.send(request(), frame(BINARY, CONNECT))
    assert page.answer().startswith(b"HTTP/1.1 101 ")
    assert page.frames() == [(BINARY, CONNACK)]


def test_nothing_is_sent_behind_a_close_frame() -> None:
    page = Page().connected()
    page.protocol.close()
    assert page.frames() == [(CLOSE, closing(1000))]
    page.protocol.write(b"late")
    assert not page.socket.written
