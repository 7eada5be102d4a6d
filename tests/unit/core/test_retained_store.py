"""The last write wins in any order; digests are equal exactly when the stores are; tombstones are
bounded in age and number."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqttree.broker.base.counters import Counters
from mqttree.broker.cluster.link.origin_keys import origin_key
from mqttree.broker.core.message import Message
from mqttree.broker.core.retained_index import RetainedIndex, RetainedVersion, place_of
from mqttree.broker.core.retained_store import TOMBSTONE_AGE_S, Change, RetainedStore
from mqttree.broker.limits import Limits
from tests.kit.effort import examples

MS = 1_700_000_000_000
KEYS = [origin_key(bytes((n,)) * 8, 1) for n in range(3)]


def write(
    store: RetainedStore,
    topic: str,
    payload: bytes,
    at: int,
    key: int = 0,
    *,
    expires: float | None = None,
    now: float = 0.0,
) -> Change:
    """Write at MS + `at` ms; `expires`, `now`: s from MS on."""
    name = topic.encode()
    expires_at_ms = MS + int(expires * 1000) if expires is not None else 0 if payload else MS + at
    version = RetainedVersion(name, place_of(name), MS + at << 16, KEYS[key], 1, expires_at_ms, 1)
    return store.write(
        Message(name, payload, 1, True, b"", expires, None), version, now, MS + int(now * 1000)
    )


def state(store: RetainedStore) -> dict[str, bytes]:
    return {m.topic.decode(): m.payload for topic in store.topics() if (m := store.get(topic))}


def test_a_write_says_whether_it_was_new_or_old() -> None:
    store = RetainedStore(Counters(), limits=Limits())
    assert write(store, "t", b"1", 10) is Change.NEW
    assert write(store, "t", b"0", 9) is Change.OLD
    assert write(store, "t", b"1", 10) is Change.OLD
    assert write(store, "t", b"2", 10, 1) is Change.NEW  # a tie: the origin decides
    assert write(store, "t", b"", 11) is Change.NEW
    assert write(store, "t", b"", 12) is Change.TAKEN
    assert write(store, "t", b"3", 11, 2) is Change.OLD
    assert (len(store), store.tombstones, len(store.digests)) == (0, 1, 1)
    assert write(store, "t", b"4", 13) is Change.NEW
    assert (state(store), store.tombstones) == ({"t": b"4"}, 0)
    assert write(store, "u", b"", 1) is Change.TAKEN


Write = tuple[str, bytes, int, int]
WRITES = st.lists(
    st.tuples(
        st.sampled_from("abcd"),
        st.sampled_from([b"", b"x", b"y"]),
        st.integers(0, 5),
        st.integers(0, 2),
    ),
    max_size=12,
    unique_by=lambda w: (w[0], w[2], w[3]),
)


@given(WRITES, st.randoms(use_true_random=False))
def test_any_order_comes_to_the_same(writes: list[Write], rng: random.Random) -> None:
    one, other = (
        RetainedStore(Counters(), limits=Limits()),
        RetainedStore(Counters(), limits=Limits()),
    )
    for w in writes:
        write(one, *w)
    shuffled = writes + writes[:3]
    rng.shuffle(shuffled)
    for w in shuffled:
        write(other, *w)
    last = {w[0]: w[1] for w in sorted(writes, key=lambda w: (w[2], KEYS[w[3]]))}
    assert (
        state(one) == state(other) == {topic: payload for topic, payload in last.items() if payload}
    )
    assert one.digests.whole == other.digests.whole
    assert one.tombstones == other.tombstones == sum(not payload for payload in last.values())


@given(WRITES, WRITES)
def test_digests_are_equal_when_stores_are(some: list[Write], others: list[Write]) -> None:
    one, other = (
        RetainedStore(Counters(), limits=Limits()),
        RetainedStore(Counters(), limits=Limits()),
    )
    for w in some:
        write(one, *w)
    for w in others:
        write(other, *w)
    versions = [
        {
            (m.topic, m.time, m.key)
            for part in range(256)
            for m in store.digests.versions(bytes((part,)))
        }
        for store in (one, other)
    ]
    assert (versions[0] == versions[1]) == (one.digests.whole == other.digests.whole)
    for topic in "abcd":
        for size in (1, 2):
            prefix = place_of(topic.encode())[:size]
            inside = [{m for m in found if place_of(m[0]).startswith(prefix)} for found in versions]
            assert (inside[0] == inside[1]) == (
                one.digests.digest(prefix) == other.digests.digest(prefix)
            )


@settings(max_examples=examples(50))
@given(st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=80))
def test_the_table_of_digests(steps: list[tuple[int, bool]]) -> None:
    """It equals a new table with the same content."""
    digests = RetainedIndex()
    there: dict[int, RetainedVersion] = {}
    for step, (number, put) in enumerate(steps):
        topic = b"t%d" % number
        if put:
            there[number] = RetainedVersion(topic, place_of(topic), step, KEYS[0], 0, 0, 0)
            digests.put(there[number])
        elif number in there:
            digests.remove(there.pop(number))
    rebuilt = RetainedIndex()
    for version in there.values():
        rebuilt.put(version)
    assert len(digests) == len(there)
    assert digests.whole == rebuilt.whole
    for part in range(256):
        prefix = bytes((part,))
        assert digests.digest(prefix) == rebuilt.digest(prefix)
        assert digests.count(prefix) == rebuilt.count(prefix) == len(digests.versions(prefix))
    for version in there.values():
        found = digests.get(version.place)
        assert found is not None
        assert found.pack() == version.pack()
        assert version.pack() in [other.pack() for other in digests.versions(version.place[:2])]
        assert version.place in digests.places(version.place[:1])
        assert digests.count(version.place[:2]) == len(digests.versions(version.place[:2]))


# ---------------------------------------------------------------- tombstones


def test_an_expired_message_stays_known_as_a_tombstone() -> None:
    counters = Counters()
    store = RetainedStore(counters, limits=Limits())
    assert write(store, "t", b"x", 10, expires=5.0) is Change.NEW
    assert store.match("t", 4.9)
    assert store.match("t", 5.0) == []
    assert (len(store), store.tombstones, counters.expired) == (0, 1, 1)
    assert write(store, "t", b"old", 9, now=6.0) is Change.OLD
    # It came when it had expired already.
    assert write(store, "u", b"x", 10, expires=5.0, now=6.0) is Change.TAKEN
    assert write(store, "u", b"old", 9, now=6.0) is Change.OLD
    assert write(store, "u", b"new", 11, now=6.0) is Change.NEW
    assert (state(store), store.tombstones) == ({"u": b"new"}, 1)


def test_a_sweep_forgets_what_is_over() -> None:
    store = RetainedStore(Counters(), limits=Limits())
    write(store, "expiring", b"x", 0, expires=5.0)
    write(store, "deleted", b"", 0)
    write(store, "kept", b"x", 0)
    day = TOMBSTONE_AGE_S
    for now, left, tombstones in (
        (4.0, 3, 1),
        (5.0, 3, 2),
        (day - 1.0, 3, 2),
        (day, 2, 1),
        (day + 5.0, 1, 0),
    ):
        store.sweep(now, MS + int(now * 1000))
        assert (len(store.digests), store.tombstones) == (left, tombstones), now
    assert state(store) == {"kept": b"x"}
    assert write(store, "deleted", b"", 0, now=day) is Change.OLD  # no older write brings it back
    write(store, "kept", b"y", int(day * 1000), now=day)
    # But it deletes what is there.
    assert write(store, "kept", b"", int(day * 1000) + 1, now=3 * day) is Change.NEW
    assert (len(store), len(store.digests), store.tombstones) == (0, 0, 0)


def test_tombstones_are_bounded() -> None:
    counters = Counters()
    store = RetainedStore(counters, limits=Limits(max_tombstones=3))
    for number in range(10):
        write(store, f"t{number}", b"", number)
    assert (store.tombstones, len(store.digests), counters.retained_tombstones_forgotten) == (
        3,
        3,
        7,
    )
    # Those who remember more do not push it in again.
    assert write(store, "t0", b"", 0) is Change.OLD
    assert write(store, "t9", b"x", 8) is Change.OLD
    assert write(store, "t0", b"x", 0) is Change.NEW


def test_writing_over_and_over_leaves_nothing_behind() -> None:
    store = RetainedStore(Counters(), limits=Limits())
    for number in range(10_000):
        write(store, "t", b"x" * (number & 1), number, expires=1e6 if number & 1 else None)
        if number % 500 == 0:
            store.sweep(0.0, MS)
    assert len(store.digests) == 1
    assert len(store._tombstone_ends) <= 1100
    assert len(store._expiring) <= 1500


def test_limits() -> None:
    counters = Counters()
    store = RetainedStore(counters, limits=Limits(max_retained=1))
    assert write(store, "a", b"1", 1) is Change.NEW
    assert write(store, "b", b"1", 1, now=7.0) is Change.REFUSED
    assert (counters.retained_refused, store.refused_at, len(store.digests)) == (1, 7.0, 1)
    assert write(store, "a", b"2", 2) is Change.NEW
    assert write(store, "b", b"", 2) is Change.TAKEN


def test_an_update_that_does_not_fit_leaves_nothing_older() -> None:
    counters = Counters()
    store = RetainedStore(counters, limit=10, limits=Limits())
    assert write(store, "t", b"old", 10) is Change.NEW
    assert write(store, "t", bytes(10), 20) is Change.DROPPED
    assert (
        len(store),
        store.size,
        store.tombstones,
        counters.retained_refused,
        store.refused_at,
    ) == (0, 0, 1, 1, 0.0)
    assert "max_retained_bytes" in store.reached
    assert write(store, "t", b"mid", 19) is Change.OLD
    assert write(store, "t", bytes(10), 20) is Change.REFUSED  # again: nothing is new
    assert write(store, "t", bytes(11), 30) is Change.DROPPED  # and what is newer than that
    assert write(store, "t", bytes(10), 20) is Change.OLD
    assert (store.tombstones, len(store.digests)) == (1, 1)
    store.limit = 100
    assert write(store, "t", bytes(11), 30) is Change.NEW  # the same write, when there is room
    assert (store.tombstones, state(store)) == (0, {"t": bytes(11)})


def test_an_update_of_what_was_deleted_that_does_not_fit() -> None:
    store = RetainedStore(Counters(), limits=Limits())
    write(store, "t", b"", 10)
    store.closed = True
    assert write(store, "t", b"new", 30) is Change.DROPPED
    assert "80 %" in store.reached
    store.closed = False
    assert write(store, "t", b"old", 20, 1) is Change.OLD
    assert write(store, "t", b"new", 30) is Change.NEW


@given(st.permutations(range(6)), st.permutations(range(6)))
def test_stores_of_different_sizes_have_the_last_write_or_nothing(
    small_order: list[int], large_order: list[int]
) -> None:
    """Each has the last write or nothing in the end, whatever fits, in any order."""
    writes = [bytes([n]) * (20 if n in (2, 5) else 3) for n in range(6)]
    small, large = (
        RetainedStore(Counters(), limit=10, limits=Limits()),
        RetainedStore(Counters(), limits=Limits()),
    )
    assert write(small, "t", b"first", 0) is write(large, "t", b"first", 0) is Change.NEW
    for store, order in ((small, small_order), (large, large_order)):
        for n in order:
            write(store, "t", writes[n], 10 + n)
    assert (state(small), state(large)) == ({}, {"t": writes[5]})
    dead = small.digests.get(place_of(b"t"))
    assert dead is not None
    deletion = Message(b"t", b"", 1, True, b"", None, None)
    assert large.write(deletion, dead, 0.0, MS) is Change.OLD  # who has the write keeps it
    small.limit = 100
    write(small, "t", writes[5], 15)
    assert state(small) == state(large)


def test_the_brokers_own_topics_count_for_no_limit() -> None:
    store = RetainedStore(Counters(), limit=10, limits=Limits(max_retained=2))
    own = Message(b"$SYS/a", bytes(100), 0, True, b"", None, None)
    assert store.store("$SYS/a", own)
    assert (write(store, "a", b"1234", 1), write(store, "b", b"1234", 1)) == (
        Change.NEW,
        Change.NEW,
    )
    assert write(store, "c", b"", 1) is Change.TAKEN
    assert write(store, "d", b"1", 1) is Change.REFUSED
    store.closed = True
    assert store.store("$SYS/b", own)
    assert (len(store), store.own, store.size) == (2, 2, 10)
    assert [message.topic for message in store.match("#", 0.0)] != []
    assert {message.topic for message in store.match("#", 0.0)} == {b"a", b"b"}
    store.store("$SYS/a", Message(b"$SYS/a", b"", 0, True, b"", None, None))
    assert (len(store), store.own, store.size) == (2, 1, 10)


def test_no_write_makes_the_store_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics that are written again, deleted and written again, with an end: nothing goes through
    all that is old at once."""
    store = RetainedStore(Counters(), limits=Limits())
    asked = 0
    get = RetainedIndex.get

    def counted(digests: RetainedIndex, place: bytes) -> RetainedVersion | None:
        nonlocal asked
        asked += 1
        return get(digests, place)

    monkeypatch.setattr(RetainedIndex, "get", counted)
    most = 0
    for turn in range(9):
        for number in range(3000):
            before = asked
            write(
                store,
                f"t/{number}",
                b"" if turn % 3 == 1 else b"x",
                10_000 * turn + number,
                expires=None if turn % 3 else 1e6,
            )
            most = max(most, asked - before)
    assert most < 40
    assert len(store) == 3000
