"""A broker's view of the federation (`/api/v1/federation`), drawn for people."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from mqttree.broker.base.log_format import json_text, printable
from mqttree.broker.cli.admin_client import admin_port
from mqttree.broker.cli.table import cut
from mqttree.broker.cluster.drain import counted

MAX_CELLS = 1000
"""cells of a line; a leg with all that can be said of one takes half of it."""


def status(arguments: argparse.Namespace) -> int:
    """Show the federation as a broker sees it; return the exit code. Raises ConfigError and
    StatusError."""
    state = admin_port(arguments).federation()
    if sys.stdout is not None:
        sys.stdout.write(json_text(state, 2) + "\n" if arguments.json else render(state))
    return 0


def render(state: dict[str, Any]) -> str:
    """Return a broker's view of its tree as lines of text. Names and answers of others are made
    printable, and long lines are cut."""
    links = sorted(state["links"], key=lambda link: str(link.get("address")))
    root = state["root"] == state["id"]
    lines = [
        f"broker   {_title(state.get('name'), state.get('listen'))}  id {state['id']}",
        f"cluster  {state.get('cluster')}, {state.get('state')}, epoch {state.get('epoch')}, "
        f"routing {state.get('routing')}, capability {state.get('capability')}",
    ]
    if root:
        lines.append("root     this broker")
    else:
        parent = next((link for link in links if link.get("peer") == state.get("parent")), None)
        by = f", through {_title(parent.get('name'), parent.get('address'))}" if parent else ""
        lines.append(
            f"root     {state.get('root_address')}  {_ms(state.get('path_cost_ms'))} away{by}"
        )
    trees = state.get("source_trees")
    if isinstance(trees, dict):
        if trees.get("active"):
            sets = len(trees.get("receiver_sets", ()))
            lines.append(
                f"paths    source trees are in use: {trees.get('topics')} topics, "
                f"{sets} sets of receiving brokers; "
                f"messages of {trees.get('relayed_origins')} other brokers pass through this one"
            )
        else:
            lines.append(
                "paths    source trees are not in use: no other broker is reachable, "
                "or one uses another routing mode"
            )
    overlays = state.get("topic_overlays")
    if isinstance(overlays, dict):
        lines.append(
            f"paths    overlays of {overlays.get('topics')} topics; "
            f"this broker is the root of {overlays.get('root_of')}, "
            f"and {overlays.get('forming')} are forming"
        )
    redirection = state.get("redirection")
    if isinstance(redirection, dict) and (redirection.get("enabled") or redirection.get("sent")):
        lines.append(f"redirect {_redirection(redirection)}")
    standby = state.get("standby")
    if isinstance(standby, dict):
        lines.append(f"standby  {_standby(standby)}")
    drain = state.get("drain")
    if isinstance(drain, dict):
        lines.append(f"draining {waits_for(drain)}")
    lines += ["", *_tree(state, links)]
    if unlinked := _unlinked(state, links):
        lines += ["", "known, without a link:", *[f"  {line}" for line in unlinked]]
    if legs := state.get("legs"):
        lines += ["", "legs:", *(_leg(leg) for leg in legs)]
    counters = state.get("counters", {})
    shown = ("published", "delivered", "forwarded", "received_link", "duplicates", "replayed")
    lines += ["", "  ".join(f"{name} {counters[name]}" for name in shown if name in counters)]
    held = ("connections", "sessions", "subscriptions", "retained")
    lines.append("  ".join(f"{name} {state[name]}" for name in held if name in state))
    shown_lines = (cut(printable(line), MAX_CELLS) for line in lines)
    return "\n".join(shown_lines).rstrip() + "\n"


def _unlinked(state: dict[str, Any], links: list[dict[str, Any]]) -> list[str]:
    """Return a line for each broker that is known and has no link here. A broker without a data
    directory has a new id with each start: ids that are silent and have the name or the address of
    a broker that is there, or is gone, are earlier ones."""
    members = state.get("members", [])
    up = [link for link in links if link.get("up")]
    linked = {link.get("peer") for link in up}
    gone = {alarm.get("id"): alarm for alarm in state.get("gone", [])}
    alive = [each for each in members if each.get("alive") and each.get("id") not in linked]
    names = {each.get("name") for each in (state, *up, *alive, *gone.values())}
    places = {state.get("listen"), *(link.get("address") for link in up)}
    places.update(address for each in alive for address in each.get("addresses", ()))
    lines = [_member(each) for each in alive]
    for each in members:
        addresses = set(each.get("addresses", ()))
        if each.get("id") in linked | gone.keys() or each.get("alive"):
            continue
        if each.get("name") not in names if each.get("name") else addresses - places:
            lines.append(f"{_member(each)}  silent")
            names.add(each.get("name"))
    return lines + [str(alarm.get("text")) for alarm in gone.values()]


def _member(member: dict[str, Any]) -> str:
    addresses = " ".join(member.get("addresses", ()))
    return _title(member.get("name"), addresses) or str(member.get("id"))


def _tree(state: dict[str, Any], links: list[dict[str, Any]]) -> list[str]:
    """Return the tree as this broker sees it, of links that both ends let messages through: the
    path to the root, this broker, the links below it; then the links that are not in the tree, or
    not yet."""
    if not links:
        return ["no links: this broker is alone"]
    inside = [
        link
        for link in links
        if link.get("up") and link.get("forwarding") and link.get("role") != "blocked"
    ]
    up = [link for link in inside if link.get("role") == "root"]
    down = [link for link in inside if link.get("role") != "root"]
    beside = [link for link in links if link not in inside]
    # Messages take shortest paths, or overlays, in the tree or not.
    direct = any(isinstance(state.get(key), dict) for key in ("source_trees", "topic_overlays"))
    lines = [_link(link, "", direct=direct) for link in up]
    indent = "└─ " if up else ""
    lines.append(f"{indent}{_title(state.get('name'), state.get('listen'))}  (this broker)")
    margin = " " * len(indent)
    for number, link in enumerate(down, 1):
        lines.append(margin + _link(link, "└─ " if number == len(down) else "├─ ", direct=direct))
    if beside:
        lines += [
            "",
            "links beside the tree:",
            *(_link(link, "  ", direct=direct) for link in beside),
        ]
    return lines


def _link(link: dict[str, Any], lead: str, *, direct: bool) -> str:
    about = [str(link.get("role"))]
    if not link.get("up"):
        about.append("down")
    elif link.get("rtt_ms") is not None:
        about.append(_ms(link["rtt_ms"]))
    if link.get("draining"):
        about.append("draining")
    if direct and link.get("carries"):
        about.append("carries messages")
    return f"{lead}{_title(link.get('name'), link.get('address'))}  {', '.join(about)}"


def _leg(leg: dict[str, Any]) -> str:
    """Return one leg as a line: its state, and what crossed it."""
    about = [f"{leg.get('state')} (MQTT {leg.get('mqtt')})"]
    about += [f"in {leg.get('messages_in')}", f"out {leg.get('messages_out')}"]
    drops = {reason: number for reason, number in (leg.get("dropped") or {}).items() if number}
    about += [f"{reason.replace('_', ' ')} {number}" for reason, number in drops.items()]
    if leg.get("sessions_lost"):
        about.append(f"sessions lost {leg['sessions_lost']}")
    if leg.get("retained_merging"):
        about.append("comparing retained messages")
    if filters := leg.get("refused_filters"):
        about.append(f"refused filters {' '.join(filters)}")
    if others := leg.get("same_broker"):
        about.append(f"leads to the same broker as leg {', '.join(others)}")
    if leg.get("no_subscribers"):
        about.append(_unmatched(leg))
    if leg.get("last_error"):
        about.append(f"last error: {leg['last_error']}")
    return f"  {_title(leg.get('name'), leg.get('broker'))}  {', '.join(about)}"


def _unmatched(leg: dict[str, Any]) -> str:
    """Return in words for how many messages a foreign broker had no subscriber."""
    rules = leg.get("no_subscribers_by_rule") or {}
    which = ", ".join(f"{topic_filter} {number}" for topic_filter, number in rules.items())
    text = f"no subscriber there for {leg.get('no_subscribers')} of {leg.get('answered')}"
    return f"{text} ({which})" if which else text


def _standby(standby: dict[str, Any]) -> str:
    if names := [str(each.get("name")) for each in standby.get("standbys", [])]:
        lag = f"{standby.get('lag_bytes'):,} bytes of the journal"
        text = f"{' and '.join(names)}, which lacks {lag}"
    else:
        text = f"none, {standby.get('state')} for {standby.get('alone_s')} s"
    unprotected = standby.get("unprotected")
    return text if not unprotected else f"{text}; {unprotected:,} sessions are unprotected"


def _redirection(found: dict[str, Any]) -> str:
    """Return in words what became of clients that were better at other brokers, from its part of
    /api/v1/federation."""
    sent, ignored = counted(int(found.get("sent") or 0), "client"), found.get("ignored")
    about = [f"sent {sent} to other brokers" + (f", {ignored} came back" if ignored else "")]
    if not found.get("enabled"):
        return about[0]
    if waiting := found.get("waiting"):
        about.append(f"{counted(int(waiting), 'client')} to be asked about")
    if forgone := found.get("forgone"):
        about.append(f"{forgone} not sent for lack of room")
    if invalid := found.get("topics_invalid"):
        about.append(f"mqttree-topics invalid in {counted(int(invalid), 'CONNECT')}")
    if found.get("quiet"):
        about.append("rests, as brokers have just come or gone")
    return "; ".join(about)


def waits_for(drain: dict[str, Any]) -> str:
    """Return how far a drain is and what it waits for, from its part of /api/v1/federation."""
    kept = int(drain.get("journal_left") or 0)
    counts = {
        "client": drain.get("clients_left"),
        "session": drain.get("sessions_left"),
        "link": drain.get("links_left"),
    }
    waiting = [counted(int(number), name) for name, number in counts.items() if number]
    if kept:
        waiting.append(f"{counted(kept, 'session')} in the journal that other brokers may fetch")
    if drain.get("state") == "tree":
        waiting.append("the neighbours to turn to others")
    return (
        f"{drain.get('state')}: waits for {', '.join(waiting) or 'nothing'}; "
        f"{drain.get('seconds_left')} s at most"
    )


def _title(name: object, address: object) -> str:
    """Return name and address of a broker, or the name alone if it contains the address."""
    if not name:
        return str(address)
    return f"{name} ({address})" if address else str(name)


def _ms(value: object) -> str:
    return f"{value:.2f} ms" if isinstance(value, int | float) else "? ms"
