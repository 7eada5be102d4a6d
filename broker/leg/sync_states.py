"""The states of a sync session, in which a leg reads what its foreign broker has retained. Pure.

IDLE -WANTED-> DIALLING -DIALLED-> CONNECTING -ACCEPTED-> READY <-ASKED / ANSWERED-> ASKING
  ^                                                                                    |
  +------------------- LOST or ENDED, at any of these ---------------------------------+
"""

from __future__ import annotations

from typing import Final

from mqttree.broker.base.state_table import Table, TableEnum, look_up


class SyncState(TableEnum):
    """How far a sync session is."""

    IDLE = "idle"
    """There is none."""
    DIALLING = "dialling"
    """The driver opens a connection."""
    CONNECTING = "connecting"
    """The foreign broker has its CONNECT."""
    READY = "ready"
    """It has no question."""
    ASKING = "asking"
    """Its SUBSCRIBE is not answered, or what is retained still comes."""


class SyncInput(TableEnum):
    """What happens to a sync session."""

    WANTED = "wanted"
    """A merge begins."""
    DIALLED = "dialled"
    """The connection stands."""
    ACCEPTED = "accepted"
    """CONNACK, without a failure."""
    ASKED = "asked"
    """The merge asks what is retained for some filters."""
    ANSWERED = "answered"
    """SUBACK and PINGRESP have come, and nothing that is retained for a while."""
    LOST = "lost"
    """The dial failed, or the foreign broker refused, closed, or was silent for too long."""
    ENDED = "ended"
    """The merge is over, or the leg is down."""


class SyncAction(TableEnum):
    """What a sync session does when an input has brought it to the next state."""

    NOTHING = "nothing"
    DIAL = "have the driver open a connection"
    GREET = "send CONNECT"
    ASK = "send SUBSCRIBE and PINGREQ"
    GIVE_UP = "close the connection, as it failed"
    HANG_UP = "say goodbye, and close the connection"


_ALIVE: Final = (SyncState.DIALLING, SyncState.CONNECTING, SyncState.READY, SyncState.ASKING)

SYNC_TRANSITIONS: Final[Table[SyncState, SyncInput, SyncAction]] = {
    (SyncState.IDLE, SyncInput.WANTED): (SyncAction.DIAL, SyncState.DIALLING),
    (SyncState.DIALLING, SyncInput.DIALLED): (SyncAction.GREET, SyncState.CONNECTING),
    (SyncState.CONNECTING, SyncInput.ACCEPTED): (SyncAction.NOTHING, SyncState.READY),
    (SyncState.READY, SyncInput.ASKED): (SyncAction.ASK, SyncState.ASKING),
    (SyncState.ASKING, SyncInput.ANSWERED): (SyncAction.NOTHING, SyncState.READY),
    **{(state, SyncInput.LOST): (SyncAction.GIVE_UP, SyncState.IDLE) for state in _ALIVE},
    **{(state, SyncInput.ENDED): (SyncAction.HANG_UP, SyncState.IDLE) for state in _ALIVE},
    (SyncState.IDLE, SyncInput.LOST): (SyncAction.NOTHING, SyncState.IDLE),
    (SyncState.IDLE, SyncInput.ENDED): (SyncAction.NOTHING, SyncState.IDLE),
    # The dial was under way when it ended.
    (SyncState.IDLE, SyncInput.DIALLED): (SyncAction.HANG_UP, SyncState.IDLE),
}
"""(state, input) -> (action, next state). A pair that is not here cannot come."""


def sync_transition(state: SyncState, given: SyncInput) -> tuple[SyncAction, SyncState]:
    """Return what to do, and the next state. Raises ImpossibleInputError."""
    return look_up(SYNC_TRANSITIONS, state, given, "a sync session")
