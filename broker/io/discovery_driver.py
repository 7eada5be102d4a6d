"""The drivers of discovery and dials: datagrams to the discovery group, names of seeds, dials of
links, the time of day. It decides nothing; the node does."""

from __future__ import annotations

import asyncio
import ssl
import time

from mqttree.broker.base.address import Address
from mqttree.broker.base.log_format import log_line
from mqttree.broker.cluster.cluster import Cluster
from mqttree.broker.config.options import FederationSettings
from mqttree.broker.core.effects import Dial
from mqttree.broker.io.driver import Driver
from mqttree.broker.io.epoll_transport import AVAILABLE, EpollStream
from mqttree.broker.io.limits import IoLimits
from mqttree.broker.io.listeners import dial
from mqttree.broker.io.stream_protocol import StreamProtocol
from mqttree.broker.io.tls import describe_error, dial_context
from mqttree.discovery.announcement import bind
from mqttree.discovery.drivers.dns import Resolver
from mqttree.discovery.drivers.multicast import Multicast
from mqttree.stp.capability import Damped, measure


class DiscoveryDriver:
    """What runs for discovery between the start and the end of a broker, and dials for it."""

    def __init__(self, settings: FederationSettings | None, limits: IoLimits) -> None:
        """`settings`: of the federation; None: the broker is alone; `limits`: of its dials.
        Raises what `dial_context` raises."""
        self.settings, self._limits = settings, limits
        self._dial_context = (
            dial_context(settings.tls)
            if settings is not None and settings.tls is not None
            else None
        )
        self._multicast: Multicast | None = None
        self._resolver: Resolver | None = None
        self._driver: Driver
        self._cluster: Cluster
        self._clock: asyncio.TimerHandle | None = None
        self._capability = (
            Damped(settings.capability)
            if settings is not None and settings.weights is not None
            else None
        )

    def renew(self) -> None:
        """Read the certificates of links again, for further dials. Raises what `dial_context`
        raises."""
        tls = self.settings.tls if self.settings is not None else None
        self._dial_context = dial_context(tls) if tls is not None else None

    def start(self, driver: Driver) -> None:
        """Begin to hear the discovery group and to resolve names, as the settings say."""
        settings = self.settings
        self._driver = driver
        self._cluster = driver.node.cluster
        self._clock = driver.loop.call_later(self._limits.clock_interval_s, self._tell_time)
        if settings is None or settings.discovery == "off":
            return
        if settings.discovery == "multicast":
            self._multicast = Multicast(
                self._datagram,
                lambda why: log_line("warning", why),
                group=settings.multicast_group,
                port=settings.multicast_port,
                interfaces=settings.interfaces,
            )
            self._multicast.start()
        if settings.seed_names:
            names = [Address(host, port) for host, port in settings.seed_names]
            self._resolver = Resolver(names, self._resolved, _not_resolved)
            self._resolver.start()

    def _tell_time(self) -> None:
        driver = self._driver
        driver.node.set_wall(time.time(), driver.time())
        self._measure()
        self._clock = driver.loop.call_later(self._limits.clock_interval_s, self._tell_time)

    def _measure(self) -> None:
        """Tell the tree what this machine can do, when that has changed for long enough."""
        driver, settings = self._driver, self.settings
        if self._capability is not None and settings is not None and settings.weights is not None:
            alpha, beta = settings.weights
            if self._capability.take(measure(alpha=alpha, beta=beta)):
                self._cluster.set_capability(self._capability.value, driver.time())
                driver.wake()

    def _datagram(self, data: bytes, source: tuple[str, int]) -> None:
        driver = self._driver
        driver.node.datagram_received(data, source, driver.time())
        driver.wake()

    def _resolved(self, seed: Address, addresses: list[Address]) -> None:
        driver = self._driver
        found = [(address.host, address.port) for address in addresses]
        self._cluster.seed_resolved(f"{seed.host}:{seed.port}", found, driver.time())
        driver.wake()

    def send(self, data: bytes) -> None:
        """Send a datagram to the discovery group, if there is one."""
        if self._multicast is not None:
            self._multicast.send(data, self._bind)

    def _bind(self, data: bytes, host: str) -> bytes:
        return bind(data, self.settings.secret if self.settings is not None else None, host)

    async def dial(self, effect: Dial, driver: Driver) -> None:
        """Connect to a broker, and tell the node that the connection stands, or why not."""
        tls, seconds = self._dial_context, self._limits.dial_timeout_s
        try:
            if tls is None and AVAILABLE:
                await _dial_plain(effect, driver, seconds)
            else:
                await _dial_protocol(effect, driver, seconds, tls)
        except (OSError, TimeoutError, ValueError, OverflowError) as error:
            driver.node.answer(effect, describe_error(error) or "timed out", driver.time())
            driver.wake()

    async def close(self) -> None:
        """End all tasks and sockets."""
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None
        if self._multicast is not None:
            self._multicast.close()
            self._multicast = None
        if self._resolver is not None:
            await self._resolver.close()
            self._resolver = None


def _not_resolved(seed: Address, reason: str) -> None:
    log_line("warning", f"seed {seed.host}:{seed.port} does not resolve: {reason}")


async def _dial_plain(effect: Dial, driver: Driver, seconds: float) -> None:
    async with asyncio.timeout(seconds):
        sock, peer = await dial(effect.host, effect.port)
    if driver.stopped:
        sock.close()
        return
    poller = driver.poller
    poller.admit(EpollStream(poller, sock.detach(), peer, "link", dial=effect))
    driver.wake()


async def _dial_protocol(
    effect: Dial, driver: Driver, seconds: float, tls: ssl.SSLContext | None
) -> None:
    protocol = StreamProtocol(driver, "link", dial=effect)
    name = None if tls is None else effect.host
    loop = asyncio.get_running_loop()
    dialling = loop.create_connection(
        lambda: protocol, effect.host, effect.port, ssl=tls, server_hostname=name
    )
    try:
        await asyncio.wait_for(dialling, seconds)
    except (OSError, TimeoutError, ValueError, OverflowError):
        if protocol.conn is None:  # else it stood, and the node has heard of its end
            raise
