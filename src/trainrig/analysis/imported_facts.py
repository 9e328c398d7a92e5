"""What was read of another tool's files: each number in words, in groups, and the leading ones.

Pure: the records of an imported run, and beside each what others published of the same operation
(`published_place`).  The report's table, the sentence above it and the verdict all read it here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from trainrig.analysis.best import best_record
from trainrig.analysis.published_place import PublishedPlace, link_of, published_place
from trainrig.analysis.rows import at_path
from trainrig.benchmarks.spec import Role, case_text, role_of
from trainrig.catalog.lookup import find_chip
from trainrig.record import UNNAMED, UNNAMED_HOST, Case, Record, RunView, Scalar, dtype_of
from trainrig.stats import grouped
from trainrig.units import (
    capital,
    counted,
    format_count,
    format_memory,
    format_quantity,
    format_share,
    plain_name,
)

DIGITS = 4
"""Digits of an imported number: enough to find it in the file; three where the fourth is a zero."""
_FILES = ("tool", "file")
"""Conditions that name what a record was read of."""
PAIR, HEALTH = "link", "diagnostic"
"""Benchmarks of copies between devices, and of a health test's result."""
_MINUTE, _HOUR = 60.0, 3600.0
_THOUSANDS = 1e4
"""Count from which a letter for thousands is used."""
_COUNTED = {"token/s": "tokens/s", "sample/s": "samples/s", "item/s": "items/s"}
_PLAIN = ("", "1", "°C")
"""Units of counts and readings, which are printed as they are."""
_SHARES = ("mfu", "hfu")
_LEADS = (
    *("token_rate", "sample_rate", "item_rate", "flop_rate", "printed_flop_rate"),
    *("bus_rate", "byte_rate", "op_rate", "train_loss", "peak_memory"),
)
"""Metrics, the one that says most of a group first; other rates and times come between them."""
_ROLES = (Role.STEP, Role.PRODUCT, None, Role.COLLECTIVE, Role.LINK, Role.TRANSFER, Role.DISK)
"""Roles in the order in which a headline asks for them; None: a load, a state, a trace."""


def number_text(value: float, unit: str, metric: str = "") -> str:
    """Return a number as the file has it: ``118.6 TFLOPS``, ``128.8 s``, ``12.35k tokens/s``."""
    forms: tuple[tuple[bool, Callable[[], str]], ...] = (
        (metric.endswith("_share") or metric in _SHARES, lambda: format_share(value)),
        (metric == "passed", lambda: "passed" if value else "not passed"),
        (unit in _COUNTED, lambda: f"{_count_text(value)} {_COUNTED[unit]}"),
        (unit == "B", lambda: format_memory(value)),
        (unit in _PLAIN, lambda: _plain_text(value, unit)),
        (unit == "s" and _MINUTE <= value < _HOUR, lambda: f"{_digits_of(value, '')} s"),
    )
    form = next((form for fits, form in forms if fits), None)
    return form() if form else _digits_of(value, unit)


def _digits_of(value: float, unit: str) -> str:
    return format_quantity(value, unit, _num_digits(value))


def _num_digits(value: float) -> int:
    is_round = float(f"{value:.{DIGITS - 1}g}") == float(f"{value:.{DIGITS}g}")
    return DIGITS - 1 if is_round else DIGITS


def _plain_text(value: float, unit: str) -> str:
    digits = f".{DIGITS}g" if abs(value) < _THOUSANDS else ".0f"
    return f"{value:,{digits}} {unit.strip('1')}".rstrip()


def _count_text(value: float) -> str:
    return f"{value:,.{DIGITS}g}" if value < _THOUSANDS else format_count(value, _num_digits(value))


def metric_words(metric: str) -> str:
    """Return a metric in words: ``forward time`` for ``time.forward``, ``SM clock``."""
    whole, _, part = metric.partition(".")
    text = f"{part} {whole}" if part else whole.removesuffix("_share")
    words = plain_name(text).split()
    return " ".join(word.upper() if word in _SHORT else word for word in words)


_SHORT = ("mfu", "hfu", "sm", "ecc", "flop", "cpu", "gpu")
"""Words of metrics that are abbreviations."""


def is_pair(record: Record) -> bool:
    """Return whether a record is of a copy from one GPU to another."""
    return record.benchmark == PAIR and record.case.get("direction") == "p2p"


def range_of_numbers(values: Sequence[float], unit: str, metric: str = "", joined: str = "") -> str:
    """Return the range of some numbers: ``16.9 to 17.2 TFLOPS``; one if all read alike."""
    texts = list(dict.fromkeys(number_text(value, unit, metric) for value in values))
    if len(texts) == 1:
        return texts[0]
    low, high = (number_text(pick(values), unit, metric) for pick in (min, max))
    word = joined or ("and" if len(values) == 2 else "to")
    number, _, spelled = low.partition(" ")
    return f"{number if high.endswith(f' {spelled}') else low} {word} {high}"


def place_text(place: PublishedPlace) -> str:
    """Return the published range: ``146 TFLOPS``, or its lowest and highest source."""
    return range_of_numbers([place.low, place.high], place.unit, joined="to")


def is_unnamed(device: str | None) -> bool:
    """Return whether a record does not say on which card or processor it was measured."""
    return device in (None, UNNAMED, UNNAMED_HOST)


# ---- what was read


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadNumber:
    """One number of a file, and what others published of the same operation."""

    record: Record
    place: PublishedPlace | None
    what: str
    """The case in words, without the tool, which the group names."""

    @property
    def value(self) -> float:
        """Value in base SI units."""
        return self.record.value or 0.0

    @property
    def text(self) -> str:
        """Return the value with its unit, such as ``118.6 TFLOPS``."""
        return number_text(self.value, self.record.unit, self.record.metric)


_SAID = frozenset(["tool", "framework", "training", "trace"])
"""Fields of a case that a table's title says, or that only keep records apart."""


def _distinct_case_words(record: Record, alike: Sequence[Record]) -> str:
    """Return the case in words, with what sets it apart from others that read the same."""
    case = {name: value for name, value in record.case.items() if name not in _SAID}
    text = _cell_words(case) or capital(case_text(record.benchmark, case)) if case else ""
    names = dict.fromkeys(name for record in alike for name in record.case)
    differing_keys = [
        name for name in names if len({str(record.case.get(name)) for record in alike}) > 1
    ]
    more = [
        f"{plain_name(name)} {record.case[name]}"
        for name in differing_keys
        if record.case.get(name) is not None
    ]
    return ", ".join(filter(None, (text, *more)))


def _cell_words(case: Case) -> str:
    """Return ``Copy within GPU 1 (device_local_copy)``: a cell of a matrix of GPUs by its GPUs.

    Empty for what is no such cell, or whose rows and columns are not known to be GPUs.
    """
    if case.keys() - {"bytes"} != {"test", "row", "column"}:
        return ""
    test, row, column = str(case["test"]), case["row"], case["column"]
    size = f", {format_memory(float(case['bytes'] or 0))}" if "bytes" in case else ""
    if test.startswith("device_local_"):
        return f"Copy within GPU {column} ({test}){size}"
    if test.startswith("device_to_device_"):
        return f"GPU {row} and GPU {column} ({test}){size}"
    if row == 0 and not test.startswith("multinode_"):  # a line with a column for each GPU
        return f"GPU {column} ({test}){size}"
    return ""


def _records_read_alike(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Return records by id: those of the same metric and device whose cases read the same."""
    groups = grouped(
        records,
        lambda record: (
            record.metric,
            record.device,
            record.device_index,
            _distinct_case_words(record, ()),
        ),
    )
    return {record.id: members for members in groups.values() for record in members}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadGroup:
    """The numbers of one benchmark in one file."""

    tool: str
    file: str
    benchmark: str
    numbers: tuple[ReadNumber, ...]


def read_groups(view: RunView) -> tuple[ReadGroup, ...]:
    """Return every number that was read, in the files' order."""
    points = [record for record in view.records if record.is_point and record.value is not None]
    groups = grouped(
        points, lambda r: (*(str(r.conditions.get(n, "")) for n in _FILES), r.benchmark)
    )
    return tuple(
        ReadGroup(tool=tool, file=file, benchmark=benchmark, numbers=_numbers(group_records, view))
        for (tool, file, benchmark), group_records in groups.items()
    )


def _numbers(records: Sequence[Record], view: RunView) -> tuple[ReadNumber, ...]:
    alike = _records_read_alike(records)
    return tuple(
        ReadNumber(
            record=record,
            place=published_place(record, link_of(record, view)),
            what=_distinct_case_words(record, alike[record.id]),
        )
        for record in records
    )


# ---- the sentence and the numbers above the table


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadNumbers:
    """The numbers that stand for a group: one metric of one case, of every device that has it."""

    numbers: tuple[ReadNumber, ...]

    @property
    def first(self) -> ReadNumber:
        """Return the one with the best value."""
        return _best(self.numbers)

    @property
    def first_record(self) -> Record:
        """Any of its records: they share case, metric and unit."""
        return self.numbers[0].record

    @property
    def text(self) -> str:
        """Return the values with their unit, such as ``118.6 and 122.3 TFLOPS``."""
        record = self.first_record
        return range_of_numbers(
            [number.value for number in self.numbers], record.unit, record.metric
        )


def lead_numbers(group: ReadGroup) -> LeadNumbers | None:
    """Return the best case of the metric that says most; None without a rate or time."""
    pairs = [
        number
        for number in group.numbers
        if is_pair(number.record) and number.record.case.get("ways") == 1
    ]
    chosen = pairs or group.numbers
    units = {number.record.metric: number.record.unit for number in chosen}

    def order(metric: str) -> tuple[int, int]:
        rank = 0 if units[metric].endswith("/s") else 1 if units[metric] == "s" else 2
        return rank, _LEADS.index(metric) if metric in _LEADS else len(_LEADS)

    known = [m for m, unit in units.items() if unit == "s" or unit.endswith("/s") or m in _LEADS]
    if not known:
        return None
    metric = min(known, key=order)
    metric_numbers = [number for number in chosen if number.record.metric == metric]
    case = _best(metric_numbers).record.case
    return LeadNumbers(
        numbers=tuple(number for number in metric_numbers if number.record.case == case)
    )


def _best(numbers: Sequence[ReadNumber]) -> ReadNumber:
    """Return the best of some numbers of one unit; the first where none is above zero."""
    best = best_record(number.record for number in numbers)
    return next((number for number in numbers if number.record is best), numbers[0])


def imported_headline(view: RunView) -> str:
    """Return what was read in one sentence, with what others published of it.

    Each part that no file states is left out.
    """
    groups = read_groups(view)
    for group, lead in _lead_groups(groups):
        return f"{_lead_sentence(group, lead)}{_published_part(lead) or '.'}"
    if tests := [
        record for record in view.records if record.is_point and record.benchmark == HEALTH
    ]:
        passed = sum(record.value is not None for record in tests)
        return f"{passed} of {counted(len(tests), 'health test')} passed."
    values = sum(len(group.numbers) for group in groups)
    if values:
        tools = ", ".join(dict.fromkeys(group.tool for group in groups))
        return f"{imported_devices(view)}: {counted(values, 'value')} of {tools}."
    if cards := cards_text(view):
        return f"{capital(cards)}."
    return "No number was read."


def _lead_groups(groups: Sequence[ReadGroup]) -> list[tuple[ReadGroup, LeadNumbers]]:
    """Return groups with their leading numbers: rates before times, then as `_ROLES` has them."""

    def order(pair: tuple[ReadGroup, LeadNumbers]) -> tuple[bool, int]:
        role = role_of(pair[0].benchmark)
        is_time = pair[1].first_record.unit == "s" and role is not Role.STEP
        return is_time, _ROLES.index(role) if role in _ROLES else len(_ROLES)

    leads = [(group, lead_numbers(group)) for group in groups]
    return sorted(((group, lead) for group, lead in leads if lead), key=order)


def _lead_sentence(group: ReadGroup, lead: LeadNumbers) -> str:
    record = lead.first_record
    if role_of(group.benchmark) is Role.STEP:
        return _training_sentence(group, lead)
    where = _where([number.record for number in lead.numbers])
    words = "" if record.unit.endswith("/s") else metric_words(record.metric)
    description = ", ".join(filter(None, (lead.first.what, words))) or "Read"
    return f"{capital(description)}: {lead.text}{where} ({record_tool(record)})"


def _training_sentence(group: ReadGroup, lead: LeadNumbers) -> str:
    """Return ``Trains gpt2-medium in fp16 at 12.35k tokens/s, 1.25 s a step, on 2 GPUs``."""
    record = lead.first_record
    name, precision = record.case.get("model"), dtype_of(record.case)
    same = {
        number.record.metric: number
        for number in group.numbers
        if number.record.case == record.case
    }
    is_rate = record.unit.endswith("/s")
    trained = "Trains" + (f" {name}" if name else "") + (f" in {precision}" if precision else "")
    trained += f" at {lead.text}" if is_rate else ""
    step = f"{same['time'].text} a step" if "time" in same else ""
    if not is_rate and not step and "train_loss" in same:
        trained += f" to a loss of {same['train_loss'].text}"
    return ", ".join(filter(None, (trained, step, _where([record]).strip())))


def _where(records: Sequence[Record]) -> str:
    """Return the cards as the end of a sentence: `` on 2 × RTX 4090``; empty if not known."""
    record = records[0]
    count = max(record.num_devices, len({record.device_index for record in records}))
    if is_unnamed(record.device):
        return f" on {counted(count, 'GPU')}" if count > 1 else ""
    return f" on {count} × {record.device}" if count > 1 else f" on {record.device}"


def _published_part(lead: LeadNumbers) -> str:
    place = lead.first.place
    if place is None:
        return ""
    return f"; published for {place.card}: {place_text(place)} ({place.operation})."


def record_tool(record: Record) -> str:
    """Return the tool of a record and its version, where the file has it."""
    stated = (str(record.conditions.get(key, "")) for key in ("tool", "tool_version"))
    return " ".join(filter(None, stated))


def cards_text(view: RunView) -> str:
    """Return the cards that files name: ``8 × A100 SXM4 40GB``; empty without any."""
    gpus = (view.machine or {}).get("gpus")
    listed = gpus if isinstance(gpus, list | tuple) else ()
    names = Counter(str(at_path(gpu, "name") or "") for gpu in listed)
    return ", ".join(
        f"{n} × {name}" if name else f"{counted(n, 'GPU')}, not named in the file"
        for name, n in names.items()
    )


def imported_devices(view: RunView) -> str:
    """Return the cards that files name, else how many there are, else the files' names."""
    indices_by_device: dict[str, set[int]] = {}
    counts: Counter[str] = Counter()
    for record in view.records:
        if record.is_point and record.device and not is_unnamed(record.device):
            indices = indices_by_device.setdefault(record.device, set())
            indices |= set() if record.device_index is None else {record.device_index}
            counts[record.device] = max(counts[record.device], record.num_devices)
    # Of several models it is not known how many of each worked at the same time.
    numbers = {
        name: max(
            1, len(indices_by_device[name]), counts[name] if len(indices_by_device) == 1 else 0
        )
        for name in indices_by_device
    }
    named = [f"{n} × {name}" if n > 1 else name for name, n in sorted(numbers.items())]
    files = view.config.get("imported")
    listed = files if isinstance(files, list | tuple) else ()
    names = [
        str(file_entry.get("file")) for file_entry in listed if isinstance(file_entry, Mapping)
    ]
    return ", ".join(named) or cards_text(view) or ", ".join(names) or view.name


# ---- numbers that stand above the page


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedNumber:
    """One of the few numbers that a reader looks for first."""

    name: str
    number: ReadNumber


_TRAINING_NUMBERS: Mapping[str, str] = {
    "token_rate": "Training",
    "sample_rate": "Training",
    "time": "Step",
    "peak_memory": "Peak memory",
    "train_loss": "Loss",
}
_MOST_NUMBERS = 4


def named_numbers(view: RunView) -> tuple[NamedNumber, ...]:
    """Return the leading number of each group; of a training several."""
    numbers_by_name: dict[tuple[str, str], NamedNumber] = {}
    for group, lead in _lead_groups(read_groups(view)):
        for number in _named(group, lead):
            numbers_by_name.setdefault((number.name, number.number.record.benchmark), number)
    return tuple(numbers_by_name.values())[:_MOST_NUMBERS]


def _named(group: ReadGroup, lead: LeadNumbers) -> Iterator[NamedNumber]:
    if role_of(group.benchmark) is not Role.STEP:
        name = capital(metric_words(lead.first_record.metric))
        yield NamedNumber(name=name, number=lead.first)
        return
    case: Mapping[str, Scalar] | Case = lead.first_record.case
    same = {number.record.metric: number for number in group.numbers if number.record.case == case}
    for metric, name in _TRAINING_NUMBERS.items():
        if metric in same:
            yield NamedNumber(name=name, number=same[metric])


# ---- what the run is compared with


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadComparison:
    """Something that the numbers of an imported run are held against."""

    name: str
    """Description of the source: ``figures that others published of RTX 4090``."""
    evidence: str
    agrees: bool


def comparisons(view: RunView) -> Iterator[ReadComparison]:
    """Yield published figures of the same operations, then the tools' own health tests.

    A published figure that may be of the imported run itself is yielded where nothing else is
    compared: what equals itself is no proof of a sound machine.
    """
    beside = best_beside_published(view)
    repeated = published_repeats(beside)
    compared = [
        *_published_comparisons([number for number in beside if number not in repeated]),
        *_health_comparisons(view),
    ]
    yield from compared or map(_repeat_comparison, repeated[:1])


def _published_comparisons(beside: Sequence[BesidePublished]) -> Iterator[ReadComparison]:
    for card_numbers in grouped(beside, lambda number: number.place.card).values():
        worse = [number for number in card_numbers if number.place.is_worse(number.number.value)]
        first_number = (worse or card_numbers)[0]
        yield ReadComparison(
            name=_published_name(first_number.place),
            evidence=f"{first_number.text}; published: {place_text(first_number.place)}",
            agrees=not worse,
        )


def _published_name(place: PublishedPlace) -> str:
    return f"figures that others published of {place.card} (n = {place.num})"


def _health_comparisons(view: RunView) -> Iterator[ReadComparison]:
    tests = [test for test in view.records if test.is_point and test.benchmark == HEALTH]
    if tests and all(test.value for test in tests):
        yield ReadComparison(
            name="the answers that its health tests expect",
            evidence=f"{counted(len(tests), 'health test')} passed",
            agrees=True,
        )


def _repeat_comparison(beside: BesidePublished) -> ReadComparison:
    return ReadComparison(
        name=_published_name(beside.place), evidence=repeat_text(beside), agrees=False
    )


def repeat_text(beside: BesidePublished) -> str:
    """Return the sentence that a published figure may be of the imported run itself."""
    return (
        f"{beside.text} equals the one published figure to its digits: it may be of this same run"
    )


def published_repeats(beside: Sequence[BesidePublished]) -> list[BesidePublished]:
    """Return numbers whose kind has one source, equal to one of them to its digits; it first."""
    repeats: list[BesidePublished] = []
    for members in grouped(beside, lambda number: (number.place.card, number.place.kind)).values():
        equal = [member for member in members if member.is_repeat]
        repeats += [*equal, *(m for m in members if m not in equal)] if equal else []
    return repeats


STATE = "gpu-state"
"""Benchmark of a GPU's readings: power, clock, temperature."""
_MOST_METRICS = 3
"""Most metrics that a sentence names."""


def power_limit_text(record: Record) -> str:
    """Return ``700 W is the power limit that its data sheet states``.

    Empty for what is no power limit, and where no data sheet states one.
    """
    chip = find_chip(record.device or "")
    stated = chip.board.tdp if chip is not None else None
    if (record.benchmark, record.metric) != (STATE, "power_limit") or not record.value:
        return ""
    if not stated:
        return ""
    read, sheet = (number_text(watts, "W") for watts in (record.value, stated))
    if read == sheet:
        return f"{read} is the power limit that its data sheet states"
    return f"its power limit is {read}, where its data sheet states {sheet}"


def unstated_values(view: RunView) -> str:
    """Return ``bus rate and time of A100 SXM4 40GB``: values that nothing was compared with."""
    left = [
        record
        for record in view.records
        if record.is_point and record.value is not None and not power_limit_text(record)
    ]
    metrics = list(dict.fromkeys(metric_words(record.metric) for record in left))
    if not metrics:
        return "these values"
    if len(metrics) > _MOST_METRICS:
        metrics = [*metrics[: _MOST_METRICS - 1], f"{len(metrics) - _MOST_METRICS + 1} more"]
    *first, last = metrics
    words = f"{', '.join(first)} and {last}" if first else last
    devices = dict.fromkeys(r.device for r in left if not is_unnamed(r.device))
    return f"{words} of {', '.join(map(str, devices))}" if devices else words


@dataclass(frozen=True, slots=True, kw_only=True)
class BesidePublished:
    """A number that has published figures beside it."""

    number: ReadNumber
    place: PublishedPlace

    @property
    def text(self) -> str:
        """Return the number after its case: ``Matmul fp64: 16.95 TFLOPS``."""
        case = self.number.what or metric_words(self.number.record.metric)
        return f"{case}: {self.number.text}"

    @property
    def is_repeat(self) -> bool:
        """True where the only published figure equals the number in every digit."""
        return self.place.num == 1 and place_text(self.place) == self.number.text


def best_beside_published(view: RunView) -> list[BesidePublished]:
    """Return rates beside published ones, the best of each kind and device.

    Noise only slows: what is as fast as others' at one size is able.
    """
    placed_numbers = [
        BesidePublished(number=number, place=number.place)
        for group in read_groups(view)
        for number in group.numbers
        if number.place is not None and number.record.unit.endswith("/s")
    ]
    kinds = grouped(
        placed_numbers, lambda beside: (beside.number.record.device_index, beside.place.kind)
    )
    return [
        max(members, key=lambda beside: beside.number.value / beside.place.low)
        for members in kinds.values()
    ]
