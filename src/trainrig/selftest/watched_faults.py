"""What is watched while devices burn: each limit of watched.toml, broken by a tenth.

A burn of two cards as `burn_faults` has it; the second one breaks one limit and no other, at a
random place.  Its twin comes within a tenth of the limit there.  What must come out is
the verdict: FAIL for a device's fault, INCOMPLETE where nobody can know, a warning beside a PASS.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from trainrig.analysis.burn_facts import TELEMETRY, WORK
from trainrig.analysis.judge import NOT_DONE
from trainrig.analysis.judge_burn import judge_burn
from trainrig.analysis.watched import least_rate
from trainrig.analysis.watched_rules import WatchedQuantity, WatchLimit, watch_rules
from trainrig.catalog.lookup import require_chip
from trainrig.record import Kind, Outcome, RunView, Severity
from trainrig.selftest.burn_faults import healthy_view
from trainrig.selftest.outcome import verdict_lines
from trainrig.selftest.registry import TENTH, Fault, threshold_fault

_CARD = "RTX 4090"
_FACTS = {"slowdown_temperature_c": 90.0, "power_limit_w": 450.0}
_LINK = {"max_generation": 4, "max_width": 16, "generation": 4, "width": 16}
_FIRST, _LAST = 30, 190
"""Seconds of the burn in which the random places are."""
Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenBurn:
    """A burn, and how grave a finding is that counts."""

    view: RunView
    severity: Severity = "error"


Break = Callable[[RunView, random.Random, float], RunView]
"""(healthy burn, places, +1 for a tenth beyond the limit, −1 for a tenth inside it) → the burn."""


def watched_view() -> RunView:
    """Return a burn of two cards whose machine is described, and whose links are watched."""
    view = healthy_view()
    gpus = [{"index": n, "uuid": f"GPU-{n}", "link": dict(_LINK), **_FACTS} for n in (0, 1)]
    rows = []
    for second, row in enumerate(view.series[TELEMETRY]):
        more = {f"gpu{n}_pcie_generation": 4 if second >= 5 else 1 for n in (0, 1)}
        rows.append({**row, **more, "m": 1000.0 + second, "suspended_s": 3.0})
    slices = [
        {**row, "m": 1000.0 + second, "device": f"{_CARD} #{n}", "unit": "FLOP/s", "rate": 150e12}
        for second, row in enumerate(view.series[WORK])
        for n in (0, 1)
    ]
    series = {**view.series, TELEMETRY: tuple(rows), WORK: tuple(slices)}
    return dataclasses.replace(view, series=series, machine={"gpus": gpus})


def faults() -> Iterator[Fault]:
    """Yield faults of limits, impossible readings and absent sensors, then the others."""
    for limit in watch_rules().limit:
        yield _fault(_limit_name(limit), limit.finding, limit.severity, partial(_break, limit))
        if limit.rule == "at-most" or limit.of == "highest_seen":
            name = f"{limit.quantity} beyond its limit for too long"
            yield _fault(name, limit.finding, limit.severity, partial(_lasting, limit))
    for quantity in watch_rules().quantity:
        yield from _of_quantity(quantity)
    for name, finds, change in _OTHERS:
        yield _fault(name, finds, "error", change)


def _limit_name(limit: WatchLimit) -> str:
    of = f" × {limit.of}" if limit.of else ""
    words = f", {' or '.join(limit.words)}" if limit.words else ""
    return f"{limit.quantity}{words}: {limit.rule} {limit.value:g}{of}, {limit.severity}"


_SHADOWED = (
    ("sm_clock_hz", "least"),
    *((name, word) for name in ("pcie_generation", "pcie_width") for word in ("least", "most")),
)
"""Bounds that no reading of this card reaches without breaking a limit first."""


def _of_quantity(quantity: WatchedQuantity) -> Iterator[Fault]:
    if quantity.required:
        yield _fault(
            f"{quantity.name} that is read too seldom",
            "not-watched",
            "error",
            partial(_unread, quantity),
        )
    bounds = (("least", quantity.least), ("most", quantity.most))
    for word, bound in bounds:
        if bound is not None and (quantity.name, word) not in _SHADOWED:
            yield _fault(
                f"{quantity.name} beyond the {word} that can be",
                "sensor-implausible",
                "error",
                partial(_implausible, quantity, word),
            )
    if quantity.counter:
        yield _fault(
            f"{quantity.name} that goes back",
            "counter-went-back",
            "error",
            partial(_goes_back, quantity),
            # What it counted before is a fault of its own.
            Outcome.FAIL if quantity.name == "ecc_uncorrected" else None,
        )


def _fault(
    name: str, finds: str, severity: Severity, change: Break, ends: Outcome | None = None
) -> Fault:
    outcome = Outcome.INCOMPLETE if finds in NOT_DONE else Outcome.FAIL
    outcome = Outcome.PASS if severity == "warning" else outcome
    outcome = ends or outcome
    exit_code = {Outcome.PASS: 0, Outcome.FAIL: 1, Outcome.INCOMPLETE: 3}[outcome]
    says = f"{outcome} exit {exit_code} {severity} {finds}:"

    def scene(places: random.Random, towards: float) -> BrokenBurn:
        return BrokenBurn(view=change(watched_view(), places, towards), severity=severity)

    return threshold_fault(
        name,
        "burn.watched",
        f"{says} RTX 4090 #1" if _names(finds) else says,
        scene,
        _observe,
        finds,
    )


def _names(finds: str) -> bool:
    """Return whether a finding is about one device."""
    return finds not in ("machine-suspended", "sensor-stopped", "clock-wrong", "step-not-done")


def _observe(scene: BrokenBurn) -> Iterable[str]:
    return verdict_lines(judge_burn(scene.view), scene.severity)


# ---- how each is broken


def _rows(view: RunView, change: Callable[[int, Row], Row]) -> RunView:
    rows = tuple(change(n, dict(row)) for n, row in enumerate(view.series[TELEMETRY]))
    return dataclasses.replace(view, series={**view.series, TELEMETRY: rows})


def _set(view: RunView, seconds: Iterable[int], **values: Any) -> RunView:
    """Return second card's readings at some seconds; a function of the former value, or a value."""
    places = set(seconds)

    def change(now: int, row: Row) -> Row:
        if now in places:
            for name, value in values.items():
                key = f"gpu1_{name}"
                row[key] = value(row[key]) if callable(value) else value
        return row

    return _rows(view, change)


def _stretch(rng: random.Random, seconds: float) -> range:
    length = int(seconds) + 2
    start = rng.randrange(_FIRST, _LAST - length)
    return range(start, start + length)


def _bound_of(limit: WatchLimit) -> float:
    chip = require_chip(_CARD)
    facts = {
        **_FACTS,
        "highest_seen": {"pcie_generation": 4.0, "pcie_width": 16.0}.get(limit.quantity, 0.0),
        "pcie_generation": 4.0,
        "pcie_width": 16.0,
        "base_clock": chip.compute.base_clock or 0.0,
        "boost_clock": chip.compute.boost_clock or 0.0,
    }
    return limit.value * (facts[limit.of] if limit.of else 1.0)


def _break(limit: WatchLimit, view: RunView, rng: random.Random, towards: float) -> RunView:
    if limit.quantity.startswith("pcie") and limit.rule == "at-least":
        return _narrowed(limit, view, rng, towards)
    return _BREAKS[limit.rule](limit, view, rng, towards)


def _narrowed(limit: WatchLimit, view: RunView, rng: random.Random, towards: float) -> RunView:
    """Return whole numbers: a generation or half of the lanes less, or none less."""
    if towards < 0.0:
        return view
    lower = 3 if limit.quantity == "pcie_generation" else 8
    falls = limit.of == "highest_seen"
    places = _stretch(rng, limit.seconds) if falls else range(200)
    return _set(view, places, **{limit.quantity: lower})


def _lasting(limit: WatchLimit, view: RunView, rng: random.Random, towards: float) -> RunView:
    """Beyond the limit for a tenth longer than it takes, or a tenth shorter."""
    length = math.ceil(limit.seconds * (1.0 + towards * TENTH))
    length -= towards < 0.0
    start = rng.randrange(_FIRST, _LAST - length)
    lower = {"pcie_generation": 3, "pcie_width": 8}.get(limit.quantity)
    value = _bound_of(limit) * (1.0 + TENTH) if lower is None else lower
    return _set(view, range(start, start + length), **{limit.quantity: value})


def _at_most(limit: WatchLimit, view: RunView, rng: random.Random, towards: float) -> RunView:
    high = _bound_of(limit) * (1.0 + towards * TENTH)
    return _set(view, _stretch(rng, limit.seconds), **{limit.quantity: high})


def _at_least(limit: WatchLimit, view: RunView, _: random.Random, towards: float) -> RunView:
    """From the first second on: what falls is another fault."""
    low = _bound_of(limit) * (1.0 - towards * TENTH)
    reason = "sw_power_cap" if limit.of == "boost_clock" else "none"
    return _set(view, range(200), **{limit.quantity: low, "throttle_reasons": reason})


def _falls(limit: WatchLimit, view: RunView, rng: random.Random, towards: float) -> RunView:
    drop = (1.0 - limit.value) * (1.0 + towards * TENTH)
    places = _stretch(rng, limit.seconds)
    return _set(view, places, **{limit.quantity: lambda value: value * (1.0 - drop)})


def _counted(limit: WatchLimit, view: RunView, rng: random.Random, towards: float) -> RunView:
    places = range(rng.randrange(_FIRST, _LAST), 200)
    return _set(view, places, **{limit.quantity: 1.0 if towards > 0.0 else 0.0})


def _rises(limit: WatchLimit, view: RunView, rng: random.Random, towards: float) -> RunView:
    places = range(rng.randrange(_FIRST, _LAST), 200)
    least = max(limit.count, limit.value * 199 / 3600.0)
    rise = max(1, round(least * (1.0 + TENTH))) if towards > 0.0 else int(least * (1.0 - TENTH))
    return _set(view, places, **{limit.quantity: lambda value: value + rise})


def _shares(limit: WatchLimit, view: RunView, rng: random.Random, towards: float) -> RunView:
    num = limit.value * 200 * (1.0 + towards * TENTH)
    seconds = rng.sample(range(200), k=int(num) + (towards > 0.0))
    return _set(view, seconds, **{limit.quantity: rng.choice(limit.words)})


_BREAKS: Mapping[str, Callable[[WatchLimit, RunView, random.Random, float], RunView]] = {
    "at-most": _at_most,
    "at-least": _at_least,
    "falls": _falls,
    "any": _counted,
    "rise": _rises,
    "share": _shares,
}


def _unread(
    quantity: WatchedQuantity, view: RunView, rng: random.Random, towards: float
) -> RunView:
    share = watch_rules().least_read * (1.0 - towards * TENTH)
    # The last seconds stay: a sensor that stopped is another fault.
    lost = rng.sample(range(190), k=round((1.0 - share) * 200))
    return _set(view, lost, **{quantity.name: None})


def _implausible(
    quantity: WatchedQuantity, word: str, view: RunView, rng: random.Random, towards: float
) -> RunView:
    bound = getattr(quantity, word) * (_FACTS[quantity.most_of] if quantity.most_of else 1.0)
    if word == "least" and quantity.most_of:
        bound = quantity.least
    beyond = bound * (1.0 + towards * TENTH * (1.0 if word == "most" else -1.0))
    places = range(200) if "clock" in quantity.name else _stretch(rng, 3.0)
    wobble = iter(range(1000))
    return _set(
        view, places, **{quantity.name: lambda _: beyond * (1.0 + 1e-6 * next(wobble) * towards)}
    )


def _goes_back(
    quantity: WatchedQuantity, view: RunView, rng: random.Random, towards: float
) -> RunView:
    if towards < 0.0:
        return view
    at = rng.randrange(_FIRST, _LAST)
    return _set(view, range(at), **{quantity.name: lambda value: value + 1000.0})


# ---- what is no sensor


def _gap(view: RunView, rng: random.Random, towards: float) -> RunView:
    seconds = int(watch_rules().longest_gap_s * (1.0 + towards * TENTH))
    start = rng.randrange(_FIRST, _LAST - seconds)
    rows = view.series[TELEMETRY]
    remaining_rows = rows[:start] + rows[start + seconds :]
    return dataclasses.replace(view, series={**view.series, TELEMETRY: remaining_rows})


def _suspended(view: RunView, rng: random.Random, towards: float) -> RunView:
    at, seconds = rng.randrange(_FIRST, _LAST), watch_rules().most_suspended_s
    slept = seconds * (1.0 + towards * TENTH)
    return _rows(
        view, lambda now, row: {**row, "suspended_s": row["suspended_s"] + slept * (now >= at)}
    )


def _clock(view: RunView, rng: random.Random, towards: float) -> RunView:
    """Return a worker's clock that is a tenth more off than is allowed, or a tenth less."""
    parent_s = rng.uniform(300.0, 600.0)
    seconds_off = watch_rules().clocks_apart * (1.0 + towards * TENTH) * parent_s
    worker_s = parent_s + rng.choice((-1.0, 1.0)) * (seconds_off + 0.3)
    return _points(view, rng, clock_s=worker_s, elapsed_s=parent_s)


def _compared(view: RunView, rng: random.Random, towards: float) -> RunView:
    rule, seconds = watch_rules().compared["gpu"], rng.choice((60.0, 600.0))
    least = max(rule.least, round(rule.per_s * seconds))
    num = least - 1 if towards > 0.0 else least
    modes = ("matmul", "step")
    return _points(view, rng, modes, checked=num, busy_s=seconds, planned_s=seconds)


def _points(
    view: RunView,
    rng: random.Random,
    modes: tuple[str, ...] = ("matmul", "step", "memory"),
    **conditions: Any,
) -> RunView:
    """Change the conditions of one point of the second card, chosen at random."""
    mode = rng.choice(modes)
    records = tuple(
        record.replace(conditions={**record.conditions, **conditions})
        if record.kind is Kind.MEASURED and record.device_index == 1 and record.case["mode"] == mode
        else record
        for record in view.records
    )
    return dataclasses.replace(view, records=records)


def _slow_cards(view: RunView, _: random.Random, towards: float) -> RunView:
    """Return both cards alike: no sibling tells."""
    expected = least_rate(_CARD, "bf16", 450.0)
    assert expected is not None
    share = next(rule.least for rule in watch_rules().rate if rule.least)
    rate = share * expected[0] * (1.0 - towards * TENTH)
    records = tuple(
        r.replace(value=rate, conditions={**r.conditions, "rate": rate})
        if r.kind is Kind.MEASURED and r.case["mode"] == "matmul"
        else r
        for r in view.records
    )
    return dataclasses.replace(view, records=records)


def _falling_rate(view: RunView, rng: random.Random, towards: float) -> RunView:
    rule = next(rule for rule in watch_rules().rate if rule.falls)
    assert rule.falls is not None
    drop = (1.0 - rule.falls) * (1.0 + towards * TENTH)
    places = {1000.0 + second for second in _stretch(rng, rule.seconds)}
    slices = tuple(
        {**row, "rate": row["rate"] * (1.0 - drop)}
        if row["m"] in places and row["device"].endswith("#1")
        else row
        for row in view.series[WORK]
    )
    return dataclasses.replace(view, series={**view.series, WORK: slices})


def _stepped_clock(view: RunView, rng: random.Random, towards: float) -> RunView:
    """Return a wall clock that steps orders nothing: a gap of the other clock is the fault."""
    at, step = rng.randrange(_FIRST, _LAST), rng.choice((-3600.0, 3600.0))
    series = {
        name: tuple({**row, "t": row["t"] + step * (row["m"] >= 1000.0 + at)} for row in rows)
        if name in (TELEMETRY, WORK)
        else rows
        for name, rows in view.series.items()
    }
    stepped = dataclasses.replace(view, series=series)
    return _gap(stepped, rng, towards)


def _no_sensor(view: RunView, _: random.Random, towards: float) -> RunView:
    if towards < 0.0:
        return view
    return dataclasses.replace(view, series={**view.series, TELEMETRY: ()})


_OTHERS: tuple[tuple[str, str, Break], ...] = (
    ("sensors that nobody read for a while", "sensor-stopped", _gap),
    ("no sensor at all", "sensor-stopped", _no_sensor),
    ("a wall clock that steps by an hour, and a gap", "sensor-stopped", _stepped_clock),
    ("a machine that was suspended", "machine-suspended", _suspended),
    ("a worker whose clock is off", "clock-wrong", _clock),
    ("too few results compared", "step-not-done", _compared),
    ("both cards below what such a card does", "rate-low", _slow_cards),
    ("a rate that falls half-way", "rate-fell", _falling_rate),
)
