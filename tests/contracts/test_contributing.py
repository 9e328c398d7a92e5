"""CONTRIBUTING's packages and lists of files are true: what it names exists and is all needed.

A verb is really added to a copy of the checkout: with the listed files alone the contracts hold,
and with one of them left out they do not.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src" / "trainrig"
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
    "contracts"
]
LAYERS: list[str] = next(c["layers"] for c in CONTRACTS if c["id"] == "house")


def adding(thing: str) -> list[str]:
    """The files that a section of "Adding things" lists."""
    found = re.search(rf"^### {thing}\n(.*?)(?=^##|\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert found is not None, thing
    return re.findall(r"^- `([\w/.-]+)`:", found[1], re.MULTILINE)


THINGS = re.findall(r"^### (.*)$", TEXT, re.MULTILINE)


def test_the_things_that_come_are_described() -> None:
    assert {"A chip", "A benchmark", "A verb", "A training framework", "A finding"} <= set(THINGS)


@pytest.mark.parametrize("thing", THINGS)
def test_every_file_that_is_named_exists(thing: str) -> None:
    """One with NAME in it stands for those that are there already."""
    listed = adding(thing)
    assert listed
    for path in listed:
        assert any(ROOT.glob(path.replace("NAME", "[a-z]*"))), path


def test_other_files_that_are_named_exist() -> None:
    for path in re.findall(r"`((?:src|tests|docs|scripts|tools)/[\w/.-]+)`", TEXT):
        assert any(ROOT.glob(path.replace("NAME", "[a-z]*"))), path


def test_the_packages_stand_in_the_order_of_the_contract() -> None:
    """One row below another imports nothing of it; packages of one layer may stand in any order."""
    assert next(c["exhaustive"] for c in CONTRACTS if c["id"] == "house")
    rows = re.findall(r"^\| (`.*?`) \|", TEXT, re.MULTILINE)
    listed = [name for row in rows for name in re.findall(r"`(\w+)(?:/|\.py)`", row)]
    position = {
        room: number for number, layer in enumerate(LAYERS) for room in re.findall(r"\w+", layer)
    }
    assert set(listed) == position.keys() - {"__main__"}
    assert [position[room] for room in listed] == sorted(position[room] for room in listed)


def test_tests_mirror_the_packages() -> None:
    rooms = {path.name for path in SRC.iterdir() if path.is_dir()} | {"__pycache__"}
    assert {path.name for path in (ROOT / "tests" / "unit").iterdir() if path.is_dir()} <= rooms
    named = re.findall(r"^    tests/(\w+)/", TEXT, re.MULTILINE)
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir()}
    assert set(named) == folders - {"__pycache__"}


def test_a_benchmark_is_its_spec_its_measuring_half_and_its_definition() -> None:
    """`test_specs` registers one that has no other file, and meets it everywhere."""
    assert adding("A benchmark") == [
        "src/trainrig/benchmarks/NAME.py",
        "src/trainrig/measure/NAME.py",
        "docs/definitions.md",
    ]


@pytest.mark.parametrize("room", sorted(path.parent for path in SRC.rglob("__init__.py")))
def test_a_package_s_docstring_names_files_that_it_has(room: Path) -> None:
    text = ast.get_docstring(ast.parse((room / "__init__.py").read_text())) or ""
    listed = re.findall(r"^ {4}(\w+) {2,}\S", text, re.MULTILINE)
    if room != SRC:  # there it lists functions
        there = {path.stem for path in room.iterdir()}
        assert set(listed) <= there, set(listed) - there


VERB = '''\
"""`trainrig nothing`: does nothing."""

from trainrig.cli.verb import json_option, option, verb


@verb()
@option("--times", type=int, default=1, help="How many times nothing is done.")
@json_option()
def command(times: int, as_json: bool) -> None:
    """Do nothing.

    \\b
    trainrig nothing

    Nothing changes.
    """
'''


def write_verb(root: Path, path: str) -> None:
    """What the list says of one file, done for the verb `nothing`."""
    file = root / path.replace("NAME", "nothing")
    text = file.read_text() if file.exists() else ""
    done = {
        "src/trainrig/cli/NAME.py": lambda: VERB,
        "src/trainrig/cli/main.py": lambda: text.replace(
            '        "demo":', '        "nothing": "Do nothing, once.",\n        "demo":'
        ),
        "docs/verbs.md": lambda: text.replace(
            "| `trainrig demo`", "| `trainrig nothing` | nothing |\n| `trainrig demo`"
        ),
        "tests/contracts/test_cli_surface.py": lambda: text.replace(
            '            "demo":', '            "nothing": "--times --json",\n            "demo":'
        ),
    }[path]()
    assert done != text
    file.write_text(done)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the contracts of the command line look at."""
    folder = tmp_path_factory.mktemp("verb") / "checkout"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("src", "tests/contracts", "docs", "perf"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for file in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "pyproject.toml"):
        shutil.copy(ROOT / file, folder)
    return folder


@pytest.mark.parametrize(
    "missing",
    [None, *(pytest.param(path, marks=pytest.mark.acceptance) for path in adding("A verb"))],
)
def test_a_verb_needs_the_listed_files_and_no_other(
    checkout: Path, tmp_path: Path, missing: str | None
) -> None:
    folder = tmp_path / "checkout"
    shutil.copytree(checkout, folder, copy_function=shutil.copy)
    for path in adding("A verb"):
        if path != missing:
            write_verb(folder, path)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--rootdir=."]
        + ["tests/contracts/test_cli_surface.py", "tests/contracts/test_help.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (done.returncode == 0) == (missing is None), done.stdout[-3000:]
