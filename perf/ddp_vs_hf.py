"""Two ranks of our engine beside two of Hugging Face's Trainer: same model, weights, data, dtype.

GPT-2 of 4 layers, width 256, vocabulary 8192, 4 samples of 256 tokens a rank, fused AdamW, the same
clipping and learning rates; gloo, one thread a rank.  In each round each side is started afresh and
trains, in turns.  Equal is what `train.parity` calls comparable, of both with one process of ours.
Beside it: what a second rank brings, and how much of a step is exposed communication with and
without accumulation.

Peer: transformers.Trainer under DistributedDataParallel, with bf16=True (autocast) in bf16.
"""

from __future__ import annotations

import math
import random
import tempfile
from pathlib import Path
from typing import Any

from _shared import in_turns, middle, options, ratio_of, say_load, trained_in, verdict

from trainrig.data.prepare import prepare
from trainrig.process.supervisor import launch
from trainrig.runner.train_records import Launch, Trained
from trainrig.train.config import Experiment
from trainrig.train.config_file import experiment_of
from trainrig.train.engines import ENGINES, Job
from trainrig.train.parity import disagreement, reference_of

TARGET = 1.2
TINY = "gpt2:num_layers=1,hidden=64,vocab=512,max_positions=256"


def main() -> None:
    """Both sides, the ratio with its interval, scaling and communication."""
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default=None)
    arguments = parser.parse_args()
    say_load()
    with tempfile.TemporaryDirectory() as folder:
        keys: dict[str, Any] = {
            "model": TINY if arguments.quick else "gpt2-small-cpu",
            "seq_len": 64 if arguments.quick else 256,
            "steps": 5 if arguments.quick else arguments.steps,
            "data": str(text_in(Path(folder))),
            "precision": arguments.dtype or trained_in()[0],
            "batch_size": 4,
            "nproc": 2,
            "threads": 1,  # as `trainrig train` sets it: torch's own choice is one a processor
            "device": "cpu",
        }
        race(keys, Path(folder), rounds=1 if arguments.quick else arguments.rounds)
        if not arguments.quick:
            beside(keys, Path(folder))


def text_in(folder: Path) -> Path:
    """A prepared text of random words."""
    words = [f"w{number:x}" for number in range(300)]
    chance = random.Random(0)
    texts = folder / "texts"
    texts.mkdir()
    for number in range(40):
        (texts / f"{number}.txt").write_text(" ".join(chance.choices(words, k=2000)))
    return prepare((texts,), out=folder / "data", vocab_size=400).folder


def train(own: Experiment, folder: Path) -> Trained:
    """One training in fresh processes."""
    place = Path(tempfile.mkdtemp(dir=folder))
    engine = ENGINES[own.framework]
    ended = launch(engine.command(own, place, Job()), place)
    if ended.reason is not None:
        raise SystemExit(f"{own.framework}: {ended.reason}")
    return Trained(experiment=own, rounds=[Launch(result=engine.collect(place))])


def race(keys: dict[str, Any], folder: Path, rounds: int) -> None:
    """In turns; the losses must be those of one process."""
    ours, theirs = experiment_of(keys), experiment_of({**keys, "framework": "huggingface"})
    found = in_turns(
        rounds, {"ours": lambda: train(ours, folder), "theirs": lambda: train(theirs, folder)}
    )
    reference = train(reference_of(ours).replace(steps=1), folder).first.result.probe
    for name, runs in found.items():
        probe = runs[0].first.result.probe
        assert probe is not None and reference is not None
        apart = disagreement(probe, reference, ours.precision)
        if apart is not None:
            raise SystemExit(f"{name} is not comparable: {apart}")
    times = {name: [run.mean("time") or math.nan for run in runs] for name, runs in found.items()}
    print(
        f"{ours.precision}, two ranks, {rounds} rounds of {ours.steps} steps; "
        "losses comparable: met"
    )
    for name in times:
        print(f"  {name:<7} {middle(times[name])}")
    ratio, low, high = ratio_of(times["ours"], times["theirs"])
    said = verdict(ratio >= TARGET, can_tell=low >= TARGET or high < TARGET)
    print(
        f"ratio {ratio:.3f} of samples/s in {ours.precision}, "
        f"95 % interval {low:.3f} to {high:.3f} "
        f"(target {TARGET}: {said})"
    )


def beside(keys: dict[str, Any], folder: Path) -> None:
    """A second rank, and accumulation."""
    one = train(experiment_of({**keys, "nproc": 1}), folder)
    two = train(experiment_of(keys), folder)
    more = train(experiment_of({**keys, "grad_accum": 4}), folder)
    rates = [run.experiment.global_samples / (run.mean("time") or math.nan) for run in (one, two)]
    print(
        f"  one rank to two: {rates[0]:.2f} to {rates[1]:.2f} samples/s, {rates[1] / rates[0]:.2f}"
    )
    for name, run in (("without", two), ("with", more)):
        parts = run.first.result.profiled or {}
        share = parts.get("communication_s", 0.0) / parts.get("step_s", math.nan)
        print(f"  exposed communication {name} accumulation: {100.0 * share:.1f} % of a step")


if __name__ == "__main__":
    main()
