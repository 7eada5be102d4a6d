"""The tables of Spohn's paper beside ours, and what federators lose, from the run.json of the
scenarios `federator-grid` and `federator-faults`. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

Record = dict[str, Any]
FAR, NEAR = "s-sub-0", "s-sub-1"
"""Subscribers: four hops from the publisher (node 2; A beside one broker), and one (node 7; B)."""
GRID, FAULTS = "federator-grid", "federator-faults"
UNKNOWN = "-"


class Delay(NamedTuple):
    """A mean and a standard deviation in ms."""

    mean: float
    deviation: float

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.deviation:.2f}"


class Table(NamedTuple):
    """One table: a title, headings, lines of words, and what has to be said about it, in
    sentences."""

    title: str
    headings: list[str]
    lines: list[list[str]]
    remarks: list[str]


PAPER_2 = {
    500: (Delay(34.64, 3.21), Delay(18.65, 3.2)),
    1000: (Delay(34.77, 3.17), Delay(18.61, 3.17)),
}
"""The paper's table 2, federated: publications -> delays at node 2 and at node 7."""
PAPER_3 = {
    500: (Delay(34.59, 3.13), Delay(42.47, 4.37), Delay(18.63, 3.2), Delay(26.69, 4.77)),
    1000: (Delay(34.58, 3.23), Delay(42.58, 4.48), Delay(18.47, 3.22), Delay(26.42, 4.56)),
}
"""Its table 3, one broker: publications -> delays of A and B with the broker at node 2, then at
node 7."""
ONE_AND_FOUR_HOPS = ("federators", "federators-all", "bridges", "gateways")
"""Setups in which node 7 is one hop from the publisher, and node 2 four."""

ABOUT_2 = [
    "A message takes one hop to node 7 and four to node 2. Per hop: a third of the "
    "difference. Constant: what is left of node 7's delay.",
    "The paper's constant of 13.3 ms is in none of its links. If the way between each client "
    "and its broker was delayed, too, that explains 10 ms; the paper does not say where "
    "clients ran. With a client delay of 5 ms ours have the paper's ratio of both nodes.",
    "The paper names no QoS. A hop takes one delay at QoS 0 and 1. At QoS 2 it takes three: a"
    " broker hands a message on when PUBREL has come.",
    "± is the standard deviation of the delays within a run; the paper does not say what its ± is.",
]
ABOUT_3 = [
    "Both subscribers are at the one broker, and the publisher at node 6 reaches it by the "
    "shortest path. Per hop: a third of the difference between both places of the broker.",
    "The paper's B is 8 ms behind A wherever the broker is. A broker writes to both "
    "subscribers in one turn, so ours is 0.1 ms behind: the 8 ms do not come from Mosquitto.",
    "In the paper a publication takes as long with federators as with one broker at the "
    "subscriber's node, to 0.3 ms. So the brokers and federators on the way would have cost "
    "nothing. What ours cost is in the last two columns.",
]
ABOUT_COUNTS = [
    "Counted on the wire between hosts. A round is all that belongs to one number of the "
    "core; a run's last round is left out.",
    "Expected: 2l - n + 1 = 16 announcements with 12 links and 9 brokers; 7 memberships; 10 "
    "messages for a publication by parent 7 (6 are of use), 12 by the lowest parent, about 15"
    " by all parents.",
    "Convergence is the time from the last subscriber's first beacon until the mesh was complete.",
]
ABOUT_FAULTS = [
    "Subscribers are at b4, the core, at b2, which has two ways to the core (by b1 and b5), "
    "and at b7; b6 publishes. What is killed at b6 (publisher) and b2 (subscriber) is back "
    "after 2 s, what is killed at b1 (parent) and b4 (core) stays away.",
    "Lost is what the publisher's broker accepted at QoS 2 and a subscriber did not get that was "
    "connected. The run ends when nothing has come for 20 s; what is late by more counts as lost. "
    "An outage is the longest time of which a subscriber got nothing that was published.",
    "A federator that restarts numbers its publications from 0 again. The others take them "
    "for duplicates, until it has published as many as in its first life.",
    "Nobody notices that a core has died until it was silent for three intervals (30 s), and "
    "then a beacon has to come. What goes by the core is lost meanwhile.",
    "With R = 1 a dead parent may cost nothing: who was a parent for a moment keeps the child"
    " for three intervals, so that data take both ways.",
    "Gateways: a mqttree broker beside each Mosquitto takes the federator's place. What a "
    "Mosquitto itself loses when it is killed, gateways cannot bring back.",
]


def tables(records: Iterable[Record]) -> list[Table]:
    """Return the tables that complete runs of the two scenarios make; [] without any."""
    complete = [each for each in records if each.get("status") == "complete"]
    grid = [each for each in complete if each.get("scenario") == GRID]
    faults = [each for each in complete if each.get("scenario") == FAULTS]
    found = [*_grid(grid), *_faults(faults)]
    return [table for table in found if table.lines]


def _grid(records: Sequence[Record]) -> list[Table]:
    runs = _grouped(records, ("messages", "client_delay", "qos", "setup"))
    return [_table_2(runs), _table_3(runs), _counts(runs)] if runs else []


_Runs = Mapping[tuple[Any, ...], list[Record]]


def _grouped(
    records: Iterable[Record], factors: Sequence[str]
) -> dict[tuple[Any, ...], list[Record]]:
    """Return records by the values of some factors, in order."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        key = tuple(record["cell"].get(factor) for factor in factors)
        groups.setdefault(key, []).append(record)
    return dict(sorted(groups.items(), key=lambda item: [(isinstance(v, str), v) for v in item[0]]))


def _delay(runs: Sequence[Record], subscriber: str) -> Delay | None:
    """Return the mean of a subscriber's delays over runs, and their standard deviation within
    runs."""
    found = [record["summary"].get("subscribers", {}).get(subscriber, {}) for record in runs]
    means = [each["delay_mean_ms"] for each in found if each.get("delay_mean_ms") is not None]
    spreads = [each["delay_sd_ms"] ** 2 for each in found if each.get("delay_sd_ms") is not None]
    if not means or not spreads:
        return None
    return Delay(statistics.fmean(means), math.sqrt(statistics.fmean(spreads)))


def _words(*values: object) -> list[str]:
    return [
        UNKNOWN if value is None else f"{value:g}" if isinstance(value, float) else str(value)
        for value in values
    ]


def _figure(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.2f}"


def _hops(far: float, near: float) -> list[str]:
    """Return ms a hop, the constant in ms, and how node 7's delay stands to node 2's."""
    hop = (far - near) / 3
    return [f"{hop:.2f}", f"{near - hop:.2f}", f"{near / far:.2f}"]


def _table_2(runs: _Runs) -> Table:
    lines = [
        ["paper", str(count), "?", "?", str(far), str(near), *_hops(far.mean, near.mean)]
        for count, (far, near) in PAPER_2.items()
    ]
    ours = []
    for (messages, client_delay, qos, setup), records in runs.items():
        far, near = _delay(records, FAR), _delay(records, NEAR)
        if str(setup).startswith("one-") or far is None or near is None:
            continue
        derived = _hops(far.mean, near.mean) if setup in ONE_AND_FOUR_HOPS else [UNKNOWN] * 3
        ours.append([*_words(setup, messages, client_delay, qos, far, near), *derived])
    headings = ["setup", "publications", "client delay ms", "QoS", "node 2 ms", "node 7 ms"]
    headings += ["ms a hop", "constant ms", "node 7 / node 2"]
    title = "Federator, table 2: delay of a publication at node 6, federated"
    return Table(title, headings, lines + ours if ours else [], ABOUT_2)


def _table_3(runs: _Runs) -> Table:
    lines = []
    for count, (a2, b2, a7, b7) in PAPER_3.items():
        far, near = PAPER_2[count]
        derived = _central((a2, b2, a7, b7), far, near)
        lines.append(["paper", str(count), "?", "?", *map(str, (a2, b2, a7, b7)), *derived])
    ours = []
    for messages, client_delay, qos in dict.fromkeys(key[:3] for key in runs):
        at = {
            setup: (_delay(own, FAR), _delay(own, NEAR))
            for setup in ("one-at-b2", "one-at-b7", "federators")
            if (own := runs.get((messages, client_delay, qos, setup)))
        }
        delays = [*at.get("one-at-b2", (None, None)), *at.get("one-at-b7", (None, None))]
        if all(each is None for each in delays):
            continue
        derived = _central(delays, *at.get("federators", (None, None)))
        ours.append([*_words("ours", messages, client_delay, qos, *delays), *derived])
    headings = ["", "publications", "client delay ms", "QoS", "at 2: A ms", "at 2: B ms"]
    headings += ["at 7: A ms", "at 7: B ms", "ms a hop", "constant ms", "B - A at 2", "B - A at 7"]
    headings += ["federated / A at 2", "federated / A at 7"]
    title = "Federator, table 3: delay of a publication at node 6, one broker at node 2 or 7"
    return Table(title, headings, lines + ours if ours else [], ABOUT_3)


def _central(delays: Sequence[Delay | None], far: Delay | None, near: Delay | None) -> list[str]:
    """Return what follows from the delays of A and B at both places: ms a hop, the constant, B
    minus A twice, and how the federated delays at node 2 (`far`) and 7 (`near`) stand to A's."""
    a2, b2, a7, b7 = (None if each is None else each.mean for each in delays)
    difference = _minus(a2, a7)
    hop = None if difference is None else difference / 3
    found = [
        hop,
        _minus(a7, hop),
        _minus(b2, a2),
        _minus(b7, a7),
        _over(None if far is None else far.mean, a2),
        _over(None if near is None else near.mean, a7),
    ]
    return [_figure(each) for each in found]


def _minus(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other


def _over(one: float | None, other: float | None) -> float | None:
    return None if one is None or not other else one / other


def _counts(runs: _Runs) -> Table:
    lines = []
    for (messages, client_delay, qos, setup), records in runs.items():
        said = [
            found
            for each in records
            if (found := each["summary"].get("federators")) and found["rounds"]
        ]
        if said:
            lines.append(
                [
                    *_words(setup, messages, client_delay, qos),
                    _shares(each["rounds"].get("core_ann", {}) for each in said),
                    _shares(each["rounds"].get("memb_ann", {}) for each in said),
                    _shares(each["publications"] for each in said),
                    _mean_of(records, "convergence_s", ".3f"),
                    _mean_of(records, "companion_cpu", ".3f"),
                ]
            )
    headings = ["setup", "publications", "client delay ms", "QoS", "announcements a round"]
    headings += ["memberships a round", "messages a publication", "convergence s"]
    headings += ["cores a federator"]
    return Table("Federator: messages between hosts", headings, lines, ABOUT_COUNTS)


def _shares(counts: Iterable[Mapping[str, int]]) -> str:
    """Return how many packets something took, and how often: "16 (40 times)", or of several numbers
    the mean, and the least and the most."""
    total: dict[int, int] = {}
    for each in counts:
        for packets, times in each.items():
            total[int(packets)] = total.get(int(packets), 0) + times
    if not total:
        return UNKNOWN
    number = sum(total.values())
    if len(total) == 1:
        return f"{next(iter(total))} ({number} times)"
    mean = sum(packets * times for packets, times in total.items()) / number
    return f"{mean:.2f} ({min(total)} to {max(total)}, {number} times)"


def _mean_of(records: Iterable[Record], name: str, form: str) -> str:
    found = [each["summary"][name] for each in records if each["summary"].get(name) is not None]
    return format(statistics.fmean(found), form) if found else UNKNOWN


def _faults(records: Sequence[Record]) -> list[Table]:
    lines = []
    for (setup, fault, redundancy), own in _grouped(
        records, ("setup", "fault", "redundancy")
    ).items():
        flows = [flow for each in own for flow in each["summary"]["flows"].values()]
        lines.append(
            [
                str(setup or "federators"),
                str(fault),
                str(redundancy or UNKNOWN),
                str(len(own)),
                *(
                    _of_flows(flows, name)
                    for name in ("expected", "lost", "duplicates", "reordered", "unaccepted")
                ),
                *(_of_subscriber(own, f"s-sub-{number}") for number in range(3)),
                _mean_of(own, "convergence_s", ".3f"),
            ]
        )
    headings = ["setup", "fault", "R", "runs", "deliveries expected", "lost", "twice"]
    headings += ["out of order", "not accepted", "core b4: lost, outage s", "b2: lost, outage s"]
    headings += ["b7: lost, outage s", "convergence s"]
    title = "Federator: what is lost when something fails, QoS 2"
    return [Table(title, headings, lines, ABOUT_FAULTS)]


def _of_flows(flows: Sequence[Mapping[str, Any]], name: str) -> str:
    return f"{statistics.fmean(flow[name] for flow in flows):,.0f}" if flows else UNKNOWN


def _of_subscriber(records: Iterable[Record], name: str) -> str:
    """Return what a subscriber lost, and its longest outage in s, the mean over runs each."""
    found = [each["summary"].get("subscribers", {}).get(name) for each in records]
    known = [each for each in found if each is not None and "lost" in each]
    if not known:
        return UNKNOWN
    lost = statistics.fmean(each["lost"] for each in known)
    return f"{lost:.0f}, {statistics.fmean(each['outage_s'] for each in known):.1f}"
