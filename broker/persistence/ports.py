"""What the journal asks of its broker. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from mqttree.broker.cluster.ports import MemberBroker

if TYPE_CHECKING:
    from mqttree.broker.core.connection_registry import ConnectionRegistry
    from mqttree.broker.core.wills import Wills
    from mqttree.broker.persistence.limits import PersistenceLimits


class JournalBroker(MemberBroker, Protocol):
    """The broker: its clock, its sessions, its driver, its publishers."""

    @property
    def limits(self) -> PersistenceLimits:
        """The limits of what this broker keeps and does at once."""

    @property
    def connection_registry(self) -> ConnectionRegistry:
        """The connections of this broker."""

    @property
    def wills(self) -> Wills:
        """Publishes the wills of clients that are gone."""

    def record_without_disk(self, now: float) -> None:
        """Have a standby get what a journal would have, from `now` (s) on."""
