"""What a leg asks its driver to do, as data, in this order. What concerns the foreign broker may be
meant for the second connection there, that of the sync session (`sync`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from mqttree.broker.wire.packets import Publish


@dataclass(frozen=True, slots=True)
class DialForeign:
    """Open a connection to the foreign broker. Answer: `Leg.on_dialled`, or `Leg.on_lost`; of the
    second one `SyncSession.on_dialled`, or `RetainedExchange.sync_lost`."""

    place: int = 0
    """Which of its addresses; the second connection goes to that of the first one."""
    sync: bool = field(default=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class TryAddress:
    """Find out whether a connection to an address can be opened, and close it. Answer:
    `Leg.on_answer`, or none."""

    place: int
    """Which of them."""


@dataclass(frozen=True, slots=True)
class ToForeign:
    """Send bytes to the foreign broker."""

    data: bytes
    sync: bool = field(default=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Enter:
    """Open a connection to this broker, as a client's. What is sent next goes there."""


@dataclass(frozen=True, slots=True)
class Prepare:
    """Have the session here collect messages: send `data` on a connection to this broker of its
    own, unless the session has all filters. What it answers does not matter."""

    filters: tuple[str, ...]
    data: bytes


@dataclass(frozen=True, slots=True)
class ToHere:
    """Send bytes to this broker."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Close:
    """Close the connections to both brokers, or the second one, once the bytes are out. Harmless
    when there is none."""

    sync: bool = field(default=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Log:
    """Log a line."""

    level: str
    """"debug", "info" or "warning"."""
    text: str


@dataclass(frozen=True, slots=True)
class RetainHere:
    """Publish a retained message here as the leg's session; one without a payload deletes."""

    message: Publish


LegEffect = (
    DialForeign | TryAddress | ToForeign | Prepare | Enter | ToHere | Close | Log | RetainHere
)
