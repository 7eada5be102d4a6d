"""Limits of the journal."""

from __future__ import annotations

from mqttree.broker.cluster.limits import ClusterLimits


class PersistenceLimits(ClusterLimits, kw_only=True):
    """What a broker keeps to in its journal."""

    journal_frame_bytes: int = 1024 * 1024 * 1024
    """bytes of a frame of the journal; more is split [journal_frames_split]. With one record more
    (a packet has 256 MiB) it can be read."""

    journal_linger_s: float = 0.01
    """s; PUBACK and PUBCOMP of receivers, which nothing waits for, are written with the next frame,
    so much later at the latest. If the broker is killed before, it repeats these messages as if the
    acknowledgements had not come."""

    journal_smallest: int = 32 * 1024 * 1024
    """bytes that a journal has before a snapshot shortens it: a smaller one is read in a moment."""

    snapshot_step_bytes: int = 128 * 1024
    snapshot_step_items: int = 400
    """bytes and items of one step of a snapshot, about a ms of work. A session is never cut, but
    its messages are recorded before it."""

    snapshot_ahead: int = 8 * 1024 * 1024
    """bytes on their way to the disk with which a snapshot waits; so publishers are held earlier
    while there is one."""

    # -------------------------------- the stream to the standby, and images of others

    stream_hold_bytes: int = 8 * 1024 * 1024
    """bytes that the standby has not acknowledged; beyond it publishers are not read until it has
    half of them."""

    stream_drop_bytes: int = 64 * 1024 * 1024
    """bytes that a standby has not acknowledged beyond which another one is looked for."""

    stream_smallest: int = 8 * 1024 * 1024
    """bytes that a stream has before it begins again: until then the image keeps messages that are
    not needed any more."""

    images_bytes: int = 1024 * 1024 * 1024
    """bytes of the frames of all images here, if there is no `memory_limit`; else they have a
    quarter of it. The largest is dropped first [images_dropped]."""

    adoption_s: float = 2.0
    """s after a promotion until the sessions of the image are adopted: their broker may be started
    again by then, and most clients have connected elsewhere."""
