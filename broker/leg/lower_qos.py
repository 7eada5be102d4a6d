"""The highest QoS of messages that a foreign broker takes, and messages of a higher one. Pure.

A foreign broker says it in CONNACK (Maximum QoS of MQTT 5), or shows it: by SUBACK, or by an answer
to a message at QoS 2 as to one at QoS 1, as RabbitMQ does. The leg then subscribes here at that
QoS. Messages of a higher one that wait in the session here all the same, from before, cross at the
lower one. To this broker they stay what they are:

    this broker          leg                  foreign broker (QoS 1)
    PUBLISH, QoS 2  ---> PUBLISH, QoS 1  --->
                    <--- PUBREC          <--- PUBACK
    PUBREL          --->
                    <--- PUBCOMP

Invariant: while `taken` is below 2 no PUBLISH of a higher QoS and no PUBREL goes there.
"""

from __future__ import annotations

from collections.abc import Collection

from mqttree.broker.leg.packets import places
from mqttree.broker.wire.publish_header import (
    DUP,
    PACKET_IDS,
    PUBACK,
    PUBACK_HEAD,
    PUBCOMP_HEAD,
    PUBLISH,
    PUBREC,
    PUBREC_HEAD,
    PUBREL,
    QOS_1,
    QOS_2,
    QOS_BITS,
    topic_end,
)
from mqttree.broker.wire.varint import encode_varint

ANY = 2
"""The highest QoS of all."""


class LowerQos:
    """What one leg knows of it."""

    __slots__ = ("_answers", "_capability", "_granted", "_lowered", "_proved", "lowered")

    def __init__(self) -> None:
        self.lowered = 0
        """Messages that crossed at a lower QoS than they had here."""
        self._capability = self._granted = self._proved = ANY
        self._lowered: set[int] = set()  # identifiers of those whose PUBACK is to be a PUBREC
        self._answers: list[bytes] = []  # for this broker

    @property
    def taken(self) -> int:
        """The highest QoS that the foreign broker takes, as far as is known."""
        return min(self._capability, self._granted, self._proved)

    # ---------------------------------------------------------------- what is known

    def accepted(self, capability: int) -> None:
        """Note what CONNACK says, `capability`, of a new connection."""
        self._capability = capability
        self._lowered.clear()
        self._answers.clear()

    def granted(self, most: int) -> None:
        """Note that `most` is the highest QoS that SUBACK grants of all for which 2 was asked. QoS
        0 says nothing of what it takes."""
        self._granted = max(1, most)

    def other_broker(self) -> None:
        """Note that the leg is at another address, where there may be another broker."""
        self._granted = self._proved = ANY

    def look_for_proof(self, packets: bytes, in_flight: Collection[int]) -> bool:
        """Return whether the foreign broker is found to answer QoS 2 as QoS 1. `packets`: the last
        ones of it before this broker closed the leg's session; `in_flight`: identifiers of messages
        at QoS 2 that wait for PUBREC here."""
        if self._proved == ANY and in_flight:
            for begin, body, _ in places(packets):
                number = int.from_bytes(packets[body : body + 2], "big")
                if packets[begin] == PUBACK and number in in_flight:
                    self._proved = 1
                    return True
        return False

    # ---------------------------------------------------------------- messages

    def outwards(self, packets: bytes) -> bytes:
        """Return what goes to the foreign broker. `packets`: whole ones of types that cross, to one
        that does not take all QoS."""
        most = self.taken
        parts = []
        for begin, body, end in places(packets):
            first = packets[begin]
            if first == PUBREL:
                self._answers.append(PUBCOMP_HEAD + packets[body : body + 2])
            elif first & 0xF0 == PUBLISH and (first & QOS_BITS) >> 1 > most:
                parts.append(self._lower(first, packets[body:end], most))
            else:
                parts.append(packets[begin:end])
        return b"".join(parts)

    def _lower(self, first: int, body: bytes, most: int) -> bytes:
        """Return a PUBLISH of a lower QoS. `first`, `body`: of it; `most`: its new QoS."""
        self.lowered += 1
        begin = topic_end(body, 0)
        number = int.from_bytes(body[begin : begin + 2], "big")
        if most:
            self._lowered.add(number)
            return b"%c%b%b" % (first ^ (QOS_1 | QOS_2), encode_varint(len(body)), body)
        answer = PUBREC_HEAD if first & QOS_2 else PUBACK_HEAD
        self._answers.append(answer + PACKET_IDS[number])
        head = first & ~(QOS_BITS | DUP)
        return b"%c%b%b%b" % (head, encode_varint(len(body) - 2), body[:begin], body[begin + 2 :])

    def inwards(self, packets: bytes) -> bytes:
        """Return what the foreign broker sent as this one expects it. `packets`: whole ones of
        types that cross."""
        if not self._lowered:
            return packets
        parts = []
        for begin, body, end in places(packets):
            part = packets[begin:end]
            if packets[begin] == PUBACK:
                number = int.from_bytes(packets[body : body + 2], "big")
                if number in self._lowered:
                    self._lowered.discard(number)
                    part = b"%c%b" % (PUBREC, part[1:])
            parts.append(part)
        return b"".join(parts)

    def take_answers(self) -> bytes:
        """Drain what this broker is to get in place of the foreign one's answers."""
        answers, self._answers = self._answers, []
        return b"".join(answers)
