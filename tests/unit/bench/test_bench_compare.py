"""`mqttree bench compare` with mixed loads: which brokers and works are chosen, what is printed and
written, and that all of it runs."""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import random
import ssl
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from mqttree.bench import cli
from mqttree.bench.load import Histogram, LoadError, Tally
from mqttree.bench.load.mix import MixResult, new_topics, run_mix
from mqttree.bench.load.mixture import MixSpec
from mqttree.bench.studies import comparison, configurations, mixed, mixed_table, targets
from mqttree.bench.studies.certificate import make_certificate


def result(rate: float, cpu: list[float], limited: str = "") -> MixResult:
    latency = Histogram()
    latency.add(1_000_000)
    return MixResult(
        seconds=1.0,
        sent=10,
        tally=Tally(10),
        unacknowledged=0,
        rate=rate,
        broker_cpu=[1.0],
        broker_waited=[0.0],
        microseconds=cpu,
        generator_cpu=[0.5],
        new_topics=0.1,
        looked_at=1,
        latency=latency,
        lag=Histogram(),
        limited=limited,
    )


def runs(*results: MixResult) -> mixed.Runs:
    return mixed.Runs([mixed.Run(each, 0.5) for each in results])


OURS, THEIRS = targets.target("ours=x {port}"), targets.target("theirs=y {port}")


def test_the_table_has_medians_ratios_and_limits() -> None:
    works = [mixed.WORKS[name] for name in ("mix1", "mix1-tls", "hop-mix0", "paced0")]
    table: mixed.MixedTable = {
        "mix1": {
            "ours": runs(result(300, [2.0]), result(100, [4.0]), result(200, [3.0])),
            "theirs": runs(result(100, [6.0], "too slow")),
        },
        "mix1-tls": {"ours": runs(result(100, [4.5])), "theirs": mixed.Runs(available=False)},
        "hop-mix0": {
            "ours": runs(result(50, [1.0, 2.0])),
            "theirs": mixed.Runs(complaints=["it died"]),
        },
        "paced0": {"ours": runs(result(10, [5.0])), "theirs": runs(result(10, [4.0]))},
    }
    out = io.StringIO()
    mixed_table.render(works, [OURS, THEIRS], table, out)
    said = out.getvalue()
    assert "| work |  | ours | theirs | ours / theirs |" in said
    assert "| mix QoS 1, window 10 | messages/s | 200 (100-300) | 100 * | 2.00 |" in said
    assert "| CPU us a message | 3.00 (2.00-4.00) | 6.00 | 0.50 |" in said
    assert "| one hop, mix QoS 0, 100 to 20 | CPU us a message | 3.00 | failed | - |" in said
    assert "| QoS 0, 1,000 to 50, 10,000/s | p99 ms | 1.000 | 1.000 | 1.00 |" in said
    assert "| mix QoS 1, window 10, TLS | messages/s | 0.50 | - |" in said
    assert "| mix QoS 1, window 10, TLS | CPU us a message | 1.50 | - |" in said
    assert "* mix1, theirs: too slow" in said
    assert "! hop-mix0, theirs: it died" in said


def test_json_has_every_run() -> None:
    works = [mixed.WORKS["mix1"]]
    table = {"mix1": {"ours": runs(result(300, [2.0]), result(100, [4.0])), "theirs": runs()}}
    said = json.loads(mixed_table.as_json(works, [OURS, THEIRS], table, {"rounds": 2}))
    assert said["options"] == {"rounds": 2}
    assert said["machine"]["cores"] >= 1
    ours = said["works"]["mix1"]["targets"]["ours"]
    assert [run["rate"] for run in ours["runs"]] == [300, 100]
    assert ours["medians"] == {"messages/s": 200, "CPU us a message": 3.0}
    assert said["targets"]["theirs"] == {"command": "y {port}", "version": ""}


def test_a_busy_machine_is_told() -> None:
    works = [mixed.WORKS["mix1"], mixed.WORKS["mix2"]]
    quiet, busy = result(100, [1.0]), result(100, [1.0])
    busy.broker_waited = [0.02, 0.31]
    table = {"mix1": {"ours": runs(quiet, busy)}, "mix2": {"ours": runs(quiet)}}
    said = mixed_table.busy_machine(works, table)
    assert "in 1 of 3 runs" in said and "31% at most" in said
    assert mixed_table.busy_machine(works[1:], table) == ""


def options(line: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    comparison.arguments(parser)
    return parser.parse_args(line.split())


def test_brokers_are_chosen_by_name() -> None:
    chosen = comparison.chosen_targets(options("--against mosquitto-nodelay,sketch"))
    assert [each.name for each in chosen] == ["mqttree", "mosquitto-nodelay", "sketch"]


def test_other_installations_and_programs_can_be_compared(tmp_path: Path) -> None:
    for name in ("python3", "mqttree", "flashmq"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    line = (
        f"--mqttree old={tmp_path}/python3 --mqttree new={tmp_path}/mqttree --against sketch "
        f"--binary flashmq={tmp_path}/flashmq"
    )
    old, new, sketch, flashmq = comparison.chosen_targets(options(line))
    assert (old.name, new.name, sketch.name, flashmq.name) == ("old", "new", "sketch", "flashmq")
    assert old.command.startswith(f"{tmp_path}/python3 -P -m mqttree.broker.cli run ")
    assert new.command.startswith(f"{tmp_path}/mqttree run ")
    pure = targets.mqttree("pure", f"env A=B {tmp_path}/python3")
    assert pure.command.startswith(f"env A=B {tmp_path}/python3 -P -m mqttree.broker.cli run ")
    assert flashmq.command.startswith(f"{tmp_path}/flashmq ")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--work hop nonsense", "unknown work 'nonsense'"),
        ("--mqttree new='", "target new: No closing quotation"),
        ("--mqttree a=/nonexistent/mqttree", "a is not installed"),
        ("--binary abacus=/bin/true", "unknown broker 'abacus'"),
        ("--json /nonexistent/file", "--json /nonexistent/file: No such file"),
        ("--against mqttree", "named twice"),
    ],
)
def test_bad_input_is_one_line(line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", *line.split()]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_works_are_chosen_by_name_and_by_group() -> None:
    names = [work.name for work in comparison.chosen_works(["mix", "mix0", "variants"])]
    assert names[:4] == ["mix0", "mix1", "mix1w1", "mix2"]
    assert len(names) == len(set(names))
    assert {"mix0-tls", "mix1-ws", "paced1-v5", "mix1-journal"} <= set(names)
    for work in mixed.WORKS.values():
        work.spec.check()
        assert not work.plain or work.plain in names


def test_works_that_a_broker_cannot_do_are_left_out() -> None:
    sketch, mosquitto = targets.TARGETS["sketch"], targets.TARGETS["mosquitto-nodelay"]
    for name in ("hop-mix0", "mix0-tls", "mix1-journal"):
        assert not mixed.supports(mixed.WORKS[name], sketch)
        assert mixed.supports(mixed.WORKS[name], mosquitto)
    assert mixed.supports(mixed.WORKS["mix0"], sketch)


@pytest.mark.parametrize("name", configurations.OTHERS)
def test_every_placeholder_has_a_value(name: str) -> None:
    made = configurations.OTHERS[name]("program")
    values = {"config", "dir", "cert", "key", "name", "pair", "durability", "persistence"}
    values |= {"port", "tls", "ws", "extra", "more", "peer_port", "peer_more"}
    values |= {"first_port", "last_port"}
    for launch in (made.plain, made.wide, *chain.from_iterable(made.paths.values())):
        if launch is not None:
            text = launch.command + launch.config
            for each in values:
                text = text.replace("{" + each + "}", "")
            assert "{}" not in text
            assert not [word for word in text.split() if word.startswith("{") and word != "{"]


def test_clients_trust_the_generated_certificate(tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert", tmp_path / "key"
    make_certificate(certificate, key)
    context = ssl.create_default_context(cafile=str(certificate))
    context.load_cert_chain(certificate, key)
    assert len(context.get_ca_certs()) == 1


# ---------------------------------------------------------------- whole runs

QUICK = MixSpec(publishers=6, subscribers=3, topics=100, warmup=0.02, seconds=0.1, drain=60.0)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"qos": 2, "window": 10, "processes": 2},
        {"qos": 1, "window": 10, "version": 5, "user_properties": 4},
        {"qos": 1, "window": 20, "rate": 500.0, "processes": 2},
    ],
    ids=str,
)
def test_every_message_of_a_mixed_load_arrives(changes: dict[str, Any]) -> None:
    with targets.running(targets.TARGETS["sketch"]) as broker:
        done = run_mix(dataclasses.replace(QUICK, port=broker.port, **changes), [broker.pid])
    assert done.complete, done.proof()
    assert done.sent == done.tally.received > 0
    assert len(done.broker_cpu) == len(done.microseconds) == 1
    if "rate" in changes:
        assert done.looked_at == done.sent


def test_the_number_of_new_topics_is_estimated() -> None:
    draw = random.Random(1)
    topics = [draw.randrange(1000) for _ in range(3000)]
    new = len(set(topics)) - len(set(topics[:1000]))
    assert new_topics(1000, 1000.0, 3000.0) == pytest.approx(new / 2000, abs=0.02)
    assert new_topics(1000, 5.0, 5.0) == 0.0


def test_a_load_without_a_broker_cannot_connect() -> None:
    with pytest.raises(LoadError, match="cannot connect"):
        run_mix(dataclasses.replace(QUICK, port=1))
