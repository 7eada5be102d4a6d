"""`mqttree run`: one broker from its start line to its goodbye."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import random
import signal
import socket
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from broker.base import limits, log_format
from broker.base.machine import default_memory_limit, files_for_clients, raise_file_limit
from broker.base.version import version
from broker.cli.main import DEFAULT_ADMIN
from broker.cluster.drain import Drain, check_elsewhere, read_drain
from broker.cluster.link import peering
from broker.config.data_dir import DataDir, fresh_identity
from broker.config.options import (
    AccessSettings,
    FederationSettings,
    RunSettings,
    first_address,
    read_access,
    read_settings,
    split_bind,
)
from broker.config.yaml_file import ConfigError, ConfigFile
from broker.io import admin_http as admin_server
from broker.io.journal_writer import JournalWriter
from discovery.address import Address
from stp import capability

if TYPE_CHECKING:
    from broker.compat.broker import Broker
    from broker.compat.config import BrokerConfig

SHUTDOWN_TIMEOUT = 10.0
"""s for goodbyes; docker stop and systemd kill after ten or more."""

log = logging.getLogger("mqttree")


def run(arguments: argparse.Namespace) -> int:
    """Run a broker until a signal ends it. Raises ConfigError for what cannot be used."""
    settings = read_settings(vars(arguments), os.environ)
    log_format.set_up(settings.log_level, settings.log_format)
    from broker.compat.config import link_bind, read_config

    data, config = read_config(settings.file, settings.listen)
    bind = link_bind(config, data, settings.tls)
    if bind is None and settings.tls is not None and settings.file is not None:
        wanted = (
            "with require_certificate: true"
            if settings.tls.certfile is not None
            else "for other brokers"
        )
        settings.file.fail(
            ("federation", "tls"), f"needs a listener of type tcp with ssl: true {wanted}"
        )
    if bind is None and settings.advertise is None and settings.discovery != "off":
        log.warning(
            "no listener is plain tcp, so no other broker can dial this one: discovery is off"
        )
        settings.discovery = "off"
    wall = time.time()
    folder = DataDir(settings.data_dir) if settings.data_dir is not None else None
    try:
        rng = random.SystemRandom()
        identity = folder.identity(wall, rng) if folder is not None else fresh_identity(wall, rng)
        federation = settings.federation(
            bind or split_bind("127.0.0.1:1883"),
            id=identity.id,
            boot=identity.boot,
            capability=capability.measure(alpha=settings.alpha, beta=settings.beta),
            own_host=first_address,
        )
        federation.key = identity.key
        with _admin_socket(settings) as listener:
            raise_file_limit()
            federation.memory_limit, federation.max_connections = (
                default_memory_limit(),
                files_for_clients(),
            )
            disk = _disk(settings, identity.id)
            return _run_loop(
                _Run(settings, data, config, federation, listener, disk, arguments.die_with_parent)
            )
    finally:
        if folder is not None:
            folder.close()


def _disk(settings: RunSettings, broker_id: bytes) -> JournalWriter | None:
    """Return the files of the journal, if there is to be one. Raises ConfigError."""
    folder = settings.data_dir
    if folder is None:
        return None
    if settings.durability == "none":
        if (folder / "journal").exists():
            log.warning("durability is none: the journal in %s is neither read nor written", folder)
        return None
    return JournalWriter(folder, broker_id, sync=settings.durability == "sync")


def _run_loop(running: _Run) -> int:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(running.main())


class _Run:
    """One broker in one event loop."""

    def __init__(
        self,
        settings: RunSettings,
        data: dict[str, Any],
        config: BrokerConfig,
        federation: FederationSettings,
        listener: socket.socket | None,
        disk: JournalWriter | None,
        die_with_parent: bool,
    ) -> None:
        self.settings = settings
        self.data = data
        self.config = config
        self.federation = federation
        self.listener = listener
        self.disk = disk
        self.die_with_parent = die_with_parent
        self.stopping: asyncio.Event | None = None
        self.broker: Broker | None = None
        self._reloading: asyncio.Task[None] | None = None
        self._reload_again = False

    async def main(self) -> int:
        """Start, wait for a signal, stop; return the exit code."""
        from broker.compat.broker import Broker
        from broker.compat.config import explain
        from broker.io.auth_service import AuthService

        loop = asyncio.get_running_loop()
        self.stopping = asyncio.Event()
        self._watch(loop)
        try:
            self._check_listeners(self.settings.access, self.settings.file)
            gatekeeper = AuthService(self.settings.access, self.config.listeners)
            self.broker = broker = Broker(
                self.data, loop, settings=self.federation, gatekeeper=gatekeeper, disk=self.disk
            )
            await broker.start()
        except Exception as error:  # whatever a plugin or a listener raises: said in one line
            log.debug("cannot start", exc_info=True)
            raise explain(error, self.settings.file) from None
        hosts, wait_for = self.settings.admin_hosts, self.settings.wait_for
        admin = admin_server.Admin(
            broker.node, version(), broker.listener_connections, self._drain, hosts, wait_for
        )
        if self.listener is not None:
            await admin.start(self.listener)
        _spare_the_collector()
        broker.driver.collect_at = 0.0
        self._announce()
        self._warn(broker)
        await self.stopping.wait()
        log.info("stopping")
        await admin.close()
        try:
            await asyncio.wait_for(broker.shutdown(), SHUTDOWN_TIMEOUT)
        except TimeoutError:
            log.warning("did not stop within %g s; ending anyway", SHUTDOWN_TIMEOUT)
        except Exception as error:  # a plugin's; the broker ends all the same
            log.warning("while stopping: %s", " ".join(str(error).split()) or type(error).__name__)
        return 0

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Stop at the first signal, end at the second; with `die_with_parent` also when the
        standard input ends. SIGHUP: read users, rules and certificates anew."""
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop, number)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        if self.die_with_parent:
            loop.add_reader(0, self._read_stdin, loop)

    def _stop(self, number: int) -> None:
        assert self.stopping is not None
        if self.stopping.is_set():
            os._exit(128 + number)
        self.stopping.set()

    def _drain(self, values: Mapping[str, str]) -> dict[str, Any]:
        """Drain the broker and then stop; once more: stop at once. Raises ValueError for what
        cannot be used."""
        options = read_drain(values)
        assert self.broker is not None
        assert self.stopping is not None
        node, now = self.broker.node, self.broker.driver.time()
        check_elsewhere(options, node.config)
        if node.drain is None:
            Drain(node, options, now, self.stopping.set)
        else:
            node.drain.hurry(now, "told to make an end")
        self.broker.driver.wake()
        assert node.drain is not None
        return {"draining": True, "drain": node.drain.as_dict()}

    def _read_stdin(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            ended = not os.read(0, 4096)
        except OSError:
            ended = True
        if ended:
            loop.remove_reader(0)
            assert self.stopping is not None
            self.stopping.set()

    def _reload(self) -> None:
        """Reload, one after the other."""
        if self._reloading is not None and not self._reloading.done():
            self._reload_again = True
        elif self.broker is not None:
            self._reloading = asyncio.get_running_loop().create_task(
                self._reload_files(self.broker)
            )

    async def _reload_files(self, broker: Broker) -> None:
        while True:
            self._reload_again = False
            try:
                file = self.settings.file
                access = (
                    self.settings.access
                    if file is None
                    else read_access(ConfigFile.read(file.path))
                )
                self._check_listeners(access, file)
                found = await broker.reload(access)
            except Exception as error:  # whatever the files hold: one line
                log.error(
                    "cannot reload, everything stays as it was: %s", " ".join(str(error).split())
                )
            else:
                self.settings.access = access
                log.info("reloaded: %s", ", ".join([*found, self._anonymous_access()]))
                self._warn(broker)
            if not self._reload_again:
                return

    def _check_listeners(self, access: AccessSettings, file: ConfigFile | None) -> None:
        if file is not None and isinstance(access.anonymous, dict):
            for name in access.anonymous:
                if name not in self.config.listeners:
                    file.fail(("access", "anonymous"), f"there is no listener {name!r}")

    def _anonymous_listeners(self) -> list[str]:
        """Return the listeners where anybody may come in without a user name, unless a plugin says
        no."""
        assert self.broker is not None
        access = self.broker.node.access
        if self.broker.plugins.admits() is False:
            return []
        named = self.broker.node.config.identity_listeners
        return [
            n
            for n in self.config.listeners
            if n not in named and (access is None or access.lets_anonymous(n))
        ]

    def _anonymous_access(self) -> str:
        assert self.broker is not None
        found = self._anonymous_listeners()
        if found and self.broker.plugins.admits() is None:
            return "plugins decide who comes in"
        if len(found) == len(self.config.listeners):
            return "anonymous access allowed"
        if found:
            return f"anonymous access on listener {', '.join(found)} only"
        return "no anonymous access" + (
            ", but any user name without a password" if self._believes_names() else ""
        )

    def _believes_names(self) -> bool:
        """Return whether any user name lets a client in: amqtt's anonymous plugin, alone and not
        allowing it, asks for nothing else. With an `access` section such a client counts as
        anonymous."""
        assert self.broker is not None
        node = self.broker.node
        return node.access is None and node.hooks.authenticate and not node.hooks.verifies

    def _warn(self, broker: Broker) -> None:
        """Say what makes users and rules weaker than whoever wrote them may think."""
        if self.federation.alone:
            log.warning(
                "clients are checked (%s), other brokers would not be: this broker stays alone; %s",
                self.federation.alone,
                peering.REMEDY,
            )
        access = broker.node.access
        if access is None:
            return
        believed = broker.node.hooks.verified or len(broker.node.config.identity_listeners) == len(
            self.config.listeners
        )
        if (
            access.rules is not None
            and access.rules.by_user
            and access.users is None
            and not believed
        ):
            log.warning(
                "rules speak of users, but nobody checks passwords: "
                "who gives a name counts as anonymous (access.users)"
            )
        if peering.anybody(self.federation) and peering.guard(
            access, self.config.listeners, plugins=False, certificates=()
        ):
            log.warning(
                "rules and users do not bind other brokers, "
                "and any may join (allow-unauthenticated-brokers)"
            )

    def _announce(self) -> None:
        """Say in one line who listens where; as a warning when anybody on the network may come
        in."""
        from broker.compat.config import describe_listeners, exposed

        settings, federation = self.settings, self.federation
        assert self.broker is not None
        open_to = self._anonymous_listeners() if self.broker.plugins.admits() else []
        if self._believes_names():
            open_to = list(self.config.listeners)
        listeners = describe_listeners(self.config)
        log.log(
            logging.WARNING if open_to and exposed(self.config, open_to) else logging.INFO,
            "%s listens on %s, admin %s, id %s, cluster %s, discovery %s%s%s, %s",
            federation.name,
            listeners,
            settings.admin or DEFAULT_ADMIN if self.listener is not None else "off",
            federation.id.hex(),
            federation.cluster,
            federation.discovery,
            " (stays alone)"
            if federation.alone
            else " (no secret)"
            if peering.anybody(federation)
            else "",
            "" if self.disk is None else f", durability {'sync' if self.disk.sync else 'async'}",
            self._anonymous_access(),
        )


def _admin_socket(settings: RunSettings) -> contextlib.AbstractContextManager[socket.socket | None]:
    """Take the admin port. The default one may be another broker's of this machine: then there is
    none."""
    wanted = settings.admin or Address(*split_bind(DEFAULT_ADMIN))
    try:
        return admin_server.listen(wanted.host, wanted.port)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        if settings.admin is not None:
            raise ConfigError(f"admin: cannot listen on {wanted}: {reason}") from None
        log.warning("admin is off: cannot listen on %s: %s", wanted, reason)
        return contextlib.nullcontext()


def _spare_the_collector() -> None:
    """Let the garbage collector leave alone what stays for good, and come less often: connections
    are made of lasting objects, and it would look through them again at every few dozen that come.
    Little of ours is garbage in circles."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(*limits.COLLECTOR)
