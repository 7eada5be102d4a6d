"""Which topics cross a leg, and under which names: rules as `topic` lines of a Mosquitto bridge.

    FILTER [in|out|both] [0|1|2] [LOCAL-PREFIX REMOTE-PREFIX]

A prefix stands ahead of the filter on its side, and ahead of each topic: "#" with the prefixes "a/"
and "b/" has `a/x` here where there is `b/x` at the foreign broker. Without a direction a rule is
`out`, without a QoS 0, as with Mosquitto. If several rules match a topic, the first one counts.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from enum import Enum

from mqttree.broker.wire.strings import is_own
from mqttree.routing.topic_filter import (
    SHARE_PREFIX,
    covers,
    matches,
    split_shared,
    valid_topic_filter,
    valid_topic_name,
)

MAPPED = 10_000
"""Topics whose names on the other side are kept."""


class RuleError(ValueError):
    """A rule that cannot be used; one line says why."""


class Direction(Enum):
    """Which messages a rule lets cross."""

    IN = "in"
    """Those of the foreign broker."""
    OUT = "out"
    """Those of this federation."""
    BOTH = "both"
    """All."""


class Rule:
    """One line: topics that cross in a direction."""

    __slots__ = ("direction", "group", "local_prefix", "pattern", "qos", "remote_prefix")

    def __init__(
        self,
        pattern: str,
        direction: Direction = Direction.OUT,
        qos: int = 0,
        local_prefix: str = "",
        remote_prefix: str = "",
    ) -> None:
        """`pattern`: a topic filter, empty if the prefixes are all of it, with `$share/GROUP/` if
        messages go out as to a member of a group; `direction`: which messages cross; `qos`: the
        highest they have there; `local_prefix`, `remote_prefix`: ahead of topics here and there.

        Raises:
            RuleError: it is none.
        """
        self.direction, self.qos = direction, qos
        self.local_prefix, self.remote_prefix = local_prefix, remote_prefix
        try:
            self.group, self.pattern = split_shared(pattern)
        except ValueError:
            raise RuleError(f"'{pattern}' lacks the name of a group, or a filter") from None
        self._check()

    def _check(self) -> None:
        if self.qos not in (0, 1, 2):
            raise RuleError(f"QoS {self.qos} is none of 0, 1 and 2")
        if self.group is not None and self.inwards:
            raise RuleError(
                f"'{SHARE_PREFIX}{self.group}/{self.pattern}' cannot come in: a shared "
                "subscription has no No Local"
            )
        for side, prefix in (("local", self.local_prefix), ("remote", self.remote_prefix)):
            if prefix and not valid_topic_name(prefix):
                raise RuleError(f"the {side} prefix '{prefix}' is no part of a topic")
        for side, topic_filter in (("local", self.local), ("remote", self.remote)):
            if not valid_topic_filter(topic_filter) or topic_filter.startswith(SHARE_PREFIX):
                raise RuleError(f"'{topic_filter}' ({side}) is no topic filter")
        if self.inwards and is_own(self.local):
            raise RuleError(f"'{self.local}' is the broker's own: no client may publish it here")
        if self.outwards and is_own(self.remote):
            raise RuleError(f"'{self.remote}' is the broker's own: no client may publish it there")

    @property
    def inwards(self) -> bool:
        """Whether messages of the foreign broker cross."""
        return self.direction is not Direction.OUT

    @property
    def outwards(self) -> bool:
        """Whether messages of this federation cross."""
        return self.direction is not Direction.IN

    @property
    def local(self) -> str:
        """The filter of its topics here."""
        return self.local_prefix + self.pattern

    @property
    def remote(self) -> str:
        """The filter of its topics at the foreign broker."""
        return self.remote_prefix + self.pattern

    @property
    def subscription(self) -> str:
        """The filter to which a leg subscribes here: that of a group, if it is a member of one."""
        return self.local if self.group is None else f"{SHARE_PREFIX}{self.group}/{self.local}"

    def to_local(self, topic: str) -> str | None:
        """Return the name here of a topic of the foreign broker; None: it is not of this rule."""
        if not matches(self.remote, topic):
            return None
        return exchanged(topic, self.remote_prefix, self.local_prefix)

    def to_remote(self, topic: str) -> str | None:
        """Return the name at the foreign broker of a topic here; None: it is not of this rule."""
        if not matches(self.local, topic):
            return None
        return exchanged(topic, self.local_prefix, self.remote_prefix)


def exchanged(topic: str, prefix: str, other: str) -> str | None:
    """Return a `topic` with the `other` prefix for its `prefix`. The filter `a/#` matches `a`, too,
    which lacks the slash of the prefix: None if nothing is left of it."""
    if topic.startswith(prefix):
        return other + topic[len(prefix) :]
    return other[:-1] if other.endswith("/") else None


def parse_rule(line: str) -> Rule:
    """Return the rule that a `line` says, as behind `topic` in Mosquitto's file.

    Raises:
        RuleError: it says none.
    """
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise RuleError(f"'{line}': {error}") from None
    if not 1 <= len(words) <= 5 or len(words) == 4:
        raise RuleError(f"'{line}' is not FILTER [in|out|both] [0|1|2] [LOCAL REMOTE]")
    pattern, direction, qos, local_prefix, remote_prefix = (
        *words,
        *("out", "0", "", "")[len(words) - 1 :],
    )
    if direction not in {"in", "out", "both"}:
        raise RuleError(f"'{direction}' is none of in, out and both")
    if qos not in {"0", "1", "2"}:
        raise RuleError(f"QoS '{qos}' is none of 0, 1 and 2")
    return Rule(pattern, Direction(direction), int(qos), local_prefix, remote_prefix)


class Rules:
    """All rules of one leg."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        """`rules`: in the order in which they count."""
        self._rules = tuple(rules)
        self.mapped = any(rule.local_prefix != rule.remote_prefix for rule in rules)
        """Whether any topic has another name on the other side."""
        self.unnamed = 0
        """Messages that have no name on the other side, and do not cross."""
        self._local: dict[str, str | None] = {}
        self._remote: dict[str, str | None] = {}

    @property
    def outward_rules(self) -> list[Rule]:
        """The rules that let messages out."""
        return [rule for rule in self._rules if rule.outwards]

    @property
    def all(self) -> tuple[Rule, ...]:
        """The rules, in the order in which they count."""
        return self._rules

    @property
    def incoming(self) -> list[tuple[str, int]]:
        """The filters to which a leg subscribes at the foreign broker, each with its QoS."""
        return covering((rule.remote, rule.qos) for rule in self._rules if rule.inwards)

    @property
    def outgoing(self) -> list[tuple[str, int]]:
        """The filters to which a leg subscribes here, each with its QoS."""
        alone = covering(
            (rule.local, rule.qos) for rule in self._rules if rule.outwards and rule.group is None
        )
        shared = {rule.subscription: rule.qos for rule in self._rules if rule.group is not None}
        return [*alone, *shared.items()]

    def to_local(self, topic: str) -> str | None:
        """Return the name here of a topic that the foreign broker sent; None: none, as no rule lets
        it in, or as the name would be invalid."""
        return self._counted(_kept(self._local, topic, self._to_local))

    def to_remote(self, topic: str) -> str | None:
        """Return the name at the foreign broker of a topic of this federation; None: none, as no
        rule lets it out, or as the name would be invalid."""
        return self._counted(_kept(self._remote, topic, self._to_remote))

    def _counted(self, topic: str | None) -> str | None:
        if topic is None:
            self.unnamed += 1
        return topic

    def _to_local(self, topic: str) -> str | None:
        found = _first(rule.to_local(topic) for rule in self._rules if rule.inwards)
        return found if found is not None and _may_be_published(found) else None

    def _to_remote(self, topic: str) -> str | None:
        found = _first(rule.to_remote(topic) for rule in self._rules if rule.outwards)
        return found if found is not None and _may_be_published(found) else None

    def response_to_local(self, topic: str) -> str:
        """Return the topic here to which a reply has to be published for the foreign broker to get
        it under `topic`, which is that itself if no rule lets it out."""
        found = _first(rule.to_local(topic) for rule in self._rules if rule.outwards)
        return found if found is not None and valid_topic_name(found) else topic

    def response_to_remote(self, topic: str) -> str:
        """Return the topic at the foreign broker to which a reply has to be published for this
        federation to get it under `topic`, which is that itself if no rule lets it in."""
        found = _first(rule.to_remote(topic) for rule in self._rules if rule.inwards)
        return found if found is not None and valid_topic_name(found) else topic


def covering(wanted: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return filters that match the same topics as all of `wanted` and of which none covers another
    one, as a broker may send a message once for each subscription. A filter has the highest QoS of
    those that it covers."""
    kept: dict[str, int] = {}
    for topic_filter, qos in wanted:
        wider = next((other for other in kept if covers(other, topic_filter)), None)
        if wider is not None:
            kept[wider] = max(kept[wider], qos)
            continue
        for other in [other for other in kept if covers(topic_filter, other)]:
            qos = max(qos, kept.pop(other))
        kept[topic_filter] = qos
    return list(kept.items())


def _may_be_published(topic: str) -> bool:
    return valid_topic_name(topic) and not is_own(topic)


def _first(found: Iterable[str | None]) -> str | None:
    return next((topic for topic in found if topic is not None), None)


def _kept(
    names: dict[str, str | None], topic: str, find: Callable[[str], str | None]
) -> str | None:
    """Return the other name of a topic from `names`, or find it and keep it there."""
    if topic in names:
        return names[topic]
    if len(names) >= MAPPED:
        names.clear()
    names[topic] = found = find(topic)
    return found
