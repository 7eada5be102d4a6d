"""Messages for which a foreign broker closes the connection (poison messages). Pure.

With MQTT 3.1.1 a broker has no other way to refuse one. It would get it again with each connection,
and nothing behind it would cross.

    PASSING -closed-> ALONE -closed, for one that was alone-> ALONE, 1 in a row -> ... -> REFUSED
       ^                |                                       |                            |
       +- all answered, any other end, or no listener there ----+      dropped when it comes +

A foreign broker that goes down closes as well, with whatever is in flight. So only this counts: the
leg was up, all else was answered, that one message was sent and nothing behind it, the close came
soon and ahead of an answer, and the address answered a dial at once, which a process that is gone
does not. Any other end, and a dial that fails, begins a new row.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from mqttree.broker.leg.packets import places, refusal
from mqttree.broker.wire.constants import PacketType
from mqttree.broker.wire.publish_header import DUP, QOS_BITS, RETAIN, topic_end
from mqttree.broker.wire.varint import read_length

ROW = 3
"""Connections in a row that the foreign broker has to close for a message."""
SOON = 10.0
"""s behind a message in which a close is for it: as long as a broker has for any answer."""
PAUSE = 5.0
"""s between such connections at least, so that a broker that takes nothing for a moment loses
none."""
ANSWERS = (PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBCOMP)


class Poison(NamedTuple):
    """A message as the foreign broker knows it."""

    packet_id: bytes
    """2 bytes; none at QoS 0."""
    topic: bytes


class PoisonMessages:
    """Finds them for one leg."""

    __slots__ = (
        "_alone",
        "_closed",
        "_confirmed",
        "_held",
        "_row",
        "_sent",
        "_sent_at",
        "_told",
        "careful",
        "lost_retained",
        "refused",
    )

    def __init__(self) -> None:
        self.refused = 0
        """Messages that were dropped."""
        self.careful = False
        """Whether the foreign broker has closed the last connection, and all that it may do so for
        is to be sent one by one."""
        self.lost_retained = False
        """Whether a message with RETAIN was lost at QoS 0; whoever is told of it clears it."""
        self._alone = False  # what is repeated goes one by one
        self._held: deque[bytes] = deque()  # messages queued meanwhile
        self._sent = b""  # the only message that has no answer
        self._sent_at = 0.0  # s
        self._closed = b""  # what the last connection was closed for
        self._confirmed = False  # the address has answered since
        self._row: tuple[Poison | None, int] = None, 0  # how often
        self._told = b""  # what was dropped last

    # ---------------------------------------------------------------- connections

    def connecting(self) -> None:
        """Note that the leg connects."""
        self._alone = self.careful = self._confirmed
        if not self._confirmed:
            self._row = None, 0
        self._confirmed = False
        self._held.clear()
        self._sent = b""

    def on_closed(self, now: float, published: bytes = b"") -> bytes:
        """Note that the foreign broker has closed the connection at `now` (s). Returns the topic of
        the message that it may have closed it for, b"" if that is not known. `published`: the only
        PUBLISH that the leg has made itself and that it does not know to be there."""
        # One that hung before it closed is to blame, and none of the messages; so is none of two.
        late = self._sent and now >= self._sent_at + SOON
        self._closed = b"" if late or (self._sent and published) else self._sent or published
        self._confirmed = False
        return _poison(self._closed).topic if self._closed else b""

    def on_answer(self) -> None:
        """Note that the foreign broker listens, as it has just closed the connection."""
        closed, (last, count) = self._closed, self._row
        self._confirmed = True
        found = _poison(closed) if closed else None
        self._row = found, count + 1 if found == last else 1
        if self._row[1] == ROW and found is not None and not found.packet_id:
            self._refuse(closed)

    def on_lost(self) -> None:
        """Note that a connection has ended in another way, or could not be opened."""
        self._confirmed = False

    # ---------------------------------------------------------------- messages

    def take_refused(self) -> bytes:
        """Drain the PUBLISH that was dropped last, b"": it is known."""
        told, self._told = self._told, b""
        return told

    @property
    def alone(self) -> bool:
        """Whether messages go one by one, or not at all: `outwards` and `take` are to be asked."""
        return self._alone

    def outwards(self, packets: bytes) -> tuple[bytes, bytes]:
        """Return what may go to the foreign broker at once, and what this one gets for what is
        dropped. Messages at QoS 0 are lost, as if the leg were not up yet. `packets`: whole ones of
        types that cross."""
        parts, answer = [], b""
        for begin, _, end in places(packets):
            packet = packets[begin:end]
            if packet[0] >> 4 != PacketType.PUBLISH:
                parts.append(packet)
            elif packet[0] & QOS_BITS:
                found = _poison(packet)
                if self._row[0] == found and self._row[1] >= ROW:
                    self._refuse(packet)
                    answer = refusal(found.packet_id)
                    self._alone = False
                else:
                    self._held.append(packet)
            else:
                self.lost_retained |= packet[0] & RETAIN != 0
        if not self._alone:
            parts += self._held
            self._held.clear()
        return b"".join(parts), answer

    def _refuse(self, packet: bytes) -> None:
        self.refused += 1
        self._told = packet
        self._row = None, 0

    def on_answers(self, packets: bytes) -> None:
        """Take answers among whole `packets` of the foreign broker."""
        if self._sent:
            sent = _poison(self._sent)
            for begin, body, _ in places(packets):
                if packets[begin] >> 4 in ANSWERS and packets[body : body + 2] == sent.packet_id:
                    self._sent = b""
                    if self._row[0] == sent:
                        self._row = None, 0

    def take(self, now: float) -> bytes:
        """Return what may go to the foreign broker now (`now`, s), which has answered all that is
        not a message: the next one of those that are repeated, or, behind them, all queued ones."""
        if self._sent:
            return b""
        if self._held and self._held[0][0] & DUP:
            self._sent, self._sent_at = self._held.popleft(), now
            return self._sent
        self._alone = False
        data = b"".join(self._held)
        self._held.clear()
        return data


def _poison(packet: bytes) -> Poison:
    """Return which message a PUBLISH is."""
    body = read_length(packet, 1)[1]
    at = topic_end(packet, body)
    return Poison(packet[at : at + 2] if packet[0] & QOS_BITS else b"", packet[body + 2 : at])
