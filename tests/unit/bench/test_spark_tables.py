"""Traces into tables: against a reference in plain Python, and what is said of runs that are not
whole."""

from __future__ import annotations

import csv
import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from mqttree.bench.load.histogram import bucket
from mqttree.bench.spark import trace_files
from mqttree.bench.spark.session import session
from mqttree.bench.tables.render import overview
from mqttree.bench.trace import Writer
from mqttree.routing.topic_filter import matches
from tests.unit.bench.trace_reference import UNSURE, Script, expected
from tests.unit.bench.trace_scripts import S, spoil, told, write_all

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    found = session("local[2]", memory="1g", rows=0)
    yield found
    found.stop()


@pytest.fixture(scope="module")
def made(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Script], Any]:
    """All runs in one folder, and their tables: Spark starts and thinks once."""
    from mqttree.bench.spark import messages, subscriptions, tables
    from mqttree.bench.spark import session as sessions

    folder = tmp_path_factory.mktemp("runs")
    found = write_all(folder)
    chunk, messages.CHUNK = messages.CHUNK, 4  # so that publishers are cut into parts
    unsure, subscriptions.UNSURE = subscriptions.UNSURE, UNSURE
    little, sessions.LITTLE = sessions.LITTLE, 0  # and all is spread
    try:
        return folder, found, tables.compute(spark, [str(folder)])
    finally:
        messages.CHUNK, subscriptions.UNSURE, sessions.LITTLE = chunk, unsure, little


def of(made: Any, run: str, flow: str = "") -> dict[str, Any]:
    (row,) = [row for row in made[2].runs if row["run"] == run and row["flow"] == flow]
    return dict(row)


def check(row: dict[str, Any], **wanted: Any) -> None:
    """Look at some columns of a row."""
    assert {name: row[name] for name in wanted} == {
        name: pytest.approx(value) if isinstance(value, float | int) else value
        for name, value in wanted.items()
    }


def test_random_traces_give_what_a_reference_gives(made: Any) -> None:
    wrong = []
    for each in made[1]:
        wanted, row = expected(each), of(made, each.run)
        off = {
            name: (row[name], value)
            for name, value in wanted.items()
            if (row[name] or 0) != pytest.approx(value, abs=1e-9)
        }
        if off:
            wrong.append(f"{off} (the tables', the reference's) of {each}; {row['remarks']}")
    assert not wrong, f"{len(wrong)} of {len(made[1])}: " + min(wrong, key=len)


def test_a_run_with_a_fault_has_all_its_figures(made: Any) -> None:
    wanted = {
        "status": "complete",
        "published": 12,
        "accepted": 12,
        "delivered": 11,
        "lost": 1,
        "lost_accepted": 1,
        "unknown": 0,
        "delay_mean_ms": 10,
        "accept_mean_ms": 2,
        "published_per_s": 12 / 15,
        "stretch": 2,
        "convergence_s": 1.5,
        "faults": 1,
        "repair_s": 0.2,
        "repair_service_s": 1.011,
        "control_bytes": 300,
        "data_bytes": 8000,
        "control_bytes_run": 630,
        "broker_cpu": 0.25,
        "broker_rss": 1010,
        "jain": (12 + 11) ** 2 / (3 * (12**2 + 11**2)),
    }
    check(of(made, "repaired"), **wanted)


def test_ramps_are_in_no_rate_and_no_delay_and_their_losses_count(made: Any) -> None:
    row = of(made, "ramps")
    check(row, window_s=4, published=12, delivered=11, lost=1, lost_accepted=1)
    check(row, published_per_s=1, accepted_per_s=1, delivered_per_s=1)
    check(row, delay_mean_ms=10, delay_max_ms=10, accept_mean_ms=2)


def test_delays_count_from_when_messages_were_due_and_from_the_send(made: Any) -> None:
    row, old = of(made, "late"), of(made, "old")
    names = ("delay_mean_ms", "delay_sent_mean_ms", "delay_max_ms")
    assert [row[name] for name in names] == [13, 10, 13]
    assert row["delay_sent_p99_ms"] == pytest.approx(10, rel=0.004)
    assert [old[name] for name in names] == [10, 10, 10], "it does not say when they were due"


def test_a_repair_by_the_end_of_a_fault_is_no_repair_of_the_fault(made: Any) -> None:
    row = of(made, "undone")  # its first message after the cut comes 5 ms after the link was healed
    check(row, repair_s=0.2, repair_service_s=None)
    assert "repair_service_s: 1 of 1 faults not repaired" in row["missing"]


def test_a_process_that_was_restarted_counts_from_zero(made: Any) -> None:
    row = of(made, "restarted")
    assert row["broker_cpu"] == pytest.approx((0.25 + 0) / 2)
    assert "2 packets between brokers were of streams that could no longer" in row["remarks"]
    assert "1 packets were not taken by the host" in row["remarks"]
    assert "no host" not in row["remarks"]


def test_brokers_that_did_not_run_have_no_share(made: Any) -> None:
    row = of(made, "noted")
    assert (row["brokers"], row["jain"]) == (2, pytest.approx(23**2 / (2 * (12**2 + 11**2))))
    row = of(made, "said")
    assert (row["brokers"], row["jain"], row["stretch"]) == (1, None, None)
    assert "jain: one broker" in row["missing"]


def test_faults_that_were_not_repaired_are_in_no_mean(made: Any) -> None:
    row = of(made, "twice")
    assert (row["repair_s"], row["faults"]) == (None, 2)
    assert "repair_s: 1 of 2 faults not repaired" in row["missing"]


def test_repairs_of_a_run_without_faults_and_a_generator_that_was_killed(made: Any) -> None:
    row = of(made, "calm")
    assert row["repair_s"] is None
    assert "repair_s: no faults" in row["missing"]
    assert "repair_s was asked for: no faults" in row["remarks"]
    assert "publishers: its last file is half-written" in row["remarks"]
    assert row["status"] == "trace incomplete"
    (mean,) = [
        each
        for each in made[2].cases
        if each["measure"] == "delay_mean_ms" and "fault=none" in each["case"]
    ]
    check(mean, n=0, without=1, why="trace incomplete", mean=None)


def test_a_file_that_is_damaged_in_the_middle_is_named_and_left_out(
    tmp_path: Path, spark: Any
) -> None:
    from mqttree.bench.spark import source, tables

    for number in range(3):
        told(f"d{number}", 5 + number).write(tmp_path / "a %20[b]")
    file, other, _ = sorted(tmp_path.rglob("subscribers-*.parquet"))
    spoil(file)
    spoil(other)
    said: list[str] = []
    found = tables.compute(spark, [str(tmp_path)], tell=said.append)
    assert [text for text in said if "trying" in text] == [
        "a file cannot be read: trying each of 6"
    ]
    remark = "subscribers: subscribers-00000.parquet is damaged and left out"
    assert [row["remarks"].split("; ")[0] for row in found.runs] == [remark, remark, ""]
    assert [row["status"] for row in found.runs] == ["trace incomplete"] * 2 + ["complete"]
    runs = source.read([tmp_path.as_uri()], spark)  # where a path is written in another way
    bad = trace_files.unreadable(spark, [each for run in runs for each in run.files])
    assert [Path(each).parts[-5] for each in bad] == ["d0", "d1"]
    for each in bad:
        assert source.damaged(runs, each)
    assert not source.damaged(runs, bad[0])
    assert [(len(run.files), run.broken) for run in runs] == [
        (1, {"subscribers"}),
        (1, {"subscribers"}),
        (2, set()),
    ]


FILTERS = ["#", "+", "+/+", "a/#", "a/+/c", "/+", "/#", "$x/#", "$x/+", "+/y", "a.b", "a(b"]
FILTERS += ["é/+", "a/b/c/#", "+/b/#", "a//+", "a//#", "a/b"]
TOPICS = ["a", "a/b", "a/b/c", "a//b", "/a", "/", "$x", "$x/y", "a.b", "a+b/c", "a(b", "é/b"]
WITHOUT_NULLS = ("at", "sequence", "topic")


def spoil_column(file: Path, name: str) -> None:
    """Damage the pages of one column of a file."""
    about, data = pq.read_metadata(file), bytearray(file.read_bytes())
    for group in range(about.num_row_groups):
        chunks = [about.row_group(group).column(at) for at in range(about.num_columns)]
        (chunk,) = [each for each in chunks if each.path_in_schema == name]
        begins = chunk.dictionary_page_offset or chunk.data_page_offset
        data[begins : begins + 4] = b"\xff" * 4
    file.write_bytes(data)


@pytest.fixture(scope="module")
def odd(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Tables of runs that are not like others, some of them with damage, by their names."""
    import pyarrow as pa

    from mqttree.bench.spark import source, tables

    folder = tmp_path_factory.mktemp("odd")
    wild = Script("wild")
    wild.publishers = [
        ("published", (number, 0, number, "p", "b0", topic, 0, 1))
        for number, topic in enumerate(TOPICS)
    ]
    wild.subscribers = [
        ("subscribed", (-5, f"c{number}", "b0", filter, 0)) for number, filter in enumerate(FILTERS)
    ]
    wild.write(folder)
    with Writer(folder / "trace", run="silent", scenario="s", process="p") as out:
        out.resources(5, "b0", "broker", 0.5, 1000, 3)
    place = folder / "trace" / "scenario=s" / "run=other-writer"
    place.mkdir(parents=True)
    few = pa.table(
        {
            "scenario": ["s"] * 3,
            "run": ["other-writer"] * 3,
            "host": ["h"] * 3,
            "process": ["p"] * 3,
            "kind": ["began", "published", "delivered"],
            "at": [1, 2, 3],
            "publisher": pa.array([None, 0, 0], pa.int32()),
            "sequence": [None, 7, 7],
            "client": [None, None, "c"],
            "topic": [None, "t", "t"],
            "offset_ns": [9, None, None],
        }
    )
    pq.write_table(few.replace_schema_metadata({"mqttree.trace": "1"}), place / "p-00000.parquet")
    for name in (*WITHOUT_NULLS, "gone"):
        told(name, 1).write(folder)
    runs = source.read([str(folder)])
    for name in (*WITHOUT_NULLS, "gone"):
        (file,) = (folder / name).rglob("publishers-*.parquet")
        if name == "gone":
            file.unlink()
        else:
            spoil_column(file, name)
    found = tables.compute(spark, [str(folder)], runs)
    return {row["run"]: row for row in found.runs}, found.tables


def test_buckets_are_those_of_the_generators_histogram(spark: Any) -> None:
    from mqttree.bench.spark import events, messages

    edges = [(1 << bit) + off for bit in range(62) for off in (-1, 0, 1)]
    values = events.small(spark, "ns long", [(value,) for value in edges])
    found = values.select("ns", messages.bucket(values["ns"]).alias("bucket")).collect()
    assert [row["bucket"] for row in found] == [bucket(row["ns"]) for row in found]


def test_filters_match_as_brokers_match_them(odd: Any) -> None:
    wanted = sum(matches(each, topic) for each in FILTERS for topic in TOPICS)
    assert odd[0]["wild"]["expected"] == wanted


def test_files_of_another_writer_lack_columns_and_kinds_share_row_groups(odd: Any) -> None:
    row = odd[0]["other-writer"]
    assert (row["published"], row["delivered"]) == (1, 1)


def test_a_run_without_a_row_about_messages_has_tables(odd: Any) -> None:
    assert odd[0]["silent"]["published"] == 0
    assert "silent" in odd[1]["resources"]["run"].to_pylist()


@pytest.mark.parametrize("name", [*WITHOUT_NULLS, "gone"])
def test_a_file_with_a_damaged_column_or_gone_meanwhile_is_left_out(odd: Any, name: str) -> None:
    row = odd[0][name]
    assert row["remarks"].startswith("publishers: publishers-00000.parquet is damaged and left out")
    assert row["published"] == 0


def test_a_job_reads_the_ends_of_files_as_this_process_does(tmp_path: Path, spark: Any) -> None:
    from mqttree.bench.spark import source

    told("whole", 1).write(tmp_path)
    told("cut", 2).write(tmp_path)
    (file,) = (tmp_path / "cut").rglob("publishers-*.parquet")
    file.write_bytes(file.read_bytes()[:-20])
    here, there = source.read([str(tmp_path)]), source.read([tmp_path.as_uri()], spark)
    for near, far in zip(here, there, strict=True):
        assert (near.run, near.rows, near.broken) == (far.run, far.rows, far.broken)
    assert here[0].broken == {"publishers"}
    (remark,) = there[0].remarks
    assert remark == (
        "publishers: publishers-00000.parquet is no whole Parquet file and left out "
        "(nothing can be read of it)"
    )


def test_a_process_that_wrote_another_version_is_named_and_left_out(
    tmp_path: Path, spark: Any
) -> None:
    import pyarrow as pa

    from mqttree.bench.spark import events, source

    told("later", 1).write(tmp_path)
    (file,) = tmp_path.rglob("publishers-*.parquet")
    rows = pq.ParquetFile(file).read()
    kinds, counts = rows["kind"].to_pylist(), rows["count"].to_pylist()
    assert counts[kinds.index("began")] == 1
    counts[kinds.index("began")] = 2
    column = rows.schema.get_field_index("count")
    pq.write_table(rows.set_column(column, "count", pa.array(counts, pa.int64())), file)
    (run,) = source.read([tmp_path.as_uri()], spark)
    events.load(spark, [run])
    assert run.remarks[0] == "publishers: has schema 2, not 1, and is left out"
    assert (run.broken, set(run.rows)) == ({"publishers"}, {"subscribers"})


def test_equal_factors_with_other_parameters_are_cases_of_their_own(made: Any, spark: Any) -> None:
    cases = [
        each
        for each in made[2].cases
        if each["scenario"] == "two" and each["measure"] == "delay_mean_ms"
    ]
    common = "broker=mqttree-flood,fault=some"
    assert [
        (each["case"], each["fingerprint"], each["variant"], each["runs"], each["n"])
        for each in cases
    ] == [
        (f"{common},rate=100", "f2", "rate=100", 1, 1),
        (f"{common},rate=10", "f1", "rate=10", 2, 2),
    ]
    assert {of(made, run)["case"] for run in ("slow", "slow-too")} == {f"{common},rate=10"}
    text = overview(made[2].runs, made[2].cases)
    assert [line.split()[1:3] for line in text.splitlines() if line.startswith("two ")] == [
        [f"{common},rate=100", "1"],
        [f"{common},rate=10", "2"],
    ]


def test_a_run_without_run_json_repeats_no_other(made: Any) -> None:
    cases = {each["case"]: each for each in made[2].cases if each["measure"] == "delay_mean_ms"}
    assert [
        (cases[f"run={run}"]["runs"], cases[f"run={run}"]["n"]) for run in ("bare", "naked")
    ] == [(1, 1), (1, 1)]
    (row,) = [row for row in made[2].runs if "run.json cannot be read" in row["remarks"]]
    assert (row["run"], row["scenario"], row["published"]) == ("naked", "random", 12)
    (mean,) = [
        each
        for each in made[2].cases
        if each["scenario"] == "s" and each["measure"] == "delay_mean_ms"
    ]
    assert (mean["n"], mean["without"], mean["why"]) == (0, 1, "status unknown")


def test_a_fault_without_pairs_is_in_no_mean_and_a_partition_says_why(made: Any) -> None:
    row = of(made, "gap")
    check(row, repair_s=0.35, faults=2, repair_service_s=None)
    assert (
        "repair_service_s: 1 of 2 faults: no publisher and subscriber between it and what came next"
        in row["missing"]
    )
    row = of(made, "parted")
    check(row, repair_s=1.001, repair_service_s=None)
    assert "repair_service_s: partitions only" in row["missing"]


def test_figures_without_a_trace_are_missing_and_not_zero(made: Any) -> None:
    from mqttree.bench.tables.run import Run

    missing = dict(each.split(": ", 1) for each in of(made, "absent")["missing"].split("; "))
    assert {
        missing[name]
        for name in ("published_per_s", "delay_mean_ms", "lost", "repair_s", "convergence_s")
    } == {"no trace"}
    assert "convergence_s: never agreed" in of(made, "nameless")["missing"]
    assert "convergence_s: no federation" in of(made, "flows")["missing"]
    run = Run("r", "s", {}, files=["f"], rows={"generator-0": 5, "network": 3}, broken={"observer"})
    assert run.silence("observer") == "observer's trace is incomplete"
    assert (run.silence("generator"), run.silence("network")) == ("", "")
    assert Run("r", "s", broken={"generator-0"}).silence("observer") == "no whole file in the trace"


def test_rows_of_another_run_are_named_and_left_out(tmp_path: Path, spark: Any) -> None:
    import pyarrow as pa

    from mqttree.bench.spark import events, source

    told("mine", 1).write(tmp_path / "link=[b0, b1]{x}*")  # which is no pattern
    (file,) = tmp_path.rglob("subscribers-*.parquet")
    table = pq.ParquetFile(file).read()
    other = pa.array(["other"] * table.num_rows).dictionary_encode()
    pq.write_table(table.set_column(table.schema.get_field_index("run"), "run", other), file)
    runs = source.read([str(tmp_path)])
    found = events.load(spark, runs)
    assert runs[0].remarks == [
        "subscribers: its rows are of run other, not of its folder's, and are left out"
    ]
    assert {Path(each).name for each in runs[0].files} == {"publishers-00000.parquet"}
    for rows in (found.messages, found.others):
        assert rows.select("run").distinct().collect() == [("mine",)]


def test_a_path_that_spark_cannot_reach_is_reported_in_one_line(tmp_path: Path, spark: Any) -> None:
    from mqttree.bench.spark import source, store
    from mqttree.bench.spark.session import cause

    with pytest.raises(
        ValueError, match=r"^zzz://x/y cannot be read: No FileSystem for scheme \"zzz\"[^\n]*$"
    ):
        source.read(["zzz://x/y"], spark)
    (tmp_path / "file").write_text("")
    with pytest.raises(
        ValueError, match=r"^no tables can be written to zzz://x/y: No FileSystem for scheme[^\n]*$"
    ):
        store.Store(spark, "zzz://x/y")
    place = (tmp_path / "file").as_uri()
    with pytest.raises(ValueError, match=r"^no tables can be written to file:[^\n]*/file: [^\n]+$"):
        store.Store(spark, place)
    with pytest.raises(Exception, match="file") as error:
        spark.range(1).write.parquet(f"{place}/runs.parquet")
    assert "\n" not in cause(error.value)
    assert "/file" in cause(error.value)


def test_tables_go_to_this_machine_where_a_cluster_has_another_file_system(
    tmp_path: Path, spark: Any
) -> None:
    from mqttree.bench.spark import store

    options = spark.sparkContext._jsc.hadoopConfiguration()
    usual = options.get("fs.defaultFS")
    options.set("fs.defaultFS", "zzz://x")
    try:
        store.Store(spark, str(tmp_path / "tables"))
    finally:
        options.set("fs.defaultFS", usual)
    assert (tmp_path / "tables").is_dir()


def test_means_say_how_many_runs_they_lack_and_why(made: Any) -> None:
    same = ("random", "broker=mqttree-flood,fault=some")
    cases = {
        each["measure"]: each for each in made[2].cases if (each["scenario"], each["case"]) == same
    }
    delay, repair = cases["delay_mean_ms"], cases["repair_s"]
    assert (delay["runs"], delay["n"], delay["without"], delay["why"]) == (3, 2, 1, "failed")
    assert (delay["mean"], delay["half"]) == (pytest.approx(10), pytest.approx(0))
    assert (repair["n"], repair["without"]) == (1, 2)
    assert set(repair["why"].split(", ")) == {"failed", "1 of 2 faults not repaired"}
    row = of(made, "absent")
    assert (row["status"], row["delivered"], row["remarks"]) == ("failed", 0, "no trace; no lab")


def test_flows_are_separate_and_a_shared_subscription_is_one_receiver(made: Any) -> None:
    assert [of(made, "flows", flow)["published"] for flow in ("", "small", "large")] == [10, 8, 2]
    assert [of(made, "flows", flow)["expected"] for flow in ("", "small", "large")] == [10, 8, 2]
    assert of(made, "flows")["lost"] == of(made, "flows")["duplicates"] == 0


def test_tables_become_files_and_a_page(made: Any, spark: Any) -> None:
    from mqttree.bench.report.data import outdated, read
    from mqttree.bench.report.page import page
    from mqttree.bench.spark import store

    folder = made[0]
    assert outdated(folder)
    (folder / "tables" / "runs.parquet").mkdir(parents=True)  # as older versions wrote it
    place = store.Store(spark, str(folder / "tables"))
    names = store.write(place, made[2], str(folder / "tables"))
    assert {path.name for path in (folder / "tables").glob("*.csv")} == {
        f"{name}.csv" for name in names
    }
    assert not outdated(folder)
    with (folder / "tables" / "runs.csv").open(newline="") as file:
        rows = {(row["run"], row["flow"]): row for row in csv.DictReader(file)}
    assert rows["absent", ""]["remarks"] == "no trace; no lab"
    results = read(folder)
    assert {
        each.variant: sorted(each.runs) for each in results.cases if each.scenario == "two"
    } == {
        "rate=10": [(1001, 1, 0), (2001, 1, 0)],
        "rate=100": [(1001, 1, 0)],
    }
    assert {"restarted", "gaps", "undone"} <= {row["scenario"] for row in results.faults} & {
        row["scenario"] for row in results.timeline
    }
    text = page(results, "again")
    assert "<td>broker mqttree-flood, fault some, rate=100</td>" in text
    assert "b2 never came up" in text
    assert "1 without: failed" in text
    assert text.count("<svg") >= 2
    shutil.rmtree(folder / "absent")
    assert outdated(folder)  # as the tables contain a run that is gone
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")


def test_the_live_view_reads_what_is_complete(made: Any, spark: Any, tmp_path: Path) -> None:
    from mqttree.bench.spark import live
    from mqttree.bench.spark.live_screen import lines

    shutil.copytree(made[0] / "repaired", tmp_path / "link=[b0, b1]" / "repaired")
    spark.range(3).write.parquet(str(tmp_path / "tables" / "runs.parquet"))
    (file,) = tmp_path.rglob("subscribers-*.parquet")
    bad = file.with_name("damaged-00000.parquet")
    bad.write_bytes(b"PAR1 and no more")
    for host, zero in (("h1", 1000 * S), ("h2", 5 * S)):  # whose clocks are far from each other
        with Writer(
            tmp_path / "far" / "trace", run="far", scenario="x", process=host, host=host
        ) as trace:
            trace.clock(zero, "h2", 995 * S, 1000)
            for number in range(5):
                if host == "h1":
                    trace.published(zero + number * S, 0, number, "p", "b0", "t", 0, 10)
                else:
                    trace.delivered(zero + number * S, 0, number, "s", "b0", "t", 0, 10)
            if host == "h1":
                for second, used in ((1, 30.0), (3, 0.1), (4, 0.3)):
                    trace.resources(zero + second * S, "b0", "broker", used, 1000, 1)
                trace.fault(zero + 2 * S, "restart", "b0")
    out = io.StringIO()
    # A file in a batch, so that joins go over several of them.
    assert live.watch(spark, str(tmp_path), 1, lines(out), window_s=10, once=True, most=1) == 0
    said = out.getvalue().splitlines()
    assert f"{bad} is damaged and left out" in said
    first, second, *_ = [line.split() for line in said if line.startswith("repaired")]
    assert first == ["repaired", "0", "0.4", "0.4", "0.4", "10", "10", "100%", *first[8:]]
    assert first[8:] == ["40", "100", "-", "1", "0"], "its brokers started in it"
    assert [*second[1:5], second[10]] == ["10", "0.8", "0.8", "0.7", "0.25"]
    far = [line.split() for line in said if line.startswith("far")]
    assert [*far[0][1:8], far[0][10]] == ["0", "0.5", "0", "0.5", "-", "-", "-", "-"]
    with pytest.raises(ValueError, match="not a folder"):
        live.watch(spark, str(made[0] / "missing"), 1, lines(out))


def test_links_that_were_counted_once_carried_nobody_knows_what(made: Any) -> None:
    row = of(made, "once")
    assert row["control_bytes"] is row["data_bytes"] is row["data_bytes_per_s"] is None
    assert row["control_bytes_run"] == 300
    whys = [each["why"] for each in made[2].cases if each["scenario"] == "once"]
    assert any("links were not counted twice in the measured time" in (why or "") for why in whys)


def test_the_measured_time_is_on_the_scale_of_measured_clocks(made: Any) -> None:
    row = of(made, "measured")
    assert (row["published"], row["delivered"], row["lost"]) == (12, 11, 1)
    assert row["delay_mean_ms"] == pytest.approx(10)


def test_a_clock_that_was_not_set_harms_no_other_run(made: Any) -> None:
    row = of(made, "unset")
    check(row, published=12, delivered=11, delay_mean_ms=0, delay_p99_ms=0)
    assert "11 deliveries more than a day after their publication (clocks)" in row["remarks"]


def test_a_trace_with_a_part_of_the_messages_stands_for_all(made: Any) -> None:
    row = of(made, "sampled")
    check(row, published=120, accepted=120, expected=120, delivered=110, lost=10)
    check(row, published_per_s=120 / 15, delivered_per_s=110 / 15)
    check(row, delay_mean_ms=10, accept_mean_ms=2)
    assert "1 of 10 messages is in the trace: counts are 10 times what it has" in row["remarks"]
    old = of(made, "by-publisher")
    assert old["status"] == "sampled by publisher", "it is in no average"
    assert "more than 1 of 10 messages is in the trace: counts are too high" in old["remarks"]
    assert any("sampled by publisher" in (each["why"] or "") for each in made[2].cases)


def test_what_two_generators_noted_is_counted_once(made: Any) -> None:
    row = of(made, "pair")
    check(row, status="complete", remarks="", published=24, accepted=24, expected=48, delivered=47)
    check(row, lost=1, unknown=0, duplicates=0, reordered=0, unmatched=0)
    check(row, published_per_s=24 / 15, delivered_per_s=47 / 15, generator_cpu=0.25 + 0.5)
    # Only what the first process published was late.
    check(row, delay_mean_ms=(23 * 13 + 24 * 10) / 47, delay_max_ms=13, delay_sent_mean_ms=10)
    used = made[2].tables["resources"].to_pylist()
    mine = {each["process"]: each["cpu"] for each in used if each["run"] == "pair"}
    assert mine == {"generator-0": pytest.approx(0.25), "generator-1": pytest.approx(0.5)}


def test_what_a_generator_that_was_killed_did_not_note_is_unknown(made: Any) -> None:
    row = of(made, "half")
    assert (row["status"], row["lost"], row["unknown"]) == ("trace incomplete", 0, 1)
    assert (row["published"], row["delivered"], row["expected"]) == (24, 47, 48)
    assert "generator-1: its last file is half-written" in row["remarks"]
    (mean,) = [
        each
        for each in made[2].cases
        if each["scenario"] == "two-generators" and each["measure"] == "delay_mean_ms"
    ]
    assert (mean["runs"], mean["n"], mean["why"]) == (2, 1, "trace incomplete")


def test_a_client_that_another_broker_took_over_still_has_to_get_messages(made: Any) -> None:
    row = of(made, "moved")
    assert (row["expected"], row["lost"]) == (12, 7)


def test_shared_and_ordinary_subscriptions_are_distinguished(made: Any) -> None:
    row = of(made, "beside")
    check(row, expected=36, lost=1, unknown=0, duplicates=0, unexpected=0)
    row = of(made, "groups")
    assert (row["expected"], row["lost"], row["duplicates"]) == (36, 1, 0)


def test_a_receiver_counts_once_however_many_clients_there_are(spark: Any) -> None:
    from mqttree.bench.spark import events, subscriptions

    # Beyond 128 groups Spark sorts them, and its sets then hold equal rows of two kinds.
    names = [f"c{number}" for number in range(300)]
    rows = [
        (0, client, "t", receiver)
        for _ in range(2)
        for client in names
        for receiver in (client, "$share/g/t")
    ]
    ddl = "no int, client string, topic string, receiver string"
    matched = events.small(spark, ddl, rows).coalesce(1)
    found = {row["client"]: row["all"] for row in subscriptions.receivers(matched).collect()}
    assert found == {client: [client, "$share/g/t"] for client in names}


def test_messages_published_beside_an_interruption_are_not_lost(made: Any) -> None:
    from mqttree.bench.runner.book import UNSURE_NS
    from mqttree.bench.spark import subscriptions

    row = of(made, "away")  # the messages of 11 s and 12 s came nevertheless, that of 10 s did not
    assert (row["expected"], row["lost"], row["unknown"], row["unexpected"]) == (10, 0, 0, 1)
    assert subscriptions.UNSURE == UNSURE_NS


def test_messages_of_a_wide_fanout_are_spread() -> None:
    from mqttree.bench.spark import messages

    about = {"highest": 250_000, "published": 250_000}
    found = messages.sizes(
        {
            0: about | {"delivered": 50_000_000},
            1: about | {"delivered": 250_000},
            2: {"highest": 9, "delivered": 9},
        }
    )
    assert list(found) == [0]
    assert 1 << found[0].bit_length() - 1 == found[0]
    assert (
        messages.CHUNK // 2 * messages.FANOUT < found[0] * 200 <= messages.CHUNK * messages.FANOUT
    )


def test_runs_of_one_name_in_two_scenarios_and_paths_of_this_machine(
    tmp_path: Path, spark: Any
) -> None:
    from mqttree.bench.spark import events, source

    for name, count in (("one", 3), ("two", 12)):
        each = told("same", 1, scenario=name)
        each.publishers = each.publishers[: 2 * count]
        each.write(tmp_path / name)
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    before = conf.get("fs.defaultFS")
    conf.set("fs.defaultFS", "hdfs://127.0.0.1:1")  # as on a cluster
    try:
        runs = source.read([str(tmp_path)], spark)
        found = events.load(spark, runs)
        counts = {
            row["no"]: row["count"] for row in found.of("published").groupBy("no").count().collect()
        }
    finally:
        conf.set("fs.defaultFS", before)
    assert [(run.scenario, run.run, len(run.files), run.remarks) for run in runs] == [
        ("one", "same", 2, []),
        ("two", "same", 2, []),
    ]
    assert counts == {0: 3, 1: 12}
    assert trace_files.url("hdfs:///a") == "hdfs:///a"
    assert trace_files.url("a b") == f"file://{Path.cwd()}/a b"
