"""The messages of one chunk that a publisher sent here, on their way to other brokers: those that
follow each other and take the same links go as one batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from mqttree.broker.cluster.link.message_batch import MAX_BATCH_PACKETS, MAX_BYTES
from mqttree.broker.core import ports

if TYPE_CHECKING:
    from mqttree.broker.cluster.link.link import Link
    from mqttree.broker.core.connection import Connection
    from mqttree.broker.core.route import Route

NO_LINKS: Final[list[Link]] = []
"""Never changed."""


class Sender(ports.MessageForwarder):
    """Numbers messages, keeps them for other brokers and sends them."""

    __slots__ = ()

    def last_number(self) -> int:
        """Return the number of the last message at QoS 1 or 2.

        Raises NotImplementedError: this class sends nothing.
        """
        raise NotImplementedError

    def forward_batch(
        self,
        packets: bytes,
        count: int,
        version: int,
        qos: int,
        links: list[Link],
        source: Connection,
    ) -> None:
        """Do so with `packets`: `count` PUBLISH packets of MQTT `version`, all of this `qos`, which
        go over `links`; `source`: the connection on which they came.

        Raises NotImplementedError: this class sends nothing.
        """
        raise NotImplementedError


class OutgoingBatch(ports.OutgoingBatch):
    """Collects packets of one chunk, and sends them at the latest when it is told to (`flush`)."""

    __slots__ = (
        "_begin",
        "_count",
        "_data",
        "_end",
        "_generation",
        "_limit",
        "_links",
        "_links_of",
        "_qos",
        "_sender",
        "_source",
        "_version",
    )

    def __init__(
        self,
        sender: Sender,
        links_of: Callable[[Route], list[Link]],
        generation: int,
        data: bytes,
        version: int,
        source: Connection,
        origin: bytes,
    ) -> None:
        """`sender`: takes what is collected; `links_of`: finds the links of a route whose
        generation is not `generation`; `data`: the chunk, of MQTT `version`, that came on the
        connection `source`; `origin`: this broker."""
        self.origin = origin
        self._sender = sender
        self._links_of = links_of
        self._generation = generation
        self._data = data
        self._version = 5 if version == 5 else 4
        self._source = source
        self._links = NO_LINKS
        self._begin = self._end = self._limit = 0
        self._count = self._qos = 0

    def next_number(self) -> int:
        """Return the number that the next packet at QoS 1 or 2 gets."""
        last = self._sender.last_number()
        return last + 1 + self._count if self._qos else last + 1

    def add(self, route: Route, begin: int, end: int, count: int, qos: int) -> None:
        """Add `count` packets, which are of this `qos` and take this `route`, from `begin` to `end`
        in the chunk. They are of one size, or fit into one batch."""
        links: list[Link] = (
            route.links if route.generation == self._generation else self._links_of(route)
        )
        if not links:
            if not qos:
                return  # not numbered, as it has no receiver
            links = NO_LINKS
        total = self._count + count
        if (
            links is self._links
            and begin == self._end
            and qos == self._qos
            and total <= MAX_BATCH_PACKETS
            and end <= self._limit
        ):
            self._count = total
            self._end = end
        elif count == 1:
            if self._count:
                self.flush()
            self._links, self._qos, self._count = links, qos, 1
            self._begin, self._end, self._limit = begin, end, begin + MAX_BYTES
        else:
            self._begin_with(links, begin, end, count, qos)

    def _begin_with(self, links: list[Link], begin: int, end: int, count: int, qos: int) -> None:
        """Send what has been added, and begin a batch with the next `count` packets, two or more of
        this `qos`, from `begin` to `end`, which take these `links`. Those of one size go in several
        batches if they are too many for one."""
        if self._count:
            self.flush()
        self._links = links
        self._qos = qos
        if count >= MAX_BATCH_PACKETS or end - begin > MAX_BYTES:
            size = (end - begin) // count
            most = max(1, min(MAX_BATCH_PACKETS, MAX_BYTES // size))
            # A full one goes at once, so that its publisher is held in time.
            while count >= most:
                self._begin, self._count, self._end = begin, most, begin + most * size
                self.flush()
                begin, count = self._end, count - most
        self._begin = begin
        self._limit = begin + MAX_BYTES
        self._count = count
        self._end = end

    def flush(self) -> None:
        """Send what has been added: what is published next gets the numbers behind it."""
        count, self._count = self._count, 0
        if count:
            data, begin, end = self._data, self._begin, self._end
            packets = data if end - begin == len(data) else data[begin:end]
            self._sender.forward_batch(
                packets, count, self._version, self._qos, self._links, self._source
            )
