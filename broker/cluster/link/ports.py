"""What links ask of what is above them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sized
from typing import TYPE_CHECKING, Protocol

from broker.base.address import Address
from broker.base.broker_id import Identity
from broker.cluster.ports import Reporting
from broker.config.node_config import NodeConfig
from broker.core.local_broker import LocalBroker
from broker.core.message import Message
from broker.core.publish_run import PublishRun
from broker.core.receiver_assignment import ReceiverAssignment
from discovery.membership import Membership

if TYPE_CHECKING:
    from broker.cluster.link.link import Link


class Forwarding(Protocol):
    """Who takes messages of links."""

    @property
    def log(self) -> Sized:
        """The replay log."""

    def check(
        self, topic: bytes, first: int, sequence: int, count: int, often: bool = True
    ) -> None:
        """Refuse a PUBLISH before it is passed on. `often`: more of its topic may come.

        Raises:
            MalformedPacket, ProtocolViolation: QoS 3, no topic name, or numbers that no broker
                reaches.
        """

    def accept(self, key: bytes, first: int, count: int, now: float, late: bool = True) -> int:
        """Take sequence numbers of an origin; returns how many are new, -1 for some. `late`: they
        may come behind newer ones."""

    def received(
        self,
        link: Link,
        message: Message,
        key: bytes,
        sequence: int,
        data: bytes,
        now: float,
        choice: ReceiverAssignment | None = None,
    ) -> None:
        """Deliver a message here and pass it on (`data`: as it came)."""

    def batch_received(
        self, link: Link, batch: PublishRun, key: bytes, sequence: int, data: bytes, now: float
    ) -> None:
        """Do so with a run of QoS 1 or 2 packets; `data`: as it came, if that names its origin."""

    def run_received(
        self,
        link: Link,
        chunk: bytes,
        prefix: int,
        size: int,
        key: bytes,
        sequence: int,
        now: float,
    ) -> None:
        """Do so with a run of QoS 0 packets of `size` bytes each; `prefix`: bytes ahead of the
        payload."""


class Acknowledgements(Protocol):
    """Who waits until neighbours have handled messages."""

    def acknowledged(self, link: Link, number: int) -> None:
        """Take a neighbour's answer to a mark."""


class RetainedComparison(Protocol):
    """Who compares retained messages with a neighbour's."""

    def marked(self, link: Link, number: int, now: float) -> None:
        """Take a neighbour's answer to a mark."""

    def restored(
        self, link: Link, message: Message, key: bytes, sequence: int, data: bytes, now: float
    ) -> None:
        """Take a message that a comparison brought."""


class Advance(Protocol):
    """Who tells neighbours how far they have had all that is wanted."""

    def send_upto(self, link: Link) -> None:
        """Tell it, behind what the neighbour was sent."""


class OtherWithOurId(Protocol):
    """What is done about another broker that has the id of this one."""

    @property
    def yields(self) -> bool:
        """Whether this is the one that serves no client."""

    def suspect(self, address: Address, now: float) -> None:
        """Call a broker that is said to have our id."""

    def proven(self, start: tuple[int, int], address: Address, now: float) -> None:
        """Note that a broker has proven our id; `start`: its boot number and instance."""


class Admitting(Protocol):
    """Who decides which brokers may link."""

    def acceptable(self, link: Link, now: float, *, proven: bool = True) -> bool:
        """Decide whether a broker may link at all; False: it was turned away. `proven`: it is going
        to prove nothing more."""

    def admit(self, link: Link, now: float) -> bool:
        """Make this the link to its peer; False: another one stays, this one was dropped."""


class LinkHost(Reporting, Protocol):
    """The cluster, as far as a link knows it."""

    @property
    def node(self) -> LocalBroker:
        """This broker, for its clients."""

    @property
    def config(self) -> NodeConfig:
        """What it was told."""

    @property
    def own(self) -> Identity:
        """Who it is."""

    @property
    def rng(self) -> random.Random:
        """Randomness that a simulation repeats."""

    @property
    def entropy(self) -> Callable[[int], bytes]:
        """Makes so many bytes that nobody can guess."""

    @property
    def membership(self) -> Membership:
        """Who is there."""

    @property
    def links(self) -> dict[bytes, Link]:
        """Links by the peer's id, once admitted."""

    @property
    def handshakes(self) -> dict[Link, None]:
        """Links that are not up yet, the oldest first."""

    @property
    def to_ping(self) -> list[Link]:
        """Links with records that are to be sent."""

    @property
    def admission(self) -> Admitting:
        """Who decides which brokers may link."""

    @property
    def id_conflict(self) -> OtherWithOurId:
        """What is done about another broker with our id."""

    @property
    def forwarder(self) -> Forwarding:
        """Who takes messages."""

    @property
    def acks(self) -> Acknowledgements:
        """Who waits for acknowledgements."""

    @property
    def retained_sync(self) -> RetainedComparison:
        """Who compares retained messages."""

    @property
    def gap_recovery(self) -> Advance:
        """Who tells how far neighbours have all."""

    def link_up(self, link: Link, now: float) -> None:
        """Note that a handshake is complete."""

    def link_lost(
        self, link: Link, reason: str, now: float, *, quiet: bool = False, replaced: bool = False
    ) -> None:
        """Note that a link is gone. `replaced`: the next one to the same broker stands already."""

    def link_left(self, link: Link, reason: int, now: float) -> None:
        """Take a DISCONNECT."""

    def link_behind(self, link: Link) -> None:
        """Note that more waits for a link than it may have waiting."""

    def link_caught_up(self, link: Link, now: float) -> None:
        """Note that it has drained."""

    def refused(self, link: Link, why: str) -> None:
        """Note that another broker turned our dial away."""

    def heard(self, link: Link, now: float) -> None:
        """Note that part of a packet came."""

    def rtt_sample(self, link: Link, rtt_ms: float, now: float) -> None:
        """Take a round trip."""

    def record_received(self, link: Link, kind: int, body: bytes, now: float) -> None:
        """Take a record of a PINGREQ.

        Raises:
            MalformedPacket: it cannot be read.
        """
