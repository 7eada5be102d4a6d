"""The log lines of a broker once it runs: its listeners, which clients it accepts, and what makes
that weaker than whoever wrote the configuration may think."""

from __future__ import annotations

import logging

from mqttree.broker import CORE
from mqttree.broker.base.core_build import Core
from mqttree.broker.cluster.link import peering
from mqttree.broker.config.listener_model import describe_listeners, exposed
from mqttree.broker.io.broker_service import BrokerService
from mqttree.broker.service.assembly import Assembly

log = logging.getLogger("mqttree")


class StartReport:
    """The lines about one broker."""

    def __init__(self, assembly: Assembly, broker: BrokerService) -> None:
        self._assembly = assembly
        self._broker = broker
        self._listeners = assembly.listeners

    def _anonymous_listeners(self) -> list[str]:
        """Return the listeners where anybody may come in without a user name, unless a plugin says
        no."""
        node = self._broker.node
        access = node.access
        if self._broker.admits() is False:
            return []
        named = node.config.identity_listeners
        return [
            n
            for n in self._listeners.by_name
            if n not in named and (access is None or access.lets_anonymous(n))
        ]

    def anonymous_access(self) -> str:
        """Return which clients may connect without authentication."""
        found = self._anonymous_listeners()
        if found and self._broker.admits() is None:
            return "plugins decide who comes in"
        if len(found) == len(self._listeners.by_name):
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
        node = self._broker.node
        return node.access is None and node.hooks.authenticate and not node.hooks.verifies

    def warn(self) -> None:
        """Say what makes the broker slower, or users and rules weaker, than whoever set it up may
        think."""
        broker, federation = self._broker, self._assembly.federation
        if CORE is Core.STALE:
            log.warning("the compiled core was built from other sources: Python runs instead")
        if federation.alone:
            log.warning(
                "clients are checked (%s) and other brokers would not be: "
                "this broker does not federate; %s",
                federation.alone,
                peering.REMEDY,
            )
        node = broker.node
        access = node.access
        if access is None:
            return
        believed = node.hooks.verified or len(node.config.identity_listeners) == len(
            self._listeners.by_name
        )
        if (
            (rules := access.rules) is not None
            and rules.by_user
            and access.users is None
            and not believed
        ):
            log.warning(
                "rules name users, but nothing checks passwords: "
                "a client that gives a user name counts as anonymous (access.users)"
            )
        if peering.anybody(federation) and peering.guard(
            access, self._listeners.by_name, plugins=False, certificates=()
        ):
            log.warning(
                "rules and users do not bind other brokers, "
                "and any may join (allow-unauthenticated-brokers)"
            )

    def announce(self, admin: str) -> None:
        """Log the listeners in one line; as a warning when anybody on the network may come
        in."""
        federation, disk = self._assembly.federation, self._assembly.disk
        open_to = self._anonymous_listeners() if self._broker.admits() else []
        if self._believes_names():
            open_to = list(self._listeners.by_name)
        listeners = describe_listeners(self._listeners, self._broker.ports)
        log.log(
            logging.WARNING if open_to and exposed(self._listeners, open_to) else logging.INFO,
            "%s listens on %s, admin %s, id %s, cluster %s, discovery %s%s%s, %s",
            federation.name,
            listeners,
            admin,
            federation.id.hex(),
            federation.cluster,
            federation.discovery,
            " (does not federate)"
            if federation.alone
            else " (no secret)"
            if peering.anybody(federation)
            else "",
            "" if disk is None else f", durability {'sync' if disk.sync else 'async'}",
            self.anonymous_access(),
        )
