"""One offline HTML file: no script, nothing loaded, light and dark, phone and desktop.

Names in records are hostile input: the template escapes everything but the
charts, which escape their own text.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from trainrig.analysis.device_ranking import run_groups
from trainrig.analysis.run_view import RunView
from trainrig.report.charts import svg
from trainrig.report.charts.curves import Figure
from trainrig.report.charts.heatmap import LEVELS
from trainrig.report.compare_report import training_comparison_blocks
from trainrig.report.document import Document
from trainrig.report.run_report import build_page, count_findings
from trainrig.report.words import PUBLISHED, unverified
from trainrig.units import capital

if TYPE_CHECKING:
    from jinja2 import Template

# Width and height in CSS pixels.  A phone's chart is drawn for a phone: scaled down from a
# desktop's, its text would be 5 px high.
_NARROW = (324.0, 290.0)
_HALF = (520.0, 320.0)
_WIDE = (1080.0, 440.0)


def render_html(views: Sequence[RunView]) -> str:
    """The report of one run, or of several, as one HTML document."""
    pages = [build_page(view) for view in views]
    return _template().render(
        pages=pages,
        beside=run_groups(views) if len(views) > 1 else (),
        compared=training_comparison_blocks(*views) if len(views) == 2 else (),
        page=Document(title="", blocks=()),
        contents=(),
        kind=lambda block: type(block).__name__,
        draw=_draw,
        count_findings=count_findings,
        unverified=next(filter(None, map(unverified, views)), ""),
        capital=capital,
        commands=commands,
        published=PUBLISHED,
        levels=_levels(),
        title=", ".join(page.title for page in pages),
    )


def _levels() -> list[str]:
    """The heat map's colours in words: ``under 10 %``, ``10 to 25 %``, …"""
    ends = [f"{level:.0%}".replace("%", " %") for level in LEVELS]
    between = [f"{low[:-2]} to {high}" for low, high in itertools.pairwise(ends)]
    return [f"under {ends[0]}", *between, f"{ends[-1]} and more"]


_COMMAND = re.compile(
    r"((?:sudo|trainrig|nvidia-smi|fio|torch\.|pin_memory)(?:[^;,:]|:(?=\S))*[^;,:\s])"
)


def commands(text: str) -> list[tuple[bool, str]]:
    """The text in pieces; True marks what can be typed."""
    return [(n % 2 == 1, part) for n, part in enumerate(_COMMAND.split(text)) if part]


def _draw(figure: Figure) -> dict[str, object]:
    """The figure's two drawings, safe to print as they are."""
    from markupsafe import Markup

    large = _WIDE if figure.wide else _HALF
    return {
        # plot.draw escapes every text that it prints.
        "narrow": Markup(svg.draw(figure.chart, *_NARROW)),  # noqa: S704
        "large": Markup(svg.draw(figure.chart, *large)),  # noqa: S704
    }


@cache
def _template() -> Template:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("trainrig.report.render", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2")
