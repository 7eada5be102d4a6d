"""The tables of all state machines: each state is reached and left, each input and action is used,
and what is not in a table is a fault of the broker's."""

from __future__ import annotations

from typing import Any

import pytest

from mqttree.bench.federator import mesh_states
from mqttree.broker.base.state_table import ImpossibleInputError, look_up
from mqttree.broker.cluster.delivery import feed_states
from mqttree.broker.cluster.link import link_states
from mqttree.broker.cluster.placement import decider_states, redirect_states
from mqttree.broker.cluster.sessions import image_states, pending_handover
from mqttree.broker.core import connection_states
from mqttree.broker.leg import leg_states
from mqttree.broker.leg.sync_states import SYNC_TRANSITIONS, SyncAction, SyncState
from mqttree.broker.persistence import journal_states, stream_states
from tests.kit.state_tables import check_table


def machine(module: Any, *first: str, last: str | None = None) -> tuple[Any, Any, Any, Any]:
    """A table, its actions, the states in which it begins, and the one that it does not leave."""
    states = module.State
    return (
        module.TRANSITIONS,
        module.Action,
        [states[name] for name in first],
        None if last is None else states[last],
    )


MACHINES = {
    "connection": machine(connection_states, "READING", last="CLOSED"),
    "decider": machine(decider_states, "IDLE"),
    "feed": machine(feed_states, "ASKING"),
    # Out of NONE leads a client that connects: it has a session, and that is not the table's.
    "handover": machine(pending_handover, "HERE", last="NONE"),
    "image": machine(image_states, "LOADING", last="GONE"),
    "journal": machine(journal_states, "NEW"),
    "leg": machine(leg_states, "WAITING", "STANDBY", last="STOPPED"),
    "link": machine(link_states, "DIALLED", "CALLED", last="CLOSED"),
    "mesh": machine(mesh_states, "NO_CORE"),
    "redirected client": machine(redirect_states, "NEW", last="KEPT"),
    "stream": machine(stream_states, "ALONE"),
    "sync session": (SYNC_TRANSITIONS, SyncAction, [SyncState.IDLE], None),
}


@pytest.mark.parametrize("name", MACHINES)
def test_a_table_is_whole(name: str) -> None:
    check_table(*MACHINES[name])


@pytest.mark.parametrize("name", MACHINES)
def test_an_input_without_a_place_is_a_fault(name: str) -> None:
    table = MACHINES[name][0]
    states, inputs = (type(each) for each in next(iter(table)))
    for state in states:
        for given in inputs:
            if (state, given) not in table:
                with pytest.raises(ImpossibleInputError, match=f"{given.value!r} while a machine"):
                    look_up(table, state, given, "a machine")
