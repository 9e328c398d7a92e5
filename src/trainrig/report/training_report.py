"""A run's experiments as blocks: what differs, speedups, numbers, predictions, published figures.

It reads what `analysis.training_results` and `analysis.compare_training` give; every sentence about
trainings that a page, a terminal or markdown shows is made here.  One training by itself is a list
of facts; several are tables, a row each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from trainrig.analysis.compare_training import (
    Speedup,
    fused_speedups,
    reached_goals,
    settings_of,
    shortened,
    speedups,
)
from trainrig.analysis.training_baselines import PublishedFigure, published_figures
from trainrig.analysis.training_facts import TRACES
from trainrig.analysis.training_results import (
    TrainingPrediction,
    TrainingResult,
    predictions,
    readable_results,
)
from trainrig.record import Outcome, RunView, Verdict
from trainrig.report import document as doc
from trainrig.report.document import column, table, words
from trainrig.report.published_trainings import published_outliers, published_table
from trainrig.report.speedup_report import interval_text, ratio_text, speedup_table
from trainrig.stats import Change
from trainrig.units import (
    counted,
    format_count,
    format_memory,
    format_quantity,
    format_share,
    format_time,
    plain_name,
    plain_value,
    signed_share,
)

PARTS = {
    "data_wait": ("data", "data"),
    "forward": ("forward", "fwd"),
    "backward": ("backward", "bwd"),
    "communication": ("communication", "comm"),  # of earlier versions
    "optimizer": ("optimizer", "opt"),
    "other": ("other", "other"),
}
"""Parts that add up to a step: their names in a bar's key, and above a column."""
_EVEN = 1.05
"""Ranks whose memory differs by less are alike."""
_VERDICT_TONES: dict[str, doc.Tone] = {
    "agreed": "good",
    "DIFFERS": "bad",
    "FAIL": "bad",
    "NOT COMPARABLE": "warn",
    "PASS": "good",  # of an earlier version
}
_EXPERIMENT: doc.Shown[TrainingResult] = words("experiment", lambda one: one.name)


def training_blocks(view: RunView) -> tuple[doc.Block, ...]:
    """Return the experiments of a run, what differs first.

    None where it has none, or they are damaged.
    """
    results = readable_results(view)
    if not results:
        return ()
    predicted, published = predictions(view), published_figures(view)
    compared = speedups(results)
    bases = dict.fromkeys(speedup.base for speedup in compared)
    speedups_by_base = [[result for result in compared if result.base == base] for base in bases]
    differing = tuple(_differing(results))
    blocks: list[doc.Block] = [doc.Facts(differing, "What differs")] if differing else []
    blocks += (
        [doc.Paragraph(" ".join(map(_conclusion, speedups_by_base)))] if speedups_by_base else []
    )
    if len(results) == 1:
        blocks += [
            doc.Group("card", (doc.Facts(tuple(_single_training(results[0], predicted))),)),
            *_bars(results),
            *_stacks(results),
        ]
    else:
        title = "Samples/s over {!r}, 95 % interval"
        blocks += [
            *(speedup_table(group, title.format(group[0].base)) for group in speedups_by_base),
            _numbers(results, view.verdict),
            *_bars(results),
            *_fusing_note(results),
            *_stacks(results),
            _step_times(results),
            *_resources(results),
            _losses(results),
            *_predictions(results, predicted),
        ]
    blocks += [
        *_profiled(results, predicted),
        *_traces(view),
        *published_table(published),
    ]
    failed = [
        doc.Item(
            text=f"{result.name}: {result.problem}",
            label=result.row_verdict,
            tone=_VERDICT_TONES.get(result.row_verdict, ""),
        )
        for result in results
        if result.problem
    ]
    if failed:
        blocks.append(doc.Findings(tuple(failed)))
    remarks = tuple(doc.Item(text=text) for text in _remarks(results, predicted, published))
    if remarks:
        blocks.append(doc.Findings(remarks))
    title = "Experiments" if len(results) > 1 else "Training"
    return (doc.Section(title, tuple(blocks)),)


def training_document(view: RunView) -> doc.Document:
    """Return the experiments of a run alone, for the end of ``trainrig train``."""
    return doc.Document(title=view.name, blocks=training_blocks(view))


def _conclusion(group: Sequence[Speedup]) -> str:
    """Return the result for one base, in a sentence."""
    base = group[0].base
    better = [
        speedup
        for speedup in group
        if speedup.change is Change.BETTER and speedup.ratio is not None
    ]
    if better:
        best = max(better, key=lambda speedup: speedup.ratio or 0.0)
        return f"{best.name} is {ratio_text(best)} as fast as {base} ({interval_text(best)})."
    if all(speedup.change is Change.WORSE for speedup in group):
        return f"{base} is the fastest."
    differing = [
        speedup
        for speedup in group
        if speedup.low and speedup.high and not speedup.low <= 1.0 <= speedup.high
    ]
    if differing and all(speedup.change is Change.CANNOT_TELL for speedup in differing):
        return f"Whether any is faster than {base} cannot be told: {differing[0].reason}."
    return f"None is clearly faster than {base}."


def _differing(results: Sequence[TrainingResult]) -> Iterator[tuple[str, str]]:
    """Settings in which the experiments differ, as they were asked for, with their values."""
    whole = all(result.settings for result in results)
    settings = [settings_of(result, whole=whole) for result in results]
    for name in dict.fromkeys(name for values_of_run in settings for name in values_of_run):
        values = list(
            dict.fromkeys(
                plain_value(values_of_run[name])
                for values_of_run in settings
                if name in values_of_run
            )
        )
        if len(values) > 1:
            yield plain_name(name), ", ".join(shortened(values))


# ---- one training


_MFU = {False: "MFU {}", True: "MFU {} of a reference"}
"""By whether it trained on processors, of whose peak nobody knows more than the reported clock."""


def _single_training(
    result: TrainingResult, predicted: Sequence[TrainingPrediction]
) -> Iterator[tuple[str, str]]:
    """Yield the facts of a single training: speed, parts of a step, loss, memory."""
    forecast = next(
        (prediction for prediction in predicted if prediction.name == result.name), None
    )
    settings = result.settings
    sizes = (
        f"{result.layout.batch_size} × {settings['seq_len']} tokens"
        if settings.get("seq_len")
        else ""
    )
    known = (settings.get("precision"), sizes, settings.get("optimizer"))
    requested = [result.model, *(str(value) for value in known if value)]
    yield result.name, ", ".join(requested)
    if not result.passed:
        yield "Verdict", result.row_verdict
    speed = (
        _setting_text(result.throughput.tokens_per_s, "{} tokens/s", format_count),
        _setting_text(result.throughput.samples_per_s, "{} samples/s", format_count),
        _setting_text(
            result.throughput.model_flops_per_s_per_device,
            "{} a device",
            lambda rate: format_quantity(rate, "FLOP/s"),
        ),
        _setting_text(result.throughput.mfu, _MFU[result.is_on_cpu], format_share),
        _setting_text(
            result.throughput.hfu if result.throughput.hfu != result.throughput.mfu else None,
            "HFU {}",
            format_share,
        ),
    )
    if any(speed):
        yield "Speed", ", ".join(filter(None, speed))
    yield from _step_facts(result, forecast)
    yield from _loss_facts(result)
    if result.memory.peak_bytes:
        guess = forecast.peak_memory_bytes if forecast else None
        expected = f", predicted {format_memory(guess)}" if guess else ""
        yield "Peak memory a device", format_memory(result.memory.peak_bytes) + expected
    energy = (
        _setting_text(result.energy.per_token_j, "{} a token", lambda v: format_quantity(v, "J")),
        _setting_text(
            result.energy.mean_power_w, "{} on average", lambda v: format_quantity(v, "W")
        ),
    )
    other_facts = (", ".join(filter(None, energy)), _devices(result), _observed_layout(result))
    for name, text in zip(("Energy", "Devices", "Layout"), other_facts, strict=True):
        if text:
            yield name, text


def _step_facts(
    result: TrainingResult, forecast: TrainingPrediction | None
) -> Iterator[tuple[str, str]]:
    if not result.timing.step_time_s:
        return
    parts = [
        f"{name} {format_time(seconds)}"
        for part, (name, _) in PARTS.items()
        if (seconds := result.timing.breakdown.get(part))
    ]
    yield (
        "Step",
        format_time(result.timing.step_time_s) + (f": {', '.join(parts)}" if parts else ""),
    )
    if forecast and forecast.step_time_s:
        low, high = map(format_time, forecast.step_time_interval_s or (forecast.step_time_s,) * 2)
        off = signed_share(forecast.step_time_s / result.timing.step_time_s - 1.0)
        yield "Step, predicted", f"{format_time(forecast.step_time_s)} ({low} to {high}), {off}"


def _loss_facts(result: TrainingResult) -> Iterator[tuple[str, str]]:
    if not result.loss.losses:
        return
    first, last = result.loss.losses[0], result.loss.losses[-1]
    yield "Loss", f"{first:.4f} to {last:.4f} in {counted(len(result.loss.losses), 'step')}"
    if result.loss.heldout_loss is not None:
        yield "Loss, held out", f"{result.loss.heldout_loss:.4f}"
    if (norm := result.loss.grad_norms[0]) is not None:
        yield "First gradient norm", f"{norm:.4f}"


def _setting_text(value: float | None, sentence: str, form: Callable[[float], str]) -> str:
    return sentence.format(form(value)) if value is not None else ""


# ---- numbers


def _numbers(results: Sequence[TrainingResult], verdict: Verdict | None) -> doc.Table:
    """Verdict, rates and memory of each, with bars as shares of the largest."""

    def word(result: TrainingResult) -> str:
        is_judged = verdict is None or verdict.outcome is not Outcome.MEASURED
        return result.row_verdict if is_judged or not result.passed else Outcome.MEASURED

    def bars(
        head: str, value: Callable[[TrainingResult], float | None], form: Callable[[float], str]
    ) -> doc.Shown[TrainingResult]:
        most = max((value(result) or 0.0 for result in results), default=0.0)

        def bar(result: TrainingResult) -> doc.Cell | None:
            number = value(result)
            if not most:
                return doc.Cell("")
            if number is None:
                return None
            strip = doc.Strip(0.0, number / most, muted=not result.passed)
            return doc.Cell(form(number), drawing=strip)

        return column(head, bar, kind="drawing")

    return table(
        results,
        _EXPERIMENT,
        words("verdict", lambda r: doc.Cell(word(r), _VERDICT_TONES.get(word(r), ""))),
        column("tokens/s", lambda r: r.throughput.tokens_per_s, format_count),
        bars(
            "samples/s",
            lambda r: r.throughput.samples_per_s,
            lambda v: format_quantity(v, "sample/s"),
        ),
        bars(
            "model FLOP/s a device",
            lambda r: r.throughput.model_flops_per_s_per_device,
            lambda v: format_quantity(v, "FLOP/s"),
        ),
        bars("peak memory a device", lambda r: r.memory.peak_bytes, format_memory),
        title="Side by side, bars as shares of the largest",
    )


def _stacks(results: Sequence[TrainingResult]) -> Iterator[doc.Table]:
    """Return bars of the time of a sample by part of the step, on one scale."""
    timed = [
        (1.0 / result.throughput.samples_per_s, result.timing.step_time_s, result)
        for result in results
        if result.throughput.samples_per_s and result.timing.step_time_s
    ]
    if not timed:
        return
    slowest = max(sample for sample, _, _ in timed)

    def stack(row: tuple[float, float, TrainingResult]) -> doc.Cell:
        sample, step, result = row

        def share(seconds: float | None) -> float:
            # A file may hold any number: no part is longer than the longest bar.
            return min(1.0, sample / slowest / step * max(0.0, seconds or 0.0))

        parts = tuple(
            (name, share(result.timing.breakdown.get(p))) for p, (name, _) in PARTS.items()
        )
        profiled = result.timing.profiled
        overlapped = (
            step * profiled.overlapped_s / profiled.step_s if profiled and profiled.step_s else None
        )
        return doc.Cell("", drawing=doc.Stack(parts, share(overlapped)))

    yield table(
        timed,
        words("experiment", lambda row: row[2].name),
        column("", stack, kind="drawing"),
        column("a sample", lambda row: row[0], format_time),
        title="Time for a sample, by what it goes to",
    )


def _bars(results: Sequence[TrainingResult]) -> Iterator[doc.Table]:
    """Yield the expected ratio of our trainer to each engine it is measured against."""
    if chart := reached_goals(results):
        yield table(
            chart,
            words("ours", lambda bar: bar.name),
            words("over", lambda bar: bar.base),
            words("its kernels", lambda bar: bar.kernels),
            column("ratio", lambda bar: bar.ratio, lambda ratio: f"{ratio:.2f}"),
            column("at least", lambda bar: bar.least, lambda least: f"{least:.2f}"),
            words("", lambda bar: _MET[bar.is_met] + (f": {bar.reason}" if bar.reason else "")),
            title="Bars: our speed over others', and our share of the matrix product",
        )


_MET = {True: "met", False: "MISSED", None: "not judged"}


def _fusing_note(results: Sequence[TrainingResult]) -> Iterator[doc.Table]:
    """Yield a kernel's worth: the step with it over the step that has it written out."""
    if worth := fused_speedups(results):
        yield table(
            worth,
            words("fused", lambda row: row[0]),
            words("in", lambda row: row[1].name),
            column("ratio", lambda row: row[1].ratio, lambda ratio: f"{ratio:.2f} ×"),
            words("95 % interval", lambda row: interval_text(row[1]) if row[1].low else ""),
            words("", lambda row: row[1].reason or ""),
            title="What fusing is worth: samples/s over the same step with it written out",
        )


def _step_times(results: Sequence[TrainingResult]) -> doc.Table:
    """Yield the time of a step by part, in numbers."""

    def percent(
        head: str, value: Callable[[TrainingResult], float | None], optional: int = 0
    ) -> doc.Shown[TrainingResult]:
        return column(head, value, lambda share: f"{100.0 * share:.0f} %", optional=optional)

    def part(name: str) -> Callable[[TrainingResult], float | None]:
        return lambda result: _step_parts(
            result.timing.breakdown.get(name), result.timing.step_time_s
        )

    older = any("communication" in result.timing.breakdown for result in results)
    shown_parts = {
        name: head for name, (_, head) in PARTS.items() if older or name != "communication"
    }
    ceiling_words = "its claimed peak"
    if all(result.is_on_cpu for result in results):
        ceiling_words = "the reference that its reported clock gives"
    return table(
        results,
        _EXPERIMENT,
        column("step", lambda result: result.timing.step_time_s or None, format_time),
        *(percent(head, part(name)) for name, head in shown_parts.items()),
        percent("MFU", lambda result: result.throughput.mfu),
        percent("HFU", lambda result: result.throughput.hfu),
        title=f"A step's time, and what the device did of {ceiling_words}",
        notes=[
            f"{result.name}: no MFU, {result.throughput.no_mfu_reason}"
            for result in results
            if result.passed and result.throughput.mfu is None and result.throughput.no_mfu_reason
        ],
    )


def _step_parts(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def _resources(results: Sequence[TrainingResult]) -> Iterator[doc.Table]:
    """Devices, memory of each rank, and energy where it could be read."""

    def memory(sizes: Iterable[float | None]) -> str | None:
        known = [size for size in sizes if size is not None]
        if not known:
            return None
        even = max(known) <= _EVEN * min(known)
        return ("" if even else f"{format_memory(min(known))} to ") + format_memory(max(known))

    columns: tuple[doc.Shown[TrainingResult], ...] = (
        words("devices", _devices),
        column("allocated", lambda r: memory(rank.allocated_bytes for rank in r.memory.by_rank)),
        column("reserved", lambda r: memory(rank.reserved_bytes for rank in r.memory.by_rank)),
        column("J/token", lambda r: r.energy.per_token_j, lambda v: format_quantity(v, "J")),
        column("power", lambda r: r.energy.mean_power_w, lambda v: format_quantity(v, "W")),
    )
    known = [
        column_pair
        for column_pair in columns
        if any(column_pair[1](result) != "-" for result in results)
    ]
    if known:
        title = "Devices and energy; memory is the peak of a device, lowest to highest"
        yield table(results, _EXPERIMENT, *known, title=title)


def _devices(result: TrainingResult) -> str | None:
    """Return ``GPU 0, 1 (RTX 4090)``, ``cores 0-3``."""
    gpus = [device for device in result.layout.devices if device.device.startswith("cuda")]
    if gpus:
        numbers = [gpu.device if gpu.index is None else str(gpu.index) for gpu in gpus]
        names = dict.fromkeys(gpu.name for gpu in gpus if gpu.name)
        return f"GPU {', '.join(numbers)}" + (f" ({', '.join(names)})" if names else "")
    cores = dict.fromkeys(device.cores for device in result.layout.devices if device.cores)
    return f"cores {', '.join(cores)}" if cores else None


def _losses(results: Sequence[TrainingResult]) -> doc.Table:
    steps = max(len(result.loss.losses) for result in results)

    def last(result: TrainingResult) -> str | None:
        if not result.loss.losses:
            return None
        fewer = "" if len(result.loss.losses) == steps else f" ({len(result.loss.losses)})"
        return f"{result.loss.losses[-1]:.4f}{fewer}"

    return table(
        results,
        _EXPERIMENT,
        words("observed layout", _observed_layout),
        column("loss 1", lambda r: r.loss.losses[0] if r.loss.losses else None, "{:.4f}".format),
        column(
            "norm 1", lambda r: r.loss.grad_norms[0] if r.loss.losses else None, "{:.4f}".format
        ),
        column(f"loss {steps}", last),
        column("held out", lambda r: r.loss.heldout_loss, "{:.4f}".format),
        title="Loss of the first and the last step, norm of the first gradient, observed layout",
    )


def _observed_layout(result: TrainingResult) -> str | None:
    """Return ``2 ranks, ZeRO-3, bf16, recomputed, as FSDPModel``."""
    observed = result.layout.found
    if observed is None:
        return None
    mesh, kernels, zero = observed.mesh, observed.kernels, observed.sharding.zero
    parts = (
        (True, counted(mesh.ranks, "rank")),
        (zero, f"ZeRO-{zero}"),
        (True, observed.precision.compute),
        (observed.batch.grad_accum > 1, f"{observed.batch.grad_accum} micro-batches a step"),
        (observed.recompute in ("yes", "full"), "recomputed"),
        (observed.recompute == "selective", "recomputed but products"),
        ((mesh.tp or 1) > 1, f"TP {mesh.tp}{' + SP' if mesh.sequence_parallel else ''}"),
        ((mesh.pp or 1) > 1, f"PP {mesh.pp}"),
        ((mesh.cp or 1) > 1, f"CP {mesh.cp}"),
        (kernels.attention in _ATTENTIONS, _ATTENTIONS.get(str(kernels.attention), "")),
        (kernels.compile, "compiled"),
        (observed.optimizer.offload, "offloaded"),
        (observed.wrapped not in _NOT_WRAPPED, f"as {observed.wrapped}"),
    )
    return ", ".join(text for holds, text in parts if holds)


_ATTENTIONS = {"tiles": "attention in tiles", "plain": "plain attention"}
"""Kernels of attention other than the usual one, in words."""
_NOT_WRAPPED = (None, "", "Model")
"""Class of a model of ours that no wrapper of data-parallel ranks holds."""


# ---- predictions


def _predictions(
    results: Sequence[TrainingResult], predicted: Sequence[TrainingPrediction]
) -> Iterator[doc.Table]:
    by_name = {result.name: result for result in results}
    pairs = [
        (prediction, by_name[prediction.name])
        for prediction in predicted
        if prediction.step_time_s and prediction.name in by_name
    ]

    def error(pair: tuple[TrainingPrediction, TrainingResult]) -> float | None:
        share = _step_parts(pair[0].step_time_s, pair[1].timing.step_time_s)
        return None if share is None else share - 1.0

    def interval(pair: tuple[TrainingPrediction, TrainingResult]) -> str | None:
        return " to ".join(map(format_time, pair[0].step_time_interval_s or ())) or None

    if pairs:
        yield table(
            pairs,
            words("experiment", lambda pair: pair[0].name),
            column("predicted", lambda pair: pair[0].step_time_s, format_time),
            column("80 % interval", interval),
            column("measured", lambda pair: pair[1].timing.step_time_s or None, format_time),
            column("error", error, signed_share),
            column("memory", lambda pair: pair[0].peak_memory_bytes, format_memory),
            column("measured", lambda pair: pair[1].memory.peak_bytes, format_memory),
            title="Predicted before it was trained, and how far off",
        )


def _profiled(
    results: Sequence[TrainingResult], predicted: Sequence[TrainingPrediction]
) -> Iterator[doc.Table]:
    """Yield the parts of a profiled step, and below each what was predicted of it."""
    forecast = {
        prediction.name: prediction.parts
        for prediction in predicted
        if prediction.parts is not None
    }
    lines = [
        (name, parts)
        for result in results
        if result.timing.profiled is not None
        for name, parts in (
            (result.name, result.timing.profiled),
            ("predicted", forecast.get(result.name)),
        )
        if parts is not None
    ]
    if lines:
        yield table(
            lines,
            words("experiment", lambda line: line[0]),
            column("step", lambda line: line[1].step_s, format_time),
            column("own work", lambda line: line[1].own_s, format_time),
            column("of it idle", lambda line: line[1].idle_s, format_time),
            column("exposed communication", lambda line: line[1].communication_s, format_time),
            column("pipeline bubble", lambda line: line[1].bubble_s, format_time),
            column("overlapped", lambda line: line[1].overlapped_s, format_time),
            title="Steps under torch's profiler: own work, waits and bubble add up to the step",
        )


def _traces(view: RunView) -> Iterator[doc.Paragraph]:
    """Yield where the ranks' traces lie, once for all experiments."""
    lists: Iterator[Any] = (record.conditions.get(TRACES) for record in view.records)
    files = tuple(dict.fromkeys(path for paths in lists for path in paths or ()))
    if files:
        words = "Traces of the profiled steps, for Perfetto or trainrig import:"
        yield doc.Paragraph(words, files=files)


def _remarks(
    results: Sequence[TrainingResult],
    predicted: Sequence[TrainingPrediction],
    published: Sequence[PublishedFigure],
) -> Iterator[str]:
    """Why rows did not agree, why there is no energy, what is suspicious, why nothing is predicted.

    A reason that holds for several is given once.
    """
    for result in results:
        if result.loss.parity.rounding:
            yield f"{result.name}: {result.loss.parity.rounding}"
        if result.loss.parity.compared_with:
            yield f"{result.name}: compared as {result.loss.parity.compared_with}"
    trained = [result for result in results if result.throughput.samples_per_s]
    for reason in dict.fromkeys(result.energy.missing_reason for result in trained):
        if reason:
            names = [result.name for result in trained if result.energy.missing_reason == reason]
            of_whom = "" if len(names) == len(trained) else f" of {', '.join(names)}"
            yield f"Energy{of_whom} was not read: {reason}"
    for reason in dict.fromkeys(result.timing.no_breakdown_reason for result in trained):
        if reason:
            yield f"Where a step's time went is not known: {reason}"
    yield from published_outliers(published)
    reasons = {
        prediction.reason: prediction.name
        for prediction in reversed(predicted)
        if prediction.reason
    }
    for reason, name in reversed(reasons.items()):
        yield f"{name}: not predicted: {str(reason).removeprefix('no target known: ')}"
