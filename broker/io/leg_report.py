"""The state of a leg, for people and programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mqttree.broker.leg.leg import Leg
from mqttree.broker.leg.retained_exchange import RetainedExchange

if TYPE_CHECKING:
    from mqttree.broker.core.session import Session


def leg_report(
    leg: Leg, exchange: RetainedExchange, session: Session | None, broker: str, now: float
) -> dict[str, Any]:
    """Return the state of a leg.

    `leg`: the leg; `exchange`: its retained messages; `session`: its session here, None if there is
    none; `broker`: the URL of the foreign broker; `now`: s.
    """
    counters, relay = leg.counters, leg.relay
    return {
        "name": leg.settings.name,
        "broker": broker,
        "address": leg.address,
        "state": leg.state.value,
        "mqtt": "5" if leg.version == 5 else "3.1.1",
        "messages_in": leg.messages_in,
        "messages_out": leg.messages_out,
        "queued": 0 if session is None else len(session.queue),
        "dropped": drops_of(leg, session),
        "max_qos": leg.max_qos,
        "lowered": relay.lower_qos.lowered,
        "connects": counters.connects,
        "failures": counters.failures,
        "sessions_lost": counters.sessions_lost,
        "moves": counters.moves,
        "rings": relay.crossing.rings,
        "loops": relay.crossing.loops,
        "same_broker": relay.crossing.same_broker(now),
        **relay.unmatched(),
        "refused_filters": list(counters.refused_filters),
        "last_error": leg.last_error,
        **exchange.report(now),
    }


def drops_of(leg: Leg, session: Session | None) -> dict[str, int]:
    """Return how many messages did not get across, by reason. `leg`: the leg; `session`: its
    session here, None if there is none."""
    drops = leg.drops()
    if session is None:
        return drops | {"queue_full": 0, "too_large": 0}
    return drops | {
        "refused_here": drops["refused_here"] + session.refused,
        "queue_full": session.dropped_full,
        "too_large": session.dropped_large,
    }
