"""What a client was not sent any more when it went: messages whose packets had not left this broker
(docs/decisions/0016).

A QoS 2 message that was sent and not answered may have been received, and is for this session
alone. A broker that was stopped, or has much to do, hands messages to connections that ended a
while ago; no client has received what it had not written yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from mqttree.broker.wire.constants import PacketType
from mqttree.broker.wire.publish_header import DUP, QOS_BITS, packet_id_at, topic_end
from mqttree.broker.wire.varint import read_length

if TYPE_CHECKING:
    from mqttree.broker.core.client import Client


def note_unsent(client: Client) -> None:
    """Note it for a client whose connection is gone, as nothing more is written to that."""
    session, conn, journal = client.session, client.conn, client.node.journal
    if session.conn is conn and session.expiry and session.inflight:
        gated = journal.gated_output(conn)
        session.unsent = identifiers((*conn.backlog, *gated, *session.outbox))


def disconnected(client: Client) -> None:
    """Note it for a client that says that it goes: what is about to be sent in this turn is left
    out."""
    session, outbox = client.session, client.session.outbox
    if session.conn is client.conn and session.expiry and session.inflight and outbox:
        session.unsent = identifiers(data for data in outbox if data[0] >> 4 == PacketType.PUBLISH)
        outbox[:] = [data for data in outbox if data[0] >> 4 != PacketType.PUBLISH]


def identifiers(packets: Iterable[bytes]) -> set[int]:
    """Return the packet identifiers of messages that are sent for the first time among these whole
    packets."""
    found: set[int] = set()
    for data in packets:
        at = 0
        while at < len(data):
            length, body = read_length(data, at + 1)
            if data[at] >> 4 == PacketType.PUBLISH and data[at] & QOS_BITS and not data[at] & DUP:
                found.add(packet_id_at(data, topic_end(data, body)))
            at = body + length
    return found
