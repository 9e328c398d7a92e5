"""A look at one training step of a rank: what its live objects hold and do.

Nothing here knows what was requested, or whose loop it is: modules, their optimizer and the process
groups are enough.  Between `__enter__` and `__exit__` one step is trained; hooks and a dispatch
mode (`traffic`) see it.  What is read, and where from:

    held            elements of weights, gradients (when the optimizer begins) and states on this
                    rank; of weights also when forward has left the last block
    placements      of the blocks' weights: which mesh axes split or replicate them
    micro-batches   forwards of a block outside backward; those inside are recomputation
    recompute       products that backward runs beyond the two of each matrix; in compiled blocks,
                    where none and selective run the same ones, what a block is wrapped in, too
    8-bit layers    torchao's among the blocks' matrices, and that products of 8-bit floats ran
    attention       which way `models` took, and the kernel that torch chose
    exchanges       `traffic`
    device          where a block's result lies; offload: where the optimizer's weights lie
    settings        TF32, P2P, the allocator's, as this process has them

`layout_check` makes a layout of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainrig.models.experts import Experts
from trainrig.models.layers import attentions_run
from trainrig.models.loss import chunk_rows
from trainrig.models.recompute import policy_of
from trainrig.train.drivers.common import (
    Facts,
    elements,
    facts_of,
    has_compiled,
    kind,
    multiplies_in_tf32,
    of_result,
)
from trainrig.train.native.precision import float8_of
from trainrig.train.native.traffic import Traffic, in_backward


class Look:
    """Sees one step: ``with look: engine.step()``, then `facts`."""

    def __init__(
        self,
        modules: Sequence[nn.Module],
        optimizer: torch.optim.Optimizer,
        *,
        axes: Mapping[str, str] | None = None,
        wrapped: object = None,
    ) -> None:
        """``modules``: the stages of this rank, one without a pipeline; ``axes``: of its groups.

        ``wrapped``: what is around the model, where torch has a wrapper for it.
        """
        self._modules: list[Any] = list(modules)
        self._optimizer, self._wrapped = optimizer, wrapped or modules[0]
        self._axes = dict(axes or {})
        self._traffic = Traffic(self._axes)
        self._facts: Facts = {
            "micro_batches": 0,
            "block_forwards": 0,
            "weights": elements(self._weights()),
        }
        self._leave: list[Callable[[], None]] = []
        self._attentions: set[str] = set()

    def __enter__(self) -> Look:
        self._attentions = set(attentions_run)
        attentions_run.clear()
        first, last = _blocks(self._modules[0])[0], _blocks(self._modules[-1])[-1]
        self._leave = [
            _around(first, self._began, self._first_result),
            _around(last, lambda: None, self._forward_over),
            self._optimizer.register_step_pre_hook(self._before_update).remove,
        ]
        self._traffic.__enter__()
        return self

    def __exit__(self, *problem: Any) -> None:
        self._traffic.__exit__(*problem)
        for leave in self._leave:
            leave()
        self._facts["attention"] = " and ".join(sorted(attentions_run)) or None
        attentions_run.update(self._attentions)

    def facts(self) -> Facts:
        """Return the observed facts as JSON has them."""
        blocks = [block for module in self._modules for block in _blocks(module)]
        masters = [w for group in self._optimizer.param_groups for w in group["params"]]
        device = self._facts.get("result_device") or str(masters[0].device)
        expected = 2 * sum(map(_products, blocks)) * self._facts["micro_batches"]
        traffic = self._traffic
        kernels = sorted(traffic.attention_kernels)
        return {
            **facts_of(self._wrapped, masters, self._optimizer, device),
            **self._facts,
            "num_parameters": sum(weight.numel() for weight in self._weights()),
            "num_parameters_here": sum(_before_sharding(w).numel() for w in self._weights()),
            "products_again": (traffic.products[True] - expected) / max(1, expected // 2),
            "attention_kernel": " and ".join(kernels) or None,
            "exchanges": [asdict(exchange) for exchange in traffic.exchanges],
            "single_numbers": traffic.single_numbers,
            "routed_rows": traffic.routed_rows,
            "float8": float8_of(blocks),
            "float8_products": traffic.float8_products,
            "compiled": _compiled(blocks[0]) is not None and has_compiled(),
            "wrapped_policy": " and ".join(sorted({policy_of(block) for block in blocks})),
            "chunk_rows": self._chunk_rows(device),
            "stages": len(self._modules),
            "units": len(blocks) + len(self._modules),
            "axes": traffic.sizes,
            "mesh_axes": sorted(set(self._axes.values())),
            "place": _place(self._weights()),
            "stages_here": [_stage_facts(module) for module in self._modules],
            "placements": _placements(blocks[0]),
            "pinned": traffic.pinned,
            "master_device": masters[0].device.type,
            **_axes_of(blocks),
            **settings(device),
        }

    def _chunk_rows(self, device: str) -> int:
        """Return tokens whose logits are computed at once, by the columns that are here."""
        ways = [
            number
            for weight in self._weights()
            for name, number, placement in _placed(weight)
            if name == "tp" and placement.is_shard()
        ]
        vocab = self._modules[0].shape.vocab
        return chunk_rows(-(-vocab // max(ways, default=1)), device.split(":")[0])

    def _weights(self) -> list[Tensor]:
        """Return the weights of all this rank's stages; one that two stages share once."""
        weight_by_id = {id(w): w for module in self._modules for w in module.parameters()}
        return list(weight_by_id.values())

    def _began(self) -> None:
        self._facts["block_forwards"] += 1
        self._facts["micro_batches"] += not in_backward()

    def _first_result(self, out: Tensor) -> None:
        self._facts.update(of_result(out), result_device=str(out.device))

    def _forward_over(self, _: Tensor) -> None:
        if not in_backward():
            self._facts["weights_between"] = elements(self._weights())

    def _before_update(self, *_: Any) -> None:
        masters = [w for group in self._optimizer.param_groups for w in group["params"]]
        every = {id(w): w for w in (*self._weights(), *masters)}.values()
        gradients = [w.grad for w in every if w.grad is not None]
        self._facts["gradients"] = elements(gradients)
        self._facts["gradient_dtype"] = kind(gradients)


def settings(device: str) -> Facts:
    """Return the process settings that decide speed and are no part of the model.

    TF32 as torch would use it in products; whether the first GPU reaches another one directly
    (unverified on hardware); the allocator's options, which are fixed when it is first used.
    """
    on_gpu = device.startswith("cuda")
    others = range(1, torch.cuda.device_count()) if on_gpu else ()
    reached = [torch.cuda.can_device_access_peer(0, other) for other in others]
    allowed = os.environ.get("NCCL_P2P_DISABLE", "0") in ("", "0")
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    return {
        "cores": cores if on_gpu else None,
        "tf32": multiplies_in_tf32() if on_gpu else None,
        "p2p": (all(reached) and allowed) if reached else None,
        "allocator": next((os.environ[name] for name in names if name in os.environ), None),
    }


def _blocks(module: Any) -> list[nn.Module]:
    """Return a stage's blocks; a stage's are named by their numbers in the whole model."""
    blocks: list[nn.Module] = []
    for name in ("blocks", "decoder_blocks"):
        part = getattr(module, name, ())
        blocks += part.values() if isinstance(part, nn.ModuleDict) else part
    return blocks


def _products(block: nn.Module) -> int:
    """Products with a matrix of weights in one forward of ``block`` on this rank.

    Each expert that a rank has multiplies its rows apart, none of them too.
    """
    products = 0
    for part in block.modules():
        if isinstance(part, Experts):
            products += sum(_before_sharding(stack)[0] for stack in part.parameters())
        products += isinstance(part, nn.Linear)
    return products


def _compiled(block: Any) -> Any:
    return block._compiled_call_impl  # nn.Module.compile keeps it there, and nowhere else


def _around(
    block: Any, before: Callable[[], None], after: Callable[[Tensor], None]
) -> Callable[[], None]:
    """Call both around each forward of a block, until what is returned is called.

    Its first product is watched where it is compiled by nothing: the dtype of what it gives is
    what the block computes in, and a second forward for backward's sake begins with it, too.  A
    compiled block is watched from outside: a hook would be compiled with it.
    """
    compiled = _compiled(block)
    if compiled is not None:

        def call(*args: Any, **kwargs: Any) -> Any:
            before()
            out = compiled(*args, **kwargs)
            after(out)
            return out

        block._compiled_call_impl = call
        return lambda: setattr(block, "_compiled_call_impl", compiled)
    matrix = next(part for part in block.modules() if isinstance(part, nn.Linear))
    handles = [
        matrix.register_forward_pre_hook(lambda *_: before()),
        block.register_forward_hook(lambda _, __, out: after(out)),
    ]

    def leave() -> None:
        for handle in handles:
            handle.remove()

    return leave


def _axes_of(blocks: Sequence[nn.Module]) -> Facts:
    """Return for each mesh axis how many ways the blocks' weights are split or replicated.

    Each matrix must be split over an axis that splits another one: the fewest count, so that a
    layer that a plan left out shows.
    """
    split: dict[str, list[int]] = {}
    copied: dict[str, int] = {}
    matrices = [
        part
        for block in blocks
        for name, part in block.named_modules()
        if isinstance(part, nn.Linear) and not name.endswith("router")
    ]
    for weight in (matrix.weight for matrix in matrices):
        ways = dict.fromkeys(_AXES, 1)
        for name, number, placement in _placed(weight):
            if placement.is_shard() and name in ways:
                ways[name] = number
            elif name.startswith("dp"):
                copied[name] = number
        for name, number in ways.items():
            split.setdefault(name, []).append(number)
    return {
        "split": {name: min(shares, default=1) for name, shares in split.items()},
        "split_most": {name: max(shares, default=1) for name, shares in split.items()},
        "copied": copied,
    }


_AXES = ("tp", "dp_shard")


def _before_sharding(weight: Any) -> torch.Size:
    """Shape of a weight on this rank, did data parallelism not share it."""
    if not isinstance(weight, DTensor):
        return weight.shape
    dims = list(weight.shape)
    for name, number, placement in _placed(weight):
        if placement.is_shard() and not name.startswith("dp"):
            dims[placement.dim] = -(-dims[placement.dim] // number)
    return torch.Size(dims)


def _placed(weight: Any) -> list[tuple[str, int, Any]]:
    """Return name, size and placement for each mesh axis of a weight."""
    if not isinstance(weight, DTensor):
        return []
    mesh = weight.device_mesh
    names = mesh.mesh_dim_names or ("dp_shard",) * mesh.ndim
    return [
        (names[axis], mesh.size(axis), placement)
        for axis, placement in enumerate(weight.placements)
    ]


def _place(weights: Sequence[Any]) -> dict[str, int]:
    """Return this rank's coordinate on each axis of the mesh that most weights lie on."""
    meshes = [weight.device_mesh for weight in weights if isinstance(weight, DTensor)]
    mesh = max(meshes, key=lambda mesh: mesh.ndim, default=None)
    if mesh is None or mesh.get_coordinate() is None:
        return {}
    return dict(zip(mesh.mesh_dim_names or (), mesh.get_coordinate(), strict=False))


def _stage_facts(module: Any) -> Facts:
    """Return a stage's part of the model; its blocks are named by their numbers in the whole."""
    names = [int(name) for name, _ in module.blocks.named_children()]
    return {
        "blocks": len(names),
        "decoder_blocks": len(getattr(module, "decoder_blocks", ())),
        "first": bool(getattr(module, "first", True)),
        "last": bool(getattr(module, "last", True)),
        "from": min(names, default=0),
    }


def _placements(block: nn.Module) -> str | None:
    """Return the placements of a block's weights on the mesh of ranks."""
    weight: Any = next(block.parameters())
    if not hasattr(weight, "placements"):
        return None
    return f"{weight.placements} on {tuple(weight.device_mesh.shape)} ranks"


def first_step(engine: Any, axes: Mapping[str, str] | None = None) -> Facts:
    """Train one step of ``engine`` and look while it goes on; ``axes`` of its groups of ranks.

    In the very first one a pipeline's stages send each other their shapes, and DTensors try their
    operations on fake ones: there a step is trained before, which nobody looks at.
    """
    layout = engine.experiment.layout
    if layout.mesh.tp * layout.mesh.pp > 1:
        engine.step()
    wrapped = getattr(engine.weights, "wrapped", None)
    look = Look(engine.weights.modules, engine.optimizer, axes=axes, wrapped=wrapped)
    with look:
        engine.step()
    return look.facts()
