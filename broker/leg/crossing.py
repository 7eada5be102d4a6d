"""What happens to messages of one leg on their way: other names, echoes and rings. Pure."""

from __future__ import annotations

import math
import random
import re

from mqttree.broker.leg.marks import Federation, Marks
from mqttree.broker.leg.own_topics import COMMON, stays
from mqttree.broker.leg.packets import inwards, messages, outwards, without
from mqttree.broker.leg.rings import EchoList, RingWatch
from mqttree.broker.leg.rules import Rules
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import Publish

PROBE = b"mqttree/probe/leg/"
"""Ahead of the topics of probes."""
PROBER = re.compile(rb"[0-9a-f]{16}")
"""The payload of a probe: the id of the broker whose leg it is."""
LOOPS = 16
"""Legs that are remembered as they lead to the same broker."""
PROBE_PAUSE = 300.0
"""s between two probes while messages cross in both directions; the first one comes when the leg is
up."""
PROBE_BYTES, PROBE_LEAST = 1 << 20, 5.0
"""Bytes of a leg without marks after which another probe is sent, and the s between two of these:
a ring may be closed elsewhere, and only marks end it at once."""
LOOP_TIME = 3 * PROBE_PAUSE
"""s for which it counts that the probe of another leg has come."""


class Crossing:
    """The messages of one leg, between the packets of both sides."""

    __slots__ = (
        "_came",
        "_echoes",
        "_federation",
        "_loops",
        "_marks",
        "_marks_used",
        "_name",
        "_probe",
        "_probe_at",
        "_rng",
        "_rules",
        "_version",
        "_watch",
        "_watching",
        "echoes",
        "loops",
        "muted",
        "rings",
    )

    def __init__(
        self,
        name: str,
        rules: Rules,
        rng: random.Random,
        federation: Federation | None = None,
        *,
        marks: bool = True,
    ) -> None:
        """`name`: of the leg; `rules`: which topics cross; `rng`: draws numbers of probes;
        `federation`: of this broker, if there is one; `marks`: whether messages get its mark."""
        self.loops = 0
        """Times that the probe of another leg of this federation has come."""
        self._federation = federation
        self._loops: dict[str, float] = {}  # other leg -> when its probe came (s)
        self._marks = Marks(federation) if marks and federation is not None else None
        self._marks_used = False
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
        self._probe_at = 0.0  # s: when the last one was due
        self._came = 0  # bytes that came since the last probe

    def begin(self, version: int, echoing: bool, now: float) -> None:
        """Note that the leg connects. `version`: of MQTT (4 or 5); `echoing`: whether the foreign
        broker sends back what it gets; `now`: s."""
        self._version = version
        self._marks_used = self._marks is not None and version == 5
        self._probe, self._probe_at = b"", -math.inf
        if not echoing:
            self._echoes = None
        elif self._echoes is None:
            self._echoes = EchoList()
        else:
            self._echoes.resume(now)

    def accepted(self, room: int) -> None:
        """Note that the foreign broker has let the leg in. `room`: bytes that a packet may have
        there."""
        if self._marks is not None:
            self._marks.begin(room)

    def drops(self) -> dict[str, int]:
        """Return how many messages were dropped, by reason: they were the foreign broker's echo,
        went round in a ring, had left this federation before, or had left too many."""
        marks = self._marks
        return {
            "echoes": self.echoes,
            "muted": self.muted,
            "marked": 0 if marks is None else marks.came_back,
            "too_far": 0 if marks is None else marks.far,
        }

    def same_broker(self, now: float) -> list[str]:
        """Return the other legs of this federation whose probes have come lately. `now`: s."""
        return [name for name, at in self._loops.items() if now < at + LOOP_TIME]

    def inwards(self, packets: bytes, now: float) -> bytes:
        """Return what came from the foreign broker, `packets` at `now` (s), as it is for here."""
        echoes, watch = self._echoes, self._watch
        self._came += len(packets)
        looped = PROBE in packets and self._look_for_probes(packets, now)
        if echoes is not None:
            packets, count = without(
                packets, self._version, lambda topic, payload: echoes.takes(topic, payload, now)
            )
            self.echoes += count
        if self._marks_used and self._marks is not None:
            packets = self._marks.inwards(packets)
        if looped and PROBE in packets:
            # No mark stops it: messages come round by this leg too.
            self._watch_ring(now)
        if self._watching:
            packets, count = without(
                packets, self._version, lambda topic, payload: watch.stops(topic, payload, now)
            )
            self.muted += count
            self._watching = not watch.ended(now)
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
                self._watch_ring(now)
        if COMMON in packets:
            packets, _ = without(packets, self._version, lambda topic, _: stays(topic))
        packets = outwards(packets, self._version, self._rules)
        if self._marks_used and self._marks is not None:
            packets = self._marks.outwards(packets)
        if self._echoes is not None:
            for topic, payload, qos in messages(packets, self._version):
                self._echoes.sent(topic, payload, now, waits=qos > 0)
        return packets

    def own(self, topic: str, payload: bytes, now: float, *, retain: bool = False) -> bytes:
        """Return a PUBLISH of the leg itself to the foreign broker. `topic`, `payload`: of it;
        `now`: s; `retain`: whether it is kept there."""
        return self.publish(Publish(topic, payload, 0, retain), now)

    def publish(self, message: Publish, now: float) -> bytes:
        """Return a `message` of the leg itself to the foreign broker as bytes. `now`: s."""
        if self._echoes is not None:
            topic = message.topic.encode()
            self._echoes.sent(topic, message.payload, now, waits=message.qos > 0)
        packet = encode_packet(message, self._version)
        if self._marks_used and self._marks is not None:
            packet = self._marks.outwards(packet)
        return packet

    def probe(self, now: float) -> bytes:
        """Return a probe for the foreign broker if one is due at `now` (s), else b"". Where it
        comes to this federation by another way there is a ring."""
        since = now - self._probe_at
        early = self._came >= PROBE_BYTES and since >= PROBE_LEAST and not self._marks_used
        if since < PROBE_PAUSE and not early:
            return b""
        self._probe_at = now
        if self._probe and not self._came and not self._watching:
            return b""
        self._came = 0
        topic = f"{PROBE.decode()}{self._name}/{self._rng.getrandbits(64):016x}"
        self._probe = topic.encode()
        federation = self._federation
        payload = b"" if federation is None else federation.own_id.hex().encode()
        return self.own(topic, payload, now)

    def _watch_ring(self, now: float) -> None:
        """Count equal messages from `now` (s) on."""
        self._watching = True
        self._watch.begin(now)

    def _look_for_probes(self, packets: bytes, now: float) -> bool:
        """Note probes of other legs of this federation that the foreign broker sends. Return
        whether there was one."""
        federation, found = self._federation, False
        if federation is None:
            return False
        for topic, payload, _ in messages(packets, self._version):
            if not topic.startswith(PROBE) or not PROBER.fullmatch(payload):
                continue
            name = topic[len(PROBE) :].rpartition(b"/")[0].decode(errors="replace")
            if name in ("", self._name) or not federation.has(bytes.fromhex(payload.decode())):
                continue
            self.loops += 1
            if name not in self._loops and len(self._loops) >= LOOPS:
                del self._loops[next(iter(self._loops))]
            self._loops[name] = now
            found = True
        return found
