"""A run's experiments as blocks: what differs, speedups, numbers, predictions, published figures.

It reads what `analysis.training_results` and `analysis.compare_training` give; every sentence about
trainings that a page, a terminal or markdown shows is made here.  A published figure stands beside
an experiment that trains the same model on the same samples at once; a card whose matrix units are
faster by its data sheet and whose figure is lower is named, since one of the two figures, or what
ran on that card, wants an explanation.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import permutations

from trainrig.analysis.compare_training import (
    STEPS,
    Speedup,
    setting_text,
    settings_of,
    shortened,
    speedups,
)
from trainrig.analysis.run_view import RunView
from trainrig.analysis.training_results import (
    PublishedFigure,
    TrainingPrediction,
    TrainingResult,
    predictions,
    published_figures,
    readable,
)
from trainrig.catalog.chip import peak
from trainrig.catalog.lookup import find_chip
from trainrig.report.document import (
    Block,
    Cell,
    Column,
    Document,
    Facts,
    Findings,
    Item,
    Line,
    Paragraph,
    Section,
    Stack,
    Strip,
    Table,
    Tone,
    Whisker,
)
from trainrig.stats import Change
from trainrig.units import format_memory, format_quantity, format_time, ranges, signed_share

PARTS = ("data_wait", "forward", "backward", "communication", "optimizer", "other")
"""Of a step; they add up to it."""
_PART_NAMES = ("data", "forward", "backward", "communication", "optimizer", "other")
_SHORT_NAMES = ("data", "fwd", "bwd", "comm", "opt", "other")
_EVEN = 1.05
"""Ranks whose memory differs by less are alike."""
_TONES: dict[Change, Tone] = {Change.BETTER: "good", Change.WORSE: "bad"}
_VERDICT_TONES: dict[str, Tone] = {"PASS": "good", "FAIL": "bad", "NOT COMPARABLE": "warn"}


def training_blocks(view: RunView) -> tuple[Block, ...]:
    """The experiments of a run as one section; none where it has none, or they are damaged."""
    results = readable(view)
    if not results:
        return ()
    return experiment_blocks(results, predictions(view), published_figures(view))


def training_document(view: RunView) -> Document:
    """The experiments of a run alone, for the end of ``trainrig train``."""
    return Document(title=view.name, blocks=training_blocks(view))


def experiment_blocks(
    results: Sequence[TrainingResult],
    predicted: Sequence[TrainingPrediction] = (),
    published: Sequence[PublishedFigure] = (),
) -> tuple[Block, ...]:
    """Experiments side by side: what differs comes first."""
    compared = speedups(results)
    bases = dict.fromkeys(speedup.base for speedup in compared)
    groups = [[one for one in compared if one.base == base] for base in bases]
    differing = _differing(results)
    blocks: list[Block] = [Facts(differing, "What differs")] if differing else []
    blocks += [Paragraph(" ".join(map(conclusion, groups)))] if groups else []
    blocks += [
        *(speedup_table(own, f"Samples/s over {own[0].base!r}, 95 % interval") for own in groups),
        _numbers(results),
        *_stacks(results),
        _step_times(results),
        *_resources(results),
        _losses(results),
        *_predictions(results, predicted),
        *_published(published),
    ]
    remarks = tuple(Item(text=text) for text in _remarks(results, predicted, published))
    if remarks:
        blocks.append(Findings(remarks))
    return (Section("Experiments", tuple(blocks)),)


def conclusion(group: Sequence[Speedup]) -> str:
    """What came out for one base, in a sentence."""
    base = group[0].base
    better = [one for one in group if one.change is Change.BETTER and one.ratio is not None]
    if better:
        best = max(better, key=lambda one: one.ratio or 0.0)
        return f"{best.name} is {_ratio(best)} as fast as {base} ({_interval(best)})."
    if all(one.change is Change.WORSE for one in group):
        return f"{base} is the fastest."
    return f"None is clearly faster than {base}."


# ---- what differs


def _differing(results: Sequence[TrainingResult]) -> tuple[tuple[str, str], ...]:
    """Settings in which the experiments differ, as they were asked for, with their values."""
    whole = all(result.settings for result in results)
    settings = [settings_of(result, whole=whole) for result in results]
    found = []
    for name in dict.fromkeys(name for own in settings for name in own):
        values = list(dict.fromkeys(setting_text(own[name]) for own in settings if name in own))
        if len(values) > 1:
            found.append((name, ", ".join(shortened(values))))
    return tuple(found)


# ---- speedups

_LEAST_AXIS = (0.8, 1.25)
_MOST_BEYOND = 1.6
"""The axis ends this factor beyond the outermost ratio: an interval that knows little would else
leave no room for those that know much."""
_TOO_WIDE = 50.0
"""An interval whose ends are this factor apart is not worth its numbers."""


def speedup_table(found: Sequence[Speedup], title: str) -> Table:
    """Ratios with their intervals on one logarithmic axis: twice and half are as far from 1."""
    low, high = _axis(found)
    hint = _hint(found)
    return Table(
        (
            Column("experiment", "words"),
            Column("what differs", "words"),
            Column("ratio"),
            Column("interval"),
            Column(f"{low:.2g} to {high:.2g}", "drawing", optional=1),
            Column("result", "words"),
        ),
        tuple(_speedup_row(one, low, high) for one in found),
        title=title,
        notes=(hint,) if hint else (),
    )


def _speedup_row(one: Speedup, low: float, high: float) -> Line:
    def place(ratio: float | None) -> float | None:
        if ratio is None:
            return None
        share = math.log(max(ratio, low) / low) / math.log(high / low)
        return min(1.0, share)

    tone = _TONES.get(one.change, "")
    whisker = Whisker(place(1.0) or 0.0, place(one.low), place(one.ratio), place(one.high), tone)
    result = f"{one.change}: {one.reason}" if one.reason else str(one.change)
    return Line(
        (
            one.name,
            "; ".join(one.differences) or "nothing",
            _ratio(one),
            _interval(one),
            Cell("", drawing=whisker),
            Cell(result, tone),
        )
    )


def _ratio(one: Speedup) -> str:
    return "-" if one.ratio is None else f"{one.ratio:.2f} ×"


def _interval(one: Speedup) -> str:
    if one.low is None or one.high is None:
        return "-"
    if one.low <= 0.0 or one.high > _TOO_WIDE * one.low:
        return "too wide"
    return f"{one.low:.2f} to {one.high:.2f}"


def _axis(found: Sequence[Speedup]) -> tuple[float, float]:
    ratios = [one.ratio for one in found if one.ratio]
    lows = [one.low for one in found if one.low]
    highs = [one.high for one in found if one.high]
    low = max(min(lows, default=1.0), min(ratios, default=1.0) / _MOST_BEYOND)
    high = min(max(highs, default=1.0), max(ratios, default=1.0) * _MOST_BEYOND)
    return min(low / 1.03, _LEAST_AXIS[0]), max(high * 1.03, _LEAST_AXIS[1])


def _hint(found: Sequence[Speedup]) -> str:
    """What would decide the undecided; empty where all are decided."""
    undecided = [one for one in found if one.ratio is not None and one.change is Change.CANNOT_TELL]
    if any(one.basis == STEPS for one in undecided):
        return "rounds = 3 in the file would decide more: fresh processes, interleaved."
    return "More rounds would decide more." if undecided else ""


# ---- numbers


def _numbers(results: Sequence[TrainingResult]) -> Table:
    """Verdict, rates and memory of each, with bars as shares of the largest."""

    def bars(field: str, words: Callable[[float], str]) -> list[Cell]:
        values = [getattr(result, field) for result in results]
        most = max((value for value in values if value), default=0.0)
        if not most:
            return [Cell("")] * len(values)
        return [
            Cell("-")
            if value is None
            else Cell(words(value), drawing=Strip(0.0, value / most, muted=not result.passed))
            for value, result in zip(values, results, strict=True)
        ]

    columns = (
        [Cell(r.row_verdict, _VERDICT_TONES.get(r.row_verdict, "")) for r in results],
        [_quantity(result.tokens_per_s, "") for result in results],
        bars("samples_per_s", lambda value: format_quantity(value, "sample/s")),
        bars("model_flops_per_s_per_device", lambda value: format_quantity(value, "FLOP/s")),
        bars("peak_memory_bytes", format_memory),
    )
    heads = ("samples/s", "model FLOP/s a device", "peak memory a device")
    return Table(
        (
            *(Column(head, "words") for head in ("experiment", "verdict")),
            Column("tokens/s"),
            *(Column(head, "drawing") for head in heads),
        ),
        tuple(zip((result.name for result in results), *columns, strict=True)),
        title="Side by side, bars as shares of the largest",
    )


def _stacks(results: Sequence[TrainingResult]) -> Iterator[Table]:
    """What a sample takes, by the parts of its step, on the slowest experiment's scale."""
    timed = [result for result in results if result.samples_per_s and result.step_time_s]
    if not timed:
        return
    slowest = max(1.0 / (result.samples_per_s or 1.0) for result in timed)
    rows = []
    for result in timed:
        sample, step = 1.0 / (result.samples_per_s or 1.0), result.step_time_s or 1.0
        scale = sample / slowest / step
        parts = tuple(
            # A file may hold any number: no part is longer than the longest bar.
            (name, min(1.0, scale * max(0.0, result.breakdown.get(part) or 0.0)))
            for part, name in zip(PARTS, _PART_NAMES, strict=True)
        )
        overlapped = result.overlapped_communication_s or 0.0
        stack = Stack(parts, hidden=min(1.0, scale * overlapped))
        rows.append((result.name, Cell("", drawing=stack), format_time(sample)))
    yield Table(
        (Column("experiment", "words"), Column("", "drawing"), Column("a sample")),
        tuple(rows),
        title="Time for a sample, by what it goes to",
    )


def _step_times(results: Sequence[TrainingResult]) -> Table:
    """Where a step's time goes, in numbers."""

    def cells(result: TrainingResult) -> Iterator[str]:
        step = result.step_time_s
        yield format_time(step) if step else "-"
        yield from (_percent(result.breakdown.get(part), step) for part in PARTS)
        overlapped = result.overlapped_communication_s
        any_overlapped = any(one.overlapped_communication_s for one in results)
        yield _percent(overlapped, step) if any_overlapped else ""
        yield _percent(result.mfu, 1.0)
        yield _percent(result.hfu, 1.0)

    return Table(
        (
            Column("experiment", "words"),
            *map(Column, ("step", *_SHORT_NAMES)),
            Column("overlapped", optional=1),
            *map(Column, ("MFU", "HFU")),
        ),
        tuple((result.name, *cells(result)) for result in results),
        title="A step's time, and what the device did of its claimed peak",
    )


def _percent(part: float | None, whole: float | None) -> str:
    """A share in whole per cent."""
    return "-" if part is None or not whole else f"{100.0 * part / whole:.0f} %"


def _resources(results: Sequence[TrainingResult]) -> Iterator[Table]:
    """Devices, memory of each rank, and energy where it could be read."""
    rows = [
        (
            _devices(result),
            _rank_memory([rank.allocated_bytes for rank in result.memory_by_rank]),
            _rank_memory([rank.reserved_bytes for rank in result.memory_by_rank]),
            _quantity(result.energy_per_token_j, "J"),
            _quantity(result.mean_power_w, "W"),
        )
        for result in results
    ]
    known = [any(cell != "-" for cell in column) for column in zip(*rows, strict=True)]
    if any(known):
        yield Table(
            (
                Column("experiment", "words"),
                Column("devices", "words"),
                *map(Column, ("allocated", "reserved", "J/token", "power")),
            ),
            tuple(
                (result.name, *(cell if has else "" for cell, has in zip(row, known, strict=True)))
                for result, row in zip(results, rows, strict=True)
            ),
            title="Devices and energy; memory is the peak of a device, lowest to highest",
        )


def _devices(result: TrainingResult) -> str:
    """``GPU 0, 1 (RTX 4090)``, ``cores 0-3``."""
    gpus = [device for device in result.devices if device.device.startswith("cuda")]
    if gpus:
        numbers = [gpu.device if gpu.index is None else str(gpu.index) for gpu in gpus]
        names = dict.fromkeys(gpu.name for gpu in gpus if gpu.name)
        return f"GPU {', '.join(numbers)}" + (f" ({', '.join(names)})" if names else "")
    cores = sorted({core for device in result.devices for core in device.cores or ()})
    return f"cores {ranges(cores)}" if cores else "-"


def _rank_memory(sizes: Sequence[float | None]) -> str:
    known = [size for size in sizes if size is not None]
    if not known or max(known) <= _EVEN * min(known):
        return _memory(max(known, default=None))
    return f"{format_memory(min(known))} to {format_memory(max(known))}"


def _quantity(value: float | None, unit: str) -> str:
    return "-" if value is None else format_quantity(value, unit)


def _losses(results: Sequence[TrainingResult]) -> Table:
    steps = max(len(result.losses) for result in results)

    def cells(result: TrainingResult) -> tuple[str, str, str]:
        losses = result.losses
        if not losses:
            return "-", "-", "-"
        norm = "-" if result.grad_norms[0] is None else f"{result.grad_norms[0]:.4f}"
        fewer = "" if len(losses) == steps else f" ({len(losses)})"
        return f"{losses[0]:.4f}", norm, f"{losses[-1]:.4f}{fewer}"

    return Table(
        (
            Column("experiment", "words"),
            Column("observed layout", "words"),
            *map(Column, ("loss 1", "norm 1", f"loss {steps}")),
        ),
        tuple((result.name, observed_layout(result), *cells(result)) for result in results),
        title="Loss of the first and the last step, norm of the first gradient, observed layout",
    )


def observed_layout(result: TrainingResult) -> str:
    """``2 × ZeRO-3 bf16, recomputed (FSDPModel)``."""
    found = result.layout_found
    if found is None:
        return "-"
    words = [f"{found.ranks} ×"]
    words += [f"ZeRO-{found.zero}"] if found.zero else []
    words += [found.precision]
    words += [f"accum {found.grad_accum}"] if found.grad_accum > 1 else []
    words += ["recomputed"] if found.recompute else []
    words += [f"{found.attention} attention"] if found.attention not in (None, "sdpa") else []
    words += ["compiled"] if found.compile else []
    words += ["offloaded"] if found.offload else []
    return f"{' '.join(words)} ({found.wrapped})"


# ---- predictions


def _predictions(
    results: Sequence[TrainingResult], predicted: Sequence[TrainingPrediction]
) -> Iterator[Table]:
    by_name = {result.name: result for result in results}
    rows = []
    for one in predicted:
        result, seconds = by_name.get(one.name), one.step_time_s
        if result is None or not seconds:
            continue
        took, interval = result.step_time_s, one.step_time_interval_s
        rows.append(
            (
                one.name,
                format_time(seconds),
                " to ".join(map(format_time, interval)) if interval else "-",
                format_time(took) if took else "-",
                signed_share(seconds / took - 1.0) if took else "-",
                _memory(one.peak_memory_bytes),
                _memory(result.peak_memory_bytes),
            )
        )
    if rows:
        heads = ("predicted", "80 % interval", "measured", "error", "memory", "measured")
        yield Table(
            (Column("experiment", "words"), *map(Column, heads)),
            tuple(rows),
            title="Predicted before it was trained, and how far off",
        )


def _memory(size: float | None) -> str:
    return "-" if size is None else format_memory(size)


# ---- published figures

_FASTER = 1.1
"""A data sheet that claims less is no reason to expect more."""
_PRODUCTS = {"fp32": "tf32"}
"""What torch multiplies fp32 by in the published rows that are not called fp32."""


def _published(figures: Sequence[PublishedFigure]) -> Iterator[Table]:
    """A row for an experiment and a case, a column for each device."""
    if not figures:
        return
    devices = list(dict.fromkeys(figure.device for figure in figures))
    cells: dict[tuple[str, str], dict[str, list[str]]] = {}
    sources: dict[tuple[str, str], dict[str, None]] = {}
    for figure in figures:
        head = figure.experiment, _case_text(figure)
        cells.setdefault(head, {}).setdefault(figure.device, []).append(_figure_text(figure))
        origin = sources.setdefault((figure.device, figure.source), {})
        origin[str(figure.software)] = None
        if figure.interconnect:
            origin[f"cards over {figure.interconnect}"] = None
    yield Table(
        (Column("experiment", "words"), Column("published case", "words"), *map(Column, devices)),
        tuple(
            (*head, *(" or ".join(own.get(device, ["-"])) for device in devices))
            for head, own in cells.items()
        ),
        title="Published by others, at full scale: tokens/s of a device, and its memory",
        notes=tuple(
            f"{device}: {source}; {'; '.join(origin)}"
            for (device, source), origin in sources.items()
        ),
    )


def _case_text(figure: PublishedFigure) -> str:
    """``HF Transformers, bert-large, bf16, 11 × 4 of 512``: samples × micro-batches of tokens."""
    software = re.split(r"[,(]| \d", str(figure.software))[0].strip()
    if figure.model is None:
        return f"{software}, {figure.precision}"
    times = f" × {figure.grad_accum}" if figure.grad_accum > 1 else ""
    size = f"{figure.batch_size}{times} of {figure.seq_len}"
    recomputed = ", recomputed" if figure.recompute != "none" else ""
    return f"{software}, {figure.model}, {figure.precision}, {size}{recomputed}"


def _figure_text(figure: PublishedFigure) -> str:
    """``8008 (tf32), 20.3 GiB``: the printed precision where it is another than the model's."""
    printed = figure.printed_precision or figure.precision
    words = f"{figure.tokens_per_s_per_device:.0f}"
    words += f" ({printed})" if printed != figure.precision else ""
    memory = figure.memory_bytes
    return words if memory is None else f"{words}, {format_memory(memory)}"


def published_outliers(figures: Sequence[PublishedFigure]) -> Iterator[str]:
    """Figures of a faster card that lie below a slower one's of the same experiment; each once."""
    seen = set()
    for own, other in permutations(figures, 2):
        if own.experiment != other.experiment or own.precision != other.precision:
            continue
        rate, below = own.tokens_per_s_per_device, other.tokens_per_s_per_device
        pair = (own.device, rate, other.device, below)
        if rate >= below or pair in seen or not _claim(own) > _FASTER * _claim(other) > 0.0:
            continue
        seen.add(pair)
        links = own.interconnect, other.interconnect
        why = "other software, less bandwidth, another link or a misprint"
        if None not in links and links[0] != links[1]:
            why = f"its cards communicate over {links[0]}; the other's over {links[1]}"
        yield (
            f"{own.experiment}: the {own.device} is published at "
            f"{format_quantity(rate, 'token/s')}, below the slower {other.device}'s "
            f"{format_quantity(below, 'token/s')}: its data sheet claims "
            f"{_claim(own) / _claim(other):.1f} times as much; {why}; no target"
        )


def _claim(figure: PublishedFigure) -> float:
    chip = find_chip(figure.device)
    found = (
        peak(chip, _PRODUCTS.get(figure.precision) or figure.precision)
        if chip is not None
        else None
    )
    return found.rate if found is not None else 0.0


# ---- remarks


def _remarks(
    results: Sequence[TrainingResult],
    predicted: Sequence[TrainingPrediction],
    published: Sequence[PublishedFigure],
) -> Iterator[str]:
    """Why rows are no PASS, why there is no energy, what is suspicious, why nothing is predicted.

    A reason that holds for several is given once.
    """
    for result in results:
        if result.problem:
            yield f"{result.name}: {result.row_verdict}: {result.problem}"
    trained = [result for result in results if result.samples_per_s]
    for reason in dict.fromkeys(result.no_energy_reason for result in trained):
        if reason:
            names = [result.name for result in trained if result.no_energy_reason == reason]
            of_whom = "" if len(names) == len(trained) else f" of {', '.join(names)}"
            yield f"Energy{of_whom} was not read: {reason}"
    yield from published_outliers(published)
    reasons = {one.reason: one.name for one in reversed(predicted) if one.reason}
    for reason, name in reversed(reasons.items()):
        yield f"{name}: not predicted: {str(reason).removeprefix('no target known: ')}"
