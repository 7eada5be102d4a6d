"""What a standby does when the broker whose image it has is gone."""

from __future__ import annotations

import gc

import pytest

from mqttree.broker.cluster.directory.link_state_directory import (
    STANDBY,
    PostedStandby,
    encode_posted,
)
from mqttree.broker.cluster.link.origin_keys import origin_key
from mqttree.broker.cluster.link.stream_packets import BEGIN, END, encode_stream
from mqttree.broker.cluster.sessions.image import Image
from mqttree.broker.cluster.sessions.records import (
    NEW,
    EntryRecord,
    Kind,
    SessionRecord,
    encode_got,
    encode_origin,
    encode_record,
)
from mqttree.broker.cluster.sessions.session_parts import WHERE
from mqttree.broker.cluster.sessions.takeover_messages import (
    COMING,
    MERGE,
    NOTHING,
    SESSION_ANSWER,
    SESSION_PART,
    SESSION_REQUEST,
    TAKE,
    decode_takeover,
    encode_takeover,
)
from mqttree.broker.core.session_owner import ANONYMOUS
from mqttree.broker.limits import DEFAULTS
from mqttree.broker.persistence.frames import encode_frame
from mqttree.broker.persistence.succession import SWEEP_S
from tests.kit.heads import decode_head
from tests.kit.link_harness import OWN, Neighbour, batch_entry, bid, lone, routed

MESSAGES = 2_000


def test_the_messages_of_a_broker_that_is_gone_are_taken_in_steps() -> None:
    """Others are served meanwhile, however many there are, and however few were wanted here."""
    world = lone()
    client = world.connect().subscribed("wanted", qos=1)
    owner = Neighbour(world, 1).child()
    owner.post((STANDBY, encode_posted(1, [PostedStandby(OWN, 1_000, 1)])))
    key = origin_key(bid(1), 1)
    records = []
    for number in range(MESSAGES):
        entry = batch_entry(
            key, 1 + number, [(b"wanted" if number % 2 else b"not", b"%d" % number)]
        )
        wall = round(1000 * 1.7e9)
        records.append(EntryRecord(True, wall, entry.kept()).encode())
    owner.send(encode_stream(BEGIN, 1, 0), encode_stream(END, 1, 1, encode_frame(records, 1)))
    world.node.connection_lost(owner.conn, "closed by peer", world.now)
    log = world.node.cluster.forwarder.log
    assert 0 < world.most(1.0, lambda: len(log)) < MESSAGES / 4
    assert client.payloads() == [b"%d" % number for number in range(1, MESSAGES, 2)]
    # It has no session that a client could ask for.
    assert world.node.images.size
    world.advance(SWEEP_S + 1.0)
    assert not world.node.images.size


def test_an_image_that_is_dropped_is_freed() -> None:
    """It may be large: no timer has it still."""
    world = lone()
    owner = Neighbour(world, 1).child()
    owner.post((STANDBY, encode_posted(1, [PostedStandby(OWN, 1_000, 1)])))
    marked = b"%d" % id(world)
    frame = encode_frame([encode_record(Kind.SHARED, marked)], 1)
    owner.send(encode_stream(BEGIN, 1, 0), encode_stream(END, 1, 1, frame))
    world.node.connection_lost(owner.conn, "closed by peer", world.now)
    world.advance(1.0)
    assert world.node.counters.promotions == 1
    Neighbour(world, 1, boot=2).child().send(encode_stream(BEGIN, 1, 0))
    world.advance(1.0)
    gc.collect()
    images = (each for each in gc.get_objects() if isinstance(each, Image))
    assert not any(marked in image.shared for image in images)


def test_a_session_is_sent_when_the_messages_of_a_large_image_are_known() -> None:
    """They are read in steps; the taker hears at once that the session comes."""
    world = lone()
    owner, taker = Neighbour(world, 1), Neighbour(world, 2)
    for neighbour in (owner, taker):
        neighbour.child()
    taker.post()
    owner.post((STANDBY, encode_posted(1, [PostedStandby(OWN, 1_000, 1)])))
    key, wall = origin_key(bid(1), 1), round(1000 * 1.7e9)
    count = DEFAULTS.turn_work
    records = [
        EntryRecord(True, wall, batch_entry(key, number, [(b"a", b"%d" % number)]).kept()).encode()
        for number in range(1, 1 + count)
    ]
    records += [
        SessionRecord(7, NEW, 5, 1000.0, 4 << 16, wall, (4 << 16, 0), b"k").encode(),
        encode_origin(1, key),
        encode_got(1, count - 1, [place << 48 | 7 << 16 for place in (0, 1)]),
    ]
    owner.send(encode_stream(BEGIN, 1, 0), encode_stream(END, 1, 1, encode_frame(records, wall)))
    world.node.connection_lost(owner.conn, "closed by peer", world.now)
    request = encode_takeover(TAKE, 5 << 16, "k", bytes(4) + ANONYMOUS)
    taker.send(routed(SESSION_REQUEST, request, sender=bid(2)))
    assert [body[0] for body in taker.routed(SESSION_ANSWER)] == [COMING]
    assert not taker.routed(SESSION_PART)
    world.advance(0.05)
    (part,) = taker.routed(SESSION_PART)
    head = decode_head(decode_takeover(part)[3][WHERE.size :], world.now)
    assert not head.items
    assert head.lacking == {key: [(count - 1, count)]}
    rest = bytes(4) + ANONYMOUS + (4 << 16).to_bytes(8, "big")
    request = encode_takeover(MERGE, 5 << 16, "k", rest)
    taker.send(routed(SESSION_REQUEST, request, sender=bid(2)))
    # Clients that have no session yet go first.
    assert [body[0] for body in taker.routed(SESSION_ANSWER)] == [COMING]
    assert not taker.routed(SESSION_PART)
    world.advance(0.1)
    (part,) = taker.routed(SESSION_PART)
    head = decode_head(decode_takeover(part)[3][WHERE.size :], world.now)
    assert [item.message.name for item in head.items] == [(key, count - 1), (key, count)]


@pytest.mark.parametrize(("linked", "answer"), [(True, COMING), (False, NOTHING)])
def test_a_taker_waits_until_the_standby_has_noticed_the_death(linked: bool, answer: int) -> None:
    """It has heard of it before the link to the standby ended."""
    world = lone()
    owner, taker = Neighbour(world, 1), Neighbour(world, 2).child()
    taker.post()
    frame = encode_frame([encode_record(Kind.SHARED, bytes(40))], 1)
    owner.send(encode_stream(BEGIN, 1, 0), encode_stream(END, 1, 1, frame))
    if not linked:
        world.node.connection_lost(owner.conn, "closed by peer", world.now)
    request = encode_takeover(TAKE, 5 << 16, "k", bytes(4) + ANONYMOUS)
    taker.send(routed(SESSION_REQUEST, request, sender=bid(2)))
    world.advance(0.1)
    assert [body[0] for body in taker.routed(SESSION_ANSWER)] == [answer]
