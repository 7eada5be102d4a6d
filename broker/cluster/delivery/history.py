"""Requests to neighbours for messages that are not in the log here (WANT), for local subscribers or
for other brokers. A neighbour says when it has sent what it has (WANT_DONE)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from mqttree.broker.base.sequence_set import LAST, Ranges
from mqttree.broker.cluster.link.control_records import WANT, WANT_DONE
from mqttree.broker.cluster.link.version_vector import OriginWindow, Vector, encode_vector

if TYPE_CHECKING:
    from mqttree.broker.cluster.events import LinkDown
    from mqttree.broker.cluster.link.link import Handler, Link
    from mqttree.broker.cluster.ports import Alarm, MemberBroker

FETCH_TIME = 0.5
"""s; longest wait for an answer: a neighbour that hangs must not keep the link to another one from
becoming live."""

Then = Callable[[float], None]
"""Called with the time (s) when all neighbours have answered, or after FETCH_TIME."""


class HistoryRequests:
    """The requests that are under way, and what is done when they have been answered."""

    def __init__(self, node: MemberBroker, links: Mapping[bytes, Link], alarm: Alarm) -> None:
        """`node`: this broker; `links`: those that are up, by the neighbour's id; `alarm`: calls
        the cluster again."""
        self._node = node
        self._links = links
        self._alarm = alarm
        # By number: which neighbours have to answer, and what is called then.
        self._fetches: dict[int, tuple[set[Link], list[Then]]] = {}
        self._number = 0
        self.records: dict[int, Handler] = {WANT_DONE: self._done_received}

    def __len__(self) -> int:
        return len(self._fetches)

    def when_answered(self, then: Then) -> None:
        """Call `then` once for each request that is under way, when it has been answered."""
        for _, waiting in self._fetches.values():
            waiting.append(then)

    def fetch(self, wanted: Vector, source: Link | None, then: Then, now: float) -> None:
        """Ask all neighbours but `source` for the messages that the vector `wanted` lacks, then
        call `then`; without neighbours or missing messages at once. `now`: s."""
        asked = [link for link in self._up() if link is not source] if wanted else []
        if not asked:
            then(now)
            return
        number = self._ask(wanted, asked, now)
        self._fetches[number] = (set(asked), [then])
        self._node.timers.schedule(now + FETCH_TIME, lambda at: self._answered(number, None, at))

    def want(self, key: bytes, ranges: Ranges, now: float) -> None:
        """Ask all neighbours for the numbers `ranges` of the origin `key`, which no longer has them
        in its log. `now`: s."""
        self._ask({key: everything_in(ranges)}, list(self._up()), now)

    def _up(self) -> Iterable[Link]:
        return (link for link in self._links.values() if link.up)

    def _ask(self, wanted: Vector, links: list[Link], now: float) -> int:
        """Ask neighbours for messages. Returns the number that their answers will have."""
        self._number = self._number + 1 & 0xFFFFFFFF
        body = self._number.to_bytes(4, "big") + encode_vector(wanted)
        for link in links:
            link.add_record(WANT, body)
        self._alarm.hurry(now)
        return self._number

    def _answered(self, number: int, link: Link | None, now: float) -> None:
        """Note that a neighbour has answered; None: that time is up."""
        fetch = self._fetches.get(number)
        if fetch is not None:
            asked, waiting = fetch
            if link is not None:
                asked.discard(link)
            if link is None or not asked:
                del self._fetches[number]
                for then in waiting:
                    then(now)

    def _done_received(self, link: Link, body: bytes, now: float) -> None:
        """Take the end of the answer to a WANT: the messages have come ahead of it."""
        self._answered(int.from_bytes(body[:4], "big"), link, now)

    def link_down(self, event: LinkDown) -> None:
        """Do not wait for a neighbour whose link is gone."""
        link = event.link
        for number in [n for n, (asked, _) in self._fetches.items() if link in asked]:
            self._answered(number, link, event.now)


def everything_in(ranges: Ranges) -> OriginWindow:
    """Return a window that lacks these numbers and no others."""
    window = OriginWindow(LAST, 0.0)
    window.gaps = ranges
    return window
