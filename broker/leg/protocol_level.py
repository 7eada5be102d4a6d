"""In which version of MQTT a leg connects to its foreign broker: MQTT 5, 3.1.1 as a bridge, or
3.1.1, whichever that broker takes. Pure."""

from __future__ import annotations

UNANSWERED = 2
"""CONNECT packets in a row to which a foreign broker gives no CONNACK before it is tried in another
version of MQTT, or without the bit of a bridge."""


class ProtocolLevel:
    """The version of MQTT of one leg's next CONNECT."""

    def __init__(self, version: int, *, plain: bool = False) -> None:
        """`version`: the one that is set, 5 or 4 (3.1.1); 0: it is found out; `plain`: without the
        bit of a bridge from the start."""
        self.version = version or 5
        """Of MQTT, 5 or 4 (3.1.1)."""
        self.plain = plain
        """Whether the foreign broker does not take the bridge's bit of MQTT 3.1.1."""
        self.changed = False
        """Whether the next CONNECT differs from the one that failed."""
        self._set, self._plain = version, plain
        self._answered = False  # whether the CONNACK has come
        self._unanswered = 0  # CONNECT packets in a row without one

    def connecting(self) -> None:
        """Note that CONNECT goes out."""
        self._answered = self.changed = False

    def on_connack(self) -> None:
        """Note that CONNACK has come."""
        self._answered = True

    def on_up(self) -> None:
        """Note that messages cross."""
        self._unanswered = 0

    def on_lost(self, *, once: bool) -> bool:
        """Note that the connection was lost behind CONNECT, and return whether the next one
        differs. `once`: no CONNECT is sent a second time."""
        if self._answered:
            return False
        self._unanswered += 1
        if self._unanswered < UNANSWERED and not once:
            return False
        self.change()
        return True

    def change(self) -> None:
        """Choose how to connect next: MQTT 5, 3.1.1 as a bridge, 3.1.1, and from the start."""
        self._unanswered = 0
        self.changed = True
        if self.version == 5 and not self._set:
            self.version = 4
        elif self.version == 4 and not self.plain:
            self.plain = True
        else:
            self.changed = False
            self.version, self.plain = self._set or 5, self._plain

    def __str__(self) -> str:
        """How the leg connects, for people."""
        if self.version == 5:
            return "MQTT 5"
        return "MQTT 3.1.1 without the bit of a bridge" if self.plain else "MQTT 3.1.1"
