"""Records about shared subscriptions, and the state that they restore (docs/decisions/0015, 0021).
Pure.

    CLOSED   refs of messages of this broker that a member elsewhere has acknowledged, or that were
             assigned to another one
    TAKEN    refs of messages of other brokers that were granted to members here
    COVERED  id of a group, origin (an incarnation of this broker), u64 ms since when the group
             is known (0: not known), numbers that it got

Refs are encoded as between brokers (`assignment_ledger`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

from mqttree.broker.base.sequence_set import Ranges, encode_pairs
from mqttree.broker.cluster.sessions.records import Kind, encode_record
from mqttree.broker.cluster.sharing.assignment_ledger import Ref, decode_refs, encode_refs
from mqttree.broker.wire.errors import MalformedPacket
from mqttree.routing.group_selection import GROUP_ID_SIZE

if TYPE_CHECKING:
    from mqttree.broker.base.hybrid_clock import HybridClock
    from mqttree.broker.cluster.delivery.forwarder import Forwarder
    from mqttree.broker.cluster.sharing.shared_subscriptions import SharedSubscriptions

CLOSED, TAKEN, COVERED = 1, 2, 3

KEY = 16
_HEAD = 1 + GROUP_ID_SIZE + KEY + 8
RECORD_REFS = 1000
"""refs of one record."""

PASSED = 4
"""entries of the log that are looked at in one step."""


def _records(refs: Iterable[tuple[int, Ref]]) -> bytes:
    return b"".join(encode_record(Kind.SHARED, body) for body in encode_refs(refs))


def closed(refs: list[Ref]) -> bytes:
    """Return the record of messages that are not assigned to any broker again."""
    return _records((CLOSED, ref) for ref in refs)


def taken(refs: list[Ref]) -> bytes:
    """Return the record of messages that members here got."""
    return _records((TAKEN, ref) for ref in refs)


def covered(group_id: bytes, key: bytes, ranges: Ranges, since: int) -> bytes:
    """Return the record of the messages of this broker that a group got.

    `group_id`: of the group. `key`: of the origin. `ranges`: the sequence numbers. `since`: ms
    since the epoch when the group became known, 0: not known.
    """
    return encode_record(
        Kind.SHARED,
        bytes((COVERED,)) + group_id + key + since.to_bytes(8, "big") + encode_pairs(ranges),
    )


def everything(
    sharing: SharedSubscriptions, forwarder: Forwarder, clock: HybridClock, now: float
) -> Iterator[bytes]:
    """Yield records of the present state at `now` (s), and b"" for steps without one. `sharing`:
    has it; `forwarder`: has the messages of this broker; `clock`: tells the time of day."""
    wall = clock.physical(now)
    for group_id, key, ranges, since in list(sharing.catchup.covered()):
        yield covered(
            group_id,
            key,
            ranges,
            0 if since is None else max(1, wall - round((now - since) * 1000)),
        )
    refs: list[Ref] = []
    for ref in sharing.custody.taken.refs():
        refs.append(ref)
        if len(refs) >= RECORD_REFS:
            yield taken(refs)
            refs = []
    open_refs = sharing.assignments.ledger.refs
    if refs:
        yield taken(refs)
    refs = []
    log = forwarder.log
    for number, entry in enumerate(
        chain.from_iterable(log.pieces() if log.chosen > log.begin else ())
    ):
        if not number % PASSED:
            yield b""
        choice = entry.choice if entry.key in forwarder.ours and entry.qos else None
        if choice is not None:
            refs += [
                ref
                for _, group_id in choice.entries
                if (ref := (entry.key, entry.sequence, group_id)) not in open_refs
            ]
        if len(refs) >= RECORD_REFS:
            yield closed(refs)
            refs = []
    if refs:
        yield closed(refs)


def outcomes(body: bytes) -> Iterator[tuple[int, Ref]]:
    """Return which messages are CLOSED or TAKEN by the `body` of a record. Raises
    MalformedPacket."""
    return iter(()) if body[:1] == bytes((COVERED,)) else decode_refs(body)


def restore(
    sharing: SharedSubscriptions, clock: HybridClock, bodies: list[bytes], now: float
) -> int:
    """Apply the `bodies` of a journal's records at `now` (s) to `sharing`, which is new. `clock`:
    tells the time of day. Returns how many of them cannot be read."""
    over: set[Ref] = set()
    groups: dict[tuple[bytes, bytes], tuple[bytes, bytes, Ranges, float | None]] = {}
    wall = clock.physical(now)
    bad = 0
    for body in bodies:
        if body[:1] == bytes((COVERED,)):
            group_id, key = (
                body[1 : 1 + GROUP_ID_SIZE],
                body[1 + GROUP_ID_SIZE : 1 + GROUP_ID_SIZE + KEY],
            )
            since = int.from_bytes(body[_HEAD - 8 : _HEAD], "big")
            ranges = [
                (
                    int.from_bytes(body[at : at + 6], "big"),
                    int.from_bytes(body[at + 6 : at + 12], "big"),
                )
                for at in range(_HEAD, len(body), 12)
            ]
            groups[group_id, key] = (
                group_id,
                key,
                ranges,
                now - max(0, wall - since) / 1000 if since else None,
            )
            continue
        try:
            for operation, ref in outcomes(body):
                if operation == TAKEN:
                    sharing.custody.taken.add(ref, now)
                else:
                    over.add(ref)
        except MalformedPacket:
            bad += 1
    sharing.restore(groups.values(), over)
    return bad
