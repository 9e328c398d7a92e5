"""The outcome of an experiment: its trainings, the steps that count, rates and verdict.

The numbers of a step are means over the middle half of the steps behind the first ones, so that the
parts add up to the step exactly; rates are global samples over that time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainrig.analysis.training_facts import NOTHING_TRAINED, counted
from trainrig.machine.energy import Energy, together
from trainrig.machine.snapshot import Missing
from trainrig.record import Limit, Record, Status, new_id
from trainrig.stats import Attempt, Combined, combine_attempts, median, median_interval
from trainrig.train.config import Experiment
from trainrig.train.engines import Result
from trainrig.train.layout_check import Layout, differences, observed_layout, requested_layout
from trainrig.workload import find, hardware_flops, model_flops
from trainrig.workload.span_corruption import written_tokens

Device = Mapping[str, Any]
"""A device that a rank observed to be its own: rank, device, name, uuid, index, cores."""
NOT_READ = Missing(NOTHING_TRAINED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One training of an experiment by fresh processes."""

    rows: Sequence[Mapping[str, Any]]
    """Its steps that count."""
    disturbed: str | None
    """Why their speed must not be judged."""
    used: Energy | Missing = NOT_READ
    """The energy of the longest stretch of these steps without a checkpoint."""
    used_steps: int | None = None
    """How many steps that stretch has; None: all."""
    training_id: str = ""
    """What the rows of its series are marked with."""


@dataclass(slots=True, kw_only=True)
class Trained:
    """An experiment and what became of it."""

    experiment: Experiment
    auto_batch: bool = False
    """Its batch size was looked for: one that does not fit is not the end."""
    status: Status = Status.OK
    reason: str | None = None
    needs_gpu: bool = False
    """Skipped for what only GPUs have: on a processor nothing is lacking without it."""
    training_id: str = field(default_factory=new_id)
    """Of the first one: what the rows of its series are marked with."""
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
    used: Energy | Missing = NOT_READ
    """The energy of the steps that count of its first training."""
    devices: tuple[Device, ...] = ()
    """That its ranks found to be theirs."""
    again: list[Round] = field(default_factory=list)
    """Why it was trained once more: for its speed alone."""
    must_agree: bool = False
    """Its rounds are fresh processes that must be alike fast, else its speed is not judged."""
    ceiling: Record | None = None
    """The fastest matrix product of its precision, where it was measured beside it."""
    entropy: float | None = None
    """Nats of the text's token frequencies, where its held-out loss can be compared with them."""
    recalled: bool = False
    """It was trained by an earlier process, with all its rounds."""

    @property
    def requested(self) -> Layout:
        """The layout that was asked for."""
        return requested_layout(self.experiment)

    @property
    def found(self) -> Layout | None:
        """The layout that was found; None if it did not come so far."""
        return observed_layout(self.result.facts) if self.result.facts is not None else None

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
            *wrong_on_ranks(self.requested, self.result),
            *device_differences(self.experiment, self.devices),
        ]

    @property
    def rounds(self) -> list[Round]:
        """All trainings of it, the first one first."""
        first = Round(
            rows=counted(self.result.rows),
            disturbed=self.busy,
            used=self.used,
            used_steps=len(counted(self.result.stretch)) if self.result.stretch else None,
            training_id=self.training_id,
        )
        return [first, *self.again]

    @property
    def disturbed(self) -> str | None:
        """Why its speed must not be judged: no round was quiet, or processes disagree."""
        if self.must_agree and self.again:
            combined = self.combined
            return combined.disturbed if combined else None
        return self.busy if all(each.disturbed for each in self.rounds) else None

    @property
    def combined(self) -> Combined | None:
        """The median time of a step with its interval, over the rounds."""
        attempts = []
        for each in self.rounds:
            times = [float(row["time"]) for row in each.rows if row["time"] is not None]
            if times:
                interval = median_interval(times)
                attempts.append(
                    Attempt(value=median(times), interval=interval, disturbed=each.disturbed)
                )
        required = 2 if self.must_agree and self.again else 1
        return combine_attempts(attempts, required) if attempts else None

    @property
    def clean(self) -> list[Round]:
        """The rounds that were not noisy; all where none was quiet."""
        return [each for each in self.rounds if not each.disturbed] or self.rounds

    @property
    def rows(self) -> list[Mapping[str, Any]]:
        """The steps that count, of the quiet rounds."""
        return [row for each in self.clean for row in each.rows]

    @property
    def energy(self) -> tuple[Energy | Missing, int]:
        """Of the steps that count of the quiet rounds, and how many steps these are."""
        known = [
            (each.used, len(each.rows) if each.used_steps is None else each.used_steps)
            for each in self.clean
            if not isinstance(each.used, Missing)
        ]
        if not known or self.status is not Status.OK:
            return self.used if isinstance(self.used, Missing) else NOT_READ, 0
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
    """Model FLOPs utilisation, and what the hardware did, of the claimed peak.

    ``mfu_of_matmul`` is of the fastest matrix product that was measured.
    """
    rates = rates_of(trained)
    if not rates:
        return {}
    shares = {}
    if trained.peak is not None and trained.peak.value:
        shares["mfu"] = rates["flop_rate"] / trained.peak.value
        shares["hfu"] = rates["hardware_flop_rate"] / trained.peak.value
    if trained.ceiling is not None and trained.ceiling.value:
        shares["mfu_of_matmul"] = rates["flop_rate"] / trained.ceiling.value
    return shares


def wrong_on_ranks(requested: Layout, result: Result) -> list[str]:
    """What was asked for and not found, by each rank; what all of them lack is said once."""
    everywhere: dict[str, list[int]] = {}
    facts = [(0, result.facts), *((peer.rank, peer.facts) for peer in result.peers)]
    known = [(rank, observed_layout(each)) for rank, each in facts if each is not None]
    for rank, found in known:
        for words in differences(requested, found):
            everywhere.setdefault(words, []).append(rank)
    return [
        words if len(ranks) == len(known) else f"{words} on rank {', '.join(map(str, ranks))}"
        for words, ranks in everywhere.items()
    ]


def device_differences(experiment: Experiment, devices: Sequence[Device]) -> list[str]:
    """Devices that ranks were given and did not get, and GPUs that two of them share."""
    wrong: list[str] = []
    numbers = [device.get("index") for device in devices]
    if experiment.device_numbers and None not in numbers and len(devices) == experiment.mesh.ranks:
        requested = list(experiment.device_numbers)
        wrong += [f"devices: asked {requested}, found {numbers}"] if requested != numbers else []
    uuids = [str(device["uuid"]) for device in devices if device.get("uuid")]
    shared = next((uuid for uuid in uuids if uuids.count(uuid) > 1), None)
    wrong += [f"devices: asked one for each rank, found {shared} more than once"] if shared else []
    return wrong
