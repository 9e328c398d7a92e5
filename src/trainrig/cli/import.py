"""``trainrig import``: what other tools measured, as a run."""

from __future__ import annotations

from pathlib import Path

import click

from trainrig.cli.verb import CHIPS, MODELS, OUT, PATH, Names, json_option, option, verb
from trainrig.importers import importers

_NAMES = tuple(importer.name for importer in importers())
_WIDTH = 2 + max(map(len, _NAMES))

_TEXT = f"""Read FILE, which another tool wrote, into a run beside those of trainrig.

\b
trainrig import all_reduce.txt
trainrig import nvbandwidth.json p2p.txt smi-q.txt
ssh host nvidia-smi -q | trainrig import -
trainrig import train.log --as megatron --model llama-7B --on A100-SXM4-80GB

\b
{chr(10).join(f"{importer.name + ':':{_WIDTH}}{importer.title}" for importer in importers())}

Files are recognised by content, each run of each tool in them; - is standard input.  Several
files become one run of one machine.  report, compare and ledger
read it like any other.  A file that cannot be read is refused with its line, and nothing is
written.  Exit code 1 where a tool found a fault, 3 where a test was not done.
"""
_STATED = "as the file states"


@verb(help=_TEXT)
@click.argument("file", nargs=-1, required=True, type=PATH)
@option(
    "--as",
    "tool",
    metavar="FORMAT",
    shell_complete=Names(lambda: _NAMES).complete,
    default_text="by content",
    help="The tool that wrote them, of those above.",
)
@option(
    "--on",
    metavar="GPU",
    shell_complete=CHIPS.complete,
    default_text=_STATED,
    help='The GPU, of a file that does not state it: "RTX 4090".',
)
@option(
    "--model",
    metavar="NAME",
    shell_complete=MODELS.complete,
    default_text=_STATED,
    help="The trained model, of a log that does not state it.",
)
@option("--precision", metavar="DTYPE", default_text=_STATED, help="fp32, tf32, bf16 or fp16.")
@option("--seq-len", type=int, default_text=_STATED, help="Tokens of a sample.")
@option("--gpus", type=int, default_text=_STATED, help="GPUs of a training.")
@option("--batch-size", type=int, default_text=_STATED, help="Samples at once of a GPU.")
@OUT
@json_option("One JSON object: run, records, tool, version, verdict, findings.")
def command(
    file: tuple[Path, ...],
    tool: str | None,
    on: str | None,
    model: str | None,
    precision: str | None,
    seq_len: int | None,
    gpus: int | None,
    batch_size: int | None,
    out: Path,
    as_json: bool,
) -> int:
    """Read files of other tools into a run; the help text is made from the importers' specs."""
    from trainrig.cli.progress import print_end
    from trainrig.importers import ImportHints
    from trainrig.runner.imported import import_files, summary

    hints = ImportHints(
        device=on,
        model=model,
        precision=precision,
        seq_len=seq_len,
        batch_size=batch_size,
        num_gpus=gpus,
    )
    done = import_files(file, out, tool, hints)
    print_end(as_json, lambda: summary(done), done.run)
    return done.exit_code()
