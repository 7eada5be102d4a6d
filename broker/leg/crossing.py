"""What happens to messages of one leg on their way: other names, echoes and rings. Pure."""

from __future__ import annotations

import random

from broker.leg.packets import inwards, messages, outwards, without
from broker.leg.rings import EchoList, RingWatch
from broker.leg.rules import Rules
from broker.wire.encode import encode_packet
from broker.wire.packets import Publish

PROBE = b"mqttree/probe/leg/"
"""Ahead of the topics of probes."""
PROBE_PAUSE = 300.0
"""s between two probes while messages cross in both directions; the first one comes when the leg is
up."""


class Crossing:
    """The messages of one leg, between the packets of both sides."""

    __slots__ = (
        "_echoes",
        "_name",
        "_passed",
        "_probe",
        "_probe_at",
        "_rng",
        "_rules",
        "_version",
        "_watch",
        "_watching",
        "echoes",
        "muted",
        "rings",
    )

    def __init__(self, name: str, rules: Rules, rng: random.Random) -> None:
        """`name`: of the leg; `rules`: which topics cross; `rng`: draws numbers of probes."""
        self.echoes = 0
        """Messages that were the foreign broker's echo."""
        self.muted = 0
        """Messages of a ring that did not come in."""
        self.rings = 0
        """Times that a probe has come back."""
        self._name = name
        self._rules = rules
        self._rng = rng
        self._version = 5
        self._echoes: EchoList | None = None
        self._watch = RingWatch()
        self._watching = False
        self._probe = b""  # the topic of the last one, while it may come back
        self._probe_at = 0.0
        self._passed = False  # whether messages crossed since the last probe

    def begin(self, version: int, echoing: bool, now: float) -> None:
        """Note that the leg connects. `version`: of MQTT (4 or 5); `echoing`: whether the foreign
        broker sends back what it gets; `now`: s."""
        self._version = version
        self._probe, self._probe_at = b"", now
        if not echoing:
            self._echoes = None
        elif self._echoes is None:
            self._echoes = EchoList()
        else:
            self._echoes.resume(now)

    def inwards(self, packets: bytes, now: float) -> bytes:
        """Return what came from the foreign broker, `packets` at `now` (s), as it is for here.
        Raises MalformedPacket and ProtocolViolation."""
        echoes, watch = self._echoes, self._watch
        if echoes is not None:
            packets, count = without(
                packets, self._version, lambda topic, payload: echoes.takes(topic, payload, now)
            )
            self.echoes += count
        if self._watching:
            packets, count = without(
                packets, self._version, lambda topic, payload: watch.stops(topic, payload, now)
            )
            self.muted += count
            self._watching = not watch.ended(now)
        self._passed = True
        return inwards(packets, self._version, self._rules)

    def outwards(self, packets: bytes, now: float) -> bytes:
        """Return what came from this broker, `packets` at `now` (s), as it is for the foreign one.
        Raises MalformedPacket and ProtocolViolation."""
        probe = self._probe
        if probe and probe in packets:
            # It must not go round.
            packets, count = without(packets, self._version, lambda topic, _: probe in topic)
            if count:
                self._probe = b""
                self.rings += 1
                self._watching = True
                self._watch.begin(now)
        packets = outwards(packets, self._version, self._rules)
        if self._echoes is not None:
            for topic, payload, qos in messages(packets, self._version):
                self._echoes.sent(topic, payload, now, waits=qos > 0)
        return packets

    def own(self, topic: str, payload: bytes, now: float, *, retain: bool = False) -> bytes:
        """Return a PUBLISH of the leg itself to the foreign broker. `topic`, `payload`: of it;
        `now`: s; `retain`: whether it is kept there."""
        if self._echoes is not None:
            self._echoes.sent(topic.encode(), payload, now, waits=False)
        return encode_packet(Publish(topic, payload, 0, retain), self._version)

    def probe(self, now: float) -> bytes:
        """Return a probe for the foreign broker if one is due at `now` (s), else b"". Where it
        comes to this federation by another way there is a ring."""
        if now < self._probe_at:
            return b""
        self._probe_at = now + PROBE_PAUSE
        if self._probe and not self._passed and not self._watching:
            return b""
        self._passed = False
        topic = f"{PROBE.decode()}{self._name}/{self._rng.getrandbits(64):016x}"
        self._probe = topic.encode()
        return self.own(topic, b"", now)
