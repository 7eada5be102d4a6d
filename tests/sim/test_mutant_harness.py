"""A fault that is written wrongly fails its test, whatever the checkers say of it."""

from __future__ import annotations

from typing import Any

import pytest

from mqttree.broker.core.dispatcher import Dispatcher
from mqttree.routing.subscription_trie import SubscriptionTrie
from tests.sim.mutants import BrokenMutant, Mutant
from tests.sim.test_checkers import Small, texts

match = SubscriptionTrie.match


def lacks_an_argument(self: SubscriptionTrie[Any]) -> list[Any]:
    return []


def calls_with_too_few(self: SubscriptionTrie[Any], topic: str) -> list[Any]:
    return match(self)


def uses_what_is_gone(self: SubscriptionTrie[Any], topic: str) -> list[Any]:
    return self.nothing(topic)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (lacks_an_argument, TypeError),
        (calls_with_too_few, TypeError),
        (uses_what_is_gone, AttributeError),
    ],
)
def test_a_mutant_that_raises_by_mistake_fails_its_test(
    wrong: Any, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its brokers stop, which the checkers find; that is not what it was written for."""
    said = r"SubscriptionTrie\.match.*" + error.__name__
    with pytest.raises(BrokenMutant, match=said) as found, Mutant(monkeypatch) as mutant:
        mutant.setattr(SubscriptionTrie, "match", wrong)
        assert texts(Small([]), "raised")
    assert isinstance(found.value.__cause__, error)


def test_a_broken_mutant_fails_its_test_whatever_the_checkers_find(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(BrokenMutant), Mutant(monkeypatch) as mutant:
        mutant.setattr(SubscriptionTrie, "match", lacks_an_argument)
        assert texts(Small([]), "nothing of this kind")


def test_an_exception_that_a_mutant_causes_elsewhere_counts_as_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Mutant(monkeypatch) as mutant:
        mutant.setattr(SubscriptionTrie, "match", lambda self, topic: None)
        assert texts(Small([]), "raised")


def test_an_exception_that_a_mutant_raises_on_purpose_counts_as_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wrong(self: Dispatcher, *rest: Any) -> None:
        raise ZeroDivisionError

    with Mutant(monkeypatch) as mutant:
        mutant.meant = (ZeroDivisionError,)
        mutant.setattr(Dispatcher, "publish", wrong)
        assert texts(Small([]), "raised")
