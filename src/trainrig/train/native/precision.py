"""Weights to compute with and weights to update.

    fp32   one set of weights, for both; its products are fp32's
    tf32   the same, and a GPU multiplies with 10 bits of mantissa; sums are in fp32
    bf16   the model holds bf16 and computes in it; the optimizer updates fp32 master weights, of
           which the bf16 ones are the rounding after each step
    fp16   the same with fp16, and the loss scaled (`LossScale`): small gradients do not vanish
    fp8    the same as bf16, and the three products of each of the blocks' matrices are of 8-bit
           floats, by torchao (`to_float8`); the head, embeddings, norms and attention stay in bf16

Autocast would round every weight anew in each forward pass, and again for each micro-batch; here
they are rounded once a step.  Gradients come in the model's type and are summed in fp32: over the
micro-batches of a step nothing is lost to rounding.  Softmax, norms' statistics and the loss are
in fp32 inside their operations in either way.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from trainrig.errors import UnavailableError
from trainrig.models.recompute import blocks_of
from trainrig.train.native import host_sums
from trainrig.workload.model import FP8_RECIPES

DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8": torch.bfloat16,
}

COPY = ", copy"
"""Behind the name of a tied weight whose other end lies on the same rank."""


class Weights:
    """A model's parameters and their masters, by name, in one process that has them all.

    The classes in `data_parallel` have the same methods, and the engine knows no more of them.
    """

    def __init__(self, model: nn.Module | Sequence[nn.Module], dtype: str) -> None:
        """``model`` is in fp32, or its stages are that lie here; it becomes one of ``dtype``."""
        self.modules = [model] if isinstance(model, nn.Module) else list(model)
        self.module: Any = self.modules[0]
        self.narrow = DTYPES[dtype] is not torch.float32
        master = {name: p.detach().clone() for name, p in self._named()} if self.narrow else {}
        for module in self.modules:
            module.to(DTYPES[dtype])
        self.model = dict(self._named())
        self.master: dict[str, Any] = master or dict(self.model)
        self.pipeline: Any = None
        """Pipeline that runs all micro-batches of a step, where the modules are stages."""
        self._collected = False
        self.foreach = True
        """True where one kernel copies many tensors (torch._foreach_copy_)."""

    def _named(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield weights by their names in the whole model, copies of tied ones by another."""
        tied_names: set[str] = set()
        for module in self.modules:
            for name, weight in module.named_parameters():
                yield f"{name}{COPY}" if name in tied_names else name, weight
                tied_names.add(name)

    def owned(self) -> Iterator[tuple[str, Any]]:
        """Return the masters by their names in the whole model, each once."""
        return ((name, master) for name, master in self.master.items() if not name.endswith(COPY))

    def copies(self) -> Iterator[tuple[str, Any]]:
        """Second copies of weights that lie here twice, each by the name of the first."""
        for name, master in self.master.items():
            if name.endswith(COPY):
                yield name.removesuffix(COPY), master

    def weight_of(self, num_targets: int) -> float | Tensor:
        """Return the weight of this rank's mean loss: its targets over those of all ranks."""
        return 1.0

    def loss(self, inputs: Tensor, labels: Tensor, *, last: bool, **samples: Tensor) -> Tensor:
        """Return the mean loss of a micro-batch; ``last``: it is the last one of its step.

        ``samples``: their numbers in the training, where something is dropped.
        """
        return self.module.loss(inputs, labels, **samples)

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add the gradients of ``loss`` to the step's."""
        loss.backward()
        self.collect()

    def norm(self) -> Tensor:
        """Return the norm of all gradients of the step."""
        return total_norm(self.gradients())

    def clip(self, most: float, norm: Tensor) -> None:
        """Shorten all gradients where their ``norm`` is larger; torch's own rule."""
        grads = [local(grad) for grad in self.gradients()]
        factor = torch.clamp(most / (norm + 1e-6), max=1.0)
        torch._foreach_mul_(grads, factor.to(grads[0].device))

    def gradients(self) -> list[Tensor]:
        """Gradients that are held before an update."""
        return [master.grad for master in self.master.values() if master.grad is not None]

    def total(self, loss: Tensor) -> Tensor:
        """Over all ranks."""
        return loss

    def collect(self) -> None:
        """After a backward pass: its gradients, in fp32, to those of the masters."""
        if not self.narrow:
            return  # autograd has added them up already
        gradients: list[Any] = [weight.grad for weight in self.model.values()]
        masters = list(self.master.values())
        if not self._collected:
            for master, grad in zip(masters, gradients, strict=True):
                if master.grad is None or placed(master.grad) != placed(grad):
                    master.grad = torch.empty_like(grad, dtype=master.dtype)
        sums = [local(master.grad) for master in masters]
        self._copy_into(sums, [local(grad) for grad in gradients], add=self._collected)
        self.end_of_sum()

    def _copy_into(self, to: list[Tensor], new: list[Tensor], *, add: bool = False) -> None:
        """Copy each of ``new`` to its place, or add it there."""
        if self.foreach:
            (torch._foreach_add_ if add else torch._foreach_copy_)(to, new)
            return
        for target, other in zip(to, new, strict=True):
            target.add_(other) if add else target.copy_(other)

    def add(self, name: str, grad: Tensor) -> Tensor:
        """Add one gradient to the fp32 sum of its weight; the sum."""
        master = self.master[name]
        if self._collected and master.grad is not None:
            return master.grad.add_(grad)
        if master.grad is None:
            master.grad = torch.empty_like(master)
        return master.grad.copy_(grad)

    def end_of_sum(self) -> None:
        """All gradients of the step were added, one by one."""
        self._collected = True
        for weight in self.model.values():
            weight.grad = None

    def publish(self) -> None:
        """After an update: the model's weights are the masters', rounded; gradients are gone."""
        if self.narrow:
            rounded = [local(weight.detach()) for weight in self.model.values()]
            self._copy_into(rounded, [local(master) for master in self.master.values()])
            self._collected = False
            return
        for weight in self.model.values():
            weight.grad = None

    def groups(self, decay: float, *, embeddings: bool = True) -> list[dict[str, Any]]:
        """Masters for the optimizer: matrices decay, vectors (biases, norms) do not.

        nanoGPT goes by the number of axes, as here; transformers.Trainer leaves out norms and what
        is named a bias, Megatron biases and vectors: in all three embeddings decay.  Without
        ``embeddings`` they do not, nor does a head that is one (OLMo's ``decay_embeddings``).
        A kernel over many tensors takes those of one mesh alone.
        """
        undecayed_ids = set() if embeddings else self._embeddings()
        group_members: dict[tuple[bool, Any], list[Tensor]] = {}
        for name, master in self.master.items():
            decays = master.ndim >= 2 and name.removesuffix(COPY) not in undecayed_ids
            key = decays, getattr(master, "device_mesh", None)
            group_members.setdefault(key, []).append(master)
        return [
            {"params": masters, "weight_decay": decay if decays else 0.0}
            for (decays, _), masters in sorted(
                group_members.items(), key=lambda group: not group[0][0]
            )
        ]

    def _embeddings(self) -> set[str]:
        modules = (layer for module in self.modules for layer in module.named_modules())
        return {f"{name}.weight" for name, layer in modules if isinstance(layer, nn.Embedding)}

    def decayed(self, groups: Sequence[dict[str, Any]]) -> tuple[int, int]:
        """Return the whole model's decayed and undecayed weights in the optimizer's ``groups``.

        All ranks ask together.
        """
        return self._count(groups, frozenset())

    def _count(self, groups: Sequence[dict[str, Any]], copies: frozenset[int]) -> tuple[int, int]:
        """Return the number of weights whose masters' ids are not among ``copies``."""
        counts = [0, 0]
        for group in groups:
            owned_masters = (master for master in group["params"] if id(master) not in copies)
            counts[not group["weight_decay"]] += sum(master.numel() for master in owned_masters)
        return counts[0], counts[1]

    def rest(self) -> None:
        """After forward passes that no backward follows: what was gathered for them is freed."""


def to_float8(model: nn.Module, recipe: str, device: str) -> None:
    """Let torchao's layers, of the same weights, be in the place of the matrices of its blocks.

    ``recipe``: one of FP8_RECIPES, torchao's own names; empty: the first.  Scales are taken of the
    tensors that are multiplied, anew in each product: of each row by ``rowwise``, so that how a
    step is cut into micro-batches and over ranks changes nothing but the sum of the weights'
    gradients; of whole tensors by ``tensorwise``.  A mixture's experts are no such layers, and its
    router stays as it is.  A processor emulates the products (for tests: the layout found says it).
    Raises UnavailableError without torchao.
    """
    if find_spec("torchao") is None:
        raise UnavailableError("missing: fp8 needs torchao", "pip install torchao")
    float8: Any = import_module("torchao.float8")
    config = float8.Float8LinearConfig.from_recipe_name(recipe or FP8_RECIPES[0])
    config = dataclasses.replace(config, emulate=device == "cpu")
    for block in blocks_of(model):
        float8.convert_to_float8_training(
            block, config=config, module_filter_fn=lambda _, name: not name.endswith("router")
        )


def float8_of(blocks: Sequence[nn.Module]) -> dict[str, Any] | None:
    """Return the number of torchao's 8-bit layers in the blocks, and their recipe.

    None where there is none.
    """
    if "torchao.float8" not in sys.modules:
        return None
    float8: Any = import_module("torchao.float8")
    kind = import_module("torchao.float8.float8_linear").Float8Linear
    layers = [
        part
        for block in blocks
        for name, part in block.named_modules()
        if isinstance(part, nn.Linear) and not name.endswith("router")
    ]
    configs = [layer.config for layer in layers if isinstance(layer, kind)]
    if not configs:
        return None
    known = float8.Float8LinearConfig.from_recipe_name
    names = [
        name
        for name in FP8_RECIPES
        if all(
            dataclasses.replace(known(name), emulate=layer.emulate) == layer for layer in configs
        )
    ]
    return {
        "recipe": names[0] if names else "several, or another",
        "layers": len(configs),
        "matrices": len(layers),
        "emulated": any(layer.emulate for layer in configs),
    }


class LossScale:
    """Dynamic loss scale of fp16: multiplies the loss before backward, divides gradients after it.

    The rule of torch.amp.GradScaler: 65,536 at first, half of it wherever a gradient overflowed,
    which leaves the update out, and twice after 2,000 updates in a row.  That class looks at the
    gradients of one process; this one at their norm, which all ranks of any layout have agreed on.
    """

    def __init__(self, device: str, *, enabled: bool) -> None:
        """``enabled``: in fp16; else nothing is scaled and every update is made."""
        self._enabled = enabled
        self._scale = torch.full((), 2.0**16, device=device)
        self._updates = torch.zeros((), device=device)
        self._overflown = torch.zeros((), device=device)

    def is_enabled(self) -> bool:
        """Return whether losses are scaled."""
        return self._enabled

    @property
    def factor(self) -> Tensor | float:
        """Return the factor of losses before backward."""
        return self._scale if self._enabled else 1.0

    def unscale(self, grads: Sequence[Tensor], norm: Tensor) -> Tensor:
        """Divide the gradients of this rank; the norm of all, given with their scale."""
        if not self._enabled:
            return norm
        self._overflown = (~torch.isfinite(norm)).float()
        torch._foreach_mul_(list(grads), 1.0 / self._scale.to(grads[0].device))
        return norm / self._scale

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Update the weights, unless a gradient overflowed; a fused kernel is told and decides."""
        if not self._enabled:
            optimizer.step()
            return
        groups = optimizer.param_groups
        weights = (weight for group in groups for weight in group["params"])
        if all(group.get("fused") for group in groups) and not any(map(placed, weights)):
            optimizer.found_inf = self._overflown
            optimizer.step()
        elif not bool(self._overflown):
            optimizer.step()

    def update(self) -> None:
        """The scale of the next step."""
        over = self._overflown > 0
        updates = torch.where(over, 0.0, self._updates + 1.0)
        grows = updates >= 2000
        change = torch.where(over, 0.5, torch.where(grows, 2.0, 1.0))
        self._scale, self._updates = self._scale * change, torch.where(grows, 0.0, updates)

    def state_dict(self) -> dict[str, Any]:
        """Return the state by GradScaler's names."""
        if not self._enabled:
            return {}
        return {"scale": float(self._scale), "_growth_tracker": int(self._updates)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state of `state_dict` or of a GradScaler."""
        if self._enabled and state:
            self._scale.fill_(state["scale"])
            self._updates.fill_(state["_growth_tracker"])


def total_norm(grads: Sequence[Tensor]) -> Tensor:
    """Return the 2-norm of plain tensors together.

    On the host row by row (`host_sums`).
    """
    if not grads or grads[0].device.type != "cpu":
        return torch.nn.utils.get_total_norm(grads)
    return host_sums.total_norm(grads)


def local(tensor: Any) -> Tensor:
    """Return the part of a tensor that this rank has, in place; of a plain one all."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def placed(tensor: Any) -> Any:
    """Return a tensor's placements on a mesh of ranks; None for a plain one."""
    return getattr(tensor, "placements", None)


def as_placed(grad: Any, weight: Any) -> Any:
    """Return a gradient on the ranks as its weight is.

    Torch leaves some whole, or still to be summed.
    """
    same = placed(grad) == placed(weight)
    return grad if same else grad.redistribute(placements=weight.placements)
