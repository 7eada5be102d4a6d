"""The packets of a leg: what a foreign broker sends is passed on to this one as it is.

A client that sends bad input is closed. A foreign broker is not ours to mend: it would send the
same again on each connection, and nothing behind it would come. So a packet that is not acceptable
is answered as if this broker refused that one message, and counted; the leg stays up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mqttree.broker.core.capabilities import UNLIMITED
from mqttree.broker.core.client_packets import ClientPackets
from mqttree.broker.core.publish import acknowledge, aliased, refuse
from mqttree.broker.leg.packets import DROPPED
from mqttree.broker.wire.constants import PacketType, ReasonCode
from mqttree.broker.wire.decode import decode_publish
from mqttree.broker.wire.errors import MalformedPacket, WireError
from mqttree.broker.wire.packets import Publish
from mqttree.broker.wire.properties import Property
from mqttree.broker.wire.publish_header import (
    PACKET_IDS,
    PUBREL_HEAD,
    QOS_BITS,
    packet_id_at,
    topic_end,
)
from mqttree.broker.wire.strings import encode_string

if TYPE_CHECKING:
    from mqttree.broker.core.client import ClientHost
    from mqttree.broker.core.connection import Connection
    from mqttree.broker.core.session import Session
    from mqttree.broker.wire.packets import Connect

_DROPPED: Final = encode_string(DROPPED)


class LegPackets(ClientPackets):
    """A client that is a leg of this broker."""

    __slots__ = ()

    def __init__(
        self, node: ClientHost, conn: Connection, session: Session, connect: Connect
    ) -> None:
        """`node`: this broker; `conn`: the leg's connection; `session`: its session; `connect`: its
        CONNECT packet."""
        super().__init__(node, conn, session, connect)
        # The foreign broker may not keep to it.
        self.window = None
        self.most_incoming = UNLIMITED

    def _packet(self, first: int, body: bytes) -> None:
        try:
            if first >> 4 == PacketType.PUBLISH and body[: len(_DROPPED)] == _DROPPED:
                self._drop(decode_publish(first, body, self.version))
            else:
                super()._packet(first, body)
        except WireError as error:
            kind = first >> 4
            if kind == PacketType.PUBLISH:
                self._refuse(first, body, error)
            elif kind not in (
                PacketType.PUBACK,
                PacketType.PUBREC,
                PacketType.PUBREL,
                PacketType.PUBCOMP,
            ):
                raise
            elif len(body) > 1 and (packet_id := packet_id_at(body, 0)):
                self._settle(kind, packet_id, body[2] if len(body) > 2 else 0, error)

    def _drop(self, packet: Publish) -> None:
        """Acknowledge a message that the leg has dropped. Raises ProtocolViolation for an alias
        that is too high."""
        aliased(self, DROPPED.encode(), (packet.properties or {}).get(Property.TOPIC_ALIAS))
        acknowledge(self, packet.qos, packet.packet_id or 0)

    def _refuse(self, first: int, body: bytes, error: WireError) -> None:
        """Answer a PUBLISH that cannot be published, if it has an identifier. `first`: its first
        byte; `body`: what is behind its length; `error`: what is wrong with it."""
        node = self.node
        if isinstance(error, MalformedPacket):
            node.counters.malformed += 1
        else:
            node.counters.protocol_errors += 1
        text = f"{self.conn.peer}: {error.message}; the message is dropped"
        node.log_limit.line("warning", error.message, self.conn.peer, text)
        qos = (first & QOS_BITS) >> 1
        at = topic_end(body, 0) if len(body) > 1 else len(body)
        packet_id = packet_id_at(body, at) if qos and at + 2 <= len(body) else 0
        refuse(
            self,
            qos if packet_id else 0,
            packet_id,
            ReasonCode.UNSPECIFIED_ERROR,
            error.message,
        )

    def _settle(self, kind: int, packet_id: int, code: int, error: WireError) -> None:
        """Take an acknowledgement of the type `kind` that is malformed, has a Reason Code of
        another packet, or is none that its message waits for: a message is over then.

        `packet_id`, `code`: what it says; `error`: what is wrong with it.

        Raises:
            WireError: `error`: QoS 2 is answered as QoS 1. The leg learns from it which QoS the
                foreign broker takes.
        """
        session = self.session
        if kind == PacketType.PUBREL:
            self._pubrel(PUBREL_HEAD[0], PACKET_IDS[packet_id])
        elif kind == PacketType.PUBREC and code < 0x80 and session.qos_in_flight(packet_id) != 1:
            session.on_pubrec(packet_id, 0)
            self.send(PUBREL_HEAD + PACKET_IDS[packet_id])
        elif kind == PacketType.PUBACK and code < 0x80 and session.qos_in_flight(packet_id) == 2:
            raise error
        elif not (session.on_puback(packet_id) or session.on_pubrec(packet_id, 0x80)):
            session.on_pubcomp(packet_id)
