"""Faults that tests plant in brokers: each has to be found by the checkers.

A fault that raises because it is written wrongly, as it calls a method with the arguments of
yesterday, makes a broker stop, and the checkers report that, too. So `Mutant` tells the two apart:
what the planted function raises by itself fails the test.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import CodeType, FunctionType, TracebackType
from typing import Any, Self

import pytest


class BrokenMutant(AssertionError):
    """A planted fault that raises where it is meant to do something else."""


class Mutant:
    """Brokers with a fault: `setattr` as of `pytest.MonkeyPatch`, for functions of the test.

        with Mutant(monkeypatch) as mutant:
            mutant.setattr(Forwarder, "forward", wrong)
            ...

    At the end of the block it raises BrokenMutant if a planted function raised by itself, or could
    not take the arguments that it was called with. `meant`: what one raises on purpose.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self.meant: tuple[type[Exception], ...] = ()
        self.broken: list[tuple[str, Exception]] = []

    def setattr(self, owner: Any, name: str, value: Any, **options: bool) -> None:
        """Put `value` in the place of the attribute `name` of `owner`, until the test ends.
        `options`: those of `pytest.MonkeyPatch.setattr`."""
        if isinstance(value, FunctionType):
            value = self._watched(value, f"{getattr(owner, '__name__', owner)}.{name}")
        self._patch.setattr(owner, name, value, **options)

    def _watched(self, wrong: FunctionType, place: str) -> FunctionType:
        """Return `wrong`, watched: what it raises by itself is noted, and goes on."""

        @functools.wraps(wrong)
        def call(*arguments: Any, **named: Any) -> Any:
            try:
                return wrong(*arguments, **named)
            except Exception as error:
                code = _raised_in(error)
                own = code is call.__code__ or code.co_filename == wrong.__code__.co_filename
                if own and not isinstance(error, self.meant):
                    self.broken.append((place, error))
                raise

        return call  # type: ignore[return-value]

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End. Raises BrokenMutant."""
        if self.broken:
            place, cause = self.broken[0]
            raise BrokenMutant(
                f"the fault planted as {place} is written wrongly, {len(self.broken)} times: "
                f"{type(cause).__name__}: {cause}"
            ) from cause


def leaves_out(owner: Any, name: str, answer: Any = None) -> Callable[[Mutant], None]:
    """Return a fault, planted by a call: the method or function `name` of `owner` does nothing, and
    returns `answer`."""

    def plant(patch: Mutant) -> None:
        patch.setattr(owner, name, lambda *_, **__: answer)

    plant.__name__ = f"{owner.__name__}.{name}"
    return plant


def _raised_in(error: Exception) -> CodeType:
    """Return the code that raised: that of the caller, where arguments do not fit."""
    traceback = error.__traceback__
    assert traceback is not None
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback.tb_frame.f_code
