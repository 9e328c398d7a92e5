"""The sentences that terminal, markdown and HTML share: headline, machine, verdict, largest gap."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainrig.analysis.bottlenecks import CLOSE, TINY
from trainrig.analysis.run_view import RunView, is_published, rows
from trainrig.analysis.training_results import SERIES, fault
from trainrig.analysis.waterfall import Gap, Level, Waterfall, build_waterfalls
from trainrig.record import Kind, Record, Status
from trainrig.units import (
    amount_of,
    capital,
    format_memory,
    signed,
    signed_share,
)

PUBLISHED = "Published figures, not measured by trainrig. Each number names its source."
UNVERIFIED = "NCCL, P2P and NVLink are unverified on hardware: trainrig has not measured them."


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestGap:
    """The level that lost most, and its waterfall."""

    waterfall: Waterfall
    level: Level
    ceiling: float
    below_band: bool


def device_names(view: RunView) -> str:
    """What was measured: ``2 × RTX 4090``, or the processor's name."""
    pairs = {
        (row.device or "unknown device", row.index)
        for row in rows(view)
        if row.measured and row.benchmark != "storage"  # a disk does not name a machine
    }
    gpus = Counter(device for device, index in pairs if index is not None)
    names = [f"{n} × {device}" if n > 1 else device for device, n in sorted(gpus.items())]
    if not names:
        names = sorted(device for device, _ in pairs)
    if not names:
        names = [str(_deep(view.machine, "cpu", "model") or view.name)]
    return ", ".join(names)


def verdict_word(view: RunView) -> str:
    """PASS, FAIL, INCOMPLETE, or what stands in for a verdict."""
    if view.verdict is not None:
        return str(view.verdict.outcome)
    return "NOT JUDGED" if is_published(view) else "NO VERDICT"


def verdict_reason(view: RunView) -> str:
    """One sentence."""
    if view.verdict is not None:
        return view.verdict.reason
    if is_published(view):
        return "Published figures, not measured by trainrig: there is nothing to judge."
    return "The run was cut off before it was judged; what it measured until then is below."


def largest_gap(waterfalls: Iterable[Waterfall]) -> LargestGap | None:
    """The level that fell furthest: below its predicted band first, then below its ceiling.

    Disturbed levels are not judged, and pageable copies are slower by nature.
    """
    found = [
        LargestGap(
            waterfall=each,
            level=level,
            ceiling=(level.value or 0.0) - level.gap.amount,
            below_band=is_below_band(level),
        )
        for each in waterfalls
        for level in each.levels
        if level.gap is not None and level.note is None and level.name != "Pageable memory"
    ]
    fallen = [w for w in found if w.below_band or (w.level.gap and w.level.gap.share < -CLOSE)]
    return min(fallen, key=lambda w: (not w.below_band, _share(w)), default=None)


def _share(worst: LargestGap) -> float:
    return worst.level.gap.share if worst.level.gap else 0.0


def is_below_band(level: Level) -> bool:
    """Whether the value is clearly below its predicted band, by the judge's own rule."""
    return level.record is not None and level.record.is_below(level.expected)


def headline(view: RunView, waterfalls: Sequence[Waterfall]) -> tuple[str, str]:
    """What a report begins with: a heading, and a sentence under it."""
    if not waterfalls and view.series.get(SERIES):
        return "Experiments", "They are compared with each other, not with a ceiling: see below."
    return "Largest gap", largest_gap_sentence(view, waterfalls)


def largest_gap_sentence(view: RunView, waterfalls: Sequence[Waterfall] | None = None) -> str:
    """The largest gap in one sentence, with its cause."""
    waterfalls = build_waterfalls(view) if waterfalls is None else waterfalls
    worst = largest_gap(waterfalls)
    if worst is None:
        return _nothing_fell(waterfalls)
    level = worst.level
    assert level.gap is not None and level.value is not None
    band = ", below its expected band" if worst.below_band else ""
    reached = amount_of(level.value, worst.ceiling, level.unit)
    return (
        f"{capital(worst.waterfall.title)}: {level.name[0].lower()}{level.name[1:]} reaches "
        f"{reached} "
        f"({signed_share(level.gap.share)}){band}. {capital(level.gap.cause)}."
    )


def _nothing_fell(waterfalls: Sequence[Waterfall]) -> str:
    values = [level for each in waterfalls for level in each.levels[1:] if level.value is not None]
    if not values:
        return "No point has a value, so there is no level to compare."
    if all(level.note for level in values):
        return "No level can be judged: every point was disturbed."
    if any(level.gap is not None and level.note is None for level in values):
        return "Every level that can be judged is within 3 % of its ceiling."
    return "No claim is known for this device, so no level has a ceiling to fall from."


def share_lines(gap: Gap | None) -> tuple[tuple[str, str], ...]:
    """What a gap is made of, as (size, cause) pairs; empty where one cause is all there is."""
    if gap is None:
        return ()
    return tuple(
        (signed(-share.amount, gap.unit), share.name)
        for share in gap.shares
        if abs(share.part) >= TINY
    )


def machine_facts(view: RunView) -> tuple[tuple[str, str], ...]:
    """What the machine is, as (what, value) pairs; what could not be read is left out."""
    machine, sources = view.machine, view.config.get("sources")
    if is_published(view) and isinstance(sources, Mapping):
        return tuple((str(what), str(source)) for what, source in sources.items())
    if machine is None:
        return ()
    cores, threads = _deep(machine, "cpu", "cores"), _deep(machine, "cpu", "threads")
    memory = _deep(machine, "memory", "total_bytes")
    pairs = (
        ("GPUs", _gpu_line(machine)),
        (
            "CPU",
            _joined(_deep(machine, "cpu", "model"), cores and f"{cores} cores, {threads} threads"),
        ),
        ("Memory", format_memory(memory) if isinstance(memory, int) else None),
        ("System", _joined(_deep(machine, "host", "os"), _deep(machine, "host", "kernel"))),
        ("Container", _container(machine)),
        ("Driver", _deep(machine, "software", "nvidia_driver")),
        ("torch", _torch_line(machine)),
    )
    return tuple((what, str(value)) for what, value in pairs if value)


def _gpu_line(machine: Mapping[str, Any]) -> str | None:
    gpus = machine.get("gpus")
    if not isinstance(gpus, list | tuple):
        return None
    names = Counter(str(_deep(gpu, "name") or "unknown GPU") for gpu in gpus)
    return ", ".join(f"{n} × {name}" for name, n in names.items()) or "none"


def _container(machine: Mapping[str, Any]) -> str | None:
    found = [_deep(machine, "host", name) for name in ("container", "virtualization")]
    return ", ".join(str(what) for what in found if what and what != "none") or None


def _torch_line(machine: Mapping[str, Any]) -> str | None:
    torch = _deep(machine, "software", "torch")
    cuda, hip = _deep(machine, "software", "torch_cuda"), _deep(machine, "software", "torch_hip")
    return _joined(torch, f"CUDA {cuda}" if cuda else f"ROCm {hip}" if hip else None)


def _joined(*parts: object) -> str | None:
    return ", ".join(str(part) for part in parts if part) or None


def _deep(value: object, *path: str) -> Any:
    """The value at ``path``; None where it is absent or Missing."""
    for name in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return None if isinstance(value, Mapping) and "missing" in value else value


def unverified(view: RunView) -> str:
    """What is said wherever several GPUs stand together; empty for fewer."""
    gpus = {row.index for row in rows(view) if row.index is not None}
    return UNVERIFIED if len(gpus) > 1 else ""


def kind_word(kind: Kind) -> str:
    """How a number of this kind is called on paper."""
    return "published" if kind is Kind.BASELINE else str(kind)


def gaps_in(view: RunView) -> tuple[str, ...]:
    """What is not there, said plainly."""
    said = list(view.problems)
    if (strange := fault(view)) is not None:
        said.append(f"the comparison of experiments: {strange}")
    if view.machine is None and not any("machine" in problem for problem in said):
        said.append("the machine was not described")
    everything = rows(view)
    unseen = sum(row.measured is None for row in everything)
    if unseen == len(everything):
        said.append("nothing was measured")
    elif unseen:
        said.append(f"{unseen} of {len(everything)} planned cases have no result")
    return tuple(said)


def count_states(points: Iterable[Record]) -> str:
    """``41 points, 3 disturbed, 2 skipped``."""
    points = list(points)
    states = Counter(str(p.status) for p in points if p.status is not Status.OK)
    disturbed = sum(p.disturbed is not None for p in points if p.status is Status.OK)
    parts = [f"{len(points)} point{'s' * (len(points) != 1)}"]
    parts += [f"{disturbed} disturbed"] if disturbed else []
    return ", ".join(parts + [f"{n} {state}" for state, n in sorted(states.items())])
