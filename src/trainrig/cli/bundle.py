"""``trainrig bundle``: a run in one file, and back."""

from __future__ import annotations

from pathlib import Path

import click

from trainrig.cli.output import print_values
from trainrig.cli.verb import PATH, RUN_PATH, json_option, option, verb


@verb()
@click.argument("run", type=RUN_PATH)
@option("--out", type=PATH, default_text="<name of the run>.bundle", help="The bundle to write.")
@option("--unpack", type=PATH, metavar="DIR", help="Unpack the bundle RUN into this folder.")
@option("--full", is_flag=True, help="Keep host name, user, paths, ids and settings as they are.")
@json_option()
def command(run: Path, out: Path | None, unpack: Path | None, full: bool, as_json: bool) -> None:
    """Pack the folder RUN into one file with a content hash, or unpack such a file.

    \b
    trainrig bundle runs/20260101T120000Z-box-qualify-ab12cd
    trainrig bundle FILE.bundle --unpack DIR

    A bundle is evidence: it opens anywhere (trainrig report FILE.bundle), and one
    with a changed byte is refused.  An existing file is never replaced.  Host name,
    user, paths, serial numbers, MAC addresses and NCCL settings that may name
    something are taken out; --full keeps them.
    """
    from trainrig.errors import UsageError
    from trainrig.store import is_bundle, pack, read_run
    from trainrig.store import unpack as unpack_bundle
    from trainrig.store.redact import redacted_name

    if unpack is not None and out is not None:
        raise click.UsageError("--out names a bundle to write, --unpack a folder: use one of them")
    if unpack is not None:
        num_records = len(read_run(run).records)  # what is refused leaves no folder
        unpacked = {"run": str(unpack_bundle(run, unpack)), "num_records": num_records}
        print_values(unpacked, as_json, "bundle-unpack")
        return
    if is_bundle(run):
        raise UsageError(f"{run} is a bundle already", "unpack it with --unpack DIR")
    data = read_run(run)
    name = data.name if full else redacted_name(data.name, data.machine or {})
    target = out if out is not None else Path(f"{name}.bundle")
    digest = pack(data.path, target, redact=not full)
    content = {
        "bundle": str(target),
        "bytes": target.stat().st_size,
        "sha256": digest,
        "run": data.name,
        "num_records": len(data.records),
    }
    print_values(content, as_json)
