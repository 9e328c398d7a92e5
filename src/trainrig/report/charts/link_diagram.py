"""A machine's links as a drawing: GPUs, the switches and sockets that they hang on, NVLinks.

What hangs together is read from the paths between GPUs as `nvidia-smi topo -m` names them: PIX and
PXB share a PCIe switch, SYS crosses sockets, NV# are NVLinks.  Where all pairs have the same
NVLinks one bar joins them (a switch, or a full mesh: the paths do not tell).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from html import escape

_BOX, _GAP, _TOP = 104.0, 22.0, 64.0
_HEIGHT = 250.0
_CHARS = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnGpu:
    """A GPU as it is drawn."""

    number: int
    name: str
    pcie: str
    """``PCIe 4 x16``, and what that gives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkDiagram:
    """Content of a diagram of links; `draw` places it."""

    title: str
    nodes: tuple[DrawnGpu, ...]
    paths: tuple[tuple[int, int, str], ...]
    """(a, b, path) of each pair with a < b."""
    rates: tuple[tuple[str, str], ...] = ()
    """Rate of each NVLink path, each way: ``("NV4", "56 GB/s")``."""


def grouped_by(
    numbers: Iterable[int], paths: Iterable[tuple[int, int, str]], joins: Callable[[str], bool]
) -> list[list[int]]:
    """Return numbers that a chain of paths joins."""
    home = {number: number for number in numbers}
    for a, b, path in paths:
        if joins(path) and a in home and b in home:
            old, new = home[b], home[a]
            home = {number: new if place == old else place for number, place in home.items()}
    groups: dict[int, list[int]] = {}
    for number, place in home.items():
        groups.setdefault(place, []).append(number)
    return list(groups.values())


def sockets(diagram: LinkDiagram) -> list[list[list[int]]]:
    """Sockets, in each its switches, in each the GPUs; a GPU alone is a switch of its own."""
    numbers = [node.number for node in diagram.nodes]
    known = [pair for pair in diagram.paths if not is_nvlink(pair[2])]
    near = grouped_by(numbers, known, lambda path: path != "SYS")
    if not known:  # NVLinks hide how the sockets are shared
        near = [numbers]
    return [
        grouped_by(socket_gpus, known, lambda path: path in ("PIX", "PXB")) for socket_gpus in near
    ]


def is_nvlink(path: str) -> bool:
    """Return whether a path is made of NVLinks: ``NV4``."""
    return path.startswith("NV") and path[2:].isdigit()


def draw(diagram: LinkDiagram) -> str:
    """Return the drawing as an ``<svg>``; every text is escaped."""
    homes = sockets(diagram)
    order = [number for socket in homes for switch in socket for number in switch]
    place = {number: 20.0 + index * (_BOX + _GAP) for index, number in enumerate(order)}
    width = 40.0 + len(order) * (_BOX + _GAP)
    parts = [*_nvlinks(diagram, place, width), *_boxes(diagram, place)]
    parts += _trunk(homes, place)
    return (
        f'<svg viewBox="0 0 {width:.0f} {_HEIGHT:.0f}" role="img" '
        f'style="max-width:{width:.0f}px" aria-label="{escape(diagram.title)}">'
        f"{''.join(parts)}</svg>"
    )


def _text(x: float, y: float, words: str, more: str = "", size: int = 11) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle" font-size="{size}" '
        f'fill="currentColor"{more}>{escape(words)}</text>'
    )


def _line(x1: float, y1: float, x2: float, y2: float, more: str = "") -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
        f'stroke="currentColor" stroke-opacity="0.55"{more}/>'
    )


def _box(x: float, y: float, wide: float, high: float) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}" rx="5" fill="none" '
        'stroke="currentColor" stroke-opacity="0.8"/>'
    )


def _boxes(diagram: LinkDiagram, place: dict[int, float]) -> Iterator[str]:
    for node in diagram.nodes:
        x, middle = place[node.number], place[node.number] + _BOX / 2.0
        yield _box(x, _TOP, _BOX, 44.0)
        yield _text(middle, _TOP + 18.0, f"GPU {node.number}", ' font-weight="bold"', 12)
        name = node.name if len(node.name) <= _CHARS + 1 else f"{node.name[:_CHARS]}…"
        yield _text(middle, _TOP + 35.0, name)
        for row, words in enumerate(node.pcie.split(", ")):
            yield _text(middle, _TOP + 62.0 + 14.0 * row, words, ' fill-opacity="0.8"', 10)


def _nvlinks(diagram: LinkDiagram, place: dict[int, float], width: float) -> Iterator[str]:
    """Yield one bar where all pairs have the same, arcs elsewhere."""
    rates = dict(diagram.rates)
    links = [pair for pair in diagram.paths if is_nvlink(pair[2])]
    kinds = {path for *_, path in links}
    style = ' stroke-width="3" stroke-opacity="0.9" class="nvlink"'

    def named(path: str) -> str:
        return f"{path}: {rates[path]} each way" if path in rates else path

    if len(links) == len(diagram.paths) > 1 and len(kinds) == 1:
        first, last = min(place.values()), max(place.values()) + _BOX
        yield _line(first, 34.0, last, 34.0, style)
        yield _text(width / 2.0, 22.0, f"NVLink between all, {named(links[0][2])}")
        for x in place.values():
            yield _line(x + _BOX / 2.0, 34.0, x + _BOX / 2.0, _TOP, style)
        return
    for a, b, path in links:
        left, right = sorted((place[a] + _BOX / 2.0, place[b] + _BOX / 2.0))
        high = max(2.0, _TOP - 0.22 * (right - left))
        yield (
            f'<path d="M{left:.1f},{_TOP:.1f} Q{(left + right) / 2:.1f},{high - 12:.1f} '
            f'{right:.1f},{_TOP:.1f}" fill="none" stroke="currentColor"{style}/>'
        )
        yield _text((left + right) / 2.0, (high + _TOP) / 2.0 - 10.0, named(path))


def _trunk(homes: list[list[list[int]]], place: dict[int, float]) -> Iterator[str]:
    """From GPUs down to switches, to sockets, and from socket to socket."""
    middles: list[float] = []
    for number, socket in enumerate(homes):
        ends = []
        for switch in socket:
            xs = [place[gpu] + _BOX / 2.0 for gpu in switch]
            middle = sum(xs) / len(xs)
            if len(switch) > 1:
                wide = max(xs) - min(xs) + _BOX
                yield _box(middle - wide / 2.0, 156.0, wide, 22.0)
                yield _text(middle, 171.0, "PCIe switch")
            for x in xs:
                yield _line(x, _TOP + 80.0, x, 156.0 if len(switch) > 1 else 206.0)
            if len(switch) > 1:
                yield _line(middle, 178.0, middle, 206.0)
            ends += xs
        left, right = min(ends) - _BOX / 2.0, max(ends) + _BOX / 2.0
        yield _box(left, 206.0, right - left, 28.0)
        name = f"socket {number}" if len(homes) > 1 else "processor"
        yield _text((left + right) / 2.0, 224.0, name, ' font-weight="bold"')
        middles += [left, right]
    for right, left in zip(middles[1:-1:2], middles[2::2], strict=True):
        yield _line(right, 220.0, left, 220.0, ' stroke-width="2"')
