"""`/api/v1` of real brokers with real clients: what it shows, what it changes, what it refuses."""

from __future__ import annotations

import http.client
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from mqttree.broker.io.api.service import MAX_EVENT_READERS
from tests.kit.api import Events, ask, check, get
from tests.kit.brokers import Broker, Cluster
from tests.kit.clients import Client
from tests.kit.waiting import until

NASTY = "<img src=x onerror=alert(1)>\"'&\x7f"
"""A client identifier that no page may take for a part of itself."""


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Broker]]:
    """Three brokers; the first has clients, subscriptions and retained messages, and the second has
    a client."""
    with Cluster(tmp_path_factory.mktemp("api"), "--routing", "topic") as cluster:
        for _ in range(3):
            cluster.add()
        cluster.settle()
        one, two = cluster.brokers[:2]
        clients = [
            Client(one.port, client_id="c1", expiry=100),
            Client(one.port, client_id=NASTY, protocol=4),
            Client(two.port, client_id="c2", expiry=100),
        ]
        clients[0].subscribe("a/+/#", 1)
        clients[0].subscribe("$share/g/s/#", 1)
        clients[2].subscribe("far/#", 1)
        for number in range(5):
            clients[0].publish(f"r/{number}", b"kept %d" % number, 1, retain=True)
        clients[0].publish("r/binary", b"\xff\0", 1, retain=True)
        yield cluster.brokers
        for client in clients:
            client.close()


def ids(brokers: list[Broker]) -> list[str]:
    return [str(broker.view()["id"]) for broker in brokers]


def test_each_answer_is_what_the_document_says(three: list[Broker]) -> None:
    port = three[0].admin
    document = get(port, "/openapi.json")
    assert ask(port, "POST", "/placement", b'{"client": "c1"}')[0] == 200
    for path, methods in document["paths"].items():
        # No broker has a leg here.
        if "get" not in methods or path.endswith(("/events", "/{leg}")):
            continue
        schema = methods["get"]["responses"]["200"]["content"]["application/json"]["schema"]
        schema = schema.get("anyOf", [schema])[0]
        at = path.removeprefix("/api/v1").replace("{client}", "c1").replace("{topic}", "r/1")
        check(document, schema, get(port, at), schema["$ref"].rpartition("/")[2])
    check(document, {"$ref": "#/components/schemas/Error"}, ask(port, "GET", "/no")[1], "Error")


def test_the_tree_of_messages_leads_to_who_wants_them(three: list[Broker]) -> None:
    one, two, _ = every = ids(three)
    for broker in three:
        # Whoever is asked: the tree of one origin is the same everywhere.
        found = until(
            lambda broker=broker: (
                tree
                if (tree := get(broker.admin, "/tree", origin=one, topic="far/x"))["receivers"]
                == [two]
                else None
            ),
            "the filter of the second broker",
        )
        assert (found["origin"], found["kind"]) == (one, "source")
        assert found["links"][-1][1] == two or [link[1] for link in found["links"]].count(two)
        whole = get(broker.admin, "/tree", origin=two)
        assert whole["receivers"] == sorted(every)
        assert {link[1] for link in whole["links"]} == set(every) - {two}
    here = get(three[0].admin, "/tree", topic="a/b/c")
    assert (here["origin"], here["receivers"], here["links"]) == (one, [one], [])
    assert get(three[0].admin, "/tree", topic="nobody/wants")["receivers"] == []
    for query, status in ((f"origin={'0' * 16}", 404), ("origin=x", 404), ("topic=a/%23", 400)):
        assert ask(three[0].admin, "GET", f"/tree?{query}")[0] == status


def test_any_broker_shows_all_brokers_and_links(three: list[Broker]) -> None:
    every = set(ids(three))
    for broker in three:
        found = get(broker.admin, "/topology")
        assert {each["id"] for each in found["brokers"]} == every
        assert {each["name"] for each in found["brokers"]} == {"b0", "b1", "b2"}
        assert all(each["reachable"] and each["alive"] for each in found["brokers"])
        assert found["here"] == broker.view()["id"]
        assert [each["id"] for each in found["brokers"] if each["root"]] == [found["root"]]
        # Paths over all three links are known everywhere; two of them are the tree.
        assert len(found["links"]) == 3
        assert sum(link["tree"] for link in found["links"]) == 2
        assert {link["a"] for link in found["links"]} | {
            link["b"] for link in found["links"]
        } == every


def test_clients_of_all_brokers_are_found_at_each(three: list[Broker]) -> None:
    own = ids(three)
    for broker in three:
        found = get(broker.admin, "/clients")
        assert [each["id"] for each in found["clients"]] == sorted(["c1", "c2", NASTY])
        where = {each["id"]: each["broker"] for each in found["clients"]}
        assert where == {"c1": own[0], "c2": own[1], NASTY: own[0]}
        assert get(broker.admin, "/clients", search="C2")["total"] == 1
        assert get(broker.admin, "/clients", broker=own[1])["total"] == 1
    here = get(three[0].admin, "/clients/c1")
    assert here["connected"] and here["mqtt"] == "5" and here["expiry_s"] == 100
    assert (here["subscriptions"], here["queued"], here["keep_alive_s"]) == (2, 0, 60)
    nasty = get(three[0].admin, f"/clients/{quote(NASTY, safe='')}")
    assert (nasty["id"], nasty["mqtt"], nasty["clean_start"]) == (NASTY, "3.1.1", True)
    assert get(three[0].admin, "/clients", state="disconnected")["total"] == 0


def test_a_client_of_another_broker_has_all_columns(three: list[Broker]) -> None:
    own = ids(three)
    here = get(three[1].admin, "/clients", search="c2")["clients"][0]
    there = get(three[0].admin, "/clients", search="c2")
    assert (there["silent"], there["clients"]) == ([], [{**here, "here": False}])
    assert here["address"] and here["subscriptions"] == 1
    # The broker that has it is found, or named.
    assert get(three[0].admin, "/clients/c2") == here
    assert get(three[0].admin, "/clients/c2", at=own[1]) == here
    assert get(three[2].admin, "/clients/c2/subscriptions")["subscriptions"][0]["filter"] == "far/#"
    assert get(three[2].admin, "/subscriptions", at=own[1])["total"] == 1
    for query, status in ((f"at={own[2]}", 404), ("at=x", 404), ("at=all", 400)):
        assert ask(three[0].admin, "GET", f"/clients/c2?{query}")[0] == status


def test_one_answer_has_the_listeners_of_all_brokers(three: list[Broker]) -> None:
    found = get(three[0].admin, "/listeners", at="all")["brokers"]
    assert {each["broker"]: each["status"] for each in found} == dict.fromkeys(ids(three), 200)
    addresses = {each["answer"]["listeners"][0]["address"] for each in found}
    assert addresses == {broker.address for broker in three}


def test_pages_follow_each_other(three: list[Broker]) -> None:
    for path, rows, number in (("/clients", "clients", 3), ("/retained", "retained", 6)):
        found: list[Any] = []
        after: str | None = ""
        while after is not None:
            page = get(three[0].admin, path, limit=1, after=after)
            assert page["total"] == number
            found += page[rows]
            after = page["next"]
        assert found == get(three[0].admin, path)[rows]
        assert len(found) == number


def test_subscriptions_groups_and_routes_are_shown(three: list[Broker]) -> None:
    one, two = three[0].admin, three[1].admin
    found = get(one, "/subscriptions")["subscriptions"]
    assert [each["filter"] for each in found] == ["$share/g/s/#", "a/+/#"]
    assert get(one, "/clients/c1/subscriptions", search="a/")["total"] == 1
    assert get(one, "/groups")["groups"] == [
        {"filter": "$share/g/s/#", "members": 1, "connected": 1}
    ]
    routes = until(lambda: get(two, "/routes", search="a/+")["routes"], "the filter is known")
    assert [(each["filter"], each["broker"]) for each in routes] == [("a/+/#", ids(three)[0])]
    assert routes[0]["via"] in ids(three)


def test_retained_messages_are_found_and_read(three: list[Broker]) -> None:
    for broker in three:
        until(lambda b=broker: get(b.admin, "/retained", filter="r/+")["total"] == 6, "all there")
        assert get(broker.admin, "/retained", search="BIN")["total"] == 1
        assert get(broker.admin, "/retained/r/1")["text"] == "kept 1"
        binary = get(broker.admin, "/retained/r%2Fbinary")
        assert (binary["text"], binary["base64"], binary["whole"]) == (None, "/wA=", True)
    assert ask(three[0].admin, "GET", "/retained/nothing")[0] == 404
    for path, said in (
        ("/retained?filter=a%23", "filter: 'a#' is no topic filter"),
        ("/topics?filter=a%23", "filter: 'a#' is no topic filter"),
        ("/tree?topic=a/%23", "topic: 'a/#' is no topic name"),
    ):
        assert ask(three[0].admin, "GET", path) == (400, {"error": said})


def test_a_client_is_disconnected_and_its_session_ended(three: list[Broker]) -> None:
    # Asked of a broker that does not have it.
    port = three[1].admin
    client = Client(three[2].port, client_id="gone", expiry=1000).subscribed("gone/#", 1)
    until(lambda: get(port, "/clients", search="gone")["total"], "the client is known")
    assert ask(port, "POST", "/clients/gone/disconnect") == (200, {"done": True})
    assert client.lost.wait(60)
    assert get(port, "/clients/gone")["connected"] is False
    assert ask(port, "POST", "/clients/gone/disconnect")[0] == 409
    again = Client(three[2].port, client_id="gone", expiry=1000, clean=False)
    assert again.session_present
    assert ask(port, "DELETE", "/clients/gone") == (200, {"done": True})
    assert again.lost.wait(60)
    assert ask(port, "GET", "/clients/gone")[0] == 404
    assert ask(port, "DELETE", "/clients/gone")[0] == 404
    assert get(port, "/subscriptions", search="gone/")["total"] == 0
    for each in (client, again):
        each.close()


def test_rows_of_a_broker_that_hangs_are_stale(tmp_path: Path) -> None:
    with Cluster(tmp_path, link_timeout=60) as cluster:
        one, two = cluster.add(), cluster.add()
        cluster.settle()
        seen, unseen = (Client(two.port, client_id=name, expiry=100) for name in ("seen", "unseen"))
        until(lambda: get(one.admin, "/clients")["total"] == 2, "both are known")
        known = get(one.admin, "/clients", search="seen", limit=1)["clients"][0]
        assert known["id"] == "seen"
        two.pause()
        try:
            found = get(one.admin, "/clients")
            assert found["silent"] == [known["broker"]]
            assert found["names"] == {known["broker"]: two.name}
            assert found["clients"][0] == {**known, "stale": True}
            assert [each["id"] for each in found["clients"]] == ["seen", "unseen"]
            assert ask(one.admin, "POST", "/clients/seen/disconnect")[0] == 503
        finally:
            two.resume()
        until(lambda: not get(one.admin, "/clients")["silent"], "it answers again")
        for each in (seen, unseen):
            each.close()


def test_a_page_of_another_origin_changes_nothing(three: list[Broker]) -> None:
    client = Client(three[2].port, client_id="stays")
    for method, path in (("DELETE", "/clients/stays"), ("POST", "/clients/stays/disconnect")):
        connection = http.client.HTTPConnection("127.0.0.1", three[2].admin, timeout=60)
        connection.request(method, f"/api/v1{path}", headers={"Origin": "http://evil.example"})
        assert connection.getresponse().status == 403
        connection.close()
    assert get(three[2].admin, "/clients/stays")["connected"]
    client.close()


def test_events_come_and_say_when_a_broker_hangs(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        for _ in range(3):
            cluster.add()
        cluster.settle()
        root = cluster.root()
        one, other = (broker for broker in cluster.brokers if broker is not root)
        gone = other.view()["id"]
        events = Events(one.admin)
        assert re.search(rb"\r\ncontent-type: text/event-stream", events.head, re.I)
        assert events.next()[0] == "summary"
        kind, topology = events.next()
        assert kind == "topology" and len(topology["brokers"]) == 3
        other.pause()
        changes = [events.find("change")]
        while f"{other.name} cannot be reached" not in changes[-1]["text"]:
            changes.append(events.find("change"))
        assert gone not in changes[-1]["brokers"]
        # It is shown as what it was, and the others go on.
        shown = {each["id"]: each for each in get(one.admin, "/brokers")["brokers"]}
        assert not shown[gone]["reachable"]
        assert [each["reachable"] for each in shown.values()].count(True) == 2
        assert get(one.admin, "/changes")["changes"][-1] == changes[-1]
        assert events.find("summary")["brokers"] == 2
        other.resume()
        while f"{other.name} can be reached" not in changes[-1]["text"]:
            changes.append(events.find("change"))
        events.close()


def test_readers_of_events_are_few_and_requests_find_room(three: list[Broker]) -> None:
    port = three[1].admin
    readers = [Events(port) for _ in range(MAX_EVENT_READERS)]
    tabs = []
    for _ in range(300):
        sock = socket.create_connection(("127.0.0.1", port), 60)
        sock.sendall(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        tabs.append(sock)
    for sock in tabs:
        answer = b""
        while part := sock.recv(4096):
            answer += part
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nRetry-After: 30\r\n" in answer
        sock.close()
    assert get(port, "/summary")["clients"] >= 1
    for reader in readers:
        assert reader.find("summary")["brokers"] == 3
        reader.close()

    def room() -> bool:
        try:
            Events(port).close()
        except AssertionError:
            return False
        return True

    until(room, "their places are free")


def test_a_request_with_a_body_or_a_wrong_parameter_is_refused(three: list[Broker]) -> None:
    port = three[0].admin
    for path in ("/clients?limit=x", "/clients?nothing=1", "/topology?x=1"):
        status, content = ask(port, "GET", path)
        assert status == 400 and set(content) == {"error"}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/api/v1/clients/c1/disconnect", body=b"{}")
    assert connection.getresponse().status == 400
    connection.close()
    assert json.loads(json.dumps(get(port, "/clients/c1")))["connected"]
