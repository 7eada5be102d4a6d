"""What a session alone is still owed when it was merged or taken over: it comes when the broker
where it was published is back, whatever is killed meanwhile, and to no other session again."""

from __future__ import annotations

import pytest

from tests.sim.disk import Disk
from tests.sim.test_merge import away, kept_row
from tests.sim.test_position import Feed
from tests.sim.test_takeover import Client

MODES = ["interest", "topic"]


class Owed:
    """Three brokers with journals. A client with a session at the second one publishes nothing and
    is away; that broker is killed, the client begins a session at the third one, where another
    client (`beside`) has all along had everything at QoS 2. Then the publisher's broker is killed,
    and the second one is back."""

    def __init__(self, routing: str, *, beside: bool, emptied: bool = False) -> None:
        """`emptied`: the older session has had nothing of the origin, and the third broker's log
        is empty, as it is restarted once before that client comes; nothing is published then."""
        self.disks: dict[int, Disk] = {}
        self.row = row = kept_row(routing, self.disks)
        self.first = away(row)
        self.beside: list[Client] = []
        if beside:
            self.beside.append(row.connect(2, "beside"))
            self.beside[0].subscribe("a")
        if emptied:
            row.host(1).kill()
        self.feed = Feed(row, 0)
        row.run(0.5)
        row.host(1).kill()
        row.run(2.0)
        if emptied:
            self.feed.ended = True
            self.restart(2, *["beside"] * beside)
        self.clients = [self.first, row.connect(2)]
        assert not self.clients[1].present
        self.clients[1].subscribe("a")
        row.run(0.5)
        self.feed.ended = True
        row.host(0).kill()
        row.run(1.0)
        row.host(1).start()
        row.until(lambda: row.node(2).counters.sessions_merged, 40.0)

    def restart(self, index: int, *clients: str) -> None:
        """Kill a broker and start it again; these clients come back to it."""
        row = self.row
        row.host(index).kill()
        row.run(0.5)
        row.host(index).start()
        self.back(index, *clients)

    def back(self, index: int, *clients: str) -> None:
        for name in clients:
            client = self.row.connect(index, name)
            assert client.present
            (self.clients if name == "c" else self.beside).append(client)

    def end(self) -> None:
        """The publisher's broker is back, and everything comes."""
        row = self.row
        row.host(0).start()
        row.join()
        row.run(8.0)
        for clients in (self.clients, self.beside):
            got: list[bytes] = []
            for client in clients:
                got += client.fresh(got)
            assert len(got) == len(set(got)), "twice"
            if clients:
                lost = self.feed.sent.keys() - got
                assert not lost, f"lost {len(lost)} of {len(self.feed.sent)}"


@pytest.mark.parametrize("emptied", [False, True])
@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("routing", MODES)
def test_what_a_merged_session_is_owed_survives_its_broker(
    routing: str, beside: bool, emptied: bool
) -> None:
    story = Owed(routing, beside=beside, emptied=emptied)
    story.restart(2, "c", *["beside"] * beside)
    story.end()


@pytest.mark.parametrize("routing", MODES)
def test_what_a_merged_session_is_owed_waits_for_its_origin(routing: str) -> None:
    """The notes outlive the log (120 s)."""
    story = Owed(routing, beside=True)
    story.row.run(400.0)
    story.end()


@pytest.mark.parametrize("killed", [0.0, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.3])
@pytest.mark.parametrize("routing", MODES)
def test_a_kill_while_a_debt_is_paid_loses_and_repeats_nothing(routing: str, killed: float) -> None:
    story = Owed(routing, beside=True)
    row = story.row
    row.host(0).start()
    before = len(story.clients[-1].payloads)
    row.until(lambda: len(story.clients[-1].payloads) > before, 20.0)
    row.run(killed)
    story.restart(2, "c", "beside")
    story.end()


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("routing", MODES)
def test_a_debt_goes_with_its_session(routing: str, again: bool) -> None:
    """The session moves on before it is paid; and the broker that it came to is killed."""
    story = Owed(routing, beside=True)
    story.back(1, "c")
    if again:
        story.restart(1, "c")
    story.restart(2, "beside")
    story.end()


@pytest.mark.parametrize("routing", MODES)
def test_a_debt_of_a_session_that_has_ended_is_nobody_elses(routing: str) -> None:
    story = Owed(routing, beside=True)
    story.row.connect(2, clean=True).leave()
    story.clients = []
    story.restart(2, "beside")
    story.end()
