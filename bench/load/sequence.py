"""Whether each publisher's messages reach a subscriber once and in order. Pure."""

from __future__ import annotations

from mqttree.bench.load.mixture import CYCLE, Mixture
from mqttree.bench.load.outcome import Tally
from mqttree.bench.load.scan import Message

_MISSING_LIMIT = 100_000
"""Numbers remembered as missing, to tell late from repeated."""


class Sequence:
    """What one subscriber should get next from each publisher."""

    def __init__(self, mixture: Mixture, subscriber: int, publishers: int, topic: bytes) -> None:
        """Check what the `subscriber` with this index gets of `mixture` from so many `publishers`;
        its topics begin with `topic`."""
        self._mixture, self._me, self._topic = mixture, bytes((subscriber,)), topic
        self._expected = [mixture.first_own(self._me, each) for each in range(publishers)]
        self._missing: set[tuple[int, int]] = set()
        self.tally = Tally()
        """Of the messages that were looked at."""

    def see(self, message: Message, *, gap: bool) -> None:
        """Take note of the next message of the stream. `gap`: others have come since the last one
        of this publisher that were not looked at. Raises ValueError for a message that is not for
        this subscriber."""
        publisher, tally = message.publisher, self.tally
        owner = self._mixture.owner[message.place]
        if not message.topic.startswith(self._topic) or owner != self._me[0]:
            raise ValueError(f"a message for another subscriber came: {message.topic!r}")
        number = message.turn * CYCLE + message.place
        expected = self._expected[publisher]
        tally.received += 1
        if number < expected:
            if (publisher, number) in self._missing:
                self._missing.discard((publisher, number))
                tally.lost -= 1
                tally.out_of_order += 1
            else:
                tally.duplicated += 1
            return
        while not gap and expected < number:
            tally.lost += 1
            if len(self._missing) < _MISSING_LIMIT:
                self._missing.add((publisher, expected))
            expected = self._mixture.next_own(self._me, expected)
        self._expected[publisher] = self._mixture.next_own(self._me, number)
