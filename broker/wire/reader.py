"""Packets from a byte stream that is cut anywhere."""

from __future__ import annotations

from mqttree.broker.wire.constants import MAX_PACKET_SIZE, ReasonCode
from mqttree.broker.wire.errors import MalformedPacket, ProtocolViolation, WireError


class PacketReader:
    """Cuts a stream into packets: feed it chunks, it returns (first byte, body) of each packet that
    is complete.

    ``max_packet_size`` limits a whole packet, fixed header included (bytes; MQTT 5, 3.1.2.11.4). A
    larger one is refused as soon as its header has been read, before any of its body is kept.
    Memory is what the incomplete last packet has brought so far; time is linear in the bytes fed,
    however small the chunks.
    """

    __slots__ = ("_body", "_first", "_header", "_missing", "error", "max_packet_size")

    def __init__(self, max_packet_size: int = MAX_PACKET_SIZE) -> None:
        self.max_packet_size = max_packet_size
        self.error: WireError | None = None
        # Bytes of an incomplete fixed header, at most four.
        self._header = b""
        self._first = 0
        # Bytes of an incomplete body.
        self._body = bytearray()
        # How many bytes of it are still to come; 0 between packets.
        self._missing = 0

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Return the packets that the next chunk completes. Raises MalformedPacket for a Remaining
        Length of more than four bytes, ProtocolViolation (0x95) for a packet beyond the limit;
        `packets` of the error holds those that were complete before it. After that every call
        raises the same error, with no packets."""
        if self.error is not None:
            self.error.packets = []
            raise self.error
        packets: list[tuple[int, bytes]] = []
        pos = 0
        if self._missing:
            pos = min(self._missing, len(data))
            self._body += data[:pos]
            self._missing -= pos
            if self._missing:
                return packets
            packets.append((self._first, bytes(self._body)))
            self._body = bytearray()
        elif self._header:
            data = self._header + data
            self._header = b""
        try:
            self._cut(data, pos, packets)
        except WireError as error:
            error.packets = list(packets)
            self.error = error
            raise
        return packets

    def _cut(self, data: bytes, pos: int, packets: list[tuple[int, bytes]]) -> None:
        """Append the packets of ``data`` from ``pos`` on, and keep what is left for the next
        chunk."""
        end = len(data)
        while pos + 1 < end:
            length = data[pos + 1]
            start = pos + 2
            if length > 127:
                length &= 0x7F
                shift = 7
                while True:
                    if shift == 28:
                        raise MalformedPacket("Remaining Length is longer than four bytes")
                    if start == end:
                        self._header = data[pos:]
                        return
                    byte = data[start]
                    start += 1
                    length |= (byte & 0x7F) << shift
                    shift += 7
                    if byte < 0x80:
                        break
            stop = start + length
            if stop - pos > self.max_packet_size:
                size = stop - pos
                message = f"packet of {size} bytes exceeds the limit of {self.max_packet_size}"
                raise ProtocolViolation(message, ReasonCode.PACKET_TOO_LARGE)
            if stop > end:
                self._first = data[pos]
                self._body = bytearray(data[start:])
                self._missing = stop - end
                return
            packets.append((data[pos], data[start:stop]))
            pos = stop
        self._header = data[pos:]
