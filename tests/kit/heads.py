"""Sessions as other brokers send them (`session_head`), made and read at once."""

from __future__ import annotations

from mqttree.broker.cluster.sessions.image import Image
from mqttree.broker.cluster.sessions.recorded_messages import RecordedMessages
from mqttree.broker.cluster.sessions.session_head import decoding, encoding
from mqttree.broker.cluster.sessions.session_state import SessionState
from mqttree.broker.limits import Limits
from mqttree.broker.wire.steps import finish


def encode_head(state: SessionState, now: float) -> bytes:
    """Return the head of a session at `now` (s)."""
    everything = len(state.subscriptions) + len(state.items) + 1
    return finish(encoding(state, state.subscriptions, now, everything))


def decode_head(data: bytes, now: float) -> SessionState:
    """Return the session in a head that comes at `now` (s). Raises WireError."""
    return finish(decoding(data, now, Limits()))


def recorded_messages(image: Image, now: float, wall: int) -> RecordedMessages:
    """Return the messages of an image at `now` (s), the time of day `wall` (ms)."""
    messages = RecordedMessages(image, now, wall)
    finish(messages.reading())
    return messages
