"""The log of messages for neighbours: in pieces while it changes, and what a neighbour lacks of it."""

from __future__ import annotations

import random

import pytest

from broker import log
from broker.counters import Counters
from broker.log import Entry, MessageLog
from broker.message import Message
from broker.origin import Vector, Window, origin_key

KEYS = [origin_key(bytes((n,)) * 8, 1) for n in range(3)]


def entry(key: bytes, sequence: int, at: float = 0.0) -> Entry:
    return Entry(key, sequence, b"x" * 100, Message(b"t", b"", 1, False, b"", None, None), at)


def test_pieces_of_a_log_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "PIECE", 10)
    kept = MessageLog(Counters(), 50 * 100)
    for number in range(30):
        kept.append(entry(KEYS[0], number + 1))
    pieces = kept.pieces()
    found = [e.sequence for e in next(pieces)]
    for number in range(30, 65):  # the oldest 16 go, six that have not had their turn among them
        kept.append(entry(KEYS[0], number + 1))
    assert found == list(range(1, 11))
    assert [e.sequence for piece in pieces for e in piece] == list(range(17, 31))
    kept.forget_old(1e9)
    assert list(kept.pieces()) == []
    kept.append(entry(KEYS[0], 100))
    assert [e.sequence for piece in kept.pieces() for e in piece] == [100]


@pytest.mark.parametrize("seed", range(5))
def test_what_a_neighbour_lacks(seed: int) -> None:
    rng = random.Random(seed)
    kept = MessageLog(Counters())
    entries = [entry(key, number) for key in KEYS for number in range(1, 60)]
    rng.shuffle(entries)
    for e in entries:
        kept.append(e)
    seen: Vector = {}
    for key in KEYS[:2]:
        seen[key] = window = Window(0, 0.0)
        for number in range(1, rng.randrange(60)):
            if rng.random() < 0.9:
                window.accept(number, 1)
    found = [(e.key, e.sequence) for e in kept.missed(seen, 0.0)]
    assert sorted(found) == sorted((k, n) for k in seen for n in range(1, 60) if seen[k].missing(n))
    for key in seen:
        numbers = [number for k, number in found if k == key]
        assert numbers == sorted(numbers)
