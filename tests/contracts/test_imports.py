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


PLANNED = ["--gpus", "2", "--global-batch", "8"]

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
OF_SPECS = ("bench", "train", "import", "inspect")
HEAVY = {"torch", "transformers", "scipy", "numpy", "pydantic", "rich", "jinja2", "psutil"}
TEXT = {"pydantic", "rich"}


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


@pytest.mark.parametrize(
    ("command", "allowed"),
    [
        ([], set()),
        (["--help"], set()),
        *([[verb, "--help"], set()] for verb in VERBS if verb not in OF_SPECS),
        (["bench", "--help"], {"pydantic"}),  # made from the benchmarks' specs
        (["train", "--help"], {"pydantic"}),  # made from the frameworks' specs
        (["import", "--help"], {"pydantic"}),  # made from the importers' specs
        (["help", "fits"], set()),
        (["data", "prepare", "--help"], set()),
        (["inspect"], TEXT),
        (["inspect", "--json"], {"pydantic"}),
        (["catalog", "RTX 4090"], TEXT),
        (["catalog", "--compare", "RTX 4090", "RTX 3090"], TEXT),
        (["ledger"], TEXT),
        (["demo"], TEXT),
        (
            ["predict", "--model", "gpt2-medium", "--on", "RTX 4090"],
            TEXT,
        ),
        (["fits", "--model", "gpt2", "--on", "RTX 4090"], TEXT | {"numpy"}),
        (["plan", "--model", "gpt2", "--on", "RTX 4090", *PLANNED], TEXT | {"numpy"}),
        (["report", DEMO, "--html", "report.html"], TEXT | {"jinja2"}),
        (["compare", DEMO, "runs"], TEXT),
        (["bundle", DEMO, "--unpack", "run"], {"pydantic"}),
    ],
    ids=lambda value: " ".join(value) or "nothing" if isinstance(value, list) else "",
)
def test_a_light_verb_loads_nothing_heavy(
    tmp_path: Path, command: list[str], allowed: set[str]
) -> None:
    with create_run(tmp_path / "runs", "qualify", {}):  # a run to compare another one with
        pass
    loaded = loaded_by(tmp_path, *command)
    assert "click" in loaded
    assert loaded & HEAVY <= allowed
