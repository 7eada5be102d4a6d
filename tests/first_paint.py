"""How soon a browser paints the dashboard of one of three brokers: `python -m tests.first_paint`.

Each load has a browser of its own. It is measured twice: as the first page that the browser has at
all, and again with nothing in its cache. What the browser calls first contentful paint counts from
the beginning of the navigation (ms).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from statistics import median

from tests.kit.brokers import Cluster
from tests.kit.browser import Browser

LOADS = 12
HOW = ("the browser's first page", "in a browser that runs")
FOUND = "performance.getEntriesByName('first-contentful-paint').map(each => each.startTime)[0]"


def main() -> int:
    """Print the least, the median and the longest time; return the exit code."""
    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder)) as cluster:
        for name in ("one", "two", "three"):
            cluster.add("--name", name)
        cluster.settle()
        loads = [_load(f"http://127.0.0.1:{cluster.brokers[0].admin}/") for _ in range(LOADS)]
    for how, times in zip(HOW, zip(*loads, strict=True), strict=True):
        print(
            f"{how}: least {min(times):.0f} ms, median {median(times):.0f}, most {max(times):.0f}"
        )
    return 0


def _load(url: str) -> tuple[float, float]:
    browser = Browser()
    try:
        browser.size(1280, 900)
        first = _painted(browser, url)
        browser.call("Network.clearBrowserCache")
        browser.open("about:blank")
        return first, _painted(browser, url)
    finally:
        browser.close()


def _painted(browser: Browser, url: str) -> float:
    browser.open(url)
    browser.wait(f"{FOUND} > 0")
    return float(browser.run(FOUND))


if __name__ == "__main__":
    sys.exit(main())
