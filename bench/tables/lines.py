"""The aggregated counts of all runs, put together: a line for each run and each of its flows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from mqttree.bench.lab.network import lacking as lacks
from mqttree.bench.load.histogram import upper
from mqttree.bench.tables.clocks import Placed
from mqttree.bench.tables.counted import CAME, MISSING, SENT, Counts
from mqttree.bench.tables.delays import PERCENTILES, percentiles
from mqttree.bench.tables.faults import SERVED, Repairs
from mqttree.bench.tables.means import jain, stretch
from mqttree.bench.tables.run import ROLES
from mqttree.bench.tables.summary import Line, brokers, physical
from mqttree.bench.tables.traffic import Link, Used

GENERATOR, NETWORK, OBSERVER = ROLES
_LOSSES = "losses are not known"


def _flows(
    rows: Iterable[Any], sums: Sequence[str], most: str | None = None
) -> dict[tuple[int, str], dict[str, Any]]:
    """Return sums (and the maximum of one more column) of each run's flows and of the whole run
    (flow ""); by (no, flow)."""
    result: dict[tuple[int, str], dict[str, Any]] = {}
    for row in rows:
        for key in {(row["no"], ""), (row["no"], row["flow"] or "")}:
            into = result.setdefault(key, {})
            for name in sums:
                if row[name] is not None:
                    into[name] = into.get(name, 0) + row[name]
            if most and row[most] is not None:
                into[most] = max(into.get(most, 0), row[most])
    return result


def lines(placed: Placed, counted: Counts) -> list[Line]:
    """Return everything about every run. `placed` are the runs, `counted` what was counted of
    their rows."""
    came, sent = _flows(counted.came, CAME, "longest"), _flows(counted.sent, SENT)
    missing = _flows(counted.missing, MISSING)
    points = {key: percentiles(buckets) for key, buckets in counted.histograms.items()}
    sent_points = {key: percentiles(buckets) for key, buckets in counted.sent_histograms.items()}
    repaired = counted.repaired
    result = []
    for number, run in enumerate(placed.runs):
        flows = sorted({flow for no, flow in (*came, *sent) if no == number and flow})
        for flow in ["", *(flows if len(flows) > 1 else [])]:
            line = Line(run, flow, brokers=brokers(run, repaired.started.get(number, ())))
            _window(line, placed, counted.spans.get(number, {}), number)
            key = (number, flow)
            _messages(line, came.get(key, {}), sent.get(key, {}), points.get(key, {}))
            _from_sent(line, came.get(key, {}), sent_points.get(key, points.get(key, {})))
            _losses_of(
                line,
                missing.get(key, {}),
                number in placed.subscribed,
                number in {no for no, _ in came},
            )
            line.without_late_delays()
            result.append(line)
    whole = {
        number: line for line in result if not line.flow for number in [placed.runs.index(line.run)]
    }
    _traffic(whole, counted.network.links)
    _resources(whole, counted.network.used)
    _repairs(whole, repaired)
    _trees(whole, counted)
    return result


def _window(line: Line, placed: Placed, span: dict[str, int], number: int) -> None:
    """Set the length of the measured time: run.json's, else from the first to the last
    publication."""
    if line.run.window is not None:
        since, until = placed.windows[number]
        line.window_s = (until - since) / 1e9
    elif span.get("last", 0) > span.get("first", 0):
        line.window_s = (span["last"] - span["first"]) / 1e9
        if not line.flow:
            line.run.remarks.append(
                "no measured time in run.json: rates are from the first to the last publication"
            )


def _messages(
    line: Line, came: dict[str, Any], sent: dict[str, Any], points: dict[str, Any]
) -> None:
    values, seconds = line.values, line.window_s
    published, accepted, n = sent.get("n") or 0, sent.get("accepted") or 0, came.get("timed") or 0
    rated, rated_accepted = sent.get("rated") or 0, sent.get("rated_accepted") or 0
    values |= {"published": published, "accepted": accepted, "delivered": came.get("n") or 0}
    values |= {"unmatched": came.get("unmatched") or 0, "early": came.get("early") or 0}

    def rate(count: int) -> float | None:
        return count / seconds if seconds else None

    line.put("published_per_s", rate(rated) if published else None, "nothing published", GENERATOR)
    line.put(
        "accepted_per_s",
        rate(rated_accepted) if accepted else None,
        "nothing acknowledged (QoS 0)",
        GENERATOR,
    )
    line.put(
        "delivered_per_s",
        rate(came.get("arrived") or 0) if came else None,
        "nothing delivered",
        GENERATOR,
    )
    line.put(
        "delivered_bytes_per_s",
        rate(came.get("size") or 0) if came else None,
        "nothing delivered",
        GENERATOR,
    )
    line.put(
        "delay_mean_ms", came["delay"] / n / 1e6 if n else None, "nothing delivered", GENERATOR
    )
    longest = came.get("longest")
    for name in PERCENTILES:
        bucket = points.get(name)
        line.put(
            name,
            min(upper(bucket), longest) / 1e6
            if bucket is not None and longest is not None
            else None,
            "nothing delivered",
            GENERATOR,
        )
    line.put(
        "delay_max_ms",
        longest / 1e6 if longest is not None and n else None,
        "nothing delivered",
        GENERATOR,
    )
    line.put(
        "accept_mean_ms",
        sent["wait"] / rated_accepted / 1e6 if rated_accepted else None,
        "nothing acknowledged (QoS 0)",
        GENERATOR,
    )
    line.put("duplicates", came.get("duplicates") if came else None, "nothing delivered", GENERATOR)
    line.put("reordered", came.get("reordered") if came else None, "nothing delivered", GENERATOR)
    if not line.flow:
        if values["early"]:
            line.run.remarks.append(
                f"{values['early']:,} deliveries before their publication (clocks), taken as 0 ms"
            )
        if values["unmatched"]:
            line.run.remarks.append(
                f"{values['unmatched']:,} deliveries of messages whose publication is not in "
                "the trace"
            )


def _from_sent(line: Line, came: dict[str, Any], points: dict[str, Any]) -> None:
    """Set the delays from when messages were handed to the socket; `points`: the buckets of their
    percentiles."""
    n, bucket = came.get("timed") or 0, points.get("delay_p99_ms")
    mean = came["delay_sent"] / n / 1e6 if n else None
    high = min(upper(bucket), came["longest"]) / 1e6 if n and bucket is not None else None
    line.put("delay_sent_mean_ms", mean, "nothing delivered", GENERATOR)
    line.put("delay_sent_p99_ms", high, "nothing delivered", GENERATOR)


def _losses_of(line: Line, found: dict[str, Any], subscribed: bool, delivered: bool) -> None:
    if not subscribed:
        why = (
            f"{_LOSSES}: no subscriptions in the trace"
            if delivered
            else "nothing delivered, no subscriptions in the trace"
        )
        for name in ("lost", "lost_accepted", "unknown"):
            line.put(name, None, why, GENERATOR)
        return
    for name in ("expected", "lost", "lost_accepted", "unknown", "unexpected"):
        line.values[name] = found.get(name) or 0


def _traffic(whole: dict[int, Line], links: Iterable[Link]) -> None:
    known: dict[int, dict[tuple[str, str | None], int | None]] = defaultdict(dict)
    run: dict[tuple[int, str], int] = defaultdict(int)
    for row in links:
        mine, key = known[row.no], (row.how, row.kind)
        before = mine.get(key)
        mine[key] = row.measured if before is None else before + (row.measured or 0)
        if row.kind == "control":
            run[row.no, row.how] += row.bytes or 0
    for number, line in whole.items():
        mine = known.get(number, {})
        how = next(
            (
                each
                for each in ("link", "tap", "broker")
                if any(key[0] == each and key[1] != "wire" for key in mine)
            ),
            "",
        )
        single = len(line.brokers) == 1
        # Without a network that sees packets the observer notes what the brokers count.
        counter = (
            NETWORK
            if any(name.startswith(NETWORK) for name in (*line.run.rows, *line.run.broken))
            else OBSERVER
        )
        why, by = ("one broker, no links", "") if single else ("no link was counted", counter)
        line.put("control_bytes_run", run.get((number, how), 0) if how else None, why, by)
        for kind in ("control", "data"):
            found = mine.get((how, kind), 0) if how else None
            if how and found is None:
                why = "links were not counted twice in the measured time"
            line.put(f"{kind}_bytes", found, why, by)
            line.put(
                f"{kind}_bytes_per_s",
                found / line.window_s if found is not None and line.window_s else None,
                why,
                by,
            )
        line.run.remarks += lacks((line.run.about.get("summary") or {}).get("network"))


def _resources(whole: dict[int, Line], used: Iterable[Used]) -> None:
    rows: dict[tuple[int, str | None], list[Used]] = defaultdict(list)
    for row in used:
        rows[row.no, row.role].append(row)
    for number, line in whole.items():
        mine = rows.get((number, "broker"), [])
        cpu = [row.cpu for row in mine if row.cpu is not None]
        line.put("broker_cpu", sum(cpu) / len(cpu) if cpu else None, "not sampled", OBSERVER)
        rss = [row.rss for row in mine if row.rss is not None]
        line.put(
            "broker_rss",
            sum(rss) / len(rss) if rss else None,
            "not sampled",
            OBSERVER,
        )
        cpu = [row.cpu for row in rows.get((number, "generator"), []) if row.cpu is not None]
        line.put("generator_cpu", sum(cpu) if cpu else None, "not sampled", GENERATOR)


def _repairs(whole: dict[int, Line], found: Repairs) -> None:
    convergence, agreeing = found.convergence, found.agreeing
    for number, line in whole.items():
        names = line.brokers
        line.values["brokers"] = len(names) or None
        mine = [fault for fault in found.faults if fault.no == number]
        line.values["faults"] = len(mine)
        gone = "" if number in agreeing else line.run.silence(OBSERVER)
        none = "never agreed" if line.run.about.get("routing") else "no federation"
        alone = (
            "one broker, no tree" if len(names) == 1 else "" if number in agreeing else gone or none
        )
        late = "never agreed" if number in convergence else "starts not noted"
        line.put(
            "convergence_s", convergence.get(number), alone or late, OBSERVER if not alone else ""
        )
        _mean(line, "repair_s", [fault.tree_s for fault in mine], len(mine), alone, "")
        served = [fault for fault in mine if fault.kind in SERVED]
        lived = [fault for fault in served if fault.pairs]
        without = len(served) - len(lived)
        why = (
            f"{without} of {len(served)} faults: "
            "no publisher and subscriber between it and what came next"
            if without
            else ""
        )
        _mean(
            line, "repair_service_s", [fault.service_s for fault in lived], len(served), alone, why
        )
        if mine and not served:
            line.put(
                "repair_service_s",
                None,
                "partitions only, after which not all can be reached",
            )
        asked = line.run.about.get("asked") or []
        for word in asked:
            for name, why in line.missing.items():
                if name.startswith(str(word)):
                    line.run.remarks.append(f"{name} was asked for: {why}")


def _mean(
    line: Line, name: str, values: Sequence[float | None], faults: int, alone: str, without: str
) -> None:
    """Set the mean over a run's faults, if each of them has a value. alone: why none can have one;
    without: why some lack it."""
    done = [value for value in values if value is not None]
    if not line.values["faults"]:
        line.put(name, None, "no faults", OBSERVER)
    elif len(done) < len(values) or without:
        missing = (
            alone or f"{len(values) - len(done)} of {faults} faults not repaired"
            if len(done) < len(values)
            else ""
        )
        line.put(name, None, ", ".join(filter(None, (missing, without))))
    else:
        line.put(name, sum(done) / len(done) if done else None, "no faults", OBSERVER)


def _trees(whole: dict[int, Line], counted: Counts) -> None:
    """Fill in stretch and Jain's index."""
    pairs: dict[int, dict[tuple[str, str], int]] = defaultdict(lambda: defaultdict(int))
    loads: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in counted.came:
        if row["flow"] is None:
            continue
        if row["source"] is not None and row["target"] is not None:
            pairs[row["no"]][row["source"], row["target"]] += row["n"]
        loads[row["no"]][row["target"]] += row["n"]
    for row in counted.sent:
        loads[row["no"]][row["source"]] += row["n"]
    parents = counted.repaired.parents
    for number, line in whole.items():
        names = line.brokers or sorted(name for name in loads[number] if name is not None)
        load = [loads[number].get(name, 0) for name in names]
        why, by = ("one broker", "") if len(load) == 1 else ("nothing published", GENERATOR)
        line.put("jain", jain(load) if len(load) > 1 else None, why, by)
        if line.run.about.get("routing") == "topic":
            line.put("stretch", None, "topic overlays: not the tree's paths")
            continue
        crossing = {pair: n for pair, n in pairs[number].items() if pair[0] != pair[1]}
        value, pathless = (
            stretch(crossing, parents[number], physical(line.run, line.brokers))
            if number in parents
            else (None, 0)
        )
        why, by = (
            ("no delivery at another broker", GENERATOR)
            if not crossing
            else ("roles not noted", OBSERVER)
        )
        line.put("stretch", value, *(("one broker", "") if len(names) == 1 else (why, by)))
        if pathless:
            line.run.remarks.append(
                f"stretch leaves out {pathless:,} deliveries "
                "between brokers that the last tree did not join"
            )
