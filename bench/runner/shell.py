"""`mqttree bench lab`: a test network to play with. Faults are typed, or piped in, while one's own
clients run."""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import shlex
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from mqttree.bench.lab import foreign
from mqttree.bench.lab import topology as topologies
from mqttree.bench.lab.agreement import View
from mqttree.bench.lab.brokers import KINDS
from mqttree.bench.lab.lab import Lab, LabError
from mqttree.bench.lab.topology import WIRE_FIELDS, Topology, Wire, wire_from
from mqttree.bench.runner.fault_injector import FaultInjector
from mqttree.bench.runner.observer import Observer
from mqttree.bench.scenarios.scenario import (
    DEEDS,
    LONGEST,
    ON_BROKERS,
    SELECTORS,
    Fault,
    wrong_groups,
)

HELP = f"""\
  kill|restart|pause|resume BROKER       BROKER: a name, {", ".join(SELECTORS)}
  kill|restart BROKER federator|both     what runs beside it
  cut|half-open|heal A B  (or all)       half-open: what A sends does not reach B
  slow|lossy A B KEY=VALUE...  (or all)  {", ".join(WIRE_FIELDS)}
  partition A,B C,D,E                    and heal all
  tree   links   help   quit             sleep SECONDS"""


class Silent:
    """Takes a trace and keeps nothing."""

    def __getattr__(self, _name: str) -> Any:
        return lambda *_words, **_more: None


class Say(Protocol):
    """Prints a line."""

    def __call__(self, line: str, /) -> None:
        """Print it."""


def parse(line: str, place: Topology) -> Fault | str:
    """What a line asks for: a fault, or one of the words tree, links, help and quit. ValueError in
    one line."""
    words = shlex.split(line)
    deed, rest = words[0], words[1:]
    if deed in ("tree", "links", "help", "quit"):
        return deed
    if deed not in DEEDS or deed == "leave":  # the clients are not ours
        deeds = ", ".join(each for each in DEEDS if each != "leave")
        raise ValueError(f"unknown word {deed!r}: one of {deeds}, tree, links, sleep, help, quit")
    if deed in ON_BROKERS:
        known = (*place.brokers, *SELECTORS)
        process = rest.pop() if deed in ("kill", "restart") and len(rest) == 2 else ""
        if len(rest) != 1 or rest[0] not in known:
            raise ValueError(f"{deed} takes one of {', '.join(known)}")
        return Fault(0.0, deed, broker=rest[0], process=process)
    if deed == "partition":
        groups = tuple(tuple(group.split(",")) for group in rest)
        if len(groups) < 2:
            raise ValueError("partition takes two groups or more, as A,B C,D")
        if wrong := wrong_groups(groups, place):
            raise ValueError(wrong)
        return Fault(0.0, deed, groups=groups)
    wire = {}
    for word in [word for word in rest if "=" in word]:
        key, _, value = word.partition("=")
        try:
            wire[key] = float(value)
        except ValueError:
            raise ValueError(f"{key} must be a number, not {value!r}") from None
    wire_from(wire, Wire())
    hosts = [word for word in rest if "=" not in word]
    if bool(wire) is not (deed in ("slow", "lossy")):
        needed = f"{deed} needs any of {', '.join(WIRE_FIELDS)}, as KEY=VALUE"
        raise ValueError(f"{deed} takes no {next(iter(wire))}" if wire else needed)
    if hosts in ([], ["all"]):
        return Fault(0.0, deed, links=tuple(place.pairs()), wire=wire)
    known = (*place.hosts, "all", *SELECTORS)
    if len(hosts) != 2 or any(host not in known for host in hosts):
        raise ValueError(f"{deed} takes all, or two of {', '.join(place.hosts)}")
    if hosts[0] == hosts[1] != "random":
        raise ValueError(f"there is no link from {hosts[0]} to itself")
    return Fault(0.0, deed, links=((hosts[0], hosts[1]),), wire=wire)


def pause(line: str) -> float | None:
    """s that a line "sleep S" asks for, None for any other line. ValueError in one line."""
    words = line.split()
    if words[0] != "sleep":
        return None
    try:
        seconds = float(words[1]) if len(words) == 2 else math.nan
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= LONGEST:
        raise ValueError(
            f"sleep takes 0 to {LONGEST:,} seconds, not {' '.join(words[1:]) or 'nothing'}"
        )
    return seconds


def tree_lines(views: dict[str, View], dead: list[str]) -> list[str]:
    """How each broker sees the tree."""
    lines = []
    names = {view["id"]: name for name, view in views.items()}
    for name, view in sorted(views.items()):
        if name in dead:
            lines.append(f"{name}: dead or stopped")
            continue
        links = " ".join(f"{link['name']}:{link['role']}" for link in view["links"] if link["up"])
        lines.append(
            f"{name}: {view['state']}, root {names.get(view['root'], view['root'])}, "
            f"{links or 'no links'}"
        )
    return lines


def link_lines(totals: dict[str, Any] | None) -> list[str]:
    """What went over each direction."""
    if totals is None:
        return ["there is no network"]
    return [
        f"{name.replace('>', ' -> ')}: {link['packets']:,} packets, "
        f"{link['control_bytes']:,} B signalling, {link['data_bytes']:,} B data; "
        f"dropped {link['loss']} lost, {link['queue']} by the queue, {link['shut']} cut off"
        for name, link in totals["links"].items()
    ] + [f"the network process is late by p99 {totals['late_ms']['p99']:.3f} ms"]


def where(lab: Lab) -> list[str]:
    """How one's own clients reach each broker."""
    lines = []
    for name in lab.brokers:
        host, port = lab.address(name, name)
        space = lab.namespace(name)
        lines.append(
            f"  {name}: {f'ip netns exec {space} ' if space else ''}"
            f"mosquitto_sub -h {host} -p {port} -t '#'"
        )
    return lines


def _shown(wanted: str, lab: Lab, observer: Observer) -> list[str]:
    if wanted == "tree":
        return tree_lines(observer.views, observer.dead())
    return link_lines(lab.totals()) if wanted == "links" else HELP.splitlines()


def read_lines(put: Callable[[str], object], descriptor: int = 0) -> None:
    """Hand on every line of an input, also a last one without its end, then "quit". For a thread:
    files cannot be polled."""
    rest = b""
    while True:
        try:
            data = os.read(descriptor, 4096)
        except OSError:  # closed, or not for reading
            data = b""
        *whole, rest = (rest + data).split(b"\n")
        if not data and rest:
            whole.append(rest)
        for line in whole:
            put(line.decode(errors="replace"))
        if not data:
            put("quit")
            return


async def _play(lab: Lab, say: Say) -> None:
    """Obey lines until they end. Raises LabError when the network has died."""
    silent: Any = Silent()
    observer = Observer(lab, silent)
    injector = FaultInjector(lab, observer, silent, time.time_ns())
    observer.start()
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[str] = asyncio.Queue()

    def put(line: str) -> None:
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(lines.put_nowait, line)

    if sys.stdin is None:  # was closed by who started us, and its number may be another file's now
        lines.put_nowait("quit")
    else:
        threading.Thread(target=read_lines, args=(put,), daemon=True).start()
    end = lab.network_end
    if end is not None:
        loop.add_reader(end, put, "")
    try:
        if observer.asks and not await observer.agreed(30):
            say("the brokers have not agreed on a tree yet")
        while True:
            line = (await lines.get()).strip()
            if lab.broken:
                raise LabError(
                    "the network process has ended: the brokers have no network any more"
                )
            if not line or line.startswith("#"):
                continue
            try:
                if (seconds := pause(line)) is not None:  # for scripts that are piped in
                    await asyncio.sleep(seconds)
                    continue
                wanted = parse(line, lab.topology)
                if wanted == "quit":
                    return
                if isinstance(wanted, str):
                    for text in _shown(wanted, lab, observer):
                        say(text)
                    continue
                await _inject(wanted, injector, observer, say)
            except (ValueError, LabError) as error:
                say(str(error))
    finally:
        if end is not None:
            loop.remove_reader(end)
        await observer.stop()


async def _inject(wanted: Fault, injector: FaultInjector, observer: Observer, say: Say) -> None:
    """Bring about the fault that is `wanted`, and say what the brokers make of it."""
    said = observer.agreements[-1] if observer.agreements else 0
    (fault,) = injector.resolve((wanted,))
    began = time.monotonic_ns()
    injector.inject(fault)
    say(f"{fault.do} {injector.injected[-1][2]}")
    if not observer.asks or fault.do in ("slow", "lossy"):
        return
    if not await observer.agreed(10):
        say("no one tree of all within 10 s")
    elif observer.agreements[-1] != said:
        seconds = (observer.agreements[-1] - began) / 1e9
        say(f"one tree again after {seconds:.3f} s, root {observer.root()}")


def main(arguments: argparse.Namespace) -> int:
    """Bring a lab up and obey; 0, or 1 when it does not come up or its network dies. ValueError for
    bad input."""
    with foreign.known(foreign.kinds(arguments.add, arguments.config)):
        return _main(arguments)


def _main(arguments: argparse.Namespace) -> int:
    if arguments.broker not in KINDS:
        raise ValueError(f"unknown broker {arguments.broker!r}: one of {', '.join(KINDS)}")
    place = topologies.load(arguments.topology).drawn(arguments.seed)

    def say(line: str) -> None:
        print(line, flush=True)

    try:
        with Lab(place, KINDS[arguments.broker], way=arguments.lab, seed=arguments.seed) as lab:
            lab.start()
            say(
                f"{len(lab.brokers)} brokers ({arguments.broker}), {lab.way}"
                + (f" ({lab.why})" if lab.why else "")
                + ":"
            )
            for line in where(lab):
                say(line)
            say(HELP)
            asyncio.run(_play(lab, say))
    except LabError as error:
        print(f"mqttree bench: {error}", file=sys.stderr)
        return 1
    return 0
