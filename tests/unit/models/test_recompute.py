"""What blocks compute a second time, seen in what their backward pass runs; compiled ones too."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from trainrig import models
from trainrig.workload import custom
from trainrig.workload.layout.groups import RECOMPUTE

SHAPE = custom("gpt2", num_layers=1, hidden=32, num_heads=2, vocab=64, max_positions=16)
# As inductor divides forward from backward, without its minutes of C++.
COMPILED = {"backend": "aot_eager_decomp_partition"}


class Products(TorchDispatchMode):
    """Counts the matrix products that run, in what is compiled too."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(
        self, operation: Any, _types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.count += operation.name().partition(".")[0] in ("aten::mm", "aten::addmm")
        return operation(*args, **(kwargs or {}))


def backward_products(model: nn.Module) -> int:
    """Products in the backward pass of a step that is not the first."""
    tokens = torch.randint(0, 64, (2, 16), generator=torch.Generator().manual_seed(1))
    model.loss(tokens, tokens).backward()
    loss = model.loss(tokens, tokens)
    with Products() as seen:
        loss.backward()
    return seen.count


@pytest.mark.filterwarnings("ignore")  # of torch's own tracing
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_selective_recomputation_runs_no_product_twice(compiled: bool) -> None:
    """Where a checkpoint lies around a compiled block it once ran all of them, as full does."""
    products = {}
    for how in RECOMPUTE:
        torch._dynamo.reset()
        model = models.build(SHAPE, recompute=how)
        if compiled:
            models.compile_blocks(model, **COMPILED)
        products[how] = backward_products(model)
    assert products["selective"] == products["none"] < products["full"]


def test_a_copied_block_recomputes_its_own_forward() -> None:
    model = models.build(SHAPE, recompute="full")
    other = copy.deepcopy(model)
    assert other.blocks[0].forward.args[0].__self__ is other.blocks[0]
    assert list(other.state_dict()) == list(models.build(SHAPE).state_dict())
