"""What the session of a leg subscribes to at this broker, and how that changes while it is up: what
is new first, then what is not wanted any more. So no message is missing of a filter that stays
wanted under another one. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from mqttree.routing.topic_filter import covers


class LocalSubscriptions:
    """The filters of one leg's session here, with their QoS, but for those that are only notes."""

    __slots__ = ("_asked", "_has", "_refused", "_wanted")

    def __init__(self) -> None:
        self._has: dict[str, int] = {}
        self._wanted: Mapping[str, int] = {}
        self._asked: dict[str, int] = {}  # of the SUBSCRIBE that is not answered
        self._refused: set[str] = set()

    def begin(
        self, has: Mapping[str, int], wanted: Mapping[str, int], refused: Collection[str]
    ) -> None:
        """Note that the leg is up. `has`: what it has subscribed to, as far as it was granted;
        `wanted`: what it wants of that; `refused`: what was not granted."""
        self._wanted = wanted
        self._refused = set(refused)
        self._has = {f: qos for f, qos in has.items() if f not in self._refused}
        self._asked = {}

    @property
    def settled(self) -> bool:
        """Whether the session has subscribed to nothing but what is wanted."""
        return not self._asked and self._has.keys() <= self._wanted.keys()

    def change(self, wanted: Mapping[str, int]) -> None:
        """Have the session subscribe to `wanted`, filters with their QoS, and to nothing else."""
        self._wanted = wanted
        self._refused.intersection_update(wanted)

    def next_subscribe(self) -> tuple[list[tuple[str, int]], set[str]]:
        """Return what to subscribe to now, filters with their QoS, and which of these are covered
        by others, so that their retained messages have come. Nothing if the last SUBSCRIBE is not
        answered."""
        if self._asked:
            return [], set()
        has, self._asked = self._has, self._missing()
        covered = {f for f in self._asked if any(covers(other, f) for other in has)}
        return list(self._asked.items()), covered

    def answered(self, codes: Collection[int]) -> list[str]:
        """Take a SUBACK with its `codes`. Returns the filters that were refused."""
        asked, self._asked = self._asked, {}
        refused = []
        for (topic_filter, qos), code in zip(asked.items(), codes, strict=False):
            if code < 0x80:
                self._has[topic_filter] = qos
            else:
                refused.append(topic_filter)
        self._refused.update(refused)
        return refused

    def next_unsubscribe(self) -> list[str]:
        """Return what to unsubscribe from now, as all that is wanted is subscribed to."""
        if self._asked or self._missing():
            return []
        old = [topic_filter for topic_filter in self._has if topic_filter not in self._wanted]
        for topic_filter in old:
            del self._has[topic_filter]
        return old

    def _missing(self) -> dict[str, int]:
        return {
            f: qos
            for f, qos in self._wanted.items()
            if f not in self._refused and self._has.get(f) != qos
        }
