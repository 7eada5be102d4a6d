"""Where things are in a PUBLISH: the same as the codec says."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from mqttree.broker.wire.publish_header import (
    DUP,
    HIGH,
    LOW,
    PACKET_IDS,
    PUBACK_HEAD,
    PUBCOMP_HEAD,
    PUBLISH,
    PUBREC_HEAD,
    PUBREL_HEAD,
    QOS_BITS,
    RETAIN,
    packet_id_at,
    packet_size,
    topic_end,
    topic_of,
)
from mqttree.broker.wire.varint import read_length
from tests.text.test_architecture import modules, read

LOOPS = {
    "broker/core/client_packets.py": 1,
    "broker/core/qos_fast_path.py": 1,
    "broker/cluster/delivery/incoming_batch.py": 1,
}
"""Modules that have `topic_end` written out, and how often: `publish_header` says why."""
WRITTEN_OUT = re.compile(r"\w+ \+ 2 \+ \((\w+)\[(\w+)\] << 8 \| \1\[\2 \+ 1\]\)")
HEADS = re.compile(r"""b["']\\x(40|50|62|70)\\x02""")


@given(
    st.text("ab/", min_size=1, max_size=300),
    st.binary(max_size=200),
    st.integers(0, 2),
    st.booleans(),
    st.booleans(),
    st.integers(1, 65_535),
    st.sampled_from((3, 4, 5)),
)
def test_the_header_of_a_publish_is_found_as_the_codec_does(
    topic: str, payload: bytes, qos: int, retain: bool, dup: bool, packet_id: int, version: int
) -> None:
    packet = Publish(
        topic,
        payload,
        qos,
        retain=retain,
        dup=dup and qos > 0,
        packet_id=packet_id if qos else None,
    )
    data = encode_packet(packet, version)
    first = data[0]
    assert first & 0xF0 == PUBLISH
    assert (first & QOS_BITS) >> 1 == qos
    assert bool(first & RETAIN) is retain
    assert bool(first & DUP) is packet.dup
    assert packet_size(data[:5]) == len(data)
    assert topic_of(data) == topic.encode()
    body = read_length(data, 1)[1]
    end = topic_end(data, body)
    assert data[body + 2 : end] == topic.encode()
    if qos:
        assert packet_id_at(data, end) == packet_id
        assert data[end : end + 2] == PACKET_IDS[packet_id]
    assert data[end + (2 if qos else 0) + (version == 5) :] == payload


def test_acknowledgements_are_found_as_the_codec_does() -> None:
    for kind, head in (
        (Puback, PUBACK_HEAD),
        (Pubrec, PUBREC_HEAD),
        (Pubrel, PUBREL_HEAD),
        (Pubcomp, PUBCOMP_HEAD),
    ):
        data = encode_packet(kind(258), 5)
        assert data == head + PACKET_IDS[258]


def test_offsets_of_a_publish_stand_in_one_module() -> None:
    for module in modules():
        if not module.startswith("broker/") or module.startswith("broker/wire/"):
            continue
        source = read(module)
        assert len(WRITTEN_OUT.findall(source)) == LOOPS.get(module, 0), module
        assert not HEADS.search(source), f"{module}: a head of an acknowledgement as a literal"


def test_the_tables_of_packet_identifiers() -> None:
    assert [number.to_bytes(2, "big") for number in range(65536)] == PACKET_IDS
    assert [bytes(pair) for pair in zip(HIGH, LOW, strict=True)] == PACKET_IDS
