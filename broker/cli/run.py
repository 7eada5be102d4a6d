"""`mqttree run`: one broker from its start line to its end."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mqttree.broker.base import log_format
from mqttree.broker.base.address import Address
from mqttree.broker.base.machine import raise_file_limit
from mqttree.broker.base.version import VERSION
from mqttree.broker.cli.command_line import DEFAULT_ADMIN
from mqttree.broker.cluster.drain import Drain, check_elsewhere, counted, read_drain
from mqttree.broker.config.options import (
    RunSettings,
    read_access,
    read_legs,
    read_settings,
    split_bind,
    unknown_variables,
)
from mqttree.broker.config.yaml_file import ConfigError, ConfigFile
from mqttree.broker.core.session_owner import LEG_LISTENER
from mqttree.broker.io import admin_http as admin_server
from mqttree.broker.io.freed_memory import FreedMemory
from mqttree.broker.limits import DEFAULTS

if TYPE_CHECKING:
    from mqttree.broker.config.leg_options import LegModel
    from mqttree.broker.io.admin_access import AdminAccess
    from mqttree.broker.io.broker_service import BrokerService
    from mqttree.broker.io.legs import Legs
    from mqttree.broker.io.service_manager import ServiceManager
    from mqttree.broker.service.assembly import Assembly

GC_THRESHOLDS = (30_000, 1, 100_000_000)
"""objects, rounds, rounds; when the garbage collector looks through what is new, what was new
in the last rounds, and everything. Below 30,000 it comes while a burst of messages is under
way, finds each of them alive and looks again later: at 90,000 messages a second over a link an
eighth of the broker's time, now a thirtieth. A look takes up to 25 ms with a full log.
Everything takes a second: not in months, as it finds nothing (decision 30). What comes by
`COLLECT_INTERVAL_S` counts as a round, ten a second."""

SHUTDOWN_TIMEOUT = 10.0
"""s for a shutdown; docker stop and systemd kill after ten or more."""

log = logging.getLogger("mqttree")


def run(arguments: argparse.Namespace, legs: Mapping[str, LegModel] | None = None) -> int:
    """Run a broker until a signal ends it. `arguments`: of the command line; `legs`: of the command
    line, beside those of the configuration file. Raises ConfigError for options that cannot be
    used."""
    settings = read_settings(vars(arguments), os.environ)
    log_format.set_up(settings.log_level, settings.log_format)
    for line in unknown_variables(os.environ):
        log.warning(line)
    from mqttree.broker.service.assembly import Assembly

    raise_file_limit()
    assembly = Assembly(settings, DEFAULTS)
    try:
        from mqttree.broker.service.assembly import admin_access

        access = admin_access(settings)
        with _admin_socket(settings, access) as listener:
            running = _Run(assembly, listener, access, arguments.die_with_parent, legs or {})
            running.forgets = getattr(arguments, "forget", False)
            return _run_loop(running)
    finally:
        assembly.close()


def _run_loop(running: _Run) -> int:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(running.main())


class _Run:
    """One broker in one event loop."""

    def __init__(
        self,
        assembly: Assembly,
        listener: socket.socket | None,
        access: AdminAccess,
        die_with_parent: bool,
        legs: Mapping[str, LegModel],
    ) -> None:
        """`assembly`: makes the broker; `listener`: of the admin port; `access`: who may use that;
        `die_with_parent`: whether it ends with its standard input; `legs`: of the command line."""
        self._access = access
        self._legs_given = legs
        self._legs: Legs | None = None
        self.forgets = False
        """Whether it ends the sessions of its legs instead of running."""
        self.assembly = assembly
        self.settings = assembly.settings
        self.listener = listener
        self.die_with_parent = die_with_parent
        self.stopping: asyncio.Event | None = None
        self.broker: BrokerService | None = None
        self._reloading: asyncio.Task[None] | None = None
        self._reload_again = False

    async def main(self) -> int:
        """Start, wait for a signal, stop; return the exit code."""
        from mqttree.broker.service.start_report import StartReport

        self.stopping = asyncio.Event()
        self._watch(asyncio.get_running_loop())
        self.broker = broker = await self.assembly.start()
        self.report = StartReport(self.assembly, broker)
        hosts, wait_for = self.settings.admin_hosts, self.settings.wait_for
        driver = broker.driver
        admin = admin_server.Admin(
            broker.node,
            VERSION,
            broker.listener_reports,
            self._drain,
            hosts,
            wait_for,
            legs=self._leg_reports,
            reload=self._reload,
            wake=driver.wake,
            access=self._access,
            limits=self.assembly.limits,
        )
        where = "off"
        if self.listener is not None:
            await admin.start(self.listener)
            wanted = self.settings.admin or split_bind(DEFAULT_ADMIN)
            where = str(Address(wanted.host, self.listener.getsockname()[1]))
        _spare_the_collector()
        driver.collect_at = 0.0
        driver.freed_memory = FreedMemory(driver.loop)
        self.report.announce(where)
        self.report.warn()
        manager = self._service_manager()
        code = 0
        if self.forgets:
            code = await self._forget()
            self.stopping.set()
        else:
            self._put_legs_in_force(self.settings.legs)
        await self.stopping.wait()
        if self._legs is not None:
            self._legs.stop()
        log.info("stopping")
        if manager is not None:
            manager.stopping()
        await admin.close()
        try:
            await asyncio.wait_for(broker.shutdown(), SHUTDOWN_TIMEOUT)
        except TimeoutError:
            log.warning("did not stop within %g s; ending anyway", SHUTDOWN_TIMEOUT)
        # An error of a plugin: the broker ends all the same.
        except Exception as error:
            log.warning("while stopping: %s", " ".join(str(error).split()) or type(error).__name__)
        if manager is not None:
            manager.close()
        return code

    def _service_manager(self) -> ServiceManager | None:
        """Tell systemd that the broker serves, if it was started by it."""
        if "NOTIFY_SOCKET" not in os.environ:
            return None
        from mqttree.broker.io.service_manager import ServiceManager

        manager = ServiceManager(os.environ, asyncio.get_running_loop())
        manager.ready("serves clients and other brokers")
        return manager

    async def _forget(self) -> int:
        """End the sessions of all legs, there and here; return the exit code."""
        from mqttree.broker.io.legs import Legs

        assert self.broker is not None
        legs = Legs(self.broker.driver, federates=False)
        failures = await legs.forget({**self.settings.legs, **self._legs_given})
        for line in failures:
            log.error("%s", line)
        return 1 if failures else 0

    def _put_legs_in_force(self, legs: Mapping[str, LegModel]) -> list[str]:
        """Have the `legs` of the file, and those of the command line; return a summary. Raises
        ConfigError, then all stays as it was."""
        assert self.broker is not None
        wanted = {**legs, **self._legs_given}
        if self._legs is None:
            node = self.broker.node
            sessions = node.sessions
            if not wanted and not any(s.listener == LEG_LISTENER for s in sessions.values()):
                return []
            from mqttree.broker.io.legs import Legs

            federation = self.assembly.federation
            federates = federation is not None and federation.federates
            self._legs = Legs(self.broker.driver, federates=federates)
        self._legs.put_in_force(wanted)
        return [counted(len(wanted), "leg")]

    def _leg_reports(self) -> list[dict[str, Any]]:
        return [] if self._legs is None else self._legs.reports()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Stop at the first signal, end at the second; with `die_with_parent` stop also when the
        standard input ends. SIGHUP: read users, rules and certificates again."""
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
        """Drain the broker and then stop; a second request stops it at once. Raises ValueError for
        parameters that cannot be used."""
        options = read_drain(values)
        assert self.broker is not None
        assert self.stopping is not None
        node, driver = self.broker.node, self.broker.driver
        now = driver.time()
        check_elsewhere(options, node.config)
        drain = node.drain
        if drain is None:
            drain = Drain(node, options, now, self.stopping.set)
        else:
            drain.hurry(now, "asked again to finish")
        driver.wake()
        return {"draining": True, "drain": drain.as_dict()}

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
        """Reload the files, one reload after the other."""
        if self._reloading is not None and not self._reloading.done():
            self._reload_again = True
        elif self.broker is not None:
            self._reloading = asyncio.get_running_loop().create_task(
                self._reload_files(self.broker)
            )

    async def _reload_files(self, broker: BrokerService) -> None:
        while True:
            self._reload_again = False
            try:
                file = self.settings.file
                access = (
                    self.settings.access
                    if file is None
                    else read_access(ConfigFile.read(file.path))
                )
                legs = {} if file is None else read_legs(ConfigFile.read(file.path))
                self.assembly.check_access(access, file)
                token = self._access.read()
                found = await broker.reload(access)
                found += self._put_legs_in_force(legs)
            # Any error in the files is one line.
            except Exception as error:
                log.error(
                    "cannot reload, everything stays as it was: %s", " ".join(str(error).split())
                )
            else:
                self._access.renew(token)
                self.settings.access = access
                log.info("reloaded: %s", ", ".join([*found, self.report.anonymous_access()]))
                self.report.warn()
            if not self._reload_again:
                return


def _admin_socket(
    settings: RunSettings, access: AdminAccess
) -> contextlib.AbstractContextManager[socket.socket | None]:
    """Open the admin port of `settings`; `access`: who may use it. If the default one belongs to
    another broker of this machine, there is none."""
    from mqttree.broker.service.assembly import open_admin

    try:
        return open_admin(settings.admin or split_bind(DEFAULT_ADMIN), access)
    except ConfigError as error:
        if settings.admin is not None:
            raise
        log.warning("admin is off: %s", str(error).removeprefix("admin: "))
        return contextlib.nullcontext()


def _spare_the_collector() -> None:
    """Exclude present objects from garbage collection, and collect less often. Connections are made
    of lasting objects, which would be searched again with every few dozen new ones; few objects are
    garbage in cycles."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(*GC_THRESHOLDS)
