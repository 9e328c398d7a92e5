"""``trainrig train``: a model, or a file of experiments, with what each step's time is made of."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import Any

import click

from trainrig.cli.output import say
from trainrig.cli.predict_options import BATCH
from trainrig.cli.verb import (
    DETACH,
    LENGTH,
    MODELS,
    OUT,
    PATH,
    RUN,
    STRICT,
    TIME,
    TOKENS,
    Names,
    json_option,
    names_in,
    option,
    options,
    rows,
    verb,
)

_PRECISIONS = ("auto", "bf16", "fp32", "tf32", "fp16", "fp8")
_words = partial(names_in, "workload.layout.groups")
_WHAT = rows(
    "What is trained",
    (
        *("--model", MODELS, "gpt2-small-cpu"),
        "A name, gpt2:num_layers=4,hidden=256, or a config.json.",
    ),
    (
        *("--data", PATH, "Python's standard library, prepared once"),
        "A folder that trainrig data prepared.",
    ),
    (
        *("--init", PATH, "weights drawn from --seed"),
        "First weights: a run, or a checkpoint of Hugging Face, Megatron or DeepSpeed.",
    ),
    (
        "--micro-batch,batch_size|--batch-size|--micro-batch-size",
        "N|auto",
        "8",
        "Samples that one data-parallel rank processes at once; auto: the largest that fits.",
    ),
    ("--seq-len", LENGTH, "256", "Tokens of a sample, as 4096 or 8k."),
    ("--steps", int, "20", "Updates of the weights."),
    ("--tokens", TOKENS, "", "Total training tokens, instead of --steps."),
    BATCH[2],
    BATCH[0],
    (
        *("--precision", Names(lambda: _PRECISIONS), "the fastest that the device has in hardware"),
        "auto, bf16, fp32, tf32, fp16 or fp8.",
    ),
    (
        *("--optimizer", _words("OPTIMIZERS"), "adamw-fused"),
        "adamw-fused, adamw, adamw-8bit or sgd.",
    ),
    ("--lr", float, "0.001", "The highest learning rate."),
    (
        *("--lr-schedule", names_in("train.experiment_parts", "LR_SCHEDULES"), "{first}"),
        "How it goes down: {words}.",
    ),
    ("--warmup", int, "a tenth of the steps, at most 100", "Steps until it is reached."),
    ("--log", ["NAME"], "nowhere", "Log steps to tensorboard or mlflow, too; may be repeated."),
    ("--heldout-every", int, "at the end alone", "Steps between held-out losses."),
    ("--seed", int, "0", "Random seed: first weights, order of the data."),
    ("--recompute", _words("RECOMPUTE"), "none", "Recompute activations: selective or full."),
    (
        *("--attention", "WORD", "auto"),
        "sdpa (torch's), tiles (ours, short sequences on a CPU), plain, or auto: the fastest.",
    ),
    ("--compile", None, "", "Compile each block with torch.compile."),
)
_LAYOUT = rows(
    "Devices and layout",
    (
        "--framework",
        names_in("train.engines", "ENGINES"),
        "{first}",
        "Whose program trains: {words}.",
    ),
    (
        *("--parallel", _words("PARALLEL"), "as --zero says"),
        "Wrapper of data-parallel ranks: ddp, fsdp or dataparallel.",
    ),
    (
        *("--python", PATH, "TRAINRIG_HUGGINGFACE_PYTHON, or this one"),
        "The interpreter of another framework.",
    ),
    ("--device", "DEVICE", "a GPU where there is one", "cpu, cuda or cuda:1."),
    (
        "--devices",
        "N,N",
        "the first ones",
        "GPUs of the ranks by nvidia-smi's numbers, as CUDA_VISIBLE_DEVICES has them.",
    ),
    ("--nproc", int, "1", "Processes started here, a device each."),
    ("--zero", int, "0", "Shard over the ranks: 1 optimizer, 2 and gradients, 3 and weights."),
    ("--shard-size", int, "all ranks", "Ranks that share a copy of what is sharded."),
    ("--tp", int, "1", "Tensor parallel: ranks that share each matrix."),
    ("--sequence-parallel", None, "", "With --tp: split norms along the sequence, too."),
    ("--pp", int, "1", "Pipeline parallel: stages of layers."),
    ("--interleave", int, "1", "Groups of layers on each stage."),
    ("--schedule", _words("SCHEDULES"), "1f1b", "Pipeline schedule: {words}."),
    ("--cp", int, "1", "Context parallel: ranks that share each sequence."),
    ("--ep", int, "1", "Expert parallel: data-parallel ranks that share the experts."),
    (
        *("--offload", Names(lambda: ("none", "host")), "none"),
        "Where sharded weights and optimizer states live: none (on the GPU) or host.",
    ),
    ("--checkpoint-every", int, "100", "Steps between checkpoints; 0: none by steps."),
    ("--checkpoint-interval", TIME, "10m", "Time between checkpoints, whatever the steps."),
    ("--keep-checkpoints", int, "2", "The newest checkpoints that stay."),
    ("--max-restarts", int, "0", "Restarts from the newest checkpoint after a rank is lost."),
    ("--min-nproc", int, "all", "With --max-restarts: fewest ranks to go on with."),
    ("--p2p/--no-p2p", None, "on where the GPUs can", "GPUs copy to each other directly."),
    (
        "--bind",
        None,
        "",
        "Keep each rank on cores of its GPU's NUMA node, as numactl does; on a CPU, of its own.",
    ),
)
_FILE = rows(
    "A file of experiments",
    ("--only", ["TEXT"], "", "Run only experiments whose name contains TEXT; may be repeated."),
    ("--rounds", int, "1", "Repeat each, interleaved; 3 or more for a verdict."),
    ("--scale", "tiny", "", "Train the models' families at a size that takes seconds."),
    ("--timeout", TIME, "10m", "Give up when no rank has moved for this long."),
    ("--write", PATH, "", "Write scripts for torchrun and Slurm to this folder; train nothing."),
    ("--nodes", int, "1", "With --write: machines that share the ranks out (sbatch --nodes)."),
    ("--dry-run", None, "", "Show the resolved experiments; start and write nothing."),
)


_COMMON = (
    *("--model", "--data", "--micro-batch", "--grad-accum", "--global-batch", "--seq-len"),
    *("--steps", "--precision", "--lr", "--recompute", "--compile", "--framework", "--nproc"),
    *("--zero", "--resume", "--dry-run", "--detach"),
)
"""Options that `--help` lists; `--help-all` has the rest."""


@verb(common=_COMMON)
@click.argument("file", required=False, type=PATH)
@options(_WHAT, _LAYOUT, _FILE)
@OUT
@option("--resume", **RUN, help="Resume an interrupted run from its last checkpoint.")
@option("--trace", is_flag=True, help="Keep the profiler's trace of each rank beside the run.")
@DETACH
@STRICT
@json_option("Print the result as one JSON object, last.")
def command(
    file: Path | None,
    batch_size: str | None,
    timeout: float | None,
    checkpoint_interval: float | None,
    out: Path,
    resume: Path | None,
    write: Path | None,
    nodes: int | None,
    dry_run: bool | None,
    trace: bool,
    detach: str,
    strict: bool,
    as_json: bool,
    **keys: Any,
) -> int:
    """Train a model, or the experiments of FILE, and say where each step's time goes.

    \b
    trainrig train
    trainrig train --model gpt2 --micro-batch 2 --seq-len 256 --steps 50
    trainrig train --resume runs/20270101T000000Z-host-train-1a2b3c --steps 400
    trainrig train --scale tiny --model gpt2 --nproc 2 --zero 3
    trainrig train experiments/parity.toml --scale tiny --rounds 3
    trainrig train plans/01-native-ddp-b4.toml --dry-run
    trainrig train --model gpt2 --steps 10000 --detach

    A batch that does not fit is recorded, and half of it tried.  With a FILE, another framework or
    a layout, each experiment is trained by processes of its own and compared with one process on
    the same samples.
    """
    from trainrig.cli import output, progress
    from trainrig.errors import EXIT_OK, UsageError
    from trainrig.report.training_report import training_document
    from trainrig.runner import launch_scripts, train, train_prepare, train_resume
    from trainrig.runner.view import training_summary, view_of
    from trainrig.store import read_run

    if resume is not None and file is not None:
        raise UsageError("a file and a run to resume: which?", "leave one of them out")
    if resume is not None and (dry_run or write):
        hint = "leave --dry-run and --write, or --resume, out"
        raise UsageError("a run that is resumed has been checked already", hint)
    settings = _given(keys, batch_size, checkpoint_interval)
    look = cache(train_prepare.this_site)
    experiments = (
        train_resume.experiments_of(resume, settings)
        if resume
        else train_prepare.requested_experiments(file, settings, look)
    )
    stall_timeout = train_prepare.stall_timeout_of(timeout)
    if dry_run:
        resolved = train_prepare.resolved(experiments)
        output.answer(
            as_json,
            lambda: {"experiments": resolved},
            lambda: train_prepare.resolved_document(
                resolved, train_prepare.precision_lines(experiments, look())
            ),
            schema="train-dry-run",
        )
        return EXIT_OK
    if nodes is not None and (write is None or nodes < 1):
        raise UsageError(
            f"--nodes {nodes}: " + ("at least 1" if nodes < 1 else "only with --write"),
            "trainrig train FILE --write FOLDER --nodes 2",
        )
    if write is not None:
        watch = progress.on_stderr()
        folders = launch_scripts.write_scripts(
            experiments, write, watch, stall_timeout, nodes=nodes or 1, runs=out
        )
        output.answer(
            as_json,
            lambda: {"folders": [str(folder) for folder in folders]},
            lambda: launch_scripts.scripts_document(folders),
            schema="train-write",
        )
        return EXIT_OK
    if detach:  # what can be refused was refused above, where somebody reads it
        return progress.detach(out, resume, detach, as_json=as_json)
    outcomes = train.train(
        experiments,
        out=out,
        watch=progress.on_stderr(),
        stall_timeout=stall_timeout,
        resume=resume,
        full_scale=train_prepare.at_full_scale(file, settings),
        trace=trace,
    )
    with output.best_effort():
        if as_json:
            output.print_json(training_summary(outcomes))
        else:
            output.print_text(training_document(view_of(read_run(outcomes.run))))
            say(f"\n{outcomes.verdict.outcome.value}  {outcomes.verdict.reason}")
            say(f"report: {outcomes.run / 'report.html'}")
    return outcomes.exit_code(strict=strict)


def _given(
    keys: dict[str, Any], batch_size: str | None, checkpoint_interval: float | None
) -> dict[str, Any]:
    """Return the keys of an experiment that the command line gives."""
    settings = {name: value for name, value in keys.items() if value not in (None, ())}
    settings |= {
        name: str(settings[name]) for name in ("data", "init", "python") if name in settings
    }
    settings |= {"log": ",".join(settings["log"])} if "log" in settings else {}
    if batch_size is not None:
        settings["batch_size"] = _batch_size(batch_size)
    if checkpoint_interval is not None:
        settings["checkpoint_interval"] = checkpoint_interval
    return settings


def _batch_size(text: str) -> int | str:
    try:
        return text if text == "auto" else int(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no whole number, nor auto") from None
