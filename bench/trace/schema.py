"""The columns of a trace and which of them each kind of event fills: version 1, documented in
docs/reference/traces.md."""

from __future__ import annotations

import pyarrow as pa

VERSION = 1
"""Rises when a column changes its meaning or goes away; a new column alone does not raise it."""

_WORD = pa.dictionary(pa.int32(), pa.string())

SCHEMA = pa.schema(
    [
        ("scenario", _WORD),
        ("run", _WORD),
        ("host", _WORD),  # whose clock `at` is read from
        ("process", _WORD),  # who wrote the row
        ("kind", _WORD),
        ("at", pa.int64()),  # ns of the host's monotonic clock
        ("publisher", pa.int32()),  # a message is (publisher, sequence), unique within a run
        ("sequence", pa.int64()),
        ("client", _WORD),
        ("broker", _WORD),  # where it happened; of a link: the sender; of a fault: what it hit
        ("peer", _WORD),  # of a link: the receiver
        ("topic", _WORD),  # of a subscription: its filter
        ("qos", pa.int8()),
        ("dup", pa.bool_()),
        ("flow", _WORD),  # traffic class of the message, where a scenario has several
        ("size", pa.int64()),  # bytes: of a payload, a packet, a counter
        ("name", _WORD),  # packet type, role, kind of fault, counter
        ("detail", _WORD),
        ("count", pa.int64()),
        ("control_bytes", pa.int64()),
        ("data_bytes", pa.int64()),
        ("dropped", pa.int64()),
        ("cpu_s", pa.float64()),
        ("rss", pa.int64()),
        ("threads", pa.int32()),
        ("offset_ns", pa.int64()),  # to be added to `at` for ns since the epoch
        ("error_ns", pa.int64()),
        ("late", pa.int64()),  # ns by which `at` is later than was planned
    ]
)

KINDS: dict[str, tuple[str, ...]] = {
    "began": ("offset_ns", "count"),
    "ended": ("count",),
    "clock": ("offset_ns", "error_ns"),
    "subscribed": ("client", "broker", "topic", "qos"),
    "unsubscribed": ("client", "broker", "topic"),
    "published": (
        "publisher",
        "sequence",
        "client",
        "broker",
        "topic",
        "qos",
        "size",
        "flow",
        "late",
    ),
    "accepted": ("publisher", "sequence", "client", "broker"),
    "delivered": ("publisher", "sequence", "client", "broker", "topic", "qos", "size", "dup"),
    "forwarded": ("publisher", "sequence", "broker", "peer", "size"),
    "control": ("broker", "peer", "name", "size"),
    "link": ("broker", "peer", "count", "size", "control_bytes", "data_bytes", "dropped"),
    "counted": ("broker", "name", "count"),
    "role": ("broker", "peer", "name", "detail"),
    "agreed": ("count", "detail"),
    "fault": ("name", "broker", "detail"),
    "resources": ("broker", "name", "cpu_s", "rss", "threads"),
    "note": ("detail",),
}
"""Kind of event -> the columns that it fills beside scenario, run, host, process, kind and at."""

DICTIONARY_COLUMNS = [field.name for field in SCHEMA if pa.types.is_dictionary(field.type)]


_SPREAD = 0x9E37_79B9_7F4A_7C15  # 2**64 over the golden ratio: the most even of all rotations


def sample_offset(publisher: int, every: int) -> int:
    """Return what is added to the sequence numbers of a `publisher` (its number in the run): one
    message in `every` is in the trace, those for which the sum is a multiple of it.

    Without it each publisher's first message would be in it: where publishers send few, that is
    more than one in `every` of the run's."""
    return ((publisher * _SPREAD & (1 << 64) - 1) * every) >> 64


def metadata(
    scenario: str, run: str, host: str, process: str, offset_ns: int
) -> dict[bytes, bytes]:
    """Return what the footer of every file says: the `scenario` and `run` it is of, the `host`
    whose clock it has, the `process` that wrote it, and `offset_ns`, what to add to that clock for
    wall time."""
    words = {
        "mqttree.trace": str(VERSION),
        "mqttree.scenario": scenario,
        "mqttree.run": run,
        "mqttree.host": host,
        "mqttree.process": process,
        "mqttree.offset_ns": str(offset_ns),
    }
    return {key.encode(): value.encode() for key, value in words.items()}
