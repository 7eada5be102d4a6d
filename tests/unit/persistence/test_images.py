"""Images of other brokers at their standby."""

from __future__ import annotations

import pytest

from mqttree.broker.cluster.directory.link_state_directory import (
    IMAGES,
    STANDBY,
    PostedStandby,
    encode_posted,
)
from mqttree.broker.cluster.link.stream_packets import (
    BEGIN,
    DROP,
    END,
    FRAME,
    HAVE,
    decode_stream,
    encode_stream,
)
from mqttree.broker.cluster.sessions.image_states import State
from mqttree.broker.cluster.sessions.records import Kind, encode_record
from mqttree.broker.limits import DEFAULTS
from mqttree.broker.persistence.frames import encode_frame
from mqttree.broker.persistence.images import POST_INTERVAL_S, StandbyImage
from mqttree.broker.wire.varint import encode_varint
from tests.kit.link_harness import OWN, Neighbour, lone
from tests.kit.node_harness import World

EMPTY_SESSION = bytes((Kind.SESSION, 0, 0, 0, 0))


def frame(size: int = 0) -> bytes:
    return encode_frame([encode_record(Kind.SHARED, bytes(40 + size))], 1)


def begun(world: World, number: int = 1, epoch: int = 1) -> Neighbour:
    owner = Neighbour(world, number)
    owner.send(encode_stream(BEGIN, epoch, 7))
    return owner


def images(world: World) -> list[StandbyImage]:
    return list(world.node.images.images.values())


def told(owner: Neighbour) -> list[tuple[int, int, int]]:
    """Kind, epoch and LSN of the packets of streams that the owner was sent."""
    found = []
    for first, body in owner.packets():
        if first == 0x32 and body[2:9] == b"$stream":
            data = bytes((first,)) + encode_varint(len(body)) + body
            found.append(decode_stream(data, len(data) - len(body))[:3])
    return found


def test_the_owner_hears_once_a_turn_what_is_here() -> None:
    world = lone()
    owner = begun(world)
    owner.send(encode_stream(FRAME, 1, 8, frame()), encode_stream(FRAME, 1, 9, frame()))
    assert told(owner) == [(HAVE, 1, 9)]
    (image,) = images(world)
    assert image.state is State.LOADING
    owner.send(encode_stream(END, 1, 10, frame()))
    assert told(owner) == [(HAVE, 1, 10)]
    assert image.state is State.VALID
    assert world.node.images.size == 3 * len(frame()) == image.size


@pytest.mark.parametrize(
    ("packet", "why"),
    [
        (encode_stream(FRAME, 1, 10, frame()), "frame 10 behind frame 8"),
        (encode_stream(FRAME, 1, 8, frame()), "frame 8 behind frame 8"),
        (encode_stream(FRAME, 1, 9, frame()[:-1]), "cut off"),
        (encode_stream(FRAME, 1, 9, frame()[:-1] + b"x"), "damaged"),
        (encode_stream(FRAME, 1, 9, encode_frame([b"\xff\0\0\0\0"], 1)), "kind 255"),
        (encode_stream(FRAME, 1, 9, encode_frame([EMPTY_SESSION], 1)), "cannot be read"),
    ],
)
def test_what_is_wrong_drops_the_image_and_the_owner_hears_it(packet: bytes, why: str) -> None:
    world = lone()
    owner = begun(world)
    owner.send(encode_stream(FRAME, 1, 8, frame()))
    told(owner)
    owner.send(packet)
    assert told(owner) == [(HAVE, 1, 0)]
    assert not images(world)
    assert world.node.images.size == 0
    assert world.counters.image_faults == 1
    assert [why in line for line in world.logged if "image" in line] == [True]
    # What is still on its way is nobody's; the link stays, and a new image can begin.
    owner.send(encode_stream(FRAME, 1, 11, frame()), encode_stream(BEGIN, 2, 11))
    assert owner.up
    assert len(images(world)) == 1


def test_a_second_end_of_the_snapshot_is_wrong() -> None:
    world = lone()
    begun(world).send(encode_stream(END, 1, 8, frame()), encode_stream(END, 1, 9, frame()))
    assert world.counters.image_faults == 1


def test_a_packet_that_is_cut_off_closes_the_link() -> None:
    world = lone()
    owner = begun(world)
    data = encode_stream(FRAME, 1, 8)
    owner.send(data[:1] + b"\x0c" + data[2:14])
    assert not owner.up
    assert world.counters.link_garbage == 1


def test_all_images_have_a_quarter_of_the_memory_and_the_largest_goes_first() -> None:
    world = lone(memory_limit=40_000)
    one, other = begun(world, 1), begun(world, 2)
    one.send(encode_stream(END, 1, 8, frame(6_000)))
    other.send(encode_stream(END, 1, 8, frame(3_000)))
    told(one), told(other)
    other.send(encode_stream(FRAME, 1, 9, frame(2_000)))
    assert told(one) == [(HAVE, 1, 0)]
    assert told(other) == [(HAVE, 1, 9)]
    assert world.counters.images_dropped == 1
    assert world.node.images.size < 10_000


def test_the_last_whole_image_stays_while_the_next_one_is_loaded() -> None:
    world = lone()
    owner = begun(world)
    owner.send(encode_stream(END, 1, 8, frame()), encode_stream(BEGIN, 2, 8))
    assert [image.state for image in images(world)] == [State.VALID, State.LOADING]
    owner.send(encode_stream(BEGIN, 3, 8))
    assert [image.key[2] for image in images(world)] == [1, 3]
    owner.send(encode_stream(END, 3, 9, frame()), encode_stream(DROP, 1, 0))
    assert [image.key[2] for image in images(world)] == [3]


@pytest.mark.parametrize(
    ("entry", "stays"),
    [
        (encode_posted(5, [PostedStandby(OWN, 1, 5)]), True),
        (encode_posted(6, [PostedStandby(OWN, 1, 5), PostedStandby(b"x" * 8, 1, 6)]), True),
        (encode_posted(4, [PostedStandby(b"x" * 8, 1, 4)]), True),
        (encode_posted(4, []), True),
        (encode_posted(5, []), False),
        (encode_posted(5, [PostedStandby(b"x" * 8, 1, 4)]), False),
        (encode_posted(6, [PostedStandby(OWN, 1, 6)]), False),
        (encode_posted(6, [PostedStandby(b"x" * 8, 1, 5)]), False),
    ],
)
def test_an_image_goes_when_its_owner_posts_a_later_standby(entry: bytes, stays: bool) -> None:
    world = lone()
    owner = begun(world, epoch=5)
    owner.child()
    owner.send(encode_stream(END, 5, 8, frame()))
    owner.post((STANDBY, entry))
    assert len(images(world)) == stays


def test_when_the_link_is_lost_a_whole_image_stays_and_another_goes() -> None:
    world = lone()
    one, other = begun(world, 1), begun(world, 2)
    one.send(encode_stream(END, 1, 8, frame()))
    for owner in (one, other):
        world.node.connection_lost(owner.conn, "closed by peer", world.now)
    (image,) = images(world)
    assert image.key[0] == (1).to_bytes(8, "big")
    # Its next incarnation begins: nobody needs it any more.
    Neighbour(world, 1, boot=2).send(encode_stream(BEGIN, 1, 0))
    assert [image.key[1] for image in images(world)] == [2]


def test_how_many_bytes_images_have_is_posted() -> None:
    world = lone(limits=DEFAULTS.replace(link_requests=1e9))
    begun(world).send(encode_stream(END, 1, 8, frame(3 << 20)))
    world.advance(0.1)
    world.node.images._post(world.now + POST_INTERVAL_S)
    assert world.node.cluster.database.own_entry(IMAGES) == b"\0\0\0\3"
