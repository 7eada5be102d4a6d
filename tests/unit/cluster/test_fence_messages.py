"""What a standby and the broker that it took for dead tell each other, as bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttree.broker.cluster.sessions.fence_messages import UNHEARD, AskFence, Claim, FenceMessage
from mqttree.broker.wire.errors import MalformedPacket

U32, U64 = st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 64) - 1)
IDENTIFIERS = st.lists(st.integers(0, 65535), max_size=3).map(tuple)
CLAIMS = st.lists(st.builds(Claim, st.binary(max_size=40), U64, IDENTIFIERS), max_size=5).map(tuple)


@given(st.builds(FenceMessage, U32, U32, st.booleans(), U64, U64, U32, U32, CLAIMS))
def test_a_fence_is_read_as_it_was_written(fence: FenceMessage) -> None:
    assert FenceMessage.decode(fence.encode()) == fence


@given(U32, U32)
def test_a_question_is_read_as_it_was_written(boot: int, epoch: int) -> None:
    asked = AskFence(boot, epoch, UNHEARD)
    assert AskFence.decode(asked.encode()) == asked


def test_what_is_cut_off_is_malformed() -> None:
    data = FenceMessage(1, 2, True, 3, 4, 1, 0, (Claim(b"client", 7, (8, 9)),)).encode()
    whole = {33, len(data)}
    for size in range(len(data) + 1):
        if size in whole:
            FenceMessage.decode(data[:size])
        else:
            with pytest.raises(MalformedPacket):
                FenceMessage.decode(data[:size])
    for data in (b"", bytes(11), bytes(13)):
        with pytest.raises(MalformedPacket):
            AskFence.decode(data)
