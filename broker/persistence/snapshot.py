"""Everything that a journal has to know, said once more, so that older generations can be deleted
(docs/decisions/0021). Pure.

In steps, between the records of what goes on: each session and each topic is said as it is at that
moment, and counts from then.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

from broker.cluster.link.codec import encode_vector, split_key
from broker.cluster.sessions.message_vectors import offered
from broker.core.session import RELEASED
from broker.persistence import shared_records
from broker.persistence.records import encode_seen

if TYPE_CHECKING:
    from broker.persistence.journal import Journal

STEP_BYTES = 128 * 1024
STEP_ITEMS = 400
"""of one step, about a ms of work; a session is never cut, but its messages are said before it."""

PASSED = 8
"""entries of the log that are passed over at the cost of one that is said."""

PACE = 1024 * 1024
"""bytes of others for each step: however much they write, it comes to an end,"""

MOST = 4
"""in so many steps in one turn."""


class Snapshot:
    """One checkpoint on its way. `size`: bytes that it has said; `passed`: bytes that were written
    since it last went on."""

    __slots__ = ("_journal", "_plan", "passed", "size")

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._plan = self._everything()
        self.size = self.passed = 0

    def go_on(self) -> bool:
        """Say a little more, and as much more as others have written; whether that was all."""
        steps = min(MOST, max(1, self.passed // PACE))
        self.passed = max(0, self.passed - steps * PACE)
        return any(self.step() for _ in range(steps))

    @property
    def late(self) -> bool:
        """Whether others have written more than was said for it."""
        return self.passed >= PACE

    def step(self) -> bool:
        """Say a little more; whether that was all."""
        journal = self._journal
        begin, items = journal.size, 0
        count = 1
        while count and items < STEP_ITEMS and journal.size < begin + STEP_BYTES:
            count = next(self._plan, 0)
            items += count
        self.size += journal.size - begin
        return not count

    def _everything(self) -> Iterator[int]:
        """Say everything, a little at a time; how much that was."""
        journal, node = self._journal, self._journal.node
        for number in list(journal.sessions):
            recorder = journal.sessions.get(number)
            if recorder is None:
                continue
            session = recorder.session
            # Each by itself, or one frame would have all that waits for it.
            for outgoing in [*session.inflight.values(), *session.queue]:
                if not isinstance(outgoing, bytes) and outgoing is not RELEASED:
                    journal.number_of(outgoing.message)
                    yield 1
            if journal.sessions.get(number) is recorder:
                recorder.replaced()
                yield 1 + len(session.subscriptions) + len(session.queue) + len(session.inflight)
        digests = node.retained.digests
        for leaf in digests.present():
            marks = digests.marks(leaf)
            for mark in marks:
                journal.said(mark)
            yield 1 + len(marks)
        for record in shared_records.everything(node):
            if record:
                journal.record(record)
            yield 1
        forwarder = node.forwarder
        seen = offered(
            {key: window for key, window in forwarder.vector.items() if key != forwarder.key}
        )
        journal.record(encode_seen(encode_vector(seen | journal.since())))
        for number, entry in enumerate(chain.from_iterable(forwarder.log.pieces())):
            if entry.qos and split_key(entry.key)[0] == node.config.id:
                journal.record(journal.encoded(entry))
                yield 1
            elif not number % PASSED:  # the others say their own
                yield 1
