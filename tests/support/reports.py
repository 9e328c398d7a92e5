"""A run's report as markdown and on a console."""

from __future__ import annotations

from rich.console import Console

from trainrig.record import RunView
from trainrig.report.document import Group, Section, Table
from trainrig.report.render.markdown import to_markdown
from trainrig.report.render.terminal import print_document
from trainrig.report.run_report import run_document


def markdown(*views: RunView) -> str:
    """One run, or several."""
    return to_markdown(run_document(views))


def print_report(view: RunView, console: Console) -> None:
    """One run."""
    print_document(run_document([view]), console)


def tables_of(one: Group) -> list[Table]:
    """The grids of a heat map."""
    (section,) = one.blocks
    assert isinstance(section, Section)
    (beside,) = section.blocks
    assert isinstance(beside, Group)
    return [block for block in beside.blocks if isinstance(block, Table)]
