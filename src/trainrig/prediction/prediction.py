"""What a predicted step means: rates per GPU, shares of the peak, tokens a day, days and energy.

MFU is model FLOPs (forward, and backward as twice that; causal attention in full; nothing for what
is computed again) over time, GPUs and the claimed dense peak of the precision.  HFU adds what is
computed a second time.  Of causal attention a kernel computes about half, so that both may pass
100 % where sequences are long: beside each stands what it is where the scores that are seen count
alone.  Where no peak is claimed, or where not all weights are trained (LoRA), they are not defined
and are None.  Energy is the GPUs' alone at their power limit: an upper bound of
what they take, and no cooling or host.

`predict_metrics` is what `benchmarks.training` will measure of a step on one device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainrig.prediction.rates import Rates
from trainrig.prediction.scenario import Question
from trainrig.prediction.setting import SettingLine, setting_of
from trainrig.prediction.step import StepTime, predict_step
from trainrig.prediction.step.communication import MeshSizes, data_parallel
from trainrig.prediction.step.compute import recomputed_flops
from trainrig.prediction.verdict import verdict_of
from trainrig.units import DAY, format_time
from trainrig.workload.flops import hardware_flops, model_flops
from trainrig.workload.layout import Layout, layout_warnings
from trainrig.workload.memory import Memory, memory
from trainrig.workload.model import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A predicted step, and what follows from it."""

    question: Question
    rates: Rates
    step: StepTime
    memory: Memory
    tokens: int
    """Tokens of a step."""

    @property
    def model_flops(self) -> int:
        """Model FLOPs of a step, all GPUs."""
        return model_flops(self.question.shape, **self._size)

    @property
    def hardware_flops(self) -> int:
        """Model FLOPs and those of what is computed again, of a step, all GPUs."""
        return self._computed(half=False)

    @property
    def model_flops_half(self) -> int:
        """Model FLOPs where of causal attention the scores that are seen count alone."""
        return model_flops(self.question.shape, **self._size, half=True)

    @property
    def hardware_flops_half(self) -> int:
        """Hardware FLOPs where of causal attention the scores that are seen count alone."""
        return self._computed(half=True)

    @property
    def _size(self) -> dict[str, Any]:
        batch, samples = self.layout.batch, int(self.layout.global_batch)
        return {"batch": samples, "seq": batch.seq_len, "target_seq_len": batch.target_seq_len}

    def _computed(self, *, half: bool) -> int:
        shape, layout = self.question.shape, self.layout
        once = hardware_flops(shape, **self._size, kernels=layout.kernels.stack, half=half)
        return once + recomputed_flops(shape, layout, half=half)

    @property
    def layout(self) -> Layout:
        """Return the layout that was asked for."""
        return self.question.layout

    @property
    def time(self) -> float:
        """s of a step."""
        return float(self.step.total)

    @property
    def is_simulated(self) -> bool:
        """Return whether the time is that of a pipeline, event by event, and no closed form's."""
        return bool(self.layout.mesh.pp > 1) and self.layout.pipeline.schedule != "dualpipe"

    @property
    def simulated(self) -> float | None:
        """Return the time where it was simulated, else None."""
        return self.time if self.is_simulated else None

    @property
    def setting(self) -> tuple[SettingLine, ...]:
        """Return facts about nodes, network and uneven stages."""
        return setting_of(self.question.shape, self.layout, self.question.cluster)

    @property
    def interval(self) -> tuple[float, float]:
        """80 % interval of the time."""
        low, high = self.step.interval
        return float(low), float(high)

    @property
    def tokens_per_s(self) -> float:
        """Return all GPUs together."""
        return self.tokens / self.time

    @property
    def flop_rate(self) -> float:
        """Model FLOP/s of one GPU."""
        return self.model_flops / self.time / int(self.layout.mesh.gpus)

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilisation, where it is defined."""
        return self._share(self.model_flops)

    @property
    def hfu(self) -> float | None:
        """Hardware FLOPs utilisation, where it is defined."""
        return self._share(self.hardware_flops)

    @property
    def mfu_half(self) -> float | None:
        """`mfu` where the causal scores that are seen count alone."""
        return self._share(self.model_flops_half)

    @property
    def hfu_half(self) -> float | None:
        """`hfu` where the causal scores that are seen count alone."""
        return self._share(self.hardware_flops_half)

    @property
    def claimed(self) -> str:
        """Data type of the claimed peak that MFU and HFU are shares of."""
        return "fp4" if self.question.cluster.is_fp4 else self.layout.precision.compute

    @property
    def verdict(self) -> str:
        """Return one of `verdict.VERDICTS`: whether it fits in memory."""
        return verdict_of(
            self.memory.needed_interval,
            self.rates.memory_bytes,
            host=self.question.host_verdict,
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return warnings: what is seldom meant, presumed of the machine, or will not run."""
        cluster = self.question.cluster
        chip, warnings = cluster.chip, self._warnings
        if chip is not None and cluster.trays > 1:
            tray, node, link = cluster.tray, cluster.gpus_per_node, chip.link.name
            trays = f"{cluster.trays} trays of {tray} are one node of {node}: {link} joins them"
            if node % tray:
                trays = f"{cluster.trays} trays are one node of {node}: {link} joins them"
            warnings = (trays, *warnings)
        if (cloud := cluster.uncounted) is not None:
            gpus = cluster.gpus
            counted = f"how many GPUs {cloud} has is not known: {gpus} in all, or as --gpus says"
            warnings = (counted, *warnings)
        return (*self.question.notes, *warnings)

    @property
    def _warnings(self) -> tuple[str, ...]:
        words, chip = self.layout.precision.compute, self.question.cluster.chip
        if costs := self.data_parallel:
            spent = ", ".join(f"{name} {format_time(seconds)}" for name, seconds in costs.items())
            return (f"DataParallel, each micro-batch by GPU 0: {spent}",)
        if self.question.cluster.is_fp4:
            scaled = "products are in fp4, all else is priced as fp8; MFU is of the fp4 peak"
            return (*layout_warnings(self.layout), scaled)
        if chip is None or not self.rates.peaks or self.rates.peaks.get(words) is not None:
            return layout_warnings(self.layout)
        absent = f"no {words} rate is claimed of {chip.name}: another precision's stands for it"
        return (*layout_warnings(self.layout), absent)

    @property
    def data_parallel(self) -> dict[str, float] | None:
        """s of what torch.nn.DataParallel exchanges for a micro-batch; None: it is not asked for.

        Uncontended and by themselves; its fifth cost, one interpreter's lock, is in the step's
        ``gaps``.
        """
        if self.layout.scheme != "dataparallel" or self.layout.mesh.gpus == 1:
            return None
        mesh = MeshSizes(self.question.shape, self.layout)
        return {n: float(s) for n, s in data_parallel(mesh, self.rates, 1.0).items()}

    def days(self, tokens: float) -> float:
        """Days that so many tokens take."""
        return tokens / self.tokens_per_s / DAY

    @property
    def power(self) -> float | None:
        """Power limits of all GPUs in W; None where the chip's is not known."""
        limit = self.rates.power
        return None if limit is None else int(self.layout.mesh.gpus) * limit

    def kwh(self, tokens: float) -> float | None:
        """Energy of the GPUs for so many tokens, at their power limit; None: not known."""
        return None if self.power is None else self.days(tokens) * 24.0 * self.power / 1000.0

    def _share(self, flops: int) -> float | None:
        peak = self.rates.peaks.get(self.layout.precision.compute)
        if peak is None or self.layout.lora.rank or self.question.cluster.chip is None:
            return None  # what was measured is no claim
        return flops / self.time / int(self.layout.mesh.gpus) / peak


def predict(question: Question) -> Prediction:
    """Predict one layout."""
    rates = question.cluster.rates()
    shape, layout = question.shape, question.layout
    return Prediction(
        question=question,
        rates=rates,
        step=_step(shape, layout, rates),
        memory=memory(shape, layout),
        tokens=int(layout.global_batch) * layout.batch.seq_len,
    )


def _step(shape: ModelShape, layout: Layout, rates: Rates) -> StepTime:
    """Return a step's parts.

    Of a pipeline as its simulation takes, by which a plan ranks layouts too.
    """
    if layout.mesh.pp == 1 or layout.pipeline.schedule == "dualpipe":
        return predict_step(shape, layout, rates)
    from trainrig.prediction.step.simulate import simulated  # numpy: a step alone needs none

    seconds, step = simulated(shape, layout, rates)
    return step.lasting(float(seconds[0]))


CONFIDENCE = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedMetric:
    """One number of a step, before it is measured."""

    metric: str
    unit: str
    value: float
    interval: tuple[float, float]


def predict_metrics(shape: ModelShape, layout: Layout, rates: Rates) -> tuple[PredictedMetric, ...]:
    """Return the metrics that a step on one device will be measured by."""
    step = predict_step(shape, layout, rates)
    low, high = (end / step.total for end in step.interval)
    flops = model_flops(
        shape,
        int(layout.global_batch),
        layout.batch.seq_len,
        target_seq_len=layout.batch.target_seq_len,
    )
    needed = memory(shape, layout)
    times = {
        "time": step.total,
        "time.forward": step.forward + step.gaps / 3.0,
        "time.backward": step.backward + step.recompute + step.gaps * 2.0 / 3.0,
        "time.optimizer": step.optimizer,
    }
    rate = flops / step.total
    bytes_low, bytes_high = map(float, needed.interval("allocated"))
    others = (
        ("flop_rate", "FLOP/s", rate, (rate / high, rate / low)),
        ("peak_memory", "B", float(needed.allocated), (bytes_low, bytes_high)),
    )
    timed = [(name, "s", time, (time * low, time * high)) for name, time in times.items() if time]
    return tuple(
        PredictedMetric(metric=metric, unit=unit, value=value, interval=interval)
        for metric, unit, value, interval in (*timed, *others)
    )
