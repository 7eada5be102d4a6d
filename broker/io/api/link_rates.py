"""The traffic of each link of one broker, from counters and from what the system counts: nothing is
counted for it when a message crosses."""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from mqttree.broker.io.epoll_transport import EpollStream
from mqttree.broker.io.stream_protocol import StreamProtocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mqttree.broker.cluster.link.link import Link
    from mqttree.broker.core.connection import Transport

TRAFFIC_OF_LINK: Final = ("out_per_s", "in_per_s", "out_bytes_per_s", "in_bytes_per_s")
"""Keys of a link that only its ends know."""

TCP_INFO: Final = getattr(socket, "TCP_INFO", None)
"""Linux has it."""

ACKED_AND_RECEIVED: Final = struct.Struct("=120x2Q")
"""`tcpi_bytes_acked`, `tcpi_bytes_received` in struct tcp_info (linux/tcp.h, from Linux 4.1 on)."""


class Counts(NamedTuple):
    """What has crossed a link so far."""

    sent: int
    """Messages."""
    received: int
    """Messages."""
    bytes_sent: int | None
    """Those that the neighbour's system has taken, of all packets, as they go over the wire; None:
    not known."""
    bytes_received: int | None
    """Of all packets, as they come over the wire."""


def counts_of(link: Link) -> Counts:
    """Return what has crossed a link."""
    conn = link.conn
    traffic = conn.traffic
    wire = wire_bytes(conn.transport)
    both = (None, None) if wire is None else wire
    return Counts(traffic.forwarded, traffic.received, *both)


def wire_bytes(transport: Transport) -> tuple[int, int] | None:
    """Return how many bytes a TCP connection has sent and received; None: the system does not say
    it."""
    number = -1
    if isinstance(transport, EpollStream):
        number = transport.number
    elif isinstance(transport, StreamProtocol):
        found = transport.transport.get_extra_info("socket")
        number = -1 if found is None else found.fileno()
    if number < 0 or TCP_INFO is None:
        return None
    try:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, number)
    except OSError:
        return None
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, TCP_INFO, ACKED_AND_RECEIVED.size)
    except OSError:
        return None
    finally:
        # The number belongs to the transport.
        sock.detach()
    if len(info) < ACKED_AND_RECEIVED.size:
        return None
    acked, received = ACKED_AND_RECEIVED.unpack(info)
    return acked, received


class LinkRates:
    """Rates of each link between two looks, for as long as the link stands."""

    def __init__(self, now: float) -> None:
        """`now`: s."""
        self._at = now
        self._before: dict[bytes, tuple[Link, Counts]] = {}
        self._rates: dict[bytes, dict[str, float | None]] = {}

    def look(self, links: Mapping[bytes, Link], now: float) -> None:
        """Look at the `links`, by neighbour, at `now` (s)."""
        seconds = max(1e-3, now - self._at)
        self._at = now
        before, self._before = self._before, {}
        self._rates = {}
        for peer, link in links.items():
            counts = counts_of(link)
            self._before[peer] = link, counts
            last = before.get(peer)
            if last is None or last[0] is not link:
                continue
            self._rates[peer] = {
                name: None if new is None or old is None else round((new - old) / seconds, 3)
                for name, new, old in zip(TRAFFIC_OF_LINK, counts, last[1], strict=True)
            }

    def of(self, peer: bytes) -> Mapping[str, float | None]:
        """Return the rates of the link to a neighbour, by name: messages and bytes a second; none
        if it is too new."""
        return self._rates.get(peer, {})
