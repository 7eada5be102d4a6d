"""Limits of what serves sockets and files."""

from __future__ import annotations

from mqttree.broker.persistence.limits import PersistenceLimits


class IoLimits(PersistenceLimits, kw_only=True):
    """What listeners, the admin port and files keep to."""

    max_parked: int = 4096
    """connections of one listener that wait for a place; more are closed. Each costs a socket and
    nothing else."""

    passwords_known: int = 10_000
    """user names and passwords (as a keyed digest) that were right lately, so that thousands of
    clients that come back at once need not wait for argon2; then they are forgotten."""

    proxy_timeout_s: float = 5.0
    """s; from accept to the end of the PROXY header, which balancers send at once. Later: closed
    [proxy_garbage]."""

    admin_connections: int = 64
    """connections of the admin port; one more ends the oldest of the host that has most of them, an
    idle one first."""

    admin_header_timeout_s: float = 5.0
    """s; from the first byte of a request to the admin port to its end; slower: 408."""

    admin_idle_timeout_s: float = 60.0
    """s; between two requests of a connection of the admin port; a scraper comes back within a
    minute."""

    clock_interval_s: float = 60.0
    """s; after which the node is given the time of day again, as clocks are set, and drift from the
    monotonic one; and what this machine has available."""

    journal_damaged: int = 4
    """damaged files of the journal that are put aside; each may be as large as all that is kept,
    and a bad disk damages many."""

    journal_flush_s: float = 1.0
    """s between two times that what was written is put on the disk, by a broker that does not wait
    for the disk before it acknowledges."""

    journal_at_once_bytes: int = 256 * 1024
    """bytes of a frame that the event loop writes itself, without `sync`; larger ones, and all
    while data are put on the disk, are handed to a thread."""

    journal_slow_write_s: float = 0.002
    journal_slow_write_pauses: float = 50.0
    """s; a write by the event loop that took longer says that the disk is busy: the thread writes
    all frames for so many times as long. The loop waits for a busy disk for 2 % of its time at
    most."""

    dial_timeout_s: float = 3.0
    """s; for a link's TCP connection to stand."""
