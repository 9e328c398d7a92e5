"""Trainings: whether one computes what one process does, and what a run of them says of ranks.

The comparison (`train.parity`) is made of our own engine on a tiny model, whose gradients, weights
or samples are changed by hooks of torch that the engine does not know.  It has a tolerance: one
tensor of a later step lies below it, and is what burn's digests of every step are for.  The verdict
of a run is asked of what ranks would have reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from trainrig.analysis.judge_training import judge_trainings, not_falling
from trainrig.data.batches import Batch
from trainrig.process.lost_ranks import Restart
from trainrig.record import RunView, Status
from trainrig.runner.targets import Target
from trainrig.runner.train_records import Launch, Trained, records_of, step_row
from trainrig.selftest.outcome import verdict_lines
from trainrig.selftest.registry import HEALTHY, Fault, named_faults
from trainrig.train.config import Experiment, to_dict
from trainrig.train.divergence import Diverged
from trainrig.train.engines import OtherRank, Result
from trainrig.train.parity import STEPS, Probe, disagreement, probe_of
from trainrig.workload import custom

TAKES_S = 8.0
_VOCAB = 128
_TINY: dict[str, Any] = {
    "num_layers": 2,
    "hidden": 32,
    "num_heads": 2,
    "vocab": _VOCAB,
    "max_positions": 16,
}
_OWN = Experiment.of(
    model="gpt2", batch_size=4, seq_len=16, steps=2, precision="fp32", warmup=0, threads=1
)


_FAIL, _NAMED = "FAIL exit 1 error", "PASS exit 0 warning"


def faults() -> Iterator[Fault]:
    """Yield faults of the comparison, then of the verdict on a run."""
    of = _Corruption
    for name, below, variants in (
        ("a gradient that was not averaged over its ranks", of(engine=_scaled), (2.0, 0.5)),
        ("a gradient that is 1 % too large", of(engine=_scaled), (1.01,)),
        ("one tensor whose gradient the first step lost", of(engine=_frozen), ("step 0",)),
        ("a flipped exponent bit in a weight", of(engine=_flipped), ("bit 30", "bit 29")),
        ("a sample trained twice in the place of another", of(samples=_twice), ("",)),
        ("a weight that is no number", of(engine=_nan), ("",)),
    ):
        yield Fault(
            name=name,
            check="train.parity",
            inject=partial(_trained, below),
            observe=_compared,
            variants=variants,
            twin="probe",
        )
    planted = (
        ("a slow rank that the others wait for", _NAMED, "rank-waited-for", _slow_rank),
        ("a rank that was killed, and a training that went on", _NAMED, "rank-lost", _lost),
        ("a training that broke", _FAIL, "training-failed", _broken),
        ("one rank in place of two", _FAIL, "layout-not-as-asked", _one_rank),
        ("losses that are not those of one process", _FAIL, "not-comparable", _apart),
        ("a reference that could not be trained", _FAIL, "no-reference", _no_reference),
        ("a model that learned token frequencies alone", _NAMED, "does-not-learn", _unlearned),
        ("a batch that does not fit", _NAMED, "batch-too-large", _too_large),
    )
    rows = (
        (name, says, finds, partial(_run_view, trained)) for name, says, finds, trained in planted
    )
    yield from named_faults("train", rows, _judged, "run")
    yield Fault(
        name="a loss that does not fall",
        check="train.loss",
        says="does not fall",
        inject=_losses,
        observe=lambda losses: [message] if (message := not_falling(losses)) else [],
    )


# ---- what is computed


@dataclass(frozen=True, slots=True, kw_only=True)
class _Corruption:
    """Change below a training."""

    engine: Callable[[Any, Any], None] = lambda engine, variant: None
    """To its weights and gradients, before the first step."""
    samples: Callable[[Any], Any] = lambda tokens: tokens
    """To the tokens of every step."""


def _scaled(engine: Any, factor: float) -> None:
    for weight in _weights(engine):
        weight.register_hook(lambda gradient: gradient * factor)


def _frozen(engine: Any, place: str) -> None:
    step, seen = int(place.split()[1]), 0

    def hook(gradient: Any) -> Any:
        nonlocal seen
        seen += 1
        return gradient * 0.0 if seen == step + 1 else gradient

    max(_weights(engine), key=lambda weight: int(weight.numel())).register_hook(hook)


def _flipped(engine: Any, place: str) -> None:
    import torch

    with torch.no_grad():
        _weights(engine)[0].view(-1).view(torch.int32)[5] ^= 1 << int(place.split()[1])


def _nan(engine: Any, _: str) -> None:
    import torch

    with torch.no_grad():
        _weights(engine)[-1].view(-1)[0] = float("nan")


def _twice(tokens: Any) -> Any:
    """Return the first sample in the place of the second."""
    repeated = tokens.copy()
    repeated[1] = repeated[0]
    return repeated


def _weights(engine: Any) -> list[Any]:
    return [weight for weight in engine.weights.model.values() if weight.requires_grad]


@contextmanager
def _trained(below: _Corruption, folder: Path, variant: Any) -> Iterator[Callable[[], Probe]]:
    """A training that is not begun yet."""
    yield partial(_probe, _Corruption() if variant is HEALTHY else below, variant)


def _probe(below: _Corruption, variant: Any = HEALTHY) -> Probe:
    """Five steps of our engine on random tokens, in this process."""
    import torch

    from trainrig.train.native.loop import Engine

    experiment, rows = probe_of(_OWN), list[Mapping[str, Any]]()

    def batch(step: int) -> Batch:
        import numpy as np

        size = (experiment.global_samples, experiment.seq_len + 1)
        tokens = below.samples(np.random.default_rng((7, step)).integers(0, _VOCAB, size))
        return Batch(inputs=tokens[:, :-1].copy(), labels=tokens[:, 1:].copy())

    torch.set_num_threads(1)
    with Engine(experiment, custom("gpt2", **_TINY), batches=batch) as engine:
        below.engine(engine, variant)
        engine.run(rows.append, lambda step: step >= STEPS)
    return Probe(
        losses=tuple(row["loss"] for row in rows),
        grad_norms=tuple(row["grad_norm"] for row in rows),
    )


@cache
def _reference() -> Probe:
    return _probe(_Corruption())


def _compared(train: Callable[[], Probe]) -> Iterable[str]:
    try:
        message = disagreement(train(), _reference(), _OWN.precision)
    except Diverged as error:
        return [f"diverged: {error}"]
    return [f"DIFFERS: {message}"] if message is not None else []


# ---- what is planted of a run

RANK_FACTS = {
    "num_parameters": 1000,
    **dict.fromkeys(("weights", "weights_between", "gradients", "masters", "states"), 1000),
    "moments": 2,
    "micro_batches": 1,
    "micro_tokens": 1024,
    "block_forwards": 1,
    **dict.fromkeys(("weight_dtype", "gradient_dtype", "master_dtype", "state_dtype"), "float32"),
    "wrapped": "DistributedDataParallel",
    "placements": None,
    "transport": "gloo",
    "ranks": 2,
    "optimizer": "AdamW",
    "fused": True,
    "compiled": False,
    "offloaded": False,
    "device": "cpu",
    "threads": 1,
}
"""Facts that a rank reports: plain data parallelism on two ranks, a thousand weights."""
_TWO = Experiment.of(
    model="gpt2-small-cpu",
    name="two",
    nproc=2,
    batch_size=4,
    seq_len=256,
    precision="fp32",
    device="cpu",
)
_TARGET = Target(torch_device="cpu", name="a CPU", index=None, memory_bytes=0, chip=None)
_PARTS = {"data_wait": 0.0, "forward": 0.2, "backward": 0.24, "optimizer": 0.05, "other": 0.01}
_ROWS = tuple(
    {"step": step, "loss": 9.0 - step, "grad_norm": 1.0, "time": sum(_PARTS.values()), **_PARTS}
    for step in range(8)
)


def _profiled(forward: float, waits: float) -> tuple[dict[str, Any], ...]:
    """Return a rank's steps under the profiler.

    What it did itself, and how long it waited for others.
    """
    seconds_by_phase = {"forward": forward, "backward": 0.24}
    step = {
        "step_s": sum(seconds_by_phase.values()) + waits,
        "own_s": sum(seconds_by_phase.values()),
        "own_in": seconds_by_phase,
    }
    step |= {"communication_s": waits, "bubble_s": 0.0, "idle_s": 0.0, "overlapped_s": 0.0}
    return (step,) * 6


def _result(**changes: Any) -> Result:
    even = _profiled(0.20, 0.05)
    usual = {"rows": _ROWS, "facts": RANK_FACTS, "peers": (OtherRank(rank=1, facts=RANK_FACTS),)}
    return Result(**{**usual, "profiles": (even, even), **changes})


def _two(result: Result | None = None, **changes: Any) -> Trained:
    launch = Launch(result=result or _result(heldout=((8, 3.0),)))
    usual = {"experiment": _TWO, "rounds": [launch], "compared": True, "entropy": 6.0}
    return Trained(**{**usual, **changes})


def _slow_rank() -> Trained:
    return _two(_result(profiles=(_profiled(0.20, 0.10), _profiled(0.29, 0.01))))


def _lost() -> Trained:
    cause = "rank 1 was ended by SIGKILL in forward of step 5"
    restart = Restart(cause=cause, rank=1, ranks=2, step=4, steps_lost=1, time_lost_s=6.5)
    return _two(_result(restarts=(restart,)))


def _broken() -> Trained:
    return _two(status=Status.FAILED, reason="rank 0 was ended by SIGSEGV")


def _one_rank() -> Trained:
    return _two(_result(facts={**RANK_FACTS, "ranks": 1}))


def _apart() -> Trained:
    return _two(not_comparable=disagreement(_scaled_probe(), _reference(), "fp32"))


def _scaled_probe() -> Probe:
    return _probe(_Corruption(engine=_scaled), 2.0)


def _no_reference() -> Trained:
    return _two(no_reference="out of memory", compared=False)


def _unlearned() -> Trained:
    return _two(_result(heldout=((8, 5.9),)))


def _too_large() -> Trained:
    return _two(status=Status.OOM, reason="rank 0: out of memory")


@contextmanager
def _run_view(trained: Callable[[], Trained], folder: Path, variant: Any) -> Iterator[RunView]:
    """Return a run as its records and series have it."""
    training = _two() if variant is HEALTHY else trained()
    went_on = 2 if trained is _too_large and variant is not HEALTHY else None
    trainings = [(training, went_on), *([(_two(), None)] if went_on else [])]
    yield RunView(
        name="run",
        config={"experiments": [to_dict(training.experiment)]},
        records=tuple(
            record
            for member, smaller in trainings
            for record in records_of(member, _TARGET, "0" * 64, "", went_on=smaller)
        ),
        series={
            f"steps-{number}": tuple(
                step_row(row, 1, launch.training_id)
                for launch in member.rounds
                for row in launch.result.rows
            )
            for number, (member, _) in enumerate(trainings)
        },
    )


def _judged(view: RunView) -> Iterable[str]:
    return verdict_lines(judge_trainings(view))


@contextmanager
def _losses(folder: Path, variant: Any) -> Iterator[list[float]]:
    """Open a scene of ten steps' losses."""
    yield [9.0 - 0.3 * step * (variant is HEALTHY) for step in range(10)]
