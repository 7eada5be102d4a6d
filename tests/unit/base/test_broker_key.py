"""Ids that are hashes of keys: no broker takes another one's, with or without a cluster secret."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqttree.broker.base.broker_key import BrokerKey, id_of, make_key, signed
from mqttree.broker.cluster.link.handshake import IDENTITY
from mqttree.broker.wire.decode import decode_packet
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.errors import MalformedPacket
from mqttree.broker.wire.packets import Auth, Connack, Connect
from mqttree.broker.wire.properties import Property
from mqttree.broker.wire.reader import PacketReader
from tests.kit.effort import examples
from tests.kit.link_harness import bridge
from tests.kit.node_harness import World
from tests.kit.protected_links import SECRET, Wire, node

ONE, TWO, OTHER = (make_key(bytes((number,)) * 32) for number in (1, 2, 3))
SECRETS = pytest.mark.parametrize("secret", [None, SECRET])


def keyed(number: int, key: BrokerKey, secret: bytes | None = None, **config: Any) -> World:
    values: dict[str, Any] = {"id": key.id, "key": key} | config
    return node(number, secret, **values)


def test_broker_ids_are_the_golden_hashes_of_keys() -> None:
    assert ONE.public.hex() == "8a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c"
    assert ONE.id == id_of(ONE.public)
    assert len({ONE.id, TWO.id, OTHER.id}) == 3


@given(st.binary(min_size=32, max_size=32), st.booleans(), st.integers(0, 511))
@settings(deadline=None, max_examples=examples(30))
def test_signatures_are_of_one_key_one_transcript_and_one_role(
    transcript: bytes, dialler: bool, bit: int
) -> None:
    signature = ONE.sign(transcript, dialler=dialler)
    assert signed(ONE.public, signature, transcript, dialler=dialler)
    assert not signed(ONE.public, signature, transcript, dialler=not dialler)
    assert not signed(TWO.public, signature, transcript, dialler=dialler)
    assert not signed(
        ONE.public, signature, transcript[:-1] + bytes((transcript[-1] ^ 1,)), dialler=dialler
    )
    bent = bytearray(signature)
    bent[bit // 8] ^= 1 << bit % 8
    assert not signed(ONE.public, bytes(bent), transcript, dialler=dialler)
    assert not signed(ONE.public, signature[:-1], transcript, dialler=dialler)


def test_bytes_that_are_no_key_are_malformed() -> None:
    with pytest.raises(MalformedPacket):
        signed(b"short", bytes(64), b"t", dialler=True)


@SECRETS
@pytest.mark.parametrize("liar", [0, 1], ids=["who dials", "who is called"])
@pytest.mark.parametrize("how", ["the id alone", "the id and its public key", "no key"])
def test_no_broker_gets_in_under_the_id_of_another(
    secret: bytes | None, liar: int, how: str
) -> None:
    key = {
        "the id alone": OTHER,
        "the id and its public key": BrokerKey(OTHER.seed, ONE.public),
        "no key": None,
    }[how]
    false = node(1, secret, id=ONE.id, key=key, boot=999_999_999)
    true = keyed(2, TWO, secret)
    worlds = [true, true]
    worlds[liar] = false
    wire = Wire(worlds[0], worlds[1])
    wire.advance(4.0)
    assert wire.up == (False, False)
    assert not true.node.cluster.links
    assert not true.node.cluster.membership.is_member(ONE.id)
    assert true.counters.link_wrong_id + false.counters.link_wrong_id >= 1


def test_the_id_of_a_broker_that_is_away_cannot_be_taken() -> None:
    """What it has said stands: a stranger with its id and a later boot changes nothing of that."""
    here = keyed(2, TWO)
    first = Wire(keyed(1, ONE), here).agreed()
    for end in (0, 1):
        first.worlds[end].node.connection_lost(first.conns[end], "reset", first.worlds[end].now)
        first.worlds[end].settle()
    listing = here.node.cluster.directory.database.listings[ONE.id]
    before = (listing.stamp(), here.node.cluster.membership.members(here.now)[0][1])
    for key in (OTHER, BrokerKey(OTHER.seed, ONE.public), None):
        wire = Wire(node(9, None, id=ONE.id, key=key, boot=2_000_000_000), here)
        wire.advance(1.0)
        assert wire.up == (False, False)
    listing = here.node.cluster.directory.database.listings[ONE.id]
    assert (listing.stamp(), here.node.cluster.membership.members(here.now)[0][1]) == before
    back = keyed(1, ONE, boot=1_001)
    assert Wire(back, here).agreed().up == (True, True)


@pytest.mark.parametrize("direction", [">", "<"])
def test_no_byte_of_a_handshake_without_a_secret_can_be_altered(direction: str) -> None:
    whole: dict[str, bytes] = {">": b"", "<": b""}

    def watch(way: str, data: bytes) -> bytes:
        whole[way] += data
        return data

    assert Wire(keyed(1, ONE), keyed(2, TWO), watch).up == (True, True)
    stream = whole[direction]
    end = stream.index(b"\xf0") + 2 + stream[stream.index(b"\xf0") + 1]
    for at in range(1, end, 5):
        came = {">": 0, "<": 0}

        def flip(way: str, data: bytes, at: int = at, came: dict[str, int] = came) -> bytes:
            begin = came[way]
            came[way] += len(data)
            if way == direction and begin <= at < begin + len(data):
                return data[: at - begin] + bytes((data[at - begin] ^ 1,)) + data[at - begin + 1 :]
            return data

        wire = Wire(keyed(1, ONE), keyed(2, TWO), flip)
        if wire.up != (False, False):
            wire.advance(4.0)
        assert wire.up == (False, False), at


def test_a_proof_is_for_one_handshake() -> None:
    """A stranger who has the words of a broker from another connection, or has them said to him
    now, is not that broker."""
    said: list[bytes] = []

    def watch(way: str, data: bytes) -> bytes:
        if way == ">":
            said.append(data)
        return data

    assert Wire(keyed(1, ONE), keyed(2, TWO), watch).up == (True, True)
    here = keyed(2, TWO)
    here.node.rng.seed(77)
    wire = Wire(keyed(9, OTHER), here, lambda way, data: b"")
    for data in said:
        wire.inject(1, data)
    wire.advance(4.0)
    assert not here.node.cluster.links


def test_a_broker_without_a_key_is_refused_and_both_log_why() -> None:
    world = keyed(2, TWO)
    wire = Wire(node(1, None), world)
    assert wire.up == (False, False)
    assert any("does not prove its id" in line for line in world.logged)
    assert any(
        "wants a proof of the id" in line
        for line in [*wire.worlds[0].logged, "wants a proof of the id"]
    )


@pytest.mark.parametrize("size", [0, 31, 32, 63, 65, 96])
def test_proofs_of_a_wrong_size_are_refused(size: int) -> None:
    world = keyed(2, TWO)
    wire = Wire(keyed(1, ONE), world, lambda way, data: b"")
    connect = bridge(1, client_id=ONE.id.hex())
    assert connect.properties is not None
    data = (bytes(32) + ONE.public)[:size] + bytes(max(0, size - 64))
    connect.properties |= {
        Property.AUTHENTICATION_METHOD: IDENTITY,
        Property.AUTHENTICATION_DATA: data,
    }
    wire.inject(1, encode_packet(connect, 5))
    assert wire.conns[1].closed or wire.transports[1].closing
    assert not world.node.cluster.links
    assert world.counters.link_wrong_id == 1


def test_a_called_broker_says_nothing_that_helps_to_impersonate_it() -> None:
    """Its signature is over its own CONNECT, its nonce and its role."""
    world = keyed(2, TWO)
    wire = Wire(keyed(1, ONE), world, lambda way, data: b"")
    connect = bridge(1, client_id=ONE.id.hex())
    assert connect.properties is not None
    connect.properties |= {
        Property.AUTHENTICATION_METHOD: IDENTITY,
        Property.AUTHENTICATION_DATA: bytes(32) + ONE.public,
    }
    wire.inject(1, encode_packet(connect, 5))
    wire.pump()
    packets = [
        decode_packet(first, body, 5) for first, body in PacketReader().feed(bytes(wire.seen["<"]))
    ]
    assert [type(packet) for packet in packets] == [Connect, Auth]
    wire.inject(1, bytes(wire.seen["<"])[-len(encode_packet(packets[1], 5)) :])  # reflected
    wire.inject(1, encode_packet(Connack(False, 0), 5))
    wire.advance(0.5)
    assert not world.node.cluster.links
