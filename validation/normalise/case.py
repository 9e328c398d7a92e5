"""What a row of a table of training runs asks: the model, layout and rates it means.

A blank cell is presumed: what its program does, what is usual, or what follows from other cells
stands for it and widens the interval.  Where a row comes from and what is noted about it is not
read: `READ` of `columns` lists all columns that are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from trainrig.catalog import Chip, require_chip
from trainrig.errors import UsageError
from trainrig.prediction.rates import Rates
from trainrig.prediction.rates.from_chip import is_graphed, narrowed, rates_of_chip, takes_any_order
from trainrig.prediction.step import predict_step
from trainrig.workload.layout import Layout
from trainrig.workload.memory import memory
from trainrig.workload.model import ModelShape
from trainrig.workload.model_lookup import spelled
from validation.normalise.cells import UNSURE, Cells, Row
from validation.normalise.feasible import FULL, feasible, made_legal
from validation.normalise.machines import as_run, chip_of, die_of, fabric_of, link_of, power_of
from validation.normalise.row_compute import (
    experts_of,
    graphs_of,
    has_scores,
    kernels_of,
    lacks_kernel,
    loss_of,
    narrow_of,
    precision_of,
    quantized_of,
    router_spread_of,
    software_of,
    with_all_experts,
)
from validation.normalise.row_layout import (
    cp_comm_of,
    cuts_no_expert,
    framework_of,
    joined,
    overlap_of,
    overlaps_dispatch,
    sends_once,
    sizes_of,
    splits_sequence,
)
from validation.normalise.row_lengths import length_of, longest, mean_of, packed, varies
from validation.normalise.row_memory import (
    grad_reduce_of,
    has_narrow_weights,
    has_scaled_blocks,
    memory_kind_of,
    moments_in,
    moves_activations,
    offload_of,
    offloads_checkpoints,
    optimizer_of,
    rank_of,
    recompute_of,
    scaled_of,
    sends_experts,
    states_away_of,
    states_of,
    updates_in_backward,
)
from validation.normalise.shape import head_share, shape_of
from validation.normalise.training_programs import compared


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What a row asks."""

    shape: ModelShape
    layout: Layout
    rates: Rates
    chip: Chip
    link: str | None = None
    """Link inside a node, where it is not the chip's own."""
    fabric: float | None = None
    """B/s of a node into the network, where it is known."""
    trays: int = 1
    """Trays that the chips' link joins to one node."""
    head: float = 1.0
    """Share of the tokens that logits are computed for."""
    mean_seq: int = 0
    """Tokens of a sequence on average, where the layout's are the most; 0: they are the mean."""
    varies: bool = False
    """True if micro-batches are as long as their examples, not all alike."""
    preallocates: bool = False
    """True if the program takes most of a GPU's memory at once."""
    memory_kind: str = "allocated"
    """Whose bytes: the framework's peak, what its allocator reserved, or the device's; "" where
    nobody says whose."""
    presumed: tuple[str, ...] = ()
    """Columns that a default stands for, or another reading than the printed."""
    by_program: tuple[str, ...] = ()
    """What its program does by itself, of columns: memory is as sure as where that is stated."""
    spread: float = 0.0
    """What they add to the half widths of the interval of the time (natural logarithm)."""
    is_compared: bool = True
    """True if published steps of this program on this chip were compared with predictions."""
    offloads_checkpoints: bool = False
    """Inputs of blocks that are computed again wait on the host."""
    allocates_once: bool = False
    """No allocator holds blocks that nothing needs."""
    states_away: str = ""
    """What FSDP has on the host besides its weights, which stay: gradients (too), states, or ""."""
    sends_experts: bool = False
    """Weights of experts, and what is computed with them, are on the host."""
    moves: bool = False
    """Activations wait on the host: the layout, which holds them by computing them again, needs
    about the memory of it, not the time."""

    @property
    def spreads(self) -> tuple[float, float]:
        """Say what the row adds to the interval's half widths, towards shorter and longer steps."""
        faster, slower = (0.0, 0.0) if self.is_compared else _UNCOMPARED
        return math.hypot(self.spread, faster), math.hypot(self.spread, slower)

    @property
    def timed(self) -> Layout:
        """The layout whose step is timed: of sequences as long as they are on average."""
        timed_layout = self.layout.replace(seq_len=self.mean_seq) if self.mean_seq else self.layout
        return timed_layout.replace(recompute="none") if self.moves else timed_layout


def case_of(row: Row) -> Case:
    """The case that a row means.  UsageError with the reason where it means none.

    A run that memory cannot hold as the row reads was split, or kept its states elsewhere, where
    the row leaves that open: the least that is enough, or where nothing is what needs least, if
    what is not known of a run can explain the rest.
    """
    case = _read(row)
    if quickest := _searched(row, case):
        return quickest
    least = case
    for more in _alternatives(row, case):
        other = _with(row, more)
        if other and _share(other) <= FULL:
            return other
        least = min(least, other or least, key=_share)
    is_named = spelled(row.get("model") or "") is not None
    # What is kept elsewhere may be the weights, too, or most of a block's activations.
    is_whole = (
        row.get("layers")
        or case.layout.memory.offload != "none"
        or "host" in row.get("offload", "")
    )
    if is_named and not is_whole and _is_part(least):  # scaled down, and nobody says so
        name = case.shape.name
        raise UsageError(f"layers: not stated, and {name} whole does not fit: a part of it?")
    return least if least is not case and _is_part(case) else case


def _with(row: Row, more: dict[str, str]) -> Case | None:
    """The case of a row with cells that are presumed; None: there is none."""
    try:
        case = _read({**row, **more})
    except UsageError:
        return None
    spread = math.hypot(case.spread, *(UNSURE[name] for name in more))
    presumed = tuple(dict.fromkeys((*case.presumed, *more)))
    return replace(case, presumed=presumed, spread=spread)


def _searched(row: Row, case: Case) -> Case | None:
    """The quickest way to split the model that fits, of a program that searches for it; None: none.

    Inside a node's links, as stages go, with states or weights sharded: what a compiler's costs of
    collectives and memory choose among (Zheng et al. 2022, section 4; Lin et al. 2024).
    """
    cells, x = Cells(row), case.layout
    if (
        not cells.program.spreading.searches_layout
        or x.mesh.gpus == 1
        or cells["tp"]
        or cells["zero_stage"]
    ):
        return None
    inside = [size for size in (1, 2, 4, 8) if x.mesh.gpus_per_node % size == 0]
    spread = [1] if cells["ep"] or not case.shape.moe.num_experts else [1, *inside[1:]]
    tries = [
        {"tp": str(tp), "zero_stage": str(zero)} | ({"ep": str(ep)} if ep > 1 else {})
        for tp in inside
        for zero in (1, 3)
        for ep in spread
    ]
    cases = [split for more in tries if (split := _with(row, more))]
    least = min(map(_share, cases), default=0.0)
    cases = [split for split in cases if _share(split) <= max(1.0, least)]
    return min(cases, key=_seconds, default=None)


def _seconds(case: Case) -> float:
    return float(predict_step(case.shape, case.timed, case.rates, head=case.head).total)


def _share(case: Case) -> float:
    """Of a GPU's memory, what a case needs."""
    needed = memory(case.shape, case.layout, head=case.head).total
    return float(needed / case.rates.memory_bytes)


def _is_part(case: Case) -> bool:
    """Return whether a whole model cannot have been run, whatever is not known of how."""
    least = memory(case.shape, case.layout.replace(recompute="full", batch_size=1)).total
    return bool(least > _TOO_MUCH * case.rates.memory_bytes)


def _alternatives(row: Row, case: Case) -> list[dict[str, str]]:
    """Sets of cells to presume, in turn, for a row whose case does not fit and leaves them open.

    DeepSpeed's usual configurations keep the optimizer on the host.
    """
    cells, x = Cells(row), case.layout
    is_open = not (cells["tp"] or cells["pp"]) and x.mesh.gpus > 1
    is_split = not is_open and case.shape.moe.num_experts and not cells["ep"] and x.mesh.gpus > 1
    is_named = x.framework == "deepspeed" and "framework" not in case.presumed
    offloads = not cells["offload"] and is_named and int(x.sharding.zero) >= 2
    most = FULL if x.framework == "megatron" else _TOO_MUCH  # what others seldom do
    is_alone = x.mesh.gpus == 1 and "num_gpus" in case.presumed and not cells["num_gpus"]
    if not (is_open or is_split or offloads or is_alone) or _share(case) <= most:
        return []
    if is_alone:
        return [dict(zip(("num_gpus", "tp", "pp"), sizes, strict=False)) for sizes in _LARGER]
    ways = _splits(case, cells) if is_open else []
    if is_split:  # of a mixture that is split as stated
        ways = [{"ep": str(ep)} for ep in _expert_ranks(case)[1:]]
    return [{"offload": "host"}] * offloads + ways


def _splits(case: Case, cells: Cells) -> list[dict[str, str]]:
    """Ways to split a model that its devices allow, as cells, the least first.

    Tensor parallelism is within a node, and stages come when that is not enough (Narayanan et al.
    2021, takeaway 1); experts are spread before tensors are split (Megatron-Core's guide on
    mixtures).  In Megatron each replica has a sample of a step for each of its stages.
    """
    x, num_experts = case.layout, case.shape.moe.num_experts
    inside = [size for size in (1, 2, 4, 8) if size <= x.mesh.gpus_per_node]
    spread = _expert_ranks(case) if num_experts and not cells["ep"] else [1]
    tries = [(1, 1, ep) for ep in spread]
    if num_experts:
        tries += [(1, pp, ep) for pp in _STAGES for ep in spread[-3:]]
        tries += [(tp, pp, spread[-1]) for pp in (1, *_STAGES) for tp in inside[1:]]
    else:
        tries += [(tp, 1, 1) for tp in inside[1:]] + [(inside[-1], pp, 1) for pp in _STAGES]
    samples = cells.whole("global_batch", 0) * cells.splits_models or x.mesh.gpus
    tries = [split for split in tries if x.mesh.gpus // split[0] <= samples] or tries
    splits = []
    for tp, pp, ep in tries:
        whole = tp * pp * (ep if pp > 1 else 1)
        if x.mesh.gpus % whole == 0 and pp <= case.shape.num_layers and max(tp, pp, ep) > 1:
            sizes = {"tp": tp, "pp": pp} | ({"ep": ep} if ep > 1 else {})
            splits.append({name: str(size) for name, size in sizes.items()})
    return splits


def _expert_ranks(case: Case) -> list[int]:
    """Ranks that may share a mixture's experts, the fewest first."""
    ranks = min(case.shape.moe.num_experts, int(case.layout.mesh.gpus), 64)
    return [1 << n for n in range(7) if 1 << n <= ranks]


_STAGES = (2, 4, 8, 16, 32)
_LARGER = (("8",), ("8", "8"), ("64", "8", "8"), ("512", "8", "16"))
"""Devices, and ranks that share a model, of what no single device holds and nobody counted."""


def _read(row: Row) -> Case:
    """The case that a row means as it reads, blank cells as they usually are."""
    cells = Cells(row)
    _refuse(cells)
    chip = die_of(chip_of(cells), cells)
    shape = shape_of(cells)
    if spelled(cells["model"]) is None or shape.family != "llama":
        cells.presume(*(name for name in ("heads", "ffn", "vocab") if not cells[name]))
    trays, sizes = joined(chip, sizes_of(cells, shape))
    framework, parallel = framework_of(cells, sizes)
    layout = Layout.of(
        **sizes,
        framework=framework,
        parallel=parallel,
        precision=precision_of(cells, chip),
    )
    fabric = fabric_of(cells, chip, sizes)
    place = (link_of(cells, chip), fabric and fabric * trays, power_of(cells))
    rates = _rates(chip.name, *place, narrow_of(cells, chip))
    layout = _with_words(layout, cells, chip, shape)
    rates = as_run(rates, cells, chip, layout.kernels.stack)
    shape = with_all_experts(packed(cells, shape, int(layout.batch.seq_len)), layout.moe.experts)
    shape, layout = feasible(shape, layout, cells, rates.memory_bytes)
    shape, layout, mean_seq = _of_longest(shape, layout, cells)
    own = {
        "recompute": cells.program.saving.recompute == layout.memory.recompute,
        "zero_stage": cells.program.spreading.shards_weights is True and layout.sharding.zero == 3,
    }
    return Case(
        shape=shape,
        layout=layout,
        rates=rates,
        chip=chip,
        link=place[0],
        fabric=place[1],
        trays=trays,
        head=head_share(cells, shape.family),
        mean_seq=mean_seq,
        varies=varies(cells, layout, mean_seq),
        preallocates=cells.is_xla and chip.vendor in ("NVIDIA", "AMD"),
        memory_kind=memory_kind_of(cells),
        presumed=cells.presumed,
        by_program=tuple(name for name, is_own in own.items() if is_own),
        spread=cells.spread,
        is_compared=(cells.program.name, chip.name) in compared(),
        offloads_checkpoints=offloads_checkpoints(cells),
        allocates_once=bool(cells.program.saving.allocates_once),
        sends_experts=sends_experts(cells, shape),
        states_away=states_away_of(cells, layout.scheme),
        moves="recompute" in cells.presumed
        and layout.memory.recompute != "none"
        and moves_activations(cells, chip, sizes["zero"]),
    )


def _with_words(layout: Layout, cells: Cells, chip: Chip, shape: ModelShape) -> Layout:
    """The layout with what words say, or programs do, of kernels, exchanges and what is kept."""
    framework, precision, zero = (
        layout.framework,
        layout.precision.compute,
        int(layout.sharding.zero),
    )
    quantize = quantized_of(cells)
    rank, narrow = rank_of(cells, quantize), narrow_of(cells, chip)
    scaled = scaled_of(cells, precision, narrow, chip.vendor)
    kernels = kernels_of(cells, chip, framework, shape)
    offload, offload_overlap = offload_of(cells, framework, zero)
    layout = layout.replace(
        seq_len=length_of(cells, shape),
        recompute=recompute_of(cells, shape, zero, quantize),
        kernels=kernels,
        plain_attention=int(
            has_scores(cells) or (kernels == "compiled" and lacks_kernel(cells, chip))
        ),
        loss=loss_of(cells),
        has_dropout=cells.program.code.drops or "auto",
        software=software_of(cells),
        cuda_graphs=graphs_of(cells, chip, shape),
        experts=experts_of(cells, shape, framework, chip),
        router_spread=router_spread_of(cells) if shape.moe.num_experts else 0.0,
        whole_experts=int(framework == "megatron" and cuts_no_expert(cells, shape)),
        overlap=overlap_of(cells, chip, kernels),
        dedup_internode_dispatch=int(sends_once(cells)),
        overlap_dispatch=int(overlaps_dispatch(cells, chip, layout)),
        cp_comm=cp_comm_of(cells),
        states=states_of(cells, shape.family),
        moments=moments_in(cells, shape),
        quantize=quantize,
        grad_reduce=grad_reduce_of(cells, precision),
        fp8_params=int(layout.traits.models.own_kernels and has_narrow_weights(cells, precision)),
        scaled=scaled,
        supports_non_tn_fp8=int(takes_any_order(chip) and not has_scaled_blocks(cells)),
        lora_rank=rank,
        lora_on=(cells.program.batches.adapts if rank else "") or "auto",
        optimizer=optimizer_of(cells),
        optimizer_in_backward=int(updates_in_backward(cells) and layout.batch.grad_accum == 1),
        offload=offload,
        offload_overlap=offload_overlap,
    )
    launched = layout.launched_as(is_graphed(chip))
    if launched != layout.kernels.cuda_graphs:  # a copy works out anew what follows from a layout
        layout = layout.replace(cuda_graphs=launched)
    if not cells["seq_parallel"] and layout.mesh.tp > 1 and splits_sequence(layout, cells):
        layout = layout.replace(sequence_parallel=1)
        cells.presume("seq_parallel")
    is_t5 = shape.num_decoder_layers > 0 and "t5" in cells.word("model")
    if is_t5 and layout.batch.seq_len == 512 and cells.is_pretraining:
        layout = layout.replace(target_seq_len=_SPANS)
    return layout


def _of_longest(shape: ModelShape, layout: Layout, cells: Cells) -> tuple[ModelShape, Layout, int]:
    """Model and layout of the longest batch, and the mean length; 0: batches are as long."""
    mean_seq = mean_of(cells, shape)
    if not mean_seq and (most := longest(cells, int(layout.batch.seq_len))):
        mean_seq = int(layout.batch.seq_len)
        shape, layout = made_legal(shape, layout.replace(seq_len=most), cells)
    if mean_seq > layout.batch.seq_len:
        raise UsageError(f"mean_seq = {mean_seq}: more than seq, {layout.batch.seq_len}")
    if mean_seq:  # batches are filled from bins, or padded: what is printed is the longest
        cells.presume("seq")
    return shape, layout, mean_seq


_SPANS = 128
"""Tokens that T5's decoder writes of 512 read, 15 % of them masked in spans: 114 (Raffel et al.
2020, 3.1.4), padded to 128 by NeMo and Megatron (`max_seq_length_dec`)."""


_TOO_MUCH = 2.0
"""Of a GPU's memory: more than what is not known of a run can explain."""


def _refuse(cells: Cells) -> None:
    if cells.is_more:
        cells.presume("kind")


@lru_cache(maxsize=1024)
def _rates(
    chip: str,
    link: str | None,
    fabric: float | None,
    power: float | None,
    narrow: str,
) -> Rates:
    found = rates_of_chip(require_chip(chip), link=link, fabric=fabric, power=power)
    return narrowed(found, require_chip(chip), narrow) if narrow else found


_UNCOMPARED = (0.4, 0.7)
"""What an interval is wider by, towards shorter and longer steps (natural logarithm), where no step
of the program was compared on this chip: from 278 cells of sources that nobody had read, of which a
narrower one held six in ten, and two in three of the others were slower (docs/log.md).  Between
nothing and 1: the tables' tenth that is furthest off."""
