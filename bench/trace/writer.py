"""What a process saw, into Parquet files: events go to a thread in batches, files appear, by
renaming, when complete."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from mqttree.bench.checked import NAME
from mqttree.bench.trace.batches import WIDTH, Batch, columns, complete, rows
from mqttree.bench.trace.schema import DICTIONARY_COLUMNS, SCHEMA, VERSION, metadata

BATCH = 4096
"""Events of one kind that are handed to the encoding thread, and made into columns by it, at a
time: it holds the interpreter for parts of a millisecond. What should be disturbed less than
sys.getswitchinterval() says shortens that."""
ROW_GROUP = 65_536
"""Rows that are encoded at a time. A row group has one kind of event, so that readers skip what
they do not want."""
FILE_ROWS = 4_000_000
"""Rows after which a new file is begun, whatever the time."""
QUEUE = 64
"""Batches that may wait for the encoding thread; after that the writing process waits, and says so
in a note."""

Handed = (
    tuple[str, str, list[int], dict[tuple[Any, ...], int]]
    | tuple[str, str, list[dict[str, Any]]]
    | bool
)
"""What goes to the thread: kind, host and events of a batch; kind, host and rows; True: complete
the file, False: and end."""

_UNCLEAR = -1


class TraceError(Exception):
    """A trace cannot be written: no space, no right."""


class Writer:
    """The trace of one process, used by one thread. Every `at` is in ns of time.monotonic_ns().

    directory: the run's folder of traces.
    host: names the clock, so everything on one machine has the same.
    batch: events of a kind to a batch.
    rotate_s: a file is completed after this time; what is younger dies with a process that is
        killed.

    Raises ValueError for names that cannot stand in a path, TraceError from any method when the
    disk does not take it.
    """

    def __init__(
        self,
        directory: Path,
        *,
        run: str,
        scenario: str,
        process: str,
        host: str = "local",
        batch: int = BATCH,
        rotate_s: float = 5.0,
    ) -> None:
        """`directory`, `host`, `batch` and `rotate_s` are explained above; `run`, `scenario` and
        `process` are names in the files' paths. Raises ValueError for one that cannot be part of a
        path."""
        for word in (run, scenario, process):
            if not NAME.fullmatch(word):
                raise ValueError(
                    f"a trace cannot be named {word!r}: letters, digits and . , + - _ only"
                )
        self._constants = (scenario, run, host, process)
        self._names = iter_names(directory / f"scenario={scenario}" / f"run={run}", process)
        self._published, self._accepted, self._delivered, self._forwarded, self._control = (
            self._batches
        ) = [Batch(kind) for kind in ("published", "accepted", "delivered", "forwarded", "control")]
        self._full = WIDTH * batch
        self._rare: dict[str, list[dict[str, Any]]] = {}
        self._last = 0
        self._rotate_ns = int(rotate_s * 1e9)
        now = time.monotonic_ns()
        self._due = now + self._rotate_ns
        offset = time.time_ns() - time.monotonic_ns()
        self._metadata = metadata(scenario, run, host, process, offset)
        self._queue: queue.Queue[Handed] = queue.Queue(QUEUE)
        self._failure: Exception | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self.rows = 0
        self.held_ns = 0
        """How long this process had to wait for its encoding thread."""
        self._event("began", now, offset_ns=offset, count=VERSION)

    # Frequent kinds; the first three spell out Batch.add, which saves a tenth of an event's cost

    def published(
        self,
        at: int,
        publisher: int,
        sequence: int,
        client: str,
        broker: str,
        topic: str,
        qos: int,
        size: int,
        flow: str = "",
        late: int = 0,
    ) -> None:
        """Note that `client` publishes the message `sequence` of `publisher` to its `broker`, on
        `topic` at `qos`, with `size` bytes of payload, as part of `flow`. `at` is when it was
        handed to the socket, `late` ns after it was due (0 where nothing was planned)."""
        batch, shape = self._published, (client, broker, topic, qos, size, flow)
        number = batch.shapes.get(shape)
        if number is None:
            number = batch.new(shape)
        flat = batch.flat
        flat.extend((at, publisher, sequence, number, late))
        if len(flat) >= self._full:
            self._flush(batch)

    def accepted(self, at: int, publisher: int, sequence: int, client: str, broker: str) -> None:
        """Note that at `at` the `broker` of `client` acknowledged (PUBACK, PUBCOMP) the message
        `sequence` of `publisher`."""
        batch, shape = self._accepted, (client, broker)
        number = batch.shapes.get(shape)
        if number is None:
            number = batch.new(shape)
        flat = batch.flat
        flat.extend((at, publisher, sequence, number, 0))
        if len(flat) >= self._full:
            self._flush(batch)

    def delivered(
        self,
        at: int,
        publisher: int,
        sequence: int,
        client: str,
        broker: str,
        topic: str,
        qos: int,
        size: int,
        dup: bool = False,
    ) -> None:
        """Note that at `at` the `client` got from its `broker` the message `sequence` of
        `publisher`, on `topic` at `qos`, with `size` bytes of payload, and whether it was marked
        `dup`. To be called in the order of arrival, which the times then tell, too."""
        if at <= self._last:
            at = self._last + 1
        self._last = at
        batch, shape = self._delivered, (client, broker, topic, qos, size, dup)
        number = batch.shapes.get(shape)
        if number is None:
            number = batch.new(shape)
        flat = batch.flat
        flat.extend((at, publisher, sequence, number, 0))
        if len(flat) >= self._full:
            self._flush(batch)

    def forwarded(
        self, at: int, publisher: int, sequence: int, source: str, target: str, size: int
    ) -> None:
        """Note that at `at` the message `sequence` of `publisher` (-1 where they cannot be read)
        passed from the broker `source` to `target`, in a packet of `size` bytes."""
        if self._forwarded.add(at, publisher, sequence, (source, target, size)) >= self._full:
            self._flush(self._forwarded)

    def control(self, at: int, source: str, target: str, kind: str, size: int) -> None:
        """Note that at `at` a packet that is no PUBLISH passed from the broker `source` to
        `target`: its `kind` by name, its `size` in bytes."""
        if self._control.add(at, _UNCLEAR, _UNCLEAR, (source, target, kind, size)) >= self._full:
            self._flush(self._control)

    # Rare kinds

    def clock(self, at: int, host: str, offset_ns: int, error_ns: int) -> None:
        """Note at `at` that `offset_ns` has to be added to the times of `host` for the common time,
        give or take `error_ns` (see mqttree.bench.trace.clock)."""
        self._event("clock", at, host=host, offset_ns=offset_ns, error_ns=error_ns)

    def subscribed(self, at: int, client: str, broker: str, filter: str, qos: int) -> None:
        """Note that at `at` the `broker` granted `client` the `filter`, as the client sent it, at
        `qos` (SUBACK)."""
        self._event("subscribed", at, client=client, broker=broker, topic=filter, qos=qos)

    def unsubscribed(self, at: int, client: str, broker: str, filter: str) -> None:
        """Note that what is published from `at` on need not come any more to `client`, which had
        subscribed to `filter` at `broker`."""
        self._event("unsubscribed", at, client=client, broker=broker, topic=filter)

    def link(
        self,
        at: int,
        source: str,
        target: str,
        packets: int,
        bytes: int,
        control_bytes: int,
        data_bytes: int,
        dropped: int,
    ) -> None:
        """Note how one direction of a link, from the broker `source` to `target`, stands at `at`,
        counted from the start: `packets` and `bytes`, of these `control_bytes` and `data_bytes`
        (PUBLISH is data), and packets `dropped`."""
        self._event(
            "link",
            at,
            broker=source,
            peer=target,
            count=packets,
            size=bytes,
            control_bytes=control_bytes,
            data_bytes=data_bytes,
            dropped=dropped,
        )

    def counted(self, at: int, broker: str, name: str, value: int) -> None:
        """Note that at `at` the counter `name` of `broker` had this `value`."""
        self._event("counted", at, broker=broker, name=name, count=value)

    def role(self, at: int, broker: str, peer: str, role: str, root: str) -> None:
        """Note that at `at` the link from `broker` to `peer` got a new `role`, with this `root`.
        `peer` "" and a role "state:..." tell a new state of the broker itself."""
        self._event("role", at, broker=broker, peer=peer, name=role, detail=root)

    def agreed(self, at: int, brokers: int, root: str) -> None:
        """Note that from `at` on all living `brokers` (their number) agree on a tree with this
        `root`, which they did not before."""
        self._event("agreed", at, count=brokers, detail=root)

    def fault(self, at: int, kind: str, target: str, detail: str = "") -> None:
        """Note at `at` a fault of this `kind` at `target`, or what undoes one, with `detail` for
        people; docs/reference/traces.md has the kinds."""
        self._event("fault", at, name=kind, broker=target, detail=detail)

    def resources(
        self, at: int, process: str, role: str, cpu_s: float, rss: int, threads: int = 0
    ) -> None:
        """Note what `process` has used until `at`: its `role` (broker, generator, network, ...),
        `cpu_s` seconds of CPU, `rss` bytes of resident memory, and its `threads`."""
        self._event(
            "resources", at, broker=process, name=role, cpu_s=cpu_s, rss=rss, threads=threads
        )

    def note(self, at: int, text: str) -> None:
        """Note anything odd, for people."""
        self._event("note", at, detail=text)

    # Files

    def tick(self) -> None:
        """Complete a file if it is time to; to be called now and then."""
        if time.monotonic_ns() >= self._due:
            self.rotate()

    def rotate(self) -> None:
        """Complete the file: what was noted until now is safe, and visible to readers."""
        self._flush_all()
        self._put(True)
        self._due = time.monotonic_ns() + self._rotate_ns

    def close(self) -> None:
        """Complete the last file and say that this was all."""
        if self._closed:
            return
        self._closed = True
        now = time.monotonic_ns()
        if self.held_ns > 1_000_000:
            self.note(now, f"the trace's writer held its process for {self.held_ns / 1e6:.0f} ms")
        count = (
            self.rows
            + sum(len(batch.flat) // WIDTH for batch in self._batches)
            + sum(map(len, self._rare.values()))
            + 1
        )
        self._event("ended", now, count=count)
        self._flush_all()
        self._put(False)
        assert self._thread is not None
        self._thread.join()
        self._check()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _event(self, kind: str, at: int, host: str | None = None, **values: Any) -> None:
        name = kind if host is None else f"{kind} {host}"
        waiting = self._rare.setdefault(name, [])
        waiting.append({"at": at, **values})
        if len(waiting) >= self._full // WIDTH:
            self._flush_rare(name)

    def _flush(self, batch: Batch) -> None:
        flat, shapes = batch.swap()
        self.rows += len(flat) // WIDTH
        self._put((batch.kind, "", flat, shapes))

    def _flush_rare(self, name: str) -> None:
        kind, _, host = name.partition(" ")
        events = self._rare.pop(name)
        self.rows += len(events)
        self._put((kind, host, events))

    def _flush_all(self) -> None:
        for batch in self._batches:
            if batch.flat:
                self._flush(batch)
        for name in list(self._rare):
            self._flush_rare(name)

    def _put(self, item: Handed) -> None:
        self._check()
        if self._thread is None:
            self._thread = threading.Thread(target=self._encode, name="trace", daemon=True)
            self._thread.start()
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            began = time.monotonic_ns()
            self._queue.put(item)
            self.held_ns += time.monotonic_ns() - began

    def _check(self) -> None:
        if self._failure is not None:
            raise TraceError(f"the trace cannot be written: {self._failure}") from self._failure

    def _encode(self) -> None:
        """Write what comes, in the thread; after a failure, take it and throw it away."""
        file = File(self._names, self._metadata)
        while True:
            item = self._queue.get()
            try:
                if isinstance(item, bool):
                    file.complete()
                elif self._failure is None:
                    file.write(item[0], self._batch(*item))
            except (OSError, pa.ArrowException) as error:
                self._failure = error
            if item is False:
                return

    def _batch(
        self,
        kind: str,
        host: str,
        events: list[Any],
        shapes: dict[tuple[Any, ...], int] | None = None,
    ) -> pa.RecordBatch:
        """Make columns of what was handed over, in the thread."""
        found = rows(kind, events) if shapes is None else columns(kind, events, shapes)
        scenario, run, own, process = self._constants
        return complete(found, (scenario, run, host or own, process, kind))


def iter_names(folder: Path, process: str) -> Callable[[], Path]:
    """Return what makes the paths of a process's files, one after the other; never one that is
    there."""
    number = -1

    def following() -> Path:
        nonlocal number
        number += 1
        while (path := folder / f"{process}-{number:05d}.parquet").exists():
            number += 1
        return path

    return following


class File:
    """The file that is being written, as .NAME.part, which readers do not take for a trace."""

    def __init__(self, names: Callable[[], Path], about: dict[bytes, bytes]) -> None:
        self._names, self._schema = names, SCHEMA.with_metadata(about)
        self._waiting: dict[str, list[pa.RecordBatch]] = {}
        self._writer: pq.ParquetWriter | None = None
        self._path = self._part = Path()
        self._rows = 0

    def write(self, kind: str, batch: pa.RecordBatch) -> None:
        """Take a batch; write a row group when its kind has enough of them."""
        if self._writer is None:
            self._open()
        waiting = self._waiting.setdefault(kind, [])
        waiting.append(batch)
        if sum(each.num_rows for each in waiting) >= ROW_GROUP:
            self._group(kind)
        if self._rows >= FILE_ROWS:
            self.complete()

    def complete(self) -> None:
        """Write the waiting events and let the file appear under its name."""
        if self._writer is None:
            return
        for kind in list(self._waiting):
            self._group(kind)
        self._writer.close()
        self._writer = None
        os.replace(self._part, self._path)

    def _open(self) -> None:
        self._path = self._names()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._part = self._path.with_name(f".{self._path.name}.part")
        self._rows = 0
        self._writer = pq.ParquetWriter(
            self._part,
            self._schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=DICTIONARY_COLUMNS,
            column_encoding={"at": "DELTA_BINARY_PACKED", "sequence": "DELTA_BINARY_PACKED"},
            write_statistics=["kind", "at"],
        )

    def _group(self, kind: str) -> None:
        table = pa.Table.from_batches(self._waiting.pop(kind)).unify_dictionaries()
        self._rows += table.num_rows
        assert self._writer is not None
        self._writer.write_table(
            table.replace_schema_metadata(self._schema.metadata), row_group_size=ROW_GROUP
        )
