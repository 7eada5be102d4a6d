"""Neighbours tell each other how far they have sent all of an origin that is wanted behind a link.

record UPTO  (id, boot, u48 number)...: all that is wanted behind this link, up to here, has
             been sent over it
"""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from typing import TYPE_CHECKING

from mqttree.broker.base.sequence_set import LAST
from mqttree.broker.cluster.link.control_records import UPTO
from mqttree.broker.wire.errors import MalformedPacket

if TYPE_CHECKING:
    from mqttree.broker.cluster.delivery.origins import Origins
    from mqttree.broker.cluster.link.link import Handler, Link
    from mqttree.broker.cluster.strategy.routing_strategy import MessageHops

ENTRY = 12 + 6
"""bytes of one origin in the record."""


class LowWatermarks:
    """Up to which number of each origin nothing is missing, as neighbours say: what did not arrive
    was not wanted."""

    def __init__(self, origins: Origins, strategy: MessageHops) -> None:
        """`origins`: what has been here of each; `strategy`: which links messages take."""
        self._origins = origins
        self._strategy = strategy
        self.records: dict[int, Handler] = {UPTO: self.upto_received}
        """What takes the record."""

    def send(self, link: Link) -> None:
        """Tell a neighbour up to which number of each origin it was sent all that is wanted behind
        the link (UPTO). Not while messages are queued for it: some may be dropped."""
        if (
            not self._strategy.ordered
            or not (link.live or self._strategy.source_rooted)
            or link.conn.backlog
            or link.conn.paused
        ):
            return
        news = []
        for key, window in self._origins.vector.items():
            feed = window.feed
            if window is self._origins.own:
                done = window.top
            elif feed is None or feed.source is None or feed.source is link:
                continue
            else:
                done = feed.done
            if link.upto.get(key) != done and link in self._strategy.everywhere(key):
                link.upto[key] = done
                news.append(a2b_base64(key) + done.to_bytes(6, "big"))
        if news:
            link.send_behind(UPTO, b"".join(news))

    def upto_received(self, link: Link, body: bytes, now: float) -> None:
        """Take an UPTO record of a neighbour: numbers up to there that did not arrive were not
        wanted here. `link`: over which it came; `body`: the record without its type; `now`: s.

        Raises:
            MalformedPacket: it is truncated, or has a sequence number out of range.
        """
        if len(body) % ENTRY:
            raise MalformedPacket("UPTO record is truncated")
        for at in range(0, len(body), ENTRY):
            key = b2a_base64(body[at : at + 12], newline=False)
            done = int.from_bytes(body[at + 12 : at + ENTRY], "big")
            if done >= LAST:
                raise MalformedPacket("UPTO record with a sequence number out of range")
            window = self._origins.vector.get(key)
            feed = None if window is None else window.feed
            if window is None or feed is None or link not in (feed.source, feed.behind):
                continue
            if done > max(feed.done, feed.settled):
                if done > window.top:
                    window.skip(window.top + 1, done)
                    window.top = done
                feed.settled = done
                if feed.source is link:
                    feed.done = done
