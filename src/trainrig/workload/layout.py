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
say, so it is had by its name alone.

Devices are a mesh of pipeline × data × context × tensor parallel; neighbours in a tensor-parallel
group are nearest (ranks of one node), then context, data, pipeline (the order of Megatron-LM).

Which layouts can be run: each rule stands once, as a sentence for one layout and a mask for many.
A rule says which layouts break it and, for a single one, what to do instead; `check_layout` raises
the first that is broken, `legal_mask` is all of them over a search's arrays.  What is impossible is
refused, not what is slow or does not fit in memory.  The rules are those of the frameworks that run
such layouts (Megatron-LM, DeepSpeed, FSDP): heads are divided over tensor parallel, layers over
pipeline stages, micro-batches over interleaved stages, and gradients or weights are not sharded
where a pipeline accumulates them (ZeRO 2 and 3).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from trainrig.errors import UsageError, unknown
from trainrig.workload.frameworks import FRAMEWORKS, NATIVE, Traits, usual_framework

if TYPE_CHECKING:  # numpy is loaded by those who need it: `--help` does not
    import numpy as np
    from numpy.typing import NDArray

    from trainrig.workload.model import ModelShape

Whole: TypeAlias = "int | NDArray[np.int64]"
"""One layout's number, or an array with one for each layout."""

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8")
RECOMPUTE = ("none", "selective", "full")
SCHEDULES = ("1f1b", "gpipe", "zb", "zbv")
"""Of pipelines: 1F1B (interleaved where stages are), GPipe, and Qi et al.'s zero-bubble ones."""
PREDICTED_SCHEDULES = ("1f1b", "gpipe")
KERNELS = ("eager", "fused", "flash", "flash+fused", "compiled")
PARALLEL = ("auto", "ddp", "fsdp", "dataparallel")
OPTIMIZERS = ("adamw", "adamw-fused", "adamw-8bit", "sgd", "adafactor")
OFFLOAD = ("none", "host", "disk")
STATES = ("auto", "masters", "autocast", "pure")
DROPOUT = ("auto", "no", "yes")
SOFTWARE = ("current", "torch1")
OVERLAP = ("auto", "none", "data", "all")


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
    cp: int = 1
    """Devices that share each sequence (context parallel, Ulysses: attention by heads)."""
    ep: int = 1
    """Data-parallel ranks that share the experts of a mixture (expert parallel)."""

    seq_len: int = 1024
    target_seq_len: int = 0
    """Tokens that an encoder-decoder writes; 0 = as many as it reads."""
    precision: str = "bf16"
    recompute: str = "none"
    schedule: str = "1f1b"
    kernels: str = "flash"
    framework: str = NATIVE
    """Whose program trains."""
    parallel: str = "auto"
    """torch's wrapper around data-parallel ranks; auto: as the sizes say (`scheme`)."""
    optimizer: str = "adamw-fused"
    offload: str = "none"
    """Where the optimizer and its states live."""
    lora_rank: int = 0
    """Rank of the trained adapters on all matrices of the blocks; 0: all weights are trained."""
    reduce_bytes: int = 0
    """Bytes of a gradient while it is accumulated and reduced; 0 = as the framework does."""
    states: str = "auto"
    """Mixed precision by fp32 masters of narrow weights, by autocast of fp32 weights, or none of
    it: everything in the narrow type.  auto = as the framework does (`numerics`)."""
    dropout: str = "auto"
    """auto: where it was usual (`numerics`)."""
    software: str = "current"
    """torch1: libraries around torch 1, which zeroed gradients in place instead of freeing them,
    and took a language model's loss from narrow logits."""
    overlap: str = "auto"
    """Which collectives run beside computation.  data: gradients beside backward, weights of ZeRO-1
    beside forward; all: tensor parallel's too, in slices of the products before and behind them.
    auto = as the framework's recipes of its kernels' time have it (`overlaps`)."""

    def __post_init__(self) -> None:
        for name, known in _WORDS.items():
            if getattr(self, name) not in known:
                raise unknown(name, str(getattr(self, name)), known)

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
        fits = self.gpus % (self.tp * self.pp * self.ep) == 0
        if isinstance(fits, bool):
            return self.tp if fits else 1
        import numpy as np

        return np.where(fits, self.tp, 1)

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
        return usual_framework(
            split=_any(self.tp * self.pp * self.cp, 2),
            sharded=_any(self.zero, 2) or self.parallel == "fsdp",
            several=_any(self.gpus, 2) or self.parallel == "ddp",
        )

    @property
    def overlaps(self) -> str:
        """One of none, data and all.

        torch's wrappers overlap what is data parallel.  Megatron's options for it (overlapped
        gradient reduce and parameter gather, tensor parallel's user buffers) came with Transformer
        Engine, and NVIDIA's recipes for its kernels switch them on.
        """
        if self.overlap != "auto":
            return self.overlap
        if not self.traits.own_scheme:
            return "data"
        return "all" if self.traits.own_kernels and self.kernels == "flash+fused" else "none"

    @property
    def is_flash(self) -> bool:
        """Whether attention is one kernel and keeps no scores."""
        return "flash" in self.kernels or self.kernels == "compiled"

    @property
    def written(self) -> int:
        """Tokens of a sequence that logits are computed for."""
        return self.target_seq_len or self.seq_len

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
        import numpy as np

        all_ranks = self.dp * self.cp  # ranks that share a sequence have the same weights
        found = np.where(np.asarray(self.shard_size) > 0, self.shard_size, all_ranks)
        return int(found) if found.ndim == 0 else found

    def __len__(self) -> int:
        """How many layouts this is."""
        sizes = [getattr(self, name) for name in SIZES]
        if all(type(size) is int for size in sizes):
            return 1
        import numpy as np

        return math.prod(np.broadcast_shapes(*(np.shape(size) for size in sizes)))

    def replace(self, **changes: Any) -> Layout:
        """A copy with other numbers or words."""
        return dataclasses.replace(self, **changes)

    def part(self, where: slice | NDArray[np.bool_]) -> Layout:
        """Some of many; numbers that are one for all stay so."""
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
)
"""The fields that may be arrays; cp and ep are one number for all."""

_WORDS = {
    "precision": PRECISIONS,
    "recompute": RECOMPUTE,
    "schedule": SCHEDULES,
    "kernels": KERNELS,
    "framework": FRAMEWORKS,
    "parallel": PARALLEL,
    "optimizer": OPTIMIZERS,
    "offload": OFFLOAD,
    "states": STATES,
    "dropout": DROPOUT,
    "software": SOFTWARE,
    "overlap": OVERLAP,
}


def _any(sizes: Whole, least: int) -> bool:
    return sizes >= least if isinstance(sizes, int) else bool((sizes >= least).any())


MOST_GPUS = 1 << 20
MOST_COUNT = 1 << 31
MOST_TOKENS = 1 << 24
"""Longer sequences than any that was trained on: a slip of the keyboard."""


class Pairing(NamedTuple):
    """A model and how it is to be run."""

    m: Any
    """A ModelShape."""
    x: Any
    """A Layout; its numbers are whole or arrays, and rules do not care which."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One reason why a layout cannot be run."""

    broken: Callable[[Pairing], Any]
    """True, or an array of it, where it cannot."""
    message: Callable[[Pairing], str]
    hint: Callable[[Pairing], str] | str


def check_layout(shape: ModelShape, layout: Layout) -> None:
    """Raise UsageError with the first rule that one layout breaks."""
    check_sizes(layout)
    _check(RULES, Pairing(shape, layout))


def check_sizes(layout: Layout) -> None:
    """Raise UsageError with the first number of one layout that is out of its range."""
    _check(_RANGES, Pairing(None, layout))


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


def refuse_unpredicted(layout: Layout) -> None:
    """Raise UsageError for what trains, maybe, and whose time and memory are not predicted."""
    if layout.schedule not in PREDICTED_SCHEDULES:
        words = f"schedule {layout.schedule} is not predicted yet"
        raise UsageError(words, "one of: " + ", ".join(PREDICTED_SCHEDULES))


def layout_warnings(layout: Layout) -> tuple[str, ...]:
    """What can be run and is seldom meant."""
    if layout.tp <= layout.gpus_per_node:
        return ()
    return (
        f"tensor parallelism over {layout.tp} GPUs leaves the node of {layout.gpus_per_node}: "
        "each layer waits for the network four times",
    )


def nearest_multiple(number: int, of: int) -> int:
    """The multiple of ``of`` next to ``number``, at least ``of`` itself."""
    return max(of, (number + of // 2) // of * of)


def _range(name: str, least: int, most: int) -> Rule:
    def broken(pairing: Pairing) -> bool:
        value = getattr(pairing.x, name)
        return isinstance(value, bool) or not least <= value <= most

    return Rule(
        broken,
        lambda pairing: f"{name.replace('_', '-')} = {getattr(pairing.x, name)}",
        f"a whole number from {least} to {most}",
    )


_RANGES = (
    _range("gpus", 1, MOST_GPUS),
    _range("gpus_per_node", 1, 1 << 12),
    *(_range(name, 1, MOST_GPUS) for name in ("tp", "pp", "interleave", "cp", "ep")),
    *(_range(name, 1, MOST_COUNT) for name in ("batch_size", "grad_accum")),
    _range("zero", 0, 3),
    _range("shard_size", 0, MOST_GPUS),
    _range("sequence_parallel", 0, 1),
    _range("seq_len", 1, MOST_TOKENS),
    _range("target_seq_len", 0, MOST_TOKENS),
    _range("lora_rank", 0, 1 << 16),
)


def _blocks(shape: ModelShape) -> int:
    return shape.num_layers + shape.num_decoder_layers


def _divisors(number: int) -> str:
    small = [d for d in range(1, min(number, 128) + 1) if number % d == 0]
    return "one of: " + ", ".join(str(divisor) for divisor in small)


RULES = (
    Rule(
        lambda c: c.x.gpus % (c.x.tp * c.x.pp * c.x.cp) != 0,
        lambda c: (
            f"{c.x.gpus} GPUs cannot be divided into {c.x.tp} tensor-parallel × {c.x.pp} pipeline"
            + (f" × {c.x.cp} context-parallel" if c.x.cp > 1 else "")
        ),
        lambda c: f"a multiple of {c.x.tp * c.x.pp * c.x.cp} GPUs, or fewer parts",
    ),
    Rule(
        lambda c: (c.x.gpus > c.x.gpus_per_node) & (c.x.gpus % c.x.gpus_per_node != 0),
        lambda c: f"{c.x.gpus} GPUs do not fill nodes of {c.x.gpus_per_node}",
        lambda c: f"as {nearest_multiple(c.x.gpus, c.x.gpus_per_node)} GPUs, or other nodes",
    ),
    Rule(
        lambda c: c.m.num_heads % c.x.tp != 0,
        lambda c: f"{c.m.num_heads} heads cannot be split over {c.x.tp}",
        lambda c: "tensor parallel " + _divisors(c.m.num_kv_heads),
    ),
    Rule(
        lambda c: c.m.num_kv_heads % c.x.tp != 0,
        lambda c: f"{c.m.num_kv_heads} heads of keys and values cannot be split over {c.x.tp}",
        lambda c: "tensor parallel " + _divisors(c.m.num_kv_heads),
    ),
    Rule(
        lambda c: (c.m.ffn % c.x.tp != 0) | (c.m.hidden % c.x.tp != 0),
        lambda c: f"widths of {c.m.hidden} and {c.m.ffn} cannot be split over {c.x.tp}",
        lambda c: "tensor parallel " + _divisors(c.m.num_kv_heads),
    ),
    Rule(
        # Megatron passes keys and values round; what exchanges heads for tokens needs some of each.
        lambda c: c.x.traits.own_models & (c.m.num_kv_heads % (c.x.tp * c.x.cp) != 0),
        lambda c: (
            f"{c.m.num_kv_heads} heads of keys and values cannot be split over "
            f"{c.x.tp * c.x.cp} devices that share a sequence"
        ),
        lambda c: "tensor × context parallel " + _divisors(c.m.num_kv_heads),
    ),
    Rule(
        lambda c: (c.x.cp > 1) & (c.x.seq_len % c.x.cp != 0),
        lambda c: f"sequences of {c.x.seq_len} cannot be shared by {c.x.cp}",
        "another --seq-len, or --cp 1",
    ),
    Rule(
        lambda c: (c.x.cp > 1) & (c.m.family not in ("gpt2", "llama")),
        lambda c: f"context parallelism of {c.m.name} ({c.m.family}) comes later",
        "gpt2 and llama have it; --cp 1",
    ),
    Rule(
        lambda c: (c.x.ep > 1) & (getattr(c.m, "num_experts", 0) == 0),
        lambda c: f"{c.m.name} is dense: it has no experts to share",
        "--ep 1, or a mixture of experts",
    ),
    Rule(  # Megatron folds them over the ranks of tensor and context parallel as well
        lambda c: (
            c.x.gpus // c.x.pp // (1 if c.x.traits.grad_buffer else c.x.tp * c.x.cp) % c.x.ep != 0
        ),
        lambda c: (
            f"{c.x.gpus // c.x.pp if c.x.traits.grad_buffer else c.x.dp} data-parallel ranks "
            f"cannot be cut into groups of {c.x.ep} for experts"
        ),
        lambda c: "--ep " + _divisors(int(c.x.dp)),
    ),
    Rule(
        lambda c: getattr(c.m, "num_experts", 0) % c.x.ep != 0,
        lambda c: f"{c.m.num_experts} experts cannot be dealt to {c.x.ep} ranks",
        lambda c: "--ep " + _divisors(c.m.num_experts),
    ),
    Rule(
        lambda c: (c.x.pp > 1) & (c.m.num_decoder_layers > 0),
        lambda c: f"pipeline stages of an encoder-decoder ({c.m.name}) come later",
        "tensor and data parallel are there: --pp 1",
    ),
    Rule(
        lambda c: (c.x.interleave > 1) & (c.x.pp == 1),
        lambda c: f"interleaving {c.x.interleave} stages needs a pipeline",
        "--pp 2 or more, or --interleave 1",
    ),
    Rule(
        lambda c: (c.x.interleave > 1) & (c.x.schedule == "gpipe"),
        lambda _: "GPipe does not interleave its stages",
        "--schedule 1f1b, or --interleave 1",
    ),
    Rule(
        lambda c: (c.x.pp == 1) & (c.x.schedule not in PREDICTED_SCHEDULES),
        lambda c: f"schedule {c.x.schedule} needs a pipeline",
        "--pp 2 or more, or leave --schedule out",
    ),
    Rule(  # torch's checkpointing and compiled graphs know no backward pass in two halves
        lambda c: (
            (c.x.schedule not in PREDICTED_SCHEDULES)
            & ((c.x.recompute == "selective") | (c.x.kernels == "compiled"))
        ),
        lambda c: (
            f"schedule {c.x.schedule} has two backward passes: none through compiled blocks "
            "or those that are recomputed selectively"
        ),
        "--schedule 1f1b; or --recompute full, without --compile",
    ),
    Rule(
        lambda c: (c.x.pp > 1) & (c.x.interleave != 2) & (c.x.schedule == "zbv"),
        lambda _: "ZBV has two stages on each rank",
        "--interleave 2, or --schedule zb",
    ),
    Rule(
        lambda c: (c.x.pp > 1) & (_blocks(c.m) % (c.x.pp * c.x.interleave) != 0),
        lambda c: f"{_blocks(c.m)} layers cannot be divided over {_stages(c.x)}",
        lambda c: "stages × interleaving " + _divisors(_blocks(c.m)),
    ),
    Rule(
        lambda c: (c.x.interleave > 1) & (c.x.grad_accum % c.x.pp != 0),
        lambda c: f"{c.x.grad_accum} micro-batches cannot be dealt to {c.x.pp} interleaved stages",
        lambda c: f"--grad-accum a multiple of {c.x.pp}, or --interleave 1",
    ),
    Rule(
        lambda c: (c.x.sequence_parallel > 0) & (c.x.tp == 1),
        lambda _: "sequence parallelism splits what tensor parallelism leaves whole",
        "--tp 2 or more, or leave --sequence-parallel out",
    ),
    Rule(
        lambda c: (c.x.sequence_parallel > 0) & (c.x.seq_len % c.x.tp != 0),
        lambda c: f"sequences of {c.x.seq_len} cannot be split over {c.x.tp}",
        "another --seq-len, or leave --sequence-parallel out",
    ),
    Rule(
        lambda c: (c.x.zero >= 2) & (c.x.pp > 1),
        lambda c: f"ZeRO {c.x.zero} cannot shard what {c.x.pp} pipeline stages accumulate",
        "--zero 1 with a pipeline, or --pp 1",
    ),
    Rule(
        lambda c: (c.x.shard_size > 0) & (c.x.zero == 0),
        lambda c: f"shards over {c.x.shard_size} ranks, and nothing is sharded",
        "--zero 1, 2 or 3, or leave --shard-size out",
    ),
    Rule(
        # Where no size is set it is divided by 1: over arrays both sides are computed.
        lambda c: (c.x.shard_size > 0) & (c.x.dp % (c.x.shard_size + (c.x.shard_size == 0)) != 0),
        lambda c: f"{c.x.dp} data-parallel ranks cannot be cut into groups of {c.x.shard_size}",
        lambda c: "--shard-size " + _divisors(int(c.x.dp)),
    ),
    Rule(
        lambda c: (c.x.scheme == "own") & (c.x.parallel != "auto"),
        lambda c: f"{c.x.framework} has its own data parallelism, and no {c.x.parallel}",
        "--framework native or huggingface, or leave --parallel out",
    ),
    Rule(
        lambda c: (
            (c.x.parallel == "dataparallel")
            & ((not c.x.traits.own_models) | (c.x.zero > 0) | (c.x.tp * c.x.pp > 1))
        ),
        lambda _: "torch.nn.DataParallel has every weight on every GPU, in our own framework alone",
        "--framework native --zero 0, or leave --parallel out",
    ),
    Rule(
        lambda c: (
            (c.x.scheme == "ddp")
            & (c.x.tp * c.x.pp > 1)
            & ((not c.x.traits.composes) | (c.x.parallel == "ddp"))
        ),
        lambda _: "DDP splits neither matrices nor layers",
        "--framework megatron or deepspeed, --zero 3, or --tp 1 --pp 1",
    ),
    Rule(
        lambda c: ((c.x.scheme == "ddp") | c.x.traits.grad_buffer) & (c.x.zero >= 2),
        lambda c: (
            f"{c.x.framework if c.x.traits.grad_buffer else 'DDP'} shards the optimizer at most, "
            f"not what ZeRO {c.x.zero} does"
        ),
        "--parallel fsdp, --framework deepspeed, or --zero 1",
    ),
    Rule(
        lambda c: (c.x.scheme == "fsdp") & (c.x.zero < 2),
        lambda c: f"FSDP shards gradients and weights, and ZeRO {c.x.zero} neither",
        "--zero 3 (or 2), or --parallel ddp",
    ),
    Rule(
        lambda c: (
            c.m.positions == "learned" and max(c.x.seq_len, c.x.target_seq_len) > c.m.max_positions
        ),
        lambda c: f"{c.m.name} knows {c.m.max_positions} positions, not {c.x.seq_len}",
        lambda c: f"--seq-len {c.m.max_positions} at most, or a shape with more max_positions",
    ),
)
"""For numbers within their ranges; those where nothing is divided by 0."""


def _stages(layout: Any) -> str:
    if layout.interleave == 1:
        return f"{layout.pp} stages"
    return f"{layout.pp} stages × {layout.interleave} interleaved"
