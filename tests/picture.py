"""`make picture`: the dashboard of five brokers with clients, as pictures for the pages: the file
that is named, and that of a phone beside it (FILE-phone.png).

Which broker is the root, and where each one stands, is as it happens. With an address and the file
of a token (`python -m tests.picture FILE ADDRESS TOKEN_FILE`): of three brokers that run already.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.kit.brokers import Cluster
from tests.kit.browser import Browser
from tests.kit.clients import Client
from tests.kit.waiting import until

NAMES = ("hall", "kitchen", "garden", "workshop", "office")
TOPICS = ("home/kitchen/temperature", "home/garden/rain", "home/hall/door", "plant/press/1/state")


def main(words: Sequence[str]) -> int:
    """Write the picture to the file that is named; return the exit code."""
    path, *running = words
    if running:
        address, token_file = running
        _take_running(address, Path(token_file).read_text().strip(), Path(path))
        return 0
    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder)) as cluster:
        cluster.cluster = "home"
        for name in NAMES:
            cluster.add("--name", name)
        cluster.settle()
        clients = [
            Client(broker.port, client_id=f"{name}-{number}", expiry=60)
            for broker, name in zip(cluster.brokers, NAMES, strict=True)
            for number in range(4)
        ]
        for number, client in enumerate(clients):
            client.subscribe(f"{TOPICS[number % 4].rpartition('/')[0]}/#", 1)
        browser = Browser()
        try:
            _take(browser, cluster, clients, Path(path))
        finally:
            browser.close()
        for client in clients:
            client.close()
    return 0


def _take(browser: Browser, cluster: Cluster, clients: list[Client], path: Path) -> None:
    browser.size(1300, 980)
    browser.open(f"http://127.0.0.1:{cluster.brokers[0].admin}/")
    browser.wait("document.querySelectorAll('#origin option').length === 6")
    browser.run(
        "(() => { const box = document.querySelector('#origin'); box.selectedIndex = 2;"
        " box.dispatchEvent(new Event('change')); })()"
    )
    browser.wait("document.querySelectorAll('#graph line.path').length === 4")
    # The charts need two rows of the history, one each ten seconds; each round is traffic.
    until(lambda: _rounds(browser, clients), "charts with lines")
    path.parent.mkdir(parents=True, exist_ok=True)
    browser.run("document.querySelectorAll('#graph g')[2].dispatchEvent(new Event('click'))")
    browser.wait("document.querySelector('#details').textContent.includes('Links')")
    browser.run("scrollTo(0, 0)")
    browser.picture(path)
    browser.scheme("dark")
    browser.size(390, 844)
    browser.wait("document.querySelector('#graph').clientWidth < 390")
    browser.picture(path.with_stem(f"{path.stem}-phone"))


def _take_running(address: str, token: str, path: Path) -> None:
    """Write the picture of three brokers, of which one has its dashboard at `address`."""
    browser = Browser()
    try:
        browser.size(1280, 900)
        browser.open(f"{address}#token={token}")
        browser.wait("document.querySelectorAll('#origin option').length === 4")
        path.parent.mkdir(parents=True, exist_ok=True)
        browser.picture(path)
    finally:
        browser.close()


def _rounds(browser: Browser, clients: list[Client]) -> bool:
    for number, client in enumerate(clients):
        client.publish(TOPICS[number % 4], b"%d" % number, 1)
    return bool(browser.run("document.querySelectorAll('svg.chart').length >= 5"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
