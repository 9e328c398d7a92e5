"""The small types that a `Layout` is made of, each about one idea of parallel training.

    mesh       devices and the ranks that share a model: tensor, pipeline, context, expert parallel
    sharding   what data-parallel ranks shard, and torch's wrapper around them
    pipeline   the order in which stages run
    batch      samples and tokens of a step
    precision  number formats of products, weights, gradients and optimizer states
    memory     what is computed again, moved to the host or updated early to save memory
    kernels    implementations of operations, and how the host launches them
    overlap    what runs beside computation
    moe        how a mixture's experts are run
    lora       adapters, and the format of frozen weights beneath them

Files, options and JSON have flat keys: a field's key is its name, or the ``key`` of its metadata.
Sizes may be whole numbers, for one layout, or arrays of equal shape, with one for each of many.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from trainrig.errors import unknown
from trainrig.flat_keys import keys_of
from trainrig.workload.arrays import choose

if TYPE_CHECKING:  # numpy is loaded by those who need it: `--help` does not
    import numpy as np
    from numpy.typing import NDArray

Whole: TypeAlias = "int | NDArray[np.int64]"
"""One layout's number, or an array with one for each layout."""

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8")
SCALED = {"mxfp8": "fp8", "nvfp4": "fp8", "mxfp4": "fp8"}
"""Number formats with a scale for each block of numbers, and the precision that they are priced as:
what is not a product is the same; of products `Rates` know."""
RECOMPUTE = ("none", "selective", "full")
SCHEDULES = ("1f1b", "gpipe", "zb", "zbv", "dualpipe")
"""Schedules of pipelines: 1F1B (interleaved where stages are), GPipe, Qi et al.'s zero-bubble ones,
and DeepSeek-V3's from both ends at once (arXiv 2412.19437, section 3.2.1)."""
KERNELS = ("eager", "fused", "flash", "flash+fused", "compiled")
PARALLEL = ("auto", "ddp", "fsdp", "dataparallel")
OPTIMIZERS = (
    *("adamw", "adamw-fused", "adamw-8bit", "sgd", "adafactor", "muon", "galore"),
    *("adamw-paged", "adamw-8bit-paged"),
)
QUANTIZE = ("none", "int8", "nf4", "nf4-double", "fp4")
ADAPTER_CODE = ("peft", "fused", "mlx")
OFFLOAD = ("none", "host", "disk")
CP_COMM = ("auto", "ring", "zigzag", "all-gather", "ulysses")
OFFLOAD_OVERLAP = ("auto", "none", "copies", "update", "delayed")
LORA_ON = ("auto", "all", "shared", "linear", "attention", "qkv")
STATES = ("auto", "masters", "autocast", "pure")
MOMENTS_IN = ("auto", "fp32", "bf16")
GRAD_REDUCE = ("auto", "fp32", "bf16")
DROPOUT = ("auto", "no", "yes")
SOFTWARE = ("current", "torch1")
LOSS = ("auto", "whole", "narrow", "chunked", "fused")
OVERLAP = ("auto", "none", "data", "tensor", "experts", "all")
CUDA_GRAPHS = ("auto", "none", "layers", "runtime", "iteration")
EXPERTS = ("grouped", "sorted", "modules", "slices")


def check_words(group: Any, known: Mapping[str, Collection[str]]) -> None:
    """Raise UsageError for a word that its field does not know."""
    for name, words in known.items():
        if getattr(group, name) not in words:
            raise unknown(keys_of(type(group))[name], str(getattr(group, name)), words)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMesh:
    """Arrangement of one layout's ranks: a block of tp · cp · dp · pp."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    """Groups of ranks that each train on samples of their own."""
    cp: int = 1
    ep: int = 1
    """Data-parallel ranks that share one set of experts."""

    @property
    def ranks(self) -> int:
        """Ranks in all, each with a device of its own."""
        return self.tp * self.pp * self.cp * self.dp


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Devices, and how many of them share what."""

    WORDS: ClassVar[Mapping[str, Collection[str]]] = {"cp_comm": CP_COMM}

    gpus: Whole = 1
    gpus_per_node: Whole = 8
    tp: Whole = 1
    """Devices that share each matrix (tensor parallel)."""
    sequence_parallel: Whole = 0
    """1: what tensor parallel does not split is split along the sequence (Korthikanti 2022)."""
    pp: Whole = 1
    """Stages of layers (pipeline parallel)."""
    cp: int = 1
    """Devices that share each sequence (context parallel)."""
    cp_comm: str = "auto"
    """Exchange of ranks that share a sequence.  ring: keys and values go round, each rank has one
    stretch of tokens; zigzag: likewise, with an early and a late stretch each, so that causal
    attention is dealt evenly; all-gather: keys and values of all before attention (Llama 3, arXiv
    2407.21783, 3.3.2); ulysses: tokens against heads, all-to-all (DeepSpeed-Ulysses, arXiv
    2309.14509). auto = as the framework does (`Layout.context`)."""
    ep: Whole = 1
    """Data-parallel ranks that share the experts of a mixture (expert parallel)."""
    whole_experts: int = 0
    """1: tensor parallelism cuts no expert, 0: where there are ranks enough (`expert_tp`)."""

    def __post_init__(self) -> None:
        check_words(self, self.WORDS)

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
        ranks: Whole = choose(self.gpus % (self.tp * self.pp * self.ep) == 0, self.tp, 1)
        return ranks

    @property
    def of_one(self) -> RankMesh:
        """Return the arrangement of one layout's ranks, in plain whole numbers."""
        sizes = {name: int(getattr(self, name)) for name in ("tp", "pp", "cp", "ep", "dp")}
        return RankMesh(**sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """Sharding over data-parallel ranks, and torch's wrapper around them."""

    WORDS: ClassVar[Mapping[str, Collection[str]]] = {"parallel": PARALLEL}

    zero: Whole = 0
    """Stage of ZeRO: sharded over data parallel are 1 optimizer, 2 gradients too, 3 weights too
    (FSDP)."""
    shard_size: Whole = 0
    """Ranks that share one copy when zero > 0 (hybrid sharding); 0 = all of data parallel."""
    parallel: str = "auto"
    """torch's wrapper around data-parallel ranks; auto: as the sizes say (`Layout.scheme`)."""

    def __post_init__(self) -> None:
        check_words(self, self.WORDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOrder:
    """The order in which stages of layers run."""

    WORDS: ClassVar[Mapping[str, Collection[str]]] = {"schedule": SCHEDULES}

    schedule: str = "1f1b"
    interleave: Whole = 1
    """Groups of layers that each stage holds (virtual stages, Megatron's vpp)."""

    def __post_init__(self) -> None:
        check_words(self, self.WORDS)

    @property
    def v_schedule(self) -> bool:
        """Return whether the first rank has the model's last stage, too."""
        return self.schedule in ("zbv", "dualpipe")

    @property
    def stage_copies(self) -> int:
        """Stages' worth of weights and gradients on a rank: DualPipe's has one for either way."""
        return 2 if self.schedule == "dualpipe" else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """Samples and tokens of a step."""

    micro: Whole = field(default=1, metadata={"key": "batch_size"})
    """Micro-batch size: samples that one data-parallel rank processes at once."""
    grad_accum: Whole = 1
    """Micro-batches of a step; those that fill the pipeline, too."""
    seq_len: int = 1024
    target_seq_len: int = 0
    """Tokens that an encoder-decoder writes; 0 = as many as it reads."""

    @property
    def written(self) -> int:
        """Return tokens of a sequence that logits are computed for."""
        return self.target_seq_len or self.seq_len


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Number formats of products, weights, gradients and optimizer states."""

    WORDS: ClassVar[Mapping[str, Collection[str]]] = {
        "compute": PRECISIONS,
        "scaled": ("", *SCALED),
        "states": STATES,
        "moments": MOMENTS_IN,
        "grad_reduce": GRAD_REDUCE,
    }

    compute: str = field(default="bf16", metadata={"key": "precision"})
    """Number format that products multiply, but for formats with scales of blocks."""
    scaled: str = ""
    """One of SCALED where numbers have a scale for each block; `compute` is what it is priced
    as."""
    states: str = "auto"
    """Mixed precision by fp32 masters of narrow weights, by autocast of fp32 weights, or none of
    it: everything in the narrow type.  auto = as the framework does (`numerics`)."""
    moments: str = "auto"
    """Number format of an optimizer's moments: fp32 beside fp32 weights or masters, else the narrow
    type; bf16 beside masters is DeepSeek-V3's (arXiv 2412.19437, section 3.3.3) and Megatron-Core's
    --exp-avg-dtype."""
    grad_reduce: str = "auto"
    """Number format that gradients are accumulated and reduced in; auto: as the framework does."""
    fp8_params: int = 0
    """1: of blocks' weights that are multiplied in fp8 there are no others beside their masters
    (Transformer Engine's fp8 parameters, Megatron-Core's --fp8-param-gather and, of NVFP4,
    --fp4-param-gather)."""
    supports_non_tn_fp8: int = 0
    """1: products of eight bits take operands in any order of memory
    (`Rates.supports_non_tn_fp8`), so that a weight whose scale is the tensor's needs no transposed
    copy."""

    def __post_init__(self) -> None:
        check_words(self, self.WORDS)

    @property
    def number_format(self) -> str:
        """Return the number format of products.

        The precision, or the format with scales of blocks.
        """
        return self.scaled or self.compute

    @property
    def reduce_bytes(self) -> int:
        """Return bytes of a gradient while it is accumulated and reduced.

        0: as the framework does.
        """
        return {"auto": 0, "fp32": 4, "bf16": 2}[self.grad_reduce]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySaving:
    """Options that save memory: recomputation, offload, early updates."""

    WORDS: ClassVar[Mapping[str, Collection[str]]] = {
        "recompute": RECOMPUTE,
        "optimizer": OPTIMIZERS,
        "offload": OFFLOAD,
    }

    recompute: str = "none"
    recomputed_share: float = 1.0
    """Share of the blocks that are computed again; time alone knows of it."""
    optimizer: str = "adamw-fused"
    optimizer_in_backward: int = 0
    """1: a weight is updated as soon as its gradient is there, which is then freed."""
    offload: str = "none"
    """Place of the optimizer and its states."""
    offload_checkpoints: int = 0
    """1: inputs of blocks that are computed again wait in the host's memory (Unsloth's gradient
    checkpointing; activation offloading of torchtune and TRL)."""

    def __post_init__(self) -> None:
        check_words(self, self.WORDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelChoices:
    """Implementations of operations, and how the host launches them."""

    WORDS: ClassVar[Mapping[str, Collection[str]]] = {
        "stack": KERNELS,
        "dropout": DROPOUT,
        "software": SOFTWARE,
        "cuda_graphs": CUDA_GRAPHS,
        "loss": LOSS,
    }

    stack: str = field(default="flash", metadata={"key": "kernels"})
    plain_attention: int = 0
    """1: attention keeps its scores although the other kernels are those of a fused one's time
    (Megatron-Core's --attention-backend unfused)."""
    efficient_attention: int = 0
    """1: attention keeps no scores, and is timed as if it wrote them (torch's memory-efficient
    kernels, which chips before flash attention have)."""
    dropout: str = field(default="auto", metadata={"key": "has_dropout"})
    """True if there is dropout, of whatever share; auto: where it was usual (`numerics`)."""
    software: str = "current"
    """torch1: libraries around torch 1, which zeroed gradients in place instead of freeing them,
    and took a language model's loss from narrow logits."""
    cuda_graphs: str = "auto"
    """Launches of the host as CUDA graphs.  none: each kernel by itself; layers: pieces of layers
    (Megatron-Core's --cuda-graph-impl local and transformer_engine), not their checkpointing, nor
    embedding, loss and optimizer; runtime: no graphs, but all kernels of a step are launched
    without Python (XLA, llm.c); iteration: all passes of a step at once (full_iteration).  auto =
    as `Layout.launched_as` says."""
    loss: str = "auto"
    """Form of the logits at a language model's loss.  whole: all at once, in torch's own
    operations; chunked: they exist narrow, and are widened some rows at a time (torchtune's);
    fused: some rows at a time, from hidden states to gradients (Liger's fused linear cross-entropy,
    ours).  auto: as framework and kernels have it; a compiler's is one kernel over all logits."""

    def __post_init__(self) -> None:
        check_words(self, self.WORDS)

    @property
    def is_flash(self) -> bool:
        """Return whether attention is one kernel and keeps no scores."""
        fused = "flash" in self.stack or self.stack == "compiled"
        return fused and not self.plain_attention


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Collectives and copies that run beside computation."""

    WORDS: ClassVar[Mapping[str, Collection[str]]] = {
        "collectives": OVERLAP,
        "offload": OFFLOAD_OVERLAP,
    }

    collectives: str = field(default="auto", metadata={"key": "overlap"})
    """Collectives that run beside computation.  none: not even what torch's wrappers send ahead;
    data: gradients beside backward, weights of ZeRO-1 beside forward; tensor: tensor parallel's
    too, in slices of the products before and behind them; experts, or all: tokens' way to experts
    as well, beside another micro-batch's computation, each of them once to a node (DualPipe and
    DeepEP of DeepSeek-V3, arXiv 2412.19437, section 3.2).
    auto = as the framework's recipes of its kernels' time have it (`Layout.overlaps`), and the
    schedule (`Layout.overlaps_experts`)."""
    dispatch: int = field(default=0, metadata={"key": "overlap_dispatch"})
    """1: part of tokens' way to experts runs beside another micro-batch's computation, without
    processors set aside (Megatron-Core's --overlap-moe-expert-parallel-comm)."""
    offload: str = field(default="auto", metadata={"key": "offload_overlap"})
    """Parts of an offloaded optimizer that run beside the device: nothing, copies, the update in
    turn with them, or the update one step late; auto: as the framework does."""

    def __post_init__(self) -> None:
        check_words(self, self.WORDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moe:
    """Options of mixtures: kernels of experts, and the deal of tokens."""

    WORDS: ClassVar[Mapping[str, Collection[str]]] = {"experts": EXPERTS}

    experts: str = "grouped"
    """Kernels of a mixture's experts.  grouped: all in one product; sorted: likewise, of tokens
    that a kernel of its own deals, not torch's operations; modules: one after the other, each a net
    of its own (transformers' Mixtral, Qwen and DeepSeek before its version 5); slices: likewise,
    each cut from one tensor of weights (its GraniteMoe)."""
    router_spread: float = 0.0
    """Standard deviation of an expert's tokens from batch to batch, as a fraction of its share; the
    rank whose experts have most of them is waited for.  0: they are dealt evenly."""
    dedup_internode_dispatch: int = 0
    """1: a token leaves for another node once, whatever experts it has there (DeepEP, HybridEP:
    Megatron-Core's flex dispatcher), 0: once for each expert."""

    def __post_init__(self) -> None:
        check_words(self, self.WORDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """Adapters beside frozen weights, and the format of those."""

    WORDS: ClassVar[Mapping[str, Collection[str]]] = {
        "targets": LORA_ON,
        "quantize": QUANTIZE,
        "code": ADAPTER_CODE,
    }

    rank: int = field(default=0, metadata={"key": "lora_rank"})
    """Rank of the trained adapters on matrices of the blocks; 0: all weights are trained."""
    targets: str = field(default="auto", metadata={"key": "lora_on"})
    """Matrices of a block beside which adapters lie.  all: every one, each expert's too; shared:
    likewise, with one pair for all experts of a rank; linear: all but experts and their router;
    attention: attention's alone; qkv: those of queries, keys and values.  auto: as the framework
    does (`Layout.adapted`)."""
    quantize: str = "none"
    """Format of the blocks' frozen matrices beside adapters (QLoRA); they are widened
    for each product."""
    code: str = field(default="peft", metadata={"key": "adapter_code"})
    """Implementation of adapters.  peft: each reads a copy of its input of its own under autocast,
    and beside quantised blocks embedding, norms and head are fp32 (its
    `prepare_model_for_kbit_training`); fused: adapters are part of the blocks' kernels, which keep
    the narrow type, and frozen weights stay as they are published (Unsloth); mlx: embedding and
    head are quantised as the blocks are (mlx's `nn.quantize`)."""

    def __post_init__(self) -> None:
        check_words(self, self.WORDS)
