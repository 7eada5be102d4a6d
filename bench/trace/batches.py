"""Rows on their way into a trace: kept as plain integers while events come, made into Arrow columns
a batch at a time."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from mqttree.bench.trace.schema import DICTIONARY_COLUMNS, KINDS, SCHEMA

COMMON = ("scenario", "run", "host", "process", "kind")
_NUMBERS = ("at", "publisher", "sequence", "shape", "late")
WIDTH = len(_NUMBERS)
"""Integers for each event."""


class Batch:
    """Events of one frequent kind. What repeats from event to event (client, topic, size, ...) is
    kept once, as a shape.

    flat: at, publisher, sequence, shape, late of the first event, then those of the second, ...
    """

    __slots__ = ("flat", "kind", "shapes")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.flat: list[int] = []
        self.shapes: dict[tuple[Any, ...], int] = {}

    def add(self, at: int, publisher: int, sequence: int, shape: tuple[Any, ...]) -> int:
        """Append one event at `at` (ns) about the message `sequence` of `publisher`; `shape` has
        the rest of its columns. Returns WIDTH times the number of events that wait."""
        number = self.shapes.get(shape)
        number = self.new(shape) if number is None else number
        self.flat.extend((at, publisher, sequence, number, 0))
        return len(self.flat)

    def new(self, shape: tuple[Any, ...]) -> int:
        """Return the number of a shape that is not known yet."""
        number = self.shapes[shape] = len(self.shapes)
        return number

    def swap(self) -> tuple[list[int], dict[tuple[Any, ...], int]]:
        """Return the waiting events, as they are, and begin with none: to make columns of them
        (`columns`) is another thread's work."""
        waiting = self.flat, self.shapes
        self.flat, self.shapes = [], {}
        return waiting


def columns(kind: str, flat: list[int], shapes: dict[tuple[Any, ...], int]) -> dict[str, pa.Array]:
    """Return the columns of the events of one `kind`, as `Batch.swap` gave them: `flat` has the
    numbers, `shapes` the rest."""
    numbers = array("q", flat)
    which = _integers(numbers[3::WIDTH])
    found = {"at": _integers(numbers[0::WIDTH])}
    if "publisher" in KINDS[kind]:
        found["publisher"] = _integers(numbers[1::WIDTH]).cast(pa.int32())
        found["sequence"] = _integers(numbers[2::WIDTH])
    if "late" in KINDS[kind]:
        found["late"] = _integers(numbers[4::WIDTH])
    names = [name for name in KINDS[kind] if name not in _NUMBERS]
    for name, values in zip(names, zip(*shapes, strict=True), strict=True):
        found[name] = column(name, values, which)
    return found


def _integers(values: array[int]) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


def column(name: str, values: Sequence[Any], which: pa.Array | None = None) -> pa.Array:
    """Return the column `name` of the schema's type. `which` has for each row the index of its
    value in `values` (None: all in turn)."""
    if name not in DICTIONARY_COLUMNS:
        found = pa.array(values, SCHEMA.field(name).type)
        return found if which is None else found.take(which)
    words: dict[str, int] = {}
    indices = pa.array(
        [None if word is None else words.setdefault(word, len(words)) for word in values],
        pa.int32(),
    )
    return pa.DictionaryArray.from_arrays(
        indices if which is None else indices.take(which), pa.array(list(words), pa.string())
    )


def rows(kind: str, events: Sequence[dict[str, Any]]) -> dict[str, pa.Array]:
    """Return the columns of events of a rare kind."""
    return {
        name: column(name, [event.get(name) for event in events]) for name in ("at", *KINDS[kind])
    }


def complete(columns: dict[str, pa.Array], constants: Sequence[str]) -> pa.RecordBatch:
    """Return a batch with all columns of the schema; constants: the values of COMMON."""
    count = len(columns["at"])
    zeros = pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(bytes(4 * count))])
    found = columns | {
        name: pa.DictionaryArray.from_arrays(zeros, pa.array([word], pa.string()))
        for name, word in zip(COMMON, constants, strict=True)
    }
    arrays = [
        found[field.name] if field.name in found else pa.nulls(count, field.type)
        for field in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
