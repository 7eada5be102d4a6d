"""What the papers' figures show, and under which conditions, beside our scenarios. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mqttree.bench.report.plot import short
from mqttree.broker.config.options import PAPER_TIMERS
from mqttree.discovery.effects import DISCOVERY_TIME
from mqttree.stp.config import HELLO_S, MAX_AGE_S


@dataclass(frozen=True)
class Shown:
    """What a scenario stands beside. text: what the paper's figure shows. conditions: (what, in the
    paper, here); `{name}` in the last one is a parameter of the runs."""

    text: str
    conditions: tuple[tuple[str, str, str], ...] = ()


MODES = (
    (
        "mqttree-flood",
        "every message goes over the whole spanning tree: MQTT-ST, and the benchmark of Overlays",
    ),
    (
        "mqttree-srt",
        "Overlays' single overlay as published: advertisements, SRT and PRT on the spanning tree",
    ),
    ("mqttree-ort", "Overlays' topic overlays (t-ORT) as published, roots elected by capacity"),
    ("mqttree-ort-balance", "the same, roots elected by root balance"),
    ("-paper", f"the same kind with the papers' timers (keep-alive {PAPER_TIMERS['hello']:g} s)"),
    ("mqttree-interest", "ours: the spanning tree, only towards brokers with subscribers"),
    (
        "mqttree-topic",
        "ours: shortest paths from each publisher's broker to those with subscribers",
    ),
    ("mosquitto-bridges", "Mosquittos with bridges made by hand: everything goes everywhere"),
)
"""Kinds of brokers, and what their routing is."""

TERMS = (
    (
        "locality",
        "100 %: publishers and subscribers at one broker; 0 %: at two different ones; "
        "50 %: each at a random one",
    ),
    ("±", "half of the 95 % interval of the mean over repetitions; a single run has none"),
    ("signalling", "all bytes of MQTT between brokers that are no application's message"),
    ("repair of the tree", "from the fault until all living brokers agree on a tree again"),
    ("stretch", "links that messages took, divided by the shortest possible"),
    ("Jain's index", "how equal the brokers' loads are: 1 for equal ones"),
    (
        "limited by the generator",
        "the load generator used more than 0.8 of a core, or was itself "
        "late (p99) by more than a tenth of the mean delay: the figure says as much about it as "
        "about brokers, and enters no claim",
    ),
)

_CORES = ("CPU", "a core for each broker", "all on the machine above")
_OVERLAYS = (
    ("brokers", "HiveMQ CE in containers", "mqttree processes"),
    _CORES,
    ("links", "10 Mbit/s, normal(10, 2.5) ms", "the same, drawn once for each link"),
    ("publishers, subscribers", "5, 20 (table 1); 20, 5 (text)", "{publishers}, {subscribers}"),
    ("messages of a publisher", "500", "{messages}"),
    ("messages a second of each", "1 (table 1); 10 (text, stress)", "{rate}"),
    ("payload, bytes", "1,000 (table 1); 1,024 (text)", "{payload}"),
)

SHOWN: Mapping[str, Shown] = {
    "mqttst-signalling": Shown(
        "The paper draws bytes over time, a line for each of three brokers (the root red), with "
        "the start, a broker's failure and return, and one publication marked.",
        (
            (
                "keep-alive, s",
                "10",
                f"{HELLO_S:g}; {PAPER_TIMERS['hello']:g} with mqttree-flood-paper",
            ),
            ("network", "one machine", "links of 10 Mbit/s and 10 ms"),
        ),
    ),
    "mqttst-throughput": Shown(
        "The paper draws the speed of a publishing client at QoS 2, and the delay, by the number "
        "of subscribers, one pair of plots for 10, 100 and 1,000 publishers: one broker, three "
        "with clients everywhere, three with all clients at one. Here the rates of all clients are "
        "added up.",
        (
            ("CPU of a broker", "8 CPUs for all of them", "{cpu} of a core each"),
            ("clients", "on another machine", "on the same one"),
            ("brokers", "not said", "1 and 3"),
            ("topics", "not said", "{topics}"),
            ("seconds", "not said", "{seconds}"),
        ),
    ),
    "mqttst-networked": Shown(
        "The paper draws the mean delay at 0, 50 and 100 % locality as two bars: three brokers, "
        "and one in the cloud, averaged over the three places where it may be.",
        (
            ("places", "EC2: Oregon, Virginia, Ireland", "a test network with usual delays"),
            ("publishers, subscribers", "100, 100", "{publishers}, {subscribers}"),
            ("topics", "not said", "{topics}: a pair each; at 50 % half of the pairs cross"),
            ("QoS", "not said", "{qos}"),
        ),
    ),
    "overlays-text": Shown(
        "Fig. 6 has the mean delay with 3, 30 and 60 topics, at 100, 50 and 0 % locality; fig. 7 "
        "the traffic between brokers, signalling with messages stacked on it.",
        _OVERLAYS,
    ),
    "overlays-table1": Shown(
        "The same figures with the parameters of table 1, which differ from those of the text.",
        _OVERLAYS,
    ),
    "overlays-payload": Shown(
        "Fig. 8 has the traffic with messages of 1, 10 and 100 kB, 60 topics.", _OVERLAYS
    ),
    "overlays-resources": Shown(
        "Fig. 9 has the CPU of all brokers together, at one message a second and under stress; "
        "here it is that of one broker, by the process's own CPU clock.",
        _OVERLAYS,
    ),
    "overlays-convergence": Shown(
        "Table 2 has two times for five brokers: 19.5 s from their start to a tree, and 59.1 s "
        "from a broker's disconnection to a new one. These are our timers; a killed process's "
        "connections are reset, so that its neighbours notice at once. After silence they wait "
        "for the timeout, which is the paper's case.",
        (_CORES, ("timers Td, To", "not published", f"{DISCOVERY_TIME:g} s, {MAX_AGE_S:g} s")),
    ),
    "overlays-timers": Shown(
        "The same with timers as long as the paper's: a broker falls silent for 70 s.",
        (
            _CORES,
            (
                "timers Td, To",
                "not published",
                f"{PAPER_TIMERS['discovery_time']:g} s, {PAPER_TIMERS['link_timeout']:g} s: what "
                "makes up its times",
            ),
        ),
    ),
    "hetero": Shown(
        "Fig. 2 to 4 have, by the broker's share of a core, the throughput of each class of "
        "traffic in the mix divided by that of the class alone, coming in and going out.",
        (
            ("brokers", "Mosquitto 1.6, HiveMQ, VerneMQ", "Mosquitto 2.0, mqttree"),
            ("large messages, bytes", "20,000,000", "{large.payload}"),
            ("small messages offered", "up to 200,000 a second", "as many as the broker reads"),
            ("large messages offered", "up to 10 a second", "as many as the broker reads"),
            (
                "seconds",
                "70, of which 10 are ramps",
                "{seconds}, with ramps of {ramp} at both ends",
            ),
            ("clients", "on two other machines", "on the same one"),
        ),
    ),
    "hetero-latency": Shown(
        "Fig. 5 and 6 have Mosquitto's delay of small and of large messages alone and in the mix, "
        "at 10,000, 40,000 and 83,333 small messages a second. Our generator reaches the first.",
        (
            ("small messages a second", "10,000 and more", "5 x {small.rate}"),
            ("large messages a second", "1 and more", "{large.rate}"),
            ("clients", "on two other machines", "on the same one"),
        ),
    ),
}
"""By the names of scenarios."""


def filled(text: str, flows: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a text with parameters in place of their names: `{rate}` of the first flow of a run,
    `{small.rate}` of the one of that name; "-" for one that is not known."""
    parts = text.split("{")
    result = parts[0]
    for part in parts[1:]:
        name, _, rest = part.partition("}")
        flow, dot, key = name.rpartition(".")
        own = flows.get(flow, {}) if dot else next(iter(flows.values()), {})
        value = own.get(key)
        shown = short(float(value)) if isinstance(value, int | float) else str(value)
        result += (shown if value is not None else "-") + rest
    return result
