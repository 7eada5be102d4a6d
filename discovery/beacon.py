"""The beacon: when a broker announces itself, and with which bytes."""

from __future__ import annotations

import random
from collections import deque

from mqttree.broker.base.address import Address, is_wildcard
from mqttree.broker.base.broker_id import Identity
from mqttree.discovery.announcement import Announcement, unsigned
from mqttree.discovery.dialler import NEVER
from mqttree.discovery.effects import MembershipConfig

BURST = (0.03, 0.05, 0.06, 0.07)
"""Seconds between the announcements of a start: all are out within Td, and one that is heard at
all leads to a link before clients are let in."""
BURST_JITTER = 0.25
BEACON_JITTER = 0.2
ANSWER_JITTER = (0.002, 0.02)
"""Seconds: a hundred brokers that heard one newcomer do not answer within one millisecond."""
ANSWER_SPACING = 0.05
"""Seconds between announcements, however many newcomers ask."""
OWN_KEPT = 256
"""Own datagrams that are remembered, so that they are recognised when they come back: ten seconds'
worth, ANSWER_SPACING apart."""


class Beacon:
    """The announcements of one broker: a burst at the start, answers, and a slow beacon for split
    networks to meet."""

    def __init__(
        self, config: MembershipConfig, own: Identity, now: float, rng: random.Random
    ) -> None:
        """Plan the first announcement for `now` (s), or none if the configuration `config` does not
        announce. `own`: what is announced. `rng`: spreads announcements."""
        self._config = config
        self._own = own
        self._rng = rng
        self._address = (
            Address("", own.address.port) if is_wildcard(own.address.host) else own.address
        )
        self._burst = list(reversed(BURST))
        self._counter = 0
        self._last = -NEVER
        self._sent: deque[bytes] = deque()
        self._recent: set[bytes] = set()
        self.due = now if config.announce else NEVER
        # An identity that cannot be announced is refused now.
        self._encode(0.0, leave=False, new=False)

    def announcement(self, now: float, wall: float) -> bytes:
        """Return the datagram that is due, and plan the next one."""
        new = bool(self._burst)
        if self._burst:
            pause, jitter = self._burst.pop(), BURST_JITTER
        else:
            pause, jitter = self._config.beacon, BEACON_JITTER
        self._last = now
        self.due = now + pause * self._rng.uniform(1.0 - jitter, 1.0 + jitter)
        return self._sign(wall, leave=False, new=new)

    def goodbye(self, wall: float) -> bytes:
        """Return the last datagram, which says that the broker leaves."""
        self.due = NEVER
        return self._sign(wall, leave=True, new=False)

    def answer(self, now: float) -> None:
        """Plan an announcement a few milliseconds from now, for a broker that has just come."""
        self._hasten(now + self._rng.uniform(*ANSWER_JITTER))

    def soon(self, now: float) -> None:
        """Plan an announcement within a tenth of a second, for a broker that was lost: others may
        notice at the same time."""
        self._hasten(now + self._rng.uniform(0.0, 0.1))

    def is_own(self, data: bytes) -> bool:
        """Return whether this broker has sent this datagram."""
        return unsigned(data, self._config.secret) in self._recent

    def _hasten(self, due: float) -> None:
        if self.due != NEVER:
            self.due = min(self.due, max(due, self._last + ANSWER_SPACING))

    def _sign(self, wall: float, leave: bool, new: bool) -> bytes:
        self._counter = min(self._counter + 1, 0xFFFFFFFF)
        data = self._encode(wall, leave, new)
        own = unsigned(data, self._config.secret)
        self._sent.append(own)
        self._recent.add(own)
        if len(self._sent) > OWN_KEPT:
            self._recent.discard(self._sent.popleft())
        return data

    def _encode(self, wall: float, leave: bool, new: bool) -> bytes:
        own = self._own
        return Announcement(
            self._config.cluster,
            own.id,
            own.boot,
            self._counter,
            max(wall, 0.0),
            self._address,
            own.name,
            leave,
            new,
        ).encode(self._config.secret)
