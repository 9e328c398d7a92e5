"""One of many ranks that train one step without memory: torch's fake tensors and process group.

Every object is the engine's and torch's own (weights, FSDP2, optimizer); only numbers are missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from trainrig import models
from trainrig.train.native import data_parallel
from trainrig.train.native.layout_observed import Look
from trainrig.train.native.precision import Weights
from trainrig.train.native.world import World
from trainrig.workload import ModelShape
from trainrig.workload.layout import Layout


@contextmanager
def ranks(number: int) -> Iterator[None]:
    """In the body this process is the first of ``number``."""
    dist.init_process_group("fake", rank=0, world_size=number, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def facts_of_a_step(shape: ModelShape, layout: Layout) -> tuple[dict[str, Any], dict[str, int]]:
    """What a look at one step found, and the bytes that it saw."""
    world = World(layout, "cpu")
    model: Any = models.build(shape, device="meta")
    # Whole weights need no more than meta tensors; FSDP2 refuses these.
    device = "cpu" if layout.sharding.zero else "meta"
    mode: Any = (
        FakeTensorMode(allow_non_fake_inputs=True) if layout.sharding.zero else nullcontext()
    )
    size = (int(layout.batch.micro), layout.batch.seq_len)
    tokens = torch.zeros(size, dtype=torch.long, device=device)
    if layout.sharding.zero:
        data_parallel.shard(
            model,
            layout.precision.compute,
            int(layout.sharding.zero),
            world,
            offload=False,
            piped=False,
        )
    with mode:
        model.to_empty(device=device)
        weights = None if layout.sharding.zero else Weights([model], layout.precision.compute)
        groups = model.parameters() if weights is None else weights.groups(0.1)
        optimizer = torch.optim.AdamW(groups)
        sizes = {"weights": _bytes(model.parameters())}

        def begin(*_: Any) -> None:
            sizes["weights_in_backward"] = _bytes(model.parameters())

        blocks = list(model.blocks)
        handle = blocks[-1].register_forward_hook(begin)
        optimizer.register_step_pre_hook(
            lambda *_: sizes.update(
                gradients=_bytes(
                    master.grad for group in optimizer.param_groups for master in group["params"]
                )
            )
        )
        with Look([model], optimizer, axes=world.axes) as look:
            loss = model(tokens, labels=tokens)
            if weights is None:
                loss.backward()
            else:
                weights.backward(loss, last=True)
            optimizer.step()
        handle.remove()
        states = [
            value for state in optimizer.state.values() for value in state.values() if value.ndim
        ]
        sizes["states"] = _bytes(states)
        if weights is not None and weights.narrow:
            sizes["states"] += _bytes(weights.master.values())
    return look.facts(), sizes


def _bytes(tensors: Any) -> int:
    own = (t.to_local() if hasattr(t, "to_local") else t for t in tensors)
    return sum(tensor.numel() * tensor.element_size() for tensor in own)
