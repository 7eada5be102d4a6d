"""Retained messages that went to the foreign broker and are not confirmed. Pure.

A value is in the base once it is certain that the foreign broker has it: at QoS 1 by PUBACK, at QoS
2 by PUBCOMP, at QoS 0 by the answer to a PINGREQ behind it. Until then the value before it stays:
at worst a merge finds a conflict where there is none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from mqttree.broker.leg.retained_base import RetainedBase, Standing
from mqttree.broker.leg.retained_digest import key_of
from mqttree.broker.wire.constants import ReasonCode
from mqttree.broker.wire.publish_header import PUBACK, PUBCOMP, PUBREC
from mqttree.broker.wire.varint import read_length

ACKNOWLEDGING = (PUBACK, PUBREC, PUBCOMP)
MOST = 100_000
"""Messages at QoS 0 that wait for the answer to a PINGREQ; the oldest beyond it are given up, so
that their topics keep the base that they had."""
MAYBE = 10_000
"""Topics of which a message may be there or not; of more it is not known."""
UNPROVEN = 10_000
"""Topics that are to be looked for; of more a merge finds out."""


class Unconfirmed:
    """One message. `valid` is False once something came in for its topic: both have crossed."""

    __slots__ = ("digest", "qos", "repeated", "superseded", "topic", "valid")

    def __init__(self, topic: bytes, digest: int, qos: int, *, repeated: bool) -> None:
        """`topic`: its name here; `digest`: of its value, 0: it deletes; `qos`: of it; `repeated`:
        it was sent on an earlier connection, too."""
        self.topic = topic
        self.digest = digest
        self.qos = qos
        self.repeated = repeated
        self.superseded = False
        """A newer one of its topic is there."""
        self.valid = True


class RetainedWatch:
    """What one leg has sent and does not know to be there."""

    __slots__ = (
        "_answers",
        "_base",
        "_by_id",
        "_by_key",
        "_pings",
        "_unnumbered",
        "disordered",
        "maybe",
        "uncertain",
        "unproven",
    )

    def __init__(self, base: RetainedBase) -> None:
        """`base`: of the leg."""
        self._base = base
        self._by_id: dict[int, Unconfirmed] = {}
        self._by_key: dict[int, list[Unconfirmed]] = {}
        self._unnumbered: deque[tuple[int, Unconfirmed]] = deque()
        self._pings = 0  # PINGREQ sent on this connection
        self._answers = 0
        self.unproven: dict[bytes, None] = {}
        """Topics that have to be looked for at the foreign broker: whether it shows them, and took
        them."""
        self.maybe: dict[int, set[int]] = {}
        """Key of a topic -> digests that were sent, of which it is not known which one is there, as
        the connection ended or they took effect in an unknown order; 0 for a deletion. If one of
        them is there it has come from here."""
        self.disordered = False
        """A message was confirmed behind which another one has come, or ahead of an older one:
        which of both is there is not known."""

        self.uncertain = False
        """A message was confirmed that may have been there before, and another one since."""

    @property
    def repeating(self) -> bool:
        """Whether a message was sent again that is not confirmed."""
        return any(each.repeated for sent in self._by_key.values() for each in sent)

    @property
    def numbered(self) -> bool:
        """Whether acknowledgements are waited for."""
        return bool(self._by_id)

    @property
    def wants_ping(self) -> bool:
        """Whether there is a message behind which no PINGREQ was sent."""
        return bool(self._unnumbered) and self._unnumbered[-1][0] > self._pings

    def waits(self, key: int) -> bool:
        """Return whether a message of a topic (`key`) is not confirmed."""
        return key in self._by_key

    def unconfirmed(self) -> Iterable[int]:
        """Return the keys of topics of which a message is not confirmed."""
        return self._by_key.keys()

    def sent(
        self, topic: bytes, digest: int, packet_id: int, qos: int, *, repeated: bool = False
    ) -> None:
        """Note that a message goes there. `topic`: its name here; `digest`: of its value, 0: it
        deletes; `packet_id`: 0 at QoS 0; `qos`: of it; `repeated`: it has DUP."""
        message = Unconfirmed(topic, digest, qos, repeated=repeated)
        if repeated:
            self._note_all(key_of(topic), (message,))
        if packet_id:
            if (old := self._by_id.get(packet_id)) is not None:
                self._remove(old)
            self._by_id[packet_id] = message
        else:
            if len(self._unnumbered) >= MOST:
                self._remove(self._unnumbered.popleft()[1])
            self._unnumbered.append((self._pings + 1, message))
        self._by_key.setdefault(key_of(topic), []).append(message)

    def acknowledged(self, packets: bytes) -> None:
        """Take acknowledgements among whole `packets` of the foreign broker."""
        position = 0
        while position < len(packets) and self._by_id:
            length, body = read_length(packets, position + 1)
            first = packets[position]
            if first in ACKNOWLEDGING:
                packet_id = int.from_bytes(packets[body : body + 2], "big")
                reason = packets[body + 2] if length > 2 else 0
                if reason >= ReasonCode.UNSPECIFIED_ERROR:
                    self._refused(packet_id)
                elif first != PUBREC and (message := self._by_id.pop(packet_id, None)) is not None:
                    self._confirmed(message)
            position = body + length

    def ping_sent(self) -> None:
        """Note that a PINGREQ was sent."""
        self._pings += 1

    def ping_answered(self) -> None:
        """Note that a PINGRESP has come: what was sent ahead of its PINGREQ is there."""
        self._answers += 1
        waiting = self._unnumbered
        while waiting and waiting[0][0] <= self._answers:
            self._confirmed(waiting.popleft()[1])

    def crossed(self, key: int) -> None:
        """Note that something came in for a topic (`key`). If a message of the topic is not
        confirmed, it is not known which of both each side has: a merge settles it."""
        self.maybe.pop(key, None)
        found = self._by_key.get(key)
        if found is not None:
            for message in found:
                message.valid = False
            self._base.forget(key)

    def clear(self) -> None:
        """Note that the connection is lost: what is not confirmed is sent again, or is not
        there."""
        for key, messages in self._by_key.items():
            self._note_all(key, messages)
        self._by_id.clear()
        self._by_key.clear()
        self.unproven.clear()
        self._unnumbered.clear()
        self._pings = self._answers = 0

    def _note_all(self, key: int, messages: Iterable[Unconfirmed]) -> None:
        """Note that one of these messages of a topic (`key`) may be there."""
        if len(self.maybe) < MAYBE:
            self.maybe.setdefault(key, set()).update(each.digest for each in messages)

    def _refused(self, packet_id: int) -> None:
        message = self._by_id.pop(packet_id, None)
        if message is not None:
            self._remove(message)
            key = key_of(message.topic)
            if self._base.standing(key) in (Standing.READ, Standing.PROVEN):
                self._base.note(key, Standing.READ_ONLY)

    def _confirmed(self, message: Unconfirmed) -> None:
        key = key_of(message.topic)
        sent = self._by_key[key]
        at = sent.index(message)
        older, newer = sent[:at], sent[at + 1 :]
        self._remove(message)
        if message.valid and (
            (message.qos != 2 and any(each.qos == 2 for each in older))
            or (message.qos == 2 and any(each.qos != 2 for each in newer))
        ):
            # A message at QoS 2 takes effect when it is complete, perhaps behind newer ones.
            self._note_all(key, (message, *older, *newer))
            message.valid = False
        for each in older:
            each.superseded = each.qos != 2 or message.qos == 2
        if message.repeated or message.superseded:
            # It may have been there before, and something else since.
            self.uncertain = self.uncertain or message.repeated
            return
        if not message.valid:
            for each in (*older, *newer):
                each.valid = False
            self._base.forget(key)
            # No other one will tell.
            self.disordered = self.disordered or key not in self._by_key
            return
        self.maybe.pop(key, None)
        standing = self._base.standing(key)
        if standing is Standing.READ_ONLY:
            # It may have been refused without a word. What is read there decides.
            self._look_for(message.topic)
            return
        self._base.exchanged(key, message.digest)
        if message.digest and standing in (Standing.NEW, Standing.READ):
            self._look_for(message.topic)

    def _look_for(self, topic: bytes) -> None:
        if len(self.unproven) < UNPROVEN:
            self.unproven[topic] = None

    def _remove(self, message: Unconfirmed) -> None:
        key = key_of(message.topic)
        found = self._by_key.get(key)
        if found is not None and message in found:
            found.remove(message)
            if not found:
                del self._by_key[key]
