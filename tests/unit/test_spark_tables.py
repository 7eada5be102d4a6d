"""Traces into tables: against a reference in plain Python, and what is said of runs that are not whole."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from trace_reference import Script, expected

from bench.spark.session import SparkMissingError, java, session

try:
    java()
except SparkMissingError as error:
    pytest.skip(str(error), allow_module_level=True)

TOPICS = ["a/b", "a/c", "a", "d.e", "$x/y"]
FILTERS = ["a/b", "a/c", "d.e", "a/+", "a/#", "#", "+", "+/b", "$x/#", "$share/g/a/+", "$share/g/#", "$share/h/d.e"]
CLIENTS = ["c0", "c1", "c2"]


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    found = session("local[2]", memory="1g", quick=True)
    yield found
    found.stop()


def script(seed: int) -> Script:
    """One run: messages of two publishers, deliveries of any of them in any order, subscriptions that come and go."""
    rng = random.Random(seed)
    found = Script(f"r{seed}")
    for publisher in range(2):
        at = rng.randrange(20)
        for sequence in range(rng.randrange(10)):
            topic = rng.choice(TOPICS)
            message = (publisher, sequence, f"p{publisher}", "b0")
            found.publishers.append(("published", (at, *message, topic, 1, 10)))
            if rng.random() < 0.5:
                found.publishers.append(("accepted", (at + rng.randrange(5), *message)))
            if rng.random() < 0.1:
                found.publishers.append(("published", (at + 3, *message, topic, 1, 10)))
            at += rng.randrange(15)
    for client in CLIENTS:
        for filter in rng.sample(FILTERS, rng.randrange(4)):
            since = -5 if rng.random() < 0.5 else rng.randrange(-5, 60)
            found.subscribers.append(("subscribed", (since, client, "b1", filter, 1)))
            if rng.random() < 0.3:
                found.subscribers.append(("unsubscribed", (since + rng.randrange(1, 60), client, "b1", filter)))
    known = [(event[1][1], event[1][2], event[1][5]) for event in found.publishers if event[0] == "published"]
    when = rng.randrange(10)
    for _ in range(rng.randrange(30)):
        publisher, sequence, topic = rng.choice([*known, (0, 100, "a/b")])
        when += rng.choice((1, 5, 300))
        found.subscribers.append(("delivered", (when, publisher, sequence, rng.choice(CLIENTS), "b1", topic, 1, 10, False)))
    if rng.random() < 0.5:
        since = rng.randrange(-10, 40)
        found.window = (since, since + rng.randrange(1, 100))
    found.killed = frozenset(rng.choice(((), (), ("subscribers",), ("publishers",))))
    return found


def test_random_traces_give_what_a_reference_gives(spark: Any, tmp_path: Path) -> None:
    first = random.randrange(1_000_000)
    found, folder = [script(first + number) for number in range(80)], tmp_path
    from bench.spark import messages, tables

    chunk, messages.CHUNK = messages.CHUNK, 4  # so that publishers are cut into parts
    try:
        for each in found:
            each.write(folder)
        table = tables.compute(spark, [str(folder)])
    finally:
        messages.CHUNK = chunk
    rows = {row["run"]: row for row in table.runs if not row["flow"]}
    wrong = []
    for each in found:
        wanted, row = expected(each), rows[each.run]
        off = {name: (row[name], value) for name, value in wanted.items() if (row[name] or 0) != pytest.approx(value, abs=1e-9)}
        if off:
            wrong.append(f"{off} (the tables', the reference's) of {each}; {row['remarks']}")
    assert not wrong, f"{len(wrong)} of {len(found)}: " + min(wrong, key=len)
