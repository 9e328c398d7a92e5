"""What a machine with two GPUs and a training does at one moment, and what asks it."""

from __future__ import annotations

import math

from trainrig.watch.live import (
    LiveBurn,
    LiveDevice,
    LiveRun,
    LiveTraining,
    LiveView,
)
from trainrig.watch.processes import ProcessLoad

RUN, BURN = "20261122T203000Z-desk-train-abc123", "20261122T203500Z-desk-burn-def456"


def gpu(index: int, **readings: object) -> LiveDevice:
    usual = {
        "temperature_c": 66.0,
        "power_w": 412.5,
        "sm_clock_hz": 2.52e9,
        "memory_clock_hz": 10.501e9,
        "utilization": 0.98,
        "pcie_generation": 4,
        "pcie_width": 16,
        "throttle_reasons": "sw_power_cap",
        "corrected_volatile": 3,
        "energy_j": 1.5e6,
    }
    return LiveDevice(
        name="NVIDIA GeForce RTX 4090",
        index=index,
        readings={**usual, **readings},  # type: ignore[dict-item]
    )


def view(steps: int = 120) -> LiveView:
    """A training on GPU 0, a burn on GPU 1, a third whose driver is silent."""
    rates = tuple(12_000.0 + 300.0 * math.sin(n / 5.0) for n in range(steps))
    losses = tuple(4.0 + 6.0 * math.exp(-n / 30.0) for n in range(steps))
    host = {"cpu_share": 0.31, "load_1m": 5.0, "cpu_clock_hz": 3.4e9}
    return LiveView(
        at=1_795_393_905.0,
        devices=(
            LiveDevice(name="AMD Ryzen 9 7950X", index=None, readings=host),
            gpu(0),
            gpu(1, temperature_c=83.0, throttle_reasons="hw_thermal_slowdown"),
            LiveDevice(name="NVIDIA GeForce RTX 4090", index=2, readings={}),
        ),
        memory_total_bytes=64 << 30,
        memory_available_bytes=40 << 30,
        processes=(
            ProcessLoad(
                pid=4242, cpus=1.02, memory_bytes=5 << 30, command="python -m trainrig", run=RUN
            ),
            ProcessLoad(pid=77, cpus=0.4, memory_bytes=1 << 28, command="/usr/bin/Xorg :0"),
        ),
        runs=(
            LiveRun(run=RUN, folder=f"/home/a/runs/{RUN}", verb="train", pid=4241),
            LiveRun(run=BURN, folder=f"/home/a/runs/{BURN}", verb="burn", pid=4300),
        ),
        trainings=(
            LiveTraining(
                run=RUN,
                experiment="gpt2-124m",
                step=steps,
                loss=losses[-1],
                grad_norm=1.25,
                tokens_per_s=rates[-1],
                age_s=0.4,
                rates=rates,
                losses=losses,
            ),
        ),
        burns=(
            LiveBurn(
                run=BURN,
                device="RTX 4090 #1",
                part="matmul bf16",
                rate=161e12,
                unit="FLOP/s",
                errors=2,
            ),
        ),
        jobs={"20261122T203000Z-train-1a2b3c": "trainrig train --model gpt2 --detach"},
    )


class Looker:
    """Answers each look with a training that has gone on."""

    def __init__(self) -> None:
        self.looks = 0

    def look(self) -> LiveView:
        self.looks += 1
        return view(118 + 2 * self.looks)
