"""A session in parts: nothing is taken twice or out of order, and a slow link is not filled with
what is on its way already."""

from __future__ import annotations

import random

import pytest

from mqttree.broker.cluster.sessions.session_parts import (
    MAX_MOVED_BYTES,
    PART_SIZE,
    RESEND_PAUSE,
    WHERE,
    WINDOW,
    Added,
    Sending,
    SessionParts,
    split,
)
from mqttree.broker.wire.errors import MalformedPacket


def test_put_together_whatever_is_lost_or_repeated() -> None:
    rng = random.Random(1)
    data = rng.randbytes(int(3.5 * WINDOW * PART_SIZE))
    sending, parts = Sending(), SessionParts()
    now, added = 0.0, Added.MORE
    for _ in range(1000):
        now += rng.choice((0.1, RESEND_PAUSE))
        for part in list(split(data, 7, parts.position, sending.due(parts.position, now))):
            if rng.random() < 0.8:
                added = parts.add(part)
            if added is not Added.WHOLE and rng.random() < 0.2:
                parts.add(part)
            if added is Added.WHOLE:
                assert parts.take() == data
                assert parts.position == 0
                return
    raise AssertionError("it never comes to an end")


def test_another_export_begins_again() -> None:
    parts = SessionParts()
    assert parts.add(next(split(bytes(100_000), 1, 0, 1))) is Added.MORE
    assert parts.add(next(split(bytes(90_000), 2, 0, 1))) is Added.MORE
    assert parts.position == PART_SIZE


def test_more_is_asked_for_at_the_end_of_a_window() -> None:
    parts = SessionParts()
    added = [parts.add(part) for part in split(bytes((WINDOW + 1) * PART_SIZE), 1, 0, WINDOW + 1)]
    assert added == [Added.MORE] * (WINDOW - 1) + [Added.WINDOW_ENDS, Added.WHOLE]


@pytest.mark.parametrize(
    "part", [b"", bytes(WHERE.size - 1), WHERE.pack(1, MAX_MOVED_BYTES + 1, 0)]
)
def test_bad_parts(part: bytes) -> None:
    with pytest.raises(MalformedPacket):
        SessionParts().add(part)


def test_parts_queued_on_a_slow_link_are_not_sent_again_every_second() -> None:
    """Nothing comes for a minute, and it is asked for four times a second: some parts more, not
    sixty windows."""
    sending = Sending()
    sent = sum(sending.due(0, now / 4) for now in range(240))
    assert WINDOW < sent < WINDOW + 8


def test_nothing_is_sent_again_while_parts_arrive() -> None:
    """A part takes 0.9 s."""
    sending = Sending()
    sent = sum(sending.due(int(now / 3.6) * PART_SIZE, now / 4) for now in range(int(3.6 * WINDOW)))
    assert sent == WINDOW


@pytest.mark.parametrize("refused", [0, 1, 5])
def test_a_part_that_a_link_refused_is_sent_with_the_next_request(refused: int) -> None:
    sending = Sending()
    assert sending.due(0, 0.0) == WINDOW
    sending.refused(refused * PART_SIZE)
    for part in range(refused):  # these are on their way
        assert not sending.due(part * PART_SIZE, 0.25)
    assert sending.due(refused * PART_SIZE, 0.5) == WINDOW
    assert not sending.due(refused * PART_SIZE, 0.75)
