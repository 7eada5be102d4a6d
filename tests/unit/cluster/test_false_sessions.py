"""A broker that hands over a session with false contents: they do no more than a client could
(takeover.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mqttree.broker.cluster.delivery.gap_recovery import UNKNOWN_ORIGIN_S
from mqttree.broker.cluster.directory.link_state_directory import CLIENT, POST_INTERVAL
from mqttree.broker.cluster.link.control_records import HEARD, ROUTED, TOLD
from mqttree.broker.cluster.link.origin_keys import origin_key
from mqttree.broker.cluster.sessions.session_parts import WHERE
from mqttree.broker.cluster.sessions.session_state import WAITING, Item, SessionState
from mqttree.broker.cluster.sessions.takeover_messages import (
    COMING,
    ENDED,
    REST,
    SESSION_ANSWER,
    SESSION_PART,
    TAKE,
    encode_takeover,
)
from mqttree.broker.core.message import Message
from mqttree.broker.core.session_owner import ANONYMOUS, GONE, KEPT, Entry, decode_entry
from mqttree.broker.wire import Connack, Property, Publish
from mqttree.broker.wire.errors import MalformedPacket
from tests.kit.heads import decode_head, encode_head
from tests.kit.journal_harness import Durable
from tests.kit.link_harness import Neighbour, bid, message, ping
from tests.kit.node_harness import connect_packet
from tests.unit.persistence.test_journal import copy_of

FOREVER: Any = {Property.SESSION_EXPIRY_INTERVAL: 0xFFFFFFFF}


class Holder:
    """A neighbour that says that it has the session of `k`."""

    def __init__(
        self,
        state: bytes,
        rest: bytes,
        *,
        passed: bytes = b"",
        meanwhile: Callable[[Durable], object] = lambda _: None,
        **config: Any,
    ) -> None:
        """`passed`: messages that come over the link; `meanwhile`: what happens before the holder
        has forgotten the session."""
        self.world = Durable(discovery="static", **config)
        self.neighbour = Neighbour(self.world, 101)
        self.neighbour.child()
        self.stamp = 5 << 16
        entry = Entry(KEPT, self.stamp, self.stamp, 0, ANONYMOUS)
        self.neighbour.post((CLIENT + b"k", entry.encode()))
        self.client = self.world.open()
        self.client.send(connect_packet("k", clean=False, properties=FOREVER))
        pull = self.world.node.cluster.takeover._pending["k"]
        for what, data in ((TAKE, state), (REST, bytes(4) + rest)):
            self.say(SESSION_ANSWER, encode_takeover(COMING, pull.stamp, "k"))
            part = WHERE.pack(1, len(data), 0) + data
            self.say(SESSION_PART, encode_takeover(what, pull.stamp, "k", part))
            self.world.advance(POST_INTERVAL)
            # What the session wants here is known everywhere.
            for told in self.neighbour.records(TOLD):
                self.neighbour.send(
                    ping((HEARD, told[:8] + told[20:] + bid(101) + bytes((0, 0, 0, 1)) + bytes(6)))
                )
            self.world.advance(0.2)
            if what == TAKE and passed:
                self.neighbour.send(passed)
        self.written = copy_of(self.world.files)
        meanwhile(self.world)
        self.say(SESSION_ANSWER, encode_takeover(ENDED, pull.stamp, "k"))

    def say(self, kind: int, body: bytes) -> None:
        """Say something to this broker alone."""
        own = self.world.node.config.id
        self.neighbour.send(ping((ROUTED, own + bid(101) + bytes((0, kind)) + body)))


def state(*items: Item, expiry: float = 1e9) -> bytes:
    return encode_head(
        SessionState(None, expiry, 0, {}, set(), [("a", 1, False, False, 0)], list(items)), 0.0
    )


def test_a_session_is_taken() -> None:
    holder = Holder(
        state(Item(WAITING, 0, 1, False, b"", Message(b"a", b"waits", 1, False, b"", None, None))),
        b"",
    )
    packets = holder.client.take()
    assert isinstance(packets[0], Connack)
    assert packets[0].session_present
    assert len(holder.world.session("k").inflight) == 1
    # Before the holder forgets it, it is in our journal: one of us may be killed.
    again = holder.world.again(0.1, holder.written)
    assert [outgoing.message.payload for outgoing in again.session("k").queue] == [b"waits"]


@pytest.mark.parametrize("why", ["it is full", "its client is gone"])
def test_a_session_is_taken_though_its_client_is_gone(why: str) -> None:
    """It is here then, as that of any client that is away."""

    def meanwhile(world: Durable) -> None:
        if why == "it is full":
            world.connect("another")
        else:
            world.peers[-1].conn.close()
            world.settle()

    holder = Holder(state(expiry=50.0), b"", meanwhile=meanwhile, max_connections=1)
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


def test_messages_held_here_are_not_taken_from_the_holder() -> None:
    """It is here, and waits for older messages: the session gets it when all others here do."""
    key = origin_key(bid(102), 1)
    third, fifth = (
        message(b"a", b"third", key=key, sequence=3),
        message(b"a", b"fifth", key=key, sequence=5),
    )
    holder = Holder(state(), third + fifth, passed=third, routing="interest")
    feed = holder.world.node.cluster.forwarder.vector[key].feed
    assert feed is not None
    assert (feed.done, feed.held_count) == (2, 1)

    def got() -> list[bytes]:
        return [packet.payload for packet in holder.client.take() if isinstance(packet, Publish)]

    assert got() == [b"fifth"]
    holder.world.advance(UNKNOWN_ORIGIN_S + 0.1)  # so long it waits for what no broker has
    assert got() == [b"third"]


def test_a_user_name_that_is_too_long_is_refused() -> None:
    with pytest.raises(MalformedPacket):
        decode_head(encode_head(SessionState("u" * 65_536), 0.0), 0.0)


def test_a_message_of_a_malformed_origin_is_refused() -> None:
    """What came with it would be sent to the next broker that takes the session."""
    holder = Holder(state(), message(topic=b"a", key=b"!" * 15 + b"x"), routing="interest")
    assert isinstance(holder.client.take()[0], Connack)
    assert not holder.world.node.cluster.evaluated.highest
    assert holder.world.counters.session_takeovers_timed_out == 1


def test_a_session_of_another_user_is_not_taken() -> None:
    """Its entry says that it is this user's: it is not taken all the same, nor is its holder asked
    to forget it."""
    whose = SessionState(
        None, 1e9, 0, {}, set(), [("a", 1, False, False, 0)], owner="anna", created=1
    )
    holder = Holder(encode_head(whose, 0.0), b"")
    (connack,) = holder.client.take()
    assert isinstance(connack, Connack)
    assert connack.code == 0x85
    assert "k" not in holder.world.node.sessions
    assert holder.world.counters.sessions_wrong_user == 1
