"""A test network that is up: hosts, the network between them, brokers on them, and everything that
can be done to these."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any, ClassVar

from mqttree.bench.lab import federators, gateways, network, relays
from mqttree.bench.lab.brokers import (
    BrokerProcess,
    HostProcess,
    Kind,
    Place,
    end_all,
    wait_listening,
)
from mqttree.bench.lab.cpulimit import CpuLimit
from mqttree.bench.lab.namespaces import Namespace, unsupported
from mqttree.bench.lab.owner import PREFIX, Reaper, owner, remove
from mqttree.bench.lab.ports import free_ports
from mqttree.bench.lab.topology import Topology, Wire, wire_from
from mqttree.bench.lab.trace_process import TraceProcess

READY_SECONDS = 30.0
BESIDE_SECONDS = 90.0
"""s until the processes beside brokers are connected: each is a Python that starts, all at once."""
ORDER_SECONDS = 10.0
ADMIN_PORT = 8080
_fork = multiprocessing.get_context("fork")
_number = iter(range(1_000_000))


class LabError(Exception):
    """The lab could not be brought up, or something in it has broken; one line."""


def resolved(topology: Topology, way: str) -> tuple[str, str]:
    """Return (how a network is made here if `way` is asked for, why not of namespaces; "" where
    they work or are not wanted).

    How: "namespaces", "relays" or "loopback".
    """
    if not topology.network:
        return "loopback", ""
    reason = unsupported() if way != "relays" else ""
    return ("relays" if reason or way == "relays" else "namespaces"), reason


class Lab:
    """Brokers of one kind on a drawn topology. A context manager: what it made is gone afterwards,
    whatever happens.

    One at a time in a process: what it made is known by its process.
    """

    _process: ClassVar[int] = 0  # that has one

    def __init__(
        self,
        topology: Topology,
        kind: Kind,
        *,
        on: Iterable[str] | None = None,
        way: str = "auto",
        seed: int = 1,
        recorder: Callable[[], network.Recorder] | None = None,
        plan: federators.Plan | None = None,
    ) -> None:
        """Nothing is brought up yet. Raises LabError when `way` asks for namespaces and there are
        none here.

        `topology` says which hosts and links there are, `kind` which brokers run. `on` are the
        hosts that get a broker (None: all that the topology names; of a kind that knows no others
        the first).

        `way` is "namespaces" (which needs root), "relays", or "auto": the first of them that works.
        A topology without a network is on the loopback. `seed` is of what the network draws.

        `recorder` makes what takes the trace; it is called in the network's process. `plan` is how
        federators work, where the kind has them (None: the defaults).
        """
        self.topology, self.kind, self.seed = topology, kind, seed
        self.on = (
            tuple(on) if on is not None else topology.brokers if kind.many else topology.brokers[:1]
        )
        self.way, self.why = resolved(topology, way)
        if way == "namespaces" and self.why:
            raise LabError(f"no lab of namespaces here: {self.why}")
        self.brokers: dict[str, BrokerProcess] = {}
        self.companions: dict[str, HostProcess] = {}
        """What runs beside each broker, by its host; empty for a kind without companions."""
        self._plan = plan or federators.Plan()
        self.cluster = f"lab-{owner()}-{next(_number)}"
        self._recorder = recorder
        self._stack = ExitStack()
        self._spaces: dict[str, Namespace] = {}
        self._orders: Any = None
        self._network: Any = None
        self._direct: dict[tuple[str, str], int] = {}
        self._limits: dict[str, CpuLimit] = {}
        self.removed: list[str] = []

    def __enter__(self) -> Lab:
        """Make hosts and network, and start the brokers. Raises LabError with one line."""
        if Lab._process == os.getpid():
            raise LabError("this process has a lab already, whose end would be this one's, too")
        Lab._process = os.getpid()
        self._stack.callback(setattr, Lab, "_process", 0)
        try:
            self.removed = remove(None)
            self._reaper = Reaper()
            self._stack.callback(self._reaper.close)
            self._folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{owner()}-"))
            self._folder.chmod(0o755)  # Mosquitto gives up root before it reads on
            self._stack.callback(shutil.rmtree, self._folder, ignore_errors=True)
            if self.way == "namespaces":
                self._make_namespaces()
            elif self.way == "relays":
                self._make_relays()
            else:
                self._make_loopback()
            self._stack.callback(
                lambda: end_all([*self.companions.values(), *self.brokers.values()])
            )
            if self.kind.companion:
                self._add_companions()
            self._stack.callback(self._lift_limits)
        except OSError as error:
            self._stack.close()
            raise LabError(f"the lab cannot be brought up: {error.strerror or error}") from error
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self) -> None:
        """Start all brokers and wait until they listen, then their companions, and wait until these
        are connected. Raises LabError with one line about the first that does not."""
        if missing := self.kind.missing():
            raise LabError(missing)
        if self.kind.companion == "gateway" and self.way != "namespaces":
            raise LabError("gateways do not yet run in a lab that is not one of namespaces")
        try:
            for broker in self.brokers.values():
                broker.start()
        except OSError as error:
            raise LabError(f"a broker cannot be started: {error}") from error
        if wrong := wait_listening(list(self.brokers.values()), READY_SECONDS):
            raise LabError(wrong)
        self._start_companions()

    def _start_companions(self) -> None:
        beside = list(self.companions.values())
        try:
            for each in beside:
                each.start()
        except OSError as error:
            raise LabError(f"a {self.kind.companion} cannot be started: {error}") from error
        wait = (
            gateways.wait_federated
            if self.kind.companion == "gateway"
            else federators.wait_connected
        )
        if wrong := wait(beside, BESIDE_SECONDS):
            raise LabError(wrong)

    def inside(self, host: str) -> AbstractContextManager[None]:
        """Have the calling thread on a host: sockets opened now are this host's."""
        space = self._spaces.get(host)
        return space.inside() if space is not None else nullcontext()

    def namespace(self, host: str) -> str:
        """Return the name of a host's namespace for `ip netns exec`; empty where it has none."""
        space = self._spaces.get(host)
        return space.name if space is not None else ""

    def address(self, host: str, broker: str) -> tuple[str, int]:
        """Return where clients on a host reach a broker."""
        place = self.brokers[broker].place
        if self.way == "relays" and host != broker:
            return "127.0.0.1", self._direct[host, broker]
        return place.address, place.port

    def _add(self, host: str, place: Place) -> None:
        self.brokers[host] = BrokerProcess(self.kind, place, self.cluster)

    def _add_companions(self) -> None:
        if self.kind.companion == "gateway":
            for host in self.on:
                place = self.brokers[host].place
                self.companions[host] = gateways.gateway(place, self.cluster, len(self.on))
            return
        numbers = {host: number for number, host in enumerate(self.topology.brokers)}
        for host in self.on:
            neighbours = {
                other: (numbers[other], self.address(host, other))
                for other in self.topology.neighbours(host)
                if other in self.on
            }
            self.companions[host] = federators.federator(
                self.brokers[host].place, numbers[host], neighbours, self._plan
            )

    def _make_loopback(self) -> None:
        ports = free_ports(2 * len(self.on))
        listening = dict(zip(self.on, ports, strict=False))
        for host, admin in zip(self.on, ports[len(self.on) :], strict=True):
            bridges = {p: ("127.0.0.1", listening[p]) for c, p in self._bridges() if c == host}
            place = Place(
                host,
                "127.0.0.1",
                listening[host],
                admin,
                self._folder / host,
                nullcontext,
                bridges=bridges,
            )
            self._add(host, place)

    def _make_namespaces(self) -> None:
        for number, host in enumerate(self.topology.hosts, 1):
            space = self._spaces[host] = Namespace(host, f"10.77.0.{number}")
            self._stack.callback(space.delete)
        tuns = {host: space.tun for host, space in self._spaces.items()}
        addresses = {host: space.address for host, space in self._spaces.items()}
        for host in self.on:
            space = self._spaces[host]
            bridges = {
                p: (addresses[p], network.MQTT_PORT) for c, p in self._bridges() if c == host
            }
            place = Place(
                host,
                space.address,
                network.MQTT_PORT,
                ADMIN_PORT,
                self._folder / host,
                space.inside,
                bridges=bridges,
            )
            self._add(host, place)
        self._serve(network.run, (self.topology, tuns, addresses, self.on))

    def _make_relays(self) -> None:
        hosts, on = self.topology.hosts, self.on
        pairs = [(host, broker) for host in hosts for broker in on if host != broker]
        ports = iter(free_ports(3 * len(on) + len(pairs)))
        targets = {broker: next(ports) for broker in on}
        admins = {broker: next(ports) for broker in on}
        named = {broker: next(ports) for broker in on}
        self._direct = {pair: next(ports) for pair in pairs}
        routes: relays.Routes = {port: ("", broker) for broker, port in named.items()}
        routes |= {port: pair for pair, port in self._direct.items()}
        for broker in on:
            bridges = {
                p: ("127.0.0.1", self._direct[broker, p]) for c, p in self._bridges() if c == broker
            }
            seeds = tuple(f"127.0.0.1:{port}" for other, port in named.items() if other != broker)
            place = Place(
                broker,
                "127.0.0.1",
                targets[broker],
                admins[broker],
                self._folder / broker,
                nullcontext,
                advertise=f"127.0.0.1:{named[broker]}",
                seeds=seeds,
                bridges=bridges,
            )
            self._add(broker, place)
        self._serve(relays.run, (self.topology, targets, routes))

    def _bridges(self) -> tuple[tuple[str, str], ...]:
        by_hand = self.kind.many and self.kind.program == "mosquitto" and not self.kind.companion
        return self.topology.bridges() if by_hand else ()

    def _serve(self, target: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        self._orders, theirs = _fork.Pipe()
        kept, make = self._orders, self._recorder

        def child() -> None:
            self._reaper.let_go()
            kept.close()
            target(
                *arguments, theirs, None if make is None else lambda: TraceProcess(make), self.seed
            )

        sys.stdout.flush()
        self._network = _fork.Process(target=child, name="network")
        self._network.start()
        theirs.close()
        self._stack.callback(self._end_network)
        if reason := self._answer().get("failed"):
            raise LabError(f"the network process cannot listen: {reason}")

    def _end_network(self) -> None:
        self._orders.close()
        self._network.join(5)
        if self._network.is_alive():
            self._network.kill()
            self._network.join()

    def _answer(self) -> dict[str, Any]:
        try:
            if self._orders.poll(ORDER_SECONDS):
                answer: dict[str, Any] = self._orders.recv()
                return answer
        except (EOFError, OSError):
            pass
        raise LabError(
            "the network process has ended"
            if not self._network.is_alive()
            else "the network process does not answer"
        )

    def order(self, order: dict[str, Any]) -> dict[str, Any]:
        """Give the network process an order. Raises LabError, ValueError for one that cannot be."""
        if self._orders is None:
            raise LabError(
                "there is no network between brokers on the loopback: nothing can be cut or slowed"
            )
        try:
            self._orders.send(order)
        except OSError:
            raise LabError("the network process has ended") from None
        answer = self._answer()
        if "refused order" in answer:
            raise ValueError(answer["refused order"])
        return answer

    @property
    def broken(self) -> bool:
        """Whether there was a network, and its process has ended."""
        return self._network is not None and not self._network.is_alive()

    @property
    def network_end(self) -> int | None:
        """A descriptor that can be read when the network process has ended; None without one."""
        return self._network.sentinel if self._network is not None else None

    @property
    def network_pid(self) -> int | None:
        """The process that is the network; None without one."""
        return self._network.pid if self._network is not None else None

    def totals(self) -> dict[str, Any] | None:
        """What went through every link, and how late the network process was; None without a
        network."""
        return self.order({"do": "totals"}) if self._orders is not None else None

    def set_links(
        self, pairs: Iterable[tuple[str, str]], *, both: bool = True, **what: Any
    ) -> None:
        """Change directions of links: open=False, wire={...} (see `topology.Wire`; ValueError for
        what cannot be).

        With by=N, undo=N undoes this alone; heal=True undoes everything.
        """
        wire_from(what.get("wire", {}), Wire())
        listed = [list(pair) for pair in pairs]
        if both:
            listed += [[other, one] for one, other in listed]
        self.order({"do": "set", "pairs": listed, **what})

    def limit_cpu(self, name: str, share: float) -> str:
        """Give a broker this share of a core (0 or less: all again); return by which way."""
        limit = self._limits.pop(name, None)
        if limit is not None:
            limit.close()
        process = self.brokers[name].process
        if share <= 0 or process is None:
            return ""
        limit = self._limits[name] = CpuLimit(f"{name}-{next(_number)}", process.pid, share)
        return limit.way

    def _lift_limits(self) -> None:
        for limit in self._limits.values():
            limit.close()

    def let_go(self) -> None:
        """In a forked child: hold nothing that keeps the lab up."""
        self._reaper.let_go()
        if self._orders is not None:
            self._orders.close()
