"""The messages that a broker gave to members of shared subscriptions at other brokers, until they
have acknowledged them (docs/decisions/0015). Pure.

An assignment is named by the origin of its message, the sequence number there and the id of its
group. At QoS 2 it is OPEN until the other broker claims it: before that no member has seen it, so
it may be given to another. GRANTED, it stays there. RETURNED, it goes to another in a moment.
"""

from __future__ import annotations

from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from collections import OrderedDict
from collections.abc import Iterable, Iterator

from mqttree.broker.core.message import Message, size_of
from mqttree.broker.core.receiver_assignment import Tries
from mqttree.broker.wire.errors import MalformedPacket
from mqttree.routing.group_selection import GROUP_ID_SIZE

MAX_REASSIGNED = 100_000
"""of these, given to another member as the first one's broker was gone; should it come back, it
does not get them again."""

MAX_TAKEN = 50_000
"""entries, of up to 256 messages each, of what members here took at QoS 2, with a journal."""

OPEN, GRANTED, RETURNED = range(3)

NO_MEMBER = b""
"""Stands for the broker of a message that waits for a member."""

Ref = tuple[bytes, int, bytes]
"""Origin of a message (16 characters), its sequence number, id of the group."""

KEY = 12
_HEAD = 1 + KEY + GROUP_ID_SIZE + 2
BLOCK_NUMBERS = 8000
"""sequence numbers of one block, some 48 kB."""


class Assignment:
    """One message that is for a member of a group at another broker."""

    __slots__ = (
        "again_at",
        "asked",
        "at",
        "message",
        "ref",
        "retain",
        "size",
        "state",
        "tries",
        "visited",
        "who",
    )

    def __init__(
        self,
        ref: Ref,
        who: bytes,
        message: Message,
        at: float,
        visited: tuple[bytes, ...],
        retain: bool,
    ) -> None:
        """`ref`: its name; `who`: id and boot number of the broker; `message`: what was given;
        `at`: when (s); `visited`: brokers that had no member for it; `retain`: whether it was
        retained where it was published."""
        self.ref = ref
        self.who = who
        self.message = message
        self.at = at
        self.visited = visited
        self.retain = retain
        self.state = OPEN
        self.asked = at  # s; when the broker was last asked for it
        self.tries: Tries | None = None  # brokers that gave it back
        # s; before, it is not given to a broker that gave it back, unless members come.
        self.again_at = 0.0
        self.size = size_of(message)


class Ledger:
    """The assignments of a broker that are not acknowledged."""

    __slots__ = ("_moved", "by_who", "refs", "size")

    def __init__(self) -> None:
        self.refs: dict[Ref, Assignment] = {}
        self.by_who: dict[bytes, dict[Ref, Assignment]] = {}
        self.size = 0  # bytes
        self._moved: OrderedDict[Ref, float] = OrderedDict()  # given to another broker: when (s)

    def __len__(self) -> int:
        return len(self.refs)

    def add(self, assignment: Assignment) -> None:
        """Keep an assignment, and count its bytes."""
        self.refs[assignment.ref] = assignment
        self.by_who.setdefault(assignment.who, {})[assignment.ref] = assignment
        self.size += assignment.size

    def close(self, ref: Ref) -> Assignment | None:
        """Take an assignment out, and return it."""
        assignment = self.refs.pop(ref, None)
        if assignment is not None:
            self.size -= assignment.size
            same = self.by_who[assignment.who]
            del same[ref]
            if not same:
                del self.by_who[assignment.who]
        return assignment

    def move(self, ref: Ref, now: float) -> Assignment | None:
        """Take an assignment out that goes to another broker, as the first one may not claim it any
        more. `now`: s."""
        assignment = self.close(ref)
        if assignment is not None:
            self.note_moved(ref, now)
        return assignment

    def note_moved(self, ref: Ref, now: float) -> None:
        """Note at `now` (s) that no member may claim a message any more."""
        self._moved[ref] = now
        if len(self._moved) > MAX_REASSIGNED:
            self._moved.popitem(last=False)

    def moved(self, ref: Ref) -> bool:
        """Whether an assignment was given to another broker."""
        return ref in self._moved

    def forget_old(self, horizon: float) -> None:
        """Forget assignments that went to another broker before `horizon` (s): the first one cannot
        claim them any more."""
        while self._moved and next(iter(self._moved.values())) < horizon:
            self._moved.popitem(last=False)


class SequenceSet:
    """The messages that were taken: bits, 256 to an entry, forgotten when they are old."""

    __slots__ = ("_at", "_bits", "_most")

    def __init__(self) -> None:
        self._most = MAX_TAKEN
        self._bits: dict[tuple[bytes, bytes, int], int] = {}
        self._at: OrderedDict[tuple[bytes, bytes, int], float] = OrderedDict()

    def add(self, ref: Ref, now: float) -> None:
        """Add the number of `ref`; `now` (s) is when it was used last."""
        key, sequence, group_id = ref
        place = (key, group_id, sequence >> 8)
        self._bits[place] = self._bits.get(place, 0) | 1 << (sequence & 255)
        self._at[place] = now
        self._at.move_to_end(place)

    def discard(self, ref: Ref) -> None:
        """Take the number of `ref` out."""
        key, sequence, group_id = ref
        place = (key, group_id, sequence >> 8)
        if place in self._bits:
            self._bits[place] &= ~(1 << (sequence & 255))

    def __contains__(self, ref: Ref) -> bool:
        key, sequence, group_id = ref
        return self._bits.get((key, group_id, sequence >> 8), 0) >> (sequence & 255) & 1 != 0

    def forget_old(self, horizon: float) -> None:
        """Forget what was put in before `horizon` (s), 256 together."""
        while self._at:
            place, at = next(iter(self._at.items()))
            if at >= horizon and len(self._at) <= self._most:
                break
            del self._at[place], self._bits[place]

    def refs(self) -> Iterator[Ref]:
        """Return all of them; some may be added or forgotten meanwhile."""
        for (key, group_id, block), bits in list(self._bits.items()):
            for bit in range(256):
                if bits >> bit & 1:
                    yield key, block << 8 | bit, group_id


def encode_refs(operations: Iterable[tuple[int, Ref]]) -> list[bytes]:
    """Encode operations on assignments as messages: u8 operation, id and boot number of the origin,
    group id, u16 count, so many u48 sequence numbers."""
    blocks: dict[tuple[int, bytes, bytes], list[int]] = {}
    for operation, (key, sequence, group_id) in operations:
        blocks.setdefault((operation, key, group_id), []).append(sequence)
    bodies: list[bytes] = []
    body = b""
    for (operation, key, group_id), sequences in blocks.items():
        head = bytes((operation,)) + a2b_base64(key) + group_id
        for at in range(0, len(sequences), BLOCK_NUMBERS):
            some = sequences[at : at + BLOCK_NUMBERS]
            body += (
                head + len(some).to_bytes(2, "big") + b"".join([n.to_bytes(6, "big") for n in some])
            )
            if len(body) > 6 * BLOCK_NUMBERS:
                bodies.append(body)
                body = b""
    return [*bodies, body] if body else bodies


def decode_refs(body: bytes) -> Iterator[tuple[int, Ref]]:
    """Decode operations on assignments.

    Raises:
        MalformedPacket: truncated.
    """
    at = 0
    while at < len(body):
        count = int.from_bytes(body[at + _HEAD - 2 : at + _HEAD], "big")
        end = at + _HEAD + 6 * count
        if at + _HEAD > len(body) or not count or end > len(body):
            raise MalformedPacket("message about shared subscriptions is truncated")
        operation = body[at]
        try:
            key = b2a_base64(body[at + 1 : at + 1 + KEY], newline=False)
        except Base64Error:  # cannot be: any bytes can be encoded
            raise MalformedPacket("message about shared subscriptions has no origin") from None
        group_id = body[at + 1 + KEY : at + _HEAD - 2]
        for place in range(at + _HEAD, end, 6):
            yield operation, (key, int.from_bytes(body[place : place + 6], "big"), group_id)
        at = end
