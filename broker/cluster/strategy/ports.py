"""What the strategies ask of one another's parts, and of what is above them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol

from broker.cluster.events import ClusterEvents
from broker.cluster.link.link import Link
from broker.cluster.ports import Alarm, Reporting
from broker.core.local_broker import LocalBroker


class Host(Reporting, Alarm, Protocol):
    """Where it is told what happened, and who calls again."""


class LinkedBroker(LocalBroker, Protocol):
    """One broker, and the links of it that take part in forwarding."""

    @property
    def forwarding(self) -> list[Link]:
        """Links in the live stream."""


class Feed(Protocol):
    """What is here of one incarnation of a broker, in order."""

    broker_id: bytes
    source: Link | None
    behind: Link | None
    strange: bool


class Recovery(Protocol):
    """Who finds what is missing."""

    def came(self, stream: Feed, link: Link) -> None:
        """Note that a message is about to be passed on that did not come from a feed's source."""

    def answered(self, broker_id: bytes) -> None:
        """Note that an answer of a broker is passed on."""

    def changed(self, broker_id: bytes) -> None:
        """Note that a broker's messages come another way."""

    def unsettled(self) -> bool:
        """Whether something may be missing here that is about to come."""

    def doubt(self) -> None:
        """Trust no broker any more to have sent all that is wanted here."""

    def distrust(self, known: Collection[bytes]) -> None:
        """Trust none but these brokers."""


class LinkLog(Protocol):
    """Who keeps the replay log for links."""

    def keep(self, link: Link, position: int) -> None:
        """Keep it from this position on, for a link."""

    def free(self, link: Link) -> None:
        """Keep nothing for a link any more."""


class Entry(Protocol):
    """A message in the replay log."""

    @property
    def key(self) -> bytes:
        """Its origin."""

    @property
    def topic(self) -> bytes:
        """UTF-8"""

    @property
    def at(self) -> float:
        """s; when it came"""


class Log(Protocol):
    """The replay log."""

    @property
    def end(self) -> int:
        """Position behind the newest entry."""

    def latest(self) -> Iterable[Entry]:
        """Return the entries, the newest first."""


class Numbers(Protocol):
    """Which numbers of an origin have been here."""

    @property
    def top(self) -> int:
        """The highest of them."""


class Passed(Protocol):
    """What has been here."""

    @property
    def own(self) -> Numbers:
        """Of what was published here."""

    @property
    def vector(self) -> Collection[bytes]:
        """The origins of which something has been here."""


class Delivery(Host, Protocol):
    """All that is above the strategies."""

    @property
    def gap_recovery(self) -> Recovery:
        """Who finds what is missing."""

    @property
    def acks(self) -> LinkLog:
        """Who keeps the log."""

    @property
    def origins(self) -> Passed:
        """What has been here."""

    @property
    def replay_log(self) -> Log:
        """What was here in the last minutes."""

    @property
    def events(self) -> ClusterEvents:
        """Who hears of what happens."""


class RoutedHops(Protocol):
    """What the directory asks of the routing strategy."""

    def live_hop(self, message: bytes) -> Link | None:
        """Return the link that a routed message takes which must not leave the messages of its
        sender; None: it is dropped."""

    def carries(self, link: Link) -> bool:
        """Whether messages may take a link now."""

    def passes_answer(self, receiver: bytes, sender: bytes) -> bool:
        """Whether an answer goes on from here."""


class LostBrokers(Protocol):
    """What becomes of what a broker wants that the spanning tree has lost."""

    def keeps(self, broker_id: bytes, *, gone: bool = False) -> bool:
        """Whether messages still go there. `gone`: the tree has lost it in this moment."""

    def learnt(self, broker_id: bytes, topic_filter: str) -> None:
        """Note that a broker wants something more than was known here."""

    def told(self) -> None:
        """Note that a filter has been posted here: brokers that are lost do not hear of it."""


class FiltersOfOthers(Protocol):
    """What other brokers want."""

    def brokers_wanting(self, topic: bytes) -> dict[bytes, None]:
        """Return the ids of those with a filter that matches."""

    def paths_changed(self) -> None:
        """Note that messages may take other links."""

    def forget(self, broker_id: bytes) -> None:
        """Forget what was kept of a broker that the tree has lost."""
