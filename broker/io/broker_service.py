"""One broker in an event loop: the node, its driver, listeners, journal and discovery.

The node decides. This module opens sockets, runs effects that take time, and hands their answers to
the node. It knows no plugins: `mqttree.broker.compat.broker` adds those, and amqtt.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import random
import ssl
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from mqttree.broker.auth.authorization import Access
from mqttree.broker.base.log_format import log_line
from mqttree.broker.base.machine import resident_memory
from mqttree.broker.base.version import VERSION
from mqttree.broker.cluster.link import peering
from mqttree.broker.config.listener_model import (
    EXTERNAL,
    PORTS,
    TCP,
    WEBSOCKET,
    ListenerModel,
    Listeners,
    bound_address,
)
from mqttree.broker.config.listener_options import ListenerOptions, unix_path
from mqttree.broker.config.node_config import NodeConfig
from mqttree.broker.config.options import (
    AccessSettings,
    FederationSettings,
    default_name,
    split_bind,
)
from mqttree.broker.config.yaml_file import ConfigError
from mqttree.broker.core.connection import Connection
from mqttree.broker.core.effects import (
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
    Hooks,
    TailDrop,
    TailRead,
    TailSync,
    TailWrite,
)
from mqttree.broker.core.sys_topics import INTERVAL, SysTopics
from mqttree.broker.io.auth_service import AuthService
from mqttree.broker.io.discovery_driver import DiscoveryDriver
from mqttree.broker.io.driver import Driver
from mqttree.broker.io.journal_writer import JournalWriter, Loaded
from mqttree.broker.io.limits import IoLimits
from mqttree.broker.io.listener import Listener, ListenerProtocol, listen_error
from mqttree.broker.io.listeners import Acceptor
from mqttree.broker.io.proxy_protocol import ProxyHeader
from mqttree.broker.io.stream_protocol import StreamProtocol
from mqttree.broker.io.tls import describe_error, listener_context, renew
from mqttree.broker.node import Node
from mqttree.broker.persistence.journal import Journal

if TYPE_CHECKING:
    from mqttree.broker.auth.users_file import Users

DRAIN_TIMEOUT = 1.0
"""s for the last bytes to go out at a shutdown."""

TELL_TIMEOUT = 5.0
"""s for DISCONNECT to all clients at a shutdown, some in each turn of the loop."""

Where = tuple[str | None, int] | str
"""Where a listener binds: host (None: all interfaces) and port, or the path of a Unix socket."""

log = logging.getLogger("mqttree")


class ListenerError(Exception):
    """A listener that cannot be opened, in one line that names it."""


class ServedNode(Node):
    """The node, which says when its last connection has ended."""

    on_empty: Callable[[], None] | None = None
    """Called then."""

    def connection_lost(self, conn: Connection, reason: str, now: float) -> None:
        """Note at `now` (s) that the connection `conn` is closed, for a `reason` (text)."""
        super().connection_lost(conn, reason, now)
        if self.on_empty is not None and not self.connections:
            self.on_empty()


AnyNode = TypeVar("AnyNode", bound=ServedNode)


class BrokerService:
    """One broker. `node` is the pure broker, `driver` runs it; both are there from the start on."""

    node: ServedNode
    driver: Driver

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listeners: Listeners,
        *,
        settings: FederationSettings | None,
        auth_service: AuthService | None = None,
        disk: JournalWriter | None = None,
        limits: IoLimits,
        node_options: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """`loop`: in which it runs. `listeners`: where clients come. `settings`: of the federation,
        None for a lone broker. `auth_service`: knows users and rules. `disk`: the files of the
        journal, None without one. `limits`: what the node keeps to. `node_options`: its settings
        beside those of the federation."""
        self._loop = loop
        self.listeners_config = listeners.by_name
        self.listener_options = listeners.options
        self._contexts: dict[str, tuple[ListenerModel, ssl.SSLContext]] = {}
        self._given_options = node_options
        self.settings = settings
        self.limits = limits
        self.auth_service = auth_service
        self.disk = disk
        self._journal: Journal | None = None
        self.discovery_driver = DiscoveryDriver(settings, limits)
        self._servers: dict[str, Listener] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._serving = False

    # ---------------------------------------------------------------- what plugins may say

    def _hooks(self) -> Hooks:
        """Return what the node has to ask and tell: without plugins nothing."""
        return Hooks(verifies=False)

    def admits(self) -> bool | None:
        """Return whether plugins let a client in without a password; None: that is not known before
        they are asked."""
        return True

    def _failed(self, what: str, error: BaseException) -> None:
        """Count and log what was raised in answer to the question `what`; `error`: the
        exception."""
        self.node.counters.plugin_errors += 1
        text = " ".join(str(error).split())
        log.error(
            "plugin failed in %s: %s%s", what, type(error).__name__, f": {text}" if text else ""
        )

    def _node_options(self) -> dict[str, Any]:
        """Return settings of the node beside those of the federation."""
        return dict(self._given_options)

    def _new_node(self, config: NodeConfig, hooks: Hooks) -> ServedNode:
        """Return a new node with the settings `config`; `hooks`: which effects plugins want."""
        return self._node_of(ServedNode, config, hooks)

    def _node_of(self, kind: type[AnyNode], config: NodeConfig, hooks: Hooks) -> AnyNode:
        """Return a new node of the class `kind`; `config`, `hooks`: as of `_new_node`."""
        return kind(
            config,
            # Not the loop's, which may be ms old: stamps of brokers would differ by as much.
            time.monotonic(),
            time.time(),
            random.Random(),
            limits=self.limits,
            hooks=hooks,
            log=log_line,
        )

    def _sys_period(self) -> float:
        """Return the time between two values of a $SYS topic (s), 0 for none."""
        return INTERVAL

    # ---------------------------------------------------------------- the node

    def _make_node(self, port: int | None = None) -> None:
        """Make the node and its driver; `port`: to be advertised if the settings have none."""
        hooks = self._hooks()
        if self.settings is not None:
            access = self.auth_service.access if self.auth_service is not None else None
            peering.settle(self.settings, self._guard(access, hooks))
        config = (
            self.settings.node_config()
            if self.settings is not None
            else NodeConfig(discovery="off")
        )
        config = config.replace(keep_missed=True).replace(**self._node_options())
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
        self.node = self._new_node(config, hooks)
        self.node.cluster.entropy = os.urandom
        self.driver = Driver(self.node, self._loop, self._run_effects)
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
        auth_service = self.auth_service
        if auth_service is not None and (
            auth_service.access is not None or self.node.access is not None
        ):
            self.node.methods.update(auth_service.methods(self.node.methods))
            self.node.set_access(auth_service.access, self.driver.time())

    def _link_listener(self) -> str | None:
        """Return the only listener that accepts brokers, when links are authenticated by
        certificates."""
        tls = self.settings.tls if self.settings is not None else None
        if tls is None or tls.certfile is None:
            return None
        required = [
            name for name, options in self.listener_options.items() if options.require_certificate
        ]
        return next((name for name in required if self.listeners_config[name].type == TCP), "")

    # ---------------------------------------------------------------- start

    async def start(self) -> None:
        """Make the node, open the listeners and start.

        Raises:
            ListenerError: a listener cannot be opened.
            ConfigError: the journal cannot be read.
        """
        self._make_node()
        await self._open_all()
        self._serve()

    async def _open_all(self) -> None:
        """Read the journal and open the listeners; raises what `start` raises, then all is closed
        again."""
        try:
            self._recover()
            await self._start_listeners()
        except BaseException:
            await self._close_listeners()
            self.driver.stop()
            if self.auth_service is not None:
                self.auth_service.close()
            await self._close_disk()
            raise

    def _serve(self) -> None:
        """Begin to look for other brokers, and to publish $SYS topics."""
        self._serving = True
        self.discovery_driver.start(self.driver)
        self._start_sys()
        self.driver.wake()

    def _start_sys(self) -> None:
        """Publish Mosquitto's $SYS topics, unless this is amqtt's broker to its user."""
        interval = self._sys_period()
        if self.settings is not None and interval:
            topics = SysTopics(self.node, f"mqttree version {VERSION}", resident_memory, interval)
            topics.start(self.driver.time())

    async def _start_listeners(self) -> None:
        self._servers.clear()
        for name, listener in self.listeners_config.items():
            if listener.bind is not None and listener.type != EXTERNAL:
                await self._start_listener(name, listener, listener.bind)
        self._take_free_port()

    async def _start_listener(self, name: str, listener: ListenerModel, bind: str) -> None:
        """Open the listener `name`, configured as `listener`, at `bind`. Raises ListenerError."""
        context = self._tls_context(name, listener) if listener.ssl else None
        if context is not None:
            self._contexts[name] = listener, context
        try:
            where: Where | None = unix_path(bind)
            if where is None:
                address = split_bind(bind, PORTS[listener.type])
                where = address.host or None, address.port
        except ValueError as error:
            raise ListenerError(
                f"listener '{name}': cannot read bind value '{bind}': {error}"
            ) from error
        server = self._servers[name] = self._new_listener(name, listener.max_connections)
        try:
            server.instance = await self._open_listener(server, listener.type, where, context)
        except (OSError, ValueError, OverflowError) as error:
            raise ListenerError(listen_error(name, where, error)) from error

    def _tls_context(self, name: str, listener: ListenerModel) -> ssl.SSLContext:
        """Return the TLS context of the listener `name`. Raises ListenerError."""
        if not listener.certfile or not listener.keyfile:
            raise ListenerError(f"listener '{name}': ssl needs 'certfile' and 'keyfile'")
        options = self.listener_options.get(name, ListenerOptions())
        try:
            return listener_context(listener, required=options.require_certificate)
        # ssl.SSLError is an OSError.
        except (OSError, ValueError) as error:
            files = (listener.certfile, listener.keyfile, listener.cafile, listener.capath)
            named = ", ".join(str(path) for path in files if path)
            reason = getattr(error, "strerror", None) or str(error)
            raise ListenerError(f"listener '{name}': cannot use {named}: {reason}") from error

    def _new_listener(self, name: str, places: int) -> Listener:
        """Return the listener `name`, not open yet, with so many `places` (0 or less: any
        number)."""
        return Listener(name, None, places, self.listener_options.get(name), limits=self.limits)

    def _take_free_port(self) -> None:
        """Make the node again with the port that the system chose, if it was to choose one."""
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
            self.driver.frame_first = True
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
        self.driver.frame_first = not disk.sync
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
        self._journal = journal
        node.attach_journal(journal)
        journal.begin(loaded.image, loaded.segment, loaded.files, loaded.size, now)
        return loaded

    def _tell(self, effect: Effect, answer: object) -> None:
        """Hand an answer of a disk thread to the event loop."""
        # The loop has ended.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._told, effect, answer)

    def _told(self, effect: Effect, answer: object) -> None:
        if self.disk is not None and isinstance(effect, AppendFrame | BeginSegment):
            self.disk.told(effect)
        self.node.answer(effect, answer, self.driver.time())
        self.driver.wake()

    async def _close_disk(self) -> None:
        """Have the remaining frames written, and wait for that."""
        if self.disk is not None:
            if self._journal is not None:
                self._journal.frames.force()
            self.node.output.flush()
            self._run_effects()
            await self._loop.run_in_executor(None, self.disk.close)
            await self._loop.run_in_executor(None, self.disk.tail.close)

    async def _open_listener(
        self,
        server: Listener,
        kind: str,
        where: Where,
        context: ssl.SSLContext | None,
    ) -> Any:
        """Return what accepts the connections of `server`, a listener of the type `kind`, at
        `where`; `context`: of TLS, None without. They go straight to the node."""
        name = server.listener_name
        accept = self._protocol_maker(server, kind)
        plain = None if kind == WEBSOCKET else lambda: self.driver

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
            listening.on_crowded = self._crowded
        return listening

    def _protocol_maker(
        self, server: Listener, kind: str
    ) -> Callable[[ProxyHeader | None], asyncio.Protocol]:
        """Return what makes the protocol of a new connection of `server`, a listener of the type
        `kind`. The driver is looked up for each connection: a restart replaces it."""
        name, opened, closed = server.listener_name, server.opened, server.closed
        if kind == WEBSOCKET:
            # Most brokers have no such listener, and need not load the library.
            from mqttree.broker.io.websocket import WebSocketProtocol

            return lambda proxied: WebSocketProtocol(self.driver, name, server, proxied)

        def accept(proxied: ProxyHeader | None) -> asyncio.Protocol:
            if server.max_connections > 0:
                return ListenerProtocol(self.driver, name, server, proxied)
            return StreamProtocol(self.driver, name, None, opened, closed, proxied)

        return accept

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

    async def reload(self, settings: AccessSettings) -> list[str]:
        """Read users, rules and certificates from their files again; no client is disconnected.
        Returns a summary. Raises ConfigError and ListenerError with one line for a file that cannot
        be used: then everything stays as it was."""
        read = await self._read_access(settings)
        for name, (listener, _) in self._contexts.items():
            self._tls_context(name, listener)
        self.discovery_driver.renew()
        # For further handshakes.
        for listener, context in self._contexts.values():
            renew(context, listener)
        found = self._take_access(read)
        return [*found, f"certificates of {', '.join(self._contexts)}"] if self._contexts else found

    async def _read_access(
        self, settings: AccessSettings
    ) -> tuple[Users | None, Access | None] | None:
        """Return users and rules as their files say by now, None if the broker has none. Raises
        ConfigError."""
        auth_service = self.auth_service
        if auth_service is None:
            return None
        read = await self._loop.run_in_executor(None, auth_service.read, settings)
        if peering.unproven(self.settings) and (guarded := self._guard(read[1], self.node.hooks)):
            raise ConfigError(
                f"clients would be checked ({guarded}), other brokers are not: {peering.REMEDY}, "
                "and start again"
            )
        return read

    def _take_access(self, read: tuple[Users | None, Access | None] | None) -> list[str]:
        """Put in force what `_read_access` has returned; return a summary."""
        auth_service = self.auth_service
        if auth_service is not None and read is not None:
            auth_service.take(*read)
            self._put_in_force()
        self.driver.wake()
        return auth_service.describe() if auth_service is not None else []

    @property
    def ports(self) -> dict[str, int]:
        """The TCP port of every listener that is open."""
        found = {}
        for name, server in self._servers.items():
            sockets = server.instance.sockets if server.instance is not None else ()
            if sockets and getattr(server, "unix", None) is None:
                found[name] = int(sockets[0].getsockname()[1])
        return found

    def listener_reports(self) -> list[dict[str, Any]]:
        """Return the state of each listener, for people and programs."""
        found, ports = [], self.ports
        for name, server in sorted(self._servers.items()):
            listener = self.listeners_config.get(name)
            if isinstance(server, Listener) and listener is not None:
                found.append(
                    {
                        "name": name,
                        "type": listener.type,
                        "tls": bool(listener.ssl),
                        "address": bound_address(listener, ports.get(name)),
                        "connections": server.conn_count,
                        "max_connections": max(server.max_connections, 0),
                        "waiting": len(server.parked),
                    }
                )
        return found

    # ---------------------------------------------------------------- end

    async def shutdown(self) -> None:
        """Tell all clients and brokers, let that go out, and close. Does nothing if the broker is
        not started."""
        if self._serving:
            self._serving = False
            await self._close_all()

    async def abandon(self) -> None:
        """Close what was opened by a start that has failed, or was cut short."""
        await self.shutdown()

    async def _close_all(self) -> None:
        """Tell all clients and brokers, let that go out, and close everything."""
        for server in self._servers.values():
            if isinstance(server, Listener):
                server.close_listening()
        await self._drain()
        self.driver.stop()
        await self.discovery_driver.close()
        await self._end_tasks()
        if self.auth_service is not None:
            self.auth_service.close()
        await self._close_listeners()
        await self._close_disk()
        self.node.forget_state()

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

    # ---------------------------------------------------------------- effects

    def _run_effects(self) -> None:
        for effect in self.node.take_effects():
            self._run_effect(effect)

    def _run_effect(self, effect: Effect) -> None:
        """Carry out what the node asks for; questions to plugins are none without plugins."""
        match effect:
            case Datagram():
                self.discovery_driver.send(effect.data)
            case AppendFrame() if self.disk is not None and self.disk.write_at_once(effect):
                self.node.answer(effect, None, self.driver.time())
            case AppendFrame() | BeginSegment() | DiscardSegments():
                if self.disk is not None:
                    self.disk.put(effect)
            case TailWrite() | TailRead() | TailSync() | TailDrop():
                if self.disk is not None:
                    self.disk.tail.put(effect)
            case Dial():
                self.spawn(self.discovery_driver.dial(effect, self.driver))
            case Authenticate():
                self.spawn(self._answer(effect, self._may_connect, False))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` as a task, which is cancelled at the end."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _may_connect(self, effect: Authenticate) -> bool:
        """Check the users file."""
        connect = effect.connect
        auth_service = self.auth_service if effect.client.checking else None
        return auth_service is None or await auth_service.verify(
            connect.username or "", connect.password or b""
        )

    async def _answer(
        self, effect: Effect, question: Callable[[Any], Awaitable[Any]], refusal: Any
    ) -> None:
        """Give the node the answer to a question that takes time; an exception counts as a
        refusal."""
        result = refusal
        try:
            result = await question(effect)
        except Exception as error:
            self._failed(type(effect).__name__, error)
        finally:
            self.node.answer(effect, result, self.driver.time())
            self._on_answer(effect)
            self.driver.wake(_source(effect))

    def _on_answer(self, effect: Effect) -> None:
        """Note that the node has the answer to a question."""


def start_error(error: Exception) -> ConfigError:
    """Return one line for an exception at the start of a broker."""
    if isinstance(error, ConfigError):
        return error
    reason = " ".join(str(error).split())
    if isinstance(error, ListenerError | OSError):
        return ConfigError(reason)
    return ConfigError(f"cannot start: {reason or type(error).__name__}")


def _source(effect: Effect) -> Connection | None:
    """Return the connection whose packet a question was about."""
    match effect:
        case Authenticate() | AuthorizePublish() | AuthorizeSubscribe():
            return effect.client.conn
        case AuthorizeReceive():
            return effect.source
        case _:
            return None
