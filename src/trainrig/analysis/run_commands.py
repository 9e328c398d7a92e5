"""The commands that go on with a run, or make it anew: each runs as it is printed.

They come from run.toml, so that devices, benchmarks, demands and budget are those of the run.  Only
`qualify` and `train` resume; a bench is made anew, and so is what a bundle holds.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainrig.benchmarks.spec import find
from trainrig.units import DAY, duration_text

DEFAULT_BUDGET_S = 240.0
"""Time that `qualify` takes without ``--budget``."""
_DEFAULT_BUDGETS_S = {"qualify": DEFAULT_BUDGET_S, "bench": 60.0}
"""Seconds that a verb takes without ``--budget``."""
MAX_BUDGET_S = 7 * DAY
_RESUMED = ("qualify", "train")
_RESUME = re.compile(r"trainrig \w+ --resume (?:'[^']*'|\S+)(?: --budget \S+)?")
_DEFAULT_OUT = Path("runs")
_LISTS = {"devices": ",", "only": ","}
"""Options of `qualify` that take a list, by their key in run.toml."""


def resume_command(config: Mapping[str, Any], run: str, *, longer: bool = False) -> str:
    """Return the command that goes on with the run whose run.toml is ``config``.

    ``longer``: with more time than the run had, where it was too short.
    """
    verb = config.get("verb")
    if verb not in _RESUMED or not _is_name(run):
        return new_command(config, _DEFAULT_OUT, longer=longer)
    words = ["trainrig", str(verb), "--resume", shlex.quote(run)]
    return " ".join([*words, *_budget(config, longer=longer)])


def with_current_path(fix: str, config: Mapping[str, Any], run: str) -> str:
    """Return advice that was stored with a run, its command for where the run is now.

    A run may be read from another folder, after it was moved, or from a bundle.
    """
    return _RESUME.sub(
        lambda match: resume_command(
            config, run, longer="--budget" in match[0] or "larger --budget" in fix
        ),
        fix,
    )


def new_command(config: Mapping[str, Any], out: Path, *, longer: bool = False) -> str:
    """Return the command that makes a run again, with what it was asked for, in the folder ``out``.

    A run that its run.toml does not describe is made by `qualify`.
    """
    verb, benchmark = config.get("verb"), find(str(config.get("benchmark")))
    if verb == "bench" and benchmark is not None:
        options = [shlex.quote(word) for word in _strings(config.get("options"))]
        words = [benchmark.command, *options, *_budget(config, longer=longer)]
    else:
        words = ["trainrig", "qualify", *_requested(config), *_budget(config, longer=longer)]
    if out != _DEFAULT_OUT:
        words += ["--out", shlex.quote(str(out))]
    return " ".join(words)


def _requested(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the options of a qualification as run.toml keeps them."""
    if config.get("verb") != "qualify":
        return
    for key, mark in _LISTS.items():
        if names := _strings(config.get(key)):
            yield f"--{key} {shlex.quote(mark.join(names))}"
    for demand in _strings(config.get("min")):
        yield f"--min {shlex.quote(demand)}"
    if baseline := config.get("baseline"):
        yield f"--baseline {shlex.quote(str(baseline))}"


def _budget(config: Mapping[str, Any], *, longer: bool) -> Iterator[str]:
    """Yield ``--budget``, where it is not the default: the run's own, or twice as much and more."""
    usual = _DEFAULT_BUDGETS_S.get(str(config.get("verb")))
    if usual is None:
        return
    had = config.get("budget_s")
    seconds = float(had) if isinstance(had, int | float) and had > 0 else usual
    if longer:
        seconds = min(max(2.0 * seconds, usual), MAX_BUDGET_S)
    if longer or seconds != usual:
        yield f"--budget {duration_text(seconds)}"


def _strings(value: object) -> Sequence[str]:
    return [str(item) for item in value] if isinstance(value, list | tuple) else []


def _is_name(run: str) -> bool:
    """Return whether a name can stand in a command: a bundle must not put a line break there."""
    return run.isprintable() and not Path(run).is_file()
