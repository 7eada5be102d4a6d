"""What survives a restart of the broker: sessions, retained messages, and messages that other
brokers may lack (docs/decisions/0021, 0031).

What it may know: the cluster and all below it. Nothing below knows it: sessions tell a recorder
(`core.delivery_queue.SessionRecorder`), everything else a `Journal` (`core.ports`), and the cluster
has the log tail by a port. It opens no file: it asks for that by effects (`AppendFrame`,
`BeginSegment`, `DiscardSegments`, `Tail...`), and `io.journal_writer` and `io.tail_writer` carry
them out, each in a thread; small frames are written by the event loop, with `async`.

Words. A change is a *record*; all records of one turn of the event loop are a *frame*, which counts
whole or not at all; the number of a frame is its *LSN*; a file of frames is a *segment*. A frame is
*durable* when the driver says so: the kernel has it (`async`) or the disk has it (`sync`). The
*output gate* holds back what a connection is sent until the frame that it depends on is durable.

The order of one turn.

1. Packets are handled: sessions and the cluster record what they change (`record`). If a client is
   sent the effect of a change, its connection's output is held back from then on (`require`).
2. `Output.flush` hands each outbox to its connection, or to `gate_output` if that has a gate.
3. `Journal.seal` records what changes often and counts once (retained topics, which messages of
   other brokers have been here), and makes all records one frame: LSN + 1, `AppendFrame`. A turn
   in which receivers have acknowledged and nothing else has no frame: these records wait for the
   next one, `journal_linger_s` at most.
4. The thread writes all frames that have come while it wrote: groups commit by themselves. With
   `async` and a disk that is not busy the event loop writes the frame itself, and takes step 3
   ahead of step 2 (`Output.end_frame`): then nothing is held back.
5. `Node.answer` tells `written` that the LSN is durable: the output that was held back for it goes
   out, in its order.

The states of the journal (`journal_states` has the table, a test goes through all pairs).

    NEW              nothing has been asked for
    WRITING          frames are written
    SNAPSHOT         the same; the whole state is recorded again, a step at a time, in a new segment
    SNAPSHOT_ENDING  all of it is recorded; when that is durable, older segments are deleted
    FAILED           frames are dropped; each second a new segment is tried
    REBUILDING       a new segment has begun, and the whole state is recorded in it
    REBUILD_ENDING   all of it is recorded; when that is durable, nothing is missing any more

When the disk is full, or a write fails: FAILED. With `async` one error line says that changes from
now on do not survive the broker, acknowledgements go out, and no client waits. With `sync` nothing
is acknowledged that cannot be written; clients that need no disk are served, links do not wait.
`/readyz` is 503 and `mqttree_journal_ok` 0. A failed fsync is never tried again on the same file:
what it lost is recorded again, as all that was dropped is, in a segment that recovery ignores
unless its snapshot is complete. When that is durable, a line says so, and the output that was held
back goes out. A disk that only lags has its publishers held from 64 MiB on; four times that counts
as a failure.

Where to look: what is recorded, `journal`, `durable_sessions`, `session_recorder`,
`entries`, `shared_records`; what becomes of it, `write_ahead_log`, `journal_states`,
`output_gate`, `snapshot`; how it looks as bytes, `frames`, `will_record`, and `records` of
`cluster.sessions`; what it adds up to, `image` there; how a broker that starts gets that,
`recovery`; messages for members that are away, `absent_members`, `log_tail`, `tail_segment`.

A standby (docs/decisions/0062): `stream` sends the frames to a neighbour, which `standby_choice`
chooses; its states are in `stream_states`. `images` are what this broker has of others, each a
`standby_image`. `succession` gives the sessions in them away when their broker has died
(docs/decisions/0063), `adoption` makes those its own that no client has come for, and
`orphaned_wills` publishes their wills. `fences` tells that broker what was given away, if it only
hung, and `fencing` is what it does then.
"""
