"""Summaries of trainings as ``train --json`` prints them."""

from __future__ import annotations

from typing import Any

JITTER = (1.0, 1.004, 0.997, 1.002, 0.999, 1.001, 0.998, 1.003)


def summary(name: str, seconds: float, **changes: Any) -> dict[str, Any]:
    """As ``train --json`` prints one: 8 samples a step."""
    return {
        "name": name,
        "backend": "native",
        "model": "gpt2",
        "batch_size": 4,
        "layout_asked": {"ranks": 2, "zero": 0},
        "layout_found": None,
        "losses": [9.0, 8.0],
        "grad_norms": [1.0, 1.0],
        "step_time_s": seconds,
        "step_times_s": [seconds * factor for factor in JITTER],
        "samples_per_s": 8 / seconds,
        "peak_memory_bytes": 1e6,
        "breakdown": {},
        "disturbed": None,
        "reason": None,
        "parity": {"not_comparable": None},
        "row_verdict": "PASS",
    } | changes
