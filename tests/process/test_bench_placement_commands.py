"""`mqttree bench placement controller` and `takeover`, in a short form, with real brokers."""

from __future__ import annotations

import re

import pytest

from mqttree.bench.placement.command import main


@pytest.mark.long
@pytest.mark.parametrize("at", ["root", "other"])
def test_all_questions_at_a_low_rate_are_answered(
    at: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--brokers", "2", "--topics", "20", "--each", "3", "--rate", "40", "--seconds", "1"]
    assert main(["controller", *words, "--at", at]) == 0
    text = capsys.readouterr().out
    assert "40 questions at 40/s, 3 topics each, 2 brokers" in text
    assert re.search(r"^answered 40, [\d,]+/s, p50 [\d.]+ ms, p99 [\d.]+ ms", text, re.M)
    assert "not answered" not in text
    spent = [int(number) for number in re.findall(r"(\d+) us", text)]
    assert len(spent) == (1 if at == "root" else 2)
    assert all(spent)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--each", "30", "--topics", "20"], "cannot have 30 of 20"),
        (["--rate", "1000", "--seconds", "1000"], "100,000"),
    ],
)
def test_questions_that_cannot_be_asked_are_refused_in_a_line(words: list[str], why: str) -> None:
    with pytest.raises(ValueError, match=why) as caught:
        main(["controller", *words])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("qos", ["1", "2"])
def test_a_death_costs_a_client_no_message(qos: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["takeover", "--rounds", "1", "--rate", "50", "--qos", qos]) == 0
    line = capsys.readouterr().out.splitlines()[1].split()
    assert line[:2] == [qos, "1"]
    published, lost = int(line[4].replace(",", "")), int(line[5])
    assert published > 200
    assert lost == 0
