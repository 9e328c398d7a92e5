"""Experiments of two runs: each against the one of the same name, and first what is unlike.

Two are the same experiment when name and settings are: the whole of what was resolved, the text's
digest instead of its folder.  Those whose settings differ are listed first and compared with that
said.  On another model of device speeds stand beside each other and are not judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainrig.errors import DataError
from trainrig.report.experiments import summaries
from trainrig.report.experiments.summaries import BENCHMARK, Summary
from trainrig.report.experiments.versus import Two, Versus, as_dict, judge, text, unlike
from trainrig.report.view import RunView
from trainrig.stats import Change
from trainrig.units import one_line

_MACHINE = ("threads", "transport", "wrapped", "state_precision", "num_parameters")
"""Of a layout as found, what bears on speed and is no setting."""
_VISIBLE = "cuda_visible_devices"


@dataclass(frozen=True, slots=True, kw_only=True)
class Across:
    """What can be said of the experiments of two runs."""

    rows: tuple[Versus, ...]
    """Those that both have, in the order of the new run."""
    old: tuple[Summary, ...]
    new: tuple[Summary, ...]
    """The same ones, as either run keeps them."""
    alone: tuple[tuple[str, str], ...]
    """Those that one run has, and why the other has not."""

    def count(self, change: Change) -> int:
        """How many came out so."""
        return sum(each.says == change.value for each in self.rows)


def is_of_experiments(view: RunView) -> bool:
    """Whether a run was made for experiments, however far it came."""
    return bool(summaries.planned(view)) or summaries.SERIES in view.series


def experiments_of_two(old: RunView, new: RunView) -> Across | None:
    """Compare them; None where neither run has any.

    Raises DataError where a run is damaged, was cut off before its first experiment, or is of
    another kind than the other.
    """
    sides = (old, new)
    kinds = [is_of_experiments(view) for view in sides]
    if not any(kinds):
        return None
    for view, has in zip(sides, kinds, strict=True):
        if not has:
            raise DataError(
                f"{view.name} has no experiments, and the other run has",
                "compare two runs of trainrig train FILE, or two of trainrig qualify",
            )
    found = [_summaries(view) for view in sides]
    met = [name for name in found[1] if name in found[0]]
    return Across(
        rows=judge([_two(name, sides, found) for name in met]),
        old=tuple(found[0][name] for name in met),
        new=tuple(found[1][name] for name in met),
        alone=(
            *((name, _why_alone(new, "new")) for name in found[0] if name not in found[1]),
            *((name, _why_alone(old, "old")) for name in found[1] if name not in found[0]),
            *_never_came(sides, found),
        ),
    )


def _summaries(view: RunView) -> dict[str, Summary]:
    """The run's experiments, with the digest of their text."""
    try:
        found = {each["name"]: each for each in summaries.read(view.series)}
    except DataError as error:
        raise DataError(f"{view.name}: {error.message}", error.hint) from None
    if not found:
        raise DataError(
            f"{view.name} was cut off before its first experiment was trained",
            "train again, or compare another run",
        )
    texts = _texts(view)
    return {
        name: {**each, "settings": {**each["settings"], "data": texts[name]}}
        if each.get("settings") and name in texts
        else each
        for name, each in found.items()
    }


def _texts(view: RunView) -> dict[str, Any]:
    """The digest of the text that each was trained on, from the records."""
    cases = [record.case for record in view.records if record.benchmark == BENCHMARK]
    return {str(case.get("experiment")): case["data"] for case in cases if "data" in case}


def _devices(view: RunView, name: str) -> str:
    """The models of device that an experiment ran on."""
    found = {
        record.device
        for record in view.records
        if record.benchmark == BENCHMARK and record.is_point and record.device
        if record.case.get("experiment") == name
    }
    return ", ".join(sorted(found))


def _two(name: str, sides: Sequence[RunView], found: Sequence[Mapping[str, Summary]]) -> Two:
    base, own = found[0][name], found[1][name]
    old, new = (_devices(view, name) for view in sides)
    other = old and new and old != new
    return Two(
        base=base,
        own=own,
        base_name="old run",
        unlike=(*unlike(base, own), *_as_found(base, own)),
        of_two_runs=True,
        not_judged=f"another device: {one_line(old)} → {one_line(new)}" if other else None,
    )


def _as_found(base: Summary, own: Summary) -> list[str]:
    """What was found differently where the same was asked for: devices, threads, transport."""
    old, new = base.get("layout_found") or {}, own.get("layout_found") or {}
    seen = [each.get(_VISIBLE) for each in (base, own)]
    other = None not in seen and seen[0] != seen[1]
    return [
        *([f"{_VISIBLE}: {seen[0]} → {seen[1]}"] if other else []),
        *_differ(old, new),
    ]


def _differ(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    return [
        f"found {name}: {text(old[name])} → {text(new[name])}"
        for name in _MACHINE
        if name in old and name in new and old[name] != new[name]
    ]


def _why_alone(view: RunView, which: str) -> str:
    return f"not in the {which} run" + (", which was cut off" if view.verdict is None else "")


def _never_came(
    sides: Sequence[RunView], found: Sequence[Mapping[str, Summary]]
) -> list[tuple[str, str]]:
    """What was planned and never came to be in either run."""
    names = dict.fromkeys(name for view in sides for name in summaries.planned(view))
    return [
        (name, "in neither run's results")
        for name in names
        if name not in found[0] and name not in found[1]
    ]


def across_dict(found: Across) -> dict[str, Any]:
    """For JSON."""
    return {
        "compared": [as_dict(each) for each in found.rows],
        "alone": [{"name": name, "why": why} for name, why in found.alone],
    }
