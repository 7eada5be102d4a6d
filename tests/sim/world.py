"""A world for pure nodes: hosts, byte streams and datagrams on a virtual clock, all from one seed.

Streams behave as TCP does: in order, cut anywhere, limited by a window and a rate; what a cut
swallows is sent again when it heals; a reset that is lost leaves the other end half open. Hosts can
be killed, unplugged, stopped and continued.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import os
import random
import traceback
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

from mqttree.broker.cluster.drain import Drain, DrainOptions
from mqttree.broker.config.node_config import NodeConfig
from mqttree.broker.core.connection import Connection
from mqttree.broker.core.effects import Authenticate, Datagram, Dial
from mqttree.broker.limits import DEFAULTS, Limits
from mqttree.broker.node import Node
from mqttree.discovery.announcement import bind

WALL = 1_700_000_000.0
DIAL_TIMEOUT = 3.0
PORT = 1883

REPLICAS = int(os.environ.get("REPLICAS", "0"))
"""Of brokers that a schedule says nothing else of."""


class Far(Protocol):
    """Who is at an end that is no node's: a client, or a test that speaks for itself."""

    def data(self, data: bytes) -> None: ...

    def lost(self, reason: str) -> None: ...


class End:
    """One end of a stream; the `Transport` of a node's connection."""

    __slots__ = (
        "arrived",
        "black",
        "buffer",
        "conn",
        "early",
        "far",
        "flying",
        "free_at",
        "host",
        "inbox",
        "key",
        "last_arrival",
        "number",
        "paused",
        "peer",
        "reading",
        "resent",
        "segments",
        "size",
        "stalled",
        "state",
        "world",
    )

    def __init__(
        self, world: World, host: Host | None, number: int, far: Far | None = None
    ) -> None:
        """`number`: even where the connection was made, odd at the end that accepted it."""
        self.world = world
        self.host = host  # None: on the same host as the peer, never cut off from it
        self.number = number
        self.key = f"{number // 2}{'<' if number & 1 else '>'}"
        self.far = far
        self.conn: Connection | None = None
        self.peer: End = self
        self.state = "open"
        self.buffer: deque[bytes | memoryview] = deque()  # written and not sent
        self.size = 0
        self.flying = 0  # bytes under way to the peer or unread there
        self.free_at = 0.0
        self.last_arrival = 0.0
        self.segments = 0  # sent
        self.arrived = 0  # at the peer, in order
        self.early: dict[int, bytes | None] = {}  # overtook what a cut swallowed
        # What arrived nowhere, as a cut swallowed it; None is the FIN.
        self.stalled: list[tuple[int, bytes | None]] = []
        self.resent = 0  # of these, sent again and not arrived
        self.inbox: deque[bytes | None] = deque()  # arrived, not read
        self.reading = True
        self.paused = False
        self.black = False

    # ---- the Transport

    def write(self, data: bytes) -> None:
        assert isinstance(data, bytes)
        if self.state != "open" or not data:
            return
        self.buffer.append(data)
        self.size += len(data)
        if self.size > self.world.high_water and not self.paused:
            self.paused = True
            if self.conn is not None:
                self.conn.pause()
        self.pump()

    def close(self) -> None:
        if self.state == "open":
            self.state = "closing"
            self.pump()

    def abort(self) -> None:
        self.drop(reset=True)
        if self.conn is not None:
            self.world.after(0.0, self._tell_lost, "aborted")

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True
        self.world.after(0.0, self.read)

    def unread(self) -> bool:
        return bool(self.inbox) and self.state == "open"

    def unsent(self) -> int:
        return self.size + self.flying

    # ---- the wire

    def drop(self, reset: bool) -> None:
        """End it here, at once; the peer hears of it if the network lets a reset through."""
        if self.state != "closed":
            self.state = "closed"
            self.buffer.clear()
            self.size = 0
            self.world.streams.pop(self.key, None)
            if reset:
                self.send_reset()

    def send_reset(self) -> None:
        self.world.after(self.world.latency(self.host, self.peer.host), self._reset_arrives)

    def _reset_arrives(self) -> None:
        peer = self.peer
        if peer.state != "closed" and self.world.reaches(self, peer):
            peer.drop(reset=False)
            peer._tell_lost("connection reset by peer")

    def _tell_lost(self, reason: str) -> None:
        world = self.world
        if self.far is not None:
            self.far.lost(reason)
        elif self.host is not None and self.conn is not None:
            conn, host = self.conn, self.host
            host.do(lambda node: node.connection_lost(conn, reason, world.now), conn.node)

    def pump(self) -> None:
        """Send what the window takes."""
        world = self.world
        buffer = self.buffer
        while buffer and self.flying < world.window:
            data = buffer.popleft()
            size = len(data)
            if size > 1 and (size > 16384 or world.rng.random() < world.cutting):
                cut = 1 + int(world.rng.random() * min(size - 1, 16384))
                view = memoryview(data)
                buffer.appendleft(view[cut:])
                data = view[:cut]
                size = cut
            self.size -= size
            self.flying += size
            self._fly(bytes(data))
        if self.state == "closing" and not self.buffer:
            self._fly(None)
            self.state = "closed"
            world.streams.pop(self.key, None)
            if self.conn is not None:
                world.after(0.0, self._tell_lost, "closed")
        if self.paused and self.size <= world.high_water // 4 and self.state == "open":
            self.paused = False
            world.after(0.0, self._writable)

    def _writable(self) -> None:
        conn, host = self.conn, self.host
        if conn is not None and host is not None and self.state != "closed":
            host.do(
                lambda node: conn.writable(self.world.now) if not self.paused else None, conn.node
            )

    def _fly(self, data: bytes | None) -> None:
        world = self.world
        line = (
            world.lines.get((self.host.index, self.peer.host.index))
            if self.host and self.peer.host
            else None
        )
        if line is not None:  # all streams share it
            free_at = line.free_at = max(line.free_at, world.now) + len(data or b"") / line.rate
        else:
            free_at = self.free_at if self.free_at > world.now else world.now
            if data:
                free_at += len(data) / world.rate
        self.free_at = free_at
        arrival = free_at + world.latency(self.host, self.peer.host)
        if arrival > self.last_arrival:
            self.last_arrival = arrival
        heapq.heappush(
            world.heap, (self.last_arrival, next(world.order), self._arrive, (self.segments, data))
        )
        self.segments += 1

    def _arrive(self, number: int, data: bytes | None) -> None:
        if not self.world.reaches(self, self.peer):
            self.stalled.append((number, data))
            self.world.swallowed[self.key] = self
        elif number == self.arrived and not self.early:
            self.arrived = number + 1
            self._arrived(data)
        else:
            self.early[number] = data
            while self.arrived in self.early:
                data = self.early.pop(self.arrived)
                self.arrived += 1
                self._arrived(data)

    def _arrived(self, data: bytes | None) -> None:
        peer = self.peer
        world = self.world
        if peer.state == "closed":
            if data is not None and self.state != "closed":
                peer.send_reset()
            return
        world.heard = zlib.crc32(
            data or b"", (world.heard + self.number + hash(world.now)) & 0xFFFFFFFF
        )
        peer.inbox.append(data)
        if peer.reading:
            peer.read()

    def healed(self) -> None:
        """Send again what the cut swallowed."""
        stalled, self.stalled = self.stalled, []
        world = self.world
        when = world.now + world.rng.uniform(0.0, 0.4)
        self.resent += len(stalled)
        for number, data in stalled:
            when += len(data or b"") / world.rate
            world.at(
                when + world.latency(self.host, self.peer.host), self._arrive_again, number, data
            )

    def _arrive_again(self, number: int, data: bytes | None) -> None:
        self.resent -= 1
        self._arrive(number, data)

    @property
    def stuck(self) -> bool:
        """Whether the peer gets nothing of what is written now: it comes behind what a cut
        swallowed, which is not there yet."""
        return bool(self.stalled or self.resent)

    def read(self) -> None:
        """Hand over what has come."""
        if self.host is not None and self.host.paused:
            return
        world = self.world
        inbox = self.inbox
        peer = self.peer
        while inbox and self.reading and self.state == "open":
            data = inbox.popleft()
            if data is None:
                self.drop(reset=False)
                self._tell_lost("closed by peer")
                return
            while inbox and inbox[0] is not None and world.rng.random() < 0.7:
                data += inbox.popleft() or b""
            peer.flying -= len(data)
            if self.far is not None:
                self.far.data(data)
            elif self.conn is not None and self.host is not None:
                self.host.receive(self.conn, data)
            if peer.state == "closing" or peer.buffer or peer.paused:
                world.after(0.0, peer.pump)


class Line:
    """One direction between two hosts that takes so many bytes a second of all streams together."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.free_at = 0.0


class Host:
    """A machine with one broker on it."""

    def __init__(self, world: World, index: int, **config: Any) -> None:
        self.world = world
        self.index = index
        self.turn_ends = 0.0
        self.address = (config.pop("host", f"10.0.0.{index + 1}"), config.pop("port", PORT))
        self.name = f"b{index}"
        self.config = config
        self.id: bytes = config.pop("id", None) or world.rng.randbytes(8)
        self.boot = 0
        self.node: Node | None = None
        self.paused = False
        self.stops_in_turn = False
        """Whether it is stopped in the middle of its next turn."""
        self.listening = True
        self.left: set[int] = set()  # boots that said goodbye
        self.ahead = 0.0  # s; of its clock
        self.ends: dict[str, End] = {}
        self.logs: list[tuple[float, str, str]] = []
        self._pending: list[tuple[Callable[[Node], None], Node]] = []
        self._armed: float | None = None
        self._serial = 0

    @property
    def alive(self) -> bool:
        return self.node is not None

    @property
    def life(self) -> tuple[int, int]:
        return (self.index, self.boot)

    @property
    def running(self) -> Node:
        assert self.node is not None
        return self.node

    def start(self) -> None:
        if self.node is not None:
            return
        world = self.world
        self.boot = max(self.boot + 1, 1 + int(world.now))  # seconds, as of a real broker
        # Clients of stories open as many exchanges as they like.
        settings = {"discovery": "off", "routing": "flood", "receive_maximum": 65_535}
        settings |= self.config
        boot = settings.pop("boot", self.boot)
        config = NodeConfig(
            id=self.id,
            boot=boot,
            name=self.name,
            host=self.address[0],
            port=self.address[1],
            **settings,
        )
        rng = random.Random(world.rng.getrandbits(64))
        self.paused = self.stops_in_turn = False
        self._pending.clear()
        self._armed = None
        world.say(f"{self.name} starts, boot {boot}")
        ahead = world.rng.uniform(-1, 1) * world.skew
        if not self.ahead or world.skew <= 1:  # no clock jumps by hours
            self.ahead = ahead
        world.fastest = max(world.fastest, self.ahead)
        wall = WALL + world.now + self.ahead
        self.node = Node(config, world.now, wall, rng, limits=world.limits, log=self._log)
        for watch in world.on_start:
            watch(self)
        self.do(lambda node: None, self.node)

    def _log(self, level: str, text: str) -> None:
        self.logs.append((self.world.now, level, text))
        if level != "debug" or self.world.verbose > 1:
            self.world.say(f"{self.name} {level}: {text}")

    def kill(self, reset: bool = True) -> None:
        """Kill -9 (`reset`: its kernel resets the connections) or pull the plug."""
        if self.node is None:
            return
        self.world.say(f"{self.name} is {'killed' if reset else 'unplugged'}")
        self.node = None
        self.paused = False
        self._serial += 1
        ends, self.ends = self.ends, {}
        for end in ends.values():
            local = end.peer.host is None
            end.drop(reset=reset or local)

    def leave(self) -> None:
        """SIGTERM."""
        if self.node is not None and not self.paused:
            self.world.say(f"{self.name} leaves")
            self.left.add(self.boot)
            self.do(lambda node: node.stop(self.world.now), self.node)
            self.world.after(0.05, self.kill)

    def drain(self, options: DrainOptions) -> None:
        """`mqttree drain`."""
        node = self.node
        if node is not None and not self.paused:
            self.world.say(f"{self.name} drains")
            self.left.add(self.boot)
            drained = partial(self.world.after, 0.0, self._drained, node)
            self.do(lambda node: Drain(node, options, self.world.now, drained) and None, node)

    def _drained(self, node: Node) -> None:
        if self.node is node:
            self.leave()

    def pause(self) -> None:
        if self.node is not None and not self.paused:
            self.world.say(f"{self.name} is stopped (SIGSTOP)")
            self.paused = True

    def pause_in_turn(self) -> None:
        """Stop it when it has handled what comes next, before it has sent anything."""
        if self.node is not None and not self.paused:
            self.stops_in_turn = True

    def _stops(self, node: Node) -> bool:
        """Stop it in the middle of this turn, if that is planned; returns whether it is."""
        if not self.stops_in_turn:
            return False
        self.stops_in_turn = False
        self.pause()
        self._pending.insert(0, (_rest_of_turn, node))
        return True

    def resume(self) -> None:
        if self.node is not None and self.paused:
            self.world.say(f"{self.name} goes on (SIGCONT)")
            self.paused = False
            pending, self._pending = self._pending, []
            self.stops_in_turn = False
            if pending and pending[0][0] is _rest_of_turn:
                self.do(*pending.pop(0))
            if self.node is not None:
                self.do(lambda node: node.on_resumed(self.world.now), self.node)
            for call, node in pending:
                self.do(call, node)
            for end in list(self.ends.values()):
                end.read()
            if self._armed is not None and self._armed < self.world.now and self.node is not None:
                self._tick(self._serial, self.node)

    def do(self, call: Callable[[Node], Any], node: Node) -> None:
        """Let the node do something, now or when it goes on; then flush, take effects, arm the
        timer."""
        if self.node is not node:
            return
        if self.paused:
            self._pending.append((call, node))
            return
        try:
            call(node)
            if not self._stops(node):
                self._run(node)
        except Exception:  # whatever a node raises is a finding
            self.world.violation("raised", f"{self.name}: {traceback.format_exc(limit=-6)}")
            self.kill()

    def receive(self, conn: Connection, data: bytes) -> None:
        """Hand a node that runs what has come on a connection."""
        node = self.node
        if conn.node is node:
            try:
                conn.receive(data, self.world.now)
                if not self._stops(node):
                    self._run(node, conn)
            except Exception:  # as in `do`
                self.world.violation("raised", f"{self.name}: {traceback.format_exc(limit=-6)}")
                self.kill()

    def _run(self, node: Node, source: Connection | None = None) -> None:
        world = self.world
        node.output.flush(source)
        for _ in range(100):
            if not node.effects and not node.dirty:
                break
            for effect in node.take_effects():
                if isinstance(effect, Dial):
                    world.dial(self, effect)
                elif isinstance(effect, Datagram):
                    world.multicast(self, bind(effect.data, node.config.secret, self.address[0]))
                elif isinstance(effect, Authenticate):  # every password is right
                    node.answer(effect, True, world.now)
            node.output.flush()
        else:
            world.violation("livelock", f"{self.name} asks for effects without end")
        due = node.next_deadline()
        if due is not None and node.deadline.at > due:
            world.violation("deadline", f"{self.name}: a driver would call too late")
        if due is not None and (self._armed is None or due < self._armed):
            self._armed = due
            self._serial += 1
            world.at(due + world.rng.random() * world.lateness, self._tick, self._serial, node)

    def _tick(self, serial: int, node: Node) -> None:
        if serial == self._serial and self.node is node and not self.paused:
            self._armed = None
            self.do(lambda node: node.tick(self.world.now), node)


def _rest_of_turn(node: Node) -> None:
    """Do nothing more: what the turn has led to is sent."""


class World:
    """The clock, the network and everybody on it."""

    limits: Limits = DEFAULTS
    """What brokers keep to that start from now on."""

    def __init__(self, seed: int, verbose: int = 0, until: float = 600.0) -> None:
        self.seed = seed
        self.verbose = verbose
        self.rng = random.Random(seed)
        self.skew = 1.0  # s that clocks are wrong by at most
        self.longest_turn = 0.0
        """s that a turn of a broker takes at most; what comes meanwhile waits for its end."""
        # s; of the clock that has been most ahead: others go on behind what they have heard of it.
        self.fastest = -1e9
        self.now = 100.0
        self.started = self.now
        self.limit = self.now + until
        self.hosts: list[Host] = []
        self.streams: dict[str, End] = {}
        self.swallowed: dict[str, End] = {}
        self.on_start: list[Callable[[Host], None]] = []
        self.violations: list[tuple[str, str]] = []
        self.transcript: list[str] = []
        self.events = 0
        self.datagrams = 0
        self.kept: set[int] = set()  # hosts with journals: to others their lives are one
        # The network of this seed.
        rng = self.rng
        self.slowest = rng.choice((0.0005, 0.003, 0.01, 0.03))
        self.jitter = rng.choice((0.0, 0.0001, 0.002))
        self.rate = rng.choice((1.25e6, 1.25e7, 1.25e8))
        self.cutting = rng.choice((0.0, 0.1, 0.5))
        self.lateness = rng.choice((0.0001, 0.002))
        self.high_water = rng.choice((4096, 65536, 262144))
        self.window = rng.choice((8192, 65536))
        self.loss = rng.choice((0.0, 0.05, 0.3))
        self.lines: dict[tuple[int, int], Line] = {}
        self._base: dict[tuple[int, int], float] = {}
        self._side: dict[int, int] = {}
        self.blocked: set[tuple[int, int]] = set()
        self.heap: list[tuple[float, int, Callable[..., Any], tuple[Any, ...]]] = []
        self.order = itertools.count()
        self._keys = itertools.count(1)
        self.heard = 0  # a sum over everything that arrived anywhere, and when
        self._hash = hashlib.sha256()

    # ---- clock

    def at(self, when: float, call: Callable[..., Any], *args: Any) -> None:
        heapq.heappush(self.heap, (max(when, self.now), next(self.order), call, args))

    def after(self, delay: float, call: Callable[..., Any], *args: Any) -> None:
        heapq.heappush(self.heap, (self.now + delay, next(self.order), call, args))

    def run(
        self, seconds: float, done: Callable[[], bool] | None = None, every: float = 0.1
    ) -> bool:
        """Run for some virtual seconds, or until `done`, looked at `every` so often."""
        until = self.now + seconds
        look = self.now
        heap = self.heap
        while heap and heap[0][0] <= until:
            when = heap[0][0]
            if done is not None and when >= look:
                if done():
                    return True
                look = max(look + every, when)
            _, _, call, args = heapq.heappop(heap)
            self.now = when
            self.events += 1
            call(*args)
            if self.events > 3_000_000:
                self.violation("livelock", "three million events")
                return False
        self.now = until
        return done() if done is not None else True

    # ---- telling

    def say(self, text: str) -> None:
        line = f"{self.now - self.started:9.4f}  {text}"
        self._hash.update(b"%d %b\n" % (self.heard, line.encode()))
        self.transcript.append(line)
        if self.verbose:
            print(line, flush=True)

    def violation(self, kind: str, text: str) -> None:
        self.violations.append((kind, text))
        self.say(f"VIOLATION {kind}: {text}")

    @property
    def digest(self) -> str:
        return f"{self._hash.hexdigest()}{self.heard:08x}"

    # ---- hosts

    replicas = REPLICAS

    def add(self, **config: Any) -> Host:
        host = Host(self, len(self.hosts), **{"replicas": self.replicas, **config})
        self.hosts.append(host)
        return host

    def alive(self) -> list[Host]:
        return [host for host in self.hosts if host.alive]

    def who(self, life: tuple[int, int]) -> tuple[int, int]:
        """Return the life of a broker as others may see it: with a journal it goes on where it
        was."""
        return (life[0], 0) if life[0] in self.kept else life

    def lives(self, life: tuple[int, int]) -> bool:
        """Whether a broker lives, or lives again with what it had."""
        host = self.hosts[life[0]]
        return host.alive and (host.boot == life[1] or life[0] in self.kept)

    def at_address(self, address: tuple[str, int]) -> Host | None:
        for host in self.hosts:
            if host.address == address:
                return host
        return None

    # ---- network

    def latency(self, a: Host | None, b: Host | None) -> float:
        delay = self._delay(a, b)
        if b is None or not self.longest_turn:
            return delay
        at, longest = self.now + delay, self.longest_turn
        while b.turn_ends < at:
            b.turn_ends = max(b.turn_ends, at - longest) + self.rng.uniform(0.0, longest)
        return b.turn_ends - self.now

    def _delay(self, a: Host | None, b: Host | None) -> float:
        if a is None or b is None or a is b:
            return 0.00005 + self.rng.random() * 0.0002
        key = (a.index, b.index)
        base = self._base.get(key)
        if base is None:
            base = self._base[key] = self._base[b.index, a.index] = self.rng.uniform(
                0.0001, self.slowest
            )
        return base + self.rng.random() * self.jitter

    def connected(self, a: Host, b: Host) -> bool:
        """Whether packets pass between two hosts now."""
        if a is b:
            return True
        side = self._side
        if side and side.get(a.index, 0) != side.get(b.index, 0):
            return False
        return (
            not self.blocked or (min(a.index, b.index), max(a.index, b.index)) not in self.blocked
        )

    def reaches(self, a: End, b: End) -> bool:
        if a.black or b.black:
            return False
        return a.host is None or b.host is None or self.connected(a.host, b.host)

    def partition(self, groups: Iterable[Iterable[int]]) -> None:
        """Let only hosts of one group reach each other; hosts in none form one more."""
        self._side = {index: number for number, group in enumerate(groups, 1) for index in group}
        self.say(f"partition {self._side}")
        self._heal_streams()

    def limit_rate(self, a: int, b: int, rate: float) -> None:
        """Let so many bytes a second pass from one host to another, and as many back."""
        self.lines[a, b], self.lines[b, a] = Line(rate), Line(rate)

    def block(self, a: int, b: int) -> None:
        self.blocked.add((min(a, b), max(a, b)))
        self.say(f"b{a} and b{b} do not reach each other")

    def heal(self) -> None:
        """Every cut ends, black holes too."""
        self._side.clear()
        self.blocked.clear()
        for end in list(self.streams.values()):
            end.black = False
        self.say("the network is healed")
        self._heal_streams()

    def _heal_streams(self) -> None:
        swallowed, self.swallowed = self.swallowed, {}
        for end in swallowed.values():
            if self.reaches(end, end.peer):
                end.healed()
            else:
                self.swallowed[end.key] = end

    def components(self) -> list[list[Host]]:
        """Living hosts that reach each other, perhaps over others."""
        left = [h for h in self.hosts if h.alive]
        found = []
        while left:
            group = [left.pop(0)]
            for member in group:
                near = [h for h in left if self.connected(member, h)]
                left = [h for h in left if h not in near]
                group += near
            found.append(sorted(group, key=lambda h: h.index))
        return found

    def pair(self, a: Host | None, b: Host | None, far: Far | None = None) -> tuple[End, End]:
        number = next(self._keys)
        one, two = End(self, a, 2 * number, far), End(self, b, 2 * number + 1)
        one.peer, two.peer = two, one
        for end in (one, two):
            self.streams[end.key] = end
            if end.host is not None:
                end.host.ends[end.key] = end
        return one, two

    def dial(self, source: Host, dial: Dial) -> None:
        """Do what a node asked for: a connection to an address."""
        node = source.running
        target = self.at_address((dial.host, dial.port))
        there = self.latency(source, target)

        def fail(why: str) -> None:
            source.do(lambda n: n.answer(dial, why, self.now), node)

        if target is None:
            self.after(there, fail, "no such host")
        else:
            self.after(there, self._syn, source, node, target, dial, fail)

    def _syn(
        self, source: Host, node: Node, target: Host, dial: Dial, fail: Callable[[str], None]
    ) -> None:
        if not self.connected(source, target):
            self.after(DIAL_TIMEOUT, fail, "timed out")
        elif not target.alive or not target.listening:
            self.after(self.latency(target, source), fail, "connection refused")
        elif source.node is node:
            one, two = self.pair(source, target)
            self._made(target, two, source.address[0], None)
            self.after(self.latency(target, source), self._connected, source, node, one, dial)

    def _connected(self, source: Host, node: Node, end: End, dial: Dial) -> None:
        if source.node is node and end.state == "open":
            self._made(source, end, dial.host, dial)
        elif source.node is node:
            source.do(lambda n: n.answer(dial, "connection reset", self.now), node)
        else:
            end.drop(reset=True)

    def _made(self, host: Host, end: End, peer: str, dial: Dial | None) -> None:
        port = dial.port if dial is not None else 40000 + int(end.key[:-1]) % 20000

        def made(node: Node) -> None:
            end.conn = node.connection_registry.made(f"{peer}:{port}", "tcp", end, self.now, dial)
            self.after(0.0, end.read)

        host.do(made, host.running)

    def connect(self, host: Host, far: Far) -> End | None:
        """Connect to a host's port from the same host; None when no process listens there."""
        if not host.alive:
            return None
        one, two = self.pair(None, host, far)
        self._made(host, two, "127.0.0.1", None)
        return one

    def multicast(self, source: Host, data: bytes) -> None:
        rng = self.rng
        self.datagrams += 1
        for host in self.hosts:
            if not host.alive or not self.connected(source, host):
                continue
            copies = (
                0
                if host is not source and rng.random() < self.loss
                else 2
                if rng.random() < 0.05
                else 1
            )
            for _ in range(copies):
                self.after(
                    self.latency(source, host), self._datagram, source, host, host.node, data
                )

    def _datagram(self, source: Host, host: Host, node: Node, data: bytes) -> None:
        if self.connected(source, host):
            host.do(lambda n: n.datagram_received(data, (source.address[0], 18830), self.now), node)
