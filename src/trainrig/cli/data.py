"""`trainrig data`: text made ready for training, and what a prepared folder holds."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trainrig.cli.output import say
from trainrig.cli.verb import PATH, Verb, json_option, option

if TYPE_CHECKING:
    from trainrig.data.manifest import Manifest


@click.group()
def command() -> None:
    """Prepare text for training, or show what a prepared folder holds."""


@command.command(cls=Verb, short_help="Train a tokenizer, encode the text, hold some of it out.")
@click.argument("text", nargs=-1, type=PATH)
@option("--out", type=PATH, default_text="data/<corpus>-<hash>-…", help="The folder to make.")
@option("--vocab", type=int, default_text="8192", help="Vocabulary of the tokenizer.")
@option(
    "--tokenizer",
    type=PATH,
    default_text="train one",
    help="A tokenizer.json, vocab.txt, or vocab.json beside merges.txt.",
)
@option("--text-key", default="text", help="Field or column that holds the text.")
@json_option()
def prepare(
    text: tuple[Path, ...],
    out: Path | None,
    vocab: int | None,
    tokenizer: Path | None,
    text_key: str,
    as_json: bool,
) -> None:
    """Train a tokenizer on TEXT, encode it, hold some of it out.

    \b
    trainrig data prepare
    trainrig data prepare notes.txt articles/ pages.jsonl --vocab 16384

    TEXT is files, folders, JSON lines, parquet, or what Hugging Face's datasets saved;
    or Megatron's NAME.bin and NAME.idx, beside their tokenizer; by default the running
    Python's standard library.  The result is Megatron's .bin and .idx, a tokenizer.json
    and a manifest.  A folder that holds just this already is left as it is.
    """
    from trainrig.data.prepare import prepare as run

    prepared = run(
        text,
        out=out,
        vocab_size=vocab,
        tokenizer=tokenizer,
        text_key=text_key,
        say=lambda line: say(line, err=True),
    )
    if prepared.reused:
        say("nothing to do: it was prepared before", err=True)
    _show(prepared.folder, prepared.manifest, as_json=as_json)


@command.command(cls=Verb, short_help="Check a prepared folder and show what it holds.")
@click.argument("folder", metavar="DIR", type=PATH)
@json_option()
def info(folder: Path, as_json: bool) -> None:
    """Check that each file of the prepared folder DIR is unchanged, and show what it holds.

    \b
    trainrig data info data/text-1a2b3c4d-bpe8192

    A file that has changed since it was prepared is refused.
    """
    from trainrig.data.prepare import verify

    _show(folder, verify(folder), as_json=as_json)


def _show(folder: Path, manifest: Manifest, *, as_json: bool) -> None:
    from trainrig.cli.output import print_values

    if as_json:
        print_values({"folder": str(folder), **dataclasses.asdict(manifest)}, as_json)
        return
    tokens = manifest.tokens
    size = f"{manifest.num_documents} documents"
    size += f", {manifest.num_bytes / 1e6:.1f} MB" if manifest.num_bytes else ""
    origin = "trained here" if tokens.trained else "given"
    entropy = f"unigram entropy {manifest.unigram_entropy_nats:.3f} nats"
    facts = {
        "folder": folder,
        "corpus": f"{manifest.corpus}, {size}",
        "hash": manifest.corpus_sha256,
        "tokenizer": f"{origin}, vocabulary {tokens.vocab_size}",
        "train": f"{manifest.train.num_tokens} tokens",
        "held out": f"{manifest.heldout.num_tokens} tokens, {entropy}",
    }
    print_values(facts, as_json)
