"""Ranks that train one step of tiny models by torch's own calls, and what they exchanged.

No engine of ours is between the calls and the count: what the formula says must be what FSDP2,
DTensor and the schedules of pipelines do.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import PrepareModuleInput

import rank_program
from trainrig import models
from trainrig.models import parallel_plan, recompute
from trainrig.models.recompute import blocks_of
from trainrig.train.native import tensor_parallel
from trainrig.train.native.traffic import Traffic
from trainrig.workload import custom
from trainrig.workload.layout import Layout

SHAPES = {
    name: custom(name, num_layers=3, hidden=32, num_heads=4, vocab=161, max_positions=32)
    for name in ("gpt2", "llama", "bert", "t5")
}


def plant(model: Any, mesh: Any, trap: str) -> None:
    """A fault that changes no loss."""
    if trap == "all-reduce for reduce-scatter":
        plan_of = parallel_plan.plan_of

        def local(*args: Any, **how: Any) -> Any:
            plan = plan_of(*args, **how)
            for style in plan.values():
                if isinstance(style, PrepareModuleInput):
                    style.use_local_output = True
            return plan

        tensor_parallel.plan_of = local
    elif trap == "a layer left out":
        plan_of = parallel_plan.plan_of

        def without(*args: Any, **how: Any) -> Any:
            return {
                name.replace("*", number): style
                for name, style in plan_of(*args, **how).items()
                for number in "02"
            }

        tensor_parallel.plan_of = without


def step(case: dict[str, Any]) -> list[dict[str, Any]]:
    layout = Layout.of(**case["layout"])
    shape = SHAPES[case["model"]]
    tp, dp = int(layout.mesh.tp), int(layout.mesh.dp)
    shards = (int(layout.sharding.shard_size) or dp) if layout.sharding.zero else 1
    mesh = init_device_mesh(
        "cpu", (dp // shards, shards, tp), mesh_dim_names=("dp_replicate", "dp_shard", "tp")
    )
    axes = {mesh.get_group(name).group_name: name for name in mesh.mesh_dim_names}
    model: Any = models.build(shape, device="meta")
    before = tensor_parallel.plan_of
    plant(model, mesh, case.get("trap", ""))
    if tp > 1:
        split = bool(layout.mesh.sequence_parallel)
        tensor_parallel.apply(model, shape, mesh["tp"], sequence_parallel=split)
    tensor_parallel.plan_of = before
    recompute.apply(model, layout.memory.recompute)
    units = [*blocks_of(model), model]
    bf16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    how = {"mp_policy": bf16} if layout.precision.compute == "bf16" else {}
    data = mesh["dp_replicate", "dp_shard"]
    if dp > 1:
        for unit in units:
            reshard = layout.sharding.zero == 3 and unit is not model
            fully_shard(unit, mesh=data, reshard_after_forward=reshard, **how)
            unit.set_gradient_divide_factor(1.0)
            unit.set_force_sum_reduction_for_comms(True)
    model.to_empty(device="cpu")
    models.fill_weights(model, 1)
    tokens = torch.randint(0, 161, (int(layout.batch.micro), layout.batch.seq_len))
    traffic, micros = Traffic(axes), int(layout.batch.grad_accum)
    with traffic:
        for number in range(micros):
            if dp > 1 and layout.sharding.zero < 2:
                last = number == micros - 1
                model.set_requires_gradient_sync(last)
                model.set_reshard_after_backward(last)
                model.set_is_last_backward(last)
            model(tokens, labels=tokens).backward()
        if case.get("trap") == "an all-reduce ZeRO-1":
            for weight in model.parameters():
                whole = weight.grad.full_tensor() if dp > 1 else weight.grad
                dist.all_reduce(whole, group=mesh.get_group("dp_shard"))
        tensor_parallel.place_gradients(model.parameters())
    return [asdict(each) for each in traffic.exchanges]


if __name__ == "__main__":
    rank_program.main(step)
