"""The programs in perf/: each is documented and in order; `make acceptance` runs them."""

from __future__ import annotations

import ast
import importlib
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "perf"
PROGRAMS = sorted(path.stem for path in FOLDER.glob("[!_]*.py"))


def test_each_is_a_program_that_still_finds_what_it_imports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`make acceptance` runs them all; a name that has gone from trainrig is seen here."""
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in PROGRAMS:
        program = importlib.import_module(name)
        assert callable(program.main), name
        tree = ast.parse((FOLDER / f"{name}.py").read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("trainrig"):
                module = importlib.import_module(str(node.module))
                for alias in node.names:
                    where = f"{node.module}.{alias.name}"
                    assert hasattr(module, alias.name) or find_spec(where), (name, where)


def test_each_is_documented_and_nothing_else() -> None:
    readme = (FOLDER / "README.md").read_text()
    assert re.findall(r"^\| `(\w+)\.py` \|", readme, re.MULTILINE) == PROGRAMS


def test_make_bench_runs_the_programs_and_not_their_helpers() -> None:
    makefile = (FOLDER.parent / "Makefile").read_text()
    assert "perf/[!_]*.py" in makefile
    assert {path.name for path in FOLDER.glob("_*.py")}  # there are helpers to be left out


@pytest.mark.parametrize(
    ("interval", "words"),
    [
        ((0.97, 1.04), "met"),
        ((0.986, 1.338), "cannot tell"),  # reaches into 5 %, and far beyond
        ((1.06, 1.10), "MISSED"),
    ],
)
def test_within_means_the_whole_interval(
    interval: tuple[float, float], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    collective = importlib.import_module("collective_vs_bare")
    assert collective.within([(0.99, 1.01), interval]) == words
