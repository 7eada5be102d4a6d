"""The trees of several brokers as text, from what each of them reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mqttree.broker.base.log_format import printable
from mqttree.broker.cli.command_line import DEFAULT_ADMIN


@dataclass(slots=True)
class Seen:
    """One broker: `ended` says how it ended, `state` is its /api/v1/federation."""

    port: int
    pid: int
    ended: str | None
    state: dict[str, Any] | None
    taken: float = 0.0
    """messages/s received, from clients and links."""
    given: float = 0.0
    """messages/s sent, to clients and links."""
    admin: str = ""
    """HOST:PORT of its admin port."""


def draw(brokers: list[Seen], cluster: str, *, moving: bool) -> list[str]:
    """Return lines of text that draw the tree of `brokers`, which belong to the cluster named
    `cluster`. `moving`: include what changes all the time, message rates and round-trip times."""
    known = {
        broker.state["id"]: broker
        for broker in brokers
        if broker.state is not None and broker.ended is None
    }
    lines = [
        f"mqttree: {len(known)} of {len(brokers)} brokers answer, "
        f"cluster {cluster}, {_agreement(known)}",
        "",
    ]
    below: dict[str, list[str]] = {}
    roots: list[str] = []
    for broker_id, broker in known.items():
        parent = (broker.state or {}).get("parent")
        if isinstance(parent, str) and parent in known:
            below.setdefault(parent, []).append(broker_id)
        else:
            roots.append(broker_id)
    drawn: set[str] = set()
    rows: list[tuple[str, str]] = []

    def branch(broker_id: str, lead: str, margin: str) -> None:
        # While a tree forms, two brokers may each believe that the other is below it.
        if broker_id in drawn:
            return
        drawn.add(broker_id)
        rows.append((f"{lead}{known[broker_id].port}", _about(known[broker_id], known, moving)))
        children = sorted(below.get(broker_id, []), key=lambda child: known[child].port)
        for number, child in enumerate(children, 1):
            last = number == len(children)
            branch(child, margin + ("└─ " if last else "├─ "), margin + ("   " if last else "│  "))

    for broker_id in [*sorted(roots, key=lambda each: known[each].port), *known]:
        branch(broker_id, "", "")
    for broker in brokers:
        if broker.ended is not None:
            rows.append((str(broker.port), f"dead ({broker.ended})"))
        elif broker.state is None:
            rows.append((str(broker.port), f"does not answer  pid {broker.pid}"))
    width = max((len(name) for name, _ in rows), default=0)
    lines += [f"  {name.ljust(width)}  {about}" for name, about in rows]
    return [printable(line) for line in (*lines, "", *_to_try(brokers, known))]


def _agreement(known: dict[str, Seen]) -> str:
    """Return whether all brokers name the same root."""
    roots = {broker.state["root"] for broker in known.values() if broker.state is not None}
    if len(roots) == 1:
        root = known.get(next(iter(roots)))
        if root is not None:
            return f"the root is {root.port}"
    return "no common root yet" if known else "starting"


def _about(broker: Seen, known: dict[str, Seen], moving: bool) -> str:
    state = broker.state or {}
    parent = state.get("parent")
    said = []
    if state.get("root") == state.get("id"):
        said.append("root")
    blocked: list[str] = []
    # Not in the tree, but messages take it.
    direct: list[str] = []
    for link in state.get("links", []):
        if link.get("peer") == parent and moving and link.get("rtt_ms") is not None:
            said.append(f"{link['rtt_ms']:.2f} ms")
        elif link.get("role") == "blocked" and link.get("up"):
            peer = known.get(link.get("peer"))
            beside = direct if link.get("carries") else blocked
            beside.append(str(peer.port if peer is not None else link.get("address")))
    if moving:
        said.append(f"in {broker.taken:,.0f}/s out {broker.given:,.0f}/s")
    if direct:
        said.append(f"direct to {' '.join(sorted(direct))}")
    if blocked:
        said.append(f"blocked to {' '.join(sorted(blocked))}")
    return "  ".join([*said, f"pid {broker.pid}"])


def _to_try(brokers: list[Seen], known: dict[str, Seen]) -> list[str]:
    """Return commands to try in another terminal, with brokers that live."""
    living = [broker for broker in brokers if broker.ended is None] or brokers
    lines = [
        "Try, in other terminals:",
        f"  mosquitto_sub -p {living[min(1, len(living) - 1)].port} -t 'demo/#' -v",
        f"  mosquitto_pub -p {living[0].port} -t demo/hello -m hi",
    ]
    for broker in known.values():
        if (
            broker.state is not None
            and broker.state["root"] == broker.state["id"]
            and len(known) > 1
        ):
            lines.append(f"  kill -9 {broker.pid}    # the root: {broker.port}")
            break
    admin = living[0].admin
    status = "mqttree status" if admin == DEFAULT_ADMIN else f"mqttree status --admin {admin}"
    lines.append(f"  {status}    # dashboard: http://{admin}/")
    return [*lines, "Ctrl-C stops all of it."]
