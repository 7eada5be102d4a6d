"""Mutation guided by coverage: an input that reaches a line after another one than any before is
kept, and mutated in turn.

Coverage is (previous line, line) in the broker's packages, by `sys.settrace`. Everything follows
from a seed.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from tests.fuzz.tape import Target

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = tuple(f"{ROOT / name}/" for name in ("broker", "stp", "discovery", "routing"))
CORPUS = Path(__file__).resolve().parent / "corpus"
LARGEST = 1500
"""bytes of an input; longer ones are slow and find nothing that shorter ones do not."""

WORDS: tuple[bytes, ...] = (
    b"\x00\x04MQTT\x05",
    b"\x00\x04MQTT\x04",
    b"\x00\x06MQIsdp\x03",
    b"\x00\x04MQTT\x85",
    b"\xff\xff\xff\x7f",
    b"\xff\xff",
    b"\x00\x00",
    b"\x82",
    b"\x30",
    b"\x32\x05\x00\x01a\x00\x01",
    b"\x34\x05\x00\x01a\x00\x01",
    b"\x62\x02\x00\x01",
    b"\x40\x02\x00\x01",
    b"\x50\x02\x00\x01",
    b"\x70\x02\x00\x01",
    b"\xe0\x00",
    b"\xc0\x00",
    b"\xf0\x02\x18\x00",
    b"$share/",
    b"\x00\x01#",
    b"\x00\x01+",
    b"\x0b\x01",
    b"\x23\x00\x01",
    b"\x26\x00\x01k\x00\x01v",
    b"\x03\x00\x01a",
    b"\x08\x00\x01a",
    b"\x02\x00\x00\x00\x01",
    b"\x01\x01",
    b"\x11\x00\x00\x00\x05",
    b"\x21\x00\x02",
    b"\x27\x00\x00\x00\x20",
    b"\x15\x00\x01m",
    b"\x16\x00\x01d",
    b"\x1f\x00\x01r",
    b"\xed\xa0\x80",
    b"\xef\xbf\xbf",
    b"\xc3\xa9",
    b"\r\n\r\n\x00\r\nQUIT\n",
    b"PROXY TCP4 ",
    b"127.0.0.1 ",
    b"::1 ",
    b" 1 65535\r\n",
    b"PROXY UNKNOWN",
    b"\r\n",
    b"\x21\x11\x00\x0c",
    b"\x20\x00\x00\x00",
    b"\x21\x21\x00\x24",
    b"GET / HTTP/1.1\r\n",
    b"GET /healthz HTTP/1.0\r\n",
    b"Connection: close\r\n",
    b"Content-Length: 0\r\n",
    b"keep-alive",
    b"\r\n\r\n",
    b"http://x/",
    b"HTTP/1.1",
    b"MQTr\x01",
    b"\x07mqttree",
    b"\x0910.0.0.1",
    b"cluster",
    b"address",
    b"boot",
    b"capability",
)
"""What mutations insert."""


class Coverage:
    """Which (previous line, line) of our packages a call goes through."""

    def __init__(self, packages: tuple[str, ...]) -> None:
        """`packages`: folders of what counts as ours."""
        self._packages = packages
        self.seen: set[tuple[int, int]] = set()
        self._codes: dict[CodeType, int] = {}  # -> a number that its lines begin at; 0: not ours
        self._unseen: dict[CodeType, set[int]] = {}  # lines; none left: looked at in full runs only

    def of(self, call: Callable[[], None], *, full: bool = True) -> set[tuple[int, int]]:
        """Run it and return its pairs; unless `full`, without functions of which every line was
        seen before (five times as fast)."""
        found: set[tuple[int, int]] = set()
        codes, unseen, packages = self._codes, self._unseen, self._packages
        add = found.add

        def begin(frame: FrameType, event: str, _argument: Any) -> Any:
            code = frame.f_code
            base = codes.get(code)
            if base is None:
                base = codes[code] = (
                    (len(codes) + 1) << 16 if code.co_filename.startswith(packages) else 0
                )
                lines = {number for _, _, number in code.co_lines() if number is not None} - {
                    code.co_firstlineno
                }
                unseen[code] = lines
            if not base or not (full or unseen[code]):
                return None
            before = base
            fresh = unseen[code]

            def line(frame: FrameType, event: str, _argument: Any) -> Any:
                nonlocal before
                if event == "line":
                    here = base + frame.f_lineno
                    add((before, here))
                    before = here
                    fresh.discard(frame.f_lineno)
                return line

            return line

        sys.settrace(begin)
        try:
            call()
        finally:
            sys.settrace(None)
        return found


def mutated(rng: random.Random, corpus: list[bytes]) -> bytes:
    """One input changed in a few places."""
    data = bytearray(rng.choice(corpus))
    for _ in range(1 << rng.randrange(4)):
        kind = rng.randrange(10)
        at = rng.randrange(len(data) + 1)
        if kind == 0 and data:
            data[at % len(data)] ^= 1 << rng.randrange(8)
        elif kind == 1 and data:
            data[at % len(data)] = rng.randrange(256)
        elif kind == 2:
            data[at:at] = rng.choice(WORDS)
        elif kind == 3:
            word = rng.choice(WORDS)
            data[at : at + len(word)] = word
        elif kind == 4:
            del data[at : at + 1 + rng.randrange(1 << rng.randrange(6))]
        elif kind == 5:
            data[at:at] = rng.randbytes(1 + rng.randrange(1 << rng.randrange(5)))
        elif kind == 6:
            other = rng.choice(corpus)
            begin = rng.randrange(len(other) + 1)
            data[at:] = other[begin:]
        elif kind == 7:
            other = rng.choice(corpus)
            begin = rng.randrange(len(other) + 1)
            data[at:at] = other[begin : begin + rng.randrange(60)]
        elif kind == 8 and data:
            begin = at % len(data)
            data[at:at] = data[begin : begin + 1 + rng.randrange(30)] * rng.choice((1, 1, 3))
        elif kind == 9 and data:
            data[at % len(data)] = (data[at % len(data)] + rng.choice((1, 255))) & 0xFF
    return bytes(data[:LARGEST])


def fault_of(target: Target, data: bytes) -> Exception | None:
    """Return what an input raises."""
    try:
        target(data)
    except Exception as error:
        return error
    return None


def place(error: BaseException) -> tuple[str, str, int]:
    """Return where a fault is: inputs that raise at one place are taken for one fault."""
    trace = error.__traceback__
    where = ("", 0)
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not name.endswith("fuzz/tape.py"):
            where = (name, trace.tb_lineno)
        trace = trace.tb_next
    return type(error).__name__, *where


def shrunk(data: bytes, same: Callable[[bytes], bool], seconds: float = 10.0) -> bytes:
    """Return a part of an input with pieces left out of which the same is true."""
    end = time.monotonic() + seconds
    size = max(1, len(data) // 2)
    while size and time.monotonic() < end:
        at = 0
        smaller = False
        while at < len(data) and time.monotonic() < end:
            without = data[:at] + data[at + size :]
            if same(without):
                data = without
                smaller = True
            else:
                at += size
        if not smaller or size > 1:
            size = size // 2 if size > 1 or smaller else 0
    return data


def kept(name: str) -> list[bytes]:
    """Return a target's corpus."""
    return [path.read_bytes() for path in sorted((CORPUS / name).glob("*.bin"))]


class Search:
    """One run on one target."""

    def __init__(
        self,
        target: Target,
        seeds: Iterable[bytes],
        seed: int,
        packages: tuple[str, ...] = PACKAGES,
    ) -> None:
        """`target`: is given each input; `seeds`: the first inputs; `seed`: of the random numbers;
        `packages`: folders of the code whose lines count."""
        self.target = target
        self.rng = random.Random(seed)
        self.coverage = Coverage(packages)
        self.corpus: list[bytes] = []
        self.new: list[bytes] = []
        self.faults: dict[tuple[str, str, int], tuple[bytes, Exception]] = {}
        self.runs = 0
        self.started = False
        for data in (b"", *seeds):
            self.play(data)
        self.new.clear()
        self.started = True

    def play(self, data: bytes, *, traced: bool = True) -> None:
        """Run one input; keep it if it went where none went before, as far as that was looked
        at."""
        self.runs += 1
        fault: list[Exception] = []

        def call() -> None:
            try:
                self.target(data)
            except Exception as error:
                fault.append(error)

        pairs: set[tuple[int, int]] = set()
        if traced:
            pairs = self.coverage.of(call, full=self.runs % 8 == 0 or not self.started)
        else:
            call()
        if fault:
            where = place(fault[0])
            if where not in self.faults or len(data) < len(self.faults[where][0]):
                self.faults[where] = data, fault[0]
        elif not self.corpus or not pairs <= self.coverage.seen:
            self.coverage.seen |= pairs
            self.corpus.append(data)
            self.new.append(data)

    def run(self, seconds: float) -> None:
        """Mutate until the time is over: for half of it most runs are without tracing, which is ten
        times as fast. Once the corpus goes nearly everywhere, faults are found by what meets what,
        and that takes many runs."""
        begin = time.monotonic()
        while (spent := time.monotonic() - begin) < seconds:
            traced = spent * 4 % seconds < seconds / 2 or self.runs % 16 == 0
            # half of the time one of the latest: what is new is where more is to be found
            pool = self.corpus if self.rng.random() < 0.5 else self.corpus[-20:]
            self.play(mutated(self.rng, pool), traced=traced)

    def minimal(self) -> list[bytes]:
        """Return a part of the corpus that goes where all of it goes, small inputs first."""
        left = set(self.coverage.seen)
        chosen = []
        pairs = {
            data: self.coverage.of(lambda data=data: self.target(data)) for data in set(self.corpus)
        }  # type: ignore[misc]
        while left and pairs:
            best = max(pairs, key=lambda data: len(pairs[data] & left) / (20 + len(data)))
            gain = pairs.pop(best) & left
            if not gain:
                break
            left -= gain
            chosen.append(best)
        return chosen
