"""How a training step is spread over devices, and what it is run with: one object for both.

Answers which layouts there are and which can be run; not what they cost (`memory`,
and the predictor's step).  The sizes may be whole numbers, for one layout, or arrays of equal
shape, for a search over many: every formula that takes a `Layout` takes both.  Choices of words
(precision, recompute, …) are the same for all layouts of one object.

Two words say who spreads a training and how, and they are two axes:

    framework   whose program trains: native (native), huggingface (Trainer, by torch's autocast),
                torchtitan, megatron, deepspeed
    parallel    torch's wrapper around the data-parallel ranks: ddp, fsdp or dataparallel; auto,
                the usual word, follows from the sizes: none for one process, ddp where weights are
                whole on each rank (zero 0 and 1), fsdp where they are sharded (zero 2 and 3).
                Megatron and DeepSpeed have ways of their own, and no choice.

`Layout.scheme` is what `parallel` comes to.  DataParallel differs from DDP in nothing that sizes
say, so it is had by its name alone; its micro-batch is that of one GPU, too.

Devices are a mesh of pipeline × data × context × tensor parallel; neighbours in a tensor-parallel
group are nearest (ranks of one node), then context, data, pipeline (the order of Megatron-LM).

Which layouts can be run is said by `layout_rules`; `check_layout` raises the first rule that is
broken, `legal_mask` is all of them over a search's arrays.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

from trainrig.errors import UsageError, unknown
from trainrig.workload.arrays import Real, choose, log2, smaller
from trainrig.workload.frameworks import FRAMEWORKS, NATIVE, OF_SCHEDULES, Traits, usual_framework
from trainrig.workload.layout_rules import ONE_BACKWARD, RANGES, RULES, Pairing, Rule

if TYPE_CHECKING:  # numpy is loaded by those who need it: `--help` does not
    import numpy as np
    from numpy.typing import NDArray

    from trainrig.workload.model import ModelShape

Whole: TypeAlias = "int | NDArray[np.int64]"
"""One layout's number, or an array with one for each layout."""

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8")
SCALED = {"mxfp8": "fp8", "nvfp4": "fp8", "mxfp4": "fp8"}
"""Number formats with a scale for each block of numbers, and the precision that they are priced as:
what is not a product is the same; of products `Rates` know."""
RECOMPUTE = ("none", "selective", "full")
SCHEDULES = ("1f1b", "gpipe", "zb", "zbv", "dualpipe")
"""Of pipelines: 1F1B (interleaved where stages are), GPipe, Qi et al.'s zero-bubble ones, and
DeepSeek-V3's from both ends at once (arXiv 2412.19437, section 3.2.1)."""
KERNELS = ("eager", "fused", "flash", "flash+fused", "compiled")
PARALLEL = ("auto", "ddp", "fsdp", "dataparallel")
OPTIMIZERS = (
    *("adamw", "adamw-fused", "adamw-8bit", "sgd", "adafactor", "muon", "galore"),
    *("adamw-paged", "adamw-8bit-paged"),
)
QUANTIZE = ("none", "int8", "nf4", "nf4-double", "fp4")
OFFLOAD = ("none", "host", "disk")
CP_COMM = ("auto", "ring", "zigzag", "all-gather", "ulysses")
OFFLOAD_OVERLAP = ("auto", "none", "copies", "update", "delayed")
LORA_ON = ("auto", "all", "shared", "linear", "attention", "qkv")
STATES = ("auto", "masters", "autocast", "pure")
MOMENTS_IN = ("auto", "fp32", "bf16")
GRAD_REDUCE = ("auto", "fp32", "bf16")
DROPS = ("auto", "no", "yes")
SOFTWARE = ("current", "torch1")
LOSS = ("auto", "whole", "narrow", "chunked", "fused")
OVERLAP = ("auto", "none", "data", "tensor", "experts", "all")
CUDA_GRAPHS = ("auto", "none", "layers", "runtime", "iteration")
EXPERTS = ("grouped", "sorted", "modules", "slices")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """How the ranks of one layout are arranged: as a block of tp · cp · dp · pp."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    """Groups of ranks that each train on samples of their own."""
    cp: int = 1
    ep: int = 1
    """Of the data-parallel ranks, those that share one set of experts."""

    @property
    def ranks(self) -> int:
        """Ranks in all, each with a device of its own."""
        return self.tp * self.pp * self.cp * self.dp


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Devices, the sizes of the mesh, and what is run with.

    Micro-batch is the number of samples that one data-parallel rank runs at once; the global batch
    is batch_size · grad_accum · dp samples.
    """

    gpus: Whole = 1
    gpus_per_node: Whole = 8
    tp: Whole = 1
    """Devices that share each matrix (tensor parallel)."""
    pp: Whole = 1
    """Stages of layers (pipeline parallel)."""
    interleave: Whole = 1
    """Groups of layers that each stage holds (virtual stages, Megatron's vpp)."""
    batch_size: Whole = 1
    grad_accum: Whole = 1
    """Micro-batches of a step; those that fill the pipeline, too."""
    zero: Whole = 0
    """What is sharded over data parallel: 1 optimizer, 2 gradients too, 3 weights too (FSDP)."""
    shard_size: Whole = 0
    """Ranks that share one copy when zero > 0 (hybrid sharding); 0 = all of data parallel."""
    sequence_parallel: Whole = 0
    """1: what tensor parallel does not split is split along the sequence (Korthikanti 2022)."""
    ep: Whole = 1
    """Data-parallel ranks that share the experts of a mixture (expert parallel)."""
    cp: int = 1
    """Devices that share each sequence (context parallel)."""
    cp_comm: str = "auto"
    """How they exchange it.  ring: keys and values go round, each rank has one stretch of tokens;
    zigzag: likewise, with an early and a late stretch each, so that causal attention is dealt
    evenly; all-gather: keys and values of all before attention (Llama 3, arXiv 2407.21783, 3.3.2);
    ulysses: tokens against heads, all-to-all (DeepSpeed-Ulysses, arXiv 2309.14509).
    auto = as the framework does (`context`)."""

    seq_len: int = 1024
    target_seq_len: int = 0
    """Tokens that an encoder-decoder writes; 0 = as many as it reads."""
    precision: str = "bf16"
    scaled: str = ""
    """One of SCALED where numbers have a scale for each block; `precision` is what it is priced
    as."""
    recompute: str = "none"
    recomputed: float = 1.0
    """Share of the blocks that are computed again; time alone knows of it."""
    schedule: str = "1f1b"
    kernels: str = "flash"
    framework: str = NATIVE
    """Whose program trains."""
    parallel: str = "auto"
    """torch's wrapper around data-parallel ranks; auto: as the sizes say (`scheme`)."""
    optimizer: str = "adamw-fused"
    offload: str = "none"
    """Where the optimizer and its states live."""
    offload_overlap: str = "auto"
    """What of that runs beside the device: nothing, copies, the update in turn with them, or the
    update one step late; auto: as the framework does."""
    lora_rank: int = 0
    """Rank of the trained adapters on matrices of the blocks; 0: all weights are trained."""
    lora_on: str = "auto"
    """Matrices of a block beside which adapters lie.  all: every one, each expert's too; shared:
    likewise, with one pair for all experts of a rank; linear: all but experts and their router;
    attention: attention's alone; qkv: those of queries, keys and values.  auto: as the framework
    does (`adapted`)."""
    quantize: str = "none"
    """How the frozen matrices of the blocks are stored beside adapters (QLoRA); they are widened
    for each product."""
    optimizer_in_backward: int = 0
    """1: a weight is updated as soon as its gradient is there, which is then freed."""
    grad_reduce: str = "auto"
    """What gradients are accumulated and reduced in; auto: as the framework does."""
    plain_attention: int = 0
    """1: attention keeps its scores although the other kernels are those of a fused one's time
    (Megatron-Core's --attention-backend unfused)."""
    fp8_params: int = 0
    """1: of blocks' weights that are multiplied in fp8 there are no others beside their masters
    (Transformer Engine's fp8 parameters, Megatron-Core's --fp8-param-gather and, of NVFP4,
    --fp4-param-gather)."""
    any_order: int = 0
    """1: products of eight bits take operands in any order of memory (`Rates.any_layout`), so that
    a weight whose scale is the tensor's needs no transposed copy."""
    states: str = "auto"
    """Mixed precision by fp32 masters of narrow weights, by autocast of fp32 weights, or none of
    it: everything in the narrow type.  auto = as the framework does (`numerics`)."""
    moments: str = "auto"
    """What an optimizer keeps its moments in: fp32 beside fp32 weights or masters, else the narrow
    type; bf16 beside masters is DeepSeek-V3's (arXiv 2412.19437, section 3.3.3) and Megatron-Core's
    --exp-avg-dtype."""
    drops: str = "auto"
    """Whether there is dropout, of whatever share; auto: where it was usual (`numerics`)."""
    software: str = "current"
    """torch1: libraries around torch 1, which zeroed gradients in place instead of freeing them,
    and took a language model's loss from narrow logits."""
    cuda_graphs: str = "auto"
    """What the host launches as CUDA graphs.  none: each kernel by itself; layers: pieces of layers
    (Megatron-Core's --cuda-graph-impl local and transformer_engine), not their checkpointing, nor
    embedding, loss and optimizer; runtime: no graphs, but all kernels of a step are launched
    without Python (XLA, llm.c); iteration: all passes of a step at once (full_iteration).  auto =
    as `launched_as` says."""
    loss: str = "auto"
    """How a language model's loss meets its logits.  whole: all at once, in torch's own operations;
    chunked: they exist narrow, and are widened some rows at a time (torchtune's); fused: some rows
    at a time, from hidden states to gradients (Liger's fused linear cross-entropy, ours).  auto: as
    framework and kernels have it; a compiler's is one kernel over all logits."""
    overlap: str = "auto"
    """Which collectives run beside computation.  none: not even what torch's wrappers send ahead;
    data: gradients beside backward, weights of ZeRO-1 beside forward; tensor: tensor parallel's
    too, in slices of the products before and behind them; experts, or all: tokens' way to experts
    as well, beside another micro-batch's computation, each of them once to a node (DualPipe and
    DeepEP of DeepSeek-V3, arXiv 2412.19437, section 3.2).
    auto = as the framework's recipes of its kernels' time have it (`overlaps`), and the schedule
    (`overlaps_experts`)."""
    node_once: int = 0
    """1: a token leaves for another node once, whatever experts it has there (DeepEP, HybridEP:
    Megatron-Core's flex dispatcher), 0: once for each expert."""
    experts: str = "grouped"
    """How a mixture's experts are run.  grouped: all in one product; sorted: likewise, of tokens
    that a kernel of its own deals, not torch's operations; modules: one after the other, each a net
    of its own (transformers' Mixtral, Qwen and DeepSeek before its version 5); slices: likewise,
    each cut from one tensor of weights (its GraniteMoe)."""
    routed_beside: int = 0
    """1: part of tokens' way to experts runs beside another micro-batch's computation, without
    processors set aside (Megatron-Core's --overlap-moe-expert-parallel-comm)."""
    router_spread: float = 0.0
    """Spread of an expert's tokens from batch to batch, of its share (one standard deviation); the
    rank whose experts have most of them is waited for.  0: they are dealt evenly."""
    whole_experts: int = 0
    """1: tensor parallelism cuts no expert, 0: where there are ranks enough (`expert_tp`)."""

    def __post_init__(self) -> None:
        for name, known in _WORDS.items():
            if getattr(self, name) not in known:
                raise unknown(name, str(getattr(self, name)), known)

    @property
    def number_format(self) -> str:
        """What products multiply: the precision, or the format with scales of blocks."""
        return self.scaled or self.precision

    @property
    def reduce_bytes(self) -> int:
        """Bytes of a gradient while it is accumulated and reduced; 0: as the framework does."""
        return {"auto": 0, "fp32": 4, "bf16": 2}[self.grad_reduce]

    @property
    def dp(self) -> Whole:
        """Data-parallel ranks."""
        return self.gpus // (self.tp * self.pp * self.cp)

    @property
    def expert_tp(self) -> Whole:
        """Ranks that share one expert's matrices: the tensor-parallel ones, where there are enough.

        Else Megatron deals whole experts to them, too: ep · tp · pp ranks or more are needed to
        split both ways.
        """
        if self.whole_experts:
            return 1
        found: Whole = choose(self.gpus % (self.tp * self.pp * self.ep) == 0, self.tp, 1)
        return found

    def most_routed(self, num_experts: int) -> Real:
        """Tokens of the rank whose experts have most, of an equal share.

        Experts of a rank add up, and the largest of n such sums lies sqrt(2·ln n) deviations above
        their mean.
        """
        if not self.router_spread or not num_experts:
            return 1.0
        deviations = (2.0 * math.log(2.0) * log2(self.ep)) ** 0.5
        most = 1.0 + self.router_spread * (self.ep / num_experts) ** 0.5 * deviations
        return smaller(most, self.ep)  # which has all there is

    @property
    def mesh(self) -> Mesh:
        """The arrangement of one layout's ranks."""
        sizes = {name: int(getattr(self, name)) for name in ("tp", "pp", "cp", "ep", "dp")}
        return Mesh(**sizes)

    @property
    def scheme(self) -> str:
        """none, ddp, fsdp or dataparallel; own: Megatron's and DeepSpeed's way.

        Many layouts of one object share it.
        """
        if self.traits.own_scheme:
            return "own"
        if self.parallel != "auto":
            return self.parallel
        if _any(self.zero, 2):
            return "fsdp"
        return "ddp" if _any(self.gpus, 2) else "none"

    @property
    def adapted(self) -> str:
        """`lora_on`, or the framework's way: peft finds experts that are modules of their own."""
        if self.lora_on != "auto":
            return self.lora_on
        usual = self.traits.adapts
        return "all" if usual == "linear" and self.experts == "modules" else usual

    @property
    def autocasts(self) -> bool:
        """Whether torch's autocast narrows whole fp32 weights, as around a model of others."""
        return self.traits.autocasts and self.scheme != "fsdp"

    @property
    def traits(self) -> Traits:
        """What its framework does by itself."""
        return FRAMEWORKS[self.framework]

    @property
    def usual_framework(self) -> str:
        """The framework that usually runs such a layout, where none is asked for."""
        if self.schedule not in ONE_BACKWARD:
            return OF_SCHEDULES.get(self.schedule, NATIVE)
        return usual_framework(
            split=_any(self.tp * self.pp * self.cp, 2),
            sharded=_any(self.zero, 2) or self.parallel == "fsdp",
            several=_any(self.gpus, 2) or self.parallel in ("ddp", "dataparallel"),
        )

    @property
    def folds(self) -> bool:
        """Whether a pipeline's first rank has the model's last stage, too."""
        return self.schedule in ("zbv", "dualpipe")

    @property
    def stage_copies(self) -> int:
        """Stages' worth of weights and gradients on a rank: DualPipe's has one for either way."""
        return 2 if self.schedule == "dualpipe" else 1

    @property
    def overlaps(self) -> str:
        """One of none, data and tensor; whether experts' are, too, `overlaps_experts` says.

        torch's wrappers overlap what is data parallel.  Megatron's options for it (overlapped
        gradient reduce and parameter gather, tensor parallel's user buffers) came with Transformer
        Engine, and NVIDIA's recipes for its kernels switch them on.
        """
        if self.overlap != "auto":
            return "tensor" if self.overlap in ("experts", "all") else self.overlap
        if not self.traits.own_scheme:
            return "data"
        return "tensor" if self.traits.own_kernels and self.kernels == "flash+fused" else "none"

    def launched_as(self, graphed: bool) -> str:
        """One of CUDA_GRAPHS, without auto: of itself as NVIDIA's recipes of today launch.

        On chips that those have graphs for (``graphed``, `Rates.graphed`) they are of layers with
        today's kernels of Transformer Engine; elsewhere each kernel is launched by itself.
        """
        if self.cuda_graphs != "auto":
            return self.cuda_graphs
        is_today = self.kernels == "flash+fused" and self.software == "current"
        return "layers" if graphed and self.traits.own_kernels and is_today else "none"

    @property
    def overlaps_experts(self) -> bool:
        """Whether kernels with processors of their own take tokens to experts beside computation.

        It is what DualPipe has two micro-batches on a rank for (arXiv 2412.19437, section 3.2.1).
        """
        implied = self.overlap == "auto" and self.schedule == "dualpipe"
        return implied or self.overlap in ("experts", "all")

    @property
    def is_flash(self) -> bool:
        """Whether attention is one kernel and keeps no scores."""
        fused = "flash" in self.kernels or self.kernels == "compiled"
        return fused and not self.plain_attention

    @property
    def written(self) -> int:
        """Tokens of a sequence that logits are computed for."""
        return self.target_seq_len or self.seq_len

    @property
    def context(self) -> str:
        """How ranks that share a sequence exchange it: `cp_comm`, or the framework's way."""
        return self.traits.context if self.cp_comm == "auto" else self.cp_comm

    @property
    def causal_load(self) -> float:
        """Causal scores of the rank that has most, over an equal share of them.

        Of a sequence in n stretches the last rank's queries look at n - 1/2 of n, on average of all
        ranks at half: 2 - 1/n.
        """
        return 2.0 - 1.0 / self.cp if self.context == "ring" else 1.0

    @property
    def part_of_sequence(self) -> int:
        """Tokens of a sequence on one of the ranks that share it."""
        return self.seq_len // self.cp

    @property
    def global_batch(self) -> Whole:
        """Samples of a step."""
        return self.batch_size * self.grad_accum * self.dp

    @property
    def shards(self) -> Whole:
        """Ranks that share one copy of what is sharded."""
        all_ranks = self.dp * self.cp  # ranks that share a sequence have the same weights
        found: Whole = choose(self.shard_size > 0, self.shard_size, all_ranks)
        return found

    @property
    def is_one(self) -> bool:
        """Whether its sizes are plain numbers: one layout, and no array of them."""
        return _WHOLE.issuperset(map(type, _sizes_of(self)))  # asked many times for each layout

    def __len__(self) -> int:
        """How many layouts this is."""
        if self.is_one:
            return 1
        import numpy as np

        sizes = [getattr(self, name) for name in SIZES]
        return math.prod(np.broadcast_shapes(*(np.shape(size) for size in sizes)))

    def replace(self, **changes: Any) -> Layout:
        """A copy with other numbers or words."""
        return dataclasses.replace(self, **changes)

    def part(self, where: slice | NDArray[Any]) -> Layout:
        """Some of many, by a mask or by their places; numbers that are one for all stay so."""
        import numpy as np

        values = {name: np.asarray(getattr(self, name)) for name in SIZES}
        return self.replace(**{n: v[where] if v.ndim else v for n, v in values.items()})

    def at(self, index: int) -> Layout:
        """One of many, in plain whole numbers."""
        part = self.part(slice(index, index + 1))
        return self.replace(**{name: getattr(part, name).item() for name in SIZES})


SIZES = (
    "gpus",
    "gpus_per_node",
    "tp",
    "pp",
    "interleave",
    "batch_size",
    "grad_accum",
    "zero",
    "shard_size",
    "sequence_parallel",
    "ep",
)
"""The fields that may be arrays; cp is one number for all."""
_sizes_of, _WHOLE = attrgetter(*SIZES), frozenset((int, bool))

_WORDS = {
    "precision": PRECISIONS,
    "scaled": ("", *SCALED),
    "recompute": RECOMPUTE,
    "schedule": SCHEDULES,
    "kernels": KERNELS,
    "framework": FRAMEWORKS,
    "parallel": PARALLEL,
    "optimizer": OPTIMIZERS,
    "quantize": QUANTIZE,
    "offload": OFFLOAD,
    "offload_overlap": OFFLOAD_OVERLAP,
    "states": STATES,
    "moments": MOMENTS_IN,
    "grad_reduce": GRAD_REDUCE,
    "drops": DROPS,
    "software": SOFTWARE,
    "cuda_graphs": CUDA_GRAPHS,
    "loss": LOSS,
    "overlap": OVERLAP,
    "lora_on": LORA_ON,
    "experts": EXPERTS,
    "cp_comm": CP_COMM,
}


def _any(sizes: Whole, least: int) -> bool:
    return sizes >= least if isinstance(sizes, int) else bool((sizes >= least).any())


def check_layout(shape: ModelShape, layout: Layout) -> None:
    """Raise UsageError with the first rule that one layout breaks."""
    check_sizes(layout)
    _check(RULES, Pairing(shape, layout))


def check_sizes(layout: Layout) -> None:
    """Raise UsageError with the first number of one layout that is out of its range."""
    _check(RANGES, Pairing(None, layout))


def _check(rules: Iterable[Rule], pairing: Pairing) -> None:
    for rule in rules:
        if bool(rule.broken(pairing)):
            hint = rule.hint if isinstance(rule.hint, str) else rule.hint(pairing)
            raise UsageError(rule.message(pairing), hint)


def is_legal(shape: ModelShape, layout: Layout) -> bool:
    """Whether one layout can be run."""
    try:
        check_layout(shape, layout)
    except UsageError:
        return False
    return True


def legal_mask(shape: ModelShape, layout: Layout) -> NDArray[np.bool_]:
    """For each of many layouts whether it can be run; their numbers are from 1 (zero: from 0)."""
    import numpy as np

    legal = np.ones(len(layout), dtype=bool)
    for rule in RULES:
        legal &= ~np.asarray(rule.broken(Pairing(shape, layout)), dtype=bool)
    return legal


def layout_warnings(layout: Layout) -> tuple[str, ...]:
    """What can be run and is seldom meant."""
    if layout.tp <= layout.gpus_per_node:
        return ()
    return (
        f"tensor parallelism over {layout.tp} GPUs leaves the node of {layout.gpus_per_node}: "
        "each layer waits for the network four times",
    )
