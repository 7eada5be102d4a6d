"""The page's words: the summary, what the papers state with its verdict, what their figures show
and under which conditions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from mqttree.bench.report.data import Results, Row
from mqttree.bench.report.judge import (
    ABSENT,
    FAILS,
    HOLDS,
    UNSURE,
    UNTESTED,
    VERDICTS,
    Finding,
    Judgement,
)
from mqttree.bench.report.plot import bounded
from mqttree.bench.report.shown import MODES, SHOWN, TERMS, filled

_MARKS = {HOLDS: "met", FAILS: "no", UNSURE: "unsure", UNTESTED: "unsure", ABSENT: "unsure"}
_MANY = {
    HOLDS: "hold",
    FAILS: "do not",
    UNSURE: "not decided",
    UNTESTED: "cannot be tested here",
    ABSENT: "not measured",
}
_OWN = ("faults", "faults-load")


def rows(head: Sequence[str], lines: Sequence[Sequence[str]], wide: str = "") -> str:
    """Return a table in a box of its own that scrolls where the page is narrow. `head` are plain
    words, `lines` are HTML; `wide` is a class of the table."""
    heads = "".join(f"<th>{escape(word)}</th>" for word in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{word}</td>" for word in line) + "</tr>" for line in lines
    )
    return f'<div class="box"><table class="{wide}"><tr>{heads}</tr>{body}</table></div>'


def mark(verdict: str) -> str:
    """Return a verdict as HTML."""
    return f'<span class="{_MARKS[verdict]}">{escape(verdict)}</span>'


def summary(found: Sequence[Judgement], results: Results) -> str:
    """Return the first ten lines of the page: how many statements hold, which do not, and what else
    one has to know. `found` are all statements, `results` what was measured."""
    counts = Counter(each.verdict for each in found)
    lines = [
        f"Of <b>{len(found)} statements</b> of the papers, <b>{counts[HOLDS]} hold</b> here, "
        f"{counts[FAILS]} do not, {counts[UNSURE]} are not decided (a cell of one run decides "
        f"nothing), {counts[UNTESTED]} cannot be tested here, and {counts[ABSENT]} were not "
        "measured in these runs."
    ]
    for paper in dict.fromkeys(each.statement.paper for each in found):
        own = Counter(each.verdict for each in found if each.statement.paper == paper)
        words = ", ".join(f"{own[each]} {_MANY[each]}" for each in VERDICTS if own[each])
        lines.append(f'<a href="#{_anchor(paper)}">{escape(paper)}</a>: {words}.')
    lines += _named("What does not hold", [each for each in found if each.verdict == FAILS])
    lines += _named(
        "What cannot be tested here", [each for each in found if each.statement.untested]
    )
    lines += _named(
        "What cannot be judged, as the load generator was the limit",
        [each for each in found if each.verdict == UNTESTED and not each.statement.untested],
    )
    limited = sum(bool(case.limit("delivered_per_s")) for case in results.cases)
    late = sum(bool(case.limit("delay_mean_ms")) for case in results.cases) - limited
    lines.append(
        f"The load generator limited the rates of {limited} of {len(results.cases)} cells, and was "
        f"too late for the delays of {late} more: they are marked, and in no claim."
    )
    lines.append(_promises(results))
    lines.append(
        "The papers are compared with their own routing: mqttree-srt and mqttree-ort do what is "
        "published; mqttree-flood has MQTT-ST's tree, but no QoS 2 on each hop. mqttree-interest "
        "and mqttree-topic are ours."
    )
    items = "".join(f"<li>{line}</li>" for line in lines if line)
    return f'<h2 id="summary">Summary</h2><ul class="summary">{items}</ul>'


def _named(what: str, found: Sequence[Judgement]) -> list[str]:
    """Return one line that opens to the names of statements, each with why it cannot be tested if
    that is so; none where there are no such statements."""
    if not found:
        return []
    names = "; ".join(
        escape(
            f"{each.statement.paper} {each.statement.place}: {each.statement.text.rstrip('.')}"
            + (f" ({each.statement.untested.rstrip('.')})" if each.statement.untested else "")
        )
        for each in found
    )
    many = f"{len(found)} statement{'s' if len(found) > 1 else ''}"
    return [f"<details><summary>{what}: {many}</summary>{names}.</details>"]


def _promises(results: Results) -> str:
    """Say what QoS 2 lost under faults."""
    own = [row for row in results.runs if row["scenario"] in _OWN and not row.get("flow")]
    done = [row for row in own if row["status"] == "complete"]
    if not own:
        return "QoS 2 under faults is not in these runs (the scenario <code>faults</code>)."
    lost = sum(row.get("lost_accepted") or 0 for row in done)
    twice = sum(row.get("duplicates") or 0 for row in done)
    return (
        f'QoS 2 under faults (<a href="#faults">faults</a>): of {len(own)} runs {len(done)} are '
        f"complete; in them {lost:g} accepted messages were lost, and {twice:g} came twice."
    )


def words() -> str:
    """Return what the names of brokers and measures mean."""
    kinds = rows(("brokers", "what their routing is"), [tuple(map(escape, each)) for each in MODES])
    terms = rows(("word", "what it means"), [tuple(map(escape, each)) for each in TERMS])
    return f"<h2>Words</h2>{kinds}{terms}"


def _anchor(paper: str) -> str:
    return f"paper-{paper.lower()}"


def heading(paper: str, title: str) -> str:
    """Return the heading of a paper's chapter: its short name, and its `title`."""
    return f'<h2 class="paper" id="{_anchor(paper)}">{escape(paper)}</h2><p>{escape(title)}</p>'


def statements(found: Sequence[Judgement]) -> str:
    """Return the statements of one paper with their verdicts, and how each was judged."""
    lines = []
    for each in found:
        statement = each.statement
        why = f"<div>{escape(each.reason)}</div>"
        if statement.remark:
            why += f'<div class="why">{escape(statement.remark)}</div>'
        if each.findings:
            why += f"<details><summary>cells</summary>{_findings(each.findings)}</details>"
        lines.append((escape(statement.place), escape(statement.text), mark(each.verdict), why))
    return rows(("where", "what the paper states, in our words", "here", "why"), lines, "said")


def _findings(found: Sequence[Finding]) -> str:
    lines = []
    for each in found:
        check = each.check
        cell = ", ".join(f"{key} {value}" for key, value in each.case.cell.items() if value != "")
        against = " or ".join(
            ", ".join(f"{key} {value}" for key, value in changes.items())
            for changes in check.against
        )
        what = f"{check.measure}, {check.how} to {against}" if against else check.measure
        value = escape(each.why) if each.value is None else bounded(each.value, each.half)
        told = {True: "yes", False: "no", None: "one run" if each.n == 1 else "-"}[each.holds]
        words = (f"{each.case.scenario}: {cell}", what, check.bounds)
        lines.append((*map(escape, words), value, str(each.n), told))
    return rows(("cell", "measure", "has to be", "is", "runs", "came out"), lines)


def shown(scenario: str, flows: Mapping[str, Mapping[str, Any]]) -> str:
    """Return what the paper's figure shows, and the conditions that differ. `flows` are the
    parameters of the runs, by the names of their flows."""
    about = SHOWN.get(scenario)
    if about is None:
        return ""
    lines = [
        (escape(what), escape(theirs), escape(filled(ours, flows)))
        for what, theirs, ours in about.conditions
    ]
    table = rows(("condition", "paper", "here"), lines) if lines else ""
    return f"<p>{escape(about.text)}</p>{table}"


def verdicts(scenario: str, found: Sequence[Judgement]) -> str:
    """Return one sentence on what a scenario says of the statements that it is about."""
    mine = [
        each
        for each in found
        if any(scenario in check.scenarios for check in each.statement.checks)
    ]
    if not mine:
        return ""
    counts = Counter(each.verdict for each in mine)
    said = ", ".join(
        f'{counts[each]} <span class="{_MARKS[each]}">{_MANY[each]}</span>'
        for each in VERDICTS
        if counts[each]
    )
    return f"<p>Of {len(mine)} statements on it: {said}.</p>"


def flows_of(about: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """Return the parameters of all flows that a scenario's runs have, by name; those of the first
    run that has it."""
    found: dict[str, dict[str, Any]] = {}
    for each in about:
        flows = (each.get("parameters") or {}).get("flows") or {}
        for name, flow in flows.items() if isinstance(flows, Mapping) else ():
            if isinstance(flow, Mapping):
                found.setdefault(str(name), dict(flow))
    return found
