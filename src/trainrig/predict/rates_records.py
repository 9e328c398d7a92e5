"""Rates of the machine in the room, from what was measured on it.

Answers `rates_of_records`: measured points replace the catalog's rule operation by operation; what
was not measured keeps the rule, and the provenance says which is which.  A processor without a
chip in the catalog has no rule: what a step cannot do without must have been measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from trainrig.catalog.chip import Chip
from trainrig.errors import UnavailableError
from trainrig.predict.rates import Attention, Direction, Rates, Stream
from trainrig.predict.rates_chip import rates_of_chip
from trainrig.predict.rates_constants import constants
from trainrig.predict.rates_links import Link, Links
from trainrig.predict.rates_matmul import MatmulRates
from trainrig.record import Record

_HINT = "measure it: trainrig qualify"
# What a processor's library cuts a product into: small, since its vectors are.
_CPU_TILES = ((16, 16, 1.0),)
_FLASH = Direction(share=0.5, rows=64, tail=0.0)
_INSTEAD = ("fp32", "bf16", "fp16", "tf32")


def rates_of_records(records: Iterable[Record], chip: Chip | None = None, **places: Any) -> Rates:
    """Rates from measured points; from ``chip``'s claims where nothing was measured.

    ``places`` are `rates_of_chip`'s link, fabric and p2p.  Raises UnavailableError where there is
    no chip and no measured product of matrices or stream of bytes.
    """
    device = None if chip is None else chip.name
    points = [r for r in records if r.is_point and r.is_usable and r.device_count == 1]
    if device is not None:
        points = [r for r in points if r.device == device or r.benchmark == "storage"]
    rule = rates_of_chip(chip, **places) if chip is not None else _bare(points)
    return _with_matmuls(_with_streams(_with_links(rule, points), points), points)


def _of(points: Iterable[Record], benchmark: str, metric: str, **case: Any) -> list[Record]:
    return [
        r
        for r in points
        if r.benchmark == benchmark
        and r.metric == metric
        and all(r.case.get(key) == value for key, value in case.items())
    ]


def _products(points: Iterable[Record]) -> list[Record]:
    return [r for r in _of(points, "matmul", "flop_rate") if {"m", "k", "n"} <= r.case.keys()]


def _value(record: Record) -> float:
    return float(record.value or 0.0)


def _with_matmuls(rule: Rates, points: list[Record]) -> Rates:
    """Each dtype's rate scaled so that the measured products of it come out right."""
    sustained, measured = dict(rule.matmuls.sustained), set()
    for dtype in sorted({str(r.case["dtype"]) for r in _products(points)} & set(sustained)):
        ratios = [_ratio(rule, r) for r in _products(points) if r.case["dtype"] == dtype]
        sustained[dtype] *= statistics.median(ratios)
        measured.add(dtype)
    if not measured:
        return rule
    words = f"measured on this machine: {', '.join(sorted(measured))}"
    return rule.replace(
        matmuls=_replace(rule.matmuls, sustained=sustained),
        provenance={**rule.provenance, "matmul": words},
        spread={**rule.spread, "matmul": 0.05},
    )


def _ratio(rule: Rates, point: Record) -> float:
    """Measured rate against the rule's."""
    m, k, n = (int(point.case[axis] or 0) for axis in ("m", "k", "n"))
    expected = 2.0 * m * k * n / rule.matmul(m, n, k, dtype=str(point.case["dtype"]))
    return _value(point) / float(expected)


def _with_streams(rule: Rates, points: list[Record]) -> Rates:
    rates = [
        _value(r)
        for r in (
            *_of(points, "copy", "byte_rate", direction="d2d"),
            *_of(points, "copy", "byte_rate", direction="triad"),
            *_of(points, "vector", "byte_rate", cache="cold"),
        )
    ]
    if not rates:
        return rule
    bandwidth = max(rates)
    streams = rule.streams
    faster = bandwidth / streams.bandwidth
    return rule.replace(
        streams=_replace(
            streams, bandwidth=bandwidth, cache_bandwidth=streams.cache_bandwidth * faster
        ),
        provenance={**rule.provenance, "stream": "measured on this machine"},
        spread={**rule.spread, "stream": 0.05},
    )


def _with_links(rule: Rates, points: list[Record]) -> Rates:
    changes: dict[str, Any] = {}
    words, spread = dict(rule.provenance), dict(rule.spread)
    found = {
        "host_link": [_value(r) for r in _of(points, "copy", "byte_rate", direction="h2d")],
        "disk": [_value(r) for r in points if r.benchmark == "storage" and r.unit == "B/s"],
    }
    for name, values in found.items():
        if values:
            changes[name], words[name], spread[name] = max(values), "measured on this machine", 0.1
    return rule.replace(**changes, provenance=words, spread=spread) if changes else rule


def _replace(what: Any, **changes: Any) -> Any:
    import dataclasses

    return dataclasses.replace(what, **changes)


def _bare(points: list[Record]) -> Rates:
    """Rates of a machine without a chip: what was measured, and no rule behind it."""
    products = _products(points)
    streams = [*_of(points, "copy", "byte_rate"), *_of(points, "vector", "byte_rate")]
    if not products:
        raise UnavailableError("no measured product of matrices to take rates from", _HINT)
    if not streams:
        raise UnavailableError("no measured stream of bytes to take rates from", _HINT)
    bandwidth = max(_value(r) for r in streams)
    memory = Link(name="one memory", bandwidth=bandwidth / 2, latency=1e-5, hop=1e-6, ramp=1e-5)
    rule = constants()
    return Rates(
        device=products[0].device or "this machine",
        matmuls=MatmulRates(
            sustained=_rates_by_dtype(products),
            bandwidth=bandwidth,
            processors=1,
            tiles=_CPU_TILES,
            split_k=1.0,
            overlap=rule["matmul"]["overlap"],
            ramp_k=rule["matmul"]["ramp_k"],
            latency=5e-6,
        ),
        streams=Stream(bandwidth=bandwidth, latency=5e-6),
        attentions=Attention(forward=_FLASH, backward=_FLASH, own=(_FLASH, _FLASH), softmax=0.0),
        links=Links(inside=memory, between=memory),
        launch=5e-6,
        host_link=bandwidth,
        disk=5e8,
        memory_bytes=0.0,
        power=100.0,
        spread=dict(rule["spread"]) | {"attention": 0.4, "launch": 0.5},
        provenance=dict.fromkeys(rule["spread"], "presumed") | {"host_link": "memory's own"},
    )


def _rates_by_dtype(products: list[Record]) -> Mapping[str, float]:
    """The best measured rate of each dtype; others run as the nearest that was measured."""
    found: dict[str, float] = {}
    for record in products:
        dtype = str(record.case["dtype"])
        found[dtype] = max(found.get(dtype, 0.0), _value(record))
    nearest = next((found[d] for d in _INSTEAD if d in found), next(iter(found.values())))
    return dict.fromkeys(("fp32", "tf32", "bf16", "fp16", "fp8", "int8"), nearest) | found
