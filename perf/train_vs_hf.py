"""A training step beside Hugging Face's Trainer: same model, weights, data, dtype, optimizer.

GPT-2 of 4 layers, width 256, vocabulary 8192, samples of 256 tokens, batch 8; fused AdamW with the
same decay groups, cosine schedule, gradients clipped to norm 1, no dropout; two threads.  Each side
has a process of its own, as it has when it is used: ours keeps freed memory (`train.serve`), theirs
is left alone.  In each round both train from the same weights on the same samples, in turns; the
losses must be equal within the printed tolerance.  A step lasts from its start to the next one's;
the first steps of a round are left out.

Peer: transformers.Trainer as people use it, with fused AdamW and, in bf16, ``bf16=True``, which is
autocast.  Its bf16 differs from ours in what is rounded: the losses then agree less closely.
"""

from __future__ import annotations

import contextlib
import io
import logging
import math
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from _shared import in_turns, middle, options, ratio_of, say_load, trained_in, verdict
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from trainrig import models
from trainrig.data.batches import Batch
from trainrig.models.hf_weights import to_hugging_face
from trainrig.process.child import tune_malloc
from trainrig.train.config import Experiment
from trainrig.train.native.loop import Engine
from trainrig.workload import ModelShape, model_flops, named

TARGETS = {"fp32": 1.15, "bf16": 1.8}
TOLERANCES = {"fp32": 1e-4, "bf16": 2e-3}
WARM_UP = 2
THREADS = 2


Weights = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Round:
    """What one side did in one round."""

    times: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    @property
    def step(self) -> float:
        """Seconds of a step, the median without the first ones."""
        return statistics.median(self.times[WARM_UP:])


Train = Callable[[Experiment, ModelShape, Weights], Round]


def main() -> None:
    """Both dtypes: losses, medians, the ratio with its interval."""
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--dtype", choices=TARGETS, action="append")
    arguments = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    logging.disable(logging.WARNING)
    say_load()
    for dtype in arguments.dtype or [each for each in TARGETS if each in trained_in()]:
        if arguments.quick:
            race(dtype, rounds=2, steps=WARM_UP + 2, shape=small(), threads=1)
        else:
            race(
                dtype, rounds=arguments.rounds, steps=arguments.steps, shape=named("gpt2-small-cpu")
            )


def small() -> ModelShape:
    """Of a size for a smoke test."""
    from trainrig.workload import custom

    return custom("gpt2", num_layers=1, hidden=64, vocab=512, max_positions=256)


def race(dtype: str, *, rounds: int, steps: int, shape: ModelShape, threads: int = THREADS) -> None:
    """Train in turns and print what came out."""
    experiment = Experiment.of(precision=dtype, steps=steps, warmup=0)
    with Side(train_ours, threads, keep=True) as us, Side(train_theirs, threads) as them:
        found = in_turns(
            rounds,
            {
                "ours": lambda: us.train(experiment, shape),
                "theirs": lambda: them.train(experiment, shape),
            },
        )
    ours, theirs = found["ours"], found["theirs"]
    gap = worst_gap(ours[0].losses, theirs[0].losses)
    flops = model_flops(shape, experiment.batch_size, experiment.seq_len)
    rate = flops / statistics.median([r.step for r in ours])
    print(f"{dtype}: {steps - WARM_UP} steps a round, {rounds} rounds")
    print(f"  ours          {middle([r.step for r in ours])}  {rate / 1e9:.0f} GFLOPS")
    print(f"  theirs        {middle([r.step for r in theirs])}")
    print(
        f"  losses        {ours[0].losses[0]:.4f} to {ours[0].losses[-1]:.4f}, theirs "
        f"{theirs[0].losses[-1]:.4f}; apart by {gap:.1e} at most, tolerance "
        f"{TOLERANCES[dtype]:.0e}: {verdict(gap <= TOLERANCES[dtype])}"
    )
    if gap > TOLERANCES[dtype]:
        raise SystemExit("the losses are not equal: nothing was compared")
    ratio, low, high = ratio_of([r.step for r in ours], [r.step for r in theirs])
    print(
        f"ratio {ratio:.3f} of samples/s in {dtype}, 95 % interval {low:.3f} to {high:.3f} "
        f"(target {TARGETS[dtype]}: {verdict(ratio >= TARGETS[dtype])})"
    )


class Side:
    """One side of the race: a process that trains when it is asked to."""

    def __init__(self, how: Train, threads: int, *, keep: bool = False) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(theirs, how, threads, keep))
        self._process.start()
        theirs.close()

    def __enter__(self) -> Side:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
        self._process.join()

    def train(self, experiment: Experiment, shape: ModelShape) -> Round:
        """One round; the other side's process waits meanwhile."""
        self._pipe.send((experiment, shape))
        found: Round = self._pipe.recv()
        return found


def _serve(pipe: Connection, how: Train, threads: int, keep: bool) -> None:
    if keep:
        tune_malloc()
    logging.disable(logging.WARNING)
    torch.set_num_threads(threads)
    while True:
        try:
            experiment, shape = pipe.recv()
        except EOFError:
            return
        weights = models.build(shape, seed=experiment.seed).state_dict()
        with contextlib.redirect_stdout(io.StringIO()):
            found = how(experiment, shape, weights)
        pipe.send(found)


def samples(experiment: Experiment, shape: ModelShape, step: int) -> np.ndarray[Any, Any]:
    """Token ids of a step, (batch, seq), some far more frequent than others."""
    random = np.random.default_rng((experiment.seed, step))
    drawn = random.random((experiment.batch_size, experiment.seq_len)) ** 3 * shape.vocab
    return drawn.astype(np.int64)


def train_ours(experiment: Experiment, shape: ModelShape, weights: Weights) -> Round:
    """One round of ours."""

    def batches(step: int) -> Batch:
        tokens = samples(experiment, shape, step)
        labels = np.full_like(tokens, -100)
        labels[:, :-1] = tokens[:, 1:]  # the last one has no label in their loss
        return Batch(inputs=tokens, labels=labels)

    rows: list[dict[str, Any]] = []
    with Engine(experiment, shape, batches=batches, weights=weights) as engine:
        engine.run(rows.append, lambda step: step >= experiment.steps)
    return Round([row["time"] for row in rows], [row["loss"] for row in rows])


class Watch(TrainerCallback):
    """Notes when each step of theirs began, and its loss."""

    def __init__(self) -> None:
        self.marks: list[float] = []

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.marks.append(time.perf_counter())

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.marks.append(time.perf_counter())


class LossKept(Trainer):
    """Theirs, with each step's loss kept as the tensor that it is."""

    kept: list[torch.Tensor]

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Theirs; the loss goes to a list besides."""
        loss = super().training_step(*args, **kwargs)
        self.kept.append(loss)
        return loss


def train_theirs(experiment: Experiment, shape: ModelShape, weights: Weights) -> Round:
    """One round of theirs."""
    set_seed(experiment.seed)
    model = GPT2LMHeadModel(
        GPT2Config(
            n_layer=shape.num_layers,
            n_embd=shape.hidden,
            n_head=shape.attention.num_heads,
            vocab_size=shape.vocab,
            n_positions=shape.position.max_positions,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            use_cache=False,
            bos_token_id=0,
            eos_token_id=0,
        )
    )
    model.load_state_dict(to_hugging_face(shape, weights))
    watch = Watch()
    data = [
        {"input_ids": row, "labels": _labels(row)}
        for step in range(experiment.steps)
        for row in torch.from_numpy(samples(experiment, shape, step))
    ]
    with tempfile.TemporaryDirectory() as folder:
        trainer = LossKept(
            model,
            TrainingArguments(
                output_dir=folder,
                use_cpu=True,
                bf16=experiment.precision == "bf16",
                per_device_train_batch_size=experiment.batch_size,
                max_steps=experiment.steps,
                optim="adamw_torch_fused",
                learning_rate=experiment.lr.peak,
                adam_beta1=experiment.update.beta1,
                adam_beta2=experiment.update.beta2,
                adam_epsilon=experiment.update.eps,
                weight_decay=experiment.update.weight_decay,
                max_grad_norm=experiment.update.clip,
                lr_scheduler_type="cosine_with_min_lr",
                lr_scheduler_kwargs={"min_lr_rate": 0.1},
                warmup_steps=0,
                train_sampling_strategy="sequential",
                logging_strategy="no",
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
                dataloader_pin_memory=False,
            ),
            train_dataset=data,
            callbacks=[watch],
        )
        trainer.kept = []
        trainer.train()
    times = [after - before for before, after in zip(watch.marks, watch.marks[1:], strict=False)]
    return Round(times, [float(loss) for loss in trainer.kept])


def _labels(row: torch.Tensor) -> torch.Tensor:
    """Theirs are shifted inside the model: the first one is never a target.

    Trainer counts it all the same unless it says so, and its mean comes out 1/256 too small.
    """
    labels = row.clone()
    labels[0] = -100
    return labels


def worst_gap(ours: list[float], theirs: list[float]) -> float:
    """The largest relative difference of two losses."""
    pairs = zip(ours, theirs, strict=True)
    return max(math.inf if b != b else abs(a - b) / b for a, b in pairs)


if __name__ == "__main__":
    main()
