"""Which retained topics of both sides of a leg belong together, and which way they may cross.
Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from mqttree.broker.leg.own_topics import own
from mqttree.broker.leg.rules import Rules, covering
from mqttree.routing.topic_filter import valid_topic_name


class Retain(Enum):
    """Which way RETAIN crosses."""

    BOTH = "both"
    IN = "in"
    """From the foreign broker to here."""
    OUT = "out"
    OFF = "off"

    @property
    def inwards(self) -> bool:
        """Whether it comes in."""
        return self in (Retain.BOTH, Retain.IN)

    @property
    def outwards(self) -> bool:
        """Whether it goes out."""
        return self in (Retain.BOTH, Retain.OUT)


@dataclass(frozen=True, slots=True)
class Way:
    """Which way a retained topic may cross."""

    inwards: bool
    outwards: bool
    qos: int
    """The highest that messages which come in have."""


class RetainedRules:
    """The rules of one leg, for retained topics. Those of groups are left out: what only one
    of many members gets is not common state."""

    def __init__(self, rules: Rules, retain: Retain) -> None:
        """`rules`: of the leg; `retain`: which way RETAIN crosses."""
        self.retain = retain
        self._rules = [
            rule
            for rule in rules.all
            if rule.group is None
            and ((rule.inwards and retain.inwards) or (rule.outwards and retain.outwards))
        ]

    @property
    def remote(self) -> list[str]:
        """The filters of all topics at the foreign broker."""
        return [found for found, _ in covering((rule.remote, 0) for rule in self._rules)]

    @property
    def local(self) -> list[str]:
        """The filters of all topics here."""
        return [found for found, _ in covering((rule.local, 0) for rule in self._rules)]

    def remote_of(self, topic: str) -> str | None:
        """Return the name at the foreign broker of a topic here; None: it is not compared."""
        return _sound(topic, _first(rule.to_remote(topic) for rule in self._rules))

    def local_of(self, topic: str) -> str | None:
        """Return the name here of a topic of the foreign broker; None: it is not compared. If
        several have one name here, only the one that has it by the first rule is."""
        for rule in self._rules:
            local = rule.to_local(topic)
            if local is not None and self.remote_of(local) == topic:
                return _sound(topic, local)
        return None

    def way(self, local: str, remote: str) -> Way:
        """Return which way a topic may cross that is called `local` here and `remote` there."""
        first = next((r for r in self._rules if r.inwards and r.to_local(remote) is not None), None)
        inwards = first is not None and first.to_local(remote) == local and self.retain.inwards
        outwards = self.retain.outwards and remote == _first(
            rule.to_remote(local) for rule in self._rules if rule.outwards
        )
        return Way(inwards, outwards, first.qos if inwards and first is not None else 0)


def _first(found: Iterable[str | None]) -> str | None:
    return next((topic for topic in found if topic is not None), None)


def _sound(topic: str, other: str | None) -> str | None:
    """Return the `other` name of a `topic` if both may be compared."""
    if other is None or own(topic.encode()) or own(other.encode()) or not valid_topic_name(other):
        return None
    return other
