"""Extensions that DeepSpeed compiles at first use, and why that fails or waits for ever.

On a host it builds its shared-memory collectives at every start that finds none built
(``deepspeed_shm_comm``), CPUAdam where the optimizer is offloaded, async_io where that is a disk.
Each needs a C++ compiler, async_io libaio's header and library as well.  What is built is kept in
torch's folder of extensions, TORCH_EXTENSIONS_DIR or ~/.cache/torch_extensions/py311_cpu.

A build takes a file called ``lock`` there, and whoever comes later waits until it is gone
(torch.utils.file_baton).  Of a build that was killed it stays: all later trainings hang without a
word.  Who builds has the file open, so one that nobody has open was left behind.

Imports no torch.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from trainrig.errors import NeedsCompilerError, UnavailableError
from trainrig.process.programs import run_program
from trainrig.process.python_env import interpreter_for, is_external
from trainrig.train.config import Experiment
from trainrig.units import format_time

_COMPILING = 60.0
"""Seconds that one header may take."""


def lacking_for_builds(experiment: Experiment) -> UnavailableError | None:
    """Why what an experiment needs cannot be built, or would never come to be; None: it can."""
    if experiment.device.startswith("cuda") and experiment.offload == "none":
        return None
    compiler = shlex.split(os.environ.get("CXX", "")) or ["g++"]
    if shutil.which(compiler[0]) is None:
        words = f"deepspeed builds its CPU kernels when it starts, and {compiler[0]} is not on PATH"
        return NeedsCompilerError(words, "apt install g++, or CXX=another compiler")
    if experiment.offload == "disk" and not _has_libaio(compiler):
        words = "missing: offload disk needs DeepSpeed's async_io, and libaio is not found by "
        hint = "apt install libaio-dev, or CPATH and LIBRARY_PATH to where it is; or offload host"
        return UnavailableError(f"{words}{compiler[0]}", hint)
    for lock in _locks(experiment):
        if (age := _age_of_stale(lock)) is not None:
            words = f"deepspeed would wait for ever for {lock}: a build that was killed left it "
            hint = f"rm {shlex.quote(str(lock))}, unless another machine is building in that folder"
            return UnavailableError(f"{words}{format_time(age)} ago, nobody has it open", hint)
    return None


def _has_libaio(compiler: list[str]) -> bool:
    """Return whether a program that includes libaio compiles and links."""
    with tempfile.TemporaryDirectory() as folder:
        words = ("-x", "c++", "-include", "libaio.h", "/dev/null", "-shared", "-laio", "-o")
        try:
            compilation = run_program([*compiler, *words, f"{folder}/linked.so"], _COMPILING)
        except OSError:
            return False
    return compilation.code == 0


def _locks(experiment: Experiment) -> Iterator[Path]:
    """Yield the lock files of the extensions that this experiment's ranks load."""
    wanted = []
    if not experiment.device.startswith("cuda"):
        wanted.append("deepspeed_shm_comm")
    if experiment.optimizer == "adamw-fused":
        wanted.append("cpu_adam" if experiment.offload != "none" else "fused_adam")
    if experiment.offload == "disk":
        wanted += ["async_io", "pin_memory"]
    folders = _folders(interpreter_for(experiment.placement.python, experiment.framework))
    yield from (folder / name / "lock" for folder in folders for name in wanted)


def _folders(python: str) -> list[Path]:
    """Return the folders in which an interpreter's torch keeps built extensions."""
    if named := os.environ.get("TORCH_EXTENSIONS_DIR"):
        return [Path(named)]
    root = Path.home() / ".cache" / "torch_extensions"
    version = "" if is_external(python) else "".join(map(str, sys.version_info[:2]))
    return sorted(root.glob(f"py{version}*_*"))


def _age_of_stale(lock: Path) -> float | None:
    """Return seconds since a lock was made that no process here has open.

    None: there is no such lock.
    """
    try:
        age = time.time() - lock.stat().st_mtime
    except OSError:
        return None
    return None if _is_open(lock) else max(0.0, age)


def _is_open(path: Path) -> bool:
    """Return whether a process that we may look into has a file open."""
    name = os.path.realpath(path)
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(link) == name:
                return True
        except OSError:  # it has ended, or is another user's
            continue
    return False
