"""How an engine trains: the traits that memory and time of a layout are computed from.

An engine is the machinery below a program: Unsloth and Axolotl are programs on the engine of
Hugging Face's Trainer.  What a program switches on by default is `program.Program`'s; what it then
does to bytes and seconds is told here.

Sources: the engines' documentation and code.  Megatron-LM: one buffer of gradients, vocabulary
split and padded, the core of attention as its selective recomputation (Korthikanti et al. 2022);
keys and values on a ring, two chunks of a causal sequence on each rank (its --cp-comm-type p2p).
DeepSpeed: ZeRO by buckets (Rajbhandari et al. 2020).  Trainer and torchtitan: torch's autocast and
wrappers, whose context parallelism gathers (torch's context_parallel, torchtitan's
context_parallel_rotate_method, accelerate's cp_comm_strategy: allgather).
"""

from __future__ import annotations

from dataclasses import dataclass

from trainrig.flat_keys import FlatKeys, part


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTraits:
    """Traits of how the engine's models compute, and of what they keep."""

    own_models: bool = False
    """Our models: a norm or a GELU is one kernel, the softmax wide, the loss in chunks, and there
    is no dropout; micro-batches add up in fp32 beside narrow gradients."""
    own_kernels: bool = False
    """Norms, softmax, activations and Adam are fused whatever the stack; keys are not repeated."""
    autocasts: bool = False
    """torch's autocast narrows whole fp32 weights; elsewhere narrow ones have fp32 masters."""
    splits_vocabulary: bool = False
    """Tensor parallelism is Megatron's: the vocabulary is padded and its loss computed in place,
    parts of the sequence are gathered into a buffer, messages between stages are cut."""
    drops_with: tuple[str, ...] = ()
    """Further kernels with which models have the dropout of their published configurations."""
    selective: str = "half"
    """The policy (`blocks`) of what selective recomputation keeps."""
    recomputes_core: bool = False
    """Selective recomputation runs the core of attention again, a fused one, too."""
    recomputes_some: bool = False
    """A number of a stage's blocks may be computed again (--recompute-num-layers)."""
    adapts: str = "all"
    """Matrices with adapters where nobody says (`Lora.targets`).  peft's ``all-linear`` takes
    modules of torch's Linear, and experts that are one tensor (transformers 5; gpt-oss, Llama 4)
    are none; Megatron-Bridge's LoRA has one pair for a rank's experts (`share_expert_adapters`),
    and none for the router."""
    context: str = "zigzag"
    """Exchange of ranks that share a sequence (`Mesh.cp_comm`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTraits:
    """Traits of how ranks share weights, gradients and states."""

    threads: bool = False
    """torch.nn.DataParallel goes around its models: one process, a thread for each GPU."""
    own_scheme: bool = False
    """Data parallelism of its own instead of torch's wrappers."""
    persistent_grads: bool = False
    """Gradients stay allocated from step to step."""
    grad_buffer: bool = False
    """They lie in one buffer, in fp32 unless trained in fp16, or in shards of it."""
    bucket: float = 0.0
    """Gradients that leave at once during backward, over one ring of ranks; 0: no such bucket."""
    sub_group: float = 0
    """Parameters of a shard that ZeRO 3 updates at a time, whose gradients are widened then; 0: all
    (DeepSpeed's `sub_group_size`)."""
    live: float = 0
    """Gathered parameters that ZeRO 3 keeps for their next use (DeepSpeed's
    `stage3_max_live_parameters` and `stage3_max_reuse_distance`); 0: those of two blocks."""
    composes: bool = False
    """Replicas of weights go with tensor and pipeline parallelism, without its own scheme."""
    shards_stages: bool = False
    """ZeRO 2 and 3 go with pipeline stages (FSDP2 around each of them)."""
    zero_bubble: bool = False
    """Its pipelines compute gradients of inputs and of weights apart (torch's schedules)."""
    offload_overlap: str = "none"
    """Parts of an offloaded optimizer that run beside the device: `prediction.step.offload` has the
    words and their sources."""
    reduces_to_owner: bool = False
    """ZeRO 1 and 2 sum each bucket on the rank that owns it, one bucket after the other, and what
    an owner copies to the host is done before the next one is summed."""
    flattens_gradients: bool = False
    """ZeRO 1 and 2 copy a rank's gradients into one piece before they are widened for the update
    (`flatten` of DeepSpeed's stage_1_and_2.py)."""
    host_gradient: float = 0.0
    """Bytes of a gradient that an offloaded optimizer updates from, beside what ZeRO 3 keeps on the
    host (DeepSpeed's `fp32_partitioned_groups_flat[i].grad`); 0: the gradient as it comes."""
    host_buffers: float = 1.0
    """Most host memory over what states and gradients take: pinned memory is rounded up, and passed
    through (1.5 is `additional_buffer_factor` of DeepSpeed's own estimators)."""
    offloads_alone: int = 0
    """Stage of ZeRO by which gradients or weights of a single GPU are offloaded, too; 0: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTraits:
    """Calls of the host beside the kernels."""

    module_calls: float = 1.0
    """Host time of a kernel that Transformer Engine's modules launch, where the engine's layers are
    made of them, against one of torch's own."""
    tensor_calls: float = 0.0
    """Calls of the host for each tensor of a step beside its kernels: gradients are found, copied
    to the masters, counted into their norm and clipped one by one, weights copied back."""
    fetch_calls: float = 0.0
    """Calls of the host, each about a launch with the Python around it, for each matrix and each
    pass, where ZeRO 3 gathers module by module: hooks before and behind it look up, gather, wait
    and let go (DeepSpeed's `parameter_offload.py`).  Presumed: two prints of short passes come to
    21 and about 27 (Qwen's README, 7B on two; DeepSpeed's bf16 example)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTraits:
    """Traits of an engine, where a layout does not say otherwise."""

    models: ModelTraits = part(ModelTraits)
    ranks: RankTraits = part(RankTraits)
    host: HostTraits = part(HostTraits)


ENGINE_KEYS = FlatKeys(EngineTraits)
