"""Pipeline parallel: a model's blocks as stages, and a schedule of torch's over micro-batches.

`split` gives a rank its stages, parts of the whole model (on meta) under the names of the whole;
then they are spread, sharded and filled like a model.  `Pipeline` runs a step's micro-batches
through them by one of torch.distributed.pipelining's schedules:

    gpipe   all forward, then all backward              a stage a rank
    1f1b    one forward, one backward (Narayanan 2021)  interleaved where a rank has several
    zb      weights' gradients fill the bubble (Qi 2023)  any number of stages a rank
    zbv     the same, first and last stage on rank 0    two stages a rank

The last stage takes the labels and returns its loss, a sum over targets, so that what shards it
sees the head's weight within forward.  Gradients are sums, too: whoever scales the loss says by
how many targets, and no schedule divides.

Tied ends: where the token embedding is the head, first and last stage each have a copy, begin with
the same numbers, and add each other's gradient (`Pipeline.add_tied`); a norm counts one of them.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)

from trainrig.errors import UsageError
from trainrig.train.native.precision import DTYPES
from trainrig.workload.layout import Layout
from trainrig.workload.model import ModelShape

_AT_FIRST = {"positions", "segments"}
_AT_LAST = {"norm", "head", "transform", "head_norm", "head_bias"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStage:
    """A part of the model, and which of all it is."""

    number: int
    stages: int
    module: nn.Module

    @property
    def copies(self) -> frozenset[str]:
        """Parameters that the first stage has as well: a norm counts them there."""
        tied = self.module.shape.head.tied and 0 < self.number == self.stages - 1
        return frozenset({"tokens.weight"} if tied else ())


def split(
    model: nn.Module, shape: ModelShape, layout: Layout, mesh: DeviceMesh
) -> list[ModelStage]:
    """Return this rank's stages of ``model``, which is whole and on meta.

    ``mesh`` has the stages' ranks.

    UsageError for a family that has none (t5), and for fewer blocks than stages.
    """
    if shape.family == "t5":
        raise UsageError("pipeline stages of an encoder-decoder (t5) come later", "--pp 1")
    stages = mesh.size() * layout.pipeline.interleave
    if shape.num_layers < stages:
        raise UsageError(f"{shape.num_layers} layers are too few for {stages} stages")
    cuts = blocks_of_stages(shape.num_layers, stages)
    numbers = stage_numbers(mesh.get_local_rank(), mesh.size(), layout)
    return [
        ModelStage(number=number, stages=stages, module=_part(model, number, cuts))
        for number in numbers
    ]


def blocks_of_stages(num_layers: int, stages: int) -> list[range]:
    """Return the blocks of each stage; where they cannot be equal, inner stages have one more.

    The first stage has the embedding besides, the last one the head, which costs more.
    """
    order = [*range(1, stages - 1), 0, stages - 1]
    counts = [num_layers // stages] * stages
    for number in order[: num_layers % stages]:
        counts[number] += 1
    ends = [sum(counts[: number + 1]) for number in range(stages)]
    return [range(end - count, end) for end, count in zip(ends, counts, strict=True)]


def stage_numbers(rank: int, ranks: int, layout: Layout) -> list[int]:
    """Return the stages of a rank: dealt out in turn, or for ZBV there and back."""
    if layout.pipeline.schedule == "zbv":
        return [rank, 2 * ranks - 1 - rank]
    return [rank + turn * ranks for turn in range(layout.pipeline.interleave)]


def _part(model: nn.Module, number: int, cuts: Sequence[range]) -> nn.Module:
    part = copy.deepcopy(model)
    part.first, part.last = number == 0, number == len(cuts) - 1
    bert = part.shape.family == "bert"
    absent = set() if part.first else _AT_FIRST | ({"norm"} if bert else set())
    absent |= set() if part.last else _AT_LAST - ({"norm"} if bert else set())
    if not (part.first or (part.last and part.shape.head.tied)):
        absent.add("tokens")
    for name in absent:
        if getattr(part, name, None) is not None:
            setattr(part, name, None)
    part.blocks = nn.ModuleDict({str(block): part.blocks[block] for block in cuts[number]})
    return part


class _EachReduced(nn.Module):
    """A stage whose gradients are reduced after each backward pass, as FSDP2 does by itself.

    A schedule that sees an FSDP2 module adds micro-batches up first, and reduces once: ZeRO 1.
    """

    def __init__(self, stage: Any, zero: int) -> None:
        super().__init__()
        self.stage = stage
        if zero == 2:  # whole until the last micro-batch is through
            stage.set_reshard_after_backward(False)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.stage(*args, **kwargs)


class Pipeline:
    """A rank's stages under a schedule.  Call `run` for each step, on all ranks at once."""

    def __init__(
        self, stages: Sequence[ModelStage], layout: Layout, mesh: DeviceMesh, device: torch.device
    ) -> None:
        """``layout.grad_accum`` micro-batches; the stages are spread, sharded and filled."""
        self.stages, self.group = stages, mesh.get_group()
        self._rank, self._ranks, self._layout = mesh.get_local_rank(), mesh.size(), layout
        self._dtype = DTYPES[layout.precision.compute]
        self._factor: Tensor | float = 1.0
        self._last = any(stage.module.last for stage in stages)
        self._first = any(stage.module.first for stage in stages)
        self._gathered_once = layout.sharding.zero == 2
        parts = [
            PipelineStage(
                _EachReduced(stage.module, int(layout.sharding.zero))
                if layout.sharding.zero > 1
                else stage.module,
                stage.number,
                stage.stages,
                device,
                group=self.group,
            )
            for stage in stages
        ]
        how: dict[str, Any] = {"loss_fn": self._scaled, "scale_grads": False}
        schedule_class = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}.get(
            layout.pipeline.schedule
        )
        if schedule_class is not None and len(parts) == 1:
            self._schedule: Any = schedule_class(parts[0], layout.batch.grad_accum, **how)
        else:
            several: dict[str, Any] = {
                "1f1b": ScheduleInterleaved1F1B,
                "zb": ScheduleInterleavedZeroBubble,
                "zbv": ScheduleZBVZeroBubble,
            }
            self._schedule = several[layout.pipeline.schedule](
                parts, layout.batch.grad_accum, **how
            )

    def run(
        self, inputs: Tensor, labels: Tensor, factor: Tensor | float, **samples: Tensor
    ) -> Tensor:
        """Forward and backward of a step; the sum of the loss, 0 but where the last stage is.

        inputs, labels (B, T): of all micro-batches, the same on all ranks of the pipeline.
        ``factor``: what the loss is multiplied by before backward, 1 over all targets.
        """
        self._factor = factor
        losses: list[Tensor] = []
        stage_inputs = (inputs,) if self._first else ()
        wanted = {"target": labels, "losses": losses} if self._last else {}
        how = {"labels": labels, "return_outputs": False, **samples}
        self._schedule.step(*stage_inputs, **how, **wanted)
        if self._gathered_once:
            for stage in self.stages:
                for unit in stage.module.modules():
                    if isinstance(unit, FSDPModule):
                        unit.reshard()
        if not losses:
            return torch.zeros((), device=labels.device)
        return torch.stack([loss.detach() for loss in losses]).sum() / factor

    @torch.no_grad()
    def evaluate(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Forward alone, of as many micro-batches, from stage to stage; the rest as `run`.

        Not by the schedule: torch's ``eval`` of ZBV fails where a rank's stages are neighbours.
        """
        total = torch.zeros((), device=labels.device)
        parts = (tensor.chunk(self._layout.batch.grad_accum) for tensor in (inputs, labels))
        for tokens, targets in zip(*parts, strict=True):
            hidden = tokens
            for stage in sorted(self.stages, key=lambda tensor: tensor.number):
                module: Any = stage.module
                before, after = (self._rank_of(stage.number + step) for step in (-1, 1))
                if not module.first and before != self._rank:
                    size = (*_hidden_size_in(module, targets), module.shape.hidden)
                    hidden = torch.empty(size, dtype=self._dtype, device=labels.device)
                    dist.recv(hidden, group=self.group, group_src=before)
                hidden = module(hidden, labels=targets)
                if module.last:
                    total += hidden
                elif after != self._rank:
                    dist.send(hidden.contiguous(), group=self.group, group_dst=after)
        return total

    def _rank_of(self, number: int) -> int:
        """Return the rank that has a stage; one beyond either end is nobody's."""
        stage_ranks = (
            rank
            for rank in range(self._ranks)
            if number in stage_numbers(rank, self._ranks, self._layout)
        )
        return next(stage_ranks, -1)

    def _scaled(self, loss: Tensor, _: Tensor) -> Tensor:
        return loss.sum() * self._factor

    def add_tied(self) -> None:
        """Add the gradients of tied ends, after the last backward pass and `place_gradients`.

        Both have the sum then; by messages between two ranks, none where one has both (ZBV).
        """
        ends = [s.module for s in self.stages if s.module.first or s.module.last]
        if not ends or not ends[0].shape.head.tied:
            return
        gradients = [_local(module.tokens.weight.grad) for module in ends]
        if len(gradients) == 2:
            gradients[0] += gradients[1]
            gradients[1].copy_(gradients[0])
            return
        other = torch.empty_like(gradients[0])
        peer = self._ranks - 1 - self._rank
        for work in dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, gradients[0], group=self.group, group_peer=peer),
                dist.P2POp(dist.irecv, other, group=self.group, group_peer=peer),
            ]
        ):
            work.wait()
        gradients[0] += other


def _hidden_size_in(module: Any, tokens: Tensor) -> tuple[int, int]:
    """Return samples and tokens of the hidden states that a stage receives."""
    return tokens.shape[0], tokens.shape[1] // module.stretch.spread


def _local(gradient: Any) -> Tensor:
    part: Tensor = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    return part
