"""Records and settings: classes that are little more than their fields."""

from __future__ import annotations

import pytest

from mqttree.broker.base.record import Record, Settings
from mqttree.broker.base.sequence_set import MAX_GAPS, MAX_ORIGINS
from mqttree.broker.limits import DEFAULTS, Limits


class Pair(Record):
    first: int
    second: str = "b"


class Other(Record):
    first: int
    second: str = "b"


class Base(Settings):
    size: int = 1


class Extended(Base):
    name: str = ""
    size: int = 2


class Positive(Record):
    value: int

    def __post_init__(self) -> None:
        if self.value <= 0:
            raise ValueError("not positive")


def test_values_come_in_order_or_by_name() -> None:
    assert Pair(1, "a") == Pair(second="a", first=1)
    assert Pair(1).second == "b"
    assert repr(Pair(1)) == "Pair(first=1, second='b')"


@pytest.mark.parametrize(
    ("given", "named"),
    [((), {}), ((1, "a", 2), {}), ((1,), {"first": 1}), ((1,), {"third": 3}), ((), {"second": ""})],
)
def test_values_that_do_not_fit_are_a_type_error(
    given: tuple[object, ...], named: dict[str, object]
) -> None:
    with pytest.raises(TypeError, match="Pair"):
        Pair(*given, **named)


def test_a_record_does_not_change() -> None:
    pair = Pair(1)
    with pytest.raises(AttributeError, match=r"Pair.first"):
        pair.first = 2
    with pytest.raises(AttributeError, match=r"Pair.first"):
        del pair.first
    assert pair == Pair(1)


def test_a_copy_with_changes() -> None:
    assert Pair(1).replace(second="c") == Pair(1, "c")
    with pytest.raises(TypeError, match="third"):
        Pair(1).replace(third=3)


def test_records_of_one_class_are_compared_by_their_values() -> None:
    assert len({Pair(1), Pair(1), Pair(2)}) == 2
    assert Pair(1) != Other(1)


def test_a_class_extends_the_fields_of_another() -> None:
    assert Extended.FIELDS == ("size", "name")
    assert (Base().size, Extended().size) == (1, 2)
    assert Extended(3) == Extended(size=3)


def test_settings_change_and_have_no_hash() -> None:
    settings = Extended()
    settings.name = "x"
    assert settings == Extended(name="x")
    with pytest.raises(TypeError, match="Extended"):
        hash(settings)
    with pytest.raises(AttributeError):
        settings.unknown = 1


def test_values_are_checked() -> None:
    with pytest.raises(ValueError, match="not positive"):
        Positive(0)


def test_a_limit_is_a_slot() -> None:
    """Limits are read for each message: nothing may be slower than a slot."""
    assert type(Limits.max_queued).__name__ == "member_descriptor"
    assert not hasattr(DEFAULTS, "__dict__")
    with pytest.raises(TypeError, match="max_qeued"):
        Limits(max_qeued=1)


@pytest.mark.parametrize(("name", "most"), [("max_gaps", MAX_GAPS), ("max_origins", MAX_ORIGINS)])
def test_a_limit_beyond_what_other_brokers_take_is_refused(name: str, most: int) -> None:
    """Otherwise a neighbour would not hear of the oldest holes, and never send what is missing."""
    assert getattr(Limits(**{name: most}), name) == most
    for value in (0, most + 1):
        with pytest.raises(
            ValueError, match=f"limits: {name}: {value} is not between 1 and {most}"
        ):
            Limits(**{name: value})
