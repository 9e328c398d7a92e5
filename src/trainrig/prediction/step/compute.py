"""Device and host seconds of one block, and of a model's ends, on one tensor-parallel share.

Answers what a micro-batch costs on one device before anything is exchanged: seconds of products,
of fused attention, of streams, and host seconds of launches, for forward, backward and what is
recomputed; of many layouts at once where its sizes are arrays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from trainrig.prediction.rates import Rates
from trainrig.workload.arrays import choose, is_any, is_plain, larger
from trainrig.workload.blocks import LATENT, block, embed, head, selective_policy
from trainrig.workload.families import facts_of
from trainrig.workload.flops import until_saved
from trainrig.workload.kernels import NETS, Kernels, kernels_of
from trainrig.workload.layout import Layout
from trainrig.workload.model import ModelShape, block_kinds
from trainrig.workload.numerics import Numerics, numerics_of
from trainrig.workload.operators import Operator, Product, dtype_bytes

DeviceTime = tuple[Any, Any, Any, Any]
"""Seconds of products, of fused attention, of streams; host seconds of launches: each a number, of
many layouts an array."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTimes:
    """One micro-batch on one device."""

    forward: DeviceTime
    """Seconds of an average block, as the next two."""
    backward: DeviceTime
    recompute: DeviceTime
    first: DeviceTime
    """Embedding, both directions."""
    last: DeviceTime
    """Final norm, logits and loss, both directions."""


def device_times(shape: ModelShape, layout: Layout, rates: Rates, head: float = 1.0) -> DeviceTimes:
    """Return the seconds of a micro-batch's parts; what a search asks for again is priced once.

    Args:
        shape: The model.
        layout: One layout, or many that share their words.
        rates: How fast operations go.
        head: Share of the tokens that logits are computed for.
    """
    sizes = (size if is_plain(size) else size.tobytes() for size in _SIZES_READ(layout))
    key = (shape, head, *_READ(layout), *sizes)
    with_recompute = (*key, layout.memory.recompute)
    known: dict[object, DeviceTimes] = _known(rates)
    if (times := known.get(with_recompute)) is not None:
        return times
    times = known.get(key) or _priced(shape, layout, rates, head)
    known[key] = times
    if layout.memory.recompute != "none":
        times = dataclasses.replace(times, recompute=_priced_again(shape, layout, rates))
    known[with_recompute] = times
    return times


_READ = attrgetter(
    *("framework", "scheme", "context", "precision", "kernels", "moe", "lora"),
    *("mesh.cp", "batch.seq_len", "batch.target_seq_len"),
)
"""Fields of a layout that pricing reads besides its sizes and, for what is computed again, its
recomputation."""
_SIZES_READ = attrgetter(
    *("mesh.tp", "mesh.sequence_parallel", "mesh.ep", "mesh.expert_tp", "batch.micro")
)
"""Sizes of a layout that pricing reads, which may be arrays."""


def _priced(shape: ModelShape, layout: Layout, rates: Rates, head: float) -> DeviceTimes:
    """Return the times of a layout in which nothing is computed again."""
    numerics = numerics_of(shape, layout)

    def timed(parts: list[Operator], *, backward: bool, of_layers: bool = True) -> DeviceTime:
        call = launch_seconds(layout, rates, of_layers=of_layers)
        return _timed(parts, numerics, layout, rates, backward, call)

    begin = embed(shape, _as_counted(shape, layout), layout.part_of_sequence)
    ends = begin, _head(shape, layout, head)
    first, last = (
        _sum((timed(parts, backward=way, of_layers=False), 1.0) for way in (False, True))
        for parts in ends
    )
    blocks = _blocks(shape, layout)
    forward, backward = (
        _sum((timed(parts, backward=way), share) for parts, share in blocks)
        for way in (False, True)
    )
    if (ahead := shape.head.ahead * layout.traits.models.splits_vocabulary) > 0:
        last = _sum(((last, 1.0 + ahead), (forward, ahead), (backward, ahead)))
    return DeviceTimes(
        forward=forward,
        backward=backward,
        recompute=(0.0, 0.0, 0.0, 0.0),
        first=first,
        last=last,
    )


def _priced_again(shape: ModelShape, layout: Layout, rates: Rates) -> DeviceTime:
    """Return the times of what of an average block is computed again."""
    numerics = numerics_of(shape, layout)
    call = launch_seconds(layout, rates, of_layers=True)
    *device, host = _sum(
        (_timed(_again(shape, parts, layout), numerics, layout, rates, False, call), share)
        for parts, share in _blocks(shape, layout)
    )
    products, attention, streams = device
    return products, attention, streams, host + CHECKPOINT_CALLS * launch_seconds(layout, rates)


def _sum(times: Iterable[tuple[DeviceTime, float]]) -> DeviceTime:
    """Return the sum of several, each times a share."""
    parts = [[share * seconds for seconds in time] for time, share in times]
    a, b, c, d = (sum(column) for column in zip(*parts, strict=True))
    return a, b, c, d


CHECKPOINT_CALLS = 12
"""Calls of the host for a recomputed block beside its own operations, each about a launch's time:
states of two generators are saved, set and restored, inputs are detached and watched, and autograd
is entered once more (torch.utils.checkpoint; Megatron's saves its tracker's states too)."""


def operator_times(
    shape: ModelShape, parts: list[Operator], layout: Layout, rates: Rates, *, backward: bool
) -> tuple[float, float]:
    """Device and host seconds of some operators of a block, one direction, by themselves."""
    call = launch_seconds(layout, rates, of_layers=True)
    times = _timed(parts, numerics_of(shape, layout), layout, rates, backward, call)
    return float(sum(times[:3])), float(times[3])


_latest: dict[int, tuple[Rates, dict[object, Any]]] = {}


def _known(rates: Rates) -> dict[object, Any]:
    """Products and parts that were priced by these rates, of the latest few: nothing piles up."""
    entry = _latest.get(id(rates))
    if entry is None or len(entry[1]) > _MOST_KNOWN:
        if len(_latest) >= _MOST_RATES:
            del _latest[next(iter(_latest))]
        entry = _latest[id(rates)] = (rates, _shared(rates))  # with the rates: their id stays so
    return entry[1]


def _shared(rates: Rates) -> dict[object, Any]:
    """Return the known times of rates that are alike in all that one device computes by.

    Links, memory and power are not: tables have many networks of one chip.
    """
    key = _frozen(_RATES_READ(rates))
    times = _by_device.get(key)
    if times is None or len(times) > _MOST_KNOWN:
        if len(_by_device) >= _MOST_DEVICES:
            del _by_device[next(iter(_by_device))]
        times = _by_device[key] = {}
    return times


_RATES_READ = attrgetter(
    *("matmuls", "streams", "attentions", "launch", "graphed", "supports_non_tn_fp8", "plain")
)
"""Fields of rates that pricing reads."""


def _frozen(value: Any) -> Any:
    """Return a value, its mappings and dataclasses as tuples, which are hashable."""
    if isinstance(value, Mapping):
        return tuple(value.items())
    if dataclasses.is_dataclass(value):
        return tuple(_frozen(getattr(value, item.name)) for item in dataclasses.fields(value))
    return tuple(map(_frozen, value)) if isinstance(value, tuple) else value


_by_device: dict[object, dict[object, Any]] = {}
_MOST_KNOWN, _MOST_RATES, _MOST_DEVICES = 1 << 13, 1024, 128


def _as_counted(shape: ModelShape, layout: Layout) -> Layout:
    """Operators beside fp8 are in bf16; attention with a bias has no fused kernel."""
    if layout.precision.compute == "fp8":
        layout = layout.replace(precision="bf16")
    has_bias = shape.positions == "relative" and facts_of(shape).has_position_bias
    return layout.replace(kernels="eager") if has_bias else layout


def _blocks(
    shape: ModelShape, layout: Layout, *, half: bool = True
) -> list[tuple[list[Operator], float]]:
    """Kinds of block, with the share of each among all."""
    layout, kinds = _as_counted(shape, layout), block_kinds(shape)
    num = sum(kind.num for kind in kinds)
    return [
        (
            block(
                shape,
                layout,
                decoder=kind.decoder,
                dense=kind.dense,
                half=half,
                window=kind.window,
            ),
            kind.num / num,
        )
        for kind in kinds
    ]


def _again(shape: ModelShape, parts: list[Operator], layout: Layout) -> list[Operator]:
    """Return the operators that run once more.

    These are all of a block, or (selective) those that are cheap beside what they save.

    Selective means the core of attention in Megatron, and wherever scores are kept; with a fused
    attention elsewhere it is torch's: attention and every second product are kept.  Of latent
    attention it is what `selective_policy` drops.
    """
    if layout.memory.recompute == "none":
        return []
    if layout.memory.recompute == "full":
        return until_saved(parts)
    if selective_policy(shape, layout) == LATENT:
        return [part for part in parts if part.name in _latent_parts(shape)]
    if not layout.kernels.is_flash or layout.traits.models.recomputes_core:
        return [part for part in parts if ".attend" in part.name]
    products = [part for part in parts if part.kind == "matmul"]
    others = [part for part in parts if part.kind not in ("matmul", "attention")]
    return others + products[::2]


def _latent_parts(shape: ModelShape) -> tuple[str, ...]:
    """Norms, what widens and turns, activations; queries where narrow ones are widened."""
    widened = ("attention.q",) if shape.latent.q_rank else ()
    norms = ("attention.norm", "attention.narrow", "ffn.norm")
    return (*norms, *widened, "attention.kv", "attention.rotary", "ffn.activation")


def recomputed_flops(shape: ModelShape, layout: Layout, *, half: bool = False) -> int:
    """FLOPs of a step, all devices, that are computed a second time; causal attention in full.

    ``half``: of causal attention the scores that are seen count alone.
    """
    whole = layout.replace(
        tp=1, cp=1, ep=1, batch_size=int(layout.global_batch), sequence_parallel=0
    )
    num = shape.num_layers + shape.num_decoder_layers
    if shape.family == "gpt-neo":  # its local layers are computed in full, and masked (`flops`)
        shape = shape.replace(windows=())
    return sum(
        round(num * share) * sum(part.forward.flops for part in _again(shape, parts, layout))
        for parts, share in _blocks(shape, whole, half=half)
    )


def _head(shape: ModelShape, layout: Layout, share: float) -> list[Operator]:
    if share <= 0.0:
        return []
    few = max(1, round(share * layout.batch.written))
    if layout.traits.models.splits_vocabulary:
        shape = shape.replace(vocab=-(-shape.vocab // _PAD) * _PAD)
    return head(shape, _as_counted(shape, layout).replace(target_seq_len=few))


_PAD = 128 * 8
"""Megatron pads a vocabulary to a multiple of 128 for each tensor-parallel rank."""


def _timed(
    parts: list[Operator],
    numerics: Numerics,
    layout: Layout,
    rates: Rates,
    backward: bool,
    call: float,
) -> DeviceTime:
    """Seconds of a pass of operations, each kernel of which takes the host ``call`` seconds."""
    kernels = kernels_of(parts, numerics, backward=backward)
    precision = layout.precision.compute
    low, many = precision == "fp8", not is_plain(layout.batch.micro)
    products: Any = 0.0
    streams: Any = 0.0
    attention: Any = 0.0
    known = _known(rates)
    is_once = (
        rates.supports_non_tn_fp8 and layout.traits.models.own_kernels
    )  # narrowed for all that read it

    def product(m: int, n: int, k: int, count: int, dtype: str) -> Any:
        if many:
            return rates.matmul(m, n, k, batch=count, dtype=dtype)
        key = (m, n, k, count, dtype)
        if (seconds := known.get(key)) is None:  # frameworks and shares have most in common
            seconds = known[key] = rates.matmul(m, n, k, batch=count, dtype=dtype)
        return seconds

    for count, m, n, k in kernels.batched:
        dtype = "bf16" if low else precision
        alone = product(m, n, k, count, dtype)
        products += alone * _alignment_of_heads(n, k, dtype, layout)
    for count, m, n, k in (*kernels.products, *kernels.adapters):
        calls, in_one = (1, count) if layout.moe.experts == "grouped" else (count, 1)
        alone = calls * product(m, n, k, in_one, precision)
        products += alone * _alignment(n, k, precision, _UNALIGNED, _HALF_ALIGNED)
    if low:
        for num_bytes, num in _narrowed(parts, backward) if is_once else _scaled(kernels.products):
            streams += rates.stream(num_bytes, kernels=num)
    for scores in kernels.attention:
        seconds = rates.attention(
            batch=scores.batch,
            heads=scores.num_heads,
            kv_heads=scores.num_kv_heads,
            queries=scores.queries,
            keys=scores.keys,
            head_dim=scores.head_dim,
            dtype="bf16" if low else precision,
            causal=scores.half,
            backward=backward,
            kernels="flash" if layout.kernels.stack == "compiled" else layout.kernels.stack,
        )
        # The slowest rank of a sequence sets the pace; of a window each has as much.
        is_whole = scores.half and scores.keys >= layout.batch.seq_len
        attention += seconds * (layout.causal_load if is_whole else 1.0)
    for num_bytes, num in (*kernels.streams, *_sliced(parts, layout, backward)):
        streams += rates.stream(num_bytes, kernels=num)
    launches = _launches(kernels, layout) + _of_mixture(parts, numerics, layout, backward)
    plain = rates.plain if layout.kernels.stack in ("eager", "flash") else 1.0
    return products, attention, streams / plain, launches * call


def launch_seconds(layout: Layout, rates: Rates, *, of_layers: bool = False) -> float:
    """Host seconds for each kernel, less what CUDA graphs spare (`Layout.launched_as`).

    ``of_layers``: of a block's own operations, which alone graphs of layers hold.
    """
    words = layout.launched_as(rates.graphed)
    return rates.launch * (1.0 if words == "layers" and not of_layers else _LEFT_OF_LAUNCHES[words])


_LEFT_OF_LAUNCHES = {"none": 1.0, "layers": 0.3, "runtime": 0.3, "iteration": 0.0}
"""Share of the host's time that stays beside graphs of layers: exchanges between graphs, and of a
mixture what depends on how many tokens each expert gets; or where no Python stands between
kernels.  Presumed: no document says it.  A whole iteration is one launch (Megatron-Core's
FullCudaGraphWrapper holds all passes, OptimizerCudaGraphWrapper the rest)."""


def _scaled(products: Iterable[Product]) -> list[tuple[Any, int]]:
    """Return (bytes, kernels) of casts to fp8 before each product.

    Both operands are scaled, and written.

    Adapters stay in their own type.
    """
    return [(3.0 * count * (m * k + n * k), 2) for count, m, n, k in products]


def _narrowed(parts: list[Operator], backward: bool) -> list[tuple[Any, int]]:
    """Return (bytes, kernels) of casts to fp8.

    Each input once, and in backward each result's gradient.

    Read in 16 bit, written row by row and column by column, as the two products want it that read
    it (Transformer Engine's quantizers).  Queries, keys and values have one input, gates and ups
    another; weights stay narrow from one micro-batch to the next; a router is not narrowed.
    """
    operators = []
    for part in parts:
        tail = part.name.rpartition(".")[2]
        if part.kind != "matmul" or tail == "router" or (tail in _SHARING and not backward):
            continue
        count, rows, wide, wide_in = part.forward.products[0]
        operators.append((4.0 * count * rows * (wide if backward else wide_in), 1))
    return operators


_SHARING = ("k", "v", "up", "shared_up")
"""Operations that read what another one before them reads."""


def _launches(kernels: Kernels, layout: Layout) -> float:
    """Host time of a pass's kernels, in kernels that torch launches one by one.

    A linear layer of Transformer Engine in bf16 takes its host 3.3 times as long as torch's (its
    issue 445: 0.57 against 0.18 ms, both directions; issue 2053: 2.7 times, forward), which
    Megatron's own Python around it makes more; casts to fp8 and adapters are launched inside of it.
    So where the host is what a pass waits for, and no graphs are (`launch_seconds`), this stack is
    slower than Megatron's own layers, however much it fuses: 1,440 published steps of those on an
    A100 have their host at torch's time, and today's tests of Megatron-Core theirs at four times.
    """
    adapters = len(kernels.adapters)
    calls = {"flash+fused": layout.traits.host.module_calls, "compiled": _COMPILED}
    casts = 2 * len(kernels.products) * (layout.precision.compute == "fp8")
    modules = (kernels.launches - adapters) * calls.get(layout.kernels.stack, 1.0)
    return float(modules + adapters + casts)


_COMPILED = 0.5
"""Host time of a kernel in a compiled graph, against one with Python and autograd around it:
presumed."""
_ROUTING, _ROUTING_FUSED = (70, 45), (40, 40)
"""Kernels of each direction that sort a mixture's tokens, count them and exchange the counts,
beside its operators': counted in Megatron-Core's router (24 forward, with its loss) and all-to-all
dispatcher (counts 15, permutations 20, three exchanges as long for the host as three kernels each).
Fewer where dispatching is one kernel (DeepEP, HybridEP): presumed."""
_IN_TURN = {"grouped": (0, 0), "sorted": (0, 0), "modules": (16, 40), "slices": (4, 10)}
"""Kernels of one expert, forward and backward, where experts run in turn.

Of modules: forward looks for the expert's tokens (a count, a wait for it, a choice: six), gathers
them and their weights, multiplies three times, activates, weighs and adds up; backward multiplies
six times, adds to three gradients, and undoes two gathers by sorting places, ten each.  Counted in
transformers 4's code of Mixtral and Qwen 3; its host time beside a Llama's block on one processor
is that of 17 and 46.  Of slices: two products, whose inputs are one tensor's parts."""


_GROUPED = 0.37
"""Host time of an expert's part in a product of all, against a kernel with Python and autograd
around it: Transformer Engine's GroupedLinear launches each by itself, and splits its rows off; in
fp8 it makes two further tensors and casts, which is as much again (its issue 1499).  Megatron's
GroupedMLP of before loops over experts in C++ as well (fanshiqing/grouped_gemm)."""
_ADAPTED_EXPERT = (12, 12)
"""Kernels of the adapters of an expert's three matrices that is run in turn: four each, and in
backward six for the two that a frozen matrix does without."""


def _of_mixture(parts: list[Operator], numerics: Numerics, layout: Layout, backward: bool) -> Any:
    """Kernels of one direction that sort tokens, and those of experts that run in turn."""
    experts, way = _experts(parts), int(backward)
    in_turn: float = _IN_TURN[layout.moe.experts][way]
    if layout.moe.experts == "grouped" and layout.traits.models.own_kernels:
        in_turn = (
            _GROUPED * (4 if backward else 2) * (2 if layout.precision.compute == "fp8" else 1)
        )
    if (
        numerics.adapters.frozen
        and layout.moe.experts == "modules"
        and layout.adapted in ("all", "shared")
    ):
        in_turn += _ADAPTED_EXPERT[way]
    routing = (_ROUTING_FUSED if layout.moe.dedup_internode_dispatch else _ROUTING)[way]
    return routing * is_any(experts > 0) + in_turn * experts


def _experts(parts: list[Operator]) -> Any:
    """Experts of a block that multiply, on this device; 0: no router, or what they make is kept."""
    if not any(part.name == "ffn.router" for part in parts):
        return 0
    return next((part.forward.products[0][0] for part in parts if part.name == "ffn.up"), 0)


def _sliced(parts: list[Operator], layout: Layout, backward: bool) -> list[tuple[Any, Any]]:
    """Return (bytes, kernels) of gradients where experts are slices.

    Each is as large as all of them.

    It is filled with zeros and added to those of the others: written, two read, written.
    """
    experts = _experts(parts)
    if layout.moe.experts != "slices" or not (backward and is_any(experts > 0)):
        return []
    products = [part.forward.products[0] for part in parts if part.name in NETS]
    weights = sum(count * wide * wide_in for count, _, wide, wide_in in products)
    return [(4.0 * dtype_bytes(layout.precision.compute) * weights * experts, 3 * experts)]


def _alignment_of_heads(n: Any, k: Any, dtype: str, layout: Layout) -> Any:
    """Factor of attention's time by heads' width; of 197 tokens scores' rows alone suffer."""
    lengths = (layout.batch.seq_len, layout.part_of_sequence, layout.batch.written)
    wide_n, wide_k = (0 if size in lengths else size for size in (n, k))
    scores = _alignment(n, k, dtype, _UNALIGNED, 1.0)  # one of a product's three matrices
    return larger(scores, _alignment(wide_n, wide_k, dtype, _HEADS_UNALIGNED, 1.0))


def _alignment(n: Any, k: Any, dtype: str, unaligned: float, half: float) -> Any:
    """Return the factor by which unaligned rows make a product longer.

    NVIDIA's guide asks for multiples of 16 bytes, best of 128: below, operands are loaded word by
    word (heads 108 wide), or with half as wide accesses (1800 columns against 1792).
    """
    size = dtype_bytes(dtype)
    if dtype == "fp32":
        return 1.0
    is_near = (n * size % 16 == 0) & (k * size % 16 == 0)
    is_aligned = (n * size % 128 == 0) & (k * size % 128 == 0)
    return choose(is_aligned, 1.0, choose(is_near, half, unaligned))


_HEADS_UNALIGNED, _UNALIGNED, _HALF_ALIGNED = 5.0, 1.7, 1.2
