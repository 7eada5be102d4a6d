"""What was sent and what came, compared: loss, order and duplicates (design section 4, promises 1 to 4). No clock, no sockets.

A publisher numbers its messages through all of its connections; `life` counts those. A subscriber's connection has one `Receipt`
for each publisher that it hears.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Sent:
    """One publisher: what it sent, and what of it was acknowledged."""

    number: int
    broker: int
    qos: int
    life: int = 0
    next: int = 0
    begin: int = 0
    """The first message of this life."""
    taken: set[int] = field(default_factory=set)
    """Acknowledged, and no comparison has begun for it."""
    due: set[int] = field(default_factory=set)
    """Acknowledged, and being compared."""
    total: int = 0
    """Acknowledged, ever."""

    def sends(self) -> bytes:
        """The payload of the next message."""
        index = self.next
        self.next += 1
        return b"%d %d %d" % (self.number, self.life, index)

    def acknowledged(self, index: int) -> None:
        """Its broker took it over."""
        self.taken.add(index)
        self.total += 1

    def reborn(self) -> None:
        """Its broker died, and it has come back to it."""
        self.life += 1
        self.begin = self.next


@dataclass(slots=True)
class Receipt:
    """What one connection of a subscriber got of one publisher."""

    first: int = -1
    last: int = -1
    life: int = 0
    missing: set[int] = field(default_factory=set)
    since: int = -1
    """From this message on everything has to come: the way was open before it was sent. -1: not open yet."""

    def came(self, life: int, index: int) -> str:
        """One more message: `new`, `again`, `late` (behind one that was sent after it), `older` (so, but of a life before)."""
        if self.first < 0:
            self.first = self.last = index
            self.life = life
            return "new"
        if index > self.last:
            if index > self.last + 1:
                self.missing.update(range(self.last + 1, index))
            self.last, self.life = index, life
            return "new"
        if index >= self.first and index not in self.missing:
            return "again"
        self.missing.discard(index)
        return "older" if life < self.life else "late"


@dataclass(slots=True)
class Ear:
    """One connection of a subscriber, and what it has of each publisher that it subscribed to."""

    name: str
    broker: int
    receipts: dict[int, Receipt]

    def open(self) -> bool:
        """Whether something of each publisher has come."""
        return all(receipt.first >= 0 for receipt in self.receipts.values())


class Judge:
    """Keeps what was broken, as text; `counts` are for the table."""

    def __init__(self) -> None:
        self.sent: dict[int, Sent] = {}
        self.broken: list[str] = []
        self.counts: Counter[str] = Counter()
        self._told: set[tuple[str, int, int]] = set()  # one line for the same from one to another broker

    def came(self, ear: Ear, payload: bytes, qos: int) -> None:
        """A message; its order, and whether it is the first of its kind, are looked at right now."""
        number, life, index = map(int, payload.split())
        sent = self.sent[number]
        verdict = ear.receipts[number].came(life, index)
        self.counts["delivered"] += 1
        if qos != sent.qos:
            self._break("another QoS", ear, sent, f"{qos} instead of {sent.qos}")
        if verdict == "new":
            return
        if verdict == "again":
            self.counts[f"again at QoS {qos}"] += 1
            if qos == 2:
                self._break("twice at QoS 2", ear, sent, f"number {index}, after {ear.receipts[number].last}")
        elif verdict == "older":
            self.counts["late, from before its broker's death"] += 1
        else:
            self.counts["out of order"] += 1
            self._break("out of order", ear, sent, f"number {index} after {ear.receipts[number].last}")

    def _break(self, what: str, ear: Ear, sent: Sent, details: str) -> None:
        self.counts["broken"] += 1
        if (kind := (what, sent.number, ear.broker)) not in self._told:
            self._told.add(kind)
            who = f"publisher {sent.number} (b{sent.broker}, QoS {sent.qos}) to {ear.name} (b{ear.broker})"
            self.broken.append(f"{what}: {who}: {details}")

    def begin(self) -> bool:
        """Compare what has been acknowledged by now; what is broken from here on is told again.

        False: some publisher has yet to see one acknowledged in its life.
        """
        if any(not any(index >= sent.begin for index in sent.taken) for sent in self.sent.values()):
            return False
        for sent in self.sent.values():
            sent.due, sent.taken = sent.due | sent.taken, set()
        self._told.clear()
        return True

    def compare(self, ears: list[Ear]) -> list[str]:
        """What is not at these of what `begin` took: empty when all of it has come. Every broker has a journal and is started
        again, so that what it alone had when it was killed comes too."""
        late = []
        for sent in self.sent.values():
            for ear in ears:
                receipt = ear.receipts.get(sent.number)
                if receipt is None or receipt.since < 0:
                    continue
                owed = (index for index in sent.due if index >= receipt.since)
                lacks = {index for index in owed if index in receipt.missing or not receipt.first <= index <= receipt.last}
                if lacks:
                    late.append(self._lack("acknowledged and missing", ear, sent, lacks, receipt))
        return late

    @staticmethod
    def _lack(what: str, ear: Ear, sent: Sent, lacks: set[int], receipt: Receipt) -> str:
        some = sorted(lacks)
        return (
            f"{what}: publisher {sent.number} (b{sent.broker}, QoS {sent.qos}, life {sent.life} from {sent.begin}) to {ear.name} "
            f"(b{ear.broker}, last {receipt.last}): {len(some)}, {some[0]} to {some[-1]}"
        )

    def settle(self, ears: list[Ear]) -> None:
        """Close the books on what was compared."""
        for sent in self.sent.values():
            hears = [ear.receipts[sent.number] for ear in ears if sent.number in ear.receipts]
            self.counts["compared"] += sum(0 <= receipt.since <= index for index in sent.due for receipt in hears)
            sent.due.clear()

    def ready(self, ear: Ear) -> None:
        """From now on everything has to come."""
        for number, receipt in ear.receipts.items():
            if receipt.since < 0:
                receipt.since = self.sent[number].next
