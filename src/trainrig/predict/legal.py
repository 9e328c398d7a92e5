"""Which layouts can be run: each rule once, as a sentence for one layout and a mask for many.

Answers what is impossible, not what is slow or does not fit in memory.  A rule says which layouts
break it (`Layout`'s sizes may be arrays) and, for a single one, what to tell and what to do
instead; `check` raises the first that is broken, `mask` is all of them over a search's arrays.

The rules are those of the frameworks that run such layouts (Megatron-LM, DeepSpeed, FSDP): heads
are divided over tensor parallel, layers over pipeline stages, micro-batches over interleaved
stages, and gradients or weights are not sharded where a pipeline accumulates them (ZeRO 2 and 3).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from trainrig.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trainrig.workload.layout import Layout
    from trainrig.workload.model import ModelShape

MOST_GPUS = 1 << 20
MOST_COUNT = 1 << 31
MOST_TOKENS = 1 << 24
"""Longer sequences than any that was trained on: a slip of the keyboard."""

LATER = {
    "expert": "mixture of experts comes later: dense models only so far",
    "context": "context parallelism comes later: the sequence is whole so far",
}


class Asked(NamedTuple):
    """A model and how it is to be run."""

    m: ModelShape
    x: Any
    """A Layout; its numbers are whole or arrays, and rules do not care which."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One reason why a layout cannot be run."""

    broken: Callable[[Asked], Any]
    """True, or an array of it, where it cannot."""
    says: Callable[[Asked], str]
    hint: Callable[[Asked], str] | str

    def error(self, asked: Asked) -> UsageError:
        """What to tell of one layout."""
        hint = self.hint if isinstance(self.hint, str) else self.hint(asked)
        return UsageError(self.says(asked), hint)


def check(shape: ModelShape, layout: Layout) -> None:
    """Raise UsageError with the first rule that one layout breaks."""
    for rule in (*_RANGES, *RULES):
        if bool(rule.broken(Asked(shape, layout))):
            raise rule.error(Asked(shape, layout))


def is_legal(shape: ModelShape, layout: Layout) -> bool:
    """Whether one layout can be run."""
    try:
        check(shape, layout)
    except UsageError:
        return False
    return True


def mask(shape: ModelShape, layout: Layout) -> NDArray[np.bool_]:
    """For each of many layouts whether it can be run; their numbers are from 1 (zero: from 0)."""
    import numpy as np

    legal = np.ones(len(layout), dtype=bool)
    for rule in RULES:
        legal &= ~np.asarray(rule.broken(Asked(shape, layout)), dtype=bool)
    return legal


def refuse_later(**asked: int) -> None:
    """Raise UsageError for kinds of parallelism that are not predicted yet."""
    for name, degree in asked.items():
        if degree != 1:
            raise UsageError(LATER[name], f"leave --{name}-parallel out, or give 1")


def warnings(layout: Layout) -> tuple[str, ...]:
    """What can be run and is seldom meant."""
    found = []
    if layout.tp > layout.gpus_per_node:
        found.append(
            f"tensor parallelism over {layout.tp} GPUs leaves the node of {layout.gpus_per_node}: "
            "each layer waits for the network four times"
        )
    return tuple(found)


def nearest_multiple(number: int, of: int) -> int:
    """The multiple of ``of`` next to ``number``, at least ``of`` itself."""
    return max(of, (number + of // 2) // of * of)


def framework_for(layout: Layout) -> str:
    """The framework that usually runs such a layout, where none is asked for."""
    split = layout.tp * layout.pp > 1
    if layout.zero >= 2 or layout.parallel == "fsdp":
        return "torchtitan" if split else "huggingface"
    if split:
        return "megatron"
    return "huggingface" if layout.gpus > 1 or layout.parallel == "ddp" else "native"


def _range(name: str, least: int, most: int) -> Rule:
    def broken(asked: Asked) -> bool:
        value = getattr(asked.x, name)
        return isinstance(value, bool) or not least <= value <= most

    return Rule(
        broken,
        lambda asked: f"{name.replace('_', '-')} = {getattr(asked.x, name)}",
        f"a whole number from {least} to {most}",
    )


_RANGES = (
    _range("gpus", 1, MOST_GPUS),
    _range("gpus_per_node", 1, 1 << 12),
    *(_range(name, 1, MOST_GPUS) for name in ("tp", "pp", "interleave")),
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


def _mesh(layout: Any) -> str:
    return f"{layout.tp} tensor-parallel × {layout.pp} pipeline"


RULES = (
    Rule(
        lambda c: c.x.gpus % (c.x.tp * c.x.pp) != 0,
        lambda c: f"{c.x.gpus} GPUs cannot be divided into {_mesh(c.x)}",
        lambda c: f"a multiple of {c.x.tp * c.x.pp} GPUs, or fewer parts",
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
            & ((c.x.framework != "native") | (c.x.zero > 0) | (c.x.tp * c.x.pp > 1))
        ),
        lambda _: "torch.nn.DataParallel has every weight on every GPU, in our own framework alone",
        "--framework native --zero 0, or leave --parallel out",
    ),
    Rule(
        lambda c: (c.x.scheme == "ddp") & (c.x.tp * c.x.pp > 1),
        lambda _: "DDP splits neither matrices nor layers",
        "--framework megatron or deepspeed, --zero 3, or --tp 1 --pp 1",
    ),
    Rule(
        lambda c: ((c.x.scheme == "ddp") | (c.x.framework == "megatron")) & (c.x.zero >= 2),
        lambda c: f"{_who(c.x)} shards the optimizer at most, not what ZeRO {c.x.zero} does",
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


def _who(layout: Any) -> str:
    return "megatron" if layout.framework == "megatron" else "DDP"


def _stages(layout: Any) -> str:
    if layout.interleave == 1:
        return f"{layout.pp} stages"
    return f"{layout.pp} stages × {layout.interleave} interleaved"
