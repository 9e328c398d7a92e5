"""How a training step is spread over devices, and what it is run with: one object for both.

Answers which layouts there are and which can be run; not what they cost (`memory`,
and the predictor's step).  A `Layout` is made of small types (`groups`); `Layout.of` makes one of
the flat keys that files, options and JSON have, and `Layout.replace` takes the same.  The sizes may
be whole numbers, for one layout, or arrays of equal shape, for a search over many: every formula
that takes a `Layout` takes both.  Choices of words (precision, recompute, …) are the same for all
layouts of one object.

Two words say who spreads a training and how, and they are two axes:

- framework: the program that trains: native, huggingface (Trainer, by torch's autocast),
  torchtitan, megatron, deepspeed.
- parallel: torch's wrapper around the data-parallel ranks: ddp, fsdp or dataparallel; auto, the
  usual word, follows from the sizes: none for one process, ddp where weights are whole on each rank
  (zero 0 and 1), fsdp where they are sharded (zero 2 and 3).  Megatron and DeepSpeed have ways of
  their own, and no choice.

`Layout.scheme` is what `parallel` comes to.  DataParallel differs from DDP in nothing that sizes
say, so it is had by its name alone; its micro-batch is that of one GPU, too.

Devices are a mesh of pipeline × data × context × tensor parallel; neighbours in a tensor-parallel
group are nearest (ranks of one node), then context, data, pipeline (the order of Megatron-LM).

Which layouts can be run is said by `layout_rules`; `check_layout` raises the first rule that is
broken, `legal_mask` is all of them over a search's arrays.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from trainrig.errors import UsageError, unknown
from trainrig.flat_keys import FlatKeys, part
from trainrig.workload.arrays import Real, choose, log2, smaller
from trainrig.workload.layout.groups import (
    KernelChoices,
    Lora,
    MemorySaving,
    Mesh,
    Moe,
    Overlap,
    PipelineOrder,
    Precision,
    Sharding,
    StepBatch,
    Whole,
)
from trainrig.workload.layout_rules import RANGES, RULES, Pairing, Rule
from trainrig.workload.programs import FRAMEWORKS, NATIVE, usual_framework
from trainrig.workload.programs.engine import EngineTraits
from trainrig.workload.programs.usual import LayoutKind

if TYPE_CHECKING:  # numpy is loaded by those who need it: `--help` does not
    import numpy as np
    from numpy.typing import NDArray

    from trainrig.workload.model import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Devices, the sizes of the mesh, and what is run with.

    The global batch is batch.micro · batch.grad_accum · mesh.dp samples.
    """

    framework: str = NATIVE
    """Engine that trains, one of FRAMEWORKS."""
    mesh: Mesh = part(Mesh)
    sharding: Sharding = part(Sharding)
    pipeline: PipelineOrder = part(PipelineOrder)
    batch: StepBatch = part(StepBatch)
    precision: Precision = part(Precision)
    memory: MemorySaving = part(MemorySaving)
    kernels: KernelChoices = part(KernelChoices)
    overlap: Overlap = part(Overlap)
    moe: Moe = part(Moe)
    lora: Lora = part(Lora)

    def __post_init__(self) -> None:
        if self.framework not in FRAMEWORKS:
            raise unknown("framework", self.framework, FRAMEWORKS)

    @classmethod
    def of(cls, **keys: Any) -> Layout:
        """Return the layout of flat keys; what is not given is as usual.

        Raises:
            UsageError: A key has a word that it does not know.
        """
        return LAYOUT_KEYS.make(**keys)

    def replace(self, **keys: Any) -> Layout:
        """Return a copy with the values of some flat keys changed."""
        return LAYOUT_KEYS.replace(self, **keys)

    def get(self, key: str) -> Any:
        """Return the value of a flat key."""
        return LAYOUT_KEYS.get(self, key)

    def flat(self) -> dict[str, Any]:
        """Return all values by their flat keys."""
        return LAYOUT_KEYS.flat(self)

    @property
    def sizes(self) -> tuple[Whole, ...]:
        """Return the values of SIZES, in their order."""
        return _sizes_of(self)

    def most_routed(self, num_experts: int) -> Real:
        """Return tokens of the rank whose experts have most, of an equal share.

        Experts of a rank add up, and the largest of n such sums lies sqrt(2·ln n) deviations above
        their mean.
        """
        if not self.moe.router_spread or not num_experts:
            return 1.0
        deviations = (2.0 * math.log(2.0) * log2(self.mesh.ep)) ** 0.5
        most = 1.0 + self.moe.router_spread * (self.mesh.ep / num_experts) ** 0.5 * deviations
        return smaller(most, self.mesh.ep)  # which has all there is

    @property
    def scheme(self) -> str:
        """none, ddp, fsdp or dataparallel; own: Megatron's and DeepSpeed's way.

        Many layouts of one object share it.
        """
        if self.traits.ranks.own_scheme:
            return "own"
        if self.sharding.parallel != "auto":
            return self.sharding.parallel
        if _any(self.sharding.zero, 2):
            return "fsdp"
        return "ddp" if _any(self.mesh.gpus, 2) else "none"

    @property
    def adapted(self) -> str:
        """Return `lora_on`, or the framework's way.

        Peft finds experts that are modules of their own.
        """
        if self.lora.targets != "auto":
            return self.lora.targets
        usual = self.traits.models.adapts
        return "all" if usual == "linear" and self.moe.experts == "modules" else usual

    @property
    def autocasts(self) -> bool:
        """Return whether torch's autocast narrows whole fp32 weights, as in Trainer."""
        return self.traits.models.autocasts and self.scheme != "fsdp"

    @property
    def traits(self) -> EngineTraits:
        """Traits of the layout's engine."""
        return FRAMEWORKS[self.framework]

    @property
    def usual_framework(self) -> str:
        """Return the framework that usually runs such a layout, where none is asked for."""
        return usual_framework(self.spread)

    @property
    def spread(self) -> LayoutKind:
        """Facts that decide which program usually runs the layout."""
        return LayoutKind(
            schedule=self.pipeline.schedule,
            split=_any(self.mesh.tp * self.mesh.pp * self.mesh.cp, 2),
            sharded=_any(self.sharding.zero, 2) or self.sharding.parallel == "fsdp",
            adapted=self.lora.rank > 0,
            wrapped=self.sharding.parallel in ("ddp", "dataparallel"),
            nodes=_any(self.mesh.gpus - self.mesh.gpus_per_node, 1),
        )

    @property
    def overlaps(self) -> str:
        """Return one of none, data and tensor; whether experts' are, too, `overlaps_experts` says.

        torch's wrappers overlap what is data parallel.  Megatron's options for it (overlapped
        gradient reduce and parameter gather, tensor parallel's user buffers) came with Transformer
        Engine, and NVIDIA's recipes for its kernels switch them on.
        """
        if (stated := self.overlap.collectives) != "auto":
            return "tensor" if stated in ("experts", "all") else stated
        if not self.traits.ranks.own_scheme:
            return "data"
        has_recipes = self.traits.models.own_kernels and self.kernels.stack == "flash+fused"
        return "tensor" if has_recipes else "none"

    def launched_as(self, graphed: bool) -> str:
        """Return one of CUDA_GRAPHS, without auto: of itself as NVIDIA's recipes of today launch.

        On chips that those have graphs for (``graphed``, `Rates.graphed`) they are of layers with
        today's kernels of Transformer Engine; elsewhere each kernel is launched by itself.
        """
        if self.kernels.cuda_graphs != "auto":
            return self.kernels.cuda_graphs
        is_today = self.kernels.stack == "flash+fused" and self.kernels.software == "current"
        return "layers" if graphed and self.traits.models.own_kernels and is_today else "none"

    @property
    def overlaps_experts(self) -> bool:
        """Return whether kernels on processors of their own dispatch tokens beside computation.

        It is what DualPipe has two micro-batches on a rank for (arXiv 2412.19437, section 3.2.1).
        """
        implied = self.overlap.collectives == "auto" and self.pipeline.schedule == "dualpipe"
        return implied or self.overlap.collectives in ("experts", "all")

    @property
    def context(self) -> str:
        """Exchange of ranks that share a sequence: `cp_comm`, or the framework's way."""
        return self.traits.models.context if self.mesh.cp_comm == "auto" else self.mesh.cp_comm

    @property
    def causal_load(self) -> float:
        """Causal scores of the rank that has most, over an equal share of them.

        Of a sequence in n stretches the last rank's queries look at n - 1/2 of n, on average of all
        ranks at half: 2 - 1/n.
        """
        return 2.0 - 1.0 / self.mesh.cp if self.context == "ring" else 1.0

    @property
    def part_of_sequence(self) -> int:
        """Return tokens of a sequence on one of the ranks that share it."""
        return self.batch.seq_len // self.mesh.cp

    @property
    def global_batch(self) -> Whole:
        """Return samples of a step."""
        return self.batch.micro * self.batch.grad_accum * self.mesh.dp

    @property
    def shards(self) -> Whole:
        """Ranks that share one copy of what is sharded."""
        all_ranks = self.mesh.dp * self.mesh.cp  # ranks that share a sequence have the same weights
        group: Whole = choose(self.sharding.shard_size > 0, self.sharding.shard_size, all_ranks)
        return group

    @property
    def is_one(self) -> bool:
        """Return whether its sizes are plain numbers: one layout, and no array of them."""
        return _WHOLE.issuperset(map(type, _sizes_of(self)))  # asked many times for each layout

    def __len__(self) -> int:
        """Return the number of layouts."""
        if self.is_one:
            return 1
        import numpy as np

        return math.prod(np.broadcast_shapes(*map(np.shape, self.sizes)))

    def part(self, where: slice | NDArray[Any]) -> Layout:
        """Some of many, by a mask or by their places; numbers that are one for all stay so."""
        import numpy as np

        arrays = zip(SIZES, map(np.asarray, self.sizes), strict=True)
        return self.replace(**{name: a[where] if a.ndim else a for name, a in arrays})

    def at(self, index: int) -> Layout:
        """Return one of many, in plain whole numbers."""
        import numpy as np

        sizes = self.part(slice(index, index + 1)).sizes
        return self.replace(**{n: np.asarray(s).item() for n, s in zip(SIZES, sizes, strict=True)})


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
LAYOUT_KEYS = FlatKeys(Layout)
PLACES = LAYOUT_KEYS.places
"""The group and the field of each flat key."""
_sizes_of = attrgetter(*(".".join(PLACES[key]) for key in SIZES))
_WHOLE = frozenset((int, bool))


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
    """Return whether one layout can be run."""
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
    """Return warnings about a layout that can be run and is seldom meant."""
    if layout.mesh.tp <= layout.mesh.gpus_per_node:
        return ()
    return (
        f"tensor parallelism over {layout.mesh.tp} GPUs leaves the node of "
        f"{layout.mesh.gpus_per_node}: each layer waits for the network four times",
    )
