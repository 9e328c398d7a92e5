"""What the two ends of a model keep: embedding, final norm, logits and loss, in bytes.

Loss in torch's own operations (`F.cross_entropy` is a softmax of the logits' type and a sum), at
the worst moment of its backward pass, for each logit:
    widened by the model   softmax, its gradient, the logits' gradient in fp32; the narrow logits
    autocast               the softmax is narrow (the call names its type, which autocast respects),
                           a copy in fp32 for the sum, and that one's gradient
    all narrow             softmax, its gradient, the logits' gradient in the narrow type
    compiled               one kernel from the narrow logits to their narrow gradient (torch's
                           compiler since 2.4; before, one fp32 number besides)
Megatron's loss over split vocabularies works in place: one fp32 number and the narrow logit; the
gradient of the head's matrix comes into being in fp32 beside the buffer that it is added to.
`models.loss`, our own, holds some rows of logits at a time and the matrix's gradient in fp32.
"""

from __future__ import annotations

from typing import Any

from trainrig.workload.layout import Layout
from trainrig.workload.shapes import ModelShape
from trainrig.workload.style import Style

_CHUNK = 2**26
"""Logits of `models.loss` at a time on a GPU, of at least so many rows:"""
_FEWEST_ROWS = 256


def embedding_bytes(shape: ModelShape, style: Style, seq: int) -> float:
    """Of one sample: token ids; BERT's norm keeps the sum; dropout its mask."""
    size = 8 * seq * (3 if shape.family == "bert" else 1)
    normed = style.residual * shape.hidden * seq if shape.family == "bert" else 0
    return size + normed + (shape.hidden * seq if style.dropout else 0)


def end_bytes(shape: ModelShape, style: Style, seq: int) -> float:
    """Of one sample, between the last block and the logits."""
    wide = seq * shape.hidden
    if shape.family == "bert":  # dense, gelu, norm
        return wide * (2 * style.compute + style.residual)
    out = 0 if style.chunked_loss else style.compute
    copy = 4 + style.residual if style.norm_written_out and not shape.norm_bias else style.residual
    return wide * (copy + out)


def loss_bytes(shape: ModelShape, layout: Layout, style: Style, rows: Any) -> Any:
    """At the worst moment of the loss, for ``rows`` tokens of one rank."""
    if style.chunked_loss:
        return chunk_bytes(shape, style, rows)
    import numpy as np

    logits, c = rows * shape.vocab / layout.tp, style.compute
    if layout.engine == "megatron":
        gradient = 4 * shape.vocab * shape.hidden / layout.tp
        return np.maximum((4 + c) * logits, c * logits + gradient)
    return _loss_width(style) * logits


def _loss_width(style: Style) -> int:
    """Bytes for each logit where nothing is split or chunked: see the module's paragraph."""
    c = style.compute
    if style.compiled:
        return 2 * c
    if c == 4:
        return 12
    if style.wide_loss:
        return 12 if style.autocast else 12 + c
    return 8 + c if style.autocast else 3 * c


def loss_rests(shape: ModelShape, style: Style, rows: Any) -> Any:
    """What the chunked loss holds until the step's end: gradients before their common factor."""
    if not style.chunked_loss:
        return 0
    return 4 * shape.vocab * shape.hidden + style.compute * rows * shape.hidden


def chunk_bytes(shape: ModelShape, style: Style, rows: Any) -> Any:
    """While a chunk of logits is in memory."""
    import numpy as np

    c, narrow = style.compute, style.compute < 4
    at_once = max(_FEWEST_ROWS, _CHUNK // shape.vocab)
    first = np.minimum(at_once, rows) * shape.vocab
    second = np.minimum(at_once, rows - np.minimum(at_once, rows)) * shape.vocab
    # in fp32 the softmax, and its input where that is narrow; the chunk before is still held
    softmax = c * first + np.maximum((8 if narrow else 4) * first, _held(first, second, narrow))
    product = (c + 4 + (c if narrow else 0)) * first + c * shape.vocab * shape.hidden
    return np.maximum(softmax, product) + loss_rests(shape, style, rows)


def _held(first: Any, second: Any, narrow: bool) -> Any:
    """fp32 numbers of two chunks at once, if there are two."""
    import numpy as np

    return np.where(second > 0, 4 * first + (8 if narrow else 4) * second, 0)
