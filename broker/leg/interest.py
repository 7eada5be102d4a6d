"""What foreign clients want, as far as it is known: a leg subscribes here to that, and to all that
its rules let out while it is not known. Pure.

What is wanted is subscribed to at once, what is not wanted any more is kept for a while: so clients
that come back, and answers that lack a part, cost no message.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from enum import Enum

from mqttree.broker.leg.foreign_filters import WantedFilters, wanted_topics
from mqttree.broker.leg.interest_states import Action, Input, State, transition
from mqttree.broker.leg.rules import Rules

LINGER = 30.0
"""s for which a filter is subscribed to that no foreign client wants any more."""
POLL = 5.0
"""s between an answer and the next question."""
PAUSE = 0.2
"""s between two questions at least, even if there is something new."""
MAX_FILTERS = 10_000
"""Filters of foreign clients that rules let out. Each is told to all brokers of the federation, and
all fit into one SUBSCRIBE. With more of them sending all is cheaper."""
MAX_SIZE = 512 * 1024
"""bytes of them."""
MAX_REASON = 300
"""characters of the reason of a failure: parts of it come from the foreign broker."""
REFUSED_PAUSE = 600.0
"""s for which all is sent when this broker has refused filters."""


class Source(Enum):
    """Who says what foreign clients want."""

    ALL = "all"
    """It is not asked for: all that the rules let out is sent."""
    EMQX = "emqx"
    """EMQX 5, over HTTP."""
    NANOMQ = "nanomq"
    """NanoMQ, over HTTP."""
    BEACON = "beacon"
    """The clients themselves, by what they publish to `federator/beacon/TOPIC`."""


class Interest:
    """What the foreign clients of one leg want."""

    def __init__(
        self, rules: Rules, max_filters: int = MAX_FILTERS, max_size: int = MAX_SIZE
    ) -> None:
        """`rules`: of the leg; `max_filters`, `max_size`: filters that count, and their bytes."""
        self._max_filters, self._max_size = max_filters, max_size
        self.state = State.UNKNOWN
        self.failures = 0
        """Questions without an answer that could be used, or with too many filters."""
        self.last_error = ""
        self._rules = rules
        self._wanted = WantedFilters(rules.outward_rules)
        # Filters of it that no client wants, and since when (s).
        self._gone: OrderedDict[str, float] = OrderedDict()
        self._all_until = 0.0  # s until when all is sent although it is known what is wanted
        self._refused_until = 0.0  # s until when the filters are too many for this broker
        self._ask_at = self._asked_at = 0.0
        self._asking = False
        self._said: list[tuple[str, str]] = []

    # ---------------------------------------------------------------- outputs

    @property
    def filters(self) -> int:
        """How many filters of foreign clients count."""
        return len(self._wanted)

    @property
    def narrow(self) -> bool:
        """Whether less than all is subscribed to."""
        return self.state is State.KNOWN and not self._all_until

    def subscriptions(self) -> dict[str, int]:
        """Return the filters to which the leg subscribes here, with their QoS."""
        return self._wanted.subscriptions() if self.narrow else dict(self._rules.outgoing)

    def take_lines(self) -> list[tuple[str, str]]:
        """Return what is to be logged, once: levels and lines."""
        said, self._said = self._said, []
        return said

    def next_deadline(self) -> float:
        """Return when `tick` is due, or a question (s)."""
        due = [] if self._asking else [self._ask_at]
        if self._all_until:
            due.append(self._all_until)
        if self._gone:
            # In the order in which they went.
            due.append(next(iter(self._gone.values())) + LINGER)
        return min(due, default=float("inf"))

    # ---------------------------------------------------------------- inputs

    def begin(self, now: float) -> None:
        """Ask at once, as the leg has just connected. `now`: s."""
        self._ask_at = now

    def hurry(self, now: float) -> None:
        """Ask soon, as there is something new at `now` (s)."""
        self._ask_at = min(self._ask_at, max(now, self._asked_at + PAUSE))

    def postponed(self, now: float) -> None:
        """Note that it is too early to ask. `now`: s."""
        self._asking, self._ask_at = False, now + POLL

    def asks(self, now: float) -> bool:
        """Return whether to ask for the interest at `now` (s); then an answer has to follow."""
        if self._asking or now < self._ask_at:
            return False
        self._asking, self._asked_at = True, now
        return True

    def answered(self, filters: Iterable[str], now: float) -> None:
        """Take an answer: what foreign clients subscribe to, each filter once or more often.
        `now`: s."""
        self._asking, self._ask_at = False, now + POLL
        if now < self._refused_until:
            self.overflowed(self.last_error, now)
            return
        try:
            wanted = {topics for each in filters if (topics := wanted_topics(each)) is not None}
        except ValueError as error:
            self.failed(str(error), now)
            return
        for topics in self._wanted_now() - wanted:
            self._gone[topics] = now
        for topics in wanted:
            if self._wanted.add(topics):
                self._gone.pop(topics, None)
                if len(self._wanted) > self._max_filters or self._wanted.size > self._max_size:
                    self.overflowed(
                        f"more than {self._max_filters} filters or {self._max_size} bytes", now
                    )
                    return
        self._on(Input.ANSWERED, "", now)

    def failed(self, why: str, now: float) -> None:
        """Note that a question was not answered, for the reason `why`. `now`: s."""
        self._asking, self._ask_at = False, now + POLL
        self.failures += 1
        self._on(Input.FAILED, why, now)

    def overflowed(self, why: str, now: float) -> None:
        """Note that there are too many filters, for the reason `why`. `now`: s."""
        self._asking, self._ask_at = False, now + POLL
        self._forget()
        self.failures += 1
        self._on(Input.OVERFLOWED, why, now)

    def refused(self, why: str, now: float) -> None:
        """Note that this broker does not take the filters, for the reason `why`. `now`: s."""
        self._refused_until = now + REFUSED_PAUSE
        self.overflowed(why, now)

    def tick(self, now: float) -> None:
        """Give up at `now` (s) what has not been wanted for a while."""
        if self._all_until and now >= self._all_until:
            self._all_until = 0.0
        while self._gone:
            topics, since = next(iter(self._gone.items()))
            if now < since + LINGER:
                break
            del self._gone[topics]
            self._wanted.remove(topics)

    # ---------------------------------------------------------------- steps

    def _on(self, given: Input, why: str, now: float) -> None:
        action, self.state = transition(self.state, given)
        why = why[:MAX_REASON]
        match action:
            case Action.NARROW:
                self._all_until = 0.0
                self._say_what_is_known()
            case Action.NARROW_LATER:
                self._all_until = now + LINGER
                self._say_what_is_known()
            case Action.WIDEN:
                self._all_until = 0.0
                text = f"what foreign clients want is not known, so all is sent: {why}"
                self._said.append(("warning", text))
        self.last_error = why

    def _say_what_is_known(self) -> None:
        text = f"foreign clients want {len(self._wanted)} filters of what rules let out"
        self._said.append(("info", text))

    def _wanted_now(self) -> set[str]:
        return {topics for topics in self._wanted.foreign() if topics not in self._gone}

    def _forget(self) -> None:
        """Forget all filters, so that they do not fill the memory."""
        self._wanted = WantedFilters(self._rules.outward_rules)
        self._gone.clear()
