"""What the handshake of a link asks of what is above it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

from mqttree.broker.base.address import Address
from mqttree.broker.base.broker_id import Identity
from mqttree.broker.cluster.link.link import Link, LinkHost, Registry
from mqttree.discovery.membership import Membership


class OtherWithOurId(Protocol):
    """Handles another broker that has the id of this one."""

    @property
    def refuses_clients(self) -> bool:
        """Whether this is the one that serves no client."""

    def suspect(self, address: Address, now: float) -> None:
        """Dial a broker that is said to have this broker's id."""

    def proven(self, start: tuple[int, int], address: Address, now: float) -> None:
        """Note that the broker at `address` proved at `now` (s) that it holds the key of our id;
        `start`: its boot number and instance."""


class Admitting(Protocol):
    """Decides which brokers may link."""

    @property
    def protocol(self) -> int:
        """The version of the link protocol that this broker speaks."""

    def acceptable(self, link: Link, now: float, *, proven: bool = True) -> bool:
        """Return whether the broker that introduced itself on `link` may have one at all; False: it
        was turned away. `now`: s; `proven`: it is going to prove nothing more."""

    def admit(self, link: Link, now: float) -> bool:
        """Make this the link to its peer; False: another one stays, this one was dropped."""


class HandshakeRegistry(Registry, Protocol):
    """The links of one broker, and those that are not up yet."""

    @property
    def handshakes(self) -> dict[Link, None]:
        """Links that are not up yet, the oldest first."""

    @property
    def admission(self) -> Admitting:
        """Decides which brokers may link."""

    def refused(self, link: Link, why: str) -> None:
        """Note that another broker refused a link that this one dialled; `why`: its reason."""


class HandshakeHost(LinkHost, Protocol):
    """The cluster, as far as the handshake of a link knows it."""

    @property
    def own(self) -> Identity:
        """The id and the boot number of this broker."""

    @property
    def rng(self) -> random.Random:
        """Randomness that a simulation repeats."""

    @property
    def entropy(self) -> Callable[[int], bytes]:
        """Makes so many bytes that cannot be guessed."""

    @property
    def membership(self) -> Membership:
        """The members of the cluster."""

    @property
    def links(self) -> dict[bytes, Link]:
        """Links by the peer's id, once admitted."""

    @property
    def link_registry(self) -> HandshakeRegistry:
        """The links of this broker."""

    @property
    def id_conflict(self) -> OtherWithOurId:
        """What is done about another broker with this one's id."""
