"""``trainrig generate``: text from a training's checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from trainrig.cli.verb import RUN_PATH, json_option, options, rows, verb

_HOW = rows(
    "How to go on",
    ("--prompt", "TEXT", "where a document begins", "What the text begins with."),
    ("--max-tokens", int, "100", "Tokens to generate, at most."),
    ("--temperature", float, "0: the most probable token", "Divides the logits; 1 as trained."),
    ("--top-k", int, "0: all tokens", "Draw among so many of the most probable tokens."),
    ("--seed", int, "0", "Random seed: which tokens are drawn."),
    ("--device", "DEVICE", "cpu", "cpu or cuda."),
)


@verb()
@click.argument("run", type=RUN_PATH)
@options(_HOW)
@json_option()
def command(run: Path, prompt: str | None, as_json: bool, **keys: Any) -> int:
    """Continue a text with what RUN has trained, from its newest checkpoint.

    \b
    trainrig generate runs/20270101T000000Z-host-train-1a2b3c --prompt "def main("
    trainrig generate runs/mine --temperature 0.8 --top-k 50 --seed 1

    RUN is a run of trainrig train, a folder of checkpoints, saved under any layout, or a folder
    that trainrig export wrote.
    """
    import dataclasses

    from trainrig.cli.output import print_json
    from trainrig.errors import EXIT_OK
    from trainrig.train.native.sampling import generate

    settings = {name: value for name, value in keys.items() if value is not None}
    generated = generate(run, prompt or "", **settings)
    if as_json:
        print_json(dataclasses.asdict(generated))
    else:
        click.echo(generated.prompt + generated.text)
    return EXIT_OK
