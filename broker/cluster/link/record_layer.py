"""Links between brokers with the cluster secret, byte for byte: encrypted, authenticated, in order,
nothing left out.

A record is 0x00 (no MQTT packet begins so), its length as MQTT writes it, and that many bytes: up
to RECORD_BYTES of the link's packets under AES-256-GCM, with a tag of 16 bytes at the end. Each
direction has its own key, and its records are numbered: the number is the nonce and is not sent.
Packets are cut wherever a record is full. Records are made when the link's bytes are handed to the
transport, so that control packets overtake the queue.
"""

from __future__ import annotations

from typing import Protocol

from mqttree.broker.base.link_keys import next_key
from mqttree.broker.core.connection import Connection, Owner, Transport
from mqttree.broker.wire.errors import WireError
from mqttree.broker.wire.publish_header import packet_size
from mqttree.broker.wire.varint import encode_varint, read_length

RECORD = 0
"""The first byte of a record."""
TAG_BYTES = 16
RECORD_BYTES = 64 * 1024
"""bytes of packets in one record of a link that a secret protects: AES-GCM is at its best speed
there, and a neighbour that is not believed before its record is whole makes us hold no more. A
longer record closes the link [link_tampered]."""
PIECES = 32
"""pieces (headers and records) that are handed to the transport at once: 1 MiB of records."""


class RecordError(ValueError):
    """Bytes that are not a record of the other end: altered, injected, replayed or left out on
    the way."""


class Protected(Protocol):
    """What records protect: a link."""

    def packets(self, data: bytes, now: float) -> int:
        """Handle the whole packets at the start of `data`; returns how many bytes were used up."""

    def on_connection_lost(self, reason: str, now: float) -> None:
        """Note that the connection is gone; called once."""

    def control_first(self) -> bytes:
        """Return bytes that overtake queued data (BPDUs), or b""."""

    def drained(self, now: float) -> None:
        """Note that the peer has caught up with everything that waited for it."""

    @property
    def conn(self) -> Connection:
        """The connection on which the link sends and receives records."""

    def protect(self, layer: RecordLayer, /) -> None:
        """What it writes and reads goes through `layer` from now on."""

    def tampered(self, fault: str, /) -> None:
        """Note that what came is no record of the other end."""


class Cipher:
    """One direction: it seals or opens records, in order."""

    __slots__ = ("_aead", "_key", "_most", "_number")

    def __init__(self, key: bytes, records: int) -> None:
        """`key`: the first one; `records`: how many there are under each."""
        self._most = records
        self._begin(key)

    def _begin(self, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._key = key
        self._aead = AESGCM(key)
        self._number = 0

    def _nonce(self) -> bytes:
        """Return the nonce of the next record; no two records of a key have the same."""
        if self._number >= self._most:
            self._begin(next_key(self._key))
        self._number += 1
        return self._number.to_bytes(12, "big")

    def seal(self, data: bytes | memoryview) -> bytes:
        """Return the body of the next record."""
        return self._aead.encrypt(self._nonce(), data, None)

    def open(self, body: memoryview) -> bytes:
        """Return what is in the body of the next record. Raises RecordError: it is not that
        record."""
        from cryptography.exceptions import InvalidTag

        try:
            return self._aead.decrypt(self._nonce(), body, None)
        except InvalidTag:
            raise RecordError("a record that the other broker did not send so") from None


class RecordLayer(Owner):
    """Stands between a link and its connection on both sides: the `Transport` that the link's bytes
    go to, and the `Owner` of the connection, which gives the link what is in the records."""

    __slots__ = (
        "_have",
        "_link",
        "_need",
        "_opener",
        "_parts",
        "_sealer",
        "close",
        "conn",
        "under",
    )

    def __init__(
        self,
        link: Protected,
        sends: bytes,
        receives: bytes,
        records: int,
    ) -> None:
        """Put it in place.

        `link`: what it protects; `sends`, `receives`: the keys of the two directions; `records`:
        how many there are under each key.
        """
        conn = link.conn
        self.conn: Connection = conn
        self._link = link
        self.under: Transport = conn.transport
        self.close = self.under.close
        self._sealer = Cipher(sends, records)
        self._opener = Cipher(receives, records)
        self._parts: list[bytes] = []  # of a packet that is longer than what has come
        self._have = 0
        self._need = 0
        conn.transport = self
        conn.owner = self
        link.protect(self)

    # ---------------------------------------------------------------- the Transport

    def write(self, data: bytes) -> None:
        """Send bytes as records; may call `Connection.pause` before it returns."""
        seal = self._sealer.seal
        size = len(data)
        if size <= RECORD_BYTES:
            self.under.write(b"\0" + encode_varint(size + TAG_BYTES) + seal(data))
            return
        view = memoryview(data)
        pieces: list[bytes] = []
        for at in range(0, size, RECORD_BYTES):
            piece = view[at : at + RECORD_BYTES]
            pieces += (b"\0" + encode_varint(len(piece) + TAG_BYTES), seal(piece))
            if len(pieces) >= PIECES:
                self.under.write(b"".join(pieces))
                pieces.clear()
        if pieces:
            self.under.write(b"".join(pieces))

    def abort(self) -> None:
        """Close the connection below at once; what has not gone out is lost."""
        self.under.abort()

    def pause_reading(self) -> None:
        """Stop reading from the connection below."""
        self.under.pause_reading()

    def resume_reading(self) -> None:
        """Read again from the connection below."""
        self.under.resume_reading()

    def unread(self) -> bool:
        """Hand over some of what the other end has sent."""
        return self.under.unread()

    def unsent(self) -> int:
        """Return the bytes of records that the other end's system has not taken yet."""
        return self.under.unsent()

    # ---------------------------------------------------------------- the Owner

    @property
    def mid_packet(self) -> bool:
        """True while part of a packet has come and the rest is on its way."""
        return bool(self._parts)

    def packets(self, data: bytes, now: float) -> int:
        """Give the link what is in the whole records at the start of `data`, at `now` (s); returns
        the bytes used. A RecordError closes the link (`Link.tampered`)."""
        position = 0
        size = len(data)
        opened: list[bytes] = []
        view = memoryview(data)
        fault = ""
        try:
            while position < size:
                if data[position] != RECORD:
                    raise RecordError("bytes that are not encrypted")
                length, body = read_length(data, position + 1)
                if body < 0:
                    break
                if not TAG_BYTES < length <= RECORD_BYTES + TAG_BYTES:
                    raise RecordError(f"a record of {length} bytes")
                if body + length > size:
                    break
                opened.append(self._opener.open(view[body : body + length]))
                position = body + length
        except (RecordError, WireError) as error:
            fault = str(error)
        # Something was opened, or the link has rested, with whole packets that wait.
        if opened or (self._parts and self._have >= self._need):
            self._deliver(opened, now)
        if fault:
            if not (self.conn.closing or self.conn.closed):
                self._link.tampered(fault)
            return size
        return position

    def _deliver(self, opened: list[bytes], now: float) -> None:
        """Give the link its packets as far as they are whole; linear in their size also for one in
        many records."""
        parts = self._parts
        if parts:
            parts += opened
            self._have += sum(map(len, opened))
            if self._have < self._need:
                return
            opened = parts
        data = opened[0] if len(opened) == 1 else b"".join(opened)
        parts.clear()
        conn = self.conn
        used = self._link.packets(data, now)
        if used < len(data) and not (conn.closing or conn.closed):
            rest = data[used:]
            parts.append(rest)
            self._have = len(rest)
            self._need = packet_size(rest)
            if conn.held:
                conn.come_back()

    def on_connection_lost(self, reason: str, now: float) -> None:
        """Note that the connection broke."""
        self._link.on_connection_lost(reason, now)

    def control_first(self) -> bytes:
        """Control packets overtake the data that waits."""
        return self._link.control_first()

    def drained(self, now: float) -> None:
        """Tell the link that the other end has caught up."""
        self._link.drained(now)
