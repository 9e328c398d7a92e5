"""The page of what is normal in Chromium: nothing is cut off; it sorts and filters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainrig.analysis.normal import PublishedSelection, published_cases
from trainrig.report.published_page import published_page

pytestmark = pytest.mark.needs("chromium")

CHECKS = (Path(__file__).resolve().parents[2] / "tests" / "support" / "page_checks.js").read_text()
ROWS = "#cases tbody tr:not([hidden])"


@pytest.fixture(scope="module")
def html() -> str:
    return published_page(published_cases(), PublishedSelection())


@pytest.mark.parametrize(("width", "theme"), [(390, "light"), (1440, "dark")])
def test_nothing_is_wrong_to_the_eye(browser: Any, html: str, width: int, theme: str) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
    page.set_content(html)
    assert page.evaluate(CHECKS) == []
    page.close()


def test_it_sorts_and_filters(browser: Any, html: str) -> None:
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    faults: list[str] = []
    page.on("console", lambda message: faults.append(message.text))
    page.set_content(html)
    page.select_option("[data-key=kind]", "matmul")
    page.select_option("[data-key=card]", "RTX 4090")
    page.click("#cases th:nth-child(4) button")
    cells = (
        f"Array.from(document.querySelectorAll('{ROWS} td:nth-child(4)')).map(c => +c.dataset.v)"
    )
    values = page.evaluate(cells)
    assert values and values == sorted(values, reverse=True)
    page.click("#cases th:nth-child(4) button")
    assert page.evaluate(cells) == sorted(values)
    assert page.inner_text(".filters output").startswith(f"{len(values)} of ")
    page.fill("[name=text]", "no such words")
    assert page.locator(ROWS).count() == 0
    page.click("button[type=reset]")
    page.wait_for_function(f"document.querySelectorAll('{ROWS}').length > 1000")
    assert faults == []
    page.close()


def test_it_is_whole_without_script(browser: Any, html: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.set_content(html)
    assert page.locator(ROWS).count() == len(published_cases())
    assert not page.locator(".filters").is_visible()
    context.close()
