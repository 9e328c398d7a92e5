"""An experiment and what became of it: its trainings, the steps that count, rates and verdict.

The numbers of a step are means over the middle half of the steps behind the first ones, so that the
parts add up to the step exactly; rates are global samples over that time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainrig.machine.energy import Energy, together
from trainrig.machine.snapshot import Missing
from trainrig.record import Limit, Status
from trainrig.runner import energy
from trainrig.runner.experiment_ranks import wrong_on_ranks
from trainrig.runner.train_devices import Device
from trainrig.runner.train_devices import differences as other_devices
from trainrig.train.config import Experiment
from trainrig.train.engines import Result
from trainrig.train.layout_check import Layout, asked_of, found_of
from trainrig.workload import find, hardware_flops, model_flops
from trainrig.workload.span_corruption import written_tokens

WARM_UP = 3
"""Steps at the beginning that are trained and not counted."""


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

    def mean(self, name: str) -> float | None:
        """Of a column over the middle half of the steps that count."""
        values = [row.get(name, 0.0) for row in middle(self.rows)]
        known = [float(value) for value in values if value is not None]
        return sum(known) / len(known) if known and len(known) == len(values) else None

    @property
    def word(self) -> str:
        """PASS, FAIL, NOT COMPARABLE, not compared (its reference failed), or skipped."""
        if self.status is not Status.OK:
            return "FAIL" if self.status is not Status.SKIPPED else "skipped"
        if self.wrong_layout:
            return "FAIL"
        if self.apart is not None:
            return "NOT COMPARABLE"
        return "PASS" if self.compared else "not compared"


def counted(rows: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """All but the first steps, where there are enough."""
    return rows[min(WARM_UP, max(0, len(rows) - 1)) :]


def middle(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Steps by their time, without the fastest and slowest quarters."""
    ordered = sorted(rows, key=lambda row: float(row["time"]))
    quarter = len(ordered) // 4
    return ordered[quarter : len(ordered) - quarter]


def rates_of(trained: Trained) -> dict[str, float]:
    """Samples, tokens and FLOPs a second; the FLOPs for each device."""
    own, seconds = trained.experiment, trained.mean("time")
    if not seconds:
        return {}
    shape = find(own.model)
    each = (shape, own.batch_size, own.seq_len)
    written = written_tokens(shape, own.seq_len)
    flops = own.grad_accum * model_flops(*each, target_seq_len=written)
    done = own.grad_accum * hardware_flops(*each, target_seq_len=written, recompute=own.recompute)
    return {
        "sample_rate": own.global_samples / seconds,
        "token_rate": own.global_samples * own.seq_len / seconds,
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
