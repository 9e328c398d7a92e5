"""Every command that a report prints runs: a real run's, the demo's, a noisy one's.

What takes minutes (samples, training steps) is left out: each command is parsed, looks at the
machine, opens its run and makes its plan.  A command that is refused ends in exit code 2.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import report_views as made
from trainrig.cli.report import read_view
from trainrig.record import RunView, Status, to_json
from trainrig.report import DEMO
from trainrig.report.run_report import run_document
from trainrig.runner import matmul_search, session
from trainrig.store import find_runs, read_run

_COMMAND = re.compile(
    r"(?<![\w/])trainrig (?:qualify|bench|train|burn|doctor|inspect|report)\b[^;]*"
)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run; its folder has a blank in its name, as people's folders do."""
    out = tmp_path_factory.mktemp("my runs")
    words = ["qualify", "--budget", "8s", "--only", "matmul,vector,layer", "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "-m", "trainrig", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1, 3), done.stderr
    (run,) = find_runs(out)
    return run


@pytest.fixture
def run_it(trainrig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Runs a printed command up to where it would measure; its exit code and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(session, "_run_blocks", lambda *_: None)
    monkeypatch.setattr(session, "Worker", None)
    monkeypatch.setattr(session, "SMALL_BUDGET", 0.0)
    monkeypatch.setattr(matmul_search, "plan_search", lambda *_: [])

    def run(command: str) -> tuple[int, str]:
        words = shlex.split(command)
        assert words[0] == "trainrig"
        more = ["--dry-run"] if words[1] == "train" and "--resume" not in words else []
        code, _, err = trainrig(*words[1:], *more)
        return code, err

    return run


def texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple | list):
        for each in value:
            yield from texts(each)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from texts(getattr(value, field.name))


def printed(view: RunView) -> list[str]:
    """The commands of a report, each once: whole ones to copy, and those at the ends of texts."""
    blocks = tuple(run_document([view]).blocks)
    found = [match[0] for text in texts(blocks) for match in _COMMAND.finditer(text)]
    return list(dict.fromkeys(text.partition(", ")[0].rstrip(". ") for text in found))


def disturb(run: Path) -> None:
    """Make most points of a run noisy, and add one with its attempts: a busy machine has none."""
    records = [
        record.replace(disturbed=_REASONS[number % 2])
        if record.is_point and record.status is Status.OK
        else record
        for number, record in enumerate(read_run(run).records)
    ]
    one = made.point("matmul", made.matmul_case("fp32", 64, cache="hot"), 1e9, device_index=None)
    records += made.settled(one.replace(disturbed=_REASONS[0]), 2.0 * 64**3)
    (run / "records.jsonl").write_text("".join(f"{to_json(each)}\n" for each in records))
    (run / "verdict.json").unlink()


_REASONS = ("2 workers disagree by 12 %", "a thread waited for a core 24 % of the time")


@pytest.fixture(scope="module")
def disturbed(measured: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("noisy runs") / measured.name
    shutil.copytree(measured, copy)
    disturb(copy)
    return copy


@pytest.mark.parametrize("which", ["measured", "disturbed", "demo"])
def test_every_command_that_is_printed_runs(which: str, request, run_it) -> None:
    path = DEMO if which == "demo" else request.getfixturevalue(which)
    commands = printed(read_view(path))
    assert commands
    for command in commands:
        code, err = run_it(command)
        assert code != 2 and "Traceback" not in err, (command, err)


def test_what_needs_more_time_is_printed_with_it(disturbed: Path) -> None:
    resumed = [each for each in printed(read_view(disturbed)) if "--resume" in each]
    assert resumed and all(str(disturbed) in shlex.split(each) for each in resumed)
    view = read_view(disturbed)
    assert view.verdict is not None
    for finding in view.verdict.findings:
        if "more time" in finding.fix:
            assert "--budget" in finding.fix


def change_packages(run: Path, **packages: str) -> None:
    machine = json.loads((run / "machine.json").read_text())
    named = {name.replace("_", "-"): version for name, version in packages.items()}
    machine["software"]["packages"] |= named
    (run / "machine.json").write_text(json.dumps(machine))


def without(run: Path, *names: str) -> None:
    machine = json.loads((run / "machine.json").read_text())
    for name in names:
        machine["software"]["packages"].pop(name, None)
    (run / "machine.json").write_text(json.dumps(machine))


def test_packages_that_were_added_since_refuse_no_command(disturbed: Path, run_it) -> None:
    """`make test` installs these beside torch."""
    without(disturbed, "transformers", "accelerate", "deepspeed", "megatron-core", "torchao")
    for command in printed(read_view(disturbed)):
        code, err = run_it(command)
        assert code != 2, (command, err)


def test_a_refused_resume_names_what_changed_and_a_command_that_runs(
    disturbed: Path, run_it
) -> None:
    change_packages(disturbed, numpy="0.0.1")
    code, err = run_it(f"trainrig qualify --resume {shlex.quote(str(disturbed))}")
    assert code == 2 and "numpy 0.0.1 → " in err
    (hint,) = [line for line in err.splitlines() if "start a new run" in line]
    command = hint[hint.index("trainrig qualify") :]
    assert shlex.split(command)[1:5] == ["qualify", "--only", "matmul,vector,layer", "--budget"]
    assert run_it(command)[0] != 2
