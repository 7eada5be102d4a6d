"""A broker inside another program: in its event loop, without signals, with its log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Never, Self, TypeVar

from mqttree.broker.base.address import Address
from mqttree.broker.base.version import VERSION
from mqttree.broker.config.options import read_keywords
from mqttree.broker.config.yaml_file import ConfigError, did_you_mean
from mqttree.broker.limits import DEFAULTS, Limits

if TYPE_CHECKING:
    from mqttree.broker.io.admin_http import Admin
    from mqttree.broker.io.broker_service import BrokerService
    from mqttree.broker.service.assembly import Assembly

READY_INTERVAL = 0.01
"""s between two checks whether a broker is ready."""

T = TypeVar("T")

log = logging.getLogger("mqttree")


class Broker:
    """An MQTT broker in the event loop that starts it, asyncio's or uvloop's.

        async with Broker(listen="127.0.0.1:0") as broker:
            print(broker.port)

    or `await broker.start()` and `await broker.stop()`; it can be started again, then as a new
    incarnation. Several brokers can run in one loop, and form a federation.

    It takes no signals, changes no setting of the process and writes to no stream: what it has to
    say goes to the logger "mqttree" (and amqtt's to "amqtt").
    """

    _assembly: Assembly | None
    _broker: BrokerService | None
    _admin: Admin | None
    _admin_port: int | None

    def __init__(
        self,
        *,
        listen: str | None = None,
        name: str | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        durability: Literal["none", "async", "sync"] | None = None,
        cluster: str | None = None,
        secret_file: str | os.PathLike[str] | None = None,
        discovery: Literal["multicast", "static", "dns", "off"] | None = None,
        seeds: Sequence[str] | None = None,
        advertise: str | None = None,
        routing: Literal["flood", "interest", "topic"] | None = None,
        admin: str | None = None,
        admin_token_file: str | os.PathLike[str] | None = None,
        wait_for: int | None = None,
        config: str | os.PathLike[str] | Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        **unknown: Never,
    ) -> None:
        """Check the options: those of `mqttree run`, by their names; None means not given. The
        environment (MQTTREE_...) does not count.

        Defaults keep a broker in a test by itself: it listens on 127.0.0.1, has no admin port, and
        federates only if `cluster`, `seeds` or `discovery` is given, here or in `config`.

        Args:
            `listen`: HOST:PORT of the default listener (127.0.0.1:1883 unless `config` has
                listeners); port 0: one that is free, see `port`.
            `name`: in logs and status (the machine and the port).
            `data_dir`: folder of the broker's id, boot number and journal (none), one broker's.
            `durability`: what survives the broker (async with a data directory, else none).
            `cluster`: only brokers of one cluster federate (mqttree).
            `secret_file`: the cluster's secret, 16 bytes or more, readable by its owner only.
            `discovery`: how to find others (off; `seeds` make it static, `cluster` multicast).
            `seeds`: HOST:PORT of brokers to begin with; an empty sequence lets others in.
            `advertise`: HOST:PORT that is announced to other brokers.
            `routing`: which links a message takes (topic).
            `admin`: HOST:PORT for health, metrics and state over HTTP (none); cannot drain it.
            `admin_token_file`: has the token that requests there need (none); made if missing.
            `wait_for`: number of brokers, this one included, before it is ready (1).
            `config`: a file for `mqttree run -c`, or its content as a mapping; arguments win.
            `limits`: how much it may keep and do at once; see `Limits` (None: its defaults).
            `unknown`: none; any other name is an error.

        Raises:
            ConfigError: an option cannot be used or does not exist; one line that names it.
        """
        self._keywords: dict[str, Any] = {
            "listen": listen,
            "name": name,
            "data_dir": data_dir,
            "durability": durability,
            "cluster": cluster,
            "secret_file": secret_file,
            "discovery": discovery,
            "seeds": seeds,
            "advertise": advertise,
            "routing": routing,
            "admin": admin,
            "admin_token_file": admin_token_file,
            "wait_for": wait_for,
            "config": config,
        }
        _refuse(unknown, (*self._keywords, "limits"))
        read_keywords(self._keywords)
        self._limits = DEFAULTS if limits is None else limits
        # One start or stop at a time.
        self._changing = asyncio.Lock()
        self._admin = self._admin_port = self._broker = self._assembly = None

    async def start(self) -> None:
        """Open the listeners and begin to serve, in the running event loop.

        Raises:
            ConfigError: an option cannot be used, a port is taken, another broker has the data
                directory, a plugin fails; one line. Nothing is left of this broker then, and it
                can be started again.
            RuntimeError: it runs already.
        """
        async with self._changing:
            if self._broker is not None:
                raise RuntimeError("the broker runs already")
            try:
                await self._start()
            except BaseException:
                await self._stop()
                raise

    async def _start(self) -> None:
        from mqttree.broker.io.admin_http import Admin
        from mqttree.broker.service.assembly import Assembly, admin_access, open_admin
        from mqttree.broker.service.start_report import StartReport

        settings = read_keywords(self._keywords)
        self._assembly = assembly = Assembly(settings, self._limits)
        with contextlib.ExitStack() as undo:
            listener, access = None, admin_access(settings)
            if settings.admin is not None:
                listener = undo.enter_context(open_admin(settings.admin, access))
            self._broker = broker = await assembly.start()
            driver = broker.driver
            self._admin = admin = Admin(
                broker.node,
                VERSION,
                broker.listener_reports,
                hosts=settings.admin_hosts,
                wait_for=settings.wait_for,
                wake=driver.wake,
                access=access,
                limits=self._limits,
            )
            where = "off"
            if listener is not None and settings.admin is not None:
                await admin.start(listener)
                self._admin_port = int(listener.getsockname()[1])
                where = str(Address(settings.admin.host, self._admin_port))
            # The server has the socket now.
            undo.pop_all()
        report = StartReport(assembly, broker)
        report.announce(where)
        report.warn()

    async def stop(self) -> None:
        """Say goodbye to clients and brokers, write what is left to the journal, and close
        everything; it takes some seconds at most unless the disk does not answer. Does nothing when
        the broker does not run."""
        async with self._changing:
            await self._stop()

    async def _stop(self) -> None:
        admin, broker, assembly = self._admin, self._broker, self._assembly
        self._admin = self._admin_port = self._broker = self._assembly = None
        try:
            if admin is not None:
                await admin.close()
            if broker is not None:
                log.info("stopping")
                await broker.shutdown()
        finally:
            if assembly is not None:
                assembly.close()

    async def __aenter__(self) -> Self:
        """Start it; raises what `start` raises."""
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop it."""
        await self.stop()

    @property
    def running(self) -> bool:
        """Whether it has been started and not stopped."""
        return self._broker is not None

    @property
    def port(self) -> int:
        """TCP port of the listener `default`, or of the first one that has a port. Raises
        RuntimeError: the broker does not run, or only on Unix sockets."""
        ports = self.ports
        if not ports:
            raise RuntimeError("no listener of the broker has a TCP port")
        return ports.get("default") or next(iter(ports.values()))

    @property
    def ports(self) -> dict[str, int]:
        """TCP ports by the listeners' names, Unix sockets left out. Raises RuntimeError: the broker
        does not run."""
        return _running(self._broker).ports

    @property
    def admin_port(self) -> int | None:
        """TCP port of the admin server; None: there is none, or the broker does not run."""
        return self._admin_port

    def state(self) -> dict[str, Any]:
        """Return the federation as this broker sees it: what /api/v1/federation says. Raises
        RuntimeError: the broker does not run."""
        return _running(self._admin).state()

    async def ready(self) -> None:
        """Wait until clients should come: as many brokers were there as it waits for, and its
        journal is written. There is no limit to that but yours (`asyncio.timeout`).

        Raises:
            RuntimeError: the broker does not run, or was stopped meanwhile.
        """
        while _running(self._admin).readiness.reasons():
            await asyncio.sleep(READY_INTERVAL)


def _running(part: T | None) -> T:
    """Return a part of a broker that runs. Raises RuntimeError: it does not."""
    if part is None:
        raise RuntimeError("the broker does not run")
    return part


def _refuse(unknown: Iterable[str], known: Iterable[str]) -> None:
    """Raise ConfigError for the first of the `unknown` options, with the one of those `known` that
    may be meant."""
    for word in unknown:
        raise ConfigError(f"{word}: unknown option{did_you_mean(word, known)}")
