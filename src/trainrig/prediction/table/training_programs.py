"""Which training program a table's words name, and what it does where a row does not say.

Answers with the traits of `programs.toml`, which has their sources; what follows from a trait for a
step is answered where it is asked (`row_layout`, `row_compute`, `row_memory`, `row_lengths`).
"""

from __future__ import annotations

import re
from dataclasses import fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from trainrig.record import read_by, read_toml

_FILE = Path(__file__).with_name("programs.toml")
COMPARED = _FILE.with_name("compared.toml")
Since = bool | Annotated[str, Field(pattern=r"^20\d\d-[01]\d$")] | None
"""Whether a program does something: always, since a month (``2024-01``), or not stated."""


@read_by({"extra": "forbid"})
class Program:
    """A program, or several that are named together; None and "" are not stated."""

    name: str
    pattern: str = ""
    """What its name is found by, in small letters (a regular expression)."""
    instead_of: tuple[str, ...] = ()
    """Entries whose words are part of its own: they are not meant."""
    trains_as: Literal["", "megatron", "fsdp", "deepspeed", "trainer"] = ""
    """How it spreads a model: as one of our frameworks, `fsdp` and `trainer` by torch's wrappers
    around Hugging Face's models; not stated: as the layout tells."""
    other_runtime: bool | None = None
    """It runs on neither torch nor XLA for GPUs."""
    xla: bool | None = None
    """XLA compiles it."""
    shards_weights: bool | None = None
    """ZeRO 3 where the stage is not stated."""
    torch_pipelines: bool | None = None
    """Its stages are torch's, with FSDP around each."""
    cuts_by_stages: bool | None = None
    """A batch goes through a pipeline in as many micro-batches as stages, none being stated."""
    searches_layout: bool | None = None
    """It looks for the quickest way to split a model."""
    shards_gradients: bool | None = None
    """ZeRO 2 where the stage is not stated, 1 where a pipeline's stages forbid that."""
    shards_optimizer: Since = None
    """ZeRO 1 where the stage is not stated."""
    shards_bf16_optimizer: bool | None = None
    """In bf16 the ranks share the optimizer's states at stage 0, too."""
    transformer_engine: bool | None = None
    """Layers are Transformer Engine's or as new; false: of a Megatron before it."""
    transformer_engine_on_old_chips: Since = None
    """They are also on chips before 2022, which have no fp8; not stated: as on others."""
    sorts_samples: Since = None
    """A batch of a BERT's second phase has samples of about one length, or no padding."""
    fp8: bool | None = None
    """Products are of fp8 where no format is stated, on chips that have it."""
    fp4: Since = None
    """Products are of FP4 where no format is stated, on NVIDIA's chips that have it."""
    precision: str = ""
    """Of products, where none is stated, on GPUs of NVIDIA."""
    tf32: bool | None = None
    """Products of fp32 are TF32's where the chip has it."""
    kernels: str = ""
    """One of KERNELS, if not said, on torch's modules."""
    scores: bool | None = None
    """It writes attention's scores to memory unless fused attention is named."""
    graphed: bool | None = None
    """Nothing of Python stands between its kernels."""
    graphed_recipes: bool | None = None
    """Its recipes launch from CUDA graphs, on chips that NVIDIA has such recipes for."""
    mixtures_graphed: Since = None
    """Mixtures on x86 hosts, too, are launched so; not stated: as other models are."""
    overlap: Literal["", "auto", "data", "tensor", "experts"] = ""
    """What runs beside computation, one of OVERLAPS."""
    sends_once: bool | None = None
    """Tokens leave once for each node, not once for each expert there."""
    overlaps_dispatch: bool | None = None
    """On Hopper, and beyond a node, part of that runs beside another micro-batch's computation."""
    balanced_router: bool | None = None
    """Its benchmarks deal tokens to experts evenly, whatever the router says."""
    whole_experts: Since = None
    """Tensor parallelism cuts no expert that is no wider than the model."""
    moves_activations: bool | None = None
    """With sharded weights on Grace, activations wait on the host instead of being made again."""
    cp_comm: str = ""
    """One of CP_COMM."""
    schedule: str = ""
    """One of SCHEDULES."""
    states: str = ""
    """One of STATES."""
    loads_published: bool | None = None
    """Models are trained in the format that they are published in."""
    moments: str = ""
    """One of MOMENTS_IN."""
    latent_moments: str = ""
    """One of MOMENTS_IN, of models with latent attention."""
    grad_reduce: Literal["", "bf16", "fp32"] = ""
    """The format that gradients are summed over ranks in."""
    fp8_weights: bool | None = None
    """Under fp8 the weights of blocks are held in it alone."""
    loss: str = ""
    """One of LOSS."""
    counts_recomputation: bool | None = None
    """TFLOP/s that it prints may count what is computed again."""
    masked_logits: bool | None = None
    """Its BERT gathers masked tokens before the head."""
    shared_loss: str = ""
    """One of LOSS, where ranks share a sequence and so none has the labels of all."""
    fuses_loss: Since = None
    """Logits never exist whole."""
    compiles_loss: Since = None
    """What is compiled holds the loss, too: before, blocks alone; not stated: it does."""
    recompute: str = ""
    """One of RECOMPUTE, of any training but a tuning of sharded weights that is checkpointed."""
    samples: int | None = None
    """Samples of a micro-batch."""
    offloads_states: Since = None
    """The optimizer's states wait on the host, unless said; weights and gradients don't."""
    drops: Literal["", "no"] = ""
    """Whether it trains with the dropout that models of a family are published with."""
    allocates_once: bool | None = None
    """Its memory comes from the driver at once, without an allocator that holds blocks."""
    memory: Literal["", "allocated", "reserved", "device"] = ""
    """Whose bytes its log prints."""
    transformers_models: bool | None = None
    """It runs transformers' models as they are."""
    grouped_experts: Since = None
    """A mixture's experts are one product, whatever the models' own code does."""
    packs_tuning: bool | None = None
    """Its recipes for tuning fill sequences with several examples."""
    adapts: str = ""
    """One of LORA_ON."""
    tuning_length: int | None = None
    """Tokens of a batch's longest example, in its recipes for tuning."""
    checkpoints_sharded: bool | None = None
    """Blocks are computed again where their weights are sharded."""
    checkpoints_tuning: Since = None
    """Gradient checkpointing is on where a trained model is trained further."""


_TRAITS = tuple(field.name for field in fields(Program))[3:]


@lru_cache(maxsize=1)
def programs() -> tuple[tuple[re.Pattern[str], Program], ...]:
    """All programs in the file's order, each with its compiled pattern.

    Raises DataError where the file is none.
    """
    found = read_toml(_FILE, list[Program], _FILE.name, "program")
    return tuple((re.compile(one.pattern), one) for one in found)


@read_by({"extra": "forbid"})
class Submissions:
    """What submissions to a benchmark do, where who submits is named and what runs may not be."""

    traits: Program
    """In place of those of the program that runs; its pattern is looked for in a row's words for
    program, machine and model."""
    runs: str = ""
    """Words for what runs where no program of Megatron's family is named; a row that names another
    way of spreading a model is none of its submissions.  "": whatever is named."""
    unless: str = ""
    """A pattern in the same words of what is none of them."""
    task: str = ""
    """A pattern of the model that one of its tasks tunes with adapters."""
    task_seq: int = 0
    """Tokens that this task's examples are packed to."""

    def laid_over(self, named: Program) -> Program:
        """The program of a row of this benchmark that names that one."""
        ran = program_of(self.runs) if self.runs and named.trains_as != "megatron" else named
        stated = {trait: getattr(self.traits, trait) for trait in _TRAITS}
        return replace(ran, **{trait: it for trait, it in stated.items() if it not in (None, "")})


@lru_cache(maxsize=1)
def benchmarks() -> tuple[Submissions, ...]:
    """All benchmarks in the file's order.  Raises DataError where the file is none."""
    return tuple(read_toml(_FILE, list[Submissions], _FILE.name, "benchmark"))


@lru_cache(maxsize=1 << 12)
def affirmed(words: str) -> str:
    """Words in small letters without what they deny: ``no torch.compile``, ``liger: off``."""
    return _DENIED.sub("", words)


_THING = r"[\w./+]{1,32}(?:[ _-](?:att\w*|compil\w*|kernels?|engine|graphs?|checkpoint\w*)\b){0,2}"
_DENIED = re.compile(
    rf"(?:\b(?:no|non|not|without|w/o|disabl\w+)\b[ -]+(?:using |the )?|\bun(?=comp)|无){_THING}"
    rf"|(?<![\w./+]){_THING}(?:\)?[ =:(]{{1,4}}(?:off|false|disabled|no)\b(?!\s*[\w.])|=0\b)"
)


@lru_cache(maxsize=1 << 12)
def program_of(words: str) -> Program:
    """What words in small letters name: of each trait what the first entry states that has it.

    What one of them always does it does, since whatever month another one does.  Its name is that
    of the first that spreads a model, if any: what is beside it (kernels, a container, the library
    below) makes no other program of it.
    """
    words = affirmed(words)
    named = [one for pattern, one in programs() if pattern.search(words)]
    meant_not = {name for one in named for name in one.instead_of}
    named = [one for one in named if one.name not in meant_not]
    traits: dict[str, Any] = {}
    for trait in _TRAITS:
        values = (getattr(one, trait) for one in named)
        if stated := [value for value in values if value not in (None, "")]:
            is_always = isinstance(stated[0], str) and True in stated
            traits[trait] = is_always or stated[0]
    trains = (one.name for one in named if one.trains_as)
    name = next(trains, " + ".join(one.name for one in named))
    return Program(name=name, **traits)


@read_by({"extra": "forbid"})
class Compared:
    """A program and the chips that it was compared on."""

    program: str
    chips: tuple[str, ...]


@lru_cache(maxsize=1)
def compared() -> frozenset[tuple[str, str]]:
    """Programs, as `program_of` names them, and chips of which published steps were compared.

    Written by `python -m validation.protocols --write` from the rows that constants and intervals
    come from.  Raises DataError where the file is none.
    """
    found = read_toml(COMPARED, list[Compared], COMPARED.name, "compared")
    return frozenset((one.program, chip) for one in found for chip in one.chips)


def torch_version(words: str) -> tuple[int, int]:
    """Version of torch that words in small letters name, ``torch 2.1.0``; (0, 0): none.

    A container of NVIDIA's is called by its month: ``pytorch 21.11``.
    """
    found = re.search(r"torch (\d)\.(\d+)", words)
    return (int(found[1]), int(found[2])) if found else (0, 0)
