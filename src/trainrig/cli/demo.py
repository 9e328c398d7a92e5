"""`trainrig demo`: the report of two RTX 3090 Ti, made from what their owner published."""

from __future__ import annotations

from trainrig.cli.verb import PAGES, Pages, json_option, options, verb


@verb()
@options(PAGES)
@json_option()
def command(pages: Pages, as_json: bool) -> None:
    """Show the report of two RTX 3090 Ti, before you have any.

    \b
    trainrig demo
    trainrig demo --html demo.html

    Nothing in it was measured by trainrig: their owner published each number, and
    each names its source.
    """
    from trainrig.cli.report import read_view, show
    from trainrig.report import DEMO

    show([read_view(DEMO)], pages, as_json=as_json)
