"""Predictions as documents: one step, a search's best layouts, how far off they were.

Answers what `trainrig predict`, `plan` and `ledger` print; `fits_report` has `trainrig fits`.
Memory is of the fullest GPU; a bar that begins where the one above ends shows a part of a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainrig.analysis.prediction_error import (
    MIN_RUNS,
    Correction,
    Ledger,
    by_part,
    by_run,
    errors_of,
)
from trainrig.prediction.verdict import BORDERLINE, DOES_NOT_FIT, FITS, verdict_of_layout
from trainrig.report.document import (
    Block,
    Cell,
    Column,
    Document,
    Facts,
    Line,
    Paragraph,
    Strip,
    Table,
    Tone,
    column,
    table,
    words,
)
from trainrig.report.presumed_text import note_lines, program_line
from trainrig.stats import ErrorSummary
from trainrig.units import (
    DAY,
    counted,
    format_count,
    format_memory,
    format_quantity,
    format_share,
    format_time,
    signed_share,
)
from trainrig.workload.layout import Layout
from trainrig.workload.numerics import scheme_of

if TYPE_CHECKING:  # numpy: the ledger needs none
    from trainrig.prediction.prediction import Prediction
    from trainrig.prediction.published_runs import PublishedRun
    from trainrig.prediction.scenario import Question
    from trainrig.prediction.search import Candidate, LayoutFamily, Ranking
    from trainrig.prediction.search.gpu_count import Budget
    from trainrig.prediction.search.space import Space
    from trainrig.prediction.search.upgrades import Ranked
    from trainrig.workload.memory import Memory

_LABELS = {
    "recompute": "recomputation",
    "gaps": "launch gaps",
    "tensor_comm": "tensor + context collectives",
    "expert_comm": "tokens to experts and back",
    "pipeline_comm": "pipeline P2P",
    "bubble": "pipeline bubble",
    "data_comm": "gradient + weight collectives",
    "framework": "context + fragmentation",
    "simulated": "what the simulation adds",
}
"""Parts of a step and of memory whose names need words."""
_MOST_FRONT = 10
_LEAST_SAVING, _MOST_SLOWER = 0.1, 2.0
"""Least saving of memory against the row above, and most time against the fastest layout."""
VERDICT_TONES: dict[str, Tone] = {FITS: "good", BORDERLINE: "warn", DOES_NOT_FIT: "bad"}
_SCHEMES = {"masters": " with fp32 masters", "autocast": " by autocast", "pure": " throughout"}


# ---- words


def place_text(layout: Layout, device: str) -> str:
    """Return ``16 × A100 SXM4 80GB in 2 nodes``."""
    gpus, nodes = int(layout.mesh.gpus), -(-int(layout.mesh.gpus) // int(layout.mesh.gpus_per_node))
    if gpus == 1:
        return device
    return f"{gpus} × {device}" + (f" in {nodes} nodes" if nodes > 1 else "")


def layout_text(layout: Layout, *, fixed: bool = True) -> str:
    """Return a layout in the field's words, without what is 1 or none.

    ``fixed``: with precision and kernels, which a search does not vary.
    """
    accum = int(layout.batch.grad_accum)
    is_wide = layout.precision.compute in ("fp32", "tf32")
    parts = (
        (True, layout.framework),
        (layout.scheme not in ("none", "own"), layout.scheme),
        (layout.mesh.tp > 1, f"tp {layout.mesh.tp}"),
        (layout.mesh.pp > 1, f"pp {layout.mesh.pp}"),
        (
            layout.mesh.cp > 1,
            f"cp {layout.mesh.cp}" + f" by {layout.mesh.cp_comm}" * (layout.mesh.cp_comm != "auto"),
        ),
        (layout.mesh.ep > 1, f"ep {layout.mesh.ep}"),
        (layout.mesh.dp > 1, f"dp {layout.mesh.dp}"),
        (layout.pipeline.interleave > 1, f"interleave {layout.pipeline.interleave}"),
        (layout.mesh.pp > 1, layout.pipeline.schedule),
        (
            layout.sharding.zero,
            f"zero {layout.sharding.zero}"
            + (f" over {layout.sharding.shard_size}" if layout.sharding.shard_size else ""),
        ),
        (layout.mesh.sequence_parallel, "sequence parallel"),
        (True, f"batch {layout.batch.micro}" + (f" × {accum}" if accum > 1 else "")),
        (layout.memory.recompute != "none", f"recompute {layout.memory.recompute}"),
        (layout.memory.offload != "none", f"offload {layout.memory.offload}"),
        (
            layout.lora.rank,
            f"LoRA {layout.lora.rank}"
            + (f" beside {layout.lora.quantize}" if layout.lora.quantize != "none" else ""),
        ),
        (layout.memory.optimizer_in_backward, "optimizer in backward"),
        (layout.precision.fp8_params, "weights in fp8 alone"),
        (layout.moe.router_spread, f"router spread {layout.moe.router_spread:g}"),
        (fixed, layout.precision.number_format + ("" if is_wide else _SCHEMES[scheme_of(layout)])),
        (fixed, layout.kernels.stack),
    )
    return ", ".join(text for holds, text in parts if holds)


def duration_text(prediction: Prediction, tokens: float) -> str:
    """Days and energy of a whole training."""
    days = prediction.days(tokens)
    low, high = (format_count(days * end / prediction.time) for end in prediction.interval)
    kwh = prediction.kwh(tokens)
    energy = f"{format_count(kwh)} kWh" if kwh is not None else "kWh: power not known"
    return f"{format_count(days)} days ({low} to {high}), {energy}"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f}" if seconds < 10.0 else f"{seconds * 1e3:,.0f}"


def _gib(size: float) -> str:
    return f"{size / (1 << 30):.2f}"


# ---- predict


def prediction_document(
    prediction: Prediction, tokens: float | None = None, upgrades: Sequence[Ranked] = ()
) -> Document:
    """Return one layout.

    Its time by part, its memory by part, what follows, where the rates come from.
    """
    place = place_text(prediction.layout, prediction.rates.device)
    title = f"{prediction.question.shape.name} on {place}"
    unused = set() if prediction.layout.mesh.gpus > 1 else {"collective"}
    unused |= set() if prediction.layout.memory.offload != "none" else {"host_link"}
    unused |= set() if prediction.layout.memory.offload == "disk" else {"disk"}
    origins = tuple(
        (name.replace("_", " "), origin)
        for name, origin in prediction.rates.provenance.items()
        if name not in unused
    )
    need, have = (
        f"{size / (1 << 30):.1f}"
        for size in (float(prediction.memory.total), prediction.rates.memory_bytes)
    )
    step, rate = format_time(prediction.time), format_count(prediction.tokens_per_s)
    answer = f"{step} a step, {rate} tokens/s; {prediction.verdict}, {need} of {have} GiB a GPU"
    blocks: list[Block] = [
        Paragraph(
            f"{title}, {prediction.question.program.name}: {answer}",
            VERDICT_TONES[prediction.verdict],
        ),
        *note_lines(prediction.question),
        *program_line(prediction.question),
        _time_table(prediction),
        Facts(tuple(_prediction_facts(prediction, tokens)), "Prediction"),
        *(
            Paragraph(warning, "warn", label="Warning")
            for warning in prediction.warnings
            if warning not in prediction.question.notes
        ),
        memory_table(prediction.memory, prediction.rates.memory_bytes, prediction.verdict),
        *_published_table(prediction),
        *_upgrade_table(upgrades),
        *_presumed_facts(tuple(setting_facts(prediction))),
        Facts(origins, "Where the rates come from"),
    ]
    return Document(title=title, blocks=tuple(blocks))


def _prediction_facts(prediction: Prediction, tokens: float | None) -> Iterator[tuple[str, str]]:
    low, high = map(format_time, prediction.interval)
    how = (
        "its pipeline simulated event by event" if prediction.is_simulated else "by the closed form"
    )
    yield "step", f"{format_time(prediction.time)}, 80 % between {low} and {high}; {how}"
    yield "layout", layout_text(prediction.layout)
    yield from host_facts(prediction.question)
    yield (
        "rate",
        f"{format_count(prediction.tokens_per_s)} tokens/s, "
        f"{format_count(prediction.tokens_per_s * DAY)} a day; "
        f"{format_quantity(prediction.flop_rate, 'FLOP/s')} a GPU",
    )
    if prediction.mfu is not None and prediction.hfu is not None:
        mfu, hfu = format_share(prediction.mfu), format_share(prediction.hfu)
        yield "utilised", f"MFU {mfu}, HFU {hfu} of the claimed {prediction.claimed} peak"
        if (by_half := _mfu_by_half(prediction)) is not None:
            yield "causal half", f"{by_half} where causal attention counts by half, above in full"
    if tokens is not None:
        yield f"{format_count(tokens)} tokens", f"{duration_text(prediction, tokens)} of GPUs"


def setting_facts(prediction: Prediction) -> Iterator[tuple[str, str]]:
    """Yield the GPUs of a node, the network, and uneven stages."""
    for setting in prediction.setting:
        yield setting.name, f"presumed: {setting.text}" if setting.is_presumed else setting.text


def _mfu_by_half(prediction: Prediction) -> str | None:
    """Utilisations where the causal scores that are seen count alone; None: they are the same."""
    mfu, hfu = prediction.mfu_half, prediction.hfu_half
    if mfu is None or hfu is None or mfu == prediction.mfu:
        return None
    return f"MFU {format_share(mfu)}, HFU {format_share(hfu)}"


def _time_table(prediction: Prediction) -> Table:
    """Return the step's waterfall: each part with its share."""
    from trainrig.prediction.step import PARTS

    sizes = {_LABELS.get(part, part): float(getattr(prediction.step, part)) for part in PARTS}
    parts = [(name, seconds) for name, seconds in sizes.items() if seconds > 0.0]
    sums = [Line(("step", _milliseconds(prediction.time), "100", ""), "strong")]
    if (overlapped := float(prediction.step.overlapped)) > 0.0:
        cells = ("overlapped communication", _milliseconds(overlapped), "", "")
        sums.append(Line(cells, "dim"))
    return _parts_table(("part", "ms"), parts, prediction.time, _milliseconds, sums)


def memory_table(memory: Memory, offered: float, verdict: str) -> Table:
    """Memory by part, its interval beside what a GPU offers, and whether that is enough."""
    from trainrig.prediction.as_json import memory_parts

    total = float(memory.total)
    parts = [(_LABELS.get(name, name), size) for name, size in memory_parts(memory).items() if size]
    has = Cell("", drawing=Strip(0.0, offered / total)) if total > offered else ""
    low, high = (f"{float(end) / (1 << 30):.1f}" for end in memory.needed_interval)
    share = f"{total / offered * 100:.1f}"
    sums = [
        Line(("all", _gib(total), share, verdict_cell(verdict)), "strong"),
        Line((f"80 % interval: {low} to {high}", "", "", ""), "dim"),
        Line(("a GPU offers", _gib(offered), "", has), "dim"),
    ]
    return _parts_table(("memory", "GiB"), parts, offered, _gib, sums)


def verdict_cell(verdict: str) -> Cell:
    """Return one of the three words in its colour."""
    return Cell(verdict, VERDICT_TONES[verdict])


def _published_table(prediction: Prediction) -> Iterator[Table]:
    """Yield what others measured of the same step."""
    from trainrig.prediction.published_runs import SLOW, published_runs

    def why(run: PublishedRun) -> str:
        if run.host_call_s is not None:
            call, presumed = format_time(run.host_call_s), format_time(prediction.rates.launch)
            return f"a host that takes {call} a call, not {presumed}, would explain it"
        return "no slow host explains it" if run.ratio > SLOW else ""

    if runs := published_runs(prediction):
        yield table(
            runs,
            words("measured by others", lambda run: run.source),
            column("step", lambda run: format_time(run.step_time_s)),
            column("times ours", lambda run: f"{run.ratio:.2f}"),
            words("framework", lambda run: f"{run.framework}; {run.kernels}"),
            line=lambda run, cells: Line(cells, note=why(run)),
        )


def _parts_table(
    heads: tuple[str, str],
    parts: Iterable[tuple[str, float]],
    whole: float,
    form: Callable[[float], str],
    sums: Sequence[Line],
) -> Table:
    """Return parts of a whole, each bar from where the one above ends, and below them their sums.

    Where they come to more than the whole, the bars are shares of what they come to.
    """
    parts = tuple(parts)
    rows, end, room = [], 0.0, max(whole, sum(size for _, size in parts))
    for name, size in parts:
        start, end = end, end + size
        strip = Strip(min(1.0, start / room), min(1.0, end / room))
        rows.append(Line((name, form(size), f"{size / whole * 100:.1f}", Cell("", drawing=strip))))
    columns = Column(heads[0], "words"), Column(heads[1]), Column("%"), Column("", "drawing")
    return Table(columns, (*rows, *sums))


_CHANGE_TONES: dict[str, Tone] = {"faster": "good", "slower": "bad"}


def _upgrade_table(upgrades: Sequence[Ranked]) -> Iterator[Table]:
    """Upgrades, best first."""
    if upgrades:
        yield table(
            upgrades,
            column("change", lambda upgrade: upgrade.name, kind="code"),
            words("now", lambda upgrade: upgrade.present),
            column(
                "tokens/s",
                lambda upgrade: (
                    "" if upgrade.tokens_per_s is None else format_count(upgrade.tokens_per_s)
                ),
            ),
            column(
                "gain", lambda upgrade: "" if upgrade.gain is None else signed_share(upgrade.gain)
            ),
            words(
                "", lambda upgrade: Cell(upgrade.verdict, _CHANGE_TONES.get(upgrade.verdict, "dim"))
            ),
            words("with it", lambda upgrade: Cell(upgrade.reason or upgrade.says, "dim")),
        )


def host_facts(question: Question) -> Iterator[tuple[str, str]]:
    """Yield the memory that a node itself needs, where something is offloaded."""
    from trainrig.workload.memory import host_interval

    least, most = map(float, host_interval(question.shape, question.layout))
    limit = question.cluster.host_memory
    if not least:
        return
    need, have = format_memory(least), format_memory(limit or 0.0)
    if most > least:
        need = f"{need} to {format_memory(most)}"
    if limit is None:
        yield "host memory", f"{need} a node"
    elif question.host_verdict != DOES_NOT_FIT:
        yield "host memory", f"{need} a node of {have}"
    else:
        yield "host memory", f"{need} a node, which has {have}: not enough"


# ---- plan


def plan_document(
    space: Space,
    ranking: Ranking,
    best: Prediction,
    *,
    families: Sequence[LayoutFamily] = (),
    budget: Budget | None = None,
    tokens: float | None = None,
    upgrades: Sequence[Ranked] = (),
    notes: Sequence[str] = (),
    written: Sequence[Path] = (),
    files_text: str = "",
) -> Document:
    """Return best layouts of a search, those that need less memory, and why the first is the first.

    ``best`` is the prediction of the first layout; ``notes`` say which layouts can be trained.
    Of ``families`` each stands once, with the number of those that take as long.
    """
    limit, place = best.rates.memory_bytes, place_text(best.layout, best.rates.device)
    title = f"{space.shape.name} on {place}, {space.global_batch} samples a step"
    searched = (
        f"{ranking.considered:,} layouts in {format_time(ranking.seconds)}, {ranking.fitting:,} fit"
    )
    fits = ranking.best[0].fits
    refusal = "Nothing fits in memory; the smallest layout is shown."
    blocks: list[Block] = [
        Paragraph(_plan_answer(best, tokens), "strong") if fits else Paragraph(refusal, "bad"),
        *([Paragraph(layout_text(best.layout))] if fits else []),
        *([Paragraph(files_text)] if files_text else []),
        *note_lines(best.question),
        *program_line(best.question),
    ]
    if fits:
        blocks.append(Paragraph(f"{space.global_batch} samples a step: {searched}", "dim"))
    else:
        hint = "More GPUs, a smaller model, or an option: trainrig fits has what each saves."
        blocks += [Paragraph(f"{title}: {searched}", "strong"), Paragraph(hint)]
    head = "fastest" if fits else "smallest"
    candidates = tuple(candidate.best for candidate in families) or ranking.best
    ties = {id(candidate.best): candidate.ties for candidate in families}
    blocks.append(_candidate_table(space, candidates, head, best, ties))
    blocks += _presumed_facts(tuple(_plan_setting(best, candidates)))
    if (by_half := _mfu_by_half(best)) is not None:
        words = f"MFU: causal attention in full; by half, the first has {by_half}"
        blocks.append(Paragraph(words, "dim"))
    if any(ties.values()):
        blocks.append(Paragraph("ties: others of its kind that take less than 1 % longer", "dim"))
    if any(_is_borderline(space, candidate, limit) for candidate in candidates):
        room = f"its interval of memory has the {format_memory(limit)} in it that a GPU offers"
        order = "behind those that surely fit where times differ by less than 1 %"
        blocks.append(Paragraph(f"borderline: {room}; {order}", "dim"))
    if len(candidates) > 1:
        blocks.append(Paragraph(gap_text(*candidates[:2])))
    chosen = _worth_showing(ranking.front)
    if len(chosen) > 1:
        head = f"less memory (Pareto front, {len(ranking.front)} layouts)"
        blocks.append(_candidate_table(space, chosen, head, best))
    if budget is not None and budget.neighbours:
        blocks.append(_count_table(budget, space.global_batch))
    if tokens is not None:
        cost = f"{duration_text(best, tokens)} of GPUs"
        blocks.append(Paragraph(f"{format_count(tokens)} tokens: {cost}"))
    blocks += _upgrade_table(upgrades)
    blocks += [Paragraph(note) for note in (*notes, *(f"wrote {path}" for path in written))]
    return Document(title=title, blocks=tuple(blocks))


def _presumed_facts(pairs: Sequence[tuple[str, str]]) -> Iterator[Facts]:
    """Yield the assumptions of an answer, which stand behind its table."""
    if pairs:
        yield Facts(tuple(pairs), "Presumed")


def _plan_answer(best: Prediction, tokens: float | None) -> str:
    """Return the fastest layout, how fast it is and, where tokens are given, in how many days."""
    place = place_text(best.layout, best.rates.device)
    step, rate = format_time(best.time), format_count(best.tokens_per_s)
    text = f"{best.question.shape.name} on {place}: {step} a step, {rate} tokens/s"
    if tokens is not None:
        text += f", {format_count(best.days(tokens))} days for {format_count(tokens)} tokens"
    return text


def _plan_setting(best: Prediction, candidates: Sequence[Candidate]) -> Iterator[tuple[str, str]]:
    """Yield the assumptions of a plan's first layout, and the model of its times."""
    if any(candidate.is_pipeline for candidate in candidates):
        yield "step times", "pipelines simulated event by event, all else by the closed form"
    yield from setting_facts(best)


def _worth_showing(front: Sequence[Candidate]) -> list[Candidate]:
    """Return the layouts of a Pareto front that save memory and are not slower beyond use."""
    chosen = list(front[:1])
    for candidate in front[1:]:
        saves = candidate.memory <= (1.0 - _LEAST_SAVING) * chosen[-1].memory
        if (
            saves
            and candidate.ranked_by <= _MOST_SLOWER * front[0].ranked_by
            and len(chosen) < _MOST_FRONT
        ):
            chosen.append(candidate)
    return chosen


def _count_table(budget: Budget, batch: int) -> Table:
    """Return the number of GPUs that was found, between its neighbours."""

    def word(count: Budget) -> str:
        if count is budget:
            return "in time, at the fewest GPU-days"
        if budget.is_slowed_by(batch, count):
            return f"slower: {counted(batch, 'sample')} do not divide over them"
        is_more = count.cluster.gpus > budget.cluster.gpus
        return "slower" if is_more and count.days > budget.days else ""

    counts = sorted((budget, *budget.neighbours), key=lambda count: count.cluster.gpus)
    return table(
        counts,
        column("GPUs", lambda count: count.cluster.gpus),
        column("days", lambda count: format_count(count.days)),
        column("GPU-days", lambda count: format_count(count.gpu_days)),
        words("", word),
    )


def _is_borderline(space: Space, candidate: Candidate, limit: float) -> bool:
    return candidate.fits and verdict_of_layout(space.shape, candidate.layout, limit) == BORDERLINE


def _candidate_table(
    space: Space,
    candidates: Sequence[Candidate],
    head: str,
    best: Prediction,
    ties: Mapping[int, int] | None = None,
) -> Table:
    """Layouts of one search: they share the FLOPs of a step, so MFU goes as one over the time."""
    tokens, limit = space.global_batch * space.base.batch.seq_len, best.rates.memory_bytes
    mfu = None if best.mfu is None else best.mfu * best.time * 100

    places = {id(candidate): place for place, candidate in enumerate(candidates, 1)} if ties else {}

    def layout(candidate: Candidate) -> str:
        text = layout_text(candidate.layout, fixed=False)
        return f"{text}, borderline" if _is_borderline(space, candidate, limit) else text

    return table(
        candidates,
        column("", lambda candidate: str(places.get(id(candidate), ""))),
        column("step s", lambda candidate: format_quantity(candidate.ranked_by, "")),
        column("GiB", lambda candidate: f"{candidate.memory / (1 << 30):.1f}"),
        column("tokens/s", lambda candidate: format_count(tokens / candidate.ranked_by)),
        column(
            "MFU", lambda candidate: "" if mfu is None else f"{mfu / candidate.ranked_by:.0f} %"
        ),
        column(
            "TFLOPS",
            lambda candidate: format_quantity(
                best.flop_rate * best.time / candidate.ranked_by / 1e12, ""
            ),
        ),
        words(head, layout),
        column(
            "ties", lambda candidate: str((ties or {}).get(id(candidate), "") or ""), optional=1
        ),
    )


def gap_text(first: Candidate, second: Candidate) -> str:
    """Return why the first is faster than the second: parts whose difference sums to the gap."""
    gap = second.ranked_by - first.ranked_by
    parts = sorted(first.gap(second).items(), key=lambda item: -abs(item[1]))
    named = [
        f"{_LABELS.get(part, part)} {'+' if seconds >= 0 else '−'}{format_time(abs(seconds))}"
        for part, seconds in parts
        if abs(seconds) >= gap * 1e-3 > 0
    ]
    if not named:
        return "The next best takes as long."
    return f"The next best takes {format_time(gap)} more: {', '.join(named)}."


# ---- ledger

_ERRORS = (
    "Errors are of the time, predicted over measured less one: above zero it took less than was "
    "predicted. Median and worst are of single predictions, bias is the median with its sign, "
    "inside the share of measured values in their predicted interval."
)


def ledger_document(ledger: Ledger, corrections: Sequence[Correction] | None = None) -> Document:
    """Show the errors of predictions by part and by run, and the effect of corrections."""
    title = ledger_headline(ledger)
    blocks: list[Block] = [Paragraph(title, "strong")]
    blocks += [Paragraph(line, "dim", label="not read") for line in ledger.unread]
    if ledger.entries:
        blocks += [error_table("part", by_part(ledger)), error_table("run", by_run(ledger))]
        blocks.append(Paragraph(_ERRORS, "dim"))
    if corrections:  # each factor, and the error of the newest runs without and with it
        factors = table(
            corrections,
            words("part", lambda correction: correction.part),
            column("factor", lambda correction: f"×{correction.factor:.3f}"),
            column("before", lambda correction: format_share(correction.median_error_before)),
            column("after", lambda correction: format_share(correction.median_error_after)),
            words("", lambda correction: "stored" if correction.helps else "left out"),
        )
        blocks.append(factors)
    elif corrections is not None:
        needed = f"a part needs {MIN_RUNS} runs with a predicted step"
        blocks.append(Paragraph(f"Nothing to fit: {needed}."))
    return Document(title=title, blocks=tuple(blocks))


def ledger_headline(ledger: Ledger) -> str:
    """Return the number of predictions and their errors, in a sentence."""
    host = ledger.host or "a machine without a name"
    left_out = counted(ledger.others, "run")
    others = f"; {left_out} of other machines left out" if ledger.others else ""
    if not ledger.entries:
        runs = counted(ledger.num_runs, "run")
        return f"{host}: nothing was predicted and measured yet in {runs}{others}"
    whole = errors_of("all", ledger.entries)
    return (
        f"{host}: {whole.count} predictions in {len(ledger.runs)} runs, median error "
        f"{format_share(whole.median_error)}, worst {signed_share(whole.worst_error)}{others}"
    )


def error_table(head: str, summaries: Sequence[ErrorSummary]) -> Table:
    """Return the table of error summaries, one a line, ``head`` being what each is of."""
    return table(
        summaries,
        words(head, lambda summary: summary.name),
        column("n", lambda summary: summary.count),
        column("median", lambda summary: format_share(summary.median_error)),
        column("p90", lambda summary: format_share(summary.p90_error)),
        column("worst", lambda summary: signed_share(summary.worst_error)),
        column("bias", lambda summary: signed_share(summary.bias)),
        column(
            "inside",
            lambda summary: "" if summary.coverage is None else format_share(summary.coverage),
        ),
    )
