"""amqtt's `Broker` around our node: the same configuration, listeners, plugins, states and context.

What any broker does is in `mqttree.broker.io.broker_service`; this adds plugins, their questions
and events, and amqtt's listeners. If no plugin asks for questions or events, nothing here is called
for a message.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import warnings
from collections.abc import Sequence
from typing import Any

from amqtt.broker import Broker as AmqttBroker
from amqtt.broker import (
    BrokerContext,
    ExternalServer,
    RetainedApplicationMessage,
    Server,
)
from amqtt.contexts import BrokerConfig, ListenerConfig, ListenerType, default_broker_plugins
from amqtt.errors import BrokerError
from amqtt.events import BrokerEvents
from amqtt.session import Session as Account

from mqttree.broker.base.log_format import log_line
from mqttree.broker.compat.accounts import Accounts
from mqttree.broker.compat.api import BrokerApi
from mqttree.broker.compat.hooks import HookedNode, Sources, deliver_kept
from mqttree.broker.compat.listener import AmqttListener
from mqttree.broker.compat.plugins import Plugins
from mqttree.broker.compat.views import RetainedMessages, Sessions, Subscriptions
from mqttree.broker.config.listener_model import Listeners
from mqttree.broker.config.listener_options import ListenerOptions, split_options
from mqttree.broker.config.mqtt_options import read_options
from mqttree.broker.config.node_config import NodeConfig
from mqttree.broker.config.options import FederationSettings
from mqttree.broker.core.client import Client
from mqttree.broker.core.connection import Connection
from mqttree.broker.core.delivery_queue import DeliveryQueue
from mqttree.broker.core.effects import (
    Authenticate,
    AuthorizePublish,
    AuthorizeReceive,
    AuthorizeSubscribe,
    Effect,
    Event,
    Hooks,
)
from mqttree.broker.core.sys_topics import INTERVAL
from mqttree.broker.io.auth_service import AuthService
from mqttree.broker.io.broker_service import BrokerService, ListenerError
from mqttree.broker.io.journal_writer import JournalWriter
from mqttree.broker.io.listener import Listener
from mqttree.broker.limits import DEFAULTS, Limits

__all__ = ["Broker", "BrokerContext", "RetainedApplicationMessage", "Server"]
"""Names beside amqtt's Broker that can be imported from here, too."""

PLUGIN_TIMEOUT = 5.0
"""s for plugins' methods to end at a shutdown; then they are cancelled."""

DEFAULT_PLUGINS: dict[str, Any] = {
    "amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True},
    "amqtt.plugins.sys.broker.BrokerSysPlugin": {"sys_interval": 20},
}
"""amqtt's default without its two loggers."""

OURS = ("federation", "access", "durability")
"""Keys of a configuration file that amqtt does not have."""


class Broker(BrokerService, BrokerApi):
    """amqtt's broker, extended: faster, MQTT 5, and one of a federation when `settings` are given.

    `node` is the pure broker, `driver` runs it, `accounts` are amqtt's sessions of our sessions.
    """

    node: HookedNode
    listeners_config: dict[str, Any]

    def __init__(
        self,
        config: BrokerConfig | dict[str, Any] | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        plugin_namespace: str | None = None,
        *,
        settings: FederationSettings | None = None,
        auth_service: AuthService | None = None,
        disk: JournalWriter | None = None,
        limits: Limits = DEFAULTS,
    ) -> None:
        """`config`: amqtt's configuration; the keys `federation`, `access` and `durability` are
        ignored here, `mqtt` has options of the node (`mqtt_options`). `loop`, `plugin_namespace`:
        as in amqtt. `settings`: of the federation, None for a lone broker. `auth_service`: knows
        users and rules. `disk`: the files of the journal, None without one. `limits`: what the
        node keeps to.

        Raises what amqtt raises: dacite's errors, ValueError and FileNotFoundError for a wrong
        configuration, PluginImportError, PluginLoadError, PluginInitError and PluginCoroError for
        plugins.
        """
        self.max_qos = 2
        self.mqtt_options: dict[str, Any] = {}
        self._options: dict[str, ListenerOptions] = {}
        given = {} if config is None else config
        chosen = self._read(given) if isinstance(given, dict) else given
        # The configuration has no plugins.
        if chosen.plugins == default_broker_plugins():
            chosen = copy.copy(chosen)
            chosen.plugins = copy.deepcopy(DEFAULT_PLUGINS)
            if settings is not None:
                # Our $SYS topics have more.
                del chosen.plugins["amqtt.plugins.sys.broker.BrokerSysPlugin"]
        running = loop or asyncio.get_running_loop()
        super().__init__(
            running,
            Listeners(chosen.listeners, self._options),
            settings=settings,
            auth_service=auth_service,
            disk=disk,
            limits=limits,
        )
        self._restart = False
        with warnings.catch_warnings():
            # psutil is a dependency of this project.
            warnings.filterwarnings("ignore", "`BrokerSysPlugin`", DeprecationWarning)
            # As it was imported: programs put this class in its place.
            AmqttBroker.__init__(self, chosen, running, plugin_namespace)
        self._sessions = Sessions(self)
        self._subscriptions = Subscriptions(self)
        self._retained_messages = RetainedMessages(self)
        found = getattr(self.config, "max_qos", None)
        if isinstance(found, int):
            self.max_qos = min(self.max_qos, found)
        self.accounts = Accounts(self.config.timeout_disconnect_delay or 0)
        self.plugins = Plugins(self, self.plugins_manager)
        self._make_node()

    def _read(self, config: dict[str, Any]) -> BrokerConfig:
        """Return a configuration as amqtt reads it, but for listeners that say themselves what
        amqtt would take from the default one (`ssl: false`)."""
        prepared = self._prepared(config)
        listeners = copy.deepcopy(prepared.get("listeners"))
        found = BrokerConfig.from_dict(prepared)
        plain = ListenerConfig()
        for name, entry in listeners.items() if isinstance(listeners, dict) else ():
            for key, value in entry.items() if isinstance(entry, dict) else ():
                field = str(key).replace("-", "_")
                if name != "default" and getattr(plain, field, key) == value:
                    setattr(found.listeners[name], field, getattr(plain, field))
        return found

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
            config["listeners"], self._options = split_options(config["listeners"])
        return config

    def _hooks(self) -> Hooks:
        return self.plugins.hooks()

    def admits(self) -> bool | None:
        """Return whether plugins let a client in without a password; None: that is not known before
        they are asked."""
        return self.plugins.admits()

    def _failed(self, what: str, error: BaseException) -> None:
        self.plugins.failed(what, error)

    def _node_options(self) -> dict[str, Any]:
        found = {
            "max_qos": self.max_qos,
            "session_expiry_max": self.config.session_expiry_interval,
        }
        return found | self.mqtt_options

    def _new_node(self, config: NodeConfig, hooks: Hooks) -> HookedNode:
        node = self._node_of(HookedNode, config, hooks)
        self.accounts.anonymous = self.plugins.anonymous
        node.accounts = self.accounts
        node.sources = Sources()
        if hooks.packets:
            node.output.on_flush = self._show_outboxes
        return node

    def _sys_period(self) -> float:
        """amqtt's key `sys_interval`: s, 0 for never; amqtt's plugin publishes its own topics."""
        interval = self.config.sys_interval
        return 0 if interval == 0 or self.plugins.has_sys else interval or INTERVAL

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
            await self._open_all()
        except BaseException as error:
            self.transitions.starting_fail()
            if isinstance(error, BrokerError) or not isinstance(error, Exception):
                raise
            if isinstance(error, ListenerError):
                raise BrokerError(str(error)) from error
            raise BrokerError(f"Broker instance can't be started: {error}") from error
        self.transitions.starting_success()
        await self._fire(BrokerEvents.POST_START)
        # Retained messages that plugins have loaded.
        for session in list(self.node.sessions.values()):
            if isinstance(session.account, Account):
                session.clean = bool(session.account.clean_session)
                deliver_kept(session, session.account)
        self._serve()

    async def _start_listeners(self) -> None:
        await super()._start_listeners()
        for name, config in self.listeners_config.items():
            if config.type == ListenerType.EXTERNAL:
                self._servers[name] = ExternalServer()
            elif name in self._servers:
                self.logger.info(
                    "Listener '%s' bind to %s (max_connections=%s)",
                    name,
                    config.bind,
                    config.max_connections,
                )

    def _new_listener(self, name: str, places: int) -> Listener:
        return AmqttListener(
            name, None, places, self.listener_options.get(name), limits=self.limits
        )

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
        await self._close_all()
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

    async def abandon(self) -> None:
        """Close what was opened by a start that has failed, or was cut short; plugins, too."""
        await self.shutdown()
        await self.close_plugins()

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
                    # Sent packets are shown when they go out: `_show_outboxes`.
                    if effect.name != "mqtt_packet_sent":
                        events.append(effect)
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
                case _:
                    self._run_effect(effect)
        if events:
            self.plugins.tell(events)

    async def _may_connect(self, effect: Authenticate) -> bool:
        """Check the users file, then ask the plugins: both must accept the client."""
        if not await super()._may_connect(effect):
            return False
        return await self.plugins.may_connect(effect) if self.node.hooks.authenticate else True

    def _on_answer(self, effect: Effect) -> None:
        if isinstance(effect, Authenticate):
            self.accounts.forget(effect.connect)

    def _show_outboxes(self, outlets: Sequence[Connection | DeliveryQueue]) -> None:
        """Show plugins the packets that go to clients. A session shares its connection's outbox."""
        shown: set[int] = set()
        for outlet in outlets:
            conn = outlet.conn
            if (
                conn is not None
                and isinstance(conn.owner, Client)
                and outlet.outbox
                and id(outlet.outbox) not in shown
            ):
                shown.add(id(outlet.outbox))
                packets = {"client": conn.owner, "data": b"".join(outlet.outbox)}
                self.plugins.tell([Event("mqtt_packet_sent", packets)])
