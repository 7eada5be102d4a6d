"""The packets of a stream, as objects."""

from __future__ import annotations

from mqttree.broker.wire.constants import MAX_PACKET_SIZE, V5
from mqttree.broker.wire.decode import decode_packet
from mqttree.broker.wire.errors import WireError
from mqttree.broker.wire.packets import Connect, Packet
from mqttree.broker.wire.reader import PacketReader


class Decoder:
    """Makes packet objects of a stream of chunks. `version` (3, 4, 5) changes to that of a CONNECT
    that passes. A packet of more than `max_packet_size` bytes is an error. `ping_payload` may be
    set at any time, for a connection that turns out to be a link between brokers."""

    __slots__ = ("_reader", "ping_payload", "version")

    def __init__(
        self,
        version: int = V5,
        max_packet_size: int = MAX_PACKET_SIZE,
        *,
        ping_payload: bool = False,
    ) -> None:
        self.version = version
        self.ping_payload = ping_payload
        self._reader = PacketReader(max_packet_size)

    def receive(self, data: bytes) -> list[Packet]:
        """Return the packets that the next chunk completes. Raises WireError; its `packets` holds
        those that were decoded before the fault. The decoder stays failed."""
        fault: WireError | None = None
        try:
            raw = self._reader.feed(data)
        except WireError as error:
            raw, fault = error.packets, error
        packets: list[Packet] = []
        try:
            for first, body in raw:
                packet = decode_packet(first, body, self.version, ping_payload=self.ping_payload)
                if isinstance(packet, Connect):
                    self.version = packet.version
                packets.append(packet)
        except WireError as error:
            self._reader.error = fault = error
        if fault is not None:
            fault.packets = list(packets)
            raise fault
        return packets
