"""Which publishers are paused because a subscriber is behind, and for how long."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mqttree.broker.base.log_limit import LogLimit
from mqttree.broker.base.timers import Timers
from mqttree.broker.base.turns import Rest, Turns
from mqttree.broker.core.connection import Connection
from mqttree.broker.core.flow_control import HOLD_RECHECK_S, HOLD_TIMEOUT_S, FlowControl
from mqttree.broker.limits import DEFAULTS, Limits
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import Publish
from tests.kit.node_harness import World


class Flow:
    """A broker on a virtual clock, and what it asked of other brokers."""

    def __init__(self) -> None:
        self.now = 100.0
        self.limits = DEFAULTS
        self.timers = Timers()
        self.lines: list[str] = []
        self.log_limit = LogLimit(self)
        self.remote: list[tuple[str, object]] = []
        remote_flow_control = SimpleNamespace(
            note=lambda reason, arrival: self.remote.append(("hold", reason)),
            released=lambda reason: self.remote.append(("release", reason)),
        )
        self.cluster: Any = SimpleNamespace(
            remote_flow_control=remote_flow_control,
        )

    def log(self, level: str, text: str) -> None:
        self.lines.append(text)

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while (due := self.timers.next_deadline()) is not None and due <= end:
            self.now = due
            self.timers.fire(due, lambda: False)
        self.now = end


def conn(*, link: Any = None) -> Connection:
    """A connection, which remembers whether it is read."""
    found = World().open().conn
    found.link = link
    return found


def read(conn: Connection) -> bool:
    transport: Any = conn.transport
    return bool(transport.reading)


def test_a_publisher_waits_for_all_who_are_behind() -> None:
    flow = FlowControl(Flow())
    source, slow, other = conn(), conn(), conn()
    flow.hold_publishers(slow, source)
    flow.hold(source, other)
    assert not read(source)
    flow.release(slow)
    assert not read(source)
    assert flow.holds(source)
    flow.release(other)
    assert read(source)
    assert not flow.holds(source)


@pytest.mark.parametrize("source", [None, "slow", "closed"])
def test_without_a_publisher_to_hold_nothing_is_paused(source: str | None) -> None:
    """No publisher, one that is slow itself, one that is gone."""
    broker = Flow()
    flow, slow, gone = FlowControl(broker), conn(), conn()
    gone.on_closed()
    flow.hold_publishers(slow, {None: None, "slow": slow, "closed": gone}[source])
    assert read(slow)
    assert read(gone)
    assert not flow.holds(gone)
    assert broker.remote == []


def test_a_subscriber_without_progress_holds_no_publisher_any_more() -> None:
    broker = Flow()
    flow, source, slow = FlowControl(broker), conn(), conn()
    flow.hold_publishers(slow, source)
    broker.advance(0.9 * HOLD_TIMEOUT_S)
    slow.waiting_since = broker.now  # it took something
    broker.advance(0.9 * HOLD_TIMEOUT_S)
    assert not read(source)
    broker.advance(0.2 * HOLD_TIMEOUT_S + HOLD_RECHECK_S)
    assert read(source)
    assert slow.stalled
    assert broker.lines == ["peer:0 reads too slowly; publishers are no longer paused for it"]
    flow.hold_publishers(slow, source)
    assert read(source)


def test_a_link_is_never_paused() -> None:
    """The publishers whose messages it brings are held where they are; only its share of a turn
    ends for itself."""
    broker = Flow()
    flow, link, slow = FlowControl(broker), conn(link=SimpleNamespace(arrival=None)), conn()
    flow.hold_publishers(slow, link)
    assert read(link)
    assert broker.remote == [("hold", slow)]
    flow.release(slow)
    assert broker.remote[-1] == ("release", slow)
    flow.hold(link, Rest(link, Turns(World().node)))
    assert not read(link)


def test_no_publisher_waits_for_a_closed_connection() -> None:
    broker = Flow()
    flow, source, slow, other = FlowControl(broker), conn(), conn(), conn()
    flow.hold_publishers(slow, source)
    flow.hold(slow, other)
    flow.closed(slow)
    assert read(source)
    assert not flow.holds(slow)
    broker.advance(2 * HOLD_TIMEOUT_S)
    assert not slow.stalled
    assert broker.lines == []


@pytest.mark.parametrize("named", [True, False])
def test_a_flush_holds_the_publisher_that_was_read_last(named: bool) -> None:
    """The publisher that was read since the last flush, if the driver says which one it was. It
    cannot when it has read several, or none."""
    world = World(limits=Limits(hold_backlog_bytes=100))
    slow, source, other = (world.connect(name) for name in ("slow", "source", "other"))
    slow.subscribe("t")
    slow.transport.capacity = 0
    source.publish("t", bytes(10))
    assert slow.conn.paused
    source.conn.receive(encode_packet(Publish("t", bytes(200)), source.version), world.now)
    assert source.transport.reading, "nobody is held before the turn ends"
    world.node.output.flush(source.conn if named else None)
    assert slow.conn.backlog_bytes > 200
    assert source.transport.reading is not named
    assert other.transport.reading
    assert slow.transport.reading
