"""The Python that a backend runs in: how it is named, what is asked of it, what is kept from it.

Interpreters here are scripts that answer as a real one would; nothing of torch is started.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

from machine_fakes import healthy
from training_summaries import results_of, summary, summary_of, trained_once
from trainrig.analysis.compare_training import setting_differences
from trainrig.errors import EXIT_INCOMPLETE, UnavailableError, UsageError
from trainrig.machine import environment_digest
from trainrig.process import python_env
from trainrig.process.python_env import (
    inspect_python,
    interpreter_for,
    is_external,
    missing_requirement,
)
from trainrig.process.supervisor import launch
from trainrig.record import Status
from trainrig.runner.targets import Target
from trainrig.runner.train_prepare import environment_of
from trainrig.runner.train_records import records_of
from trainrig.selftest.train_faults import RANK_FACTS
from trainrig.train.config import Experiment
from trainrig.train.config_file import experiment_of
from trainrig.train.engines import ENGINES, Job, Site, check_site, python_of

ROOT = Path(__file__).resolve().parents[3]
SRC = ROOT / "src"
DRIVERS = SRC / "trainrig" / "train" / "drivers"
FOREIGN = list(DRIVERS.glob("*.py"))
"""What runs in a framework's own Python."""
LIGHT = ("trainrig.process.child", "trainrig.process.events", "trainrig.trace")
TIMERS = ("trainrig.train.native.step_timer", "trainrig.train.native.breakdown")
SEES = (*TIMERS, "trainrig.train.native.traffic", "trainrig.train.native.host_sums")
SEES += ("trainrig.train.native.gpu",)  # settings that every engine's ranks have
"""What looks at a step, and adds it up, whoever trains it."""
VARIABLE = "TRAINRIG_HUGGINGFACE_PYTHON"
FOUND = {"torch": "2.9.0", "numpy": "2.0", "transformers": "4.57.6", "accelerate": "1.1"}


@pytest.fixture(autouse=True)
def unnamed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No interpreter is named, and none was asked before."""
    monkeypatch.delenv(VARIABLE, raising=False)
    inspect_python.cache_clear()
    yield
    inspect_python.cache_clear()


def script(path: Path, body: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def python(folder: Path, version: tuple[int, ...] = (3, 12, 1), **packages: str | None) -> str:
    """A script that answers as an interpreter would, and writes down what it is started with."""
    have = {name: text for name, text in {**FOUND, **packages}.items() if text is not None}
    answer = {"version": version, "folders": [str(folder / "site")], "packages": have}
    body = f"env > {folder}/env\necho hello from sitecustomize\necho '{json.dumps(answer)}'"
    return script(folder / "bin" / "python", body)


# ---- how it is named


def test_the_key_comes_before_the_variable_before_this_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, variable = python(tmp_path / "key"), python(tmp_path / "variable")
    assert interpreter_for("", "huggingface") == sys.executable
    monkeypatch.setenv(VARIABLE, variable)
    assert interpreter_for("", "huggingface") == variable
    assert interpreter_for(key, "huggingface") == key
    assert not is_external(sys.executable) and is_external(key)


def test_a_link_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A virtual environment's python is a link to the one that it was made by."""
    link = tmp_path / "bin" / "python"
    link.parent.mkdir()
    link.symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    assert interpreter_for("bin/python", "huggingface") == str(link)
    assert is_external(str(link))
    monkeypatch.setenv("PATH", str(link.parent))
    assert interpreter_for("python", "huggingface") == str(link)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nosuch/python", "there is no such interpreter"),
        ("nosuchpython", "there is no such interpreter"),
        (".", "that is a folder"),
        ("text", "that is no program"),
    ],
)
def test_a_name_that_is_none_is_refused_with_its_origin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("no program")
    with pytest.raises(UsageError, match=f"^python = {name}: {words}$"):
        interpreter_for(name, "huggingface")
    monkeypatch.setenv(VARIABLE, name)
    with pytest.raises(UsageError, match=f"^{VARIABLE} = {name}: {words}$"):
        interpreter_for("", "huggingface")


def test_a_folder_of_an_environment_is_answered_with_its_python(tmp_path: Path) -> None:
    inside = python(tmp_path)
    with pytest.raises(UsageError) as caught:
        interpreter_for(str(tmp_path), "huggingface")
    assert caught.value.hint == inside


def test_our_own_engine_has_no_python_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="native is ours"):
        ENGINES["native"].check(Experiment.of(python=python(tmp_path)))
    assert python_of(Experiment.of()) == sys.executable


# ---- what is asked of it


def text(path: str) -> str | None:
    return ENGINES["huggingface"].missing(path)


def test_what_it_lacks_is_asked_of_it_and_not_of_us(tmp_path: Path) -> None:
    path = python(tmp_path)
    assert text(path) is None
    assert inspect_python(path, tuple(FOUND)).packages == FOUND
    none = python(tmp_path / "none", transformers=None)
    assert text(none) == f"transformers is not installed in {none}"
    old = python(tmp_path / "torch", torch="2.8.1")
    assert text(old) == f"torch is 2.8.1 in {old}, older than {python_env.LEAST_TORCH}"
    old = python(tmp_path / "old", transformers="4.45.2")
    assert text(old) == f"transformers is 4.45.2 in {old}, older than 4.49"
    source = python(tmp_path / "source", transformers="")  # a checkout on its path
    assert text(source) is None
    newest = python(tmp_path / "newest", transformers="5.0.0.dev0", torch="2.10.0+cu130")
    assert text(newest) is None


def test_an_old_python_is_told_before_its_packages(tmp_path: Path) -> None:
    path = python(tmp_path, (3, 9, 2), transformers=None)
    assert text(path) == f"{path} is Python 3.9.2, older than 3.10"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("exit 0", "answers as no Python does: nothing, exit code 0"),
        ("echo ready; exit 3", "answers as no Python does: ready"),
        ("echo 'error: libpython.so is missing' >&2; exit 127", "libpython.so is missing"),
        ("echo '[1]'", "answers as no Python does"),
        ("kill -9 $$", "nothing, exit code -9"),
        ("exec tail -f /dev/null", "did not answer within 0 s"),
    ],
)
def test_what_is_no_python_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, words: str
) -> None:
    monkeypatch.setattr(python_env, "_TIMEOUT", 0.4 if "tail" in body else 60.0)
    path = script(tmp_path / "python", body)
    with pytest.raises(UnavailableError) as caught:
        check_site(Experiment.of(framework="huggingface", python=path), Site(gpus=0, cores=2))
    assert caught.value.message.startswith(f"huggingface: {path} ")
    assert words in caught.value.message and "\n" not in caught.value.message
    assert VARIABLE in (caught.value.hint or "") and caught.value.exit_code == 3


def test_a_file_that_is_no_program_of_this_machine_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "python"
    path.write_bytes(b"\x7fELF of another machine")
    path.chmod(0o755)
    assert text(str(path)) == f"{path} cannot be started: Exec format error"


@pytest.mark.parametrize("version", ["2.6.0", "2.8.1+cu126", "1.13.1", "2.9.0", "2.13.0+cpu"])
def test_one_floor_of_torch_is_checked_before_anything_runs(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trainrig: Any
) -> None:
    monkeypatch.setattr(python_env.metadata, "version", lambda name: version)
    monkeypatch.chdir(tmp_path)
    if version.startswith(("2.9", "2.13")):
        python_env.check_torch()
        return
    told = f"torch {version} is older than {python_env.LEAST_TORCH}, which trainrig needs"
    for words in (("qualify", "--budget", "5s"), ("bench", "matmul"), ("burn", "--budget", "10s")):
        code, _, err = trainrig(*words)
        assert (code, told in err) == (EXIT_INCOMPLETE, True)
    assert not list(tmp_path.iterdir())


def test_the_floor_of_torch_is_that_of_the_package() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert f'torch = ["torch>={python_env.LEAST_TORCH}"]' in text


def test_it_is_asked_once(tmp_path: Path) -> None:
    path = python(tmp_path)
    assert missing_requirement(path, {"torch": ""}) is None
    Path(path).unlink()
    assert missing_requirement(path, {"torch": ""}) is None


def test_pythons_of_all_ages_understand_the_question() -> None:
    """Those that are here, this one among them."""
    names = [
        f"python{version}" for version in ("3.14", "3.13", "3.12", "3.10", "3.9", "3.6", "2.7")
    ]
    for path in (sys.executable, *filter(None, map(shutil.which, names))):
        if subprocess.run([path, "-V"], check=False, capture_output=True).returncode == 0:
            answer = inspect_python(path, ("json", "nosuch"))
            assert answer.broken is None and len(answer.version) == 3, path
            assert dict(answer.packages) == ({"json": ""} if answer.version >= (3, 8) else {})


# ---- what is kept from it


def test_no_path_of_ours_is_handed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("HF_HOME", "kept")
    path = python(tmp_path)
    own = Experiment.of(framework="huggingface", python=path, device="cpu")
    command = ENGINES["huggingface"].command(own, tmp_path / "run", Job())
    assert text(path) is None
    asked = (tmp_path / "env").read_text()
    bare = dataclasses.replace(command, prepare=())
    launch(bare, tmp_path / "run")
    for words in (asked, (tmp_path / "env").read_text()):
        assert "HF_HOME=kept" in words
        assert not any(f"\n{name}=" in f"\n{words}" for name in ("PYTHONPATH", "PYTHONHOME"))


def test_the_first_weights_are_written_by_our_own_python(tmp_path: Path) -> None:
    path = python(tmp_path)
    own = Experiment.of(framework="huggingface", python=path, device="cpu")
    command = ENGINES["huggingface"].command(own, tmp_path / "run", Job())
    assert (command.argv[0], command.prepare[0]) == (path, sys.executable)
    assert command.external
    assert (
        not ENGINES["huggingface"].command(own.replace(python=""), tmp_path / "run", Job()).external
    )
    assert (
        not ENGINES["native"].command(Experiment.of(device="cpu"), tmp_path / "run", Job()).external
    )


def imports_of(path: Path) -> set[str]:
    """What a module imports when it is loaded; what is only for types is left out."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(), feature_version=python_env.LEAST).body:
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            inside = {f"{module}.{name.name}" for name in node.names}
            found |= {module} | {name for name in inside if path_of(name)}
    return found


def path_of(module: str) -> Path | None:
    """The file of a module of ours."""
    place = SRC.joinpath(*module.split("."))
    for path in (place.with_suffix(".py"), place / "__init__.py"):
        if module.split(".")[0] == "trainrig" and path.exists():
            return path
    return None


def test_drivers_import_their_project_and_our_data_alone() -> None:
    for path in FOREIGN:
        allowed = {"torch", "transformers"} if path.stem != "start" else set()
        for module in imports_of(path):
            top = module.split(".")[0]
            ours = module.startswith(("trainrig.data", "trainrig.train.drivers", *SEES, *LIGHT))
            assert ours or top in allowed | sys.stdlib_module_names, (path.name, module)


@pytest.mark.parametrize("timer", TIMERS)
def test_what_times_a_driver_loads_torch_alone(timer: str) -> None:
    path = path_of(timer)
    assert path is not None
    for module in imports_of(path):
        ours = module.startswith(LIGHT)
        assert ours or module.split(".")[0] in sys.stdlib_module_names | {"torch"}, module


def test_what_a_child_loads_of_process_is_the_standard_library() -> None:
    for module in LIGHT:
        path = path_of(module)
        assert path is not None
        for other in imports_of(path):
            ours = other == "trainrig.errors" or other.startswith(LIGHT)
            assert ours or other.split(".")[0] in sys.stdlib_module_names, (module, other)


def test_nothing_that_a_driver_reaches_needs_more_than_numpy() -> None:
    """Through all modules that loading one loads, with the packages around them."""
    seen: set[str] = set()
    waiting = {f"trainrig.train.drivers.{path.stem}" for path in FOREIGN}
    outside: set[str] = set()
    while waiting:
        module = waiting.pop()
        seen.add(module)
        path = path_of(module)
        assert path is not None, module
        for other in imports_of(path):
            parts = other.split(".")
            if parts[0] != "trainrig":
                outside.add(parts[0])
            elif path_of(other):
                around = {".".join(parts[:n]) for n in range(1, len(parts) + 1)}
                waiting |= around - seen
    assert outside - sys.stdlib_module_names == {"numpy", "torch", "transformers"}
    assert "trainrig.data.batches" in seen and "trainrig.errors" in seen


PROBE = """
import json, sys
import numpy
from pathlib import Path
from typing import Any
from trainrig.data.open_batches import open_batches
import trainrig
def main():
    found = {"numpy": numpy.__file__, "package": trainrig.__file__, "path": sys.path}
    Path(sys.argv[1]).write_text(json.dumps(found))
"""


def test_the_package_comes_without_its_neighbours(tmp_path: Path) -> None:
    """Installed beside another numpy, it is loaded, and that numpy is not: in a bare Python."""
    site = tmp_path / "site-packages"
    ignored = shutil.ignore_patterns("__pycache__", "*.bundle", "catalog", "report", "measure")
    shutil.copytree(SRC / "trainrig", site / "trainrig", ignore=ignored)
    drivers = site / "trainrig" / "train" / "drivers"
    (drivers / "numpy.py").write_text("raise ImportError('a driver of that name')")
    (drivers / "probe.py").write_text(PROBE)
    (site / "numpy").mkdir()
    (site / "numpy" / "__init__.py").write_text("raise ImportError('the numpy of another')")
    only = tmp_path / "only"
    only.mkdir()
    for name in ("numpy", "numpy.libs"):
        place = Path(numpy.__file__).parent.parent / name
        if place.exists():
            (only / name).symlink_to(place)
    start = drivers / "start.py"
    done = subprocess.run(
        [sys.executable, "-S", str(start), "probe", str(tmp_path / "found.json")],
        env=os.environ | {"PYTHONPATH": str(only)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["package"] == str(site / "trainrig" / "__init__.py")
    assert found["numpy"].startswith(str(only))
    assert not any(Path(folder) in (site, start.parent) for folder in found["path"])


# ---- what is told of it

ENGINE = """#!{python}
import json, os, sys
folder, rank = sys.argv[-1], os.environ["RANK"]
if sys.argv[1] == "-c":
    print(json.dumps({answer}))
    sys.exit()
assert sys.argv[1].endswith("start.py") and sys.argv[2] == "huggingface"
assert json.load(open(folder + "/experiment.json"))["experiment"]["python"] == {path!r}
with open(f"{{folder}}/events-{{rank}}.jsonl", "a") as events:
    for event in {events}:
        print(json.dumps(event), file=events)
"""
SOFTWARE = {"python": "3.12.1", "torch": "2.6.0", "transformers": "4.57.6", "transport": "gloo"}


FACTS = RANK_FACTS | {"software": SOFTWARE}


def test_versions_are_what_the_ranks_tell(tmp_path: Path) -> None:
    """From a driver in a Python of its own to conditions, summary and digest."""
    row = {"event": "row", "step": 0, "time": 1.0, "loss": 2.0, "grad_norm": 1.0}
    told = [{"event": "layout", **FACTS}, row, {"event": "done"}]
    path = tmp_path / "bin" / "python"
    path.parent.mkdir()
    answer = {"version": [3, 12, 1], "folders": [str(tmp_path / "site")], "packages": FOUND}
    text = ENGINE.format(python=sys.executable, answer=answer, events=told, path=str(path))
    path.write_text(text.replace('os.environ["RANK"]', 'os.environ.get("RANK", "0")'))
    path.chmod(0o755)
    own = experiment_of(
        {"framework": "huggingface", "python": str(path), "nproc": 2, "precision": "fp32"}
        | {"model": "gpt2", "scale": "tiny", "device": "cpu", "batch_size": 4, "steps": 1}
    )
    engine = ENGINES["huggingface"]
    command = dataclasses.replace(engine.command(own, tmp_path / "run", Job()), prepare=())
    ended = launch(command, tmp_path / "run")
    assert ended.status is Status.OK, ended.reason
    found = trained_once(own, engine.collect(tmp_path / "run"))
    assert summary_of(found)["software_found"] == SOFTWARE
    target = Target(torch_device="cpu", name="a CPU", index=None, memory_bytes=0, chip=None)
    conditions = records_of(found, target, "0" * 8, "digest")[0].conditions
    assert {name: conditions[f"software_found.{name}"] for name in SOFTWARE} == SOFTWARE


def test_the_digest_is_that_of_the_engines_packages(tmp_path: Path) -> None:
    snapshot = healthy()
    path = python(tmp_path)
    own = Experiment.of(framework="huggingface", python=path)
    (tmp_path / "site" / "transformers-4.57.6.dist-info").mkdir(parents=True)
    first = environment_of(own, snapshot)
    assert first == environment_of(own, snapshot) != environment_digest(snapshot)
    (tmp_path / "site" / "transformers-4.57.6.dist-info").rename(
        tmp_path / "site" / "transformers-5.0.0.dist-info"
    )
    assert environment_of(own, snapshot) != first
    assert environment_of(Experiment.of(), snapshot) == environment_digest(snapshot)
    ours = environment_of(own.replace(python=""), snapshot)
    assert ours == environment_digest(snapshot, all_packages=True)


def test_another_torch_is_the_first_of_what_differs() -> None:
    software = {**SOFTWARE, "torch": "2.13.0", "interpreter": "/ours"}
    rows = [
        summary("ours", 1.0, software_found=software),
        summary(
            "theirs", 1.0, framework="huggingface", software_found=SOFTWARE | {"accelerate": "1"}
        ),
    ]
    ours, theirs = results_of(*rows)
    assert setting_differences(ours, theirs) == (
        "torch: 2.13.0 → 2.6.0",
        "framework: native → huggingface",
    )
