"""One image of another broker: what the frames of its stream add up to (docs/decisions/0062).
Pure."""

from __future__ import annotations

import struct
from io import BytesIO
from typing import TYPE_CHECKING

from mqttree.broker.cluster.sessions.image import Image
from mqttree.broker.cluster.sessions.image_states import Input, State, transition
from mqttree.broker.cluster.sessions.records import JournalError
from mqttree.broker.persistence.frames import Cut, read_frames

if TYPE_CHECKING:
    from mqttree.broker.cluster.link.link import Link

Key = tuple[bytes, int, int]
"""Of an image: id and boot number of its owner, epoch of the stream."""


class StandbyImage:
    """The image of one stream."""

    __slots__ = ("contents", "crashed", "heard", "key", "link", "lsn", "size", "state", "told")

    def __init__(self, key: Key, link: Link, lsn: int) -> None:
        """`key`: whose it is; `link`: brings its frames; `lsn`: of the frame before the first."""
        self.key = key
        self.link = link
        self.lsn = lsn
        """Of the last frame that is applied."""
        self.size = 0
        """Bytes of its frames."""
        self.state = State.LOADING
        self.contents = Image()
        self.crashed = False
        """Whether its owner's link was closed by the other side: a split or a hang closes none."""
        self.heard = 0.0
        """When the last frame came (s)."""
        # The last HAVE.
        self.told = b""

    def apply(self, lsn: int, frame: bytes) -> None:
        """Apply a frame. Raises JournalError with what is wrong."""
        if lsn != self.lsn + 1:
            raise JournalError(f"has frame {lsn} behind frame {self.lsn}")
        try:
            for found in read_frames(BytesIO(frame), 0):
                if isinstance(found, Cut):
                    raise JournalError(f"has a frame that {found.why}")
                self.contents.take(*found)
        except (LookupError, TypeError, ValueError, ArithmeticError, struct.error) as error:
            raise JournalError(f"has a record that cannot be applied ({error})") from None
        if self.contents.skipped:
            raise JournalError("has a record that cannot be read")
        self.lsn = lsn
        self.size += len(frame)

    def wall(self, now: float) -> int:
        """Return the time of day (ms) by its owner's clock at `now` (s)."""
        return self.contents.alive + round((now - self.heard) * 1000)

    @property
    def whole(self) -> bool:
        """Whether it is all that its owner had at the last frame."""
        return self.state in (State.VALID, State.PROMOTED)

    def stamp_of(self, client: bytes) -> int:
        """Return the stamp of the session of a `client` in it that no broker has taken, 0: it has
        none, or is not whole."""
        recorded = self.contents.session_of(client) if self.whole else None
        return 0 if recorded is None else recorded.head.stamp

    def promote(self) -> None:
        """Note that sessions may be given away from it: no frame changes it any more."""
        _, self.state = transition(self.state, Input.PROMOTED)
