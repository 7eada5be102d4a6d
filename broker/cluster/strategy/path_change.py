"""Path changes: a record tells a broker that messages take another path to it, ahead of the first
ones that do (docs/decisions/0013, 0020)."""

from __future__ import annotations

from mqttree.broker.cluster.link.link import Link
from mqttree.broker.cluster.strategy.directory import BEHIND, LIVE, Directory

BREAK, CHANGED = BEHIND | LIVE | 7, BEHIND | LIVE | 9
"""Kinds of messages to one broker: from here on all messages to it take another path; or those of
one broker (its id, 8 bytes) do."""


def tell_break(directory: Directory, broker_id: bytes) -> None:
    """Tell a broker over the spanning tree that from here on all messages take another path to
    it."""
    link = directory.link_to(broker_id)
    if link is not None and link.live:
        directory.send(broker_id, BREAK, b"")


def tell_break_over(directory: Directory, link: Link, broker_id: bytes) -> None:
    """Tell the broker `broker_id` the same over `link`, behind what has been sent there.
    `directory`: sends it."""
    directory.send_over(link, broker_id, BREAK, b"")


def tell_changed_over(directory: Directory, link: Link, broker_id: bytes, origin: bytes) -> None:
    """Tell the broker `broker_id` over `link` that from here on the messages of `origin` (a
    broker's id) take another path to it. `directory`: sends it."""
    directory.send_over(link, broker_id, CHANGED, origin)
