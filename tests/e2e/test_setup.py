"""What surrounds the code: documents, dependencies, the wheel and the tests' own rules."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from tools import readme_examples

from trainrig import errors, language

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src" / "trainrig"
SOURCES = sorted(SRC.rglob("*.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
QUICK_START = (ROOT / "docs" / "quick-start.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()

# Where the name to import differs from the name to install.
IMPORTED_AS = {"nvidia-ml-py": "pynvml", "import-linter": "importlinter", "pytest-xdist": "xdist"}
IMPORTED_AS |= {"megatron-core": "megatron"}


def canonical(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[<>=!~\[; ]", requirement)[0]).lower()


def requirements() -> set[str]:
    extras = PROJECT["project"]["optional-dependencies"].values()
    lines = [*PROJECT["project"]["dependencies"], *(line for extra in extras for line in extra)]
    return {canonical(line) for line in lines} - {"trainrig"}


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def test_every_requirement_has_a_pin_and_only_a_lower_bound() -> None:
    assert requirements() <= pins().keys()
    for line in PROJECT["project"]["dependencies"]:
        assert re.fullmatch(r"[\w-]+>=[\d.]+", line), line


def test_what_is_installed_needs_nothing_that_has_no_pin() -> None:
    """Otherwise two set-ups of one commit differ."""
    todo, seen = list(requirements()), set[str]()
    while todo:
        name = todo.pop()
        if name in seen or not _installed(name):
            continue
        seen.add(name)
        needed = importlib.metadata.requires(name) or []
        todo += [canonical(line) for line in needed if ";" not in line]
    assert seen <= pins().keys()


def _installed(name: str) -> bool:
    return any(importlib.metadata.distributions(name=name))


def third_party_imports(files: Iterable[Path]) -> set[str]:
    found = set()
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.split(".")[0])
    return found - sys.stdlib_module_names - {"trainrig"}


def modules(*extras: str) -> set[str]:
    """What the package's dependencies and those of its extras are imported as."""
    lines = list(PROJECT["project"]["dependencies"])
    for extra in extras:
        lines += PROJECT["project"]["optional-dependencies"][extra]
    names = {canonical(line) for line in lines}
    return {IMPORTED_AS.get(name, name.replace("-", "_")) for name in names}


def test_every_import_is_declared_and_every_dependency_imported() -> None:
    imported = third_party_imports(SOURCES)
    declared = modules("torch", "huggingface", "deepspeed", "megatron", "tables", "top", "metrics")
    assert imported - declared == set()
    # transformers' Trainer imports the first, torch's builder of DeepSpeed's kernels runs the
    # second, and the third is imported by name where adapters are trained
    assert declared - imported == {"accelerate", "ninja", "peft"}


def test_every_import_of_the_tests_is_declared() -> None:
    files = list((ROOT / "tests").rglob("*.py"))
    ours = {path.stem for path in files} | {"tests", "tools", "validation"}
    assert third_party_imports(files) - ours - modules("torch", "test", "deepspeed") == set()


def test_the_light_stage_installs_what_is_declared() -> None:
    light = re.search(r"^LIGHT +:= (.*)$", MAKEFILE, re.MULTILINE)
    assert light
    names = {canonical(name) for name in light[1].split()}
    assert names <= {canonical(line) for line in PROJECT["project"]["dependencies"]}


def test_every_room_is_kept_from_torch_or_known_to_run_it() -> None:
    house, torch = (_contract(name) for name in ("house", "torch"))
    rooms = {word for layer in house["layers"] for word in re.findall(r"\w+", layer)}
    kept = {module.removeprefix("trainrig.") for module in torch["source_modules"]}
    assert rooms - kept == {
        "__main__",
        "api",
        "cli",
        "runner",
        "train",
        "measure",
        "models",
        "selftest",
        "watch",
    }


def _contract(name: str) -> dict[str, list[str]]:
    contracts = PROJECT["tool"]["importlinter"]["contracts"]
    return next(contract for contract in contracts if contract["id"] == name)


def test_every_room_is_described() -> None:
    for room in {path.relative_to(SRC).parts[0].removesuffix(".py") for path in SOURCES}:
        assert room.startswith("__") or re.search(rf"`{room}(/|\.py)`", CONTRIBUTING), room


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_documents_name_files_and_targets_that_exist(document: str) -> None:
    text = (ROOT / document).read_text()
    targets = re.findall(r"^([a-z]+):", MAKEFILE, re.MULTILINE)
    for target in re.findall(r"(?:^    |`)make ([a-z]+)", text, re.MULTILINE):
        assert target in targets
    for path in re.findall(r"\(((?:docs|src)/[\w./-]+|[A-Z]+\.md)\)|`(src/[\w./]+)`", text):
        assert "NAME" in "".join(path) or (ROOT / "".join(path)).exists(), path


@pytest.mark.parametrize("page", readme_examples.PAGES, ids=lambda page: page.name)
def test_what_a_readme_shows_is_what_the_commands_print(
    page: readme_examples.Page, trainrig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for how long a search took.  To mend: python tools/readme_examples.py."""
    monkeypatch.setenv("COLUMNS", str(readme_examples.WIDTH))

    def say(words: Sequence[str], tag: str) -> list[str]:
        try:
            _, out, _ = trainrig("--lang", tag, *words)
        finally:
            language.activate(language.ENGLISH)
            click.Context.formatter_class = click.HelpFormatter
        return [line.rstrip() for line in out.splitlines()]

    def timeless(text: str) -> str:
        return re.sub(r"(layoutsin|布局，用时)[\d.]+m?s", r"\1", "".join(text.split()))

    text = (ROOT / page.name).read_text()
    shown = readme_examples.section_of(page, say)
    assert timeless(shown) in timeless(text)


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_a_readme_says_the_error_that_the_page_of_accuracy_says(name: str) -> None:
    """First contact with others' tables: its errors, a flat MFU's, and what intervals held."""
    page = (ROOT / "docs" / "accuracy.md").read_text()
    own = re.search(r"\| the same, the six of them \| (.+?) \| (.+?) \|", page)
    flat = re.search(r"\| a flat 40 % MFU, on the same tables \| (.+?) \|", page)
    assert own and flat
    (said,) = [
        line for line in (ROOT / name).read_text().split("\n- ") if "`trainrig ledger`" in line
    ]
    for figures in (*own.groups(), *flat.groups()):
        low, high = re.findall(r"\d+", figures)
        assert re.search(rf"\b{low}( %)? (to|至) {high} %", " ".join(said.split())), figures


def test_the_page_of_variables_has_all_that_are_read() -> None:
    page = (ROOT / "docs" / "environment.md").read_text()
    text = "".join(path.read_text() for path in SOURCES)
    read = set(re.findall(r"\b(?:TRAINRIG|XDG)_[A-Z_]+[A-Z]\b", text))
    assert {"TRAINRIG_SELFTEST_SEED", "XDG_CACHE_HOME"} <= read
    assert not [name for name in (*sorted(read), "NO_COLOR") if f"`{name}`" not in page]


def test_the_quick_start_has_the_exit_codes() -> None:
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", QUICK_START, re.MULTILINE)}
    assert codes == {getattr(errors, name) for name in dir(errors) if name.startswith("EXIT_")}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built package, unpacked."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    subprocess.run(
        [sys.executable, "-c", "from setuptools import build_meta as b; b.build_wheel('.')"],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    (built,) = folder.glob("*.whl")
    zipfile.ZipFile(built).extractall(folder / "unpacked")
    return folder / "unpacked"


def test_the_wheel_carries_every_file_of_the_package(wheel: Path) -> None:
    def files(root: Path) -> set[str]:
        found = {path for path in root.glob("trainrig/**/*") if path.is_file()}
        left = (".pyc", ".po")  # made, and what translations are compiled from
        return {path.relative_to(root).as_posix() for path in found if path.suffix not in left}

    assert files(wheel) == files(ROOT / "src")


def test_the_wheel_runs_without_the_checkout(wheel: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "trainrig", "catalog", "RTX 4090", "--json"],
        check=True,
        cwd=wheel,
        env={"PYTHONPATH": str(wheel)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "4090" in result.stdout


RULES_SAMPLE = """
    import pytest

    @pytest.mark.needs("no-such-program")
    def test_marked(): ...

    def test_by_itself():
        pytest.skip("needs patience")

    def test_otherwise():
        pytest.skip("no GPU here")

    def test_fine(): ...
"""


@pytest.mark.parametrize("required", [False, True])
def test_skips_are_counted_and_in_ci_fail(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, required: bool
) -> None:
    monkeypatch.setenv("TRAINRIG_REQUIRE_ALL", str(int(required)))
    pytester.makeconftest((ROOT / "tests" / "conftest.py").read_text())
    pytester.makepyprojecttoml((ROOT / "pyproject.toml").read_text())
    pytester.makepyfile(RULES_SAMPLE)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "--rootdir=.", ".")
    if required:
        result.assert_outcomes(passed=1, skipped=1, failed=1, errors=1)
    else:
        result.assert_outcomes(passed=1, skipped=3)
    result.stdout.fnmatch_lines("skipped 1: no GPU here")
    if not required:
        result.stdout.fnmatch_lines("skipped 1: needs no-such-program")
