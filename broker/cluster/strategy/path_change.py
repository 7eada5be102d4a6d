"""Path changes: a record tells a broker that messages take another path to it, ahead of the first
ones that do (docs/decisions/0013, 0020)."""

from __future__ import annotations

from mqttree.broker.cluster.directory.link_state_directory import LinkStateDirectory
from mqttree.broker.cluster.directory.unicast_bus import BEHIND, LIVE, UnicastBus
from mqttree.broker.cluster.link.link import Link

BREAK, CHANGED = BEHIND | LIVE | 7, BEHIND | LIVE | 9
"""Kinds of messages to one broker: from here on all messages to it take another path; or those of
one broker (its id, 8 bytes) do."""


def tell_break(directory: LinkStateDirectory, bus: UnicastBus, broker_id: bytes) -> None:
    """Tell the broker `broker_id` over the spanning tree that from here on all messages take
    another path to it. `directory`: has that path; `bus`: sends it."""
    link = directory.link_to(broker_id)
    if link is not None and link.live:
        bus.send(broker_id, BREAK, b"")


def tell_break_over(bus: UnicastBus, link: Link, broker_id: bytes) -> None:
    """Tell the broker `broker_id` the same over `link`, behind what has been sent there.
    `bus`: sends it."""
    bus.send_over(link, broker_id, BREAK, b"")


def tell_changed_over(bus: UnicastBus, link: Link, broker_id: bytes, origin: bytes) -> None:
    """Tell the broker `broker_id` over `link` that from here on the messages of `origin` (a
    broker's id) take another path to it. `bus`: sends it."""
    bus.send_over(link, broker_id, CHANGED, origin)
