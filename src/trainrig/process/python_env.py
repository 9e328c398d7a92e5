"""Find the Python that a framework's ranks run in, and the packages installed there.

A framework may live in an environment of its own, with a torch other than ours.  Its interpreter
is the first that is given of:

    python                        a key of the experiment, --python on the command line
    TRAINRIG_<FRAMEWORK>_PYTHON   for instance TRAINRIG_HUGGINGFACE_PYTHON
    the interpreter that runs this program

A name is made absolute, and links are left alone: a virtual environment is found by the place of
its interpreter's link.  What is there is asked of the interpreter itself, once, in a process that
imports nothing of it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from importlib.util import find_spec

from trainrig.errors import UnavailableError, UsageError
from trainrig.process.programs import last_line, run_program

LEAST = (3, 10)
"""The oldest Python that the drivers and `trainrig.data` run in."""
LEAST_TORCH = "2.9"
"""The oldest torch that anything here runs in: the first with the stager of asynchronous
checkpoints (`torch.distributed.checkpoint.staging.DefaultStager`); pyproject.toml says it, too."""
_TIMEOUT = 60.0
"""Seconds until it has to have answered: a first start from a network drive is slow."""
# Read by whatever it is that was named, so in words that every Python since 2.6 knows.
_QUESTION = """
import json, sys
sys.path[:] = [folder for folder in sys.path if folder]
packages = {}
if sys.version_info >= (3, 8):
    from importlib import metadata, util
    for name in sys.argv[1:]:
        try:
            found = util.find_spec(name)
        except ModuleNotFoundError:  # what it is a part of is not there
            found = None
        if found is not None:
            try:
                packages[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                packages[name] = ""
found = {"version": list(sys.version_info[:3]), "folders": sys.path, "packages": packages}
print("")
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """Version and packages of a Python interpreter, as it reports them."""

    path: str
    version: tuple[int, ...] = ()
    folders: tuple[str, ...] = ()
    """Folders of its sys.path."""
    packages: Mapping[str, str] = field(default_factory=dict)
    """Installed packages, of those requested: name → version, empty where none is stated."""
    broken: str | None = None
    """Reason that it said nothing, in one line."""


def interpreter_for(python: str, framework: str) -> str:
    """Return absolute path of a framework's interpreter.  UsageError for a name that is none."""
    variable = variable_of(framework)
    for source, name in (("python", python), (variable, os.environ.get(variable, ""))):
        if name:
            return _absolute(source, name)
    return sys.executable


def variable_of(framework: str) -> str:
    """Return the environment variable that names a framework's interpreter."""
    return f"TRAINRIG_{framework.upper()}_PYTHON"


def is_external(path: str) -> bool:
    """Return whether an interpreter has packages of its own; two may link to one program."""
    return os.path.abspath(path) != os.path.abspath(sys.executable)


def _absolute(source: str, name: str) -> str:
    name = os.path.expanduser(name)
    on_path = None if os.path.dirname(name) else shutil.which(name)
    path = os.path.abspath(on_path or name)
    if not os.path.exists(path):
        raise UsageError(f"{source} = {name}: there is no such interpreter", "the path of a python")
    if os.path.isdir(path):
        inside = os.path.join(path, "bin", "python")
        hint = inside if os.path.exists(inside) else "the path of a python"
        raise UsageError(f"{source} = {name}: that is a folder", hint)
    if not os.access(path, os.X_OK):
        raise UsageError(f"{source} = {name}: that is no program", "the path of a python")
    return path


def missing_requirement(path: str, needs: Mapping[str, str]) -> str | None:
    """Return why a driver cannot run there, in one line; None if it can.

    ``needs``: its packages, each with the oldest version that will do, empty for any.
    """
    python = inspect_python(path, tuple(needs))
    where = f" in {path}" if is_external(path) else ""
    if python.broken is not None:
        return f"{path} {python.broken}"
    if python.version < LEAST:
        have, oldest = (".".join(map(str, version)) for version in (python.version, LEAST))
        return f"{path} is Python {have}, older than {oldest}"
    for name, least in needs.items():
        if name not in python.packages:
            return f"{name} is not installed{where}"
        have = python.packages[name]
        if have and _numbers(have) < _numbers(least):
            return f"{name} is {have}{where}, older than {least}"
    return None


def check_torch() -> None:
    """Raise UnavailableError where this Python has no torch, or one that is too old."""
    have = ""
    try:
        have = metadata.version("torch")
        is_there = True
    except metadata.PackageNotFoundError:  # built in its own folder, it states no version
        is_there = find_spec("torch") is not None
    if not is_there:
        hint = f"make setup, or: pip install 'torch>={LEAST_TORCH}'"
        raise UnavailableError("torch is not installed", hint)
    if have and _numbers(have) < _numbers(LEAST_TORCH):
        raise UnavailableError(
            f"torch {have} is older than {LEAST_TORCH}, which trainrig needs",
            f"pip install 'torch>={LEAST_TORCH}'; if others need {have}, in its own environment",
        )


def _numbers(version: str) -> tuple[int, ...]:
    """Return ``(4, 57, 6)`` of ``4.57.6.dev0``; the rest says nothing of age here."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


@cache
def inspect_python(path: str, packages: tuple[str, ...] = ()) -> Interpreter:
    """Ask an interpreter for its version and packages; the answer is cached."""
    try:
        env = without_python_paths(os.environ) if is_external(path) else None
        done = run_program([path, "-c", _QUESTION, *packages], _TIMEOUT, env=env)
    except OSError as error:
        return Interpreter(path=path, broken=f"cannot be started: {error.strerror}")
    if done.code is None:
        return Interpreter(path=path, broken=f"did not answer within {_TIMEOUT:.0f} s")
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
        return Interpreter(
            path=path,
            version=tuple(answer["version"]),
            folders=tuple(answer["folders"]),
            packages=dict(answer["packages"]),
        )
    except (ValueError, LookupError, TypeError):
        nothing = f"nothing, exit code {done.code}"
        words = last_line(done.stderr or done.stdout, nothing)
        return Interpreter(path=path, broken=f"answers as no Python does: {words}")


def without_python_paths(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for a Python with packages of its own: none that leads it to ours."""
    python_paths = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    return {name: value for name, value in inherited.items() if name not in python_paths}
