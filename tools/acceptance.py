"""Runs everything that takes long, once for each state of the code; goes on where it was stopped.

    make acceptance                        what has not passed at this commit yet
    make acceptance ARGS="--list"          the checks, and at which commit each passed last
    make acceptance ARGS="parity slow"     those whose name contains one of these words
    make acceptance ARGS="--again"         those that have passed, too

A check is a test that is marked `acceptance` or `smoke`, or a program below.  What passed at which
commit stands in .acceptance/state.json, what was printed in .acceptance/logs/.  With changes that
are not committed, the commit is followed by a digest of them.  Ends in a table; exit code 1 where
a check failed, 3 where one is still open.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".acceptance"
TRAINRIG = ("-m", "trainrig")
OUT = ("--out", ".acceptance/runs")
PROGRAMS: dict[str, tuple[str, ...]] = {
    "parity, tiny": (*TRAINRIG, "train", "experiments/parity.toml", "--scale", "tiny", *OUT),
    "classic, tiny, three rounds": (
        *(*TRAINRIG, "train", "experiments/classic.toml", "--scale", "tiny"),
        *("--rounds", "3", *OUT),
    ),
    "qualify, four minutes": (*TRAINRIG, "qualify", "--budget", "4m", *OUT),
    "validation: accuracy": ("-m", "validation.accuracy"),
    "validation: translations": ("-m", "validation.translations"),
    "validation: peers": ("-m", "validation.peers"),
    "validation: rates": ("-m", "validation.rates"),
    "validation: memory": ("-m", "validation.memory_golden"),
    "validation: memory of families": ("-m", "validation.memory_families"),
    "validation: allocator": ("-m", "validation.allocator"),
}
# Exit codes that are results: a machine may be incomplete (3), and that is no fault of the program.
FINE = {"qualify, four minutes": (0, 3)}


def git(*words: str) -> str:
    """Return what git prints."""
    done = subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout


def state_of_code() -> str:
    """The commit, with a digest of what is changed since."""
    changes = git("diff", "HEAD") + git("ls-files", "--others", "--exclude-standard")
    digest = hashlib.sha256(changes.encode()).hexdigest()[:8] if changes else ""
    return git("rev-parse", "--short=12", "HEAD").strip() + (f"+{digest}" if digest else "")


def checks() -> dict[str, tuple[list[str], str]]:
    """Name → the arguments of Python that run it, and the gate of its tests."""
    found: dict[str, tuple[list[str], str]] = {}
    for gate in ("smoke", "acceptance"):
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", gate]
        done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        for line in done.stdout.splitlines():
            if "::" in line:
                found[line] = (["-m", "pytest", "-q", line], gate)
    found |= {f"perf: {path.stem}": ([str(path)], "") for path in sorted(perf())}
    return found | {name: (list(command), "") for name, command in PROGRAMS.items()}


def perf() -> list[Path]:
    """The programs that measure trainrig against others."""
    return [path for path in (ROOT / "perf").glob("*.py") if not path.name.startswith("_")]


def run(name: str, arguments: Sequence[str], gate: str) -> dict[str, Any]:
    """Run one check; its row of the state."""
    log = FOLDER / "logs" / (re.sub(r"[^\w.-]+", "-", name).strip("-") + ".log")
    log.parent.mkdir(parents=True, exist_ok=True)
    environ = os.environ | {"TRAINRIG_GATE": gate}
    start = time.monotonic()
    with log.open("w") as file:
        file.write(f"$ python {' '.join(arguments)}\n\n")
        file.flush()
        command = [sys.executable, *arguments]
        done = subprocess.run(
            command, cwd=ROOT, env=environ, stdout=file, stderr=subprocess.STDOUT, check=False
        )
    return {
        "passed": done.returncode in FINE.get(name, (0,)),
        "code": done.returncode,
        "seconds": round(time.monotonic() - start, 1),
        "log": str(log.relative_to(ROOT)),
    }


def read_state() -> dict[str, dict[str, Any]]:
    """Check → what came of it last; empty before the first."""
    path = FOLDER / "state.json"
    content: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
    return content


def write_state(state: dict[str, dict[str, Any]]) -> None:
    """Replace the file as a whole, so that a kill leaves the old one."""
    FOLDER.mkdir(exist_ok=True)
    draft = FOLDER / "state.json.new"
    draft.write_text(json.dumps(state, indent=1, sort_keys=True) + "\n")
    draft.replace(FOLDER / "state.json")


def is_done(row: dict[str, Any] | None, code: str) -> bool:
    """Return whether it has passed with the code as it is."""
    return row is not None and row["passed"] and row["code_state"] == code


def summary(names: Sequence[str], state: dict[str, dict[str, Any]], code: str) -> str:
    """A table in markdown, for the note of an issue."""
    rows = ["| check | result | time | commit |", "|---|---|---|---|"]
    for name in names:
        row = state.get(name)
        if row is None:
            rows.append(f"| {name} | not run | | |")
            continue
        result = "passed" if row["passed"] else f"FAILED ({row['code']}): {row['log']}"
        older = "" if row["code_state"] == code else " (older)"
        rows.append(f"| {name} | {result} | {row['seconds']:.0f} s | {row['code_state']}{older} |")
    passed = sum(is_done(state.get(name), code) for name in names)
    return "\n".join([*rows, "", f"{passed} of {len(names)} passed at {code}."])


def main() -> int:
    """Run what is open, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("words", nargs="*", help="run checks whose name contains one of these")
    parser.add_argument("--list", action="store_true", help="show the checks, run none")
    parser.add_argument("--again", action="store_true", help="run what has passed, too")
    options = parser.parse_args()
    code, state, known = state_of_code(), read_state(), checks()
    words = options.words
    names = [name for name in known if not words or any(word in name for word in words)]
    for name in names:
        if options.list or (is_done(state.get(name), code) and not options.again):
            continue
        print(f"== {name}", file=sys.stderr, flush=True)
        state[name] = run(name, *known[name]) | {"code_state": code}
        write_state(state)
    print(summary(names, state, code))
    if any(name in state and not state[name]["passed"] for name in names):
        return 1
    return 0 if options.list or all(is_done(state.get(name), code) for name in names) else 3


if __name__ == "__main__":
    sys.exit(main())
