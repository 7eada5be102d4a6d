"""`mqttree clients | topics | links | alarms`: what `/api/v1` says, as tables or as JSON."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any

from mqttree.broker.base.log_format import json_text
from mqttree.broker.cli.admin_client import AdminPort, admin_port
from mqttree.broker.cli.table import table
from mqttree.broker.config.yaml_file import ConfigError

Answer = dict[str, Any]
"""What a request of `/api/v1` returned."""


def clients(arguments: argparse.Namespace) -> int:
    """Show clients; return the exit code. Raises ConfigError and StatusError."""
    port = admin_port(arguments)
    names = _names(port)
    query = {"search": arguments.text, "state": arguments.state}
    if arguments.broker is not None:
        query["broker"] = broker_named(names, arguments.broker)
    found = port.rows("/clients", "clients", query, arguments.limit)
    if arguments.json:
        return _print_json(found)
    rows = [_client(row, names) for row in found["clients"]]
    return _print_table(CLIENT_HEAD, rows, _more(found, "clients"))


CLIENT_HEAD = (
    "CLIENT",
    "BROKER",
    "STATE",
    "USER",
    "ADDRESS",
    "MQTT",
    "FILTERS",
    "QUEUED",
    "IN FLIGHT",
    "DROPPED",
)


def _client(row: Answer, names: Mapping[str, str]) -> list[object]:
    state = {True: "connected", False: "away", None: "not known"}[row["connected"]]
    # Its broker does not answer: all is as it was last known.
    state += ", stale" if row["stale"] else ""
    about = [row[key] for key in ("user", "address", "mqtt")]
    sizes = [row[key] for key in ("subscriptions", "queued", "in_flight", "dropped")]
    return [row["id"], names.get(row["broker"], row["broker"]), state, *about, *sizes]


def topics(arguments: argparse.Namespace) -> int:
    """Show the topics that are published to most, or retained messages; return the exit code.
    Raises ConfigError and StatusError."""
    port = admin_port(arguments)
    if arguments.retained:
        query = {"filter": arguments.filter, "search": arguments.text}
        found = port.rows("/retained", "retained", query, arguments.limit)
        if arguments.json:
            return _print_json(found)
        rows = [
            [row["topic"], row["qos"], row["bytes"], row["expires_s"]] for row in found["retained"]
        ]
        more = _more(found, "retained")
        return _print_table(("TOPIC", "QOS", "BYTES", "EXPIRES IN S"), rows, more)
    # There are no more rows with a rate than one page has.
    query = {"filter": arguments.filter, "search": arguments.text}
    found = port.get("/topics", {**query, "limit": min(arguments.limit, 1000)})
    if arguments.json:
        return _print_json(found)
    rows = [[row["topic"], row["per_s"], row["receivers"]] for row in found["topics"]]
    more = found["total"] - len(rows) + found["others"]
    return _print_table(("TOPIC", "MESSAGES/S", "RECEIVERS"), rows, more)


def links(arguments: argparse.Namespace) -> int:
    """Show the links of the federation; return the exit code. Raises ConfigError and
    StatusError."""
    port = admin_port(arguments)
    if arguments.origin is not None or arguments.topic is not None:
        return _tree(port, arguments)
    if arguments.json:
        return _print_json(port.get("/links"))
    found = port.get("/topology")
    names = {broker["id"]: str(broker["name"] or broker["id"]) for broker in found["brokers"]}
    rows = [_link(row, names) for row in found["links"]]
    head = (
        "BROKER",
        "BROKER",
        "STATE",
        "TREE",
        "COST IN MS",
        "RTT IN MS",
        "ROLE",
        "CARRIES",
        *RATE_HEAD,
    )
    return _print_table(head, rows, 0)


def alarms(arguments: argparse.Namespace) -> int:
    """Show what needs attention, or dismiss the alarm of a broker that is gone; return the exit
    code. Raises ConfigError and StatusError."""
    port = admin_port(arguments)
    found = port.get("/alarms")
    if arguments.dismiss is not None:
        gone = {each["id"]: each["name"] for each in found["alarms"] if each["id"] is not None}
        port.delete(f"/alarms/{_gone_broker(port, gone, arguments.dismiss)}")
        return 0
    if arguments.json:
        return _print_json(found)
    _write("\n".join(f"{each['level']}: {each['text']}" for each in found["alarms"]) or "no alarms")
    return 0


def _gone_broker(port: AdminPort, gone: Mapping[str, str], text: str) -> str:
    """Return the id of the broker with this name or id among those that are `gone`; names by id.
    Raises ConfigError that says how it is with another one."""
    if text in gone or text in gone.values():
        return broker_named(gone, text)
    brokers = {each["id"]: each for each in port.get("/brokers")["brokers"]}
    names = {broker: str(each["name"] or broker) for broker, each in brokers.items()}
    broker = broker_named(names, text)
    has = "is not gone" if brokers[broker]["reachable"] else "has no alarm"
    raise ConfigError(f"{names[broker]} {has}")


RATES = ("out_per_s", "in_per_s", "out_bytes_per_s", "in_bytes_per_s")
RATE_HEAD = ("OUT/S", "IN/S", "BYTES OUT/S", "BYTES IN/S")
"""Of links of the broker that was asked; an older one does not have them."""


def _tree(port: AdminPort, arguments: argparse.Namespace) -> int:
    """Show the links that the messages of one broker take."""
    names = _names(port)
    query = {"topic": arguments.topic or ""}
    if arguments.origin is not None:
        query["origin"] = broker_named(names, arguments.origin)
    found = port.get("/tree", query)
    if arguments.json:
        return _print_json(found)
    wanting = set(found["receivers"])
    rows: list[list[object]] = [
        [names.get(above, above), names.get(below, below), below in wanting]
        for above, below in found["links"]
    ]
    return _print_table(("FROM", "TO", "WANTS THEM"), rows, 0)


def _link(row: Answer, names: Mapping[str, str]) -> list[object]:
    ends = [names.get(row[end], row[end]) for end in ("a", "b")]
    state = "up" if row["up"] else "down"
    return [
        *ends,
        state,
        row["tree"],
        *[row[key] for key in ("cost_ms", "rtt_ms", "role", "carries")],
        *[row.get(key) for key in RATES],
    ]


def _names(port: AdminPort) -> dict[str, str]:
    """Return the name of each broker, by its id."""
    found = port.get("/brokers")["brokers"]
    return {broker["id"]: str(broker["name"] or broker["id"]) for broker in found}


def broker_named(names: Mapping[str, str], text: str) -> str:
    """Return the id of the broker with this name or id; `names`: of all brokers, by their ids.
    Raises ConfigError if there is none, or more than one."""
    found = [broker for broker, name in names.items() if text in (name, broker)]
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError(f"{len(found)} brokers have the name {text!r}; say which by its id")
    raise ConfigError(f"no broker has the name or id {text!r}")


def _more(found: Answer, name: str) -> int:
    return int(found["total"]) - len(found[name])


def _print_json(found: Answer) -> int:
    _write(json_text(found, 2))
    return 0


def _print_table(head: tuple[str, ...], rows: list[list[object]], more: int) -> int:
    lines = table(head, rows)
    if more > 0:
        lines += ["", f"and {more:,} more (--limit)"]
    _write("\n".join(lines))
    return 0


def _write(text: str) -> None:
    if sys.stdout is None:
        return
    if hasattr(sys.stdout, "reconfigure"):
        # A terminal that has no such letters gets escapes.
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.stdout.write(text + "\n")
