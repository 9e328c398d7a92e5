"""Rates of the machine in the room, from what was measured on it.

Answers `rates_of_records`: measured points replace the catalog's rule operation by operation; what
was not measured keeps the rule, and the provenance says which is which.  Products keep the rule's
shape and are corrected by a curve of measured over expected by FLOPs, so that shapes nobody
measured are priced like their neighbours in size; where a long run was measured too, its rate is
what counts.  A GPU's products that took no longer than a launch say what a launch takes, and
nothing of products.  A processor without a chip in the catalog has no rule: what a step cannot do
without (products and streams) must have been measured.  Noisy points are lower bounds: they are
taken where there are no others, with a wider spread, and the provenance says so.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

from trainrig.benchmarks.spec import Role, role_of
from trainrig.catalog.chip import Chip
from trainrig.errors import UnavailableError
from trainrig.prediction.rates import AttentionRates, Direction, Rates, Stream
from trainrig.prediction.rates.from_chip import constants, rates_of_chip
from trainrig.prediction.rates.links import FACTORS, Link, Links
from trainrig.prediction.rates.matmul import MatmulRates
from trainrig.record import Record, Status
from trainrig.stats import grouped

_HINT = "measure it: trainrig qualify"
_MEASURED = "measured on this machine"
_DISTURBED = "measured on this machine while something else ran, a lower bound"
_CLEAN, _NOISY = 0.05, 0.15
"""Spread of a rate from clean points, and from noisy ones."""
# What a processor's library cuts a product into: small, since its vectors are.
_CPU_TILES = ((16, 16, 1.0),)
_FLASH = Direction(share=0.5, rows=64, tail=0.0)
_DTYPES = ("fp32", "tf32", "bf16", "fp16", "fp8", "int8")
_MOVING = ("scale", "add")
_COPIES = ("d2d", "copy", "triad")


def rates_of_records(records: Iterable[Record], chip: Chip | None = None, **places: Any) -> Rates:
    """Rates from measured points; from ``chip``'s claims where nothing was measured.

    ``places`` are `rates_of_chip`'s link, fabric and p2p.  Raises UnavailableError where there is
    no chip and no measured product of matrices or stream of bytes.
    """
    points = [r for r in records if r.is_point and r.status is Status.OK and r.value]
    if chip is None:
        return _with_collectives(_without_chip(points), points)
    near = [r for r in points if r.device in (chip.name, None) or role_of(r.benchmark) is Role.DISK]
    rule = rates_of_chip(chip, **places)
    rates = _with_links(_with_streams(_with_products(rule, _cleanest(near)), near), near)
    return _with_collectives(rates, near, peer_access=places.get("p2p") is not False)


def _cleanest(points: Iterable[Record]) -> list[Record]:
    """Return the clean ones, or all where there are none."""
    points = list(points)
    clean = [r for r in points if r.disturbed is None]
    return clean or points


def _of(points: Iterable[Record], role: Role, metric: str, **case: Any) -> list[Record]:
    """Return points of one kind on one device, the clean ones where there are any."""
    return _cleanest(
        r
        for r in points
        if (role_of(r.benchmark), r.metric, r.device_count) == (role, metric, 1)
        and all(r.case.get(key) == value for key, value in case.items())
    )


def _products(points: Iterable[Record], dtype: str) -> list[Record]:
    records = _of(points, Role.PRODUCT, "flop_rate", dtype=dtype)
    return [r for r in records if all(r.case.get(axis) for axis in ("m", "k", "n"))]


def _value(record: Record) -> float:
    return float(record.value or 0.0)


def _flops(record: Record) -> float:
    m, k, n = (float(record.case[axis] or 0) for axis in ("m", "k", "n"))
    return 2.0 * m * k * n


def _noted(rates: Rates, name: str, points: list[Record], words: str = "") -> Rates:
    """Return a rate with an operation's provenance and spread."""
    source, spread = (_MEASURED, _CLEAN)
    if any(point.disturbed for point in points):
        source, spread = _DISTURBED, _NOISY
    return rates.replace(
        provenance={**rates.provenance, name: source + words}, spread={**rates.spread, name: spread}
    )


def _with_products(rule: Rates, points: list[Record]) -> Rates:
    """Return each measured dtype's curve over the rule, and what a launch takes."""
    products = {dtype: _products(points, dtype) for dtype in rule.matmuls.sustained}
    used = [r for some in products.values() for r in some]
    if not used:
        return rule
    rates = _with_launch(rule, used)
    waited = 1.5 * rates.launch if rates.matmuls.latency else 0.0  # a processor's launch is none
    long = {d: [r for r in some if _flops(r) / _value(r) > waited] for d, some in products.items()}
    curves = {dtype: _curve(rule, some) for dtype, some in long.items() if some}
    measured = ", ".join(sorted(curves))
    matmuls = dataclasses.replace(rule.matmuls, measured=curves)
    return _noted(
        rates.replace(matmuls=matmuls), "matmul", used, f": {measured}; others by the rule"
    )


def _curve(rule: Rates, points: list[Record]) -> tuple[tuple[float, float], ...]:
    """Return (log2 FLOPs, measured over expected rate), a median where several have one size."""
    ratios: dict[float, list[float]] = {}
    for point in points:
        if not point.case.get("sustained"):
            ratios.setdefault(round(math.log2(_flops(point)), 3), []).append(_ratio(rule, point))
    sustained = [r for r in points if r.case.get("sustained")]
    if not ratios:
        return tuple((math.log2(_flops(r)), _ratio(rule, r)) for r in sustained[:1])
    curve = tuple((size, statistics.median(some)) for size, some in sorted(ratios.items()))
    return tuple((size, ratio * _endurance(sustained, points)) for size, ratio in curve)


def _endurance(sustained: list[Record], points: list[Record]) -> float:
    """Return a long run's rate over a short one's, for the shape that both were measured at."""
    for long in sustained:
        for short in points:
            same = all(short.case[axis] == long.case[axis] for axis in ("m", "k", "n"))
            if same and not short.case.get("sustained"):
                return min(1.0, _value(long) / _value(short))
    return 1.0


def _ratio(rule: Rates, point: Record) -> float:
    """Measured rate against the rule's."""
    m, k, n = (int(point.case[axis] or 0) for axis in ("m", "k", "n"))
    expected = rule.matmul(m, n, k, dtype=str(point.case["dtype"]))
    return _value(point) * float(expected) / _flops(point)


def _with_launch(rates: Rates, points: list[Record]) -> Rates:
    """The smallest product waits for its launch: what it takes beyond its arithmetic."""
    least = min(points, key=_flops)
    if _flops(least) > 1e8:
        return rates
    best = max(_value(r) for r in points if r.case["dtype"] == least.case["dtype"])
    beyond = _flops(least) / _value(least) - _flops(least) / best
    rates = _noted(rates, "launch", [least], ": the smallest product")
    return rates.replace(launch=min(max(beyond, 1e-6), 1e-4))


def _with_streams(rule: Rates, points: list[Record]) -> Rates:
    streamed = _streamed(points)
    if not streamed:
        return rule
    bandwidth = statistics.harmonic_mean([_value(r) for r in streamed])
    streams = dataclasses.replace(rule.streams, bandwidth=bandwidth)
    return _noted(rule.replace(streams=streams), "stream", streamed)


def _streamed(points: list[Record]) -> list[Record]:
    """Return the records of cold scaling and adding, noisy or not; copies where there are none.

    Their harmonic mean counts, since a step does all of them.  Another operation than these moves
    no more bytes and computes: on a processor a cold gelu is four times as slow.
    """
    cold = (_of(points, Role.STREAM, "byte_rate", cache="cold", op=op) for op in _MOVING)
    cleanest = _cleanest(chain.from_iterable(cold))
    copies = (_of(points, Role.TRANSFER, "byte_rate", direction=way) for way in _COPIES)
    return cleanest or list(chain.from_iterable(copies))


def _with_links(rates: Rates, points: list[Record]) -> Rates:
    links = {
        "host_link": _of(points, Role.TRANSFER, "byte_rate", direction="h2d"),
        "disk": _of(points, Role.DISK, "byte_rate", op="read"),
    }
    for name, some in links.items():
        if some:
            rates = rates.replace(**{name: max(_value(r) for r in some)})
            rates = rates.replace(host_link_shared=0.0) if name == "host_link" else rates
            rates = _noted(rates, name, some)
    return rates


def _with_collectives(rates: Rates, points: list[Record], *, peer_access: bool = True) -> Rates:
    """Return an α–β line for each collective that was measured inside a node."""
    exchanged = [
        r
        for r in points
        if (role_of(r.benchmark), r.metric) == (Role.COLLECTIVE, "time")
        and r.case.get("nodes", 1) == 1
        and r.case.get("peer_access", True) is peer_access
        and float(r.case.get("ranks") or 0) > 1
        and r.case.get("bytes")
    ]
    kinds = {"sendrecv": "send"}  # one message from each rank to the next one
    lines: dict[str, Link] = {}
    errors: list[float] = []
    for kind, records in grouped(exchanged, lambda r: str(r.case["collective"])).items():
        if (name := kinds.get(kind, kind)) in (*FACTORS, "send") and name not in lines:
            line = _line(name, [(*_wire(name, r), _value(r)) for r in _cleanest(records)])
            if line is not None:
                lines[name] = line[0]
                errors.append(line[1])
    if not lines:
        return rates
    links = dataclasses.replace(rates.links, measured=lines)
    noted = _noted(
        rates, "collective", exchanged, f": {', '.join(sorted(lines))}, α–β inside a node"
    )
    spread = {**noted.spread, "collective": max(_CLEAN, statistics.median(errors))}
    return noted.replace(links=links, spread=spread)


def _wire(kind: str, point: Record) -> tuple[float, float]:
    """Steps of a ring, and bytes that a rank's link carries."""
    ranks, size = float(point.case["ranks"] or 0), float(point.case["bytes"] or 0)
    if kind == "send":
        return 1.0, size
    return ranks - 1.0, FACTORS[kind] * size * (ranks - 1.0) / ranks


def _line(kind: str, points: list[tuple[float, float, float]]) -> tuple[Link, float] | None:
    """Least squares of relative errors: seconds = hop · steps + wire / bandwidth.

    ``points``: (steps, wire, seconds).  With it the root of its mean squared relative error; None
    for fewer than two sizes, and where no such line is rising.
    """
    if len({wire for _, wire, _ in points}) < 2:
        return None
    weighed = [(steps / seconds, wire / seconds) for steps, wire, seconds in points]
    aa, ab, bb = (sum(p[i] * p[j] for p in weighed) for i, j in ((0, 0), (0, 1), (1, 1)))
    a, b = (sum(p[i] for p in weighed) for i in (0, 1))
    determinant = aa * bb - ab * ab
    hop = (a * bb - b * ab) / determinant if determinant else 0.0
    hop = max(hop, 0.0)
    per_byte = (b - hop * ab) / bb
    if per_byte <= 0.0:
        return None
    error = math.sqrt(
        sum((hop * steps + per_byte * wire - 1.0) ** 2 for steps, wire in weighed) / len(weighed)
    )
    name = f"{kind}, measured"
    return Link(name=name, bandwidth=1.0 / per_byte, latency=0.0, hop=hop, ramp=0.0), error


def _without_chip(points: list[Record]) -> Rates:
    """Rates of a processor: what was measured on it, and no claim behind it."""
    products = [r for dtype in _DTYPES for r in _products(points, dtype)]
    if not products:
        raise UnavailableError("no measured product of matrices to take rates from", _HINT)
    device = max((r.device for r in products), key=[r.device for r in products].count)
    near = [r for r in points if r.device == device or role_of(r.benchmark) is Role.DISK]
    streams = _streamed(near)
    if not streams:
        raise UnavailableError("no measured stream of bytes to take rates from", _HINT)
    # The best rate of each measured dtype: one that is emulated tells nothing of the others.
    best = {d: max(_value(r) for r in some) for d in _DTYPES if (some := _products(near, d))}
    rule = _processor(device or "this machine", best, max(_value(r) for r in streams))
    rates = _with_links(_with_streams(_with_products(rule, near), near), near)
    # A processor computes itself: what a launch costs is spent where it computes, and the curve of
    # the products has it already.
    streams_late = dataclasses.replace(rates.streams, latency=rates.launch)
    return rates.replace(launch=0.0, streams=streams_late)


def _processor(device: str, sustained: Mapping[str, float], bandwidth: float) -> Rates:
    """Return a processor's rule: one that computes all of a product, and one memory."""
    rule, spread = constants()["matmul"], constants()["spread"]
    memory = Link(name="one memory", bandwidth=bandwidth / 2, latency=1e-5, hop=1e-6, ramp=1e-5)
    return Rates(
        device=device,
        matmuls=MatmulRates(
            sustained=sustained,
            bandwidth=bandwidth,
            processors=1,
            tiles=_CPU_TILES,
            split_k=1.0,
            drain=0.0,
            latency=0.0,
            overlap=rule["overlap"],
        ),
        streams=Stream(bandwidth=bandwidth, latency=0.0),
        attentions=AttentionRates(
            forward=_FLASH, backward=_FLASH, generation=(_FLASH, _FLASH), softmax=0.0
        ),
        links=Links(inside=memory, between=memory),
        launch=5e-6,
        host_link=bandwidth,
        disk=5e8,
        memory_bytes=math.inf,
        power=None,
        peaks=sustained,
        spread={**spread, "attention": 0.5, "launch": 0.5, "collective": 0.5},
        provenance={
            "attention": "presumed: half of large products",
            "launch": "presumed",
            "collective": "presumed: through one memory",
            "host_link": "the memory's own",
            "disk": "presumed",
        },
    )
