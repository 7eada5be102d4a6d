"""Neighbours are asked for messages that are not in our log, for somebody behind us or for those
here (WANT), and say when they have sent what they have (DONE)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from broker.cluster.link.codec import LAST, OriginWindow, Ranges, Vector, encode_vector
from broker.cluster.link.control_records import DONE, WANT, Handler

if TYPE_CHECKING:
    from broker.cluster.events import LinkDown
    from broker.cluster.link.link import Link
    from broker.cluster.ports import Alarm
    from broker.core.local_broker import LocalBroker

FETCH_TIME = 0.5
"""s; longest wait for history: a neighbour that hangs must not keep another one from the live
stream."""

Then = Callable[[float], None]
"""Called when all have answered, or time is up."""


class HistoryRequests:
    """What neighbours have been asked for, and who waits for it."""

    __slots__ = ("_alarm", "_fetches", "_links", "_node", "_number", "records")

    def __init__(self, node: LocalBroker, links: Mapping[bytes, Link], alarm: Alarm) -> None:
        self._node = node
        self._links = links
        self._alarm = alarm
        # By number: who has to answer, who waits.
        self._fetches: dict[int, tuple[set[Link], list[Then]]] = {}
        self._number = 0
        self.records: dict[int, Handler] = {DONE: self._done_received}

    def __len__(self) -> int:
        return len(self._fetches)

    def when_answered(self, then: Then) -> None:
        """Call `then` once for each request that is under way, when it has been answered."""
        for _, waiting in self._fetches.values():
            waiting.append(then)

    def fetch(self, wanted: Vector, source: Link, then: Then, now: float) -> None:
        """Ask all neighbours but `source` for messages, then call `then`; at once when there is
        nothing to ask, or nobody."""
        asked = [link for link in self._up() if link is not source] if wanted else []
        if not asked:
            then(now)
            return
        number = self._ask(wanted, asked)
        self._fetches[number] = (set(asked), [then])
        self._node.schedule(now + FETCH_TIME, lambda at: self._answered(number, None, at))

    def want(self, key: bytes, ranges: Ranges, now: float) -> None:
        """Ask all neighbours for messages of an origin that has them in its log no more."""
        self._ask({key: everything_in(ranges)}, list(self._up()))
        self._alarm.hurry(now)

    def _up(self) -> Iterable[Link]:
        return (link for link in self._links.values() if link.state == "up")

    def _ask(self, wanted: Vector, links: list[Link]) -> int:
        """Ask neighbours for messages; returns the number that their answers will have."""
        self._number = self._number + 1 & 0xFFFFFFFF
        body = self._number.to_bytes(4, "big") + encode_vector(wanted)
        for link in links:
            link.add_record(WANT, body)
        return self._number

    def _answered(self, number: int, link: Link | None, now: float) -> None:
        """Note that one who was asked has answered; None: that time is up."""
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
        """Take the answer to a WANT: what it brings has come before it."""
        self._answered(int.from_bytes(body[:4], "big"), link, now)

    def link_down(self, event: LinkDown) -> None:
        """Wait no more for a neighbour whose link is gone."""
        link = event.link
        for number in [n for n, (asked, _) in self._fetches.items() if link in asked]:
            self._answered(number, link, event.now)


def everything_in(ranges: Ranges) -> OriginWindow:
    """Return a window that lacks these numbers only."""
    window = OriginWindow(LAST, 0.0)
    window.gaps = ranges
    return window
