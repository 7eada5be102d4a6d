"""Classes that are little more than their fields, without code that is compiled at each start.

`dataclass` writes methods for each class as text and compiles them when the class is made: 0.1 ms
each, 7 ms for the `Limits`. Here all classes share one form of each method. Making an object takes
a microsecond or two longer than a dataclass does, so this is for what a message does not make; to
read a field costs the same.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self, dataclass_transform


class _Methods:
    """What records and settings have in common."""

    __slots__ = ()

    FIELDS: ClassVar[tuple[str, ...]]
    DEFAULTS: ClassVar[dict[str, Any]]

    def __init__(self, *given: Any, **named: Any) -> None:
        """Take the values of the fields, in their order or by name. Raises TypeError: a name is not
        one of a field, or is given twice; a field without a default is not given."""
        fields = self.FIELDS
        values = dict(zip(fields, given, strict=False))
        if len(given) > len(fields) or not values.keys().isdisjoint(named):
            raise TypeError(f"{type(self).__name__}: too many values, or one of them twice")
        if len(given) != len(fields):
            values = self.DEFAULTS | values | named
            if len(values) != len(fields):
                unfit = sorted(values.keys() ^ set(fields))
                raise TypeError(f"{type(self).__name__}: unknown or missing: {', '.join(unfit)}")
        put = object.__setattr__
        for name, value in values.items():
            put(self, name, value)
        self.__post_init__()

    def __post_init__(self) -> None:
        """Check the values, if a class has something to check."""

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed. Raises TypeError: there is no such field."""
        return type(self)(**{name: getattr(self, name) for name in self.FIELDS} | changes)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.FIELDS)

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, name) for name in self.FIELDS))

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.FIELDS)
        return f"{type(self).__name__}({values})"


@dataclass_transform(eq_default=True)
class Slotted(type):
    """Makes classes whose annotated names are slots, with the values that the class body gives them
    as defaults: `FIELDS` are their names in order, those of base classes first, and `DEFAULTS`
    their defaults. Type checkers treat such a class as a dataclass."""

    FIELDS: tuple[str, ...]
    DEFAULTS: dict[str, Any]

    def __new__(
        cls: type[Slotted],
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        **options: bool,
    ) -> Slotted:
        """Return the class; `name`, `bases`, `namespace`: as of `type`; `options`: what type
        checkers use (`frozen`, `kw_only`), of no effect here."""
        base = next((base for base in bases if isinstance(base, Slotted)), None)
        inherited = () if base is None else base.FIELDS
        defaults = {} if base is None else dict(base.DEFAULTS)
        own = [
            field
            for field, kind in namespace.get("__annotations__", {}).items()
            if "ClassVar" not in str(kind)
        ]
        defaults.update((field, namespace.pop(field)) for field in own if field in namespace)
        # What a class gives another type or default is one slot all the same.
        new = [field for field in own if field not in inherited]
        namespace["__slots__"] = tuple(new)
        namespace["__match_args__"] = namespace["FIELDS"] = (*inherited, *new)
        namespace["DEFAULTS"] = defaults
        return super().__new__(cls, name, bases, namespace)


class Settings(_Methods, metaclass=Slotted):
    """What may change after it is made; equal to another one of its class with equal values."""

    def __hash__(self) -> int:
        raise TypeError(f"{type(self).__name__} may change, so it has no hash")


@dataclass_transform(eq_default=True, frozen_default=True)
class RecordType(Slotted):
    """The metaclass of records: it makes slots of their fields."""


class Record(_Methods, metaclass=RecordType):
    """What is made with its values and does not change: equal to another one of its class with
    equal values."""

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be changed")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be changed")
