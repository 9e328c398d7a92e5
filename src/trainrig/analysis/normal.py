"""What is normal on a card: published figures by card and case, with how far apart they lie.

A case on a card is one entry, of all sources that printed it.  Where several printed it, each
source counts once, with the best that it reached, so that ten figures of one person are one
opinion; the spread is from the lowest to the highest of those.  Figures that nobody measured
(a simulator's efficiency factors) are left out.  Two cards are compared case by case where both
have the very same case.

It does not say whether a machine is sound: `predict.expected` makes bands of these figures, and the
judge uses them.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from trainrig.analysis.best import best_record, best_value, is_valid
from trainrig.analysis.rows import Row, is_published, join, rows, rules_of
from trainrig.benchmarks.matmul import square_size
from trainrig.benchmarks.spec import Role, case_text, role_of
from trainrig.catalog.chip import Chip
from trainrig.catalog.lookup import candidates, did_you_mean, find_chip, normalise
from trainrig.catalog.published import (
    PublishedKind,
    is_measurement,
    product_text,
    published_kind,
    published_records,
    published_source,
    published_trainings,
)
from trainrig.errors import UsageError, unknown
from trainrig.record import Kind, Record, RunView, dtype_of
from trainrig.stats import grouped, median
from trainrig.units import counted, format_memory, plain_name

KINDS = tuple(PublishedKind)
_HALF = ("fp16", "bf16")
_NO_CARD = "not stated"
"""Start of the hardware column of a row that names no card."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRange:
    """Published results of one card: each source's best."""

    low: float
    high: float
    num: int
    """Sources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedCase:
    """One case on one card, and what everybody printed of it."""

    device: str
    """The catalog's name where one chip is meant, else as printed."""
    kind: PublishedKind
    what: str
    """The case in words."""
    dtype: str
    unit: str
    count: int
    """Devices that worked together."""
    case: Mapping[str, Any]
    figures: tuple[Record, ...]
    best: tuple[float, ...]
    """The best of each source, rising."""

    @property
    def value(self) -> float:
        """Return the median over sources."""
        return median(self.best)

    @property
    def num(self) -> int:
        """Sources."""
        return len(self.best)

    @property
    def sources(self) -> tuple[str, ...]:
        """Sources of the figures, each once."""
        return tuple(dict.fromkeys(str(figure.source) for figure in self.figures))

    @property
    def software(self) -> tuple[str, ...]:
        """Frameworks and versions, as printed."""
        names = (
            figure.conditions.get("framework", figure.conditions.get("software"))
            for figure in self.figures
        )
        return tuple(dict.fromkeys(str(name) for name in names if name))

    @property
    def dates(self) -> str:
        """Return ``2022-08-18``, ``2022 to 2024``; empty where no source states one."""
        known = sorted(filter(None, (published_source(name).date for name in self.sources)))
        if not known or known[0] == known[-1]:
            return known[0] if known else ""
        first, last = known[0][:4], known[-1][:4]
        return first if first == last else f"{first} to {last}"

    @property
    def model(self) -> str:
        """Return the model or the layer; empty for what has none."""
        return str(self.case.get("model", self.case.get("layer", "")))


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedSelection:
    """Filter of published figures; empty fields select everything."""

    devices: tuple[str, ...] = ()
    kind: str = ""
    model: str = ""
    precision: str = ""

    def fits(self, case: PublishedCase) -> bool:
        """Return whether a case passes the filter."""
        return (
            (not self.devices or case.device in self.devices)
            and self.kind in ("", case.kind)
            and self.precision in ("", case.dtype)
            and normalise(self.model) in normalise(case.model)
            and not (self.model and not case.model)
        )

    def words(self) -> str:
        """Return the filter in words: ``RTX 4090, kind layer``; empty where it selects all."""
        named = (("kind", self.kind), ("model", self.model), ("precision", self.precision))
        return ", ".join((*self.devices, *(f"{name} {value}" for name, value in named if value)))


# ---- the cases


def published_cases(wanted: PublishedSelection | None = None) -> tuple[PublishedCase, ...]:
    """Return published results, card by card, kind by kind, in the order of the tables.

    Raises DataError where a table is damaged.
    """
    wanted = wanted or PublishedSelection()
    return tuple(case for case in _all_cases() if wanted.fits(case))


@cache
def _all_cases() -> tuple[PublishedCase, ...]:
    records = (*published_records(), *published_trainings())
    known = [
        record
        for record in records
        if record.value and is_measurement(record)
        if not str(record.device).startswith(_NO_CARD)
    ]
    groups = grouped(known, lambda record: record.key)
    cases = [_case_of(members) for members in groups.values()]
    order = {name: place for place, name in enumerate(KINDS)}
    return tuple(sorted(cases, key=lambda case: (case.device.lower(), order[case.kind])))


def _case_of(members: Sequence[Record]) -> PublishedCase:
    first = members[0]
    best: dict[str, float] = {}
    for source, source_figures in grouped(members, lambda record: str(record.source)).items():
        best[source] = (
            best_value((record.value or 0.0 for record in source_figures), first.unit) or 0.0
        )
    return PublishedCase(
        device=first.device or "not stated",
        kind=published_kind(first),
        what=case_words(first),
        dtype=dtype_of(first.case) or "",
        unit=first.unit,
        count=first.num_devices,
        case=first.case,
        figures=tuple(members),
        best=tuple(sorted(best.values())),
    )


def case_words(record: Record) -> str:
    """Return a published case in words: ``bert-large, fp16, batch 8``."""
    case = {name: value for name, value in record.case.items() if value is not None}
    kind = published_kind(record)
    if kind is PublishedKind.TRAINING:
        return _training_text(record)
    if kind is PublishedKind.MATMUL:
        sizes = [str(case[axis]) for axis in ("m", "k", "n") if axis in case]
        axes = f"{sizes[0]}³" if square_size(case) is not None else " × ".join(sizes)
        more = [product_text(record)] if product_text(record) else []
        more += [f"batch {case['batch']}"] if case.get("batch") else []
        more += [] if sizes else ["shape not stated"]
        return ", ".join([f"{case['dtype']} {axes}".strip(), *more])
    if kind is PublishedKind.LINK:
        is_within = case.get("direction") == "d2d"
        between = "within a card" if is_within else "card to card"
        name = str(case.get("collective") or between).replace("_", "-")
        size = [format_memory(int(case["bytes"]))] if "bytes" in case else []
        nodes = [counted(int(case["nodes"]), "node")] if case.get("nodes", 1) != 1 else []
        ways = ["both ways"] if case.get("ways") == 2 else []
        access = (
            [f"peer access {'on' if case['peer_access'] else 'off'}"]
            if "peer_access" in case
            else []
        )
        ends = [f"from {case['from']} to {case['to']}"] if {"from", "to"} <= case.keys() else []
        gpus = [] if is_within else [counted(record.num_devices, "GPU")]
        return ", ".join([name, *gpus, *nodes, *size, *ways, *access, *ends])
    text = case_text(record.benchmark, case)
    text = f"{text}, time" if record.unit == "s" else text
    return "; ".join(filter(None, (text, str(record.conditions.get("counting") or ""))))


def _training_text(record: Record) -> str:
    case = dict(record.case)
    words = [
        str(case.pop("model")),
        str(case.pop("precision")),
        counted(record.num_devices, "GPU"),
    ]
    kind = case.pop("kind", "pretrain")
    words += [] if kind == "pretrain" else [str(kind)]
    for name, value in case.items():
        if name == "recompute":
            words.append(f"{value} recompute")
        elif name in ("kernel_stack", "optimizer"):
            words.append(str(value))
        else:
            spelled = plain_name(name).removesuffix(" len").removesuffix(" size")
            words.append(f"{spelled} {value}")
    return ", ".join(words)


# ---- which cards are meant


def check_words(wanted: PublishedSelection) -> None:
    """Raise UsageError for a model or a data type that no published figure is of."""
    everything = _all_cases()
    models = sorted({case.model for case in everything if case.model})
    if not any(normalise(wanted.model) in normalise(name) for name in models):
        raise unknown("published model", wanted.model, models)
    types = sorted({case.dtype for case in everything if case.dtype})
    if wanted.precision and wanted.precision not in types:
        raise unknown("precision", wanted.precision, types)


def devices_of(words: Sequence[str]) -> tuple[str, ...]:
    """Return the cards of words on a command line: one name a word, or names word by word.

    ``RTX 4090``, ``"RTX 4090" "RTX 3090 Ti"`` and ``RTX 4090 RTX 3090 Ti`` all work, and a word
    like ``A100`` means every A100 that figures are of.  Raises UsageError with near names for what
    is no card.
    """
    try:
        return _card_of_each_name(words)
    except UsageError:
        kinds = [_cards_of_name(word) for word in words]
        if not all(kinds):
            raise
        return tuple(dict.fromkeys(itertools.chain(*kinds)))


def _cards_of_name(word: str) -> list[str]:
    """Return the card of a name, or those with figures whose names begin with its words."""
    if (device := _device(word)) is not None:
        return [device]
    wanted = word.casefold().replace("-", " ").split()
    printed = dict.fromkeys(case.device for case in _all_cases())
    return [name for name in printed if wanted and name.casefold().split()[: len(wanted)] == wanted]


def _card_of_each_name(words: Sequence[str]) -> tuple[str, ...]:
    cards: list[str] = []
    parts = [part for word in words for part in word.split()] if len(words) > 1 else list(words)
    if len(words) > 1 and all(_device(word) for word in words):
        parts = list(words)
    while parts:
        for length in range(len(parts), 0, -1):
            name = " ".join(parts[:length])
            if (device := _device(name)) is not None:
                cards.append(device)
                parts = parts[length:]
                break
        else:
            raise _unknown(" ".join(parts))
    return tuple(dict.fromkeys(cards))


def _device(name: str) -> str | None:
    """Return the card of a name: of the catalog, or as a source printed it."""
    printed = {normalise(case.device): case.device for case in _all_cases()}
    chip = find_chip(name)
    if chip is not None:
        return chip.name
    return printed.get(normalise(name))


def _unknown(name: str) -> UsageError:
    if not normalise(name):
        return UsageError(f"no card is named {name!r}", "list the cards: trainrig published")
    printed = [case.device for case in _all_cases() if normalise(name) in normalise(case.device)]
    several = [chip.name for chip in candidates(name)]
    short_name = name if len(name) <= 60 else name[:57] + "..."
    fitting = list(dict.fromkeys((*several, *printed)))
    if len(fitting) > 1:
        return UsageError(
            f"{short_name} is one of: {', '.join(fitting[:6])}", "give the whole name"
        )
    near = fitting or did_you_mean(name)
    hint = f"did you mean {' or '.join(near)}?" if near else "list the cards: trainrig published"
    return UsageError(f"unknown chip: {short_name}", hint)


def nothing_published(wanted: PublishedSelection) -> UsageError:
    """Return the error of a selection that no published figure fits, with what comes nearest."""
    words = wanted.words()
    error = f"nothing published for {words} here" if words else "nothing published here"
    others = dict.fromkeys(case.device for case in published_cases() if case.device)
    narrowed = dataclasses.replace(wanted, devices=())
    same_question = dict.fromkeys(case.device for case in published_cases(narrowed))
    if wanted.devices and any(name in others for name in wanted.devices):
        card = next(name for name in wanted.devices if name in others)
        return UsageError(error, f"all that is published of it: trainrig published {card}")
    chip = find_chip(wanted.devices[0]) if wanted.devices else None
    nearest = _nearest_cards(chip, same_question or others) if chip is not None else []
    if not nearest:
        return UsageError(error, "list the cards with figures: trainrig published")
    hint = f"nearest: {', '.join(nearest)}; trainrig catalog {wanted.devices[0]} has its claims"
    return UsageError(error, hint)


def _nearest_cards(chip: Chip, names: Iterable[str]) -> list[str]:
    """Return the three cards most like a chip: of its architecture, then by claimed bandwidth."""

    def distance(other: Chip) -> tuple[bool, bool, float]:
        ours, theirs = chip.memory.bandwidth, other.memory.bandwidth
        ratio = abs(math.log(theirs / ours)) if ours and theirs else math.inf
        is_other_design = chip.product.architecture != other.product.architecture
        return chip.vendor != other.vendor, is_other_design, ratio

    chips = {other.name: other for name in names if (other := find_chip(name)) is not None}
    return sorted(chips, key=lambda name: distance(chips[name]))[:3]


# ---- cards in few numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class CardSummary:
    """Published results of one card, in few numbers."""

    device: str
    chip: Chip | None
    matmul: PublishedRange | None
    """The best 16-bit product of each source."""
    memory: PublishedRange | None
    """The best cold stream or copy of each source."""
    layer: PublishedRange | None
    """The best layer, forward and backward, of each source."""
    num_trainings: int
    num_links: int
    num_figures: int
    dates: str


def card_summaries(cases: Iterable[PublishedCase]) -> tuple[CardSummary, ...]:
    """Return a summary of each card, the fastest product first."""
    summaries = [
        _summary(device, card_cases)
        for device, card_cases in grouped(cases, lambda case: case.device).items()
    ]
    return tuple(
        sorted(summaries, key=lambda summary: -(summary.matmul.high if summary.matmul else 0.0))
    )


def _summary(device: str, cases: Sequence[PublishedCase]) -> CardSummary:
    years = sorted(
        {published_source(name).date[:4] for case in cases for name in case.sources} - {""}
    )
    records = [record for case in cases for record in case.figures]

    def of(kind: PublishedKind) -> int:
        return sum(len(case.figures) for case in cases if case.kind == kind)

    return CardSummary(
        device=device,
        chip=find_chip(device),
        matmul=best_of(
            r for r in records if role_of(r.benchmark) is Role.PRODUCT and dtype_of(r.case) in _HALF
        ),
        memory=best_of(r for r in records if _is_memory(r)),
        layer=best_of(
            r
            for r in records
            if role_of(r.benchmark) is Role.BLOCK
            and r.unit != "s"
            and r.case.get("pass") == "forward+backward"
        ),
        num_trainings=of(PublishedKind.TRAINING),
        num_links=of(PublishedKind.LINK),
        num_figures=len(records),
        dates=" to ".join(dict.fromkeys((years[0], years[-1]))) if years else "",
    )


def _is_memory(record: Record) -> bool:
    """Return whether the bytes come from the card's memory: hot vectors lie in a cache."""
    role = role_of(record.benchmark)
    if role is Role.TRANSFER:
        return record.case.get("memory") == "device"
    return role is Role.STREAM and int(record.case.get("num_elements") or 0) * 8 >= _BEYOND_CACHES


_BEYOND_CACHES = 256 << 20
"""Bytes that no card's cache holds, read and written."""


def best_of(records: Iterable[Record]) -> PublishedRange | None:
    """Return the range of the best figures of each source; None where there is none."""
    of_source = grouped(filter(is_measurement, records), lambda record: str(record.source))
    best = [best_record(figures) for figures in of_source.values()]
    known = [record.value for record in best if record is not None and record.value]
    return PublishedRange(low=min(known), high=max(known), num=len(known)) if known else None


# ---- two cards


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRatio:
    """One case that two cards have."""

    first: PublishedCase
    second: PublishedCase

    @property
    def ratio(self) -> float:
        """Speed of the second card over that of the first."""
        ratio = self.second.value / self.first.value
        return 1.0 / ratio if self.first.unit == "s" else ratio


def ratios(first: str, second: str, cases: Sequence[PublishedCase]) -> tuple[PublishedRatio, ...]:
    """Return the cases that both cards have, by kind, in the first card's order."""
    other = {_identity(case): case for case in cases if case.device == second}
    return tuple(
        PublishedRatio(first=case, second=other[_identity(case)])
        for case in cases
        if case.device == first and _identity(case) in other
    )


def _identity(case: PublishedCase) -> tuple[object, ...]:
    """Return the case without its card."""
    first = case.figures[0]
    return (*first.key[:4], first.device_count)


# ---- a run among them


def range_for_level(record: Record, level: str, own: Collection[str] = ()) -> PublishedRange | None:
    """Return what owners other than ``own`` reached on a card at a level of a waterfall."""
    if record.device_index is None or record.device is None:
        return None
    dtype = dtype_of(record.case)
    return best_of(
        row.measured
        for row in _rows_of(record.device)
        if row.measured is not None
        and owner_of(row.measured.source) not in own
        and any(rule.name == level for rule in rules_of(row))
        and dtype_of(row.case) in (dtype, None)
    )


def owner_of(source: str | None) -> str:
    """Return the owner of a figure: a source names its repository, or its author, first."""
    return (source or "").partition(" ")[0]


@cache
def _rows_of(device: str) -> tuple[Row, ...]:
    """Return the published rows of one card alone."""
    rows = [row for row in published_records() if row.device == device and row.device_count == 1]
    return tuple(row for row in join(rows, observed=Kind.BASELINE) if row.value)


PRINTED = 0.005
"""Half of the third digit, at most: what a printed figure is known to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedCase:
    """One measured case among what others published of the very same case and card."""

    row: Row
    others: PublishedRange

    @property
    def place(self) -> str:
        """Return ``below``, ``among``, ``above`` or ``cannot tell``; others print rounded values.

        A noisy value below them is the least that the device does, which says nothing.
        """
        if self.row.value < self.others.low * (1 - PRINTED):
            return "below" if self.row.is_usable else "cannot tell"
        return "above" if self.row.value > self.others.high * (1 + PRINTED) else "among"


def placed_cases(view: RunView) -> Iterator[PlacedCase]:
    """Yield the cases of a run that others published of the same card, in the run's order."""
    if is_published(view):
        return
    for row in rows(view):
        others = best_of(row.baselines) if is_valid(row.measured) and row.unit != "s" else None
        if others is not None:
            yield PlacedCase(row=row, others=others)


# ---- for JSON


def cases_dict(cases: Iterable[PublishedCase]) -> list[dict[str, Any]]:
    """Return the object that ``published --json`` prints of each case, in base SI units."""
    return [
        {
            "device": case.device,
            "kind": case.kind,
            "benchmark": case.figures[0].benchmark,
            "what": case.what,
            "case": dict(case.case),
            "dtype": case.dtype,
            "device_count": case.count,
            "metric": case.figures[0].metric,
            "unit": case.unit,
            "low": case.best[0],
            "median": case.value,
            "high": case.best[-1],
            "n": case.num,
            "dates": case.dates,
            "figures": [
                {
                    "value": figure.value,
                    "source": figure.source,
                    "url": published_source(str(figure.source)).url or None,
                    "date": published_source(str(figure.source)).date or None,
                    "conditions": dict(figure.conditions),
                }
                for figure in case.figures
            ],
        }
        for case in cases
    ]


def summary_dict(summary: CardSummary) -> dict[str, Any]:
    """Return the object that ``published --json`` prints of a card."""
    content = dataclasses.asdict(dataclasses.replace(summary, chip=None))
    content["chip"] = summary.chip.name if summary.chip else None
    return content
