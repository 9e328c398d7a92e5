"""What all tests share: how absence is handled, and where captured outputs lie.

A test that drives a real program is marked `needs("chromium")`, one that needs a GPU `gpu`; a
test that finds out for itself calls `pytest.skip("needs ...")`.  Skips are counted aloud at the
end.  What is marked `smoke` or `acceptance` takes long and runs in the gate of that name alone
(TRAINRIG_GATE).  With TRAINRIG_REQUIRE_ALL=1 a skip whose reason begins "needs " is a failure: what
can be installed must be there.  A GPU cannot be installed, so its absence is worded otherwise.
"""

from __future__ import annotations

import gc
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

pytest_plugins = ["pytester"]

# Threads of a product sleep while they wait for work: tests share few processors, and threads that
# spin take three times as much of them.  It is read once, when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Bytecode is kept, whatever the environment says: else every command that a test starts compiles
# the package again, and every worker all test modules.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# The same examples each time, and no limit on the time of one: machines are busy.
settings.register_profile("trainrig", derandomize=True, deadline=None, database=None)
settings.load_profile("trainrig")

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True, scope="session")
def own_lock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Runs of the tests wait for no other run of this user: their lock is in a folder of theirs.

    Put back at the end: a session within a test's own process is not the last one there.
    """
    before = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = str(tmp_path_factory.getbasetemp())
    tempfile.tempdir = None
    yield
    if before is None:
        del os.environ["TMPDIR"]
    else:
        os.environ["TMPDIR"] = before
    tempfile.tempdir = None


def pytest_collection_finish() -> None:
    """What thousands of tests were read into is no garbage: no collection looks at it again.

    A look at all of it takes a second, and measuring code asks for one before each case.
    """
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    wanted = [tool for marker in item.iter_markers("needs") for tool in marker.args]
    absent = [tool for tool in wanted if shutil.which(tool) is None]
    if absent:
        pytest.skip("needs " + ", ".join(absent))
    if item.get_closest_marker("gpu") and not any(Path("/dev").glob("nvidia[0-9]*")):
        pytest.skip("no GPU here")
    for gate in ("smoke", "acceptance"):
        if item.get_closest_marker(gate) and os.environ.get("TRAINRIG_GATE") != gate:
            pytest.skip(f"long: make {gate}")


def skip_reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why a test, or a whole file, was skipped; empty if it was not."""
    if not report.skipped or hasattr(report, "wasxfail") or not isinstance(report.longrepr, tuple):
        return ""
    return report.longrepr[2].removeprefix("Skipped: ")


def _require(report: pytest.TestReport | pytest.CollectReport) -> None:
    reason = skip_reason(report)
    if os.environ.get("TRAINRIG_REQUIRE_ALL") == "1" and reason.startswith("needs "):
        report.outcome = "failed"
        report.longrepr = f"{reason}, and TRAINRIG_REQUIRE_ALL is set"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    report = yield
    _require(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Iterator[None]:
    report = yield
    _require(report)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons = Counter(map(skip_reason, terminalreporter.stats.get("skipped", [])))
    for reason, number in reasons.most_common():
        terminalreporter.write_line(f"skipped {number}: {reason}", yellow=True)


@pytest.fixture(scope="session")
def captures() -> Path:
    """Outputs captured on real machines; they lie beside the checkout, not in it."""
    folder = Path(os.environ.get("TRAINRIG_CAPTURES", ROOT.parent / "shared" / "captures"))
    if not folder.is_dir():
        pytest.skip("no captured outputs beside this checkout")
    return folder


@pytest.fixture(scope="session")
def prepared_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small text of few words, prepared for training.  Copy it before you change it."""
    from trainrig.data.prepare import prepare

    words = ["the", "a", "cat", "dog", "sat", "ran", "on", "mat", "and", "then", "home", "again"]
    folder, chance = tmp_path_factory.mktemp("text"), random.Random(0)
    for number in range(40):
        (folder / f"{number}.txt").write_text(" ".join(chance.choices(words, k=400)))
    return prepare((folder,), out=folder.parent / "prepared", vocab_size=400).folder


@pytest.fixture(scope="session")
def data(prepared_text: Path) -> str:
    """The folder of `prepared_text`, as an experiment names it."""
    return str(prepared_text)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One Chromium for a file's pages: its event loop would forbid other files' asyncio.run."""
    from playwright.sync_api import sync_playwright

    arguments = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"]
    arguments += ["--disable-background-networking", "--disable-component-update"]
    with sync_playwright() as playwright:
        program = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=program, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def trainrig(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., tuple[int, str, str]]]:
    """The command line in this process: exit code, stdout and stderr of a command.

    A command's language does not outlast the test.
    """
    import click

    from trainrig import language
    from trainrig.cli.main import main

    formatter = click.Context.formatter_class

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["trainrig", *words])
        with pytest.raises(SystemExit) as end:
            main()
        printed = capsys.readouterr()
        return int(end.value.code or 0), printed.out, printed.err

    yield run
    language.activate(language.ENGLISH)
    click.Context.formatter_class = formatter
