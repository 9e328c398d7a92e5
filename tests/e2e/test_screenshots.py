"""The HTML report as a person sees it: in Chromium, on a phone and a desktop, light and dark.

The checks run inside the page (page_checks.js) and speak of what is painted:
nothing overlaps, nothing is cut off, nothing scrolls sideways, text stands out
from its background, axes have units.  Each check is also seen to fail on a page
with that fault.  With TRAINRIG_SCREENSHOTS=DIR the pictures are kept there.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import experiment_views
import report_views
from trainrig.analysis.compare import compare_runs
from trainrig.language import activate
from trainrig.record import RunView
from trainrig.report.compare_report import comparisons_document
from trainrig.report.render.html import to_html
from trainrig.report.run_report import render_html

pytestmark = pytest.mark.needs("chromium")

CHECKS = (Path(__file__).resolve().parents[2] / "tests" / "support" / "page_checks.js").read_text()
WIDTHS = (390, 1024)


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
    "long FAIL": lambda: [report_views.long_fail_view()],
    "cut off": lambda: [report_views.cut_off_view()],
    "hostile": lambda: [report_views.hostile_view()],
    "experiments": lambda: [experiment_views.experiments_view()],
    "experiments of two runs": experiment_views.two_views,
    "eight nodes": rack_views,
    "two runs": lambda: [report_views.gpu_view(2, slow_card=1), report_views.cpu_view()],
}


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


def compared(*others: int) -> str:
    base, *rest = rack_views()
    return to_html(comparisons_document([compare_runs(base, rest[n]) for n in others]))


@cache
def html_of(name: str, language: str = "en") -> str:
    activate(language)
    try:
        if name in COMPARED:
            return compared(*COMPARED[name])
        return render_html(VIEWS[name]())
    finally:
        activate("en")


COMPARED = {"compare two": (2,), "compare eight": (2, 0, 1, 3, 4, 5, 6)}
IN_CHINESE = ("demo", "long FAIL", "compare eight")
OPEN = "document.querySelectorAll('details').forEach((d) => { d.open = true })"


@pytest.mark.parametrize(
    ("name", "language"),
    [
        *((name, "en") for name in [*VIEWS, *COMPARED]),
        *((name, "zh-CN") for name in IN_CHINESE),
        *(
            pytest.param(name, "zh-CN", marks=pytest.mark.acceptance)
            for name in ("layers and a step", "no GPU", "experiments", "eight nodes", "compare two")
        ),
    ],
)
def test_nothing_is_wrong_to_the_eye(browser: Any, name: str, language: str) -> None:
    """At each width, as it opens; folded parts open, and dark, where that can make a difference."""
    page = open_page(browser, html_of(name, language), 390, "light")
    faults = {}
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        keep(page, f"{name}-{language}-{width}-light")
        faults[width] = page.evaluate(CHECKS)
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 1440, "height": 900})
    keep(page, f"{name}-{language}-1440-dark")
    page.evaluate(OPEN)
    faults["dark, open"] = page.evaluate(CHECKS)
    page.set_viewport_size({"width": 390, "height": 844})
    faults["dark, open, phone"] = page.evaluate(CHECKS)
    assert not any(faults.values()), faults
    assert len(html_of(name, language)) < 2e6
    page.close()


@pytest.mark.parametrize("name", ["one GPU", "layers and a step"])
def test_widths_between(browser: Any, name: str) -> None:
    page = open_page(browser, html_of(name), 320, "light")
    for width in (320, 768, 1000):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate(CHECKS) == [], width
    page.close()


def test_what_is_folded_is_printed(browser: Any) -> None:
    """Folded waterfalls and clamped reasons are whole on paper; on a screen they are not."""
    page = open_page(browser, html_of("long FAIL"), 1024, "light")
    state = """() => [document.querySelector(".fold .waterfall").checkVisibility(),
        document.querySelector(".long summary").getBoundingClientRect().height]"""
    is_shown, height = page.evaluate(state)
    page.emulate_media(media="print")
    is_printed, whole = page.evaluate(state)
    assert (is_shown, is_printed) == (False, True) and whole > height
    page.close()


@pytest.mark.parametrize("name", ["eight nodes", "compare eight"])
def test_a_table_is_a_table_on_paper(browser: Any, name: str) -> None:
    """A4 without its margins is narrower than a screen on which tables become lists."""
    page = open_page(browser, html_of(name, "zh-CN"), 718, "light")
    state = "() => document.querySelector('table.many thead').checkVisibility()"
    is_head_on_a_screen = page.evaluate(state)
    page.emulate_media(media="print")
    assert (is_head_on_a_screen, page.evaluate(state)) == (False, True)
    assert page.evaluate(CHECKS) == []
    page.close()


FIRST = {"desktop": (1440, 900), "phone": (390, 844)}


@pytest.mark.parametrize(
    ("name", "language"),
    [
        *((name, "en") for name in ("demo", "layers and a step", "one GPU", "experiments")),
        *((name, "en") for name in ("no GPU", "long FAIL", "eight nodes", *COMPARED)),
        *((name, "zh-CN") for name in IN_CHINESE),
    ],
)
def test_the_first_screen_holds_what_a_run_came_to(browser: Any, name: str, language: str) -> None:
    """Outcome, date, sentence, numbers and actions, without scrolling."""
    page = open_page(browser, html_of(name, language), FIRST["desktop"][0], "light")
    parts = [".badge", "p.t-strong", ".tiles", ".card .findings"]
    shown = [part for part in parts if page.locator(part).count()]
    # One GPU that is as expected has nothing to do.
    num = {"compare eight": 2, "one GPU": 3}.get(name, 4)
    assert shown[:num] == parts[:num]
    for device, (width, height) in FIRST.items():
        page.set_viewport_size({"width": width, "height": height})
        for part in shown:
            box = page.locator(part).first.bounding_box()
            assert box["y"] + box["height"] <= height, (device, part)
    page.close()


def test_contents_lead_to_headings(browser: Any) -> None:
    page = open_page(browser, html_of("demo"), 390, "light")
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
    "empty card": "<section class='card'><h3>Curves</h3></section>",
    "text over a bar": "<div class='split' style='position:relative;height:20px'>"
    "<i class='p2' style='width:99px'></i><b style='position:absolute;left:9px;top:0'>12</b></div>",
    "text too small": "<p style='font-size:7px'>tiny</p>",
    "axis without a title": AXES.format("GB/s", "").replace("<text class='axis' x='300'", "<text"),
    "y axis without a unit": AXES.format("speed", "Elements"),
    "x axis without a unit": AXES.format("GB/s", "how much"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_check_catches_its_fault(browser: Any, fault: str) -> None:
    html = html_of("no GPU")
    page = open_page(browser, html.replace("</main>", FAULTS[fault] + "</main>"), 1440, "light")
    assert any(found.startswith(fault) for found in page.evaluate(CHECKS))
    page.close()


def test_svg_text_outside_its_chart_is_caught(browser: Any) -> None:
    html = html_of("no GPU")
    cut = "<text x='9990' y='20'>past the edge</text></svg>"
    page = open_page(browser, html.replace("</svg>", cut), 1440, "light")
    assert any("clipped" in found for found in page.evaluate(CHECKS))
    page.close()
