"""What a scenario file says: a topology, a load, faults, and the factors whose every combination is
run. Pure.

docs/guides/benchmarks.md explains the keys; the shipped files in bench/scenarios/ show them.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from mqttree.bench import checked
from mqttree.bench.lab import topology as topologies
from mqttree.bench.lab.brokers import KINDS
from mqttree.bench.lab.topology import WIRE_FIELDS, Topology, Wire, shown, wire_from
from mqttree.bench.scenarios import run_table
from mqttree.bench.scenarios.measures import MEASURES
from mqttree.bench.workloads import simulator
from mqttree.bench.workloads.named import named
from mqttree.bench.workloads.workload_file import WorkloadError
from mqttree.broker.config.yaml_file import ConfigError, ConfigFile, KeyPath, kind_of

FOLDER = Path(__file__).parent
KEYS = (
    "title",
    "paper",
    "topology",
    "parameters",
    "flows",
    "factors",
    "setups",
    "repetitions",
    "faults",
    "phases",
    "figure",
    "asked",
    "show",
    "short",
    "medium",
    "repeat",
    "skip",
)
FORMS = ("full", "medium", "short")
"""A scenario as the paper has it, in its form for two hours of all papers, and for minutes."""
SHORTENED = ("parameters", "flows", "factors", "repetitions", "repeat", "faults", "phases")
"""Keys that `short` and `medium` may change; of factors those that they name, of parameters and
flows the keys that they name."""
PAPERS = ("MQTT-ST", "Overlays", "Hetero", "EMQ", "Federator", "Scaling", "")
LOCALITIES = ("even", "0", "50", "100")
CHOICES = ("random", "turn", "all")
STRATEGIES = simulator.NAMES
DEEDS = (
    "kill",
    "restart",
    "pause",
    "resume",
    "cut",
    "half-open",
    "slow",
    "lossy",
    "partition",
    "heal",
    "leave",
)
ON_BROKERS = frozenset(("kill", "restart", "pause", "resume"))
ALONE = "mosquitto"
"""The kind of broker that, as those that are added, is one broker alone."""
SELECTORS = ("root", "leaf", "random", "same")
LONGEST = 86_400
"""s that anything in a scenario may take."""
MAX_NUMBER = 10**15
"""Whole numbers beyond that are no parameter's, and not even floats for long."""
MAX_NAME = 255
"""bytes of a folder's name."""
MAX_RUNS = 5000


@dataclass(frozen=True, slots=True)
class Parameters:
    """One load against one kind of broker; every one may be a factor.

    broker: a kind (`mqttree.bench.lab.brokers.KINDS`).
    brokers: how many (0: as in the topology).
    at: the host of the only broker ("": all; the first for kinds that know no others).
    publish_at, subscribe_at: hosts at which publishers and subscribers sit, in turn, joined by +;
        locality then says nothing of them, and brokers that will fail get clients, too.
    client_delay: ms between such a client's host, which is then its own, and that named.
    locality: where clients sit - even: in turn over all hosts; 100: all on one; 0: publishers on
        one, subscribers on another; 50: each anywhere (with sites: half of each at the first two
        sites, and half of the pairs of equal numbers at different ones).
    publishers, subscribers, topics: how many.
    choice: of topics - random, turn (by number), all (publishers in turn, subscribers everything).
    workload: who wants which topics (`mqttree.bench.workloads.named.NAMES`, or a file); a publisher
    each.
        Publishers, subscribers, topics, choice and locality then say nothing.
    strategy: where the clients of a workload connect (`mqttree.bench.workloads.simulator.NAMES`).
    payload: bytes.
    qos, version: of clients.
    spread: the time between two messages differs from 1/rate by such a share at most, uniformly.
    rate: messages a second of each publisher; 0: as fast as `window` messages that are not
        acknowledged (QoS 0: not delivered) allow.
    messages: of each publisher; 0: as many as fit into `seconds`.
    begin: s until its first message is due.
    ramp: s at the beginning of the load, and as many at its end, that no rate and no delay is of;
        what is lost in them counts. All flows have the first one's.
    share: subscribers are one shared subscription.
    connections: so many more that are only opened.
    mix: flows that take part, joined by +.
    cpu: share of a core for each broker; 0: no limit.
    generators: processes of the load generator. Clients that share a topic or a shared
        subscription stay in one of them, so that there may be fewer.
    apart: the generator has a core of its own, where there are two or more, and other work on the
        machine waits for it and for brokers, where that is allowed.
    settle: s between the last subscription and the first message.
    drain: s without progress until what is missing is given up.
    every: one message of the run in so many is traced.
    redundancy, nonmember, core_interval, beacon_interval: of federators
        (`mqttree.bench.lab.federators.Plan`).
    """

    broker: str = "mqttree-flood"
    brokers: int = 0
    at: str = ""
    locality: str = "even"
    publish_at: str = ""
    subscribe_at: str = ""
    client_delay: float = 0.0
    publishers: int = 10
    subscribers: int = 10
    topics: int = 1
    choice: str = "turn"
    workload: str = ""
    strategy: str = "load"
    payload: int = 64
    qos: int = 0
    version: int = 4
    rate: float = 1.0
    spread: float = 0.0
    window: int = 1
    messages: int = 0
    seconds: float = 5.0
    begin: float = 0.0
    ramp: float = 0.0
    share: bool = False
    connections: int = 0
    mix: str = ""
    cpu: float = 0.0
    generators: int = 1
    apart: bool = False
    settle: float = 1.0
    drain: float = 2.0
    every: int = 1
    redundancy: int = 2
    nonmember: str = "lowest"
    core_interval: float = 10.0
    beacon_interval: float = 5.0

    @property
    def federated(self) -> bool:
        """Whether federators pass publications on, so that clients have to speak as they want."""
        return KINDS[self.broker].companion == "federator"

    def wrong(self) -> str:
        """Return what is wrong in one line; empty when nothing is."""
        bounds: dict[str, tuple[float, float]] = {
            "brokers": (0, topologies.MAX_BROKERS),
            "publishers": (0, 20_000),
            "subscribers": (0, 20_000),
            "topics": (1, 100_000),
            "payload": (8, 100_000_000),
            "qos": (0, 2),
            "rate": (0, 1e6),
            "window": (1, 60_000),
            "messages": (0, 1e9),
            "seconds": (0, LONGEST),
            "begin": (0, LONGEST),
            "ramp": (0, 600),
            "generators": (1, 64),
            "connections": (0, 15_000),
            "cpu": (0, 64),
            "settle": (0, 600),
            "drain": (0, 600),
            "every": (1, 1e6),
            "client_delay": (0, 60_000),
            "spread": (0, 1),
            "redundancy": (1, 256),
            "core_interval": (0.1, LONGEST),
            "beacon_interval": (0.1, LONGEST),
        }
        for name, (least, most) in bounds.items():
            if not least <= getattr(self, name) <= most:
                return f"{name} must be {least:,g} to {most:,g}, not {getattr(self, name)!r}"
        for name, allowed in (
            ("broker", tuple(KINDS)),
            ("locality", LOCALITIES),
            ("choice", CHOICES),
            ("strategy", STRATEGIES),
            ("version", (4, 5)),
        ):
            if getattr(self, name) not in allowed:
                return (
                    f"{name} must be one of {', '.join(map(str, allowed))}, "
                    f"not {getattr(self, name)!r}"
                )
        return self._load_at_odds() or self._clients_at_odds()

    def _load_at_odds(self) -> str:
        """Return which parameters of the load contradict each other, in one line, or nothing."""
        if self.ramp and 2 * self.ramp >= self.duration():
            return f"ramps of {self.ramp:g} s leave nothing of a load of {self.duration():g} s"
        if self.generators > 1 and (self.apart or self.federated):
            return "a generator that is apart, or of federated clients, is one process"
        if self.messages and not self.rate and not self.seconds:
            return "messages without rate need seconds"
        return ""

    def _clients_at_odds(self) -> str:
        """Return which parameters of clients contradict each other, in one line, or nothing."""
        if self.share and self.version != 5:
            return "share needs version 5"
        if self.federated and (self.choice == "all" or self.share):
            return "federators know neither wildcards nor shared subscriptions"
        if self.workload and (self.federated or self.share or self.publish_at or self.subscribe_at):
            return "a workload says itself who subscribes to what, and where"
        return ""

    def duration(self) -> float:
        """s from the beginning of the load until the last message is due."""
        return self.begin + (
            self.messages / self.rate if self.messages and self.rate else self.seconds
        )

    def wanted(self, turn: int, at: float) -> bool:
        """Whether a publisher's message with this number (from 0), due s after the beginning, is
        still one of the load."""
        return turn < self.messages if self.messages else at < self.begin + self.seconds


PARAMETERS = {item.name: item.type for item in fields(Parameters)}


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is done to the network or to a broker. at: s after the first message was due;
    duration: s until it is undone (0: it stays)."""

    at: float
    do: str
    broker: str = ""
    links: tuple[tuple[str, str], ...] = ()
    groups: tuple[tuple[str, ...], ...] = ()
    duration: float = 0.0
    wire: dict[str, Any] = field(default_factory=dict)
    process: str = ""
    """Which process of the broker's host: "" or "broker", "companion" for what runs beside it, or
    by what that is, or "both"."""
    client: str = ""
    """Who leaves."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination of the factors, ready to be run."""

    scenario: str
    factors: dict[str, Any]
    flows: dict[str, Parameters]
    topology: Topology
    faults: tuple[Fault, ...]
    phases: tuple[tuple[float, str], ...]

    @property
    def main(self) -> Parameters:
        """What all flows have in common: the first one's."""
        return next(iter(self.flows.values()))

    @property
    def name(self) -> str:
        """The name of the folder for the runs of this cell: its factors with their values."""
        return (
            ",".join(f"{key}={short(value)}" for key, value in sorted(self.factors.items()))
            or "all"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return flows, faults and phases as JSON can have them, for `run.json`."""
        return {
            "flows": {name: asdict(flow) for name, flow in self.flows.items()},
            "faults": [asdict(fault) for fault in self.faults],
            "phases": [list(phase) for phase in self.phases],
        }

    def fingerprint(self) -> str:
        """The same for equal cells: whether a finished run still answers the question."""
        kind = KINDS[self.main.broker]
        foreign = [kind.command, kind.config] if kind.command else []
        parts = [self.as_dict(), self.topology.as_dict(), *foreign]
        text = json.dumps(parts, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def duration(self) -> float:
        """s from the first message to the last, or to the last fault or phase."""
        ends = [fault.at + fault.duration + 2 for fault in self.faults] + [
            at for at, _ in self.phases
        ]
        return max([flow.duration() for flow in self.flows.values()] + ends)

    def besides(self) -> float:
        """s besides the load that its parameters ask for: to settle, to open connections, and to
        wait for what is missing."""
        return self.main.settle + self.main.connections / 50 + 3 * self.drain

    @property
    def drain(self) -> float:
        """s without progress until what is missing is given up, of any flow."""
        return max(flow.drain for flow in self.flows.values())


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario file after its validation: its cells are the runs to be made."""

    name: str
    title: str
    paper: str
    cells: tuple[Cell, ...]
    repetitions: int
    figure: dict[str, Any] | None
    asked: tuple[str, ...]
    show: tuple[str, ...]
    repeat: tuple[tuple[dict[str, Any], int], ...] = ()
    """Factors, and how often cells that have them are repeated instead; the first one counts."""

    def times(self, cell: Cell) -> int:
        """Return how often a cell is repeated."""
        for factors, times in self.repeat:
            if _has(cell.factors, factors):
                return times
        return self.repetitions

    @property
    def runs(self) -> int:
        """How many runs there are in all."""
        return sum(map(self.times, self.cells))


def short(value: Any) -> str:
    """A factor's value in a folder's name."""
    return f"{value:g}" if isinstance(value, float) else str(value).replace("/", "_")


def shipped() -> list[str]:
    """Names of the scenarios that come with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def _has(combination: Mapping[str, Any], factors: Mapping[str, Any]) -> bool:
    """Whether a combination has these factors, as they are written."""
    return all(str(combination.get(key)) == str(value) for key, value in factors.items())


def load(name: str, form: str = "full", added: Sequence[str] = ()) -> Scenario:
    """Read a scenario: a shipped one by its `name`, or any by a path; in a `form` of FORMS, with
    brokers that were `added`. Raises ConfigError with one line."""
    path = path_of(name)
    if path.parent == FOLDER and not path.exists():
        raise ConfigError(f"unknown scenario {name!r}: one of {', '.join(shipped())}, or a file")
    file = ConfigFile.read(str(path))
    if not checked.NAME.fullmatch(path.stem):
        raise ConfigError(
            f"{path}: no scenario can be called {path.stem!r}: letters, digits and . , + - _ only"
        )
    return parse(file, path.stem, form, added)


def path_of(name: str) -> Path:
    """The file that a name means: of a shipped scenario, or a path."""
    return (
        Path(name) if "/" in name or name.endswith((".yaml", ".yml")) else FOLDER / f"{name}.yaml"
    )


def parse(file: ConfigFile, name: str, form: str = "full", added: Sequence[str] = ()) -> Scenario:
    """Return the scenario `name` that a `file` describes, in a `form` of FORMS; all of them are
    checked. A form that the file does not have is the full one. `added`: brokers of which it has
    the same cells as of a lone one that it names. Raises ConfigError with one line that names the
    line."""
    for key in file.data:
        if key not in KEYS:
            file.fail((str(key),), f"unknown key; known are {', '.join(KEYS)}")
    if added:
        file = with_brokers(file, added)
    forms = {"full": _read(file, name)}
    for each in ("medium", "short"):
        if each in file.data:
            forms[each] = _read(_Form(file, _changed(file, each), each), name)
    return forms.get(form, forms["full"])


def with_brokers(file: ConfigFile, added: Sequence[str]) -> ConfigFile:
    """Return a file in which brokers that were `added` take part, each alone: they are values of
    the factor `broker`, and are left out where Mosquitto, which is alone, too, is. Raises
    ConfigError, in one line, where brokers are in setups."""
    data, setups = dict(file.data), file.data.get("setups")
    if isinstance(setups, dict) and any("broker" in (each or {}) for each in setups.values()):
        file.fail(("setups",), "the setups name the brokers: none can be added")
    factors, parameters = data.get("factors") or {}, data.get("parameters") or {}
    if not isinstance(factors, dict) or not isinstance(parameters, dict):
        return file  # which is wrong in itself
    own = factors.get("broker", [parameters.get("broker", Parameters().broker)])
    if not isinstance(own, list):
        return file
    data["factors"] = {**factors, "broker": [*own, *added]}
    for form in ("medium", "short"):
        changed = data.get(form)
        fewer = changed.get("factors") if isinstance(changed, dict) else None
        if isinstance(fewer, dict) and isinstance(fewer.get("broker"), list):
            more = {**fewer, "broker": [*fewer["broker"], *added]}
            data[form] = {**data[form], "factors": more}
    skip = data.get("skip")
    if isinstance(skip, list):
        alike = [each for each in skip if isinstance(each, dict) and each.get("broker") == ALONE]
        data["skip"] = skip + [{**each, "broker": name} for each in alike for name in added]
    return ConfigFile(file.path, data, file._lines)


class _Form(ConfigFile):
    """A file in another form than the full one: what is wrong with what `short` or `medium` says
    is found there."""

    __slots__ = ("_changed", "_form")

    def __init__(self, file: ConfigFile, data: dict[str, Any], form: str) -> None:
        super().__init__(file.path, data, file._lines)
        self._form, self._changed = form, frozenset(file.data[form])

    def where(self, key_path: KeyPath) -> str:
        return super().where(
            (self._form, *key_path) if key_path and key_path[0] in self._changed else key_path
        )


def _read(file: ConfigFile, name: str) -> Scenario:
    data = file.data
    place = _topology(file)
    paper = data.get("paper", "")
    if paper not in PAPERS:
        file.fail(("paper",), f"must be one of {', '.join(p for p in PAPERS if p)}")
    base = _parameters(file, ("parameters",), data.get("parameters", {}), Parameters())
    flows = {
        str(flow): _parameters(file, ("flows", str(flow)), changes, base)
        for flow, changes in _mapping(file, ("flows",), data.get("flows", {})).items()
    } or {"": base}
    setups = {
        str(name): _mapping(file, ("setups", str(name)), changes)
        for name, changes in _mapping(file, ("setups",), data.get("setups", {})).items()
    }
    factors = _factors(file, data.get("factors", {}))
    repetitions = _times(file, ("repetitions",), data.get("repetitions", 1))
    repeat = tuple(
        _repeat(file, entry) for entry in _list(file, ("repeat",), data.get("repeat", []))
    )
    faults = data.get("faults", [])
    phases = tuple(
        _phase(file, entry) for entry in _list(file, ("phases",), data.get("phases", []))
    )
    names = ["boot", *(called for _, called in phases)]
    if twice := [called for number, called in enumerate(names) if called in names[:number]]:
        file.fail(
            ("phases",),
            f"{twice[0]!r} is there twice"
            if twice[0] != "boot"
            else "boot is what comes before all of them",
        )
    skip = [
        _mapping(file, ("skip",), entry) for entry in _list(file, ("skip",), data.get("skip", []))
    ]
    cells = []
    for combination in _combinations(factors):
        if any(_has(combination, entry) for entry in skip):
            continue
        cells.append(_cell(file, name, combination, flows, place, faults, phases, setups))
    _check_cells(file, cells, max([repetitions, *(times for _, times in repeat)]))
    show = tuple(str(word) for word in _list(file, ("show",), data.get("show", [])))
    if unknown := [word for word in show if word not in run_table.COLUMNS]:
        file.fail(
            ("show",), f"unknown figure {unknown[0]!r}: one of {', '.join(run_table.COLUMNS)}"
        )
    asked = tuple(str(word) for word in _list(file, ("asked",), data.get("asked", [])))
    if unknown := [
        word for word in asked if not word or not any(name.startswith(word) for name in MEASURES)
    ]:
        file.fail(
            ("asked",),
            f"unknown measure {unknown[0]!r}: one of {', '.join(MEASURES)}, or how it begins",
        )
    figure = data.get("figure")
    if figure is not None:
        _mapping(file, ("figure",), figure)
    return Scenario(
        name,
        str(data.get("title", name)),
        paper,
        tuple(cells),
        repetitions,
        figure,
        asked,
        show,
        repeat,
    )


def _times(file: ConfigFile, at: KeyPath, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 1000:
        file.fail(at, "must be 1 to 1000")
    return value


def _repeat(file: ConfigFile, entry: Any) -> tuple[dict[str, Any], int]:
    factors = dict(_mapping(file, ("repeat",), entry))
    if "times" not in factors:
        file.fail(("repeat",), "expected {FACTOR: VALUE, times: N}")
    return factors, _times(file, ("repeat",), factors.pop("times"))


def _check_cells(file: ConfigFile, cells: list[Cell], repetitions: int) -> None:
    """Fail for no cell, too many, or two of one folder."""
    if not cells:
        file.fail(("factors",), "no combination is left")
    if same := [
        cell.name
        for cell, following in itertools.pairwise(sorted(cells, key=_folder))
        if cell.name == following.name
    ]:
        file.fail(("factors",), f"two combinations would have the folder {same[0]}")
    if len(max(cells, key=lambda cell: len(_folder(cell))).name.encode()) > MAX_NAME:
        file.fail(("factors",), f"a run's folder would have a name of more than {MAX_NAME} bytes")
    if len(cells) * repetitions > MAX_RUNS:
        file.fail(("factors",), f"{len(cells) * repetitions:,} runs are more than {MAX_RUNS:,}")


def _topology(file: ConfigFile) -> Topology:
    given = file.data.get("topology")
    if isinstance(given, str):
        try:
            return topologies.load(given)
        except ConfigError as error:
            file.fail(("topology",), str(error))
    if given is None:
        file.fail(
            ("topology",),
            f"is missing: one of {', '.join(topologies.shipped())}, or one of its own",
        )
    return topologies.parse(file, ("topology",), "own")


def _mapping(file: ConfigFile, at: KeyPath, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        file.fail(at, "must be keys and values")
    return value


def _list(file: ConfigFile, at: KeyPath, value: Any) -> list[Any]:
    if not isinstance(value, list):
        file.fail(at, "must be a list")
    return value


def _folder(cell: Cell) -> bytes:
    return cell.name.encode()


def _changed(file: ConfigFile, form: str) -> dict[str, Any]:
    """The data of a file, valid in the full form, with what another form changes."""
    data = dict(file.data)
    changes = _mapping(file, (form,), data[form])
    for key, value in changes.items():
        if key not in SHORTENED:
            file.fail((form, str(key)), f"cannot be shortened; {', '.join(SHORTENED)} can")
        if key in ("parameters", "factors"):
            value = {**data.get(key, {}), **_mapping(file, (form, key), value)}
        elif key == "flows":
            flows = data.get("flows", {})
            for flow, changed in _mapping(file, (form, key), value).items():
                if flow not in flows:
                    known = ", ".join(map(str, flows)) or "none, as there is no `flows`"
                    file.fail((form, key, str(flow)), f"unknown flow {flow!r}: one of {known}")
                _mapping(file, (form, key, str(flow)), changed)
            value = {flow: {**old, **value.get(flow, {})} for flow, old in flows.items()}
        data[key] = value
    return data


def _value(file: ConfigFile, at: KeyPath, name: str, value: Any) -> Any:
    """A parameter's value in its own type."""
    kind = PARAMETERS.get(name)
    if kind is None:
        file.fail(at, f"unknown parameter; known are {', '.join(PARAMETERS)}")
    if name == "locality" and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    accepted: dict[Any, tuple[type, ...]] = {
        "int": (int,),
        "float": (int, float),
        "str": (str,),
        "bool": (bool,),
    }
    if not isinstance(value, accepted[kind]) or (isinstance(value, bool) and kind != "bool"):
        called = {
            "int": "a whole number",
            "float": "a number",
            "str": "text",
            "bool": "true or false",
        }[str(kind)]
        file.fail(at, f"must be {called}, not {shown(value)}")
    if isinstance(value, int) and abs(value) > MAX_NUMBER:
        file.fail(at, "is too large")
    return float(value) if kind == "float" and isinstance(value, int | float) else value


def _parameters(file: ConfigFile, at: KeyPath, changes: Any, base: Parameters) -> Parameters:
    values = {
        str(key): _value(file, (*at, str(key)), str(key), value)
        for key, value in _mapping(file, at, changes).items()
    }
    chosen = replace(base, **values)
    if wrong := chosen.wrong():
        file.fail(at, wrong)
    return chosen


def _factors(file: ConfigFile, given: Any) -> dict[str, list[Any]]:
    factors = {}
    for name, values in _mapping(file, ("factors",), given).items():
        at = ("factors", str(name))
        listed = _list(file, at, values)
        if not listed:
            file.fail(at, "is empty")
        # Not of the load alone: which faults, several parameters together, and the default link.
        if name in ("fault", "setup", "delay_ms", "loss", "rate_mbit"):
            if wrong := [
                value
                for value in listed
                if name in ("fault", "setup") and not isinstance(value, str)
            ]:
                what = "plans" if name == "fault" else "setups"
                file.fail(at, f"must be names of {what}, not {kind_of(wrong[0])}")
        else:
            listed = [_value(file, at, str(name), value) for value in listed]
        if any(isinstance(value, int) and abs(value) > MAX_NUMBER for value in listed):
            file.fail(at, "is too large")
        called: dict[str, Any] = {}
        for value, written in zip(listed, values, strict=True):
            word = short(value)
            if word in called:
                file.fail(
                    at,
                    f"{shown(called[word])} and {shown(written)} would have the same folder, "
                    f"{name}={word}",
                )
            called[word] = written
        factors[str(name)] = listed
    return factors


def _combinations(factors: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*factors.values()):
        yield dict(zip(factors, values, strict=True))


def _cell(
    file: ConfigFile,
    name: str,
    combination: dict[str, Any],
    flows: dict[str, Parameters],
    place: Topology,
    faults: Any,
    phases: tuple[tuple[float, str], ...],
    setups: Mapping[str, dict[str, Any]],
) -> Cell:
    changes = _setup(file, combination, setups)
    changes |= {key: value for key, value in combination.items() if key in PARAMETERS}
    own = {flow: replace(parameters, **changes) for flow, parameters in flows.items()}
    for parameters in own.values():
        if wrong := parameters.wrong():
            file.fail(("factors",), wrong)
    first = next(iter(own.values()))
    if first.mix:
        wanted = first.mix.split("+")
        if unknown := [flow for flow in wanted if flow not in own]:
            known = ", ".join(filter(None, own)) or "none, as there is no `flows`"
            file.fail(("factors", "mix"), f"unknown flow {unknown[0]!r}: one of {known}")
        own = {flow: own[flow] for flow in wanted}
    _check_workloads(file, own)
    if first.brokers:
        place = place.sized(first.brokers)
    links = {key: combination[key] for key in WIRE_FIELDS if key in combination}
    if links:
        try:
            place = replace(place, default=wire_from(links, place.default or Wire()))
        except ValueError as error:
            file.fail(("factors",), str(error))
    _check_hosts(file, own.values(), place)
    place = with_clients(place, own.values())
    planned = tuple(_fault(file, entry, place) for entry in _plan(file, combination, faults))
    if not place.network and any(
        each.do not in ON_BROKERS and each.do != "leave" for each in planned
    ):
        file.fail(("faults",), "without a network (topology) no link can be cut or slowed")
    beside = KINDS[first.broker].companion
    processes = ("", "broker", "companion", beside, "both") if beside else ("", "broker")
    if missing := [each.process for each in planned if each.process not in processes]:
        file.fail(("faults",), f"{first.broker} has no process {missing[0]!r}")
    return Cell(name, combination, own, place, planned, phases)


def _plan(file: ConfigFile, combination: Mapping[str, Any], faults: Any) -> list[Any]:
    """Return the faults of a combination: those of its plan where plans have names, else all."""
    plan = combination.get("fault")
    plans = faults if isinstance(faults, dict) else {}
    if plan is None and isinstance(faults, dict):
        file.fail(("faults",), "named plans of faults need the factor fault")
    if plan is not None and plan not in plans:
        known = ", ".join(map(str, plans)) or "none, as there are no named plans"
        file.fail(("factors", "fault"), f"unknown plan {plan!r}: one of {known}")
    if plan is None:
        return _list(file, ("faults",), faults)
    return _list(file, ("faults", str(plan)), plans[plan])


def _setup(
    file: ConfigFile, combination: Mapping[str, Any], setups: Mapping[str, dict[str, Any]]
) -> dict[str, Any]:
    """Return the parameters that a combination's setup stands for."""
    if "setup" not in combination:
        return {}
    name = combination["setup"]
    if name not in setups:
        file.fail(
            ("factors", "setup"),
            f"unknown setup {name!r}: one of {', '.join(setups) or 'none, as there are no setups'}",
        )
    at = ("setups", name)
    return {key: _value(file, (*at, key), key, value) for key, value in setups[name].items()}


def _check_workloads(file: ConfigFile, flows: Mapping[str, Parameters]) -> None:
    """Fail for a workload that cannot be read, and for one beside other flows: links carry both."""
    for flow in flows.values():
        if flow.workload and len(flows) > 1:
            file.fail(("flows",), "a workload can only be a load's one flow")
        if flow.workload:
            try:
                named(flow.workload, 1)
            except WorkloadError as error:
                file.fail(("parameters", "workload"), str(error))


def _check_hosts(file: ConfigFile, flows: Iterable[Parameters], place: Topology) -> None:
    """Fail for parameters that name a host which there is not."""
    for flow in flows:
        named = {
            "at": [flow.at],
            "publish_at": flow.publish_at.split("+"),
            "subscribe_at": flow.subscribe_at.split("+"),
            "nonmember": [] if flow.nonmember in ("lowest", "all") else [flow.nonmember],
        }
        for key, hosts in named.items():
            if unknown := [host for host in hosts if host and host not in place.hosts]:
                file.fail(
                    ("parameters", key),
                    f"unknown host {unknown[0]!r}: one of {', '.join(place.hosts)}",
                )


def with_clients(place: Topology, flows: Iterable[Parameters]) -> Topology:
    """Return a topology with a host for the clients of each host named by a flow that has a delay
    between both."""
    for flow in flows:
        if flow.client_delay:
            named = dict.fromkeys((*flow.publish_at.split("+"), *flow.subscribe_at.split("+")))
            sites = {client_site(host): host for host in named if host}
            new = {site: host for site, host in sites.items() if site not in place.hosts}
            place = place.with_sites(new, Wire(delay_ms=flow.client_delay))
    return place


def client_site(host: str) -> str:
    """Return what the host is called on which clients of `host` sit that are not on itself."""
    return f"at-{host}"


def _phase(file: ConfigFile, entry: Any) -> tuple[float, str]:
    values = _mapping(file, ("phases",), entry)
    if set(values) != {"until", "name"}:
        file.fail(("phases",), "expected {name: TEXT, until: SECONDS}")
    return _seconds(file, ("phases",), "until", values["until"]), str(values["name"])


def _seconds(file: ConfigFile, at: KeyPath, name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LONGEST:
        file.fail(at, f"{name} must be 0 to {LONGEST:,} seconds, not {shown(value)}")
    return float(value)


def _fault(file: ConfigFile, entry: Any, place: Topology) -> Fault:
    at = ("faults",)
    values = dict(_mapping(file, at, entry))
    when, deed, duration = values.pop("at", None), values.pop("do", None), values.pop("for", 0)
    when, duration = _seconds(file, at, "at", when), _seconds(file, at, "for", duration)
    if deed not in DEEDS:
        file.fail(at, f"do must be one of {', '.join(DEEDS)}, not {shown(deed)}")
    if deed in ON_BROKERS:
        name = values.pop("broker", "")
        process = values.pop("process", "")
        if process and (deed not in ("kill", "restart") or not isinstance(process, str)):
            file.fail(at, "process is for kill and restart: broker, companion or both")
        if name not in (*SELECTORS, *place.brokers):
            file.fail(
                at,
                f"broker must be {', '.join(SELECTORS)} or one of {', '.join(place.brokers)}, "
                f"not {shown(name)}",
            )
        if values:
            file.fail(at, f"{deed} takes no {next(iter(values))}")
        return Fault(when, deed, broker=name, duration=duration, process=process)
    if deed == "leave":
        client = values.pop("client", "")
        if values or duration or not client or not isinstance(client, str):
            file.fail(at, "leave takes client, a subscriber's name, as s-sub-0")
        return Fault(when, deed, client=client)
    if deed == "partition":
        given = values.pop("groups", None)
        if (
            values
            or not isinstance(given, list)
            or len(given) < 2
            or not all(isinstance(group, list) for group in given)
        ):
            file.fail(at, "partition takes groups, a list of at least two lists of hosts")
        groups = tuple(tuple(map(str, group)) for group in given)
        if wrong := wrong_groups(groups, place):
            file.fail(at, wrong)
        return Fault(when, deed, groups=groups, duration=duration)
    links = _links(file, values.pop("link", "all"), place)
    if not links:
        file.fail(at, "there is only one host, and no link")
    if unknown_keys := [key for key in values if key not in WIRE_FIELDS]:
        file.fail(at, f"{deed} takes no {unknown_keys[0]}")
    if (deed in ("slow", "lossy")) is not bool(values):
        file.fail(
            at,
            f"{deed} needs any of {', '.join(WIRE_FIELDS)}"
            if not values
            else f"{deed} takes no {next(iter(values))}",
        )
    try:
        wire_from(values, Wire())
    except ValueError as error:
        file.fail(at, str(error))
    return Fault(when, deed, links=links, duration=duration, wire=values)


def wrong_groups(groups: Sequence[Sequence[str]], place: Topology) -> str:
    """Return what is wrong with a partition's groups of hosts in one line; empty when nothing
    is."""
    named = [host for group in groups for host in group]
    if unknown := [host for host in named if host not in place.hosts]:
        return f"unknown host {unknown[0]!r}: one of {', '.join(place.hosts)}"
    if twice := [host for number, host in enumerate(named) if host in named[:number]]:
        return f"{twice[0]} is in two groups, or twice in one"
    if not all(groups):
        return "a group is empty"
    return ""


def _links(file: ConfigFile, value: Any, place: Topology) -> tuple[tuple[str, str], ...]:
    if value == "all":
        return tuple(place.pairs())
    known = (*place.hosts, *SELECTORS)
    if (
        not isinstance(value, list)
        or len(value) != 2
        or not all(host in known or host == "all" for host in value)
    ):
        file.fail(("faults",), f"link must be all or two of {', '.join(known)}")
    if value[0] == value[1] != "random":
        file.fail(("faults",), f"there is no link from {value[0]} to itself")
    return ((str(value[0]), str(value[1])),)
