"""The page of results in a real browser: readable on a phone, and nothing cut off."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the page needs pyarrow (the extra bench)")

from mqttree.bench.report.page import page
from tests.kit.browser import Browser
from tests.kit.report import made_up

pytestmark = pytest.mark.interop

LOADED = "document.readyState === 'complete' && document.querySelectorAll('svg').length"
WIDE = """
(() => {
  document.querySelectorAll('details').forEach(each => each.open = true);
  const width = document.documentElement.clientWidth;
  const boxed = each => each.closest('.box') || each.closest('svg') || each.closest('pre');
  return [...document.body.querySelectorAll('*')]
    .filter(each => !boxed(each) && each.getBoundingClientRect().right > width + 1)
    .map(each => each.tagName + ': ' + each.textContent.slice(0, 60))
    .concat(document.documentElement.scrollWidth > width ? ['the page scrolls sideways'] : []);
})()
"""
CLIPPED = """
[...document.querySelectorAll('svg')].flatMap(svg => {
  const frame = svg.viewBox.baseVal;
  const title = svg.querySelector('text.t').textContent;
  return [...svg.querySelectorAll('text, path, circle, rect')].filter(each => {
    const box = each.getBBox();
    const turned = each.getAttribute('transform');
    const [x, y, w, h] = turned
      ? [0, box.x + box.width / 2 + frame.height / 2 - box.width, 0, box.width]
      : [box.x, box.y, box.width, box.height];
    return x < -0.5 || y < -0.5 || x + w > frame.width + 0.5
      || (!turned && y + h > frame.height + 0.5)
      || (turned && box.width > frame.height);
  }).map(each => title + ': ' + each.tagName + ' ' + each.textContent);
})
"""
OVERLAPS = """
[...document.querySelectorAll('svg')].flatMap(svg => {
  const boxes = [...svg.querySelectorAll('text.x:not([transform])')]
    .filter(each => each.textContent)
    .map(each => [each.textContent, each.getBBox()]);
  const title = svg.querySelector('text.t').textContent;
  return boxes.flatMap(([name, a], i) => boxes.slice(i + 1)
    .filter(([, b]) => a.x < b.x + b.width - 1 && b.x < a.x + a.width - 1
      && a.y < b.y + b.height - 1 && b.y < a.y + a.height - 1)
    .map(([other]) => `${title}: ${name} | ${other}`));
})
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    made = Browser()
    yield made
    made.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page(made_up(), "mqttree bench report x"), encoding="utf-8")
    return path.as_uri()


def found(browser: Browser, script: str) -> Any:
    return json.loads(browser.run(f"JSON.stringify({script})"))


@pytest.mark.parametrize("width", [390, 1300])
def test_the_page_fits_its_window_and_cuts_nothing_off(
    browser: Browser, address: str, width: int
) -> None:
    browser.size(width, 800)
    browser.open(address)
    browser.wait(LOADED)
    assert found(browser, WIDE) == []
    assert found(browser, CLIPPED) == []
    assert found(browser, OVERLAPS) == []
    assert browser.errors == []


def test_the_summary_is_first_and_both_axes_of_each_plot_are_named(
    browser: Browser, address: str
) -> None:
    browser.open(address)
    browser.wait(LOADED)
    assert browser.run("document.querySelector('h2').textContent") == "Summary"
    items = found(browser, "[...document.querySelectorAll('.summary li')].map(e => e.textContent)")
    assert len(items) <= 10 and " statements of the papers, " in items[0]
    unnamed = """
      [...document.querySelectorAll('svg')].filter(svg => {
        const words = [...svg.querySelectorAll('text.x:not(.small)')];
        const below = words.filter(each => each.getAttribute('y') == 274);
        const beside = words.filter(each => each.getAttribute('transform'));
        return below.length !== 1 || beside.length !== 1
          || !below[0].textContent || !beside[0].textContent;
      }).map(svg => svg.textContent.slice(0, 80))
    """
    assert found(browser, unnamed) == []
    papers = found(browser, "[...document.querySelectorAll('h2.paper')].map(e => e.textContent)")
    assert papers == ["MQTT-ST", "Overlays", "Hetero", "Federator", "Scaling", "EMQ", "Ours"]
