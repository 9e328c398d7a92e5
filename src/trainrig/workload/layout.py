"""How a training step is spread over devices, and what it is run with: one object for both.

Answers which layouts there are and which combinations make sense; not what they cost (`memory`,
and the predictor's step).  The sizes may be whole numbers, for one layout, or arrays of equal
shape, for a search over many: every formula that takes a `Layout` takes both.  Choices of words
(precision, recompute, …) are the same for all layouts of one object.

Two words say who spreads a training and how, and they are two axes:

    framework   whose program trains: native (ours), huggingface (Trainer, by torch's autocast),
                torchtitan, megatron, deepspeed
    parallel    torch's wrapper around the data-parallel ranks: ddp, fsdp or dataparallel; auto,
                the usual word, follows from the sizes: none for one process, ddp where weights are
                whole on each rank (zero 0 and 1), fsdp where they are sharded (zero 2 and 3).
                Megatron and DeepSpeed have ways of their own, and no choice.

`Layout.scheme` is what `parallel` comes to.  DataParallel differs from DDP in nothing that sizes
say, so it is had by its name alone.

Devices are a mesh of data × pipeline × tensor parallel; neighbours in a tensor-parallel group are
nearest (ranks of one node), then data, then pipeline (the order of ranks in Megatron-LM, too).
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from trainrig.errors import unknown

if TYPE_CHECKING:  # numpy is loaded by those who need it: `--help` does not
    import numpy as np
    from numpy.typing import NDArray

Whole: TypeAlias = "int | NDArray[np.int64]"
"""One layout's number, or an array with one for each layout."""

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8")
RECOMPUTE = ("none", "selective", "full")
SCHEDULES = ("1f1b", "gpipe")
KERNELS = ("eager", "fused", "flash", "flash+fused", "compiled")
FRAMEWORKS = ("native", "huggingface", "deepspeed", "megatron", "torchtitan")
PARALLEL = ("auto", "ddp", "fsdp", "dataparallel")
OPTIMIZERS = ("adamw", "adamw-fused", "adamw-8bit", "sgd", "adafactor")
OFFLOAD = ("none", "host", "disk")
STATES = ("auto", "masters", "autocast", "pure")
DROPOUT = ("auto", "no", "yes")
SOFTWARE = ("current", "torch1")


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

    seq_len: int = 1024
    target_seq_len: int = 0
    """Tokens that an encoder-decoder writes; 0 = as many as it reads."""
    precision: str = "bf16"
    recompute: str = "none"
    schedule: str = "1f1b"
    kernels: str = "flash"
    framework: str = "native"
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

    def __post_init__(self) -> None:
        _check_words(self)

    @property
    def dp(self) -> Whole:
        """Data-parallel ranks."""
        return self.gpus // (self.tp * self.pp)

    @property
    def scheme(self) -> str:
        """none, ddp, fsdp or dataparallel; own: Megatron's and DeepSpeed's way.

        Many layouts of one object share it.
        """
        if self.framework in ("megatron", "deepspeed"):
            return "own"
        if self.parallel != "auto":
            return self.parallel
        if _any(self.zero, 2):
            return "fsdp"
        return "ddp" if _any(self.gpus, 2) else "none"

    @property
    def autocasts(self) -> bool:
        """Whether torch's autocast narrows whole fp32 weights, as around a model of others."""
        return self.framework in ("huggingface", "torchtitan") and self.scheme != "fsdp"

    @property
    def global_batch(self) -> Whole:
        """Samples of a step."""
        return self.batch_size * self.grad_accum * self.dp

    @property
    def shards(self) -> Whole:
        """Ranks that share one copy of what is sharded."""
        import numpy as np

        found = np.where(np.asarray(self.shard_size) > 0, self.shard_size, self.dp)
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

    def at(self, index: int) -> Layout:
        """One of many, in plain whole numbers."""
        import numpy as np

        values = {name: np.asarray(getattr(self, name)) for name in SIZES}
        return self.replace(**{n: int(v if v.ndim == 0 else v[index]) for n, v in values.items()})


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
"""The fields that may be arrays."""

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
}


def _any(sizes: Whole, least: int) -> bool:
    return sizes >= least if isinstance(sizes, int) else bool((sizes >= least).any())


def _check_words(layout: Layout) -> None:
    for name, known in _WORDS.items():
        if getattr(layout, name) not in known:
            raise unknown(name, str(getattr(layout, name)), known)
