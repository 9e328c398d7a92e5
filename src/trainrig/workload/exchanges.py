"""What a rank of our engine exchanges in one step: each collective and message, to the byte.

Answers how many there are and how large, by operation, mesh axis and dtype; not how long they take
(the predictor's step).  A number of bytes is that of the larger side (`native.traffic` counts the
same way in a live step; both must be equal as whole numbers).

L blocks on the rank, m micro-batches, X bytes of a micro-batch's activations (batch · tokens ·
hidden), N its tokens.  A unit is a block, or all that is around the blocks of a stage.

data parallel (a tensor's rows are padded to a multiple of the ranks that share it)
    zero 0      gradients summed once a step: by DDP in one bucket (of its first step; later in
                buckets of 25 MiB), beside other axes by FSDP2, a unit at once
    zero 1      units gathered once, their gradients reduced and scattered once a step
    zero 2      both for each micro-batch
    zero 3      blocks are gathered again in each backward
    hybrid      what a shard group has scattered is summed over the replicas each time
    pipeline    gathered once and reduced once a step, whatever the stage
tensor parallel, for each micro-batch (Shoeybi et al. 2019)
    block       two sums of X forward, two backward
    ends        the sum of the embedding's parts, X; the gradient before the head, X
    loss        for each chunk of rows their largest logit, and two sums of each row, in fp32
    sequence    each sum is a scatter and a gather (Korthikanti et al. 2022), and its mirror
                backward; a norm's gradients are summed once a step, learned positions' gathered
pipeline        X to the next stage and its gradient back, for each micro-batch and boundary; the
                gradients of tied ends to each other once a step
context         queries, keys, values and the result change between tokens and heads, and back in
                backward (Jacobs et al. 2023, DeepSpeed-Ulysses)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trainrig.workload.layout import Layout
from trainrig.workload.model import ModelShape, norm_parameters
from trainrig.workload.tensors import (
    Weight,
    block_tensors,
    embedding_tensors,
    head_tensors,
)

_DTYPES = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_SIZES = {"float32": 4, "bfloat16": 2, "float16": 2}
_FP32 = "float32"
COUNTED = ("gpt2", "gpt-neo", "llama")
"""Families whose tensor-parallel exchanges are written down; of all others data parallel's are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """All collectives, or messages, of one kind in a step."""

    operation: str
    """all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send or recv."""
    axis: str
    """pp, dp_replicate, dp_shard, cp or tp."""
    dtype: str
    """torch's name: float32."""
    count: int
    num_bytes: int
    """Of the larger side, of all together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageParts:
    """A stage of a pipeline, or the whole model."""

    blocks: int
    decoder_blocks: int = 0
    first: bool = True
    last: bool = True
    next_is_here: bool = False
    """The stage behind it is on the same rank: nothing is sent."""
    previous_is_here: bool = False

    def units(self, shape: ModelShape) -> list[list[Weight]]:
        """Tensors that FSDP2 exchanges at once; the last one is what is around the blocks."""
        around: list[Weight] = []
        if self.first:
            around += embedding_tensors(shape)
        if self.last:
            around += head_tensors(shape)
            if shape.tied and not self.first:
                around += embedding_tensors(shape)[:1]
        return [
            *([block_tensors(shape)] * self.blocks),
            *([block_tensors(shape, decoder=True)] * self.decoder_blocks),
            around,
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a rank is on the mesh, as far as shares that are not equal make a difference."""

    tp: int = 0
    dp_shard: int = 0


class _Tally:
    def __init__(self) -> None:
        self.count: Counter[tuple[str, str, str]] = Counter()
        self.bytes: Counter[tuple[str, str, str]] = Counter()

    def add(self, operation: str, axis: str, dtype: str, numbers: int, times: int = 1) -> None:
        """``times`` exchanges of ``numbers`` each."""
        if times and numbers:
            key = operation, axis, dtype
            self.count[key] += times
            self.bytes[key] += times * numbers * _SIZES[dtype]


def exchanges(
    shape: ModelShape,
    layout: Layout,
    stages: Sequence[StageParts] = (),
    *,
    place: Place | None = None,
    chunk_rows: int = 1,
) -> tuple[Exchange, ...] | None:
    """Of a step of one rank that has ``stages``; None where no formula is written down.

    ``stages``: of a pipeline's rank; without one it has the whole model.
    ``chunk_rows``: tokens whose logits are computed at once (`models.loss.chunk_rows`).
    """
    whole = StageParts(blocks=shape.num_layers, decoder_blocks=shape.num_decoder_layers)
    here, place = list(stages) or [whole], place or Place()
    split = int(layout.tp) > 1 or layout.cp > 1
    if shape.num_experts or (layout.cp > 1 and layout.recompute != "none"):
        return None
    if split and shape.family not in COUNTED:
        return None
    tally = _Tally()
    _data(tally, shape, layout, here, place)
    if layout.tp > 1:
        for stage in here:
            _tensor(tally, shape, layout, stage, chunk_rows)
    if layout.pp > 1:
        _pipeline(tally, shape, layout, here, place)
    if layout.cp > 1:
        _context(tally, shape, layout, here)
    return tuple(
        Exchange(
            operation=key[0], axis=key[1], dtype=key[2], count=number, num_bytes=tally.bytes[key]
        )
        for key, number in sorted(tally.count.items())
    )


def _sizes(layout: Layout) -> tuple[int, int]:
    """Replicas, and ranks that share one copy; context-parallel ranks are among them."""
    others = int(layout.dp) * layout.cp
    if not layout.zero:
        return others, 1
    shards = (int(layout.shard_size) or int(layout.dp)) * layout.cp
    return others // shards, shards


def _data(
    tally: _Tally, shape: ModelShape, layout: Layout, stages: Iterable[StageParts], place: Place
) -> None:
    replicas, shards = _sizes(layout)
    tp, micro = int(layout.tp), int(layout.grad_accum)
    dtype = _DTYPES[layout.precision]
    piped = layout.pp > 1
    alone = not layout.zero and tp * int(layout.pp) == 1
    for stage in stages:
        units = stage.units(shape)
        if alone and replicas > 1:  # DDP
            whole = sum(weight.share(1) for unit in units for weight in unit)
            tally.add("all_reduce", "dp_replicate", _FP32, whole)
            continue
        for number, unit in enumerate(units):
            padded = sum(weight.padded(shards, tp=tp, tp_rank=place.tp) for weight in unit)
            again = layout.zero == 3 and number < len(units) - 1 and not piped
            each = 1 if layout.zero < 2 or piped else micro
            if shards > 1:
                tally.add("all_gather", "dp_shard", dtype, padded, each * (1 + again))
                tally.add("reduce_scatter", "dp_shard", _FP32, padded, each)
            if replicas > 1:
                tally.add("all_reduce", "dp_replicate", _FP32, padded // shards, each)


def _again(layout: Layout, *, whole: bool) -> int:
    """What recomputation repeats for a block of its forward exchanges.

    All that comes before its last product, whose result nothing of backward needs.
    """
    return 0 if layout.recompute == "none" else 2 if whole else 1


def _tensor(
    tally: _Tally, shape: ModelShape, layout: Layout, stage: StageParts, chunk_rows: int
) -> None:
    micro, dtype = int(layout.grad_accum), _DTYPES[layout.precision]
    seq = layout.seq_len // layout.cp
    tokens = int(layout.batch_size) * seq
    wide = tokens * shape.hidden
    ends = stage.first + stage.last
    if not layout.sequence_parallel:
        each = 4 + _again(layout, whole=False)
        tally.add("all_reduce", "tp", dtype, wide, micro * (each * stage.blocks + ends))
    else:
        for operation, whole in (("all_gather", True), ("reduce_scatter", False)):
            each = 4 + _again(layout, whole=whole)
            tally.add(operation, "tp", dtype, wide, micro * (each * stage.blocks + ends))
        if stage.first and shape.positions == "learned":
            tally.add("all_gather", "tp", dtype, seq * shape.hidden, micro)
        norms = 2 * stage.blocks + stage.last
        each = norm_parameters(shape) // shape.hidden
        tally.add("all_reduce", "tp", _FP32, shape.hidden, norms * each)
    if stage.last:
        full, rest = divmod(tokens, chunk_rows)
        for rows, times in ((chunk_rows, full), (rest, 1 if rest else 0)):
            tally.add("all_reduce", "tp", _FP32, rows, micro * times)
            tally.add("all_reduce", "tp", _FP32, 2 * rows, micro * times)


def _pipeline(
    tally: _Tally, shape: ModelShape, layout: Layout, stages: Sequence[StageParts], place: Place
) -> None:
    micro, dtype = int(layout.grad_accum), _DTYPES[layout.precision]
    tokens = int(layout.batch_size) * layout.seq_len // layout.cp
    if layout.sequence_parallel:
        tokens //= int(layout.tp)
    wide = tokens * shape.hidden
    for stage in stages:
        onward = not (stage.last or stage.next_is_here)
        back = not (stage.first or stage.previous_is_here)
        for operation in ("send", "recv"):
            tally.add(operation, "pp", dtype, wide, micro * (onward + back))
    ends = [stage for stage in stages if stage.first or stage.last]
    if shape.tied and len(ends) == 1:  # both on one rank say nothing
        matrix = embedding_tensors(shape)[0]
        tp = int(layout.tp)
        own = matrix.share(_sizes(layout)[1], place.dp_shard, tp=tp, tp_rank=place.tp)
        for operation in ("send", "recv"):
            tally.add(operation, "pp", _FP32, own)


def _context(
    tally: _Tally, shape: ModelShape, layout: Layout, stages: Iterable[StageParts]
) -> None:
    micro, dtype = int(layout.grad_accum), _DTYPES[layout.precision]
    tokens = int(layout.batch_size) * layout.seq_len // layout.cp
    tp = int(layout.tp)
    queries = tokens * shape.num_heads * shape.head_dim // tp
    keys = tokens * shape.num_kv_heads * shape.head_dim // tp
    for stage in stages:
        for numbers in (queries, keys, keys, queries):
            tally.add("all_to_all", "cp", dtype, numbers, 2 * micro * stage.blocks)
