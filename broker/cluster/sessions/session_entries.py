"""What brokers post of the sessions of their clients, read from the directory
(docs/decisions/0016)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mqttree.broker.cluster.directory.link_state_directory import CLIENT
from mqttree.broker.core.session_owner import Entry, decode_entry

if TYPE_CHECKING:
    from mqttree.routing.link_state import LinkStateDatabase


def key_of(client_id: str) -> bytes:
    """Return the key under which sessions of a client are posted."""
    return CLIENT + client_id.encode()


def entries_of(database: LinkStateDatabase, client_id: str) -> Iterator[tuple[bytes, Entry]]:
    """Return what other brokers post of the sessions of a client, also of those that have ended,
    each with its broker's id."""
    for broker_id, value in database.entries_of(key_of(client_id)):
        if (entry := decode_entry(value)) is not None:
            yield broker_id, entry


def posted_stamp(database: LinkStateDatabase, broker_id: bytes, client_id: str) -> int:
    """Return the stamp of the session of `client_id` that the broker `broker_id` has posted in the
    `database`, 0 when it has posted none."""
    entry = decode_entry(database.entry(broker_id, key_of(client_id)))
    return 0 if entry is None else entry.stamp


def newest_stamp(database: LinkStateDatabase, client_id: str) -> int:
    """Return the stamp of the newest session of `client_id` that other brokers have posted in the
    `database`, also of one that has ended; 0: there is none."""
    return max((entry.stamp for _, entry in entries_of(database, client_id)), default=0)
