"""First weights by (seed, name), or as given: the same numbers on any device, rank, stage or shard.

A weight is drawn in chunks of whole rows on the CPU, each chunk by a generator of its own that is
seeded by (seed, the weight's name in the whole model, the chunk's number).  So a rank draws what it
holds and little else, never a weight as a whole, and no layout changes a number.  Weights that are
given (another training's) are read one at a time, and a rank keeps what it holds.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn

from trainrig.workload.model import ModelShape

CHUNK = 2**20
"""Numbers that are drawn at a time; another value gives other weights."""


Given = Callable[[str], Tensor]
"""A weight as a whole, by its name in the whole model."""


@torch.no_grad()
def fill_weights(model: nn.Module, seed: int, given: Given | None = None) -> None:
    """Write first weights into all parameters of ``model``: a built model with memory (to_empty).

    It may be a part of the whole, a pipeline stage, and hold shards, under the names of the whole.
    Biases begin with 0, norms with 1 (T5's with its one factor), all others are normal; ``given``
    are others, of which nothing is drawn.
    """
    if given is not None:
        for name, weight in model.named_parameters():
            _copy(weight, given(name))
        return
    shape: ModelShape = model.shape
    norm = shape.init_std if shape.family == "t5" else 1.0
    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        for name, weight in model.named_parameters():
            local = weight.to_local() if hasattr(weight, "to_local") else weight.data
            module, _, leaf = name.rpartition(".")
            if leaf.endswith("bias"):
                local.zero_()
            elif "norm" in module.rpartition(".")[2]:
                local.fill_(norm)
            else:
                _draw(name, weight, local, seed, _std_of(shape, name), threads)


def _std_of(shape: ModelShape, name: str) -> float:
    """GPT-2: smaller by √(2·layers) what writes into the residual stream.

    T5: each matrix by its width in, queries once more by √D.
    """
    matrix = name.removesuffix(".weight").rpartition(".")[2]
    if shape.family == "gpt2" and matrix in ("out", "down"):
        return shape.init_std / math.sqrt(2 * shape.num_layers)
    if shape.family == "t5" and matrix not in ("tokens", "head"):
        inner = shape.attention.width
        fan = {"q": shape.hidden * shape.attention.head_dim, "out": inner, "down": shape.ffn.width}
        return shape.init_std * fan.get(matrix, shape.hidden) ** -0.5
    return shape.init_std


def _copy(weight: Tensor, whole: Tensor) -> None:
    """The rows and columns of ``whole`` that this rank holds of ``weight``."""
    for dim in range(weight.ndim):
        local_parts = _held(weight, dim)
        if len(local_parts) < whole.shape[dim]:
            whole = whole.index_select(dim, local_parts)
    local = weight.to_local() if hasattr(weight, "to_local") else weight.data
    local.copy_(whole)


def _draw(
    name: str,
    weight: Tensor,
    local: Tensor,
    seed: int,
    std: float,
    threads: ThreadPoolExecutor,
) -> None:
    """Return the rows and columns of the weight ``name`` that ``local`` holds."""
    rows, *columns = (_held(weight, dim) for dim in range(weight.ndim))
    per_chunk = max(1, CHUNK // math.prod(weight.shape[1:]))

    def draw(chunk: int) -> None:
        first = chunk * per_chunk
        here = (rows >= first) & (rows < first + per_chunk)
        if not here.any():
            return
        size = (min(per_chunk, weight.shape[0] - first), *weight.shape[1:])
        digest = hashlib.sha256(f"{seed}/{name}/{chunk}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
        drawn = torch.empty(size).normal_(std=std, generator=generator)[rows[here] - first]
        for dim, held_columns in enumerate(columns, 1):
            if len(held_columns) < weight.shape[dim]:
                drawn = drawn.index_select(dim, held_columns)
        local[here.to(local.device)] = drawn.to(local)

    list(threads.map(draw, range(math.ceil(weight.shape[0] / per_chunk))))


def _held(weight: Tensor, dim: int) -> Tensor:
    """Return the indices along ``dim`` of the whole weight that this rank holds."""
    every = torch.arange(weight.shape[dim])
    if not hasattr(weight, "to_local"):
        return every
    from torch.distributed.tensor import Replicate, distribute_tensor  # half a second to import

    # Indices are spread as the weight is: torch's own rule, whatever the placements.
    along = every.view([-1 if d == dim else 1 for d in range(weight.ndim)])
    how = [p if getattr(p, "dim", None) == dim else Replicate() for p in weight.placements]
    mesh = weight.device_mesh
    return distribute_tensor(along, mesh, how, src_data_rank=None).to_local().flatten().cpu()
