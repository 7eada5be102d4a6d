"""What a test network looks like: brokers, sites of clients, and the wire between each two of them.
Pure.

A topology file is YAML:

    brokers: 5                      # b0 to b4, or a list of names
    sites: [west, east]             # hosts of clients only; clients that are at no site are on
                                    # their broker's host
    network: true                   # false: all on one loopback, nothing is delayed and nothing
                                    # can be cut
    default: {delay_ms: 10, delay_sd_ms: 2.5, rate_mbit: 10}       # any two; "off": not connected
    links:
      - {between: [b0, b1], delay_ms: 3}                            # the rest as in default
    routed: true                    # hosts without a link reach each other by the shortest path
    tree: [[b1, b0], [b2, b0]]      # child and parent of bridges made by hand (left out: a star
                                    # around the first broker)
"""

from __future__ import annotations

import heapq
import random
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from mqttree.broker.config.yaml_file import ConfigError, ConfigFile, KeyPath

MAX_BROKERS = 50
"""More processes than that on one machine measure the machine only."""
FOLDER = Path(__file__).parent / "topologies"
KEYS = ("brokers", "sites", "network", "default", "links", "routed", "tree", "title")
_NAME = re.compile(r"[a-z][a-z0-9-]{0,14}")


@dataclass(frozen=True, slots=True)
class Wire:
    """One link between two hosts, the same in both directions.

    delay_ms: the one-way delay.
    delay_sd_ms: how far links of this kind differ (normal, drawn once for each link).
    jitter_ms: how far packets of one link differ (normal, never out of order).
    rate_mbit: Mbit/s, None: not limited.
    loss: share of packets.
    queue_kb: so much waits for the rate at most (KiB), the rest is dropped.
    """

    delay_ms: float = 0.0
    delay_sd_ms: float = 0.0
    jitter_ms: float = 0.0
    rate_mbit: float | None = None
    loss: float = 0.0
    queue_kb: float = 256.0

    def check(self) -> str:
        """Return what is wrong with it in one line; empty when nothing is."""
        for name in ("delay_ms", "delay_sd_ms", "jitter_ms"):
            if not 0 <= getattr(self, name) <= 60_000:
                return f"{name} must be 0 to 60,000"
        if self.rate_mbit is not None and not 0.001 <= self.rate_mbit <= 100_000:
            return "rate_mbit must be 0.001 to 100,000"
        if not 0 <= self.loss < 1:
            return "loss must be 0 to less than 1"
        if not 2 <= self.queue_kb <= 1_000_000:
            return "queue_kb must be 2 to 1,000,000"
        return ""

    def drawn(self, source: random.Random) -> Wire:
        """Draw the delay of one link; not below a tenth of the mean."""
        if not self.delay_sd_ms:
            return self
        delay = max(self.delay_ms / 10, source.gauss(self.delay_ms, self.delay_sd_ms))
        return replace(self, delay_ms=round(delay, 3), delay_sd_ms=0.0)


WIRE_FIELDS = tuple(item.name for item in fields(Wire))


@dataclass(frozen=True, slots=True)
class Topology:
    """A test network; hosts are the brokers and then the sites."""

    name: str
    brokers: tuple[str, ...]
    sites: tuple[str, ...] = ()
    network: bool = True
    default: Wire | None = Wire()
    links: dict[frozenset[str], Wire] = field(default_factory=dict)
    tree: tuple[tuple[str, str], ...] = ()
    routed: bool = False
    """Whether hosts without a link reach each other by the shortest path, as in an IP network. Each
    two of them then have a wire of their own, as late as the links of that path together: what is
    done to a link concerns only what goes between its two ends."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """All of them, in the order of their addresses."""
        return self.brokers + self.sites

    def pairs(self) -> Iterable[tuple[str, str]]:
        """Return each pair of hosts, once, in the order of their addresses."""
        hosts = self.hosts
        return ((one, other) for number, one in enumerate(hosts) for other in hosts[number + 1 :])

    def link(self, one: str, other: str) -> Wire | None:
        """Return the link between two hosts; None where there is none."""
        return self.links.get(frozenset((one, other)), self.default)

    def wire(self, one: str, other: str) -> Wire | None:
        """Return what is between two hosts: their link, or where the network is routed the shortest
        path; None where there is nothing."""
        link = self.link(one, other)
        if link is not None or not self.routed:
            return link
        delay = self._path_delay(one, other)
        return None if delay is None else Wire(delay_ms=round(delay, 6))

    def neighbours(self, host: str) -> tuple[str, ...]:
        """Return the hosts that have a link with this one, in the order of their addresses."""
        return tuple(
            each for each in self.hosts if each != host and self.link(host, each) is not None
        )

    def _path_delay(self, one: str, other: str) -> float | None:
        """Return the delay of the shortest path over links (ms); None where there is no path."""
        waiting, seen = [(0.0, one)], set()
        while waiting:
            delay, host = heapq.heappop(waiting)
            if host == other:
                return delay
            if host in seen:
                continue
            seen.add(host)
            for each in self.neighbours(host):
                link = self.link(host, each)
                assert link is not None
                heapq.heappush(waiting, (delay + link.delay_ms, each))
        return None

    def with_sites(self, sites: dict[str, str], wire: Wire) -> Topology:
        """Return the same with further hosts of clients: `sites` says of each which host it has a
        link with, which is like `wire`."""
        links = {frozenset(pair): wire for pair in sites.items()}
        return replace(self, sites=(*self.sites, *sites), links={**self.links, **links})

    def bridges(self) -> tuple[tuple[str, str], ...]:
        """(child, parent) of bridges made by hand."""
        return self.tree or tuple((child, self.brokers[0]) for child in self.brokers[1:])

    def drawn(self, seed: int) -> Topology:
        """Fix the delay of every link, by a seed."""
        source = random.Random(seed)
        links = {}
        for one, other in self.pairs():
            wire = self.link(one, other)
            if wire is not None:
                links[frozenset((one, other))] = wire.drawn(source)
        return replace(self, links=links, default=None)

    def only(self, count: int) -> Topology:
        """The same with its first `count` brokers."""
        gone = set(self.brokers[count:])
        links = {pair: wire for pair, wire in self.links.items() if not pair & gone}
        tree = tuple(pair for pair in self.tree if not gone & set(pair))
        return replace(self, brokers=self.brokers[:count], links=links, tree=tree)

    def sized(self, count: int) -> Topology:
        """The same with `count` brokers: fewer, or more that are called in the same way and linked
        as in `default`."""
        if count <= len(self.brokers):
            return self.only(count)
        taken = set(self.hosts)
        names = [
            name for name in (f"b{number}" for number in range(2 * count)) if name not in taken
        ]
        return replace(self, brokers=self.brokers + tuple(names[: count - len(self.brokers)]))

    def as_dict(self) -> dict[str, Any]:
        """Return the topology as JSON can have it, for `run.json`."""
        links = []
        for one, other in self.pairs():
            wire = self.link(one, other)
            if wire is not None:
                links.append({"a": one, "b": other, **asdict(wire)})
        return {
            "name": self.name,
            "brokers": list(self.brokers),
            "sites": list(self.sites),
            "network": self.network,
            **({"routed": True} if self.routed else {}),
            "links": links,
            "tree": [list(pair) for pair in self.bridges()],
        }


def shipped() -> list[str]:
    """Names of the topologies that come with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load(name: str) -> Topology:
    """Read a shipped topology by its name, or any by a path; ConfigError with one line."""
    path = (
        FOLDER / f"{name}.yaml"
        if "/" not in name and not name.endswith((".yaml", ".yml"))
        else Path(name)
    )
    if not path.exists():
        raise ConfigError(f"unknown topology {name!r}: one of {', '.join(shipped())}, or a file")
    return parse(ConfigFile.read(str(path)), (), path.stem)


def parse(file: ConfigFile, at: KeyPath, name: str) -> Topology:
    """Return the topology that stands at the place `at` of a `file`, under the name `name`. Raises
    ConfigError with one line that names the line."""
    section = file.section(at, KEYS) if at else _whole(file)
    brokers = _brokers(file, at, section.get("brokers"))
    sites = tuple(_names(file, (*at, "sites"), section.get("sites", [])))
    if both := [name for name in sites if name in brokers]:
        file.fail((*at, "sites"), f"{both[0]!r} is a broker's name")
    if len(brokers) + len(sites) > 250:
        file.fail((*at, "sites"), "more than 250 hosts")
    network = section.get("network", True)
    if not isinstance(network, bool):
        file.fail((*at, "network"), "must be true or false")
    routed = section.get("routed", False)
    if not isinstance(routed, bool):
        file.fail((*at, "routed"), "must be true or false")
    default: Wire | None = Wire()
    if section.get("default") in ("off", False):  # YAML 1.1 reads off as false
        default = None
    elif "default" in section:
        default = _wire(file, (*at, "default"), section["default"], Wire())
    known = set(brokers + sites)
    links: dict[frozenset[str], Wire] = {}
    for number, entry in enumerate(_list(file, (*at, "links"), section.get("links", []))):
        where = (*at, "links", str(number))
        if not isinstance(entry, dict):
            file.fail(where, "expected {between: [HOST, HOST], ...}")
        rest = {key: value for key, value in entry.items() if key != "between"}
        pair = _pair(file, where, entry.get("between"), known)
        if frozenset(pair) in links:
            file.fail(where, f"the link between {pair[0]} and {pair[1]} is there twice")
        links[frozenset(pair)] = _wire(file, where, rest, default or Wire())
    tree = tuple(
        _pair(file, (*at, "tree"), pair, set(brokers))
        for pair in _list(file, (*at, "tree"), section.get("tree", []))
    )
    if tree and not is_tree(brokers, tree):
        file.fail((*at, "tree"), "is no tree over all brokers")
    return Topology(name, brokers, sites, network, default, links, tree, routed)


def shown(value: Any) -> str:
    """A value of a file for one line of complaint, however large it is."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no number of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= 80 else f"{text[:77]}..."


def is_tree(brokers: Iterable[str], pairs: Iterable[tuple[str, str]]) -> bool:
    """Whether (child, parent) pairs connect all brokers without a loop."""
    group = {broker: broker for broker in brokers}

    def top(broker: str) -> str:
        while group[broker] != broker:
            broker = group[broker]
        return broker

    for child, parent in pairs:
        one, other = top(child), top(parent)
        if one == other:
            return False
        group[one] = other
    return len({top(broker) for broker in group}) == 1


def _whole(file: ConfigFile) -> dict[str, Any]:
    for key in file.data:
        if key not in KEYS:
            file.fail((str(key),), f"unknown key; known are {', '.join(KEYS)}")
    return file.data


def _list(file: ConfigFile, at: KeyPath, value: Any) -> list[Any]:
    if not isinstance(value, list):
        file.fail(at, "must be a list")
    return value


def _names(file: ConfigFile, at: KeyPath, value: Any) -> list[str]:
    for name in _list(file, at, value):
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            file.fail(
                at,
                f"{shown(name)} is no name: a small letter, "
                "then at most 14 small letters, digits and hyphens",
            )
    if twice := [name for number, name in enumerate(value) if name in value[:number]]:
        file.fail(at, f"{twice[0]!r} is there twice")
    return list(value)


def _brokers(file: ConfigFile, at: KeyPath, value: Any) -> tuple[str, ...]:
    where = (*at, "brokers")
    if isinstance(value, int) and not isinstance(value, bool):
        if not 1 <= value <= MAX_BROKERS:
            file.fail(where, f"must be 1 to {MAX_BROKERS}")
        return tuple(f"b{number}" for number in range(value))
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_BROKERS:
        file.fail(where, f"must be a whole number or a list of 1 to {MAX_BROKERS} names")
    return tuple(_names(file, where, value))


def _pair(file: ConfigFile, at: KeyPath, value: Any, known: set[str]) -> tuple[str, str]:
    if not isinstance(value, list) or len(value) != 2 or value[0] == value[1]:
        file.fail(at, "expected two hosts, [ONE, OTHER]")
    for name in value:
        if not isinstance(name, str) or name not in known:
            file.fail(at, f"unknown host {shown(name)}: one of {', '.join(sorted(known))}")
    return value[0], value[1]


def _wire(file: ConfigFile, at: KeyPath, value: Any, base: Wire) -> Wire:
    if not isinstance(value, dict):
        file.fail(at, f"expected any of {', '.join(WIRE_FIELDS)}")
    try:
        return wire_from(value, base)
    except ValueError as error:
        file.fail(at, str(error))


def wire_from(changes: dict[str, Any], base: Wire) -> Wire:
    """Return `base` with changes; ValueError in one line for a key or a value that cannot be."""
    for key, value in changes.items():
        if key not in WIRE_FIELDS:
            raise ValueError(f"unknown key {key!r}: one of {', '.join(WIRE_FIELDS)}")
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number and not (key == "rate_mbit" and value is None):
            raise ValueError(f"{key} must be a number, not {shown(value)}")
    wire = replace(base, **changes)
    if wrong := wire.check():
        raise ValueError(wrong)
    return wire
