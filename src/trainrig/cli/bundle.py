"""``trainrig bundle``: a run in one file, and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from trainrig.cli.verb import PATH, complete_runs, json_option, option, verb


@verb("Pack a run into one file with a content hash, or unpack it.")
@click.argument("run", type=PATH, shell_complete=complete_runs)
@option("--out", type=PATH, default_text="<name of the run>.bundle", help="The bundle to write.")
@option("--unpack", type=PATH, metavar="DIR", help="Unpack the bundle RUN into this folder.")
@json_option()
def command(run: Path, out: Path | None, unpack: Path | None, as_json: bool) -> None:
    """Pack the folder RUN into one file with a content hash, or unpack such a file.

    \b
    trainrig bundle runs/20260101T120000Z-box-qualify-ab12cd
    trainrig bundle FILE.bundle --unpack DIR

    A bundle is evidence: it opens anywhere (trainrig report FILE.bundle), and one
    with a changed byte is refused.  An existing file is never replaced.
    """
    if unpack is not None and out is not None:
        raise click.UsageError("--out names a bundle to write, --unpack a folder: use one of them")
    found = _pack(run, out) if unpack is None else _unpack(run, unpack)
    if as_json:
        click.echo(json.dumps(found, ensure_ascii=False))
        return
    for name, value in found.items():
        click.echo(f"{name:<12}{value}")


def _pack(run: Path, out: Path | None) -> dict[str, Any]:
    from trainrig.errors import UsageError
    from trainrig.store import is_bundle, pack, read_run

    if is_bundle(run):
        raise UsageError(f"{run} is a bundle already", "unpack it with --unpack DIR")
    data = read_run(run)
    target = out if out is not None else Path(f"{data.name}.bundle")
    digest = pack(data.path, target)
    return {
        "bundle": str(target),
        "bytes": target.stat().st_size,
        "sha256": digest,
        "run": data.name,
        "num_records": len(data.records),
    }


def _unpack(bundle: Path, parent: Path) -> dict[str, Any]:
    from trainrig.store import read_run, unpack

    folder = unpack(bundle, parent)
    return {"run": str(folder), "num_records": len(read_run(folder).records)}
