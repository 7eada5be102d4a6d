"""The way of PUBLISH and its acknowledgements between both sides of a leg, in each direction.
Pure."""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Any

from mqttree.broker.leg.crossing import Crossing
from mqttree.broker.leg.leg_settings import LegSettings
from mqttree.broker.leg.lower_qos import ANY, LowerQos
from mqttree.broker.leg.marks import Federation
from mqttree.broker.leg.packets import DROPPED, PacketCutter, left_out, without_pubcomp
from mqttree.broker.leg.poison import PoisonMessages
from mqttree.broker.leg.repeats import Repeats
from mqttree.broker.leg.retained_exchange import RetainedExchange
from mqttree.broker.leg.unmatched import Unmatched


class Relay:
    """What one leg does with packets that cross."""

    __slots__ = (
        "_answers",
        "_exchange",
        "_last",
        "_lowering",
        "_repeats",
        "_swallowed",
        "_unmatched",
        "_unmatched_seen",
        "_version",
        "crossing",
        "here",
        "lower_qos",
        "poison",
        "there",
    )

    def __init__(
        self,
        settings: LegSettings,
        rng: random.Random,
        federation: Federation | None,
        exchange: RetainedExchange,
    ) -> None:
        """`settings`: of the leg; `rng`: draws numbers of probes; `federation`: of this broker,
        if there is one; `exchange`: hears of retained messages that cross."""
        self._exchange = exchange
        self._answers: list[bytes] = []  # for this broker, in place of the foreign one's
        self.there = PacketCutter(settings.maximum_packet_size)
        """Of the foreign broker."""
        self.here = PacketCutter()
        """Of this broker."""
        self.crossing = Crossing(
            settings.name, settings.rules, rng, federation, marks=settings.marks
        )
        self.lower_qos = LowerQos()
        """What the foreign broker takes."""
        self.poison = PoisonMessages()
        """What it closes the connection for."""
        self._last = b""  # what it has sent last
        self._lowering = False  # it does not take all QoS
        self._repeats = Repeats()
        self._unmatched = Unmatched(settings.rules)
        self._unmatched_seen = 0
        self._swallowed: set[int] = set()  # PUBCOMP of this broker with these is not passed on
        self._version = 5

    # ---------------------------------------------------------------- what happens to the leg

    def connecting(self, version: int, *, echoing: bool, now: float) -> None:
        """Note that the leg connects to the foreign broker. `version`: of MQTT (4 or 5);
        `echoing`: that broker sends back what it gets; `now`: s."""
        self._version = version
        self.there.clear()
        self.poison.connecting()
        self.crossing.begin(version, echoing, now)

    def entering(self) -> None:
        """Note that the leg connects to this broker."""
        self.here.clear()
        self._swallowed.clear()

    def follow_qos(self) -> bool:
        """Keep to what the foreign broker takes by now. Returns whether that is less than before:
        this is to be told."""
        before, self._lowering = self._lowering, self.lower_qos.taken < ANY
        return self._lowering and not before

    def look_for_proof(self, in_flight: Collection[int]) -> None:
        """Look whether this broker closed the leg's session because the foreign one answered QoS 2
        as QoS 1. `in_flight`: identifiers of messages at QoS 2 that wait for PUBREC here."""
        last, self._last = self._last, b""
        self.lower_qos.look_for_proof(last, in_flight)

    def take_answers(self) -> bytes:
        """Drain what this broker is to get in place of answers of the foreign one."""
        answers, self._answers = b"".join(self._answers), []
        return answers + self.lower_qos.take_answers() if self._lowering else answers

    def released(self, packet_ids: Collection[int]) -> None:
        """Note that messages that the foreign broker has forgotten are released here: their PUBCOMP
        is not for it. Others will have their identifiers (`packet_ids`)."""
        self._repeats.clear()
        self._swallowed.update(packet_ids)

    def on_lost(self) -> None:
        """Note that messages do not cross any more."""
        self._repeats.on_lost()

    # ---------------------------------------------------------------- counts

    def drops(self) -> dict[str, int]:
        """Return how many messages did not get across, by reason: the foreign broker has refused
        them, they did not get as far as the session here, as that would refuse them, they had come
        before, and those of `Crossing.drops`."""
        return {
            "refused_there": self.there.refused + self.poison.refused,
            "refused_here": self.there.too_large + self._exchange.sync.unusable,
            "repeated": self._repeats.dropped,
            **self.crossing.drops(),
        }

    def unmatched(self) -> dict[str, Any]:
        """Return how many messages the foreign broker has answered, for how many of these it had no
        subscriber, and for which rules, if there are several."""
        return {
            "answered": self.there.answered,
            "no_subscribers": self.there.unmatched,
            "no_subscribers_by_rule": self._unmatched.by_rule(),
        }

    # ---------------------------------------------------------------- packets

    def inwards(self, packets: bytes, now: float, *, stored: bool) -> bytes:
        """Return packets of the foreign broker for this one.

        `packets`: whole ones of types that cross; `now`: s; `stored`: those with RETAIN are not
        published now. Raises MalformedPacket and ProtocolViolation.
        """
        self._last = packets
        if self.poison.alone:
            self.poison.on_answers(packets)
        if self._lowering:
            packets = self.lower_qos.inwards(packets)
        if self.there.unmatched != self._unmatched_seen:
            self._unmatched_seen = self.there.unmatched
            self._unmatched.count(packets)
        self._repeats.passed(packets, out=False)
        packets = self._repeats.without(packets, self._version)
        if self._exchange.listens:
            self._exchange.on_acknowledged(packets)
        if self.there.retained:
            packets = self._exchange.incoming(packets, now, stored=stored)
        return self.crossing.inwards(packets, now)

    def outwards(self, packets: bytes, now: float) -> bytes:
        """Return packets of this broker for the foreign one, b"" if it gets none of them.

        `packets`: whole ones of types that cross; `now`: s. Raises MalformedPacket and
        ProtocolViolation.
        """
        if self._swallowed:
            packets = without_pubcomp(packets, self._swallowed)
            if not packets:
                return b""
        self._repeats.passed(packets, out=True)
        crossed = self.crossing.outwards(packets, now)
        if self.here.retained:
            crossed = self._exchange.outgoing(packets, crossed, now)
        if DROPPED.encode() in crossed:
            crossed, answers = left_out(crossed)
            self._answers.append(answers)
        if self._unmatched.kept:
            self._unmatched.sent(crossed)
        if self._lowering:
            crossed = self.lower_qos.outwards(crossed)
        # What crosses at QoS 0 only has no answer to wait for.
        if self.poison.alone and self.lower_qos.taken:
            crossed, answer = self.poison.outwards(crossed)
            if self.poison.lost_retained:
                self.poison.lost_retained = False
                self._exchange.on_dropped(now)
            if answer:
                self._exchange.on_acknowledged(answer)
                self._answers.append(answer)
        return crossed
