"""Classes of measurements beyond those that a target is known of: judged by others, or named.

Nobody publishes how fast our layers are on each card.  What a card's own products reach bounds
them: a layer is products for the most part, and one far below what they leave open is no good
layer.  How low a sound one may be is presumed (classes.toml), so that a slow one withholds a
PASS and fails nothing.  Classes that nothing bounds are named by the verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

from pydantic import ConfigDict

from trainrig.analysis.judge_links import exchange_target
from trainrig.analysis.rows import Row
from trainrig.benchmarks.spec import Role, case_text, find
from trainrig.record import Finding, dtype_of, read_by, read_toml
from trainrig.stats import grouped
from trainrig.units import device_text, format_share

PATH = Path(__file__).parent / "classes.toml"
SLOW_LAYERS = "layers-slow"
_ONE_RATE = {"fp16": "16 bit", "bf16": "16 bit"}
_CONFIG = ConfigDict(extra="forbid")


@read_by(_CONFIG)
class LayerRule:
    """Least rate of layers as a share of their card's products."""

    least_of_products: float
    source: str


@read_by(_CONFIG)
class ClaimRule:
    """Least rate of products of one type as a share of its claim."""

    dtype: str
    least: float
    source: str


@read_by(_CONFIG)
class ClassRules:
    """The whole file."""

    layers: LayerRule
    claim: tuple[ClaimRule, ...]


@cache
def class_rules() -> ClassRules:
    """Return what classes.toml says."""
    return read_toml(PATH, ClassRules, PATH.name)


def _measured(rows: Iterable[Row]) -> list[Row]:
    """Return points of one GPU with a value, of cases that the device decides."""
    measured_rows = []
    for row in rows:
        spec, point = find(row.benchmark), row.measured
        is_gpu = row.index is not None and row.count == 1
        if is_gpu and point is not None and point.value and spec and spec.is_large(row.case):
            measured_rows.append(row)
    return measured_rows


def _kind(row: Row) -> str:
    dtype = str(dtype_of(row.case))
    return _ONE_RATE.get(dtype, dtype)


def slow_layers(rows: Sequence[Row]) -> Iterator[Finding]:
    """Find layers that are far below their card's own products; one finding a card."""
    measured = _measured(rows)
    products: dict[tuple[object, str], float] = {}
    for row in measured:
        if row.role is Role.PRODUCT and row.metric == "flop_rate":
            key = (row.index, _kind(row))
            products[key] = max(products.get(key, 0.0), row.value)
    least, slow = class_rules().layers.least_of_products, []
    for row in measured:
        best = products.get((row.index, _kind(row)))
        is_ours = row.case.get("code") == "trainrig" and row.case.get("attention") == "sdpa"
        is_whole = row.case.get("pass") == "forward+backward" and row.metric == "flop_rate"
        if row.role is not Role.BLOCK or not (is_ours and is_whole) or not best:
            continue
        point = row.measured
        top = point.interval[1] if point is not None and point.interval else row.value
        if top < least * best:
            slow.append((row.value / best, row))
    for slow_of_card in grouped(slow, lambda pair: (pair[1].device, pair[1].index)).values():
        share, worst = min(slow_of_card, key=lambda pair: pair[0])
        yield Finding(
            id=SLOW_LAYERS,
            severity="warning",
            evidence=f"{case_text(worst.benchmark, worst.case)} on "
            f"{device_text(worst.device, worst.index)}: {format_share(share)} of its best product; "
            f"{format_share(least)} is the least that is presumed",
            fix="trainrig bench layer shows which operation takes its time; compare the versions "
            "of torch and of the driver with another machine's",
            records=tuple(row.measured.id for _, row in slow_of_card if row.measured),
        )


def far_below_claim(rows: Sequence[Row]) -> Iterator[Finding]:
    """Find products of a type that nobody predicts, below the least share of its claim."""
    least = {rule.dtype: rule.least for rule in class_rules().claim}
    for row in _measured(rows):
        point, share = row.measured, least.get(str(dtype_of(row.case)))
        if point is None or share is None or row.role is not Role.PRODUCT or row.band is not None:
            continue
        top = point.interval[1] if point.interval else row.value
        if point.limit is not None and point.is_usable and top < share * point.limit.value:
            yield Finding(
                id="below-claim",
                severity="error",
                evidence=f"{case_text(row.benchmark, row.case)} on "
                f"{device_text(row.device, row.index)}: "
                f"{format_share(row.value / point.limit.value)} of its claim "
                f"({point.limit.source}); {format_share(share)} is the least",
                fix="look at clocks, power limit and temperature under load: trainrig inspect, "
                "nvidia-smi -q -d PERFORMANCE",
                records=(point.id,),
            )


def without_target(rows: Sequence[Row]) -> list[str]:
    """Return classes that were measured and that nothing was known to judge by, in words."""
    named: dict[str, None] = {}
    classes = grouped(_measured(rows), lambda row: (row.role, _kind(row)))
    for (role, kind), class_rows in classes.items():
        bounded = {rule.dtype for rule in class_rules().claim}
        if role is Role.PRODUCT and kind not in bounded and all(r.band is None for r in class_rows):
            named[f"{kind} products"] = None
    exchanges = [row for row in rows if row.role is Role.COLLECTIVE and row.value]
    if exchanges and not any(
        row.measured is not None and exchange_target(row.measured) for row in exchanges
    ):
        named["what GPUs exchange"] = None
    return list(named)
