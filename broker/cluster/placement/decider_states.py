"""The states of what decides where clients connect, and what leads from one to the next (`decider`
does what the table says).

| state     | meaning |
|---|---|
| IDLE      | no recent question: brokers are not asked how often topics are published to |
| GATHERING | brokers are asked that for the first time; questions wait |
| READY     | questions are answered at once; brokers are asked again and again |
"""

from __future__ import annotations

from typing import Final

from mqttree.broker.base.state_table import Table, TableEnum


class State(TableEnum):
    """What the decider does."""

    IDLE = "idle"
    GATHERING = "gathering"
    READY = "ready"


class Input(TableEnum):
    """What happens to it."""

    ASKED = "a question"
    GATHERED = "all brokers have answered, or were waited for long enough"
    DUE = "the time of the next round"
    QUIET = "no question for long"
    DEPOSED = "another broker is the root"


class Action(TableEnum):
    """What is to be done then."""

    NOTHING = "nothing"
    GATHER = "let the question wait, and ask all brokers"
    WAIT = "let the question wait"
    ANSWER = "answer the question"
    ANSWER_ALL = "answer all questions that wait"
    ASK_AGAIN = "ask all brokers again"
    FORGET = "forget what brokers have told"
    REFUSE = "refuse all questions that wait, and forget what brokers have told"


TRANSITIONS: Final[Table[State, Input, Action]] = {
    (State.IDLE, Input.ASKED): (Action.GATHER, State.GATHERING),
    (State.IDLE, Input.GATHERED): (Action.NOTHING, State.IDLE),
    (State.IDLE, Input.DUE): (Action.NOTHING, State.IDLE),
    (State.IDLE, Input.QUIET): (Action.NOTHING, State.IDLE),
    (State.IDLE, Input.DEPOSED): (Action.NOTHING, State.IDLE),
    (State.GATHERING, Input.ASKED): (Action.WAIT, State.GATHERING),
    (State.GATHERING, Input.GATHERED): (Action.ANSWER_ALL, State.READY),
    (State.GATHERING, Input.DUE): (Action.NOTHING, State.GATHERING),
    (State.GATHERING, Input.QUIET): (Action.NOTHING, State.GATHERING),
    (State.GATHERING, Input.DEPOSED): (Action.REFUSE, State.IDLE),
    (State.READY, Input.ASKED): (Action.ANSWER, State.READY),
    (State.READY, Input.GATHERED): (Action.NOTHING, State.READY),
    (State.READY, Input.DUE): (Action.ASK_AGAIN, State.READY),
    (State.READY, Input.QUIET): (Action.FORGET, State.IDLE),
    (State.READY, Input.DEPOSED): (Action.REFUSE, State.IDLE),
}
