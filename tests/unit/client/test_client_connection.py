"""What a connection of `MultiClient` holds back while a broker replays what was missed."""

from __future__ import annotations

import asyncio

import pytest

from mqttree import client_connection
from mqttree.client_connection import (
    MARGIN,
    Arrival,
    Connection,
    Message,
    Options,
    digest_of,
)


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(client_connection, "time", clock)
    return clock


class Bench:
    """A connection whose broker the test is."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        options = Options(None, None, 30, 300, None, 100)
        self.connection = Connection(
            "c", options, None, on_message=self._take, on_lost=lambda _: None
        )

    def _take(self, arrival: Arrival) -> None:
        self.got.append(arrival.message.payload)

    def comes(self, payload: bytes, replayed: str = "", topic: str = "t") -> None:
        self.connection._arrived(Message(topic, payload, 2, False), 0, replayed)

    def dies(self) -> None:
        self.connection._interrupt()


def bench() -> Bench:
    async def make() -> Bench:
        return Bench()

    return asyncio.run(make())


def test_a_question_looks_back_beyond_the_last_sign_of_life(clock: Clock) -> None:
    there = bench()
    clock.now += 100
    there.comes(b"1")
    clock.now += 2
    there.dies()
    assert there.connection.look_back(0.25) == pytest.approx(2 + MARGIN + 0.25)


def test_a_question_looks_back_to_the_last_suback_and_the_slack(clock: Clock) -> None:
    there = bench()
    clock.now += 0.5
    there.comes(b"1")
    there.dies()
    clock.now += 0.25
    assert there.connection.look_back(0.05) == pytest.approx(0.75 + 0.05)


def test_messages_are_missing_if_brokers_had_the_question_too_late(clock: Clock) -> None:
    """They look back from when they have it: the time of its way is missing at the other end."""
    there = bench()
    granted = clock.now
    clock.now += 0.5
    there.comes(b"1")
    there.dies()
    assert not there.connection.is_missing(granted)
    assert there.connection.is_missing(granted + 0.01)
    there.connection.resume()
    assert not there.connection.is_missing(clock.now)


def test_replays_of_several_answers_come_in_the_order_of_their_origin() -> None:
    there = bench()
    there.dies()
    there.comes(b"new")
    for number in (9, 10, 11, 7, 8):
        there.comes(b"%d" % number, f"a:{number}")
    there.comes(b"odd", "a:" + "9" * 5000)
    there.connection.resume()
    assert there.got == [b"odd", b"7", b"8", b"9", b"10", b"11", b"new"]


def test_a_replay_that_had_come_is_dropped_once(clock: Clock) -> None:
    there = bench()
    clock.now += 50
    there.comes(b"1")
    there.comes(b"2")
    there.dies()
    there.connection.look_back(0.1)
    for number, payload in enumerate((b"1", b"2", b"1")):
        there.comes(payload, f"a:{number}")
    there.connection.resume()
    assert there.got == [b"1", b"2", b"1"]


def test_an_equal_message_that_is_too_old_for_a_replay_does_not_count(clock: Clock) -> None:
    there = bench()
    there.comes(b"on")
    clock.now += 50
    there.comes(b"off")
    there.dies()
    there.connection.look_back(0.1)
    there.comes(b"on", "a:3")
    there.connection.resume()
    assert there.got == [b"on", b"off", b"on"]


def test_a_further_question_looks_further_back_and_counts_what_came_once(clock: Clock) -> None:
    there = bench()
    clock.now += 50
    there.comes(b"x")
    clock.now += MARGIN + 1
    there.comes(b"y")
    there.dies()
    there.connection.look_back(0.1)
    there.connection.look_back(2.0)
    for number, payload in enumerate((b"x", b"y", b"y")):
        there.comes(payload, f"a:{number}")
    there.connection.resume()
    assert there.got == [b"x", b"y", b"y"]


def test_what_a_broker_has_left_out_is_not_dropped_once_more(clock: Clock) -> None:
    there = bench()
    clock.now += 50
    for payload in (b"1", b"2", b"2"):
        there.comes(payload)
    there.dies()
    there.connection.look_back(0.1)
    had = there.connection.had()
    assert had == b"".join(digest_of(Message("t", each, 2, False)) for each in (b"1", b"2", b"2"))
    there.connection.left_out(had)
    there.comes(b"2", "a:4")
    there.connection.resume()
    assert there.got == [b"1", b"2", b"2", b"2"]


def test_a_second_death_does_not_bring_again_what_the_first_one_has(clock: Clock) -> None:
    """The broker where the client goes on then replays all that the one before had replayed, had
    left out because the client has had it, and had sent by itself."""
    there = bench()
    clock.now += 50
    there.comes(b"1")
    there.dies()
    there.connection.look_back(0.1)
    there.connection.left_out(there.connection.had())
    there.comes(b"2", "a:2")
    there.comes(b"3")
    clock.now += 0.1
    there.dies()
    there.connection.look_back(0.1)
    for number in (1, 2, 3, 4):
        there.comes(b"%d" % number, f"a:{number}")
    there.connection.resume()
    assert there.got == [b"1", b"2", b"3", b"4"]
    clock.now += 0.1
    there.dies()
    there.connection.look_back(0.1)
    for number in (1, 2, 3, 4, 5):
        there.comes(b"%d" % number, f"a:{number}")
    there.connection.resume()
    assert there.got == [b"1", b"2", b"3", b"4", b"5"]
