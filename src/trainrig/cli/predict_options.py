"""The options that say what is to be predicted: the same words in every verb that predicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trainrig.cli.verb import (
    FILES,
    GLOBAL_BATCH,
    LENGTH,
    MACHINES,
    MODELS,
    RUN,
    Option,
    names_in,
    option,
    options,
    rows,
)
from trainrig.errors import UsageError

if TYPE_CHECKING:
    from trainrig.prediction.cases.columns import CaseColumn
    from trainrig.prediction.scenario import Measured

_words = partial(names_in, "workload.layout.groups")
RATES_OF = "Take the rates that this run measured, not the catalog's."
PRECISION, KERNELS = rows(
    "",
    ("--precision", _words("PRECISIONS"), "bf16, or what the chip has", "{words}."),
    ("--kernels", _words("KERNELS"), "flash where the chip can", "{words}."),
)
WHAT = rows(
    "Model and numerics",
    ("--model", MODELS, "", "A name, gpt2:num_layers=4,hidden=256, or a config.json."),
    (
        "--seq-len",
        LENGTH,
        "the program's, at most the model's",
        "Tokens of a sample, as 4096 or 8k.",
    ),
    (
        *("--precision", _words("PRECISIONS"), "bf16, or what the chip has"),
        "{words}; mxfp8, nvfp4 and mxfp4 where the chip has them.",
    ),
    ("--kernels", _words("KERNELS"), "as the program does", "{words}."),
    ("--optimizer", _words("OPTIMIZERS"), "adamw-fused, or the program's", "{words}."),
    (
        *("--recompute", _words("RECOMPUTE"), "as the program does"),
        "Recompute activations: none, selective or full (gradient checkpointing).",
    ),
    ("--offload", _words("OFFLOAD"), "none", "Keep the optimizer off the GPU: on host or disk."),
    (
        *("--method", names_in("workload.adapters", "METHODS"), "full"),
        "All weights (full), adapters (lora), or adapters beside 4-bit weights (qlora).",
    ),
    (
        "--lora-rank",
        int,
        "the program's with --method lora, qlora",
        "Train adapters of this rank alone.",
    ),
)
WHERE = rows(
    "Machine",
    (
        *("--on", MACHINES, ""),
        'A chip or server of the catalog: "RTX 3090 Ti", "8x H100 SXM", "DGX H100"; or a .toml.',
    ),
    ("--chip", FILES, "", "A chip of your own, in TOML (docs/machines.md)."),
    ("--cluster", FILES, "", "A cluster of your own: chips, node, links, fabric, CPU."),
    ("--rates", RUN, "", RATES_OF),
    ("--gpus", int, "all of --on, or tp × pp", "Number of GPUs."),
    ("--gpus-per-node", int, "8, or all of fewer", "GPUs a node."),
    ("--link", "LINK", "the chip's own", "Link inside a node: nvlink or pcie."),
    (
        *("--host-memory", float, "the server's; else no limit"),
        "GiB of a server's processors, or of a rack's tray's, for what is offloaded.",
    ),
    (
        "--fabric-gbps",
        float,
        "the usual one for the chip",
        "Network of a server or of a rack's tray, in Gb/s.",
    ),
    ("--p2p/--no-p2p", None, "as the chip can", "One GPU reads another's memory over PCIe."),
)
FRAMEWORK = rows(
    "Layout",
    (
        *("--framework", names_in("workload.programs.names", "NAMES"), "what people run"),
        "Program that trains, and whose defaults hold: {words}.",
    ),
    (
        *("--parallel", _words("PARALLEL"), "as --zero says"),
        "Wrapper of data-parallel ranks: ddp, fsdp or dataparallel.",
    ),
    ("--states", _words("STATES"), "as the framework does", "Weights in mixed precision: {words}."),
    ("--moments", _words("MOMENTS_IN"), "as --states says", "Optimizer's moments in: {words}."),
    (
        *("--lora-on", _words("LORA_ON"), "as the framework does"),
        "With --lora-rank: matrices that have adapters: {words}.",
    ),
    (
        *("--quantize", _words("QUANTIZE"), "none"),
        "With --lora-rank: how frozen weights are stored: {words}.",
    ),
    (
        *("--grad-reduce", _words("GRAD_REDUCE"), "as the framework does"),
        "Gradients are added up and reduced in: {words}.",
    ),
    (
        *("--fp8-params/--no-fp8-params", None, "as the program does"),
        "With fp8 in Megatron: hold weights in fp8 alone.",
    ),
    ("--optimizer-in-backward", None, "", "Update each weight when its gradient is there."),
    (
        *("--offload-checkpoints/--no-offload-checkpoints", None, "as the program does"),
        "With --recompute full: keep the inputs of blocks in host memory.",
    ),
    (
        *("--software", names_in("workload.programs.names", "SOFTWARES"), "current"),
        "Libraries and kernels of a year: {words}.",
    ),
    (
        *("--loss", _words("LOSS"), "as framework and kernels do"),
        "Logits at the loss: {words}.",
    ),
    (
        *("--overlap", _words("OVERLAP"), "as the framework does"),
        "Collectives beside computation: {words}.",
    ),
    (
        *("--cuda-graphs", _words("CUDA_GRAPHS"), "as NVIDIA's recipes for the chip do"),
        "What the host launches as graphs: {words}.",
    ),
    (
        *("--router-spread", float, "0, dealt evenly"),
        "How unevenly a router deals tokens: an expert's deviation of its share; 0.3 is usual.",
    ),
    (
        *("--cp-comm", _words("CP_COMM"), "as the framework does"),
        "How GPUs share a sequence: {words}.",
    ),
    (
        *("--offload-overlap", _words("OFFLOAD_OVERLAP"), "as the framework does"),
        "With --offload: what runs beside the GPU: {words}.",
    ),
)
COMMON = (
    *("--model", "--on", "--gpus", "--method", "--framework", "--seq-len", "--global-batch"),
    *("--micro-batch", "--grad-accum", "--recompute", "--optimizer", "--zero", "--html"),
)
"""Options that `--help` of a predicting verb lists; `--help-all` has the rest."""
BATCH = (
    (
        "--global-batch|--global-batch-size",
        GLOBAL_BATCH,
        "micro-batch × accumulation × ranks",
        "Samples of an optimizer step over all GPUs; 4M: tokens.",
    ),
    (
        "--micro-batch,batch_size|--batch-size|--micro-batch-size",
        int,
        "1, or the program's",
        "Samples that one data-parallel rank processes at once.",
    ),
    (
        "--grad-accum|--gradient-accumulation-steps|--grad-accum-steps",
        int,
        "1, or as --global-batch says",
        "Micro-batches of an optimizer step.",
    ),
)
"""Options for the samples of a step, in every verb that predicts or trains."""
HOW = rows(
    "Layout",
    *BATCH,
    ("--tp", int, "1", "Tensor parallel: GPUs that share a matrix."),
    ("--pp", int, "1", "Pipeline parallel: stages of layers."),
    ("--cp", int, "1", "Context parallel: GPUs that share each sequence."),
    ("--ep", int, "1", "Expert parallel: GPUs that share the experts of a mixture."),
    ("--interleave", int, "1", "Groups of layers on each stage."),
    ("--schedule", _words("SCHEDULES"), "1f1b", "Pipeline schedule: {words}."),
    (
        *("--zero", int, "as the program does; 3 with --parallel fsdp"),
        "Shard over data parallel: 1 optimizer, 2 and gradients, 3 and weights.",
    ),
    ("--shard-size", int, "all data-parallel ranks", "Ranks that share a copy of what is sharded."),
    (
        *("--sequence-parallel/--no-sequence-parallel", None, "as the program does"),
        "With --tp: split norms and dropout along the sequence.",
    ),
    (
        *("--target-seq-len", int, "as many as it reads"),
        "Tokens of a sample that an encoder-decoder writes.",
    ),
    ("--experts", _words("EXPERTS"), "grouped", "How a mixture's experts are computed: {words}."),
    (
        *("--flash-version", names_in("prediction.cluster", "FLASH_VERSIONS"), "auto"),
        "FlashAttention: {words} (FlashAttention-3 and 4, cuDNN, AITER).",
    ),
)

WHAT_IF = option(
    "--what-if",
    metavar="LIST",
    group="Result",
    help="Rank upgrades: nvlink, pcie5, ib-400, +1gpu, +24GB, power=300W.",
)


PRICE = rows(
    "Result",
    (
        *("--price", ["MACHINE=N"], ""),
        "Price of a GPU, to buy or an hour; or N alone, in the machines' order.",
    ),
)


FLAGS = ("sequence_parallel", "optimizer_in_backward", "offload_checkpoints", "fp8_params")
"""Options without a value that are numbers of a layout."""


def machines(
    on: Sequence[str], chip: Sequence[Path], cluster: Sequence[Path], **others: Any
) -> list[dict[str, Any]]:
    """Return the options that were given, once for each machine, flags as the numbers of a layout.

    Raises UsageError for a file that is not named as TOML.
    """
    files = [_toml_file(str(path)) for path in (*chip, *cluster)]
    options_given = {name: value for name, value in others.items() if value is not None}
    options_given |= {flag: int(options_given[flag]) for flag in FLAGS if flag in options_given}
    named = list(dict.fromkeys((*on, *files)))
    return [options_given | {"on": name} for name in named] or [options_given]


def _toml_file(name: str) -> str:
    if not name.lower().endswith(".toml"):
        hint = "as my-chip.toml; a chip or server of the catalog is named by --on"
        raise UsageError(f"{name}: a machine's file is TOML", hint)
    return name


def case_columns() -> tuple[CaseColumn, ...]:
    """Return the columns of ``--cases``: the options above, read as they are on a command line."""

    @options(WHAT, WHERE, FRAMEWORK, HOW)
    def question() -> None: ...

    return tuple(_column(parameter) for parameter in reversed(question.__click_params__))


def _column(declared: Option) -> CaseColumn:
    """Return the column of an option."""
    from trainrig.prediction.cases.columns import CaseColumn

    name, typed = str(declared.name), declared.opts[0].removeprefix("--").replace("-", "_")
    read: Callable[[str], Any] = partial(_value, declared)
    if name in FLAGS:
        read = lambda text: int(_value(declared, text))  # noqa: E731
    elif name in ("chip", "cluster"):
        read = _toml_file
    elif name == "rates":
        read = cache(lambda text: measured(_value(declared, text)))
    return CaseColumn(
        name=typed,
        key="on" if name in ("chip", "cluster") else name if name != typed else "",
        read=read,
        takes=_takes(declared),
        help=declared.help_with_words(),
        aliases=tuple(alias.lstrip("-").replace("-", "_") for alias in declared.aliases),
    )


def _value(declared: Option, text: str) -> Any:
    """Return a cell's value as the option has it.  Raises UsageError."""
    kind = click.BOOL if declared.is_flag else declared.type
    try:
        return kind.convert(text, declared, None)
    except click.BadParameter as error:
        raise UsageError(error.message, f"as {declared.opts[0]} takes it") from None


def _takes(declared: Option) -> str:
    """Return what a cell of an option holds, in a word."""
    if declared.is_flag:
        return "true or false"
    kinds = {click.INT: "whole number", click.FLOAT: "number"}
    kinds |= {LENGTH: "whole number, or 8k", GLOBAL_BATCH: "whole number, or 4M"}
    return kinds.get(declared.type) or ("file" if declared.metavar in ("FILE", "RUN") else "text")


def measured(run: Path | None) -> Measured:
    """Return the rates that a run measured, where one is named.

    Raises DataError where nothing usable was measured.
    """
    from trainrig.prediction.scenario import NOTHING

    if run is None:
        return NOTHING
    from trainrig.runner.view import rates_of_run

    return rates_of_run(run)


def one_machine(**values: Any) -> dict[str, Any]:
    """Return the question about one machine.  Raises UsageError for several."""
    questions = machines(**values)
    if len(questions) > 1:
        raise UsageError(
            f"{len(questions)} machines, and the question is of one", "one --on at a time"
        )
    return questions[0]
