"""Tables as text for a terminal. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

SHOWN = (
    "published_per_s",
    "delivered_per_s",
    "delay_mean_ms",
    "delay_p99_ms",
    "lost",
    "duplicates",
    "reordered",
    "control_bytes",
    "data_bytes",
    "broker_cpu",
    "convergence_s",
    "repair_s",
    "repair_service_s",
)


def figure(value: float | None) -> str:
    """Return a number with three significant digits or all of its whole ones."""
    if value is None:
        return "-"
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def overview(runs: Sequence[dict[str, Any]], cases: Sequence[dict[str, Any]]) -> str:
    """Return one line for each case (mean ± half of the interval), and every remark about every
    run."""
    rows = [["scenario", "case", "runs", *SHOWN]]
    groups: dict[tuple[str, str, str, str], dict[str, dict[str, Any]]] = {}
    for each in cases:
        groups.setdefault((each["scenario"], each["case"], each["flow"], each["fingerprint"]), {})[
            each["measure"]
        ] = each
    notes = []
    for (scenario, name, flow, _), measures in groups.items():
        title = name + (f" flow={flow}" if flow else "")
        first = next(iter(measures.values()))
        cells = []
        for measure in SHOWN:
            found = measures.get(measure)
            text = figure(found["mean"]) if found else "-"
            if found and found["half"] is not None:
                text += f" ±{figure(found['half'])}"
            if found and found["without"]:
                text += "*"
            cells.append(text)
        rows.append([scenario, title or "-", str(first["runs"]), *cells])
        reasons: dict[str, list[str]] = {}
        for measure, found in measures.items():
            if found["without"]:
                reasons.setdefault(
                    f"{found['without']} of {found['runs']}: {found['why']}", []
                ).append(measure)
        notes += [
            f"* {scenario} {title}: {', '.join(names)}: {why}" for why, names in reasons.items()
        ]
    widths = [max(len(line[column]) for line in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip()
        for line in rows
    ]
    remarks = [
        f"{each['scenario']} {each['run']}: {each['remarks']}"
        for each in runs
        if each["remarks"] and not each["flow"]
    ]
    return "\n".join([*lines, *notes, *remarks])
