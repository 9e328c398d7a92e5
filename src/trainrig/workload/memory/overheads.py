"""What a step needs besides states and activations: buffers, the loss, what the device adds.

Communication buffers, gradients in buckets and gathered weights, in bytes of one rank:

ddp         torch copies all gradients into its buckets, which stay (gradient_as_bucket_view off)
fsdp        two blocks' weights gathered at a time, the one computed with and the next one, the
            embedding and head for the whole step, and one block's whole gradients; with ZeRO 2
            all weights stay gathered
deepspeed   during all of backward a bucket for 2e8 gradients, with stage 2 a second one, filled
            while the first is on its way (`overlap_comm`); with stage 3 the gathered weights
megatron    gradients lie in their buffer already; with sequence parallelism what is gathered; with
            zero 2 and 3 (Megatron-FSDP) a block's gradients before they are shards, with zero 3 two
            blocks' weights and those of the ends
Sources: torch's and DeepSpeed's documentation of the options named here.

Between the tensors' sum and what the card shows lie estimates, with intervals:

allocated   the sum of the tensors, as the framework's allocator hands them out
reserved    what the allocator has taken from the driver: blocks that are free or half used stay
device      everything on the card: the CUDA context, libraries, communicators' buffers besides

The figures are those that people see: 0.3 to 0.7 GiB for a context with its kernels, 8 to 32 MiB
of workspace for each cuBLAS handle, and some 10 to 40 MiB for each channel of NCCL that is in use.

The two ends of a model keep embedding, final norm, logits and loss.  Loss in torch's own operations
(`F.cross_entropy` is a softmax of the logits' type and a sum), at the worst moment of its backward
pass, for each logit:
    widened by the model   softmax, its gradient, the logits' gradient in fp32 (the narrow logits
                           are gone where the loop keeps the loss alone, as Trainer's does)
    autocast               the softmax is narrow (the call names its type, which autocast respects),
                           a copy in fp32 for the sum, and that one's gradient
    all narrow             softmax, its gradient, the logits' gradient in the narrow type
    compiled               one kernel from the narrow logits to their narrow gradient (torch's
                           compiler since 2.4; before, one fp32 number besides)
    chunked                the narrow logits and all softmaxes in fp32, of an eighth its gradient;
                           compiled: the narrow logits, and of an eighth their gradient
Megatron's loss over split vocabularies works in place: one fp32 number and the narrow logit; the
gradient of the head's matrix comes into being in fp32 beside the buffer that it is added to.
`models.loss`, our own, holds some rows of logits at a time and the matrix's gradient in fp32.
"""

from __future__ import annotations

from typing import Any

from trainrig.workload.arrays import choose, larger, smaller
from trainrig.workload.layout import Layout
from trainrig.workload.model import ModelShape
from trainrig.workload.numerics import Numerics, States


def buckets(layout: Layout, states: States) -> Any:
    """DeepSpeed's buckets of gradients: full from the loss on, however small the model.

    They leave by them for the host, too, where the optimizer is there (ZeRO-Offload).
    """
    if not layout.traits.ranks.bucket:
        return 0.0
    zero = layout.sharding.zero
    leaves = (layout.mesh.dp > 1) | (layout.memory.offload != "none")
    many = choose(leaves & (zero < 3), smaller(zero, 2), 0)
    return many * layout.traits.ranks.bucket * (states.persistent_grad + states.transient_grad)


GIB = 1 << 30

CONTEXT = 0.6 * GIB
"""Driver context, kernels, cuBLAS and cuDNN handles."""
COMMUNICATORS = 0.5 * GIB
"""NCCL's buffers where there are several GPUs."""
WORKSPACES = 0.125 * GIB
"""cuBLAS's and Transformer Engine's on Hopper and later, 32 MiB each (`CUBLAS_WORKSPACE_CONFIG` in
torch's notes, `get_cublas_workspace_size_bytes`), which are the allocator's, too: at most."""
UNUSED, UNUSED_AGAIN = 0.06, 0.10
"""Blocks of torch's allocator that fit nothing, however often it gives back what it can, as shares
of what is allocated and, where blocks are computed again, of the logits: a regression over 84
traced steps of six models replayed through its rules, into the least memory in which they end
(`validation.allocator`; 0.06 of what is allocated around it)."""
HELD = {"states": 0.09, "frozen": 0.05, "activations": 0.06, "logits": 0.11, "again": 0.16}
"""Blocks that it holds while it need not give any back, as shares: of weights and what belongs to
them (frozen ones come once), of activations, and of logits, which are few and large, so that blocks
split for others do not hold them; more of them where blocks are computed again.  A regression over
these steps, 0.053 of what is allocated around it, fitted to no measured memory.  Logits that never
exist whole count as activations; Megatron's are split, and dealt with in place."""
CACHED = 0.12
"""Share of what is allocated: blocks since another phase of the run (first steps, evaluation),
which are shown and not needed.  Chosen between none and a third (the interval below) with published
rows in sight: 0.05, 0.09 and 0.12 were tried, and less showed too little on all sources."""

_INTERVALS = {"allocated": (0.90, 1.10), "reserved": (0.80, 1.30), "device": (0.80, 1.30)}
"""Stated beforehand and never fitted: what `allocated` may be off by, and up to a third that the
allocator holds in blocks that fit nothing; of device around what is reserved."""
_STATES_ERROR, _OTHERS_ERROR = 0.05, 0.20
"""Half widths of the 80 % interval of weights, gradients and optimizer states, and of all other
tensors, as shares of them: the narrowest of four pairs that holds 65 % of the later rows below.
Errors of published rows that state all settings: where states are most of it -0.2 to +1.9 % of what
is allocated (18 rows of training.csv), elsewhere +0.5 to +8 % (42 rows); in five later tables -12 %
to +61 (62 rows) and -18 to +24 % (173 rows)."""
_SLACK_ERROR = 0.05, 0.07
"""Below and above `UNUSED`, as shares of what is allocated: of the replayed steps a tenth end in
1.01 times what they allocate, and nine tenths in 1.13."""
_CONTEXT_ERROR = 0.3 * GIB
"""Half width of `CONTEXT`."""


def unused(allocated: Any, logits: Any, layout: Layout, numerics: Numerics) -> Any:
    """Return bytes of the allocator's blocks that cannot be had."""
    is_whole = not (numerics.loss.fused or layout.traits.models.splits_vocabulary)
    again = UNUSED_AGAIN * (is_whole and layout.memory.recompute == "full")
    return UNUSED * allocated + again * logits


def reserved(
    allocated: Any, activations: Any, logits: Any, layout: Layout, numerics: Numerics
) -> Any:
    """Return bytes that the framework's allocator has taken from the driver."""
    of_states = HELD["frozen" if numerics.adapters.frozen else "states"] * (
        allocated - activations - logits
    )
    of_logits = HELD["logits"] + HELD["again"] * (layout.memory.recompute == "full")
    if numerics.loss.fused or layout.traits.models.splits_vocabulary:
        of_logits = HELD["activations"]
    return allocated + of_states + HELD["activations"] * activations + of_logits * logits


def context(layout: Layout) -> Any:
    """Return bytes besides what the allocator has, for arrays too."""
    return CONTEXT + choose(layout.mesh.gpus > 1, COMMUNICATORS, 0.0)


def interval(middle: Any, kind: str) -> tuple[Any, Any]:
    """Return the 80 % interval around what is allocated or, of the other kinds, reserved."""
    low, high = (share * middle for share in _INTERVALS[kind])
    if kind == "device":
        return low + 0.3 * GIB, high + CONTEXT + COMMUNICATORS + GIB
    return low, high + WORKSPACES


def needed_interval(total: Any, states: Any, others: Any) -> tuple[Any, Any]:
    """Return where 8 of 10 lie of the least memory in which a step ends.

    The errors of states, of other tensors, of the allocator's slack and of the context have nothing
    to do with each other: their squares add up.  What the allocator holds and gives back where it
    is short is not needed.

    Args:
        total: The estimate, in bytes.
        states: Bytes of weights, gradients, masters and optimizer states.
        others: Bytes of activations, logits and buffers.
    """
    tensors = (_STATES_ERROR * states) ** 2 + (_OTHERS_ERROR * others) ** 2 + _CONTEXT_ERROR**2
    below, above = ((tensors + (share * (states + others)) ** 2) ** 0.5 for share in _SLACK_ERROR)
    return total - below, total + above


_CHUNK, _TILE = 2**26, 2**24
"""Logits of `models.loss` at a time on a GPU, of at least so many rows:"""
_FEWEST_ROWS = 256
_CHUNKS = 8
"""Parts of the logits that are widened one after the other (torchtune's `num_output_chunks`)."""


def embedding_bytes(shape: ModelShape, numerics: Numerics, seq: int) -> float:
    """Return the bytes that the embedding keeps of one sample: token ids.

    BERT's norm keeps the sum; dropout its mask.
    """
    size = 8 * seq * (3 if shape.family == "bert" else 1)
    normed = numerics.formats.residual * shape.hidden * seq if shape.family == "bert" else 0
    return size + normed + (shape.hidden * seq if numerics.kernels.dropout else 0)


def end_bytes(shape: ModelShape, numerics: Numerics, seq: int) -> float:
    """Return the bytes of one sample between the last block and the logits."""
    wide = seq * shape.hidden
    if shape.family == "bert":  # dense, gelu, norm
        return wide * (2 * numerics.formats.compute + numerics.formats.residual)
    out = 0 if numerics.loss.fused else numerics.formats.compute
    copy = (
        4 + numerics.formats.residual if numerics.norms.written_out else numerics.formats.residual
    )
    return wide * (copy + out)


def loss_bytes(shape: ModelShape, layout: Layout, numerics: Numerics, rows: Any) -> Any:
    """At the worst moment of the loss, for ``rows`` tokens of one rank."""
    if numerics.loss.fused:
        return chunk_bytes(shape, layout, numerics, rows)
    logits, c = rows * shape.num_logits / layout.mesh.tp, numerics.formats.compute
    if layout.traits.models.splits_vocabulary:
        gradient = 4 * shape.vocab * shape.hidden / layout.mesh.tp
        return larger((4 + c) * logits, c * logits + gradient)
    return _loss_width(numerics) * logits


def _loss_width(numerics: Numerics) -> float:
    """Return bytes for each logit where nothing is split or chunked: see the module's paragraph."""
    c = numerics.formats.compute
    if numerics.loss.chunked:
        chunk = 1 / _CHUNKS
        return c * (1 + chunk) if numerics.loss.compiled else c + 4 * (1 + chunk)
    if numerics.loss.compiled:
        return 2 * c
    if c == 4:
        return 12
    if numerics.loss.wide:
        return 12
    return 8 + c if numerics.formats.autocast else 3 * c


_NARROW = 2
"""Bytes that each logit takes less before backward begins, under autocast."""


def narrow_bytes(shape: ModelShape, layout: Layout, numerics: Numerics, rows: Any) -> Any:
    """Return the bytes that `loss_bytes` takes less before backward begins.

    A fused loss has done its part then.
    """
    return 0 if numerics.loss.fused else _NARROW * rows * shape.num_logits / layout.mesh.tp


def loss_rests(shape: ModelShape, layout: Layout, numerics: Numerics, rows: Any) -> Any:
    """Return the bytes that the chunked loss holds until the step's end.

    They are gradients before their common factor.

    Ours adds up in fp32; Liger's kernel in the type that the head's matrix is held in, and not
    where that is frozen.
    """
    if not numerics.loss.fused:
        return 0
    vocab = -(-shape.vocab // layout.mesh.tp)
    is_native = layout.traits.models.own_models
    wide = 4 if is_native or numerics.formats.autocast else numerics.formats.compute
    sums = 0 if numerics.adapters.frozen and not is_native else wide * vocab * shape.hidden
    return sums + numerics.formats.compute * rows * shape.hidden


def chunk_bytes(shape: ModelShape, layout: Layout, numerics: Numerics, rows: Any) -> Any:
    """While a chunk of logits, in rows of a multiple of 64, is in memory.

    It becomes its own gradient, some rows at a time by way of two numbers in fp32 for each; then
    its product with the hidden states is added to the gradient of the head's matrix (Liger's is
    added in place).
    """
    c, vocab = numerics.formats.compute, -(-shape.vocab // layout.mesh.tp)
    at_once = smaller(larger(_FEWEST_ROWS, _CHUNK // vocab), rows)
    tile = smaller(larger(1, _TILE // vocab), at_once)
    logits = c * at_once * (-(-vocab // 64) * 64)
    product = c * vocab * shape.hidden if layout.traits.models.own_models else 0
    return logits + larger(8 * tile * vocab, product) + loss_rests(shape, layout, numerics, rows)
