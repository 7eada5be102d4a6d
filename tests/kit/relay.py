"""The network between the brokers, as a process: every link runs through it, and may be cut,
stalled, slow, or deaf on one side.

Brokers advertise ports of this process; who dials is read in the CONNECT of the link (its name), so
that each pair of brokers is a cable of its own.
"""

from __future__ import annotations

import asyncio
from multiprocessing.connection import Connection

from bench.lab.half import Half, dialler

RATE = 2_500_000
"""bytes a second of a slow cable, each way (20 Mbit/s)."""
BURST = 256 << 10
"""bytes that a slow cable takes at once."""


class Cable:
    """One pair of brokers. `deaf`: brokers from which nothing is read; `cut`: connections are reset
    as they come; `slow`: a token bucket for each way; `never`: there is no such cable."""

    __slots__ = ("cut", "deaf", "ends", "never", "slow")

    def __init__(self, never: bool = False) -> None:
        self.never = never
        self.cut = never
        self.slow = False
        self.deaf: frozenset[str] = frozenset()
        self.ends: set[End] = set()


class End(Half):
    """One half of a connection: what comes from `broker` goes to the other half."""

    other: End | None

    def __init__(self, network: Network, broker: str) -> None:
        super().__init__()
        self.network = network
        self.broker = broker
        self.cable: Cable | None = None
        self.early = bytearray()  # before the other half is there
        self.tokens = float(BURST)
        self.filled = 0.0  # when
        self.thirsty = False  # its bucket is empty

    def connection_lost(self, _error: Exception | None) -> None:
        if self.cable is not None:
            self.cable.ends.discard(self)
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()
        self.transport = None

    def data_received(self, data: bytes) -> None:
        if self.cable is not None and self.cable.slow:
            self.drain(len(data))
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)
        else:
            self.early += data

    def drain(self, size: int) -> None:
        """Take so many bytes from the bucket, and read no more before it is filled again."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        self.tokens = min(float(BURST), self.tokens + (now - self.filled) * RATE) - size
        self.filled = now
        if self.tokens < 0:
            self.thirsty = True
            self.obey()
            loop.call_later(-self.tokens / RATE, self.wet)

    def wet(self) -> None:
        """There is something in the bucket."""
        self.thirsty = False
        self.obey()

    def held(self) -> bool:
        """Whether the bucket is empty, or the other half does not hear this one."""
        return self.thirsty or (self.cable is not None and self.broker in self.cable.deaf)


class Caller(End):
    """The half towards the broker that dials; its name is read before the other broker is
    called."""

    def __init__(self, network: Network, callee: str) -> None:
        super().__init__(network, "")
        self.callee = callee
        self.task: asyncio.Task[None] | None = None

    def data_received(self, data: bytes) -> None:
        if self.task is not None:
            super().data_received(data)
            return
        self.early += data
        name = dialler(self.early)
        if name is None:
            return
        self.broker = name
        self.cable = self.network.cable(self.broker, self.callee)
        assert self.transport is not None
        if self.cable.cut:
            self.transport.abort()
            return
        self.cable.ends.add(self)
        self.task = asyncio.ensure_future(self.call())

    async def call(self) -> None:
        """Dial the broker that is wanted, once what this one says may be heard."""
        assert self.cable is not None
        cable = self.cable
        end = End(self.network, self.callee)
        end.cable = cable
        try:
            while self.broker in cable.deaf:
                await asyncio.sleep(0.02)
            await asyncio.get_running_loop().create_connection(
                lambda: end, "127.0.0.1", self.network.targets[self.callee]
            )
        except OSError:
            if self.transport is not None:
                self.transport.abort()
            return
        assert end.transport is not None
        if self.transport is None or cable.cut:
            end.transport.abort()
            if self.transport is not None:
                self.transport.abort()
            return
        cable.ends.add(end)
        end.other, self.other = self, end
        end.transport.write(bytes(self.early))
        self.early.clear()
        end.data_received(b"")
        if end.early:
            self.transport.write(bytes(end.early))
        end.obey()
        self.obey()


class Network:
    """All cables."""

    def __init__(self, targets: dict[str, int], never: set[frozenset[str]]) -> None:
        """`targets`: where each broker listens; `never`: pairs without a cable."""
        self.targets = targets
        self.never = never
        self.cables: dict[frozenset[str], Cable] = {}

    def cable(self, one: str, other: str) -> Cable:
        """The one between these."""
        pair = frozenset((one, other))
        if pair not in self.cables:
            self.cables[pair] = Cable(pair in self.never)
        return self.cables[pair]

    def set(self, one: str, other: str, what: str) -> None:
        """`cut`, `stall` (nothing passes, nothing is lost), `half-open` (`other` is not heard),
        `slow`, `heal`, `reset`."""
        cable = self.cable(one, other)
        cable.cut = what == "cut" or cable.never
        cable.slow = what == "slow"
        cable.deaf = frozenset({"stall": (one, other), "half-open": (other,)}.get(what, ()))
        for end in list(cable.ends):
            if what in ("cut", "reset"):
                if end.transport is not None:
                    end.transport.abort()
            else:
                end.obey()


async def serve(
    targets: dict[str, int], ports: dict[str, int], never: set[frozenset[str]], orders: Connection
) -> None:
    """Listen and obey until there is nobody who gives orders."""
    loop = asyncio.get_running_loop()
    network = Network(targets, never)
    for name, port in ports.items():
        await loop.create_server(lambda name=name: Caller(network, name), "127.0.0.1", port)  # type: ignore[misc]
    end: asyncio.Future[None] = loop.create_future()

    def order() -> None:
        try:
            network.set(*orders.recv())
            orders.send("done")
        except (EOFError, OSError):
            loop.remove_reader(orders.fileno())
            end.set_result(None)

    loop.add_reader(orders.fileno(), order)
    orders.send("done")
    await end


def run(
    targets: dict[str, int], ports: dict[str, int], never: set[frozenset[str]], orders: Connection
) -> None:
    """The process."""
    import uvloop

    uvloop.run(serve(targets, ports, never, orders))
