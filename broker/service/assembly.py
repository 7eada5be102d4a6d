"""One broker made of its options, and closed again: for the command line and for programs with a
broker inside."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import random
import socket
import time
from pathlib import Path
from typing import Any

from mqttree.broker.base.address import Address
from mqttree.broker.base.machine import default_memory_limit, files_for_clients
from mqttree.broker.cluster.gone_brokers import GoneBrokers
from mqttree.broker.config.data_dir import BrokerIdentity, DataDir, fresh_identity
from mqttree.broker.config.listener_model import link_bind
from mqttree.broker.config.listener_section import read_listeners
from mqttree.broker.config.mqtt_options import node_options
from mqttree.broker.config.options import (
    AMQTT_KEYS,
    AccessSettings,
    FederationSettings,
    RunSettings,
    first_address,
    split_bind,
)
from mqttree.broker.config.yaml_file import ConfigError, ConfigFile
from mqttree.broker.io import admin_http
from mqttree.broker.io.admin_access import AdminAccess
from mqttree.broker.io.auth_service import AuthService
from mqttree.broker.io.broker_service import BrokerService, start_error
from mqttree.broker.io.journal_writer import JournalWriter
from mqttree.broker.limits import Limits
from mqttree.stp import capability

log = logging.getLogger("mqttree")


class Assembly:
    """The parts of one broker: its settings, the configuration of its listeners, its data directory
    (locked until `close`), its journal. With plugins, or other keys of amqtt, `_amqtt` is what
    amqtt's `Broker` takes; without them, nothing of amqtt is loaded."""

    def __init__(self, settings: RunSettings, limits: Limits) -> None:
        """Lock the data directory, and begin an incarnation. `settings`: of the broker; `limits`:
        what it keeps to. Raises ConfigError if that fails; then nothing is locked."""
        self.settings = settings
        self.limits = limits
        file = settings.file
        self.listeners = read_listeners(file, settings.listen)
        self._node_options = node_options(file)
        self._amqtt: dict[str, Any] | None = None
        if file is not None and any(key.replace("-", "_") in AMQTT_KEYS for key in file.data):
            from mqttree.broker.compat.config import read_config

            self._amqtt = read_config(file, settings.listen)
        self.check_access(settings.access, settings.file)
        bind = self._link_bind()
        wall, rng = time.time(), random.SystemRandom()
        folder = settings.data_dir
        self._folder = DataDir(folder) if folder is not None else None
        try:
            identity = (
                self._folder.identity(wall, rng)
                if self._folder is not None
                else fresh_identity(wall, rng)
            )
            self.federation = _federation(settings, bind, identity)
            self.disk = (
                _disk(settings, self._folder, identity.id, limits)
                if self._folder is not None
                else None
            )
        except BaseException:
            self.close()
            raise

    def _link_bind(self) -> Address | None:
        """Return the address of the listener for links; without one, the broker does not look for
        others. Raises ConfigError."""
        settings, file = self.settings, self.settings.file
        bind = link_bind(self.listeners, settings.tls)
        if bind is None and settings.tls is not None and file is not None:
            wanted = (
                "with require_certificate: true"
                if settings.tls.certfile is not None
                else "for other brokers"
            )
            file.fail(
                ("federation", "tls"), f"needs a listener of type tcp with ssl: true {wanted}"
            )
        if bind is None and settings.advertise is None and settings.discovery != "off":
            log.warning(
                "no listener is plain tcp, so no other broker can dial this one: discovery is off "
                "(a listener has the ssl of the default one, unless it says ssl: false)"
            )
            settings.discovery = "off"
        return bind

    def check_access(self, access: AccessSettings, file: ConfigFile | None) -> None:
        """Check that the files and listeners that `file` names under `access` are there. Raises
        ConfigError."""
        if file is None:
            return
        for key, path in (("users", access.users), ("rules", access.rules)):
            if path is not None and (why := _unreadable(path)):
                file.fail(("access", key), f"cannot read {path}: {why}")
        if isinstance(access.anonymous, dict):
            for name in access.anonymous:
                if name not in self.listeners.by_name:
                    file.fail(("access", "anonymous"), f"there is no listener {name!r}")

    async def start(self) -> BrokerService:
        """Make the broker and start it in the running event loop. Raises ConfigError with one line;
        then nothing of it runs."""
        broker: BrokerService | None = None
        try:
            auth_service = AuthService(self.settings.access, self.listeners.by_name, self.limits)
            broker = self._make(auth_service)
            await broker.start()
        except BaseException as error:
            if broker is not None:
                # If it was stopped during its last steps.
                await broker.abandon()
            if not isinstance(error, Exception):
                raise
            # Any error of a plugin or listener is one line.
            log.debug("cannot start", exc_info=True)
            raise self._explain(error) from None
        if self._folder is not None:
            self._restore_alarms(self._folder, broker.node.cluster.gone_brokers)
        return broker

    def _restore_alarms(self, folder: DataDir, gone_brokers: GoneBrokers) -> None:
        """Raise the alarms again that there were when this broker ended, and keep them from now
        on."""

        def keep(alarms: list[dict[str, Any]]) -> None:
            try:
                folder.keep_alarms(alarms)
            except ConfigError as error:
                log.warning("alarms are not kept: %s", error)

        try:
            gone_brokers.restore(folder.alarms())
        except ConfigError as error:
            log.warning("alarms are lost: %s", error)
        except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError):
            log.warning("alarms are lost: %s has something else", folder.path / "alarms")
        gone_brokers.keep = keep

    def _make(self, auth_service: AuthService) -> BrokerService:
        """Return the broker, not started: amqtt's if the configuration has keys of amqtt."""
        loop = asyncio.get_running_loop()
        if self._amqtt is None:
            return BrokerService(
                loop,
                self.listeners,
                settings=self.federation,
                auth_service=auth_service,
                disk=self.disk,
                limits=self.limits,
                node_options=self._node_options,
            )
        from mqttree.broker.compat.broker import Broker

        return Broker(
            self._amqtt,
            loop,
            settings=self.federation,
            auth_service=auth_service,
            disk=self.disk,
            limits=self.limits,
        )

    def _explain(self, error: Exception) -> ConfigError:
        """Return one line for an exception at the start."""
        if self._amqtt is None:
            return start_error(error)
        from mqttree.broker.compat.config import explain

        return explain(error, self.settings.file)

    def close(self) -> None:
        """Unlock the data directory; harmless when repeated."""
        if self._folder is not None:
            self._folder.close()


def admin_access(settings: RunSettings) -> AdminAccess:
    """Return who may use the admin port. A token file that does not exist is made. Raises
    ConfigError."""
    try:
        access = AdminAccess(settings.admin_token_file, settings.admin_tls)
    except ValueError as error:
        what = "" if str(error).startswith("admin-tls") else "admin-token-file: "
        raise ConfigError(f"{what}{error}") from None
    if access.made:
        log.info("admin: %s is new and has the token", settings.admin_token_file)
    return access


def open_admin(address: Address, access: AdminAccess) -> socket.socket:
    """Return the open socket of the admin port at `address`; `access`: who may use it. Raises
    ConfigError, also if anybody on the network might."""
    try:
        listener = admin_http.listen(address.host, address.port)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"admin: cannot listen on {address}: {reason}") from None
    try:
        access.check_address(listener.getsockname()[0])
    except ValueError as error:
        listener.close()
        raise ConfigError(f"admin: {error}") from None
    return listener


def _federation(
    settings: RunSettings, bind: Address | None, identity: BrokerIdentity
) -> FederationSettings:
    federation = settings.federation(
        bind or split_bind("127.0.0.1:1883"),
        id=identity.id,
        boot=identity.boot,
        capability=capability.measure(alpha=settings.cpu_weight, beta=settings.memory_weight),
        own_host=first_address,
    )
    federation.key = identity.key
    federation.memory_limit = default_memory_limit()
    federation.max_connections = files_for_clients()
    return federation


def _disk(
    settings: RunSettings, data: DataDir, broker_id: bytes, limits: Limits
) -> JournalWriter | None:
    """Return the files of the journal in `data`, None without a journal. `settings`: say whether
    there is one; `broker_id`: whose it is; `limits`: of the files. Raises ConfigError."""
    folder, sync = data.path, settings.durability == "sync"
    if settings.durability == "none":
        if (folder / "journal").exists():
            log.warning("durability is none: the journal in %s is neither read nor written", folder)
        return None
    return JournalWriter(folder, broker_id, sync=sync, limits=limits, data=data)


def _unreadable(path: Path) -> str:
    """Return why a file cannot be read, "" if it can."""
    try:
        path.stat()
    except OSError as error:
        return error.strerror or str(error)
    if path.is_dir():
        return os.strerror(errno.EISDIR)
    return "" if os.access(path, os.R_OK) else os.strerror(errno.EACCES)
