"""Sets of sequence numbers as ascending lists of inclusive pairs that do not touch, so that a
million consecutive numbers are one pair. A number is found by bisection; intersections and
differences take one pass over both lists."""

from __future__ import annotations

from bisect import bisect_right

from mqttree.broker.wire.errors import MalformedPacket

LAST = (1 << 48) - 1
"""The highest sequence number in records. No message has it, so that a broker which has all
messages can still name the next number."""

MAX_GAPS = 64
"""gaps in the sequence of one origin that records may contain, and so as many as are remembered
(`Limits.max_gaps`)."""

MAX_ORIGINS = 4096
"""origins (broker, incarnation) that records may contain: four times the members."""

MAX_SKIPS = 4096
"""ranges of one origin's numbers that have not been here, with routing by interest: no subscriber
wanted them, or they are asked for. Of those beyond, the oldest are not passed on should they come;
what is still missing here is kept in a list of its own, of the same length [gaps_forgotten]."""

Ranges = list[tuple[int, int]]


def find(ranges: Ranges, first: int, last: int) -> int:
    """Return the index of the first pair of `ranges` that contains any of the numbers `first` to
    `last`, or -1. `ranges`: ascending pairs of a first and a last number."""
    index = bisect_right(ranges, (first, LAST + 1)) - 1
    if index >= 0 and ranges[index][1] >= first:
        return index
    index += 1
    return index if index < len(ranges) and ranges[index][0] <= last else -1


def discard(ranges: Ranges, first: int, last: int) -> bool:
    """Remove the numbers `first` to `last` from `ranges` (ascending pairs) in place, by binary
    search. Returns False, and removes nothing, if they are not all in one pair."""
    index = find(ranges, first, last)
    if index < 0:
        return False
    low, high = ranges[index]
    if first < low or last > high:
        return False
    ranges[index : index + 1] = [
        pair for pair in ((low, first - 1), (last + 1, high)) if pair[0] <= pair[1]
    ]
    return True


def within(ranges: Ranges, first: int, last: int) -> Ranges:
    """Return the numbers of `ranges` (ascending pairs) from `first` to `last`, by binary search."""
    found = []
    index = find(ranges, first, last)
    while 0 <= index < len(ranges) and ranges[index][0] <= last:
        low, high = ranges[index]
        found.append((max(low, first), min(high, last)))
        index += 1
    return found


def intersect(some: Ranges, others: Ranges) -> Ranges:
    """Return the intersection of two ascending lists of inclusive pairs."""
    found = []
    at = 0
    for low, high in some:
        while at < len(others) and others[at][1] < low:
            at += 1
        index = at
        while index < len(others) and others[index][0] <= high:
            found.append((max(low, others[index][0]), min(high, others[index][1])))
            index += 1
    return found


def complement(ranges: Ranges) -> Ranges:
    """Return the numbers up to `LAST` that are not in an ascending list of inclusive pairs."""
    rest = []
    next_low = 0
    for low, high in ranges:
        if next_low < low:
            rest.append((next_low, low - 1))
        next_low = max(next_low, high + 1)
    if next_low <= LAST:
        rest.append((next_low, LAST))
    return rest


def subtract(some: Ranges, others: Ranges) -> Ranges:
    """Return the numbers of the first ascending list of inclusive pairs that are not in the
    second."""
    return intersect(some, complement(others)) if others else list(some)


def merge(ranges: Ranges) -> Ranges:
    """Return inclusive pairs in any order as ascending ones that do not touch."""
    merged: Ranges = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return merged


def roughly(ranges: Ranges, most: int = MAX_GAPS // 2) -> Ranges:
    """Return at most `most` ascending pairs that cover these: the smallest gaps between them are
    filled."""
    if len(ranges) <= most:
        return ranges
    holes = sorted(range(1, len(ranges)), key=lambda i: ranges[i][0] - ranges[i - 1][1])
    keep = sorted(holes[len(ranges) - most :])
    starts, ends = [0, *keep], [*keep, len(ranges)]
    return [(ranges[a][0], ranges[b - 1][1]) for a, b in zip(starts, ends, strict=True)]


def encode_pairs(ranges: Ranges) -> bytes:
    """Return the numbers as in records, 12 bytes for each pair."""
    return b"".join([low.to_bytes(6, "big") + high.to_bytes(6, "big") for low, high in ranges])


def decode_pairs(data: bytes, what: str) -> Ranges:
    """Return ascending pairs from bytes; `what`: their name in errors. Raises MalformedPacket."""
    if len(data) % 12:
        raise MalformedPacket(f"{what} is truncated")
    ranges: Ranges = []
    below = 0
    for at in range(0, len(data), 12):
        low, high = (
            int.from_bytes(data[at : at + 6], "big"),
            int.from_bytes(data[at + 6 : at + 12], "big"),
        )
        if not below < low <= high:
            raise MalformedPacket(f"{what} is out of order")
        ranges.append((low, high))
        below = high
    return ranges
