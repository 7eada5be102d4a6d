"""Links with a cluster secret: what a stranger on the way can do to them (nothing but cut them)."""

from __future__ import annotations

import hashlib
import hmac
import random
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given, settings
from hypothesis import strategies as st

from mqttree.broker.base.link_keys import (
    OFFER_BYTES,
    LinkKeys,
    Offer,
    cluster_key,
    next_key,
    transcript,
)
from mqttree.broker.cluster.link.handshake import AUTHENTICATION
from mqttree.broker.cluster.link.record_layer import RECORD_BYTES, TAG_BYTES, Cipher, RecordError
from mqttree.broker.limits import Limits
from mqttree.broker.wire.decode import decode_packet
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import Auth, Connack, Connect, Disconnect, Publish
from mqttree.broker.wire.properties import Property
from mqttree.broker.wire.reader import PacketReader
from mqttree.broker.wire.varint import read_length
from tests.kit.effort import examples
from tests.kit.link_harness import bridge, message
from tests.kit.node_harness import World
from tests.kit.protected_links import ONE, SECRET, Wire, node

# ------------------------------------------------------------------ keys


def expand(key: bytes, label: bytes) -> bytes:
    return hmac.digest(key, b"mqttree " + label + b"\1", "sha256")


def test_keys_are_derived_as_in_the_golden_example() -> None:
    """As written down in decision 2, computed by other means."""
    entropy = [bytes(range(at, at + OFFER_BYTES)) for at in (0, 64)]
    one, two = (Offer(each) for each in entropy)
    private = [X25519PrivateKey.from_private_bytes(each[32:]) for each in entropy]
    for offer, each, key in zip((one, two), entropy, private, strict=True):
        assert offer.data == each[:32] + key.public_key().public_bytes_raw()
    shared = private[0].exchange(X25519PublicKey.from_public_bytes(two.data[32:]))
    assert one.shared(two.data) == two.shared(one.data) == shared
    said = hashlib.sha256(b"mqttree link 1" + b"\0\0\0\5\x10\3abc" + b"\0\0\0\4\x10\2de").digest()
    assert transcript(b"abc", b"de") == said
    prk = hmac.digest(
        said, hmac.digest(SECRET, b"mqttree link secret 1", "sha256") + shared, "sha256"
    )
    keys = LinkKeys(SECRET, shared, said)
    assert keys.proof(dialler=True) == hmac.digest(expand(prk, b"dialler proves"), said, "sha256")
    assert keys.proof(dialler=False) == hmac.digest(expand(prk, b"called proves"), said, "sha256")
    assert keys.records(dialler=True) == expand(prk, b"dialler sends")
    assert keys.records(dialler=False) == expand(prk, b"called sends")
    assert next_key(SECRET) == expand(SECRET, b"next")
    assert (
        keys.proof(dialler=True).hex()
        == "09c459313c53247be07adf138ab3affc85fe0197eed5699f8ca2447593fae45e"
    )
    assert (
        keys.records(dialler=False).hex()
        == "f74e684c86d3aa7d77a822b41125f0f18cee926a3d421973fec4714d391aa8d6"
    )


def test_records_are_sealed_as_in_the_golden_example() -> None:
    cipher = Cipher(SECRET, Limits().records_per_key)
    for number in (1, 2, 3):
        sealed = AESGCM(SECRET).encrypt(number.to_bytes(12, "big"), b"a packet", None)
        assert cipher.seal(b"a packet") == sealed


def test_the_cluster_key_is_of_secret_and_cluster_and_slow() -> None:
    key = cluster_key(b"correct horse battery", "mqttree")
    assert key == hashlib.scrypt(
        b"correct horse battery",
        salt=b"mqttree cluster key 1 mqttree",
        n=32768,
        r=8,
        p=1,
        maxmem=1 << 26,
        dklen=32,
    )


@pytest.mark.parametrize(
    "point", [bytes(32), b"\1" + bytes(31), bytes([0xEC] + [0xFF] * 30 + [0x7F])]
)
def test_keys_that_make_the_shared_secret_known_are_refused(point: bytes) -> None:
    offer = Offer(bytes(range(OFFER_BYTES)))
    with pytest.raises(ValueError):
        offer.shared(bytes(32) + point)
    for size in (0, 31, 63, 65):
        with pytest.raises(ValueError):
            offer.shared(bytes(size))


# ------------------------------------------------------------------ records


def hold(wire: Wire) -> list[bytes]:
    """Keep what the dialler writes from now on."""
    held: list[bytes] = []

    def keep(direction: str, data: bytes) -> bytes:
        if direction == "<":
            return data
        held.append(data)
        return b""

    wire.tamper = keep
    return held


@given(
    st.lists(st.integers(1, 200_000), min_size=1, max_size=6),
    st.lists(st.integers(1, 100_000), max_size=20),
    st.integers(0, 1 << 32),
)
@settings(deadline=None, max_examples=examples(30))
def test_a_stream_of_records_may_be_cut_anywhere(
    sizes: list[int], cuts: list[int], seed: int
) -> None:
    rng = random.Random(seed)
    wire = Wire(node(1), node(2)).agreed()
    client = wire.worlds[1].connect("c").subscribed("big/#", qos=0)
    publisher = wire.worlds[0].connect("p")
    wire.advance(0.2)
    held = hold(wire)
    payloads = [rng.randbytes(size) for size in sizes]
    for number, payload in enumerate(payloads):
        publisher.publish(f"big/{number}", payload)
        wire.pump()
    stream = b"".join(held)
    assert len(stream) > sum(sizes)
    for cut in cuts:
        wire.inject(1, stream[:cut])
        stream = stream[cut:]
    wire.inject(1, stream)
    assert [p.payload for p in client.take() if isinstance(p, Publish)] == payloads
    assert wire.up == (True, True)
    layer = wire.conns[1].owner
    assert not getattr(layer, "mid_packet", True)


def test_records_are_as_long_as_the_limit_says_and_keys_are_renewed() -> None:
    wire = Wire(*(node(n, limits=Limits(records_per_key=3)) for n in (1, 2))).agreed()
    client = wire.worlds[1].connect("c").subscribed("t")
    publisher = wire.worlds[0].connect("p")
    wire.advance(0.2)
    wire.seen[">"].clear()
    for number in range(20):
        publisher.publish("t", b"%d" % number)
        wire.advance(0.05)
    publisher.publish("t", bytes(1_000_000))
    wire.advance(0.05)
    found = [p.payload for p in client.take() if isinstance(p, Publish)]
    assert found == [*(b"%d" % number for number in range(20)), bytes(1_000_000)]
    records = records_of(bytes(wire.seen[">"]))
    assert max(map(len, records)) == RECORD_BYTES + TAG_BYTES + 4
    assert len(records) > 3 * 3


def records_of(stream: bytes) -> list[bytes]:
    """The records of a stream of whole ones."""
    found = []
    at = 0
    while at < len(stream):
        assert stream[at] == 0
        length, body = read_length(stream, at + 1)
        found.append(stream[at : body + length])
        at = body + length
    assert at == len(stream)
    return found


def test_a_long_packet_is_a_sign_of_life_between_its_records_too() -> None:
    wire = Wire(node(1), node(2)).agreed()
    client = wire.worlds[1].connect("c").subscribed("t")
    publisher = wire.worlds[0].connect("p")
    wire.advance(0.2)
    held = hold(wire)
    publisher.publish("t", bytes(10 * RECORD_BYTES))
    wire.pump()
    stream = b"".join(held)
    step = RECORD_BYTES + TAG_BYTES + 4
    link = wire.link(1)
    assert link is not None
    for at in range(0, len(stream), step):
        wire.inject(1, stream[at : at + step])
        if at + step < len(stream):
            assert link.mid_packet
            for _ in range(4):  # 1.6 s for each record: 2 s of silence would end the link
                wire.worlds[1].advance(0.4)
                wire.worlds[0].now = wire.worlds[1].now
            assert wire.link(1) is link
            tree = wire.worlds[1].node.cluster.tree
            assert ONE in tree.ports
    assert [len(p.payload) for p in client.take() if isinstance(p, Publish)] == [10 * RECORD_BYTES]


# ------------------------------------------------------------------ a stranger on the way


def agreed_bytes() -> dict[str, bytes]:
    """What passes in a handshake until both are up, always the same here."""
    seen = {">": b"", "<": b""}

    def watch(direction: str, data: bytes) -> bytes:
        seen[direction] += data
        return data

    wire = Wire(node(1), node(2), watch)
    assert wire.up == (True, True)
    return seen


def test_a_handshake_has_the_packets_that_decision_2_names() -> None:
    seen = agreed_bytes()
    for direction in "><":
        data = seen[direction]
        assert data[0] == 0x10
        at = 0
        kinds = []
        while at < len(data):
            length, body = read_length(data, at + 1)
            kinds.append(data[at])
            at = body + length
        assert kinds[:2] == [0x10, 0xF0]
        assert set(kinds[2:]) == {0}, "all that follows is encrypted"


@pytest.mark.parametrize("direction", [">", "<"])
def test_no_bit_of_a_handshake_or_of_what_follows_can_be_altered(direction: str) -> None:
    stream = agreed_bytes()[direction]
    size = len(stream)
    proven = stream.index(b"\xf0") + 2 + stream[stream.index(b"\xf0") + 1]
    rng = random.Random(7)
    for at in range(rng.randrange(3), size, 3):
        one, two = node(1), node(2)
        came = {">": 0, "<": 0}

        def flip(way: str, data: bytes, at: int = at, came: dict[str, int] = came) -> bytes:
            begin = came[way]
            came[way] += len(data)
            if way == direction and begin <= at < begin + len(data):
                bent = bytearray(data)
                bent[at - begin] ^= 1 << rng.randrange(8)
                return bytes(bent)
            return data

        wire = Wire(one, two, flip)
        if not all(conn.closed for conn in wire.conns):
            wire.advance(4.0)  # a length that was altered has one of them wait for more
        receiver = wire.conns[1 if direction == ">" else 0]
        if wire.up != (False, False):
            assert at >= proven, f"byte {at}"
            # It waits for the rest of a record: no byte of that was believed.
            assert receiver.mid_packet, f"byte {at}"
        else:
            assert not one.node.cluster.links
            assert not two.node.cluster.links


def delivered(tamper_at: str, how: Any) -> tuple[Wire, list[bytes], World]:
    """Ten messages over a link on which records of one direction are handled by `how`."""
    wire = Wire(node(1), node(2)).agreed()
    client = wire.worlds[1].connect("c").subscribed("t", qos=1)
    publisher = wire.worlds[0].connect("p")
    wire.advance(0.2)

    def tamper(direction: str, data: bytes) -> bytes:
        return b"".join(how(records_of(data))) if direction == tamper_at else data

    wire.tamper = tamper
    for number in range(10):
        publisher.publish("t", b"message %d" % number)
        wire.pump()
    wire.advance(1.0)
    return wire, [p.payload for p in client.take() if isinstance(p, Publish)], wire.worlds[1]


class Odd:
    """Does something with the fourth record that passes."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.number = 0
        self.kept: list[bytes] = []

    def __call__(self, records: list[bytes]) -> list[bytes]:
        found: list[bytes] = []
        for record in records:
            self.number += 1
            if self.number != 4:
                if self.number == 2:
                    self.kept.append(record)
                found.append(record)
                if self.number == 5 and self.what == "swapped":
                    found.append(self.kept[-1])
                continue
            if self.what == "left out":
                continue
            if self.what == "twice":
                found += [record, record]
            elif self.what == "replayed":
                found += [self.kept[0], record]
            elif self.what == "altered":
                found.append(record[:-1] + bytes((record[-1] ^ 1,)))
            elif self.what == "cut":
                found.append(record[:-1])
            elif self.what == "swapped":
                self.kept.append(record)
            elif self.what == "plain ahead":
                found += [
                    message(b"t", b"injected", sequence=1, key=b"\0" * 7 + b"\1" + b"\0\0\3\xe8"),
                    record,
                ]
            elif self.what == "garbage ahead":
                found += [b"\0\x20" + bytes(32), record]
            elif self.what == "too long ahead":
                found += [b"\0\xff\xff\xff\x7f", record]
            elif self.what == "empty ahead":
                found += [b"\0\x00", record]
        return found


@pytest.mark.parametrize(
    "what",
    [
        "left out",
        "twice",
        "replayed",
        "altered",
        "cut",
        "swapped",
        "plain ahead",
        "garbage ahead",
        "too long ahead",
        "empty ahead",
    ],
)
def test_a_tampered_record_ends_the_link_only(what: str) -> None:
    wire, payloads, world = delivered(">", Odd(what))
    assert wire.up[1] is False
    assert payloads == [b"message %d" % number for number in range(len(payloads))]
    assert len(payloads) < 10
    assert world.counters.link_tampered == 1
    assert sum("link to" in line and "closed" in line for line in world.logged) == 1


def test_records_of_one_direction_are_none_of_the_other() -> None:
    wire = Wire(node(1), node(2)).agreed()
    wire.seen["<"].clear()
    wire.worlds[1].connect("p").publish("t", b"x")
    wire.advance(0.6)
    assert wire.seen["<"]
    wire.inject(1, bytes(wire.seen["<"]))
    wire.pump()
    assert wire.up == (False, False)
    assert wire.worlds[1].counters.link_tampered == 1


def test_a_listener_reads_no_payload() -> None:
    wire = Wire(node(1), node(2)).agreed()
    client = wire.worlds[1].connect("c").subscribed("plant/valve", qos=1)
    wire.worlds[0].connect("p").publish("plant/valve", b"a payload that nobody else is to read")
    wire.advance(0.5)
    assert [p.payload for p in client.take() if isinstance(p, Publish)] == [
        b"a payload that nobody else is to read"
    ]
    for seen in wire.seen.values():
        assert b"payload" not in seen
        assert b"plant" not in seen


# ------------------------------------------------------------------ other handshakes


@pytest.mark.parametrize(
    ("one", "two"), [(SECRET, None), (None, SECRET), (SECRET, b"another key of 32 bytes, as long")]
)
def test_without_the_same_secret_there_is_no_link(one: bytes | None, two: bytes | None) -> None:
    wire = Wire(node(1, one), node(2, two))
    assert wire.up == (False, False)
    assert sum(world.counters.link_wrong_secret for world in wire.worlds) >= 1
    for world in wire.worlds:
        assert sum("refused" in line for line in world.logged) == 1, world.logged


def without_method(connect: Connect) -> bytes:
    properties = dict(connect.properties or {})
    for name in (Property.AUTHENTICATION_METHOD, Property.AUTHENTICATION_DATA):
        properties.pop(name, None)
    connect.properties = properties
    return encode_packet(connect, 5)


@pytest.mark.parametrize("strip", [">", "<", "><"])
def test_a_link_without_its_proof_is_refused(strip: str) -> None:
    def tamper(direction: str, data: bytes) -> bytes:
        if direction not in strip:
            return data
        found = []
        for first, body in PacketReader().feed(data) if data[0] else []:
            packet = decode_packet(first, body, 5)
            if isinstance(packet, Connect):
                found.append(without_method(packet))
            elif not isinstance(packet, Auth):
                found.append(encode_packet(packet, 5))
        return b"".join(found)

    wire = Wire(node(1), node(2), tamper)
    wire.inject(0, encode_packet(Connack(False, 0), 5))
    wire.inject(1, encode_packet(Connack(False, 0), 5))
    wire.advance(4.0)
    assert wire.up == (False, False)


@pytest.mark.parametrize(
    "said",
    [
        encode_packet(Connack(False, 0), 5),
        encode_packet(
            Auth(
                0x18,
                {
                    Property.AUTHENTICATION_METHOD: AUTHENTICATION,
                    Property.AUTHENTICATION_DATA: bytes(32),
                },
            ),
            5,
        ),
        encode_packet(Auth(0x18, None), 5),
        encode_packet(Auth(0, None), 5),
        message(b"t", b"x"),
        b"\xc0\0",
        b"\xd0\0",
        b"\0\x14" + bytes(20),
    ],
)
@pytest.mark.parametrize("connected", [False, True])
def test_a_caller_without_the_secret_gets_no_further(said: bytes, connected: bool) -> None:
    world = node(2)
    # Nothing passes but what the stranger says.
    wire = Wire(node(1), world, lambda direction, data: b"")
    connect = bridge(1)
    assert connect.properties is not None
    connect.properties |= {
        Property.AUTHENTICATION_METHOD: AUTHENTICATION,
        Property.AUTHENTICATION_DATA: Offer(bytes(OFFER_BYTES)).data,
    }
    if connected:
        wire.inject(1, encode_packet(connect, 5))
    wire.inject(1, said)
    wire.advance(4.0)
    assert not world.node.cluster.links
    assert not world.node.cluster.link_registry.handshakes
    assert wire.conns[1].closed


def test_a_recorded_handshake_is_worth_nothing() -> None:
    seen = {">": b"", "<": b""}

    def watch(direction: str, data: bytes) -> bytes:
        seen[direction] += data
        return data

    assert Wire(node(1), node(2), watch).up == (True, True)
    for end, said in ((1, seen[">"]), (0, seen["<"])):
        one, two = node(1), node(2)
        for world in (one, two):
            world.node.rng.seed(99)  # another run: nonces and keys are never the same
        wire = Wire(one, two, lambda direction, data: b"")
        wire.inject(end, said)
        wire.advance(4.0)
        assert wire.up == (False, False)
        assert not wire.worlds[end].node.cluster.links


def test_reflected_packets_do_not_prove_an_id() -> None:
    one = node(1)
    before = dict(one.node.cluster.membership._table._selves)
    wire = Wire(one, node(2), lambda direction, data: b"")
    for _ in range(3):
        wire.inject(0, bytes(wire.seen[">"]))
        wire.pump()
    wire.advance(4.0)
    assert wire.up == (False, False)
    assert not one.node.cluster.links
    assert one.node.cluster.membership._table._selves == before


def test_a_stranger_cannot_say_goodbye_for_a_broker() -> None:
    wire = Wire(node(1), node(2)).agreed()
    world = wire.worlds[1]
    before = world.node.cluster.membership.members(world.now)
    stranger = Wire(node(9), world, lambda direction, data: b"")
    connect = bridge(1, boot=1_000)
    assert connect.properties is not None
    connect.properties |= {
        Property.AUTHENTICATION_METHOD: AUTHENTICATION,
        Property.AUTHENTICATION_DATA: Offer(bytes(OFFER_BYTES)).data,
    }
    stranger.inject(1, encode_packet(connect, 5) + encode_packet(Disconnect(0x8B), 5))
    assert world.node.cluster.membership.members(world.now) == before
    assert world.node.cluster.membership.counters["leaves"] == 0
    wire.advance(1.0)
    assert wire.up == (True, True)


def test_a_cipher_says_what_is_wrong_by_one_kind_of_error() -> None:
    body = Cipher(SECRET, Limits().records_per_key).seal(b"x")
    for bent in (body[:-1], body[1:], body + b"x", bytes(17), b"", bytes((body[0] ^ 1, *body[1:]))):
        with pytest.raises(RecordError):
            Cipher(SECRET, Limits().records_per_key).open(memoryview(bent))
    assert Cipher(SECRET, Limits().records_per_key).open(memoryview(body)) == b"x"


def test_a_link_that_rests_goes_on_with_what_it_has_opened() -> None:
    """What costs much is handled in several turns, also when it came in one record and nothing
    follows."""
    wire = Wire(*(node(n, limits=Limits(turn_work=300)) for n in (1, 2))).agreed()
    one, two = wire.worlds
    reader, writer = two.connect("reader").subscribed("new/#", qos=0), one.connect("writer")
    wire.advance(1.0)
    for number in range(400):
        writer.publish(f"new/{number}", b"%d" % number, 1, number + 1)
    cut = two.counters.turns_cut
    wire.pump()
    assert two.counters.turns_cut > cut
    assert two.counters.received_link < 400
    for _ in range(200):
        two.advance(0.001)
    assert reader.payloads() == [b"%d" % number for number in range(400)]
    wire.advance(5.0)
    assert wire.up == (True, True)
