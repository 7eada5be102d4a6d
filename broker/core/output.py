"""What goes out at the end of a turn: each outbox is handed to its transport once, or waits for the
journal."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from mqttree.broker.core.core_broker import CoreBroker
from mqttree.broker.core.delivery_queue import DeliveryQueue
from mqttree.broker.core.session import Session

if TYPE_CHECKING:
    from mqttree.broker.core.connection import Connection
    from mqttree.broker.core.ports import Journal


def deliver_run(
    dirty: list[Connection | DeliveryQueue], targets: Sequence[Session], chunk: bytes, messages: int
) -> int:
    """Give a run of QoS 0 packets, perhaps of several topics, to those who all get all of it as it
    is; return how many packets that is for all of them together.

    `dirty`: whose outbox is not empty; `targets`: who gets it; `chunk`: its bytes, `messages`
    packets.
    """
    for session in targets:
        outbox = session.outbox
        if not outbox:
            dirty.append(session)
        outbox.append(chunk)
    return messages * len(targets)


class Sender(CoreBroker, Protocol):
    """What output asks of its broker."""

    @property
    def journal(self) -> Journal:
        """Records what is to survive a restart of this broker."""


class Output:
    """The outboxes of one broker that are not empty."""

    __slots__ = ("_broker", "_unheld", "at_end", "dirty", "on_flush")

    def __init__(self, broker: Sender, unheld: deque[Connection]) -> None:
        """`unheld`: publishers that are to go on when what was sent to others is out."""
        self._broker = broker
        self._unheld = unheld
        self.dirty: list[Connection | DeliveryQueue] = []
        """Whose outbox is not empty; whoever appends to an empty one lists it. Always the same
        list."""
        self.at_end: list[Callable[[], None]] = []
        """What is called once, at the end of this turn."""
        self.on_flush: Callable[[Sequence[Connection | DeliveryQueue]], None] | None = None
        """Is shown what has something to send, ahead of its transport."""

    def flush(self, source: Connection | None = None) -> None:
        """Hand every outbox to its transport, each once; then handle what held publishers had sent
        whose subscribers have caught up; then end the journal's frame.

        `source`: the only connection that was read since the last flush; it is held for subscribers
        that turn out to be too slow. None: several were read, or none.
        """
        if self.dirty:
            self._hand_over(source)
        if self._unheld:
            self._resume_publishers()
        self.end_frame()
        if self.at_end:
            calls, self.at_end = self.at_end, []
            for call in calls:
                call()

    def end_frame(self) -> None:
        """End the journal's frame, which becomes an effect."""
        journal = self._broker.journal
        if journal.recording:
            journal.seal()

    def _resume_publishers(self) -> None:
        """Handle what publishers had sent that are not held any more."""
        unheld = self._unheld
        while unheld:
            conn = unheld.popleft()
            conn.go_on(self._broker.now)
            self._hand_over(conn)

    def _hand_over(self, source: Connection | None) -> None:
        dirty = self.dirty
        if self.on_flush is not None:
            self.on_flush(dirty)
        for outlet in dirty:  # it grows meanwhile: closing a slow consumer may queue wills
            outbox = outlet.outbox
            if outbox:
                conn = outlet.conn
                if conn is None:
                    if isinstance(outlet, Session):
                        outlet.store_missed_runs()
                    outbox.clear()
                elif conn.gate:
                    self._broker.journal.gate_output(conn, outbox, source)
                else:
                    conn.flush(outbox, source)
        dirty.clear()
