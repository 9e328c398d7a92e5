"""The report in a terminal: verdict, waterfalls, findings; 80 columns or more.

Curves and the table of all points are in the HTML file.  Text from records is
cleaned of control characters: a name in a stranger's bundle must not be able to
move the cursor or to set the window's title.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainrig.analysis.run_view import RunView
from trainrig.analysis.training_results import BENCHMARK
from trainrig.analysis.waterfall import Level, Waterfall
from trainrig.report import words
from trainrig.report.charts.heatmap import heat_legend, heat_table
from trainrig.report.document import Document
from trainrig.report.render.terminal import print_document
from trainrig.report.run_report import Page, build_page
from trainrig.units import capital, format_quantity, one_line, signed_share

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

_TONES = {"pass": "bold green", "fail": "bold red", "incomplete": "bold yellow", "none": "bold"}
_SEVERITY = {"error": ("error", "red"), "warning": ("warning", "yellow"), "info": ("note", "dim")}
_BAR = 14
_MAX_STATES = 12
_HEAT_COLUMN = 14


def print_report(view: RunView, console: Console) -> None:
    """Print one run on ``console``."""
    page = build_page(view)
    _head(page, console)
    for card in page.cards:
        console.print()
        console.print(_text(capital(card.waterfall.title), "bold"))
        console.print(_waterfall(card.waterfall, ascii_only=_is_ascii(console)))
    if page.unrun:
        console.print()
        console.print(_text("Without a value", "bold"))
    for what in page.unrun:
        console.print(_text(f"  {what}", "yellow"))
    if page.more_waterfalls:
        console.print()
        console.print(_text(f"{page.more_waterfalls} more waterfalls, of the other GPUs, left out"))
    _peers(page, console)
    _findings(page, console)
    _patterns(page, console)
    _experiments(page, console)
    _heat(page, console)
    _states(page, console)
    if words.unverified(view):
        console.print()
        console.print(_text(words.unverified(view), "dim"))


def _is_ascii(console: Console) -> bool:
    return not console.encoding.lower().startswith("utf")


def _head(page: Page, console: Console) -> None:
    from rich.text import Text

    console.print(_text(page.title, "bold"))
    reason = capital(one_line(page.reason))
    verdict = Text.assemble((page.word, _TONES[page.tone]), "  ", reason)
    console.print(verdict)
    if page.published:
        console.print(_text(words.PUBLISHED, "yellow"))
    console.print(_text(": ".join(page.headline)))
    if page.next:
        console.print(_text(f"Next: {page.next}", "cyan"), soft_wrap=True)
    for gap in page.gaps:
        console.print(_text(f"Missing: {gap}", "yellow"))
    for what, value in page.machine:
        console.print(_text(f"{what + ': ':<11}{value}", "dim"))


def _waterfall(each: Waterfall, *, ascii_only: bool) -> Table:
    """Level, value, bar, share of the gap, cause; the cause wraps."""
    from rich.table import Table

    table = Table.grid(padding=(0, 1))
    table.add_column(width=20)
    table.add_column(justify="right", no_wrap=True, width=12)
    table.add_column(no_wrap=True, width=_BAR)
    table.add_column(justify="right", no_wrap=True, width=6)
    table.add_column()
    widest = max((level.value or 0.0 for level in each.levels), default=0.0)
    for level in each.levels:
        table.add_row(*_level_cells(level, widest, ascii_only=ascii_only))
    return table


def _level_cells(level: Level, widest: float, *, ascii_only: bool) -> list[Text]:
    value = format_quantity(level.value, level.unit) if level.value is not None else "none"
    share, remark = "", level.note or ""
    if level.gap is not None:
        share = signed_share(level.gap.share)
        remark = level.gap.cause
    elif level.value is not None and level.provenance:
        remark = level.provenance.partition(";")[0]
    if words.is_below_band(level):
        remark += "; below its expected band"
    style = "red" if words.is_below_band(level) else "yellow" if level.note else ""
    length = round(_BAR * (level.value or 0.0) / widest) if widest else 0
    bar = ("#" if ascii_only else "█") * length
    return [
        _text(f"  {level.name}"),
        _text(value, "bold"),
        _text(bar, "dim" if level.gap is None else "blue"),
        _text(share, style),
        _text(remark, style),
    ]


def _peers(page: Page, console: Console) -> None:
    odd = [(group, peer) for group in page.peers for peer in group.peers if peer.odd]
    if not page.peers:
        return
    console.print()
    console.print(_text("Device beside device", "bold"))
    if not odd:
        console.print(_text("  None is behind its siblings."))
    for group, peer in odd:
        line = f"  {peer.label} is odd: {group.name}: {peer.value} ({peer.deviation})"
        console.print(_text(line, "red"))


def _findings(page: Page, console: Console) -> None:
    if not page.findings:
        return
    console.print()
    console.print(_text("Findings", "bold"))
    for finding in page.findings:
        word, style = _SEVERITY[finding.severity]
        console.print(_text(f"  {word}: {finding.evidence}", style))
        console.print(_text(f"    next: {finding.fix}"))


def _experiments(page: Page, console: Console) -> None:
    if not page.experiments:
        return
    console.print()
    print_document(Document(title="", blocks=page.experiments), console)


def _patterns(page: Page, console: Console) -> None:
    if not page.patterns:
        return
    console.print()
    console.print(_text("Explanations", "bold"))
    for pattern in page.patterns:
        console.print(_text(f"  {pattern.label}: {pattern.text}"))
        if pattern.next:
            console.print(_text(f"    next: {pattern.next}"))


def _heat(page: Page, console: Console) -> None:
    """Each map as a table, as wide as the terminal takes; the forward passes are in the HTML."""
    from rich.table import Table

    for one in page.heat:
        if one.folded:
            continue
        headings, lines = heat_table(one, max_columns=max(1, (console.width - 8) // _HEAT_COLUMN))
        table = Table(box=None, pad_edge=False, padding=(0, 1))
        for heading in headings:
            table.add_column(
                _text(heading), justify="right", width=None if heading == "batch" else 12
            )
        for line in lines:
            table.add_row(*(_text(cell) for cell in line))
        console.print()
        console.print(_text(capital(one.title), "bold"))
        console.print(table)
        console.print(_text(heat_legend(one), "dim"))


def _states(page: Page, console: Console) -> None:
    """How many points, and which of them are not what they should be.

    Of experiments their own part has said it: for each, not for each of its numbers.
    """
    if not page.tables:
        return
    console.print()
    for table in page.tables:
        console.print(_text(f"{table.name}: {table.summary}"))
    said = bool(page.experiments)
    tables = [each for each in page.tables if not (said and each.name == BENCHMARK)]
    muted = [row for table in tables for row in table.rows if row.muted]
    for row in muted[:_MAX_STATES]:
        console.print(_text(f"  {row.label}, {row.device}: {row.state}", "dim"))
    if len(muted) > _MAX_STATES:
        console.print(_text(f"  and {len(muted) - _MAX_STATES} more", "dim"))


def _text(text: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(one_line(text), style=style)


def print_reports(views: Sequence[RunView], console: Console) -> None:
    """Print several runs, one after the other."""
    for number, view in enumerate(views):
        if number:
            console.print()
            console.rule()
        if len(views) > 1:
            console.print(_text(view.name, "dim"))
        print_report(view, console)
