"""What a broker keeps of messages for members of shared subscriptions elsewhere, and how it is
said."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.base.sequence_set import LAST
from mqttree.broker.cluster.link.origin_keys import origin_key
from mqttree.broker.cluster.sessions.image import Image
from mqttree.broker.cluster.sharing.assignment_ledger import (
    Assignment,
    Ledger,
    Ref,
    SequenceSet,
    decode_refs,
    encode_refs,
)
from mqttree.broker.core.message import Message
from mqttree.broker.persistence.shared_records import closed, covered, taken
from mqttree.broker.wire.errors import MalformedPacket

keys = st.builds(origin_key, st.binary(min_size=8, max_size=8), st.integers(0, 0xFFFFFFFF))
refs = st.tuples(keys, st.integers(1, LAST), st.binary(min_size=6, max_size=6))


def assignment(number: int, who: bytes = b"a" * 12, size: int = 5) -> Assignment:
    message = Message(b"t", bytes(size - 1), 2, False, b"", None, None)
    return Assignment((b"k" * 16, number, b"m" * 6), who, message, float(number), (), False)


@given(st.lists(st.tuples(st.integers(1, 7), refs)))
def test_encoded_refs_decode_to_the_same(said: list[tuple[int, Ref]]) -> None:
    found = [one for body in encode_refs(said) for one in decode_refs(body)]
    assert sorted(found) == sorted(said)


def test_many_refs_are_several_messages() -> None:
    said = [(1, (origin_key(b"brokerid", 1), number, b"marker")) for number in range(1, 100_000)]
    bodies = encode_refs(said)
    assert len(bodies) > 1
    assert max(map(len, bodies)) < 200_000
    assert [one for body in bodies for one in decode_refs(body)] == said


@given(st.binary(max_size=100))
def test_other_bytes_are_refused_or_read(body: bytes) -> None:
    try:
        found = list(decode_refs(body))
    except MalformedPacket:
        return
    assert bool(found) == bool(body)


@given(
    st.lists(
        st.tuples(st.sampled_from((b"a" * 12, b"b" * 12, b"")), st.integers(1, 9)), max_size=30
    )
)
def test_the_ledger_counts_what_was_added_closed_and_moved(steps: list[tuple[bytes, int]]) -> None:
    ledger = Ledger()
    there: dict[int, Assignment] = {}
    for index, (who, number) in enumerate(steps):
        if number in there:
            old = there.pop(number)
            assert (ledger.close if index % 2 else lambda ref: ledger.move(ref, 1.0))(
                old.ref
            ) is old
            assert ledger.moved(old.ref) or index % 2
        else:
            there[number] = one = assignment(number, who, size=5 + number)
            ledger.add(one)
        assert len(ledger) == len(there)
        assert ledger.size == sum(one.size for one in there.values())
        assert {one.ref for same in ledger.by_who.values() for one in same.values()} == {
            one.ref for one in there.values()
        }
        assert all(ledger.by_who.values())


def test_assignments_that_moved_are_forgotten_with_the_log() -> None:
    ledger = Ledger()
    one = assignment(1)
    ledger.add(one)
    ledger.move(one.ref, 1.0)
    ledger.forget_old(0.0)
    assert ledger.moved(one.ref)
    ledger.forget_old(2.0)
    assert not ledger.moved(one.ref)


@given(st.lists(refs, max_size=50), st.lists(refs, max_size=10))
def test_a_sequence_set_has_the_refs_that_were_added(some: list[Ref], others: list[Ref]) -> None:
    found = SequenceSet()
    for ref in some:
        found.add(ref, 1.0)
    assert all(ref in found for ref in some)
    assert not any(ref in found for ref in others if ref not in some)
    assert set(found.refs()) == set(some)
    found.forget_old(2.0)
    assert list(found.refs()) == []


def test_records_before_the_last_whole_generation_do_not_count() -> None:
    """Records of generations before the last whole one do not count."""
    ref = (origin_key(b"brokerid", 1), 7, b"marker")
    image = Image()
    image.begin()
    image._handle(
        [
            (17, record[5:])
            for record in (closed([ref]), taken([ref]), covered(b"marker", ref[0], [(1, 5)], 9))
        ]
    )
    assert len(image.shared) == 3
    again = [record for record in image.records() if record[0] == 17]
    assert [record[5:] for record in again] == image.shared
    image.begin()
    image._handle([(17, closed([ref])[5:]), (16, struct.pack(">QQ", 2, 0))])
    assert len(image.shared) == 1


def test_a_body_that_is_cut_off_is_refused() -> None:
    (body,) = encode_refs([(1, (origin_key(b"brokerid", 1), 7, b"marker"))])
    for size in range(1, len(body)):
        with pytest.raises(MalformedPacket):
            list(decode_refs(body[:size]))
