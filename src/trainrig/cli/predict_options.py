"""The options that say what is to be predicted: the same words in every verb that predicts."""

from __future__ import annotations

from functools import partial
from typing import Any

from trainrig.cli.verb import (
    PATH,
    complete_chip,
    complete_model,
    complete_runs,
    completes_layout,
    option,
)

_model = partial(option, group="Model and numerics")
_machine = partial(option, group="Machine")
_layout = partial(option, group="Layout")

WHAT = (
    _model(
        "--model",
        metavar="NAME",
        shell_complete=complete_model,
        help="A name, gpt2:num_layers=4,hidden=256, or a config.json.",
    ),
    _model(
        "--seq-len",
        type=int,
        default_text="the model's, at most 4096",
        help="Tokens of a sample.",
    ),
    _model(
        "--precision",
        shell_complete=completes_layout("PRECISIONS"),
        default_text="bf16, or what the chip has",
        help="bf16, fp16, fp32, tf32 or fp8.",
    ),
    _model(
        "--kernels",
        shell_complete=completes_layout("KERNELS"),
        default_text="flash where the chip can",
        help="eager, fused, flash, flash+fused or compiled.",
    ),
    _model(
        "--optimizer",
        shell_complete=completes_layout("OPTIMIZERS"),
        default_text="adamw-fused",
        help="adamw-fused, adamw, adamw-8bit, sgd or adafactor.",
    ),
    _model(
        "--recompute",
        shell_complete=completes_layout("RECOMPUTE"),
        default_text="none",
        help="Activation recomputation: none, selective or full.",
    ),
    _model(
        "--offload",
        shell_complete=completes_layout("OFFLOAD"),
        default_text="none",
        help="Where the optimizer lives: none (on the GPU), host or disk.",
    ),
    _model(
        "--lora-rank",
        type=int,
        default_text="0, all weights are trained",
        help="Train adapters of this rank alone.",
    ),
)
WHERE = (
    _machine(
        "--on",
        metavar="CHIP",
        shell_complete=complete_chip,
        help='A chip of the catalog: "RTX 3090 Ti".',
    ),
    _machine(
        "--rates",
        metavar="RUN",
        type=PATH,
        shell_complete=complete_runs,
        help="Take the rates that this run measured, not the catalog's.",
    ),
    _machine("--gpus", type=int, default_text="tp × pp", help="Number of GPUs."),
    _machine("--gpus-per-node", type=int, default_text="8, or all of fewer", help="GPUs a node."),
    _machine("--link", default_text="the chip's own", help="Link inside a node: nvlink or pcie."),
    _machine(
        "--fabric-gbps",
        type=float,
        default_text="the usual one for the chip",
        help="Network of a node, in Gb/s.",
    ),
    _machine(
        "--p2p/--no-p2p",
        default=None,
        default_text="as the chip can",
        help="Whether one GPU reads another's memory over PCIe.",
    ),
)
FRAMEWORK = (
    _layout(
        "--framework",
        shell_complete=completes_layout("FRAMEWORKS"),
        default_text="by the layout",
        help="native, huggingface, deepspeed, megatron or torchtitan.",
    ),
    _layout(
        "--parallel",
        shell_complete=completes_layout("PARALLEL"),
        default_text="as --zero says",
        help="Wrapper of data-parallel ranks: ddp or fsdp.",
    ),
)
HOW = (
    _layout("--batch-size", type=int, default_text="1", help="Samples of a micro-batch on a rank."),
    _layout("--grad-accum", type=int, default_text="1", help="Micro-batches of a step."),
    _layout("--tp", type=int, default_text="1", help="Tensor parallel: GPUs that share a matrix."),
    _layout("--pp", type=int, default_text="1", help="Pipeline parallel: stages of layers."),
    _layout("--interleave", type=int, default_text="1", help="Groups of layers on each stage."),
    _layout(
        "--schedule",
        shell_complete=completes_layout("SCHEDULES"),
        default_text="1f1b",
        help="Pipeline schedule: 1f1b or gpipe.",
    ),
    _layout(
        "--zero",
        type=int,
        default_text="0; 3 with --parallel fsdp",
        help="Shard over data parallel: 1 optimizer, 2 and gradients, 3 and weights.",
    ),
    _layout(
        "--shard-size",
        type=int,
        default_text="all data-parallel ranks",
        help="Ranks that share one copy of what is sharded.",
    ),
    _layout(
        "--sequence-parallel",
        is_flag=True,
        default=None,
        help="With --tp: split norms and dropout along the sequence.",
    ),
)
LATER = (
    option("--expert-parallel", "--ep", type=int, hidden=True, help="Not available yet."),
    option("--context-parallel", "--cp", type=int, hidden=True, help="Not available yet."),
)
WHAT_IF = option(
    "--what-if",
    metavar="LIST",
    group="Result",
    help="Rank upgrades: nvlink, pcie5, ib-400, +1gpu, +24GB, power=300W.",
)


def given(**values: Any) -> dict[str, Any]:
    """The options that were given, with flags as the numbers that a layout has."""
    found = {name: value for name, value in values.items() if value is not None}
    if "sequence_parallel" in found:
        found["sequence_parallel"] = int(found["sequence_parallel"])
    return found
