"""Track the memory of the real modules, and store it: what `workload.memory` is tested against.

    python -m validation.memory_golden            print predicted and tracked for all configurations
    python -m validation.memory_golden --write    and write tests/support/fixtures/memory_golden.csv

One optimizer step of `train.precision` and torch's fused AdamW on the models of `trainrig.models`,
on torch's meta device: every tensor has a size and no content, so that a 13B model takes seconds
and no memory.  A dispatch mode sees each storage come and go; the peak is the largest sum.  Where a
GPU would choose another kernel than the meta device, it is called by name: flash attention, or the
memory-efficient one with a mask, and the fused RMSNorm.  What kernels allocate inside is not seen.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F  # noqa: N812
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trainrig import models
from trainrig.train.native.precision import Weights
from trainrig.workload import ModelShape, find
from trainrig.workload.layout import Layout
from trainrig.workload.memory import memory

GOLDEN = (
    Path(__file__).resolve().parent.parent / "tests" / "support" / "fixtures" / "memory_golden.csv"
)
_ATEN = torch.ops.aten


class Tracker(TorchDispatchMode):
    """Bytes of all storages that operations have made and that are still alive."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self.add(leaf)
        return out

    def add(self, tensor: torch.Tensor) -> None:
        """Count a tensor's storage until it is freed."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen:
            return
        self._seen.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.now -= size


@contextmanager
def as_on_gpu() -> Iterator[None]:
    """The kernels that a GPU runs, for operations that the meta device would take apart."""
    adam: Any = importlib.import_module("torch.optim.adam")
    with (
        patch.object(F, "scaled_dot_product_attention", _attention),
        patch.object(F, "rms_norm", lambda x, _, weight, __: _FusedNorm.apply(x, weight)),
        # the fused optimizer asks for a device with a kernel; meta needs none
        patch.object(adam, "_device_dtype_check_for_fused", lambda *_, **__: None),
    ):
        yield


class _FusedNorm(torch.autograd.Function):
    """RMSNorm as the fused kernel has it: keeps its input and 1/rms of each row."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any) -> Any:
        ctx.save_for_backward(x, weight, x.new_empty(x.shape[:-1], dtype=torch.float32))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, _: Any) -> Any:
        x, weight = ctx.saved_tensors[:2]
        return torch.empty_like(x), torch.empty_like(weight)


def _attention(q: Any, k: Any, v: Any, attn_mask: Any = None, **how: Any) -> Any:
    causal, scale = how.get("is_causal", False), how.get("scale")
    if attn_mask is None:
        return _ATEN._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False, scale=scale)[
            0
        ]
    if attn_mask.dtype == torch.bool:
        zero = torch.zeros_like(attn_mask, dtype=q.dtype)
        attn_mask = zero.masked_fill_(~attn_mask, float("-inf"))
    mask = attn_mask.expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    made = _ATEN._scaled_dot_product_efficient_attention(
        q, k, v, mask, True, 0.0, causal, scale=scale
    )
    return made[0]


def _cases() -> Iterator[tuple[str, Layout]]:
    """(model, layout) of each stored figure."""
    for model in ("gpt2", "gpt2-medium", "gpt2-xl"):
        for precision in ("fp32", "bf16"):
            yield model, _layout(4, 1024, precision=precision)
    yield "gpt2-medium", _layout(4, 1024, kernels="eager")
    yield "gpt2-medium", _layout(4, 1024, kernels="eager", precision="fp32")
    yield "gpt2-medium", _layout(16, 512, recompute="full")
    yield "gpt2-medium", _layout(16, 512, recompute="selective")
    yield "gpt2-medium", _layout(4, 1024, grad_accum=2, precision="fp32")
    yield "gpt2-medium", _layout(4, 1024, optimizer="adamw")
    yield "gpt3-6.7B", _layout(2, 2048)
    yield "gpt3-13B", _layout(8, 2048, recompute="full")
    yield "gpt-neo-1.3B", _layout(2, 2048)
    yield "gpt-neo-1.3B", _layout(2, 2048, kernels="eager")
    yield "bert-base", _layout(32, 128)
    for kernels in ("flash", "eager"):
        yield "bert-large", _layout(16, 512, kernels=kernels)
    yield "bert-large", _layout(64, 512, recompute="full", precision="fp32")
    yield "t5-base", _layout(16, 512, target_seq_len=128)
    yield "t5-large", _layout(8, 512, target_seq_len=512, precision="fp32")
    yield "t5-large", _layout(8, 512, target_seq_len=128, kernels="eager")
    yield "t5-large", _layout(32, 512, target_seq_len=128, recompute="full")
    yield "llama-1B", _layout(4, 2048)
    yield "llama-1B", _layout(4, 2048, kernels="eager")
    yield "llama-1B", _layout(8, 4096, recompute="selective")
    yield "llama-7B", _layout(1, 4096)
    yield "llama-7B", _layout(4, 4096, recompute="full")
    yield "llama-8B", _layout(2, 8192, recompute="full")
    yield "llama-13B", _layout(1, 4096, precision="fp16")
    yield "mistral-7B", _layout(4, 4096, recompute="selective")


def _layout(batch_size: int, seq: int, **words: Any) -> Layout:
    return Layout.of(batch_size=batch_size, seq_len=seq, **words)


COLUMNS = ("model", "layout", "peak_bytes")


def describe(layout: Layout) -> str:
    """Return what differs from a plain layout, as `name=value` words."""
    usual = Layout()
    return " ".join(
        f"{name}={value}" for name, value in layout.flat().items() if value != usual.get(name)
    )


def step_peak(shape: ModelShape, layout: Layout) -> int:
    """Bytes at the peak of the second step, when all states exist."""
    tracker = Tracker()
    with as_on_gpu(), tracker:
        attention = "plain" if layout.kernels.stack == "eager" else "sdpa"
        model = models.build(
            shape, device="meta", recompute=layout.memory.recompute, attention=attention
        )
        weights = Weights(model, layout.precision.compute)
        fused = layout.memory.optimizer == "adamw-fused"
        optimizer = torch.optim.AdamW(weights.groups(0.1), fused=fused, foreach=not fused)
        for _ in range(2):
            tracker.peak = tracker.now
            _step(model, weights, optimizer, layout)
    return tracker.peak


def _step(model: Any, weights: Weights, optimizer: Any, layout: Layout) -> None:
    """As `train.engine` has it: one name holds a micro-batch's loss until the next one's."""
    micros = int(layout.batch.grad_accum)
    for _ in range(micros):
        part = model.loss(*_inputs(layout)) * (1.0 / micros)
        part.backward()
        weights.collect()
    optimizer.step()
    weights.publish()


def _inputs(layout: Layout) -> tuple[torch.Tensor, ...]:
    """Tokens and labels."""
    return tuple(
        torch.zeros(int(layout.batch.micro), num, dtype=torch.int64, device="meta")
        for num in (layout.batch.seq_len, layout.batch.written)
    )


def main() -> int:
    """Track all, print, store if asked.  Exit code 1 if one is off by more than 3 %."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"write {GOLDEN.name}")
    arguments = parser.parse_args()
    rows, worst = [], 0.0
    for model, layout in _cases():
        shape = find(model)
        peak, parts = step_peak(shape, layout), memory(shape, layout)
        error = parts.allocated / peak - 1
        worst = max(worst, abs(error))
        rows.append((model, describe(layout), peak))
        print(f"{model:14} {describe(layout):70} {peak / 2**30:8.3f} GiB  {error:+.2%}", flush=True)
    print(f"{len(rows)} configurations, worst {worst:.2%}")
    if arguments.write:
        with GOLDEN.open("w", newline="") as file:
            csv.writer(file).writerows([COLUMNS, *rows])
    return int(worst > 0.03)


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
