"""Retained messages at QoS 1 and 2 that went to the foreign broker and are not confirmed. Pure."""

from __future__ import annotations

from mqttree.broker.leg.packets import places
from mqttree.broker.wire.constants import ReasonCode
from mqttree.broker.wire.publish_header import PUBACK, PUBCOMP, PUBREC

ACKNOWLEDGING = (PUBACK, PUBREC, PUBCOMP)


class RetainedWatch:
    """What one leg has sent and does not know to be there, by its names here."""

    def __init__(self) -> None:
        self._by_id: dict[int, tuple[str, int]] = {}  # packet identifier -> topic, QoS
        self._topics: dict[str, list[int]] = {}  # topic -> QoS of its messages
        self._repeated: set[int] = set()  # packet identifiers

    def __bool__(self) -> bool:
        """Whether acknowledgements are waited for."""
        return bool(self._by_id)

    @property
    def repeating(self) -> bool:
        """Whether a message was sent again that is not confirmed."""
        return bool(self._repeated)

    def waits(self, topic: str) -> bool:
        """Return whether a message of a `topic` is not confirmed."""
        return topic in self._topics

    def sent(self, topic: str, packet_id: int, qos: int, *, repeated: bool) -> bool:
        """Note that a message goes there. `topic`: of it; `packet_id`: 0 at QoS 0; `qos`: of it;
        `repeated`: it has DUP. Returns whether an older one may take effect behind it, as one at
        QoS 2 does so when it is complete."""
        disordered = qos != 2 and 2 in self._topics.get(topic, ())
        if packet_id:
            self._confirmed(packet_id)
            self._by_id[packet_id] = topic, qos
            self._topics.setdefault(topic, []).append(qos)
            if repeated:
                self._repeated.add(packet_id)
        return disordered

    def on_acknowledged(self, packets: bytes) -> None:
        """Take acknowledgements among whole `packets` of the foreign broker."""
        for begin, body, end in places(packets):
            first = packets[begin]
            if first in ACKNOWLEDGING:
                refused = end - body > 2 and packets[body + 2] >= ReasonCode.UNSPECIFIED_ERROR
                if first != PUBREC or refused:
                    self._confirmed(int.from_bytes(packets[body : body + 2], "big"))

    def clear(self) -> None:
        """Note that the connection is lost: what is not confirmed is sent again."""
        self._by_id.clear()
        self._topics.clear()
        self._repeated.clear()

    def _confirmed(self, packet_id: int) -> None:
        found = self._by_id.pop(packet_id, None)
        if found is None:
            return
        topic, qos = found
        self._repeated.discard(packet_id)
        waiting = self._topics[topic]
        waiting.remove(qos)
        if not waiting:
            del self._topics[topic]
