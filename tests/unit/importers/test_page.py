"""docs/import.md is what the specs say, and an importer is known by its spec alone."""

from __future__ import annotations

import ast
import importlib
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from trainrig.errors import DataError, UsageError
from trainrig.importers import Importer, ImportHints, Reading, importers, read_file, register
from trainrig.importers import importer as registry
from trainrig.importers.extract import point, take_lines, to_number
from trainrig.importers.file import FilePart
from trainrig.importers.runs import Marks

ROOT = Path(__file__).resolve().parents[3]
SAMPLES = Path(__file__).parent / "samples"
SRC = ROOT / "src" / "trainrig"


def page() -> str:
    made: str = runpy.run_path(str(ROOT / "tools" / "import_page.py"))["page"]()
    return made


def test_the_page_is_what_the_specs_say() -> None:
    assert (ROOT / "docs" / "import.md").read_text() == page()


def test_every_format_is_tested_on_a_file_that_is_there_and_every_file_is_some_format_s() -> None:
    listed = [name for one in importers() for name in one.tested_on]
    assert all(one.tested_on for one in importers())
    assert sorted(listed) == sorted({path.name for path in SAMPLES.iterdir()} - {"SOURCES.md"})


def test_help_fits_80_columns() -> None:
    widest = max(len(one.name) for one in importers())
    assert all(4 + widest + len(one.title) <= 80 for one in importers())


def read_dummy(file: FilePart, _: ImportHints) -> Reading:
    import re

    found: list[float] = []

    def take(number: int, match: re.Match[str]) -> None:
        found.append(to_number(file, number, match[1], "turns"))

    take_lines(file, [(re.compile(r"turns: (\S+)"), take)])
    records = [point(file, 1, "wheel", {}, ("turn_rate", "turn/s"), each) for each in found]
    return Reading(version="1.0", records=records)


DUMMY = Importer(
    name="wheel-of-fortune",
    title="turns of a wheel",
    order=5,
    marks=Marks(near=("WHEEL",), line="^WHEEL"),
    read=read_dummy,
    definition="turns over time",
    judged_by="nothing",
    source="nowhere",
    tested_on=("wheel.txt",),
)


@pytest.fixture
def dummy() -> Iterator[None]:
    register(DUMMY)
    yield
    del registry._registered[DUMMY.name]


@pytest.mark.usefixtures("dummy")
def test_a_new_one_shows_up_in_recognition_help_completion_and_page(tmp_path: Path) -> None:
    (tmp_path / "any.txt").write_text("WHEEL\nturns: 12.5\n")
    ((tool, reading),) = read_file(tmp_path / "any.txt")
    (record,) = reading.records
    assert (tool, record.value, record.conditions["tool_version"]) == (DUMMY.name, 12.5, "1.0")
    assert "| `wheel-of-fortune` | turns of a wheel | `wheel.txt` |" in page()
    verb = importlib.import_module("trainrig.cli.import")
    try:
        command = importlib.reload(verb).command
        shown = CliRunner().invoke(command, ["--help"]).output
        option = next(each for each in command.params if each.name == "tool")
        completed = option.shell_complete(command.make_context("import", ["x"]), "wheel")
        assert [each.value for each in completed] == [DUMMY.name]
    finally:
        del registry._registered[DUMMY.name]
        importlib.reload(verb)
        register(DUMMY)
    assert "wheel-of-fortune: turns of a wheel" in " ".join(shown.split())


def test_it_is_not_known_before(tmp_path: Path) -> None:
    (tmp_path / "any.txt").write_text("WHEEL\nturns: 12.5\n")
    with pytest.raises(DataError, match=r"any\.txt: not a file of a tool") as refused:
        read_file(tmp_path / "any.txt")
    assert "nccl-tests" in str(refused.value.hint)
    with pytest.raises(UsageError, match="unknown format 'wheel'"):
        read_file(tmp_path / "any.txt", "wheel")


def test_no_other_file_knows_a_format_by_name() -> None:
    """Outside its own file a tool's name is compared with nothing."""
    names = {one.name for one in importers()} - {"fio", "huggingface", "deepspeed", "megatron"}
    found = []
    for path in SRC.rglob("*.py"):
        if path.parent.name == "importers":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
            texts = {side.value for side in sides if isinstance(side, ast.Constant)}
            found += [f"{path}:{node.lineno}"] if texts & names else []
    assert not found
