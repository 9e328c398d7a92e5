"""Experiments beside each other, as plain data: what terminal, markdown and HTML show of them.

It is handed the summaries that ``train --json`` prints; a run stores them as its series
``experiments``, so that every output shows a stored run as a fresh one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainrig.analysis.compare_training import against_first, asked, shortened, text
from trainrig.analysis.training_results import Series, Summary, stored
from trainrig.report.experiments import foretold, published, resources
from trainrig.report.experiments.forest import Forest, forests
from trainrig.units import format_memory, format_quantity, format_time, one_line

PARTS = {
    "data_wait": "data",
    "forward": "forward",
    "backward": "backward",
    "communication": "communication",
    "optimizer": "optimizer",
    "other": "other",
}
"""Of a step, with their names for people; they add up to it."""


@dataclass(frozen=True, slots=True)
class Table:
    """Texts in columns."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    notes: tuple[str, ...] = ()
    """What is below it: where its figures come from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One experiment's number."""

    name: str
    value: str
    length: float | None
    """Per cent of the largest; None where there is no number."""
    muted: bool = False
    """It is not what its name says, or not comparable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One quantity of all of them."""

    title: str
    note: str
    """Which way is better."""
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """One experiment's time: what a sample takes, by the parts of its step."""

    name: str
    sample: str
    step: str
    parts: tuple[tuple[str, float, str], ...]
    """Name, per cent of the slowest experiment's time for a sample, and its share in words."""
    hidden: tuple[float, str] | None
    """Communication behind other parts, on the same scale; it is in none of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """Experiments beside each other."""

    unlike: tuple[tuple[str, str], ...]
    """What differs between them: a setting and its values."""
    forests: tuple[Forest, ...]
    """Ratios, for each model against its first."""
    panels: tuple[Panel, ...]
    splits: tuple[Split, ...]
    tables: tuple[Table, ...]
    reasons: tuple[str, ...]
    """Why rows are no PASS, and what is odd."""

    @property
    def has_hidden(self) -> bool:
        """Whether communication ran behind other parts anywhere."""
        return any(each.hidden for each in self.splits)

    @property
    def has_muted(self) -> bool:
        """Whether some of the bars are not what their names say."""
        return any(each.muted for panel in self.panels for each in panel.bars)


def side_by_side(series: Series) -> Side | None:
    """What a run's series say of its experiments; None if it has none, or a stranger's."""
    return side_of(stored(series), series)


def side_of(summaries: Sequence[Summary], series: Series | None = None) -> Side | None:
    """The same of summaries, with what others published where ``series`` has it."""
    if not summaries:
        return None
    series = series or {}
    rows = _published_rows(series)
    return Side(
        unlike=unlike(summaries),
        forests=forests(against_first(summaries)),
        panels=tuple(_panels(summaries)),
        splits=tuple(_splits(summaries)),
        tables=(
            _times(summaries),
            *_resources(summaries),
            _results(summaries),
            *_foretold(summaries, series),
            *_published(rows),
        ),
        reasons=(
            *_reasons(summaries),
            *resources.notes_of(summaries),
            *published.notices(rows),
            *foretold.notes_of(summaries, series.get(foretold.SERIES, ())),
        ),
    )


def _published_rows(series: Series) -> Sequence[Mapping[str, Any]]:
    """What others published, if it is what we write."""
    rows = series.get(published.SERIES, ())
    try:
        published.texts(rows)
        list(itertools.chain(published.notes(rows), published.notices(rows)))
    except (KeyError, TypeError, ValueError, AttributeError):
        return ()
    return rows


def _published(rows: Sequence[Mapping[str, Any]]) -> Iterator[Table]:
    """The table of what others published, where there is something."""
    if rows:
        yield Table(
            columns=published.columns(rows),
            rows=published.texts(rows),
            title=published.TITLE,
            notes=tuple(published.notes(rows)),
        )


# ---- what differs


def unlike(summaries: Sequence[Summary]) -> tuple[tuple[str, str], ...]:
    """What differs between the experiments, as they were asked for: the first thing to read."""
    whole = all(each.get("settings") for each in summaries)
    each_asked = [asked(each, whole=whole) for each in summaries]
    found = []
    for name in dict.fromkeys(name for own in each_asked for name in own):
        values = list(dict.fromkeys(text(own[name]) for own in each_asked if name in own))
        if len(values) > 1:
            found.append((one_line(name), one_line(", ".join(shortened(values)))))
    return tuple(found)


# ---- bars


def _panels(summaries: Sequence[Summary]) -> Iterator[Panel]:
    def quantity(unit: str) -> Any:
        return lambda value: format_quantity(value, unit)

    for title, note, key, words in (
        ("samples/s", "more is better", "samples_per_s", quantity("sample/s")),
        (
            "model FLOP/s of a device",
            "more is better",
            "model_flops_per_s_per_device",
            quantity("FLOP/s"),
        ),
        ("peak memory of a device", "less is better", "peak_memory_bytes", format_memory),
    ):
        values = [each.get(key) for each in summaries]
        most = max((value for value in values if value), default=0.0)
        if not most:
            continue
        yield Panel(
            title=title,
            note=note,
            bars=tuple(
                Bar(
                    name=one_line(each["name"]),
                    value="-" if value is None else words(value),
                    length=None if value is None else 100.0 * value / most,
                    muted=each["row_verdict"] != "PASS",
                )
                for each, value in zip(summaries, values, strict=True)
            ),
        )


def _splits(summaries: Sequence[Summary]) -> Iterator[Split]:
    known = [each for each in summaries if each["samples_per_s"] and each["step_time_s"]]
    slowest = max((1.0 / each["samples_per_s"] for each in known), default=1.0)
    for each in known:
        whole, parts = each["step_time_s"], each["breakdown"]
        scale = 100.0 / each["samples_per_s"] / slowest / whole
        hidden = each.get("overlapped_communication_s")
        yield Split(
            name=one_line(each["name"]),
            sample=format_time(1.0 / each["samples_per_s"]),
            step=format_time(whole),
            parts=tuple(
                (name, _part(scale, parts.get(part)), percent(parts.get(part), whole))
                for part, name in PARTS.items()
            ),
            hidden=(min(100.0, scale * hidden), percent(hidden, whole)) if hidden else None,
        )


def _part(scale: float, seconds: float | None) -> float:
    """A file may hold any number: no part is longer than the longest bar."""
    return min(100.0, scale * max(0.0, seconds or 0.0))


# ---- tables


def _times(summaries: Sequence[Summary]) -> Table:
    """Where a step's time goes, in numbers."""
    hidden = any(each.get("overlapped_communication_s") for each in summaries)
    more = ("hidden",) if hidden else ()
    return Table(
        title="A step's time, and what the device did of its claimed peak",
        columns=("experiment", "step", *_HEADS, *more, "MFU", "HFU"),
        rows=tuple(_time(each, more) for each in summaries),
    )


_HEADS = ("data", "fwd", "bwd", "comm", "opt", "other")


def _time(each: Summary, more: tuple[str, ...]) -> tuple[str, ...]:
    seconds, parts = each["step_time_s"], each["breakdown"]
    hidden = each.get("overlapped_communication_s")
    return (
        one_line(each["name"]),
        "-" if not seconds else format_time(seconds),
        *("-" if not seconds else percent(parts.get(part), seconds) for part in PARTS),
        *("-" if not seconds else percent(hidden, seconds) for _ in more),
        percent(each.get("mfu"), 1.0),
        percent(each.get("hfu"), 1.0),
    )


def _resources(summaries: Sequence[Summary]) -> tuple[Table, ...]:
    """Devices, memory and energy, where something is known of them."""
    heads, rows = resources.columns_of(summaries), resources.rows_of(summaries)
    return (Table(title=resources.TITLE, columns=heads, rows=rows),) if len(heads) > 1 else ()


def _foretold(summaries: Sequence[Summary], series: Series) -> tuple[Table, ...]:
    """What they should have taken, where something was foretold."""
    rows = foretold.rows_of(summaries, series.get(foretold.SERIES, ()))
    return (Table(title=foretold.TITLE, columns=foretold.COLUMNS, rows=rows),) if rows else ()


def _results(summaries: Sequence[Summary]) -> Table:
    steps = max((len(each["losses"]) for each in summaries), default=0)
    return Table(
        title="Loss of the first and the last step, norm of the first gradient, layout as found",
        columns=("experiment", "layout as found", "loss 1", "norm 1", f"loss {steps}", "verdict"),
        rows=tuple(_result(each, steps) for each in summaries),
    )


def _result(each: Summary, steps: int) -> tuple[str, ...]:
    losses, norms = each["losses"], each["grad_norms"]
    numbers = ("-", "-", "-")
    if losses:
        norm = "-" if norms[0] is None else f"{norms[0]:.4f}"
        last = f"{losses[-1]:.4f}" + ("" if len(losses) == steps else f" ({len(losses)})")
        numbers = (f"{losses[0]:.4f}", norm, last)
    return (one_line(each["name"]), found_words(each), *numbers, one_line(each["row_verdict"]))


def percent(part: float | None, whole: float) -> str:
    """A share in whole per cent."""
    return "-" if part is None else f"{100.0 * part / whole:.0f} %"


def found_words(each: Summary) -> str:
    """The layout as found: ``2 × ZeRO-3 bf16, recomputed (FSDPModel)``."""
    found = each["layout_found"]
    if found is None:
        return "-"
    words = [f"{found['ranks']} ×"]
    words += [f"ZeRO-{found['zero']}"] if found["zero"] else []
    words += [found["precision"]]
    words += [f"accum {found['grad_accum']}"] if found["grad_accum"] > 1 else []
    words += ["recomputed"] if found["recompute"] else []
    words += ["compiled"] if found["compile"] else []
    words += ["offloaded"] if found["offload"] else []
    return one_line(f"{' '.join(words)} ({found['wrapped']})")


def _reasons(summaries: Sequence[Summary]) -> Iterator[str]:
    """Why rows are no PASS, a line each."""
    for each in summaries:
        why = each["reason"] or each["parity"]["not_comparable"]
        if why:
            yield one_line(f"{each['name']}: {each['row_verdict']}: {why}")
