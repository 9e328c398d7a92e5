"""A burn's checks: bits that flip below torch, and what sensors, devices and processes may do.

Bits are planted below the operations that a check calls (`burn_planted`): any single one of
A, B, C, of an intermediate, a gradient or a weight of a training step, a cell of memory, one
processor's results.  What is judged afterwards (sensors, siblings, work that was not done) is a
run's records and series as a faulty machine would have left them; the verdict's rules read nothing
else.  Two RTX 4090s for 200 s, every sensor once a second.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from trainrig.analysis.burn_facts import DIGESTS, TELEMETRY, WORK
from trainrig.analysis.judge_burn import judge_burn
from trainrig.benchmarks.burn import BENCHMARK, LEAST_MEMORY, burn_case
from trainrig.record import WRONG_ANSWER, Kind, Record, RunView, Scalar, Status
from trainrig.selftest import burn_planted
from trainrig.selftest.outcome import verdict_lines
from trainrig.selftest.registry import HEALTHY, Fault

TAKES_S = 20.0
_CARD, _RATE, _SPAN = "RTX 4090", 150e12, 200
_START = 1.8e9
_MEMORY = 24_000_000_000
Row = dict[str, Any]
Spoil = Callable[[RunView], RunView]


def faults() -> Iterator[Fault]:
    """Flipped bits first, then what the verdict must see."""
    for planted in burn_planted.FAULTS:
        yield Fault(
            name=planted.name,
            check=planted.check,
            inject=partial(_planted, planted),
            observe=_observe_planted,
            finds=planted.finds,
            variants=planted.variants,
            twin=f"{planted.check} {planted.phase.get('dtype')}",
        )
    for name, finds, spoil in _JUDGED:
        outcome = _OUTCOMES.get(name, _UNKNOWN if finds in _NOT_JUDGED else _FAIL)
        yield Fault(
            name=name,
            check="burn.verdict",
            inject=partial(_judged, spoil),
            observe=_observe_judged,
            finds=finds,
            says=f"{outcome} {finds}:",
            twin="burn.verdict",
        )


_FAIL, _UNKNOWN, _NAMED = "FAIL exit 1 error", "INCOMPLETE exit 3 error", "PASS exit 0 warning"
_NOT_JUDGED = ("step-not-done", "sensor-stopped", "sensor-stuck")
_OUTCOMES = {
    "corrected memory errors under load": _NAMED,
    "a card 4 % behind its sibling": _NAMED,
}
"""Faults that end otherwise than most of their finding."""


# ---- bits


@contextmanager
def _planted(
    fault: burn_planted.BurnFault, _: Path, variant: str | None
) -> Iterator[burn_planted.BurnFault]:
    with burn_planted.inject(fault, variant):
        yield fault


def _observe_planted(fault: burn_planted.BurnFault) -> Iterable[str]:
    return [f"wrong-answer: {text}" for text in burn_planted.observe(fault)]


# ---- what a run says of a machine


def healthy_view() -> RunView:
    """Return a burn of two cards that found nothing wrong."""
    records: list[Record] = []
    for index in (0, 1):
        for mode, rate in (("matmul", _RATE), ("step", 0.4 * _RATE), ("memory", 0.9e12)):
            records += _records(index, mode, rate)
    telemetry = [_row(second) for second in range(_SPAN)]
    work = [{"t": _START + second, "part": "matmul bf16"} for second in range(_SPAN)]
    key: Row = {"device": _CARD, "dtype": "bf16", "torch": "2.13"}
    digests = [
        {"device": _CARD, "index": index, "key": key, "names": ["loss", "weight q"]}
        | {"steps": [[1, 2], [3, 4]]}
        for index in (0, 1, 2)
    ]
    return RunView(
        name="a burn of two cards",
        config={"verb": WORK},
        records=tuple(records),
        series={TELEMETRY: tuple(telemetry), WORK: tuple(work), DIGESTS: tuple(digests)},
    )


def _records(index: int, mode: str, rate: float) -> list[Record]:
    """Return the planned record of a part and the measured one."""
    is_bytes = mode == "memory"
    planned = Record(
        kind=Kind.PREDICTED,
        benchmark=BENCHMARK.name,
        case=burn_case(mode, None if is_bytes else "bf16"),
        metric="byte_rate" if is_bytes else "flop_rate",
        unit="B/s" if is_bytes else "FLOP/s",
        device=_CARD,
        device_index=index,
        status=Status.MISSING,
        reason="no target",
    )
    conditions: dict[str, Scalar] = {"checked": 9000, "errors": 0, "rate": rate}
    conditions |= {"busy_s": 60.0, "planned_s": 60.0, "work": 60.0 * rate}
    if is_bytes:
        conditions |= {"passes": 12, "memory_bytes": _MEMORY, "memory_wanted_bytes": _MEMORY}
    measured = planned.replace(
        kind=Kind.MEASURED, value=rate, status=Status.OK, reason=None, conditions=conditions
    )
    return [planned, measured]


def _row(second: int) -> Row:
    """Return the sensors: idle for five seconds, then under load."""
    load = 0.0 if second < 5 else 1.0
    row: Row = {"t": _START + second}
    for index in (0, 1):
        sensors = {
            "temperature_c": 35.0 + 30.0 * load * (1.0 - 0.97**second),
            "power_w": 30.0 + 390.0 * load + (second * 7 % 11) / 10.0,
            "sm_clock_hz": 0.2e9 + 2.3e9 * load,
            "energy_j": 400.0 * second,
            "pcie_width": 16,
            "pcie_replays": 3,
            "ecc_corrected": 1,
            "ecc_uncorrected": 0,
            "throttle_reasons": "sw_power_cap" if load else "idle",
        }
        row |= {f"gpu{index}_{name}": value for name, value in sensors.items()}
    return row


def _rows(change: Callable[[int, Row], Row]) -> Spoil:
    """Return a change of the sensors' readings in every second."""

    def spoil(view: RunView) -> RunView:
        rows = tuple(change(n, dict(row)) for n, row in enumerate(view.series[TELEMETRY]))
        return dataclasses.replace(view, series={**view.series, TELEMETRY: rows})

    return spoil


def _from(second: int, **values: Any) -> Spoil:
    """Sensors of GPU 1 that say something else from a second on; None: nothing."""

    def change(now: int, row: Row) -> Row:
        if now >= second:
            row |= {f"gpu1_{name}": value for name, value in values.items()}
        return row

    return _rows(change)


def _sticks(name: str) -> Spoil:
    return _from(0, **{name: _row(0)[f"gpu1_{name}"]})


def _point(mode: str, **changes: Any) -> Spoil:
    """Return the point of a mode on GPU 1, changed; conditions too."""

    def spoil(view: RunView) -> RunView:
        def changed(record: Record) -> Record:
            is_meant = (
                record.kind is Kind.MEASURED
                and record.device_index == 1
                and record.case["mode"] == mode
            )
            if not is_meant:
                return record
            more = changes.get("conditions", {})
            return record.replace(**{**changes, "conditions": {**record.conditions, **more}})

        return dataclasses.replace(view, records=tuple(map(changed, view.records)))

    return spoil


def _without_point(view: RunView) -> RunView:
    records = [r for r in view.records if r.kind is Kind.PREDICTED or r.device_index == 0]
    return dataclasses.replace(view, records=tuple(records))


def _other_digest(view: RunView) -> RunView:
    digest_rows = [dict(row) for row in view.series[DIGESTS]]
    digest_rows[1]["steps"] = [[1, 2], [3, 5]]
    return dataclasses.replace(view, series={**view.series, DIGESTS: tuple(digest_rows)})


def _sampler_dies(view: RunView) -> RunView:
    rows = view.series[TELEMETRY][:100]
    return dataclasses.replace(view, series={**view.series, TELEMETRY: rows})


def _failed(reason: str, status: Status = Status.FAILED) -> Spoil:
    return _point("matmul", value=None, status=status, reason=reason)


_WRONG = f"{WRONG_ANSWER}: 1 in 9,000 results compared: product 7 differs from the first: row 3"
_JUDGED: tuple[tuple[str, str, Spoil], ...] = (
    ("one wrong product of nine thousand", "wrong-answer", _failed(_WRONG)),
    (
        "a GPU that vanishes under load",
        "device-failed",
        _failed("rank 0: AcceleratorError: CUDA error: unspecified launch failure"),
    ),
    (
        "a burning process that is killed",
        "step-not-done",
        _failed("rank 0 was ended by SIGKILL"),
    ),
    (
        "memory that is not given",
        "step-not-done",
        _point("memory", value=None, status=Status.OOM, reason="1 of 24 bytes could be allocated"),
    ),
    (
        "memory of which too little is compared",
        "step-not-done",
        _point("memory", conditions={"memory_bytes": int(0.99 * LEAST_MEMORY * _MEMORY)}),
    ),
    (
        "memory that is not compared once",
        "step-not-done",
        _point("memory", conditions={"passes": 0}),
    ),
    ("a part that is not run", "step-not-done", _without_point),
    ("a burn that hardly works", "step-not-done", _point("step", conditions={"busy_s": 3.0})),
    ("a burn that compares nothing", "step-not-done", _point("matmul", conditions={"checked": 0})),
    ("one tensor of one step on one of three GPUs", "digests-differ", _other_digest),
    ("a temperature that is no longer read", "sensor-stopped", _from(150, temperature_c=None)),
    ("a driver that stops answering", "sensor-stopped", _sampler_dies),
    ("a temperature that sticks", "sensor-stuck", _sticks("temperature_c")),
    ("a power reading that sticks", "sensor-stuck", _from(20, power_w=417.3)),
    ("an energy counter that stands still", "sensor-stuck", _sticks("energy_j")),
    ("memory errors beyond ECC under load", "ecc-rises", _from(120, ecc_uncorrected=2)),
    ("corrected memory errors under load", "ecc-rises", _from(120, ecc_corrected=40)),
    ("a PCIe link that falls to x8 under load", "link-narrowed", _from(90, pcie_width=8)),
    ("replays on a PCIe link under load", "link-replays", _from(90, pcie_replays=900)),
    (
        "a card that slows itself down for heat in a burn",
        "throttled",
        _from(60, throttle_reasons="hw_thermal_slowdown"),
    ),
    ("a card 4 % behind its sibling", "behind-siblings", _point("matmul", value=0.96 * _RATE)),
)


@contextmanager
def _judged(spoil: Spoil, _: Path, variant: Any) -> Iterator[RunView]:
    view = healthy_view()
    yield view if variant is HEALTHY else spoil(view)


def _observe_judged(view: RunView) -> Iterable[str]:
    return verdict_lines(judge_burn(view))
