"""Long sums that torch rounds after each summand on a host, and its GPU kernels do not.

Sums over tokens:

    A norm's weight and bias have a summand of their gradient for each token, an embedding's row one
    for each time that its token occurs.  On a GPU torch adds them in fp32 and rounds once.  On a
    host it rounds to bf16 after each (2.13, native_layer_norm_backward, embedding_dense_backward):
    a norm's bias keeps 0.55 of 1,408 summands of one sign and 0.11 of 11,264, an embedding's row
    0.999 of 99.  How much is lost depends on how tokens are spread over ranks and micro-batches, so
    layouts of one model have different gradients.  RMSNorm, products and their biases are right.
    Here a norm is given fp32 and its result is rounded: the same forward to within a rounding, and
    a backward whose sums are fp32's; an embedding's forward is torch's, and of its gradient the
    rows that occur are added up in fp32 (`apply`).  One thread, 2,048 tokens of 768: a norm
    takes 2.0 to 2.4 ms for 1.9, forward and backward, a table of 50,257 rows as long as torch's.

The norm of a tensor:

    On a host torch adds all squares in a few chains of fp32: 3.9e-4 too little for the gradient of
    an embedding of a million weights, 3.9e-3 for one of 50 million.  Here it is the norm of the
    norms of short rows (`install_norms`, `total_norm`).

For every engine whose ranks train on a host; on a GPU nothing is changed.

Imports torch alone: drivers use it in their engine's environment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial, update_wrapper
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor, nn

_NARROW = (torch.bfloat16, torch.float16)
_TORCHS = {
    "vector": torch.linalg.vector_norm,
    "foreach": torch._foreach_norm,
    "any": torch.norm,
}
_ROW = 4096
"""Numbers whose squares are added in one chain."""


def apply(model: nn.Module) -> None:
    """Widen each LayerNorm and embedding, in place; not where the forward is another already."""
    for part in model.modules():
        layer: Any = part
        if "forward" in vars(part):
            continue
        if type(part) is nn.LayerNorm:
            layer.forward = partial(_norm_of, part)
        elif type(part) is nn.Embedding:
            layer.forward = partial(_embedding_of, part)


def layer_norm(
    x: Tensor,
    shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """torch's, of what is narrow in fp32.  (..., C) → (..., C), of the type of ``x``."""
    if not _rounds_each(x):
        return F.layer_norm(x, shape, weight, bias, eps)
    scale, shift = (None if vector is None else vector.float() for vector in (weight, bias))
    return F.layer_norm(x.float(), shape, scale, shift, eps).to(x.dtype)


def embedding(
    tokens: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """torch's, its gradient added up in fp32.  (...), (V, C) → (..., C), of ``weight``'s type."""
    others = max_norm is not None or scale_grad_by_freq or sparse
    if others or not _rounds_each(weight):
        named = (padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
        return F.embedding(tokens, weight, *named)
    if type(weight) not in (Tensor, nn.Parameter) or torch.compiler.is_compiling():
        return F.embedding(tokens, weight.float(), padding_idx).to(weight.dtype)
    rows: Tensor = _Rows.apply(tokens, weight, padding_idx)
    return rows


class _Rows(torch.autograd.Function):
    """Embedding look-up that widens only the rows that occur."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, weight: Tensor, padding_idx: int | None) -> Tensor:
        ctx.save_for_backward(tokens)
        ctx.shape, ctx.padding_idx = weight.shape, padding_idx
        return F.embedding(tokens, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (tokens,), (grad,) = ctx.saved_tensors, grads
        rows, places = tokens.flatten().unique(return_inverse=True)
        sums = torch.zeros(len(rows), ctx.shape[1])
        sums.index_add_(0, places, grad.reshape(-1, ctx.shape[1]).float())
        whole = grad.new_zeros(ctx.shape).index_copy_(0, rows, sums.to(grad.dtype))
        if ctx.padding_idx is not None:
            whole[ctx.padding_idx] = 0
        return None, whole, None


def total_norm(tensors: Sequence[Tensor]) -> Tensor:
    """Return the 2-norm of plain tensors of a host together, in fp32."""
    squares = [_norm(tensor).double().square() for tensor in tensors]
    return torch.stack(squares).sum().sqrt().float() if squares else torch.zeros(())


def install_norms() -> None:
    """Torch's three functions of a whole tensor's 2-norm, for the rest of this process."""
    named: Any = torch
    for owner, name, way in ((named.linalg, "vector_norm", "vector"), (named, "norm", "any")):
        # torch.compile asks torch's functions for their names
        wrapped = update_wrapper(partial(_norm_or_torchs, way), getattr(owner, name))
        setattr(owner, name, wrapped)
    named._foreach_norm = _norms_of_each


def _norm_or_torchs(name: str, *arguments: Any, **named: Any) -> Any:
    """Return ``torch.norm`` calls the second argument ``p``."""
    if _is_plain(arguments, named) and _is_long(arguments[0]):
        return _norm(arguments[0])
    return _TORCHS[name](*arguments, **named)


def _norms_of_each(*arguments: Any, **named: Any) -> Any:
    if _is_plain(arguments, named) and any(map(_is_long, arguments[0])):
        return [_norm(tensor) for tensor in arguments[0]]
    return _TORCHS["foreach"](*arguments, **named)


def _is_plain(arguments: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Return whether a call asks for the 2-norm of a whole tensor; any other call is torch's."""
    orders = [*arguments[1:], *named.values()]
    return (
        len(arguments) > 0
        and named.keys() <= {"ord", "p"}
        and len(orders) <= 1
        and all(isinstance(order, (int, float, str)) and order in (2, "fro") for order in orders)
    )


def _is_long(x: Any) -> bool:
    """Return whether a tensor is long, on the host, and needs no gradient of its norm."""
    plain = type(x) in (Tensor, nn.Parameter) and x.device.type == "cpu"
    plain = (
        plain and x.layout is torch.strided and not (x.requires_grad and torch.is_grad_enabled())
    )
    return plain and x.is_floating_point() and x.numel() > _ROW


def _norm(x: Tensor) -> Tensor:
    flat = x.reshape(-1)
    whole = len(flat) // _ROW * _ROW
    dtype = torch.float32 if x.dtype in _NARROW else x.dtype
    rows = _TORCHS["vector"](flat[:whole].view(-1, _ROW), dim=-1, dtype=dtype)
    tail_norm = _TORCHS["vector"](flat[whole:], dtype=dtype)
    both = torch.cat([rows, tail_norm[None]])
    return both.double().square().sum().sqrt().to(x.dtype)


def _rounds_each(x: Tensor) -> bool:
    return x.dtype in _NARROW and x.device.type == "cpu"


def _norm_of(norm: Any, x: Tensor) -> Tensor:
    return layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)


def _embedding_of(table: Any, tokens: Tensor) -> Tensor:
    return embedding(
        tokens,
        table.weight,
        table.padding_idx,
        table.max_norm,
        table.norm_type,
        table.scale_grad_by_freq,
        table.sparse,
    )
