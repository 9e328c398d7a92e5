"""`trainrig catalog`: what vendors claim."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from trainrig.cli.verb import CHIPS, json_option, option, verb
from trainrig.errors import UsageError

if TYPE_CHECKING:
    from trainrig.catalog.servers import Server
    from trainrig.procure.parts import Part
    from trainrig.report.document import Document


@verb()
@click.argument("name", nargs=-1, shell_complete=CHIPS.complete)
@option("--compare", is_flag=True, help="Show the named chips side by side.")
@option("--models", is_flag=True, help="List the models that are known by name.")
@option("--servers", is_flag=True, help="List the servers that are known by name.")
@json_option("JSON on stdout: an object for one chip.")
def command(
    name: tuple[str, ...], compare: bool, models: bool, servers: bool, as_json: bool
) -> None:
    """Show what vendors claim: all chips, one with its sources, several side by side, a part.

    \b
    trainrig catalog RTX 4090
    trainrig catalog
    trainrig catalog 10de:2684
    trainrig catalog --models
    trainrig catalog DGX H100
    trainrig catalog ConnectX-7
    trainrig catalog --compare "RTX 4090" "A100 SXM4 80GB"

    A name is matched exactly, never to a neighbour; a short one that fits several
    chips, as A100, shows them side by side.  Peaks are dense, by data
    type and accumulate type.  A question mark: not verified (computed or presumed).
    """
    from trainrig.catalog.fields import chip_dict
    from trainrig.catalog.load import load_chips
    from trainrig.catalog.lookup import candidates, chips_named, find_chip
    from trainrig.catalog.servers import named_machine
    from trainrig.cli.output import answer
    from trainrig.procure.part_catalog import part_dict
    from trainrig.report import chip_report
    from trainrig.report.build_report import part_document

    if name and (models or servers):
        folder_noun = "models" if models else "servers"
        raise UsageError(f"--{folder_noun} lists all {folder_noun}", "leave the names out")
    if models:
        _show_models(as_json)
        return
    server = None if compare or find_chip(" ".join(name)) else named_machine(" ".join(name))
    if servers or server is not None:
        _show_servers(server, as_json)
        return
    part = None if compare or not name else _part_named(" ".join(name))
    if part is not None and not candidates(" ".join(name)):
        answer(as_json, lambda: part_dict(part), lambda: part_document(part), schema="catalog-part")
        return
    if compare and len(name) < 2:
        raise UsageError("--compare needs two chips or more", "quote names that have spaces")
    is_several = len(name) > 1 and not find_chip(" ".join(name)) and all(map(find_chip, name))
    compare = compare or is_several
    wanted = name if compare else ((" ".join(name),) if name else ())
    chips = tuple(chip for one in wanted for chip in chips_named(one)) or load_chips()
    compare = compare or len(wanted) < len(chips) < len(load_chips())

    def content() -> object:
        content = [chip_dict(chip) for chip in chips]
        if compare:
            return {"chips": content}
        return content[0] if wanted else content

    def document() -> Document:
        if compare:
            return chip_report.compare_document(chips)
        return chip_report.chip_document(chips[0]) if wanted else chip_report.list_document(chips)

    answer(as_json, content, document, schema="catalog-compare" if compare else "")


def _part_named(name: str) -> Part | None:
    """Return the part of any kind that a name means, its maker left out: ``ConnectX-7``."""
    from trainrig.procure.part_catalog import find_part
    from trainrig.procure.parts import KINDS

    parts = (find_part(kind, name) for kind in KINDS)
    return next((part for part in parts if part is not None), None)


def _show_models(as_json: bool) -> None:
    from trainrig.cli.output import answer
    from trainrig.report import chip_report
    from trainrig.workload.presets import NAMED, named, published

    shapes = [named(known) for known in (*NAMED, *published())]
    answer(
        as_json,
        lambda: [shape.flat() for shape in shapes],
        lambda: chip_report.models_document(shapes),
    )


def _show_servers(server: Server | None, as_json: bool) -> None:
    """One server, or without one all that are known."""
    from trainrig.catalog.servers import known_servers, server_dict
    from trainrig.cli.output import answer
    from trainrig.report import chip_report

    listed = (server,) if server is not None else known_servers()

    def content() -> object:
        rows = [server_dict(server_entry) for server_entry in listed]
        return rows if server is None else rows[0]

    answer(
        as_json,
        content,
        lambda: chip_report.servers_document(listed),
        schema="catalog-server",
    )
