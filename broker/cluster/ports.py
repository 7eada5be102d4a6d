"""Protocols for what modules of the cluster ask of modules above them, one for each need.

`Cluster` builds the modules of the packages below, and gives each one the modules of its own floor
and of the floors beneath. A module knows those above it only by such a Protocol. A Protocol that
names a type of a higher floor than this one (a link, a feed) stands in `ports` of the package that
uses it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from mqttree.broker.core.local_broker import LocalBroker

if TYPE_CHECKING:
    from mqttree.broker.cluster.limits import ClusterLimits
    from mqttree.broker.core.output import Output


class MemberBroker(LocalBroker, Protocol):
    """One broker of a federation, as far as its own clients are concerned."""

    @property
    def limits(self) -> ClusterLimits:
        """The limits of what this broker keeps and does at once."""

    @property
    def output(self) -> Output:
        """Hands what connections are sent to their transports."""


class Alarm(Protocol):
    """Calls the cluster again at a time."""

    def hurry(self, at: float) -> None:
        """Have what was decided carried out at `at` (s), or as soon as it can be."""


class Neighbours(Protocol):
    """The neighbours, which pass on what this broker posts."""

    def tell(self, now: float) -> None:
        """Tell the neighbours what was posted, ahead of what is sent to clients after this; a
        little later if much was sent just before `now` (s)."""


class OldMessages(Protocol):
    """Knows whether messages may still arrive that are older than any replay log."""

    def expects_old_messages(self) -> bool:
        """Whether a broker is away, or has been asked for messages that are missing here."""


class LeavingSessions(Protocol):
    """Knows which sessions are about to go to another broker."""

    def is_handing_over(self, client_id: str) -> bool:
        """Whether another broker is taking the session of a client."""
