"""No two modules import each other, neither when they are loaded nor later inside a function."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "trainrig"


def imports(package: Path) -> dict[str, set[str]]:
    """Modules of a package, each with the modules that it names in any import statement.

    Imports inside functions and under TYPE_CHECKING count; the packages around an imported module,
    which Python loads besides, do not.
    """
    files = {_module_of(path, package): path for path in package.rglob("*.py")}
    return {
        module: set(_named(ast.parse(path.read_text(encoding="utf-8")), files)) - {module}
        for module, path in files.items()
    }


def _module_of(path: Path, package: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _named(tree: ast.AST, known: Mapping[str, Path]) -> list[str]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            found += [name if name in known else node.module for name in inner]
    return [name for name in found if name in known]


def cycle_in(package: Path) -> list[str]:
    """Modules along a circle of imports, the first one again at the end; empty: there is none."""
    try:
        TopologicalSorter(imports(package)).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_the_package_has_no_circle_of_imports() -> None:
    assert cycle_in(PACKAGE) == []


@pytest.mark.parametrize(
    "back",
    [
        "from sample import first",
        "def later():\n    import sample.first",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from sample.first import thing",
    ],
    ids=["when loaded", "inside a function", "for types alone"],
)
def test_a_planted_circle_is_found(tmp_path: Path, back: str) -> None:
    package = tmp_path / "sample"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "first.py").write_text("from sample.second import other\nthing = other\n")
    (package / "second.py").write_text("import sample.third\nother = 1\n")
    (package / "third.py").write_text("")
    assert cycle_in(package) == []
    (package / "third.py").write_text(back + "\n")
    circle = cycle_in(package)
    assert {*circle} == {"sample.first", "sample.second", "sample.third"}
