"""Begins a link to a broker, and ends it before it stands: what the other end says of itself, whom
it refuses and why, and whether it has the cluster secret (docs/reference/link-protocol.md).

    connecting -(TCP, TLS)-> asking -(CONNECT)-> proving -(AUTH)-> proven
         |                     |                    |
         +- unreachable        +- refused, silent, closed, foreign

The prober sends a CONNECT and no AUTH, so that no link comes up and no tree changes.
"""

from __future__ import annotations

import hmac
import os
import socket
import ssl
import time
from typing import NamedTuple

from mqttree.broker.base.address import Address
from mqttree.broker.base.broker_key import BrokerKey, make_key, signed
from mqttree.broker.base.link_keys import NONCE_BYTES, OFFER_BYTES, LinkKeys, Offer, transcript
from mqttree.broker.cluster.link.handshake import AUTHENTICATION, IDENTITY, LINK_PROTOCOL
from mqttree.broker.cluster.link.peer import Peer, peer_of
from mqttree.broker.io.tls import describe_error
from mqttree.broker.wire.constants import ReasonCode
from mqttree.broker.wire.decode import decode_packet
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.errors import WireError
from mqttree.broker.wire.packets import Auth, Connack, Connect
from mqttree.broker.wire.properties import Properties, Property
from mqttree.broker.wire.reader import PacketReader
from mqttree.broker.wire.varint import read_length

PADDING = 16_384
"""bytes: several packets of the largest size, also where that is 9,000."""

TIMEOUT = 5.0
"""s for each answer; a broker gives up a handshake after three."""

MAX_ANSWER = 512 * 1024
"""bytes of one packet before a link is up."""

_IP_MTU, _IPV6_MTU = 14, 24
# From linux/in.h and linux/in6.h; the socket module does not have them.

_TLS_ALERT = 0x15
"""The first byte with which a TLS port answers something else (RFC 8446 5.1)."""


class Prober(NamedTuple):
    """As whom to ask."""

    cluster: str
    key: bytes | None
    """`link_keys.cluster_key` of the secret; None without a secret."""
    routing: str
    context: ssl.SSLContext | None = None
    """TLS of links; None: plain TCP."""
    protocol: int = LINK_PROTOCOL


class Answer(NamedTuple):
    """What came of it."""

    outcome: str
    """unreachable, tls, silent, closed, foreign, refused, wrong-secret, wrong-id or proven."""
    text: str = ""
    """One line: why."""
    code: int = 0
    """The reason code of a refusal."""
    peer: Peer | None = None
    connect_ms: float = 0.0
    """Until the connection stood."""
    mtu: int = 0
    """The path MTU as the system knows it, 0: unknown."""
    proof: bool = False
    """Whether it has proved that it has the secret."""


def probe(
    address: Address, prober: Prober, *, padding: int = 0, timeout: float = TIMEOUT
) -> Answer:
    """Begin a link to `address` as `prober`, and return what came of it.

    `padding`: bytes that make the first packet longer; `timeout`: s for each step. Raises nothing.
    """
    began = time.monotonic()
    try:
        sock = socket.create_connection((address.host, address.port), timeout)
    except (OSError, UnicodeError, OverflowError) as error:
        return Answer("unreachable", describe_error(error))
    taken = (time.monotonic() - began) * 1000
    try:
        # A packet that is larger than a router on the way lets through must not be cut here.
        mtu = _mtu(sock)
        if prober.context is not None:
            try:
                sock = prober.context.wrap_socket(sock, server_hostname=address.host)
            except (OSError, ValueError) as error:
                return Answer("tls", describe_error(error), connect_ms=taken, mtu=mtu)
        return _Exchange(sock, prober, padding).run()._replace(connect_ms=taken, mtu=mtu)
    finally:
        sock.close()


def _mtu(sock: socket.socket) -> int:
    six = sock.family == socket.AF_INET6
    level, option = (socket.IPPROTO_IPV6, _IPV6_MTU) if six else (socket.IPPROTO_IP, _IP_MTU)
    try:
        return sock.getsockopt(level, option)
    except OSError:
        return 0


class _Exchange:
    """One handshake, as far as it goes."""

    def __init__(self, sock: socket.socket, prober: Prober, padding: int) -> None:
        self._sock = sock
        self._prober = prober
        self._padding = padding
        self._key: BrokerKey = make_key(os.urandom(32))
        self._offer = Offer(os.urandom(OFFER_BYTES)) if prober.key is not None else None
        self._body = b""
        self._peer: Peer | None = None
        self._public = b""
        self._transcript = b""
        self._keys: LinkKeys | None = None

    def run(self) -> Answer:
        """Return what came of it."""
        try:
            self._sock.sendall(self._connect())
            return self._read()
        except TimeoutError:
            return Answer("silent", "no answer", peer=self._peer)
        except OSError as error:
            return Answer("closed", describe_error(error), peer=self._peer)
        except WireError as error:
            return Answer("foreign", str(error), peer=self._peer)

    def _connect(self) -> bytes:
        prober, key = self._prober, self._key
        host, port = self._sock.getsockname()[:2]
        offer = os.urandom(NONCE_BYTES) if self._offer is None else self._offer.data
        properties: Properties = {
            Property.USER_PROPERTY: [
                ("cluster", prober.cluster),
                ("routing", prober.routing),
                ("protocol", str(prober.protocol)),
                ("boot", "1"),
                ("address", f"{host}:{port}"),
                ("name", "mqttree doctor"),
                ("capability", "0.0"),
                *([("padding", "-" * self._padding)] if self._padding else ()),
            ],
            Property.AUTHENTICATION_METHOD: IDENTITY if self._offer is None else AUTHENTICATION,
            Property.AUTHENTICATION_DATA: offer + key.public,
        }
        packet = encode_packet(
            Connect("MQTT", 5, True, 2, key.id.hex(), None, None, None, properties, bridge=True), 5
        )
        self._body = packet[read_length(packet, 1)[1] :]
        return packet

    def _read(self) -> Answer:
        """Read packets until one says how it ends. Raises OSError and WireError."""
        reader, first = PacketReader(MAX_ANSWER), True
        while True:
            data = self._sock.recv(65_536)
            if not data and not first and self._peer is None:
                return Answer("foreign", "what it sends is no packet")
            if not data:
                return Answer("closed", "it closes the connection", peer=self._peer)
            if first and data[0] == _TLS_ALERT:
                return Answer("tls", "it wants TLS")
            first = False
            for head, body in reader.feed(data):
                answer = self._packet(head, body)
                if answer is not None:
                    return answer

    def _packet(self, head: int, body: bytes) -> Answer | None:
        packet = decode_packet(head, body, 5)
        if isinstance(packet, Connect) and packet.bridge and self._peer is None:
            return self._introduced(packet, body)
        if isinstance(packet, Auth) and self._peer is not None:
            return self._proved(packet)
        if isinstance(packet, Connack) and packet.code != ReasonCode.SUCCESS:
            said = (packet.properties or {}).get(Property.REASON_STRING, "")
            return Answer("refused", str(said), packet.code, self._peer)
        return Answer("foreign", f"it answers with {type(packet).__name__.upper()}")

    def _introduced(self, connect: Connect, body: bytes) -> Answer | None:
        self._peer = peer_of(connect)
        data: bytes = (connect.properties or {}).get(Property.AUTHENTICATION_DATA, b"")
        size = NONCE_BYTES if self._offer is None else OFFER_BYTES
        self._public = data[size:]
        self._transcript = transcript(self._body, body)
        if self._offer is not None and self._prober.key is not None:
            try:
                shared = self._offer.shared(data[:size])
            except ValueError:
                return Answer("foreign", "its key is none", peer=self._peer)
            self._keys = LinkKeys(self._prober.key, shared, self._transcript)
        return None

    def _proved(self, packet: Auth) -> Answer:
        data: bytes = (packet.properties or {}).get(Property.AUTHENTICATION_DATA, b"")
        proof = b"" if self._keys is None else self._keys.proof(dialler=False)
        if not hmac.compare_digest(data[: len(proof)], proof):
            return Answer("wrong-secret", "it has another cluster secret", peer=self._peer)
        signature = data[len(proof) :]
        if not signed(self._public, signature, self._transcript, dialler=False):
            return Answer("wrong-id", "it does not prove its id", peer=self._peer)
        return Answer("proven", "", peer=self._peer, proof=bool(proof))
