"""Every tool of the bench is a command of `mqttree bench`, and explains itself."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mqttree.bench import cli


@pytest.mark.parametrize("name", sorted(cli.TOOLS))
def test_a_tool_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([name, "--help"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"usage: mqttree bench {name} ")


@pytest.mark.parametrize("words", [["--help"], ["--fresh", "x"], ["x"], []])
def test_a_report_without_its_libraries_says_what_to_install(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [each for each in sys.modules if each.startswith("mqttree.bench.report")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert cli.main(["report", *words]) == 2
    assert capsys.readouterr().err == (
        "mqttree bench: pyarrow is not installed: pip install 'mqttree[bench]'\n"
    )


def test_a_live_view_of_nothing_is_one_line_before_spark_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["live", str(tmp_path / "missing")]) == 2
    assert capsys.readouterr().err == (f"mqttree bench live: {tmp_path}/missing is not a folder\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tables", "--master", "foo", "DIR"], "--master foo: expected local"),
        (["tables", "--master", "spark://127.0.0.1:1", "DIR"], "--master spark://127.0.0.1:1: no"),
        (["tables", "--memory", "zzz", "DIR"], "--memory zzz: expected a size"),
        (["tables", "--each", "--out", "x", "DIR"], "--each writes into each folder"),
        (["tables", "DIR", "--out", "DIR/run.json"], "no tables can be written to"),
        (["tables", "DIR/missing"], "DIR/missing is not a folder"),
    ],
)
def test_bad_options_are_one_line_before_spark_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    (tmp_path / "run.json").write_text('{"run": "r", "scenario": "s"}')
    assert cli.main([each.replace("DIR", str(tmp_path)) for each in words]) == 2
    out, errors = capsys.readouterr()
    assert (out, errors.count("\n")) == ("", 1)
    assert said.replace("DIR", str(tmp_path)) in errors
