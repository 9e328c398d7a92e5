"""The direction of imports: its check catches what it should, and light verbs stay light.

Each fault is planted in a copy of the package, where import-linter must see it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trainrig.cli.main import VERBS
from trainrig.store import create_run

ROOT = Path(__file__).resolve().parents[2]
DEMO = str(ROOT / "src" / "trainrig" / "report" / "demo.bundle")
LINT = "from importlinter.cli import lint_imports_command; lint_imports_command()"


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A copy of the package beside its contracts."""
    shutil.copytree(
        ROOT / "src" / "trainrig",
        tmp_path / "trainrig",
        ignore=lambda folder, names: [name for name in names if not _is_source(folder, name)],
    )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path / "trainrig"


def _is_source(folder: str, name: str) -> bool:
    return name.endswith(".py") or Path(folder, name).is_dir()


def lint_imports(house: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", LINT, "--no-cache", "--no-logo"],
        cwd=house.parent,
        env=os.environ | {"PYTHONPATH": str(house.parent)},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


def plant(house: Path, room: str, code: str) -> None:
    folder = house / room
    path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    before = path.read_text() if path.exists() else ""
    path.write_text(before + "\n\n" + code + "\n")


def test_the_house_is_in_order(house: Path) -> None:
    result = lint_imports(house)
    assert result.returncode == 0, result.stdout
    assert "0 broken" in result.stdout


LAZY = "def _planted():\n    import {}"


@pytest.mark.parametrize(
    ("room", "code", "seen"),
    [
        ("workload", "import torch", "trainrig.workload -> torch"),
        ("data", LAZY.format("torch"), "trainrig.data -> torch"),
        ("data", "import trainrig.catalog.load", "trainrig.data -> trainrig.catalog.load"),
        ("catalog", LAZY.format("torch"), "trainrig.catalog -> torch"),
        ("doctor", LAZY.format("trainrig.measure"), "trainrig.doctor -> trainrig.measure"),
        ("report", "import trainrig.measure", "trainrig.report -> trainrig.measure"),
        ("report", "import trainrig.store", "trainrig.report -> trainrig.store"),
        ("machine", "import trainrig.catalog", "trainrig.machine -> trainrig.catalog"),
        ("errors", "import trainrig.units", "trainrig.errors -> trainrig.units"),
        ("attic", "'A room that nobody declared.'", "trainrig.attic"),
    ],
)
def test_a_planted_import_is_found(house: Path, room: str, code: str, seen: str) -> None:
    plant(house, room, code)
    result = lint_imports(house)
    assert result.returncode == 1, result.stdout + result.stderr
    assert seen in " ".join(result.stdout.split())


def test_torch_is_found_through_other_rooms(house: Path) -> None:
    """An indirect way to torch counts as much as a direct one."""
    plant(house, "stats", LAZY.format("torch"))
    plant(house, "store", LAZY.format("trainrig.stats"))
    result = lint_imports(house)
    assert result.returncode == 1
    assert "trainrig.store is not allowed to import torch" in result.stdout


# Runs commands as `python -m trainrig` does, one after the other in one process; after each, a
# line of its exit code and of the top-level modules that are loaded by then.
LOADED = """
import json, runpy, sys
for command in json.loads(sys.argv[1]):
    status, sys.argv = 0, ["trainrig", *command]
    try:
        runpy.run_module("trainrig", run_name="__main__")
    except SystemExit as end:
        status = end.code or 0
    loaded = sorted({name.partition(".")[0] for name in sys.modules})
    print("LOADED", json.dumps([command, status, loaded]), file=sys.stderr)
"""
HEAVY = {"torch", "transformers", "scipy", "numpy", "pydantic", "rich", "jinja2", "psutil"}
TEXT = {"pydantic", "rich"}
SPEC_VERBS = ("inspect", "bench", "train", "import")
"""Their help is made from lists whose entries pydantic checks."""
PLANNED = ["--gpus", "2", "--global-batch", "8"]
COMMANDS: dict[str, list[tuple[list[str], set[str]]]] = {
    "help": [
        ([], set()),
        (["--help"], set()),
        (["help", "fits"], set()),
        (["data", "prepare", "--help"], set()),
        *(([verb, "--help"], set()) for verb in VERBS if verb not in SPEC_VERBS),
        *(([verb, "--help"], {"pydantic"}) for verb in SPEC_VERBS),
    ],
    "answers": [
        (["inspect", "--json"], {"pydantic"}),
        (["bundle", DEMO, "--unpack", "run"], {"pydantic"}),
        (["inspect"], TEXT),
        (["catalog", "RTX 4090"], TEXT),
        (["catalog", "--compare", "RTX 4090", "RTX 3090"], TEXT),
        (["ledger"], TEXT),
        (["demo"], TEXT),
        (["compare", DEMO, "runs"], TEXT),
        (["predict", "--model", "gpt2-medium", "--on", "RTX 4090"], TEXT),
        (["fits", "--model", "gpt2", "--on", "RTX 4090"], TEXT | {"numpy"}),
        (["plan", "--model", "gpt2", "--on", "RTX 4090", *PLANNED], TEXT | {"numpy"}),
    ],
    "page": [(["report", DEMO, "--html", "report.html"], TEXT | {"jinja2"})],
}
"""Commands of one process, and the heavy modules that each may load; it may use those that an
earlier one was allowed, so that the allowed set only grows."""


@pytest.mark.parametrize("group", COMMANDS)
def test_a_light_verb_loads_nothing_heavy(tmp_path: Path, group: str) -> None:
    with create_run(tmp_path / "runs", "qualify", {}):  # a run to compare another one with
        pass
    commands = COMMANDS[group]
    done = subprocess.run(
        [sys.executable, "-c", LOADED, json.dumps([command for command, _ in commands])],
        check=False,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=600,
    )
    lines = [line for line in done.stderr.splitlines() if line.startswith("LOADED ")]
    assert len(lines) == len(commands), done.stderr
    for line, (command, allowed) in zip(lines, commands, strict=True):
        ran, status, loaded = json.loads(line.removeprefix("LOADED "))
        assert ran == command
        assert status in (0, 3), done.stderr  # compare: nothing in common
        assert "click" in loaded
        assert HEAVY.intersection(loaded) <= allowed, command
