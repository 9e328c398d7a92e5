"""Can an extension of torch be built here, and if not, why: one is really built, or a log is read.

DeepSpeed's ops, apex and flash-attn are extensions of torch in C++; they are built by
torch.utils.cpp_extension with the machine's compiler and ninja, often minutes into a training.
`try_extension` builds the smallest one, loads it and compares what it computes.  `explain` finds
the cause in what a failed build has printed, by the rows of build_errors.toml.

torch is not imported here: the interpreter that is named runs it.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from trainrig.errors import DataError
from trainrig.process.programs import last_line, run_program

_TABLE = Path(__file__).parent / "build_errors.toml"
TIMEOUT_S = 300.0
"""Seconds that the build may take: torch's headers alone take ten to forty."""
_PROGRAM = """
import json, os, sys, time
try:
    import torch
except ImportError as error:
    sys.exit(f"No module named torch: {error}")
from torch.utils.cpp_extension import load_inline
start = time.perf_counter()
source = '''
at::Tensor twice_plus(const at::Tensor& a, double b) { return a * 2 + b; }
'''
built = load_inline(
    name="trainrig_probe", cpp_sources=[source], functions=["twice_plus"],
    build_directory=sys.argv[1], verbose=True,
)
seconds = time.perf_counter() - start
found = built.twice_plus(torch.arange(4.0), 1.0).tolist()
print("")
print(json.dumps({"torch": str(torch.__version__), "seconds": seconds, "found": found}))
"""
_RIGHT = [1.0, 3.0, 5.0, 7.0]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildError:
    """Cause of a failed build of an extension."""

    id: str
    """Stable id of the cause: ``compiler-missing``, ``unexplained``."""
    cause: str
    fix: str
    line: str
    """Line of the output that shows the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtensionBuild:
    """Result of building an extension."""

    python: str
    torch: str | None = None
    seconds: float | None = None
    """Seconds of build and load; None where it failed."""
    error: BuildError | None = None
    output: str = ""
    """The end of what the build printed."""


@cache
def _rows() -> tuple[tuple[str, re.Pattern[str], str, str], ...]:
    rows = tomllib.loads(_TABLE.read_text(encoding="utf-8"))["error"]
    return tuple((r["id"], re.compile(r["pattern"]), r["cause"], r["fix"]) for r in rows)


def explain(text: str) -> BuildError | None:
    """Return the cause in a build's output; None where no row of the table matches."""
    for id_, pattern, cause, fix in _rows():
        if match := pattern.search(text):
            groups = [group or "" for group in match.groups()]
            start = text.rfind("\n", 0, match.start()) + 1
            line = text[start:].splitlines()[0].strip()[:200]
            return BuildError(
                id=id_,
                cause=_filled(cause, groups),
                fix=_filled(fix, groups),
                line=line,
            )
    return None


def _filled(text: str, groups: list[str]) -> str:
    for number, group in enumerate(groups, 1):
        text = text.replace(f"{{{number}}}", group)
    return text


def explain_file(path: Path) -> BuildError:
    """Return the cause in a build's log.  Raises DataError where no row of the table matches."""
    try:
        text = path.read_bytes()[-_MOST_READ:].decode("utf-8", "replace")
    except OSError as error:
        raise DataError(f"{path}: {(error.strerror or 'unreadable').lower()}") from None
    explanation = explain(text)
    if explanation is None:
        hint = "give the whole output: pip install -v --no-build-isolation PACKAGE 2>&1 | tee LOG"
        raise DataError(f"{path}: no cause that is known here", hint)
    return explanation


_MOST_READ = 16 * 2**20


def try_extension(
    python: str = sys.executable, env: Mapping[str, str] | None = None
) -> ExtensionBuild:
    """Build the smallest extension with a Python's torch, load it and check what it computes.

    ``env``: the environment variables of the build (default: this process's).
    """
    variables = dict(os.environ if env is None else env)
    with tempfile.TemporaryDirectory(prefix="trainrig-extension-") as folder:
        try:
            done = run_program([python, "-c", _PROGRAM, folder], TIMEOUT_S, env=variables)
        except OSError as error:
            failed = BuildError(
                id="no-python",
                cause=f"{python} cannot be started: {error.strerror}",
                fix="--python PATH",
                line="",
            )
            return ExtensionBuild(python=python, error=failed)
    text = (done.stdout + b"\n" + done.stderr).decode("utf-8", "replace")
    if done.code == 0:
        return _built(python, done.stdout, text)
    ended = "did not end in time" if done.code is None else f"ended with code {done.code}"
    unexplained = BuildError(
        id="unexplained",
        cause=f"the build {ended}, and its output names no cause that is known here",
        fix="read the output: trainrig env --try-extension --json",
        line=last_line(done.stderr or done.stdout),
    )
    return ExtensionBuild(
        python=python, error=explain(text) or unexplained, output=text[-_MOST_SHOWN:]
    )


_MOST_SHOWN = 20_000


def _built(python: str, stdout: bytes, text: str) -> ExtensionBuild:
    try:
        answer = json.loads(stdout.splitlines()[-1])
        version, seconds, results = answer["torch"], answer["seconds"], answer["found"]
    except (ValueError, LookupError, TypeError):
        version, seconds, results = None, None, None
    error = None
    if results != _RIGHT:
        error = BuildError(
            id="wrong-answer",
            cause=f"it was built and computes {results}, not {_RIGHT}",
            fix="another compiler or another torch: this pair is not to be trusted",
            line="",
        )
    return ExtensionBuild(
        python=python, torch=version, seconds=seconds, error=error, output=text[-_MOST_SHOWN:]
    )
