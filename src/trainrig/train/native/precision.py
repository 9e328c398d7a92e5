"""Weights to compute with and weights to update.

    fp32   one set of weights, for both
    bf16   the model holds bf16 and computes in it; the optimizer updates fp32 master weights, of
           which the bf16 ones are the rounding after each step
    fp16   the same with fp16, and the loss scaled so that small gradients do not vanish

Autocast would round every weight anew in each forward pass, and again for each micro-batch; here
they are rounded once a step.  Gradients come in the model's type and are summed in fp32: over the
micro-batches of a step nothing is lost to rounding.  Softmax, norms' statistics and the loss are
in fp32 inside their operations in either way.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Weights:
    """A model's parameters and their masters, by name, in one process that has them all.

    The classes in `data_parallel` have the same methods, and the engine knows no more of them.
    """

    def __init__(self, model: nn.Module, dtype: str) -> None:
        """``model`` is in fp32; it becomes one of ``dtype``."""
        self.module = model
        master = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        model.to(DTYPES[dtype])
        self.model = dict(model.named_parameters())
        self.narrow = dtype != "fp32"
        self.master: dict[str, Tensor] = master if self.narrow else dict(self.model)
        self._collected = False

    def weight_of(self, num_targets: int) -> float | Tensor:
        """What this rank's mean loss weighs, by its targets: 1 where all ranks have as many."""
        return 1.0

    def loss(self, inputs: Tensor, labels: Tensor, *, last: bool) -> Tensor:
        """The mean loss of a micro-batch; ``last``: it is the last one of its step."""
        return self.module.loss(inputs, labels)

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add the gradients of ``loss`` to the step's."""
        loss.backward()
        self.collect()

    def norm(self) -> Tensor:
        """Of all gradients of the step."""
        return torch.nn.utils.get_total_norm(self.gradients())

    def gradients(self) -> list[Tensor]:
        """Gradients that are held before an update."""
        return [master.grad for master in self.master.values() if master.grad is not None]

    def mean(self, loss: Tensor) -> Tensor:
        """Over all ranks."""
        return loss

    def collect(self) -> None:
        """After a backward pass: its gradients, in fp32, to those of the masters."""
        if not self.narrow:
            return  # autograd has added them up already
        grads = [weight.grad for weight in self.model.values()]
        masters = list(self.master.values())
        if self._collected:
            torch._foreach_add_([master.grad for master in masters], grads)
        else:
            for master, grad in zip(masters, grads, strict=True):
                if master.grad is None:
                    master.grad = torch.empty_like(master)
                assert grad is not None
                master.grad.copy_(grad)
        self._collected = True
        for weight in self.model.values():
            weight.grad = None

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
            rounded = [weight.detach() for weight in self.model.values()]
            torch._foreach_copy_(rounded, list(self.master.values()))
            self._collected = False
            return
        for weight in self.model.values():
            weight.grad = None

    def groups(self, decay: float) -> list[dict[str, object]]:
        """Masters for the optimizer: matrices decay, vectors (biases, norms) do not."""
        masters = self.master.values()
        return [
            {"params": [master for master in masters if master.ndim >= 2], "weight_decay": decay},
            {"params": [master for master in masters if master.ndim < 2], "weight_decay": 0.0},
        ]
