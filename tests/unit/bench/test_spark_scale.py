"""What a row of a trace costs: the answers are those that were put in, and the CPU time is told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mqttree.bench.spark import scale
from mqttree.bench.trace.generate import Made, make

ROWS = 20_000


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Made]:
    folder = tmp_path_factory.mktemp("scale")
    return folder, make(folder, ROWS)


def test_duckdb_finds_what_was_put_in_and_its_cpu_time_is_told(made: tuple[Path, Made]) -> None:
    folder, about = made
    cost = scale.ask_duckdb(folder, 1, "512m")
    assert scale.check(about, cost) == ""
    assert tuple(cost.answers) == scale.FIGURES
    assert cost.cpu > 0


def test_a_question_that_fails_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError) as error:
        scale.ask_duckdb(tmp_path, 1, "512m")
    assert "\n" not in str(error.value)


def test_a_table_has_the_cpu_time_of_both_beside_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answered(*_: object) -> scale.Cost:
        return scale.Cost(2.0, 3.5, 5 << 20, dict.fromkeys(scale.FIGURES, 1.0))

    def failed(*_: object) -> scale.Cost:
        raise RuntimeError("no room")

    monkeypatch.setattr(scale, "ask_spark", answered)
    monkeypatch.setattr(scale, "ask_duckdb", failed)
    spark, duck = scale.measure(ROWS, "local[1]", "1g", 1, tmp_path)
    cells = [cell.strip() for cell in spark.split("|")[2:7]]
    assert cells[:3] == ["Spark", "2.0", "3.5"]
    assert cells[4] == "5"
    assert "failed: no room" in duck
    assert spark.count("|") == duck.count("|")


def test_cpu_time_of_children_that_live_counts() -> None:
    work = "import sys, time\nwhile time.process_time() < 0.3: pass\nprint(); sys.stdin.read()"
    before = scale.spent()
    with subprocess.Popen(
        [sys.executable, "-uc", work],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None and child.stdin is not None
        child.stdout.readline()
        used = scale.spent() - before
        child.stdin.close()
    assert used >= 0.25
