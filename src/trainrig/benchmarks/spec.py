"""The type of a benchmark's definition: cases, counts, planning, display and judgement.

Every benchmark is one file in this folder that defines ``BENCHMARK``; the file is found by itself.
Its measuring half (``Benchmark.module``) prepares the call that is timed and checks the answer.
Plan, executor, labels, waterfall, charts, report, `bench` and compare ask the spec and know no
benchmark by name: where they need to know what a benchmark stands for they ask for its `Role`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache

from trainrig import plugins
from trainrig.catalog.arithmetic import UNKNOWN, Arithmetic
from trainrig.catalog.chip import DEFAULT_ACCUMULATE
from trainrig.errors import UsageError
from trainrig.record import Case, Record, Scalar, case_label, dtype_of
from trainrig.stats import AGREEMENT, CONFIDENCE
from trainrig.units import parse_count
from trainrig.workload import Work

WORKERS = 2
"""Fresh processes that measure each case; their medians make a point."""
SMALL_BUDGET = 60.0
"""Below this, one pair of workers serves all benchmarks of a device: importing torch takes seconds
that such a budget does not have."""
SMALL_REASON = "left out of budgets below one minute"
CHECK_ELEMENTS = 1 << 22
"""Elements that one pass of a check looks at: 32 MiB as fp64."""
MARGIN = 0.08
"""Boards of one model differ by a few percent (cooling, silicon, clocks)."""


class Role(StrEnum):
    """Part of a training step that a benchmark stands for."""

    PRODUCT = "product"
    """One product of matrices."""
    STREAM = "stream"
    """One elementwise kernel."""
    TRANSFER = "transfer"
    """Moving bytes, across a link or within a memory."""
    BLOCK = "block"
    """One layer of a model, or a part of one."""
    STEP = "step"
    """A whole training step."""
    DISK = "disk"
    """Reading and writing files."""
    LINK = "link"
    """Moving bytes from one device to another one."""
    NUMA = "numa"
    """Moving bytes by the node of threads and memory."""
    COLLECTIVE = "collective"
    """What ranks exchange; it is measured by ranks that are started for it."""


# ---- what is counted and claimed


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """Quantity derived from the time of a call: a rate, or the time itself."""

    name: str
    unit: str
    amount: float | None
    """Per call; its rate is this over the seconds of a call.  None: those seconds."""
    formula: str
    is_claimed: bool = False
    """True if `Benchmark.claim` is an upper bound of this metric."""

    def of(self, seconds: float) -> float:
        """Return the metric's value for a call of ``seconds``."""
        return seconds if self.amount is None else self.amount / seconds


Claim = tuple[str, Case]
"""Benchmark and case of a claimed record."""
PEAK, MEMORY_CLAIM, LINK_CLAIM = "matmul", "memory", "link"
"""Benchmarks of claimed records: a chip's arithmetic, its memory's bandwidth, a link's."""


def peak_claim(case: Case) -> Claim:
    """Return the peak of a case's dtype and of the type that torch sums in.

    fp32; int32 for integers, fp64 for fp64: fp16's peak with fp16 accumulation bounds nothing that
    is run here.
    """
    dtype = dtype_of(case)
    return PEAK, {"dtype": dtype, "accumulate": DEFAULT_ACCUMULATE.get(str(dtype))}


def flop_rate(work: Work, formula: str, unit: str = "FLOP/s") -> Metric:
    """FLOPs over time, as a chip's peak is claimed."""
    return Metric(name="flop_rate", unit=unit, amount=work.flops, formula=formula, is_claimed=True)


def byte_rate(work: Work) -> Metric:
    """Counted bytes over time, as a memory's or a link's bandwidth is claimed."""
    formula = "counted bytes / time"
    return Metric(
        name="byte_rate", unit="B/s", amount=work.num_bytes, formula=formula, is_claimed=True
    )


# ---- what is planned


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Facts of a device from which a benchmark chooses the cases of a qualification."""

    is_gpu: bool
    budget: float
    """Seconds of the whole qualification."""
    beside_gpus: bool = False
    """The host of a machine with GPUs: its memory matters, its arithmetic does not."""
    arithmetic: Arithmetic = UNKNOWN
    """Dtypes that the device multiplies in hardware; others are emulated, slowly on a processor."""
    claimed_dtypes: frozenset[str] = frozenset()
    """Precisions whose peak the data sheet of the device states; empty where it is not known."""
    free_bytes: int = 0
    tool: str = "fio"
    """Name of the tool that measures a disk."""
    tool_note: str = ""
    """Reason that the tool's numbers are only indicative; empty where they are exact."""
    unusable: str | None = None
    """Reason that the device cannot be measured; empty if it can."""
    peers: int = 1
    """Devices of its kind in the machine, itself included."""
    is_first: bool = True
    """The first device of its kind plans what all of them do together."""

    @property
    def is_small(self) -> bool:
        """Return whether the budget is too small for more than the essentials."""
        return self.budget < SMALL_BUDGET


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The cases that a person asks `bench` for; empty fields mean the usual."""

    dtypes: Sequence[str] = ()
    sizes: Sequence[str] = ()
    ops: Sequence[str] = ()
    arithmetic: Arithmetic = UNKNOWN
    """Dtypes the device has in hardware; without ``dtypes`` emulated ones are not measured."""
    budget: float = SMALL_BUDGET
    tool: str = "fio"
    tool_note: str = ""
    ranks: Sequence[int] = ()
    """Numbers of ranks that exchange something."""
    nodes: int = 1
    low: str = ""
    """The smallest size, where a benchmark measures from one to another."""
    high: str = ""
    backend: str = "gloo"
    """Backend of torch.distributed, such as ``nccl`` or ``gloo``."""
    peer_access: Sequence[bool] = (True, False)
    """Peer access between GPUs, on or off; both in turn show its gain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCase:
    """One case to measure."""

    case: Case
    step: str
    """``bf16 matmul``: what progress and verdict call it; cases of one name are one step."""
    required: bool = False
    """True if the verdict needs this case."""
    seconds: float = 0.0
    """Seconds of sampling in each worker, for sustained load and disks; 0: as time allows."""
    shared: bool = False
    """True if it loads a shared part of the machine: devices are then measured in turn."""
    notes: Case = field(default_factory=dict)
    """Further conditions for the record of its point."""
    skip: str | None = None
    """Reason that the case is recorded but not run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseCost:
    """Time and memory of a case beside its sampling, for planning."""

    fixed: float = 0.03
    """Seconds."""
    first_case: Callable[[Case], float] = lambda _: 0.0
    """Seconds spent once, by the first case that needs them: an import."""
    fill: tuple[float, float] = (1.5e9, 1e11)
    """Bytes of `Benchmark.memory` a second, on a host and on a GPU: operands and their check."""
    calls: float = 4.0
    """It is prepared, checked, warmed, sampled and checked again: so many calls at the least."""


# ---- what is shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """Quantity of a device that a waterfall follows from the claim down."""

    name: str
    metric: str
    order: int
    by_dtype: bool = False
    """One a dtype, which its name begins with."""


COMPUTE = Quantity(name="compute", metric="flop_rate", order=10, by_dtype=True)
MEMORY = Quantity(name="memory bandwidth", metric="byte_rate", order=20)


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelRule:
    """Rule of one level of a waterfall: the best point among the cases that it fits."""

    quantity: Quantity
    name: str
    order: int
    """Its place; the level before it is its ceiling."""
    fits: Callable[[Case, int], bool] = lambda _, count: count == 1
    """(case, number of devices at once) → whether it belongs here."""
    as_ceiling: str = ""
    """Phrase for this level as a ceiling: ``what its matmuls reach``; by default the name."""


# ---- the benchmark


Fields = Mapping[str, Sequence[Scalar] | int]
"""Field of a case → the words that it may be, or the largest whole number; no words: anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """One benchmark: the only place that knows it by name."""

    name: str
    version: int
    """Raised whenever what is timed or counted changes: versions are never compared."""
    former: tuple[str, ...] = ()
    """Names that its records had in older versions: they are still shown."""
    title: str
    """``matrix products, by dtype and shape``."""
    order: int
    """Its place in plans, help and charts."""
    module: str
    """The measuring half: ``prepare(case, device)`` gives the call to time and its check."""
    role: Role | None = None

    example: Case
    """A case with every field that its cases have: docs/definitions.md defines each."""
    fields: Fields
    optional: Fields = field(default_factory=dict)
    """Fields that a case may have besides."""
    check_more: Callable[[Case], object] = lambda _: None
    """Raises UsageError for what `fields` cannot say."""
    work: Callable[[Case], Work]
    """FLOPs and counted bytes of one call."""
    metrics: Callable[[Case], tuple[Metric, ...]]
    """The numbers of a case; the first one is the case's headline."""
    memory: Callable[[Case], int]
    """Bytes the case needs on its device, the answer's check included."""
    agreement: float = AGREEMENT
    """Largest relative difference of two workers' medians on a quiet machine."""
    workers: Callable[[Case], int] = lambda _: WORKERS
    """Fresh workers that a point of such a case needs."""
    ranks: Callable[[Case], int] = lambda _: 1
    """Ranks, a device each, that share a case."""
    two_sided: bool = False
    """True if a worker may be too fast, as from a cache; elsewhere noise only slows."""
    cost: CaseCost = CaseCost()

    qualify: Callable[[Scope], Sequence[PlannedCase]] = lambda _: ()
    """Returns the cases that a qualification runs on one device."""
    qualify_together: Callable[[], Sequence[PlannedCase]] = lambda: ()
    """Returns the cases that a qualification runs on all GPUs at once."""
    weight: float = 1.0
    """Parts of the time that the benchmarks of a device divide among them."""
    max_share: float | None = None
    """Largest share of a qualification's time for cases with their own seconds (no weight)."""
    launch_seconds: float = 0.0
    """Seconds that such a case takes around those, in each worker."""

    options: Mapping[str, str] = field(default_factory=dict)
    """The options of `bench` that choose cases, with their help; none: `bench` does not run it."""
    select: Callable[[Selection], Sequence[PlannedCase]] = lambda _: ()
    """The cases of a selection."""
    search: str = ""
    """Behind ``--peak``: the module whose `plan_search` finds the fastest case."""
    verb: str = ""
    """Verb that runs it, if not `bench`."""
    remeasure_options: Callable[[Case], str | None] = lambda _: ""
    """Options that measure such a case again: known words only, for people paste them and the
    record may be a stranger's.  None: no command does."""

    label: Callable[[Case], str] = case_label
    """A case for people: ``fp16 8192 × 8192 × 8192``."""
    sizes: frozenset[str] = frozenset()
    """Fields of a case that only say how large it is."""
    levels: tuple[LevelRule, ...] = ()

    claim: Callable[[Case], Claim | None] = lambda _: None
    """The claim that bounds a case, if anything is claimed."""
    follows_clock: bool = False
    """True if a chip that boosts above its data sheet's clock beats the claim by as much."""
    is_large: Callable[[Case], bool] = lambda _: True
    """True if the device, not launches or caches, bounds the case's rate: it is then judged."""
    fills_chip: Callable[[Case], bool] | None = None
    """Returns whether a published case counts as large; by default `is_large`."""
    nature: Callable[[Case], tuple[Scalar, ...]] = lambda case: tuple(
        case.get(name) for name in ("op", "direction", "memory", "cache")
    )
    """Returns the properties that two cases of one dtype must share to be compared."""
    least_share: Callable[[Case], float | None] = lambda _: None
    """Smallest share of the claim that a sound device reaches, where known."""
    slower: Callable[[Case], float] = lambda _: 0.0
    """Share by which such a case may fall below the expectation from shorter ones."""
    history_margin: float = MARGIN
    """Relative run-to-run variation of one machine."""

    @property
    def is_disk(self) -> bool:
        """Return whether its cases run on the disk under a folder, not on each GPU and the host."""
        return self.role is Role.DISK

    def check(self, case: Case) -> None:
        """Raise UsageError when the case is not one of this benchmark's."""
        fields = {**self.fields, **self.optional}
        for name, may_be in fields.items():
            if name not in case:
                if name in self.fields:
                    raise UsageError(f"{self.name} needs the case field {name!r}")
            elif isinstance(may_be, int):
                count_of(self.name, case, name, may_be)
            elif may_be and case.get(name) not in may_be:
                words = one_of([str(word) for word in may_be])
                raise UsageError(f"unknown {name} {case.get(name)!r} for {self.name}", words)
        if extra := sorted(set(case) - set(fields)):
            raise UsageError(f"{self.name} has no case field {extra[0]!r}")
        self.check_more(case)

    @property
    def command(self) -> str:
        """Return the command that runs it."""
        return self.verb or f"trainrig bench {self.name}"

    def metric(self, case: Case, name: str) -> Metric | None:
        """Return the metric of a case that is called ``name``."""
        return next((metric for metric in self.metrics(case) if metric.name == name), None)


_registered: dict[str, Benchmark] = {}


def register(addition: Benchmark) -> None:
    """Make a benchmark known that lives outside this folder."""
    _registered[addition.name] = addition


def benchmarks() -> tuple[Benchmark, ...]:
    """Return every benchmark, in order."""
    return _in_order(tuple((name, id(entry)) for name, entry in _registered.items()))


@cache  # asked for each row of a report; what is registered is all that may change
def _in_order(registered: tuple[tuple[str, int], ...]) -> tuple[Benchmark, ...]:
    every = _own() | {name: _registered[name] for name, _ in registered}
    return tuple(sorted(every.values(), key=lambda one: (one.order, one.name)))


def find(name: str) -> Benchmark | None:
    """Find the benchmark called ``name``; None for a record of one that is not run here."""
    match = _registered.get(name) or _own().get(name)
    match = match or next((entry for entry in benchmarks() if name in entry.former), None)
    if match is None:
        with suppress(UsageError):  # a record of a broken package's is shown without its words
            match = _of_plugin(name)
    return match


@cache
def _of_plugin(name: str) -> Benchmark | None:
    """Load and register the benchmark that an installed package calls ``name``."""
    plugin: Benchmark | None = plugins.find(plugins.BENCHMARKS, name, Benchmark)
    if plugin is not None:
        register(plugin)
    return plugin


def benchmark(name: str) -> Benchmark:
    """Return the benchmark called ``name``.  Raises UsageError if none can be loaded."""
    if (match := find(name) or _of_plugin(name)) is None:
        raise UsageError(
            f"unknown benchmark {name!r}",
            "one of: " + ", ".join(entry.name for entry in benchmarks()),
        )
    return match


@cache
def _own() -> dict[str, Benchmark]:
    package = __name__.rpartition(".")[0]
    files = pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}.")
    modules = [importlib.import_module(file.name) for file in files if file.name != __name__]
    return {module.BENCHMARK.name: module.BENCHMARK for module in modules}


def role_of(name: str) -> Role | None:
    """Return the part of a training step that a record's benchmark stands for."""
    match = find(name)
    return match.role if match else None


def case_text(name: str, case: Case) -> str:
    """Return ``fp16 8192 × 8192 × 8192``, ``scale fp32, 64 Mi elements, cold``."""
    case = {key: value for key, value in case.items() if value is not None}
    match = find(name)
    if match is None and "model" in case:  # an experiment: a training step by another name
        match = next((entry for entry in benchmarks() if entry.role is Role.STEP), None)
    return (match.label(case) if match else "") or _by_name(case)


def _by_name(case: Case) -> str:
    """Return a case that no benchmark labels: ``p2p, peer access off, from 0, to 1``."""
    words = []
    for name, value in case.items():
        spaced = name.replace("_", " ")
        if isinstance(value, bool):
            words.append(f"{spaced} {'on' if value else 'off'}")
        elif value is not None:
            words.append(value if isinstance(value, str) else f"{spaced} {value}")
    return ", ".join(words)


def sizes_text(case: Case) -> list[str]:
    """Return ``batch 8``, ``seq 256``: the sizes of a sample that a case has."""
    sizes = (("batch", case.get("batch_size")), ("seq", case.get("seq_len")))
    return [f"{name} {size}" for name, size in sizes if size]


def kind_text(name: str, case: Case) -> str:
    """Return the text that cases of one kind and several sizes have in common."""
    match = find(name)
    sizes = match.sizes if match else frozenset()
    return f"{name} {case_label({k: v for k, v in case.items() if k not in sizes})}"


# ---- what a point proves


class Ability(StrEnum):
    """Answer to whether a device reaches the low end of a band."""

    ABLE = "able"
    NOT_ABLE = "not able"
    UNDECIDED = "undecided"


def ability(point: Record, band: tuple[float, float]) -> Ability:
    """Judge whether a point proves its device able; noise only slows, so one good value does.

    Able: as many workers as make a point reached the band, whatever slowed them.  Not able: the
    fastest that agree are quiet, as many as two rounds have and not all of one, and below it with
    their whole 95 % intervals.  (With one worker less, one healthy machine in 200 is found not able
    where every other worker is slowed and nothing shows it: `validation.verdicts`.)
    """
    reached = point.reached
    if point.rounds is None and point.is_usable:  # of a run of before
        reached = point.interval[0] if point.interval else point.value
    if reached is not None and reached >= band[0]:
        return Ability.ABLE
    used = len(point.derived.ids) if point.derived else 0
    spec = find(point.benchmark)
    enough = spec.workers(point.case) if spec else WORKERS
    has_enough = point.rounds is None or (point.rounds > 1 and used >= 2 * enough)
    is_known = point.is_usable and (point.confidence or 0.0) >= CONFIDENCE
    if has_enough and is_known and point.is_below(band):
        return Ability.NOT_ABLE
    return Ability.UNDECIDED


# ---- checks that benchmarks share


def check_options(name: str, option: str, given: Sequence[str], known: Sequence[str]) -> None:
    """Raise UsageError for a value of a `bench` option that is not one of the known words."""
    for word in given:
        if word not in known:
            raise UsageError(f"unknown {option} {word!r} for {name}", one_of(known))


def sizes_of(text: str, nums: Sequence[int], most: int, hint: str) -> tuple[int, ...]:
    """Parse ``64x128`` as (64, 128).  UsageError if the number of sizes is not in ``nums``."""
    parts = text.lower().replace("×", "x").split("x")
    if len(parts) not in nums:
        raise UsageError(f"not a size: {text!r}", hint)
    return tuple(parse_count(part, most) for part in parts)


def one_of(known: Sequence[str]) -> str:
    """Return the hint that lists the accepted words."""
    return "one of: " + ", ".join(known)


def count_of(name: str, case: Case, key: str, most: int) -> int:
    """Return a size of a case.  Raises UsageError unless it is an integer from 1 to ``most``."""
    size = case.get(key)
    if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= most:
        raise UsageError(f"{name} size {key} = {size!r}", f"a whole number from 1 to {most}")
    return size


def number_in(case: Case, key: str) -> float:
    """Return a size of a case that a stranger wrote; 0 where it is no number."""
    value = case.get(key)
    return float(value) if isinstance(value, int | float) else 0.0


def size_in(case: Case, key: str) -> int:
    """Return a size of a case that was checked."""
    return int(str(case[key]))
