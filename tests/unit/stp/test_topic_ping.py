"""The bytes of topic PINGREQs and PINGRESPs."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.base.address import Address
from mqttree.stp.priority_vector import MAX_COST_US, RootVector
from mqttree.stp.topic_ping import (
    ASKS,
    TopicPing,
    TopicPingError,
    decode_pings,
    decode_topics,
    encode_ping,
    encode_topics,
)

ROOT = RootVector(bytes(range(8)), 7, 125, Address("10.0.0.9", 1883))
PING = TopicPing(b"a/b", ROOT, 5, 1500, b"\x11" * 8, 80, 2, 30, ASKS)
GOLDEN = (
    "0003612f62"  # topic
    "04"  # flags
    "00000050"
    "000005dc"
    "00000002"
    "0000001e"  # C, Pt, R, clients
    "0001020304050607"
    "00000007"
    "0000007d"
    "00000005"  # root, boot, merit, seq
    "1111111111111111"  # parent
    "075b"
    "08"
    "31302e302e302e39"  # port, host
)

U32 = st.integers(0, 0xFFFFFFFF)
IDS = st.binary(min_size=8, max_size=8)
ROOTS = st.builds(
    RootVector,
    IDS,
    U32,
    U32,
    st.builds(Address, st.text("abc.09", max_size=20), st.integers(0, 65535)),
)
PINGS = st.builds(
    TopicPing,
    st.binary(min_size=1, max_size=40),
    ROOTS,
    U32,
    st.integers(0, MAX_COST_US),
    IDS,
    U32,
    U32,
    U32,
    st.integers(0, 7),
)


def test_a_topic_pingreq_has_these_bytes() -> None:
    assert encode_ping(PING).hex() == GOLDEN


def test_topic_pingresps_have_these_bytes() -> None:
    assert encode_topics([b"a/b", b"c"]).hex() == "0003612f62000163"


@given(st.lists(PINGS, max_size=4))
def test_what_is_encoded_is_read_back(pings: list[TopicPing]) -> None:
    assert decode_pings(b"".join(map(encode_ping, pings))) == pings


@given(st.lists(st.binary(min_size=1, max_size=20), max_size=5))
def test_topics_are_read_back(topics: list[bytes]) -> None:
    assert decode_topics(encode_topics(topics)) == topics


@given(st.lists(PINGS, min_size=1, max_size=2), st.data())
def test_cut_or_random_bytes_raise_one_error(pings: list[TopicPing], data: st.DataObject) -> None:
    whole = b"".join(map(encode_ping, pings))
    cut = data.draw(st.integers(0, len(whole) - 1))
    for bent in (whole[:cut], data.draw(st.binary(max_size=80))):
        for read in (decode_pings, decode_topics):
            with contextlib.suppress(TopicPingError):
                read(bent)


@pytest.mark.parametrize("cut", range(1, len(GOLDEN) // 2))
def test_each_cut_is_noticed(cut: int) -> None:
    with pytest.raises(TopicPingError):
        decode_pings(bytes.fromhex(GOLDEN)[:cut])


@pytest.mark.parametrize(
    "changes",
    [
        {"topic": b""},
        {"topic": bytes(65536)},
        {"path_cost_us": MAX_COST_US + 1},
        {"path_cost_us": -1},
        {"parent": b"short"},
        {"seq": 1 << 32},
        {"root": RootVector(bytes(8), 1, 1, Address("h" * 256, 1))},
    ],
)
def test_what_no_receiver_takes_is_not_encoded(changes: dict[str, object]) -> None:
    with pytest.raises(TopicPingError):
        encode_ping(PING._replace(**changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("at", "to"), [(10, "ffffffff"), (52, "ff")], ids=["a cost of an hour", "a host of other bytes"]
)
def test_what_cannot_be_believed_is_refused(at: int, to: str) -> None:
    bent = bytearray.fromhex(GOLDEN)
    bent[at : at + len(to) // 2] = bytes.fromhex(to)
    with pytest.raises(TopicPingError):
        decode_pings(bytes(bent) + bytes(300))


def test_more_clients_than_fit_are_the_most_that_fit() -> None:
    assert decode_pings(encode_ping(PING._replace(clients=1 << 40)))[0].clients == 0xFFFFFFFF
