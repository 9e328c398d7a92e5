"""A training program and what it does where nobody says otherwise.

Keys in a file are flat: each trait stands under its own name, whatever group holds it.  None and ""
are not stated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainrig.flat_keys import FlatKeys, part

Since = bool | str | None
"""True if a program does something: always, since a month (``2024-01``), or not stated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spreading:
    """Spread of a model and a batch over devices, and their exchanges."""

    shards_weights: bool | None = None
    """ZeRO 3 where the stage is not stated."""
    shards_gradients: bool | None = None
    """ZeRO 2 where the stage is not stated, 1 where a pipeline's stages forbid that."""
    shards_optimizer: Since = None
    """ZeRO 1 where the stage is not stated."""
    shards_bf16_optimizer: bool | None = None
    """In bf16 the ranks share the optimizer's states at stage 0, too."""
    torch_pipelines: bool | None = None
    """Its stages are torch's, with FSDP around each."""
    cuts_by_stages: bool | None = None
    """A batch goes through a pipeline in as many micro-batches as stages, none being stated."""
    searches_layout: bool | None = None
    """It looks for the quickest way to split a model."""
    schedule: str = ""
    """One of SCHEDULES."""
    cp_comm: str = ""
    """One of CP_COMM."""
    overlap: str = ""
    """Collectives beside computation, one of OVERLAP."""
    sends_once: bool | None = None
    """Tokens leave once for each node, not once for each expert there."""
    overlaps_dispatch: bool | None = None
    """On Hopper, and beyond a node, part of that runs beside another micro-batch's computation."""
    balanced_router: bool | None = None
    """Its benchmarks deal tokens to experts evenly, whatever the router says."""
    whole_experts: Since = None
    """Tensor parallelism cuts no expert that is no wider than the model."""
    splits_sequence: Since = None
    """Tensor parallelism goes with sequence parallelism."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """Formats of products, weights, gradients and states."""

    precision: str = ""
    """Number format of products where none is stated, on GPUs of NVIDIA."""
    fp8: bool | None = None
    """Products are of fp8 where no format is stated, on chips that have it."""
    fp4: Since = None
    """Products are of FP4 where no format is stated, on NVIDIA's chips that have it."""
    tf32: bool | None = None
    """Products of fp32 are TF32's where the chip has it."""
    states: str = ""
    """One of STATES."""
    loads_published: bool | None = None
    """Models are trained in the format that they are published in."""
    moments: str = ""
    """One of MOMENTS_IN."""
    latent_moments: str = ""
    """One of MOMENTS_IN, of models with latent attention."""
    grad_reduce: str = ""
    """The format that gradients are summed over ranks in."""
    fp8_weights: bool | None = None
    """Under fp8 the weights of blocks are held in it alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """Kernels and runtime of a model's operations."""

    other_runtime: bool | None = None
    """It runs on neither torch nor XLA for GPUs."""
    xla: bool | None = None
    """XLA compiles it."""
    kernels: str = ""
    """One of KERNELS, if not said, on torch's modules."""
    transformer_engine: bool | None = None
    """Layers are Transformer Engine's or as new; false: of a Megatron before it."""
    transformer_engine_on_old_chips: Since = None
    """They are also on chips before 2022, which have no fp8; not stated: as on others."""
    transformers_models: bool | None = None
    """It runs transformers' models as they are."""
    grouped_experts: Since = None
    """A mixture's experts are one product, whatever the models' own code does."""
    quantized_experts: str = ""
    """One of EXPERTS, of a mixture whose frozen weights are quantised."""
    scores: bool | None = None
    """It writes attention's scores to memory unless fused attention is named."""
    graphed: bool | None = None
    """Nothing of Python stands between its kernels."""
    graphed_recipes: bool | None = None
    """Its recipes launch from CUDA graphs, on chips that NVIDIA has such recipes for."""
    mixtures_graphed: Since = None
    """Mixtures on x86 hosts, too, are launched so; not stated: as other models are."""
    drops: str = ""
    """True if it trains with the dropout that models of a family are published with."""
    masked_logits: bool | None = None
    """Its BERT gathers masked tokens before the head."""
    loss: str = ""
    """One of LOSS."""
    shared_loss: str = ""
    """One of LOSS, where ranks share a sequence and so none has the labels of all."""
    fuses_loss: Since = None
    """Logits never exist whole."""
    compiles_loss: Since = None
    """Compiled code holds the loss, too: before, blocks alone; not stated: it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """Defaults that save memory, and whose bytes the log prints."""

    recompute: str = ""
    """One of RECOMPUTE, of any training but a tuning of sharded weights that is checkpointed."""
    checkpoints_sharded: bool | None = None
    """Blocks are computed again where their weights are sharded."""
    checkpoints_tuning: Since = None
    """Gradient checkpointing is on where a trained model is trained further."""
    counts_recomputation: bool | None = None
    """TFLOP/s that it prints may count what is computed again."""
    moves_activations: bool | None = None
    """With sharded weights on Grace, activations wait on the host instead of being made again."""
    offloads_states: Since = None
    """The optimizer's states wait on the host, unless said; weights and gradients don't."""
    allocates_once: bool | None = None
    """Its memory comes from the driver at once, without an allocator that holds blocks."""
    logged_memory: str = ""
    """Kind of bytes that its log prints: allocated, reserved or device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """Samples, their length, and the matrices with adapters."""

    samples: int | None = None
    """Samples of a micro-batch."""
    sorts_samples: Since = None
    """A batch of a BERT's second phase has samples of about one length, or no padding."""
    packs_tuning: bool | None = None
    """Its recipes for tuning fill sequences with several examples."""
    tuning_length: int | None = None
    """Tokens of a batch's longest example, in its recipes for tuning."""
    adapts: str = ""
    """One of LORA_ON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramDefaults:
    """Defaults of a program that is asked for by name, where no flag says otherwise."""

    since: str = ""
    """The month of its first release."""
    tunes: str = ""
    """One of QUANTIZE: it trains adapters beside such weights, where no flag asks for either."""
    stages_by: str = ""
    """The engine that trains where a stage of ZeRO is asked for."""
    checkpoints_large: bool = False
    """Gradient checkpointing is one switch of its models, which who tunes a large one turns on."""
    usual: Mapping[str, Any] = field(default_factory=dict)
    """Values by the flat keys of a layout."""
    adapters: Mapping[str, Any] = field(default_factory=dict)
    """Values by the flat keys of a layout, where adapters are trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program, or several that are named together."""

    key: str = ""
    """Word that --framework takes; "": it is known from what others print alone."""
    name: str
    aliases: tuple[str, ...] = ()
    """Other words that --framework takes for it."""
    source: str = ""
    """Source of its defaults."""
    engine: str = ""
    """The engine that trains, one of FRAMEWORKS."""
    trains_as: str = ""
    """Scheme by which it spreads a model: megatron, deepspeed, or by torch's wrappers around
    Hugging Face's models (fsdp, trainer); not stated: as the layout tells."""
    spreading: Spreading = part(Spreading)
    numbers: Numbers = part(Numbers)
    code: Code = part(Code)
    saving: Saving = part(Saving)
    batches: Batches = part(Batches)
    defaults: ProgramDefaults = part(ProgramDefaults)


PROGRAM_KEYS = FlatKeys(Program)
TRAITS = tuple(
    key
    for key, (group, _) in PROGRAM_KEYS.places.items()
    if group not in ("", "defaults") or key == "trains_as"
)
"""Flat keys of what a program does, whatever it is called."""


def is_stated(value: Any) -> bool:
    """Return whether a trait is stated."""
    return value is not None and value != ""
