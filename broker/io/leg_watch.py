"""What is looked at once a second while a leg is up, as nothing reports it: a full queue, dropped
messages, a foreign broker that is one of this federation."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from mqttree.broker.base.address import Address
from mqttree.broker.base.log_format import log_line
from mqttree.broker.cluster.sessions.session_entries import posted_stamp

if TYPE_CHECKING:
    from mqttree.broker.core.session import Session
    from mqttree.broker.node import Node

DROPPED = {
    "refused_there": "the foreign broker refuses messages; they are dropped",
    "refused_here": "this broker refuses messages of the foreign one; they are dropped",
    "unnamed": "messages have no valid topic on the other side; they are dropped",
}
"""Reasons of drops that are logged, once for each connection."""


class LegWatch:
    """Logs what was found, each once as long as it lasts."""

    def __init__(self, name: str) -> None:
        """`name`: of the leg."""
        self._name = name
        self._said: dict[str, tuple[int, int]] = {}  # drops that were logged, at which connection
        self._dropped = 0  # messages of which the log knows
        self._drops = False  # the queue is full

    def look_at_queue(self, session: Session) -> None:
        """Log once that messages were dropped as the queue of the `session` here was full."""
        if session.dropped_full > self._dropped and not self._drops:
            self._drops = True
            log_line(
                "warning",
                f"leg {self._name}: its queue is full ({len(session.queue)} messages, "
                f"{session.queued_bytes} bytes); new messages are dropped, see queue_full",
            )
        elif 2 * len(session.queue) < session.max_queued:
            self._drops = False
        self._dropped = session.dropped_full

    def look_at_drops(self, drops: Mapping[str, int], connects: int) -> None:
        """Log once for each connection and reason that messages are dropped. `drops`: how many by
        reason, until now; `connects`: how often the leg came up."""
        for reason, text in DROPPED.items():
            count, at = self._said.get(reason, (0, 0))
            if drops[reason] > count:
                if connects > at:
                    log_line("warning", f"leg {self._name}: {text}, see {reason}")
                self._said[reason] = drops[reason], connects


def own_broker(node: Node, client_id: str, transport: asyncio.BaseTransport, now: float) -> str:
    """Return which broker of this federation the foreign one is, "" if it is none.

    `node`: of this broker; `client_id`: of the leg at the foreign broker; `transport`: of the
    connection there; `now`: s.
    """
    session = node.sessions.get(client_id)
    conn = None if session is None else session.conn
    if conn is not None and conn.peer == str(Address(*transport.get_extra_info("sockname")[:2])):
        return "this broker itself"
    cluster = node.cluster
    membership, database = cluster.membership, cluster.database
    there = Address(*transport.get_extra_info("peername")[:2])
    for broker_id, _, addresses, _ in membership.members(now):
        if there in addresses and posted_stamp(database, broker_id, client_id):
            name = membership.name_of(broker_id) or broker_id.hex()
            return f"the broker {name} of this federation"
    return ""
