"""``trainrig train``: one model, one process, with what each step's time is made of."""

from __future__ import annotations

from pathlib import Path

import click

_PATH = click.Path(path_type=Path)


@click.command(short_help="Train a model on text, and say where each step's time goes.")
@click.option("--model", help="A name, gpt2:num_layers=4,hidden=256, or a config.json.")
@click.option("--batch-size", type=int, help="Samples that go through the model at once.")
@click.option("--seq-len", type=int, help="Tokens of a sample.")
@click.option("--steps", type=int, help="Updates of the weights.")
@click.option("--precision", help="bf16, fp32 or fp16.")
@click.option("--recompute", help="Activation checkpointing: none, selective or full.")
@click.option("--grad-accum", type=int, help="Micro-batches of one step.")
@click.option("--compile", "compiled", is_flag=True, help="torch.compile for each block.")
@click.option("--lr", type=float, help="The highest learning rate.")
@click.option("--seed", type=int, help="Of the first weights and the samples' order.")
@click.option("--data", type=_PATH, help="A prepared folder; Python's standard library without.")
@click.option("--device", help="cpu or cuda:1; a GPU where there is one.")
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
    model: str | None,
    batch_size: int | None,
    seq_len: int | None,
    steps: int | None,
    precision: str | None,
    recompute: str | None,
    grad_accum: int | None,
    compiled: bool,
    lr: float | None,
    seed: int | None,
    data: Path | None,
    device: str | None,
    out: Path,
    resume: Path | None,
    as_json: bool,
) -> int:
    """Train a model, and measure it.

    \b
    trainrig train
    trainrig train --model gpt2 --batch-size 2 --seq-len 256 --steps 50
    trainrig train --resume runs/20270101T000000Z-host-train-1a2b3c --steps 400

    Without options: GPT-2 of 4 layers on Python's standard library, 20 steps in bf16.  A batch
    that does not fit is recorded, and half of it tried.
    """
    from trainrig.cli import watching
    from trainrig.runner import qualify, train

    asked = {
        "model": model,
        "batch": batch_size,
        "seq": seq_len,
        "steps": steps,
        "dtype": precision,
        "recompute": recompute,
        "grad_accum": grad_accum,
        "compile": compiled or None,
        "learning_rate": lr,
        "seed": seed,
        "data": None if data is None else str(data),
    }
    watch = watching.on_stderr()
    experiment = train.experiment_for(asked, resume, watch)
    result = train.train(experiment, device=device, out=out, resume=resume, watch=watch)
    if as_json:
        watching.print_json(train.summary(result))
    else:
        watching.print_run(result.run)
    return qualify.exit_code(result.verdict.outcome, result.interrupted)
