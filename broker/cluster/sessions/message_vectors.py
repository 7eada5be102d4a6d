"""Sets of messages by number, as brokers tell each other which messages a session was offered
(docs/decisions/0016). Pure.

A `Vector` says for each origin which numbers are in the set: the highest one, and the gaps below
it. `Ranges` are pairs (first number, last number) in ascending order. A session was *offered* a
message once its broker has compared the message with the session's subscriptions, whether one of
these matched or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mqttree.broker.base.sequence_set import LAST, Ranges, merge, subtract
from mqttree.broker.cluster.delivery.local_window import LocalVector
from mqttree.broker.cluster.link.origin_keys import split_key
from mqttree.broker.cluster.link.version_vector import OriginWindow, Vector


def offered(vector: LocalVector) -> Vector:
    """Return the vector of all numbers that need not be delivered here any more. Those before this
    broker met an origin are never delivered."""
    found: Vector = {}
    for key, window in vector.items():
        if (feed := window.feed) is not None:
            seen = found[key] = OriginWindow(min(feed.done, LAST), window.heard)
            seen.gaps = list(feed.outstanding)
            continue
        seen = found[key] = OriginWindow(max(window.top, min(window.begin, LAST)), window.heard)
        seen.gaps = [
            (max(low, window.begin + 1), high) for low, high in window.gaps if high > window.begin
        ]
    return found


def been_here(vector: LocalVector) -> dict[bytes, Ranges]:
    """Return the numbers that have been at this broker. Those that are held back from local
    subscribers until earlier ones arrive do not count."""
    tops = {
        key: window.top if window.feed is None else window.feed.done
        for key, window in vector.items()
    }
    return {key: subtract([(1, top)], vector[key].gaps) for key, top in tops.items() if top}


def without(some: Mapping[bytes, Ranges], *others: Mapping[bytes, Ranges]) -> dict[bytes, Ranges]:
    """Return the numbers that are in `some` and in none of `others`, by origin."""
    found = {}
    for key, ranges in some.items():
        for other in others:
            ranges = subtract(ranges, other.get(key, []))
        if ranges:
            found[key] = ranges
    return found


def need_of(starts: Iterable[dict[bytes, int]]) -> Vector:
    """Return the numbers that were published before subscriptions that began behind `starts`: an
    older session has to have been offered them."""
    need: Vector = {}
    for tops in starts:
        for key, top in tops.items():
            if top < LAST and top > need.setdefault(key, OriginWindow(0, 0.0)).top:
                need[key].top = top
    return need


def numbered(found: Iterable[tuple[bytes, int]]) -> dict[bytes, Ranges]:
    """Return the numbers of messages, by origin.

    Raises:
        MalformedPacket: an origin is invalid.
    """
    numbers: dict[bytes, Ranges] = {}
    for key, sequence in found:
        if (pairs := numbers.get(key)) is None:
            split_key(key)
            pairs = numbers[key] = []
        pairs.append((sequence, sequence))
    return {key: merge(pairs) for key, pairs in numbers.items()}


def union(*sets: Mapping[bytes, Ranges]) -> dict[bytes, Ranges]:
    """Return the numbers that are in any of `sets`, by origin."""
    found: dict[bytes, Ranges] = {}
    for ranges in sets:
        for key, pairs in ranges.items():
            if pairs:
                found[key] = merge([*found.get(key, ()), *pairs])
    return found


def ranges_of(vector: Vector) -> dict[bytes, Ranges]:
    """Return the numbers that a vector has."""
    return {
        key: subtract([(1, window.top)], window.gaps)
        for key, window in vector.items()
        if window.top
    }


def vector_of(has: dict[bytes, Ranges]) -> Vector:
    """Return a vector that has these numbers."""
    vector: Vector = {}
    for key, ranges in has.items():
        window = vector[key] = OriginWindow(ranges[-1][1], 0.0)
        window.gaps = subtract([(1, window.top)], ranges)
    return vector
