"""Made-up runs for the report's tests: their numbers are round and belong to no machine."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from trainrig.record import Derivation, Finding, Kind, Limit, Outcome, Record, RunView, Verdict

GPU = "RTX 4090"
CPU = "Some CPU @ 2.50GHz"
SIZES = (128, 512, 1024, 2048, 4096, 8192)
CLAIMS = {"bf16": 165.2e12, "fp16": 165.2e12, "tf32": 82.6e12, "fp32": 82.6e12, "int8": 660.6e12}


def claimed(dtype: str, value: float, device: str = GPU, accumulate: str = "fp32") -> Record:
    return Record(
        kind=Kind.CLAIMED,
        benchmark="matmul",
        case={"dtype": dtype, "accumulate": accumulate},
        metric="flop_rate",
        unit="OP/s" if dtype == "int8" else "FLOP/s",
        value=value,
        device=device,
        source=f"{device} data sheet, {dtype} dense, {accumulate} accumulation",
    )


def claimed_memory(value: float, device: str = GPU) -> Record:
    return Record(
        kind=Kind.CLAIMED,
        benchmark="memory",
        case={},
        metric="byte_rate",
        unit="B/s",
        value=value,
        device=device,
        source=f"{device} data sheet, memory bandwidth",
    )


def claimed_link(value: float, direction: str = "h2d", device: str = GPU) -> Record:
    return Record(
        kind=Kind.CLAIMED,
        benchmark="link",
        case={"direction": direction},
        metric="byte_rate",
        unit="B/s",
        value=value,
        device=device,
        source="PCIe 4.0 x16",
    )


def matmul_case(dtype: str, size: int, **more: Any) -> dict[str, Any]:
    return {"dtype": dtype, "m": size, "k": size, "n": size, "cache": "hot"} | more


def point(benchmark: str, case: dict[str, Any], value: float | None, **more: Any) -> Record:
    """A measured point of a GPU, with a narrow interval."""
    rate = "flop_rate" if benchmark == "matmul" else "byte_rate"
    fields: dict[str, Any] = {
        "kind": Kind.MEASURED,
        "benchmark": benchmark,
        "case": case,
        "metric": rate,
        "unit": "FLOP/s" if rate == "flop_rate" else "B/s",
        "value": value,
        "interval": (value * 0.99, value * 1.01) if value else None,
        "confidence": 0.95 if value else None,
        "device": GPU,
        "device_index": 0,
        "environment": "0123456789abcdef",
        "started": "2026-11-20T10:00:00Z",
        "duration": 1.5,
    }
    return Record(**(fields | more))


def settled(record: Record, amount: float) -> list[Record]:
    """Two workers' attempts at a point, then the point derived from them."""
    assert record.value is not None
    time = amount / record.value
    tries = [
        record.replace(
            id=f"{record.id[:10]}-{n}",
            metric="time",
            unit="s",
            value=time,
            samples=tuple(time * (1.0 + 0.001 * k) for k in range(-5, 6)),
            interval=(time * 0.995, time * 1.005),
            attempt=n,
            stop="converged",
        )
        for n in (1, 2)
    ]
    derived = Derivation(ids=tuple(t.id for t in tries), formula="2·m·k·n / time")
    return [*tries, record.replace(derived=derived)]


def predicted(record: Record, low: float, high: float, source: str = "published, n = 3") -> Record:
    return record.replace(
        id=f"p-{record.id}",
        kind=Kind.PREDICTED,
        value=(low + high) / 2.0,
        interval=(low, high),
        confidence=None,
        derived=None,
        source=source,
    )


def saturating(size: int, top: float, half: float = 500.0) -> float:
    """A matmul's curve: nothing at 0, half of the top at ``half``."""
    return top / (1.0 + (half / size) ** 2)


def card_records(index: int, slow: float = 1.0, device: str = GPU) -> list[Record]:
    """What one healthy card would measure, times ``slow``."""
    found: list[Record] = []
    for dtype, top in (("bf16", 158e12), ("fp16", 161e12), ("tf32", 76e12), ("fp32", 57e12)):
        for size in SIZES:
            value = saturating(size, top) * slow
            limit = Limit(value=CLAIMS[dtype], source=f"{device} data sheet, {dtype} dense")
            conditions = {"sm_clock_hz": 2.52e9, "power_w": 431.0, "temperature_c": 71.0}
            one = point(
                "matmul",
                matmul_case(dtype, size),
                value,
                device=device,
                device_index=index,
                limit=limit,
                conditions=conditions,
            )
            if size == SIZES[-1]:
                found.append(predicted(one, 0.9 * top, 1.05 * top))
            found += settled(one, 2.0 * size**3)
    for op in ("scale", "add"):
        for exponent in range(14, 29, 2):
            hot = saturating(2**exponent, 3.6e12, 3e5) if exponent < 24 else 0.93e12
            case = {"op": op, "dtype": "fp32", "num_elements": 2**exponent, "cache": "hot"}
            found.append(point("vector", case, hot * slow, device=device, device_index=index))
        case = {"op": op, "dtype": "fp32", "num_elements": 2**26, "cache": "cold"}
        found.append(point("vector", case, 0.925e12 * slow, device=device, device_index=index))
    for direction, memory, rate in (
        ("d2d", "device", 0.911e12),
        ("h2d", "pinned", 24.9e9),
        ("h2d", "pageable", 11.2e9),
        ("d2h", "pinned", 25.4e9),
        ("d2h", "pageable", 9.8e9),
    ):
        case = {"direction": direction, "bytes": 2**28, "memory": memory, "cache": "cold"}
        found.append(point("copy", case, rate, device=device, device_index=index))
    return found


def gpu_view(num_gpus: int = 1, slow_card: int | None = None, **more: Any) -> RunView:
    """A run on ``num_gpus`` cards, one of them perhaps slow."""
    records = [claimed(dtype, rate) for dtype, rate in CLAIMS.items()]
    records += [claimed_memory(1008e9), claimed_link(31.5e9), claimed_link(31.5e9, "d2h")]
    for index in range(num_gpus):
        records += card_records(index, slow=0.84 if index == slow_card else 1.0)
    findings = [
        Finding(
            id="above-claim",
            severity="info",
            evidence="matmul fp16 8192×8192×8192 hot is 101 % of the claim",
            fix="no error: the chip boosts above the clock that the claim is computed with",
        )
    ]
    if slow_card is not None:
        ids = tuple(r.id for r in records if r.device_index == slow_card and r.is_point)
        findings.insert(
            0,
            Finding(
                id="odd-device",
                severity="error",
                evidence=f"{GPU} #{slow_card} is behind its siblings in 24 cases; at worst 84 %",
                fix="compare its clocks, power limit, slot and cooling: nvidia-smi -q",
                records=ids,
            ),
        )
    outcome = Outcome.PASS if slow_card is None else Outcome.FAIL
    fields: dict[str, Any] = {
        "name": "20261120T100000Z-box-qualify-abc123",
        "config": {"schema": 1, "verb": "qualify"},
        "machine": machine(num_gpus),
        "records": tuple(records),
        "verdict": Verdict(
            outcome=outcome,
            reason="all required steps ran, 31 points within their bands"
            if slow_card is None
            else findings[0].evidence,
            findings=tuple(findings),
        ),
        "baselines": baselines(),
    }
    return RunView(**(fields | more))


def baselines() -> tuple[Record, ...]:
    """Other machines' curves, published."""
    machines = (
        ("RTX 3090 Ti", 81e12, (128, 512, 2048, 8192)),
        ("RTX 4090", 169e12, (128, 512, 2048, 8192)),
        ("A100 SXM4 80GB", 230e12, (8192,)),
        ("V100 32GB", 95e12, (8192,)),
    )
    return tuple(
        Record(
            kind=Kind.BASELINE,
            benchmark="matmul",
            case=matmul_case("fp16", size),
            metric="flop_rate",
            unit="FLOP/s",
            value=saturating(size, top),
            device=device,
            source="someone's notebook",
        )
        for device, top, sizes in machines
        for size in sizes
    )


LAYERS = ("BERT-large layer", "GPT-2 medium block", "T5-large decoder block")


def layer_records() -> list[Record]:
    """Layers of a card whose host takes 2 ms to launch one, and a step with its parts."""
    found = []
    for layer in LAYERS:
        for passed, top in (("forward", 120e12), ("forward+backward", 132e12)):
            for seq in (128, 512, 2048):
                for batch in (1, 2, 4, 8, 16, 32, 64):
                    flops = 3.0 * batch * (24.0 * seq * 2**20 + 4.0 * seq**2 * 2**10)
                    case = {"layer": layer, "dtype": "bf16", "pass": passed, "batch_size": batch}
                    case |= {"seq_len": seq, "hidden": 1024, "heads": 16, "ffn": 4096}
                    rate = {"metric": "flop_rate", "unit": "FLOP/s"}
                    value = flops / max(2e-3, flops / top)
                    one = point("layer", case, value, **rate)
                    if (seq, batch) == (512, 8):
                        one = one.replace(disturbed="the machine was busy: 1.9 of 2 CPUs taken")
                    if (seq, batch) == (2048, 64):
                        failed = {"value": None, "interval": None, "status": "oom"}
                        one = one.replace(**failed, reason="out of memory: 24.1 of 24.0 GiB")
                    found.append(one)
    case = {"model": "gpt2-medium", "precision": "bf16", "seq_len": 1024, "batch_size": 8}
    found.append(point("training", case, 71e12, metric="flop_rate", unit="FLOP/s"))
    parts = {"time": 0.26, "time.data_wait": 0.02, "time.optimizer": 0.03, "time.other": 0.004}
    found += [point("training", case, seconds, metric=m, unit="s") for m, seconds in parts.items()]
    return found


def layers_view() -> RunView:
    """One GPU up to a training step, beside the package's published layers."""
    from trainrig.catalog.published import published_records

    base = gpu_view()
    return gpu_view(records=(*base.records, *layer_records()), baselines=published_records())


def cpu_view(**more: Any) -> RunView:
    """A run on a machine without GPUs: no claim for memory, some points disturbed or skipped."""
    records = [claimed("fp32", 0.24e12, CPU)]
    for dtype, top in (("fp32", 0.19e12), ("bf16", 0.41e12), ("fp64", 0.09e12)):
        for size in SIZES[:5]:
            value = saturating(size, top, 200.0)
            one = point("matmul", matmul_case(dtype, size), value, device=CPU, device_index=None)
            if (dtype, size) == ("bf16", 512):
                one = one.replace(disturbed="the machine was busy: 1.9 of 2 CPUs taken by others")
            if (dtype, size) == ("fp64", 4096):
                one = one.replace(
                    value=None,
                    interval=None,
                    status="skipped",
                    reason="would take 21 s, 14 s are left",
                )
            found = settled(one, 2.0 * size**3) if one.value else [one]
            records += found
    for exponent in range(14, 25, 2):
        case = {"op": "scale", "dtype": "fp32", "num_elements": 2**exponent, "cache": "hot"}
        value = 9e10 / (1.0 + math.exp((exponent - 20) / 2.0)) + 1.1e10
        records.append(point("vector", case, value, device=CPU, device_index=None))
    for direction, rate in (("read", 21e9), ("copy", 15e9), ("triad", 16e9)):
        case = {"direction": direction, "bytes": 2**28, "memory": "host", "cache": "cold"}
        records.append(point("copy", case, rate, device=CPU, device_index=None))
    fields: dict[str, Any] = {
        "name": "20261120T100000Z-laptop-qualify-def456",
        "config": {"schema": 1, "verb": "qualify"},
        "machine": machine(0),
        "records": tuple(records),
        "verdict": Verdict(
            outcome=Outcome.PASS, reason="all required steps ran; no target known for 24 points"
        ),
        "baselines": baselines(),
    }
    return RunView(**(fields | more))


def long_fail_view() -> RunView:
    """Eight GPUs with three faults, each of more evidence than a first screen has room for."""
    evidence = {
        "slow": "GPU 3 reaches 90.7 TFLOPS in bf16 8192 × 8192 × 8192 where the other seven reach "
        "151 to 158 TFLOPS (deviation −42 %); its SM clock was 1.44 GHz where the others ran at "
        "2.52 GHz, its temperature 71 °C, its power 431 W of 450 W, in 12 of 12 samples of both "
        "workers; the driver reported hw_slowdown, hw_power_brake_slowdown and "
        "sw_thermal_slowdown in 118 of 118 readings",
        "pcie": "GPU 5 is linked at PCIe 4 x4 where card and slot can do x16: 6.2 GB/s from host "
        "to device instead of 25.1 GB/s, in each of 8 sizes from 1 MiB to 1 GiB, pinned and not",
        "ecc": "GPU 6 has 14 uncorrectable ECC errors since the driver was loaded (volatile: 14, "
        "aggregate: 203), 3 rows pending remapping, 2 remapped before, none of them failed",
    }
    fix = "re-seat the card and its power cable, then trainrig burn --devices 3 --budget 10m"
    findings = tuple(
        Finding(id=name, severity="error", evidence=text, fix=fix)
        for name, text in evidence.items()
    )
    verdict = Verdict(outcome=Outcome.FAIL, reason="; ".join(evidence.values()), findings=findings)
    return dataclasses.replace(gpu_view(8, slow_card=3), verdict=verdict)


def cut_off_view() -> RunView:
    """A run that was killed right after it began."""
    problems = (
        "the run was cut off before its machine.json",
        "the run was cut off before its verdict",
    )
    return RunView(
        name="20261120T100000Z-box-qualify-0dead0", config={"schema": 1}, problems=problems
    )


HOSTILE = "<script>alert(1)</script>\x1b]0;owned\x07 | `x` **b** \"'&amp; {{ 7*7 }} " + "W" * 300


def hostile_view() -> RunView:
    """A run whose every name tries to be something else than a name."""
    records = []
    for size in SIZES:
        case = matmul_case(HOSTILE, size) | {"cache": HOSTILE}
        records.append(
            point(
                "matmul",
                case,
                saturating(size, 1e14),
                device=HOSTILE,
                disturbed=HOSTILE if size == SIZES[0] else None,
                limit=Limit(value=2e14, source=HOSTILE),
                conditions={HOSTILE: HOSTILE},
                source=HOSTILE,
                environment=HOSTILE,
            )
        )
        records.append(predicted(records[-1], 5e13, 1.5e14, HOSTILE))
    case = {"op": HOSTILE, "dtype": HOSTILE, "num_elements": 4096, "cache": HOSTILE}
    records.append(point("vector", case, 1e9, device=HOSTILE))
    records.append(point(HOSTILE, {HOSTILE: HOSTILE}, 1.0, device=HOSTILE, metric=HOSTILE))
    case = {"direction": HOSTILE, "bytes": 4096, "memory": HOSTILE, "cache": "cold"}
    failed = {"status": "failed", "reason": HOSTILE}
    records.append(point("copy", case, None, device=HOSTILE, **failed))
    finding = Finding(id=HOSTILE, severity="error", evidence=HOSTILE, fix=HOSTILE)
    whole = machine(1)
    whole["cpu"]["model"] = whole["host"]["os"] = HOSTILE
    return RunView(
        name=HOSTILE,
        config={"schema": 1, "origin": HOSTILE},
        machine=whole,
        records=tuple(records),
        verdict=Verdict(outcome=Outcome.FAIL, reason=HOSTILE, findings=(finding,)),
        problems=(HOSTILE,),
        baselines=tuple(r.replace(device=HOSTILE, source=HOSTILE) for r in baselines()),
    )


def machine(num_gpus: int) -> dict[str, Any]:
    """The parts of a Snapshot that the report reads."""
    link = {"generation": 4, "width": 16, "max_generation": 4, "max_width": 16}
    gpus = [
        {"index": n, "name": f"NVIDIA GeForce {GPU}", "power_limit_w": 450.0, "link": dict(link)}
        for n in range(num_gpus)
    ]
    return {
        "schema": 1,
        "taken": "2026-11-20T10:00:00Z",
        "host": {
            "hostname": "box",
            "os": "Debian GNU/Linux 12 (bookworm)",
            "kernel": "6.1.0-18-amd64",
            "container": "none",
            "virtualization": {"missing": "not readable"},
        },
        "cpu": {
            "model": CPU,
            "cores": 16,
            "threads": 32,
            "quota_cpus": None,
            "usable_threads": 32,
        },
        "memory": {"total_bytes": 64 * 2**30},
        "gpus": gpus or {"missing": "no driver"},
        "software": {
            "torch": "2.13.0",
            "torch_cuda": "13.0" if num_gpus else None,
            "torch_hip": None,
            "nvidia_driver": "580.95" if num_gpus else {"missing": "no driver"},
        },
    }


def large_view(num_records: int = 10_000) -> RunView:
    """A run of at least ``num_records`` records, attempts and points together."""
    base = gpu_view()
    records = list(base.records)
    size = 256
    while len(records) < num_records:
        size += 8
        one = point("matmul", matmul_case("bf16", size), saturating(size, 158e12))
        records += settled(one, 2.0 * size**3)
    return gpu_view(records=tuple(records))
