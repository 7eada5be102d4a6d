"""Network namespaces with a TUN device each, and how a process steps into one for the moment of
opening a socket."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

from mqttree.bench.lab.owner import NETNS, PREFIX, owner

DEVICE = "e0"
MTU = 1500
_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA  # linux/if_tun.h
_IFF_TUN_NO_PI = 0x0001 | 0x1000
_libc = ctypes.CDLL(None, use_errno=True)


def unsupported() -> str:
    """Return why this machine cannot have them, in one line; empty when it can."""
    if os.geteuid():
        return "needs root"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "needs /dev/net/tun"
    try:
        done = subprocess.run(
            ["ip", "netns", "list"], check=False, capture_output=True, stdin=subprocess.DEVNULL
        )
    except OSError:
        return "needs the program ip (Debian: iproute2)"
    if done.returncode:
        return "ip netns does not work here"
    try:
        with _inside(os.open("/proc/self/ns/net", os.O_RDONLY)):
            pass
    except OSError as error:
        return f"entering a namespace: {error.strerror}"
    return ""


@contextlib.contextmanager
def _inside(descriptor: int) -> Iterator[None]:
    """Have the calling thread in a namespace; closes the descriptor."""
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        if _libc.setns(descriptor, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns: {os.strerror(ctypes.get_errno())}")
        try:
            yield
        finally:
            if _libc.setns(own, _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "cannot leave the namespace")
    finally:
        os.close(own)
        os.close(descriptor)


class Namespace:
    """One host of a lab: a namespace with loopback and one TUN device, through which everything
    else is reached."""

    def __init__(self, host: str, address: str) -> None:
        """Make it. Raises OSError with one line."""
        self.name = f"{PREFIX}{owner()}-{host}"
        self.address = address
        _ip(["netns", "add", self.name])
        try:
            self.tun = self._open_tun()
            batch = [
                "link set lo up",
                f"addr add {address}/16 dev {DEVICE}",
                f"link set {DEVICE} txqueuelen 5000 mtu {MTU} up",
                f"route add default dev {DEVICE}",
            ]
            _ip(["-n", self.name, "-batch", "-"], "\n".join(batch))
        except OSError:
            self.delete()
            raise

    def inside(self) -> contextlib.AbstractContextManager[None]:
        """Have the calling thread in it: sockets opened and processes started now belong to it."""
        return _inside(os.open(NETNS / self.name, os.O_RDONLY))

    def _open_tun(self) -> int:
        with self.inside():
            descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            try:
                fcntl.ioctl(
                    descriptor, _TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), _IFF_TUN_NO_PI)
                )
            except OSError:
                os.close(descriptor)
                raise
            Path("/proc/sys/net/ipv6/conf/all/disable_ipv6").write_text("1") if Path(
                "/proc/sys/net/ipv6"
            ).exists() else None
        return descriptor

    def delete(self) -> None:
        """Remove it; the TUN device ends with its last descriptor."""
        with contextlib.suppress(OSError, AttributeError):
            os.close(self.tun)
        with contextlib.suppress(OSError):
            _ip(["netns", "delete", self.name])


def _ip(words: list[str], text: str = "") -> None:
    done = subprocess.run(["ip", *words], check=False, capture_output=True, input=text, text=True)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {(done.stderr.strip() or 'failed').splitlines()[0]}")
