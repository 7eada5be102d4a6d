"""Foreign brokers on the virtual clock, and the legs that lead to them.

A foreign broker is a second `Node` without a federation. It keeps its sessions over a restart, or
loses them. The driver of a leg is the real one (`mqttree.broker.io.leg_driver`) with an event loop
and connections of the simulated world.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, cast

from mqttree.broker.config.broker_url import BrokerUrl
from mqttree.broker.config.leg_options import LegModel
from mqttree.broker.core.client import disconnect
from mqttree.broker.core.connection import Connection
from mqttree.broker.io.driver import Driver
from mqttree.broker.io.leg_connections import ForeignProtocol
from mqttree.broker.io.leg_driver import LegDriver
from mqttree.broker.leg.effects import DialForeign, LegEffect, Log, TryAddress
from mqttree.broker.leg.leg import Leg
from mqttree.broker.leg.leg_settings import LegSettings
from mqttree.broker.leg.leg_states import State
from mqttree.broker.leg.marks import Federation
from mqttree.broker.leg.retained_exchange import RetainedExchange
from mqttree.broker.node import Node
from mqttree.broker.wire.constants import PacketType, ReasonCode
from mqttree.broker.wire.varint import read_length
from tests.kit.journal_harness import Files
from tests.sim.disk import Disk
from tests.sim.world import DIAL_TIMEOUT, Host, World

FIRST = 50
"""The index of the first foreign broker's host, above those of the federation."""
BRIDGE_BIT = 0x80


class ForeignWorld(World):
    """A world with foreign brokers. A split of the federation does not concern them."""

    def connected(self, a: Host, b: Host) -> bool:
        """Whether packets pass between two hosts now."""
        if isinstance(a, Foreign) or isinstance(b, Foreign):
            return (min(a.index, b.index), max(a.index, b.index)) not in self.blocked
        return super().connected(a, b)


class Foreign(Host):
    """A machine with a foreign broker on it, which has a journal."""

    def __init__(self, world: World, number: int, versions: tuple[int, ...], **config: Any) -> None:
        """`number`: of foreign brokers; `versions`: bytes of CONNECT, the version of MQTT with the
        bit of a bridge, that it takes; `config`: of its node."""
        super().__init__(
            world, FIRST + number, host=f"10.1.0.{number + 1}", discovery="off", **config
        )
        self.name = f"f{number}"
        self.number = number
        self.versions = versions
        self.disk = Disk(world, self, sync=False)
        self.lost: list[float] = []
        """When (s) it lost sessions."""
        self.kills: list[float] = []
        """When (s) it was killed."""

    @property
    def no_local(self) -> bool:
        """Whether it can keep from sending back what it gets."""
        return 5 in self.versions or 4 | BRIDGE_BIT in self.versions

    def kill(self, reset: bool = True) -> None:
        """End it at once."""
        self.kills.append(self.world.now)
        super().kill(reset)

    def lose_all(self) -> None:
        """Kill it, and lose all that it has kept."""
        self.kill()
        self.world.say(f"{self.name} has lost all that it had")
        self.lost.append(self.world.now)
        self.disk.files = Files()
        self.disk.files.lazy = True
        self.disk.under_way = []

    def end_session(self, client_id: str) -> None:
        """Forget the session of one client, which is connected or away."""
        node = self.node
        if node is None or self.paused or (session := node.sessions.get(client_id)) is None:
            return
        self.world.say(f"{self.name} forgets the session of {client_id}")
        self.lost.append(self.world.now)

        def forget(node: Node) -> None:
            if session.conn is not None:
                disconnect(session, ReasonCode.ADMINISTRATIVE_ACTION)
            node.end_session(session, None)

        self.do(forget, node)


class Wire:
    """A leg's connection to its foreign broker, as asyncio shows it to a protocol."""

    def __init__(self, leg: SimLeg, foreign: Foreign, protocol: ForeignProtocol) -> None:
        self._leg, self._foreign = leg, foreign
        self._protocol = protocol
        self._first = True
        self._full = False
        world, host = leg.host.world, leg.host
        self._end, other = world.pair(host, foreign, self)
        # What the end of a stream tells a connection of a node, it tells this one.
        self._end.conn = cast(Connection, self)
        world._made(foreign, other, host.address[0], None)

    # ---- of the protocol

    def set_write_buffer_limits(self, high: int) -> None:
        """Ignore it: the world has a limit of its own."""

    def write(self, data: bytes) -> None:
        """Send, unless it is a CONNECT that the foreign broker refuses."""
        if self._first and data[0] >> 4 == PacketType.CONNECT:  # it may have given up before
            self._first = False
            body = read_length(data, 1)[1]
            version = data[body + 6]
            if version not in self._foreign.versions:
                world = self._leg.host.world
                world.after(2 * world.latency(self._leg.host, self._foreign), self._refuse, version)
                return
        self._end.write(data)

    def _refuse(self, version: int) -> None:
        """Answer as brokers do that know no MQTT 5, or close without a word."""
        if self._end.state == "open":
            if version == 5:
                self.data(b"\x20\x02\x00\x01")
            self._end.drop(reset=True)
            self.lost("closed by peer")

    def close(self) -> None:
        """Close it, once all is sent."""
        self._end.close()

    def pause_reading(self) -> None:
        """Read no more."""
        self._end.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        self._end.resume_reading()

    @property
    def works(self) -> bool:
        """Whether all that is sent arrives."""
        end, world = self._end, self._leg.host.world
        return world.reaches(end, end.peer) and not end.stuck and not end.peer.stuck

    # ---- of the stream

    def opened(self) -> None:
        """Tell the protocol that it stands."""
        self._protocol.connection_made(cast(asyncio.Transport, self))

    def data(self, data: bytes) -> None:
        """Give the protocol the bytes."""
        self._leg.call(self._protocol.data_received, data)

    def lost(self, reason: str) -> None:
        """Tell the protocol that it has ended."""
        error = ConnectionResetError if "reset" in reason else OSError
        self._leg.call(self._protocol.connection_lost, error(reason))

    @property
    def node(self) -> Node:
        """The leg's."""
        return self._leg.node

    def pause(self) -> None:
        """Tell the protocol that more waits than should."""
        self._protocol.pause_writing()

    def writable(self, now: float) -> None:
        """Tell the protocol that it may write."""
        self._protocol.resume_writing()


class Timer:
    """A call at some time, unless it is cancelled."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call: Callable[[], None] | None = call

    def cancel(self) -> None:
        """Have it not come."""
        self._call = None

    def __call__(self) -> None:
        if self._call is not None:
            self._call()


class Loop:
    """The event loop of a leg's driver, and what that uses of a `Driver` besides."""

    def __init__(self, host: Host, node: Node) -> None:
        self.host, self.node, self.loop = host, node, self
        self._waking = False

    def time(self) -> float:
        """The time (s)."""
        return self.host.world.now

    def call_soon(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call it in the next turn, which comes when the process goes on if it is stopped."""
        self.call_later(0.0, call, *arguments)

    def call_later(self, delay: float, call: Callable[..., None], *arguments: Any) -> Timer:
        """Call it after so many s."""
        timer = Timer(lambda: call(*arguments))
        self.host.world.after(delay, self.host.do, lambda _: timer(), self.node)
        return timer

    def wake(self, source: Connection | None = None) -> None:
        """Have the node flushed at the end of this turn, and now if a client is behind."""
        if self.node.paused:
            self.node.output.flush(source)
        if not self._waking:
            self._waking = True
            self.call_soon(self._woken)

    def _woken(self) -> None:
        # The host flushes behind each call.
        self._waking = False


class SimLeg(LegDriver):
    """A leg of a simulated broker. It ends with the node."""

    def __init__(
        self,
        host: Host,
        foreign: Foreign,
        settings: LegSettings,
        *,
        marks: bool = False,
        standby: bool = False,
    ) -> None:
        """`host`: of its broker, which has just started; `foreign`: where it leads; `settings`: how
        it connects; `marks`: whether messages get the mark of its federation; `standby`: whether it
        waits for its turn."""
        self.host, self.foreign = host, foreign
        self.node = host.running
        world = host.world
        url = BrokerUrl(*foreign.address, False, None)
        driver = cast(Driver, Loop(host, self.node))
        super().__init__(driver, settings, LegModel(url, ()), None)
        self._rng = random.Random(f"{world.seed} {settings.name} {self.node.config.boot}")
        config, knows = self.node.config, self.node.cluster.knows
        self._exchange = RetainedExchange(settings, self._retained, self._rng)
        self.leg = Leg(
            settings,
            self._exchange,
            random.Random(world.rng.getrandbits(64)),
            world.now,
            Federation(config.id, knows) if marks else None,
            standby=standby,
        )
        self.attach()

    def call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Have the process of the leg do something, now or when it goes on."""
        self.host.do(lambda _: function(*arguments), self.node)

    @property
    def up(self) -> bool:
        """Whether messages cross, and it has subscribed to all that it wants."""
        return self.host.node is self.node and self.leg.state is State.UP

    @property
    def works(self) -> bool:
        """Whether it is up, and nothing on its way keeps messages from crossing."""
        running = self.foreign.alive and not self.foreign.paused and not self.host.paused
        if not self.up or not running or self._foreign is None:
            return False
        return cast(Wire, self._foreign.transport).works

    def _do(self, effect: LegEffect) -> None:
        if isinstance(effect, DialForeign):
            world = self.host.world
            lost = self._lost_sync if effect.sync else self._lost_dial
            world.after(world.latency(self.host, self.foreign), self._syn, lost)
        elif isinstance(effect, TryAddress):
            world = self.host.world
            world.after(2 * world.latency(self.host, self.foreign), self._try_answered, effect)
        elif isinstance(effect, Log):
            self.host._log(effect.level, effect.text)
        else:
            super()._do(effect)

    def _try_answered(self, effect: TryAddress) -> None:
        if self.foreign.alive and self.host.world.connected(self.host, self.foreign):
            self.call(self.on_tried, effect.place)

    def _lost_dial(self, why: str) -> None:
        self.on_lost(why)

    def _lost_sync(self, why: str) -> None:
        self.sync_lost(None, why)

    def _syn(self, lost: Callable[[str], None]) -> None:
        """Open a connection, the leg's or (`lost` is `_lost_sync`) that of a merge."""
        world = self.host.world
        if self.host.node is not self.node:
            return
        if not world.connected(self.host, self.foreign):
            world.after(DIAL_TIMEOUT, self.call, lost, "timed out")
        elif not self.foreign.alive:
            self.call(lost, "connection refused")
        else:
            second = lost == self._lost_sync
            protocol = self.sync_protocol() if second else self.foreign_protocol()
            wire = Wire(self, self.foreign, protocol)
            world.after(world.latency(self.foreign, self.host), self.call, wire.opened)
