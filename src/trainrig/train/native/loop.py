"""The training loop: data, forward, backward, communication, clip, optimizer.

`Engine.step` is one step, top to bottom, for one process and for each of several ranks.  Everything
that it uses is made in `Engine.__init__`: the model, its weights, the optimizer, the learning rate,
the samples.  How weights, gradients and optimizer states are spread over ranks, and when these
talk, is the business of `precision.Weights` (one process) and of the classes in `data_parallel`,
which the engine uses in the same way.  A step's samples are one batch of `data`, made and copied
ahead of time and split into micro-batches, so that accumulating trains on the very samples that one
large batch would hold.  Nothing in a step waits for a GPU: losses and times are read when they have
long been computed, at most two steps later (`_Pending`).

The loss of a step is the mean over all targets of its samples, however many micro-batches and ranks
they are split into, and so are the gradients.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainrig import models
from trainrig.data.batches import Batch, Shard
from trainrig.data.loader import Loader
from trainrig.data.masking import IGNORED
from trainrig.data.open_batches import open_batches
from trainrig.errors import UnavailableError
from trainrig.models.loss import ahead_of_backward
from trainrig.train.config import Experiment, objective_of
from trainrig.train.divergence import LossWatch
from trainrig.train.native import host_sums
from trainrig.train.native.cuda_graph import StepGraph, is_recorded
from trainrig.train.native.precision import LossScale, Weights, local, placed, to_float8
from trainrig.train.native.step_timer import Marked, Stopwatch, stopwatch_for
from trainrig.train.native.weight_source import first_weights
from trainrig.workload import ModelShape

Make = Callable[[int], Batch]
"""The samples of a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Micro:
    """A micro-batch; the loss weighs each by its share of the targets (BERT hides some only)."""

    inputs: Tensor
    """(B, T) token ids."""
    labels: Tensor
    """(B, T), -100 where there is no target."""
    share: float
    """This micro-batch's share of the targets of this rank's samples of the step."""
    targets: int
    """Tokens with a label."""
    samples: Tensor | None = None
    """(B,): numbers of its samples in the training; where something is dropped."""

    @property
    def dropping(self) -> dict[str, Tensor]:
        """Further arguments of the model's loss that dropout needs."""
        return {} if self.samples is None else {"samples": self.samples}

    def to(self, device: str) -> Micro:
        """Return the batch on ``device``; the copy runs beside the device's work."""
        return Micro(
            inputs=self.inputs.to(device, non_blocking=True),
            labels=self.labels.to(device, non_blocking=True),
            share=self.share,
            targets=self.targets,
            samples=None if self.samples is None else self.samples.to(device, non_blocking=True),
        )


def split(
    batch: Batch,
    num_micro: int,
    *,
    tokens: slice = slice(None),
    pinned: bool,
    first: int | None = None,
) -> tuple[Micro, ...]:
    """Return ``batch`` in equal micro-batches, of each sequence the ``tokens`` of this rank.

    ``pinned``: in memory that a GPU copies from by itself.  ``first``: the number of the first
    sample in the training, where something is dropped.
    """
    parts = (torch.from_numpy(part[:, tokens]) for part in (batch.inputs, batch.labels))
    inputs, labels = (part.contiguous() for part in parts)
    if pinned:
        inputs, labels = inputs.pin_memory(), labels.pin_memory()
    pairs = zip(inputs.chunk(num_micro), labels.chunk(num_micro), strict=True)
    counts = [int((chunk != IGNORED).sum()) for chunk in labels.chunk(num_micro)]
    total = max(1, sum(counts))
    samples: Sequence[Tensor | None] = [None] * num_micro
    if first is not None:
        samples = (first + torch.arange(len(inputs))).chunk(num_micro)
    return tuple(
        Micro(inputs=x, labels=y, share=count / total, targets=count, samples=sample_numbers)
        for (x, y), count, sample_numbers in zip(pairs, counts, samples, strict=True)
    )


def _as_one_batch(
    micros: Sequence[Micro], weight: float | Tensor
) -> tuple[Tensor, Tensor, float | Tensor]:
    """Return all micro-batches as one batch, and what a sum over its targets is multiplied by."""
    inputs, labels = (
        torch.cat([getattr(m, name) for m in micros]) for name in ("inputs", "labels")
    )
    return inputs, labels, weight / max(1, sum(micro.targets for micro in micros))


@contextmanager
def _forwards_within(watch: Stopwatch[Any], stages: Sequence[torch.nn.Module]) -> Iterator[None]:
    """Count the stages' forward time in the body as part forward."""
    starts: list[Any] = []
    before = [
        stage.register_forward_pre_hook(lambda *_: starts.append(watch.mark())) for stage in stages
    ]
    after = [
        stage.register_forward_hook(lambda *_: watch.inner("forward", starts.pop()))
        for stage in stages
    ]
    yield
    for handle in (*before, *after):
        handle.remove()


def make_optimizer(
    experiment: Experiment, groups: list[dict[str, Any]], *, recorded_on: str = ""
) -> torch.optim.Optimizer:
    """Return experiment's optimizer of ``groups``.  Raises UnavailableError where one is missing.

    adamw is torch's, one kernel for each operation, adamw-fused one pass over weights, gradients
    and moments; adamw-8bit has its moments in 8 bits (torchao); sgd has none and is weight − rate ·
    gradient, which hides no wrong scale of a gradient.  ``recorded_on``: the GPU whose CUDA graph
    will hold the update, with the learning rate a number on it.
    """
    kind, rate = experiment.optimizer, experiment.lr.peak
    if kind == "sgd":
        return torch.optim.SGD(groups, lr=rate)
    betas, eps = (experiment.update.beta1, experiment.update.beta2), experiment.update.eps
    if kind == "adamw-8bit":
        if find_spec("torchao") is None:
            raise UnavailableError("adamw-8bit needs torchao", "pip install torchao")
        make: Callable[..., torch.optim.Optimizer] = import_module("torchao.optim").AdamW8bit
        return make(groups, lr=rate, betas=betas, eps=eps)
    how: dict[str, Any] = {"betas": betas, "eps": eps}
    how["fused"] = True if kind == "adamw-fused" else None
    if recorded_on:
        lr = torch.tensor(rate, device=recorded_on)
        return torch.optim.AdamW(groups, lr=lr, capturable=True, **how)
    return torch.optim.AdamW(groups, lr=rate, **how)


def _plain(name: str, value: Any) -> dict[str, Tensor]:
    """Return a state under its name.

    The parts of one in 8 bits (torchao), on shards those of each rank.

    Blocks of 8 bits have scales of their own, which no other layout's shards would fit.
    """
    local_value = local(value)
    if not isinstance(local_value, Tensor):
        return {}
    if type(local_value) is Tensor:
        return {name: value}
    rank = "" if local_value is value else f"/{torch.distributed.get_rank()}"
    return {
        f"{name}/{part}{rank}": getattr(local_value, part)
        for part in local_value.__tensor_flatten__()[0]
    }


Spread = Callable[[torch.nn.Module, str], Any]
"""A model in fp32 and a dtype → what `precision.Weights` is for one process."""
Parallel = Callable[[torch.nn.Module], Any]
"""A model on meta → the same, with memory and first weights for one rank's part alone."""
Row = dict[str, Any]
"""Values of one step: number, loss, gradient norm, learning rate, tokens, times."""


@dataclass(frozen=True, slots=True)
class _Pending:
    """A step whose numbers may still be on their way from the device."""

    row: Row
    numbers: Tensor
    """Loss and gradient norm."""
    marked: Marked[Any]


class Engine:
    """A model in training.  Use as a context manager: the loader has a thread."""

    def __init__(
        self,
        experiment: Experiment,
        shape: ModelShape,
        device: str = "cpu",
        *,
        batches: Make | None = None,
        watch: Stopwatch[Any] | None = None,
        weights: Mapping[str, Tensor] | None = None,
        spread: Spread | None = None,
        parallel: Parallel | None = None,
        rank: int = 0,
        tokens: slice = slice(None),
    ) -> None:
        """``batches`` and ``weights`` replace the samples and the first weights, for tests.

        ``parallel`` spreads the model over ranks, of which this one reads ``tokens`` of the samples
        of number ``rank``; ``spread`` is another way to hold all of it; without either it is alone.
        """
        self.experiment, self.shape, self.device = experiment, shape, device
        self.model = models.build(
            shape,
            device="meta" if parallel else device,
            recompute="none" if parallel or experiment.dropout else experiment.recompute,
            attention=experiment.kernels.attention,
            unfused=experiment.unfused_parts,
            seed=experiment.seed,
            given=None if parallel or weights else first_weights(experiment, shape),
        )
        self._rank, self._tokens = rank, tokens
        if parallel is not None:
            self.weights = parallel(self.model)
        else:
            if weights is not None:
                self.model.load_state_dict(weights)
            if experiment.precision == "fp8":
                to_float8(self.model, experiment.kernels.fp8_recipe, device)
            if experiment.dropout:
                models.dropout.apply(self.model, experiment.dropout, experiment.seed)
                models.recomputation.apply(self.model, experiment.recompute)
            if experiment.compile:
                models.compile_blocks(self.model, chunk="chunk" not in experiment.unfused_parts)
            self.weights = (spread or Weights)(self.model, experiment.precision)
        if not device.startswith("cuda"):
            for part in self.weights.modules:
                host_sums.apply(part)
        self.weights.foreach = "foreach" not in experiment.unfused_parts
        graph = is_recorded(experiment, device)
        self.optimizer = make_optimizer(
            experiment,
            self.weights.groups(
                experiment.update.weight_decay, embeddings=experiment.update.decay_embeddings
            ),
            recorded_on=device if graph else "",
        )
        self._graph = StepGraph(self._computed, device) if graph else None
        self.scaler = LossScale(device, enabled=experiment.precision == "fp16")
        self.watch = watch or stopwatch_for(device)
        self._backwards = partial(self.watch.within, "backward")
        self._losses = LossWatch(experiment.recovery.divergence, experiment.warmup_steps)
        self._make = batches or self._batches("train")
        self._pending: deque[_Pending] = deque()
        self._loader: Loader[tuple[Micro, ...]] | None = None
        self.next_step = 0
        self.on_heldout: Callable[[int, float], None] = lambda _step, _loss: None
        """Told the held-out loss after so many steps, every ``heldout_every``."""

    def step(self) -> None:
        """One step: the global batch forward and backward, then one update."""
        number, marked = self.next_step, self.watch.begin()
        rate = self._set_learning_rate(number)
        with self.part("data_wait"):
            micros = [micro.to(self.device) for micro in next(self.loader)]
            weight = self.weights.weight_of(sum(micro.targets for micro in micros))
        if self._graph is None:
            loss, norm = self._computed(micros, weight)
        else:
            with self.part("backward"), self.watch.muted():
                loss, norm = self._graph(micros)
        self.next_step += 1
        tokens = self.experiment.global_samples * self.experiment.seq_len
        row = {"step": number, "lr": rate, "tokens": tokens}
        numbers = torch.stack([loss, norm]).to("cpu", non_blocking=True)
        self._pending.append(_Pending(row, numbers, marked))

    def _computed(
        self, micros: Sequence[Micro], weight: float | Tensor = 1.0
    ) -> tuple[Tensor, Tensor]:
        """Forward, backward and update; loss and gradient norm."""
        passes = self._through_stages if self.weights.pipeline else self._one_by_one
        loss = passes(micros, weight)
        with self.part("optimizer"):
            norm = self._clip()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.weights.publish()
            return self.weights.total(loss), norm

    def _one_by_one(self, micros: Sequence[Micro], weight: float | Tensor) -> Tensor:
        """Forward and backward of each micro-batch; this rank's part of the loss."""
        loss = torch.zeros((), device=self.device)
        for micro in micros:
            last = micro is micros[-1]
            with self.part("forward"), ahead_of_backward(self._backwards):
                part = self.weights.loss(micro.inputs, micro.labels, last=last, **micro.dropping)
                part = part * (micro.share * weight)
            with self.part("backward"):
                self.weights.backward(part * self.scaler.factor, last=last)
            loss += part.detach()
        return loss

    def _through_stages(self, micros: Sequence[Micro], weight: float | Tensor) -> Tensor:
        """Run the micro-batches by the pipeline's schedule; all but forwards counts as backward."""
        inputs, labels, factor = _as_one_batch(micros, weight)
        numbers = [micro.samples for micro in micros if micro.samples is not None]
        dropping = {"samples": torch.cat(numbers)} if numbers else {}
        with self.part("backward"), _forwards_within(self.watch, self.weights.modules):
            return self.weights.run(inputs, labels, factor, self.scaler.factor, **dropping)

    def part(self, name: str) -> AbstractContextManager[None]:
        """Time the body as a part of the step."""
        return self.watch.part(name)

    def run(self, emit: Callable[[Row], None], stop: Callable[[int], bool]) -> None:
        """Steps until ``stop(next step)``; each row is told once its numbers are known.

        Raises Diverged by `divergence.LossWatch`; the rows before it were told.
        """
        behind = 2 if self.device.startswith("cuda") else 1
        while not stop(self.next_step):
            self.step()
            while len(self._pending) > behind:
                emit(self._finished_row(self._pending.popleft()))
            every = self.experiment.heldout.every
            if every and self.next_step % every == 0 and self.next_step < self.experiment.steps:
                self.drain(emit)
                self.on_heldout(self.next_step, self.heldout_loss())
        self.drain(emit)

    def drain(self, emit: Callable[[Row], None]) -> None:
        """Tell what is still pending, and end the step: what follows belongs to none."""
        self.watch.end()
        while self._pending:
            emit(self._finished_row(self._pending.popleft()))

    @torch.no_grad()
    def heldout_loss(self) -> float:
        """Return the mean loss over the first batches of the held-out part, in nats a target.

        All ranks take it together, each of its own samples.
        """
        make, total = self._batches("heldout"), torch.zeros((), device=self.device)
        for number in range(self.experiment.heldout.batches):
            micros = self._split(make(number))
            weight = self.weights.weight_of(sum(micro.targets for micro in micros))
            if self.weights.pipeline:
                inputs, labels, factor = _as_one_batch([m.to(self.device) for m in micros], weight)
                total += self.weights.pipeline.evaluate(inputs, labels) * factor
                continue
            for micro in micros:
                here = micro.to(self.device)
                total += self.model.loss(here.inputs, here.labels) * (micro.share * weight)
        self.weights.rest()
        return float(self.weights.total(total)) / self.experiment.heldout.batches

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the state that a training resumes from: this rank's tensors, and numbers.

        Tensors are the live ones, by names of the whole model: ``weights/NAME`` those that the
        optimizer updates, ``optimizer/NAME/STATE``.  Numbers are the same on all ranks, of types
        that JSON has.  The samples and the learning rate follow from the next step.
        """
        tensors: dict[str, Tensor] = {}
        for name, master in self.weights.owned():
            tensors[f"weights/{name}"] = master.detach()
            for kind, value in self.optimizer.state.get(master, {}).items():
                tensors |= _plain(f"optimizer/{name}/{kind}", value)
        return tensors, {"scaler": self.scaler.state_dict(), "losses": self._losses.usual}

    def make_states(self) -> None:
        """Let the optimizer have its states before the first step, to be read into.

        The weights are to be read, too: this is an update by gradients of zero.
        """
        masters = list(self.weights.master.values())
        for master in masters:
            master.grad = torch.zeros_like(master)
        self.optimizer.step()
        for master in masters:
            master.grad = None

    def load_state(self, next_step: int, numbers: Mapping[str, Any]) -> None:
        """Go on at ``next_step``: the tensors of `state` have been read, and ``numbers``."""
        for name, master in self.weights.copies():
            pairs = [(master, self.weights.master[name])]
            state, read = (self.optimizer.state.get(weight, {}) for weight in pairs[0])
            pairs += [(state[kind], read[kind]) for kind in state]
            for copy, origin in pairs:
                local(copy.detach()).copy_(local(origin.detach()))
        self.weights.publish()
        self.scaler.load_state_dict(numbers["scaler"])
        self._losses.usual = numbers.get("losses", [])
        self.next_step = next_step

    @property
    def loader(self) -> Loader[tuple[Micro, ...]]:
        """Return samples from the next step on, made ahead of time; started when first needed."""
        if self._loader is None:
            make, experiment = self._make, self.experiment

            def micros(step: int) -> tuple[Micro, ...]:
                first = step * experiment.global_samples + self._rank * experiment.samples
                return self._split(make(step), first if experiment.dropout else None)

            self._loader = Loader(micros, start=self.next_step)
        return self._loader

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        if self._loader is not None:
            self._loader.close()

    def _batches(self, part: str) -> Make:
        experiment = self.experiment
        return open_batches(
            Path(experiment.data),
            part,
            objective_of(self.shape),
            seq_len=experiment.seq_len,
            shard=Shard(
                batch=experiment.samples,
                rank=self._rank,
                num_ranks=experiment.mesh.dp,
                seed=experiment.seed,
            ),
            vocab_size=self.shape.vocab,
        )

    def _split(self, batch: Any, first: int | None = None) -> tuple[Micro, ...]:
        pinned = self.device.startswith("cuda")
        num_micro = self.experiment.grad_accum
        return split(batch, num_micro, tokens=self._tokens, pinned=pinned, first=first)

    def _set_learning_rate(self, step: int) -> float:
        rate = self.experiment.learning_rate(step)
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):  # torchao's and a graph's: a number is compiled in
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        return rate

    def _clip(self) -> Tensor:
        """Return the norm of all gradients; they are shortened to ``clip`` where it is larger."""
        norm = self.weights.norm()
        norm = self.scaler.unscale([local(g) for g in self.weights.gradients()], norm)
        most = self.experiment.update.clip
        if most and self._kernel_scales_gradients:  # in the update's own pass over the gradients
            self.optimizer.grad_scale = torch.clamp((norm + 1e-6) / most, min=1.0)
        elif most:
            self.weights.clip(most, norm)
        return norm

    @property
    def _kernel_scales_gradients(self) -> bool:
        """Return whether the optimizer's kernel scales gradients, as torch's fused AdamW does.

        It cannot be given beside DTensors; fp16's are divided already.
        """
        fused = all(group.get("fused") for group in self.optimizer.param_groups)
        plain = not any(map(placed, self.weights.master.values()))
        is_clip_unfused = "clip" in self.experiment.unfused_parts
        return fused and plain and not is_clip_unfused and not self.scaler.is_enabled()

    def _finished_row(self, pending: _Pending) -> Row:
        times = self.watch.read(pending.marked)  # waits until the numbers are there, too
        loss, norm = (float(number) for number in pending.numbers)
        self._losses.see(pending.row["step"], loss, norm, scaled=self.scaler.is_enabled())
        return {
            **pending.row,
            "loss": loss,
            "grad_norm": norm if math.isfinite(norm) else None,
        } | times
