"""What a row must have left out, for its run to have been possible.

Tables round, leave out and count in their own ways, and programs know layouts that are forbidden
here.  A run that was measured was possible: what a rule objects to is put right one by one, the
least first; what memory cannot hold is sharded, computed again or split, where the row leaves that
open.  All of it is noted as not stated, and widens the interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from trainrig.errors import UsageError
from trainrig.workload.layout import Layout, check_layout
from trainrig.workload.layout_rules import usual_interleave
from trainrig.workload.memory import memory
from trainrig.workload.model import ModelShape
from trainrig.workload.programs import LEAST_RESTRICTED
from validation.normalise.cells import Cells, mentions
from validation.normalise.row_layout import accumulated, interleaves, most_groups, schedule_of
from validation.normalise.row_lengths import usual_samples

Pair = tuple[ModelShape, Layout]


def feasible(shape: ModelShape, layout: Layout, cells: Cells, capacity: float) -> Pair:
    """The row's model and layout as they can be run, in ``capacity`` bytes of each GPU's memory.

    Raises UsageError with the first rule that is broken where nothing helps.
    """
    shape, layout = made_legal(shape, _with_named_schedule(shape, layout, cells), cells)
    stated = layout.memory.recompute
    layout = _made_to_fit(shape, layout, cells, capacity)
    layout = _with_usual_batch(shape, layout, cells, capacity)
    if (again := _share_again(shape, layout, capacity, stated)) != layout.memory.recomputed_share:
        layout = layout.replace(recomputed_share=again)
    if not cells["vpp"] and layout.mesh.pp > 1 and interleaves(layout):
        layout = layout.replace(interleave=most_groups(shape, layout))
        cells.presume("vpp")
    return shape, layout


def made_legal(shape: ModelShape, layout: Layout, cells: Cells) -> Pair:
    """The row's model and layout, or the nearest that can be.

    Raises UsageError with the first rule that is broken where nothing helps.
    """
    broken = _broken(shape, layout)
    if broken is None:
        return shape, layout
    for helps_alone in (True, False):  # some rules are met by two changes together
        if changed := _changed(shape, layout, broken, helps_alone=helps_alone):
            pair, names = changed
            cells.presume(*names)
            return pair
    raise broken


def _changed(
    shape: ModelShape, layout: Layout, left: UsageError, *, helps_alone: bool
) -> tuple[Pair, list[str]] | None:
    """The pair after the changes that were needed, and their columns; None: they are not enough.

    ``helps_alone``: a change stays if another rule is broken behind it, or none.
    """
    names: list[str] = []
    for name, change in _CHANGES:
        pair = change(shape, layout)
        still = _broken(*pair)
        if pair == (shape, layout) or (helps_alone and still and str(still) == str(left)):
            continue
        (shape, layout), left = pair, still or left
        names.append(name)
        if still is None:
            return pair, names
    return None


def _broken(shape: ModelShape, layout: Layout) -> UsageError | None:
    try:
        check_layout(_evened(shape, layout), layout)
    except UsageError as error:
        return error
    return None


def is_legal(shape: ModelShape, layout: Layout) -> bool:
    """Return whether no rule forbids the layout."""
    return _broken(shape, layout) is None


def _evened(shape: ModelShape, layout: Layout) -> ModelShape:
    """Return what has to be legal: a run that was trained had stages of some length.

    DeepSpeed deals layers by weight, Megatron counts embedding and loss as layers: a stage has at
    most what rounding up gives.
    """
    stages = int(layout.mesh.pp * layout.pipeline.interleave)
    if shape.num_decoder_layers or shape.num_layers < int(layout.mesh.pp):
        return shape
    if shape.num_layers % stages == 0:
        return shape
    return shape.replace(num_layers=-(-shape.num_layers // stages) * stages, windows=())


def _fewer_expert_ranks(shape: ModelShape, layout: Layout) -> Pair:
    """As many ranks share experts as there are experts, and ranks, for."""
    if not shape.moe.num_experts:
        return shape, layout.replace(ep=1)
    inside = 1 if layout.traits.ranks.grad_buffer else layout.mesh.tp * layout.mesh.cp
    ranks = math.gcd(int(layout.mesh.gpus // layout.mesh.pp // inside), shape.moe.num_experts)
    return shape, layout.replace(ep=math.gcd(layout.mesh.ep, ranks))


def _repeated_keys(shape: ModelShape, layout: Layout) -> Pair:
    """Heads of keys are copied to each rank; what does not divide is padded.

    So do programs that exchange heads among the ranks of a sequence (XTuner's repeat_kv).
    """
    tp, ranks = int(layout.mesh.tp), _head_ranks(layout)
    if shape.attention.num_heads % ranks or shape.family != "llama":
        return shape, layout
    heads = math.lcm(shape.attention.num_kv_heads, ranks)
    return shape.replace(num_kv_heads=heads, ffn=-(-shape.ffn.width // tp) * tp), layout


def _head_ranks(layout: Layout) -> int:
    """Ranks that heads are dealt to."""
    return int(layout.mesh.tp * (layout.mesh.cp if layout.context == "ulysses" else 1))


def _padded_heads(shape: ModelShape, layout: Layout) -> Pair:
    """Heads that tensor parallelism does not divide: further ones that nobody reads."""
    tp, ranks = int(layout.mesh.tp), _head_ranks(layout)
    heads = -(-shape.attention.num_heads // ranks) * ranks
    if (
        heads == shape.attention.num_heads
        or shape.latent.kv_rank
        or heads > 2 * shape.attention.num_heads
    ):
        return shape, layout
    changes = {"num_heads": heads, "num_kv_heads": heads, "ffn": -(-shape.ffn.width // tp) * tp}
    more = {} if shape.family in ("llama", "t5") else _as_llama(shape)
    return shape.replace(**changes, **more), layout


def _as_llama(shape: ModelShape) -> dict[str, object]:
    """Return what turns a GPT into a Llama that computes as much."""
    return {
        "family": "llama",
        "rope_theta": 1e4,
        "head_dim": max(2, shape.attention.head_dim // 2 * 2),
    }


def _longer(shape: ModelShape, layout: Layout) -> Pair:
    longest = max(layout.batch.seq_len, layout.batch.target_seq_len, shape.position.max_positions)
    return shape.replace(max_positions=longest), layout


def _padded_length(shape: ModelShape, layout: Layout) -> Pair:
    parts = math.lcm(layout.mesh.cp, int(layout.mesh.tp))
    return shape, layout.replace(seq_len=-(-layout.batch.seq_len // parts) * parts)


def _one_stack(shape: ModelShape, layout: Layout) -> Pair:
    """An encoder-decoder in stages: as many blocks of one kind."""
    if not shape.num_decoder_layers or (layout.mesh.pp == 1 and layout.mesh.cp == 1):
        return shape, layout
    blocks = shape.num_layers + shape.num_decoder_layers * 4 // 3
    changes = {"num_layers": blocks, "num_decoder_layers": 0, "num_buckets": 0, "max_distance": 0}
    return shape.replace(**changes, **_as_llama(shape)), layout


def _balanced_ring(shape: ModelShape, layout: Layout) -> Pair:
    """A sequence that is shared has an early and a late stretch on each rank."""
    return shape, layout.replace(cp_comm="zigzag") if layout.mesh.cp > 1 else layout


def _whole_gradients(shape: ModelShape, layout: Layout) -> Pair:
    """At most the optimizer's states are sharded."""
    return shape, layout.replace(zero=min(int(layout.sharding.zero), 1), shard_size=0)


_CHANGES: tuple[tuple[str, Callable[[ModelShape, Layout], Pair]], ...] = (
    ("seq_parallel", lambda shape, layout: (shape, layout.replace(sequence_parallel=0))),
    ("vpp", lambda shape, layout: (shape, layout.replace(interleave=1))),
    ("ep", _fewer_expert_ranks),
    ("heads", _repeated_keys),
    ("seq", _longer),
    ("heads", _padded_heads),
    ("cp_comm", _balanced_ring),
    ("framework", lambda s, x: (s, x.replace(framework=LEAST_RESTRICTED, parallel="auto"))),
    ("ep", _fewer_expert_ranks),
    ("zero_stage", _whole_gradients),
    ("seq", _padded_length),
    ("layers", _one_stack),
    ("precision", lambda shape, layout: (shape, layout.replace(quantize="none"))),
)
"""In this order: what costs least comes first."""


def _made_to_fit(shape: ModelShape, layout: Layout, cells: Cells, capacity: float) -> Layout:
    """The layout, or where memory cannot hold it one that shards, or then recomputes, more.

    Of what the row leaves open: the least that is enough.
    """
    samples = int(layout.batch.micro * layout.batch.grad_accum)
    is_free = "micro_batch" in cells.presumed
    least = {"batch_size": 1, "grad_accum": samples} if is_free else {}

    def share(candidate: Layout) -> float:
        return float(memory(shape, candidate.replace(**least)).total / capacity)

    is_whole = mentions("replicas", cells.word("framework")) and not layout.sharding.zero
    if not (cells["zero_stage"] or is_whole) and layout.mesh.gpus > layout.mesh.tp * layout.mesh.pp:
        # Megatron's own way is to split the model; only its FSDP shards weights.
        is_split_first = layout.framework == "megatron" and not cells.is_fsdp
        for stage in (1,) if is_split_first else (1, 3):
            more = layout.replace(zero=stage)
            if share(layout) > NOT_HELD and stage > layout.sharding.zero and is_legal(shape, more):
                layout = more
    is_wide = layout.precision.states == "auto" and layout.precision.compute == "bf16"
    is_wide = is_wide and (is_whole or layout.mesh.gpus == 1)
    if is_wide and share(layout.replace(recompute="full")) > NOT_HELD:
        layout = layout.replace(states="pure")  # nor can anyone else keep masters of them here
        cells.presume("states")
    is_open = "recompute" in cells.presumed and not shape.moe.num_experts
    for way in ("selective", "full"):  # what is cheap first, where it is enough
        if is_open and share(layout) > FULL:
            layout = layout.replace(recompute=way)
    if "kernel_stack" in cells.presumed and share(layout) > FULL:  # never all logits at once
        layout = layout.replace(loss="fused")
    has_all = layout.kernels.stack in ("eager", "fused") and "kernel_stack" in cells.presumed
    if has_all and share(layout) > NOT_HELD * FULL and not shape.num_decoder_layers:
        layout = layout.replace(kernels="flash")  # nor all scores
    return layout


NOT_HELD = 1.1
"""Share of a GPU's memory above which sharding is presumed, where nobody says if there is any."""
FULL = 1.15
"""Share of a GPU's memory above which recomputation is presumed; selective first, which frees least
and costs least.  Mixtures of experts recompute parts of a block, of which nothing follows from
memory.

Both thresholds are what our count of memory errs by: of runs of five tables that state all that
decides it, and ran, one in eight needs more by that count (12.3 % more than 1.1, 11.8 % more than
1.15, 15.3 % more than all of it: `python -m validation.widths`).  Lower ones would take more runs
for others than they were; where between 1 and 1.15 they stand decides little."""


def _share_again(shape: ModelShape, layout: Layout, capacity: float, way: str) -> float:
    """Share of the blocks that are computed again, of those that memory asks for; 1: all.

    Where a framework may compute some again and nobody says how many, as few as are enough.
    """
    if (
        not layout.traits.models.recomputes_some
        or layout.memory.recompute != "full"
        or way == "full"
    ):
        return 1.0
    least = memory(shape, layout).total
    over = memory(shape, layout.replace(recompute="none")).total - FULL * capacity
    spared = over + FULL * capacity - least
    return float(min(1.0, max(0.0, over / spared))) if spared > 0.0 else 1.0


def _with_usual_batch(shape: ModelShape, layout: Layout, cells: Cells, capacity: float) -> Layout:
    """The layout with the micro-batch and the accumulation that a row leaves to the reader."""
    if "micro_batch" in cells.presumed and not cells["grad_accum"]:
        most = usual_samples(cells)
        is_whole = cells.is_xla and "global_batch" not in cells.presumed
        layout = _fitting(shape, layout, capacity, most, is_whole=is_whole)
    is_free = "global_batch" in cells.presumed and layout.memory.offload != "none"
    return accumulated(layout) if is_free else layout


def _fitting(
    shape: ModelShape, layout: Layout, capacity: float, most: int, *, is_whole: bool
) -> Layout:
    """Micro-batches that are not stated: the largest that memory holds, else of one sample.

    A pipeline's have one sample: stages are filled by many, and recipes of Megatron and NeMo with
    stages say 1; so have those of ranks that share a sequence, which is cut as it is too long.
    """
    if layout.mesh.pp > 1 or is_whole:
        return layout
    samples = int(layout.batch.micro * layout.batch.grad_accum)
    most = 1 if layout.mesh.cp > 1 else most
    sizes = [samples] + [1 << n for n in range(10, -1, -1) if 1 << n < samples]
    sizes = [size for size in sizes if size <= most]
    for size in sizes:
        candidate = layout.replace(batch_size=size, grad_accum=samples // size)
        if samples % size == 0 and memory(shape, candidate).total <= capacity:
            return candidate
    return layout.replace(batch_size=1, grad_accum=samples)


def _with_named_schedule(shape: ModelShape, layout: Layout, cells: Cells) -> Layout:
    """The layout with the schedule that the row names, where that can be."""
    if layout.mesh.pp == 1:
        return layout
    named = layout.replace(schedule=schedule_of(cells))
    if (groups := usual_interleave(named.pipeline.schedule, int(named.mesh.pp))) > 1 and not cells[
        "vpp"
    ]:
        named = named.replace(interleave=groups)
    return named if named != layout and is_legal(shape, named) else layout
