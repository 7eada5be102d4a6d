"""Wills of clients whose connections ended with their broker: it was killed. It publishes them
itself when it has started again, or its standby does. Pure."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from mqttree.broker.cluster.sessions.session_entries import newest_stamp
from mqttree.broker.core.wills import delay_of
from mqttree.broker.persistence.will_record import decode_will
from mqttree.broker.wire.errors import WireError

if TYPE_CHECKING:
    from mqttree.broker.cluster.cluster import Cluster
    from mqttree.broker.cluster.sessions.records import SessionRecord
    from mqttree.broker.core.session import Session
    from mqttree.broker.persistence.ports import JournalBroker


class OrphanedWills:
    """Publishes wills of clients that have connected nowhere since."""

    def __init__(self, node: JournalBroker, cluster: Cluster) -> None:
        """`node`, `cluster`: this broker."""
        self._node = node
        self._cluster = cluster

    def add(
        self,
        record: SessionRecord,
        heard: float,
        since: float,
        then: Callable[[], None],
        may: Callable[[], bool] = lambda: True,
    ) -> None:
        """Publish the will in the `record` of a session, if there is one, when its Will Delay
        Interval is over and the sessions at other brokers are known. `heard`: when its broker was
        alive (s), what others have written since wins over the will; `since`: when the delay begins
        (s); `then` is called when the will is published, or not to be; `may` returns whether it may
        be, just before that."""
        with suppress(WireError, UnicodeDecodeError, IndexError, struct.error):
            will = decode_will(record.will)
            client_id, name = record.client_id.decode(), record.username
            username = None if name is None else name.decode()
            if will is None:
                return
            session = self._node.session_registry.new(client_id)
            session.stamp, session.heard, session.will = record.stamp, heard, will
            session.username = username
            session.listener = (
                None if record.listener is None else record.listener.decode(errors="replace")
            )
            self._node.wills.orphans[client_id] = session
            due = since + min(delay_of(will), record.expiry)
            self._node.timers.schedule(due, lambda now: self._due(session, then, may, now))

    def _due(
        self, session: Session, then: Callable[[], None], may: Callable[[], bool], now: float
    ) -> None:
        def publish(at: float) -> None:
            self._publish(session, may)
            then()

        def known(at: float) -> None:
            self._node.wills.when_claimed(publish)

        if self._cluster.barrier.admits(now, known):
            known(now)

    def _publish(self, session: Session, may: Callable[[], bool]) -> None:
        node, client_id = self._node, session.client_id
        if node.wills.orphans.get(client_id) is session:
            del node.wills.orphans[client_id]
        own = node.sessions.get(client_id)
        elsewhere = newest_stamp(self._cluster.database, client_id)
        newest = elsewhere if own is None else max(elsewhere, own.stamp)
        if session.will is None or newest > session.stamp or not may():
            return
        if session.listener is not None:
            session.permissions = node.access_control.permissions(
                session.username, client_id, session.listener
            )
        node.wills.publish(session)
