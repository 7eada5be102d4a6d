"""A broker that hands over a session with false contents: they do no more than a client could
(takeover.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mqttree.broker.cluster.directory.link_state_directory import CLIENT, POST_INTERVAL
from mqttree.broker.cluster.link.control_records import HEARD, ROUTED, TOLD
from mqttree.broker.cluster.link.origin_keys import origin_key
from mqttree.broker.cluster.sessions.session_parts import WHERE
from mqttree.broker.cluster.sessions.session_state import (
    IN_FLIGHT,
    WAITING,
    Item,
    SessionState,
    put_off_queue,
)
from mqttree.broker.cluster.sessions.takeover_messages import (
    COMING,
    ENDED,
    MERGE,
    SESSION_ANSWER,
    SESSION_PART,
    TAKE,
    encode_takeover,
)
from mqttree.broker.core.delivery_queue import Outgoing
from mqttree.broker.core.message import Message
from mqttree.broker.core.session_owner import ANONYMOUS, GONE, KEPT, Entry, decode_entry
from mqttree.broker.wire.errors import MalformedPacket
from mqttree.broker.wire.packets import Connack
from mqttree.broker.wire.properties import Property
from tests.kit.heads import decode_head, encode_head
from tests.kit.journal_harness import Durable
from tests.kit.link_harness import Neighbour, bid, ping
from tests.kit.node_harness import connect_packet
from tests.unit.persistence.test_journal import copy_of

FOREVER: Any = {Property.SESSION_EXPIRY_INTERVAL: 0xFFFFFFFF}


class Holder:
    """A neighbour that says that it has the session of `k`."""

    def __init__(
        self,
        session: Callable[[], SessionState],
        *,
        queue: bool = True,
        meanwhile: Callable[[Durable], object] = lambda _: None,
        **config: Any,
    ) -> None:
        """`session`: what the holder sends, at last with its queue (`queue`); `meanwhile`: what
        happens before that comes."""
        self.world = Durable(discovery="static", **config)
        self.neighbour = Neighbour(self.world, 101).child()
        self.stamp = 5 << 16
        entry = Entry(KEPT, self.stamp, self.stamp, 0, ANONYMOUS)
        self.neighbour.post((CLIENT + b"k", entry.encode()))
        self.client = self.world.open().sent(connect_packet("k", clean=False, properties=FOREVER))
        pull = self.world.node.cluster.takeover._pending["k"]
        meanwhile(self.world)
        for what in (TAKE, MERGE) if queue else (TAKE,):
            self.say(SESSION_ANSWER, encode_takeover(COMING, pull.stamp, "k"))
            state = session()
            if what == TAKE:
                put_off_queue(state)
            data = encode_head(state, 0.0)
            part = WHERE.pack(1, len(data), 0) + data
            self.say(SESSION_PART, encode_takeover(what, pull.stamp, "k", part))
            self.world.advance(POST_INTERVAL)
            # What the session wants here is known everywhere.
            for told in self.neighbour.records(TOLD):
                self.neighbour.send(
                    ping((HEARD, told[:8] + told[20:] + bid(101) + bytes((0, 0, 0, 1)) + bytes(6)))
                )
            self.world.advance(0.2)
        self.written = copy_of(self.world.files)
        self.say(SESSION_ANSWER, encode_takeover(ENDED, pull.stamp, "k"))

    def say(self, kind: int, body: bytes) -> None:
        """Say something to this broker alone."""
        own = self.world.node.config.id
        self.neighbour.send(ping((ROUTED, own + bid(101) + bytes((0, kind)) + body)))


def waits(place: int = WAITING, key: bytes = origin_key(bid(102), 1)) -> SessionState:
    """A session that has a message."""
    message = Message(b"a", b"waits", 1, False, b"", None, None).named(key, 1)
    return state(Item(place, int(place == IN_FLIGHT), 1, False, b"", message))


def state(*items: Item, expiry: float = 1e9) -> SessionState:
    return SessionState(None, expiry, 0, {}, set(), [("a", 1, False, False, 0)], list(items))


def test_a_session_is_taken() -> None:
    holder = Holder(waits)
    packets = holder.client.take()
    assert isinstance(packets[0], Connack)
    assert packets[0].session_present
    assert len(holder.world.session("k").inflight) == 1
    # Before the holder forgets it, it is in our journal: one of us may be killed.
    again = holder.world.again(0.1, holder.written)
    (sent,) = again.session("k").inflight.values()
    assert isinstance(sent, Outgoing)
    assert sent.message.payload == b"waits"


def test_a_session_is_taken_though_its_client_is_refused() -> None:
    """The broker is full meanwhile. It is here then, as that of any client that is away."""

    def meanwhile(world: Durable) -> None:
        world.connect("another")

    holder = Holder(lambda: state(expiry=50.0), meanwhile=meanwhile, max_connections=1)
    world = holder.world
    session = world.session("k")
    assert session.conn is None
    assert CLIENT + b"k" in world.node.cluster.directory.database.own.entries
    world.advance(49)
    assert world.session("k") is session
    world.advance(2)
    assert "k" not in world.node.sessions
    (entry,) = [
        decode_entry(v)
        for k, v in world.node.cluster.directory.database.own.entries.items()
        if k == CLIENT + b"k"
    ]
    assert entry is not None
    assert entry.flags == GONE  # as long as the holder announces the older one


def test_a_user_name_that_is_too_long_is_refused() -> None:
    with pytest.raises(MalformedPacket):
        decode_head(encode_head(SessionState("u" * 65_536), 0.0), 0.0)


def test_a_message_of_a_malformed_origin_is_refused() -> None:
    """What came with it would be sent to the next broker that takes the session."""
    holder = Holder(lambda: waits(IN_FLIGHT, b"!" * 15 + b"x"), queue=False, routing="interest")
    assert isinstance(holder.client.take()[0], Connack)
    assert not holder.world.node.cluster.evaluated.highest
    assert holder.world.counters.session_takeovers_timed_out == 1


def test_a_session_of_another_user_is_not_taken() -> None:
    """Its entry says that it is this user's: it is not taken all the same, nor is its holder asked
    to forget it."""

    def whose() -> SessionState:
        return SessionState(
            None, 1e9, 0, {}, set(), [("a", 1, False, False, 0)], owner="anna", created=1
        )

    holder = Holder(whose, queue=False)
    (connack,) = holder.client.take()
    assert isinstance(connack, Connack)
    assert connack.code == 0x85
    assert "k" not in holder.world.node.sessions
    assert holder.world.counters.sessions_wrong_user == 1
