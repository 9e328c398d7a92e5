"""What a rank of our engine exchanges in one step: each collective and message, to the byte.

Answers how many there are and how large, by operation, mesh axis and dtype; not how long they take
(the predictor's step).  A number of bytes is that of the larger side (`native.traffic` counts the
same way in a live step; both must be equal as whole numbers).

L blocks on the rank, m micro-batches, X bytes of a micro-batch's activations (batch · tokens ·
hidden), N its tokens.  A unit is a block, or all that is around the blocks of a stage.

data parallel (a tensor's rows are padded to a multiple of the ranks that share it)
    zero 0      gradients summed once a step: by DDP in buckets of at least 25 MiB, the first of
                1 MiB, filled from the last weight that forward reads to the first; beside other
                axes by FSDP2, a unit at once
    zero 1      units gathered once, their gradients reduced and scattered once a step
    zero 2      both for each micro-batch
    zero 3      blocks are gathered again in each backward
    hybrid      what a shard group has scattered is summed over the replicas each time
    pipeline    zero 2: gathered once a step; zero 3: what is around the blocks again, too
tensor parallel, for each micro-batch (Shoeybi et al. 2019)
    block       two sums of X forward, two backward
    ends        the sum of the embedding's parts, X; the gradient before the head, X
    loss        for each chunk of rows their largest logit, and two sums of each row, in fp32
    sequence    each sum is a scatter and a gather (Korthikanti et al. 2022), and its mirror
                backward; a norm's gradients are summed once a step (each time that FSDP2 scatters,
                beside data parallelism), learned positions' gathered;
                BERT's last layer works on all tokens
    T5          a block of the decoder has three parts; what the encoder read is gathered once, and
                its gradient summed
pipeline        X to the next stage and its gradient back, for each micro-batch and boundary; the
                gradients of tied ends to each other once a step
context         queries, keys, values and the result change between tokens and heads, and back in
                backward (Jacobs et al. 2023, DeepSpeed-Ulysses)
experts         rows to their experts and the results back, and the gradients of both; how many rows
                is the router's choice.  Experts are gathered and summed as all else is, over the
                ranks that have the same ones
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from trainrig.workload.layout import Layout
from trainrig.workload.model import ModelShape, norm_parameters
from trainrig.workload.tensors import (
    Weight,
    block_tensors,
    embedding_tensors,
    head_tensors,
    model_tensors,
)

_DTYPES = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_DTYPES["fp8"] = _DTYPES["bf16"]  # products alone are of 8-bit floats
_SIZES = {"float32": 4, "bfloat16": 2, "float16": 2}
_FP32 = "float32"


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
    """Bytes of the larger side, of all messages together."""


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
            if shape.head.tied and not self.first:
                around += embedding_tensors(shape)[:1]
        return [
            *([block_tensors(shape)] * self.blocks),
            *([block_tensors(shape, decoder=True)] * self.decoder_blocks),
            around,
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Place of a rank on the mesh, as far as shares that are not equal make a difference."""

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
    routed: tuple[int, int] | None = None,
) -> tuple[Exchange, ...] | None:
    """Return the exchanges of one rank's step that has ``stages``.

    The answer is None where experts' rows are not known.

    ``stages``: of a pipeline's rank; without one it has the whole model.
    ``chunk_rows``: tokens whose logits are computed at once (`models.loss.chunk_rows`).
    ``routed``: rows that this rank sent to experts or got for its own, the larger number of each
    time, in forward passes and in what is computed again: the router's choice.
    """
    whole = StageParts(blocks=shape.num_layers, decoder_blocks=shape.num_decoder_layers)
    here, place = list(stages) or [whole], place or Place()
    if layout.mesh.ep > 1 and routed is None:
        return None
    tally = _Tally()
    _data(tally, shape, layout, here, place)
    if layout.mesh.tp > 1:
        for stage in here:
            _tensor(tally, shape, layout, stage, chunk_rows)
    if layout.mesh.pp > 1:
        _pipeline(tally, shape, layout, here, place)
    if layout.mesh.cp > 1:
        _context(tally, shape, layout, here)
    if layout.mesh.ep > 1 and routed is not None:
        _experts(tally, shape, layout, here, routed)
    return tuple(
        Exchange(
            operation=key[0], axis=key[1], dtype=key[2], count=number, num_bytes=tally.bytes[key]
        )
        for key, number in sorted(tally.count.items())
    )


def _sizes(layout: Layout) -> tuple[int, int]:
    """Replicas, and ranks that share one copy; context-parallel ranks are among them."""
    others = int(layout.mesh.dp) * layout.mesh.cp
    if not layout.sharding.zero:
        return others, 1
    shards = (int(layout.sharding.shard_size) or int(layout.mesh.dp)) * layout.mesh.cp
    return others // shards, shards


def uses_fsdp2(layout: Layout) -> bool:
    """Return whether a rank's weights are FSDP2's, and not DDP's or the rank's alone.

    Where ZeRO shards them, experts lie apart, or data parallelism is beside other axes; in a
    pipeline micro-batches add up in fp32 that way, too.
    """
    replicas, shards = _sizes(layout)
    several = replicas * shards > 1 or (
        layout.mesh.pp > 1 and _DTYPES[layout.precision.compute] != _FP32
    )
    is_split = int(layout.mesh.tp) * int(layout.mesh.pp) > 1
    return bool(shards > 1 or layout.mesh.ep > 1 or (is_split and several))


def _data(
    tally: _Tally, shape: ModelShape, layout: Layout, stages: Iterable[StageParts], place: Place
) -> None:
    replicas, shards = _sizes(layout)
    dtype = _DTYPES[layout.precision.compute]
    has_expert_ranks = layout.mesh.ep > 1  # experts, which lie on the ranks that have the same ones
    is_ddp = not uses_fsdp2(layout)
    for stage in stages:
        units = stage.units(shape)
        if is_ddp and replicas > 1:
            for numbers in _buckets(shape, _SIZES[dtype]):
                tally.add("all_reduce", "dp_replicate", _FP32, numbers)
            continue
        for number, unit in enumerate(units):
            gathers, sums = _of_unit(layout, around=number == len(units) - 1)
            experts = [weight for weight in unit if has_expert_ranks and ".experts." in weight.name]
            dense = [weight for weight in unit if weight not in experts]
            padded = sum(
                weight.padded(shards, tp=int(layout.mesh.tp), tp_rank=place.tp) for weight in dense
            )
            if shards > 1:
                tally.add("all_gather", "dp_shard", dtype, padded, gathers)
                tally.add("reduce_scatter", "dp_shard", _FP32, padded, sums)
            if replicas > 1:
                tally.add("all_reduce", "dp_replicate", _FP32, padded // shards, sums)
            if experts:
                _of_experts(tally, layout, experts, dtype)


def _of_experts(tally: _Tally, layout: Layout, experts: Sequence[Weight], dtype: str) -> None:
    """Return the exchanges of a unit's experts, among the ranks that hold the same ones."""
    ep = int(layout.mesh.ep)
    same = int(layout.mesh.dp) * layout.mesh.cp * int(layout.mesh.tp) // ep
    if same == 1:
        return
    gathers, sums = _of_unit(layout, around=False)
    ranks = same if layout.sharding.zero else 1
    elements = sum(weight.of_experts(ep).padded(ranks) for weight in experts)
    if layout.sharding.zero:
        tally.add("all_gather", "ep_shard", dtype, elements, gathers)
        tally.add("reduce_scatter", "ep_shard", _FP32, elements, sums)
    else:
        tally.add("all_reduce", "ep_replicate", _FP32, elements, sums)


def _buckets(shape: ModelShape, width: int) -> Iterator[int]:
    """Return numbers in each of DDP's buckets.

    It is full where its gradients, ``width`` bytes each, are.

    torch's own sizes (torch.nn.parallel.DistributedDataParallel, bucket_cap_mb).
    """
    full, numbers = 1 << 20, 0
    for weight in reversed(model_tensors(shape)):
        numbers += weight.share(1)
        if numbers * width >= full:
            yield numbers
            full, numbers = 25 << 20, 0
    yield numbers


def _of_unit(layout: Layout, *, around: bool) -> tuple[int, int]:
    """Return how often a step gathers a unit, and sums its gradients."""
    micro, piped = int(layout.batch.grad_accum), layout.mesh.pp > 1
    if layout.sharding.zero < 2:
        return 1, 1
    if layout.sharding.zero == 2:
        return 1 if piped else micro, micro
    return micro if around and not piped else 2 * micro, micro


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sums:
    """Sums over tensor parallelism of the parts that ranks have, in one stage."""

    tally: _Tally
    layout: Layout
    dtype: str

    def add(self, operation: str, numbers: int, times: int = 1) -> None:
        """One collective of so many numbers in each micro-batch."""
        times *= int(self.layout.batch.grad_accum)
        self.tally.add(operation, "tp", self.dtype, numbers, times)

    def both(self, numbers: int, times: int, again: int = 0, gathered: int = 0) -> None:
        """``times`` sums of ``numbers``, forward or backward, and those that are computed again.

        ``gathered``: of what is computed again, parts that need their input, not their sum.
        """
        if not self.layout.mesh.sequence_parallel:
            self.add("all_reduce", numbers, times + again)
            return
        self.add("all_gather", numbers, times + again + gathered)
        self.add("reduce_scatter", numbers, times + again)


def _tensor(
    tally: _Tally, shape: ModelShape, layout: Layout, stage: StageParts, chunk_rows: int
) -> None:
    sums = _Sums(tally=tally, layout=layout, dtype=_DTYPES[layout.precision.compute])
    crossed, is_bert = shape.num_decoder_layers > 0, shape.family == "bert"
    seq = layout.batch.seq_len // layout.mesh.cp
    read = int(layout.batch.micro) * seq * shape.hidden
    tokens = int(layout.batch.micro) * (layout.batch.written if crossed else seq)
    written = tokens * shape.hidden
    recomputed = layout.memory.recompute != "none"
    routed = shape.moe.num_experts > 0  # tokens go to experts from where they lie
    for blocks, parts, numbers in (
        (stage.blocks, 1 if routed else 2, read),
        (stage.decoder_blocks, 3, written),
    ):
        # Of a block that ends with a sum, nothing of backward needs the last product's result.
        last = blocks * (recomputed and not (is_bert or routed))
        repeats = parts * blocks * recomputed - last
        sums.both(numbers, 2 * parts * blocks, repeats, gathered=last)
    _ends(sums, shape, stage, read, written)
    if stage.last:
        _loss(tally, layout, tokens, chunk_rows)
    if layout.mesh.sequence_parallel:
        ends = stage.first if is_bert else stage.last * (1 + crossed)
        norms = 2 * stage.blocks + 3 * stage.decoder_blocks + ends
        num_norms = norm_parameters(shape) // shape.hidden
        dtype, times = _of_copied(layout)
        tally.add("all_reduce", "tp", dtype, shape.hidden, norms * num_norms * times)
        if routed:
            router = shape.hidden * shape.moe.num_experts
            tally.add("all_reduce", "tp", dtype, router, stage.blocks * times)


def _of_copied(layout: Layout) -> tuple[str, int]:
    """In what dtype, and how often a step, gradients of weights that each rank has are summed.

    FSDP2 sums them before it scatters: as backward made them, unless micro-batches are added up
    before, which is done in fp32.
    """
    sums = _of_unit(layout, around=False)[1]
    if not uses_fsdp2(layout) or sums < int(layout.batch.grad_accum):
        return _FP32, 1
    return _DTYPES[layout.precision.compute], sums


def _ends(sums: _Sums, shape: ModelShape, stage: StageParts, read: int, written: int) -> None:
    """Before the first block and behind the last one, of so many numbers that are read, written."""
    crossed, is_bert = shape.num_decoder_layers > 0, shape.family == "bert"
    split = bool(sums.layout.mesh.sequence_parallel)
    if stage.first:
        for numbers in (read, written) if crossed else (read,):
            sums.both(numbers, 1)
        if split and shape.positions == "learned":
            sums.add("all_gather", read // int(sums.layout.batch.micro))
        if split and is_bert:
            sums.add("all_gather", read)  # segments
    if stage.last and split and is_bert:  # its last layer works on all tokens
        sums.add("all_gather", read)
        sums.add("all_reduce", read)
    elif stage.last:
        for numbers in (written, read) if crossed else (written,):  # and what the encoder read
            sums.both(numbers, 1)


def _loss(tally: _Tally, layout: Layout, tokens: int, chunk_rows: int) -> None:
    """The largest logit of each row, then two sums, chunk by chunk."""
    full, remainder = divmod(tokens, chunk_rows)
    for rows, times in ((chunk_rows, full), (remainder, 1 if remainder else 0)):
        for numbers in (rows, 2 * rows):
            tally.add("all_reduce", "tp", _FP32, numbers, int(layout.batch.grad_accum) * times)


def _pipeline(
    tally: _Tally, shape: ModelShape, layout: Layout, stages: Sequence[StageParts], place: Place
) -> None:
    micro, dtype = int(layout.batch.grad_accum), _DTYPES[layout.precision.compute]
    tokens = int(layout.batch.micro) * layout.batch.seq_len // layout.mesh.cp
    if layout.mesh.sequence_parallel:
        tokens //= int(layout.mesh.tp)
    wide = tokens * shape.hidden
    for stage in stages:
        onward = not (stage.last or stage.next_is_here)
        back = not (stage.first or stage.previous_is_here)
        for operation in ("send", "recv"):
            tally.add(operation, "pp", dtype, wide, micro * (onward + back))
    ends = [stage for stage in stages if stage.first or stage.last]
    if shape.head.tied and len(ends) == 1:  # both on one rank say nothing
        matrix = embedding_tensors(shape)[0]
        tp = int(layout.mesh.tp)
        elements = matrix.share(_sizes(layout)[1], place.dp_shard, tp=tp, tp_rank=place.tp)
        for operation in ("send", "recv"):
            tally.add(operation, "pp", _FP32, elements)


def _context(
    tally: _Tally, shape: ModelShape, layout: Layout, stages: Iterable[StageParts]
) -> None:
    micro, dtype = int(layout.batch.grad_accum), _DTYPES[layout.precision.compute]
    tokens = int(layout.batch.micro) * layout.batch.seq_len // layout.mesh.cp
    tp = int(layout.mesh.tp)
    queries = tokens * shape.attention.num_heads * shape.attention.head_dim // tp
    keys = tokens * shape.attention.num_kv_heads * shape.attention.head_dim // tp
    passes = 2 if layout.memory.recompute == "none" else 3
    for stage in stages:
        for numbers in (queries, keys, keys, queries):
            tally.add("all_to_all", "cp", dtype, numbers, passes * micro * stage.blocks)


def _experts(
    tally: _Tally,
    shape: ModelShape,
    layout: Layout,
    stages: Iterable[StageParts],
    routed: tuple[int, int],
) -> None:
    """Rows go to their experts and their results back, and so do their gradients."""
    dtype = _DTYPES[layout.precision.compute]
    forward, again = routed
    passes = 4 if layout.memory.recompute == "none" else 6
    blocks = sum(stage.blocks for stage in stages)
    key = "all_to_all", "ep", dtype
    tally.count[key] += passes * int(layout.batch.grad_accum) * blocks
    tally.bytes[key] += (4 * forward + 2 * again) * shape.hidden * _SIZES[dtype]
