"""What a batch of one message says of shared subscriptions: which broker gives it to a member of
which group (docs/decisions/0015).

It is ahead of the packet (`message_batch`), as one letter and what it brings:

    "c"  id and boot of a broker, id of a group, as often as groups that match were given to other
         brokers than the origin
    "p"  id and boot, group id, ids of the brokers that had it before: passed on, as none of them
    had a
         member; for this group alone
    "r"  the same of a message that was published with RETAIN

The boot says which incarnation of a broker is meant: what its last one may have delivered, the next
one does not deliver again.
"""

from __future__ import annotations

from mqttree.broker.wire.errors import MalformedPacket
from mqttree.routing.group_selection import GROUP_ID_SIZE

CHOSEN = b"c"
"""First letter of what goes to ordinary subscriptions, too."""

MAX_CHOICES = 1000
"""shared subscriptions for which one message names a broker, 18 bytes each; the groups beyond do
not get it [shared_undelivered]."""

MAX_PASSES = 8
"""brokers that had a message for a shared subscription and had no member left; then it is dropped
[shared_undelivered]."""

ID = 8
WHO = ID + 4
ENTRY = WHO + GROUP_ID_SIZE


class Tries:
    """The earlier attempts for a message that brokers gave back, as they had no member for it."""

    __slots__ = ("denied", "refused", "since")

    def __init__(self, now: float) -> None:
        self.since = now  # s; when the first one gave it back
        self.refused: frozenset[bytes] = frozenset()  # brokers that did since it last waited,
        self.denied: frozenset[bytes] = frozenset()  # and those whose members may not have it


class ReceiverAssignment:
    """Which broker delivers to which group."""

    __slots__ = ("entries", "key", "passed", "retain", "sequence", "tries", "visited")

    def __init__(
        self,
        entries: list[tuple[bytes, bytes]],
        *,
        passed: bool = False,
        retain: bool = False,
        visited: tuple[bytes, ...] = (),
    ) -> None:
        """`entries`: (id and boot of a broker, id of a group); one entry if it is `passed` on,
        and then the message is for that group alone. `retain`: whether it was published with
        RETAIN; `visited`: ids of brokers that had no member for it."""
        self.entries = entries
        self.passed = passed
        self.retain = retain
        self.visited = visited
        # Of a message that was given back before; not sent to others.
        self.tries: Tries | None = None
        # origin and sequence number of the message that it came with; not of one that was published
        # here
        self.key = b""
        self.sequence = 0

    def of(self, key: bytes, sequence: int) -> ReceiverAssignment:
        """Note which message it came with; returns itself."""
        self.key = key
        self.sequence = sequence
        return self

    def encode(self) -> bytes:
        """Return the assignment as bytes."""
        letter = CHOSEN if not self.passed else b"r" if self.retain else b"p"
        return b"".join([letter, *map(b"".join, self.entries), *self.visited])


def decode_choice(data: bytes) -> ReceiverAssignment:
    """Decode an assignment.

    Raises:
        MalformedPacket: of a kind that is unknown, too short or too long.
    """
    kind, raw = data[:1], data[1:]
    if kind == CHOSEN and 0 < len(raw) <= MAX_CHOICES * ENTRY and not len(raw) % ENTRY:
        entries = [
            (raw[at : at + WHO], raw[at + WHO : at + ENTRY]) for at in range(0, len(raw), ENTRY)
        ]
        return ReceiverAssignment(entries)
    hops, rest = divmod(len(raw) - ENTRY, ID)
    if kind not in (b"p", b"r") or rest or not 0 <= hops <= MAX_PASSES:
        raise MalformedPacket("choice of a shared subscription that cannot be read")
    visited = tuple(raw[at : at + ID] for at in range(ENTRY, len(raw), ID))
    return ReceiverAssignment(
        [(raw[:WHO], raw[WHO:ENTRY])], passed=True, retain=kind == b"r", visited=visited
    )
