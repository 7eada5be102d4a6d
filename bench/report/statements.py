"""What MQTT-ST, Overlays and Hetero state in their texts, in our words, and how it is tested here.
What stands only in a plot is not known. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mqttree.bench.report.judge import Check, Statement
from mqttree.stp.config import HELLO_S, MAX_AGE_S

MQTT_ST, OVERLAYS, HETERO = "MQTT-ST", "Overlays", "Hetero"
PAPERS = {
    MQTT_ST: "Longo et al., MQTT-ST: a Spanning Tree Protocol for Distributed MQTT Brokers",
    OVERLAYS: "Longo et al., A complete solution for a distributed MQTT broker system",
    HETERO: "Banno, Performance Evaluation of MQTT Communication with Heterogeneous Traffic",
}
"""In the order of the page."""

_Cell = Mapping[str, Any]
_TEXT, _TABLE1 = ("overlays-text",), ("overlays-text", "overlays-table1")
_FLOOD: _Cell = {"broker": "mqttree-flood"}
_SRT: _Cell = {"broker": "mqttree-srt"}
_ORT: _Cell = {"broker": "mqttree-ort"}
_BALANCE: _Cell = {"broker": "mqttree-ort-balance"}


def _throughput(
    measure: str,
    where: _Cell,
    *against: _Cell,
    least: float | None = None,
    most: float | None = None,
) -> Check:
    own = {"broker": "mqttree-flood", **where}
    return Check(("mqttst-throughput",), measure, own, against, least=least, most=most)


_EVEN: _Cell = {"brokers": 3, "locality": "even"}
_ALL_AT_ONE: _Cell = {"brokers": 3, "locality": "100"}
_ONE: _Cell = {"brokers": 1, "locality": "even"}
_IN_THE_CLOUD: tuple[_Cell, ...] = tuple(
    {"at": place, "broker": "mosquitto"} for place in ("oregon", "virginia", "ireland")
)

_STATEMENTS_OF_MQTT_ST = (
    Statement(
        MQTT_ST,
        "III-A1",
        "The BPDU makes a PINGREQ 36 bytes longer (114 bytes on the wire for 78).",
        (Check(("mqttst-signalling",), "pingreq_bytes", _FLOOD, near=38),),
        remark="Bytes of MQTT: a PINGREQ without BPDU has 2. Ours also has a sequence number of "
        "the root and the number of the tree, against news of a root that is dead.",
    ),
    Statement(
        MQTT_ST,
        "III-A1, fig. 2",
        "A broker's failure, and its return, start the spanning tree algorithm.",
        (
            Check(("mqttst-signalling",), "repair_s", _FLOOD, most=MAX_AGE_S),
            Check(("mqttst-signalling",), "return_rise", _FLOOD, least=1.0),
        ),
        remark="Judged by a tree that forms before a silent root would be taken for dead "
        f"({MAX_AGE_S:g} s after the failure), and by more signalling a second after the return "
        "than before the failure. Just after the failure there are fewer links "
        "to signal on.",
    ),
    Statement(
        MQTT_ST,
        "III-A2",
        "One broker's throughput falls fast as subscribers are added.",
        (
            _throughput(
                "accepted_per_s",
                {**_ONE, "subscribers": 100, "broker": "mosquitto"},
                {"subscribers": 10},
                most=0.5,
            ),
        ),
        remark="At most half with ten times as many subscribers is what we take for fast.",
    ),
    Statement(
        MQTT_ST,
        "III-A2",
        "Three brokers with the clients evenly on them always have a higher throughput than one.",
        (_throughput("accepted_per_s", _EVEN, _ONE, least=1.0),),
    ),
    Statement(
        MQTT_ST,
        "III-A2",
        "With all clients at one of three, throughput is always the lowest.",
        (
            _throughput("accepted_per_s", _ALL_AT_ONE, _ONE, most=1.0),
            _throughput("accepted_per_s", _ALL_AT_ONE, _EVEN, most=1.0),
        ),
    ),
    Statement(
        MQTT_ST,
        "III-A3",
        "The delay depends on the number of publishers much more than on that of subscribers.",
        (
            _throughput(
                "delay_mean_ms",
                {"publishers": 100, "subscribers": 10},
                {"publishers": 10, "subscribers": 100},
                least=2.0,
            ),
        ),
        remark="Twice the delay with ten times as many publishers is what we take for much more, "
        "beside ten times as many subscribers.",
    ),
    Statement(
        MQTT_ST,
        "III-A3",
        "With all clients at one of three, the delay is always the longest.",
        (
            _throughput("delay_mean_ms", _ALL_AT_ONE, _ONE, least=1.0),
            _throughput("delay_mean_ms", _ALL_AT_ONE, _EVEN, least=1.0),
        ),
    ),
    Statement(
        MQTT_ST,
        "III-A3",
        "With more publishers, three brokers have a shorter delay than one.",
        (_throughput("delay_mean_ms", {**_EVEN, "publishers": 100}, _ONE, most=1.0),),
        remark="Judged with 100 publishers, not with ten.",
    ),
    Statement(
        MQTT_ST,
        "III-B, fig. 6",
        "Where publishers and subscribers are near each other, three brokers have a much shorter "
        "delay than one in the cloud, averaged over its places.",
        (
            Check(
                ("mqttst-networked",),
                "delay_mean_ms",
                {"locality": "100", "at": "", **_FLOOD},
                _IN_THE_CLOUD,
                most=0.5,
            ),
        ),
        remark="At most half is what we take for much shorter.",
    ),
    Statement(
        MQTT_ST,
        "III-B, fig. 6",
        "Where they are far from each other, three brokers cost a few tens of ms more at most.",
        (
            Check(
                ("mqttst-networked",),
                "delay_mean_ms",
                {"locality": "0", "at": "", **_FLOOD},
                _IN_THE_CLOUD,
                "difference",
                most=50.0,
            ),
        ),
        remark="In ms; 50 at most is what we take for a few tens.",
    ),
)

_STATEMENTS_OF_OVERLAYS = (
    Statement(
        OVERLAYS,
        "6.1, fig. 6",
        "At 50 % locality, topic overlays have less than half of the delay of flooding.",
        (Check(_TABLE1, "delay_mean_ms", {"locality": "50", **_ORT}, (_FLOOD,), most=0.5),),
    ),
    Statement(
        OVERLAYS,
        "6.1, fig. 6",
        "And less than half of that of the single overlay.",
        (Check(_TABLE1, "delay_mean_ms", {"locality": "50", **_ORT}, (_SRT,), most=0.5),),
    ),
    Statement(
        OVERLAYS,
        "6.1, fig. 6",
        "Both are so at 0 % locality, too.",
        tuple(
            Check(_TABLE1, "delay_mean_ms", {"locality": "0", **_ORT}, (other,), most=0.5)
            for other in (_FLOOD, _SRT)
        ),
    ),
    Statement(
        OVERLAYS,
        "6.1, fig. 6",
        "Overlays with a root by capacity and by root balance have similar delays.",
        (Check(_TABLE1, "delay_mean_ms", _BALANCE, (_ORT,), near=1.0),),
        remark="All brokers here have the same capacity: one address has all roots by capacity.",
    ),
    Statement(
        OVERLAYS,
        "6.1, fig. 6",
        "Capacity is slightly better.",
        untested="all brokers here have the same capacity, so that the address decides",
    ),
    Statement(
        OVERLAYS,
        "6.1, fig. 6",
        "At 100 % locality, topic overlays are not worse than flooding.",
        (Check(_TABLE1, "delay_mean_ms", {"locality": "100", **_ORT}, (_FLOOD,), most=1.1),),
        remark="A tenth more is what we take for not worse.",
    ),
    Statement(
        OVERLAYS,
        "6.2, fig. 7",
        "Signalling is negligible beside messages, with flooding and with the single overlay.",
        tuple(
            Check(_TEXT, "signalling_share", {"locality": "50", **kind}, most=0.1)
            for kind in (_FLOOD, _SRT)
        ),
        remark="A tenth is what we take for negligible. Our keep-alive is "
        f"{HELLO_S:g} s, the paper's is not known.",
    ),
    Statement(
        OVERLAYS,
        "6.2, fig. 7",
        "There it does not depend on the number of topics.",
        tuple(
            Check(
                _TABLE1,
                "control_bytes",
                {"topics": 60, "locality": "50", **kind},
                ({"topics": 3},),
                least=0.9,
                most=1.1,
            )
            for kind in (_FLOOD, _SRT)
        ),
        remark="A tenth is what we take for equal.",
    ),
    Statement(
        OVERLAYS,
        "6.2, fig. 7",
        "With topic overlays it grows linearly with the number of topics.",
        (
            Check(
                _TEXT,
                "control_bytes",
                {"topics": 60, "locality": "50", **_ORT},
                ({"topics": 3}, {"topics": 30}),
                "growth",
                near=(60 - 3) / (30 - 3),
            ),
        ),
        remark="From 3 to 60 topics it should grow 2.1 times as much as from 3 to 30. Publishers "
        "and subscribers draw their topics, so that not all topics are used.",
    ),
    Statement(
        OVERLAYS,
        "6.2, fig. 7",
        "With 3 topics, topic overlays have 30 % more signalling than flooding.",
        (
            Check(
                _TABLE1,
                "control_bytes",
                {"topics": 3, "locality": "50", **_ORT},
                (_FLOOD,),
                "increase",
                near=0.3,
            ),
        ),
        remark="Without the start.",
    ),
    Statement(
        OVERLAYS,
        "6.2, fig. 7",
        "With 60 topics, 1,500 % more.",
        (
            Check(
                _TABLE1,
                "control_bytes",
                {"topics": 60, "locality": "50", **_ORT},
                (_FLOOD,),
                "increase",
                near=15.0,
            ),
        ),
        remark="Without the start. Flooding in the paper is that of HiveMQ without discovery and "
        "BPDUs, whose signalling is a plain PINGREQ; ours has the spanning tree.",
    ),
    Statement(
        OVERLAYS,
        "6.2, fig. 7",
        "At 100 % locality no message crosses a link with topic overlays.",
        (Check(_TABLE1, "data_bytes", {"locality": "100", **_ORT}, most=0.0),),
    ),
    Statement(
        OVERLAYS,
        "6.2, fig. 7",
        "In all traffic, both always have less than flooding.",
        tuple(Check(_TABLE1, "link_bytes", kind, (_FLOOD,), most=1.0) for kind in (_SRT, _ORT)),
    ),
    Statement(
        OVERLAYS,
        "6.2, fig. 8",
        "With few messages of 1,000 bytes, topic overlays have more traffic than the single one.",
        (
            Check(
                ("overlays-payload",), "link_bytes", {"payload": 1000, **_ORT}, (_SRT,), least=1.0
            ),
        ),
    ),
    Statement(
        OVERLAYS,
        "6.2, fig. 8",
        "With 100,000 bytes signalling is negligible.",
        (
            Check(
                ("overlays-payload",),
                "signalling_share",
                {"payload": 100000, **_ORT},
                most=0.1,
            ),
        ),
    ),
    Statement(
        OVERLAYS,
        "6.2, fig. 8",
        "And topic overlays have less traffic than the single one.",
        (
            Check(
                ("overlays-payload",), "link_bytes", {"payload": 100000, **_ORT}, (_SRT,), most=1.0
            ),
        ),
    ),
    Statement(
        OVERLAYS,
        "6.3",
        "At 1 message a second, all use about the same CPU.",
        (Check(("overlays-resources",), "broker_cpu", {"rate": 1, **_ORT}, (_FLOOD,), near=1),),
    ),
    Statement(
        OVERLAYS,
        "6.3, fig. 9",
        "Under stress (10 messages a second), topic overlays use 22 % more CPU than flooding.",
        (
            Check(
                ("overlays-resources",),
                "broker_cpu",
                {"rate": 10, **_ORT},
                (_FLOOD,),
                "increase",
                near=0.22,
            ),
        ),
        remark="The paper's average is over 3, 30 and 60 topics.",
    ),
    Statement(
        OVERLAYS,
        "6.3, fig. 9",
        "Under stress, more topics need more CPU.",
        (
            Check(
                ("overlays-resources",),
                "broker_cpu",
                {"rate": 10, "topics": 60, **_ORT},
                ({"topics": 3},),
                least=1.0,
            ),
        ),
    ),
    Statement(
        OVERLAYS,
        "6.3",
        "Stress needs no more memory.",
        (
            Check(
                ("overlays-resources",),
                "broker_rss",
                {"rate": 10, **_ORT},
                ({"rate": 1},),
                most=1.1,
            ),
        ),
        remark="A tenth more is what we take for no more.",
    ),
    Statement(
        OVERLAYS,
        "6.4, table 2",
        "Five brokers have a tree 19.5 s after their start.",
        (
            Check(
                ("overlays-timers",),
                "convergence_s",
                {"broker": "mqttree-ort-paper"},
                near=19.5,
            ),
        ),
        remark="With the timers that make up this time, as Td is not published (decision 55).",
    ),
    Statement(
        OVERLAYS,
        "6.4, table 2",
        "After a broker's disconnection there is a new tree in 59.1 s.",
        (Check(("overlays-timers",), "repair_s", {"broker": "mqttree-ort-paper"}, near=59.1),),
        remark="The paper's brokers begin with discovery again. Ours use the links that they have, "
        "as soon as the timeout To (39.6 s) is over.",
    ),
)

_IN_MIX: _Cell = {"mix": "small+large", "broker": "mosquitto"}
_AT_5: _Cell = {"cpu": 0.05, **_IN_MIX}


def _beside_alone(scenario: str, measure: str, mix: _Cell, flow: str, **wanted: Any) -> Check:
    """A `measure` of the `flow` in a `mix`, beside that of the flow alone."""
    return Check((scenario,), measure, mix, ({"mix": flow},), flow=flow, alone=True, **wanted)


_STATEMENTS_OF_HETERO = (
    Statement(
        HETERO,
        "IV, fig. 2",
        "Mosquitto on 5 % of a core takes 0.88 of the small messages that it takes alone.",
        (_beside_alone("hetero", "published_per_s", _AT_5, "small", near=0.88),),
    ),
    Statement(
        HETERO,
        "IV, fig. 2",
        "And 0.25 of the large ones.",
        (_beside_alone("hetero", "published_per_s", _AT_5, "large", near=0.25),),
    ),
    Statement(
        HETERO,
        "IV, fig. 3",
        "HiveMQ suppresses large messages, too.",
        untested="HiveMQ CE is no broker that scenarios start unless it is added",
    ),
    Statement(
        HETERO,
        "IV, fig. 4",
        "VerneMQ suppresses small ones.",
        untested="VerneMQ is no broker that scenarios start unless it is added",
    ),
    Statement(
        HETERO,
        "IV, fig. 5",
        "With Mosquitto, small messages are later in the mix than alone.",
        (_beside_alone("hetero-latency", "delay_mean_ms", _IN_MIX, "small", least=1.0),),
    ),
    Statement(
        HETERO,
        "IV, fig. 6",
        "And so are large ones.",
        (_beside_alone("hetero-latency", "delay_mean_ms", _IN_MIX, "large", least=1.0),),
    ),
)

STATEMENTS = (*_STATEMENTS_OF_MQTT_ST, *_STATEMENTS_OF_OVERLAYS, *_STATEMENTS_OF_HETERO)
"""In the order of the papers' texts."""
