"""`trainrig demo`: the report of two RTX 4090s, made from published figures."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command()
@click.option("--html", type=click.Path(path_type=Path), help="Write one offline HTML file.")
@click.option("--md", type=click.Path(path_type=Path), help="Write markdown; - is stdout.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(html: Path | None, md: Path | None, as_json: bool) -> None:
    """A report of two RTX 4090s, to be looked at before one has any.

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
