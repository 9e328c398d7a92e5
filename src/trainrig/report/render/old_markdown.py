"""The report as markdown: short enough to paste into a forum or an issue.

Verdict, largest gap, one table of levels, findings, what the numbers say, layers,
machine.  Text from records is escaped: it cannot open a table cell, a link, or HTML.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from trainrig.analysis.patterns import Pattern, find_patterns
from trainrig.analysis.run_view import RunView, is_published, rows
from trainrig.analysis.waterfall import Level, Waterfall, build_waterfalls
from trainrig.report import words
from trainrig.report.charts.heatmap import heat_legend, heat_maps, heat_table
from trainrig.report.render.markdown import to_markdown
from trainrig.report.training_report import training_document
from trainrig.units import capital, format_quantity, one_line, signed, signed_share

_SPECIAL = re.compile(r"([\\`*_\[\]|<>#~])")
_MAX_FINDINGS = 12
_MAX_WATERFALLS = 16
_MAX_MAPS = 4
_MAX_HEAT_COLUMNS = 8
_SEVERITY = {"error": "Error", "warning": "Warning", "info": "Note"}


def markdown(view: RunView) -> str:
    """One run as markdown, ending in a newline."""
    waterfalls, said = build_waterfalls(view), find_patterns(view)
    heading, sentence = words.headline(view, waterfalls)
    parts = [
        f"### {_escape(words.device_names(view))}: {words.verdict_word(view)}",
        _escape(words.verdict_reason(view)),
        f"**{heading}.** {_escape(sentence)}",
        words.PUBLISHED if is_published(view) else "",
        *[f"**Missing.** {_escape(gap)}" for gap in words.gaps_in(view)],
        _table(waterfalls),
        _findings(view),
        _patterns(said),
        _experiments(view),
        *_heat(view, said),
        _machine(view),
        _footer(view),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _experiments(view: RunView) -> str:
    return to_markdown(training_document(view))


def _table(waterfalls: Sequence[Waterfall]) -> str:
    if not waterfalls:
        return ""
    lines = ["| level | value | gap | cause |", "|---|---:|---:|---|"]
    for each in waterfalls[:_MAX_WATERFALLS]:
        lines.append(f"| **{_escape(capital(each.title))}** | | | |")
        lines += [_line(level) for level in each.levels]
    if len(waterfalls) > _MAX_WATERFALLS:
        lines.append(f"| and {len(waterfalls) - _MAX_WATERFALLS} more waterfalls | | | |")
    return "\n".join(lines)


def _line(level: Level) -> str:
    value = format_quantity(level.value, level.unit) if level.value is not None else "none"
    gap = cause = ""
    if level.gap is not None:
        gap = f"{signed(level.gap.amount, level.gap.unit)} ({signed_share(level.gap.share)})"
        cause = level.gap.cause
    elif level.note or level.provenance:
        cause = level.note or level.provenance
    return f"| {_escape(level.name)} | {value} | {gap} | {_escape(cause)} |"


def _findings(view: RunView) -> str:
    found = view.verdict.findings if view.verdict else ()
    lines = [
        f"- {_SEVERITY[f.severity]}: {_escape(f.evidence)} Next: {_escape(f.fix)}"
        for f in found[:_MAX_FINDINGS]
    ]
    if len(found) > _MAX_FINDINGS:
        lines.append(f"- and {len(found) - _MAX_FINDINGS} more findings")
    return "\n".join(lines)


def _patterns(said: Sequence[Pattern]) -> str:
    lines = [f"- {_escape(each.text)}" for each in said[:_MAX_FINDINGS]]
    return "\n".join(["**Explanations**", "", *lines]) if lines else ""


def _heat(view: RunView, said: Sequence[Pattern]) -> Iterator[str]:
    for one in heat_maps(view, rows(view), said)[:_MAX_MAPS]:
        if one.folded:
            continue
        headings, lines = heat_table(one, max_columns=_MAX_HEAT_COLUMNS)
        table = [_cells(headings), "|" + "---:|" * len(headings), *map(_cells, lines)]
        yield f"**{_escape(capital(one.title))}** ({_escape(heat_legend(one))})\n\n" + "\n".join(
            table
        )


def _cells(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(_escape, cells)) + " |"


def _machine(view: RunView) -> str:
    return "\n".join(f"- {what}: {_escape(value)}" for what, value in words.machine_facts(view))


def _footer(view: RunView) -> str:
    origin = "published figures, not measured by trainrig" if is_published(view) else "trainrig"
    return f"{_escape(view.name)} ({origin}). {words.unverified(view)}".rstrip()


def _escape(text: str) -> str:
    """One line, printable, with markdown's own characters made plain."""
    return _SPECIAL.sub(r"\\\1", " ".join(one_line(text).split()))
