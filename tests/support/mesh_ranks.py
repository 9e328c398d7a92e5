"""Real ranks that train tiny models under layouts of several axes.

Each case is five steps of plain gradient descent in fp32 on the samples that one process has:
`alone` is that process.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from functools import cache
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import PrepareModuleInput
from torch.utils._python_dispatch import TorchDispatchMode

import rank_program
from trainrig import models
from trainrig.models import parallel_plan, recompute
from trainrig.models.loss import IGNORED
from trainrig.train.native import context_parallel, expert, pipeline, tensor_parallel
from trainrig.train.native.pipeline import ModelStage, Pipeline
from trainrig.workload import ModelShape, custom
from trainrig.workload.layout import Layout

STEPS, SAMPLES, TOKENS, VOCAB, RATE = 5, 8, 32, 160, 0.05
AXES = ("pp", "dp", "cp", "tp")
Rows = list[tuple[float, float]]


def shape_of(case: dict[str, Any]) -> ModelShape:
    changes = {"num_layers": 4, "hidden": 32, "num_heads": 4, "vocab": VOCAB, "max_positions": 32}
    return custom(case["family"], **(changes | case.get("shape", {})))


def batch(family: str, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and labels; BERT's and T5's only in some places, GPT's are the next token."""
    random = torch.Generator().manual_seed(100 + step)
    tokens = torch.randint(0, VOCAB, (SAMPLES, TOKENS + 1), generator=random)
    inputs, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    if family in ("bert", "t5"):
        hidden = (
            torch.rand(labels.shape, generator=random) < torch.linspace(0.2, 0.7, SAMPLES)[:, None]
        )
        labels = labels.masked_fill(hidden, IGNORED)
    return inputs, labels


def alone(case: dict[str, Any]) -> Rows:
    """Loss and gradient norm of each step in one process."""
    model = models.build(shape_of(case), seed=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    rows = []
    for step in range(STEPS):
        loss = model.loss(*batch(case["family"], step))
        loss.backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
        optimizer.step()
        optimizer.zero_grad()
        rows.append((float(loss.detach()), float(norm)))
    return rows


class Sent(TorchDispatchMode):
    """Collectives by operation: how many, and the bytes of what they are given."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in ("c10d", "_c10d_functional") and "wait" not in str(func):
            name = func.__name__.split(".")[0].strip("_")
            given = args[0][0] if isinstance(args[0], list) else args[0]
            if given.numel() > 1:
                self.count[name] += 1
                self.bytes[name] += given.numel() * given.element_size()
        return func(*args, **(kwargs or {}))


def norm_of(parameters: list[Any]) -> torch.Tensor:
    """The squared norm of all gradients, those of one placement at a time."""
    groups: dict[Any, list[Any]] = {}
    for p in parameters:
        key = (p.device_mesh, p.placements) if isinstance(p, DTensor) else None
        groups.setdefault(key, []).append(p.grad)
    total = torch.zeros(())
    for gradients in groups.values():
        norm = torch.nn.utils.get_total_norm(gradients)
        total += (norm.full_tensor() if isinstance(norm, DTensor) else norm) ** 2
    return total


def stages_of(case: dict[str, Any], shape: ModelShape, mesh: DeviceMesh) -> list[ModelStage]:
    """This rank's stages, spread and sharded in the order of the engine; one without a pipeline."""
    model = models.build(shape, device="meta")
    if mesh["pp"].size() > 1:
        stages = pipeline.split(model, shape, layout_of(case), mesh["pp"])
    else:
        stages = [ModelStage(number=0, stages=1, module=model)]
    for stage in stages:
        part = stage.module
        if mesh["tp"].size() > 1:
            sequence = case.get("sequence_parallel", False)
            with patch.object(parallel_plan, "PrepareModuleInput", entry(case)):
                tensor_parallel.apply(part, shape, mesh["tp"], sequence_parallel=sequence)
        if mesh["cp"].size() > 1:
            context_parallel.apply(part, mesh["cp"])
        if case.get("ep", 1) > 1:
            inner = mesh["cp"].size() * mesh["tp"].size()
            sizes = (mesh["pp"].size(), mesh["dp"].size() // case["ep"], case["ep"], inner)
            groups = init_device_mesh("cpu", sizes, mesh_dim_names=("pp", "same", "ep", "inner"))
            for experts in expert.apply(part, shape, groups["ep"]):
                shard(experts, groups["same"])
        recompute.apply(part, case.get("recompute", "none"))
        data = tuple(axis for axis in ("dp", "cp") if mesh[axis].size() > 1)
        if data:
            for unit in (*recompute.blocks_of(part), part):
                whole = mesh["pp"].size() > 1 or unit is part
                shard(unit, mesh[data], reshard_after_forward=not whole)
        part.to_empty(device="cpu")
        models.fill_weights(part, 1)
    return stages


def shard(unit: Any, mesh: DeviceMesh, **how: Any) -> None:
    fully_shard(unit, mesh=mesh, **how)
    unit.set_gradient_divide_factor(1.0)
    unit.set_force_sum_reduction_for_comms(True)


def entry(case: dict[str, Any]) -> Any:
    """How hidden states enter attention and the net; ``local``: not as DTensors, the trap."""

    def made(**how: Any) -> PrepareModuleInput:
        return PrepareModuleInput(**how | ({"use_local_output": True} if "local" in case else {}))

    return made


def layout_of(case: dict[str, Any]) -> Layout:
    return Layout.of(
        gpus=dist.get_world_size(),
        pp=case.get("pp", 1),
        interleave=case.get("interleave", 1),
        schedule=case.get("schedule", "1f1b"),
        grad_accum=case.get("micro", 1),
    )


@cache
def mesh_of(*sizes: int) -> DeviceMesh:
    """The ranks along pp, dp, cp and tp."""
    return init_device_mesh("cpu", sizes, mesh_dim_names=AXES)


def train(case: dict[str, Any]) -> dict[str, Any]:
    """`alone`'s rows by all ranks; digests of the first weights."""
    shape = shape_of(case)
    mesh = mesh_of(*(case.get(axis, 1) for axis in AXES))
    stages = stages_of(case, shape, mesh)
    modules = [stage.module for stage in stages]
    first = digests(modules, mesh)
    parameters = [p for module in modules for p in module.parameters()]
    counted = [p for s in stages for n, p in s.module.named_parameters() if n not in s.copies]
    optimizer = torch.optim.SGD(parameters, lr=RATE, foreach=False)
    staged = None
    if mesh["pp"].size() > 1:
        staged = Pipeline(stages, layout_of(case), mesh["pp"], torch.device("cpu"))
    rows, sent, moved = [], Sent(), []
    for step in range(STEPS):
        inputs, labels = batch(case["family"], step)
        targets = int((labels != IGNORED).sum())
        data = mesh["dp"]
        inputs, labels = (t.chunk(data.size())[data.get_local_rank()] for t in (inputs, labels))
        part = mesh["cp"]
        inputs, labels = (
            t.chunk(part.size(), 1)[part.get_local_rank()].contiguous() for t in (inputs, labels)
        )
        with sent if step == 1 else torch.enable_grad():
            if staged is not None:
                total = staged.run(inputs, labels, 1 / targets) / targets
            else:
                loss = modules[0](inputs, labels=labels) / targets
                loss.backward()
                total = loss.detach().clone()
            moved = [n for m in modules for n, p in m.named_parameters() if is_apart(p)]
            tensor_parallel.place_gradients(parameters)
            if staged is not None:
                staged.add_tied()
        squares = norm_of(counted)
        for axis in ("dp", "cp", "pp"):
            dist.all_reduce(total, group=mesh.get_group(axis))
        dist.all_reduce(squares, group=mesh.get_group("pp"))
        optimizer.step()
        optimizer.zero_grad()
        rows.append((float(total), float(squares.sqrt())))
    told = {"count": sent.count, "bytes": sent.bytes, "moved": moved}
    return {"rows": rows, "digests": first, **told}


def is_apart(parameter: Any) -> bool:
    """Whether its gradient lies otherwise than itself."""
    grad = parameter.grad
    return isinstance(grad, DTensor) and grad.placements != parameter.placements


def digests(modules: list[Any], mesh: DeviceMesh) -> dict[str, str]:
    """Of each weight as a whole, those of all stages."""
    found = {}
    for module in modules:
        for name, weight in module.state_dict().items():
            whole = weight.full_tensor() if isinstance(weight, DTensor) else weight
            found[name] = hashlib.sha256(whole.detach().numpy().tobytes()).hexdigest()
    every: list[Any] = [None] * mesh["pp"].size()
    dist.all_gather_object(every, found, group=mesh.get_group("pp"))
    return {name: digest for part in every for name, digest in part.items()}


if __name__ == "__main__":
    rank_program.main(train)
