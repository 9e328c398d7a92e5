"""The options that say what is to be predicted: the same words in every verb that predicts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

Decorated = Callable[..., Any]


def _option(*names: str, help: str, **settings: Any) -> Callable[[Decorated], Decorated]:  # noqa: A002
    return click.option(*names, help=help, **settings)


WHAT = (
    _option("--model", help="A name, gpt2:num_layers=4,hidden=256, or a config.json."),
    _option("--seq-len", "seq", type=int, help="Tokens of a sample; the model's, 4096 at most."),
    _option("--precision", help="bf16, fp16, fp32, tf32 or fp8."),
    _option("--kernels", help="eager, fused, flash, flash+fused or compiled."),
    _option("--engine", help="plain, ddp, fsdp, megatron or deepspeed; the usual one without."),
    _option("--optimizer", help="adamw-fused, adamw, adamw-8bit, sgd or adafactor."),
    _option("--recompute", help="Activation recomputation: none, selective or full."),
    _option("--offload", help="Where the optimizer lives: none, host or disk."),
    _option("--lora-rank", type=int, help="Train adapters of this rank, and no weights."),
)
WHERE = (
    _option("--on", help='A chip of the catalog: "RTX 3090 Ti".'),
    _option("--rates", type=click.Path(path_type=Path), help="Measured rates: a run's folder."),
    _option("--gpus", type=int, help="How many."),
    _option("--gpus-per-node", type=int, help="8, or all of fewer."),
    _option("--link", help="Inside a node: nvlink, pcie; the chip's own without."),
    _option("--fabric-gbps", type=float, help="Gb/s of one node into the network."),
    _option("--p2p/--no-p2p", default=None, help="One GPU reads another's memory over PCIe."),
)
HOW = (
    _option("--batch-size", "micro_batch", type=int, help="Samples that a rank runs at once."),
    _option("--grad-accum", type=int, help="Micro-batches of a step."),
    _option("--tp", type=int, help="Tensor parallel: GPUs that share each matrix."),
    _option("--pp", type=int, help="Pipeline parallel: stages of layers."),
    _option("--interleave", type=int, help="Groups of layers that a stage holds."),
    _option("--schedule", help="Of the pipeline: 1f1b or gpipe."),
    _option("--zero", type=int, help="1: optimizer sharded, 2: gradients too, 3: weights too."),
    _option("--shard-size", type=int, help="Ranks that share one copy; all without."),
    _option(
        "--sequence-parallel", is_flag=True, default=None, help="Split along the sequence, too."
    ),
)
LATER = (
    _option("--expert-parallel", "--ep", type=int, hidden=True, help="Comes later."),
    _option("--context-parallel", "--cp", type=int, hidden=True, help="Comes later."),
)


def options(*groups: tuple[Callable[[Decorated], Decorated], ...]) -> Callable[..., Decorated]:
    """All options of some groups, in their order."""

    def decorate(command: Decorated) -> Decorated:
        for option in reversed([one for group in groups for one in group]):
            command = option(command)
        return command

    return decorate


def said(**values: Any) -> dict[str, Any]:
    """What was said, with flags as the numbers that a layout has."""
    found = {name: value for name, value in values.items() if value is not None}
    if "sequence_parallel" in found:
        found["sequence_parallel"] = int(found["sequence_parallel"])
    return found
