"""`trainrig demo`: the report of two RTX 4090s, made from published figures."""

from __future__ import annotations

import json
from pathlib import Path

import click

from trainrig.cli.verb import PATH, json_option, option, verb


@verb("A report of two RTX 4090s made from published figures.")
@option("--html", type=PATH, metavar="FILE", help="Write one offline HTML file.")
@option("--md", type=PATH, metavar="FILE", help="Write markdown; - is stdout.")
@json_option()
def command(html: Path | None, md: Path | None, as_json: bool) -> None:
    """Show the report of two RTX 4090s, before you have any.

    \b
    trainrig demo
    trainrig demo --html demo.html

    Nothing in it was measured by trainrig: each number was published by somebody
    and names its source.
    """
    from trainrig.cli.report import as_dict, read_view, show_views, write_views
    from trainrig.report.demo import BUNDLE

    views = [read_view(BUNDLE)]
    write_views(views, html=html, md=md)
    if as_json:
        click.echo(json.dumps(as_dict(views[0]), ensure_ascii=False))
    elif html is None and md is None:
        show_views(views)
