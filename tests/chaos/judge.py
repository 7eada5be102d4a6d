"""What was sent and what came, compared: loss, order and duplicates. No clock, no sockets.

A publisher numbers its messages through all of its connections. What it sent is in one process,
what came of it in any, so books are compared by the numbers up to which everything was acknowledged
(`Sent.mark`). What came is a byte for each number: very many messages a second cost little, and a
gap is found by one call.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

HEAD = struct.Struct(">HHII")
"""What a payload begins with: publisher, life and how often its broker has lost its data, number of
the message, bytes of the payload."""
WIPES = 10
"""Bits of the life, below those."""
FLYING, TAKEN, VOID = 0, 1, 2
CROSSED = "again at QoS 2 to a client that moved across a split (excused)"
ANOTHER = "behind the next of a broker without its data"
Range = tuple[int, int]
"""First number, and the one behind the last."""
Lack = tuple[int, int, int]
"""How many are missing, the first and the last of them."""


@dataclass(slots=True)
class Sent:
    """One publisher: what it sent, and what of it was acknowledged."""

    number: int
    broker: int
    qos: int
    lives: list[int] = field(default_factory=lambda: [0])
    """The first message of each: a life ends with the broker, whether the session goes on or
    not."""
    next: int = 0
    state: bytearray = field(default_factory=bytearray)
    """Of each message: FLYING, TAKEN (acknowledged), VOID (it is not owed: its session was lost
    before it was acknowledged)."""
    upto: int = 0
    """Nothing before this number is FLYING."""
    voids: list[Range] = field(default_factory=list)
    doubts: list[Range] = field(default_factory=list)
    """Of lives that ended with all data of their broker, and without a standby: it alone may have
    had these."""
    wipes: list[int] = field(default_factory=lambda: [0])
    """How often its broker had lost its data when each life began."""

    def sends(self, count: int) -> int:
        """Begin so many messages; returns the number of the first."""
        first = self.next
        self.next += count
        self.state.extend(bytes(count))
        return first

    def head(self, number: int, size: int) -> bytes:
        """The head of a payload; a repeated message has that of its first time."""
        life = len(self.lives) - 1
        while self.lives[life] > number:
            life -= 1
        return HEAD.pack(self.number, life | self.wipes[life] << WIPES, number, size)

    def acknowledged(self, number: int) -> None:
        """Its broker took it over."""
        self.state[number] = TAKEN

    def reborn(self, lost: bool, wiped: bool, excused: bool) -> None:
        """Its broker died, and it has come back to it. `lost`: without its session; `wiped`: the
        broker is without its data; `excused`: and so is its standby."""
        if lost:
            at = self.state.find(FLYING, self.upto)
            while at >= 0:
                end = at
                while end < self.next and self.state[end] == FLYING:
                    end += 1
                self.state[at:end] = bytes((VOID,)) * (end - at)
                self.voids.append((at, end))
                at = self.state.find(FLYING, end)
        if excused:
            self.doubts.append((self.lives[-1], self.next))
        self.lives.append(self.next)
        self.wipes.append(self.wipes[-1] + wiped)

    def mark(self) -> int:
        """Return the number up to which everything is acknowledged, or void."""
        at = self.state.find(FLYING, self.upto)
        self.upto = self.next if at < 0 else at
        return self.upto


@dataclass(slots=True)
class Receipt:
    """What came of one publisher: for one connection, for a session, or for a group."""

    since: int = -1
    """From this message on everything has to come: it was sent after SUBACK. -1: not subscribed
    yet."""
    base: int = 0
    """The first that came."""
    next: int = -1
    """One behind the last that came; -1: nothing did."""
    here: bytearray = field(default_factory=bytearray)
    """From `base` on, what is here."""
    early: set[int] = field(default_factory=set)
    """What came of what is before `base`."""
    settled: int = 0
    """Everything before this number was compared."""
    wipes: int = 0
    """How often its broker had lost its data when it sent the newest that came."""

    def came(self, number: int) -> str:
        """One more message: `` (nothing special), `again`, `late` (behind one that was sent after
        it)."""
        if number == self.next:
            self.here.append(1)
            self.next = number + 1
            return ""
        if self.next < 0:
            self.base, self.next = number, number + 1
            self.here.append(1)
            return ""
        if number > self.next:
            self.here.extend(bytes(number - self.next))
            self.here.append(1)
            self.next = number + 1
            return ""
        if number < self.base:
            if number in self.early:
                return "again"
            self.early.add(number)
            return "late"
        if self.here[number - self.base]:
            return "again"
        self.here[number - self.base] = 1
        return "late"

    def lacks(self, upto: int, excused: Iterable[Range]) -> Lack | None:
        """Return what of the numbers before `upto` has to be here and is not. It costs little,
        however much that is: brokers do not wait for a subscriber that stands still for half a
        second."""
        if self.since < 0:
            return None
        found: Lack | None = None
        begin = max(self.since, self.settled)
        for first, end in (*sorted(excused), (upto, upto)):
            for lack in self._holes(begin, min(first, upto)):
                found = lack if found is None else (found[0] + lack[0], found[1], lack[2])
            begin = max(begin, end)
        return found

    def _holes(self, begin: int, end: int) -> Iterator[Lack]:
        base, next = (self.base, self.next) if self.next >= 0 else (end, end)
        below = min(base, end)
        if begin < below and (count := below - begin - sum(begin <= n < below for n in self.early)):
            yield count, begin, below - 1
        first, behind = max(begin, base) - base, min(end, next) - base
        if first < behind and (count := self.here.count(0, first, behind)):
            yield (
                count,
                self.here.find(0, first, behind) + base,
                self.here.rfind(0, first, behind) + base,
            )
        if max(begin, next) < end:
            yield end - max(begin, next), max(begin, next), end - 1

    def most(self, before: int) -> int:
        """Return one behind the last number before this one that is here; 0: none is."""
        if self.next < 0 or self.base >= before:
            return max((n + 1 for n in self.early if n < before), default=0)
        return self.here.rfind(1, 0, before - self.base) + 1 + self.base


@dataclass(slots=True)
class Ear:
    """Who hears: one connection, a session that roams, or the members of a group; what it has of
    each publisher."""

    name: str
    broker: int
    receipts: dict[int, Receipt]
    ordered: bool = True
    crossed: bool = False
    """Whether it has moved while brokers did not reach each other."""


@dataclass(slots=True)
class Disorder:
    """Messages of one broker's publisher that came behind newer ones at another broker."""

    origin: int
    broker: int
    what: str
    times: int = 1


class Judge:
    """Keeps what was broken, as text; `counts` are for the table."""

    def __init__(self, qos: dict[int, tuple[int, int]]) -> None:
        """`qos`: broker and QoS of each publisher."""
        self.publishers = qos
        self.broken: list[str] = []
        self.disorder: dict[tuple[int, int], Disorder] = {}
        self.counts: Counter[str] = Counter()
        # One line is enough for the same from one to another broker.
        self._told: set[tuple[str, int, int]] = set()

    def came(self, ear: Ear, payload: bytes, qos: int) -> None:
        """A message; its order, and whether it is the first of its kind, are looked at right
        now."""
        number, life, index, size = HEAD.unpack_from(payload)
        self.counts["delivered"] += 1
        receipt = ear.receipts[number]
        last = receipt.next - 1
        verdict = receipt.came(index)
        receipt.wipes = max(receipt.wipes, life >> WIPES)
        broker, wanted = self.publishers[number]
        if qos != wanted:
            self._break("another QoS", ear, number, f"{qos} instead of {wanted}")
        if size != len(payload):
            self._break("cut off", ear, number, f"{len(payload)} bytes instead of {size}")
        if not verdict:
            return
        if verdict == "again":
            self.counts[f"again at QoS {qos}"] += 1
            if qos == 2 and ear.crossed:
                self.counts[CROSSED] += 1
            elif qos == 2:
                self._break(
                    "twice at QoS 2",
                    ear,
                    number,
                    f"number {index} of life {life % (1 << WIPES)}, after {last}",
                )
        elif life >> WIPES < receipt.wipes:
            # A broker without its data is another one: order is for what is of one of them, and
            # what its publisher repeats is of the next one.
            self.counts[ANOTHER] += 1
        elif ear.ordered:
            self.counts["out of order"] += 1
            found = self.disorder.get((number, ear.broker))
            if found is not None:
                found.times += 1
            else:
                what = (
                    f"{self._who(ear, number)}: "
                    f"number {index} of life {life % (1 << WIPES)} after {last}"
                )
                self.disorder[number, ear.broker] = Disorder(broker, ear.broker, what)

    def _who(self, ear: Ear, number: int) -> str:
        broker, qos = self.publishers[number]
        return f"publisher {number} (b{broker}, QoS {qos}) to {ear.name} (b{ear.broker})"

    def _break(self, what: str, ear: Ear, number: int, details: str) -> None:
        self.counts["broken"] += 1
        if (kind := (what, number, ear.broker)) not in self._told:
            self._told.add(kind)
            self.broken.append(f"{what}: {self._who(ear, number)}: {details}")

    def lacks(
        self, ears: list[Ear], marks: dict[int, int], excused: dict[int, list[Range]]
    ) -> list[str]:
        """What these lack of what was acknowledged: empty when all of it has come. Every broker has
        a standby, or a journal and is started again, so that what it alone had when it was killed
        comes too."""
        late = []
        for ear in ears:
            for number, receipt in ear.receipts.items():
                if missing := receipt.lacks(marks[number], excused.get(number, ())):
                    some = (
                        f"{missing[0]}, {missing[1]} to {missing[2]}, of {marks[number]}; "
                        f"last {receipt.next - 1}"
                    )
                    late.append(f"acknowledged and missing: {self._who(ear, number)}: {some}")
        return late

    @staticmethod
    def reach(ears: list[Ear], doubts: dict[int, tuple[int, int]]) -> dict[int, int]:
        """Return one behind the last number that is here of what a broker may have had alone
        (publisher: its broker, number that is behind all of it)."""
        return {
            number: max(
                (
                    e.receipts[number].most(before)
                    for e in ears
                    if e.broker != broker and number in e.receipts
                ),
                default=0,
            )
            for number, (broker, before) in doubts.items()
        }

    def settle(self, ears: list[Ear], marks: dict[int, int]) -> None:
        """Close the books on what was compared; what is broken from here on is reported again."""
        self._told.clear()
        self.disorder.clear()
        self.broken.clear()
        for ear in ears:
            for number, receipt in ear.receipts.items():
                if receipt.since >= 0:
                    self.counts["compared"] += max(
                        0, marks[number] - max(receipt.since, receipt.settled)
                    )
                    receipt.settled = max(receipt.settled, marks[number])
