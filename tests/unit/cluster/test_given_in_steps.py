"""A session that is encoded in steps for another broker is what it was when that asked for it
(handover.py)."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.base.turns import PAUSE
from mqttree.broker.cluster.sessions.session_parts import WHERE
from mqttree.broker.cluster.sessions.session_records import WRITE_WORK
from mqttree.broker.cluster.sessions.session_state import SessionState
from mqttree.broker.cluster.sessions.takeover_messages import (
    DONE,
    MERGE,
    NOTHING,
    SESSION_ANSWER,
    SESSION_PART,
    SESSION_REQUEST,
    TAKE,
    decode_takeover,
    encode_takeover,
)
from mqttree.broker.core.session_owner import digest
from mqttree.broker.limits import Limits
from mqttree.broker.wire.packets import Connack
from mqttree.broker.wire.properties import Property
from tests.kit.heads import decode_head
from tests.kit.link_harness import Neighbour, lone, routed
from tests.kit.node_harness import connect_packet

FILTERS = [f"t/{number}" for number in range(12)]
EXPIRY = {Property.SESSION_EXPIRY_INTERVAL: 1000}


ONE_AT_A_TIME = Limits(session_written=1, turn_work=WRITE_WORK)
"""Each subscription takes a turn of its own."""


class Holding:
    """The node has the session of `k`, and a neighbour takes it."""

    def __init__(self) -> None:
        self.world = lone(routing="flood", link_timeout=1000.0, limits=ONE_AT_A_TIME)
        self.neighbour = Neighbour(self.world, 101).child().known()
        self.publisher = self.world.connect("p")
        client = self.world.connect("k", clean=False, properties=EXPIRY)
        for topic_filter in FILTERS:
            client.subscribe(topic_filter, qos=1)
        client.vanish()
        self.stamp = self.world.session("k").stamp + (1 << 40)
        self.sent = 0
        self.parts: dict[tuple[int, int, int], dict[int, bytes]] = defaultdict(dict)
        """By request, stamp and number of the export."""
        self.sizes: dict[tuple[int, int, int], int] = {}

    @property
    def encoding(self) -> bool:
        export = self.world.node.cluster.handover._exports.get("k")
        return export is not None and export.data is None

    def ask(self, request: int) -> None:
        own = self.world.node.sessions.get("k")
        copy = (0 if own is None else own.stamp).to_bytes(8, "big")
        body = encode_takeover(request, self.stamp, "k", bytes(4) + digest(None) + copy)
        self.neighbour.send(routed(SESSION_REQUEST, body))
        self.collect()

    def collect(self) -> None:
        for body in self.neighbour.routed(SESSION_PART):
            what, stamp, _, rest = decode_takeover(body)
            number, size, at = WHERE.unpack_from(rest)
            self.parts[what, stamp, number][at] = rest[WHERE.size :]
            self.sizes[what, stamp, number] = size

    def publish(self, number: int) -> None:
        self.sent += 1
        self.publisher.publish(f"t/{number}", b"%d" % self.sent, 1, packet_id=self.sent)
        self.collect()

    def turn(self) -> None:
        self.world.now += PAUSE
        self.world.node.tick(self.world.now)
        self.world.settle()
        self.collect()

    def whole(self, request: int) -> list[bytes]:
        """What has come whole for the newest connection."""
        found = []
        for key, parts in self.parts.items():
            data = b"".join(parts[at] for at in sorted(parts))
            if key[:2] == (request, self.stamp) and len(data) == self.sizes[key]:
                found.append(data)
        return found

    def taken(self, request: int) -> SessionState:
        self.ask(request)
        for _ in range(100):
            if not self.encoding:
                break
            self.turn()
        (data,) = self.whole(request)
        return decode_head(data, self.world.now)


step = st.one_of(
    st.just("turn"),
    st.just("again"),
    st.just("newer"),
    st.just("cut"),
    st.integers(0, len(FILTERS) - 1),
)


@given(st.lists(step, max_size=30))
def test_each_message_is_in_the_queue_that_follows(steps: list[str | int]) -> None:
    """Whatever is published, however often it is asked for, by whichever connection, also over a
    link that breaks."""
    holding = Holding()
    holding.ask(TAKE)
    for one in steps:
        if one == "turn":
            holding.turn()
        elif one == "again":
            holding.ask(TAKE)
        elif one == "newer":  # the client has connected there once more
            holding.stamp += 1 << 20
            holding.ask(TAKE)
        elif one == "cut":
            holding.world.node.connection_lost(holding.neighbour.conn, "reset", holding.world.now)
            holding.world.settle()
            holding.neighbour = Neighbour(holding.world, 101, boot=holding.neighbour.boot).child()
            holding.neighbour.known(number=2)
            holding.parts.clear()
            holding.stamp += 1 << 20
        else:
            holding.publish(int(one))
    queued = {outgoing.message.sequence for outgoing in holding.world.session("k").queue}
    holding.stamp += 1 << 20
    state = holding.taken(TAKE)
    assert [entry[0] for entry in state.subscriptions] == FILTERS
    assert not state.items
    holding.publish(0)
    rest = holding.taken(MERGE).items
    assert [int(item.message.payload) for item in rest] == list(range(1, holding.sent + 1))
    (lacking,) = state.lacking.values() or [[]]
    assert {number for low, high in lacking for number in range(low, high + 1)} == queued
    holding.ask(DONE)
    assert "k" not in holding.world.node.sessions


@pytest.mark.parametrize("turns", [0, 1, 5])
def test_a_client_that_comes_back_during_the_encoding_keeps_its_session(turns: int) -> None:
    holding = Holding()
    holding.ask(TAKE)
    for _ in range(turns):
        holding.turn()
    assert holding.encoding
    holding.publish(3)
    holding.stamp -= 1 << 40  # of its connection at the neighbour, which the one here is newer than
    client = holding.world.open().sent(connect_packet("k", clean=False, properties=EXPIRY))
    # The neighbour might have it by now.
    pending = holding.world.node.cluster.takeover._pending["k"]
    answer = encode_takeover(NOTHING, pending.stamp, "k")
    holding.neighbour.send(routed(SESSION_ANSWER, answer))
    connack = client.take()[0]
    assert isinstance(connack, Connack)
    assert connack.session_present
    for _ in range(30):
        holding.turn()
    assert client.conn is holding.world.session("k").conn
    assert set(holding.world.session("k").subscriptions) == set(FILTERS)
    assert not holding.parts
    assert not holding.world.node.cluster.handover.size


def test_a_session_that_ends_during_the_encoding_is_not_given() -> None:
    holding = Holding()
    holding.ask(TAKE)
    holding.turn()
    holding.world.node.end_session(holding.world.session("k"), None)
    for _ in range(30):
        holding.turn()
    assert not holding.parts
    assert not holding.world.node.cluster.handover.size
