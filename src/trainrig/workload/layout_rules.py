"""Which layouts can be run: each rule once, as a sentence for one layout and a mask for many.

A rule says which layouts break it and, for a single one, what to do instead (`layout.check_layout`
raises the first that is broken, `layout.legal_mask` is all of them over a search's arrays).  What
is impossible is refused, not what is slow or does not fit in memory.  The rules are those of the
frameworks that run such layouts (Megatron-LM, DeepSpeed, FSDP): heads are divided over tensor
parallel, layers over pipeline stages, micro-batches over interleaved stages, and gradients or
weights are not sharded where a pipeline accumulates them (ZeRO 2 and 3), but by FSDP2: our own
engine reduces what it shards after each micro-batch of a pipeline, torchtitan's schedules once.

Stages need not be equal: the last one, then the first, may have a layer less than the others, in
the place of head and embedding (Megatron's account_for_loss_in_pipeline_split and its twin for the
embedding, or its table of a pipeline's layout; Llama 3 herd of models, arXiv 2407.21783, 3.3.2).
Which frameworks are driven so is training's to say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from trainrig.workload.model import ModelShape
    from trainrig.workload.programs.engine import EngineTraits

ONE_BACKWARD = ("1f1b", "gpipe")
"""Schedules whose backward pass is one; in the others inputs' gradients come before weights'."""
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


def nearest_multiple(number: int, divisor: int) -> int:
    """Return the multiple of ``of`` next to ``number``, at least ``of`` itself."""
    return max(divisor, (number + divisor // 2) // divisor * divisor)


def _range(name: str, least: int, most: int) -> Rule:
    def broken(pairing: Pairing) -> bool:
        value = pairing.x.get(name)
        return isinstance(value, bool) or not least <= value <= most

    spelled = "--micro-batch: " * (name == "batch_size") + name.replace("_", "-")
    return Rule(
        broken,
        lambda pairing: f"{spelled} = {pairing.x.get(name)}",
        f"a whole number from {least} to {most}",
    )


RANGES = (
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
    _range("optimizer_in_backward", 0, 1),
    _range("offload_checkpoints", 0, 1),
    _range("efficient_attention", 0, 1),
    _range("fp8_params", 0, 1),
    Rule(
        lambda c: not 0.0 <= c.x.moe.router_spread <= 4.0,
        lambda c: f"router-spread = {c.x.moe.router_spread:g}",
        "from 0, tokens dealt evenly, to 4; 0.3 is usual beside an auxiliary loss",
    ),
)


def _blocks(shape: ModelShape) -> int:
    return shape.num_layers + shape.num_decoder_layers


def longest_stage(shape: ModelShape, stages: Any) -> Any:
    """Layers of the pipeline stages that have most."""
    return -(-_blocks(shape) // stages)


def _bare_ends(layout: Any) -> int:
    """Stages that may have no layer: the embedding's and the head's, but for our own engine."""
    return 0 if layout.traits.models.own_models else 2


def _divisors(number: int) -> str:
    small = [d for d in range(1, min(number, 128) + 1) if number % d == 0]
    return "one of: " + ", ".join(str(divisor) for divisor in small)


def usual_interleave(schedule: str, pp: int) -> int:
    """Groups of layers on each stage where nobody says: ZB-V's two, which is all that it has."""
    return 2 if schedule == "zbv" and pp > 1 else 1


def has_schedule(traits: EngineTraits, schedule: str) -> bool:
    """Return whether a framework's pipelines run it.

    Torch's the zero-bubble ones, Megatron DualPipe.
    """
    return {
        "zb": traits.ranks.zero_bubble,
        "zbv": traits.ranks.zero_bubble,
        "dualpipe": traits.ranks.grad_buffer,
    }.get(schedule, True)


def who_has(schedule: str) -> str:
    """Return a hint: who has the schedule that another framework has not."""
    if schedule == "dualpipe":
        return "--framework megatron (as DeepSeek's own program), or --schedule 1f1b"
    return "--framework native or torchtitan, or --schedule 1f1b"


RULES = (
    Rule(
        lambda c: c.x.mesh.gpus % (c.x.mesh.tp * c.x.mesh.pp * c.x.mesh.cp) != 0,
        lambda c: (
            f"{c.x.mesh.gpus} GPUs cannot be divided into {c.x.mesh.tp} tensor-parallel × "
            f"{c.x.mesh.pp} pipeline"
            + (f" × {c.x.mesh.cp} context-parallel" if c.x.mesh.cp > 1 else "")
        ),
        lambda c: f"a multiple of {c.x.mesh.tp * c.x.mesh.pp * c.x.mesh.cp} GPUs, or fewer parts",
    ),
    Rule(
        lambda c: (
            (c.x.mesh.gpus > c.x.mesh.gpus_per_node) & (c.x.mesh.gpus % c.x.mesh.gpus_per_node != 0)
        ),
        lambda c: f"{c.x.mesh.gpus} GPUs do not fill nodes of {c.x.mesh.gpus_per_node}",
        lambda c: (
            f"as {nearest_multiple(c.x.mesh.gpus, c.x.mesh.gpus_per_node)} GPUs, or other nodes"
        ),
    ),
    Rule(
        lambda c: c.m.attention.num_heads % c.x.mesh.tp != 0,
        lambda c: f"{c.m.attention.num_heads} heads cannot be split over {c.x.mesh.tp}",
        lambda c: "tensor parallel " + _divisors(c.m.attention.num_kv_heads),
    ),
    Rule(
        lambda c: c.m.attention.num_kv_heads % c.x.mesh.tp != 0,
        lambda c: (
            f"{c.m.attention.num_kv_heads} heads of keys and values cannot be split over "
            f"{c.x.mesh.tp}"
        ),
        lambda c: "tensor parallel " + _divisors(c.m.attention.num_kv_heads),
    ),
    Rule(
        lambda c: (c.m.ffn.width % c.x.mesh.tp != 0) | (c.m.hidden % c.x.mesh.tp != 0),
        lambda c: f"widths of {c.m.hidden} and {c.m.ffn.width} cannot be split over {c.x.mesh.tp}",
        lambda c: "tensor parallel " + _divisors(c.m.attention.num_kv_heads),
    ),
    Rule(
        # What exchanges heads for tokens needs some of each; DeepSpeed's deals uneven ones.
        lambda c: (
            (c.x.context == "ulysses")
            & (c.x.traits.models.own_models | (c.x.mesh.cp_comm != "auto"))
            & (c.m.attention.num_kv_heads % (c.x.mesh.tp * c.x.mesh.cp) != 0)
        ),
        lambda c: (
            f"{c.m.attention.num_kv_heads} heads of keys and values cannot be split over "
            f"{c.x.mesh.tp * c.x.mesh.cp} devices that share a sequence"
        ),
        lambda c: (
            "tensor × context parallel "
            + _divisors(c.m.attention.num_kv_heads)
            + "; or --cp-comm ring"
        ),
    ),
    Rule(
        lambda c: (c.x.mesh.cp > 1) & (c.x.batch.seq_len % c.x.mesh.cp != 0),
        lambda c: f"sequences of {c.x.batch.seq_len} cannot be shared by {c.x.mesh.cp}",
        "another --seq-len, or --cp 1",
    ),
    Rule(
        lambda c: (c.x.mesh.cp > 1) & (c.m.num_decoder_layers > 0),
        lambda c: (
            f"context parallelism of an encoder-decoder ({c.m.name}) comes later: what one device "
            "writes begins with another one's last token"
        ),
        "--cp 1, or one of the other families",
    ),
    Rule(
        lambda c: (c.x.mesh.ep > 1) & (c.m.moe.num_experts == 0),
        lambda c: f"{c.m.name} is dense: it has no experts to share",
        "--ep 1, or a mixture of experts",
    ),
    Rule(  # Megatron folds them over the ranks of tensor and context parallel as well
        lambda c: (
            c.x.mesh.gpus
            // c.x.mesh.pp
            // (1 if c.x.traits.ranks.grad_buffer else c.x.mesh.tp * c.x.mesh.cp)
            % c.x.mesh.ep
            != 0
        ),
        lambda c: (
            f"{c.x.mesh.gpus // c.x.mesh.pp if c.x.traits.ranks.grad_buffer else c.x.mesh.dp} "
            "data-parallel ranks "
            f"cannot be cut into groups of {c.x.mesh.ep} for experts"
        ),
        lambda c: "--ep " + _divisors(int(c.x.mesh.dp)),
    ),
    Rule(
        lambda c: (c.x.moe.router_spread > 0) & (c.m.moe.num_experts == 0),
        lambda c: f"{c.m.name} has no experts, and no router deals them tokens",
        "leave --router-spread out",
    ),
    Rule(
        lambda c: c.m.moe.num_experts % c.x.mesh.ep != 0,
        lambda c: f"{c.m.moe.num_experts} experts cannot be dealt to {c.x.mesh.ep} ranks",
        lambda c: "--ep " + _divisors(c.m.moe.num_experts),
    ),
    Rule(
        lambda c: (
            (c.x.mesh.tp > 1)
            & (c.m.moe.num_experts > 0)
            & c.x.traits.models.own_models
            & ((c.x.mesh.ep == 1) | (c.x.mesh.sequence_parallel == 0))
        ),
        lambda _: "experts are not split: tensor parallelism leaves each rank some tokens for them",
        "--ep 2 or more and --sequence-parallel, or --tp 1",
    ),
    Rule(
        lambda c: (c.x.mesh.pp > 1) & (c.m.num_decoder_layers > 0),
        lambda c: (
            f"pipeline stages of an encoder-decoder ({c.m.name}) come later: what the encoder read "
            "goes to every stage of the decoder, and torch's schedules pass on one tensor"
        ),
        "tensor and data parallel are there: --pp 1",
    ),
    Rule(
        lambda c: (c.x.pipeline.interleave > 1) & (c.x.mesh.pp == 1),
        lambda c: f"interleaving {c.x.pipeline.interleave} stages needs a pipeline",
        "--pp 2 or more, or --interleave 1",
    ),
    Rule(
        lambda c: (c.x.pipeline.interleave > 1) & (c.x.pipeline.schedule == "gpipe"),
        lambda _: "GPipe does not interleave its stages",
        "--schedule 1f1b, or --interleave 1",
    ),
    Rule(
        lambda c: (c.x.mesh.pp == 1) & (c.x.pipeline.schedule not in ONE_BACKWARD),
        lambda c: f"schedule {c.x.pipeline.schedule} needs a pipeline",
        "--pp 2 or more, or leave --schedule out",
    ),
    Rule(  # torch's checkpointing and compiled graphs know no backward pass in two halves
        lambda c: (
            (c.x.pipeline.schedule in ("zb", "zbv"))
            & ((c.x.memory.recompute == "selective") | (c.x.kernels.stack == "compiled"))
        ),
        lambda c: (
            f"schedule {c.x.pipeline.schedule} has two backward passes: none through compiled "
            "blocks "
            "or those that are recomputed selectively"
        ),
        "--schedule 1f1b; or --recompute full, without --compile",
    ),
    Rule(
        lambda c: (
            (c.x.mesh.pp > 1) & (c.x.pipeline.interleave != 2) & (c.x.pipeline.schedule == "zbv")
        ),
        lambda _: "ZBV has two stages on each rank",
        "--interleave 2, or --schedule zb",
    ),
    Rule(
        lambda c: (
            (c.x.pipeline.schedule == "dualpipe")
            & (c.x.mesh.pp > 1)
            & (
                (c.x.mesh.pp % 2 > 0)
                | (c.x.pipeline.interleave > 1)
                | (c.x.batch.grad_accum % 2 > 0)
            )
        ),
        lambda _: "DualPipe feeds its stages from both ends: half of them, half of micro-batches",
        "an even --pp and --grad-accum, without --interleave",
    ),
    Rule(
        lambda c: (
            (c.x.pipeline.schedule == "dualpipe")
            & (c.x.batch.grad_accum < 2 * c.x.mesh.pp)
            & (c.x.mesh.pp > 1)
        ),
        lambda c: (
            f"{c.x.batch.grad_accum} micro-batches do not fill DualPipe's {c.x.mesh.pp} stages"
        ),
        lambda c: f"--grad-accum {2 * c.x.mesh.pp} at least",
    ),
    Rule(
        lambda c: not has_schedule(c.x.traits, c.x.pipeline.schedule),
        lambda c: f"{c.x.framework} has no schedule {c.x.pipeline.schedule}",
        lambda c: who_has(c.x.pipeline.schedule),
    ),
    Rule(
        lambda c: (
            (c.x.mesh.pp > 1)
            & (_blocks(c.m) + _bare_ends(c.x) < c.x.mesh.pp * c.x.pipeline.interleave)
        ),
        lambda c: f"{_blocks(c.m)} layers are too few for {_stages(c.x)}",
        lambda c: f"stages × interleaving {_blocks(c.m) + _bare_ends(c.x)} at most",
    ),
    Rule(  # Megatron's pipelines have a layout by hand (--pipeline-model-parallel-layout), and our
        # and torchtitan's groups may have one block more than others
        lambda c: (
            (c.x.mesh.pp > 1)
            & (not (c.x.traits.ranks.grad_buffer | c.x.traits.ranks.shards_stages))
            & (longest_stage(c.m, c.x.mesh.pp) % c.x.pipeline.interleave != 0)
        ),
        lambda c: (
            f"{longest_stage(c.m, c.x.mesh.pp)} layers of a stage cannot be divided into "
            f"{c.x.pipeline.interleave} interleaved groups"
        ),
        lambda c: (
            "--framework megatron, or --interleave "
            + _divisors(longest_stage(c.m, int(c.x.mesh.pp)))
        ),
    ),
    Rule(
        lambda c: (c.x.pipeline.interleave > 1) & (c.x.batch.grad_accum % c.x.mesh.pp != 0),
        lambda c: (
            f"{c.x.batch.grad_accum} micro-batches cannot be dealt to {c.x.mesh.pp} "
            "interleaved stages"
        ),
        lambda c: f"--grad-accum a multiple of {c.x.mesh.pp}, or --interleave 1",
    ),
    Rule(
        lambda c: (c.x.mesh.sequence_parallel > 0) & (c.x.mesh.tp == 1),
        lambda _: "sequence parallelism splits what tensor parallelism leaves whole",
        "--tp 2 or more, or leave --sequence-parallel out",
    ),
    Rule(
        lambda c: (c.x.mesh.sequence_parallel > 0) & (c.x.batch.seq_len % c.x.mesh.tp != 0),
        lambda c: f"sequences of {c.x.batch.seq_len} cannot be split over {c.x.mesh.tp}",
        "another --seq-len, or leave --sequence-parallel out",
    ),
    Rule(
        lambda c: (
            (c.x.mesh.sequence_parallel > 0)
            & (c.m.num_decoder_layers > 0)
            & (c.x.batch.target_seq_len % c.x.mesh.tp != 0)
        ),
        lambda c: (
            f"the {c.x.batch.target_seq_len} tokens that are written cannot be split over "
            f"{c.x.mesh.tp}"
        ),
        "another --seq-len, or leave --sequence-parallel out",
    ),
    Rule(
        lambda c: (
            (c.x.sharding.zero >= 2) & (c.x.mesh.pp > 1) & (not c.x.traits.ranks.shards_stages)
        ),
        lambda c: (
            f"ZeRO {c.x.sharding.zero} cannot shard what {c.x.mesh.pp} pipeline stages accumulate"
        ),
        "--zero 1 with a pipeline, --framework torchtitan or native, or --pp 1",
    ),
    Rule(  # ours reduces where a backward pass ends, and there are two; torchtitan's at the end
        lambda c: (
            (c.x.sharding.zero >= 2)
            & (c.x.mesh.pp > 1)
            & (c.x.pipeline.schedule not in ONE_BACKWARD)
            & c.x.traits.models.own_models
        ),
        lambda c: (
            f"schedule {c.x.pipeline.schedule} computes weights' gradients in a backward pass "
            "of their own, "
            f"and ZeRO {c.x.sharding.zero} shards gradients after the first"
        ),
        "--zero 1, or --schedule 1f1b",
    ),
    Rule(
        lambda c: (c.x.sharding.shard_size > 0) & (c.x.sharding.zero == 0),
        lambda c: f"shards over {c.x.sharding.shard_size} ranks, and nothing is sharded",
        "--zero 1, 2 or 3, or leave --shard-size out",
    ),
    Rule(
        # Where no size is set it is divided by 1: over arrays both sides are computed.
        lambda c: (
            (c.x.sharding.shard_size > 0)
            & (c.x.mesh.dp % (c.x.sharding.shard_size + (c.x.sharding.shard_size == 0)) != 0)
        ),
        lambda c: (
            f"{c.x.mesh.dp} data-parallel ranks cannot be cut into groups of "
            f"{c.x.sharding.shard_size}"
        ),
        lambda c: "--shard-size " + _divisors(int(c.x.mesh.dp)),
    ),
    Rule(
        lambda c: (c.x.scheme == "own") & (c.x.sharding.parallel != "auto"),
        lambda c: f"{c.x.framework} has its own data parallelism, and no {c.x.sharding.parallel}",
        "--framework native or huggingface, or leave --parallel out",
    ),
    Rule(
        lambda c: (
            (c.x.sharding.parallel == "dataparallel")
            & (
                (not c.x.traits.ranks.threads)
                | (c.x.sharding.zero > 0)
                | (c.x.mesh.tp * c.x.mesh.pp * c.x.mesh.cp * c.x.mesh.ep > 1)
            )
        ),
        lambda _: (
            "torch.nn.DataParallel has every weight on every GPU, and is native's or huggingface's"
        ),
        "--framework native --zero 0, or leave --parallel out",
    ),
    Rule(
        lambda c: (
            (c.x.sharding.parallel == "dataparallel") & (c.x.mesh.gpus > c.x.mesh.gpus_per_node)
        ),
        lambda c: (
            f"torch.nn.DataParallel is one process: {c.x.mesh.gpus} GPUs are on several nodes"
        ),
        lambda c: f"--gpus {c.x.mesh.gpus_per_node} at most, or --parallel ddp",
    ),
    Rule(
        lambda c: (
            (c.x.scheme == "ddp")
            & (c.x.mesh.tp * c.x.mesh.pp > 1)
            & ((not c.x.traits.ranks.composes) | (c.x.sharding.parallel == "ddp"))
        ),
        lambda _: "DDP splits neither matrices nor layers",
        "--framework megatron or deepspeed, --zero 3, or --tp 1 --pp 1",
    ),
    Rule(
        lambda c: (c.x.scheme == "ddp") & (c.x.sharding.zero >= 2),
        lambda c: f"DDP shards the optimizer at most, not what ZeRO {c.x.sharding.zero} does",
        "--parallel fsdp, --framework deepspeed, or --zero 1",
    ),
    Rule(
        lambda c: (c.x.scheme == "fsdp") & (c.x.sharding.zero < 2),
        lambda c: f"FSDP shards gradients and weights, and ZeRO {c.x.sharding.zero} neither",
        "--zero 3 (or 2), or --parallel ddp",
    ),
    Rule(
        lambda c: (c.x.lora.quantize != "none") & (c.x.lora.rank == 0),
        lambda c: f"weights in {c.x.lora.quantize} are not trained, and nothing else is",
        "--lora-rank 16, or leave --quantize out",
    ),
    Rule(
        lambda c: (c.x.lora.targets != "auto") & (c.x.lora.rank == 0),
        lambda c: f"lora-on {c.x.lora.targets}: there are no adapters",
        "--lora-rank 16, or leave --lora-on out",
    ),
    Rule(
        lambda c: (c.x.precision.fp8_params > 0) & (c.x.precision.compute != "fp8"),
        lambda c: f"weights in fp8 alone, and products are in {c.x.precision.compute}",
        "--precision fp8, or leave --fp8-params out",
    ),
    Rule(
        lambda c: (c.x.precision.fp8_params > 0) & (not c.x.traits.models.own_kernels),
        lambda c: f"{c.x.framework} keeps wider weights beside those of fp8",
        "--framework megatron, or leave --fp8-params out",
    ),
    Rule(
        lambda c: (c.x.precision.fp8_params > 0) & (c.x.lora.quantize != "none"),
        lambda c: f"frozen weights are held in {c.x.lora.quantize}, not in fp8",
        "leave --quantize or --fp8-params out",
    ),
    Rule(  # bitsandbytes puts its modules in place of torch's Linear
        lambda c: (c.x.lora.quantize != "none") & bool(c.x.traits.models.own_kernels),
        lambda c: f"{c.x.framework} has layers of its own, and {c.x.lora.quantize} is of torch's",
        "--framework huggingface, or --method lora",
    ),
    Rule(
        lambda c: (
            (c.x.precision.grad_reduce == "bf16")
            & (c.x.precision.compute in ("fp16", "fp32", "tf32"))
        ),
        lambda c: f"gradients of {c.x.precision.compute} are not summed in bf16",
        "--grad-reduce fp32 or auto, or --precision bf16",
    ),
    Rule(
        lambda c: (c.x.memory.offload == "none") & (c.x.overlap.offload != "auto"),
        lambda c: f"offload-overlap {c.x.overlap.offload}: nothing is offloaded that could overlap",
        "--offload host, or leave --offload-overlap out",
    ),
    Rule(
        lambda c: (c.x.memory.offload_checkpoints > 0) & (c.x.memory.recompute != "full"),
        lambda c: (
            f"--offload-checkpoints and --recompute {c.x.memory.recompute}: inputs of blocks are "
            "checkpoints only where whole blocks are computed again"
        ),
        "--recompute full, or leave --offload-checkpoints out",
    ),
    Rule(
        lambda c: (c.x.memory.optimizer_in_backward > 0) & (c.x.batch.grad_accum > 1),
        lambda c: (
            f"gradients of {c.x.batch.grad_accum} micro-batches add up: no update in backward"
        ),
        "--grad-accum 1, or leave --optimizer-in-backward out",
    ),
    Rule(
        lambda c: (
            (c.x.memory.optimizer_in_backward > 0)
            & (c.x.traits.ranks.own_scheme | (c.x.mesh.pp > 1) | (c.x.memory.offload != "none"))
        ),
        lambda c: f"{c.x.framework} updates weights after backward, or on the host",
        "--framework native or huggingface, --pp 1, without --offload",
    ),
    Rule(
        lambda c: (
            c.m.positions == "learned"
            and max(c.x.batch.seq_len, c.x.batch.target_seq_len) > c.m.position.max_positions
        ),
        lambda c: (
            f"{c.m.name} knows {c.m.position.max_positions} positions, not {c.x.batch.seq_len}"
        ),
        lambda c: (
            f"--seq-len {c.m.position.max_positions} at most, or a shape with more max_positions"
        ),
    ),
)
"""For numbers within their ranges; those where nothing is divided by 0."""


def _stages(layout: Any) -> str:
    if layout.pipeline.interleave == 1:
        return f"{layout.mesh.pp} stages"
    return f"{layout.mesh.pp} stages × {layout.pipeline.interleave} interleaved"
