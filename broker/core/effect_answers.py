"""Handlers of the driver's answer to each kind of effect: one table. An unexpected answer - given
twice, or to an effect without one - changes nothing but a counter and the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from mqttree.broker.core.effects import (
    Authenticate,
    AuthorizePublish,
    AuthorizeReceive,
    AuthorizeSubscribe,
)

if TYPE_CHECKING:
    from mqttree.broker.base.counters import Counters
    from mqttree.broker.base.log_limit import LogLimit
    from mqttree.broker.core.dispatcher import Dispatcher


class Question(Protocol):
    """An effect that waits for one answer."""

    answered: bool
    """Whether it had its answer."""


E = TypeVar("E")
Q = TypeVar("Q", bound=Question)

Taker = Callable[[E, Any, float], bool]
"""Takes an effect, its result and now (s); returns whether that answer was waited for."""


class EffectAnswers:
    """Kind of effect -> the handler of its answers."""

    def __init__(self, counters: Counters, log_limit: LogLimit) -> None:
        self._counters = counters
        self._log_limit = log_limit
        self._takers: dict[type, Taker[Any]] = {}

    def take_by(self, kind: type[E], taker: Taker[E]) -> None:
        """Have the answers to a `kind` of effect taken by `taker`, which knows what it waits
        for."""
        self._takers[kind] = taker

    def take_once(self, kind: type[Q], taker: Callable[[Q, Any, float], None]) -> None:
        """Have the first answer to each effect of a `kind` taken by `taker`; any other one comes
        too late."""

        def take(effect: Q, result: Any, now: float) -> bool:
            if effect.answered:
                return False
            effect.answered = True
            taker(effect, result, now)
            return True

        self._takers[kind] = take

    def answer(self, effect: object, result: Any, now: float) -> None:
        """Hand an answer to its handler.

        `effect`: what was carried out; `result`: what came of it (see `effects`); `now`: s.
        """
        taker = self._takers.get(type(effect))
        if taker is None or not taker(effect, result, now):
            self._counters.answers_unexpected += 1
            kind = type(effect).__name__
            text = f"nothing waits for this answer to {kind}: it is left out"
            self._log_limit.line("warning", "unexpected answer", kind, text)


def take_questions(answers: EffectAnswers, dispatcher: Dispatcher) -> None:
    """Have the answers to what plugins are asked taken by the client that waits, and of who may
    receive a message by the dispatcher."""
    answers.take_once(
        Authenticate, lambda asked, result, now: asked.client.on_authenticated(bool(result), now)
    )
    answers.take_once(AuthorizePublish, lambda asked, result, now: asked.then(bool(result), now))
    answers.take_once(AuthorizeSubscribe, lambda asked, result, now: asked.then(list(result), now))
    answers.take_once(
        AuthorizeReceive, lambda asked, result, now: dispatcher.on_allowed(asked, set(result))
    )
