"""The line to paste: how a training program is told a layout, in its own words.

launch_lines.toml has each program's command, keys and words, with their source.  What a line
leaves out is the program's default or its user's: data, learning rate, folders.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from trainrig.workload.layout import Layout
from trainrig.workload.model import ModelShape
from trainrig.workload.presets import hub_names

PATH = Path(__file__).parent / "launch_lines.toml"

Keys = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchKeys:
    """Command, keys and words by which one program takes a layout."""

    source: str = ""
    like: str = ""
    """The program whose entry holds for this one, too."""
    start: str = ""
    """The command before its keys."""
    nodes_start: str = ""
    """The command where there are several nodes, to be run on each."""
    pair: str = ""
    """Format of a key and its value."""
    keys: Keys = field(default_factory=dict)
    adapters: Keys = field(default_factory=dict)
    four_bits: Keys = field(default_factory=dict)
    eight_bits: Keys = field(default_factory=dict)
    fp16: Keys = field(default_factory=dict)
    bf16: Keys = field(default_factory=dict)
    several: Keys = field(default_factory=dict)
    nodes: Keys = field(default_factory=dict)
    sharded: Keys = field(default_factory=dict)
    split: Keys = field(default_factory=dict)
    recomputed: Keys = field(default_factory=dict)
    optimizers: Keys = field(default_factory=dict)
    """Its words for optimizers."""


@cache
def programs() -> dict[str, LaunchKeys]:
    """Return every program that lines are known for."""
    content = tomllib.loads(PATH.read_text(encoding="utf-8"))
    entries = {name: LaunchKeys(**keys) for name, keys in content.items() if name != "schema"}
    return {name: entries[entry.like] if entry.like else entry for name, entry in entries.items()}


def launch_line(program: str, shape: ModelShape, layout: Layout, model: str = "") -> str | None:
    """Return the line that starts a layout; None where the program's keys for it are not known.

    Args:
        program: A program's name, as ``--framework`` takes it.
        shape: The model.
        layout: What is run.
        model: The model's name as it was typed.
    """
    known = programs().get(program)
    if known is None or (layout.lora.rank and not known.adapters):
        return None
    has_nodes = layout.mesh.gpus > layout.mesh.gpus_per_node
    if has_nodes and not (known.nodes_start or known.nodes):
        return None
    values = values_of(shape, layout, known) | {"hub": hub_name(shape, model)}
    holds = holds_of(layout)
    pairs = dict(known.keys)
    for name, is_so in holds.items():
        if is_so:
            pairs |= getattr(known, name)
    words = [
        _written(known.pair, key, value.format(**values))
        for key, value in pairs.items()
        if "{optimizer}" not in value or values["optimizer"]
    ]
    start = known.nodes_start if has_nodes and known.nodes_start else known.start
    return " ".join([start.format(**values), *words])


def hub_name(shape: ModelShape, model: str = "") -> str:
    """Return a model's repository on huggingface.co, as it was typed or is known; else MODEL."""
    if "/" in model and not model.endswith(".json"):
        return model
    return hub_names().get(shape.name, "MODEL")


def holds_of(layout: Layout) -> dict[str, bool]:
    """Return which tables of a program's keys hold for a layout."""
    quantize, mesh = layout.lora.quantize, layout.mesh
    return {
        "adapters": layout.lora.rank > 0,
        "four_bits": quantize not in ("none", "int8"),
        "eight_bits": quantize == "int8",
        "fp16": layout.precision.compute == "fp16",
        "bf16": layout.precision.compute == "bf16",
        "several": bool(mesh.gpus > 1),
        "nodes": bool(mesh.gpus > mesh.gpus_per_node),
        "sharded": bool(layout.sharding.zero >= 2),
        "split": bool(mesh.tp * mesh.pp > 1),
        "recomputed": layout.memory.recompute != "none",
    }


def values_of(shape: ModelShape, layout: Layout, program: LaunchKeys) -> dict[str, Any]:
    """Return what the braces of a program's keys stand for."""
    lora, recompute = layout.lora, layout.memory.recompute
    return {
        "model": shape.name,
        "micro_batch": layout.batch.micro,
        "grad_accum": layout.batch.grad_accum,
        "global_batch": layout.global_batch,
        "seq_len": layout.batch.seq_len,
        "gpus": layout.mesh.gpus,
        "gpus_per_node": min(layout.mesh.gpus, layout.mesh.gpus_per_node),
        "nodes": -(-layout.mesh.gpus // layout.mesh.gpus_per_node),
        "tp": layout.mesh.tp,
        "pp": layout.mesh.pp,
        "zero": layout.sharding.zero,
        "recompute": recompute,
        "recomputes": str(recompute != "none").lower(),
        "keeps_all": str(recompute == "none").lower(),
        "optimizer": program.optimizers.get(layout.memory.optimizer, ""),
        "lora_rank": lora.rank,
        "method": "lora" if lora.quantize == "none" else "qlora",
        "finetuning": "lora" if lora.rank else "full",
        "litgpt_verb": "finetune_lora" if lora.rank else "finetune_full",
        "all_micro_batches": layout.batch.grad_accum * layout.mesh.dp,
    }


def _written(pair: str, key: str, value: str) -> str:
    return pair.format(key=key, value=value).rstrip()
