"""Packets of one chunk that durable sessions get: they are one record of the journal, as they
came."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqttree.broker.core.message import NO_NAME, Name

if TYPE_CHECKING:
    from mqttree.broker.core.client import Client


class RecordedStretch:
    """PUBLISH packets with one first byte that follow each other in a chunk, each of which at least
    one durable session has in flight. Whoever sends one (`send_recorded`) adds it; nothing else
    may be recorded before `flush`."""

    __slots__ = ("begin", "client", "count", "data", "deliveries", "end", "name")

    def __init__(self, client: Client, data: bytes) -> None:
        """`client`: the publisher; `data`: the chunk."""
        self.client = client
        self.data = data
        self.begin = 0
        """Where the first packet begins."""
        self.end = -1
        """Where the last one ends; -1: there is none."""
        self.count = 0
        self.name: Name = NO_NAME
        """Of the first message; the others follow it."""
        self.deliveries: list[int] = []
        """As of `Journal.packets_published`."""

    def flush(self) -> int:
        """Have what was added recorded; returns the number of its last message, 0 if there is
        none."""
        count = self.count
        if not count:
            return 0
        client = self.client
        packets = self.data[self.begin : self.end]
        number = client.node.journal.packets_published(
            packets, client.version, count, self.deliveries, client.conn, self.name
        )
        self.end = -1
        self.count = 0
        self.deliveries = []
        return number + count - 1
