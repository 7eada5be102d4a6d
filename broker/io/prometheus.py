"""The metrics of a node in Prometheus' text format 0.0.4."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from mqttree.broker import CORE
from mqttree.broker.io.metric_help import COUNTER_HELP, GAUGE_HELP, LEG_HELP, REASON_HELP

if TYPE_CHECKING:
    from mqttree.broker.node import Node

_REFUSALS = {
    "malformed": "malformed",
    "protocol_errors": "protocol_error",
    "connects_refused": "connect_refused",
    "connect_timeout": "connect_timeout",
    "keep_alive_timeout": "keep_alive_timeout",
    "taken_over": "taken_over",
    "slow_consumer_closed": "slow_consumer",
    "memory_closed": "memory",
    "proxy_garbage": "proxy_garbage",
}
"""Counter -> reason for which a client's connection was closed from our side."""

_DROPS = {
    "dropped_slow_consumer": "slow_consumer",
    "dropped_queue_full": "queue_full",
    "dropped_too_large": "too_large",
    "dropped_memory": "memory",
    "dropped_link": "link",
    "expired": "expired",
}
"""Counter -> reason for which a message was dropped."""

Sample = tuple[dict[str, str], float]


def _journal(node: Node) -> dict[str, float]:
    """Return what is said of the journal and the standby."""
    found: dict[str, float] = {"image_bytes": node.images.size}
    if (journal := node.journal).durable:
        found["journal_ok"] = 1 if journal.healthy else 0
        found["journal_pending_bytes"] = journal.pending
    if (stream := node.images.stream) is not None:
        found["standby_lag_bytes"] = stream.pending
        found["standby_lag_seconds"] = stream.lag
        found["alone_seconds"] = stream.alone
        found["sessions_unprotected"] = stream.unprotected
    return found


def metrics(
    node: Node,
    version: str = "",
    listeners: Mapping[str, int] | None = None,
    uptime: float | None = None,
    legs: Iterable[Mapping[str, Any]] = (),
) -> str:
    """Return all metrics of `node`, with names that begin with mqttree_. Labels have few values:
    this broker's listeners, links and legs, and the reasons named above; never a client's id, user
    or topic.

    `version`: of the program. `listeners`: number of connections of each. `uptime`: s, None if
    unknown. `legs`: the state of each.
    """
    cluster, memory, retained, turns = node.cluster, node.memory, node.retained, node.turns
    tree, config, membership = cluster.tree, node.config, cluster.membership
    up = [link for link in cluster.links.values() if link.up]
    about = {
        "id": config.id.hex(),
        "name": config.name,
        "cluster": config.cluster,
        "version": version,
        "core": CORE.running,
    }
    peers = [(_peer(link.peer), link) for link in up]
    lines: list[str] = []

    def gauge(name: str, samples: Iterable[Sample] | float) -> None:
        _metric(lines, f"mqttree_{name}", "gauge", GAUGE_HELP[name], samples)

    gauge("info", [(about, 1)])
    gauge("connections", len(node.connections))
    gauge("listener_connections", [({"listener": n}, c) for n, c in (listeners or {}).items()])
    gauge("clients_connected", node.clients.connected)
    if uptime is not None:
        gauge("uptime_seconds", uptime)
    gauge("longest_turn_seconds", turns.longest)
    gauge("queued_over_limit_bytes", cluster.remote_flow_control.over)
    for name, value in _journal(node).items():
        gauge(name, value)
    gauge("memory_used_bytes", memory.used)
    gauge("memory_limit_bytes", memory.limit)
    gauge("queued_bytes", memory.queued)
    gauge("retained_bytes", retained.size)
    gauge("sessions", len(node.sessions))
    gauge("subscriptions", node.dispatcher.subscriptions)
    gauge("retained", len(retained))
    gauge("links", len(cluster.links))
    gauge("links_up", len(up))
    gauge("links_forwarding", len(node.forwarding))
    gauge("members", len(membership.members(node.now)))
    gauge("brokers_gone", len(cluster.gone_brokers.alarms()))
    gauge("root", 1 if tree.is_root else 0)
    gauge("epoch", tree.epoch)
    gauge("capability", tree.capability)
    gauge("path_cost_seconds", tree.path_cost_ms / 1000)
    rtt = [(peer, link.rtt_ms / 1000) for peer, link in peers if link.rtt_ms is not None]
    gauge("link_rtt_seconds", rtt)
    gauge("link_forwarding", [(peer, 1 if link.live else 0) for peer, link in peers])
    counted = node.counters
    counters: dict[str, int] = counted.as_dict()
    for name, reasons in (("closed", _REFUSALS), ("dropped", _DROPS)):
        samples = [({"reason": reason}, counters[counter]) for counter, reason in reasons.items()]
        _metric(lines, f"mqttree_{name}_total", "counter", REASON_HELP[name], samples)
    counters |= {f"discovery_{name}": value for name, value in membership.counters.items()}
    for name, value in counters.items():
        _metric(lines, f"mqttree_{name}_total", "counter", COUNTER_HELP.get(name, name), value)
    _leg_metrics(lines, [({"leg": leg["name"], "broker": leg["broker"]}, leg) for leg in legs])
    return "\n".join(lines) + "\n"


def _leg_metrics(lines: list[str], legs: list[tuple[dict[str, str], Mapping[str, Any]]]) -> None:
    """Append the metrics of legs, each with its labels."""
    up = [(labels, 1 if leg["state"] == "up" else 0) for labels, leg in legs]
    _metric(lines, "mqttree_leg_up", "gauge", GAUGE_HELP["leg_up"], up)
    for name, text in LEG_HELP.items():
        samples = [(labels, leg[name]) for labels, leg in legs]
        _metric(lines, f"mqttree_leg_{name}_total", "counter", text, samples)
    drops = [
        (labels | {"reason": reason}, count)
        for labels, leg in legs
        for reason, count in leg["dropped"].items()
    ]
    _metric(lines, "mqttree_leg_dropped_total", "counter", REASON_HELP["leg_dropped"], drops)


def _peer(peer: object) -> dict[str, str]:
    """Return the labels of a link."""
    broker_id: bytes = getattr(peer, "id", b"")
    return {
        "peer": broker_id.hex(),
        "address": f"{getattr(peer, 'host', '')}:{getattr(peer, 'port', 0)}",
    }


def _metric(
    lines: list[str], name: str, kind: str, text: str, samples: Iterable[Sample] | float
) -> None:
    if isinstance(samples, int | float):
        samples = [({}, samples)]
    lines.append(f"# HELP {name} {text}")
    lines.append(f"# TYPE {name} {kind}")
    for labels, value in samples:
        inner = ",".join(f'{label}="{_escape(word)}"' for label, word in labels.items())
        lines.append(f"{name}{{{inner}}} {value:.15g}" if inner else f"{name} {value:.15g}")


def _escape(word: str) -> str:
    return word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
