"""What a reader wants first of a run: one sentence, four numbers, three things to do.

The sentence is of the training step in the data type that was trained; without one, of the matmul
in the fastest data type that training uses there (`waterfall.leading`).  Every number is the best
by `best`'s rule and is named by its case.  A key number has its place among figures that others
published of the same card.  An action says what it may bring at the most: the step without the
time of that cause.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from trainrig.analysis.best import (
    ABOUT,
    AT_LEAST,
    best_record,
    best_row,
    bound_of,
    claim_word,
    is_reference,
    is_valid,
    share_bound,
    sure_value,
    with_bound_sign,
    with_bound_words,
)
from trainrig.analysis.burn_facts import burn_devices, burn_headline, is_burn
from trainrig.analysis.evidence import finite_number
from trainrig.analysis.normal import PublishedRange, owner_of, range_for_level
from trainrig.analysis.rows import is_published, rows
from trainrig.analysis.time_loss import NOT_EXPLAINED, PARTS
from trainrig.analysis.training_baselines import published_figures
from trainrig.analysis.training_results import TrainingResult, readable_results
from trainrig.analysis.waterfall import (
    LargestGap,
    Level,
    Waterfall,
    ceiling_text,
    headline_waterfall,
    largest_gap,
)
from trainrig.benchmarks.spec import MEMORY, Role, case_text, role_of
from trainrig.benchmarks.training import options_of
from trainrig.record import Case, Finding, Record, RunView, dtype_of
from trainrig.stats import grouped
from trainrig.units import counted, format_count, format_quantity, format_share

ACTIONS = 3
"""Most actions that are shown."""
_LEAST_GAIN = 0.02
"""Least share of a step's time that an advice has to save."""
_ABOVE = 1.1
"""A matmul above its claim by more than a boost clock explains: the claim is a guess."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyNumber:
    """One of the numbers that say what a machine does."""

    name: str
    value: float
    unit: str
    what: str
    """Case that the number is of."""
    is_least: bool = False
    """True where the machine was noisy, so that it may do better."""
    others: PublishedRange | None = None
    text: str = ""
    """The value as another tool printed it; empty: with three digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """Something to do, with what it is worth."""

    what: str
    gain: float | None = None
    """Training gets faster by this share at the most; None: not known."""
    next: str = ""
    """Description of how to do it."""
    command: str = ""
    """Command to copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMetadata:
    """When a run was made, for how long, by which version; None where the run does not say."""

    started: str | None = None
    """UTC, as ISO 8601 has it."""
    duration_s: float | None = None
    """Until its last record ended, or the machine's last reading."""
    version: str | None = None


def run_metadata(view: RunView) -> RunMetadata:
    """Return when, for how long and by which version a run was made."""
    version = view.config.get("trainrig")
    started = _time_of(view.config.get("started"))
    last = max((r for r in view.records if r.started), key=lambda r: r.started or "", default=None)
    ends = [finite_number(row.get("t")) for row in view.series.get("telemetry", ())[-1:]]
    if last is not None and (begun := _time_of(last.started)) is not None:
        ends.append(begun.timestamp() + (last.duration or 0.0))
    known = [end for end in ends if end is not None]
    duration = None
    if started is not None and known and max(known) >= started.timestamp():
        duration = max(known) - started.timestamp()
    return RunMetadata(
        started=None if started is None else started.astimezone(UTC).isoformat(timespec="seconds"),
        duration_s=duration,
        version=version if isinstance(version, str) else None,
    )


def _time_of(value: object) -> datetime | None:
    """Return a moment with its zone; None for anything else that a file may hold."""
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Level:
    """A level that was measured, and its record."""

    waterfall: Waterfall
    level: Level
    record: Record


def headline(view: RunView, waterfalls: Sequence[Waterfall]) -> str:
    """Return one plain sentence; empty where no number can stand for the machine."""
    if is_burn(view):
        return burn_headline(view)
    levels = _levels(view, waterfalls)
    if step := _best_of_role(levels, waterfalls, Role.STEP):
        return " ".join(
            filter(None, (_step_sentence(step, _matmul_above(step, levels)), _loss_sentence(view)))
        )
    trained = [result for result in readable_results(view) if result.throughput.samples_per_s]
    if trained:
        best = _best_training(trained)
        fastest = f", the fastest of {len(trained)} trainings" if len(trained) > 1 else ""
        rate = f"{format_count(best.throughput.samples_per_s or 0.0)} samples/s"
        if best.throughput.tokens_per_s:
            rate = f"{format_count(best.throughput.tokens_per_s)} tokens/s"
        precision = best.settings.get("precision")
        model = _model_name(best.model)
        how = f"{model} in {precision}" if precision else model
        return f"Trains {how} at {rate}{fastest}."
    if product := _best_of_role(levels, waterfalls, Role.PRODUCT):
        dtype, rate = dtype_of(product.record.case), _rate(product.level)
        return f"Multiplies {dtype} matrices at {rate}; no training step was measured."
    return "" if levels else _byte_rate_sentence(view)


def _byte_rate_sentence(view: RunView) -> str:
    """Return the sentence about the highest byte rate of a run that computed nothing."""
    moved = best_record(
        row.measured
        for row in rows(view)
        if row.unit == "B/s" and row.metric != "alg_rate"  # no link's rate
    )
    if moved is None:
        return ""
    rate, description = (
        format_quantity(moved.value or 0.0, moved.unit),
        case_text(moved.benchmark, moved.case),
    )
    if bound := bound_of(moved):
        return f"Moves {with_bound_words(rate, bound)}: {description}."
    return f"Moves {rate} at the most: {description}."


def _best_training(trained: Iterable[TrainingResult]) -> TrainingResult:
    """Return the training that the sentence, the number and the actions refer to: the fastest."""
    return max(
        trained,
        key=lambda result: (
            result.throughput.model_flops_per_s_per_device or 0.0,
            result.throughput.samples_per_s or 0.0,
        ),
    )


def _model_name(model: str) -> str:
    """Return the name of a model without sizes: ``gpt2 (resized)`` for ``gpt2:num_layers=2``."""
    name, changed, _ = model.partition(":")
    return f"{name} (resized)" if changed else name


def _loss_sentence(view: RunView) -> str:
    """Return the sentence about the loss of a run that is one training; empty for others."""
    trained = readable_results(view)
    if len(trained) != 1 or len(trained[0].loss.losses) < 2 or _measures_more(view):
        return ""
    losses = trained[0].loss.losses
    return f"Its loss went from {losses[0]:.2f} to {losses[-1]:.2f} in {len(losses)} steps."


def _measures_more(view: RunView) -> bool:
    """Return whether the run looked at memory, links or disks, too."""
    return any(row.unit == "B/s" for row in rows(view))


def _step_sentence(step: _Level, matmul: _Level | None) -> str:
    """Say how fast a step is: as a share of its best matmul, else of the level that bounds it."""
    level, gap = step.level, step.level.gap
    case = step.record.case
    count = step.record.num_devices
    model = _model_name(str(case.get("model")))
    sentence = f"Trains {model} in {dtype_of(case)} at {_rate(level)}"
    sentence += f", on each of {counted(count, 'device')}" if count > 1 else ""
    if matmul is not None and matmul.level.value and level.value:
        bound = share_bound(level.bound, matmul.level.bound)
        share = with_bound_words(format_share(level.value / matmul.level.value), bound)
        sentence += f", {share} of its best {_matmul_words(matmul, step)}, {_rate(matmul.level)}"
    elif gap is not None:
        bound = share_bound(level.bound, level.ceiling_bound)
        of_ceiling, above = 1.0 + gap.share, ceiling_text(level.ceiling)
        if of_ceiling <= _ABOVE:
            sentence += f", {with_bound_words(format_share(of_ceiling), bound)} of {above}"
        else:  # a claim that is exceeded by so much is none of this device
            sentence += f", more than {above}"
    is_of_ceiling = matmul is None or level.ceiling == matmul.level.name
    unexplained = sum(s.amount for s in gap.shares if s.name == NOT_EXPLAINED) if gap else 0.0
    if unexplained > 0.0 and is_of_ceiling:
        sentence += f"; {format_quantity(unexplained, level.unit)} unexplained"
    if level.doubted and matmul is None:
        above = f"{ceiling_text(level.doubted)} ({level.doubted_value})"
        sentence += f"; {above} was not measured well enough to judge that"
    return f"{sentence}."


def _matmul_words(matmul: _Level, step: _Level) -> str:
    """Return ``matmul``, with its data type where that is not the step's."""
    dtype = dtype_of(matmul.record.case)
    return "matmul" if dtype == dtype_of(step.record.case) else f"{dtype} matmul"


def _matmul_above(step: _Level, levels: Iterable[_Level]) -> _Level | None:
    """Return the best matmul of a step's waterfall; None where a step exceeds it."""
    same = [level for level in levels if level.waterfall is step.waterfall]
    matmul = _best(level for level in same if level.level.is_product)
    reached = max(level.level.value or 0.0 for level in (*same, step))
    is_exceeded = matmul is not None and reached > (matmul.level.value or 0.0)
    return None if is_exceeded else matmul


def _rate(level: Level) -> str:
    """Return the rate of a level: ``127 GFLOPS``, with ``or more`` where it was noisy."""
    rate = format_quantity(level.value or 0.0, level.unit)
    return f"{rate}{' or more' if level.bound == AT_LEAST else ''}"


# ---- key numbers


def key_numbers(view: RunView, waterfalls: Sequence[Waterfall]) -> tuple[KeyNumber, ...]:
    """Return the numbers for training, matmul, memory and disk; what was not measured has none."""
    if is_burn(view):
        return tuple(_burn_numbers(view))
    levels = _levels(view, waterfalls)
    lead = headline_waterfall(waterfalls)
    step = _best_of_role(levels, waterfalls, Role.STEP)
    matmul = _best_of_role(levels, waterfalls, Role.PRODUCT)
    training = _training_number(view, step, matmul)
    if training is None and step is not None:
        training = _step_number(view, step)
    is_gpu = lead.is_gpu if lead is not None else any(level.waterfall.is_gpu for level in levels)
    streams = [level for level in levels if level.waterfall.quantity == MEMORY.name]
    memory = _best([level for level in streams if level.waterfall.is_gpu == is_gpu] or streams)
    disks = [level for level in levels if role_of(level.record.benchmark) is Role.DISK]
    first = next((level.waterfall.quantity for level in disks), None)  # read, then written
    disk = _best(level for level in disks if level.waterfall.quantity == first)
    own_sources = (
        {owner_of(record.source) for record in view.records} if is_published(view) else set()
    )
    numbers = [training]
    if matmul is not None:
        case = matmul.record.case
        description = ", ".join(filter(None, (str(dtype_of(case)), _share_of_claim_text(matmul))))
        numbers.append(_number("Best matmul", matmul, description, own_sources))
    if memory is not None:
        numbers.append(
            _number(
                "Memory bandwidth",
                memory,
                _share_of_claim_text(memory) or _case(memory),
                own_sources,
            )
        )
    if disk is not None:
        numbers.append(_number(f"Disk, {disk.level.name.lower()}", disk, _case(disk), own_sources))
    else:
        numbers += _link_number(view)
    if not _measures_more(view):
        numbers += _training_result_numbers(view)
    return tuple(number for number in numbers if number is not None)


def _case(measured: _Level) -> str:
    """Return the case in words."""
    return measured.level.provenance.partition(";")[0]


def _burn_numbers(view: RunView) -> Iterator[KeyNumber]:
    """Return how much was compared, the best rates and the hottest device of a burn."""
    devices = burn_devices(view)
    points = [point for device in devices for point in device.points if point.measured]
    if not points:
        return
    errors = sum(device.errors for device in devices)
    description = f"{errors:,} wrong" if errors else "none wrong"
    compared = sum(point.number("checked") for point in points)
    if compared or errors:
        yield KeyNumber(name="Results compared", value=compared, unit="", what=description)
    for name, unit in (("Best rate", "FLOP/s"), ("Memory", "B/s")):
        rated = {id(p.measured): p for p in points if p.record.unit == unit}
        if (best := best_record(point.measured for point in rated.values())) is not None:
            part = rated[id(best)]
            description = "" if part.name == name.lower() else part.name
            is_least = bool(bound_of(best))
            yield KeyNumber(
                name=name, value=part.rate or 0.0, unit=unit, what=description, is_least=is_least
            )
    if hot := [device for device in devices if device.temperature_c]:
        hottest = max(hot, key=lambda device: device.temperature_c.high)  # type: ignore[union-attr]
        high = hottest.temperature_c.high if hottest.temperature_c else 0.0
        yield KeyNumber(name="Hottest", value=high, unit="°C", what=hottest.label)


def _link_number(view: RunView) -> Iterator[KeyNumber]:
    """Yield the number of the fastest path between GPUs; nothing where none was measured."""
    best = best_row(
        row
        for row in rows(view)
        if (row.metric, row.case.get("direction")) == ("byte_rate", "p2p")
        and row.case.get("ways", 1) == 1  # of one way: both at once are two links' worth
    )
    if best is not None and best.measured is not None and is_valid(best.measured):
        paths = {True: "with peer access", False: "through host memory"}
        access = best.case.get("peer_access")
        yield KeyNumber(
            name="GPU to GPU",
            value=best.value,
            unit=best.unit,
            is_least=bool(bound_of(best.measured)),
            what=paths[access] if isinstance(access, bool) else "",
        )


def _training_result_numbers(view: RunView) -> Iterator[KeyNumber]:
    """Yield loss and memory of the only training of a run."""
    trained = readable_results(view)
    if len(trained) != 1:
        return
    (result,) = trained
    if result.loss.losses:
        first = f"from {result.loss.losses[0]:.4g} in {len(result.loss.losses)} steps"
        yield KeyNumber(name="Loss", value=result.loss.losses[-1], unit="", what=first)
    if result.memory.peak_bytes:
        yield KeyNumber(
            name="Peak memory", value=result.memory.peak_bytes, unit="B", what="of a device"
        )


def _share_of_claim_text(measured: _Level) -> str:
    """Return a level as a share of its claim: ``102 % of its claim``; empty without one."""
    claim, level = measured.waterfall.levels[0], measured.level
    is_certain = claim.value and (level.gap is None or level.gap.is_certain)
    share = (level.value or 0.0) / claim.value if claim.value and is_certain else 0.0
    if not 0.0 < share <= _ABOVE:
        return ""
    return (
        f"{with_bound_sign(format_share(share), level.bound)} of its {claim_word(measured.record)}"
    )


def _number(
    name: str, measured: _Level, description: str, own_sources: Collection[str] = ()
) -> KeyNumber:
    """Make a key number; figures of ``own_sources`` are the run's, not others'."""
    return KeyNumber(
        name=name,
        value=measured.level.value or 0.0,
        unit=measured.level.unit,
        is_least=measured.level.bound == AT_LEAST,
        what=description
        if measured.level.bound != ABOUT
        else f"{description}, noisy: may be less or more",
        others=_others(measured, own_sources),
    )


def _step_number(view: RunView, step: _Level) -> KeyNumber:
    """Return the number of a step whose run was no training of ours."""
    record, claim = step.record, step.waterfall.levels[0].value
    words = [str(record.case.get("model")), str(dtype_of(record.case))]
    if claim and (step.level.value or 0.0) <= _ABOVE * claim:
        mfu = f"MFU {format_share((step.level.value or 0.0) / claim)}"
        words.append(f"{mfu} of a reference" if is_reference(record) else mfu)
    key_number = _number("Training", step, ", ".join(words))
    rates = [
        rate.value
        for rate in view.records
        if rate.metric == "token_rate"
        and (rate.case, rate.device_count) == (record.case, record.device_count)
    ]
    if rates and rates[0]:
        return replace(key_number, value=rates[0], unit="token/s", others=None)
    return key_number


def _training_number(view: RunView, step: _Level | None, matmul: _Level | None) -> KeyNumber | None:
    """Return the number of the training that the sentence is about: the step's, else the best."""
    trained = [result for result in readable_results(view) if result.throughput.tokens_per_s]
    if not trained:
        return None
    of_step = {r.id for r in view.records if step and r.case == step.record.case}
    best = _best_training([result for result in trained if result.record in of_step] or trained)
    precision = str(best.settings.get("precision", ""))
    words = [_model_name(best.model), precision]
    of_matmul, reached = (
        best.throughput.mfu_of_measured_matmul,
        best.throughput.model_flops_per_s_per_device,
    )
    if matmul is not None and dtype_of(matmul.record.case) == precision and reached:
        of_matmul = reached / (matmul.level.value or reached)
    # A claim that the matmul itself exceeds is no peak to be held against.
    if best.throughput.mfu is not None and (
        of_matmul is None or of_matmul >= best.throughput.mfu / _ABOVE
    ):
        mfu = f"MFU {format_share(best.throughput.mfu)}"
        words.append(f"{mfu} of a reference" if best.is_on_cpu else mfu)
    elif of_matmul is not None and of_matmul <= 1.0:
        bound = share_bound(
            AT_LEAST if best.timing.disturbed else "", matmul.level.bound if matmul else ""
        )
        words.append(f"{with_bound_sign(format_share(of_matmul), bound)} of its matmul")
    return KeyNumber(
        name="Training",
        value=best.throughput.tokens_per_s or 0.0,
        unit="token/s",
        is_least=best.timing.disturbed is not None,
        what=", ".join(filter(None, words)),
        others=_published_trainings(view, best),
    )


def _published_trainings(view: RunView, result: TrainingResult) -> PublishedRange | None:
    """Return published trainings of the same experiment on devices of the same name."""
    names = {device.name for device in result.layout.devices}
    rates = [
        figure.tokens_per_s_per_device * max(1, len(result.layout.devices))
        for figure in published_figures(view)
        if figure.experiment == result.name and figure.device in names
    ]
    return PublishedRange(low=min(rates), high=max(rates), num=len(rates)) if rates else None


def _others(measured: _Level, own_sources: Collection[str]) -> PublishedRange | None:
    return range_for_level(measured.record, measured.level.name, own_sources)


# ---- what to do


def actions(
    view: RunView, waterfalls: Sequence[Waterfall], findings: Sequence[Finding]
) -> tuple[Action, ...]:
    """Return the actions, most urgent first: faults, what costs a step most, other gaps."""
    step = _best_of_role(_levels(view, waterfalls), waterfalls, Role.STEP)
    gains = list(_saving_actions(step)) if step is not None else []
    # A cause and what to do about it come before a search for one.
    gains.sort(key=lambda action: (action.what.endswith(_WITHOUT_CAUSE), -(action.gain or 0.0)))
    gains = gains or sorted(
        _saving_actions_of_parts(view), key=lambda action: -(action.gain or 0.0)
    )
    candidates = [
        *_actions_of_findings(findings, "error"),
        *gains,
        *_actions_of_findings(findings, "warning"),
    ]
    worst = largest_gap(waterfalls)
    if not gains and worst is not None and worst.gap.next and not _is_as_expected(worst):
        description = f"{worst.waterfall.title}: {worst.gap.cause}"
        candidates.append(_with_command(Action(what=description, next=worst.gap.next)))
    return tuple(candidates[:ACTIONS])


def _is_as_expected(largest: LargestGap) -> bool:
    """Return whether a level reaches its expected rate, and nothing is known that slows it."""
    level = largest.level
    return level.expected is not None and not level.is_below and not largest.gap.known


def _actions_of_findings(findings: Sequence[Finding], severity: str) -> Iterator[Action]:
    """Return the actions of findings: one that settles several findings is listed once."""
    fixable = [finding for finding in findings if finding.severity == severity and finding.fix]
    for fix, same in grouped(fixable, lambda finding: finding.fix).items():
        more = f" (and {len(same) - 1} more)" if len(same) > 1 else ""
        yield _with_command(Action(what=f"{same[0].evidence}{more}", next=fix))


def _with_command(action: Action) -> Action:
    """Return the action with the command that ends its sentence moved to a field of its own."""
    how, command = command_apart(action.next)
    return replace(action, next=how, command=command)


def command_apart(advice: str) -> tuple[str, str]:
    """Return advice without the command that it ends with, and the command; empty without one."""
    how, mark, command = advice.partition("trainrig ")
    if not mark or ";" in command or ", " in command:
        return advice, ""
    return how.rstrip(" :,;"), f"{mark}{command}"


_WITHOUT_CAUSE = "have no measured cause"


def _saving_actions(step: _Level) -> Iterator[Action]:
    """Yield an action against each cause of a step's lost time, with the time it costs."""
    gap = step.level.gap
    case = step.record.case
    for share in gap.shares if gap is not None else ():
        time = share.seconds * _ceiling(step) / (share.amount or 1.0)
        description, how, options = share.name.partition(", by ")[0], share.next, share.options
        if share.name == NOT_EXPLAINED:
            amount = format_quantity(share.amount, step.level.unit)
            description = f"{amount} of the step {_WITHOUT_CAUSE}"
            how, options = "train it alone: its report splits each step's time into parts", " "
        yield from _saving_action(description, share.seconds, time, how, _command(case, options))


def _saving_actions_of_parts(view: RunView) -> Iterator[Action]:
    """Return the time that the parts of the best training's own step cost."""
    trained = [
        result
        for result in readable_results(view)
        if result.timing.step_time_s and result.throughput.samples_per_s
    ]
    if not trained:
        return
    best = _best_training(trained)
    case = {
        **best.settings,
        "batch_size": best.layout.batch_size or best.settings.get("batch_size"),
    }
    for part, (name, how, options) in PARTS.items():
        seconds = best.timing.breakdown.get(part) or 0.0
        yield from _saving_action(
            name, seconds, best.timing.step_time_s or 0.0, how, _command(case, options)
        )


def _saving_action(
    description: str, seconds: float, time: float, how: str, command: str
) -> Iterator[Action]:
    """Yield the action against a cause; nothing where the step without it is hardly faster."""
    gain = seconds / (time - seconds) if 0.0 < seconds < time else 0.0
    if how and gain >= _LEAST_GAIN:
        yield Action(what=description, gain=gain, next=how, command=command)


def _ceiling(step: _Level) -> float:
    gap = step.level.gap
    return (step.level.value or 0.0) - (gap.amount if gap else 0.0)


def _command(case: Case, changed: str) -> str:
    """Return the command of the same training with one option changed; empty where none helps."""
    options = options_of(case, changed) if changed else None
    return "" if options is None else f"trainrig train {options}".rstrip()


# ---- levels by what they stand for


def _levels(view: RunView, waterfalls: Iterable[Waterfall]) -> list[_Level]:
    """Return every level with a value, of waterfalls in their order: the headline's first."""
    by_id = {record.id: record for record in view.records}
    return [
        _Level(waterfall=waterfall, level=level, record=by_id[level.record])
        for waterfall in waterfalls
        for level in waterfall.levels[1:]
        if level.value is not None and level.record in by_id
    ]


def _best_of_role(
    levels: Iterable[_Level], waterfalls: Sequence[Waterfall], role: Role
) -> _Level | None:
    """Return the best level of one kind: of the headline's waterfall, else of any."""
    mine = [level for level in levels if role_of(level.record.benchmark) is role]
    lead = headline_waterfall(waterfalls)
    of_lead = [level for level in mine if level.waterfall is lead]
    return _best(of_lead or [level for level in mine if level.waterfall.relevance < 3] or mine)


def _best(levels: Iterable[_Level]) -> _Level | None:
    """Return the level with the best record."""
    return max(
        (level for level in levels if is_valid(level.record)),
        key=lambda level: (sure_value(level.record), level.record.disturbed is None),
        default=None,
    )
