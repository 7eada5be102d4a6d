"""The stream of one origin: which of its numbers those here have had, and may have next (docs/decisions/0013)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker import limits
from broker.origin import LAST, Ranges, Window, intersect, merge, roughly, split_key, subtract

if TYPE_CHECKING:
    from broker.link import Link
    from broker.node import Timer
    from broker.streams import Streams

RETRY, RETRY_MOST = 0.1, 2.0
"""s until an origin is asked again; twice as long each time."""


class Question:
    """What an origin was asked for, and what has come of its answer."""

    __slots__ = ("again", "asked", "parts")

    def __init__(self, asked: Ranges) -> None:
        self.asked = asked
        self.parts: list[bytes] = []
        self.again = False  # the way broke once more since


class Stream:
    """What has come of one origin to those here: all numbers up to `done` that they want, but for those `owed`."""

    __slots__ = (
        "ask_at", "broke", "broker_id", "done", "free", "held", "kept", "kept_top", "key", "owed", "pause", "questions", "since",
        "source", "strange", "streams", "timer", "window",
    )  # fmt: skip

    def __init__(self, streams: Streams, key: bytes, window: Window, done: int) -> None:
        self.streams = streams
        self.key = key
        self.broker_id = split_key(key)[0]
        self.window = window
        self.done = done
        self.owed: Ranges = []
        self.kept: set[int] = set()  # in the log although it has not crossed this broker
        self.kept_top = 0  # the highest of them
        self.source: Link | None = None  # what comes over it is whole and in order
        self.strange = False  # those behind us know that messages came over another link than the tree's
        self.held = False  # something is here that those here have not had
        self.free = False  # without a source for so long that nothing is held any more
        self.broke = 0.0  # s; without a source since
        self.since = 0.0  # s; for so long something is held, and the origin can be reached, or not
        self.timer: Timer | None = None
        self.questions: dict[int, Question] = {}  # by number, oldest first: answers may take longer than our patience
        self.ask_at = 0.0
        self.pause = RETRY

    def take(self, link: Link, first: int, count: int) -> int:
        """Take numbers that cross this broker for the first time; returns how many of them, the last ones, those here get now."""
        last = first + count - 1
        if last > self.done:
            if link is not self.source:
                if self.source is not None:
                    self.streams.lose(self)  # another way than that which we trust
                if not self.free:
                    self.wait()
                    return 0
                if first > self.done + 1:
                    self.owe([(self.done + 1, first - 1)])
            new = last - max(self.done, first - 1)
            self.done = last
            return new
        for low, high in self.owed:
            if low <= first and last <= high:
                self.owed = subtract(self.owed, [(first, last)])
                return count
        return 0

    def outdate(self) -> None:
        """The way broke: what has been asked for has to be asked for again."""
        self.free = False
        for question in self.questions.values():
            question.again = True

    def wait(self) -> None:
        """Something is held from now on."""
        if not self.held:
            self.held = True
            self.since = self.streams.node.now
            self.streams.arm(self)

    def holds(self, sequence: int) -> bool:
        """Whether a message that came another way than over the streams of links, and is in the log, has to wait."""
        if sequence <= self.done:
            return False
        if not self.free:
            if self.source is not None:
                self.streams.lose(self)
            self.wait()
            return True
        if sequence > self.done + 1:
            self.owe([(self.done + 1, sequence - 1)])
        self.done = sequence
        return False

    def owe(self, ranges: Ranges) -> None:
        """Note what is missing and is to be delivered whenever it comes."""
        self.owed = merge(self.owed + ranges)
        beyond = len(self.owed) - limits.MAX_SKIPS
        if beyond > 0:
            del self.owed[:beyond]
            self.streams.node.counters.gaps_forgotten += beyond

    def lacks(self) -> Ranges:
        """Return what is not here and may be wanted here; roughly, so that it can be told."""
        top = max(self.done, self.window.top)
        holes = [*self.window.gaps, *self.window.history]
        return roughly(merge([*self.owed, *intersect(sorted(holes), [(self.done + 1, top)]), (top + 1, LAST)]))
