"""What federators say to each other, counted by kind, by round of announcements, and by
publication. Pure."""

from __future__ import annotations

from typing import Any

from mqttree.bench.lab.tap import ANNOUNCED, ROUTED, Seen

COUNTED = frozenset((*ANNOUNCED.values(), ROUTED))
"""Kinds of packets that are counted here."""


class FederatorTraffic:
    """Counts of what federators publish at their neighbours' brokers. A round is all that belongs
    to one number of one core; a publication is one message of the load generator."""

    def __init__(self) -> None:
        self.packets: dict[str, int] = {}
        """By kind."""
        self.bytes: dict[str, int] = {}
        self.rounds: dict[tuple[str, int, int], int] = {}
        """(kind, core, number) -> packets."""
        self.publications: dict[tuple[int, int], int] = {}
        """(publisher, sequence) -> packets."""
        self.first: dict[tuple[str, str, str], int] = {}
        """(kind, from host, to host) -> ns when such a packet first took this way; announcements
        only."""

    def seen(self, at: int, source: str, target: str, what: Seen) -> None:
        """Book a packet, `what`, that was seen at `at` (ns) on its way from the host `source` to
        `target`."""
        kind = what.kind
        self.packets[kind] = self.packets.get(kind, 0) + 1
        self.bytes[kind] = self.bytes.get(kind, 0) + what.size
        if kind == ROUTED:
            message = (what.publisher, what.sequence)
            self.publications[message] = self.publications.get(message, 0) + 1
            return
        self.first.setdefault((kind, source, target), at)
        if what.publisher >= 0:
            number = (kind, what.publisher, what.sequence)
            self.rounds[number] = self.rounds.get(number, 0) + 1

    def as_dict(self) -> dict[str, Any]:
        """Return packets and bytes by kind; `rounds` and `publications`: number of packets -> how
        many rounds, by kind, and how many publications took so many; `core_ns` and `mesh_ns`: when
        the first core was announced, and when the last way of a membership was taken first.

        A core's last round is left out, as it may not be over.
        """
        newest: dict[int, int] = {}
        for _, core, number in self.rounds:
            newest[core] = max(number, newest.get(core, 0))
        rounds: dict[str, dict[str, int]] = {}
        for (kind, core, number), packets in self.rounds.items():
            if number < newest[core]:
                _count(rounds.setdefault(kind, {}), packets)
        publications: dict[str, int] = {}
        for packets in self.publications.values():
            _count(publications, packets)
        return {
            "packets": dict(self.packets),
            "bytes": dict(self.bytes),
            "rounds": rounds,
            "publications": publications,
            "core_ns": min(self._firsts("core_ann"), default=None),
            "mesh_ns": max(self._firsts("memb_ann"), default=None),
        }

    def _firsts(self, kind: str) -> list[int]:
        return [at for (each, _, _), at in self.first.items() if each == kind]


def _count(counts: dict[str, int], packets: int) -> None:
    """Count one more that took so many packets; keys are text, as JSON has them."""
    counts[str(packets)] = counts.get(str(packets), 0) + 1
