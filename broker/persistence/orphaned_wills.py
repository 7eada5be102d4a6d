"""Wills of clients whose connections ended with their broker: it was killed. It publishes them
itself when it has started again, or its standby does. Pure."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from mqttree.broker.cluster.sessions.session_entries import entries_of
from mqttree.broker.core.wills import delay_of
from mqttree.broker.persistence.records import NAMED
from mqttree.broker.persistence.will_record import decode_will
from mqttree.broker.wire.errors import WireError

if TYPE_CHECKING:
    from mqttree.broker.cluster.cluster import Cluster
    from mqttree.broker.persistence.ports import JournalBroker
    from mqttree.broker.persistence.records import SessionRecord
    from mqttree.broker.wire.packets import Will


class OrphanedWills:
    """Publishes wills of clients that have connected nowhere since."""

    def __init__(self, node: JournalBroker, cluster: Cluster) -> None:
        """`node`, `cluster`: this broker."""
        self._node = node
        self._cluster = cluster

    def add(
        self, record: SessionRecord, heard: float, since: float, then: Callable[[], None]
    ) -> None:
        """Publish the will in the `record` of a session, if there is one, when its Will Delay
        Interval is over and the sessions at other brokers are known. `heard`: when its broker was
        alive (s), what others have written since wins over the will; `since`: when the delay begins
        (s); `then` is called when the will is published, or not to be."""
        with suppress(WireError, UnicodeDecodeError, IndexError, struct.error):
            will = decode_will(record.will)
            if will is not None:
                due = since + min(delay_of(will), record.expiry)
                self._node.timers.schedule(
                    due, lambda now: self._due(record, heard, will, then, now)
                )

    def _due(
        self, record: SessionRecord, heard: float, will: Will, then: Callable[[], None], now: float
    ) -> None:
        def known(at: float) -> None:
            self._publish(record, heard, will)
            then()

        if self._cluster.barrier.admits(now, known):
            known(now)

    def _publish(self, record: SessionRecord, heard: float, will: Will) -> None:
        node = self._node
        client_id = record.client_id.decode()
        own = node.sessions.get(client_id)
        stamps = [entry.stamp for _, entry in entries_of(self._cluster.database, client_id)]
        if max([*stamps, 0 if own is None else own.stamp]) > record.stamp:
            return
        session = node.session_registry.new(client_id)
        session.stamp, session.heard, session.will = record.stamp, heard, will
        if record.listener is not None:
            session.permissions = node.access_control.permissions(
                record.username.decode() if record.flags & NAMED else None,
                client_id,
                record.listener.decode(errors="replace"),
            )
        node.wills.publish(session)
