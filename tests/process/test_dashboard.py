"""The dashboard in a real browser: what it shows, and that texts of clients stay texts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.brokers import Broker, Cluster
from tests.kit.browser import Browser
from tests.kit.clients import Client
from tests.kit.waiting import until

pytestmark = pytest.mark.interop

NASTY = "<img src=x onerror=document.title='hacked'>"
ANSI = "\u202ered\u00ad\u009b31m"
"""Turns the direction of writing, and begins a command of terminals."""


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("dashboard"), "--routing", "topic") as cluster:
        for _ in range(3):
            cluster.add()
        cluster.settle()
        yield cluster


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    made = Browser()
    yield made
    made.close()


def page(broker: Broker, view: str = "") -> str:
    return f"http://127.0.0.1:{broker.admin}/{view}"


def test_the_page_shows_brokers_links_rates_and_changes(three: Cluster, browser: Browser) -> None:
    one = three.brokers[0]
    browser.open(page(one))
    browser.wait("document.querySelectorAll('#graph g').length === 3")
    browser.wait("document.querySelectorAll('#graph line').length === 3")
    assert browser.run("document.querySelectorAll('#graph line.tree').length") == 2
    assert browser.run("document.querySelectorAll('#graph g.root').length") == 1
    assert browser.run("document.querySelector('#graph g.here text').textContent") == "b0"
    browser.wait("document.querySelector('#connection')?.textContent === 'live'")
    browser.wait("document.querySelector('#alarms').textContent !== ''")
    # By the keyboard alone: a broker's details.
    browser.run("document.querySelector('#graph g').focus()")
    browser.key("Enter")
    browser.wait("document.querySelector('#details').textContent.includes('capability')")
    assert browser.errors == []


def test_the_tree_of_one_brokers_messages_is_shown(three: Cluster, browser: Browser) -> None:
    one = three.brokers[0]
    wanting = Client(three.brokers[1].port, client_id="wanting")
    wanting.subscribe("tree/#", 1)
    browser.open(page(one))
    browser.wait("document.querySelectorAll('#origin option').length === 4")
    choose = "(box, value) => { box.value = value; box.dispatchEvent(new Event('change')); }"
    own = one.view()["id"]
    browser.run(f"({choose})(document.querySelector('#origin'), '{own}')")
    browser.wait("document.querySelectorAll('#graph line.path').length === 2")
    assert browser.run("document.querySelectorAll('#graph g.wants').length") == 3
    browser.run(f"({choose})(document.querySelector('#topic'), 'tree/x')")
    browser.wait("document.querySelectorAll('#graph g.wants').length === 1")
    assert browser.run("document.querySelector('#graph g.wants text').textContent") == "b1"
    browser.run(f"({choose})(document.querySelector('#origin'), '')")
    browser.wait("document.querySelectorAll('#graph line.path').length === 0")
    assert browser.errors == []
    wanting.close()


def test_a_broker_that_hangs_is_marked_and_the_others_go_on(
    three: Cluster, browser: Browser
) -> None:
    root = three.root()
    one, other = (broker for broker in three.brokers if broker is not root)
    browser.open(page(one))
    browser.wait("document.querySelectorAll('#graph g').length === 3")
    other.pause()
    try:
        browser.wait("document.querySelectorAll('#graph g.away').length === 1")
        assert browser.run("document.querySelector('#graph g.away text').textContent") == other.name
        browser.wait(
            f"document.querySelector('#changes').textContent.includes('{other.name} cannot be')"
        )
    finally:
        other.resume()
    browser.wait("document.querySelectorAll('#graph g.away').length === 0")
    three.settle()
    assert browser.errors == []


def test_names_of_clients_are_texts_and_nothing_else(three: Cluster, browser: Browser) -> None:
    one = three.brokers[0]
    nasty = Client(one.port, client_id=NASTY)
    nasty.subscribe(f"{NASTY}/#", 1)
    nasty.subscribe(f"$share/g/{NASTY}", 1)
    nasty.publish(f"{NASTY}/x", NASTY.encode(), 1, retain=True)
    odd = Client(one.port, client_id=ANSI)
    for view in ("clients", "retained", "subscriptions", "groups", "topics", "routes"):
        browser.open(page(one, f"?{view}#{view}"))
        browser.wait("document.querySelector('#view [role=status]')?.textContent.includes('found')")
        if view not in ("topics", "routes"):
            browser.wait(
                f"document.querySelector('#view')?.innerText.includes({json.dumps(NASTY)})"
            )
        assert browser.run("document.querySelectorAll('#view img').length") == 0
    browser.open(page(one, "?a#clients"))
    browser.wait(r"document.querySelector('#view')?.innerText.includes('\\u202ered')")
    assert browser.run(r"document.querySelector('#view')?.innerText.includes('\\u009b31m')")
    assert browser.run("document.title") == "mqttree"
    assert browser.errors == []
    for client in (nasty, odd):
        client.close()


def test_a_client_is_searched_and_disconnected(three: Cluster, browser: Browser) -> None:
    one = three.brokers[0]
    clients = [Client(one.port, client_id=f"dash-{number}", expiry=100) for number in range(3)]
    browser.open(page(one, "?b#clients"))
    browser.wait("document.querySelector('#view input[type=search]') !== null")
    browser.key("/")
    for letter in "DASH-1":
        browser.key(letter)
    browser.wait("document.querySelectorAll('#view tbody tr').length === 1")
    browser.run(
        "[...document.querySelectorAll('#view tbody button')]"
        ".find(each => each.textContent === 'Disconnect').click()"
    )
    browser.wait("document.querySelector('#dialog').open")
    browser.run("document.querySelector('#dialog .danger').click()")
    assert clients[1].lost.wait(60)
    browser.wait("document.querySelector('#view tbody').innerText.includes('away')")
    assert not clients[0].lost.is_set() and not clients[2].lost.is_set()
    assert browser.errors == []
    for client in clients:
        client.close()


def test_the_page_fits_a_phone_in_light_and_dark(three: Cluster, browser: Browser) -> None:
    browser.open(page(three.brokers[0], "?c"))
    browser.size(360, 740)
    try:
        browser.wait("document.querySelectorAll('#graph g').length === 3")
        assert browser.run("document.documentElement.scrollWidth") <= 360
        colour = "getComputedStyle(document.body).backgroundColor"
        before = browser.run(colour)
        browser.run("document.activeElement.blur()")
        browser.key("d")
        assert browser.run(colour) != before
        browser.run("localStorage.clear()")
    finally:
        browser.size(1280, 900)


def test_the_page_asks_for_the_token(tmp_path: Path, browser: Browser) -> None:
    token = tmp_path / "token"
    broker = Broker(
        tmp_path,
        "secret",
        ["--discovery", "off", "--admin-token-file", str(token)],
        cluster="dashboard-token",
    )
    broker.start()
    try:
        until(lambda: broker.lines("listens on"), "the broker is there")
        browser.open(page(broker))
        browser.wait("document.querySelector('#login')?.hidden === false")
        form = "document.querySelector('#login').requestSubmit()"
        fill = f"document.querySelector('#token').value = {{}}; {form}"
        browser.run(fill.format("'0123456789abcdef'"))
        browser.wait("document.querySelector('#login')?.hidden === false")
        browser.run(fill.format(json.dumps(token.read_text())))
        browser.wait("document.querySelectorAll('#graph g').length === 1")
        assert token.read_text().strip() not in browser.run("location.href")
        browser.run("sessionStorage.clear()")
        browser.open(page(broker, f"?again#token={token.read_text().strip()}"))
        browser.wait("document.querySelectorAll('#graph g').length === 1")
        assert token.read_text().strip() not in browser.run("location.href")
    finally:
        broker.kill()
        # Refusals are errors of the network to the browser.
        browser.errors.clear()


def test_the_console_talks_mqtt_over_a_websocket(tmp_path: Path, browser: Browser) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        "listeners:\n"
        "  default: {type: tcp, bind: '127.0.0.1:0'}\n"
        "  web: {type: ws, bind: '127.0.0.1:0'}\n"
        "plugins: {amqtt.plugins.authentication.AnonymousAuthPlugin: {allow_anonymous: true}}\n"
    )
    broker = Broker(
        tmp_path, "web", ["-c", str(config), "--discovery", "off"], cluster="ws", listen=False
    )
    broker.start()
    try:
        line = until(lambda: broker.lines("listens on"), "the broker is there")[0]
        port = line.partition("ws ")[2].partition(",")[0].rpartition(":")[2].split()[0]
        browser.open(page(broker, "?d#console"))
        browser.wait("document.querySelectorAll('#view form').length === 3")
        browser.run(
            "document.querySelector('[aria-label=\"WebSocket listener\"]').value"
            f" = 'ws://127.0.0.1:{port}/mqtt'"
        )
        browser.run("document.querySelectorAll('#view form')[0].requestSubmit()")
        said = "document.querySelector('#view [role=status]').textContent"
        browser.wait(f"{said} === 'connected'")
        browser.run("document.querySelectorAll('#view form')[1].requestSubmit()")
        browser.wait(f"{said} === 'subscribed'")
        browser.run("document.querySelectorAll('#view form')[2].requestSubmit()")
        browser.wait("document.querySelector('#view tbody').innerText.includes('hello')")
        assert browser.errors == []
    finally:
        broker.kill()
