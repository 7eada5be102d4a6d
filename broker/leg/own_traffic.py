"""What a leg publishes of its own at the foreign broker: its state, and probes. Pure.

A broker whose rules do not let this user publish there may close the connection for it, each time.
So a PINGREQ follows, and what was not answered when the broker closed is left out from then on.
"""

from __future__ import annotations

STATE, PROBE = "its state", "a probe"


class OwnTraffic:
    """What one leg may publish of its own, one thing at a time."""

    def __init__(self) -> None:
        self.left_out: set[str] = set()
        """What the foreign broker has closed a connection for."""
        self._sent = ""  # what has no answer
        self._behind = self._pings = self._pongs = 0

    def connecting(self) -> None:
        """Note that the leg connects."""
        self._sent, self._behind, self._pings, self._pongs = "", 0, 0, 0

    def may_send(self, what: str) -> bool:
        """Return whether the leg may publish `what` now: nothing else waits for an answer."""
        return not self._sent and what not in self.left_out

    def sent(self, what: str) -> None:
        """Note that the leg has published `what`; PINGREQ is to follow."""
        self._sent, self._behind = what, self._pings + 1

    @property
    def waits(self) -> bool:
        """Whether the leg has published something that has no answer."""
        return bool(self._sent)

    def on_ping_sent(self) -> None:
        """Note that the leg has sent PINGREQ."""
        self._pings += 1

    def on_ping_answered(self) -> bool:
        """Note that PINGRESP has come. Returns whether the foreign broker has taken what the leg
        had published last, and nothing was known of that before."""
        self._pongs += 1
        if not self._sent or self._pongs < self._behind:
            return False
        self._sent = ""
        return True

    def on_closed(self) -> str:
        """Note that the foreign broker has closed the connection. Returns what it probably closed
        it for, which is left out from now on; "": nothing of the leg's own."""
        what, self._sent = self._sent, ""
        if what:
            self.left_out.add(what)
        return what
