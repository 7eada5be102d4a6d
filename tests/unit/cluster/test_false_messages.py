"""A neighbour that says well-formed but false things of messages: no crash, nothing without a
bound, and others are served."""

from __future__ import annotations

from binascii import a2b_base64

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqttree.broker.base.sequence_set import LAST
from mqttree.broker.cluster.delivery.pull_messages import ENTRIES, ENTRIES_PIECE, PULL
from mqttree.broker.cluster.directory.link_state_directory import ROUTING
from mqttree.broker.cluster.link.control_records import (
    AGES,
    HEARD,
    ORIGINS,
    ROUTED,
    SEEN,
    TOLD,
    UPTO,
)
from mqttree.broker.cluster.link.origin_keys import origin_key
from mqttree.broker.cluster.link.version_vector import OriginWindow, encode_vector
from mqttree.broker.cluster.sharing.assignment_ledger import encode_refs
from mqttree.broker.cluster.strategy.path_change import BREAK, CHANGED
from mqttree.broker.wire.packets import Subscribe, SubscriptionRequest
from tests.kit.effort import examples
from tests.kit.link_harness import OWN, Neighbour, bid, lone, message, ping
from tests.kit.node_harness import FakeClient, World

NUMBERS = (1, 2, 3, 7, 1 << 31, (1 << 32) + 1, 1 << 47, LAST - 2, LAST - 1, LAST)
KEYS = (origin_key(bid(1), 1), origin_key(OWN, 1_000), origin_key(OWN, 7), origin_key(bid(9), 3))

numbers = st.sampled_from(NUMBERS)
keys = st.sampled_from(KEYS)
some = st.lists(numbers, min_size=2, max_size=12, unique=True)
pairs = some.map(lambda n: list(zip(sorted(n)[::2], sorted(n)[1::2], strict=False)))
sent = st.builds(
    lambda k, n, q: message(key=k, sequence=n, qos=q), keys, numbers, st.integers(0, 2)
)


def u48(number: int) -> bytes:
    return number.to_bytes(6, "big")


def told(world: World, liar: Neighbour, *entries: tuple[bytes, bytes | None]) -> None:
    """Let the neighbour be known in the directory."""
    word = (1).to_bytes(4, "big") + world.node.config.routing.encode()
    liar.post((ROUTING, word), *entries)


def routed(kind: int, body: bytes) -> bytes:
    return ping((ROUTED, OWN + bid(1) + bytes((0, kind)) + body))


def vector(said: dict[bytes, list[tuple[int, int]]]) -> bytes:
    windows = {}
    for key, ranges in said.items():
        windows[key] = window = OriginWindow(ranges[-1][1], 0.0)
        window.gaps = ranges
    return encode_vector(windows)


def refs(operation: int, key: bytes, number: int) -> bytes:
    return encode_refs([(operation, (key, number, b"marker"))])[0]


states = st.sampled_from((bytes(12), b"\xff" * 12))
small = st.integers(0, 12)
lies = st.one_of(
    st.builds(lambda k, n: ping((UPTO, a2b_base64(k) + u48(n))), keys, numbers),
    st.builds(
        lambda t, s: ping((t, vector(s))),
        st.sampled_from((SEEN, ORIGINS)),
        st.dictionaries(keys, pairs, min_size=1),
    ),
    st.builds(
        lambda h, k, n, a: ping(
            (AGES, bytes((h, 5)) + a2b_base64(k) + b"\0\1" + u48(n) + a.to_bytes(4, "big"))
        ),
        st.sampled_from((0, 1, 64, 255)),
        keys,
        numbers,
        st.sampled_from((0, 1, 0xFFFFFFFF)),
    ),
    st.builds(
        lambda k, s, n: ping((TOLD, a2b_base64(k)[:8] + s + n.to_bytes(4, "big"))),
        keys,
        states,
        small,
    ),
    st.builds(
        lambda b, w, n, t: ping(
            (HEARD, a2b_base64(b)[:8] + n.to_bytes(4, "big") + a2b_base64(w) + u48(t))
        ),
        keys,
        keys,
        small,
        numbers,
    ),
    st.builds(
        lambda s, n, k, b, r: routed(
            PULL,
            s
            + n.to_bytes(4, "big")
            + a2b_base64(k)
            + bytes((b,))
            + b"\0"
            + b"".join(u48(low) + u48(high) for low, high in r),
        ),
        states,
        small,
        keys,
        st.booleans(),
        pairs,
    ),
    st.builds(
        lambda kind, n, i, f, t, p, d: routed(
            kind,
            bytes(12)
            + n.to_bytes(4, "big")
            + i.to_bytes(4, "big")
            + bytes((f,))
            + u48(t) * 2
            + p
            + d,
        ),
        st.sampled_from((ENTRIES, ENTRIES_PIECE)),
        small,
        st.integers(0, 2),
        st.integers(0, 3),
        numbers,
        st.one_of(
            st.just(b"\0" + bytes(6)),
            st.builds(lambda c, n: b"\1" + u48(c) + u48(n), numbers, numbers),
        ),
        st.one_of(st.just(b""), sent),
    ),
    st.builds(
        routed, st.sampled_from((BREAK, CHANGED)), st.sampled_from((b"", bid(1), OWN, bid(9)))
    ),
    st.builds(
        lambda t, f: routed(16, t.to_bytes(2, "big") + f),
        st.sampled_from((0, 1, 0xFFFF)),
        st.sampled_from((b"", b"\0\1t", b"\0\1#", b"\0\0", b"\xff\xff", b"\0\1\xff")),
    ),
    st.builds(
        lambda kind, op, k, n: routed(kind, (b"" if kind != 12 else bytes(4)) + refs(op, k, n)),
        st.sampled_from((10, 11, 12)),
        st.integers(0, 9),
        keys,
        numbers,
    ),
    st.builds(
        lambda b: routed(14, b),
        st.sampled_from((b"", b"marker\xff\xff\xff\xff", b"marker\0\0\0\0")),
    ),
    st.builds(lambda b: routed(13, b), st.sampled_from((b"", b"marker", b"marker" * 1000))),
    sent,
    st.sampled_from((0.1, 1.5, 6.0, 40.0)),
)


def wants(client: FakeClient, topic_filter: str) -> None:
    """Subscribe; SUBACK comes when it comes."""
    client.send(Subscribe(1, [SubscriptionRequest(topic_filter, 2)]))


@pytest.mark.parametrize("routing", ["interest", "topic"])
@settings(max_examples=examples(25))
@given(st.lists(lies, max_size=14))
def test_false_statements_of_a_neighbour_break_no_invariant(
    routing: str, said: list[bytes | float]
) -> None:
    world = lone(routing=routing, link_timeout=1000.0)
    client = world.connect("c")
    wants(client, "#")
    liar = Neighbour(world, 1).child()
    told(world, liar)
    wants(client, "t")
    world.advance(0.1)
    for one in said:
        if isinstance(one, float):
            world.advance(one)
        elif liar.up:
            liar.send(one)
        world.advance(0.01)
    wants(client, "u")
    world.advance(2.0)
    liar.conn.abort("enough")
    world.advance(10.0)
    client.take()
    client.publish("here", b"still served")
    assert [packet.payload for packet in client.take_publishes()] == [b"still served"]
