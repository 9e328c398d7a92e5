"""What a reader wants first of a run: one sentence, four numbers, three things to do.

The sentence is of the training step, in the data type that training uses most.  A key number has
its place among figures that others published of the same card.  An action says what it may bring
at the most: the step without the time of that cause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from trainrig.analysis.evidence import Share
from trainrig.analysis.match import Row, join, rules_of
from trainrig.analysis.run_view import RunView, is_published, rows
from trainrig.analysis.time_loss import NOT_EXPLAINED
from trainrig.analysis.training_results import TrainingResult, published_figures, readable
from trainrig.analysis.waterfall import Level, Waterfall, largest_gap
from trainrig.benchmarks.spec import MEMORY, Role, case_text, role_of
from trainrig.catalog.published.tables import TABLES, read
from trainrig.record import Finding, Kind, Record, dtype_of
from trainrig.units import format_count, format_quantity, format_share

ACTIONS = 3
"""So many at the most."""
_LEAST_GAIN = 0.02
"""What speeds a step up by less is no advice."""
_MODEL = ("model", "batch_size", "seq_len", "precision", "optimizer", "grad_accum")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRange:
    """What others published of the same card: each source's best."""

    low: float
    high: float
    num: int
    """Sources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyNumber:
    """One of the numbers that say what a machine does."""

    name: str
    value: float
    unit: str
    what: str
    """Of which case it is."""
    is_least: bool = False
    """It was noisy: the machine may do better."""
    others: PublishedRange | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """Something to do, with what it is worth."""

    what: str
    gain: float | None = None
    """Training gets faster by this share at the most; None: not known."""
    next: str = ""
    """How."""
    command: str = ""
    """To copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """A level that was measured, and its record."""

    waterfall: Waterfall
    level: Level
    record: Record


def headline(view: RunView, waterfalls: Sequence[Waterfall]) -> str:
    """One plain sentence; empty where no number can stand for the machine."""
    found = _levels(view, waterfalls)
    if step := next(iter(_of(found, Role.STEP)), None):
        return _step_sentence(step)
    trained = [one for one in readable(view) if one.samples_per_s]
    if trained:
        best = max(trained, key=lambda one: one.samples_per_s or 0.0)
        fastest = f", the fastest of {len(trained)} trainings" if len(trained) > 1 else ""
        rate = f"{format_count(best.samples_per_s or 0.0)} samples/s"
        if best.tokens_per_s:
            rate = f"{format_count(best.tokens_per_s)} tokens/s"
        precision = best.settings.get("precision")
        how = f"{best.model} in {precision}" if precision else best.model
        return f"Trains {how} at {rate}{fastest}."
    if product := next(iter(_of(found, Role.PRODUCT)), None):
        rate = format_quantity(product.level.value or 0.0, product.level.unit)
        dtype = dtype_of(product.record.case)
        return f"Multiplies {dtype} matrices at {rate}; no training step was measured."
    moved = [row for row in rows(view) if row.unit == "B/s" and row.is_usable]
    if found or not moved:
        return ""
    most = max(moved, key=lambda row: row.value)
    rate = format_quantity(most.value, most.unit)
    return f"Moves {rate} at the most: {case_text(most.benchmark, most.case)}."


def _step_sentence(step: _Found) -> str:
    level, gap = step.level, step.level.gap
    case = step.record.case
    rate = format_quantity(level.value or 0.0, level.unit)
    sentence = f"Trains {case.get('model')} in {dtype_of(case)} at {rate}"
    if gap is None:
        return f"{sentence}."
    of = {"Best matmul": "what its matmuls reach", "Claim": "its claim"}.get(level.ceiling, "")
    sentence += f", {format_share(1.0 + gap.share)} of {of or level.ceiling.lower()}"
    rest = sum(share.amount for share in gap.shares if share.name == NOT_EXPLAINED)
    if rest > 0.0:
        sentence += f"; {format_quantity(rest, gap.unit)} unexplained"
    return f"{sentence}."


# ---- key numbers


def key_numbers(view: RunView, waterfalls: Sequence[Waterfall]) -> tuple[KeyNumber, ...]:
    """Training, matmul, memory, disk; what was not measured has none."""
    found = _levels(view, waterfalls)
    training, step = _training_number(view), next(iter(_of(found, Role.STEP)), None)
    if training is None and step is not None:
        case = step.record.case
        training = _number("Training step", step, f"{case.get('model')}, {dtype_of(case)}")
    matmul = next(iter(_of(found, Role.PRODUCT)), None)
    memory = next((each for each in found if each.waterfall.quantity == MEMORY.name), None)
    disk = next(iter(_of(found, Role.DISK)), None)
    others = None if is_published(view) else _others
    made = [training]
    if matmul is not None:
        made.append(_number("Best matmul", matmul, str(dtype_of(matmul.record.case)), others))
    for name, best in (("Memory bandwidth", memory), ("Disk, sequential read", disk)):
        if best is not None:
            made.append(_number(name, best, best.level.provenance.partition(";")[0], others))
    return tuple(each for each in made if each is not None)


def _number(
    name: str,
    found: _Found,
    what: str,
    others: Callable[[_Found], PublishedRange | None] | None = None,
) -> KeyNumber:
    return KeyNumber(
        name=name,
        value=found.level.value or 0.0,
        unit=found.level.unit,
        is_least=found.level.note is not None,
        what=what,
        others=others(found) if others is not None else None,
    )


def _training_number(view: RunView) -> KeyNumber | None:
    trained = [one for one in readable(view) if one.tokens_per_s]
    if not trained:
        return None
    best = max(trained, key=lambda one: one.model_flops_per_s_per_device or 0.0)
    words = [best.model, str(best.settings.get("precision", ""))]
    if best.mfu is not None:
        words.append(f"MFU {format_share(best.mfu)}")
    elif best.mfu_of_measured_matmul is not None:
        words.append(f"{format_share(best.mfu_of_measured_matmul)} of its matmul")
    return KeyNumber(
        name="Training",
        value=best.tokens_per_s or 0.0,
        unit="token/s",
        is_least=best.disturbed is not None,
        what=", ".join(filter(None, words)),
        others=_trained_by_others(view, best),
    )


def _trained_by_others(view: RunView, own: TrainingResult) -> PublishedRange | None:
    """Of the same experiment, on devices of the same name."""
    names = {device.name for device in own.devices}
    rates = [
        figure.tokens_per_s_per_device * max(1, len(own.devices))
        for figure in published_figures(view)
        if figure.experiment == own.name and figure.device in names
    ]
    return PublishedRange(low=min(rates), high=max(rates), num=len(rates)) if rates else None


def _others(found: _Found) -> PublishedRange | None:
    """The best figure of each source that may stand for the same level of the same device."""
    record = found.record
    if record.device_index is None or record.device is None:
        return None
    best: dict[str, float] = {}
    for row in _published(record.device):
        is_same = any(rule.name == found.level.name for rule in rules_of(row))
        if not is_same or dtype_of(row.case) not in (dtype_of(record.case), None):
            continue
        source = (row.measured and row.measured.source) or row.benchmark
        best[source] = max(best.get(source, 0.0), row.value)
    if not best:
        return None
    return PublishedRange(low=min(best.values()), high=max(best.values()), num=len(best))


@cache
def _published(device: str) -> tuple[Row, ...]:
    """What others published of one card."""
    records = (each for name in TABLES for each in read(name))
    own = [each for each in records if each.device == device and each.device_count == 1]
    return tuple(row for row in join(own, observed=Kind.BASELINE) if row.value)


# ---- what to do


def actions(
    view: RunView, waterfalls: Sequence[Waterfall], findings: Sequence[Finding]
) -> tuple[Action, ...]:
    """The most urgent first: faults, then what costs a training step most, then other gaps."""
    faults = [
        Action(what=each.evidence, next=each.fix)
        for each in findings
        if each.severity == "error" and each.fix
    ]
    steps = _of(_levels(view, waterfalls), Role.STEP)
    gains = sorted(_gains(steps[0]) if steps else (), key=lambda one: -(one.gain or 0.0))
    warned = [
        Action(what=each.evidence, next=each.fix)
        for each in findings
        if each.severity == "warning" and each.fix
    ]
    found = [*faults, *gains, *warned]
    worst = largest_gap(waterfalls)
    if not gains and worst is not None and worst.gap.next:
        what = f"{worst.waterfall.title}: {worst.gap.cause}"
        found.append(Action(what=what, next=worst.gap.next))
    return tuple(found[:ACTIONS])


def _gains(step: _Found) -> Iterator[Action]:
    """What each cause's time costs; what no cause explains is looked into by training it."""
    gap = step.level.gap
    for share in gap.shares if gap is not None else ():
        time = share.seconds * _ceiling(step) / (share.amount or 1.0)
        gain = share.seconds / (time - share.seconds) if 0.0 < share.seconds < time else 0.0
        is_open = share.name == NOT_EXPLAINED
        how = "train it here and read where each step's time goes" if is_open else share.next
        if how and gain >= _LEAST_GAIN:
            yield Action(what=share.name, gain=gain, next=how, command=_command(step, share))


def _ceiling(step: _Found) -> float:
    gap = step.level.gap
    return (step.level.value or 0.0) - (gap.amount if gap else 0.0)


def _command(step: _Found, share: Share) -> str:
    """The command of the same training with one option changed; empty where none helps."""
    if not share.options and share.name != NOT_EXPLAINED:
        return ""
    case = step.record.case
    known = [key for key in _MODEL if case.get(key) not in (None, 1)]
    options = {f"--{key.replace('_', '-')}": case[key] for key in known}
    name, _, value = share.options.partition(" ")
    words = " ".join(f"{option} {options[option]}" for option in options if option != name)
    return f"trainrig train {words} {name} {value}".rstrip()


# ---- levels by what they stand for


def _levels(view: RunView, waterfalls: Iterable[Waterfall]) -> list[_Found]:
    """Every level with a value, of waterfalls in their order: training's data type first."""
    by_id = {record.id: record for record in view.records}
    return [
        _Found(waterfall=each, level=level, record=by_id[level.record])
        for each in waterfalls
        for level in each.levels[1:]
        if level.value is not None and level.record in by_id
    ]


def _of(found: Iterable[_Found], role: Role) -> list[_Found]:
    """The levels of one kind, clean ones first, then in the order of `_levels`."""
    mine = [each for each in found if role_of(each.record.benchmark) is role]
    return sorted(mine, key=lambda each: each.level.note is not None)
