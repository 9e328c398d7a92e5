"""What devices exchange in a step, and what is done once a step: seconds of each by itself.

`MeshSizes` holds the sizes that follow from a layout (ranks of each group, members of a node, bytes
of a stage); `exchanges` and `optimized` price them with `Rates`.  All take arrays.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Any

from trainrig.prediction.rates import Rates
from trainrig.prediction.step.calibration import DISPATCHING, PORT
from trainrig.prediction.step.compute import launch_seconds
from trainrig.workload.adapters import has_adapter
from trainrig.workload.arrays import between, choose, is_any, is_not, larger, smaller
from trainrig.workload.layout import Layout
from trainrig.workload.layout_rules import longest_stage
from trainrig.workload.memory.pipeline_stage import places, stage_of
from trainrig.workload.model import ModelShape, matrices
from trainrig.workload.numerics import FROZEN, States
from trainrig.workload.operators import dtype_bytes

Array = Any

_SLICES = 4
"""Slices of a product whose result is sent while it is computed: the first, or last, has nothing
beside it.  Transformer Engine's pipelined overlap has four by default."""
_WHOLE = ("none", "ddp", "dataparallel")
"""Schemes that leave weights and gradients whole."""
_STYLE = dict.fromkeys(("adamw", "sgd", "adafactor", "muon", "galore"), "multi")


def gradient_bytes(layout: Layout) -> int:
    """Bytes of a gradient while it is accumulated and reduced, as each framework does by itself."""
    if layout.precision.reduce_bytes:
        return layout.precision.reduce_bytes
    if dtype_bytes(layout.precision.compute) >= 4:
        return 4
    if layout.precision.states == "pure":
        return 2
    if layout.scheme in _WHOLE:
        is_apex = layout.kernels.stack == "fused" and layout.precision.compute == "fp16"
        return 2 if is_apex else 4
    if layout.traits.ranks.grad_buffer:
        return 2 if layout.precision.compute == "fp16" else 4
    return 2


def _most(values: Iterable[Array]) -> Array:
    return reduce(larger, values)


class MeshSizes:
    """Sizes that follow from a layout: numbers, or arrays where the layout has any."""

    def __init__(self, shape: ModelShape, layout: Layout) -> None:
        self.shape, self.layout = shape, layout
        sizes = list(layout.sizes)
        if not layout.is_one:
            import numpy as np

            sizes = [np.atleast_1d(np.asarray(size, dtype=np.int64)) for size in sizes]
        self.gpus, per_node, self.tp, self.pp, self.virtual, *others = sizes
        self.batch_size, self.micro_batches, self.zero, shard_size, split, self.ep = others
        self.per_node, self.split = smaller(per_node, self.gpus), split > 0
        # Ranks that share a sequence have the same weights, and gradients of their own.
        self.dp = self.gpus // (self.tp * self.pp)
        shards = choose(shard_size > 0, shard_size, self.dp)
        self.shards = choose(self.zero > 0, shards, 1)
        self.layers = shape.num_layers + shape.num_decoder_layers
        # Interleaved groups are run in turn by all stages: each turn lasts as long as its longest.
        self.stage_layers = self.virtual * -(-self.layers // (self.pp * self.virtual))
        lacking = longest_stage(shape, self.pp) * self.pp - self.layers
        self.fewer_last, self.fewer_first = (1 * (lacking >= number) for number in (1, 2))
        self.gradient_bytes = gradient_bytes(layout)
        self.weight_bytes = dtype_bytes(layout.precision.compute)
        # A block's frozen weights travel as they are stored.
        self.stored_bytes = FROZEN[layout.lora.quantize] or float(self.weight_bytes)
        # Parameters of an average block, of the ends and of the stage that holds most, on one
        # device.
        stages = [stage_of(shape, layout, place) for place in places(shape, layout)]
        first = stages[0]
        self.states: States = first.states
        """Bytes for a parameter."""
        # Experts are apart: fewer ranks have the same ones than have the rest.
        self.experts = first.expert_parameters
        blocks = shape.num_layers * (first.block_parameters() - first.expert_parameters)
        if shape.num_decoder_layers:
            blocks = blocks + shape.num_decoder_layers * first.block_parameters(decoder=True)
        self.block = blocks / self.layers
        self.ends, self.stage_parameters, self.trained = (
            _most(getattr(stage, name) for stage in stages)
            for name in ("end_parameters", "num_parameters", "num_trained")
        )
        self.trained_share = self.trained / self.stage_parameters
        self.owned = _most(stage.owned(1) for stage in stages)
        self.expert_tp = layout.mesh.expert_tp
        around = self.ep * self.expert_tp
        self.expert_dp = larger(self.dp * self.tp // around, 1)
        """Ranks that have the same experts."""
        self.expert_near = between(self.per_node // around, 1, self.expert_dp)

    @property
    def data_near(self) -> Array:
        """Ranks of a data-parallel group in one node."""
        return between(self.per_node // smaller(self.tp, self.per_node), 1, self.dp)

    def groups(self, near: Array) -> Array:
        """Groups of ``near`` members each that share a node's fabric."""
        return larger(self.per_node // near, 1)


def exchanges(mesh: MeshSizes, rates: Rates, head: float) -> dict[str, Array]:
    """Return seconds of all exchanges by name of `Profile`'s fields; ``head`` as in `profile`."""
    seconds = _tensor(mesh, rates) | _pipeline(mesh, rates) | _data(mesh, rates, head)
    return seconds | {"all_to_all": _all_to_all(mesh, rates)}


def _all_to_all(mesh: MeshSizes, rates: Rates) -> Array:
    """Tokens' way to their experts and back, for an average block, forward, backward and again.

    Each rank of tensor parallel sends its part of the tokens, once for each of their experts, by
    all-to-all among the ``ep`` ranks; where these split experts' matrices, too, they gather and
    scatter the rows before and behind.  All experts are taken to be chosen equally often.
    """
    layout, shape = mesh.layout, mesh.shape
    if not shape.moe.num_experts or not is_any((mesh.ep > 1) | (mesh.tp > 1)):
        return 0.0
    mixed = 1.0 - shape.moe.dense_layers / shape.num_layers
    size = dtype_bytes("bf16" if layout.precision.compute == "fp8" else layout.precision.compute)
    rows = mesh.batch_size * layout.part_of_sequence * shape.moe.experts_per_token
    num_bytes = rows * shape.routed_width * size * layout.most_routed(shape.moe.num_experts)
    near = between(mesh.per_node // mesh.expert_tp, 1, mesh.ep)
    sharing = mesh.groups(near)
    dispatch = _dispatched(mesh, rates, num_bytes / mesh.tp, near, sharing)
    inside = smaller(mesh.expert_tp, mesh.per_node)
    gather = rates.links.collective("all_gather", num_bytes, mesh.expert_tp, inside)
    scatter = rates.links.collective("reduce_scatter", num_bytes, mesh.expert_tp, inside)
    passes = 2.0 + (layout.memory.recompute == "full")
    return mixed * passes * (2.0 * dispatch + gather + scatter)


def _dispatched(
    mesh: MeshSizes, rates: Rates, num_bytes: Array, near: Array, sharing: Array
) -> Array:
    """Return seconds of one way to the experts, or back: mean of the two.

    Where it is made to run beside computation, a token leaves for each other node once, whatever
    experts it has there, in fp8 if products are (on the way there alone), and is passed on inside.
    """
    layout, shape = mesh.layout, mesh.shape
    links, ranks = rates.links, mesh.ep
    if not (layout.overlaps_experts or layout.moe.dedup_internode_dispatch):
        return links.collective("all_to_all", num_bytes, ranks, near, sharing)
    chosen = max(1, shape.moe.experts_per_token)
    nodes = larger(ranks / near, 1.0)
    visited = nodes * (1.0 - (1.0 - 1.0 / nodes) ** chosen)  # equally likely, each by itself
    if shape.moe.expert_groups:
        spanned = larger(nodes / shape.moe.expert_groups, 1.0)
        visited = smaller(visited, shape.moe.groups_per_token * spanned)
    narrow = 0.75 if layout.precision.compute == "fp8" and layout.overlaps_experts else 1.0
    far = links.collective(
        "all_to_all", narrow * num_bytes * visited / chosen, ranks, near, sharing
    )
    # Inside, too, a rank gets it once that has several of its experts.
    share = near * (1.0 - (1.0 - 1.0 / near) ** (chosen / visited)) * visited / chosen
    inside = links.collective("all_to_all", narrow * num_bytes * share, near, near)
    return larger(far, inside)


def reserved_sm_share(mesh: MeshSizes, rates: Rates) -> Array:
    """Share by which computation is longer where some processors move tokens instead.

    Of a chip with fewer of them than twice as many, no more than half are set aside.
    """
    if not mesh.layout.overlaps_experts:
        return 0.0
    processors = rates.matmuls.processors
    free = max(processors / 2.0, processors - DISPATCHING)
    return choose(mesh.ep > 1, processors / free - 1.0, 0.0)


def all_to_all_overlap(mesh: MeshSizes) -> Array:
    """Share of tokens' way to their experts and back that may run beside computation.

    Beside another micro-batch's in Megatron-Core, kernels of both wait for each other: of a 30B
    mixture's on 16 H100 37 % ran beside products or attention (Megatron-Bridge's skill on this
    overlap), where DualPipe divides the processors between both and hides all that there is.
    """
    most = 1.0 if mesh.layout.overlaps_experts else _MERGED * mesh.layout.overlap.dispatch
    return choose(mesh.ep > 1, most, 0.0)


_MERGED = 0.4
"""Between 0.37 (seen beside) and 0.5 (saved with plain all-to-all, of what it is predicted)."""


def _tensor(mesh: MeshSizes, rates: Rates) -> dict[str, Array]:
    """Return two sums of activations over the group for each block and direction.

    With sequence parallel each is a scatter and a gather; backward gathers once more, and does that
    and its scatter beside products of weights' gradients.
    """
    layout, shape = mesh.layout, mesh.shape
    if not is_any(mesh.tp > 1):
        exposed, sliced = _context(mesh, rates)
        return {"tensor": exposed, "tensor_overlap": sliced, "tensor_ends": 0.0}
    size = (
        min(2, dtype_bytes(layout.precision.compute))
        if layout.precision.compute not in ("fp32", "tf32")
        else 4
    )
    seq = layout.part_of_sequence
    num_bytes = mesh.batch_size * seq * shape.hidden * size
    near = smaller(mesh.tp, mesh.per_node)
    reduce = rates.links.collective("all_reduce", num_bytes, mesh.tp, near)
    gather = rates.links.collective("all_gather", num_bytes, mesh.tp, near)
    scatter = rates.links.collective("reduce_scatter", num_bytes, mesh.tp, near)
    # A mixture's second half has them for dense blocks and shared experts alone (`_all_to_all`).
    mixed = (1.0 - shape.moe.dense_layers / shape.num_layers) if shape.moe.num_experts else 0.0
    num = 2.0 - mixed * (shape.moe.shared_experts == 0)
    forward = choose(mesh.split, num * (gather + scatter), num * reduce)
    backward = choose(mesh.split, num * gather, num * reduce)
    sliced = choose(mesh.split, num * gather + num * scatter, 0.0)
    again = forward * (layout.memory.recompute == "full")
    if layout.overlaps == "tensor":  # slices of a product are sent while the next one is computed
        first = 1.0 / _SLICES
        sliced = sliced + (1.0 - first) * (forward + backward + again)
        forward, backward, again = (first * passes for passes in (forward, backward, again))
    ends = choose(mesh.split, 2 * (gather + scatter), 2 * reduce)
    is_split = mesh.tp > 1
    exposed, passed = _context(mesh, rates)
    return {
        "tensor": choose(is_split, forward + backward + again, 0.0) + exposed,
        "tensor_overlap": choose(is_split, sliced, 0.0) + passed,
        "tensor_ends": choose(is_split, ends, 0.0),
    }


def _context(mesh: MeshSizes, rates: Rates) -> tuple[Array, Array]:
    """Return the seconds a block of context parallelism: exposed, and beside attention.

    On a ring keys and values pass all ranks while these work on the last ones; backward they pass
    again, and their gradients come back.  Gathered, they are there before attention begins.  By
    heads, queries, keys, values and results change places, and again in backward.
    """
    layout, shape = mesh.layout, mesh.shape
    ranks = layout.mesh.cp
    if ranks == 1:
        return 0.0, 0.0
    keys = 2 * larger(shape.attention.num_kv_heads / mesh.tp, 1.0) * shape.attention.head_dim
    size = mesh.batch_size * min(4, dtype_bytes(layout.precision.compute))
    near = between(mesh.per_node // mesh.tp, 1, ranks)
    groups, passes = mesh.groups(near), 2.0 + (layout.memory.recompute == "full")

    def one(kind: str, num_bytes: Array) -> Array:
        return rates.links.collective(kind, num_bytes, ranks, near, sharing=groups)

    if layout.context == "ulysses":
        part = size * layout.part_of_sequence
        queries = larger(shape.attention.num_heads / mesh.tp, 1.0) * shape.attention.head_dim
        ways = 2.0 * one("all_to_all", part * queries) + 2.0 * one("all_to_all", part * keys / 2)
        return passes * ways, 0.0
    whole = size * layout.batch.seq_len * keys
    moved = passes * one("all_gather", whole) + one("reduce_scatter", whole)
    return (moved, 0.0) if layout.context == "all-gather" else (0.0, moved)


def _pipeline(mesh: MeshSizes, rates: Rates) -> dict[str, Array]:
    """Return one boundary's activations.

    Megatron sends each rank's share and gathers inside the node.
    """
    layout, shape = mesh.layout, mesh.shape
    if not is_any(mesh.pp > 1):
        return {"send": 0.0}
    size = dtype_bytes(layout.precision.compute)
    shared = mesh.split | layout.traits.models.splits_vocabulary
    tokens = mesh.batch_size * layout.part_of_sequence / choose(shared, mesh.tp, 1)
    num_bytes = tokens * shape.hidden * size
    across = 1.0 * (mesh.gpus > mesh.per_node)
    sharing = smaller(mesh.tp * mesh.dp, mesh.per_node)
    sent = rates.links.send(num_bytes, across, sharing=sharing)
    near = smaller(mesh.tp, mesh.per_node)
    joined = rates.links.collective("all_gather", num_bytes * mesh.tp, mesh.tp, near)
    sent = sent + choose(shared & is_not(mesh.split) & (mesh.tp > 1), joined, 0.0)
    return {"send": choose(mesh.pp > 1, sent, 0.0)}


def data_parallel(mesh: MeshSizes, rates: Rates, head: float) -> dict[str, Array]:
    """Return the seconds that torch.nn.DataParallel exchanges for each micro-batch, unhidden.

    GPU 0 has all samples, weights and sums: it sends token numbers (ids, labels, mask, 8 bytes
    each) and every weight before forward, collects the outputs behind it, gradients after backward
    (torch.nn.parallel: scatter, replicate, gather; the sum is replicate's own backward).  Weights
    and sums pass the GPUs in a chain, as NCCL's broadcast and reduce do; inputs and outputs go to
    and from each GPU by themselves.  Outputs of Hugging Face's models are logits and loss, those of
    our own the loss alone.
    """
    layout, shape = mesh.layout, mesh.shape
    others = mesh.dp - 1
    tokens = mesh.batch_size * (layout.batch.seq_len + layout.batch.target_seq_len)
    outputs: Array = 0.0
    if not layout.traits.models.own_models:
        size = dtype_bytes(layout.precision.compute)
        outputs = mesh.batch_size * layout.batch.written * head * shape.vocab * size
    links, near = rates.links, mesh.per_node
    states = mesh.states  # replicas are as the weights are held
    frozen = states.frozen * mesh.stage_parameters if layout.lora.rank else 0.0

    def chain(num_bytes: Array) -> Array:
        return links.collective("broadcast", num_bytes, mesh.dp, near)

    return {
        "scatter": others * links.send(3.0 * 8.0 * tokens, 0),
        "replicate": chain(mesh.trained * states.weight + frozen),
        "gather": others * links.send(outputs + 4.0, 0),
        "reduce": chain(mesh.trained * states.weight),
    }


def _data(mesh: MeshSizes, rates: Rates, head: float) -> dict[str, Array]:
    """Weights and gradients over data-parallel ranks, by framework and what is sharded."""
    layout = mesh.layout
    if layout.scheme == "dataparallel":
        seconds = dict.fromkeys(("gather_forward", "gather_backward", "scatter", "after"), 0.0)
        whole = sum(data_parallel(mesh, rates, head).values())
        return seconds | {
            "ahead": 0.0,
            "every_micro_batch": 1.0,
            "overlaps_backward": 0.0,
            "ends": whole,
        }
    streams = (layout.scheme == "fsdp") & (mesh.zero >= 2) | (mesh.zero == 3)
    is_late = layout.traits.ranks.bucket > 0 or layout.traits.ranks.grad_buffer
    every_micro_batch = streams | (is_late & (mesh.zero == 2))
    hides = every_micro_batch | (layout.overlaps != "none")
    # Stages of FSDP2: with ZeRO 2 weights stay gathered for a step; torch's schedules add gradients
    # up and reduce them when the last backward is over.
    whole_stage = streams & (mesh.zero == 2) & (mesh.pp > 1)
    added = (layout.scheme == "fsdp") & (not layout.traits.models.own_models) & (mesh.pp > 1)
    every_micro_batch, hides, anew = (
        every_micro_batch & is_not(added),
        hides & is_not(added),
        streams & is_not(whole_stage),
    )
    block = _gathered(mesh, rates, mesh.block, mesh.experts, streams, mesh.stored_bytes)
    ends = _gathered(mesh, rates, mesh.ends, 0.0, streams, mesh.weight_bytes)
    gathers = (mesh.zero > 0) & is_not(streams)
    of_experts = layout.pipeline.stage_copies * mesh.stage_layers * mesh.experts
    trained = (mesh.stage_parameters - of_experts) * mesh.trained_share
    trained_share = of_experts * mesh.trained_share
    weights = _gathered(mesh, rates, trained, trained_share, gathers, mesh.weight_bytes)
    ahead = layout.overlaps != "none" and layout.scheme == "own"
    seconds = {
        "gather_forward": choose(anew, block + choose(added, ends / mesh.stage_layers, 0.0), 0.0),
        "gather_backward": choose(mesh.zero == 3, block, 0.0),
        "scatter": layout.pipeline.stage_copies * _reduced(mesh, rates, mesh.block, mesh.experts),
        "ends": _reduced(mesh, rates, mesh.ends, 0.0) + choose(anew & is_not(added), ends, 0.0),
        "after": choose(gathers & is_not(ahead), weights, 0.0),
        "ahead": choose(gathers & ahead, weights, 0.0)
        + choose(whole_stage, mesh.stage_layers * block + ends, 0.0),
    }
    seconds = {name: choose(mesh.dp > 1, value, 0.0) for name, value in seconds.items()}
    return seconds | {
        "every_micro_batch": 1.0 * every_micro_batch,
        "overlaps_backward": 1.0 * hides,
    }


def _gathered(
    mesh: MeshSizes, rates: Rates, num: Array, experts: Array, where: Array, width: float
) -> Array:
    """Return all-gather of weights of ``width`` bytes each, if any layout of ``where`` does one.

    ``num`` of them over the ranks that share them, and those of ``experts`` over theirs.
    """
    if not is_any(where):
        return 0.0
    whole = _over_shards(mesh, rates, "all_gather", num * width)
    return whole + _over_experts(mesh, rates, "all_gather", experts * width)


def _reduced(mesh: MeshSizes, rates: Rates, num: Array, experts: Array) -> Array:
    """Gradients of ``num`` weights: all-reduced, or scattered over the ranks that share them.

    Then shards are all-reduced over the replicas; those of ``experts`` go over their own ranks.
    """
    shares, replicas = is_any(mesh.shards > 1), mesh.dp // larger(mesh.shards, 1)
    num_bytes = num * mesh.gradient_bytes * mesh.trained_share
    whole: Array = 0.0
    if shares:
        whole = _over_shards(mesh, rates, "reduce_scatter", num_bytes * _whole(mesh))
    if is_any(replicas > 1):
        near = larger(mesh.data_near // smaller(mesh.data_near, mesh.shards), 1)
        shard, sharing = num_bytes / mesh.shards, mesh.groups(near)
        whole = whole + rates.links.collective("all_reduce", shard, replicas, near, sharing=sharing)
    of_experts = experts * mesh.gradient_bytes * mesh.trained_share
    return whole + _experts_reduced(mesh, rates, of_experts)


def _over_shards(mesh: MeshSizes, rates: Rates, kind: str, num_bytes: Array) -> Array:
    """Return a collective of the ranks that share weights or states."""
    near = smaller(mesh.data_near, mesh.shards)
    sharing = mesh.groups(near)
    if mesh.layout.traits.ranks.bucket:  # one ring leaves a node by one port of many
        ports = rates.links.between.bandwidth / PORT
        sharing = between(ports, sharing, larger(mesh.per_node, sharing))
    return rates.links.collective(kind, num_bytes, mesh.shards, near, sharing=sharing)


def _whole(mesh: MeshSizes) -> Array:
    """Summed on its owner a bucket passes every link whole, not but for a part as on a ring."""
    in_turn = (mesh.zero < 3) & mesh.layout.traits.ranks.reduces_to_owner
    return choose(in_turn, mesh.shards / larger(mesh.shards - 1, 1), 1.0)


def _experts_reduced(mesh: MeshSizes, rates: Rates, num_bytes: Array) -> Array:
    """Experts' gradients: scattered where states are sharded, else summed on all ranks."""
    shares = mesh.shards > 1
    scattered = _over_experts(mesh, rates, "reduce_scatter", num_bytes) if is_any(shares) else 0.0
    if not is_any(is_not(shares)):
        return scattered
    return choose(shares, scattered, _over_experts(mesh, rates, "all_reduce", num_bytes))


def _over_experts(mesh: MeshSizes, rates: Rates, kind: str, num_bytes: Array) -> Array:
    """Return a collective of the ranks that have the same experts."""
    if not mesh.shape.moe.num_experts:
        return 0.0
    near = mesh.expert_near
    return rates.links.collective(kind, num_bytes, mesh.expert_dp, near, mesh.groups(near))


def optimized(mesh: MeshSizes, rates: Rates) -> Array:
    """Streams over states, masters and gradients of this rank's share, and clipping."""
    layout = mesh.layout
    if layout.memory.offload != "none":
        return 0.0
    # For each parameter: gradients twice (clipping), moments, weights, masters.
    states = mesh.states
    weights = 2.0 * states.master + states.weight if states.master else 2.0 * states.weight
    width = 2.0 * (states.persistent_grad or states.transient_grad) + weights
    width += 2.0 * (states.moments + states.paged)
    num_bytes = mesh.owned * width
    tensors = _trained_tensors(mesh)
    style = _STYLE.get(layout.memory.optimizer, "fused")
    if (call := launch_seconds(layout, rates)) != rates.launch:  # no graph of layers has it
        rates = rates.replace(launch=call)
    seconds = rates.optimizer(num_bytes, tensors=tensors, style=style) + _orthogonal(mesh, rates)
    if layout.kernels.software == "torch1" and layout.traits.models.autocasts:
        return seconds + _ONE_BY_ONE * tensors * rates.launch
    return larger(seconds, layout.traits.host.tensor_calls * tensors * rates.launch)


def _trained_tensors(mesh: MeshSizes) -> Array:
    """Tensors that are updated: two of each adapter; Megatron has one beside q, k and v together.

    Experts of a block are counted as one, as their grouped kernels have them.
    """
    layout, shape = mesh.layout, mesh.shape
    if not layout.lora.rank:
        return mesh.stage_layers * (12 if shape.attention.qkv_bias else 9) + 4
    adapted = {
        (
            matrix.branch,
            "qkv"
            if layout.traits.models.own_kernels and matrix.part in ("q", "k", "v")
            else matrix.part,
        )
        for matrix in matrices(shape)
        if has_adapter(layout.adapted, matrix.branch, matrix.part, is_expert=matrix.copies > 1)
    }
    return mesh.stage_layers * 2 * len(adapted)


_ONE_BY_ONE = 8.0
"""Calls of torch 1 for each tensor around its update, each about a launch: detached, its norm taken
and moved; detached, the factor moved, clipped; detached, zeroed (its `clip_grad_norm_`, which has
had lists of tensors since torch 2, and `zero_grad`; Trainer's `max_grad_norm` is 1)."""


def _orthogonal(mesh: MeshSizes, rates: Rates) -> Array:
    """Muon's products: five rounds of Newton and Schulz over each matrix, on each rank.

    For one of m rows, n columns and m <= n a round is 4·n·m² + 2·m³ (Jordan 2024); a block's
    matrices are taken to be as wide as the model on their shorter side, adapters' as their rank.
    """
    layout, rank = mesh.layout, mesh.layout.lora.rank
    if layout.memory.optimizer != "muon":
        return 0.0
    share = choose(mesh.zero > 0, mesh.shards, 1)
    updated = mesh.trained if rank else mesh.block * mesh.stage_layers
    flops = 5.0 * 6.0 * (rank or mesh.shape.hidden) * updated / share
    dtype = "bf16" if layout.precision.compute == "fp8" else layout.precision.compute
    return flops / rates.matmuls.sustained[dtype]
