"""Traces into tables: against a reference in plain Python, and what is said of runs that are not whole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
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
    # Half of the time of so small a session is the compiler's; the first of its two stages is enough.
    before = os.environ.get("JDK_JAVA_OPTIONS")
    os.environ["JDK_JAVA_OPTIONS"] = "-XX:TieredStopAtLevel=1"
    found = session("local[2]", memory="1g")
    found.conf.set("spark.sql.codegen.wholeStage", "false")
    yield found
    found.stop()
    if before is None:
        del os.environ["JDK_JAVA_OPTIONS"]
    else:
        os.environ["JDK_JAVA_OPTIONS"] = before


@st.composite
def scripts(draw: st.DrawFn) -> Script:
    """One run: messages of two publishers, deliveries of any of them in any order, subscriptions that come and go."""
    script = Script("")
    at = 0
    for publisher in range(2):
        at = draw(st.integers(0, 20))
        for sequence in range(draw(st.integers(0, 9))):
            topic = draw(st.sampled_from(TOPICS))
            script.publishers.append(("published", (at, publisher, sequence, f"p{publisher}", "b0", topic, 1, 10)))
            if draw(st.booleans()):
                script.publishers.append(("accepted", (at + draw(st.integers(0, 5)), publisher, sequence, f"p{publisher}", "b0")))
            if draw(st.integers(0, 9)) == 0:
                script.publishers.append(("published", (at + 3, publisher, sequence, f"p{publisher}", "b0", topic, 1, 10)))
            at += draw(st.integers(0, 15))
    early = st.one_of(st.just(-5), st.integers(-5, 60))
    for client in CLIENTS:
        for filter in draw(st.lists(st.sampled_from(FILTERS), max_size=3)):
            since = draw(early)
            script.subscribers.append(("subscribed", (since, client, "b1", filter, 1)))
            if draw(st.integers(0, 2)) == 0:
                script.subscribers.append(("unsubscribed", (since + draw(st.integers(1, 60)), client, "b1", filter)))
    known = [(event[1][1], event[1][2], event[1][5], event[1][0]) for event in script.publishers if event[0] == "published"]
    stray = [(0, 100, "a/b", 7)]
    when = draw(st.integers(0, 10))
    for publisher, sequence, topic, _sent in draw(st.lists(st.sampled_from([*known, *stray]), max_size=25)):
        when += draw(st.integers(1, 400))
        client = draw(st.sampled_from(CLIENTS))
        script.subscribers.append(("delivered", (when, publisher, sequence, client, "b1", topic, 1, 10, False)))
    if draw(st.booleans()):
        since = draw(st.integers(-10, 40))
        script.window = (since, since + draw(st.integers(1, 100)))
    script.killed = frozenset(draw(st.sampled_from([(), (), ("subscribers",), ("publishers",)])))
    return script


@settings(max_examples=1, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(found=st.lists(scripts(), min_size=60, max_size=60))
def test_random_traces_give_what_a_reference_gives(
    spark: Any, tmp_path_factory: pytest.TempPathFactory, found: list[Script]
) -> None:
    from bench.spark import messages, tables

    folder = tmp_path_factory.mktemp("random")
    chunk, messages.CHUNK = messages.CHUNK, 4  # so that publishers are cut into parts
    try:
        for number, script in enumerate(found):
            script.run = f"r{number}"
            script.write(folder)
        table = tables.compute(spark, [str(folder)])
    finally:
        messages.CHUNK = chunk
    rows = {row["run"]: row for row in table.runs if not row["flow"]}
    wrong = []
    for script in found:
        wanted, row = expected(script), rows[script.run]
        off = {name: (row[name], value) for name, value in wanted.items() if (row[name] or 0) != pytest.approx(value, abs=1e-9)}
        if off:
            wrong.append(f"{off} (the tables', the reference's) of {script}; {row['remarks']}")
    assert not wrong, f"{len(wrong)} of {len(found)}: " + min(wrong, key=len)
    shutil.rmtree(folder)
