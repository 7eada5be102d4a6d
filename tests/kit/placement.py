"""Placements with known results: our own draws of the paper's workloads, one result for each number
of brokers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mqttree.bench.model.state import Placement
from mqttree.placement.figures import Figures

DATA = Path(__file__).resolve().parents[1] / "data" / "placement"

KEYS = ("Ai", "h_rt", "h_fw", "jain", "peak", "sessions", "aei", "aeo", "aii", "aio")


def load(name: str) -> Any:
    """The known results of one file."""
    return json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))


def published(publishers: list[int], brokers: int, rates: float | list[float]) -> Placement:
    """Brokers "0", "1", ... with all publishers; topics are "0", "1", ..."""
    placement = Placement()
    for slot in range(brokers):
        placement.add_broker(str(slot))
    for topic, slot in enumerate(publishers):
        rate = rates[topic] if isinstance(rates, list) else rates
        placement.publish(str(topic), str(slot), rate)
    return placement


def placed(sessions: list[tuple[str, tuple[str, ...]]]) -> dict[str, list[int]]:
    """The sessions of a client as the files have them."""
    return {broker: sorted(map(int, topics)) for broker, topics in sorted(sessions)}


def row(figures: Figures, sessions: int) -> dict[str, Any]:
    """Figures as the files have them."""
    return {
        "Ai": figures.internal,
        "h_rt": round(figures.routing_overhead, 6),
        "h_fw": round(figures.forwarding_overhead, 6),
        "jain": round(figures.jain, 6),
        "peak": round(figures.peak, 6),
        "sessions": sessions,
        "aei": list(figures.aei),
        "aeo": list(figures.aeo),
        "aii": list(figures.aii),
        "aio": list(figures.aio),
    }


def recomputed(placement: Placement) -> Figures:
    """What `Placement.figures` should be, found from the topics alone."""
    slots = sorted(placement.slots.values())
    aei, aeo, aii, aio = (dict.fromkeys(slots, 0.0) for _ in range(4))
    for topic in placement.topics.values():
        total = sum(topic.publishers.values()) if topic.publishers else topic.expected
        for slot in slots:
            aei[slot] += topic.publishers.get(slot, 0.0)
            count = placement.count(topic, slot)
            aeo[slot] += count * total
            if not count:
                continue
            for at, rate in topic.publishers.items():
                if at != slot:
                    aii[slot] += rate
                    aio[at] += rate
    kinds = [tuple(kind.values()) for kind in (aei, aeo, aii, aio)]
    names = tuple(str(placement.names[slot]) for slot in slots)
    return Figures(names, kinds[0], kinds[1], kinds[2], kinds[3], sum(aii.values()))


def check(placement: Placement) -> None:
    """What is kept up is what is found from nothing."""
    kept, found = placement.figures(), recomputed(placement)
    scale = 1 + sum(found.loads)
    for topic in placement.topics.values():
        before = topic.free, topic.lanes
        placement._refresh(topic)
        assert before == (topic.free, topic.lanes), topic.name
    for name in ("aei", "aeo", "aii", "aio"):
        for a, b in zip(getattr(kept, name), getattr(found, name), strict=True):
            assert abs(a - b) <= 1e-9 * scale, (name, kept, found)
    assert abs(kept.internal - found.internal) <= 1e-9 * scale
