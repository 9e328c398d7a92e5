"""`make acceptance`: what passed is not run again at the same commit, what failed is."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
Started = Callable[..., tuple[int, str]]


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The program with two checks: one passes, one fails until a file is there."""
    spec = importlib.util.spec_from_file_location("acceptance", ROOT / "tools" / "acceptance.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "FOLDER", tmp_path / ".acceptance")
    monkeypatch.setattr(module, "state_of_code", lambda: "c0ffee")
    count = "open('ran', 'a').write('x')"
    fail = "import os, sys; print('why'); sys.exit(not os.path.exists('mended'))"
    checks = {"fine": (["-c", count], ""), "fails": (["-c", fail], "")}
    monkeypatch.setattr(module, "checks", lambda: checks)
    return module


@pytest.fixture
def start(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Started:
    def run(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["acceptance.py", *words])
        return tool.main(), capsys.readouterr().out

    return run


def test_what_passed_is_not_run_again_and_what_failed_is(start: Started, tmp_path: Path) -> None:
    code, shown = start()
    assert code == 1
    assert "| fine | passed |" in shown and "| fails | FAILED (1): .acceptance/logs/" in shown
    assert "1 of 2 passed at c0ffee." in shown
    assert (tmp_path / ".acceptance" / "logs" / "fails.log").read_text().endswith("why\n")
    (tmp_path / "mended").touch()
    code, shown = start()
    assert code == 0 and "2 of 2 passed" in shown
    assert (tmp_path / "ran").read_text() == "x"
    start("--again", "fine")
    assert (tmp_path / "ran").read_text() == "xx"


def test_another_commit_runs_all_again(
    start: Started, tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start("fine")
    monkeypatch.setattr(tool, "state_of_code", lambda: "d00d1e")
    assert "| c0ffee (older) |" in start("--list")[1]
    start("fine")
    assert (tmp_path / "ran").read_text() == "xx"


def test_a_stop_keeps_what_was_done(
    start: Started, tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tool.run

    def stopped(name: str, *rest: object) -> object:
        if name == "fails":
            raise KeyboardInterrupt
        return whole(name, *rest)

    monkeypatch.setattr(tool, "run", stopped)
    with pytest.raises(KeyboardInterrupt):
        start()
    state = json.loads((tmp_path / ".acceptance" / "state.json").read_text())
    assert state["fine"]["passed"] and "fails" not in state
    assert start("--list") == (0, start("--list")[1])
    assert "| fails | not run | | |" in start("--list")[1]


def ci(folder: Path, seconds: int) -> subprocess.CompletedProcess[str]:
    """.ci/run where each part takes so many seconds by the clock, and make does nothing.

    All that it needs is there, whatever this machine has: it must not install anything.
    """
    clock = f"#!/bin/sh\nn=$(cat {folder}/now); echo $n; echo $((n + {seconds})) > {folder}/now\n"
    (folder / "now").write_text("0")
    needed = ("chromium", "debootstrap", "fio", "g++", "gcc", "shellcheck", "tmux", "ninja")
    needed += ("systemd-analyze", "sshd", "ssh")
    programs = dict.fromkeys(needed, "#!/bin/sh\n")
    programs |= dict.fromkeys(("apt-get", "sudo"), '#!/bin/sh\necho "$0 $*: no" >&2; exit 1\n')
    for name, text in {**programs, "make": "#!/bin/sh\necho $*\n", "date": clock}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return subprocess.run(
        [ROOT / ".ci" / "run"],
        env={"PATH": f"{folder}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )


def test_ci_prints_what_each_part_took_and_warns_above_twenty_minutes(tmp_path: Path) -> None:
    done = ci(tmp_path, 61)
    parts = [f"{name:<8}  1 min 01 s" for name in ("lint", "docs", "test", "smoke")]
    assert done.stdout.splitlines() == [
        *("lint", "docs", "test", "smoke", ""),
        *parts,
        "total     4 min 04 s",
    ]
    assert done.stderr == ""
    assert "warning: longer than 20 minutes" in ci(tmp_path, 401).stderr


def test_both_gates_are_started_by_make() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert "TRAINRIG_GATE=smoke" in makefile and "tools/acceptance.py" in makefile
