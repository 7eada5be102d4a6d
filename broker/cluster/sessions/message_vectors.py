"""Sets of messages by number, as brokers tell each other which messages a session was offered
(docs/decisions/0016). Pure.

A `Vector` says for each origin which numbers are in the set: the highest one, and the gaps below
it. `Ranges` are pairs (first number, last number) in ascending order. A session was *offered* a
message once its broker has compared the message with the session's subscriptions, whether one of
these matched or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from mqttree.broker.base.sequence_set import LAST, Ranges, intersect, merge, roughly, subtract
from mqttree.broker.cluster.delivery.local_window import LocalVector, LocalWindow
from mqttree.broker.cluster.link.origin_keys import split_key
from mqttree.broker.cluster.link.version_vector import OriginWindow, Vector

if TYPE_CHECKING:
    from mqttree.broker.cluster.sessions.session_state import SessionState


def offered(vector: LocalVector) -> Vector:
    """Return the vector of all numbers that need not be delivered here any more. Those before this
    broker met an origin are never delivered."""
    found: Vector = {}
    for key, window in vector.items():
        if (feed := window.feed) is not None:
            seen = found[key] = OriginWindow(min(feed.done, LAST), window.heard)
            seen.gaps = roughly(feed.outstanding)
            continue
        seen = found[key] = OriginWindow(max(window.top, min(window.begin, LAST)), window.heard)
        seen.gaps = [
            (max(low, window.begin + 1), high) for low, high in window.gaps if high > window.begin
        ]
    return found


def only(mine: Vector, theirs: Vector) -> dict[bytes, Ranges]:
    """Return the numbers that are in `mine` and not in `theirs`: origin -> ascending inclusive
    pairs."""
    return _only(((key, window, window.top) for key, window in mine.items()), theirs)


def only_here(vector: LocalVector, theirs: Vector) -> dict[bytes, Ranges]:
    """Return the numbers of `vector`, which have been at this broker, that are not in `theirs`:
    origin -> ascending inclusive pairs. Those that are held back from local subscribers until
    earlier ones arrive do not count."""
    return _only(((key, window, _top(window)) for key, window in vector.items()), theirs)


def _top(window: LocalWindow) -> int:
    return window.top if window.feed is None else window.feed.done


def _only(mine: Iterable[tuple[bytes, OriginWindow, int]], theirs: Vector) -> dict[bytes, Ranges]:
    found = {}
    for key, window, top in mine:
        other = theirs.get(key)
        if other is not None and other.top >= top and not other.gaps:
            continue
        lacks = [(1, LAST)] if other is None else [*other.gaps, (other.top + 1, LAST)]
        has = subtract([(1, top)], window.gaps) if top else []
        if ranges := intersect(has, lacks):
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


def uncovered(need: Vector, *seen: Vector) -> dict[bytes, Ranges]:
    """Return the numbers of `need` that are in none of `seen`, the vectors of what a session was
    offered. Origins that the first of these does not know are left out."""
    found = {}
    ranges = [ranges_of(vector) for vector in seen]
    for key, needed in ranges_of(need).items():
        has = merge([pair for known in ranges for pair in known.get(key, ())])
        if key in seen[0] and (lacks := subtract(needed, has)):
            found[key] = lacks
    return found


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


def whole(*seen: Vector) -> dict[bytes, int]:
    """Return for each origin the number up to which the vectors `seen` together have all."""
    found = union(*map(ranges_of, seen))
    return {key: ranges[0][1] for key, ranges in found.items() if ranges[0][0] == 1}


def behind_start(state: SessionState) -> dict[bytes, Ranges]:
    """Return what was evaluated for a session of what was published since it subscribed."""
    return {
        key: behind
        for key, ranges in ranges_of(state.seen).items()
        if (behind := subtract(ranges, _up_to(state.before.get(key))))
    }


def _up_to(window: OriginWindow | None) -> Ranges:
    return [(1, window.top)] if window is not None and window.top else []


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
    """Return a vector that has these numbers, or a few less."""
    vector: Vector = {}
    for key, ranges in has.items():
        window = vector[key] = OriginWindow(ranges[-1][1], 0.0)
        window.gaps = roughly(subtract([(1, window.top)], ranges))
    return vector


def seen_by_both(newer: SessionState, older: SessionState) -> Vector:
    """Return what was evaluated for a session when an older one has been merged into it: of the
    time before the newer one subscribed, what the older one had, and what is older than both."""
    has = ranges_of(newer.seen)
    for key, window in newer.before.items():
        begun = older.before.get(key)
        low = min(window.top, 0 if begun is None else begun.top)
        has[key] = [
            *([(1, low)] if low else []),
            *subtract(has.get(key, []), _up_to(window)),
        ]
    return vector_of(union(has, behind_start(older)))
