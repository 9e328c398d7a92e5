"""A made-up machine whose layers are the roofline and whose steps are what is put into them."""

from __future__ import annotations

from typing import Any

from report_views import claimed, claimed_memory, matmul_case, point
from trainrig.analysis.time_loss import count_layer, count_step, memory_seconds
from trainrig.analysis.waterfall import Gap, Level, build_waterfalls
from trainrig.record import Record, RunView
from trainrig.workload import total_flops

PEAK = 100e12
BANDWIDTH = 1e12
MODEL = {"model": "gpt2-medium", "precision": "bf16", "seq_len": 1024, "batch_size": 4}
LAYER = {
    "layer": "GPT-2 medium block",
    "dtype": "bf16",
    "seq_len": 1024,
    "pass": "forward+backward",
}
LAYER |= {"hidden": 1024, "heads": 16, "ffn": 4096}


def rate_point(benchmark: str, case: dict[str, Any], value: float, **more: Any) -> Record:
    return point(benchmark, case, value, **({"metric": "flop_rate", "unit": "FLOP/s"} | more))


def layer_point(batch: int, extra: float = 0.0, floor: float = 0.0) -> Record:
    """A layer at its roofline, ``extra`` seconds slower, and never under ``floor`` seconds."""
    record = rate_point("layer", {**LAYER, "batch_size": batch}, 1.0)
    counted = count_layer(record)
    assert counted is not None
    flops = total_flops(counted.ops)
    time = flops / PEAK + memory_seconds(counted.ops, PEAK, BANDWIDTH) + extra
    return record.replace(value=counted.work / max(time, floor))


def step_records(
    layers: float, best: float, recompute: str = "none", **injected: float
) -> list[Record]:
    """A step whose layers run at ``layers`` FLOP/s, with seconds put into its parts.

    What stands around the layers is at its roofline under ``best``, the best layer's rate.
    """
    case = {**MODEL, "recompute": recompute} if recompute != "none" else dict(MODEL)
    bare = rate_point("training", case, 1.0)
    counted, without = count_step(bare), count_step(bare, recompute="none")
    assert counted is not None
    assert without is not None
    outside = [op for op in counted.ops if "block" not in op.name]
    again = total_flops(counted.ops, "recompute") - total_flops(without.ops, "recompute")
    blocks = without.work - total_flops(outside)
    parts = {"data_wait": 0.001, "optimizer": 0.02, "other": 0.002}
    for name, seconds in injected.items():
        parts[name] = parts.get(name, 0.0) + seconds
    computing = blocks / layers + total_flops(outside) / best + again / best
    time = computing + memory_seconds(outside, best, BANDWIDTH) + sum(parts.values())
    taken = {"metric": "time", "unit": "s"}
    return [
        rate_point("training", case, counted.work / time),
        point("training", case, time, **taken),
        *(
            point("training", case, seconds, **(taken | {"metric": f"time.{name}"}))
            for name, seconds in parts.items()
        ),
    ]


COLD = {"op": "scale", "dtype": "fp32", "num_elements": 2**26, "cache": "cold"}


def run(*records: Record) -> RunView:
    machine = (
        claimed("bf16", 1.1 * PEAK),
        claimed_memory(1.1 * BANDWIDTH),
        rate_point("matmul", matmul_case("bf16", 8192), PEAK),
        point("vector", COLD, BANDWIDTH),
    )
    return RunView(name="made up", records=(*machine, *records))


def level_of(view: RunView, name: str) -> tuple[Level, Gap]:
    (found,) = (each for each in build_waterfalls(view) if each.quantity == "bf16 compute")
    level = next(level for level in found.levels if level.name == name)
    assert level.gap is not None
    return level, level.gap


def step_run(recompute: str = "none", **injected: float) -> RunView:
    layer = layer_point(4)
    assert layer.value is not None
    return run(layer, *step_records(layer.value, layer.value, recompute, **injected))
