"""The options that say what is to be predicted: the same words in every verb that predicts."""

from __future__ import annotations

from functools import partial
from typing import Any

from trainrig.cli.verb import CHIPS, MODELS, PATH, complete_runs, names_in, option, rows

_words = partial(names_in, "workload.layout")
WHAT = rows(
    "Model and numerics",
    ("--model", MODELS, "", "A name, gpt2:num_layers=4,hidden=256, or a config.json."),
    ("--seq-len", int, "the model's, at most 4096", "Tokens of a sample."),
    ("--precision", _words("PRECISIONS"), "bf16, or what the chip has", "{words}."),
    ("--kernels", _words("KERNELS"), "flash where the chip can", "{words}."),
    ("--optimizer", _words("OPTIMIZERS"), "adamw-fused", "{words}."),
    ("--recompute", _words("RECOMPUTE"), "none", "Recompute activations: selective or full."),
    ("--offload", _words("OFFLOAD"), "none", "Keep the optimizer off the GPU: on host or disk."),
    ("--lora-rank", int, "0, all weights are trained", "Train adapters of this rank alone."),
)
WHERE = (
    *rows("Machine", ("--on", CHIPS, "", 'A chip of the catalog: "RTX 3090 Ti".')),
    option(
        "--rates",
        metavar="RUN",
        type=PATH,
        group="Machine",
        shell_complete=complete_runs,
        help="Take the rates that this run measured, not the catalog's.",
    ),
    *rows(
        "Machine",
        ("--gpus", int, "tp × pp", "Number of GPUs."),
        ("--gpus-per-node", int, "8, or all of fewer", "GPUs a node."),
        ("--link", "LINK", "the chip's own", "Link inside a node: nvlink or pcie."),
        ("--fabric-gbps", float, "the usual one for the chip", "Network of a node, in Gb/s."),
        ("--p2p/--no-p2p", None, "as the chip can", "One GPU reads another's memory over PCIe."),
    ),
)
FRAMEWORK = rows(
    "Layout",
    ("--framework", _words("FRAMEWORKS"), "by the layout", "{words}."),
    (
        *("--parallel", _words("PARALLEL"), "as --zero says"),
        "Wrapper of data-parallel ranks: ddp or fsdp.",
    ),
    (
        *("--overlap", _words("OVERLAP"), "as the framework does"),
        "Collectives beside computation: {words}.",
    ),
)
HOW = rows(
    "Layout",
    ("--batch-size", int, "1", "Samples of a micro-batch on a rank."),
    ("--grad-accum", int, "1", "Micro-batches of a step."),
    ("--tp", int, "1", "Tensor parallel: GPUs that share a matrix."),
    ("--pp", int, "1", "Pipeline parallel: stages of layers."),
    ("--cp", int, "1", "Context parallel: GPUs that share each sequence."),
    ("--ep", int, "1", "Expert parallel: GPUs that share the experts of a mixture."),
    ("--interleave", int, "1", "Groups of layers on each stage."),
    ("--schedule", _words("SCHEDULES"), "1f1b", "Pipeline schedule: {words}."),
    (
        *("--zero", int, "0; 3 with --parallel fsdp"),
        "Shard over data parallel: 1 optimizer, 2 and gradients, 3 and weights.",
    ),
    ("--shard-size", int, "all data-parallel ranks", "Ranks that share a copy of what is sharded."),
    ("--sequence-parallel", None, "", "With --tp: split norms and dropout along the sequence."),
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
