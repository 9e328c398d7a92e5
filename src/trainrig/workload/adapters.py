"""Low-rank adapters: beside which of a block's matrices they lie, and how many parameters they are.

W stays as it is, B·A beside it is trained, of a rank much smaller than both sides of W (Hu et al.
2021, arXiv 2106.09685).  Which matrices have one is `Lora.targets`.
"""

from __future__ import annotations

from typing import Any

from trainrig.workload.model import Matrix, ModelShape, matrices, state_share

METHODS = ("full", "lora", "qlora")
"""Ways to train: all weights, adapters, adapters beside frozen weights in four bits."""


def has_adapter(on: str, branch: str, part: str, *, is_expert: bool) -> bool:
    """Return whether a matrix has an adapter beside it, by ``on`` of `Lora.targets`."""
    if on in ("all", "shared"):
        return part != "router" or on == "all"
    if on == "linear":
        return not (is_expert or part == "router")
    return branch != "ffn" and (on == "attention" or part[0] in "qkv")


def adapter_parameters(
    shape: ModelShape, rank: int, *, on: str = "all", ep: Any = 1, decoder: bool = False
) -> Any:
    """Adapters of ``rank`` in an average block: rank · (wide in + wide out) beside each matrix.

    Low-rank adaptation (Hu et al. 2021): W stays, B·A beside it is trained.  ``on``: beside which
    matrices (`has_adapter`); of experts a rank has one of ``ep`` parts, a number or an array.
    """
    share = state_share(shape)

    def block(*, dense: bool) -> Any:
        plain, with_state = (
            _adapters(matrices(shape, decoder=decoder, dense=dense, state=state), rank, on, ep)
            for state in (False, True)
        )
        return plain + share * (with_state - plain)

    if not shape.moe.num_experts:
        return round(block(dense=True))
    mixed = 1.0 - shape.moe.dense_layers / shape.num_layers
    return (1.0 - mixed) * block(dense=True) + mixed * block(dense=False)


def _adapters(matrices: list[Matrix], rank: int, on: str, ep: Any) -> Any:
    """Return the adapters' parameters of one block; experts are matrices with copies."""
    size: Any = 0
    for matrix in matrices:
        is_expert = matrix.copies > 1
        if not has_adapter(on, matrix.branch, matrix.part, is_expert=is_expert):
            continue
        copies = matrix.copies / ep if is_expert else 1
        num = 1 if on == "shared" else copies
        size = size + num * rank * (matrix.wide_in + matrix.wide_out)
    return size
