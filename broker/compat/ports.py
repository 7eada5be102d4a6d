"""What plugins and their views ask of the broker that they belong to."""

from __future__ import annotations

from collections.abc import Coroutine, MutableMapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from amqtt.contexts import Action, ListenerConfig
    from amqtt.session import Session as Account

    from mqttree.broker.compat.accounts import Accounts
    from mqttree.broker.compat.hooks import HookedNode
    from mqttree.broker.io.driver import Driver
    from mqttree.broker.limits import Limits


class PluginBroker(Protocol):
    """The broker behind amqtt's plugins."""

    @property
    def limits(self) -> Limits:
        """The limits of what this broker keeps and does at once."""

    @property
    def node(self) -> HookedNode:
        """The node, which does all of MQTT and knows neither sockets nor plugins."""

    @property
    def driver(self) -> Driver:
        """The driver, which moves bytes between the node and its sockets."""

    @property
    def accounts(self) -> Accounts:
        """amqtt's session of each session."""

    @property
    def sessions(self) -> MutableMapping[str, tuple[Account, Any]]:
        """Client id -> (amqtt's session, what acts on it), as amqtt has it."""

    @property
    def listeners_config(self) -> dict[str, ListenerConfig]:
        """amqtt's configuration of each listener."""

    def handler(self, client_id: str) -> object:
        """Return what acts on one session where amqtt has a protocol handler."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` as a task, which is cancelled at the end."""

    async def _authenticate(self, session: Account, listener: ListenerConfig | None) -> bool:
        """Ask the authentication plugins about a client: amqtt's rule."""

    async def _topic_filtering(self, session: Account, topic: str, action: Action) -> bool:
        """Ask the topic plugins what a session may do with a topic: amqtt's rule."""
