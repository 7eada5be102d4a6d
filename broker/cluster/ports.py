"""What modules of the cluster ask of what is above them, by the need.

`Cluster` builds what is in the packages below, each with what it needs of its own floor and those
beneath. What is above is known to it by such a Protocol alone. One that names the type of a link,
of a feed or of another thing with a floor of its own stands in `ports` of the package that uses it.
"""

from __future__ import annotations

from typing import Protocol


class Reporting(Protocol):
    """Where it is told what happened."""

    def count(self, counter: str) -> None:
        """Count a rare event by the name of its counter (`broker.base.counters`)."""

    def log(self, level: str, text: str, *, cause: str = "", peer: str = "", most: int = 1) -> None:
        """Log a line; of one `cause` `most` a minute for each host of a `peer` ("HOST:PORT")."""


class Alarm(Protocol):
    """Who calls the cluster again."""

    def hurry(self, at: float) -> None:
        """Have what was decided carried out at `at` (s), or as soon as it can be."""


class Neighbours(Protocol):
    """Who passes on what this broker posts."""

    def tell(self, now: float) -> None:
        """Tell the neighbours what was posted, ahead of what is sent to clients after this; later
        if much was told just before `now` (s)."""


class OldMessages(Protocol):
    """Who knows whether messages may still come that are older than any replay log."""

    def behind(self) -> bool:
        """Whether a broker is away, or has been asked for what is missing here."""


class LeavingSessions(Protocol):
    """Who knows which sessions are about to go to another broker."""

    def leaves(self, client_id: str) -> bool:
        """Whether another broker is taking the session of a client."""
