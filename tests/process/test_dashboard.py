"""The dashboard in a real browser: what it shows, and that texts of clients stay texts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.api import ask
from tests.kit.brokers import Broker, Cluster
from tests.kit.browser import Browser
from tests.kit.clients import Client
from tests.kit.waiting import until

pytestmark = pytest.mark.interop

VIEWS_OF_BROKERS = (
    *("clients", "topics", "retained", "subscriptions", "groups", "routes"),
    *("listeners", "console"),
)
SAID = "document.querySelector('#view [role=status]').textContent"
NO_ANSWER = "no answer of b1, b2"
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
    made.size(1280, 900)
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
    # The traffic of another broker's links is asked of that one.
    browser.run("document.querySelector('#graph g:not(.here)').dispatchEvent(new Event('click'))")
    sizes = "[...document.querySelectorAll('#details tbody small')]"
    browser.wait(f"{sizes}.filter((each) => each.textContent).length === 4")
    assert browser.errors == []


def test_the_tree_of_one_brokers_messages_is_shown(three: Cluster, browser: Browser) -> None:
    one = three.brokers[0]
    wanting = Client(three.brokers[1].port, client_id="wanting").subscribed("tree/#", 1)
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
    nasty = Client(one.port, client_id=NASTY).subscribed(f"{NASTY}/#", 1)
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


def test_a_client_of_any_broker_is_searched_and_disconnected(
    three: Cluster, browser: Browser
) -> None:
    one, two = three.brokers[:2]
    clients = [Client(two.port, client_id=f"dash-{number}", expiry=100) for number in range(3)]
    browser.open(page(one, "?b#clients"))
    browser.wait("document.querySelector('#view input[type=search]') !== null")
    browser.key("/")
    for letter in "DASH-1":
        browser.key(letter)
    browser.wait("document.querySelectorAll('#view tbody tr').length === 1")
    row = browser.run("document.querySelector('#view tbody tr').innerText")
    assert all(text in row for text in ("dash-1", two.name, "connected", "127.0.0.1:", "60 s"))
    browser.run("document.querySelector('#view tbody .danger').click()")
    browser.wait("document.querySelector('#dialog').open")
    browser.run("document.querySelector('#dialog .danger').click()")
    assert clients[1].lost.wait(60)
    browser.wait("document.querySelector('#view tbody').innerText.includes('away')")
    assert not clients[0].lost.is_set() and not clients[2].lost.is_set()
    # By its details the session ends, too.
    browser.run("document.querySelector('#view tbody .link').click()")
    for _ in range(2):
        browser.wait("document.querySelector('#dialog').open")
        browser.wait("document.querySelector('#dialog .danger')?.textContent === 'End session'")
        browser.run("document.querySelector('#dialog .danger').click()")
    browser.wait("document.querySelectorAll('#view tbody tr').length === 0")
    assert browser.errors == []
    for client in clients:
        client.close()


def test_clients_of_a_broker_that_hangs_are_stale(three: Cluster, browser: Browser) -> None:
    one, two = three.brokers[:2]
    client = Client(two.port, client_id="hanging", expiry=100)
    browser.open(page(one, "?hang#clients"))
    browser.wait("document.querySelector('#view tbody')?.innerText.includes('hanging')")
    two.pause()
    try:
        browser.run("document.querySelector('#view form').requestSubmit()")
        browser.wait("document.querySelector('#view tbody').innerText.includes('connected, stale')")
        said = browser.run(SAID)
        assert "; no answer of " in said and two.name in said
        # Its details are as last known, and offer nothing that its broker would have to do.
        browser.run("document.querySelector('#view input[type=search]').value = 'hanging'")
        browser.run("document.querySelector('#view form').requestSubmit()")
        browser.wait("document.querySelectorAll('#view tbody tr').length === 1")
        browser.run("document.querySelector('#view tbody .link').click()")
        browser.wait("document.querySelector('#dialog').open")
        details = browser.run("document.querySelector('#dialog').innerText")
        assert re.search(rf"broker\s+{two.name}\s+state\s+connected, stale", details)
        assert (
            re.search(r"keep alive\s+60 s\s+subscriptions\s+0\s", details)
            and "does not answer" in details
        )
        assert not re.search(r"\bhere\b|alive s|null|true|false|End session|no such", details)
        assert browser.errors == []
    finally:
        two.resume()
    three.settle()
    client.close()


def test_each_view_names_the_brokers_that_do_not_answer(tmp_path: Path, browser: Browser) -> None:
    with Cluster(tmp_path) as cluster:
        shown, dead, hung = (cluster.add() for _ in range(3))
        cluster.settle()
        dead.kill()
        hung.pause()
        left = {dead.name, hung.name}

        def lost() -> bool:
            known = shown.get("/api/v1/brokers")["brokers"]
            return {each["name"] for each in known if not each["reachable"]} == left

        # One that was asked and did not answer within two seconds ...
        browser.open(page(shown, "?silent#listeners"))
        browser.wait(f"document.querySelector('#view')?.innerText.includes('{NO_ANSWER}')")
        # ... and one that cannot be asked.
        until(lost, "the others cannot be reached")
        for view in VIEWS_OF_BROKERS:
            browser.open(page(shown, f"?{view}#{view}"))
            browser.wait(f"document.querySelector('#view')?.innerText.includes('{NO_ANSWER}')")
        browser.open(page(shown, "?past"))
        browser.wait("document.querySelector('#past') !== null")
        browser.run("document.querySelector('#past summary').click()")
        browser.wait(f"document.querySelector('#past').innerText.includes('{NO_ANSWER}')")
        assert browser.errors == []


def test_no_rows_of_another_broker_stand_for_one_that_hangs(
    tmp_path: Path, browser: Browser
) -> None:
    with Cluster(tmp_path, link_timeout=60) as two:
        shown, hung = two.add(), two.add()
        two.settle()
        client = Client(shown.port, client_id="here").subscribed("here/#", 1)
        browser.open(page(shown, "?hung#subscriptions"))
        browser.wait("document.querySelector('#view tbody')?.innerText.includes('here/#')")
        hung.pause()
        browser.run("document.querySelector('#view select').selectedIndex = 1")
        browser.run("document.querySelector('#view form').requestSubmit()")
        browser.wait(f"{SAID}.includes('does not answer')")
        assert browser.run("document.querySelectorAll('#view tbody tr').length") == 0
        client.close()


def test_clients_of_a_broker_that_was_drained_are_under_its_name(
    tmp_path: Path, browser: Browser
) -> None:
    with Cluster(tmp_path) as two:
        shown, drained = two.add(), two.add()
        two.settle()
        Client(drained.port, client_id="parked", expiry=1000).close()
        until(lambda: shown.get("/api/v1/clients")["total"] == 1, "the client is known")
        ask(drained.admin, "POST", "/drain")
        until(lambda: not drained.running, "it has stopped")
        browser.open(page(shown, "?parked#clients"))
        browser.wait("document.querySelector('#view tbody')?.innerText.includes('parked')")
        row = "document.querySelector('#view tbody tr').innerText"
        assert drained.name in browser.run(row).split()
        said = browser.run(SAID)
        assert f"no answer of {drained.name}:" in said
        assert browser.errors == []


def test_totals_and_alarms_of_all_brokers_come_first(three: Cluster, browser: Browser) -> None:
    clients = [Client(broker.port) for broker in three.brokers]
    browser.open(page(three.brokers[0], "?totals"))
    first = "document.querySelector('#view')?.firstChild"
    browser.wait(f"{first}?.innerText.includes('3 of 3')")
    browser.wait(f"/3\\s+Clients/.test({first}.innerText)")
    assert browser.run(f"{first}.nextSibling.id") == "attention"
    browser.run("document.querySelector('#past summary').click()")
    browser.wait("document.querySelector('#past li') !== null")
    assert browser.errors == []
    for client in clients:
        client.close()


def test_a_chart_says_what_was_when(three: Cluster, browser: Browser) -> None:
    browser.open(page(three.brokers[0], "?charts"))
    browser.wait("document.querySelectorAll('svg.chart').length === 5")
    card = "document.querySelector('#charts .card')"
    assert "messages/s" in browser.run(f"{card}.innerText")
    assert browser.run(f"{card}.querySelectorAll('svg text').length") >= 5
    assert browser.run(f"{card}.querySelector('.legend').innerText").endswith("now")
    browser.point("svg.chart")
    browser.wait(
        f"/published [\\d.]+.*\\sat \\d\\d:/s.test({card}.querySelector('.legend').innerText)"
    )
    assert browser.errors == []


def test_listeners_and_legs_of_all_brokers_are_shown(tmp_path: Path, browser: Browser) -> None:
    config = tmp_path / "leg.yaml"
    config.write_text("legs: {plant: {broker: '127.0.0.1:1', topic: ['a/# both 1']}}\n")
    with Cluster(tmp_path) as two:
        brokers = two.add(), two.add("-c", str(config))
        two.settle()
        browser.open(page(brokers[0], "?listeners#listeners"))
        browser.wait("document.querySelectorAll('#view tbody tr').length === 3")
        shown = browser.run("document.querySelector('#view').innerText")
        assert all(broker.address in shown for broker in brokers)
        leg = browser.run("document.querySelector('#legs tbody').innerText")
        assert brokers[1].name in leg and "plant" in leg and "127.0.0.1:1" in leg
        assert browser.errors == []


def test_another_broker_is_drained(tmp_path: Path, browser: Browser) -> None:
    with Cluster(tmp_path) as two:
        shown, drained = two.add(), two.add()
        two.settle()
        browser.open(page(shown, "?drain"))
        browser.wait("document.querySelectorAll('#graph g').length === 2")
        browser.run(
            "document.querySelector('#graph g:not(.here)').dispatchEvent(new Event('click'))"
        )
        browser.wait("document.querySelector('#details .danger') !== null")
        browser.run("document.querySelector('#details .danger').click()")
        browser.wait("document.querySelector('#dialog .danger')?.textContent === 'Drain'")
        browser.run("document.querySelector('#dialog .danger').click()")
        browser.wait("document.querySelector('#dialog').innerText.includes('drains')")
        until(lambda: not drained.running, "it has stopped")
        assert drained.lines("drained in")


def test_the_alarm_of_a_broker_that_is_gone_is_dismissed(tmp_path: Path, browser: Browser) -> None:
    with Cluster(tmp_path) as two:
        shown, gone = two.add(), two.add()
        two.settle()
        gone.kill()
        browser.open(page(shown, "?gone"))
        text = f"{gone.name} is gone since"
        browser.wait(f"document.querySelector('#alarms')?.innerText.includes('{text}')")
        browser.run("document.querySelector('#alarms button').click()")
        browser.wait(f"!document.querySelector('#alarms').innerText.includes('{text}')")
        browser.run("document.querySelector('#past summary').click()")
        browser.wait(f"document.querySelector('#past').innerText.includes('{text}')")
        assert browser.errors == []


LABELS_ON_NODES = """
(() => {
  const boxes = (what) =>
    [...document.querySelectorAll(`#graph ${what}`)].map((each) => each.getBoundingClientRect());
  const apart = (a, b) => a.left >= b.right - 2 || b.left >= a.right - 2
    || a.top >= b.bottom - 2 || b.top >= a.bottom - 2;
  return boxes("text").filter((a) => boxes("circle").some((b) => !apart(a, b))).length;
})()
"""
COLUMNS_OF_A_LETTER = """
[...document.querySelectorAll("td, dd, h2")].filter((each) => each.innerText.length > 3
  && each.getClientRects().length && each.getBoundingClientRect().width < 20).length
"""
TABLES_TOO_WIDE = """
[...document.querySelectorAll(".scrolls")].filter((t) => t.scrollWidth > t.clientWidth).length
"""
VIEWS = "[...document.querySelectorAll('#tabs button')].map((tab) => tab.dataset.view)"
LINES_OF_TABS = (
    "new Set([...document.querySelectorAll('#tabs button')].map((each) => each.offsetTop)).size"
)


@pytest.mark.parametrize("scheme", ("light", "dark"))
@pytest.mark.parametrize("width", (390, 800, 1300))
def test_the_page_fits(width: int, scheme: str, three: Cluster, browser: Browser) -> None:
    long = Client(three.brokers[1].port, client_id="greenhouse-north-sensor-" + "0123456789" * 9)
    browser.size(width, 844)
    browser.scheme(scheme)
    try:
        browser.open(page(three.brokers[0], f"?{width}{scheme}"))
        browser.wait("document.querySelectorAll('#graph g').length === 3")
        browser.run("document.querySelector('#graph g').dispatchEvent(new Event('click'))")
        browser.wait("document.querySelector('#details').textContent.includes('Links')")
        assert browser.run(LABELS_ON_NODES) == 0
        graph, details = (
            browser.run(f"document.querySelector('{what}').getBoundingClientRect().top")
            for what in ("#graph", "#details")
        )
        assert (details < graph) is (width == 1300), "details are beside the graph where they fit"
        for view in browser.run(VIEWS):
            browser.run(f"location.hash = '{view}'")
            browser.wait(f"document.querySelector('[data-view={view}]').ariaSelected === 'true'")
            if view == "clients":
                browser.wait("document.querySelector('#view tbody').children.length > 0")
            assert browser.run("document.documentElement.scrollWidth") <= width, view
            assert browser.run(COLUMNS_OF_A_LETTER) == 0, view
            assert browser.run(LINES_OF_TABS) == 1
            assert browser.run(TABLES_TOO_WIDE) == 0, view
        colour = "getComputedStyle(document.body).backgroundColor"
        assert browser.run(colour) == (
            "rgb(246, 247, 249)" if scheme == "light" else "rgb(17, 22, 28)"
        )
        before = browser.run(colour)
        browser.run("document.activeElement.blur()")
        browser.key("d")
        assert browser.run(colour) != before
        assert browser.errors == []
    finally:
        browser.run("localStorage.clear()")
        browser.scheme("")
        browser.size(1280, 900)
        long.close()


WORDS_BROKEN = """
[...document.querySelectorAll("td, dd, h2")].flatMap((cell) => {
  const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT), found = [];
  let node, word = "", broken = false, bottom = Infinity;
  const end = () => {
    if (broken && word.length <= 12) found.push(word);
    [word, broken] = ["", false];
  };
  while (node = walker.nextNode()) for (let at = 0; at < node.length; at += 1) {
    const range = document.createRange();
    range.setStart(node, at);
    range.setEnd(node, at + 1);
    const box = range.getBoundingClientRect();
    if (!box.height) continue;
    if (box.top >= bottom && word) broken = true;
    bottom = box.bottom;
    word += node.data[at];
    if (/[ ./:_@-]/.test(node.data[at])) end();
  }
  end();
  return found;
})
"""
TABS_CUT = """
(() => {
  const tabs = document.querySelector("#tabs"), left = Math.round(tabs.scrollLeft);
  return [left, tabs.scrollWidth - tabs.clientWidth - left];
})()
"""
TABS_FADE = f"""
{TABS_CUT}.every((cut, at) => {{
  const shown = getComputedStyle(document.querySelector("#tabs"));
  return (cut > 0) === parseFloat(shown.getPropertyValue(at ? "--after" : "--before")) > 0;
}})
"""
WIDTHS = (360, 390, 500, 640, 700, 760, 800, 900, 1000, 1100, 1200, 1300, 1400)


@pytest.fixture(scope="module")
def long_names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two brokers whose names, clients, users, topics and listeners have long names."""
    folder = tmp_path_factory.mktemp("long")
    config = folder / "long.yaml"
    config.write_text(
        "listeners:\n"
        "  default: {type: tcp, bind: '127.0.0.1:0'}\n"
        "  web-sockets-of-the-greenhouses-in-the-north: {type: ws, bind: '127.0.0.1:0'}\n"
        "legs: {plant-of-the-greenhouses: {broker: 'plant.greenhouse.example.invalid:1', "
        "topic: ['a/# both 1']}}\n"
    )
    with Cluster(folder) as cluster:
        for side in ("north", "south"):
            cluster.add("--name", f"{side}-1.gateway.example.internal", "-c", str(config))
        cluster.settle()
        yield cluster


def test_tables_and_tabs_fit_at_every_width(long_names: Cluster, browser: Browser) -> None:
    one, two = long_names.brokers
    name = "thermometer-{}.greenhouse_north.example.internal:sensors/temperature"
    clients = [
        Client(broker.port, client_id=name.format(broker.name), user=(name.format("user"), "x"))
        for broker in (one, two)
    ]
    for client in clients:
        client.subscribe("plant/greenhouses/north/thermometers/+/temperature", 1)
        client.subscribe("$share/greenhouses/plant/greenhouses/north/thermometers/#", 1)
        client.publish("plant/greenhouses/north/thermometers/1/temperature", b"7", 1, retain=True)
    browser.size(1400, 844)
    try:
        for view in ("overview", *VIEWS_OF_BROKERS):
            browser.open(page(one, f"?long{view}#{view}"))
            browser.wait("document.querySelector('#connection')?.textContent === 'live'")
            if view in ("overview", "clients", "listeners"):
                browser.wait("document.querySelectorAll('#view tbody tr').length >= 2")
            for width in WIDTHS:
                browser.size(width, 844)
                # Nothing is drawn before the page has heard of its width.
                browser.run("new Promise(requestAnimationFrame)")
                assert browser.run(TABLES_TOO_WIDE) == 0, (view, width)
                assert browser.run("document.documentElement.scrollWidth") <= width, (view, width)
                assert browser.run(WORDS_BROKEN) == [], (view, width)
                browser.wait(TABS_FADE)
                assert width < 800 or browser.run(TABS_CUT) == [0, 0], (view, width)
        assert browser.errors == []
    finally:
        browser.size(1280, 900)
        for client in clients:
            client.close()


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


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Broker]:
    """A broker with a WebSocket listener."""
    config = tmp_path / "config.yaml"
    (tmp_path / "users").touch(0o600)
    config.write_text(
        "listeners:\n"
        "  default: {type: tcp, bind: '127.0.0.1:0'}\n"
        "  web: {type: ws, bind: '127.0.0.1:0'}\n"
        f"access: {{users: {tmp_path}/users, anonymous: yes}}\n"
    )
    broker = Broker(
        tmp_path, "web", ["-c", str(config), "--discovery", "off"], cluster="ws", listen=False
    )
    broker.start()
    try:
        until(lambda: broker.lines("listens on"), "the broker is there")
        yield broker
    finally:
        broker.kill()


def submit(browser: Browser, form: int) -> None:
    """Press the button of one of the console's forms: the connection, subscribing, publishing."""
    browser.run(f"document.querySelectorAll('#view form')[{form}].requestSubmit()")


def choose(browser: Browser, label: str, value: str) -> None:
    """Fill in one of the console's fields."""
    field = f"document.querySelector('[aria-label=\"{label}\"]')"
    browser.run(f"{field}.value = '{value}'; {field}.dispatchEvent(new Event('change'))")


def open_console(browser: Browser, broker: Broker, name: str) -> None:
    """Connect the console to the listener that there is; `name`: of this visit."""
    browser.open(page(broker, f"?{name}#console"))
    browser.wait(
        "/^ws:/.test(document.querySelector('[aria-label=\"WebSocket listener\"]')?.value)"
    )
    submit(browser, 0)
    browser.wait(f"{SAID} === 'connected'")


def test_the_console_talks_mqtt_over_a_websocket(web: Broker, browser: Browser) -> None:
    log = "document.querySelector('#view tbody').innerText"
    open_console(browser, web, "talk")
    choose(browser, "QoS of the subscription", "2")
    submit(browser, 1)
    browser.wait(f"{SAID} === 'subscribed to # at QoS 2'")
    for qos in "012":
        choose(browser, "QoS of the message", qos)
        choose(browser, "message", f"hello {qos}")
        submit(browser, 2)
        browser.wait(f"{SAID}.startsWith('published to try/this at QoS {qos}')")
        browser.wait(f"{log}.includes('hello {qos}')")
    browser.run("document.querySelector('#view input[type=checkbox]').click()")
    choose(browser, "topic", "try/kept")
    submit(browser, 2)
    browser.wait(f"{log}.includes('try/kept')")
    assert web.view()["retained"] == 1
    browser.run("document.querySelector('[data-filter]').click()")
    browser.wait(f"{SAID} === 'unsubscribed from #'")
    submit(browser, 1)
    browser.wait(f"{log}.includes('retained')")
    submit(browser, 0)
    browser.wait(f"{SAID} === 'not connected'")
    # What goes wrong is said.
    choose(browser, "user", "nobody")
    choose(browser, "password", "wrong")
    submit(browser, 0)
    browser.wait(f"/^refused: .*0x8[67]/.test({SAID})")
    assert browser.errors == []
    choose(browser, "WebSocket listener", "another address")
    choose(browser, "address", f"ws://127.0.0.1:{web.port}/mqtt")
    submit(browser, 0)
    browser.wait(f"{SAID}.includes('nothing answers there')")


def test_the_console_sends_nothing_that_ends_its_connection(web: Broker, browser: Browser) -> None:
    open_console(browser, web, "wrong")
    for wrong in ("a#", "a/#/b", "a+/b", "$share/g", "$share/+/a"):
        choose(browser, "topic filter", wrong)
        submit(browser, 1)
        browser.wait(f"{SAID} === '{wrong} is no topic filter'")
    for right in ("#", "+/a/#", "/", "$share", "$share/g/#"):
        choose(browser, "topic filter", right)
        submit(browser, 1)
        browser.wait(f"{SAID}.startsWith('subscribed to {right} at QoS')")
    for wrong in ("a/#", "+"):
        choose(browser, "topic", wrong)
        submit(browser, 2)
        browser.wait(f"{SAID} === '{wrong} is no topic name'")
    assert browser.run("document.querySelectorAll('[data-filter]').length") == 5
    submit(browser, 0)
    browser.wait(f"{SAID} === 'not connected'")
    choose(browser, "WebSocket listener", "another address")
    for wrong in ("", "nonsense", "http://x"):
        choose(browser, "address", wrong)
        submit(browser, 0)
        browser.wait(f"{SAID} === 'the address must begin with ws:// or wss://'")
    assert browser.errors == []
