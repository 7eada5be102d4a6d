"""A session belongs to its user at every broker: another one with the same client id, at the same
time or later."""

from __future__ import annotations

import pytest

from mqttree.broker.auth.authorization import Access
from mqttree.broker.cluster.directory.link_state_directory import CLIENT
from mqttree.broker.core.session_owner import ANONYMOUS, decode_entry
from tests.sim.test_takeover import Client, Row


def guarded(routing: str = "topic") -> Row:
    """Three brokers in a row that ask for passwords, all of which are right."""
    row = Row(routing=routing)
    for index in range(3):
        row.node(index).set_access(Access({"anna", "bob"}, None, True), row.world.now)
    return row


def refused(client: Client) -> bool:
    client.row.until(lambda: client.connacks or client.gone)
    return [connack.code for connack in client.connacks] == [0x85 if client.version == 5 else 2]


@pytest.mark.parametrize("routing", ["interest", "topic"])
@pytest.mark.parametrize("version", [4, 5])
def test_another_user_elsewhere_is_refused(routing: str, version: int) -> None:
    row = guarded(routing)
    anna = row.connect(1, version=version, username="anna").subscribed("a")
    for stranger in ("bob", None):
        for clean in (False, True):
            assert refused(row.client(2, version=version, username=stranger, clean=clean))
    row.run(1.0)
    assert not anna.gone
    anna.cut()
    assert refused(row.client(0, version=version, username="bob"))
    row.connect(0, "p", username="bob").publish("a", b"for anna")
    row.run()
    back = row.connect(2, version=version, username="anna")
    assert back.present
    row.until(lambda: back.payloads == [b"for anna"])
    assert row.node(0).counters.sessions_wrong_user + row.node(2).counters.sessions_wrong_user == 5
    row.one_session()


def test_of_two_users_at_once_the_first_keeps_the_session() -> None:
    """Each is accepted by a broker that has not heard of the other: the session that began first
    stays."""
    row = guarded()
    anna = row.client(1, username="anna")
    row.run(0.001)
    bob = row.client(2, username="bob")
    row.until(lambda: anna.connacks and bob.connacks)
    assert anna.connacks[0].code == bob.connacks[0].code == 0
    row.until(lambda: bob.gone)
    assert bob.reason() == 0x8E
    assert not anna.gone
    row.one_session()


def test_a_split_gives_no_stranger_the_session() -> None:
    """A stranger is let in where no broker knows of the session, and goes when the two halves meet:
    the owner's stays, though its connection is newer."""
    row = guarded()
    anna = row.connect(1, username="anna").subscribed("a")
    row.world.partition([[1]])
    row.run(4.0)
    bob = row.connect(2, username="bob").subscribed("#")
    anna.cut()
    row.connect(1, "p", username="anna").publish("a", b"for anna")
    row.connect(1, username="anna", answers=False).cut()
    row.world.heal()
    row.until(lambda: bob.gone, 20.0)
    row.join()
    back = row.connect(2, username="anna")
    assert back.present
    row.until(lambda: back.payloads == [b"for anna"])
    row.one_session()


def test_the_holder_refuses_a_session_to_another_user() -> None:
    """A broker that says that it has a session of another user (here: one whose entry lies) hears
    that it is not."""
    row = guarded()
    row.connect(1, username="anna").subscribed("a").cut()
    key = CLIENT + b"c"
    (known,) = [
        listing
        for listing in row.node(2).cluster.directory.database.listings.values()
        if key in listing.entries
    ]
    entry = decode_entry(known.entries[key])
    assert entry is not None
    known.entries[key] = entry._replace(owner=ANONYMOUS).encode()
    stranger = row.client(2)
    assert refused(stranger)
    row.run(1.0)
    assert "c" in row.node(1).sessions
    assert row.node(2).counters.sessions_wrong_user == 1


def test_another_user_is_refused_while_a_takeover_is_pending() -> None:
    row = guarded()
    row.connect(1, username="anna").subscribed("a").cut()
    back = row.client(2, username="anna")
    row.run(0.001)
    assert refused(row.client(2, username="bob"))
    row.until(lambda: back.connacks)
    assert back.present
