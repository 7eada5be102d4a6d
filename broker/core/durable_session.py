"""A session that survives its broker: what `Session` does, recorded (docs/decisions/0021).

A session becomes one of these when a client wants it kept and the broker has a journal, and an
ordinary one again when it is over. So sessions that nobody keeps cost nothing more than ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.core.message import PACKET_IDS
from broker.core.session import RELEASED, Outgoing, Session, SharedOutgoing

if TYPE_CHECKING:
    from broker.core.publish_run import PublishRun
    from broker.persistence.journal import Journal


class DurableSession(Session):
    """See above. It has no attributes of its own: the class of a session changes while it lives."""

    __slots__ = ()

    @property
    def _journal(self) -> Journal:
        assert self.keeper is not None
        return self.keeper

    # ---------------------------------------------------------------- out

    def deliver_batch(self, batch: PublishRun) -> None:
        """Send a run of QoS 1 or 2 packets."""
        super().deliver_batch(batch)
        last = self.next_packet_id
        if isinstance(self.inflight.get(last), bytes):  # else one by one, each recorded
            self._journal.sent_run(self, last - batch.count + 1, batch)

    def _transmit(self, outgoing: Outgoing) -> None:
        super()._transmit(outgoing)
        packet_id = self.next_packet_id
        if self.pumping:
            self._journal.pumped(self, packet_id, 1, outgoing.message, outgoing.qos)
            if packet_id not in self.inflight:  # too large for the client
                self._journal.settled(self, b"\x40\x02" + PACKET_IDS[packet_id])
        elif packet_id in self.inflight:
            self._journal.sent(self, packet_id, outgoing)

    def _append(self, outgoing: Outgoing, *, kept: bool = False) -> bool:
        if not super()._append(outgoing, kept=kept):
            return False
        self._journal.queued(self, outgoing)
        return True

    def pump(self) -> None:
        """Move waiting messages into the window as far as it goes."""
        self.pumping = True
        try:
            super().pump()
        finally:
            self.pumping = False

    def _pump_plain(self) -> bool:
        waiting = len(self.queue)
        first = self.queue[0]
        if not super()._pump_plain():
            return False
        count = waiting - len(self.queue)
        last = self.next_packet_id
        qos = max(self.qos_in_flight(number) for number in range(last - count + 1, last + 1))
        self._journal.pumped(self, last - count + 1, count, first.message, qos)
        return True

    def _repeat(self, packet_id: int, outgoing: Outgoing) -> None:
        super()._repeat(packet_id, outgoing)
        if packet_id not in self.inflight:  # too large for the client
            self._journal.settled(self, b"\x40\x02" + PACKET_IDS[packet_id])

    # ---------------------------------------------------------------- acknowledgements

    def acknowledged(self, packet_id: int) -> bool:
        """PUBACK."""
        if self.qos_in_flight(packet_id) == 1:
            self._journal.settled(self, b"\x40\x02" + PACKET_IDS[packet_id])
        return super().acknowledged(packet_id)

    def received(self, packet_id: int, reason: int) -> bool:
        """PUBREC."""
        if self.qos_in_flight(packet_id) == 2:
            self._journal.settled(
                self, (b"\x70\x02" if reason >= 0x80 else b"\x50\x02") + PACKET_IDS[packet_id]
            )
        return super().received(packet_id, reason)

    def completed(self, packet_id: int) -> bool:
        """PUBCOMP."""
        if self.inflight.get(packet_id) is RELEASED:
            self._journal.settled(self, b"\x70\x02" + PACKET_IDS[packet_id])
        return super().completed(packet_id)

    def revoke(self) -> list[SharedOutgoing]:
        """Drop what waits and may not be received any more."""
        waiting = len(self.queue)
        dropped = super().revoke()
        if len(self.queue) != waiting:
            self._journal.whole(self)
        return dropped
