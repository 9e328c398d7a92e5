"""The HTML report as a person sees it: in Chromium, on a phone and a desktop, light and dark.

The checks run inside the page (page_checks.js) and speak of what is painted:
nothing overlaps, nothing is cut off, nothing scrolls sideways, text stands out
from its background, axes have units.  Each check is also seen to fail on a page
with that fault.  With TRAINRIG_SCREENSHOTS=DIR the pictures are kept there.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import experiment_views
import report_views
from trainrig.record import RunView
from trainrig.report.run_report import render_html

pytestmark = pytest.mark.needs("chromium")

CHECKS = (Path(__file__).resolve().parents[2] / "tests" / "support" / "page_checks.js").read_text()
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
ARGUMENTS += ["--disable-component-update", "--disable-sync"]
WIDTHS = {"phone": 390, "desktop": 1440}
THEMES = ("light", "dark")


def demo_views() -> list[RunView]:
    from trainrig.cli.report import read_view
    from trainrig.report import DEMO as BUNDLE

    return [read_view(BUNDLE)]


def rack_views() -> list[RunView]:
    views = []
    for n in range(8):
        view = report_views.gpu_view(2, slow_card=1 if n == 3 else None)
        machine = {**(view.machine or {}), "host": {"hostname": f"node{n:02}"}}
        views.append(dataclasses.replace(view, machine=machine, name=f"run of node{n:02}"))
    return views


VIEWS: dict[str, Callable[[], list[RunView]]] = {
    "demo": demo_views,
    "layers and a step": lambda: [report_views.layers_view()],
    "one GPU": lambda: [report_views.gpu_view()],
    "eight GPUs, one odd": lambda: [report_views.gpu_view(8, slow_card=3)],
    "no GPU": lambda: [report_views.cpu_view()],
    "cut off": lambda: [report_views.cut_off_view()],
    "hostile": lambda: [report_views.hostile_view()],
    "experiments": lambda: [experiment_views.experiments_view()],
    "experiments of two runs": experiment_views.two_views,
    "eight nodes": rack_views,
    "two runs": lambda: [report_views.gpu_view(2, slow_card=1), report_views.cpu_view()],
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield browser
        browser.close()


def open_page(browser: Any, html: str, width: int, theme: str) -> Any:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.set_content(html)
    assert not requests, f"the page asks for {requests}"
    return page


def keep(page: Any, name: str) -> None:
    folder = os.environ.get("TRAINRIG_SCREENSHOTS")
    if folder:
        page.screenshot(path=Path(folder) / f"{name.replace(' ', '-')}.png", full_page=True)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("device", WIDTHS)
@pytest.mark.parametrize("name", VIEWS)
def test_nothing_is_wrong_to_the_eye(browser: Any, name: str, device: str, theme: str) -> None:
    page = open_page(browser, render_html(VIEWS[name]()), WIDTHS[device], theme)
    keep(page, f"{name}-{WIDTHS[device]}-{theme}")
    assert page.evaluate(CHECKS) == []
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true })")
    assert page.evaluate(CHECKS) == []
    page.close()


@pytest.mark.parametrize("name", ["one GPU", "layers and a step"])
@pytest.mark.parametrize("width", [320, 768, 1000, 1024])
def test_widths_between(browser: Any, width: int, name: str) -> None:
    page = open_page(browser, render_html(VIEWS[name]()), width, "light")
    assert page.evaluate(CHECKS) == []
    page.close()


FIRST = {"desktop": (1440, 900), "phone": (390, 844)}


@pytest.mark.parametrize("device", FIRST)
@pytest.mark.parametrize("name", ["demo", "layers and a step", "one GPU", "experiments", "no GPU"])
def test_the_first_screen_holds_what_a_run_came_to(browser: Any, name: str, device: str) -> None:
    """Outcome, date, sentence, numbers and actions, without scrolling."""
    width, height = FIRST[device]
    page = open_page(browser, render_html(VIEWS[name]()), width, "light")
    parts = [".badge", "p.t-strong", ".tiles", ".card .findings"]
    shown = [part for part in parts if page.locator(part).count()]
    assert shown[:2] == parts[:2]
    for part in shown:
        box = page.locator(part).first.bounding_box()
        assert box["y"] + box["height"] <= height, part
    page.close()


def test_contents_lead_to_headings(browser: Any) -> None:
    page = open_page(browser, render_html(VIEWS["experiments"]()), 390, "light")
    links = page.locator(".contents a").evaluate_all("links => links.map(l => l.hash)")
    assert len(links) > 2
    assert all(page.locator(f"section{link}").count() == 1 for link in links)
    page.close()


AXES = (
    "<svg viewBox='0 0 900 40'><text class='axis' x='2' y='14'>{}</text>"
    "<text class='axis' x='300' y='14'>{}</text></svg>"
)
FAULTS = {
    "overlap": "<div style='position:relative'><p>one text</p>"
    "<p style='position:absolute;top:0;left:4px'>another</p></div>",
    "contrast": "<p style='color:#8a8f98;background:#ffffff'>pale text</p>",
    "horizontal scroll": "<div style='width:4000px'>wide</div>",
    "outside the window": "<p style='position:absolute;left:-60px'>half of this is gone</p>",
    "clipped or beside its box": "<span style='display:block;width:30px;white-space:nowrap'>"
    "longer than its box</span>",
    "text too small": "<p style='font-size:7px'>tiny</p>",
    "axis without a title": AXES.format("GB/s", "").replace("<text class='axis' x='300'", "<text"),
    "y axis without a unit": AXES.format("speed", "Elements"),
    "x axis without a unit": AXES.format("GB/s", "how much"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_check_catches_its_fault(browser: Any, fault: str) -> None:
    html = render_html([report_views.cpu_view()])
    page = open_page(browser, html.replace("</main>", FAULTS[fault] + "</main>"), 1440, "light")
    assert any(found.startswith(fault) for found in page.evaluate(CHECKS))
    page.close()


def test_svg_text_outside_its_chart_is_caught(browser: Any) -> None:
    html = render_html([report_views.cpu_view()])
    cut = "<text x='9990' y='20'>past the edge</text></svg>"
    page = open_page(browser, html.replace("</svg>", cut), 1440, "light")
    assert any("clipped" in found for found in page.evaluate(CHECKS))
    page.close()
