"""The page: a summary, then paper by paper what it states and what its figures show, beside ours,
then how to do it again."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from mqttree.bench.report import chapters, distributions, figures, papers
from mqttree.bench.report import repeated as again
from mqttree.bench.report.data import Case, Results, Row
from mqttree.bench.report.derived import DERIVED
from mqttree.bench.report.judge import Judgement, judge
from mqttree.bench.report.plot import bounded, short
from mqttree.bench.report.shown import SHOWN
from mqttree.bench.report.statements import PAPERS, STATEMENTS
from mqttree.bench.scenarios import federator_tables
from mqttree.bench.scenarios.measures import MEASURES

STYLE = """
body{font:14px/1.45 system-ui,sans-serif;max-width:1320px;margin:1.5em auto;padding:0 1em;
color:#222}
h1{font-size:1.6em}h2{font-size:1.25em;margin-top:2em;border-bottom:1px solid #ccc}
h2.paper{font-size:1.45em;border-bottom:2px solid #555}h3{font-size:1.1em;margin-top:1.8em}
table{border-collapse:collapse;margin:.7em 0;font-size:12.5px}
.box{overflow-x:auto;max-width:100%}
p,li,td,th,h1,h2,h3,pre{overflow-wrap:anywhere}
td{min-width:3.5em}table.said td:nth-child(2){min-width:13em}
.summary li{margin:.25em 0}
th,td{padding:.2em .55em;border-bottom:1px solid #ddd;text-align:left}
td.n{text-align:right;white-space:nowrap}th{background:#f3f3f3;position:sticky;top:0}
.plots{display:flex;flex-wrap:wrap;gap:10px}
svg{width:420px;max-width:100%;background:#fff;border:1px solid #e5e5e5}
svg text{font:11px system-ui,sans-serif;fill:#333}svg text.t{font-weight:600}
svg text.x{text-anchor:middle}
svg text.y,svg text.refname{text-anchor:end}svg text.refname{fill:#a00}
svg text.small{font-size:9.5px}svg text.markname,svg text.markend{font-size:10px;fill:#666}
svg text.markend{text-anchor:end}.mark{stroke:#999;stroke-dasharray:2 3}
.grid{stroke:#eee}.axis{stroke:#888}.ref{stroke:#a00;stroke-dasharray:5 4}
.legend span{margin-right:1.2em;display:inline-block}
.legend i{display:inline-block;width:.9em;height:.9em;margin-right:.35em;border-radius:2px}
.met{color:#176b2c;font-weight:600}.no{color:#a3122a;font-weight:600}
.unsure{color:#6b5300;font-weight:600}
.why{color:#666;font-size:11.5px}
pre{background:#f6f6f6;padding:.6em;overflow-x:auto}
.none{color:#666}
@media(max-width:600px){table.said,table.said>tbody,table.said>tbody>tr,table.said>tbody>tr>td
{display:block}
table.said>tbody>tr>th{display:none}table.said>tbody>tr>td{border:0;padding:.1em 0}
table.said>tbody>tr{border-bottom:1px solid #ccc;padding:.5em 0}}
@media print{body{max-width:none;font-size:11px}svg{break-inside:avoid;width:340px}
th{position:static}h2,h3{break-after:avoid}}
"""
OTHERS = {
    "Federator": "Spohn, An Endogenous and Self-organizing Approach for the Federation of "
    "Autonomous MQTT Brokers",
    "Scaling": "Detti et al., Sub-linear Scalability of MQTT Clusters in Topic-based "
    "Publish-subscribe Applications (what M brokers do beside one is on a page of its own, by "
    "`mqttree bench placement scaling`)",
    "EMQ": "The basic set of EMQ's benchmark, with a hundredth of its clients",
}
"""Whose figures follow those of the papers with statements."""
_DETAILS = (
    "delivered_bytes_per_s",
    "delay_max_ms",
    "accept_mean_ms",
    "control_bytes_per_s",
    "data_bytes_per_s",
    "control_bytes_run",
)
NUMBERS = (*(name for name in MEASURES if name not in _DETAILS), *DERIVED)

TITLE = "mqttree: benchmark report"


def page(
    results: Results,
    command: str,
    repeated: Results | None = None,
    note: str = "",
) -> str:
    """Return the whole page about `results`. `command` makes the page again;
    `repeated` are the same scenarios, run another time (None: they were not); `note` says
    under which circumstances they were run ("": nothing)."""
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f"<title>{TITLE}</title><style>{STYLE}</style></head><body><h1>{TITLE}</h1>",
        f"<p>{escape(note)}</p>" if note else "",
    ]
    judged = judge(STATEMENTS, results.cases)
    parts += [chapters.summary(judged, results), _machine(results), chapters.words()]
    done: set[str] = set()
    for paper, name in (PAPERS | OTHERS).items():
        mine = [each for each in _scenarios(results) if _paper(each, results) == paper]
        counted = _federators(results) if paper == "Federator" else ""
        if mine or counted:
            own = [each for each in judged if each.statement.paper == paper]
            parts += [chapters.heading(paper, name), chapters.statements(own) if own else ""]
            parts.append(counted)
        for scenario in mine:
            parts += _scenario(scenario, results, judged)
        done |= set(mine)
    parts.append('<h2 class="paper" id="ours">Ours</h2>')
    parts.append(_papers(results))
    for scenario in _scenarios(results):
        if scenario not in done:
            parts += _scenario(scenario, results, judged)
    parts.append(_repeated(results, repeated) if repeated is not None else "")
    parts += [_faults(results), _remarks(results), _again(results, command), "</body></html>\n"]
    return "\n".join(part for part in parts if part)


def _scenarios(results: Results) -> list[str]:
    """Return the scenarios in the order of the papers' figures, others as they were run."""
    known = list(SHOWN)
    found = results.scenarios()
    return [name for name in known if name in found] + [name for name in found if name not in known]


def _paper(scenario: str, results: Results) -> str:
    return str(next((each.get("paper") for each in results.of(scenario)), "") or "")


def _distinct(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(value for value in values if value not in (None, "", {})))


def _machine(results: Results) -> str:
    """Return where, when and of what the figures are."""
    about = results.about
    rows = []
    for machine in _distinct(tuple(sorted((each.get("machine") or {}).items())) for each in about):
        rows.append(("machine", ", ".join(f"{key} {value}" for key, value in machine)))
    commits = _distinct((each.get("commit"), bool(each.get("dirty"))) for each in about)
    rows.append(
        (
            "commit",
            ", ".join(
                f"{commit or 'unknown'}{' with changes' if dirty else ''}"
                for commit, dirty in commits
            ),
        )
    )
    for versions in _distinct(
        tuple(sorted((each.get("versions") or {}).items())) for each in about
    ):
        rows.append(("versions", ", ".join(f"{key} {value}" for key, value in versions)))
    times = [each["began"] for each in about if each.get("began")]
    if times:
        first, last = _date(min(times)), _date(max(times))
        rows.append(("runs", f"{sum(not row['flow'] for row in results.runs)}, {first} to {last}"))
    rows.append(("network", ", ".join(_distinct(each.get("lab") for each in about)) or "unknown"))
    forms = [each.get("form") or "full" for each in about]
    if set(forms) & {"short", "medium"}:
        counts = {form: forms.count(form) for form in dict.fromkeys(forms)}
        some = (
            next(iter(counts))
            if len(counts) == 1
            else ", ".join(f"{number} runs {form}" for form, number in counts.items())
        )
        rows.append(
            ("form", f"{some}: fewer repetitions, shorter runs, fewer cells than the papers'")
        )
    body = "".join(f"<tr><th>{name}</th><td>{escape(str(text))}</td></tr>" for name, text in rows)
    return f'<h2>Where and when</h2><div class="box"><table>{body}</table></div>'


def _class(verdict: str) -> str:
    """Return how the verdict on a target of ours is drawn."""
    return {"met": "met", "not met": "no"}.get(verdict, "unsure")


def _papers(results: Results) -> str:
    found = papers.compare(results.cases)
    if not found:
        return ""
    lines = []
    before = None
    for each in found:
        ours = _found(each)
        wanted = "" if each.claim.wanted is None else f"at most {each.claim.wanted:g}"
        mark = f'<span class="{_class(each.verdict)}">{each.verdict}</span>' if each.verdict else ""
        cell = f"{each.case.scenario}: {_cell(each.case)}"
        why = f'<div class="why">{escape(each.why)}</div>' if each.why else ""
        value = "" if each.claim.value is None else f"{each.claim.value:g}"
        claimed = (
            (escape(each.claim.paper), escape(each.claim.text), value)
            if each.claim is not before
            else ("", "", "")
        )
        before = each.claim
        lines.append(
            f"<tr><td>{claimed[0]}</td><td>{claimed[1]}</td><td class=n>{claimed[2]}</td>"
            f"<td class=n>{ours}{why}</td><td>{wanted} {mark}</td><td>{escape(cell)}</td></tr>"
        )
    head = (
        "<tr><th>from</th><th>what</th><th>the paper's</th><th>ours</th>"
        "<th>wanted</th><th>measured in</th></tr>"
    )
    note = (
        "What we want of our own routing. Ratios are of each repetition and then averaged; "
        "± is half of a 95 % interval."
    )
    table = f'<div class="box"><table>{head}{"".join(lines)}</table></div>'
    return f"<h3>Our targets</h3><p>{note}</p>{table}"


def _found(each: papers.Comparison | None) -> str:
    return "-" if each is None else bounded(each.ours, each.half)


def _date(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(moment))


def _federators(results: Results) -> str:
    """Return the tables of Spohn's paper beside ours."""
    parts = []
    for table in federator_tables.tables(results.about):
        head = "".join(f"<th>{escape(word)}</th>" for word in table.headings)
        lines = "".join(
            "<tr>"
            + "".join(
                f"<td{' class=n' if place else ''}>{escape(word)}</td>"
                for place, word in enumerate(line)
            )
            + "</tr>"
            for line in table.lines
        )
        remarks = "".join(f"<li>{escape(remark)}</li>" for remark in table.remarks)
        parts.append(
            f'<h3>{escape(table.title)}</h3><div class="box"><table><tr>{head}</tr>{lines}'
            f"</table></div><ul>{remarks}</ul>"
        )
    return "".join(parts)


def _repeated(results: Results, repeated: Results) -> str:
    """Return whether the ratios of both sets differ, and all of them."""
    pairs = again.pairs(results, repeated)
    times = [each["began"] for each in repeated.about if each.get("began")]
    when = f" ({_date(min(times))})" if times else ""
    lines = []
    for pair in pairs:
        marks = {
            True: '<span class="met">no difference</span>'
            + (f" (of {pair.seen:.0%} or more)" if pair.seen is not None else ""),
            False: '<span class="no">differ</span>',
            None: escape(pair.why),
        }
        case = pair.first.case
        lines.append(
            f"<tr><td>{escape(pair.first.claim.text)}</td>"
            f"<td>{escape(f'{case.scenario}: {_cell(case)}')}</td>"
            f"<td class=n>{_found(pair.first)}</td><td class=n>{_found(pair.second)}</td>"
            f"<td>{marks[pair.agrees]}</td></tr>"
        )
    head = "<tr><th>ratio</th><th>measured in</th><th>here</th><th>repeated</th><th></th></tr>"
    text = f"All was run another time{when}: {again.summary(pairs)}."
    table = (
        f"<details><summary>{len(pairs)} ratios</summary>"
        f'<div class="box"><table>{head}{"".join(lines)}</table></div></details>'
    )
    return f"<h2>Repeated</h2><p>{escape(text)}</p>{table}"


def _cell(case: Case) -> str:
    words = [f"{key} {value}" for key, value in case.cell.items() if value != ""]
    return ", ".join([*words, *(word for word in (case.variant, case.flow) if word)])


def _scenario(scenario: str, results: Results, judged: Sequence[Judgement]) -> list[str]:
    about = results.of(scenario)
    first = about[0] if about else {}
    figure = (first.get("figure") or {}).get("id", "")
    words = ", ".join(_distinct([figure or first.get("paper")]))
    parts = [
        f'<h3 id="{escape(scenario)}">{escape(scenario)}'
        f"{f' ({escape(words)})' if words else ''}</h3>",
        f"<p>{escape(str(first.get('title', '')))}</p>",
        chapters.shown(scenario, chapters.flows_of(about)),
        chapters.verdicts(scenario, judged),
    ]
    parts += figures.by_broker(scenario, results)
    parts += figures.ratios(scenario, results)
    parts += figures.plots(scenario, results)
    parts += distributions.plots(scenario, results)
    parts += figures.traffic(scenario, results)
    parts.append(
        _table([case for case in results.cases if case.scenario == scenario], results.runs)
    )
    return parts


def _table(cases: Sequence[Case], runs: Sequence[Row]) -> str:
    shown = [name for name in NUMBERS if any(case.mean(name) is not None for case in cases)]
    bare = {id(case) for case in cases if all(case.mean(name) is None for name in NUMBERS)}
    limits = {id(case): case.limited_by() for case in cases}
    head = "".join(f"<th>{escape(figures.NAMES[name])}</th>" for name in shown)
    head += "<th>limited by</th>" if any(limits.values()) else ""
    head += "<th>why no figures</th>" if bare else ""
    lines = []
    for case in cases:
        number = max((row["runs"] for row in case.measures.values()), default=0)
        cells = []
        for name in shown:
            row = case.measures.get(name)
            if row is None:
                cells.append("<td></td>")
                continue
            why = (
                f'<div class="why">{row["without"]} without: {escape(row["why"])}</div>'
                if row["without"]
                else ""
            )
            cells.append(f"<td class=n>{bounded(row['mean'], row['half'])}{why}</td>")
        if any(limits.values()):
            cells.append(f"<td>{escape(limits[id(case)].removeprefix('limited by '))}</td>")
        if bare:
            cells.append(f"<td>{escape(_reasons(case, runs)) if id(case) in bare else ''}</td>")
        lines.append(
            f"<tr><td>{escape(_cell(case))}</td><td class=n>{number}</td>{''.join(cells)}</tr>"
        )
    table = (
        f'<div class="box"><table><tr><th>cell</th><th>runs</th>{head}</tr>{"".join(lines)}'
        "</table></div>"
    )
    return (
        f"<details><summary>all figures (± is half of a 95 % interval)</summary>{table}</details>"
    )


def _reasons(case: Case, runs: Sequence[Row]) -> str:
    """Return the status of each run of a case, and what is said of it."""
    mine = [
        row
        for row in runs
        if (row["scenario"], row["case"], row["flow"] or "")
        == (case.scenario, case.name, case.flow)
    ]
    return "; ".join(
        _distinct(": ".join(filter(None, (row["status"], row["remarks"]))) for row in mine)
    )


def _faults(results: Results) -> str:
    if not results.faults:
        return ""
    runs = {(row["scenario"], row["run"]): row for row in results.runs}
    lines = []
    for fault in results.faults:
        run = runs.get((fault["scenario"], fault["run"]), {})
        where = f"{run.get('scenario', '')}: {run.get('case', '')}"
        cells = [
            where,
            fault["kind"],
            fault["target"],
            short(fault["tree_s"]),
            short(fault["service_s"]),
            fault["state"],
        ]
        lines.append([escape(str(cell)) for cell in cells])
    head = ("run", "fault", "at", "tree, s", "all served, s", "state")
    return (
        f"<h2>Faults</h2><details><summary>{len(lines)} faults</summary>"
        f"{chapters.rows(head, lines)}</details>"
    )


def _remarks(results: Results) -> str:
    lines = []
    for row in results.runs:
        if row["flow"]:
            continue
        if row["remarks"] or row["status"] != "complete":
            text = "; ".join(
                word
                for word in (row["status"] if row["status"] != "complete" else "", row["remarks"])
                if word
            )
            lines.append(
                f"<li>{escape(row['scenario'])}, {escape(row['case'])}, "
                f"run {escape(row['run'])}: {escape(text)}</li>"
            )
    if not lines:
        return "<h2>Remarks</h2><p>All runs are complete, and so are their traces.</p>"
    return (
        "<h2>Remarks</h2><p>Runs that are not complete are in no average.</p>"
        f"<ul>{''.join(lines)}</ul>"
    )


def _again(results: Results, command: str) -> str:
    commands = _distinct(shlex.join(map(str, each.get("command") or [])) for each in results.about)
    return (
        "<h2>Again</h2><pre>" + "\n".join(escape(line) for line in [*commands, command]) + "</pre>"
    )
