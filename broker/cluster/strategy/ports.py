"""Protocols for what the routing strategies ask of each other's parts, and of what is above
them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol

from mqttree.broker.cluster.events import ClusterEvents
from mqttree.broker.cluster.link.link import Link
from mqttree.broker.cluster.ports import Alarm, MemberBroker
from mqttree.stp.tree import Tree


class LinkedBroker(MemberBroker, Protocol):
    """One broker, and the links of it that take part in forwarding."""

    @property
    def forwarding(self) -> list[Link]:
        """The live links. A new list replaces it each time a link becomes live or stops being
        so."""


class Feed(Protocol):
    """The messages of one incarnation of a broker, in order."""

    broker_id: bytes
    source: Link | None
    behind: Link | None
    path_change_sent: bool


class Recovery(Protocol):
    """Gap recovery: finds missing messages."""

    def on_unexpected_link(self, feed: Feed, link: Link) -> None:
        """Tell the brokers behind this one of a message that did not come from a feed's source."""

    def path_changed(self, broker_id: bytes) -> None:
        """Note that a broker's messages take another path to here."""

    def unsettled(self) -> bool:
        """Whether messages may be missing here that are about to arrive."""

    def distrust(self, known: Collection[bytes]) -> None:
        """Ask all origins but the brokers in `known`."""


class LinkLog(Protocol):
    """Keeps the replay log for links."""

    def keep(self, link: Link, position: int) -> None:
        """Keep the log from this position on, for a link."""

    def free(self, link: Link) -> None:
        """Stop keeping the log for a link."""


class Entry(Protocol):
    """Messages in the replay log."""

    @property
    def key(self) -> bytes:
        """The origin of the messages, as 16 characters."""

    @property
    def at(self) -> float:
        """When the messages came (s)."""

    @property
    def retain(self) -> bool:
        """Whether it is a retained message."""

    def topics(self) -> Iterable[bytes]:
        """Return the topic of each message, as UTF-8."""


class Log(Protocol):
    """The replay log, as far as strategies read it."""

    @property
    def end(self) -> int:
        """Position behind the newest entry."""

    def latest(self) -> Iterable[Entry]:
        """Return the entries, the newest first."""


class Numbers(Protocol):
    """The numbers of an origin that have been here."""

    @property
    def top(self) -> int:
        """The highest number that has been here."""


class Passed(Protocol):
    """The origins, and which of their numbers have been here."""

    @property
    def own(self) -> Numbers:
        """The numbers of what was published here."""

    @property
    def vector(self) -> Collection[bytes]:
        """The origins of which messages have been here."""


class Barrier(Protocol):
    """The subscription barrier."""

    def on_filter_posted(self) -> None:
        """Note that this broker has posted a filter."""


class Delivery(Alarm, Protocol):
    """All that is above the strategies."""

    @property
    def tree(self) -> Tree:
        """The spanning tree."""

    @property
    def barrier(self) -> Barrier:
        """Delays SUBACK until all brokers know of a subscription."""

    @property
    def gap_recovery(self) -> Recovery:
        """Keeps the ordered feeds, and asks origins for what is missing."""

    @property
    def acks(self) -> LinkLog:
        """Keeps the log for links."""

    @property
    def origins(self) -> Passed:
        """The origins, and which of their numbers have been here."""

    @property
    def replay_log(self) -> Log:
        """The messages of the last minutes."""

    @property
    def events(self) -> ClusterEvents:
        """Dispatches cluster events to the modules that hear of them."""


class LostBrokers(Protocol):
    """Decides about the filters of brokers that the spanning tree has lost."""

    def keeps(self, broker_id: bytes, *, gone: bool = False) -> bool:
        """Whether messages still go to a broker. `gone`: the tree has lost it in this moment."""

    def learnt(self, broker_id: bytes, topic_filter: str) -> None:
        """Note that a broker has a filter that was not known here."""

    def filter_posted(self) -> None:
        """Note that a filter has been posted here: brokers that are lost do not hear of it."""
