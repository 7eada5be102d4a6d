"""docs/reference/metrics.md has every metric with its help line, and no other.

`python -m tests.text.test_metrics_page` writes the page's tables again."""

from __future__ import annotations

import re
from pathlib import Path

from mqttree.broker.io import prometheus
from mqttree.broker.io.metric_help import COUNTER_HELP, GAUGE_HELP, LEG_HELP, REASON_HELP
from tests.kit.link_harness import lone

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "metrics.md"
LABELS = {
    "info": ("id", "name", "cluster", "version", "core"),
    "listener_connections": ("listener",),
    "link_rtt_seconds": ("peer", "address"),
    "link_forwarding": ("peer", "address"),
    "leg_up": ("leg", "broker"),
    **{f"leg_{name}_total": ("leg", "broker") for name in LEG_HELP},
    **{f"{name}_total": ("reason",) for name in REASON_HELP},
    "leg_dropped_total": ("leg", "broker", "reason"),
}
START, END = "<!-- tables: begin -->", "<!-- tables: end -->"


def tables() -> str:
    """What stands between START and END."""

    def table(title: str, rows: dict[str, str]) -> list[str]:
        lines = [f"## {title}", "", "| metric | meaning |", "|---|---|"]
        return [*lines, *(f"| `{name}` | {text} |" for name, text in rows.items()), ""]

    def labelled(name: str) -> str:
        labels = ", ".join(LABELS.get(name, ()))
        return f"mqttree_{name}{{{labels}}}" if labels else f"mqttree_{name}"

    gauges = {labelled(name): text for name, text in GAUGE_HELP.items()}
    sums = {labelled(f"{name}_total"): text for name, text in REASON_HELP.items()}
    legs = {labelled(f"leg_{name}_total"): text for name, text in LEG_HELP.items()}
    counters = {f"mqttree_{name}_total": text for name, text in COUNTER_HELP.items()}
    lines = [
        *table("Gauges", gauges),
        *table("Counters with a reason", sums),
        *table("Counters of legs", legs),
    ]
    return "\n".join([START, "", *lines, *table("Counters", counters), END])


def test_the_page_is_that_of_the_code() -> None:
    assert tables() in PAGE.read_text(), "python -m tests.text.test_metrics_page"


def test_every_counter_has_a_help_line_and_no_other() -> None:
    node = lone(routing="topic").node
    discovery = {f"discovery_{name}" for name in node.cluster.membership.counters}
    assert COUNTER_HELP.keys() == node.counters.as_dict().keys() | discovery


def test_every_metric_of_a_broker_is_on_the_page() -> None:
    node = lone(routing="topic").node
    leg = dict.fromkeys(LEG_HELP, 1) | {"name": "l", "broker": "b", "state": "up"}
    leg |= {"dropped": {"unnamed": 1}}
    text = prometheus.metrics(node, "1", {"default": 1}, 1.0, [leg])
    told = dict(re.findall(r"^# HELP mqttree_(\w+) (.*)$", text, re.M))
    known = GAUGE_HELP | {f"{name}_total": text for name, text in COUNTER_HELP.items()}
    known |= {f"{name}_total": text for name, text in REASON_HELP.items()}
    known |= {f"leg_{name}_total": text for name, text in LEG_HELP.items()}
    assert told.items() <= known.items()
    journal = {"journal_ok", "journal_pending_bytes"}
    standby = {"standby_lag_bytes", "standby_lag_seconds", "alone_seconds", "sessions_unprotected"}
    assert known.keys() - told.keys() == journal | standby
    labels = {name: tuple(re.findall(r'(\w+)="', inner)) for name, inner in SAMPLE.findall(text)}
    assert {name: LABELS[name] for name in labels if name in LABELS} == {
        name: found for name, found in labels.items() if name in LABELS
    }


SAMPLE = re.compile(r"^mqttree_(\w+)\{(.*)\} ", re.M)


def test_help_is_one_sentence() -> None:
    for name, text in {**GAUGE_HELP, **COUNTER_HELP, **REASON_HELP, **LEG_HELP}.items():
        assert text[0].isupper() or text[0].isdigit(), name
        assert text.endswith("."), name


if __name__ == "__main__":
    page = PAGE.read_text()
    PAGE.write_text(page.partition(START)[0] + tables() + page.partition(END)[2])
