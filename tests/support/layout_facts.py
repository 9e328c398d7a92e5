"""What a rank tells of its layout: plain data parallelism on two ranks, a thousand weights."""

from __future__ import annotations

from typing import Any

WHOLE: dict[str, Any] = {
    "num_parameters": 1000,
    "weights": 1000,
    "weights_between": 1000,
    "gradients": 1000,
    "masters": 1000,
    "states": 1000,
    "moments": 2,
    "micro_batches": 1,
    "micro_tokens": 1024,
    "block_forwards": 1,
    "weight_dtype": "float32",
    "gradient_dtype": "float32",
    "master_dtype": "float32",
    "state_dtype": "float32",
    "wrapped": "DistributedDataParallel",
    "placements": None,
    "transport": "gloo",
    "ranks": 2,
    "optimizer": "AdamW",
    "fused": True,
    "compiled": False,
    "offloaded": False,
    "device": "cpu",
    "threads": 1,
}
