"""What a step of our own training should take on one device, by the parts that it marks itself.

Answers the numbers that `measure.step` will measure: time and its parts, model FLOP/s, memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainrig.predict.rates import Rates
from trainrig.predict.step import predict_step
from trainrig.workload.layout import Layout
from trainrig.workload.memory import memory
from trainrig.workload.ops import model_flops
from trainrig.workload.shapes import ModelShape

CONFIDENCE = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Foretold:
    """One number of a step, before it is measured."""

    metric: str
    unit: str
    value: float
    interval: tuple[float, float]


def layout_of(
    *,
    batch: int,
    seq: int,
    written: int = 0,
    accum: int,
    dtype: str,
    recompute: str,
    compiled: bool,
) -> Layout:
    """One process of our training: narrow weights with fp32 masters, torch's fused attention.

    ``written``: tokens that an encoder-decoder writes (`workload.spans`).
    """
    return Layout(
        gpus=1,
        gpus_per_node=1,
        micro_batch=batch,
        grad_accum=accum,
        seq=seq,
        target_seq=written,
        precision=dtype,
        recompute=recompute,
        kernels="compiled" if compiled else "flash",
        engine="plain",
    )


def foretell(shape: ModelShape, layout: Layout, rates: Rates) -> tuple[Foretold, ...]:
    """What a step on one device will be measured as."""
    step = predict_step(shape, layout, rates)
    low, high = (end / step.total for end in step.interval)
    flops = model_flops(shape, int(layout.global_batch), layout.seq, target_seq=layout.target_seq)
    kept = memory(shape, layout)
    times = {
        "time": step.total,
        "time.forward": step.forward + step.gaps / 3.0,
        "time.backward": step.backward + step.recompute + step.gaps * 2.0 / 3.0,
        "time.optimizer": step.optimizer,
    }
    found = [
        Foretold(metric=name, unit="s", value=t, interval=(t * low, t * high))
        for name, t in times.items()
        if t > 0.0
    ]
    rate = flops / step.total
    bytes_low, bytes_high = (float(end) for end in kept.interval("allocated"))
    return (
        *found,
        Foretold(metric="flop_rate", unit="FLOP/s", value=rate, interval=(rate / high, rate / low)),
        Foretold(
            metric="peak_memory",
            unit="B",
            value=float(kept.allocated),
            interval=(bytes_low, bytes_high),
        ),
    )
