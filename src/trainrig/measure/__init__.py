"""Numbers by running: one timing loop, worker processes, and the benchmark families.

The parent process imports no torch: it starts workers (`process.worker`), hands them
cases, sleeps, and turns their replies into records (`aggregate`).  A worker
(`worker_main`) imports torch once, prepares a case, checks the answer and times it
with the one loop (`timing`) under the device's clock (`clock`).
"""

from typing import Any

EPS = {
    "fp64": 2.0**-52,
    "fp32": 2.0**-23,
    "tf32": 2.0**-10,
    "bf16": 2.0**-8,
    "fp16": 2.0**-10,
}
"""Rounding of a number of each dtype, as a share of it at most."""


def torch_dtype(name: str) -> Any:
    """torch's dtype of one of ours; tf32 is a way to compute with fp32."""
    import torch

    wide_or_narrow = {"fp64": torch.float64, "bf16": torch.bfloat16, "fp16": torch.float16}
    return wide_or_narrow.get(name, torch.float32)
