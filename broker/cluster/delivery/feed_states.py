"""The states of an ordered feed, and what leads from one to the next (`gap_recovery` and
`origin_questions` do what the table says).

| state     | what local subscribers get | what the feed waits for |
|---|---|---|
| ASKING    | nothing: what comes is held back | the origin's answer that there is no more |
| UNORDERED | each message as it comes, and what is missing, if it comes | the same |
| RELEASING | what was held back, in steps | subscribers, to have had that |
| FED       | each message as it comes over the link of the last answer, the source | nothing |

Whether messages are held back, and whether the origin said that it has more to answer, are not
states: both may hold in ASKING, and neither decides what an input leads to.
"""

from __future__ import annotations

from typing import Final

from mqttree.broker.base.state_table import Table, TableEnum, look_up


class State(TableEnum):
    """Where a feed has got to."""

    ASKING = "asking"
    UNORDERED = "unordered"
    RELEASING = "releasing"
    FED = "fed"


class Input(TableEnum):
    """What happens to a feed."""

    DOUBT = "a message may be missing"
    BREAK = "a path that is not the feed's has changed"
    ANSWERED = "the origin has answered, and has no more"
    RELEASED = "local subscribers have had all that was held back"
    OVERDUE = "what is missing was waited for too long"


class Action(TableEnum):
    """What is to be done then."""

    IGNORE = "nothing"
    BEGIN = "hold messages back, and ask the origin"
    ASK_SOON = "ask the origin once more, soon, as open questions are outdated"
    OUTDATE = "ask open questions again when they are answered"
    RELEASE = "deliver what is held back, in steps"
    FEED = "deliver what comes over the source at once"
    SET_FREE = "deliver what is held back, and hold nothing back any more"


TRANSITIONS: Final[Table[State, Input, Action]] = {
    (State.ASKING, Input.DOUBT): (Action.ASK_SOON, State.ASKING),
    (State.ASKING, Input.BREAK): (Action.OUTDATE, State.ASKING),
    (State.ASKING, Input.ANSWERED): (Action.RELEASE, State.RELEASING),
    (State.ASKING, Input.OVERDUE): (Action.SET_FREE, State.UNORDERED),
    # The origin is there again, or can be reached by another path.
    (State.UNORDERED, Input.DOUBT): (Action.ASK_SOON, State.ASKING),
    (State.UNORDERED, Input.BREAK): (Action.OUTDATE, State.ASKING),
    (State.UNORDERED, Input.ANSWERED): (Action.RELEASE, State.RELEASING),
    (State.RELEASING, Input.DOUBT): (Action.BEGIN, State.ASKING),
    (State.RELEASING, Input.BREAK): (Action.IGNORE, State.RELEASING),
    (State.RELEASING, Input.RELEASED): (Action.FEED, State.FED),
    (State.FED, Input.DOUBT): (Action.BEGIN, State.ASKING),
    (State.FED, Input.BREAK): (Action.IGNORE, State.FED),
}
"""(state, input) -> (action, next state)."""


def transition(state: State, given: Input) -> tuple[Action, State]:
    """Return what to do about an input, and the next state.

    Raises:
        ImpossibleInputError: the input cannot come in this state.
    """
    return look_up(TRANSITIONS, state, given, "an ordered feed")
