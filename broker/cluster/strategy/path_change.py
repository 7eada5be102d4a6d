"""A broker whose messages come another way is told so, ahead of what takes the new one
(docs/decisions/0013, 0020)."""

from __future__ import annotations

from broker.cluster.link.link import Link
from broker.cluster.strategy.directory import BEHIND, LIVE, Directory

BREAK, CHANGED = BEHIND | LIVE | 7, BEHIND | LIVE | 9
"""Kinds of routed messages: all messages come another way from here on; those of one origin (8
bytes) do."""


def tell_break(directory: Directory, broker_id: bytes) -> None:
    """Tell a broker that all messages come another way to it from here on, those of the spanning
    tree."""
    link = directory.link_to(broker_id)
    if link is not None and link.live:
        directory.send(broker_id, BREAK, b"")


def tell_break_over(directory: Directory, link: Link, broker_id: bytes) -> None:
    """Tell it over this link, behind what that has been sent."""
    directory.send_over(link, broker_id, BREAK, b"")


def tell_changed_over(directory: Directory, link: Link, broker_id: bytes, origin: bytes) -> None:
    """Tell a broker, over this link, that an origin's messages come another way to it from here
    on."""
    directory.send_over(link, broker_id, CHANGED, origin)
