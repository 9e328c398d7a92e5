"""Two things do not share a name, and no name goes unused.

No file and no public class stands twice, but for mirrored siblings.

A mirror is one thing seen from several rooms: what a benchmark is, how it is measured and what its
verb is; one verb in `cli` and the work behind it; the same block in each model family.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src" / "trainrig"

# Rooms in which a file may bear the name of one in another of them.
BENCHMARK = {"benchmarks", "measure"}
"""What a benchmark is, without torch; and how it is measured."""
VERB = {"cli", "runner", "analysis", "store", "machine", "report"}
"""A verb's command line; and the one file that does its work."""
MODELS = {"Attention", "Block", "FeedForward", "Model"}
"""Each model family has its own."""

SUBJECTS = {
    "burn.py": {"benchmarks", "cli", "measure", "runner"},
    "energy.py": {"machine", "runner"},
    "matmul.py": {"benchmarks", "measure", "prediction"},
    "training.py": {"benchmarks", "catalog"},
}
"""One subject in several rooms: a burn as a benchmark, a verb, a run and a process; meters and who
reads them beside a training; a matmul as it is described, measured and rated; a training step as a
benchmark and as others published it."""


@cache
def names() -> tuple[dict[str, list[Path]], dict[str, list[Path]]]:
    """Files and public classes by name."""
    files: dict[str, list[Path]] = defaultdict(list)
    classes: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(SRC.rglob("*.py")):
        files[path.name].append(path.relative_to(SRC))
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].append(path.relative_to(SRC))
    return files, classes


def is_mirror(paths: list[Path]) -> bool:
    """Whether these files of one name are one thing in several rooms."""
    rooms = {path.parts[0] for path in paths}
    if len(rooms) < len(paths):
        return False
    return rooms <= SUBJECTS.get(paths[0].name, BENCHMARK) or (
        "cli" in rooms and len(rooms) == 2 and rooms <= VERB
    )


def test_no_file_name_twice_but_for_mirrors() -> None:
    files, _ = names()
    twice = {
        name: [str(path) for path in paths]
        for name, paths in files.items()
        if len(paths) > 1 and name != "__init__.py" and not is_mirror(paths)
    }
    assert twice == {}


def test_no_public_class_twice() -> None:
    _, classes = names()
    twice = {
        name: [str(path) for path in paths]
        for name, paths in classes.items()
        if len({path for path in paths if name not in MODELS or path.parts[0] != "models"}) > 1
    }
    assert twice == {}


def defined(tree: ast.Module) -> Iterator[str]:
    """What a file defines at its top, but for what a decorator or Python itself takes."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.decorator_list:
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def test_no_package_has_a_name_that_hides_a_file_of_its_own() -> None:
    """But for what the file itself defines: ``prediction.step.compute`` is the file."""
    hidden = []
    for path in SRC.rglob("__init__.py"):
        files = {file.stem for file in path.parent.glob("*.py")}
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                names = {alias.asname or alias.name for alias in node.names}
                own = node.module.rpartition(".")[2]
                if own != path.parent.name:
                    hidden += [f"{path.parent.name}: {name}" for name in (names & files) - {own}]
    assert hidden == []


def test_what_is_defined_is_used_by_more_than_tests() -> None:
    """A function that only its test calls is no function of the program."""
    rooms = [SRC, *(ROOT / name for name in ("perf", "scripts", "tools", "validation"))]
    texts = {path: path.read_text() for room in rooms for path in room.rglob("*.py")}
    used = Counter(word for text in texts.values() for word in re.findall(r"\w+", text))
    unused = [
        f"{path.relative_to(SRC)}: {name}"
        for path, text in texts.items()
        if path.is_relative_to(SRC)
        for name in defined(ast.parse(text))
        if used[name] == 1 and not name.startswith("__")
    ]
    assert unused == []
