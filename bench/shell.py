"""`mqttree bench lab`: a test network to play with. Faults are typed, or piped in, while one's own clients run."""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import sys
import time
from contextlib import suppress
from typing import Any, Protocol

from bench.netlab import topology as topologies
from bench.netlab.brokers import KINDS
from bench.netlab.lab import Lab, LabError
from bench.netlab.topology import WIRE_FIELDS, Topology, Wire, wire_from
from bench.observe import Observer, View
from bench.scenario import DEEDS, ON_BROKERS, SELECTORS, Fault
from bench.striking import Striker

HELP = f"""\
  kill|restart|pause|resume BROKER       BROKER: a name, {", ".join(SELECTORS)}
  cut|half-open|heal A B  (or all)       half-open: what A sends does not reach B
  slow|lossy A B KEY=VALUE...  (or all)  {", ".join(WIRE_FIELDS)}
  partition A,B C,D,E                    and heal all
  tree   links   help   quit"""


class Silent:
    """Takes a trace and keeps nothing."""

    def __getattr__(self, _name: str) -> Any:
        return lambda *_words, **_more: None


class Say(Protocol):
    """Prints a line."""

    def __call__(self, line: str, /) -> None:
        """Print it."""


def parse(line: str, place: Topology) -> Fault | str:
    """What a line asks for: a fault, or one of the words tree, links, help and quit. ValueError in one line."""
    words = shlex.split(line)
    deed, rest = words[0], words[1:]
    if deed in ("tree", "links", "help", "quit"):
        return deed
    if deed not in DEEDS:
        raise ValueError(f"unknown word {deed!r}: one of {', '.join(DEEDS)}, tree, links, help, quit")
    if deed in ON_BROKERS:
        known = (*place.brokers, *SELECTORS)
        if len(rest) != 1 or rest[0] not in known:
            raise ValueError(f"{deed} takes one of {', '.join(known)}")
        return Fault(0.0, deed, broker=rest[0])
    if deed == "partition":
        groups = tuple(tuple(group.split(",")) for group in rest)
        if unknown := [host for group in groups for host in group if host not in place.hosts]:
            raise ValueError(f"unknown host {unknown[0]!r}: one of {', '.join(place.hosts)}")
        if len(groups) < 2:
            raise ValueError("partition takes two groups or more, as A,B C,D")
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
    return Fault(0.0, deed, links=((hosts[0], hosts[1]),), wire=wire)


def tree_lines(views: dict[str, View], dead: list[str]) -> list[str]:
    """How each broker sees the tree."""
    lines = []
    names = {view["id"]: name for name, view in views.items()}
    for name, view in sorted(views.items()):
        if name in dead:
            lines.append(f"{name}: dead or stopped")
            continue
        links = " ".join(f"{link['name']}:{link['role']}" for link in view["links"] if link["up"])
        lines.append(f"{name}: {view['state']}, root {names.get(view['root'], view['root'])}, {links or 'no links'}")
    return lines


def link_lines(totals: dict[str, Any] | None) -> list[str]:
    """What went over each direction."""
    if totals is None:
        return ["there is no network"]
    return [
        f"{name.replace('>', ' -> ')}: {link['packets']:,} packets, {link['control_bytes']:,} B signalling, "
        f"{link['data_bytes']:,} B data; dropped {link['loss']} lost, {link['queue']} by the queue, {link['shut']} cut off"
        for name, link in totals["links"].items()
    ] + [f"the network process is late by p99 {totals['late_ms']['p99']:.3f} ms"]


def where(lab: Lab) -> list[str]:
    """How one's own clients reach each broker."""
    lines = []
    for name in lab.brokers:
        host, port = lab.address(name, name)
        space = lab.namespace(name)
        lines.append(f"  {name}: {f'ip netns exec {space} ' if space else ''}mosquitto_sub -h {host} -p {port} -t '#'")
    return lines


def _shown(wanted: str, lab: Lab, observer: Observer) -> list[str]:
    if wanted == "tree":
        return tree_lines(observer.views, observer.dead())
    return link_lines(lab.totals()) if wanted == "links" else HELP.splitlines()


async def _play(lab: Lab, say: Say) -> None:
    silent: Any = Silent()
    observer = Observer(lab, silent)
    striker = Striker(lab, observer, silent, time.time_ns())
    observer.start()
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[str] = asyncio.Queue()
    rest = bytearray()

    def read() -> None:
        data = os.read(0, 4096)
        rest.extend(data)
        while b"\n" in rest:
            line, _, after = bytes(rest).partition(b"\n")
            rest[:] = after
            lines.put_nowait(line.decode(errors="replace"))
        if not data:
            loop.remove_reader(0)
            lines.put_nowait("quit")

    loop.add_reader(0, read)
    try:
        if observer.asks and not await observer.agreed(30):
            say("the brokers have not agreed on a tree yet")
        while True:
            said = observer.agreements[-1] if observer.agreements else 0
            line = (await lines.get()).strip()
            if not line or line.startswith("#"):
                continue
            if line.startswith("sleep "):  # for scripts that are piped in
                with suppress(ValueError):
                    await asyncio.sleep(min(3600.0, float(line[6:])))
                continue
            try:
                wanted = parse(line, lab.topology)
                if wanted == "quit":
                    return
                if isinstance(wanted, str):
                    for text in _shown(wanted, lab, observer):
                        say(text)
                    continue
                (fault,) = striker.resolve((wanted,))
                began = time.monotonic_ns()
                striker.strike(fault)
                say(f"{fault.do} {striker.struck[-1][2]}")
                if observer.asks and fault.do not in ("slow", "lossy") and await observer.agreed(10):
                    if observer.agreements[-1] != said:
                        say(f"one tree again after {(observer.agreements[-1] - began) / 1e9:.3f} s, root {observer.root()}")
                elif observer.asks and fault.do not in ("slow", "lossy"):
                    say("no one tree of all within 10 s")
            except (ValueError, LabError) as error:
                say(str(error))
    finally:
        loop.remove_reader(0)
        await observer.stop()


def main(arguments: argparse.Namespace) -> int:
    """Bring a lab up and obey; 0, or 1 when it does not come up. ValueError for bad input."""
    if arguments.broker not in KINDS:
        raise ValueError(f"unknown broker {arguments.broker!r}: one of {', '.join(KINDS)}")
    place = topologies.load(arguments.topology).drawn(arguments.seed)

    def say(line: str) -> None:
        print(line, flush=True)

    try:
        with Lab(place, KINDS[arguments.broker], way=arguments.lab, seed=arguments.seed) as lab:
            lab.start()
            say(f"{len(lab.brokers)} brokers ({arguments.broker}), {lab.way}" + (f" ({lab.why})" if lab.why else "") + ":")
            for line in where(lab):
                say(line)
            say(HELP)
            asyncio.run(_play(lab, say))
    except LabError as error:
        print(f"mqttree bench: {error}", file=sys.stderr)
        return 1
    return 0
