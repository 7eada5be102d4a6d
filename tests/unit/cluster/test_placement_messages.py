"""What brokers tell each other about placement, as bytes."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.cluster.placement.placement_messages import (
    MAX_BYTES,
    MAX_CLIENTS,
    decode_clients,
    decode_question,
    decode_rates,
    decode_redirect,
    encode_clients,
    encode_question,
    encode_rates,
    encode_redirect,
)
from mqttree.broker.cluster.placement.traffic_entry import (
    COUNTS,
    Counts,
    Traffic,
    TrafficEntry,
    encode_counts,
    encode_traffic,
    read_counts,
    read_traffic,
)
from mqttree.broker.wire.errors import MalformedPacket
from tests.kit.link_harness import lone

RATE = st.floats(0, 1e6, width=32)


def test_questions_are_read_as_they_were_written() -> None:
    assert decode_question(encode_question(2, {"a": "ü"})) == (2, {"a": "ü"})


@given(st.dictionaries(st.sampled_from(["a", "b/c", "ü", "x" * 512]), RATE), RATE)
def test_rates_are_read_as_they_were_written(rates: dict[str, float], rest: float) -> None:
    data = encode_rates([(topic.encode(), rate) for topic, rate in rates.items()], rest, 9)
    assert decode_rates(data) == (rates, rest, 9)


def test_topics_without_room_count_with_the_others() -> None:
    rates = [(b"%d" % n + b"x" * 500, 1.0) for n in range(1200)] + [(b"y" * 513, 2.0)]
    data = encode_rates(rates, 0.0, 0)
    assert len(data) <= MAX_BYTES
    found, rest, others = decode_rates(data)
    assert len(found) + others == 1201
    assert sum(found.values()) + rest == 1202


def test_clients_that_may_be_moved_are_read_as_they_were_written() -> None:
    assert decode_clients(encode_clients(7, [{"client": "ü"}])) == (7, [{"client": "ü"}])
    assert decode_clients(encode_clients(0, [])) == (0, [])
    assert decode_redirect(encode_redirect("ü", "h:1")) == ("ü", "h:1")


def test_clients_without_room_are_left_out() -> None:
    many = [{"client": f"c{n}", "subscribe": ["x" * 9000]} for n in range(90)]
    data = encode_clients(90, many)
    assert len(data) <= MAX_BYTES
    connected, found = decode_clients(data)
    assert connected == 90
    assert found == many[: len(found)]
    assert len(found) > 20
    few = encode_clients(200, [{"client": f"c{n}"} for n in range(200)])
    assert len(decode_clients(few)[1]) == MAX_CLIENTS


@pytest.mark.parametrize(
    "data",
    [
        b"[]",
        b"{}",
        b'{"connected": -1, "clients": []}',
        b'{"connected": 1.5, "clients": []}',
        b'{"connected": true, "clients": []}',
        b'{"connected": 1, "clients": {}}',
        b'{"client": 1, "address": "h:1"}',
        b'{"client": "c"}',
        b" " * (MAX_BYTES + 1) + b'{"connected": 1, "clients": []}',
    ],
)
def test_what_says_no_clients_is_malformed(data: bytes) -> None:
    for read in (decode_clients, decode_redirect):
        with pytest.raises(MalformedPacket):
            read(data)


@given(st.binary(max_size=200))
def test_garbage_is_malformed_or_read(data: bytes) -> None:
    for read in (decode_question, decode_rates, decode_clients, decode_redirect):
        try:
            read(data)
        except MalformedPacket:
            continue


@pytest.mark.parametrize("rate", [math.nan, math.inf, -1.0])
def test_a_number_that_is_no_rate_is_malformed(rate: float) -> None:
    topic = struct.pack(">H", 1) + b"a" + struct.pack(">f", rate)
    for data in (struct.pack(">dI", rate, 0), struct.pack(">dI", 0.0, 0) + topic):
        with pytest.raises(MalformedPacket):
            decode_rates(data)


def test_json_that_is_nested_too_deeply_is_malformed() -> None:
    with pytest.raises(MalformedPacket):
        decode_question(b"\1" + b"[" * 100_000)


def test_the_traffic_of_a_broker_is_read_as_it_was_written() -> None:
    traffic = Traffic(1.0, 2.0, 3.0, 4.0, 5.0)
    assert read_traffic(encode_traffic(traffic)) == traffic
    assert read_traffic(None) is None
    assert read_traffic(b"short") is None
    for wrong in (math.nan, math.inf, -1.0):
        assert read_traffic(struct.pack(">5f", 1, 1, 1, 1, wrong)) is None


def test_counts_are_read_as_they_were_posted() -> None:
    assert encode_counts(Counts(3, 258)).hex() == "0000000300000102"
    for counts in (Counts(0, 0), Counts(3, 258), Counts(2**32 - 1, 1)):
        assert read_counts(encode_counts(counts)) == counts
    assert read_counts(encode_counts(Counts(2**40, 1))) == Counts(2**32 - 1, 1)
    assert read_counts(encode_counts(Counts(1, 2)) + b"more") == Counts(1, 2)
    assert read_counts(None) is None
    assert read_counts(b"1234567") is None


def test_counts_are_posted_again_when_they_have_changed_by_a_tenth() -> None:
    directory = lone().node.cluster.directory
    entry = TrafficEntry(directory)
    posted = []
    for sessions in (100, 105, 110, 111, 99, 100):
        entry.count(Counts(0, sessions))
        posted.append(read_counts(directory.database.own_entry(COUNTS)))
    assert [counts.sessions for counts in posted if counts] == [100, 100, 100, 111, 99, 99]
    entry.count(Counts(1, 100))
    assert read_counts(directory.database.own_entry(COUNTS)) == Counts(1, 100)
