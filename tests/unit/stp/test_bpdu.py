"""BPDU bytes: golden vectors, round trips, and refusal of everything that cannot be true."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqttree.broker.base.address import Address, sort_key
from mqttree.broker.base.broker_id import Identity
from mqttree.stp.bpdu import (
    MAX_CHANGES,
    Bpdu,
    BpduError,
    ChangeNumber,
    Role,
    SeqRequest,
    decode,
    encode,
)
from mqttree.stp.priority_vector import MAX_COST_US, RootVector, better_root, seq_newer, to_tenths
from tests.kit.effort import examples

ROOT = RootVector(b"ABCDEFGH", 3, 125, ("10.0.0.1", 1883))
PLAIN = Bpdu(ROOT, 7, 1500, 20, Role.DESIGNATED, Role.ROOT, 2, 40, 9)
# fmt: off
PLAIN_HEX = (
    "01" "00" "02" "01" "02" "00" "00000009"
    "4142434445464748" "00000003" "0000007d" "00000007" "000005dc"
    "00000028" "00000014" "075b" "08" "31302e302e302e31"
)
# fmt: on
FULL = replace(
    PLAIN,
    request=SeqRequest(b"rootroot", 1, 0xFFFFFFFF),
    changes=(ChangeNumber(b"originXX", 2, 5),),
    role=Role.BLOCKED,
)
# fmt: off
FULL_HEX = (
    "01" "01" "03" "01" "02" "01" + PLAIN_HEX[12:] + "726f6f74726f6f74" "00000001" "ffffffff"
    "6f726967696e5858" "00000002" "00000005"
)
# fmt: on


@pytest.mark.parametrize(("bpdu", "golden"), [(PLAIN, PLAIN_HEX), (FULL, FULL_HEX)])
def test_bpdus_have_the_golden_bytes(bpdu: Bpdu, golden: str) -> None:
    assert encode(bpdu).hex() == golden
    assert decode(bytes.fromhex(golden)) == bpdu
    assert decode(bytes.fromhex(golden) + b"of a later version") == bpdu


def test_cut_short_anywhere_is_refused() -> None:
    data = bytes.fromhex(FULL_HEX)
    for end in range(len(data)):
        with pytest.raises(BpduError):
            decode(data[:end])


def patched(at: int, value: bytes) -> bytes:
    data = bytearray.fromhex(PLAIN_HEX)
    data[at : at + len(value)] = value
    return bytes(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        patched(0, b"\x00"),  # version
        patched(0, b"\x02"),
        patched(2, b"\x00"),  # role: none
        patched(2, b"\x04"),
        patched(3, b"\x04"),  # echo
        patched(5, b"\x01"),  # a change announced, none there
        patched(5, b"\xff"),
        patched(30, (MAX_COST_US + 1).to_bytes(4, "big")),  # more than an hour
        patched(44, b"\xff"),  # host longer than the rest
        patched(45, b"\xff\xfe"),  # host not UTF-8
    ],
)
def test_a_bpdu_that_cannot_be_true_is_refused(data: bytes) -> None:
    with pytest.raises(BpduError):
        decode(data)


@pytest.mark.parametrize(
    "change",
    [
        {"path_cost_us": MAX_COST_US + 1},
        {"path_cost_us": -1},
        {"seq": 1 << 32},
        {"number": -1},
        {"hops": 256},
        {"age_ms": 1 << 32},
        {"root": RootVector(b"short", 1, 1, ("h", 1))},
        {"root": RootVector(b"ABCDEFGH", 1, 1, ("h", 65536))},
        {"root": RootVector(b"ABCDEFGH", 1, 1, ("h" * 256, 1))},
        {"request": SeqRequest(b"x", 1, 1)},
        {"changes": (ChangeNumber(b"too long an id", 1, 1),)},
        {"changes": (ChangeNumber(b"originXX", 1, 1),) * (MAX_CHANGES + 1)},
    ],
)
def test_a_bpdu_that_would_be_refused_is_not_encoded(change: dict[str, object]) -> None:
    with pytest.raises(BpduError):
        encode(replace(PLAIN, **change))  # type: ignore[arg-type]


u32 = st.integers(0, 0xFFFFFFFF)
ids = st.binary(min_size=8, max_size=8)
roles = st.sampled_from([Role.ROOT, Role.DESIGNATED, Role.BLOCKED])
hosts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
bpdus = st.builds(
    Bpdu,
    st.builds(RootVector, ids, u32, u32, st.tuples(hosts, st.integers(0, 65535))),
    u32,
    st.integers(0, MAX_COST_US),
    u32,
    roles,
    st.sampled_from(Role),
    st.integers(0, 255),
    u32,
    u32,
    st.none() | st.builds(SeqRequest, ids, u32, u32),
    st.lists(st.builds(ChangeNumber, ids, u32, u32), max_size=MAX_CHANGES).map(tuple),
)


@settings(max_examples=examples(150), deadline=None)
@given(bpdus, st.binary(max_size=20))
def test_an_encoded_bpdu_decodes_to_the_same(bpdu: Bpdu, trailing: bytes) -> None:
    assert decode(encode(bpdu) + trailing) == bpdu


@settings(max_examples=examples(200), deadline=None)
@given(st.binary(max_size=120) | st.binary(max_size=120).map(lambda b: b"\x01\x01\x02\x02" + b))
def test_garbage_raises_only_bpdu_error(data: bytes) -> None:
    with contextlib.suppress(BpduError):
        decode(data)


def test_addresses_compare_as_numbers() -> None:
    ordered = [
        ("10.0.0.9", 1883),
        ("10.0.0.9", 1884),
        ("::ffff:10.0.0.10", 1883),
        ("10.0.0.10", 1884),
        ("192.168.0.1", 1),
        ("fe80::1%eth0", 1883),
        ("fe80::2", 1883),
        ("Alpha.example", 1883),
        ("beta.example", 1883),
    ]
    assert sorted(ordered, key=sort_key) == ordered


def test_roots_are_ordered_by_capability_and_address() -> None:
    def vector(
        tenths: int, host: str = "10.0.0.1", port: int = 1883, name: bytes = b"A" * 8, boot: int = 1
    ) -> RootVector:
        return RootVector(name, boot, tenths, (host, port))

    best_first = [
        vector(30, "10.0.0.10"),
        vector(20, "10.0.0.9", 1883, b"C" * 8),
        vector(20, "10.0.0.9", 1884, b"D" * 8),
        vector(20, "10.0.0.10", 1883, b"B" * 8),
        vector(20, "10.0.0.10", 1883, b"E" * 8),
    ]
    for i, a in enumerate(best_first):
        for j, b in enumerate(best_first):
            assert better_root(a, b) == (i < j)
    assert better_root(vector(10, boot=2), vector(20, boot=1)), (
        "a later life of one broker outdates the earlier"
    )


@pytest.mark.parametrize(
    ("a", "b", "newer"),
    [(2, 1, True), (1, 2, False), (5, 5, False), (0, 0xFFFFFFFF, True), (0xFFFFFFFF, 0, False)],
)
def test_sequence_numbers_wrap_around(a: int, b: int, newer: bool) -> None:
    assert seq_newer(a, b) is newer


@pytest.mark.parametrize("value", [math.nan, math.inf, -0.1, 5e8])
def test_an_impossible_capability_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="capability"):
        to_tenths(value)


def test_ipv6_zones_do_not_count_when_addresses_are_compared() -> None:
    assert sort_key(("fe80::1%eth0", 1883)) == sort_key(("fe80::1%eth1", 1883))
    assert sort_key(("fe80::1%eth0", 1883)) < sort_key(("fe80::2", 1883))


@pytest.mark.parametrize(
    ("broker_id", "boot"), [(b"seven..", 1), (b"nine.....", 1), (b"eight...", -1)]
)
def test_an_identity_without_valid_id_or_boot_is_refused(broker_id: bytes, boot: int) -> None:
    with pytest.raises(ValueError, match=r"broker id has|boot number"):
        Identity(broker_id, boot, Address("10.0.0.1", 1883))
