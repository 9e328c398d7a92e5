"""Pages of a build, a cost question and predictions in a browser: nothing overlaps or is cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tomli_w
from tests.unit.procure.test_build_rules import ONE, changed, part

pytestmark = pytest.mark.needs("chromium")

CHECKS = (Path(__file__).resolve().parents[2] / "tests" / "support" / "page_checks.js").read_text()


def look(browser: Any, file: Path) -> None:
    for theme, width in (("light", 390), ("dark", 1440)):
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
        page.set_content(file.read_text())
        assert page.evaluate(CHECKS) == [], (width, theme)
        page.close()


TWO = changed(ONE, gpu=part("MSI RTX 4090 Ventus 3X OC", 2), psu=part("Seasonic Vertex GX-1000"))


@pytest.mark.parametrize("content", [ONE, TWO], ids=["legal", "refused"])
def test_the_page_of_a_build(browser: Any, trainrig: Any, tmp_path: Path, content: dict) -> None:
    file, page = tmp_path / "machine.toml", tmp_path / "machine.html"
    file.write_text(tomli_w.dumps(content))
    code, _, _ = trainrig("build", "check", str(file), "--html", str(page))
    assert code == (0 if content is ONE else 1)
    assert ("LEGAL" if content is ONE else "REFUSED") in page.read_text()
    look(browser, page)


def test_the_page_of_a_cost_question(browser: Any, trainrig: Any, tmp_path: Path) -> None:
    page = tmp_path / "cost.html"
    words = ("--buy", "200000", "--rent-per-hour", "32", "--spot-per-hour", "14", "--resale", "0.2")
    goal = ("--model", "gpt2", "--on", "RTX 4090", "--gpus", "1", "--tokens", "1e9")
    more = ("--mtbf-hours", "100", "--kwh-price", "0.2", "--currency", "USD")
    code, _, _ = trainrig("cost", *words, *goal, *more, "--html", str(page))
    assert code == 0 and "What matters most" in page.read_text()
    look(browser, page)


RIG = ("--model", "gpt2-xl", "--on", "RTX 3090 Ti", "--gpus", "16")
PAGES = {
    "fits": ("--model", "llama-7B", "--on", "RTX 4090"),
    "predict": (*RIG, "--zero", "3", "--tokens", "1e10", "--what-if", "eth-1,nvlink"),
    "plan": (*RIG, "--global-batch", "64", "--tokens", "1e10", "--what-if", "eth-1"),
    "predict-beside": ("--model", "gpt2", "--on", "RTX 4090", "--on", "RTX 3090"),
}


@pytest.mark.parametrize("verb", PAGES)
def test_the_page_of_a_prediction(browser: Any, trainrig: Any, tmp_path: Path, verb: str) -> None:
    """The answer is the headline; a table follows, then what was presumed."""
    page = tmp_path / f"{verb}.html"
    trainrig(verb.partition("-")[0], *PAGES[verb], "--html", str(page))
    text = page.read_text()
    assert text.index("<h1>") < text.index("<table")
    if verb != "predict-beside":
        presumed = "<h3>Layouts</h3>" if verb == "fits" else "<h3>Presumed</h3>"
        assert text.index("<table") < text.index(presumed)
    look(browser, page)
