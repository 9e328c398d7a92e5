"""The direction of imports: its check catches what it should, and light verbs stay light.

Each fault is planted in a copy of the package, where import-linter must see it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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


# Runs one command as `python -m trainrig` does, then writes down which modules it loaded.
LOADED = """
import runpy, sys
target, sys.argv = sys.argv[1], ["trainrig", *sys.argv[2:]]
try:
    runpy.run_module("trainrig", run_name="__main__")
except SystemExit as end:
    status = end.code
open(target, "w").write("\\n".join(sys.modules))
sys.exit(status)
"""
HEAVY = {"pydantic", "rich", "altair", "scipy", "numpy", "jinja2", "psutil", "vl_convert"}


def loaded_by(tmp_path: Path, *command: str) -> set[str]:
    """The top-level modules that are loaded once ``trainrig COMMAND`` has ended well."""
    target = tmp_path / "modules"
    result = subprocess.run(
        [sys.executable, "-c", LOADED, str(target), *command],
        check=False,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode in (0, 3), result.stderr  # compare: nothing in common
    return {name.split(".")[0] for name in target.read_text().split()}


def test_the_help_loads_click_and_nothing_heavy(tmp_path: Path) -> None:
    loaded = loaded_by(tmp_path, "--help")
    assert "click" in loaded
    assert not loaded & (HEAVY | {"torch"})


@pytest.mark.parametrize(
    "command",
    [
        ["inspect"],
        ["inspect", "--json"],
        ["catalog", "RTX 4090"],
        ["catalog", "--compare", "RTX 4090", "RTX 3090"],
        ["qualify", "--help"],
        ["bench", "--help"],
        ["data", "prepare", "--help"],
        ["demo"],
        ["predict", "--model", "gpt2", "--on", "RTX 4090"],
        ["fits", "--model", "gpt2", "--on", "RTX 4090"],
        ["plan", "--model", "gpt2", "--on", "RTX 4090", "--gpus", "2", "--global-batch", "8"],
        ["report", DEMO, "--html", "report.html"],
        ["compare", DEMO, "runs"],
        ["bundle", DEMO, "--unpack", "run"],
    ],
    ids=lambda command: " ".join(word for word in command if word != DEMO),
)
def test_a_light_verb_does_not_load_torch(tmp_path: Path, command: list[str]) -> None:
    with create_run(tmp_path / "runs", "qualify", {}):  # a run to compare another one with
        pass
    assert "torch" not in loaded_by(tmp_path, *command)
