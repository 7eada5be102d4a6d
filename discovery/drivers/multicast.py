"""UDP multicast on every interface: it moves datagrams and decides nothing."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import sys
from collections.abc import Callable, Iterable

from mqttree.broker.base.address import is_wildcard

GROUP = "239.255.77.71"
"""Administratively scoped, local (RFC 2365 6.1): never routed out of a site."""
PORT = 18830
RESCAN = 10.0
"""Seconds between looks at the interfaces: a container's appear late, a laptop's come and go."""

_READ_BYTES = 2048
# After so many datagrams the loop does other work.
_READS_A_WAKE = 64
# From linux/in.h; the socket module does not have it.
_IP_MULTICAST_ALL = 49
# struct ip_mreqn: group, interface address, interface index.
_REQUEST = struct.Struct("4s4si")

OnDatagram = Callable[[bytes, tuple[str, int]], None]
OnUnavailable = Callable[[str], None]
Interface = tuple[str, int]
"""IPv4 address and interface index (0: found by its address)."""


def interfaces_for(host: str) -> list[str] | None:
    """Return the interfaces for a broker that listens on `host`: that address alone, or None for
    every interface.

    A name or an IPv6 address gives None as well: which interface it means is not known here.
    """
    try:
        socket.inet_pton(socket.AF_INET, host)
    except OSError:
        return ["127.0.0.1"] if host == "localhost" else None
    return None if is_wildcard(host) else [host]


class Multicast:
    """A group joined on some interfaces, each with one socket to hear and to send by.

    One socket for each, because Linux lets one socket join no more than 20 groups
    (igmp_max_memberships), and so that a failing interface takes no other with it. `on_unavailable`
    is called with a one-line reason once whenever no interface is left; the attempts go on at every
    rescan.
    """

    def __init__(
        self,
        on_datagram: OnDatagram,
        on_unavailable: OnUnavailable,
        *,
        group: str = GROUP,
        port: int = PORT,
        interfaces: Iterable[str] | None = None,
        rescan: float = RESCAN,
    ) -> None:
        """`on_datagram`: called with each datagram and its source. `on_unavailable`: see above.
        `group`, `port`: of the multicast group. `interfaces`: their IPv4 addresses, None: all that
        are up. `rescan`: s between two looks at the interfaces."""
        self._on_datagram = on_datagram
        self._on_unavailable = on_unavailable
        self._group = socket.inet_aton(group)
        self._target = (group, port)
        self._wanted = None if interfaces is None else list(dict.fromkeys(interfaces))
        self._rescan = rescan
        self._sockets: dict[Interface, socket.socket] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._unavailable = False

    @property
    def joined(self) -> list[str]:
        """The IPv4 addresses of the interfaces where the group is joined."""
        return [address for address, _ in self._sockets]

    def start(self) -> None:
        """Join, and begin to look for interfaces that come and go. Needs a running event loop;
        raises nothing."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._look()

    def send(self, data: bytes, bind: Callable[[bytes, str], bytes] | None = None) -> None:
        """Send one datagram on every interface, as `bind` makes it for that interface's address.

        An interface that refuses is left and tried again at the next rescan.
        """
        for interface, sock in list(self._sockets.items()):
            try:
                sock.sendto(data if bind is None else bind(data, interface[0]), self._target)
            except (BlockingIOError, InterruptedError):
                # A full buffer: announcements are repeated anyway.
                continue
            except OSError as error:
                self._leave(interface)
                self._report(f"cannot send on {interface[0]}: {error.strerror or error}")

    def close(self) -> None:
        """Leave everywhere and stop looking. What was sent is on its way; nothing is called
        afterwards."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for interface in list(self._sockets):
            self._leave(interface)
        self._loop = None

    def _look(self) -> None:
        """Join the interfaces that came, leave those that went, and look again later."""
        # Brokers without multicast need not load it.
        import psutil

        assert self._loop is not None
        self._timer = self._loop.call_later(self._rescan, self._look)
        reason = "no interface with an IPv4 address is up"
        try:
            present = self._present()
        except (OSError, psutil.Error) as error:
            present, reason = list(self._sockets), f"cannot list interfaces: {error}"
        for interface in [known for known in self._sockets if known not in present]:
            self._leave(interface)
        for interface in present:
            if interface not in self._sockets:
                try:
                    self._join(interface)
                except OSError as error:
                    group = f"{self._target[0]}:{self._target[1]}"
                    reason = f"cannot join {group} on {interface[0]}: {error.strerror or error}"
        self._report(reason)

    def _present(self) -> list[Interface]:
        """List the wanted interfaces that are up, loopback included, one address of each."""
        import psutil

        stats = psutil.net_if_stats()
        indexes: dict[str, int] = {}
        found: list[Interface] = []
        for name, addresses in psutil.net_if_addrs().items():
            if name not in stats or not stats[name].isup:
                continue
            # It has gone since it was listed.
            with contextlib.suppress(OSError):
                index = socket.if_nametoindex(name.partition(":")[0])
                usable = [entry.address for entry in addresses if entry.family == socket.AF_INET]
                indexes.update((address, index) for address in usable)
                # A second address of an interface would only send and receive everything twice.
                if usable and all(index != known for _, known in found):
                    found.append((usable[0], index))
        if self._wanted is None:
            return found
        # The index is part of the key: a new interface under an old address has joined nothing.
        return [(address, indexes.get(address, 0)) for address in self._wanted]

    def _join(self, interface: Interface) -> None:
        assert self._loop is not None
        address, index = interface
        local = socket.inet_aton(address)
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            sock.setblocking(False)
            # On Linux this alone lets several brokers of one host share the port, each of them
            # hearing every multicast datagram; BSD wants SO_REUSEPORT for the same.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if not sys.platform.startswith("linux"):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            # Bound to the group, it receives no unicast and no other group on this port.
            sock.bind(self._target)
            if sys.platform.startswith("linux"):
                # Without this it would receive what others joined on the other interfaces.
                sock.setsockopt(socket.IPPROTO_IP, _IP_MULTICAST_ALL, 0)
            sock.setsockopt(
                socket.IPPROTO_IP,
                socket.IP_ADD_MEMBERSHIP,
                _REQUEST.pack(self._group, local, index),
            )
            sock.setsockopt(
                socket.IPPROTO_IP, socket.IP_MULTICAST_IF, _REQUEST.pack(b"\0\0\0\0", local, index)
            )
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 1)
            self._loop.add_reader(sock.fileno(), self._readable, interface, sock)
        except BaseException:
            sock.close()
            raise
        self._sockets[interface] = sock

    def _leave(self, interface: Interface) -> None:
        sock = self._sockets.pop(interface)
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(sock.fileno())
        sock.close()

    def _readable(self, interface: Interface, sock: socket.socket) -> None:
        for _ in range(_READS_A_WAKE):
            if self._sockets.get(interface) is not sock:
                # It was closed because of a datagram.
                return
            try:
                data, source = sock.recvfrom(_READ_BYTES)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._leave(interface)
                self._report(f"cannot receive on {interface[0]}: {error.strerror or error}")
                return
            self._on_datagram(data, (source[0], source[1]))

    def _report(self, reason: str) -> None:
        """Say once that no interface is left, and again only after one was joined in between."""
        if self._sockets:
            self._unavailable = False
        elif not self._unavailable:
            self._unavailable = True
            self._on_unavailable(f"multicast cannot be used: {reason}")
