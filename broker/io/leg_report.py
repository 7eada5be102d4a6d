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
    drops = leg.drops()
    drops |= {
        "queue_full": 0 if session is None else session.dropped_full,
        "too_large": 0 if session is None else session.dropped_large,
    }
    return {
        "name": leg.settings.name,
        "broker": broker,
        "address": leg.address,
        "state": leg.state.value,
        "mqtt": "5" if leg.version == 5 else "3.1.1",
        "messages_in": leg.messages_in,
        "messages_out": leg.messages_out,
        "queued": 0 if session is None else len(session.queue),
        "dropped": drops,
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
