"""Beacons of foreign clients, as of Spohn's protocol: by publishing to `federator/beacon/TOPIC` a
client says that it subscribes to TOPIC. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from mqttree.broker.leg.interest import MAX_FILTERS
from mqttree.broker.leg.rules import covering
from mqttree.federator.topics import Kind, MessageError, parse

BEACONS = Kind.BEACON.topic("#")
"""The filter of beacons."""
PREFIX = Kind.BEACON.value.encode()
"""How their topics begin."""
INTERVAL = 5.0
"""s after which a client repeats its beacon."""
HOLD = 3 * INTERVAL
"""s for which a beacon counts."""


class Beacons:
    """The beacons that have come lately."""

    __slots__ = ("_heard", "_most", "_since", "new")

    def __init__(self, most: int = MAX_FILTERS) -> None:
        """`most`: topics that count; one more is kept."""
        self._most = most
        self.new = False
        """Whether a beacon has come that was not there. The reader sets it back."""
        self._heard: dict[str, float] = {}  # topic -> when its last beacon came (s)
        self._since: float | None = None  # when the leg began to listen (s)

    def begin(self, now: float) -> None:
        """Note that beacons come from `now` (s) on; those that came earlier count from now on, as
        the leg was away."""
        self._since = now
        self._heard = dict.fromkeys(self._heard, now)

    def takes(self, topic: bytes, now: float) -> bool:
        """Return whether a message is a beacon, and note it. `topic`: of the message; `now`: s."""
        if not topic.startswith(PREFIX):
            return False
        try:
            _, name = parse(topic.decode())
        except (MessageError, UnicodeDecodeError):
            return True
        # One too many, so that it is seen that there are too many.
        if name in self._heard or len(self._heard) <= self._most:
            self.new = self.new or name not in self._heard
            self._heard[name] = now
        return True

    def filters(self, now: float) -> list[str] | None:
        """Return what clients want at `now` (s), None if it is too early to say. Clients of Spohn's
        federators subscribe to TOPIC below `federated/`."""
        if self._since is None or now < self._since + HOLD:
            return None
        self._heard = {name: at for name, at in self._heard.items() if now < at + HOLD}
        return [f for name in self._heard for f in (name, Kind.FEDERATED.topic(name))]


def has_beacons(packets: bytes) -> bool:
    """Return whether there may be beacons among `packets`."""
    return PREFIX in packets


def listening(filters: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return `filters` of a leg at the foreign broker, with their QoS, and that of beacons."""
    return covering([*filters, (BEACONS, 0)])
