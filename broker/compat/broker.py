"""amqtt's `Broker` around our node: the same configuration, listeners, plugins, states and context.

The node decides. This module opens sockets, runs effects that take time, and hands their answers to
the node. If no plugin asks for questions or events, nothing here is called for a message.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import os
import random
import ssl
import time
import warnings
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from amqtt.broker import (
    DEFAULT_PORTS,
    BrokerContext,
    ExternalServer,
    RetainedApplicationMessage,
    Server,
)
from amqtt.contexts import BrokerConfig, ListenerConfig, ListenerType, default_broker_plugins
from amqtt.errors import BrokerError
from amqtt.events import BrokerEvents
from amqtt.session import Session as Account

from broker.auth.authorization import Access
from broker.base.limits import DEFAULTS, Limits
from broker.base.log_format import log_line
from broker.base.machine import resident_memory
from broker.base.version import VERSION
from broker.cluster.link import peering
from broker.compat.accounts import Accounts
from broker.compat.api import BrokerApi
from broker.compat.hooks import HookedNode, ShowingNode, Sources, deliver_kept
from broker.compat.listener import Listener, ListenerProtocol, listen_error
from broker.compat.plugins import Plugins
from broker.compat.views import RetainedMessages, Sessions, Subscriptions
from broker.config.listener_options import ListenerOptions, split_options, unix_path
from broker.config.mqtt_options import read_options
from broker.config.node_config import NodeConfig
from broker.config.options import AccessSettings, FederationSettings, default_name
from broker.config.yaml_file import ConfigError
from broker.core.client import Client
from broker.core.connection import Connection
from broker.core.effects import (
    AppendFrame,
    Authenticate,
    AuthorizePublish,
    AuthorizeReceive,
    AuthorizeSubscribe,
    BeginSegment,
    Datagram,
    Dial,
    DiscardSegments,
    Effect,
    Event,
    Hooks,
    TailDrop,
    TailRead,
    TailSync,
    TailWrite,
)
from broker.core.sys_topics import INTERVAL, SysTopics
from broker.io.auth_service import AuthService
from broker.io.discovery_driver import DiscoveryDriver
from broker.io.driver import Driver, StreamProtocol
from broker.io.journal_writer import JournalWriter, Loaded
from broker.io.listeners import Acceptor
from broker.io.proxy_protocol import ProxyHeader
from broker.io.tls import describe_error, renew
from broker.io.websocket import WebSocketProtocol
from broker.persistence.journal import Journal

__all__ = ["Broker", "BrokerContext", "RetainedApplicationMessage", "Server"]
"""Names beside amqtt's Broker that can be imported from here, too."""

DRAIN_TIMEOUT = 1.0
"""s for the last bytes to go out at a shutdown."""

TELL_TIMEOUT = 5.0
"""s for DISCONNECT to all clients at a shutdown, some in each turn of the loop."""

PLUGIN_TIMEOUT = 5.0
"""s for plugins' methods to end at a shutdown; then they are cancelled."""

DEFAULT_PLUGINS: dict[str, Any] = {
    "amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True},
    "amqtt.plugins.sys.broker.BrokerSysPlugin": {"sys_interval": 20},
}
"""amqtt's default without its two loggers."""

OURS = ("federation", "access", "durability")
"""Keys of a configuration file that amqtt does not have."""


class Broker(BrokerApi):
    """amqtt's broker, extended: faster, MQTT 5, and one of a federation when `settings` are given.

    `node` is the pure broker, `driver` runs it, `accounts` are amqtt's sessions of our sessions.
    """

    def __init__(
        self,
        config: BrokerConfig | dict[str, Any] | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        plugin_namespace: str | None = None,
        *,
        settings: FederationSettings | None = None,
        gatekeeper: AuthService | None = None,
        disk: JournalWriter | None = None,
        limits: Limits = DEFAULTS,
    ) -> None:
        """`config`: amqtt's configuration; the keys `federation`, `access` and `durability` are
        ignored here, `mqtt` has options of the node (`mqtt_options`). `loop`, `plugin_namespace`:
        as in amqtt. `settings`: of the federation, None for a lone broker. `gatekeeper`: knows
        users and rules. `disk`: the files of the journal, None without one. `limits`: what the
        node keeps to.

        Raises what amqtt raises: dacite's errors, ValueError and FileNotFoundError for a wrong
        configuration, PluginImportError, PluginLoadError, PluginInitError and PluginCoroError for
        plugins.
        """
        self.max_qos = 2
        self.mqtt_options: dict[str, Any] = {}
        self.listener_options: dict[str, ListenerOptions] = {}
        given = {} if config is None else config
        chosen = BrokerConfig.from_dict(self._prepared(given)) if isinstance(given, dict) else given
        # The configuration has no plugins.
        if chosen.plugins == default_broker_plugins():
            chosen = copy.copy(chosen)
            chosen.plugins = copy.deepcopy(DEFAULT_PLUGINS)
            if settings is not None:
                # Our $SYS topics have more.
                del chosen.plugins["amqtt.plugins.sys.broker.BrokerSysPlugin"]
        self.settings = settings
        self.limits = limits
        self.gatekeeper = gatekeeper
        self.disk = disk
        self._contexts: dict[str, tuple[ListenerConfig, ssl.SSLContext]] = {}
        self.outreach = DiscoveryDriver(settings)
        self._restart = False
        self._tasks: set[asyncio.Task[None]] = set()
        with warnings.catch_warnings():
            # psutil is a dependency of this project.
            warnings.filterwarnings("ignore", "`BrokerSysPlugin`", DeprecationWarning)
            super().__init__(chosen, loop, plugin_namespace)
        self._sessions = Sessions(self)
        self._subscriptions = Subscriptions(self)
        self._retained_messages = RetainedMessages(self)
        found = getattr(self.config, "max_qos", None)
        if isinstance(found, int):
            self.max_qos = min(self.max_qos, found)
        self.accounts = Accounts(self.config.timeout_disconnect_delay or 0)
        self.plugins = Plugins(self, self.plugins_manager)
        self.node: HookedNode
        self.driver: Driver
        self._make_node()

    def _prepared(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return a copy of a configuration without our keys; amqtt changes the one that it is
        given."""
        config = copy.deepcopy({key: value for key, value in config.items() if key not in OURS})
        for key in ("max-qos", "max_qos"):
            if (qos := config.pop(key, None)) is not None:
                if isinstance(qos, bool) or qos not in (0, 1, 2):
                    raise ValueError(f"'{key}' is {qos!r}, not 0, 1 or 2")
                self.max_qos = qos
        self.mqtt_options = read_options(config.pop("mqtt", None) or {})
        if isinstance(config.get("listeners"), dict):
            config["listeners"], self.listener_options = split_options(config["listeners"])
        return config

    def _make_node(self, port: int | None = None) -> None:
        """Make the node and its driver; `port`: to be advertised if the settings have none."""
        hooks = self.plugins.hooks()
        if self.settings is not None:
            access = self.gatekeeper.access if self.gatekeeper is not None else None
            peering.settle(self.settings, self._guard(access, hooks))
        config = (
            self.settings.node_config()
            if self.settings is not None
            else NodeConfig(discovery="off")
        )
        config = config.replace(
            max_qos=self.max_qos,
            session_expiry_max=self.config.session_expiry_interval,
            keep_missed=True,
        )
        config = config.replace(**self.mqtt_options)
        named = [
            name
            for name, options in self.listener_options.items()
            if options.use_identity_as_username
        ]
        config = config.replace(
            identity_listeners=frozenset(named), link_listener=self._link_listener()
        )
        # The port is known once the listeners are open; until then it is not announced.
        if not config.port:
            config = config.replace(port=port or 1)
        config = config.replace(instance=int.from_bytes(os.urandom(8), "big"))
        make = ShowingNode if hooks.packets else HookedNode
        self.node = node = make(
            config,
            self._loop.time(),
            time.time(),
            random.Random(),
            limits=self.limits,
            hooks=hooks,
            log=log_line,
        )
        node.cluster.entropy = os.urandom
        self.accounts.anonymous = self.plugins.anonymous
        node.accounts = self.accounts
        node.sources = Sources()
        if isinstance(node, ShowingNode):
            node.on_packets = self._packets_sent
        self.driver = Driver(node, self._loop, self._run_effects)
        self._put_in_force()

    def _guard(self, access: Access | None, hooks: Hooks) -> str:
        """Return what makes clients prove their identity."""
        certificates = [
            name for name, options in self.listener_options.items() if options.require_certificate
        ]
        return peering.guard(
            access, self.listeners_config, plugins=hooks.authenticate, certificates=certificates
        )

    def _put_in_force(self) -> None:
        gatekeeper = self.gatekeeper
        if gatekeeper is not None and (
            gatekeeper.access is not None or self.node.access is not None
        ):
            self.node.methods.update(gatekeeper.methods(self.node.methods))
            self.node.set_access(gatekeeper.access, self.driver.time())

    def _link_listener(self) -> str | None:
        """Return the only listener that accepts brokers, when links are authenticated by
        certificates."""
        tls = self.settings.tls if self.settings is not None else None
        if tls is None or tls.certfile is None:
            return None
        required = [
            name for name, options in self.listener_options.items() if options.require_certificate
        ]
        return next(
            (name for name in required if self.listeners_config[name].type == ListenerType.TCP), ""
        )

    # ---------------------------------------------------------------- start

    async def start(self) -> None:
        """Open the listeners and start.

        Raises BrokerError: the broker is in a state in which it cannot start, or a listener cannot
        be opened (one line).
        """
        try:
            self.transitions.start()
        # transitions.MachineError, or ValueError of older versions.
        except Exception as error:
            raise BrokerError(f"Broker instance can't be started: {error}") from error
        if (
            self._restart
            or self.node.sessions
            or len(self.node.retained)
            or self.node.hooks != self.plugins.hooks()
        ):
            self._make_node()
        self._restart = True
        await self._fire(BrokerEvents.PRE_START)
        try:
            self._recover()
            await self._start_listeners()
        except BaseException as error:
            await self._close_listeners()
            self.driver.stop()
            if self.gatekeeper is not None:
                self.gatekeeper.close()
            await self._close_disk()
            self.transitions.starting_fail()
            if isinstance(error, BrokerError) or not isinstance(error, Exception):
                raise
            raise BrokerError(f"Broker instance can't be started: {error}") from error
        self.transitions.starting_success()
        await self._fire(BrokerEvents.POST_START)
        # Retained messages that plugins have loaded.
        for session in list(self.node.sessions.values()):
            if isinstance(session.account, Account):
                session.clean = bool(session.account.clean_session)
                deliver_kept(session, session.account)
        self.outreach.start(self.driver)
        self._start_sys()
        self.driver.wake()

    def _start_sys(self) -> None:
        """Publish Mosquitto's $SYS topics, unless this is amqtt's broker to its user, or amqtt's
        plugin publishes its own.

        amqtt's key `sys_interval`: s, 0 for never.
        """
        interval = self.config.sys_interval
        if self.settings is not None and interval != 0 and not self.plugins.has_sys:
            topics = SysTopics(
                self.node,
                f"mqttree version {VERSION}",
                resident_memory,
                interval or INTERVAL,
            )
            topics.start(self.driver.time())

    async def _start_listeners(self) -> None:
        self._servers.clear()
        for name, config in self.listeners_config.items():
            if "bind" not in config:
                continue
            if config.type == ListenerType.EXTERNAL:
                self._servers[name] = ExternalServer()
                continue
            context = self._ssl_context(name, config) if config.ssl else None
            if context is not None:
                self._contexts[name] = config, context
            try:
                where = unix_path(str(config.bind)) or self._split_bindaddr_port(
                    str(config.bind), DEFAULT_PORTS[config.type]
                )
            except ValueError as error:
                raise BrokerError(
                    f"listener '{name}': cannot read bind value '{config.bind}': {error}"
                ) from error
            # amqtt keeps the brackets of IPv6.
            if not isinstance(where, str) and where[0] is not None:
                where = where[0].strip("[]"), where[1]
            options = self.listener_options.get(name)
            server = self._servers[name] = Listener(
                name, None, config.max_connections, options, limits=self.limits
            )
            try:
                server.instance = await self._open(server, config.type, where, context)
            except (OSError, ValueError, OverflowError) as error:
                raise BrokerError(listen_error(name, where, error)) from error
            self.logger.info(
                "Listener '%s' bind to %s (max_connections=%s)",
                name,
                config.bind,
                config.max_connections,
            )
        if self.settings is not None and self.settings.port == 0:
            self.driver.stop()
            port = self.ports.get(self._link_listener() or "", next(iter(self.ports.values()), 0))
            self.settings.name = self.settings.name or default_name(port)
            self._make_node(port)
            self._recover()

    def _recover(self) -> None:
        """Restore the state from the journal, and continue to write it. Raises ConfigError: it
        cannot be read."""
        disk = self.disk
        if disk is None:
            return
        now = self.driver.time()
        collecting = gc.isenabled()
        # The collector would search a million objects again and again, and find nothing.
        gc.disable()
        try:
            loaded = self._load(disk, now)
        finally:
            if collecting:
                gc.enable()
        disk.start(self._tell)
        disk.tail.start(self._tell)
        counters = self.node.counters
        if loaded.files:
            what = (
                f"{counters.sessions_loaded} sessions and "
                f"{counters.retained_loaded} retained messages"
            )
            log_line(
                "info",
                f"{what} are restored in {self.driver.time() - now:.1f} s "
                f"({loaded.size:,} bytes of journal)",
            )

    def _load(self, disk: JournalWriter, now: float) -> Loaded:
        loaded = disk.load()
        tail = disk.tail.load()
        for line in (*loaded.cuts, *tail.cuts):
            self.node.counters.journal_truncated += 1
            log_line("warning", line)
        node = self.node
        node.absent_members.begin(tail)
        journal = Journal(node, node.cluster, node.absent_members, sync=disk.sync)
        node.attach_journal(journal)
        journal.begin(loaded.image, loaded.segment, loaded.files, loaded.size, now)
        return loaded

    def _tell(self, effect: Effect, answer: object) -> None:
        """Hand an answer of a disk thread to the event loop."""
        # The loop has ended.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._told, effect, answer)

    def _told(self, effect: Effect, answer: object) -> None:
        self.node.answer(effect, answer, self.driver.time())
        self.driver.wake()

    async def _close_disk(self) -> None:
        """Have the remaining frames written, and wait for that."""
        if self.disk is not None:
            self.node.flush()
            self._run_effects()
            await self._loop.run_in_executor(None, self.disk.close)
            await self._loop.run_in_executor(None, self.disk.tail.close)

    async def _open(
        self,
        server: Listener,
        kind: ListenerType,
        where: tuple[str | None, int] | str,
        context: ssl.SSLContext | None,
    ) -> Any:
        """Open a server; its connections go straight to the node."""
        name = server.listener_name
        opened, closed = server.opened, server.closed

        def accept(proxied: ProxyHeader | None) -> asyncio.Protocol:
            # Looked up for each connection: a restart replaces it.
            driver = self.driver
            if kind == ListenerType.WS:
                return WebSocketProtocol(driver, name, server, proxied)
            if server.max_connections > 0:
                return ListenerProtocol(driver, name, server, proxied)
            return StreamProtocol(driver, name, None, opened, closed, proxied)

        plain = None if kind == ListenerType.WS else lambda: self.driver

        def failed(peer: str, error: OSError) -> None:
            self.node.counters.tls_failed += 1
            # A connection without a handshake, such as a health check, was not refused: it is
            # logged at debug.
            level = "warning" if isinstance(error, ssl.SSLError) else "debug"
            cause = f"no TLS at listener '{name}': {describe_error(error)}"
            self.node.log_limit.line(level, cause, peer, f"{peer}: {cause}; closed")

        listening = await server.listen(
            accept, where, context, self._bad_proxy_header, failed, plain
        )
        if isinstance(listening, Acceptor):
            listening.crowded = self._crowded
        return listening

    def _crowded(self, peer: str) -> None:
        self.node.counters.refused_open_files += 1
        text = (
            f"{peer}: closed: the remaining open files are reserved for links and the admin port "
            "(ulimit -n)"
        )
        self.node.log_limit.line("warning", "too many open files", peer, text)

    def _bad_proxy_header(self, line: str) -> None:
        self.node.counters.proxy_garbage += 1
        peer, _, cause = line.partition(": ")
        self.node.log_limit.line("warning", cause, peer, line)

    def _ssl_context(self, name: str, config: ListenerConfig) -> ssl.SSLContext:
        if not config.certfile or not config.keyfile:
            raise BrokerError(f"listener '{name}': ssl needs 'certfile' and 'keyfile'")
        try:
            context: ssl.SSLContext = self._create_ssl_context(config)
            if self.listener_options.get(name, ListenerOptions()).require_certificate:
                context.verify_mode = ssl.CERT_REQUIRED
        # ssl.SSLError is an OSError.
        except (BrokerError, OSError, ValueError) as error:
            files = [
                str(path)
                for path in (config.certfile, config.keyfile, config.cafile, config.capath)
                if path
            ]
            reason = getattr(error, "strerror", None) or str(error)
            raise BrokerError(
                f"listener '{name}': cannot use {', '.join(files)}: {reason}"
            ) from error
        return context

    async def reload(self, settings: AccessSettings) -> list[str]:
        """Read users, rules and certificates from their files again; no client is disconnected.
        Returns a summary.

        Raises ConfigError and BrokerError with one line for a file that cannot be used: then
        everything stays as it was.
        """
        gatekeeper = self.gatekeeper
        read = (
            await self._loop.run_in_executor(None, gatekeeper.read, settings)
            if gatekeeper is not None
            else None
        )
        if (
            read is not None
            and peering.unproven(self.settings)
            and (guarded := self._guard(read[1], self.node.hooks))
        ):
            raise ConfigError(
                f"clients would be checked ({guarded}), other brokers are not: {peering.REMEDY}, "
                "and start again"
            )
        for name, (config, _) in self._contexts.items():
            self._ssl_context(name, config)
        self.outreach.renew()
        # For further handshakes.
        for config, context in self._contexts.values():
            renew(context, config)
        if gatekeeper is not None and read is not None:
            gatekeeper.take(*read)
            self._put_in_force()
        self.driver.wake()
        found = gatekeeper.describe() if gatekeeper is not None else []
        return [*found, f"certificates of {', '.join(self._contexts)}"] if self._contexts else found

    @property
    def ports(self) -> dict[str, int]:
        """The TCP port of every listener that is open."""
        found = {}
        for name, server in self._servers.items():
            sockets = server.instance.sockets if server.instance is not None else ()
            if sockets and getattr(server, "unix", None) is None:
                found[name] = int(sockets[0].getsockname()[1])
        return found

    def listener_connections(self) -> dict[str, int]:
        """Return how many connections each listener has."""
        return {
            name: server.conn_count
            for name, server in self._servers.items()
            if isinstance(server, Listener)
        }

    # ---------------------------------------------------------------- end

    async def shutdown(self) -> None:
        """Tell all clients and brokers, let that go out, and close. Does nothing if the broker is
        not started."""
        if not self.transitions.is_started():
            log_line("debug", f"shutdown in state {self.transitions.state}: nothing to do")
            return
        self.logger.info("Shutting down broker...")
        self.transitions.shutdown()
        await self._fire(BrokerEvents.PRE_SHUTDOWN, PLUGIN_TIMEOUT)
        for server in self._servers.values():
            if isinstance(server, Listener):
                server.close_listening()
        await self._drain()
        self.driver.stop()
        await self.outreach.close()
        await self._end_tasks()
        if self.gatekeeper is not None:
            self.gatekeeper.close()
        await self._close_listeners()
        await self._close_disk()
        self.node.sessions.clear()
        self.node.retained.clear()
        self.logger.info("Broker closed")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.plugins_manager.wait_fired_events(), PLUGIN_TIMEOUT)
        await self._fire(BrokerEvents.POST_SHUTDOWN, PLUGIN_TIMEOUT)
        await self.close_plugins()
        self.transitions.stopping_success()

    async def close_plugins(self) -> None:
        """Close the plugins; also for a broker that could not be started."""
        try:
            await asyncio.wait_for(self.plugins_manager.close(), PLUGIN_TIMEOUT)
        except Exception as error:
            self.plugins.failed("close", error)

    async def _drain(self) -> None:
        """Stop the node and let its last packets go out; then abort the connections that are
        left."""
        empty, told = asyncio.Event(), asyncio.Event()
        node = self.node
        node.on_empty = empty.set
        node.stop(self.driver.time(), told.set)
        self.driver.run()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(told.wait(), TELL_TIMEOUT)
        if node.connections:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(empty.wait(), DRAIN_TIMEOUT)
        for conn in list(node.connections):
            conn.abort("shutdown")
        self.driver.run()
        node.on_empty = None

    async def _end_tasks(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=0.1)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _close_listeners(self) -> None:
        for server in self._servers.values():
            if server.instance is not None:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(server.close_instance(), DRAIN_TIMEOUT)

    async def _fire(self, event: BrokerEvents, limit: float | None = None) -> None:
        """Tell plugins of a start or shutdown event, and wait for them, `limit` s at most."""
        try:
            await asyncio.wait_for(self.plugins_manager.fire_event(event, wait=True), limit)
        except Exception as error:
            self.plugins.failed(str(event), error)

    # ---------------------------------------------------------------- effects

    def _run_effects(self) -> None:
        events: list[Event] = []
        for effect in self.node.take_effects():
            match effect:
                case Event():
                    # Sent packets are shown when they go out: `ShowingNode`.
                    if effect.name != "mqtt_packet_sent":
                        events.append(effect)
                case Datagram():
                    self.outreach.send(effect.data)
                case AppendFrame() | BeginSegment() | DiscardSegments():
                    if self.disk is not None:
                        self.disk.put(effect)
                case TailWrite() | TailRead() | TailSync() | TailDrop():
                    if self.disk is not None:
                        self.disk.tail.put(effect)
                case Dial():
                    self.spawn(self.outreach.dial(effect, self.driver))
                case Authenticate():
                    self.spawn(self._answer(effect, self._may_connect, False))
                case AuthorizePublish():
                    self.spawn(self._answer(effect, self.plugins.may_publish, False))
                case AuthorizeSubscribe():
                    self.spawn(
                        self._answer(
                            effect, self.plugins.may_subscribe, [False] * len(effect.packet.filters)
                        )
                    )
                case AuthorizeReceive():
                    self.spawn(self._answer(effect, self.plugins.may_receive, set()))
        if events:
            self.plugins.tell(events)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` as a task, which is cancelled at the end."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _may_connect(self, effect: Authenticate) -> bool:
        """Check the users file, then ask the plugins: both must accept the client."""
        connect = effect.connect
        keeper = self.gatekeeper if effect.client.checking else None
        if keeper is not None and not await keeper.verify(
            connect.username or "", connect.password or b""
        ):
            return False
        return await self.plugins.may_connect(effect) if self.node.hooks.authenticate else True

    async def _answer(
        self, effect: Effect, question: Callable[[Any], Awaitable[Any]], refusal: Any
    ) -> None:
        """Ask plugins and give the node their answer; an exception counts as a refusal."""
        result = refusal
        try:
            result = await question(effect)
        except Exception as error:
            self.plugins.failed(type(effect).__name__, error)
        finally:
            self.node.answer(effect, result, self.driver.time())
            if isinstance(effect, Authenticate):
                self.accounts.answered(effect.connect)
            self.driver.wake(_source(effect))

    def _packets_sent(self, client: Client, data: bytes) -> None:
        self.plugins.tell([Event("mqtt_packet_sent", {"client": client, "data": data})])


def _source(effect: Effect) -> Connection | None:
    """Return the connection whose packet plugins were asked about."""
    match effect:
        case Authenticate() | AuthorizePublish() | AuthorizeSubscribe():
            return effect.client.conn
        case AuthorizeReceive():
            return effect.source
        case _:
            return None
