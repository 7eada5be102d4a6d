"""The states of the journal, and what each input does in them: one table. Pure.

NEW -STARTED-> WRITING -SNAPSHOT_DUE-> SNAPSHOT -ALL_RECORDED-> SNAPSHOT_ENDING
    -END_DURABLE-> WRITING
WRITING, SNAPSHOT, SNAPSHOT_ENDING -WRITE_FAILED-> FAILED
FAILED -REPLACED-> REBUILDING -ALL_RECORDED-> REBUILD_ENDING -END_DURABLE-> WRITING
REBUILDING, REBUILD_ENDING -WRITE_FAILED-> FAILED
"""

from __future__ import annotations

from mqttree.broker.base.state_table import Table, TableEnum, look_up


class State(TableEnum):
    """What the journal does with the records that it gets."""

    NEW = "new"
    """Nothing has been asked for: the records of an earlier incarnation are not read yet."""
    WRITING = "writing"
    """Records are written."""
    SNAPSHOT = "snapshot"
    """The same; between them the whole state is recorded, a step at a time."""
    SNAPSHOT_ENDING = "snapshot ending"
    """All of the snapshot is recorded, and its end is not durable yet."""
    FAILED = "failed"
    """The disk is full or fails: records are dropped, a new segment is tried every second."""
    REBUILDING = "rebuilding"
    """A new segment has begun after a failure; the whole state is recorded in it, as what was
    dropped is in no segment. Nothing counts as durable in `sync` mode until all of that does."""
    REBUILD_ENDING = "rebuild ending"
    """All of that is recorded, and its end is not durable yet."""


class Input(TableEnum):
    """What happens to the journal."""

    STARTED = "started"
    """What earlier segments say has been restored, and the first segment is asked for."""
    STARTED_WITH_MANY = "started with many segments"
    """The same; there are so many earlier segments that one snapshot must replace them."""
    SNAPSHOT_DUE = "snapshot due"
    """The journal is large enough for a snapshot."""
    ALL_RECORDED = "all recorded"
    """The last step of the snapshot is recorded."""
    END_DURABLE = "end durable"
    """The frame with the end of the snapshot is durable."""
    SEGMENT_BEGUN = "segment begun"
    """The driver has begun the segment that was asked for."""
    SEGMENT_REFUSED = "segment refused"
    """The driver could not begin it, and goes on in the one before."""
    REPLACED = "replaced"
    """The driver has begun the segment that was asked for after a failure."""
    WRITE_FAILED = "write failed"
    """Frames cannot be written, or there is no segment to write to."""
    RETRY_DUE = "retry due"
    """A second has passed since a failure."""


class Action(TableEnum):
    """What the journal does when an input has brought it to the next state."""

    NOTHING = "nothing"
    BEGIN_SNAPSHOT = "begin a snapshot in the segment that is being begun"
    BEGIN_SEGMENT = "ask for a segment, and begin a snapshot in it"
    END_SNAPSHOT = "record the end of the snapshot"
    DROP_OLDER = "have the segments before the snapshot deleted"
    PUT_OFF = "give the snapshot up until the journal has grown"
    FAIL = "say that records are dropped, and let go what no longer waits"
    FAIL_AGAIN = "have the segment deleted that is not whole, and fail"
    RETRY_LATER = "try a new segment in a second"
    REBUILD = "say that records are written again, and begin a snapshot in the new segment"
    REPLACE = "ask for a segment that replaces all before it"
    RECOVER = "say that all is durable again, and have the older segments deleted"


_RUNNING = (State.WRITING, State.SNAPSHOT, State.SNAPSHOT_ENDING)
_REBUILDING = (State.REBUILDING, State.REBUILD_ENDING)

HEALTHY = frozenset((State.NEW, *_RUNNING))
"""What is recorded is written, and nothing is missing before it."""

TRANSITIONS: Table[State, Input, Action] = {
    (State.NEW, Input.STARTED): (Action.NOTHING, State.WRITING),
    (State.NEW, Input.STARTED_WITH_MANY): (Action.BEGIN_SNAPSHOT, State.SNAPSHOT),
    (State.WRITING, Input.SNAPSHOT_DUE): (Action.BEGIN_SEGMENT, State.SNAPSHOT),
    (State.SNAPSHOT, Input.ALL_RECORDED): (Action.END_SNAPSHOT, State.SNAPSHOT_ENDING),
    (State.SNAPSHOT_ENDING, Input.END_DURABLE): (Action.DROP_OLDER, State.WRITING),
    (State.FAILED, Input.REPLACED): (Action.REBUILD, State.REBUILDING),
    (State.REBUILDING, Input.ALL_RECORDED): (Action.END_SNAPSHOT, State.REBUILD_ENDING),
    (State.REBUILD_ENDING, Input.END_DURABLE): (Action.RECOVER, State.WRITING),
    # A failure.
    **{(state, Input.WRITE_FAILED): (Action.FAIL, State.FAILED) for state in _RUNNING},
    **{(state, Input.WRITE_FAILED): (Action.FAIL_AGAIN, State.FAILED) for state in _REBUILDING},
    (State.FAILED, Input.WRITE_FAILED): (Action.RETRY_LATER, State.FAILED),
    (State.FAILED, Input.RETRY_DUE): (Action.REPLACE, State.FAILED),
    # A timer of an earlier failure that is over.
    **{(state, Input.RETRY_DUE): (Action.NOTHING, state) for state in (*_RUNNING, *_REBUILDING)},
    # The driver's answers to a segment that was asked for. A snapshot may have ended before.
    **{(state, Input.SEGMENT_BEGUN): (Action.NOTHING, state) for state in _RUNNING},
    **{(state, Input.SEGMENT_REFUSED): (Action.PUT_OFF, State.WRITING) for state in _RUNNING},
    # It was asked for before the failure, and does not make up for what was dropped.
    (State.FAILED, Input.SEGMENT_BEGUN): (Action.NOTHING, State.FAILED),
    (State.FAILED, Input.SEGMENT_REFUSED): (Action.RETRY_LATER, State.FAILED),
}
"""(state, input) -> (action, next state). A pair that is not here cannot come."""


def transition(state: State, given: Input) -> tuple[Action, State]:
    """Return what to do, and the next state. Raises ImpossibleInputError."""
    return look_up(TRANSITIONS, state, given, "the journal")
