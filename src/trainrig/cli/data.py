"""`trainrig data`: text made ready for training, and what a prepared folder holds."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from trainrig.data.manifest import Manifest

_PATH = click.Path(path_type=Path)


@click.group(short_help="Make text ready for training: tokenizer, tokens, a held-out part.")
def command() -> None:
    """Make text ready for training, or show what a prepared folder holds."""


@command.command()
@click.argument("text", nargs=-1, type=_PATH)
@click.option("--out", type=_PATH, help="The folder to make; data/<corpus>-<hash>-... by default.")
@click.option("--vocab", type=int, help="Entries of the tokenizer that is trained; 8192.")
@click.option("--tokenizer", type=_PATH, help="A tokenizer.json to use instead of training one.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def prepare(
    text: tuple[Path, ...],
    out: Path | None,
    vocab: int | None,
    tokenizer: Path | None,
    as_json: bool,
) -> None:
    """Train a tokenizer on TEXT, encode it, hold some of it out.

    \b
    trainrig data prepare
    trainrig data prepare notes.txt articles/ pages.jsonl --vocab 16384

    TEXT is files, folders, or JSON lines with a field "text"; without it, the running
    Python's standard library.  The result is Megatron's .bin and .idx, a tokenizer.json
    and a manifest.  A folder that holds just this already is left as it is.
    """
    from trainrig.data.prepare import prepare as run

    found = run(
        text,
        out=out,
        vocab_size=vocab,
        tokenizer=tokenizer,
        say=lambda line: click.echo(line, err=True),
    )
    if found.reused:
        click.echo("nothing to do: it was prepared before", err=True)
    _show(found.folder, found.manifest, as_json=as_json)


@command.command()
@click.argument("folder", metavar="DIR", type=_PATH)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def info(folder: Path, as_json: bool) -> None:
    """What the prepared folder DIR holds, once each file was found unchanged."""
    from trainrig.data.prepare import verify

    _show(folder, verify(folder), as_json=as_json)


def _show(folder: Path, manifest: Manifest, *, as_json: bool) -> None:
    if as_json:
        content = {"folder": str(folder), **dataclasses.asdict(manifest)}
        click.echo(json.dumps(content, ensure_ascii=False))
        return
    tokens = manifest.tokens
    rows = {
        "folder": folder,
        "corpus": f"{manifest.corpus}, {manifest.num_documents} documents, "
        f"{manifest.num_bytes / 1e6:.1f} MB",
        "hash": manifest.corpus_sha256,
        "tokenizer": f"{'trained here' if tokens.trained else 'given'}, "
        f"vocabulary {tokens.vocab_size}",
        "train": f"{manifest.train.num_tokens} tokens",
        "held out": f"{manifest.heldout.num_tokens} tokens, unigram entropy "
        f"{manifest.unigram_entropy_nats:.3f} nats",
    }
    for name, value in rows.items():
        click.echo(f"{name:<12}{value}")
