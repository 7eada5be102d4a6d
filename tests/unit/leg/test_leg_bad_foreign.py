"""Foreign brokers that refuse, close, are silent or talk nonsense, for a long time: each time one
line, a counter, and pauses between connections."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from mqttree.broker.leg.backoff import CLOSED, LONGEST, OWN_PAUSE, SHORTEST, TAKEN_OVER_PAUSE
from mqttree.broker.leg.effects import DialForeign, Log
from mqttree.broker.leg.leg import PATIENCE, Leg
from mqttree.broker.leg.leg_states import State
from mqttree.broker.wire.constants import ReasonCode
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import Connack, Disconnect, Pingresp, Publish, Suback
from mqttree.broker.wire.properties import Property
from tests.kit.leg_harness import new_leg, settings

HOUR = 3600.0
Act = Callable[[Leg, float], None]
"""What a foreign broker does that has been sent CONNECT, at a time (s)."""


def refuses(code: int, reason: str = "") -> Act:
    """Answer CONNECT with a code."""

    def act(leg: Leg, now: float) -> None:
        given = {Property.REASON_STRING: reason} if reason and leg.version == 5 else None
        leg.foreign_received(encode_packet(Connack(False, code, given), leg.version), now)

    return act


def says(data: bytes) -> Act:
    """Answer CONNECT with some bytes."""
    return lambda leg, now: leg.foreign_received(data, now)


def lost(why: str, least: float = 0.0) -> Act:
    """Have the connection end."""
    return lambda leg, now: leg.on_lost(why, now, least)


def silent(leg: Leg, now: float) -> None:
    """Do nothing."""


def comes_up(leg: Leg, now: float) -> None:
    """Let the leg in at both brokers, and grant all it asks for."""
    accept = encode_packet(Connack(True, 0), leg.version)
    leg.foreign_received(accept, now)
    if leg.state is State.DIALLING:  # only the old session was ended
        leg.on_dialled(None, now)
        leg.foreign_received(accept, now)
    leg.here_received(encode_packet(Connack(False, 0), leg.version), now)
    leg.foreign_received(encode_packet(Suback(0xFFFF, [2]), leg.version), now)
    leg.foreign_received(encode_packet(Pingresp(), leg.version), now)
    leg.here_received(encode_packet(Suback(0xFFFF, [2, 0]), leg.version), now)
    assert leg.state is State.UP


def then(*acts: Act) -> Act:
    """Do one after the other."""

    def act(leg: Leg, now: float) -> None:
        for each in acts:
            each(leg, now)

    return act


def disconnects(code: int) -> Act:
    """Send DISCONNECT."""
    return lambda leg, now: leg.foreign_received(encode_packet(Disconnect(code), 5), now)


CASES: dict[str, tuple[int, Act, str, float]] = {
    "wrong password": (5, refuses(0x86), "bad user name or password", SHORTEST),
    "wrong password, 3.1.1": (4, refuses(4), "bad user name or password", SHORTEST),
    "not authorized": (5, refuses(0x87, "no"), "not authorized (code 0x87", SHORTEST),
    "unavailable": (4, refuses(3), "server unavailable", SHORTEST),
    "closes at CONNECT": (5, lost(CLOSED), CLOSED, SHORTEST),
    "closes at any CONNECT": (0, lost(CLOSED), "is tried", SHORTEST),
    "no route": (5, lost("no route to host"), "no route to host", SHORTEST),
    "silent": (5, silent, "no answer within", SHORTEST),
    "not authorized, 3.1.1": (4, refuses(5), "not authorized", SHORTEST),
    "a short CONNACK": (5, says(b"\x20\x01\x00"), "CONNACK", SHORTEST),
    "an endless length": (5, says(b"\xff\xff\xff\xff\xff"), "", SHORTEST),
    "a client": (
        5,
        says(b"\x10\x0c\x00\x04MQTT\x05\x02\x00\x00\x00\x00"),
        "truncated",
        SHORTEST,
    ),
    "speaks HTTP": (5, says(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "no answer within", SHORTEST),
    "no CONNACK first": (
        5,
        says(encode_packet(Publish("t", b"", 0), 5)),
        "PUBLISH instead of CONNACK",
        SHORTEST,
    ),
    "takes the session": (
        5,
        then(comes_up, disconnects(ReasonCode.SESSION_TAKEN_OVER)),
        "session taken over",
        TAKEN_OVER_PAUSE,
    ),
    "closes when it is up": (5, then(comes_up, lost(CLOSED)), CLOSED, SHORTEST),
    "shuts down": (
        5,
        then(comes_up, disconnects(ReasonCode.SERVER_SHUTTING_DOWN)),
        "server shutting down",
        SHORTEST,
    ),
    "is our own": (5, then(comes_up, lost("is no foreign one", OWN_PAUSE)), "foreign", OWN_PAUSE),
}


@pytest.mark.parametrize("name", CASES)
def test_a_bad_foreign_broker_costs_a_line_a_counter_and_no_busy_loop(name: str) -> None:
    """For an hour. A line that says the same comes once, and again only when the leg was up in
    between, which takes a second at least."""
    version, act, words, least = CASES[name]
    leg = new_leg(settings(version=version))
    now, dials, lines = 0.0, [], []
    while now < HOUR:
        leg.tick(now)
        effects = leg.take_effects()
        if any(isinstance(effect, DialForeign) for effect in effects):
            dials.append(now)
            leg.on_dialled(None, now)
            act(leg, now)
            effects += leg.take_effects()
        lines += [e for e in effects if isinstance(e, Log)]
        due = leg.next_deadline()
        assert due is not None and due > now, "it would be called again at once"
        now = due
    pauses = [after - before for before, after in pairwise(dials)]
    assert min(pauses) >= least
    longest = OWN_PAUSE if least == OWN_PAUSE else max(LONGEST, 2 * TAKEN_OVER_PAUSE)
    assert max(pauses) < longest + PATIENCE + 0.001
    assert leg.counters.failures >= len(dials) - 1
    told = [line.text for line in lines if line.level != "debug" and words in line.text]
    assert told and all("foreign:1883" in text for text in told)
    causes = [text.partition("; it is dialled again")[0] for text in told]
    if leg.counters.connects == 0:
        assert len(causes) == len(set(causes))
        assert len([line for line in lines if line.level != "debug"]) <= 6


def test_the_same_failure_is_a_line_again_once_the_leg_was_up() -> None:
    leg = new_leg(settings(version=5))
    lines: list[str] = []
    now = 0.0
    for act in (lost(CLOSED), lost(CLOSED), comes_up, lost(CLOSED), lost(CLOSED)):
        if leg.state is State.UP:
            act(leg, now)
        else:
            now = leg.next_deadline() or 0.0
            leg.tick(now)
            leg.on_dialled(None, now)
            act(leg, now)
        lines += [e.text for e in leg.take_effects() if isinstance(e, Log) and e.level == "warning"]
    assert len(lines) == 2
