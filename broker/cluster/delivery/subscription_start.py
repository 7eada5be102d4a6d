"""Where subscriptions begin: a message that was published before a SUBSCRIBE is not delivered to
it, even if a log brings it later.

A subscription begins behind all numbers of each origin that have been at this broker
(`SubscriptionStart.tops`). If the feed of an origin has gaps, that is not enough: messages that
were published before may still be under way. So the question to the origin (`gap_recovery`) tells
when these subscriptions began, and the answer says which number was the newest one then, ahead of
all messages. A broker that has confirmed the subscription has said that number then
(`subscription_barrier`), and is not asked.

Times are given by the origin's clock. Each answer has the time that this clock showed, so that the
broker that asked can compare it with its own. The origin looks up in its log which number was the
newest one at a time. If the log does not go back so far, it looks into notes of the numbers that it
had at certain times (`PastNumbers`). Some origins do not answer, and with `ort` none is asked. For
these cases a broker that replays messages tells its neighbour how old they are (AGES), and that is
passed on to all brokers behind. Until it is known where a subscription begins, it gets all messages
that arrive. The journal, and another broker that takes the session, are told when its subscriptions
began and which origins may still answer; each converts the time to its own clock.

    question  u8 count, u48 times of the origin's clock (ms)
    answer    u8 count, u48 the origin's clock (ms), u48 numbers
    record AGES  u8 hops, for each origin: id, boot,
                 u16 count of (u48 number, u32 ms since it came), oldest first
"""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable
from itertools import accumulate
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Protocol

from mqttree.broker.base import costs
from mqttree.broker.base.sequence_set import LAST, merge, subtract
from mqttree.broker.cluster.link.control_records import AGES
from mqttree.broker.cluster.link.origin_keys import origin_key
from mqttree.broker.cluster.ports import MemberBroker
from mqttree.broker.core.ports import Journal
from mqttree.broker.core.start_point import ADOPTED, UNKNOWN, SubscriptionStart
from mqttree.broker.wire.errors import MalformedPacket

if TYPE_CHECKING:
    from mqttree.broker.cluster.delivery.origins import Origins
    from mqttree.broker.cluster.delivery.replay_log import LogEntry
    from mqttree.broker.cluster.link.link import Handler, Link
    from mqttree.broker.cluster.strategy.subscription_barrier import SubscriptionBarrier
    from mqttree.broker.core.session import Session
    from mqttree.routing.link_state import LinkStateDatabase

MAX_TIMES = 64
"""times in one question; if there are more subscriptions, some share the latest of their times."""

POINTS = 5000
"""ages in one record, of all origins; if there are more, some of those in between are left out."""

MAX_HOPS = 64
"""brokers on the path of a record; more are a loop."""

PASSED = 4096
"""records that are remembered, the newest, so that they are not passed on again: those for one log
may be thousands. While a tree forms, links make loops, and each broker would send as many copies as
it has links, again and again."""

UNSURE_S = 0.2
"""s; a clock that is known less exactly than this, as no question was answered quickly, is not
used."""

DRIFT_S = 1e-4
"""s that two clocks may drift apart in a second."""

OLDER = 64
"""points that are kept for one origin whose messages are older than the log here says; if there are
more, some are left out."""

ASKED = 1000
"""questions whose times are kept, for all origins."""


NOTED, NOTES = 0.1, 2048
"""s between two notes of the newest number that was published here, and how many are kept."""

NOTED_OLD, OLD_NOTES = 10.0, 512
"""s between two older notes, and how many of these are kept: together as long as a broker may be
away."""


def starts_of(session: Session) -> list[SubscriptionStart | None]:
    """Return where the subscriptions of a session begin, each start once: subscriptions of one
    moment share theirs."""
    return list(dict.fromkeys(s.start for s in session.subscriptions.values()))


def oldest(session: Session) -> SubscriptionStart | None:
    """Return where the first subscription of a session begins, which is the oldest."""
    return next((s.start for s in session.subscriptions.values()), None)


def newest(session: Session) -> float:
    """Return when a session got its last subscription here (s); 0: that does not matter."""
    start = next((s.start for s in reversed(session.subscriptions.values())), None)
    return 0.0 if start is None else start.at


def older(session: Session, key: bytes, number: int) -> bool:
    """Whether the message with number `number` of the origin `key` turned out to be older than a
    `session` from another broker, where that was not known."""
    start = oldest(session)
    return start is not None and key in start.was_open and number <= start.tops.get(key, 0)


class PastNumbers:
    """Notes of the newest number that was published here at times of the past."""

    __slots__ = ("_notes", "_old")

    def __init__(self) -> None:
        self._notes: deque[tuple[float, int]] = deque()
        self._old: deque[tuple[float, int]] = deque(maxlen=OLD_NOTES)

    def note(self, number: int, now: float) -> None:
        """Note that `number` is the newest one at `now` (s), unless that was noted just before."""
        notes, old = self._notes, self._old
        if notes and (number == notes[-1][1] or now < notes[-1][0] + NOTED):
            return
        notes.append((now, number))
        if len(notes) > NOTES:
            first = notes.popleft()
            if not old or first[0] >= old[-1][0] + NOTED_OLD:
                old.append(first)

    def before(self, at: float) -> int:
        """Return a number that had been published at the time `at` (s): the newest one that was
        noted."""
        notes = self._notes if self._notes and self._notes[0][0] <= at else self._old
        index = bisect_right(notes, at, key=itemgetter(0))
        return notes[index - 1][1] if index else 0


class StartsJournal(Journal, Protocol):
    """The journal, which keeps where subscriptions begin."""

    def subscription_start_changed(self, start: SubscriptionStart) -> None:
        """Record that a subscription begins later than was known."""


class StartingBroker(MemberBroker, Protocol):
    """The broker at which clients subscribe."""

    @property
    def forwarding(self) -> list[Link]:
        """The live links, over which ages of messages are passed on."""

    @property
    def journal(self) -> StartsJournal:
        """The journal, in which the starts of durable sessions are recorded."""


class SubscriptionStarts:
    """The starts of the last minutes, and the clocks of origins."""

    def __init__(
        self,
        node: StartingBroker,
        origins: Origins,
        database: LinkStateDatabase,
        barrier: SubscriptionBarrier,
        behind: Callable[[], bool],
        *,
        enabled: bool,
    ) -> None:
        """`node`: this broker; `origins`: which numbers have been here; `database`: what brokers
        post; `barrier`: which brokers have confirmed a subscription; `behind`: says whether old
        messages may arrive that no log in memory has; `enabled`: there may be other brokers."""
        self._node = node
        self._limits = node.limits
        self._origins = origins
        self._database = database
        self._barrier = barrier
        self._behind = behind
        self._enabled = enabled
        self.past = PastNumbers()
        self._starts: deque[SubscriptionStart] = deque()
        self._clocks: dict[
            bytes, tuple[float, float, float]
        ] = {}  # origin -> s that it is ahead, at least and at most; since
        self._asked: dict[
            int, tuple[float, list[list[SubscriptionStart]]]
        ] = {}  # question -> when it was asked, of what
        self._older: dict[
            bytes, list[tuple[int, float]]
        ] = {}  # origin -> when its numbers were published, at the latest (s)
        self._passed: dict[
            int, None
        ] = {}  # hashes of records that have been passed on, oldest first
        self.records: dict[int, Handler] = {AGES: self.ages_received}

    @property
    def memory(self) -> int:
        """Bytes of memory of all starts, about."""
        starts = sum([1 + len(start.tops) for start in self._starts])
        return costs.START_MEMORY * (starts + sum(map(len, self._older.values())))

    # ---------------------------------------------------------------- subscriptions

    def begin(self) -> SubscriptionStart | None:
        """Return where a subscription begins that is made now; None if no older message can arrive.
        A broker that is alone may be so because its data was lost: others that were down have logs
        of before."""
        node, origins = self._node, self._origins
        if len(origins.vector) < 2 and not self._enabled:
            return None
        state = (node.counters.received_link, origins.own.top, self._barrier.answered)
        starts = self._starts
        if starts and starts[-1].at == node.now and starts[-1].state == state:
            return starts[-1]
        tops, unsettled = {}, set()
        highest = origins.highest
        last_before = self._barrier.last_before
        for key, window in origins.vector.items():
            feed = window.feed
            top = tops[key] = max(window.top, window.begin if feed is None else feed.done)
            if window is not origins.own:
                if (
                    last := last_before(key)
                ) is not None:  # it may have left numbers out until then, or they are on their way
                    top = tops[key] = max(top, last)
                elif feed is not None and not feed.fed:
                    unsettled.add(key)
                highest[key] = max(highest.get(key, 0), top)
        start = SubscriptionStart(node.now, tops, unsettled, state)
        self._forget(node.now)
        starts.append(start)
        return start

    def adopt(
        self, tops: dict[bytes, int], began: float = UNKNOWN, unsettled: Iterable[bytes] = ()
    ) -> SubscriptionStart | None:
        """Return where the subscriptions of a session begin that has come from another broker, or
        from the journal. `tops`: for each origin the highest number that is not for them; `began`:
        when they began (s), UNKNOWN if that is not known; `unsettled`: origins whose number may be
        higher, which are asked if it is known when they began."""
        if not tops:
            return None
        node, highest = self._node, self._origins.highest
        start = SubscriptionStart(node.now, tops, set(), ADOPTED)
        if began > UNKNOWN:
            start.began = min(began, node.now)
            start.was_open = frozenset(tops.keys() & unsettled)
            start.open.update(start.was_open)
        for key, top in tops.items():
            if key != self._origins.key:
                highest[key] = max(highest.get(key, 0), top)
        self._forget(node.now)
        self._starts.append(start)
        return start

    def by_our_clock(self, began: float, sender: bytes) -> float:
        """Return when a session of another broker began by the clock of this one (s), rather too
        early; UNKNOWN if the clock of `sender` is not known. `began`: s, by that clock."""
        listing = self._database.listings.get(sender)
        clock = None if listing is None else self._clocks.get(origin_key(sender, listing.boot))
        if clock is None:
            return UNKNOWN
        return began - clock[1] - DRIFT_S * (self._node.now - clock[2])

    def _forget(self, now: float) -> None:
        """Forget starts when no log has older messages. While a broker is away, or has been asked,
        a log's tail may have some."""
        starts = self._starts
        longest = self._limits.log_age_s
        if starts and starts[0].at + longest < now and self._behind():
            longest += self._limits.absent_max_s
        while starts and (starts[0].at + longest < now or len(starts) >= self._limits.max_starts):
            old = starts.popleft()
            old.tops, old.early, old.open = {}, {}, set()

    def raised(
        self, key: bytes, starts: Iterable[SubscriptionStart], number: int, *, settled: bool = True
    ) -> None:
        """Note that the numbers of the origin `key` up to `number` are not for the subscriptions
        that began at `starts`; `settled`: and that all higher ones are."""
        window = self._origins.vector.get(key)
        done = 0 if window is None else window.top if window.feed is None else window.feed.done
        for start in starts:
            top = start.tops.get(key, 0)
            begin = max(top, 0 if window is None else window.begin)
            if begin < min(done, number):  # messages have been delivered already
                absent = [] if window is None else merge([*window.gaps, *window.history])
                came = subtract([(begin + 1, min(done, number))], absent)
                came = subtract(came, start.passed.get(key, []))
                start.early.setdefault(key, []).extend(came)
            start.tops[key] = max(top, number)
            if settled:
                start.open.discard(key)
            elif not start.adopted:
                start.open.add(key)
            self._node.journal.subscription_start_changed(start)
        highest = self._origins.highest
        highest[key] = max(highest.get(key, 0), number)

    def _open(self, key: bytes) -> list[SubscriptionStart]:
        return [
            start
            for start in self._starts
            if key in start.open or (key not in start.tops and not start.adopted)
        ]

    # ---------------------------------------------------------------- questions

    def question(self, key: bytes, number: int, now: float) -> bytes:
        """Return the subscriptions in the question `number` to the origin `key`, encoded; `now`:
        s."""
        starts = sorted(self._open(key), key=lambda start: start.began)
        step = max(1, -(-len(starts) // MAX_TIMES))
        groups = [starts[at : at + step] for at in range(0, len(starts), step)]
        self._asked[number] = (now, groups)
        if len(self._asked) > ASKED:
            del self._asked[next(iter(self._asked))]
        ahead = self._ahead(key)
        if ahead is None:  # the answer shows its clock; when it is known, it is asked again
            return b"\0"
        # Subscriptions that were made here follow each other closely; those of other brokers may be
        # minutes apart.
        told = [
            group[0 if any(start.adopted for start in group) else -1].began + ahead
            for group in groups
        ]
        return bytes((len(told),)) + b"".join(
            max(0, min(round(at * 1000), LAST)).to_bytes(6, "big") for at in told
        )

    def on_answer(
        self, key: bytes, number: int, body: bytes, top: int, *, more: bool
    ) -> tuple[bytes | None, bool]:
        """Take what the answer `body` to the question `number` to the origin `key` says of
        subscriptions. It has messages up to `top`; `more`: later ones are asked for next, and so is
        where a subscription begins that was made behind `top`.

        Returns the messages in it (None: they cannot be used yet, as it is not known for which
        subscriptions they are), and whether the origin has to be asked again, as a subscription was
        made meanwhile.

        Raises:
            MalformedPacket: it is truncated.
        """
        size = 7 + 6 * body[0] if body else 7
        if len(body) < size:
            raise MalformedPacket("ENTRIES with subscription starts is truncated")
        asked, groups = self._asked.pop(number, (None, []))
        if asked is None:
            return body[size:], False
        clock = int.from_bytes(body[1:7], "big") / 1000
        first = key not in self._clocks
        self._set_clock(key, clock, asked)
        if first and groups:
            return None, True
        for at, group in zip(range(7, size, 6), groups, strict=False):
            last = int.from_bytes(body[at : at + 6], "big")
            self.raised(key, group, min(top, last), settled=not more or last <= top)
        if more:
            return body[size:], False
        # When it was answered, by the clock of this broker: at the latest, as a question may be
        # under way for long. For subscriptions that began meanwhile it is asked again, as newer
        # messages must not be taken for older ones.
        least, most, _ = self._clocks[key]
        then = clock - (least if most - least > UNSURE_S else self._ahead(key) or 0.0)
        self.raised(key, [start for start in self._open(key) if start.began >= then], top)
        return body[size:], bool(self._open(key))

    def _set_clock(self, key: bytes, clock: float, asked: float) -> None:
        """Note that an origin's clock showed `clock` at some time between `asked`, when the
        question was sent, and now."""
        now = self._node.now
        known = self._clocks.get(key)
        least, most = clock - now, clock - asked
        if known is not None:
            drift = DRIFT_S * (now - known[2])
            least, most = max(least, known[0] - drift), min(most, known[1] + drift)
        elif len(self._clocks) >= self._limits.max_origins:
            self._clocks.clear()
        self._clocks[key] = (least, most, now)

    def _ahead(self, key: bytes) -> float | None:
        """Return by how much an origin's clock is ahead of this broker's at least (s), None if that
        is not known. A subscription that begins too early gets more than it should, one that begins
        too late misses messages that were published after SUBACK."""
        known = self._clocks.get(key)
        return None if known is None else known[0] - DRIFT_S * (self._node.now - known[2])

    # ---------------------------------------------------------------- replayed messages

    def tell_ages(self, link: Link, entries: list[LogEntry], now: float) -> None:
        """Tell the neighbour at the end of `link` how old the `entries` are that are about to be
        replayed to it (AGES); `now`: s."""
        if entries:
            link.send_behind(AGES, b"\0" + self.ages(entries, now))

    def ages(self, entries: list[LogEntry], now: float) -> bytes:
        """Return how old the messages of `entries` are at `now` (s)."""
        return encode_ages(entries, now, self._published)

    def _published(self, entry: LogEntry) -> float:
        """Return when the newest message of an entry was published, at the latest (s). The log says
        when it arrived here, which is later for replayed messages, and does not count the time in
        which this broker was down."""
        at = entry.at - self._origins.uncounted(entry.key)
        if (points := self._older.get(entry.key)) is not None:
            index = bisect_left(points, (entry.sequence + entry.count - 1,))
            if index < len(points):
                at = min(at, points[index][1])
        return at

    def _note_older(self, key: bytes, told: list[tuple[float, int]], now: float) -> None:
        """Note when messages were published that are about to arrive, for neighbours to which they
        are replayed later."""
        points = dict(self._older.get(key, ()))
        for at, number in told:
            points[number] = min(at, points.get(number, at))
        found: list[tuple[int, float]] = []
        at = now
        for number in sorted(
            points, reverse=True
        ):  # no message is younger than one that was published after it
            at = min(at, points[number])
            if at < now - self._limits.log_age_s - self._limits.absent_max_s:
                break
            found.append((number, at))
        found.reverse()
        step = -(-len(found) // OLDER)
        self._older[key] = found[(len(found) - 1) % step :: step] if found else []
        if len(self._older) > self._limits.max_origins:
            self._older = {
                key: points for key, points in self._older.items() if key in self._origins.vector
            }

    def ages_received(self, link: Link, body: bytes, now: float, *, holes: bool = False) -> None:
        """Take AGES (`body`), which came over `link` at `now` (s): the messages that are about to
        arrive are not for younger subscriptions. Tell the brokers behind this one. `holes`: newer
        messages of their origins have been here.

        Raises:
            MalformedPacket: it is truncated or too large.
        """
        if not body:
            raise MalformedPacket("AGES record is truncated or too large")
        # The record was under way as well, for an unknown time: half a round trip is too much if a
        # neighbour that has just started answered late. So messages count as younger than they are:
        # a client that subscribed before one must get it.
        self._aged(body[1:], now, holes=holes)
        if body[0] < MAX_HOPS and self._first_time(body[1:]):
            for other in self._node.forwarding:
                if other is not link:
                    other.send_behind(AGES, bytes((body[0] + 1,)) + body[1:])

    def _first_time(self, ages: bytes) -> bool:
        """Whether these ages have not been passed on yet; from now on they have. The messages
        behind them are passed on once as well, so a broker that gets those has got the ages
        before."""
        number = hash(ages)
        if number in self._passed:
            return False
        self._passed[number] = None
        if len(self._passed) > PASSED:
            del self._passed[next(iter(self._passed))]
        return True

    def _aged(self, body: bytes, now: float, *, holes: bool) -> None:
        at = 0
        while at < len(body):
            key, count = (
                b2a_base64(body[at : at + 12], newline=False),
                int.from_bytes(body[at + 12 : at + 14], "big"),
            )
            at += 14
            end = at + 10 * count
            if end > len(body) or not count or count > POINTS:
                raise MalformedPacket("AGES record is truncated or too large")
            points = sorted(
                (
                    now - int.from_bytes(body[point + 6 : point + 10], "big") / 1000,
                    int.from_bytes(body[point : point + 6], "big"),
                )
                for point in range(at, end, 10)
            )
            newest = [0, *accumulate((number for _, number in points), max)]  # of the first ones
            at = end
            window = self._origins.vector.get(key)
            if window is None:
                continue
            self._note_older(key, points, now)
            for start in self._starts if window.feed is None else self._open(key):
                if start.began == UNKNOWN:
                    continue
                last = newest[bisect_right(points, start.began, key=itemgetter(0))]
                if window.feed is not None:
                    if last > start.tops.get(key, 0):
                        self.raised(
                            key, [start], last, settled=False
                        )  # the origin may say that it is even later
                elif last and (holes or last > window.top):  # else it has been here
                    self.raised(key, [start], last)


def encode_ages(
    entries: list[LogEntry], now: float, published: Callable[[LogEntry], float] = attrgetter("at")
) -> bytes:
    """Return how old the messages of `entries` are at `now` (s), as `SubscriptionStarts.aged` takes
    it. `published`: says when those of an entry were published (s)."""
    origins: dict[bytes, list[LogEntry]] = {}
    for entry in entries:
        origins.setdefault(entry.key, []).append(entry)
    step = -(-len(entries) // max(1, POINTS - len(origins)))
    parts = []
    for key, found in origins.items():
        points = (
            found[step - 1 :: step]
            if len(found) % step == 0
            else [*found[step - 1 :: step], found[-1]]
        )
        parts += [a2b_base64(key), len(points).to_bytes(2, "big")]
        for entry in points:
            age = max(0, min(round((now - published(entry)) * 1000), 0xFFFFFFFF))
            parts.append(
                (entry.sequence + entry.count - 1).to_bytes(6, "big") + age.to_bytes(4, "big")
            )
    return b"".join(parts)


def times_of(question: bytes) -> tuple[list[float], bytes]:
    """Return the times (s) in a question, and the bytes behind them.

    Raises:
        MalformedPacket: it is truncated, or has too many times.
    """
    count = question[0] if question else 0
    size = 1 + 6 * count
    if len(question) < size or count > MAX_TIMES:
        raise MalformedPacket("PULL with subscription starts is truncated")
    return [
        int.from_bytes(question[at : at + 6], "big") / 1000 for at in range(1, size, 6)
    ], question[size:]


def answer_of(numbers: list[int], now: float) -> bytes:
    """Encode what an answer says of subscriptions: `numbers`, for the times of the question; `now`:
    s, by this broker's clock."""
    head = bytes((len(numbers),)) + max(0, round(now * 1000)).to_bytes(6, "big")
    return head + b"".join(number.to_bytes(6, "big") for number in numbers)


def numbers_at(
    latest: Iterable[LogEntry],
    key: bytes,
    times: list[float],
    top: int,
    past: PastNumbers | None = None,
) -> tuple[list[int], int]:
    """Return the newest number of the origin `key` at each of the `times` (s), and how many entries
    were looked at. `latest`: entries, the newest first; `top`: the newest number now; `past`: asked
    for times before the oldest entry, None: the entries have everything."""
    found = [top] * len(times)
    waiting = sorted(range(len(times)), key=lambda index: times[index])
    looked = 0
    for entry in latest:
        if not waiting:
            break
        looked += 1
        if entry.key == key:
            while waiting and entry.at <= times[waiting[-1]]:
                found[waiting.pop()] = top
            top = entry.sequence - 1
    for index in waiting:  # longer ago than the oldest entry
        found[index] = top if past is None else min(top, past.before(times[index]))
    return found, looked
