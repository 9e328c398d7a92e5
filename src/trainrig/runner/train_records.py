"""A training while its run is open, its records, and a row for each of its steps.

The benchmark is ``training``: whole steps of a model by some framework on some layout.  Once it is
written, all that is known of it is read from there (`analysis.training_results`).

The numbers of a step are means over the middle half of the steps behind the first ones, so that the
parts add up to the step exactly; rates are global samples over that time.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainrig.analysis.judge_training import find_straggler
from trainrig.analysis.training_facts import (
    BREAKDOWN,
    NOTHING_TRAINED,
    RETRIED_BATCH,
    TRACES,
    flat,
    steps_after_warm_up,
)
from trainrig.benchmarks.spec import WORKERS
from trainrig.benchmarks.training import BENCHMARK as TRAINING
from trainrig.machine.energy import Energy, together
from trainrig.machine.snapshot import Missing
from trainrig.record import Kind, Limit, Record, Status, new_id
from trainrig.runner import energy
from trainrig.runner.targets import Target
from trainrig.stats import Attempt, Combined, combine_attempts, median, median_interval
from trainrig.store.run_folder import LOGS
from trainrig.train.config import Experiment, case_of
from trainrig.train.engines import Result
from trainrig.train.fewer_ranks import on_ranks
from trainrig.train.layout_check import (
    differences,
    exchange_differences,
    expected_exchanges,
    observed_layout,
    requested_layout,
)
from trainrig.train.parity import is_reference
from trainrig.units import format_count, ranges
from trainrig.workload import find, hardware_flops, model_flops
from trainrig.workload.rank_layout import RANK_KEYS, REQUESTED, RankLayout
from trainrig.workload.span_corruption import written_tokens

Device = Mapping[str, Any]
"""A device that a rank observed to be its own: rank, device, name, uuid, index, cores."""
NOT_READ = Missing(NOTHING_TRAINED)


@dataclass(slots=True, kw_only=True)
class Launch:
    """One start of an experiment's processes, and what came of it."""

    training_id: str = field(default_factory=new_id)
    """Id that marks its rows in the series file."""
    status: Status = Status.OK
    reason: str | None = None
    result: Result = field(default_factory=Result)
    disturbed: str | None = None
    """Reason that its speed must not be judged; None if it may."""
    devices: tuple[Device, ...] = ()
    """That its ranks found to be theirs."""
    used: Energy | Missing = NOT_READ
    """The energy of the longest stretch of its steps that count without a checkpoint."""
    load: float | None = None
    """The machine's load average when it began: what others did beside it."""
    duration: float = 0.0

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """Return the timed steps, without warm-up."""
        return steps_after_warm_up(self.result.rows)

    @property
    def used_steps(self) -> int:
        """Number of steps that `used` covers."""
        return len(steps_after_warm_up(self.result.stretch or self.result.rows))


@dataclass(slots=True, kw_only=True)
class Trained:
    """An experiment of an open run: its rounds so far, and what it was compared with."""

    experiment: Experiment
    slug: str = ""
    """File-name stem of its logs."""
    auto_batch: bool = False
    """Its batch size was looked for: one that does not fit is not the end."""
    status: Status = Status.OK
    reason: str | None = None
    needs_gpu: bool = False
    """Skipped for what only GPUs have: on a processor nothing is lacking without it."""
    rounds: list[Launch] = field(default_factory=list)
    """The first one, and those for its speed alone."""
    must_agree: bool = False
    """Its rounds are fresh processes that must be alike fast, else its speed is not judged."""
    not_comparable: str | None = None
    """Reason that it is not comparable with the one-process reference; None if it is."""
    reference_loss: float | None = None
    """Loss of the first step in one process."""
    gaps: tuple[float, float | None] | None = None
    """Largest relative difference of losses from the reference, and of first gradient norms."""
    compared: bool = False
    """True if there was a reference to compare with."""
    no_reference: str | None = None
    """Reason that there was no reference: how its training failed."""
    compared_with: str | None = None
    """The shorter model that was compared in its place, and why; None: itself."""
    peak: Limit | None = None
    """FLOP/s that are claimed for one of its devices in its precision, where they are."""
    ceiling: Record | None = None
    """The fastest matrix product of its precision, where it was measured beside it."""
    entropy: float | None = None
    """Nats of the text's token frequencies, where its held-out loss can be compared with them."""

    @property
    def folder_name(self) -> str:
        """Return the name of its folder in the run's logs."""
        return f"{self.slug}-batch-{self.experiment.batch_size}" if self.auto_batch else self.slug

    @property
    def first(self) -> Launch:
        """Return the first round, whose losses and layout are reported; others add timing."""
        return self.rounds[0] if self.rounds else Launch()

    @property
    def found(self) -> RankLayout | None:
        """Return the layout that was found; None if it did not come so far."""
        facts = self.first.result.facts
        return observed_layout(facts) if facts is not None else None

    @property
    def wrong_layout(self) -> list[str]:
        """Return the parts of the requested layout that were not observed."""
        if self.found is None:
            return []
        result, experiment = self.first.result, self.experiment
        if 0 < result.ranks < experiment.processes and self.first.status is Status.OK:
            experiment = on_ranks(experiment, result.ranks)  # that went on without the others
        return [
            *wrong_on_ranks(experiment, result),
            *device_differences(experiment, self.first.devices),
        ]

    @property
    def disturbed(self) -> str | None:
        """Return why its speed must not be judged: no quiet round, or processes that disagree."""
        if self.must_agree and self.rows:
            combined = self.combined
            return combined.disturbed if combined else None
        return self.first.disturbed if all(launch.disturbed for launch in self.rounds) else None

    @property
    def combined(self) -> Combined | None:
        """Return the median time of a step with its interval, over the rounds."""
        attempts = []
        for launch in self.rounds:
            times = [float(row["time"]) for row in launch.rows if row["time"] is not None]
            if times:
                interval = median_interval(times)
                attempts.append(
                    Attempt(value=median(times), interval=interval, disturbed=launch.disturbed)
                )
        required = WORKERS if self.must_agree else 1
        return combine_attempts(attempts, required) if attempts else None

    @property
    def clean(self) -> list[Launch]:
        """Return the quiet rounds; all rounds where none was quiet."""
        return [launch for launch in self.rounds if not launch.disturbed] or self.rounds

    @property
    def rows(self) -> list[Mapping[str, Any]]:
        """Return the timed steps of the quiet rounds."""
        return [row for launch in self.clean for row in launch.rows]

    @property
    def energy(self) -> tuple[Energy | Missing, int]:
        """Return the energy of the quiet rounds' timed steps, and the number of these steps."""
        readings = [
            (launch.used, launch.used_steps)
            for launch in self.clean
            if not isinstance(launch.used, Missing)
        ]
        if not readings:
            used = self.first.used
            return used if isinstance(used, Missing) else NOT_READ, 0
        return together([used for used, _ in readings]), sum(steps for _, steps in readings)

    def mean(self, name: str) -> float | None:
        """Return the mean of a column over the timed steps with the middle half of step times."""
        ordered = sorted(self.rows, key=lambda row: float(row["time"]))
        quarter = len(ordered) // 4
        values = [row.get(name, 0.0) for row in ordered[quarter : len(ordered) - quarter]]
        numbers = [float(value) for value in values if value is not None]
        return sum(numbers) / len(numbers) if numbers and len(numbers) == len(values) else None

    @property
    def word(self) -> str:
        """agreed, DIFFERS, NOT COMPARABLE, skipped; FAIL: it broke; not compared: interrupted."""
        if self.status is not Status.OK:
            return "FAIL" if self.status is not Status.SKIPPED else "skipped"
        if self.wrong_layout:
            return "DIFFERS"
        if self.not_comparable is not None:
            return "DIFFERS" if self.experiment.expected.comparable else "NOT COMPARABLE"
        if self.compared:
            return "agreed"
        return "NOT COMPARABLE" if self.no_reference is not None else "not compared"


def rates_of(trained: Trained) -> dict[str, float]:
    """Return samples, tokens and (per device) FLOPs per second, and their shares of peaks.

    ``mfu`` is the model's FLOPs and ``hfu`` what the hardware did, of the claimed peak;
    ``mfu_of_matmul`` is of the fastest matrix product that was measured.
    """
    experiment, seconds = trained.experiment, trained.mean("time")
    if not seconds:
        return {}
    shape = find(experiment.model)
    each = (shape, experiment.batch_size, experiment.seq_len)
    written = written_tokens(shape, experiment.seq_len)
    flops = experiment.grad_accum * model_flops(*each, target_seq_len=written)
    done = experiment.grad_accum * hardware_flops(
        *each, target_seq_len=written, recompute=experiment.recompute
    )
    rates = {
        "sample_rate": experiment.global_samples / seconds,
        "token_rate": experiment.global_samples * experiment.seq_len / seconds,
        "flop_rate": flops / seconds,
        "hardware_flop_rate": done / seconds,
    }
    if trained.peak is not None and trained.peak.value:
        rates["mfu"] = rates["flop_rate"] / trained.peak.value
        rates["hfu"] = rates["hardware_flop_rate"] / trained.peak.value
    if trained.ceiling is not None and trained.ceiling.value:
        rates["mfu_of_matmul"] = rates["flop_rate"] / trained.ceiling.value
    return rates


def slug_of(name: str) -> str:
    """Return a name in a form fit for file names."""
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-").lower()[:40] or "experiment"


def step_row(event: Mapping[str, Any], number: int, training_id: str) -> dict[str, Any]:
    """Return a step as the series ``steps-<slug>`` has it; ``number``: of the round."""
    seconds, tokens = event.get("time"), event.get("tokens")
    return {
        "step": event["step"],
        "round": number,
        "training_id": training_id,
        "loss": event.get("loss"),
        "grad_norm": event.get("grad_norm"),
        "time": seconds,
        "tokens": tokens,
        "tokens_per_s": tokens / seconds if seconds and tokens else None,
        "lr": event.get("lr"),
        "parts": {name: event[name] for name in BREAKDOWN if name in event},
        "at": event.get("at"),
    }


def wrong_on_ranks(experiment: Experiment, result: Result) -> list[str]:
    """Return what each rank lacks of the requested layout; what all lack is said once."""
    requested = requested_layout(experiment)
    everywhere: dict[str, list[int]] = {}
    facts = [(0, result.facts), *((peer.rank, peer.facts) for peer in result.peers)]
    facts_by_rank = [(rank, rank_facts) for rank, rank_facts in facts if rank_facts is not None]
    for rank, rank_facts in facts_by_rank:
        observed, expected = observed_layout(rank_facts), expected_exchanges(experiment, rank_facts)
        rank_words = (
            []
            if expected is None
            else exchange_differences(expected, observed.communication.exchanges)
        )
        for words in (*differences(requested, observed), *rank_words):
            everywhere.setdefault(words, []).append(rank)
    return [
        words
        if len(ranks) == len(facts_by_rank)
        else f"{words} on rank {', '.join(map(str, ranks))}"
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


def records_of(
    trained: Trained,
    target: Target,
    data_hash: str,
    environment: str,
    went_on: int | None = None,
) -> list[Record]:
    """Return a point for each metric; one without a value gives the reason.

    The first, of the time, has what else is known.  ``went_on``: the batch that was tried next.
    """
    seconds, combined = trained.mean("time"), trained.combined
    slower = dict(target.arithmetic.emulated).get(trained.experiment.precision)
    more_facts: dict[str, Any] = {RETRIED_BATCH: went_on} if went_on else {}
    more_facts |= {"emulated": slower} if slower else {}
    base = Record(
        kind=Kind.MEASURED,
        benchmark=TRAINING.name,
        version=TRAINING.version,
        case=case_of(trained.experiment, data_hash),
        metric="time",
        unit="s",
        samples=tuple(float(row["time"]) for row in trained.rows) or None,
        status=trained.status,
        reason=trained.reason,
        device=target.name,
        device_index=target.index,
        device_count=trained.experiment.mesh.ranks,
        environment=environment,
        duration=sum(launch.duration for launch in trained.rounds),
        conditions=flat(_facts(trained) | more_facts),
    )
    if trained.status is not Status.OK:
        return [base]
    base = base.replace(value=seconds, disturbed=trained.disturbed)
    if combined is not None:
        middle = seconds or combined.value
        low, high = min(combined.interval.low, middle), max(combined.interval.high, middle)
        level = combined.interval.confidence or None
        base = base.replace(interval=(low, high), confidence=level)
    bare = base.replace(samples=None, interval=None, confidence=None, conditions={})
    values = [(name, unit, value) for name, unit, value in _values(trained) if value is not None]
    further_points = [
        bare.replace(
            id=f"{base.id[:8]}{number:04x}",
            metric=name,
            unit=unit,
            value=value,
            interval=_ends(base, value) if name in _RATES else None,
            confidence=base.confidence if name in _RATES else None,
            disturbed=None if unit == "nat" else base.disturbed,
            limit=trained.peak if name == "flop_rate" else None,
        )
        for number, (name, unit, value) in enumerate(values)
    ]
    used, steps = trained.energy
    tokens = trained.experiment.global_samples * trained.experiment.seq_len
    return [base, *further_points, *energy.records_of(bare, used, steps, steps * tokens)]


def _ends(time: Record, value: float) -> tuple[float, float] | None:
    """Return the interval of a rate: the longest time is the lowest."""
    if not time.value or time.interval is None:
        return None
    return value * time.value / time.interval[1], value * time.value / time.interval[0]


def _facts(trained: Trained) -> dict[str, Any]:
    """Return its ranks' facts, its judgement, and the machine's load when it began."""
    experiment, launch = trained.experiment, trained.first
    probe, requested = launch.result.probe, requested_layout(experiment)
    return {
        "row_verdict": trained.word,
        "steps": experiment.steps,
        "layout_asked": {
            key: value for key in REQUESTED if (value := RANK_KEYS.get(requested, key)) is not None
        },
        "layout_found": None if trained.found is None else trained.found.to_dict(),
        "wrong_layout": trained.wrong_layout,
        "profiled": launch.result.profiled,
        "no_breakdown_reason": launch.result.no_profile or None,
        TRACES: [f"{LOGS}/{trained.folder_name}/{name}" for name in launch.result.traces] or None,
        "software_found": dict((launch.result.facts or {}).get("software", {})),
        "heldout": [{"step": step, "loss": loss} for step, loss in launch.result.heldout],
        "weight_decay": dict(
            zip(("decayed", "not_decayed"), launch.result.decayed or (), strict=False)
        ),
        "restarts": [dataclasses.asdict(each) for each in launch.result.restarts],
        "straggler": find_straggler(launch.result.profiles, launch.result.hosts),
        "unigram_entropy": trained.entropy,
        "needs_gpu": trained.needs_gpu,
        "reference_loss": trained.reference_loss,
        "parity": {
            "loss_gap": trained.gaps[0] if trained.gaps else None,
            "norm_gap": trained.gaps[1] if trained.gaps else None,
            "compared": trained.compared,
            "not_comparable": trained.not_comparable,
            "is_reference": is_reference(experiment, experiment),
            "no_reference": trained.no_reference,
            "compared_with": trained.compared_with,
            "declared": experiment.expected.why or None,
            "rounding": probe.rounding if probe else None,
            "losses": probe.losses if probe else (),
            "grad_norms": probe.grad_norms if probe else (),
        },
        "rounds": [
            {"training_id": each.training_id, "disturbed": each.disturbed}
            for each in trained.rounds
        ],
        "devices": [
            {**each, "cores": ranges(each["cores"])} if each.get("cores") else each
            for each in launch.devices
        ],
        "memory_by_rank": [
            {
                "rank": each["rank"],
                "device": each["device"],
                "allocated_bytes": each["allocated"],
                "reserved_bytes": each["reserved"],
                "outside_bytes": each.get("outside"),
                "alloc_retries": each.get("retries"),
                "ooms": each.get("ooms"),
            }
            for each in launch.result.memories
        ],
        "cuda_visible_devices": launch.result.visible,
        "load_average": launch.load,
    }


_RATES = {
    "sample_rate": "sample/s",
    "token_rate": "token/s",
    "flop_rate": "FLOP/s",
    "hardware_flop_rate": "FLOP/s",
    **dict.fromkeys(("mfu", "hfu", "mfu_of_matmul"), "1"),
}


def _values(trained: Trained) -> Iterator[tuple[str, str, float | None]]:
    result = trained.first.result
    for name, value in rates_of(trained).items():
        yield name, _RATES[name], value
    for phase in BREAKDOWN:
        yield f"time.{phase}", "s", trained.mean(phase)
    yield "peak_memory", "B", result.memory
    yield "reserved_memory", "B", result.reserved
    yield "heldout_loss", "nat", result.heldout[-1][1] if result.heldout else None
    for name, row in (("first_loss", 0), ("train_loss", -1)):
        yield name, "nat", result.rows[row]["loss"] if result.rows else None


def resumed_line(name: str, event: Mapping[str, Any]) -> str:
    """Return the checkpoint a training resumes from, and an unfinished save before it."""
    text = f"{name}: goes on from step {event['step']}"
    if event["broken_off"]:
        steps = ", ".join(map(str, event["broken_off"]))
        text += f"; the save of step {steps} was broken off"
    return text


def step_line(experiment: Experiment, row: Mapping[str, Any]) -> str:
    """Return a step in a line, while others follow."""
    loss, speed = row["loss"], row["tokens_per_s"]
    text = f"{experiment.name}: step {row['step'] + 1} of {experiment.steps}: loss "
    text += "no number" if loss is None else f"{loss:.3f}"
    return text + (f", {format_count(speed)} tokens/s" if speed else "")


def outcome_line(trained: Trained, records: Mapping[str, Record]) -> str:
    """Return a training's result as one line, from its records by metric."""
    time, name = records["time"], trained.experiment.name
    if time.status is not Status.OK:
        return f"{name}: {time.status.value}: {time.reason}"
    tokens, rate, first, last = (
        records[metric].value or 0.0 if metric in records else 0.0
        for metric in ("token_rate", "sample_rate", "first_loss", "train_loss")
    )
    speed = f"{format_count(tokens)} tokens/s, {format_count(rate)} samples/s"
    line = f"{name}: {speed}, loss {first:.4f} to {last:.4f}"
    if "heldout_loss" in records:
        line += f", held out {records['heldout_loss'].value:.4f}"
    verdict = time.conditions["row_verdict"]
    if verdict != "agreed":
        return f"{line}: {verdict}"
    return line if trained.must_agree else f"{line}: as the reference"
