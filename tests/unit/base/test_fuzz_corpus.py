"""What fuzzing found worth keeping goes through every target again; and the fuzzer finds what it is
there for."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.fuzz.engine import CORPUS, LARGEST, Search, fault_of, kept, mutated, place, shrunk
from tests.fuzz.seeds import seeds
from tests.fuzz.tape import Tape, Wrong
from tests.fuzz.targets import TARGETS

MAX_BYTES = 300_000


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_passes_its_own_target(name: str) -> None:
    inputs = kept(name)
    assert inputs
    for data in (*seeds(name), *inputs):
        TARGETS[name](data)


@pytest.mark.parametrize("name", TARGETS)
def test_each_target_survives_the_corpus_of_the_others(name: str) -> None:
    """Any bytes are an input; and some are new."""
    others = [data for other in TARGETS if other != name for data in kept(other)]
    rng = random.Random(name)
    for data in rng.sample(others, 40):
        TARGETS[name](data)
    for _ in range(40):
        TARGETS[name](mutated(rng, kept(name)))


def test_the_corpus_is_small() -> None:
    files = [path for path in CORPUS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MAX_BYTES
    assert {path.parent.name for path in files} == set(TARGETS)
    assert all(path.stat().st_size <= LARGEST for path in files)


def picky(data: bytes) -> None:
    """Has a fault behind two conditions."""
    tape = Tape(data)
    if tape.byte() == 0x62 and tape.string() == b"\0\0":
        raise Wrong("found")


def test_a_fault_is_found_and_shrunk() -> None:
    search = Search(picky, [b"abcdefgh"], 1, (str(Path(__file__).parent),))
    while not search.faults:
        assert search.runs < 200_000
        search.run(0.1)
    (where, (data, error)), *_ = search.faults.items()
    assert isinstance(error, Wrong)
    small = shrunk(
        data, lambda each: (fault := fault_of(picky, each)) is not None and place(fault) == where
    )
    assert small == b"\x62\x02\0\0"
