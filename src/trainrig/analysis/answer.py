"""Is this machine normal?  One word for a run, and what it was compared with.

    normal       what had to be judged reached what it was compared with
    slow         a rate is clearly below what is expected, or behind the machine's other devices
    faulty       a wrong answer, an error, a missing part
    cannot tell  not everything was measured, or there is nothing to compare it with

RULES decides, the first that fits.  The word follows the verdict where that is PASS, FAIL or
INCOMPLETE.  MEASURED means that no target was known; then the run is compared with what there is:
one or two earlier runs of the machine, its devices with each other, a processor's computed peak and
its memory channels.  These references are weaker than a target: what agrees with them is normal,
what does not is no proof of a slow machine.  Noise only slows, so a noisy value that reaches a
reference agrees with it, and one that does not says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from trainrig.analysis.imported_facts import comparisons, unstated_values
from trainrig.analysis.judge import NOT_DONE
from trainrig.analysis.judge_imported import is_imported
from trainrig.analysis.rows import Row, is_cold_stream, is_published, rows, siblings_of
from trainrig.benchmarks.spec import MARGIN, MEMORY_CLAIM, Ability, Role, ability, find
from trainrig.benchmarks.training import BENCHMARK as TRAINING
from trainrig.catalog.lookup import find_chip
from trainrig.prediction.expected import (
    EARLIER_RUNS,
    EARLIER_VALUE,
    NOISY_EARLIER_RUNS,
    ceiling,
    expect,
    of_device,
)
from trainrig.record import (
    Finding,
    Kind,
    Outcome,
    Record,
    RunView,
    Status,
    case_label,
    dtype_of,
    less_is_better,
)
from trainrig.units import counted, format_quantity, format_share, range_text


class Word(StrEnum):
    """The answer in a word."""

    NORMAL = "normal"
    SLOW = "slow"
    FAULTY = "faulty"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Something that a run is compared with, and how it compares."""

    name: str
    """Description for a reader: ``2 earlier runs of this machine``."""
    evidence: str
    """The comparison that decides, with its numbers."""
    agrees: bool
    """True where the run reaches the reference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAnswer:
    """The word, why, and what the run was compared with."""

    word: Word
    reason: str
    """One clause, without the word."""
    compared_with: tuple[str, ...] = ()
    """References in words, the strongest first; empty where there is none."""

    @property
    def comparison(self) -> str:
        """Return ``compared with the data sheet of RTX 4090``; empty without a reference."""
        if not self.compared_with:
            return ""
        *first, last = self.compared_with
        return f"compared with {', '.join(first)} and {last}" if first else f"compared with {last}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """Facts of a run that the rules look at."""

    outcome: Outcome | None
    """None: not judged."""
    is_published: bool
    errors: tuple[Finding, ...]
    """Findings that decide the verdict, without the steps that were not done."""
    targets: tuple[str, ...]
    """References that the targets rest on that were reached, or missed."""
    references: tuple[Reference, ...]
    """Weaker ones."""
    has_noisy_history: bool
    """True where earlier runs of the machine exist and every value they have of a point is noisy.
    """
    unstated: str = "these values"
    """Words for the values that nothing is known of."""

    @property
    def faults(self) -> tuple[Finding, ...]:
        """Errors that are no rate."""
        return tuple(finding for finding in self.errors if finding.id not in (*_RATES, *_UNTRUE))

    @property
    def slow(self) -> tuple[Finding, ...]:
        """Errors that say that something is slow."""
        return tuple(finding for finding in self.errors if finding.id in _RATES)

    @property
    def disagreeing(self) -> tuple[Reference, ...]:
        """References that the run does not reach."""
        return tuple(reference for reference in self.references if not reference.agrees)

    @property
    def compared(self) -> tuple[str, ...]:
        """Everything that the run was held against."""
        return tuple(
            dict.fromkeys((*self.targets, *(reference.name for reference in self.references)))
        )


_RATES = (
    "below-band",
    "odd-device",
    "behind-siblings",
    "slow-link",
    "throttled",
    "training-slower-than-published",
)
"""Errors that say that something is slow; any other says that something is wrong."""
_UNTRUE = ("implausible",)
"""Errors that say that a number cannot be true, so that nothing follows from it."""
_FAULTS = {
    "wrong-answer": "a result is wrong",
    "digests-differ": "a result is wrong",
    "not-comparable": "a training computes something else than it should",
    "layout-not-as-asked": "a training ran in another layout than was asked for",
    "training-failed": "a training failed",
    "device-failed": "a device failed",
    "rank-lost": "a process was lost",
}
_ANY_FAULT = "a fault was found"


@dataclass(frozen=True, slots=True)
class AnswerRule:
    """One row of the table: when it fits, the word, and the reason."""

    fits: Callable[[_Judged], bool]
    word: Word
    reason: Callable[[_Judged], str]
    is_compared: bool = True
    """False where a comparison with the reference does not decide the word."""


RULES = (
    AnswerRule(
        lambda run: run.is_published and not run.references,
        Word.CANNOT_TELL,
        lambda _: "others published these figures, and nothing was measured here",
        is_compared=False,
    ),
    AnswerRule(
        lambda run: run.outcome is None and not run.is_published,
        Word.CANNOT_TELL,
        lambda _: "the run was cut off before it was judged",
        is_compared=False,
    ),
    AnswerRule(
        lambda run: run.outcome is Outcome.FAIL and bool(run.faults),
        Word.FAULTY,
        lambda run: _FAULTS.get(run.faults[0].id, _ANY_FAULT),
        is_compared=False,
    ),
    AnswerRule(
        lambda run: run.outcome is Outcome.FAIL and bool(run.slow),
        Word.SLOW,
        lambda run: f"{counted(len(run.slow), 'rate')} below what is expected",
    ),
    AnswerRule(
        lambda run: run.outcome is Outcome.FAIL and not run.errors,
        Word.CANNOT_TELL,
        lambda _: "the verdict is FAIL, and no finding says why",
        is_compared=False,
    ),
    AnswerRule(
        lambda run: run.outcome is Outcome.FAIL,
        Word.CANNOT_TELL,
        lambda _: "a number is higher than the chip can reach, so it was not measured right",
        is_compared=False,
    ),
    AnswerRule(
        lambda run: run.outcome is Outcome.INCOMPLETE,
        Word.CANNOT_TELL,
        lambda _: "what is required was not all measured and decided",
        is_compared=False,
    ),
    AnswerRule(
        lambda run: run.outcome is Outcome.PASS,
        Word.NORMAL,
        lambda run: (
            "every required number is as expected"
            if run.targets
            else next((each.evidence for each in run.references), "no fault found")
        ),
    ),
    AnswerRule(
        lambda run: bool(run.disagreeing),
        Word.CANNOT_TELL,
        lambda run: run.disagreeing[0].evidence,
    ),
    AnswerRule(
        lambda run: bool(run.targets or run.references),
        Word.NORMAL,
        lambda run: next(
            (each.evidence for each in run.references), "what has a target reached it"
        ),
    ),
    AnswerRule(
        lambda _: True,
        Word.CANNOT_TELL,
        lambda run: (
            "no data sheet or published figure states these values, and the earlier runs of this "
            "machine were too noisy to compare with"
            if run.has_noisy_history
            else f"no data sheet, published figure or earlier run states {run.unstated}"
        ),
    ),
)
"""The first that fits decides."""


def answer_of(view: RunView) -> RunAnswer:
    """Return the answer for a run, by the first rule that fits."""
    run = _judged(view)
    rule = next(rule for rule in RULES if rule.fits(run))
    compared = _with_runs_once(run.compared) if rule.is_compared else ()
    return RunAnswer(word=rule.word, reason=rule.reason(run), compared_with=compared)


_EARLIER = re.compile(r"(\d+) earlier runs? of this machine")


def _with_runs_once(names: Sequence[str]) -> tuple[str, ...]:
    """Return the references with earlier runs once: points are compared with different numbers."""
    counts = {name: int(match[1]) for name in names if (match := _EARLIER.fullmatch(name))}
    most = max(counts, key=counts.__getitem__, default=None)
    return tuple(name for name in names if name not in counts or name == most)


def _judged(view: RunView) -> _Judged:
    verdict, everything = view.verdict, rows(view)
    findings = verdict.findings if verdict is not None else ()
    errors = tuple(
        finding
        for finding in findings
        if finding.severity == "error" and finding.id not in NOT_DONE
    )
    return _Judged(
        outcome=verdict.outcome if verdict is not None else None,
        is_published=is_published(view),
        errors=errors,
        targets=tuple(_target_references(everything, errors)),
        references=tuple(_references(view, everything, errors)),
        has_noisy_history=any(
            row.predicted is not None and NOISY_EARLIER_RUNS in row.predicted.conditions
            for row in everything
        ),
        unstated=unstated_values(view) if is_imported(view.config) else "these values",
    )


# ---- targets, which the verdict rests on

_SOURCES = (
    (r"(--min .+)", r"your \1"),
    (r"the baseline (.+), n = \d+", r"the baseline \1"),
    (r"predicted for (.+)", r"the data sheet of \1"),
    (r"published for (.+), n = (\d+)(, at .+)?", r"figures that others published of \1"),
    (r"[\d.]+ and more of .+", "what its PCIe link claims"),
    (r"(\d+ earlier runs) on this machine.*", r"\1 of this machine"),
)
"""Names of references by the source of a target (`predict.expected` writes it), in the order in
which references are named."""


def _target_references(everything: Sequence[Row], errors: Sequence[Finding]) -> Iterator[str]:
    """Yield the references of the targets reached; of a run that failed, of those missed."""
    missed = {name for finding in errors if finding.id == "below-band" for name in finding.records}
    sources = {
        str(row.predicted.source)
        for row in everything
        if row.band is not None and row.predicted is not None and row.measured is not None
        if (row.measured.id in missed if errors else _reaches(row))
    }
    yield from (name for _, name in sorted(set(map(_reference, sources))))


def _reaches(row: Row) -> bool:
    assert row.measured is not None and row.band is not None
    return row.measured.value is not None and ability(row.measured, row.band) is Ability.ABLE


def _reference(source: str) -> tuple[int, str]:
    """Return a target's source as a reference in words, with its place among others."""
    for place, (pattern, words) in enumerate(_SOURCES):
        if (match := re.fullmatch(pattern, source)) is not None:
            return place, match.expand(words)
    return len(_SOURCES), source


# ---- weaker references, which decide where there is no target

LEAST_OF_COMPUTED_PEAK = 0.7
"""A processor's large fp32 product reaches this share of the low end of its computed peak: BLAS
libraries reach 0.8 to 0.95 of their vector units' rate, at a clock that falls under load."""
LEAST_OF_CHANNELS = 0.5
"""Streams reach this share of what the memory channels transfer: about 0.8 in STREAM, of which a
copy without non-temporal stores counts two bytes in three."""
_PEAK_DTYPE = "fp32"
"""Data type that a processor is judged in: every vector unit computes it, while matrix units
(AMX) are fed too slowly for their peak to be a reference."""


def _references(
    view: RunView, everything: Sequence[Row], errors: Sequence[Finding]
) -> Iterator[Reference]:
    yield from _imported(view)
    yield from _earlier_runs(everything)
    yield from _siblings(everything, errors)
    yield from _prediction(view, everything)
    yield from _computed_peak(view, everything)
    yield from _channels(view, everything)
    yield from _data_sheet(view, everything)


def _imported(view: RunView) -> Iterator[Reference]:
    """Yield published figures and health tests, for numbers that other tools printed."""
    for comparison in comparisons(view) if is_imported(view.config) else ():
        yield Reference(
            name=comparison.name, evidence=comparison.evidence, agrees=comparison.agrees
        )


def _earlier_runs(everything: Iterable[Row]) -> Iterator[Reference]:
    """Yield one or two earlier runs of this machine, which are too few for a target."""
    compared: list[tuple[float, int, Row]] = []
    for row in everything:
        planned = row.predicted.conditions if row.predicted is not None else {}
        value, runs = planned.get(EARLIER_VALUE), planned.get(EARLIER_RUNS)
        if isinstance(value, float) and isinstance(runs, int) and value > 0.0 and row.value > 0.0:
            ratio = value / row.value if less_is_better(row.unit) else row.value / value
            compared.append((ratio, runs, row))
    if not compared:
        return
    required = [candidate for candidate in compared if _is_required(candidate[2])] or compared
    name = f"{counted(max(runs for _, runs, _ in compared), 'earlier run')} of this machine"
    below = [(ratio, row) for ratio, _, row in required if ratio < 1.0 - _margin(row)]
    undisturbed = [(ratio, row) for ratio, row in below if row.is_usable]
    if undisturbed:
        ratio, row = min(undisturbed, key=lambda candidate: candidate[0])
        evidence = f"{_case_words(row)} is {format_share(1.0 - ratio)} slower than before"
        yield Reference(name=name, evidence=evidence, agrees=False)
    elif len(below) < len(required):
        like = f"{len(required) - len(below)} of {counted(len(required), 'required number')}"
        yield Reference(name=name, evidence=f"{like} as before", agrees=True)


def _siblings(everything: Iterable[Row], errors: Sequence[Finding]) -> Iterator[Reference]:
    """Compare devices of a model with each other; the judge says whether one is behind."""
    groups = siblings_of(row for row in everything if row.is_usable).values()
    if others := max((len(members) - 1 for members in groups), default=0):
        is_even = not {finding.id for finding in errors} & {"odd-device", "behind-siblings"}
        name = f"{counted(others, 'GPU')} of its model beside it"
        yield Reference(name=name, evidence="its GPUs are alike", agrees=is_even)


def _margin(row: Row) -> float:
    spec = find(row.benchmark)
    return spec.history_margin if spec is not None else MARGIN


def _is_required(row: Row) -> bool:
    return row.predicted is not None and bool(row.predicted.conditions.get("required"))


def _prediction(view: RunView, everything: Iterable[Row]) -> Iterator[Reference]:
    """Compare a training with its prediction; a run of `train` has no target otherwise."""
    if view.config.get("verb") != "train":
        return
    for row in everything:
        predicted = row.predicted
        if row.benchmark != TRAINING.name or row.metric != "time" or predicted is None:
            continue
        if predicted.interval is None or predicted.status is not Status.OK or row.value <= 0.0:
            continue
        low, high = (format_quantity(end, "s") for end in predicted.interval)
        is_within = row.value <= predicted.interval[1]
        if is_within or row.is_usable:
            evidence = f"a step took {format_quantity(row.value, 's')}, predicted {low} to {high}"
            yield Reference(name="its prediction", evidence=evidence, agrees=is_within)


def _computed_peak(view: RunView, everything: Iterable[Row]) -> Iterator[Reference]:
    """Yield a processor's peak by cores, clock and vector units."""
    products = [
        row
        for row in everything
        if row.index is None and row.role is Role.PRODUCT and row.value > 0.0
        if dtype_of(row.case) == _PEAK_DTYPE and row.measured is not None
    ]
    if not products:
        return
    best = max(products, key=lambda row: row.value)
    claim = _host_claim(view, best.device, "flop_rate", _PEAK_DTYPE)
    if claim is None or claim.value is None:
        return
    low, high = claim.interval or (claim.value, claim.value)
    peak = range_text(low, high, best.unit)
    reached = f"{_PEAK_DTYPE} matmul reaches {_rate_text(best)}"
    evidence = f"{reached}; its computed peak at the reported clock is {peak}"
    name = "the processor's computed peak"
    yield from _against(best, LEAST_OF_COMPUTED_PEAK * low, LEAST_OF_COMPUTED_PEAK, name, evidence)


def _channels(view: RunView, everything: Iterable[Row]) -> Iterator[Reference]:
    """Compare a host's best stream with what its memory channels transfer."""
    streams = [row for row in everything if row.index is None and is_cold_stream(row) and row.value]
    if not streams:
        return
    best = max(streams, key=lambda row: row.value)
    claim = _host_claim(view, best.device, "byte_rate", None)
    if claim is not None and claim.value:
        name = "what its memory channels transfer"
        rate = format_quantity(claim.value, best.unit)
        evidence = f"a vector reaches {_rate_text(best)}; the memory channels transfer {rate}"
        least = LEAST_OF_CHANNELS * claim.value
        yield from _against(best, least, LEAST_OF_CHANNELS, name, evidence)


def _data_sheet(view: RunView, everything: Iterable[Row]) -> Iterator[Reference]:
    """Yield published matmuls of a card against what its data sheet leads one to expect.

    A run that was measured has these expectations in its records, as targets.
    """
    if not is_published(view):
        return
    claims = [record for record in view.records if record.kind is Kind.CLAIMED]
    references: list[Reference] = []
    for row in sorted(everything, key=lambda row: -row.value):
        chip = find_chip(row.device) if row.device else None
        is_whole = row.role is Role.PRODUCT and {"m", "k", "n"} <= row.case.keys()
        if chip is None or row.measured is None or not is_whole or row.count > 1:
            continue
        limit = ceiling(of_device(claims, row.device, row.index), row.benchmark, row.case)
        expected = expect(row.measured, limit, (), (), chip)
        if expected.interval is not None and row.value > 0.0:
            low, high = expected.interval
            reached = format_quantity(row.value, row.unit)
            evidence = f"{dtype_of(row.case)} matmul reaches {reached}"
            evidence += f"; its expected rate is {range_text(low, high, row.unit)}"
            _, name = _reference(str(expected.source))
            references.append(Reference(name=name, evidence=evidence, agrees=row.value >= low))
    below = (reference for reference in references if not reference.agrees)
    yield from [next(below, references[0])] if references else []


def _against(
    best: Row, least: float, share: float, name: str, evidence: str
) -> Iterator[Reference]:
    """Yield the best of a kind against the least that is computed; noise below it says nothing.

    ``least`` is ``share`` of the computed rate.
    """
    if best.value >= least:
        yield Reference(name=name, evidence=evidence, agrees=True)
    elif best.is_usable:
        evidence += f", of which {format_share(share)} or more is usual"
        yield Reference(name=name, evidence=evidence, agrees=False)


def _rate_text(row: Row) -> str:
    """Return text such as ``350 GFLOPS``: the rate that a row reached."""
    return format_quantity(row.value, row.unit)


def _host_claim(view: RunView, device: str | None, metric: str, dtype: str | None) -> Record | None:
    return next(
        (
            record
            for record in view.records
            if record.kind is Kind.CLAIMED
            and (record.device, record.device_index, record.metric) == (device, None, metric)
            and (dtype_of(record.case) == dtype if dtype else record.benchmark == MEMORY_CLAIM)
        ),
        None,
    )


def _case_words(row: Row) -> str:
    return f"{row.benchmark} {case_label(row.case)}"
