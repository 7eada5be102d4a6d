"""Runs whose traces tests make tables of: random ones, and ones that are about one thing each.

SEEDS=n makes n random traces instead of the default, FIRST=k begins with seed k.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from mqttree.bench.trace import Writer
from tests.unit.bench.trace_reference import UNSURE, Script, end

TOPICS = ["a/b", "a/c", "a", "d.e", "$x/y"]
FILTERS = [
    "a/b",
    "a/c",
    "d.e",
    "a/+",
    "a/#",
    "#",
    "+",
    "+/b",
    "$x/#",
    "$share/g/a/+",
    "$share/g/#",
    "$share/h/d.e",
]
CLIENTS = ["c0", "c1", "c2"]
SEEDS = int(os.environ.get("SEEDS", "80"))
FIRST = int(os.environ.get("FIRST", "0"))


def script(seed: int) -> Script:
    """One run: messages of two publishers, deliveries of any of them in any order, subscriptions
    that come and go."""
    rng = random.Random(seed)
    found = Script(f"r{seed}")
    for publisher in range(2):
        at = rng.randrange(20)
        for sequence in range(rng.randrange(10)):
            topic = rng.choice(TOPICS)
            message = (publisher, sequence, f"p{publisher}", "b0")
            late = ("", rng.randrange(9)) if rng.random() < 0.3 else ()
            found.publishers.append(("published", (at, *message, topic, 1, 10, *late)))
            if rng.random() < 0.5:
                found.publishers.append(("accepted", (at + rng.randrange(5), *message)))
            if rng.random() < 0.1:
                found.publishers.append(("published", (at + 3, *message, topic, 1, 10)))
            at += rng.randrange(15)
    for client in CLIENTS:
        for filter in rng.sample(FILTERS, rng.randrange(4)):
            since = -5 if rng.random() < 0.5 else rng.randrange(-5, 60)
            broker = rng.choice(("b1", "b1", "b0"))
            for _ in range(rng.choice((1, 1, 2))):
                found.subscribers.append(("subscribed", (since, client, broker, filter, 1)))
                if rng.random() < 0.3:
                    since += rng.randrange(1, 60)
                    found.subscribers.append(("unsubscribed", (since, client, broker, filter)))
                since += rng.randrange(1, 20)
                broker = rng.choice(("b1", broker))
    known = [
        (event[1][1], event[1][2], event[1][5])
        for event in found.publishers
        if event[0] == "published"
    ]
    when = rng.randrange(10)
    for _ in range(rng.randrange(30)):
        publisher, sequence, topic = rng.choice([*known, (0, 100, "a/b")])
        when += rng.choice((1, 5, 300))
        found.subscribers.append(
            (
                "delivered",
                (when, publisher, sequence, rng.choice(CLIENTS), "b1", topic, 1, 10, False),
            )
        )
    if rng.random() < 0.5:
        since = rng.randrange(-10, 40)
        found.window = (since, since + rng.randrange(1, 100))
        if rng.random() < 0.5:
            ramps = rng.randrange(30), rng.randrange(30)
            found.load = (found.window[0] - ramps[0], found.window[1] + ramps[1])
    found.killed = frozenset(rng.choice(((), (), ("subscribers",), ("publishers",))))
    return found


MS = 1_000_000
S = 1000 * MS


def told(run: str, repetition: int, **about: Any) -> Script:
    """A run of three brokers, all linked, with a tree b2 - b1 - b0, twelve messages from b0 to b2
    and samples of everything."""
    cell = {"fault": "some", "broker": "mqttree-flood"}
    found = Script(run, window=(5 * S, 20 * S))
    found.about = {
        "cell": cell,
        "repetition": repetition,
        "broker": "mqttree-flood",
        "routing": "flood",
        "title": "told",
        "topology": {"brokers": ["b0", "b1", "b2"]},
        "figure": {"x": "fault", "y": ["repair_s", "delay_mean_ms"]},
    } | about
    notes = found.subscribers
    notes.append(("subscribed", (4 * S, "c2", "b2", "t/#", 1)))
    notes += [("fault", (number * S // 10, "start", f"b{number}", "")) for number in range(3)]
    notes += [
        ("role", (S, "b1", "b0", "root", "b0")),
        ("role", (S, "b2", "b1", "root", "b0")),
        ("agreed", (1500 * MS, 3, "b0")),
    ]
    for second in (0, 5, 10, 15, 21):
        at = second * S + MS
        notes.append(
            ("link", (at, "b0", "b1", 10 * second, 1000 * second, 30 * second, 800 * second, 0))
        )
        notes.append(("resources", (at, "b0", "broker", second * 0.25, 1000 + second, 3)))
    notes += [
        ("forwarded", (6 * S, 0, 0, "b0", "b1", 100)),
        ("control", (6 * S, "b1", "b0", "pingreq", 40)),
    ]
    for number in range(12):
        sent = (6 + number) * S
        found.publishers.append(("published", (sent, 0, number, "p0", "b0", "t/x", 1, 64)))
        found.publishers.append(("accepted", (sent + 2 * MS, 0, number, "p0", "b0")))
        if number != 4:  # published at 10 s, when b1 has just died
            notes.append(("delivered", (sent + 10 * MS, 0, number, "c2", "b2", "t/x", 1, 64)))
    return found


def with_faults(script: Script, *faults: tuple[int, str, str], agreed: tuple[int, ...]) -> Script:
    script.subscribers += [("fault", (at, kind, target, "")) for at, kind, target in faults]
    script.subscribers += [("agreed", (at, 2, "b0")) for at in agreed]
    return script


def flows(run: str) -> Script:
    """Two classes of messages, one by a shared subscription, on two machines whose clocks are 7 s
    apart."""
    found = Script(run, about={"cell": {"mix": "small+large"}, "broker": "mosquitto"})
    found.publishers.append(("clock", (1, "local", 0, 500)))
    found.subscribers += [
        ("subscribed", (1, client, "b0", "$share/g/small", 0)) for client in ("c0", "c1")
    ]
    found.subscribers.append(("subscribed", (1, "c9", "b0", "large", 0)))
    for number in range(10):
        flow = "large" if number % 5 == 0 else "small"
        found.publishers.append(
            ("published", ((number + 1) * MS, 0, number, "p", "b0", flow, 0, 10, flow))
        )
        client = "c9" if flow == "large" else f"c{number % 2}"
        found.subscribers.append(
            ("delivered", ((number + 1) * MS + 500_000, 0, number, client, "b0", flow, 0, 10))
        )
    return found


def restarted() -> Script:
    """One whose b1 is killed and restarted between two samples, and has then used more than before;
    and a spoilt network."""
    found = with_faults(
        told(
            "restarted",
            1,
            scenario="restarted",
            summary={"network": {"tap_broken": 2, "unroutable": 0, "refused": 1}},
        ),
        (11 * S, "kill", "b1"),
        (12 * S, "restart", "b1"),
        agreed=(11 * S + MS,),
    )
    for second, used in ((6, 0.30), (10, 0.30), (14, 0.45), (18, 0.45)):
        found.subscribers.append(("resources", (second * S, "b1", "broker", used, 1000, 3)))
    return found


def alone(run: str, **about: Any) -> Script:
    """Two brokers of three that run; what is published at b0 comes to b2."""
    found = told(run, 1, scenario=run, **about)
    found.subscribers = [
        event for event in found.subscribers if event[1][1:3] not in (("start", "b1"), ("b1", "b0"))
    ]
    return found


EPOCH = 1_700_000_000 * S


def on_two_clocks(run: str, offsets: tuple[int, int], **about: Any) -> Script:
    """Publishers and subscribers on hosts whose clocks were measured; offsets: what is to be added
    to their times (ns)."""
    found = told(run, 1, scenario=run, wall_minus_monotonic_ns=EPOCH, **about)
    found.hosts = ("h0", "h1")
    found.publishers += [
        ("clock", (1, host, offset, 1000))
        for host, offset in zip(found.hosts, offsets, strict=True)
    ]
    return found


def subscriptions_of_all_kinds() -> list[Script]:
    """A client that goes to another broker, one with a shared subscription beside its own, members
    of two filters of a group."""
    moved = told("moved", 1, scenario="moved")  # gets nothing after 12 s, where it still is
    moved.subscribers = [
        each for each in moved.subscribers if each[0] != "delivered" or each[1][0] < 12 * S
    ]
    moved.subscribers += [
        ("subscribed", (9 * S, "c2", "b1", "t/#", 1)),
        ("unsubscribed", (9 * S + MS, "c2", "b2", "t/#")),
    ]
    beside = told("beside", 1, scenario="beside")
    beside.subscribers += [
        ("subscribed", (4 * S, "c2", "b2", "$share/g/u/#", 1)),
        ("subscribed", (4 * S, "c3", "b2", "u/x", 1)),
    ]
    groups = told("groups", 1, scenario="groups")
    groups.subscribers += [
        ("subscribed", (4 * S, client, "b2", f"$share/g/{filter}", 1))
        for client, filter in (("c3", "t/+"), ("c4", "t/x"))
    ]
    for number in range(12):
        sent = (6 + number) * S
        beside.publishers.append(("published", (sent, 1, number, "p1", "b0", "u/x", 1, 64)))
        for client in ("c2", "c3"):
            beside.subscribers.append(
                ("delivered", (sent + 20 * MS, 1, number, client, "b2", "u/x", 1, 64))
            )
            groups.subscribers.append(
                (
                    "delivered",
                    (sent + 20 * MS, 0, number, f"c{int(client[1]) + 1}", "b2", "t/x", 1, 64),
                )
            )
    # It is away for 2 s; of what was published at 10 s nothing tells whether it had to come.
    away = told("away", 1, scenario="away")
    away.subscribers += [
        ("unsubscribed", (10 * S + UNSURE, "c2", "b2", "t/#")),
        ("subscribed", (12 * S - 1, "c2", "b2", "t/#", 1)),
    ]
    return [moved, beside, groups, away]


def ramps() -> Script:
    """A run whose message that was lost is of the first ramp, and whose delays there are longer."""
    found = told("ramps", 1, scenario="ramps")
    found.window, found.load = (11 * S, 15 * S), (5 * S, 20 * S)
    found.subscribers = [
        (name, (arguments[0] + 30 * MS, *arguments[1:]))
        if name == "delivered" and arguments[0] < 11 * S
        else (name, arguments)
        for name, arguments in found.subscribers
    ]
    return found


def late(run: str) -> Script:
    """A run whose messages were sent 3 ms after they were due."""
    found = told(run, 1, scenario=run)
    found.publishers = [
        (name, (*arguments, "", 3 * MS) if name == "published" else arguments)
        for name, arguments in found.publishers
    ]
    return found


def two_generators(folder: Path, run: str, *, killed: bool = False) -> None:
    """Write a run whose load two processes have: each publishes twelve messages, and has one of the
    two subscribers to all of them; the first one is 3 ms late, the second one may be `killed`."""
    place = folder / run
    place.mkdir()
    processes = [{"name": f"generator-{number}", "role": "generator"} for number in range(2)]
    about = {
        "run": run,
        "scenario": "two-generators",
        "status": "complete",
        "broker": "mosquitto",
        "topology": {"brokers": ["b0"]},
        "measure_from_ns": 5 * S,
        "measure_to_ns": 20 * S,
        "processes": processes,
    }
    (place / "run.json").write_text(json.dumps(about))
    for number in range(2):
        process = f"generator-{number}"
        out = Writer(place / "trace", run=run, scenario="two-generators", process=process)
        out.subscribed(4 * S, f"c{number}", "b0", "t", 1)
        for second in (5, 10, 15):
            out.resources(second * S, process, "generator", second * 0.25 * (number + 1), 1000, 1)
        for sequence in range(12):
            sent, late = (6 + sequence) * S, 3 * MS if number == 0 else 0
            out.published(sent, number, sequence, f"p{number}", "b0", "t", 1, 64, "", late)
            out.accepted(sent + 2 * MS, number, sequence, f"p{number}", "b0")
            for publisher in range(2):
                if (number, publisher, sequence) != (1, 0, 4):  # a message that one does not get
                    at = sent + 10 * MS
                    out.delivered(at, publisher, sequence, f"c{number}", "b0", "t", 1, 64)
        if killed and number:
            end(out)
        else:
            out.close()


def without_late(folder: Path) -> None:
    """Make the files of a trace those of a writer that did not know when messages were due."""
    for path in folder.rglob("*.parquet"):
        found = pq.ParquetFile(path).read()
        pq.write_table(found.drop_columns(["late"]), path)


def told_runs() -> list[Script]:
    """Runs that are written out, each for one thing."""
    repaired = with_faults(
        told("repaired", 1), (10 * S - MS, "kill", "b1"), agreed=(10 * S + 199 * MS,)
    )
    twice = with_faults(
        told("twice", 2),
        (10 * S - MS, "kill", "b1"),
        (14 * S, "cut", "b0-b2"),
        (15 * S, "heal", "b0-b2"),
        agreed=(10 * S + 199 * MS,),
    )
    more = [
        repaired,
        twice,
        told("calm", 3, asked=["repair"]),
        told("failed", 4, status="failed", failures=["b2 never came up"]),
        Script(
            "absent", about={"status": "failed", "failures": ["no lab"], "cell": {"fault": "some"}}
        ),
        flows("flows"),
        with_faults(
            told("gap", 1, scenario="gaps"),
            (10 * S - MS, "kill", "b1"),
            (16 * S + 500 * MS, "kill", "b2"),
            agreed=(10 * S + 199 * MS, 17 * S),
        ),
        with_faults(
            told("parted", 1, scenario="parts"),
            (10 * S - MS, "partition", "b0|b1,b2"),
            agreed=(11 * S,),
        ),
        *(
            told(
                run,
                1,
                scenario="two",
                seed=seed,
                fingerprint=mark,
                parameters={"flows": {"": {"rate": rate, "qos": 1}}},
            )
            for run, mark, rate, seed in (
                ("slow", "f1", 10, 1001),
                ("slow-too", "f1", 10, 2001),
                ("fast", "f2", 100, 1001),
            )
        ),
        restarted(),
        alone("noted"),
        alone("said", on=["b0"]),
        with_faults(
            told("undone", 1, scenario="undone"),
            (10 * S - MS, "cut", "b0-b2"),
            (11 * S + 5 * MS, "heal", "b0-b2"),
            agreed=(10 * S + 199 * MS,),
        ),
        *of_clocks_and_loads(),
        *subscriptions_of_all_kinds(),
        told("bare", 1),
        told("naked", 1),
        told("nameless", 1, scenario="s", status=None),
    ]
    more[-1].subscribers = [event for event in more[-1].subscribers if event[0] != "agreed"]
    more.append(counted_once())
    more[2].killed = frozenset({"publishers"})
    more[2].about |= {"cell": {"fault": "none", "broker": "mqttree-flood"}}
    return more


def counted_once() -> Script:
    """A run whose links were counted before the measured time, and once in it."""
    found = told("once", 1, scenario="once")
    times = (MS, 10 * S + MS)
    found.subscribers = [
        event for event in found.subscribers if event[0] != "link" or event[1][0] in times
    ]
    return found


def of_clocks_and_loads() -> list[Script]:
    """Runs that are about times: of clocks, and of a load."""
    return [
        on_two_clocks("measured", (EPOCH + 10 * S, EPOCH + 10 * S), host="h0"),
        on_two_clocks("unset", (0, EPOCH), host="h0"),
        *(
            told(
                name,
                number,
                scenario="sampled",
                parameters={"flows": {"": {"every": 10}}},
                schema=schema,
            )
            for number, (name, schema) in enumerate((("sampled", 4), ("by-publisher", 3)), 1)
        ),
        ramps(),
        late("late"),
        late("old"),
    ]


def write_all(folder: Path) -> list[Script]:
    """Write all runs into a `folder`; return the random ones."""
    found = [script(seed) for seed in range(FIRST, FIRST + SEEDS)]
    for each in [*found, *told_runs()]:
        each.write(folder)
    shutil.rmtree(folder / "absent" / "trace")
    without_late(folder / "old")
    two_generators(folder, "pair")
    two_generators(folder, "half", killed=True)
    (folder / "bare" / "run.json").unlink()
    (folder / "naked" / "run.json").write_text("{")
    return found


def spoil(file: Path) -> None:
    """Make a file unreadable whose end is whole."""
    data = file.read_bytes()
    end = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    file.write_bytes(data[:4] + b"\x0f" * (end - 4) + data[end:])
