"""CUDA's names on a machine without CUDA, for Megatron-Core: its ranks meet by gloo instead.

Megatron-Core allocates on "cuda" and asks torch.cuda where it could ask a tensor.  While `install`
holds, such a device is this process's memory, streams and events do nothing, and what is random is
the host's.  Nothing of Megatron's arithmetic is changed but sums over tokens, which torch keeps in
fp32 on a GPU and in bf16 on a host (`host_sums`).  Used where torch has no CUDA, and nowhere else;
what needs CUDA beyond that (recomputation, which keeps CUDA's random state; fused kernels) is not
run.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch.overrides import TorchFunctionMode

import trainrig.train.native.host_sums as host_sums

HOST = torch.device("cpu")
_IN_FP32: dict[Any, Any] = {
    F.embedding: host_sums.embedding,
    F.layer_norm: host_sums.layer_norm,
}
"""A mode is off while it answers: these call torch's own."""


class OnHost(TorchFunctionMode):
    """Whatever is asked for on "cuda" is made in the host's memory."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = dict(kwargs or {})
        device = named.get("device")
        if device is not None and (isinstance(device, int) or str(device).startswith("cuda")):
            named["device"] = HOST
        if func is torch.Tensor.to and len(args) > 1 and _is_cuda(args[1]):
            args = (args[0], HOST, *args[2:])
        return _IN_FP32.get(func, func)(*args, **named)


def _is_cuda(place: Any) -> bool:
    return isinstance(place, (str, torch.device)) and str(place).startswith("cuda")


class Nothing:
    """A stream or an event: on the host everything happens in order."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __enter__(self) -> Nothing:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def record_event(self, *_: Any) -> Nothing:
        """Return an event that has passed."""
        return self

    def _pass(self, *_: Any) -> None:
        pass

    wait_stream = wait_event = synchronize = record = wait = _pass


def install() -> None:
    """For the rest of this process, which trains on the host alone."""
    cuda: Any = torch.cuda
    for name in ("synchronize", "set_device", "empty_cache"):
        setattr(cuda, name, lambda *_, **__: None)
    cuda.current_device = lambda: HOST
    cuda.Stream = cuda.Event = Nothing
    cuda.current_stream = cuda.default_stream = Nothing
    cuda.stream = lambda _: contextlib.nullcontext()
    cuda.nvtx.range_push = cuda.nvtx.range_pop = lambda *_: None
    cuda.get_rng_state = lambda *_, **__: torch.get_rng_state()
    cuda.set_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
    tensor: Any = torch.Tensor
    tensor.cuda = lambda self, *_, **__: self
    torch.nn.Module.cuda = lambda self, *_, **__: self
    kind_of = tensor.type

    def kind(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Clipping asserts that gradients are "torch.cuda.FloatTensor"."""
        if args or kwargs:
            return kind_of(self, *args, **kwargs)
        return "torch.cuda." + kind_of(self).split(".")[-1]

    tensor.type = kind
    OnHost().__enter__()
