"""What a leg logs about rings, each line once as long as the ring lasts. Pure."""

from __future__ import annotations

from mqttree.broker.leg.crossing import Crossing
from mqttree.broker.wire.strings import shorten


class RingAlarm:
    """The rings of one leg that were logged."""

    def __init__(self, name: str, crossing: Crossing) -> None:
        """`name`: of the leg; `crossing`: what notices them."""
        self._name, self._crossing = name, crossing
        self._rings = self._loops = 0
        self._named: set[str] = set()  # legs that were logged

    @property
    def due(self) -> bool:
        """Whether there is something to log."""
        crossing = self._crossing
        return crossing.rings != self._rings or crossing.loops != self._loops

    def lines(self, address: str, now: float) -> list[str]:
        """Return what is to be logged at `now` (s). `address`: of the foreign broker."""
        crossing, lines = self._crossing, []
        if crossing.rings != self._rings:
            self._rings = crossing.rings
            lines.append(
                f"leg {self._name}: what it sends to {address} comes back to this federation by "
                "another way: that broker has a second leg or a bridge, or is one of this "
                "federation. Topics in which a message goes round are muted"
            )
        if crossing.loops != self._loops:
            self._loops = crossing.loops
            found = set(crossing.same_broker(now))
            lines += (
                f"legs {self._name} and {shorten(name)} of this federation lead to one broker, "
                f"{address}, or to brokers that are bridged: a message may cross by each of them. "
                "Take one of them out, or give them different topics"
                for name in sorted(found - self._named)
            )
            self._named = found
        return lines
