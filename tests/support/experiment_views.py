"""Runs of experiments as the report is handed them: long names, faults, published figures."""

from __future__ import annotations

from typing import Any

from trainrig.record import Outcome, RunView, Verdict

JITTER = (1.0, 1.02, 0.99, 1.01, 0.98, 1.0, 1.03, 1.0)
PARTS = ("data_wait", "forward", "backward", "communication", "optimizer", "other")
SHARES = (0.02, 0.4, 0.3, 0.2, 0.07, 0.01)


def summary(name: str, seconds: float, **changes: Any) -> dict[str, Any]:
    """As a run stores one: 8 samples a step."""
    found = {"ranks": 2, "zero": 3, "precision": "bf16", "grad_accum": 2, "recompute": True}
    found |= {"compile": True, "offload": True, "wrapped": "FSDPDistributedDataParallel"}
    return {
        "name": name,
        "framework": "native",
        "model": "gpt2-medium",
        "batch_size": 4,
        "settings": {"batch_size": 4, "nproc": 2, "precision": "bf16", "data": "text"},
        "layout_asked": {"ranks": 2, "zero": 0, "device": "cpu"},
        "layout_found": found,
        "software_found": {"torch": "2.13.0"},
        "losses": [9.0, 8.0],
        "grad_norms": [1.0, None],
        "step_time_s": seconds,
        "step_times_s": [seconds * factor for factor in JITTER],
        "samples_per_s": 8 / seconds,
        "tokens_per_s": 8 * 512 / seconds,
        "model_flops_per_s_per_device": 4e13 / seconds,
        "mfu": 0.5 / seconds,
        "hfu": 0.6 / seconds,
        "peak_memory_bytes": 1.7e10,
        "breakdown": {part: share * seconds for part, share in zip(PARTS, SHARES, strict=True)},
        "profiled": {
            "step_s": seconds,
            "own_s": 0.8 * seconds,
            "communication_s": 0.2 * seconds,
            "bubble_s": 0.0,
            "overlapped_s": 0.15 * seconds,
        },
        "disturbed": None,
        "reason": None,
        "parity": {"not_comparable": None},
        "row_verdict": "agreed",
    } | changes


LONG = "ZeRO-3, accumulation, checkpointing, bf16, offloaded to the host's memory"


def experiments_view(
    name: str = "20270101T000000Z-host-train-abcdef", slow: float = 1.0
) -> RunView:
    """Six experiments; ``slow`` makes some of them slower."""
    settings = {"batch_size": 4, "nproc": 2, "precision": "fp32", "zero": 3, "data": "text"}
    rows = (
        summary("one process", 1.0),
        summary("DDP", 0.45 * slow),
        summary(LONG, 2.3, settings=settings, profiled=None),
        summary("busy", 0.9, disturbed="other processes used 30 % of the processors"),
        summary(
            "Hugging Face <b>&amp;`|",
            1.4,
            framework="huggingface",
            row_verdict="NOT COMPARABLE",
            parity={"not_comparable": "loss of step 0: 13.856, the one-process reference 9.0"},
        ),
        summary(
            "too large",
            1.0,
            **dict.fromkeys(("layout_found", "step_time_s", "samples_per_s", "mfu", "hfu")),
            **dict.fromkeys(("peak_memory_bytes", "model_flops_per_s_per_device")),
            losses=[],
            grad_norms=[],
            step_times_s=[],
            breakdown={},
            row_verdict="FAIL",
            reason="out of memory",
        ),
    )
    return RunView(
        name=name,
        config={"name": name, "experiments": [{"name": row["name"]} for row in rows]},
        machine={"cpu": {"model": f"EPYC {slow}"}},
        series={"experiments": rows},
        verdict=Verdict(outcome=Outcome.FAIL, reason="too large: out of memory"),
    )


def two_views() -> list[RunView]:
    """The same experiments twice, some slower."""
    return [experiments_view(), experiments_view("20270102T000000Z-host-train-fedcba", slow=2.0)]
