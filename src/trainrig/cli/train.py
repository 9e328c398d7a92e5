"""``trainrig train``: a model, or a file of experiments, with what each step's time is made of."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from trainrig.runner.progress import Watcher

_PATH = click.Path(path_type=Path)


@click.command(short_help="Train a model on text, and say where each step's time goes.")
@click.argument("file", required=False, type=_PATH)
@click.option("--model", help="A name, gpt2:num_layers=4,hidden=256, or a config.json.")
@click.option("--batch-size", metavar="N|auto", help="Samples at once; auto: what fits.")
@click.option("--seq-len", type=int, help="Tokens of a sample.")
@click.option("--steps", type=int, help="Updates of the weights.")
@click.option("--tokens", type=float, help="In all, instead of steps.")
@click.option("--precision", help="bf16, fp32 or fp16.")
@click.option("--recompute", help="Activation checkpointing: none, selective or full.")
@click.option("--grad-accum", type=int, help="Micro-batches of one step.")
@click.option("--compile", "compiled", is_flag=True, help="torch.compile for each block.")
@click.option("--lr", type=float, help="The highest learning rate.")
@click.option("--seed", type=int, help="Of the first weights and the samples' order.")
@click.option("--data", type=_PATH, help="A prepared folder; Python's standard library without.")
@click.option("--device", help="cpu or cuda:1; a GPU where there is one.")
@click.option("--devices", metavar="N,N", help="GPUs of the ranks, by the driver's numbers.")
@click.option("--backend", help="native, huggingface or dataparallel.")
@click.option("--python", type=_PATH, help="The interpreter of a backend that is not ours.")
@click.option("--scale", help="tiny: the model's family at a size that trains in seconds.")
@click.option("--only", metavar="WORDS", help="Of a file, the experiments so called.")
@click.option("--nproc", type=int, help="Ranks that share the data, a device each.")
@click.option("--zero", type=int, help="0 to 3: what is spread over the ranks (ZeRO).")
@click.option("--shard-size", type=int, help="Ranks that share one copy (hybrid sharding).")
@click.option("--offload", help="none, or host: sharded weights and states wait there.")
@click.option("--optimizer", help="adamw (fused), adamw-plain, adamw-8bit or sgd.")
@click.option("--p2p/--no-p2p", default=None, help="Whether GPUs copy to each other directly.")
@click.option("--rounds", type=int, help="Train each so often, in turns: ratios rest on rounds.")
@click.option("--timeout", metavar="TIME", help="Give up when no rank moves for so long: 10m.")
@click.option(
    "--out",
    type=_PATH,
    default=Path("runs"),
    show_default=True,
    help="Folder in which the run's folder is made.",
)
@click.option("--resume", type=_PATH, help="A run to go on with, from its last checkpoint.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object, last.")
def command(
    file: Path | None,
    device: str | None,
    timeout: str | None,
    out: Path,
    resume: Path | None,
    as_json: bool,
    **keys: Any,
) -> int:
    """Train a model, and measure it.

    \b
    trainrig train
    trainrig train --model gpt2 --batch-size 2 --seq-len 256 --steps 50
    trainrig train --resume runs/20270101T000000Z-host-train-1a2b3c --steps 400
    trainrig train --scale tiny --model gpt2 --nproc 2 --zero 3
    trainrig train experiments/parity.toml --scale tiny --rounds 3

    Without options: GPT-2 of 4 layers on Python's standard library, 20 steps in bf16.  A batch
    that does not fit is recorded, and half of it tried.  With a FILE, a backend or a layout: each
    experiment in processes of its own, compared with one process on the same samples.
    """
    from trainrig.cli import progress

    watch = progress.on_stderr()
    asked = {name: value for name, value in keys.items() if value is not None}
    asked |= _batch_size(asked.pop("batch_size", None))
    asked |= {"compile": True} if asked.pop("compiled") else {}
    asked |= {name: str(asked[name]) for name in ("data", "python") if name in asked}
    if timeout or file or _LAYOUT & asked.keys() or _of_experiments(asked, resume):
        asked |= _known(device=device)
        return _experiments(file, asked, timeout, out, resume, watch, as_json)
    return _alone(asked, device, out, resume, watch, as_json)


_LAYOUT = {
    "backend",
    "devices",
    "python",
    "scale",
    "only",
    "tokens",
    "nproc",
    "zero",
    "shard_size",
    "offload",
    "optimizer",
    "p2p",
    "rounds",
}
"""What one process that trains for itself knows nothing of."""


def _of_experiments(asked: dict[str, Any], resume: Path | None) -> bool:
    from trainrig.runner.train_resume import is_of_experiments

    return asked.get("batch_size") == "auto" or (resume is not None and is_of_experiments(resume))


def _batch_size(said: str | None) -> dict[str, Any]:
    if said is None or said == "auto":
        return _known(batch_size=said)
    try:
        return {"batch_size": int(said)}
    except ValueError:
        raise click.BadParameter(f"{said!r} is no whole number, nor auto") from None


def _known(**named: Any) -> dict[str, Any]:
    return {name: value for name, value in named.items() if value is not None}


def _alone(
    keys: dict[str, Any],
    device: str | None,
    out: Path,
    resume: Path | None,
    watch: Watcher,
    as_json: bool,
) -> int:
    """One process, measured as a level of the waterfall."""
    from trainrig.cli import progress
    from trainrig.runner import session, train
    from trainrig.train.config_file import FIELDS

    asked = {FIELDS.get(name, name): value for name, value in keys.items()}
    experiment = train.experiment_for(asked, resume, watch)
    result = train.train(experiment, device=device, out=out, resume=resume, watch=watch)
    if as_json:
        progress.print_json(train.summary(result))
    else:
        progress.print_run(result.run)
    return session.exit_code(result.verdict.outcome, result.interrupted)


def _experiments(
    file: Path | None,
    keys: dict[str, Any],
    timeout: str | None,
    out: Path,
    resume: Path | None,
    watch: Watcher,
    as_json: bool,
) -> int:
    """Experiments, compared."""
    from trainrig.cli import output, progress
    from trainrig.errors import UsageError
    from trainrig.runner import experiments, session, train_resume

    if resume is not None and file is not None:
        raise UsageError("a file and a run to resume: which?", "leave one of them out")
    asked = train_resume.experiments_of(resume, keys) if resume else None
    asked = asked or experiments.asked_for(file, keys)
    outcomes = experiments.run_experiments(
        asked,
        out=out,
        watch=watch,
        stall_timeout=experiments.stall_timeout_of(timeout),
        resume=resume,
        full_scale=experiments.at_full_scale(file, keys),
    )
    found = experiments.summary(outcomes)
    if as_json:
        progress.print_json(found)
    else:
        from trainrig.report.render.terminal import print_document
        from trainrig.report.training_report import training_document
        from trainrig.runner.view import view_of
        from trainrig.store import read_run

        with output.best_effort():
            print_document(training_document(view_of(read_run(outcomes.run))), output.console())
            click.echo(f"\n{found['verdict']}  {found['verdict_reason']}")
            click.echo(f"report: {found['report']}")
    return session.exit_code(outcomes.verdict.outcome, outcomes.interrupted)
