"""Over which link the spanning tree leads to each broker, and which brokers it has lost not long
ago."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mqttree.broker.cluster.directory.link_state_directory import LinkStateDirectory
    from mqttree.broker.cluster.link.link import Link

SPLIT, RELINK = 5.0, 3.5
"""s; a shorter split does not cost order; and the time after a split until brokers are linked
again: a dial that began before the end of the split times out first (3 s), and the next one
follows."""

HOLD_S = SPLIT + RELINK
"""s; longest wait for an origin that is unreachable. After it the messages that were held back are
delivered, and those that are missing are delivered later, if they arrive."""


class TreePaths:
    """The paths to all brokers, as far as this broker sees them: the first link of each."""

    def __init__(self, directory: LinkStateDirectory) -> None:
        self._directory = directory
        self._links: dict[bytes, Link] = {}  # by the id of the broker to which it leads
        self.away: dict[bytes, float] = {}
        """By broker that the tree lost within HOLD_S: when (s)."""

    def changed(self, broker_id: bytes, via: bytes | None, now: float) -> Link | None:
        """Note a new path to the broker `broker_id`, over the neighbour `via` (None: there is none)
        from `now` (s) on; returns the link of the old one."""
        old = self._links.pop(broker_id, None)
        self.away = {
            other: since
            for other, since in self.away.items()
            if other != broker_id and since > now - HOLD_S
        }
        if via is None:
            self.away[broker_id] = now
        elif (link := self._directory.link_to(broker_id)) is not None:
            self._links[broker_id] = link
        return old

    def link_to(self, broker_id: bytes) -> Link | None:
        """Return the link that leads to a broker."""
        return self._links.get(broker_id)

    def brokers_behind(self, link: Link) -> list[bytes]:
        """Return the brokers that a link leads to."""
        return [broker_id for broker_id, path in self._links.items() if path is link]

    def split(self, now: float) -> bool:
        """Whether some broker was lost so lately that it may come back with its messages; `now`:
        s."""
        return any(since > now - HOLD_S for since in self.away.values())

    def on_suspended(self, seconds: float, now: float) -> None:
        """Do not count `seconds` in which this broker did not run: the others were not away. `now`:
        s."""
        self.away = {broker_id: min(now, since + seconds) for broker_id, since in self.away.items()}
