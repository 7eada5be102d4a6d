"""What a client asks the controller, and the answer. Both are JSON objects for those outside."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

SESSIONS: Final = 4
"""connections of a client at most, if it does not say."""

MAX_FILTERS: Final = 1000
"""filters and topics of one question."""

MAX_SESSIONS: Final = 64
"""connections of one client."""

MAX_AVOIDED: Final = 256
"""brokers that a client says it cannot reach: as many as a placement has."""

MAX_CLIENT: Final = 1024
"""characters of a client identifier."""

KEYS: Final = frozenset(
    ("client", "subscribe", "publish", "sessions", "avoid", "at", "version", "address")
)


_NONE: Final[frozenset[str]] = frozenset()
_TEXT: Final = frozenset((str,))
_NO_TEXT: Final = re.compile("[\0\ud800-\udfff]")
"""What JSON can say, and a text in MQTT cannot (MQTT-1.5.4-1, MQTT-1.5.4-2)."""


class TooMuchError(ValueError):
    """A question beyond a limit; its text is one line."""


class Question(NamedTuple):
    """Where a client should connect that wants these filters, and publishes these topics."""

    client: str
    subscribe: tuple[str, ...] = ()
    publish: tuple[str, ...] = ()
    sessions: int = SESSIONS
    """Connections at most."""
    avoid: frozenset[str] = frozenset()
    """Brokers that it cannot reach."""
    at: str = ""
    """The broker where it is, "": not known."""
    version: int = 0
    """Of the last answer that it had."""


def read_question(value: object, client: str = "", at: str = "") -> Question:
    """Return the question in a JSON object.

    Args:
        `value`: the object as Python has it.
        `client`: the client that asks, if that is known; the object need not say it then.
        `at`: the broker where the client is, "": the object may say it.

    Raises:
        TooMuchError: it is beyond a limit.
        ValueError: it is no question; its text is one line.
    """
    if not isinstance(value, dict):
        raise ValueError("a question is a JSON object")
    if not KEYS.issuperset(value):
        unknown = sorted(str(key) for key in value.keys() - KEYS)
        raise ValueError(f"{unknown[0][:64]!r} is not one of {', '.join(sorted(KEYS))}")
    name = value.get("client", client)
    if not isinstance(name, str) or not 0 < len(name) <= MAX_CLIENT or _NO_TEXT.search(name):
        raise ValueError("client: not a client identifier")
    subscribe = _texts(value, "subscribe", MAX_FILTERS)
    publish = _texts(value, "publish", MAX_FILTERS) if "publish" in value else ()
    if len(subscribe) + len(publish) > MAX_FILTERS:
        raise TooMuchError(f"more than {MAX_FILTERS} filters and topics")
    return Question(
        name,
        subscribe,
        publish,
        _number(value, "sessions", SESSIONS, 1, MAX_SESSIONS),
        frozenset(_texts(value, "avoid", MAX_AVOIDED)) if "avoid" in value else _NONE,
        at or _text(value, "at"),
        _number(value, "version", 0, 0, 1 << 53),
    )


def _texts(value: Mapping[Any, Any], key: str, most: int) -> tuple[str, ...]:
    found = value.get(key)
    if found is None:
        return ()
    if not isinstance(found, list) or not _TEXT.issuperset(map(type, found)):
        raise ValueError(f"{key}: not a list of texts")
    if len(found) > most:
        raise TooMuchError(f"{key}: more than {most}")
    return tuple(dict.fromkeys(found))


def _text(value: Mapping[Any, Any], key: str) -> str:
    found = value.get(key, "")
    if not isinstance(found, str) or len(found) > MAX_CLIENT:
        raise ValueError(f"{key}: not a text")
    return found


def _number(value: Mapping[Any, Any], key: str, default: int, low: int, high: int) -> int:
    found = value.get(key, default)
    if type(found) is not int or not low <= found <= high:
        raise ValueError(f"{key}: not a whole number from {low} to {high}")
    return found


class PlacedSession(NamedTuple):
    """One connection of a client."""

    broker: str
    address: str
    """Where the broker's clients connect, "host:port"."""
    client_id: str
    subscribe: tuple[str, ...]
    publish: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "broker": self.broker,
            "address": self.address,
            "client_id": self.client_id,
            "subscribe": list(self.subscribe),
            "publish": list(self.publish),
        }


class Answer(NamedTuple):
    """Where a client should connect."""

    version: int
    """Of two answers to a client, the one with the higher number counts."""
    ttl: float
    """s for which it is valid."""
    sessions: tuple[PlacedSession, ...]
    internal: float
    """Messages a second between brokers because of this client."""
    internal_single: float
    """The same with one connection, wherever that would be best."""

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "version": self.version,
            "ttl_s": round(self.ttl),
            "sessions": [session.as_dict() for session in self.sessions],
            "internal_per_s": round(self.internal, 3),
            "internal_single_per_s": round(self.internal_single, 3),
        }
