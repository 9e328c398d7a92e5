"""Experiments side by side: what differs between them first, then tables and bars.

It is handed the summaries that ``train --json`` prints (`runner.experiments`); a run stores them as
its series ``experiments``, so that terminal, markdown and HTML show a stored run as a fresh one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainrig.report import beside
from trainrig.report.versus import Versus, against_first
from trainrig.units import format_memory, format_quantity, format_time, one_line

Summary = Mapping[str, Any]

PARTS = ("data_wait", "forward", "backward", "communication", "optimizer", "other")
_SHORT = {
    "data_wait": "data",
    "forward": "fwd",
    "backward": "bwd",
    "communication": "comm",
    "optimizer": "opt",
    "other": "other",
}
_WORDS = (
    "device",
    "software",
    "source",
    "layout as found",
    "verdict",
    "against",
    "what differs",
    "says",
)


@dataclass(frozen=True, slots=True)
class Table:
    """Texts in columns."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Split:
    """One experiment's bar: its rate as a share of the fastest, and its step as shares of parts."""

    name: str
    value: str
    length: float
    """Per cent of the fastest."""
    parts: tuple[tuple[str, float], ...]
    """Name and per cent of the step."""


@dataclass(frozen=True, slots=True)
class Side:
    """Experiments beside each other, for the page."""

    unlike: tuple[str, ...]
    tables: tuple[Table, ...]
    splits: tuple[Split, ...]
    reasons: tuple[str, ...]


_BESIDE = "published"
"""The series of what others published."""


def side_by_side(series: Mapping[str, Sequence[Mapping[str, Any]]]) -> Side | None:
    """What a run's series say of its experiments; None if it has none, or a stranger's."""
    summaries = stored(series)
    if not summaries:
        return None
    return Side(
        unlike=tuple(unlike(summaries)),
        tables=(*tables(summaries), *beside_tables(series)),
        splits=tuple(_splits(summaries)),
        reasons=(*reasons(summaries), *beside.notices(_published(series))),
    )


def _published(series: Mapping[str, Sequence[Mapping[str, Any]]]) -> Sequence[Mapping[str, Any]]:
    """What others published, if it is what we write."""
    rows = series.get(_BESIDE, ())
    try:
        beside.texts(rows)
        list(beside.notices(rows))
    except (KeyError, TypeError, ValueError, AttributeError):
        return ()
    return rows


def beside_tables(series: Mapping[str, Sequence[Mapping[str, Any]]]) -> tuple[Table, ...]:
    """The table of what others published, where there is something."""
    rows = beside.texts(_published(series))
    return (Table(columns=beside.COLUMNS, rows=rows),) if rows else ()


def beside_lines(series: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    """That table for a terminal, and what is odd in it."""
    for table in beside_tables(series):
        yield ""
        yield "Published by others, for the same case:"
        yield from _aligned(table)
    yield from beside.notices(_published(series))


def notices(series: Mapping[str, Sequence[Mapping[str, Any]]]) -> tuple[str, ...]:
    """What is odd in what others published."""
    return tuple(beside.notices(_published(series)))


def stored(series: Mapping[str, Sequence[Mapping[str, Any]]]) -> Sequence[Summary]:
    """The summaries among a run's series: all of them, or none if one is not what we write.

    Of several of one experiment the last one counts: it knows of more rounds.
    """
    try:
        summaries = tuple({each["name"]: each for each in series.get("experiments", ())}.values())
        list(lines(summaries))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ZeroDivisionError):
        return ()
    return summaries


def _splits(summaries: Sequence[Summary]) -> Iterator[Split]:
    known = [each for each in summaries if each["samples_per_s"] and each["step_time_s"]]
    most = max((each["samples_per_s"] for each in known), default=1.0)
    for each in known:
        whole = each["step_time_s"]
        shares = (
            (_SHORT[part], 100.0 * (each["breakdown"].get(part) or 0.0) / whole) for part in PARTS
        )
        yield Split(
            name=one_line(each["name"]),
            value=format_quantity(each["samples_per_s"], "sample/s"),
            length=100.0 * each["samples_per_s"] / most,
            parts=tuple((name, max(0.0, share)) for name, share in shares),
        )


def tables(summaries: Sequence[Summary]) -> tuple[Table, ...]:
    """How they compare, what came out, what it took: rows of texts for every kind of output."""
    steps = max((len(each["losses"]) for each in summaries), default=0)
    last = f"loss after {steps}"
    results = Table(
        columns=("experiment", "layout as found", "first loss", "grad norm", last, "verdict"),
        rows=tuple(_result(each) for each in summaries),
    )
    costs = Table(
        columns=(
            "experiment",
            "samples/s",
            "MFU",
            "HFU",
            "memory",
            "step",
            *(_SHORT[part] for part in PARTS),
        ),
        rows=tuple(_cost(each) for each in summaries),
    )
    ratios = tuple(_ratio(each) for each in against_first(summaries))
    columns = ("experiment", "against", "what differs", "samples/s", "95 % interval", "says")
    compared = (Table(columns=columns, rows=ratios),) if ratios else ()
    return *compared, results, costs


def _ratio(each: Versus) -> tuple[str, ...]:
    says = each.says if each.why is None else f"{each.says}: {each.why}"
    numbers = ("-", "-")
    if each.ratio is not None:
        numbers = (f"{each.ratio:.2f} ×", f"{each.low:.2f} to {each.high:.2f}")
    differs = "; ".join(each.unlike) or "nothing"
    return (one_line(each.name), one_line(each.base), one_line(differs), *numbers, one_line(says))


def _result(each: Summary) -> tuple[str, ...]:
    losses, norms = each["losses"], each["grad_norms"]
    numbers = ("-", "-", "-")
    if losses:
        norm = "-" if norms[0] is None else f"{norms[0]:.4f}"
        numbers = (f"{losses[0]:.4f}", norm, f"{losses[-1]:.4f}")
    return (one_line(each["name"]), found_words(each), *numbers, each["row_verdict"])


def _cost(each: Summary) -> tuple[str, ...]:
    memory, seconds = each["peak_memory_bytes"], each["step_time_s"]
    parts = each["breakdown"]
    return (
        one_line(each["name"]),
        _number(each["samples_per_s"]),
        _percent(each.get("mfu"), 1.0),
        _percent(each.get("hfu"), 1.0),
        "-" if memory is None else format_memory(memory),
        "-" if not seconds else format_time(seconds),
        *("-" if not seconds else _percent(parts.get(part), seconds) for part in PARTS),
    )


def _percent(part: float | None, whole: float) -> str:
    return "-" if part is None else f"{100.0 * part / whole:.0f} %"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


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


def unlike(summaries: Sequence[Summary]) -> list[str]:
    """What differs between the experiments, as they were asked for: the first thing to read."""
    asked = [
        {"backend": each["backend"], "model": each["model"], **each["layout_asked"]}
        for each in summaries
    ]
    found = []
    for name in asked[0] if asked else ():
        values = list(dict.fromkeys(str(each[name]) for each in asked))
        if len(values) > 1:
            found.append(f"{name}: {', '.join(values)}")
    return found


def reasons(summaries: Sequence[Summary]) -> list[str]:
    """Why rows are no PASS, a line each."""
    lines = []
    for each in summaries:
        why = each["reason"] or each["parity"]["not_comparable"]
        if why:
            lines.append(one_line(f"{each['name']}: {each['row_verdict']}: {why}"))
    return lines


def markdown(
    summaries: Sequence[Summary],
    escape: Callable[[str], str],
    more: Sequence[Table] = (),
    said: Iterable[str] = (),
) -> str:
    """The tables in markdown, ``more`` of them, and a paragraph for each of what is ``said``."""
    blocks = []
    for table in (*tables(summaries), *more):
        rows = [tuple(map(escape, row)) for row in (table.columns, *table.rows)]
        rows.insert(1, ("---",) * len(table.columns))
        blocks.append("\n".join(f"| {' | '.join(row)} |" for row in rows))
    return "\n\n".join([*blocks, *(escape(text) for text in said)])


def lines(summaries: Sequence[Summary]) -> Iterator[str]:
    """What differs, both tables, bars of samples a second, and why a row failed."""
    if len(summaries) > 1:
        yield "What differs: " + "; ".join(unlike(summaries))
        yield ""
    for table in tables(summaries):
        yield from _aligned(table)
        yield ""
    yield from bars(summaries)
    yield from reasons(summaries)


def _aligned(table: Table) -> Iterator[str]:
    """Columns side by side: words to the left, numbers to the right."""
    rows = [table.columns, *table.rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    left = {0, *(n for n, name in enumerate(table.columns) if name in _WORDS)}
    for row in rows:
        cells = [
            cell.ljust(width) if number in left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def bars(summaries: Sequence[Summary], width: int = 30) -> list[str]:
    """Samples a second side by side, each as a share of the fastest."""
    values = [(one_line(each["name"]), each["samples_per_s"]) for each in summaries]
    known = [(name, value) for name, value in values if value]
    if len(known) < 2:
        return []
    most, longest = max(value for _, value in known), max(len(name) for name, _ in known)
    return [
        f"{name:<{longest}}  {'█' * max(1, round(width * value / most)):<{width}} "
        f"{format_quantity(value, 'sample/s')}"
        for name, value in known
    ]
