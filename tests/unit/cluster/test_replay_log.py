"""The log of messages for neighbours: in pieces while it changes, and what a neighbour lacks of
it."""

from __future__ import annotations

import random

import pytest

from mqttree.broker.base.counters import Counters
from mqttree.broker.cluster.delivery.local_window import LocalWindow
from mqttree.broker.cluster.delivery.replay_log import (
    NEVER,
    VOID,
    LogEntry,
    ReplayLog,
    in_order,
    lacked_parts,
)
from mqttree.broker.cluster.link.message_batch import MessageBatch
from mqttree.broker.cluster.link.origin_keys import origin_key
from mqttree.broker.cluster.link.version_vector import Vector
from mqttree.broker.core.message import Message
from mqttree.broker.limits import DEFAULTS, Limits
from mqttree.routing.subscription_trie import SubscriptionTrie

KEYS = [origin_key(bytes((n,)) * 8, 1) for n in range(3)]


def entry(key: bytes, sequence: int, at: float = 0.0, size: int = 100) -> LogEntry:
    return LogEntry(key, sequence, 1, b"x" * size, at)


def numbers(kept: ReplayLog) -> list[int]:
    return [e.sequence for piece in kept.pieces() for e in piece]


def test_pieces_of_a_log_that_changes() -> None:
    kept = ReplayLog(Counters(), 50 * 100, limits=Limits(log_piece=10))
    for number in range(30):
        kept.append(entry(KEYS[0], number + 1), None)
    pieces = kept.pieces()
    found = [e.sequence for e in next(pieces)]
    for number in range(30, 65):  # the oldest 16 go, six that have not had their turn among them
        kept.append(entry(KEYS[0], number + 1), None)
    assert found == list(range(1, 11))
    assert [e.sequence for piece in pieces for e in piece] == list(range(17, 31))
    kept.forget_old(1e9)
    assert list(kept.pieces()) == []
    kept.append(entry(KEYS[0], 100), None)
    assert [e.sequence for piece in kept.pieces() for e in piece] == [100]


def test_old_entries_are_trimmed_in_steps() -> None:
    kept = ReplayLog(Counters(), limits=Limits(log_old=10))
    for number in range(25):
        kept.append(entry(KEYS[0], number + 1, at=float(number)), None)
    left = []
    for _ in range(3):
        kept.forget_old(DEFAULTS.log_age_s + 23.5)
        left.append(len(kept))
    assert left == [15, 5, 1]


@pytest.mark.parametrize("seed", range(20))
def test_the_oldest_go_whether_each_is_reported_or_not(seed: int) -> None:
    rng = random.Random(seed)
    quick, told = (
        ReplayLog(Counters(), 5000, limits=Limits()),
        ReplayLog(Counters(), 5000, limits=Limits()),
    )
    gone: list[tuple[int, int]] = []
    told.on_dropped.append(lambda e, position, source: gone.append((e.sequence, position)))
    for number in range(1, 300):
        if rng.random() < 0.1:  # a neighbour has acknowledged up to here
            quick.floor = told.floor = rng.choice([NEVER, rng.randint(told.begin, told.end)])
        size = rng.choice([1, 100, 300, 4999, 6000])
        for kept in quick, told:
            kept.append(entry(KEYS[0], number, size=size), None)
            kept.trim(None)
        assert (quick.begin, quick.end, len(quick)) == (told.begin, told.end, len(told))
        assert numbers(quick) == numbers(told)
    assert [sequence for sequence, _ in gone] == list(range(1, len(gone) + 1))
    assert len(gone) > 100


def missed(log: ReplayLog, seen: Vector) -> list[LogEntry]:
    """All that a neighbour lacks, at once."""
    found, behind = log.lacked(seen, 0, len(log))
    assert behind == log.next
    return [
        part for entry in in_order(found, seen) for part in lacked_parts(entry, seen[entry.key])
    ]


@pytest.mark.parametrize("seed", range(5))
def test_the_log_finds_what_a_neighbour_lacks(seed: int) -> None:
    rng = random.Random(seed)
    kept = ReplayLog(Counters(), limits=Limits())
    entries = [entry(key, number) for key in KEYS for number in range(1, 60)]
    rng.shuffle(entries)
    for e in entries:
        kept.append(e, None)
    seen: Vector = {}
    for key in KEYS[:2]:
        seen[key] = window = LocalWindow(0, 0.0, None, Limits().max_gaps)
        for number in range(1, rng.randrange(60)):
            if rng.random() < 0.9:
                window.accept(number, 1)
    found = [(e.key, e.sequence) for e in missed(kept, seen)]
    assert sorted(found) == sorted((k, n) for k in seen for n in range(1, 60) if seen[k].missing(n))
    for key in seen:
        lacked = [number for k, number in found if k == key]
        assert lacked == sorted(lacked)


@pytest.fixture
def roomy() -> ReplayLog:
    """A log of 10,000 bytes with room for 20,000 more of large messages, full of 100 small ones."""
    kept = ReplayLog(Counters(), 10_000, 20_000, limits=Limits(log_large_bytes=1000))
    for number in range(100):
        kept.append(entry(KEYS[0], number + 1), None)
    assert len(kept) == 100
    return kept


def test_a_large_message_pushes_nothing_out_for_a_while(roomy: ReplayLog) -> None:
    for number in range(4):
        roomy.append(entry(KEYS[1], number + 1, at=1.0 + number, size=5000), None)
    assert numbers(roomy) == [*range(1, 101), 1, 2, 3, 4]
    for number in range(50):  # a small one does, as ever
        roomy.append(entry(KEYS[0], 101 + number, at=6.0), None)
    assert numbers(roomy)[0] == 51
    roomy.append(entry(KEYS[1], 5, at=7.0, size=5000), None)  # there is no more room
    assert roomy.size <= 30_000
    assert numbers(roomy)[:5] == [1, 2, 3, 4, 101]
    roomy.forget_old(DEFAULTS.log_large_s + 3.5)
    assert 15_000 < roomy.size <= 20_000
    roomy.forget_old(DEFAULTS.log_large_s + 7.5)
    assert roomy.size <= 10_000


def test_room_for_large_messages_can_be_taken_back(roomy: ReplayLog) -> None:
    for number in range(4):
        roomy.append(entry(KEYS[1], number + 1, size=5000), None)
    roomy.give_room(0)
    assert roomy.size <= 10_000
    roomy.append(entry(KEYS[1], 5, size=5000), None)
    assert roomy.size <= 10_000


def test_what_is_void_keeps_its_numbers_and_reaches_no_client() -> None:
    packet = Message(b"t", b"payload", 2, False, b"", None, None).packet(4, 2, False, 1)
    data = MessageBatch(KEYS[0], 7, packet * 3, 3, 4, 2).encode()
    void = LogEntry(KEYS[0], 7, 3, data, 1.0)
    void.void()
    assert [number for number, _ in void.messages()] == [7, 8, 9]
    assert list(void.topics()) == [VOID] * 3
    assert (void.qos, void.size, void.kept()) == (2, len(data), void.data(2.0))
    trie: SubscriptionTrie[str] = SubscriptionTrie()
    for wildcard in ("#", "+", "+/#"):
        trie.insert(wildcard, wildcard, wildcard)
    assert not list(trie.match(VOID.decode()))
