"""The two sessions of a leg, at the foreign broker and at this one, which belong together. Pure.

The session here is there from the first dial on, so that messages wait in it. It has a note that
says so once the leg was connected.

Invariant: if one of them is gone the other one is not taken for its counterpart. A foreign session
without ours is ended (Clean Start), unless another gateway may have ours; and if the foreign one is
gone, ours forgets which QoS 2 messages it has received and not seen released, as others will have
their identifiers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

SESSION = "leg:"
"""Ahead of a leg's name: the client id of its session here."""
NOTE = "$mqttree/leg/subscribed/"
"""Ahead of filters to which the session here subscribes for a note only, as no client publishes
there: behind it are QoS and filter of a subscription at the foreign broker. So the leg knows after
a restart which ones it has there."""
AT = "$mqttree/leg/at/"
"""Ahead of the foreign address that the leg was connected to last, such a note as well, if it has
several."""
PAIRED = "$mqttree/leg/paired"
"""Such a note, of each session here that has a counterpart."""


@dataclass(slots=True, eq=False, repr=False)
class LocalSession:
    """What the session here has, when a connection to the foreign broker stands."""

    filters: Mapping[str, int] = field(default_factory=dict)
    """The filters to which it has subscribed, with their QoS."""
    incoming: Collection[int] = ()
    """Identifiers of QoS 2 messages that it has received and not seen released."""
    unanswered: Collection[int] = ()
    """Identifiers of QoS 2 messages that it has sent and not seen received."""


def is_note(topic_filter: str) -> bool:
    """Return whether a filter of the session here is a note only."""
    return topic_filter.startswith((NOTE, AT, PAIRED))


def paired(session: LocalSession | None) -> LocalSession | None:
    """Return the session here if it has been connected to a foreign broker, else None."""
    return session if session is not None and any(map(is_note, session.filters)) else None


class SessionPair:
    """What one leg knows of both."""

    def __init__(self) -> None:
        self.known: LocalSession | None = None
        """The session here when the connection was opened; None: there was none, or it has no
        counterpart."""
        self.present = False
        """Whether the foreign broker knew its session (Session Present)."""
        self.heir = False
        """Whether another gateway of this name has had both."""
        self.shared = False
        """Whether another gateway of this name may have them at any time: while this one hung,
        say."""
        self._new = False  # the session here has collected messages, and has no counterpart
        self._forgets = False  # the session here is not to be used again
        self._cleaned = False  # the old session at the foreign broker is ended

    def dialling(self, *, cleaned: bool) -> None:
        """Note that the foreign broker is dialled. `cleaned`: its old session was just ended."""
        self._cleaned = cleaned

    def on_dialled(self, session: LocalSession | None) -> None:
        """Note that the connection stands. `session`: the one here, None if there is none."""
        self.known = paired(session)
        self._new = session is not None and self.known is None
        if self._forgets:
            self.known = None
        if self.shared and self.known is None:
            self.heir = True

    def gone_here(self) -> None:
        """Note that the session here has ended: its counterpart has to go, too, unless another
        gateway may have taken it."""
        self._forgets = True

    def entered(self) -> None:
        """Note that both brokers have let the leg in."""
        self._forgets = self.heir = False

    def clean_start(self, version: int, *, foreign: bool) -> bool:
        """Return whether CONNECT to the foreign broker, or to this one, ends an old session.

        In MQTT 3.1.1 this also makes the new one end with its connection, and Mosquitto does not
        write such a session to the disk in MQTT 5 either: so the foreign broker gets a connection
        for that alone. `version`: of MQTT (4 or 5).
        """
        if self.known is not None or self.heir:
            return False
        return not self._cleaned if foreign else version == 5 and not self._new

    @property
    def filters(self) -> Mapping[str, int]:
        """The filters of the session here, notes among them, with their QoS."""
        return {} if self.known is None else self.known.filters

    def moved(self, address: str) -> bool:
        """Return whether the leg was connected to another address than `address` last."""
        last = next((f for f in self.filters if f.startswith(AT)), None)
        return last is not None and last != AT + address

    def filters_there(self, address: str) -> dict[str, int]:
        """Return the filters of the session at the foreign broker, which has this `address`, with
        their QoS."""
        if not self.present or self.moved(address):
            return {}
        notes = (f[len(NOTE) :] for f in self.filters if f.startswith(NOTE))
        return {note[2:]: int(note[0]) for note in notes}
