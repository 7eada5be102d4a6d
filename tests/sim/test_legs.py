"""Federations with legs to foreign brokers, and faults planted in legs that the checkers find.

SEEDS=n runs n schedules instead of the default, FIRST=k begins with seed k.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from mqttree.broker.io.leg_turns import LegTurns
from mqttree.broker.leg.crossing import Crossing
from mqttree.broker.leg.leg import Leg
from mqttree.broker.leg.marks import Marks
from mqttree.broker.leg.session_pair import LocalSession, SessionPair
from mqttree.broker.leg.subscriptions import SUBSCRIBE_ID, Subscriptions
from mqttree.broker.wire.encode import encode_packet
from mqttree.broker.wire.packets import Subscribe, SubscriptionRequest
from tests.sim.leg_rings import run_any, run_rings, run_standby
from tests.sim.legs import run_legs
from tests.sim.mutants import Mutant, leaves_out
from tests.sim.schedule import Result

SEEDS = int(os.environ.get("SEEDS", "8"))
FIRST = int(os.environ.get("FIRST", "0"))
BLOCKS = 2


@pytest.mark.parametrize("block", range(BLOCKS))
def test_nothing_is_lost_repeated_or_reordered_over_legs(block: int) -> None:
    bad = []
    for seed in range(FIRST + block, FIRST + SEEDS, BLOCKS):
        violations = run_legs(seed).violations
        for kind, text in violations[:5]:
            print(f"seed {seed}: {kind}: {text}")
        if violations:
            bad.append(seed)
    assert not bad


def test_an_echo_at_qos_0_that_overtakes_others_costs_nothing() -> None:
    """Those that it overtook came in as new messages: seed 157."""
    assert run_legs(157).violations == []


# ---------------------------------------------------------------- mutants


def wants_its_own(patch: Mutant) -> None:
    """A leg subscribes without No Local."""

    def wrong(self: Subscriptions, filters: Any, *, inwards: bool, version: int = 0) -> bytes:
        requests = [SubscriptionRequest(f, qos, False, True, 2) for f, qos in filters]
        return encode_packet(Subscribe(SUBSCRIBE_ID, requests), version or self._version)

    patch.setattr(Subscriptions, "_subscribe", wrong)


def trusts_a_session_that_is_gone(patch: Mutant) -> None:
    """The session here keeps identifiers that the foreign broker has forgotten, and gives to
    others."""
    dialled = Leg.on_dialled

    def wrong(self: Leg, session: LocalSession | None, now: float) -> None:
        known = None if session is None else LocalSession(session.filters)
        dialled(self, known, now)

    patch.setattr(Leg, "on_dialled", wrong)


def begins_anew(patch: Mutant) -> None:
    """Each connection to the foreign broker ends the session there."""

    def wrong(self: SessionPair, version: int, *, foreign: bool) -> bool:
        return foreign

    patch.setattr(SessionPair, "clean_start", wrong)


def loses_a_chunk(patch: Mutant) -> None:
    """One of a hundred chunks from the foreign broker does not get here."""
    inwards = Crossing.inwards
    count = [0]

    def wrong(self: Crossing, packets: bytes, now: float) -> bytes:
        count[0] += 1
        crossing = inwards(self, packets, now)
        return b"" if count[0] % 100 == 0 else crossing

    patch.setattr(Crossing, "inwards", wrong)


MUTANTS: dict[str, tuple[Callable[[Mutant], None], tuple[int, ...], str]] = {
    "no No Local": (wants_its_own, tuple(range(12)), "twice"),
    "trusts a session that is gone": (trusts_a_session_that_is_gone, tuple(range(80, 130)), "lost"),
    "always begins anew": (begins_anew, tuple(range(12)), "lost"),
    "loses a chunk": (loses_a_chunk, tuple(range(8, 20)), "lost"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", MUTANTS)
def test_a_fault_in_a_leg_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, seeds, kind = MUTANTS[name]
    with Mutant(monkeypatch) as mutant:
        plant(mutant)
        found = (run_legs(seed).violations for seed in seeds)
        assert any(kind == each for violations in found for each, _ in violations)


# ---------------------------------------------------------------- rings, and gateways of one name


@pytest.mark.parametrize("seed", range(FIRST, FIRST + max(5, SEEDS // 5)))
def test_rings_end_and_chains_carry_each_message_once(seed: int) -> None:
    assert run_rings(seed).violations == []


@pytest.mark.parametrize("seed", range(FIRST, FIRST + max(3, SEEDS // 5)))
def test_gateways_of_one_name_lose_nothing(seed: int) -> None:
    assert run_standby(seed).violations == []


@pytest.mark.parametrize(
    "seed",
    [
        61107,  # a foreign broker that was busy answered PINGREQ ahead of the SUBSCRIBE before it
        61163,  # a gateway drained, and its session stayed with it
        62428,  # a gateway that had hung ended the session at the foreign broker
        64225,  # messages under way at kill -9 were not sent again by the other gateway
        64296,  # a broker was killed while it put two sessions of a client together
        70840,  # a gateway took the other one's turn in vain; an older retained value came back
    ],
)
def test_what_once_went_wrong_is_right(seed: int) -> None:
    assert run_any(seed).violations == []


def test_a_session_that_got_a_retained_message_without_a_number_can_be_merged() -> None:
    """Its record named number 0 of an origin, which no broker could read."""
    assert run_standby(25).violations == []


def believes_no_mark(patch: Mutant) -> None:
    """What comes back with a mark of this federation comes in."""
    patch.setattr(Marks, "inwards", lambda self, packets: packets)


@pytest.mark.long
@pytest.mark.parametrize(
    ("plant", "run", "kind"),
    [
        (believes_no_mark, run_rings, "twice"),
        # Each gateway of a name is active.
        (leaves_out(LegTurns, "rival"), run_standby, "leg"),
        # A gateway that stood by once does so for ever.
        (leaves_out(Leg, "take_turn"), run_standby, "leg"),
    ],
)
def test_a_fault_where_several_legs_lead_to_one_broker_is_found(
    plant: Callable[[Mutant], None],
    run: Callable[[int], Result],
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Mutant(monkeypatch) as mutant:
        plant(mutant)
        found = (run(seed).violations for seed in (0, 3, 5, 7))
        assert any(kind == each for violations in found for each, _ in violations)
