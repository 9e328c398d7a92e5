"""A document as one offline HTML file: no script, nothing loaded; light, dark, phone and desktop.

Names in records are hostile input: the template escapes everything but the charts, which escape
their own text.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING

from trainrig.language import tag, translate
from trainrig.language.width import width
from trainrig.report import document as doc
from trainrig.report.charts import link_diagram, svg
from trainrig.report.charts.link_diagram import LinkDiagram
from trainrig.units import capital

if TYPE_CHECKING:
    from jinja2 import Template

# Width and height in CSS pixels.  A phone's chart is drawn for a phone: scaled down from a
# desktop's, its text would be 5 px high.
_NARROW = (324.0, 290.0)
_HALF = (520.0, 320.0)
_WIDE = (1080.0, 440.0)
_COMMAND = re.compile(
    r"((?:sudo|trainrig(?! \d)|nvidia-smi|fio|torch\.|pin_memory)"
    r"(?:[^;,:\u3000-\uffef]|[,:](?=\S))*[^;,:\s\u3000-\uffef])"
)
# A number and its unit, or a bound and its number, between which no line ends.
_UNIT = re.compile(r"(\d) (%|×|[kMGTP]?(?:FLOPS|OPS|B/s|Hz)|[KMGT]iB|[mµn]?s\b|W\b|tokens/s)")
_BOUND = re.compile(r"([≥≤~]) (?=\d)")
# Control characters, and marks that turn the direction of the text behind them: a name that holds
# them can read as another.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)


def to_html(document: doc.Document) -> str:
    """Return the whole page, in the language that is shown."""
    document = doc.translated(document)
    titles = list(_titles(document.blocks))
    head = list(itertools.takewhile(lambda block: not any(_titles([block])), document.blocks))
    page = page_template("document.html.j2").render(
        page=document,
        head=head,
        body=document.blocks[len(head) :],
        framed=any(isinstance(block, doc.Group) for block in head),
        contents=titles if len(titles) > 2 else [],
        anchor=_anchor,
        kind=lambda block: type(block).__name__,
        draw=_draw,
        capital=capital,
        width=width,
        commands=commands,
        tag=tag(),
        _=translate,
    )
    page = _BOUND.sub("\\1\u00a0", _UNSEEN.sub("?", page))
    return _UNIT.sub("\\1\u00a0\\2", page)


def _titles(blocks: Iterable[doc.Block]) -> Iterator[str]:
    """Yield the headings of a page, which its contents link to."""
    for block in blocks:
        if isinstance(block, doc.Section):
            yield block.title
        elif isinstance(block, doc.Group) and block.kind == "page":
            yield from _titles(block.blocks)


def _anchor(title: str) -> str:
    """Return a heading as a link names it: ``gpu-to-gpu``."""
    return re.sub(r"\W+", "-", title.lower()).strip("-")


def commands(text: str) -> list[tuple[bool, str]]:
    """Return the text in pieces; True marks what can be typed."""
    return [(n % 2 == 1, part) for n, part in enumerate(_COMMAND.split(text)) if part]


def _draw(figure: doc.Figure) -> dict[str, object]:
    """Return the figure's two drawings, safe to print as they are."""
    from markupsafe import Markup

    if isinstance(figure.chart, LinkDiagram):  # it escapes its texts, too
        drawn = Markup(link_diagram.draw(figure.chart))  # noqa: S704
        return {"narrow": drawn, "large": drawn}
    large = _WIDE if figure.is_wide else _HALF
    return {
        # svg.draw escapes every text that it prints.
        "narrow": Markup(svg.draw(figure.chart, *_NARROW)),  # noqa: S704
        "large": Markup(svg.draw(figure.chart, *large)),  # noqa: S704
    }


@cache
def page_template(name: str) -> Template:
    """Return a template of this folder; what it prints is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("trainrig.report.render", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)
