"""``trainrig train``: a model, or a file of experiments, with what each step's time is made of."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from trainrig.cli.verb import (
    OUT,
    PATH,
    complete_model,
    complete_runs,
    json_option,
    option,
    verb,
)

_what = partial(option, group="What is trained")
_layout = partial(option, group="Devices and layout")
_file = partial(option, group="A file of experiments")


@verb("Train a model, or a file of experiments; where each step's time goes.")
@click.argument("file", required=False, type=PATH)
@_what(
    "--model",
    metavar="NAME",
    shell_complete=complete_model,
    default_text="gpt2-small-cpu",
    help="A name, gpt2:num_layers=4,hidden=256, or a config.json.",
)
@_what(
    "--data",
    type=PATH,
    metavar="DIR",
    default_text="Python's standard library, prepared once",
    help="A folder that trainrig data prepared.",
)
@_what(
    "--batch-size",
    metavar="N|auto",
    default_text="8",
    help="Samples of a micro-batch; auto: the largest that fits.",
)
@_what("--seq-len", type=int, default_text="256", help="Tokens of a sample.")
@_what("--steps", type=int, default_text="20", help="Updates of the weights.")
@_what("--tokens", type=float, metavar="N", help="Total training tokens, instead of --steps.")
@_what("--grad-accum", type=int, default_text="1", help="Micro-batches of a step.")
@_what("--precision", default_text="bf16", help="bf16, fp32 or fp16.")
@_what(
    "--optimizer",
    default_text="adamw-fused",
    help="adamw-fused, adamw, adamw-8bit or sgd.",
)
@_what("--lr", type=float, default_text="0.001", help="The highest learning rate.")
@_what("--seed", type=int, default_text="0", help="Random seed: first weights, order of the data.")
@_what(
    "--recompute",
    default_text="none",
    help="Activation recomputation: none, selective or full.",
)
@_what(
    "--attention",
    default_text="auto",
    help="sdpa (torch's), tiles (ours, short sequences on a CPU), plain, or auto: the fastest.",
)
@_what("--compile", "compiled", is_flag=True, help="Compile each block with torch.compile.")
@_layout("--framework", default_text="native", help="native or huggingface.")
@_layout(
    "--parallel",
    default_text="as --zero says",
    help="Wrapper of data-parallel ranks: ddp, fsdp or dataparallel.",
)
@_layout(
    "--python",
    type=PATH,
    default_text="TRAINRIG_HUGGINGFACE_PYTHON, or this one",
    help="The interpreter of another framework.",
)
@_layout("--device", default_text="a GPU where there is one", help="cpu, cuda or cuda:1.")
@_layout(
    "--devices",
    metavar="N,N",
    default_text="the first ones",
    help="GPUs of the ranks, by the driver's numbers.",
)
@_layout("--nproc", type=int, default_text="1", help="Processes started here, a device each.")
@_layout(
    "--zero",
    type=int,
    default_text="0",
    help="Shard over the ranks: 1 optimizer, 2 and gradients, 3 and weights.",
)
@_layout(
    "--shard-size",
    type=int,
    default_text="all ranks",
    help="Ranks that share one copy of what is sharded.",
)
@_layout(
    "--offload",
    default_text="none",
    help="Where sharded weights and optimizer states live: none (on the GPU) or host.",
)
@_layout(
    "--p2p/--no-p2p",
    default=None,
    default_text="on where the GPUs can",
    help="Whether GPUs copy to each other directly.",
)
@_file("--only", metavar="TEXT", help="Run only experiments whose name contains TEXT.")
@_file(
    "--rounds",
    type=int,
    metavar="N",
    default_text="1",
    help="Repeat each experiment N times, interleaved; 3 or more for a verdict.",
)
@_file("--scale", metavar="tiny", help="Train the models' families at a size that takes seconds.")
@_file(
    "--timeout",
    metavar="TIME",
    default_text="10m",
    help="Give up when no rank has moved for this long.",
)
@_file(
    "--dry-run",
    is_flag=True,
    help="Check everything, show the resolved experiments, and start and write nothing.",
)
@OUT
@option(
    "--resume",
    type=PATH,
    metavar="RUN",
    shell_complete=complete_runs,
    help="Resume an interrupted run from its last checkpoint.",
)
@json_option("Print the result as one JSON object, last.")
def command(
    file: Path | None,
    device: str | None,
    timeout: str | None,
    out: Path,
    resume: Path | None,
    dry_run: bool,
    as_json: bool,
    **keys: Any,
) -> int:
    """Train a model, or the experiments of FILE, and say where each step's time goes.

    \b
    trainrig train
    trainrig train --model gpt2 --batch-size 2 --seq-len 256 --steps 50
    trainrig train --resume runs/20270101T000000Z-host-train-1a2b3c --steps 400
    trainrig train --scale tiny --model gpt2 --nproc 2 --zero 3
    trainrig train experiments/parity.toml --scale tiny --rounds 3
    trainrig train plans/01-native-ddp-b4.toml --dry-run

    A batch that does not fit is recorded, and half of it tried.  With a FILE, another framework or
    a layout, each experiment is trained by processes of its own and compared with one process on
    the same samples.
    """
    from trainrig.cli import output, progress
    from trainrig.errors import UsageError
    from trainrig.runner import session, train, train_prepare, train_resume
    from trainrig.runner.view import view_of
    from trainrig.store import read_run

    if resume is not None and file is not None:
        raise UsageError("a file and a run to resume: which?", "leave one of them out")
    given = {name: value for name, value in keys.items() if value is not None}
    given |= _batch_size(given.pop("batch_size", None)) | _known(device=device)
    given |= {"compile": True} if given.pop("compiled") else {}
    given |= {name: str(given[name]) for name in ("data", "python") if name in given}
    if dry_run:
        return _dry_run(file, given, resume, as_json)
    outcomes = train.train(
        train_resume.experiments_of(resume, given)
        if resume
        else train_prepare.asked_for(file, given),
        out=out,
        watch=progress.on_stderr(),
        stall_timeout=train_prepare.stall_timeout_of(timeout),
        resume=resume,
        full_scale=train_prepare.at_full_scale(file, given),
    )
    if as_json:
        progress.print_json(train.summary(outcomes))
    else:
        from trainrig.report.render.terminal import print_document
        from trainrig.report.training_report import training_document

        with output.best_effort():
            print_document(training_document(view_of(read_run(outcomes.run))), output.console())
            click.echo(f"\n{outcomes.verdict.outcome.value}  {outcomes.verdict.reason}")
            click.echo(f"report: {outcomes.run / 'report.html'}")
    return session.exit_code(outcomes.verdict.outcome, outcomes.interrupted)


def _batch_size(text: str | None) -> dict[str, Any]:
    if text is None or text == "auto":
        return _known(batch_size=text)
    try:
        return {"batch_size": int(text)}
    except ValueError:
        raise click.BadParameter(f"{text!r} is no whole number, nor auto") from None


def _known(**named: Any) -> dict[str, Any]:
    return {name: value for name, value in named.items() if value is not None}


def _dry_run(file: Path | None, keys: dict[str, Any], resume: Path | None, as_json: bool) -> int:
    """The experiments as they are resolved, once nothing speaks against them."""
    import json

    from trainrig.cli import output
    from trainrig.errors import EXIT_OK, UsageError
    from trainrig.report.render.terminal import print_document
    from trainrig.runner.train_prepare import asked_for, resolved, resolved_document

    if resume is not None:
        hint = "leave --dry-run or --resume out"
        raise UsageError("a run that is resumed has been checked already", hint)
    found = resolved(asked_for(file, keys))
    if as_json:
        click.echo(json.dumps({"experiments": found}, ensure_ascii=False))
        return EXIT_OK
    with output.best_effort():
        print_document(resolved_document(found), output.console())
    return EXIT_OK
