"""Clients with one connection that are sent to other brokers, in a simulated federation: those that
follow, those that do not, brokers that die meanwhile, and no message that is lost by it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mqttree.broker.cluster.drain import Drain, DrainOptions
from mqttree.broker.cluster.placement.placement_messages import REDIRECT, encode_redirect
from mqttree.broker.cluster.placement.redirect_states import State
from mqttree.broker.limits import DEFAULTS
from mqttree.broker.wire.packets import Connack, Disconnect, Puback, Publish, Will
from mqttree.broker.wire.properties import Property
from tests.sim.test_placement import flow, place
from tests.sim.test_takeover import Client, Row

SETTLED = DEFAULTS.redirect_settle_s + 1.0
QUIET = DEFAULTS.redirect_quiet_s + 1.0


def row_of(count: int = 4, **config: Any) -> Row:
    """A federation that has been quiet for long enough to send clients away."""
    defaults = {"routing": "topic", "topic_rates": True, "redirect_clients": True}
    row = Row(count, meshed=True, **(defaults | config))
    row.run(QUIET)
    return row


def target(client: Client) -> int | None:
    """The index of the broker where a client was sent, None: it was not."""
    for packet in client.packets:
        if isinstance(packet, Disconnect | Connack):
            code = packet.reason if isinstance(packet, Disconnect) else packet.code
            if code == 0x9C:
                address = (packet.properties or {})[Property.SERVER_REFERENCE]
                return int(address.removeprefix("10.0.0.").partition(":")[0]) - 1
    return None


def said(**topics: Any) -> list[tuple[str, str]]:
    return [("mqttree-topics", json.dumps(topics))]


def reader(row: Row, index: int, *filters: str, client_id: str = "c", **options: Any) -> Client:
    return row.connect(index, client_id, **options).subscribed(*filters)


def counters(row: Row, name: str) -> int:
    return sum(getattr(host.running.counters, name) for host in row.world.alive())


def test_a_client_that_follows_goes_where_its_topic_is_published() -> None:
    row = row_of()
    flow(row, 1, "a", 20)
    client = reader(row, 2, "a")
    row.run(SETTLED)
    assert target(client) == 1
    assert client.gone
    back = row.connect(1)
    assert back.present
    row.connect(1, "p").publish("a", b"1")
    row.until(lambda: b"1" in back.payloads)
    # It is where it should be.
    row.run(2 * QUIET)
    assert not back.gone
    assert counters(row, "redirected") == 1
    row.one_session()


@pytest.mark.parametrize("acknowledges", [True, False])
def test_a_client_is_sent_away_when_it_has_acknowledged_all(acknowledges: bool) -> None:
    row = row_of()
    flow(row, 1, "a", 20)
    client = reader(row, 2, "a", answers=False)
    row.run(SETTLED - 2.0)
    row.connect(1, "p").publish("a", b"1", qos=1)
    row.until(lambda: b"1" in client.payloads)
    row.run(1.3)
    assert not client.gone, "it is time to go, but a message is on its way"
    if acknowledges:
        (message,) = (p for p in client.packets if isinstance(p, Publish))
        client.send(Puback(message.packet_id or 0))
        row.run(0.1)
        assert target(client) == 1
        assert not row.connect(1).payloads, "it does not come again"
    else:
        row.run(1.0)
        assert target(client) == 1, "it is not waited for any longer"
        back = row.connect(1)
        row.until(lambda: back.payloads == [b"1"])


def test_a_client_that_does_not_follow_is_served_from_then_on() -> None:
    row = row_of()
    flow(row, 1, "a", 20)
    client = reader(row, 2, "a")
    row.run(SETTLED)
    assert client.gone
    for _ in range(3):
        client = row.connect(2)
        assert client.present
        flow(row, 1, "a", 20, 12.0)
        row.run(QUIET)
        assert not client.gone
        client.cut()
    assert counters(row, "redirected") == 1
    assert counters(row, "redirects_ignored") == 1
    assert row.node(2).cluster.placement.redirector.table.state("c", row.world.now) is State.KEPT


@pytest.mark.parametrize("how", ["off", "3.1.1", "session ends", "will", "few", "wanted here"])
def test_a_client_that_would_lose_something_or_gains_little_stays(how: str) -> None:
    row = row_of(redirect_clients=how != "off")
    flow(row, 1, "a", 20 if how != "few" else 1)
    if how == "wanted here":
        reader(row, 2, "#", client_id="other", expiry=0)
    client = reader(
        row,
        2,
        "a",
        version=4 if how == "3.1.1" else 5,
        expiry=0 if how == "session ends" else 3600,
        will=Will("w", b"") if how == "will" else None,
    )
    flow(row, 1, "a", 20 if how != "few" else 1, 10.0)
    assert not client.gone
    assert counters(row, "redirected") == 0


def test_a_will_that_waits_goes_along() -> None:
    row = row_of()
    flow(row, 1, "a", 20)
    watcher = reader(row, 0, "w", client_id="watcher", expiry=0)
    will = Will("w", b"gone", 1, properties={Property.WILL_DELAY_INTERVAL: 60})
    client = reader(row, 2, "a", will=will)
    row.run(SETTLED)
    assert target(client) == 1
    back = row.connect(1, will=will)
    row.run(QUIET)
    assert not watcher.payloads
    back.cut()
    row.run(61.0)
    assert watcher.payloads == [b"gone"]


def test_a_client_whose_session_ends_is_told_at_its_next_connect() -> None:
    row = row_of()
    flow(row, 1, "a", 20)
    client = reader(row, 2, "a", clean=True, expiry=0)
    flow(row, 1, "a", 20, SETTLED)
    assert not client.gone
    client.leave()
    client = row.client(2, clean=True, expiry=0)
    row.until(lambda: client.gone)
    assert target(client) == 1
    assert "c" not in row.node(2).sessions
    # It does not follow, and is let in.
    assert not row.connect(2, clean=True, expiry=0).present


def test_a_client_that_says_its_topics_is_told_before_it_is_let_in() -> None:
    row = row_of()
    flow(row, 1, "a", 20)
    reader(row, 3, "x", client_id="other", expiry=0)
    flow(row, 2, "x", 10)
    for name, topics, index in (
        ("reader", {"subscribe": ["a"]}, 1),
        ("writer", {"publish": ["x"]}, 3),
    ):
        client = row.client(2, name, said=said(**topics))
        row.until(lambda client=client: client.gone)
        assert target(client) == index
        assert name not in row.node(2).sessions
        row.connect(index, name, said=said(**topics))
    assert counters(row, "redirected") == 2


def test_topics_that_cannot_be_read_are_counted_and_the_client_is_let_in() -> None:
    row = row_of()
    flow(row, 1, "a", 20)
    for text in ("[]", "{", json.dumps({"subscribe": ["a/#/b"]})):
        client = row.connect(2, "c", said=[("mqttree-topics", text)])
        assert target(client) is None
        client.cut()
    assert counters(row, "redirect_topics_invalid") == 3
    logged = [text for host in row.world.alive() for _, _, text in host.logs]
    assert "\n" not in "".join(text for text in logged if "mqttree-topics: " in text)


def test_a_client_without_an_identifier_of_its_own_is_let_in() -> None:
    row = row_of()
    flow(row, 1, "a", 20)
    client = row.connect(2, "", said=said(subscribe=["a"]), clean=True).subscribed("a")
    flow(row, 1, "a", 20, 2 * SETTLED)
    assert not client.gone


def test_a_client_that_comes_while_brokers_come_and_go_is_left_alone() -> None:
    row = row_of()
    flow(row, 1, "a", 20)
    row.host(3).kill()
    row.join()
    client = reader(row, 2, "a")
    flow(row, 1, "a", 20, 40.0)
    assert not client.gone
    flow(row, 1, "a", 20, 40.0)
    assert target(client) == 1


def test_when_the_root_is_silent_clients_are_let_in_at_once() -> None:
    row = row_of()
    flow(row, 1, "a", 20)
    row.host(0).pause()
    began = row.world.now
    row.connect(2, said=said(subscribe=["a"]))
    assert row.world.now - began < 1.0
    row.host(0).resume()
    row.join()


def test_a_client_that_is_gone_when_the_answer_comes_is_not_remembered() -> None:
    row = row_of()
    flow(row, 1, "a", 20)
    row.host(0).pause()
    client = row.client(2, said=said(subscribe=["a"]))
    row.run(0.1)
    client.cut()
    row.host(0).resume()
    row.run(2.0)
    assert len(row.node(2).cluster.placement.redirector.table) == 0
    assert counters(row, "redirected") == 0


def test_a_multi_client_places_itself() -> None:
    row = row_of()
    flow(row, 1, "a", 20)
    flow(row, 3, "b", 20)
    place(row, 2, "multi", subscribe=["a", "b"])
    client = reader(row, 2, "a", client_id="multi~2")
    flow(row, 1, "a", 20, 10.0)
    assert not client.gone


def test_brokers_without_redirection_take_clients_and_send_none() -> None:
    row = Row(3, meshed=True, routing="topic", topic_rates=True)
    node = row.node(2)
    row.run(QUIET)
    flow(row, 1, "a", 20)
    node.cluster.placement.redirector.chosen("c", "10.0.0.2:1883")
    client = reader(row, 2, "a")
    row.run(SETTLED)
    node.cluster.placement.redirector.chosen("c", "10.0.0.2:1883")
    row.run(1.0)
    assert not client.gone


# ---------------------------------------------------------------- draining


def test_a_broker_that_drains_sends_clients_where_their_topics_are() -> None:
    row = row_of()
    flow(row, 1, "a", 20)
    flow(row, 3, "b", 20)
    flow(row, 2, "keep", 50)
    clients = {
        name: reader(row, 2, name, client_id=f"c-{name}", expiry=3600) for name in ("a", "b")
    }
    old = reader(row, 2, "a", client_id="old", version=4)
    row.host(2).do(lambda node: Drain(node, DrainOptions(), row.world.now), row.node(2))
    row.until(lambda: old.gone and all(client.gone for client in clients.values()), 20.0)
    assert {name: target(client) for name, client in clients.items()} == {"a": 1, "b": 3}


# ---------------------------------------------------------------- rebalancing


def test_what_changes_later_moves_clients_a_few_a_minute() -> None:
    row = row_of()
    clients, publisher = moving(row)
    gone = []
    for _ in range(300):
        publish_for(row, publisher, 1)
        gone.append(sum(client.gone for client in clients))
        if gone[-1] == 2:
            break
    assert gone[-1] == 2, gone
    assert {target(client) for client in clients if client.gone} == {1}
    assert gone.index(2) - gone.index(1) >= 50
    assert row.node(0).counters.rebalanced == 2


def moving(row: Row, count: int = 4) -> tuple[list[Client], Client]:
    """Clients at broker 2 whose topics are published at broker 1 from now on, when it was at their
    own before."""
    clients = [reader(row, 2, f"t/{n}", client_id=f"c{n}") for n in range(count)]
    publisher = row.connect(2, "p")
    for _ in range(20):
        for n in range(count):
            publisher.publish(f"t/{n}", *[b"x"] * 10, qos=0)
        row.run(1.0)
    publisher.leave()
    return clients, row.connect(1, "p")


def publish_for(row: Row, publisher: Client, seconds: int, count: int = 4) -> None:
    for _ in range(seconds):
        for n in range(count):
            publisher.publish(f"t/{n}", *[b"x"] * 10, qos=0)
        row.run(1.0)


def test_nobody_is_moved_in_the_minute_after_a_broker_is_gone() -> None:
    row = row_of()
    clients, publisher = moving(row)
    row.host(3).kill()
    row.join()
    publish_for(row, publisher, 55)
    assert not any(client.gone for client in clients)
    publish_for(row, publisher, 100)
    assert any(client.gone for client in clients)


def test_when_the_root_dies_in_a_round_the_next_one_moves_clients() -> None:
    row = row_of()
    clients, publisher = moving(row)
    rebalancer = row.node(0).cluster.placement.rebalancer
    # Its questions to the others are not answered: it is in the middle of a round.
    row.host(3).pause()
    for _ in range(1200):
        publish_for(row, publisher, 1)
        if rebalancer._round:
            break
        row.host(3).resume()
        row.run(0.2)
        row.host(3).pause()
    row.host(0).kill(reset=False)
    row.host(3).resume()
    row.join()
    publish_for(row, publisher, 200)
    assert any(client.gone for client in clients)
    assert sum(row.node(n).counters.rebalanced for n in (1, 2, 3)) >= 1


def test_brokers_that_rest_are_not_asked_for_clients() -> None:
    row = row_of()
    reader(row, 2, "never")
    row.run(300.0)
    assert row.node(0).cluster.placement.decider.state.value == "ready"
    row.run(700.0)
    assert row.node(0).cluster.placement.decider.state.value == "idle"


def test_a_broker_believes_the_root_alone() -> None:
    row = row_of(3)
    client = reader(row, 2, "a")
    body = encode_redirect("c", "10.0.0.2:1883")
    for index, gone in ((1, False), (0, True)):
        node = row.node(index)
        row.host(index).do(lambda node: node.cluster.bus.send(row.host(2).id, REDIRECT, body), node)
        row.run(1.0)
        assert client.gone is gone
    for nonsense in (b"{}", b"", encode_redirect("c", "nowhere:x"), encode_redirect("", "")):
        row.host(0).do(
            lambda node, body=nonsense: node.cluster.bus.send(row.host(2).id, REDIRECT, body),
            row.node(0),
        )
        row.run(0.5)
    assert row.node(2).counters.routed_dropped == 2
    row.join()


@pytest.mark.long
def test_a_broker_with_too_much_to_do_is_relieved() -> None:
    """Everybody wants one topic, and nearly all clients are at one broker: to move some of them
    saves nothing, and adds nothing."""
    row = row_of(3)
    for index in (0, 1):
        reader(row, index, "w", client_id=f"there-{index}", expiry=0)
    clients = [reader(row, 2, "w", client_id=f"c{n}") for n in range(120)]
    publisher = row.connect(2, "p")
    row.run(SETTLED)
    assert not any(client.gone for client in clients)
    for _ in range(240):
        publisher.publish("w", *[b"x"] * 100, qos=0)
        row.run(1.0)
        if sum(client.gone for client in clients) >= 1:
            break
    gone = [client for client in clients if client.gone]
    assert len(gone) == 1
    assert {target(client) for client in gone} <= {0, 1}
    assert row.node(0).counters.rebalanced == 1


# ---------------------------------------------------------------- faults


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("dies", ["source", "target", "root", "none"])
def test_no_message_is_lost_while_a_client_is_sent_elsewhere(qos: int, dies: str) -> None:
    """Publishers at all brokers go on; a broker dies while the client is between two."""
    row = row_of()
    flow(row, 1, "a", 20)
    client = reader(row, 2, "a")
    publishers = {index: row.connect(index, f"p{index}") for index in (0, 1, 3)}
    sent: list[bytes] = []
    got: list[bytes] = []

    def publish() -> None:
        for index, publisher in publishers.items():
            sent.append(b"%d %d" % (index, len(sent)))
            publisher.publish("a", sent[-1], qos=qos)

    for _ in range(int(SETTLED * 20)):
        publish()
        row.run(0.05)
        if client.gone:
            break
    assert target(client) == 1
    got += client.fresh(got)
    index = {"source": 2, "target": 1, "root": 0, "none": -1}[dies]
    if index >= 0 and dies != "source":
        row.run(1.0)
        publishers.pop(index)
        row.host(index).kill()
    for _ in range(10):
        publish()
        row.run(0.02)
    back = row.connect(3 if dies == "target" else 1)
    assert back.present
    if dies == "source":
        row.until(lambda: not row.node(1).sessions["c"].held)
        row.host(index).kill()
    for _ in range(10):
        publish()
        row.run(0.05)
    row.until(lambda: sent[-1] in back.payloads, 30.0)
    row.run(5.0)
    got += back.fresh(got)
    payloads = [payload for payload in got if payload != b"x"]
    assert set(payloads) >= set(sent)
    if qos == 2:
        assert len(payloads) == len(set(payloads))
    row.one_session()


def test_brokers_in_a_circle_send_a_client_round_once_at_most() -> None:
    """Each broker is told by a root that the next one is better, and the client always follows."""
    row = row_of(3)
    client = reader(row, 0, "a")
    visits = [0]
    for _ in range(12):
        here = visits[-1]
        there = (here + 1) % 3
        redirector = row.node(here).cluster.placement.redirector

        def choose(node: Any, redirector: Any = redirector, there: int = there) -> None:
            node.now = row.world.now
            redirector.chosen("c", f"10.0.0.{there + 1}:1883")

        row.host(here).do(choose, row.node(here))
        row.run(0.5)
        if client.gone:
            visits.append(target(client) or 0)
            client = row.connect(visits[-1])
    assert visits == [0, 1, 2, 0]
    assert not client.gone
    row.one_session()
