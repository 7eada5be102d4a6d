"""The ordered feed of one origin: which of its numbers local subscribers have had, and get next
(docs/decisions/0013)."""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from mqttree.broker.base import costs
from mqttree.broker.base.sequence_set import (
    LAST,
    MAX_SKIPS,
    Ranges,
    discard,
    find,
    intersect,
    merge,
    roughly,
    subtract,
)
from mqttree.broker.cluster.delivery.feed_states import Action, Input, State, transition
from mqttree.broker.cluster.link.origin_keys import split_key
from mqttree.broker.core.message import Message, size_of

if TYPE_CHECKING:
    from mqttree.broker.base.timers import Timer
    from mqttree.broker.cluster.delivery.replay_log import LogEntry
    from mqttree.broker.cluster.link.link import Link
    from mqttree.broker.cluster.ports import MemberBroker
    from mqttree.broker.core.message import Message
    from mqttree.broker.core.receiver_assignment import ReceiverAssignment

RETRY, MAX_RETRY_S = 0.1, 2.0
"""s until an origin is asked again; twice as long each time. Not sooner than in twice the time that
its last answer took: what is sent again meanwhile only makes the next one slower."""


class Verdict(Enum):
    """What local subscribers get of a message that has just come over a link."""

    DELIVER = "they get it now"
    HOLD = "they get it when they have had what is before it"
    PAST = "they do not get it: it is older than they are, or they have had it"
    KEPT = "an answer of its origin has brought it to them"


class HeldBatch:
    """Messages of one batch that wait until what is before them has been delivered. Their bytes are
    not read before the first of them is: a decoded message takes several times as much memory."""

    __slots__ = ("entry", "last", "sequence", "size")

    def __init__(self, entry: LogEntry) -> None:
        """`entry`: the batch in the log."""
        self.entry = entry
        self.sequence = entry.sequence
        self.last = entry.sequence + entry.count - 1
        self.size = entry.size + costs.HELD_MEMORY

    def read(self) -> list[HeldMessage]:
        """Return its messages. The first one counts the bytes of all."""
        choice, size = self.entry.choice, self.size
        held: list[HeldMessage] = []
        for number, message in self.entry.messages():
            held.append(HeldMessage(number, message, choice, size=size))
            size = 0
        return held


class HeldMessage:
    """A message that waits until what is before it has been delivered."""

    __slots__ = ("choice", "last", "late", "message", "sequence", "size")

    def __init__(
        self,
        sequence: int,
        message: Message,
        choice: ReceiverAssignment | None,
        *,
        late: bool = False,
        size: int | None = None,
    ) -> None:
        """`sequence`: the number of the `message`; `choice`: its receiver assignment; `late`: newer
        messages have been delivered; `size`: bytes that it counts, None: its own."""
        self.sequence = self.last = sequence
        self.message = message
        self.choice = choice
        self.late = late
        self.size = size_of(message) + costs.HELD_MEMORY if size is None else size


class Question:
    """What a broker was asked for, and which parts of its answer have arrived."""

    __slots__ = ("asked", "at", "outdated", "parts", "size")

    def __init__(self, asked: Ranges, at: float) -> None:
        self.asked = asked
        self.at = at  # s
        self.parts: list[bytes] = []
        self.size = 0  # bytes of these
        self.outdated = False  # the way broke once more since

    def add(self, data: bytes, position: int) -> bool:
        """Add the `data` of a part of the answer; `position`: which one it is, from 0. Returns
        False if it does not follow the last one. An answer that is repeated begins again."""
        if not position:
            self.take_data()
        if position != len(self.parts):
            return False
        self.parts.append(data)
        self.size += len(data)
        return True

    def take_data(self) -> bytes:
        """Return the data of all parts, and forget them."""
        data = b"".join(self.parts)
        self.parts.clear()
        self.size = 0
        return data


class Window(Protocol):
    """What a feed asks of the record of what has been at this broker (`LocalWindow`)."""

    gaps: Ranges
    heard: float
    history: Ranges
    top: int

    @property
    def lacks(self) -> Ranges:
        """All numbers that have not been here, those to come included."""

    def missing(self, sequence: int) -> bool:
        """Whether this number has not been here."""


class FeedOwner(Protocol):
    """Finds out what is missing in feeds (`GapRecovery`)."""

    @property
    def node(self) -> MemberBroker:
        """The broker whose local subscribers get the feed."""

    def lose(self, feed: OrderedFeed) -> None:
        """Take the source from a feed: messages of its origin may be missing."""

    def arm(self, feed: OrderedFeed) -> None:
        """Plan what is to be done next for a feed without a source."""

    def want(self, key: bytes, ranges: Ranges, now: float) -> None:
        """Ask all neighbours, at `now` (s), for the numbers `ranges` of the origin `key`, which no
        longer has them in its log."""


class OrderedFeed:
    """What local subscribers have had of one origin: all numbers up to `done` that they want,
    except those `outstanding`."""

    __slots__ = (
        "ask_at",
        "awaited",
        "behind",
        "boot",
        "broker_id",
        "done",
        "finished",
        "follows_since",
        "gone_since",
        "held",
        "held_bytes",
        "held_count",
        "kept",
        "kept_top",
        "key",
        "more",
        "out_of_order",
        "outstanding",
        "owner",
        "path_change_sent",
        "pause",
        "questions",
        "refused",
        "seen_boot",
        "settled",
        "since",
        "slow_since",
        "source",
        "state",
        "timer",
        "unordered",
        "waiting",
        "window",
    )

    def __init__(self, owner: FeedOwner, key: bytes, window: Window, done: int) -> None:
        """Begin the feed of the origin `key` behind the number `done`. `owner`: finds out what is
        missing; `window`: which numbers have been at this broker."""
        self.owner = owner
        self.key = key
        self.broker_id, self.boot = split_key(key)
        self.seen_boot = self.boot  # the incarnation of the broker that it has been asked for again
        self.finished = False  # a later incarnation of the broker has sent all that there is
        # s; so long it waits for feeds of earlier incarnations; 0: it does not.
        self.follows_since = 0.0
        self.window = window
        self.done = done
        # Up to here everything wanted has been delivered, or waits to be delivered in steps.
        self.settled = done
        self.waiting: deque[HeldBatch | HeldMessage] = (
            deque()
        )  # in the order of their numbers, unless `out_of_order`
        self.out_of_order = False
        self.held_count = 0  # messages of these
        self.held_bytes = 0
        # Numbers that came while too many messages waited: the origin is asked for them again.
        self.refused: Ranges = []
        self.outstanding: Ranges = []
        # s; since then the feed waits for messages that the origin's log no longer has: another
        # path may bring them.
        self.gone_since = 0.0
        self.awaited: Ranges = []  # of that, what is ahead of all that waits for it
        self.kept: Ranges = []  # in the log although it has not crossed this broker
        self.kept_top = 0  # the highest of them
        # Where the feed has got to (`step`), and what that means, as it is looked at for each
        # message. The link whose messages are complete and in order: local subscribers get them at
        # once.
        self.state = State.ASKING
        self.source: Link | None = None
        self.behind: Link | None = None  # the same, but what is before it is still being delivered
        # Brokers behind this one know that messages came over another link than the tree's.
        self.path_change_sent = False
        self.held = False  # something is here that local subscribers have not had
        self.unordered = False  # without a source for so long that nothing is held any more
        self.more = False  # the origin said that it has more to answer
        self.since = 0.0  # s; for so long something is held, and the origin can be reached, or not
        # s; since then messages wait for a session that has to catch up; 0: they do not.
        self.slow_since = 0.0
        self.timer: Timer | None = None
        # By number, oldest first: an answer may come after the question was repeated.
        self.questions: dict[int, Question] = {}
        self.ask_at = 0.0
        self.pause = RETRY

    def step(self, given: Input, link: Link | None = None) -> Action:
        """Go to the next state; returns what is to be done. `link`: brought the last answer, if
        that is what is `given`.

        Raises:
            ImpossibleInputError: the input cannot come in this state.
        """
        action, self.state = transition(self.state, given)
        trusted = link or self.behind or self.source
        self.source = trusted if self.state is State.FED else None
        self.behind = trusted if self.state is State.RELEASING else None
        self.unordered = self.state is State.UNORDERED
        return action

    @property
    def fed(self) -> bool:
        """Whether there is a link over which all that is wanted comes, in order."""
        return self.source is not None or self.behind is not None

    def take(self, link: Link, first: int, count: int) -> int:
        """Take `count` numbers from `first` on that cross this broker for the first time, over
        `link`; returns how many of them, the last ones, local subscribers get now. Others beyond
        `done` have to be kept until then (`GapRecovery.hold`)."""
        last = first + count - 1
        if last > self.done:
            if link is not self.source:
                if self.behind is not None and link is self.behind:
                    self.settled = max(self.settled, last)
                    return 0
                if self.fed:
                    self.owner.lose(self)  # not the link that is trusted to be complete
                if not self.unordered:
                    self.wait()
                    return 0
                if self.waiting:
                    self.settle_late(first, last)
                    return 0
                if first > self.done + 1:
                    self.add_outstanding([(self.done + 1, first - 1)])
            new = last - max(self.done, first - 1)
            if self.outstanding:
                self.advance(max(first, self.done + 1), last)
            self.done = last
            return new
        return count if discard(self.outstanding, first, last) else 0

    def verdict(self, link: Link, sequence: int) -> Verdict:
        """Take a number that crosses this broker for the first time, over `link`; returns what
        local subscribers get of it."""
        if self.take(link, sequence, 1):
            return Verdict.DELIVER
        return Verdict.HOLD if sequence > self.done else Verdict.PAST

    def was_kept(self, sequence: int) -> bool:
        """Whether a number is in the log although it has not crossed this broker."""
        return sequence <= self.kept_top and find(self.kept, sequence, sequence) >= 0

    def keep(self, first: int, last: int) -> None:
        """Note that the numbers from `first` to `last` are in the log."""
        kept = self.kept
        if kept and kept[-1][1] == first - 1:
            kept[-1] = (kept[-1][0], last)
        else:
            self.kept = merge([*kept, (first, last)])[-MAX_SKIPS:]
        self.kept_top = max(self.kept_top, last)

    def advance(self, first: int, last: int) -> None:
        """Note that the numbers from `first` to `last`, beyond `done`, are delivered now. They may
        be in `outstanding`, as waiting messages are delivered in steps and missing ones come
        meanwhile: from now on they are not, or they would be delivered twice."""
        self.done = last
        if find(self.outstanding, first, last) >= 0 and not discard(self.outstanding, first, last):
            self.outstanding = subtract(self.outstanding, [(first, last)])

    def outdate(self) -> None:
        """Note that the path broke: every open question has to be asked again."""
        for question in self.questions.values():
            question.outdated = True

    def forget_questions(self, until: float) -> None:
        """Take no answer to a question that was asked at `until` (s) or before: it had not the
        filters of a session that has come since."""
        for number in [number for number, open in self.questions.items() if open.at <= until]:
            del self.questions[number]

    def wait(self) -> None:
        """Note that messages are held from now on."""
        if not self.held:
            self.held = True
            self.since = self.owner.node.now
            self.owner.arm(self)

    def on_suspended(self, seconds: float, now: float) -> None:
        """Do not count `seconds` in which this broker did not run as waiting; `now`: s."""
        self.since = min(now, self.since + seconds)
        if self.follows_since:
            self.follows_since = min(now, self.follows_since + seconds)
        if self.gone_since:
            self.gone_since = min(now, self.gone_since + seconds)

    def holds(self, sequence: int) -> bool:
        """Whether a message that did not come as a PUBLISH over a link has to wait
        (`GapRecovery.hold`)."""
        if sequence <= self.done:
            discard(self.outstanding, sequence, sequence)
            return False
        if self.unordered and self.waiting:
            self.settle_late(sequence, sequence)
            return True
        if not self.unordered:
            if self.fed:
                self.owner.lose(self)
            self.wait()
            return True
        if sequence > self.done + 1:
            self.add_outstanding([(self.done + 1, sequence - 1)])
        self.advance(sequence, sequence)
        return False

    def settle_late(self, first: int, last: int) -> None:
        """Put the numbers from `first` to `last` behind the waiting messages although others before
        them may be missing: those were waited for long enough."""
        if first > self.settled + 1:
            self.add_outstanding([(self.settled + 1, first - 1)])
        self.settled = max(self.settled, last)

    def refuse(self, first: int, last: int) -> None:
        """Note numbers that came and were not kept, so that the origin is asked for them again."""
        if self.unordered:
            self.add_outstanding([(first, last)])
        else:
            self.refused = joined(self.refused, [(first, last)])
            # What is between them is asked for, too: what is here is not taken twice.
            if len(self.refused) > MAX_SKIPS:
                self.refused = roughly(self.refused, MAX_SKIPS // 2)
            self.settled = min(self.settled, first - 1)

    def put_by(self, held: HeldBatch | HeldMessage) -> None:
        """Keep messages until those before them have been delivered."""
        waiting = self.waiting
        if waiting and held.sequence < waiting[-1].sequence:
            self.out_of_order = True
        waiting.append(held)
        self.held_count += held.last - held.sequence + 1
        self.held_bytes += held.size

    def next_held(self) -> HeldMessage | None:
        """Return the message that is delivered next, None when none may be."""
        if self.out_of_order:
            self.out_of_order = False
            self.waiting = deque(sorted(self.waiting, key=lambda held: held.sequence))
        if not self.waiting or self.waiting[0].sequence > self.settled:
            return None
        first = self.waiting[0]
        if isinstance(first, HeldMessage):
            return first
        messages = first.read()
        self.waiting.popleft()
        self.waiting.extendleft(reversed(messages))
        return messages[0]

    def pop_held(self) -> None:
        """Note that the message of `next_held` has been delivered."""
        self.held_count -= 1
        self.held_bytes -= self.waiting.popleft().size

    def drop_held(self) -> None:
        """Forget all messages that wait."""
        self.held_count = self.held_bytes = 0
        self.waiting.clear()

    def add_outstanding(self, ranges: Ranges) -> None:
        """Note numbers that are missing and are delivered whenever they come."""
        self.outstanding = joined(self.outstanding, ranges)
        beyond = len(self.outstanding) - MAX_SKIPS
        if beyond > 0:
            del self.outstanding[:beyond]
            self.owner.node.counters.gaps_forgotten += beyond

    def on_answer(self, asked: Ranges, found: Ranges) -> None:
        """Note that the origin was asked for these, and that it has no more of them than was
        found."""
        self.outstanding = subtract(self.outstanding, subtract(asked, found))
        self.refused = subtract(self.refused, asked)
        if self.refused:  # it may have come over another path since
            self.refused = subtract(self.refused, self.here())

    def await_gone(self, gone: Ranges, long_ago: float, now: float) -> bool:
        """Note numbers (`gone`) that the origin's log no longer has and that another path may
        bring. Returns whether later messages wait for them: not if none of them has come since
        `long_ago` (s). `now`: s. Neighbours are asked for them, too: one that had them on the way
        here may not have passed them on, as the path had changed by then."""
        missing, here = merge([*self.window.history, *self.window.lacks]), self.here()
        on_way = intersect(gone, missing)
        ahead = subtract(intersect(on_way, [(self.done + 1, LAST)]), here)
        first = not self.gone_since
        # The other path is slow, but it brings them.
        if first or subtract(self.awaited, subtract(missing, here)):
            self.gone_since = now
        self.awaited, self.gone_since = ahead, self.gone_since if ahead else 0.0
        waits = bool(ahead) and self.gone_since > long_ago
        if ahead and (first or not waits):
            self.owner.want(self.key, ahead, now)
        if waits:
            self.refused = joined(self.refused, ahead)
            on_way = subtract(on_way, ahead)
        self.add_outstanding(on_way)
        return waits

    def settle_all(self) -> Ranges:
        """Let all held messages be delivered, and note the missing ones before them as outstanding.
        Returns the numbers that are held."""
        begin = max(self.done, self.settled)
        here = self.here()
        top = max(self.window.top, here[-1][1] if here else 0)
        if top > begin:
            self.add_outstanding(subtract([(begin + 1, top)], here))
            self.settled = top
        return here

    def lacks(self) -> Ranges:
        """Return the numbers that are missing and may be wanted here; roughly, so that they fit in
        a record."""
        begin = max(self.done, self.settled)
        top = max(begin, self.window.top)
        holes = sorted([*self.window.gaps, *self.window.history])
        lacks = merge(
            [
                *self.outstanding,
                *self.refused,
                *intersect(holes, [(begin + 1, top)]),
                (top + 1, LAST),
            ]
        )
        if self.gone_since:  # what is waited for over another path is not asked for again
            lacks = subtract(lacks, self.here())
        return roughly(lacks)

    def here(self) -> Ranges:
        """Return the numbers that wait."""
        return merge([(held.sequence, held.last) for held in self.waiting])


def joined(some: Ranges, more: Ranges) -> Ranges:
    """Return two sets of numbers as one, which may be the first. Costs little in the common case:
    the second is beyond the first."""
    if some and more and more[0][0] > some[-1][1] + 1:
        some += more
        return some
    return merge([*some, *more])
