"""One number of another tool beside what others published of the same operation on the same card.

A published figure stands beside a number where metric, card, operation, data type and tool are the
same, and, for what devices exchange, also the number of devices and the link between them.  What is
not known of one of the two is not the same: then nothing stands beside the number, rather than
something else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from trainrig.analysis.normal import case_words
from trainrig.analysis.rows import at_path
from trainrig.benchmarks.spec import MARGIN, Role, find, role_of
from trainrig.catalog.chip import Chip
from trainrig.catalog.lookup import candidates, find_chip, normalise
from trainrig.catalog.published import is_measurement, published_records, published_trainings
from trainrig.record import UNNAMED, UNNAMED_HOST, Record, RunView, Scalar, dtype_of
from trainrig.stats import grouped

HOST, PCIE = "host memory", "PCIe"
"""Links that are no fabric between chips: copies staged through the host, and the bus itself."""
_EXCHANGES = (Role.LINK, Role.COLLECTIVE, Role.TRANSFER, Role.STEP)
"""Roles whose numbers depend on how many devices work together."""
_OVER_LINKS = (Role.LINK, Role.COLLECTIVE)
_PLACES = frozenset(["from", "to", "gpu"])
"""Fields of a case that say where it ran, not what it was."""
_SEARCHED = frozenset(["m", "k", "n", "cache", "statistic"])
"""Fields of the fastest product of a search that are its result."""
_SEARCH, _BEST = "search", "max"
"""Mark of a search of products in conditions, and the statistic that is published of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedPlace:
    """Figures that others published of a number's operation: the best of each source."""

    card: str
    """Whose figures they are: ``RTX 4090``."""
    operation: str
    """Words for the operation, such as ``fp16, under load for minutes, gpu-burn``."""
    kind: str
    """The operation without its sizes."""
    low: float
    high: float
    unit: str
    num: int
    """Sources."""

    def is_worse(self, value: float) -> bool:
        """Return whether a number is below all published ones, by more than boards differ."""
        if self.unit.endswith("/s"):
            return value < self.low * (1.0 - MARGIN)
        return value > self.high * (1.0 + MARGIN)


def published_place(record: Record, link: str | None = None) -> PublishedPlace | None:
    """Return what is published of the same operation on the card of ``record``, if anything is.

    Args:
        record: An imported point with a value.
        link: What its devices exchange bytes over, as `link_of` tells it; None: not known.
    """
    if not record.is_usable or record.device in (None, UNNAMED, UNNAMED_HOST):
        return None
    role = role_of(record.benchmark)
    if role is Role.STEP:
        pairs = list(_trainings(record))
    else:
        pairs = [(figure, figure.value or 0.0) for figure in _figures(record, role, link)]
    if not pairs:
        return None
    pick = max if record.unit.endswith("/s") else min
    best: dict[str, float] = {}
    for figure, value in pairs:
        source = str(figure.source)
        best[source] = pick(best.get(source, value), value)
    figures = [figure for figure, _ in pairs]
    return PublishedPlace(
        card=" and ".join(dict.fromkeys(str(figure.device) for figure in figures)),
        operation="; ".join(dict.fromkeys(map(_operation_text, figures))),
        kind="; ".join(
            dict.fromkeys(_operation_text(figure, _sizes(figure)) for figure in figures)
        ),
        low=min(best.values()),
        high=max(best.values()),
        unit=record.unit,
        num=len(best),
    )


# ---- benchmarks


@cache
def _by_benchmark() -> Mapping[str, list[Record]]:
    known = (record for record in published_records() if record.value and is_measurement(record))
    return grouped(known, lambda record: record.benchmark)


def _figures(record: Record, role: Role | None, link: str | None) -> Iterator[Record]:
    mark = _condition_prefix(record)
    if mark is None or (record.metric == "flop_rate" and dtype_of(record.case) is None):
        return
    needs_link = role in _OVER_LINKS and record.num_devices > 1
    if needs_link and link is None:
        return
    operation = _operation(record)
    for figure in _by_benchmark().get(record.benchmark, ()):
        if (
            (figure.metric, figure.unit) == (record.metric, record.unit)
            and _operation(figure) == operation
            and (role not in _EXCHANGES or figure.device_count == record.device_count)
            and _is_made_by(mark, figure)
            and _is_card(str(record.device), str(figure.device))
            and (not needs_link or _published_link(figure) == link)
        ):
            yield figure


def _operation(record: Record) -> dict[str, Scalar]:
    """Return the case without the place it ran on, its tool, and the result of a search."""
    left_out = _PLACES | {"tool"}
    if _is_search(record):
        is_best = record.case.get("statistic", _BEST) == _BEST
        left_out |= _SEARCHED if is_best else frozenset()
    return {
        name: value
        for name, value in record.case.items()
        if name not in left_out and value is not None
    }


def _is_search(record: Record) -> bool:
    return _SEARCH in str(record.conditions.get("kind", ""))


def _condition_prefix(record: Record) -> str | None:
    """Return the prefix of conditions of figures of the same tool; empty: our definition.

    None where the tool counts by a definition of its own that nobody published figures of.
    """
    if "tool" not in record.case:
        return ""
    from trainrig.importers import importers

    name = record.conditions.get("tool")
    spec = next((importer for importer in importers() if importer.name == name), None)
    return (spec.published if spec else "") or None


def _is_made_by(mark: str, figure: Record) -> bool:
    stated = (str(figure.conditions.get(name, "")) for name in ("software", "kind"))
    return any(text.startswith(mark) for text in stated)


def _is_card(device: str, published: str) -> bool:
    """Return whether a figure's card is the record's.

    A short name of the user's (``A100``) means every card whose name begins with its words; a
    published short name means a card only where it fits no other one.
    """
    if device == published:
        return True
    if (chip := find_chip(device)) is not None:
        return find_chip(published) is None and candidates(published) == (chip,)
    words, others = device.casefold().split(), published.casefold().split()
    return bool(words) and others[: len(words)] == words


def _sizes(figure: Record) -> frozenset[str]:
    spec = find(figure.benchmark)
    return spec.sizes if spec else frozenset()


def _operation_text(figure: Record, left_out: frozenset[str] = frozenset()) -> str:
    names = figure.case.keys() - _PLACES - left_out
    case = {name: value for name, value in figure.case.items() if name in names}
    if _is_search(figure):
        return f"{dtype_of(case)} matmul, {figure.conditions['kind']}"
    words = [case_words(figure.replace(case=case)).removesuffix(", shape not stated")]
    if role_of(figure.benchmark) is None:
        words.append(str(figure.conditions.get("software", "")))
    if role_of(figure.benchmark) in _OVER_LINKS and figure.num_devices > 1:
        words.append(f"over {figure.conditions.get('interconnect') or _published_link(figure)}")
    return ", ".join(filter(None, words))


# ---- links


def link_of(record: Record, view: RunView) -> str | None:
    """Return what devices exchange bytes over: a fabric's name, `PCIE` or `HOST`.

    It is known from the case (no peer access), from the paths that nvidia-smi topo printed, from
    the chip where its form has one link alone, or from a rate beyond what PCIe carries.  None
    where none of these tells, and between nodes, whose network no file names.
    """
    if (record.case.get("nodes") or 1) != 1:
        return None
    if False in (record.case.get("peer_access"), record.conditions.get("can_access")):
        return HOST
    chip = find_chip(record.device or "")
    fabric = _fabric_of(record.device or "")
    if paths := _paths(view):
        joined = {path.startswith("NV") for path in paths}
        return None if len(joined) > 1 else fabric if True in joined else PCIE
    if chip is not None and fabric and chip.board.cooling == "module":
        return fabric
    if chip is not None and fabric and _fastest(view) > (chip.pcie.bandwidth or float("inf")):
        return fabric
    return None


def _paths(view: RunView) -> list[str]:
    links = at_path(view.machine, "topology", "links")
    listed = links if isinstance(links, list | tuple) else ()
    return [str(at_path(link, "path") or "") for link in listed]


def _fastest(view: RunView) -> float:
    """Return the highest rate in one direction between devices, B/s."""
    rates = [
        record.value or 0.0
        for record in view.records
        if record.is_point
        and role_of(record.benchmark) in _OVER_LINKS
        and record.metric in ("bus_rate", "byte_rate")
        and record.num_devices > 1
        and record.case.get("ways", 1) == 1
    ]
    return max(rates, default=0.0)


def _fabric_of(device: str) -> str | None:
    """Return the one fabric of the chips that a name may mean; None where they differ."""
    chip = find_chip(device)
    chips: tuple[Chip, ...] = (chip,) if chip else candidates(device)
    fabrics = {chip.link.name for chip in chips}
    fabric = fabrics.pop() if len(fabrics) == 1 else None
    return None if fabric == "none" else fabric


def _published_link(figure: Record) -> str | None:
    """Return the fabric of a published figure, from the words of its source."""
    if (figure.case.get("nodes") or 1) != 1:
        return None
    text = f"{figure.conditions.get('interconnect', '')} {figure.conditions.get('notes', '')}"
    if figure.case.get("peer_access") is False or "no peer access" in text or "no P2P" in text:
        return HOST
    fabric = _fabric_of(str(figure.device))
    if fabric and fabric.casefold() in text.casefold():
        return fabric
    return PCIE if PCIE in text else None


# ---- trainings

_STATED = ("model", "precision", "seq_len", "batch_size", "grad_accum")
"""Settings that a log has to state of a training."""
_UNSTATED = frozenset(["kernel_stack", "optimizer", "global_batch"])
"""Settings that no log states, or that follow from the others: the figures' text names them."""


def _trainings(record: Record) -> Iterator[tuple[Record, float]]:
    """Yield published steps of the same training, each with its number of the record's metric."""
    if any(record.case.get(name) is None for name in _STATED) or record.case.get("part"):
        return
    stated_case = {name: record.case[name] for name in _STATED}
    for figure in published_trainings():
        is_explained = figure.conditions.get("grade") == "C"  # by a slow host, or by what it lacks
        if figure.device_count != record.device_count or is_explained:
            continue
        if not _is_card(str(record.device), str(figure.device)):
            continue
        theirs = {name: v for name, v in figure.case.items() if name not in _UNSTATED}
        is_whole = theirs.pop("kind", None) == "pretrain"
        theirs.setdefault("grad_accum", 1)
        same_model = normalise(str(theirs.pop("model"))) == normalise(str(stated_case["model"]))
        is_same = theirs == {name: v for name, v in stated_case.items() if name != "model"}
        if is_whole and same_model and is_same:
            value = _training_number(figure, record)
            if value:
                yield figure, value


def _training_number(figure: Record, record: Record) -> float | None:
    """Return a published step's value of a metric, for all of its devices."""
    tokens = (figure.value or 0.0) * figure.num_devices
    numbers: Mapping[str, object] = {
        "token_rate": tokens,
        "sample_rate": tokens / float(str(record.case["seq_len"])),
        "time": figure.conditions.get("step_time"),
        "peak_memory": figure.conditions.get("memory"),
    }
    value = numbers.get(record.metric)
    return value if isinstance(value, float) else None
