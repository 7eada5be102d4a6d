"""Questions to origins: what ordered feeds lack (PULL), and what the answers say of it (ENTRIES;
docs/decisions/0013).

An answer that says that there is no more is the last one: the link that brought it is the source of
the feed from then on. Others lead to the next question.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING

from mqttree.broker.base.sequence_set import (
    Ranges,
    find,
    intersect,
    merge,
    subtract,
)
from mqttree.broker.cluster.delivery.feed_states import Input
from mqttree.broker.cluster.delivery.ordered_feed import (
    MAX_RETRY_S,
    RETRY,
    HeldMessage,
    OrderedFeed,
    Question,
)
from mqttree.broker.cluster.delivery.origin_feeds import PATIENCE_S, OriginFeeds
from mqttree.broker.cluster.delivery.paced_release import PacedRelease
from mqttree.broker.cluster.delivery.pull_messages import (
    ENTRIES,
    ENTRIES_PIECE,
    EntriesPart,
    decode_entries_part,
)
from mqttree.broker.cluster.delivery.tree_paths import SPLIT
from mqttree.broker.cluster.link.message_batch import read_messages
from mqttree.broker.core.message import Message
from mqttree.broker.core.receiver_assignment import ReceiverAssignment
from mqttree.broker.wire.constants import MAX_PACKET_SIZE
from mqttree.broker.wire.errors import MalformedPacket

if TYPE_CHECKING:
    from mqttree.broker.cluster.delivery.ports import Above, DeliveringBroker
    from mqttree.broker.cluster.delivery.pulls import Pulls
    from mqttree.broker.cluster.delivery.replay_log import ReplayLog
    from mqttree.broker.cluster.delivery.subscription_start import SubscriptionStarts
    from mqttree.broker.cluster.directory.unicast_bus import UnicastBus
    from mqttree.broker.cluster.link.link import Link
    from mqttree.routing.link_state import LinkStateDatabase

MAX_ANSWERS_BYTES = 2 * MAX_PACKET_SIZE
"""bytes of answers of origins of which not all parts are here. One that goes beyond is dropped
and asked for again [routed_dropped]: an honest one has some 256 KiB and a message more."""

MAX_QUESTIONS = 16
"""questions to one origin whose answers are still accepted. Over a slow link an answer arrives
after the next question was sent; a broker that accepted only the answer to its last question would
never advance. As many as are asked within PATIENCE_S."""


class OriginQuestions:
    """Asks origins for what feeds without a source lack."""

    def __init__(
        self,
        node: DeliveringBroker,
        *,
        feeds: OriginFeeds,
        release: PacedRelease,
        pulls: Pulls,
        log: ReplayLog,
        database: LinkStateDatabase,
        bus: UnicastBus,
        starts: SubscriptionStarts,
        above: Above,
        rearm: Callable[[OrderedFeed], None],
    ) -> None:
        """`node`: this broker; `feeds`: those of all origins; `release`: delivers the messages of
        answers; `pulls`: sends questions, and takes answers of others than origins; `log`: keeps
        messages; `database`: what brokers post; `bus`: brings answers; `starts`: where
        subscriptions begin; `above`: the floors above delivery; `rearm`: sets the timer of a feed
        that has changed."""
        self._feeds = feeds
        self._release = release
        self._pulls = pulls
        self._log = log
        self._database = database
        self._starts = starts
        self._above = above
        self._rearm = rearm
        bus.receive_over(ENTRIES, self._answer_received)
        bus.receive_over(ENTRIES_PIECE, self._answer_received, pieces=12)

    def ask(self, feed: OrderedFeed, now: float) -> None:
        """Ask the origin of a feed at `now` (s) for all that is missing and may be wanted here."""
        number = self._pulls.next_number()
        question = feed.questions[number] = Question(feed.lacks(), now)
        if len(feed.questions) > MAX_QUESTIONS:
            del feed.questions[next(iter(feed.questions))]
        feed.ask_at = now + feed.pause
        feed.pause = min(2 * feed.pause, MAX_RETRY_S)
        times = self._starts.question(feed.key, number, now)
        self._pulls.send(feed.broker_id, feed.key, number, times, question.asked)

    def _answer_received(self, sender: bytes, body: bytes, now: float, link: Link) -> None:
        """Take a part of an answer (ENTRIES)."""
        part = decode_entries_part(body)
        feed = next((s for s in self._feeds.of(sender) if part.number in s.questions), None)
        pull = None if feed is not None else self._pulls.find(sender, part.number)
        question = pull if feed is None else feed.questions[part.number]
        if question is None or (feed is not None and feed.fed):
            return
        if not question.add(part.data, part.position):
            return
        if (
            question.size >> 20 != question.size - len(part.data) >> 20
            and self._answers() > MAX_ANSWERS_BYTES
        ):
            question.take_data()
            raise MalformedPacket("ENTRIES is too large")
        if pull is not None:
            self._pulls.part_received(pull, part, now, link)
        if feed is None:
            return
        feed.ask_at = max(feed.ask_at, now + feed.pause)
        if part.last:
            self._take_answer(feed, question, part, now, link)
        elif not feed.unordered and now < question.at + PATIENCE_S:  # it answers, over a slow link
            feed.since = now

    def _take_answer(
        self, feed: OrderedFeed, question: Question, part: EntriesPart, now: float, link: Link
    ) -> None:
        """Take an answer of which the last part has come, and go on with its feed: wait for
        messages that may be under way, ask on, or trust the link that brought it."""
        before, top = max(feed.done, feed.settled), part.top
        for older in list(feed.questions):
            del feed.questions[older]
            if older == part.number:
                break
        data, again = self._starts.on_answer(
            feed.key, part.number, question.take_data(), top, more=part.more
        )
        if data is None:
            feed.pause = RETRY
            self.ask(feed, now)
            self._rearm(feed)
            return
        question.outdated |= again
        waits = self._take_found(feed, question, data, top, now, min(part.gone, top))
        advanced = part.more and top > before
        if advanced:
            self._feeds.advanced(feed, now)
        listing = self._database.listings.get(feed.broker_id)
        # An incarnation that was killed may have sent messages that it had not recorded: the next
        # one does not know of them.
        later = listing is not None and listing.boot > feed.boot
        # Refused after the question, which did not ask for it.
        missed = bool(feed.refused) and feed.refused[0][0] <= top
        if waits:
            self._release.begin(feed, now)
            feed.ask_at = now + feed.pause
            self._rearm(feed)
        elif part.more or question.outdated or missed or (feed.window.top > top and not later):
            self._release.begin(feed, now)
            feed.pause = max(RETRY, min(MAX_RETRY_S, 2 * (now - question.at)))
            self._ask_on(feed, now, advanced=advanced)
        elif link.up:
            feed.step(Input.ANSWERED, link)
            feed.more = False
            feed.finished = later
            if later:  # no broker knows more than this one
                feed.settle_all()
            self._release.begin(feed, now)

    def _ask_on(self, feed: OrderedFeed, now: float, *, advanced: bool) -> None:
        """Ask for what an answer did not bring; `advanced`: it was a step forward. A question in
        flight is not repeated, unless its answer would not advance the feed after this one."""
        if advanced or all(newer.outdated for newer in feed.questions.values()):
            if feed.next_held() is None:
                self.ask(feed, now)
            else:
                feed.more = True  # asked when local subscribers have had this part
        self._rearm(feed)

    def _answers(self) -> int:
        """Return the bytes of all answers of which parts are here."""
        asked = chain(self._pulls.open.values(), *(f.questions.values() for f in self._feeds.all()))
        return sum(question.size for question in asked)

    def _take_found(
        self, feed: OrderedFeed, question: Question, data: bytes, top: int, now: float, gone: int
    ) -> bool:
        """Take the messages `data` of an answer to `question`. Up to `top` there are no others that
        are wanted, but those up to `gone` have left the origin's log and may be under way. Returns
        whether these are waited for: for as long as a split may last without a loss of order."""
        found: Ranges = []
        for batch, sequence, message in read_messages(data, now):
            if batch.key != feed.key or not 0 < sequence <= top:
                continue
            late = sequence <= feed.done
            if late and find(feed.outstanding, sequence, sequence) < 0:
                continue
            found.append((sequence, sequence))
            self._keep(feed, sequence, message, batch.choice, now)
            self._release.put_by(feed, HeldMessage(sequence, message, batch.choice, late=late))
        settled = intersect(question.asked, [(1, top)]) if top else []
        feed.on_answer(settled, merge(found))
        waits = gone > 0 and feed.await_gone(
            subtract(intersect(settled, [(1, gone)]), merge(found)), now - SPLIT, now
        )
        if feed.refused:
            top = min(top, feed.refused[0][0] - 1)
        feed.settled = max(feed.settled, top)
        return waits

    def _keep(
        self,
        feed: OrderedFeed,
        sequence: int,
        message: Message,
        choice: ReceiverAssignment | None,
        now: float,
    ) -> None:
        """Keep a message that an answer brought in the log: a session that moves on may need it.
        The message may still cross this broker, for others."""
        window = feed.window
        if not window.missing(sequence) and find(window.history, sequence, sequence) < 0:
            return
        if not feed.was_kept(sequence):
            feed.keep(sequence, sequence)
            self._log.keep(feed.key, sequence, message, choice, now)
            if message.retain:
                self._above.retained_sync.received(message, feed.key, sequence, now, None)
