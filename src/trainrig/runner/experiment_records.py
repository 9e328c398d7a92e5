"""From what a training told to records and one JSON object.

The benchmark is ``training``: whole steps of a model by some engine on some layout.  The numbers
of a step are means over the middle half of the steps behind the first ones, so that the parts add
up to the step exactly; rates are global samples over that time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainrig.machine.energy import Energy, together
from trainrig.machine.snapshot import Missing
from trainrig.record import Case, Kind, Limit, Record, Status
from trainrig.runner import energy
from trainrig.runner.experiment_devices import Device, memory_by_rank, words_of
from trainrig.runner.experiment_devices import differences as other_devices
from trainrig.runner.experiment_ranks import wrong_on_ranks
from trainrig.runner.targets import Target
from trainrig.train.backends import Result
from trainrig.train.experiment import Experiment, case_of, settings_of
from trainrig.train.layouts import Layout, asked_of, found_of
from trainrig.train.parts import COMMUNICATION, OTHER, PARTS
from trainrig.workload import find, hardware_flops, model_flops
from trainrig.workload.spans import written_tokens

BENCHMARK = "training"
WARM_UP = 3
"""Steps at the beginning that are trained and not counted."""
BREAKDOWN = (*PARTS, COMMUNICATION, OTHER)
_CASE = ("backend", "nproc", "zero", "shard_size", "offload", "p2p", "seed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One training of an experiment by fresh processes."""

    rows: Sequence[Mapping[str, Any]]
    """Its steps that count."""
    disturbed: str | None
    """Why their speed must not be judged."""
    used: Energy | Missing = energy.NOT_READ
    """The energy of these steps."""


@dataclass(slots=True, kw_only=True)
class Trained:
    """An experiment and what became of it."""

    experiment: Experiment
    auto_batch: bool = False
    """Its batch size was looked for: one that does not fit is not the end."""
    status: Status = Status.OK
    reason: str | None = None
    moot: bool = False
    """Skipped for what only GPUs have: on a processor nothing is lacking without it."""
    result: Result = field(default_factory=Result)
    apart: str | None = None
    """Why it is not comparable with the one-process reference; None if it is."""
    compared: bool = False
    """Whether there was a reference to compare with."""
    duration: float = 0.0
    load: float | None = None
    """The machine's load average when it began: what others did beside it."""
    peak: Limit | None = None
    """FLOP/s that are claimed for one of its devices in its precision, where they are."""
    busy: str | None = None
    """Why the speed of its first training must not be judged."""
    used: Energy | Missing = energy.NOT_READ
    """The energy of the steps that count of its first training."""
    devices: tuple[Device, ...] = ()
    """That its ranks found to be theirs."""
    again: list[Round] = field(default_factory=list)
    """What it was trained once more for: its speed alone."""
    recalled: bool = False
    """It was trained by an earlier process, with all its rounds."""

    @property
    def asked(self) -> Layout:
        """The layout that was asked for."""
        return asked_of(self.experiment)

    @property
    def found(self) -> Layout | None:
        """The layout that was found; None if it did not come so far."""
        return found_of(self.result.facts) if self.result.facts is not None else None

    @property
    def software(self) -> Mapping[str, str]:
        """Versions that its ranks told: python, torch, their engine's, what carries."""
        return dict((self.result.facts or {}).get("software", {}))

    @property
    def wrong_layout(self) -> list[str]:
        """What was asked for and not found."""
        if self.found is None:
            return []
        return [
            *wrong_on_ranks(self.asked, self.result),
            *other_devices(self.experiment, self.devices),
        ]

    @property
    def rounds(self) -> list[Round]:
        """All trainings of it, the first one first."""
        first = Round(rows=counted(self.result.rows), disturbed=self.busy, used=self.used)
        return [first, *self.again]

    @property
    def disturbed(self) -> str | None:
        """Why its speed must not be judged: no round of it was quiet."""
        return self.busy if all(each.disturbed for each in self.rounds) else None

    @property
    def quiet(self) -> list[Round]:
        """The rounds that were not disturbed; all where none was quiet."""
        return [each for each in self.rounds if not each.disturbed] or self.rounds

    @property
    def rows(self) -> list[Mapping[str, Any]]:
        """The steps that count, of the quiet rounds."""
        return [row for each in self.quiet for row in each.rows]

    @property
    def energy(self) -> tuple[Energy | Missing, int]:
        """Of the steps that count of the quiet rounds, and how many steps these are."""
        known = [(r.used, len(r.rows)) for r in self.quiet if not isinstance(r.used, Missing)]
        if not known or self.status is not Status.OK:
            return self.used if isinstance(self.used, Missing) else energy.NOT_READ, 0
        return together([used for used, _ in known]), sum(steps for _, steps in known)

    @property
    def middle(self) -> list[Mapping[str, Any]]:
        """Of the steps that count, those without the fastest and slowest quarters."""
        return middle(self.rows)

    def mean(self, name: str) -> float | None:
        """Of a column over the steps that count."""
        values = [row.get(name, 0.0) for row in self.middle]
        known = [float(value) for value in values if value is not None]
        return sum(known) / len(known) if known and len(known) == len(values) else None

    @property
    def word(self) -> str:
        """PASS, FAIL, NOT COMPARABLE, or why there is nothing."""
        if self.status is not Status.OK:
            return "FAIL" if self.status is not Status.SKIPPED else "skipped"
        if self.wrong_layout:
            return "FAIL"
        if self.apart is not None:
            return "NOT COMPARABLE"
        return "PASS"


def counted(rows: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """All but the first steps, where there are enough."""
    return rows[min(WARM_UP, max(0, len(rows) - 1)) :]


def middle(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Steps by their time, without the fastest and slowest quarters."""
    ordered = sorted(rows, key=lambda row: float(row["time"]))
    quarter = len(ordered) // 4
    return ordered[quarter : len(ordered) - quarter]


def case_for(experiment: Experiment, data_hash: str) -> Case:
    """What decides the numbers: the case of benchmark ``training``."""
    return {
        **case_of(experiment, data_hash),
        **{name: getattr(experiment, name) for name in _CASE},
        "experiment": experiment.name,
    }


def rates_of(trained: Trained) -> dict[str, float]:
    """Samples, tokens and FLOPs a second; the FLOPs for each device."""
    own, seconds = trained.experiment, trained.mean("time")
    if not seconds:
        return {}
    shape = find(own.model)
    each = (shape, own.batch, own.seq)
    written = written_tokens(shape, own.seq)
    flops = own.grad_accum * model_flops(*each, target_seq=written)
    done = own.grad_accum * hardware_flops(*each, target_seq=written, recompute=own.recompute)
    return {
        "sample_rate": own.global_samples / seconds,
        "token_rate": own.global_samples * own.seq / seconds,
        "flop_rate": flops / seconds,
        "hardware_flop_rate": done / seconds,
    }


def shares_of(trained: Trained) -> dict[str, float]:
    """Model FLOPs utilisation, and what the hardware did, of the claimed peak."""
    rates = rates_of(trained)
    if trained.peak is None or not trained.peak.value or not rates:
        return {}
    return {
        "mfu": rates["flop_rate"] / trained.peak.value,
        "hfu": rates["hardware_flop_rate"] / trained.peak.value,
    }


def _why_no_share(trained: Trained) -> str | None:
    if trained.status is not Status.OK:
        return trained.reason
    own = trained.experiment
    where = "CPU" if own.device == "cpu" else "device"
    return None if trained.peak else f"no {own.dtype} peak is claimed for this {where}"


def records_of(trained: Trained, target: Target, data_hash: str, environment: str) -> list[Record]:
    """A point for each number; one without a value says why there is none."""
    times = tuple(float(row["time"]) for row in trained.rows)
    base = Record(
        kind=Kind.MEASURED,
        benchmark=BENCHMARK,
        case=case_for(trained.experiment, data_hash),
        metric="time",
        unit="s",
        value=trained.mean("time") if trained.status is Status.OK else None,
        samples=times or None,
        status=trained.status,
        reason=trained.reason,
        device=target.name,
        device_index=target.index,
        device_count=trained.experiment.nproc,
        environment=environment,
        duration=trained.duration,
        disturbed=trained.disturbed if trained.status is Status.OK else None,
        conditions=_conditions(trained),
    )
    if trained.status is not Status.OK:
        return [base]
    values = [(name, unit, value) for name, unit, value in _values(trained) if value is not None]
    more = [
        base.replace(id=f"{base.id[:8]}{number:04x}", metric=name, unit=unit, value=value)
        for number, (name, unit, value) in enumerate(values)
    ]
    return [base, *(record.replace(samples=None) for record in more), *_energy(trained, base)]


def _energy(trained: Trained, base: Record) -> list[Record]:
    used, steps = trained.energy
    return energy.records_of(base, used, steps, steps * _tokens(trained.experiment))


def _tokens(own: Experiment) -> int:
    """Of one step, on all ranks."""
    return own.global_samples * own.seq


def _conditions(trained: Trained) -> Case:
    """What it ran under: versions and devices as its ranks told them, the load when it began."""
    known = {
        "devices": words_of(trained.devices),
        "cuda_visible_devices": trained.result.visible,
        "load_average": trained.load,
    }
    return {**trained.software, **{name: v for name, v in known.items() if v is not None}}


def _values(trained: Trained) -> Iterator[tuple[str, str, float | None]]:
    units = {
        "sample_rate": "sample/s",
        "token_rate": "token/s",
        "flop_rate": "FLOP/s",
        "hardware_flop_rate": "FLOP/s",
    }
    for name, value in rates_of(trained).items():
        yield name, units[name], value
    for name, value in shares_of(trained).items():
        yield name, "1", value
    for part in BREAKDOWN:
        yield f"time.{part}", "s", trained.mean(part)
    yield "time.overlapped", "s", trained.mean("overlapped")
    yield "peak_memory", "B", trained.result.memory
    yield "reserved_memory", "B", trained.result.reserved
    for name, row in (("first_loss", 0), ("train_loss", -1)):
        yield name, "nat", trained.result.rows[row]["loss"] if trained.result.rows else None


def summary_of(trained: Trained) -> dict[str, Any]:
    """One experiment as ``--json`` prints it; others script against it."""
    own, rows = trained.experiment, trained.result.rows
    used, steps = trained.energy
    rates = rates_of(trained)
    probe, shares = trained.result.probe, shares_of(trained)
    return {
        "name": own.name,
        "backend": own.backend,
        "model": own.model,
        "batch_size": own.batch,
        "batch_size_asked": "auto" if trained.auto_batch else own.batch,
        "settings": settings_of(own),
        "layout_asked": trained.asked,
        "layout_found": trained.found,
        "software_found": trained.software,
        "losses": [row["loss"] for row in rows],
        "grad_norms": [row["grad_norm"] for row in rows],
        "step_time_s": trained.mean("time"),
        "step_times_s": [row["time"] for row in trained.rows],
        "rounds": [
            {"step_times_s": [row["time"] for row in each.rows], "disturbed": each.disturbed}
            for each in trained.rounds
        ],
        "samples_per_s": rates.get("sample_rate"),
        "tokens_per_s": rates.get("token_rate"),
        "model_flops_per_s_per_device": rates.get("flop_rate"),
        "hardware_flops_per_s_per_device": rates.get("hardware_flop_rate"),
        "mfu": shares.get("mfu"),
        "hfu": shares.get("hfu"),
        "peak_flops_per_s_claimed": trained.peak.value if trained.peak else None,
        "peak_source": trained.peak.source if trained.peak else None,
        "no_mfu_reason": _why_no_share(trained),
        "peak_memory_bytes": trained.result.memory,
        "reserved_memory_bytes": trained.result.reserved,
        "memory_by_rank": memory_by_rank(trained.result),
        "devices": [dict(each) for each in trained.devices],
        "cuda_visible_devices": trained.result.visible,
        **energy.summary_of(used, steps * _tokens(own)),
        "breakdown": {part: trained.mean(part) for part in BREAKDOWN} if rows else {},
        "overlapped_communication_s": trained.mean("overlapped") if rows else None,
        "parity": {
            "losses": list(probe.losses) if probe else [],
            "grad_norms": list(probe.grad_norms) if probe else [],
            "compared": trained.compared,
            "not_comparable": trained.apart,
        },
        "load_average": trained.load,
        "disturbed": trained.disturbed,
        "status": trained.status.value,
        "reason": trained.reason,
        "row_verdict": trained.word,
    }
