"""``trainrig export``: a training's weights in the form of another project."""

from __future__ import annotations

from pathlib import Path

import click

from trainrig.cli.output import say
from trainrig.cli.verb import PATH, RUN_PATH, json_option, names_in, option, verb

_FORMS = names_in("train.weight_forms", "WRITTEN")


@verb()
@click.argument("source", metavar="FROM", type=RUN_PATH)
@option(
    "--to",
    metavar="FORM",
    default_text="huggingface",
    shell_complete=_FORMS.complete,
    help="Form of the files: huggingface, megatron or deepspeed.",
)
@option("--out", type=PATH, metavar="DIR", default_text="FROM-FORM", help="The folder to make.")
@option(
    "--model",
    default="",
    default_text="as FROM says",
    help="Model of these weights: a name, or a config.json.",
)
@option("--precision", default="fp32", help="Precision of the weights: fp32, bf16 or fp16.")
@json_option()
def command(
    source: Path, to: str | None, out: Path | None, model: str, precision: str, as_json: bool
) -> int:
    """Write the weights of a training as another project loads them.

    \b
    trainrig export runs/mine
    trainrig export runs/mine --to megatron --out mine-megatron
    trainrig export checkpoints/megatron --model gpt2-medium

    FROM is a run of trainrig train, a checkpoint of any layout, or
    weights of Hugging Face's, Megatron's or DeepSpeed's.
    What was written is read back and compared before DIR appears; a DIR that exists is
    never replaced.  A training begins with these weights where its init is DIR.
    """
    import dataclasses

    from trainrig.cli.output import print_json, print_values
    from trainrig.errors import EXIT_OK
    from trainrig.train.native.export_weights import export
    from trainrig.train.weight_forms import WRITTEN
    from trainrig.units import format_memory

    to = to or WRITTEN[0]
    out = out or Path(f"{source.resolve().name}-{to}")
    exported = export(source, to=to, out=out, precision=precision, model=model)
    if as_json:
        print_json(dataclasses.asdict(exported))
        return EXIT_OK
    size = format_memory(exported.num_bytes)
    facts = {
        "folder": exported.folder,
        "form": exported.to,
        "from": exported.source + ("" if exported.step is None else f", {exported.step} steps"),
        "weights": f"{exported.weights:,} in {exported.precision}, {size}",
        "files": len(exported.files),
    }
    print_values(facts, as_json)
    for note in exported.notes:
        say(note, err=True)
    return EXIT_OK
