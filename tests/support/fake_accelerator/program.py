"""Steps on a device that computes nothing, and what a real one would suffer from in them.

    python program.py LIBRARY < REQUESTS

LIBRARY is guard.cpp, compiled.  REQUESTS is JSON: a list of experiments' keys, each with ``fault``,
the name of a planted fault, and ``loss_of``, the driver whose loss is computed instead of a step.
Printed is a JSON list of findings for each: ``kind: operation at file:function``.

    mismatch   tensors of different devices in one operation
    sync       the host waits: a number, a size or a tensor is copied from the device
    host       a tensor is made on the processor
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
import traceback
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

DEVICE = "fakegpu"
MODEL_SOURCES = ("/trainrig/",)


def install(library: str) -> None:
    """Register the device and the module that torch expects of a backend."""
    ctypes.CDLL(library)
    torch.utils.rename_privateuse1_backend(DEVICE)
    module = types.ModuleType(DEVICE)
    answers: dict[str, Any] = {
        "is_available": False,
        "device_count": 0,
        "current_device": 0,
        "_is_in_bad_fork": False,
        "is_initialized": False,
        "get_rng_state": torch.empty(0),
        "set_rng_state": None,
        "get_amp_supported_dtype": [torch.bfloat16, torch.float16],
        "manual_seed_all": None,
    }
    for name, value in answers.items():
        setattr(module, name, lambda *_, value=value, **__: value)
    torch._register_device_module(DEVICE, module)
    torch.nn.Module.to = _moved
    torch.nn.Module.to_empty = lambda self, *, device, recurse=True: _remade(
        self, lambda tensor: torch.empty_like(tensor, device=device)
    )


def _remade(module: Any, make: Callable[[Any], Any]) -> Any:
    """Replace weights: torch's own way sets the data of a tensor, which a fake one refuses."""
    for part in module.modules():
        for name, weight in list(part._parameters.items()):
            if weight is not None:
                part._parameters[name] = torch.nn.Parameter(
                    make(weight.detach()), requires_grad=weight.requires_grad
                )
        for name, buffer in list(part._buffers.items()):
            if buffer is not None:
                part._buffers[name] = make(buffer)
    return module


def _moved(module: Any, *args: Any, **how: Any) -> Any:
    return _remade(module, lambda tensor: tensor.to(*args, **how))


def place_of(frames: traceback.StackSummary) -> str:
    """The innermost function of ours: ``models/experts.py:forward``; else where it happened."""
    ours = [frame for frame in frames if "/src/trainrig/" in frame.filename]
    frame = (ours or list(frames))[-1]
    return f"{frame.filename.rpartition('/trainrig/')[2]}:{frame.name}"


class DeviceWatch(TorchDispatchMode):
    """Note operations that wait for the device, and tensors that are made on the processor."""

    def __init__(self) -> None:
        super().__init__()
        self.findings: list[str] = []

    def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        made = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        on_host = any(x.device.type == "cpu" for x in made)
        came_from_device = any(x.device.type == DEVICE for x in given)
        is_awaited = not (kwargs or {}).get("non_blocking", False)
        if on_host and is_awaited and (came_from_device or not given):
            kind = "sync" if came_from_device else "host"
            self.note(kind, str(func).removesuffix(".default"), traceback.extract_stack())
        return result

    def note(self, kind: str, what: str, frames: traceback.StackSummary) -> None:
        finding = f"{kind}: {what} at {place_of(frames)}"
        if finding not in self.findings:
            self.findings.append(finding)


@contextmanager
def planted(fault: str) -> Iterator[None]:
    """Put a fault into what every step of GPT-2 goes through."""
    from trainrig.models import gpt2

    original = gpt2.Block.forward

    def forward(self: Any, x: Any, *more: Any) -> Any:
        x = original(self, x, *more)
        if fault == "item":
            return x * (1.0 if x.sum().item() > 0 else 2.0)
        if fault == "nonzero":
            return x + x.flatten().nonzero().sum()
        if fault == "host tensor":
            return x * torch.ones(1)[0].to(x.device)
        return x + torch.zeros(1)  # "mismatch"

    if fault:
        gpt2.Block.forward = forward
    try:
        yield
    finally:
        gpt2.Block.forward = original


def step_of_ours(keys: dict[str, Any]) -> Callable[[], None]:
    """An engine of our own, whose step is returned."""
    from trainrig.data.batches import Batch
    from trainrig.train.config import Experiment, check
    from trainrig.train.native import loop
    from trainrig.train.native.step_timer import Stopwatch

    usual = {"device": "cuda", "batch_size": 2, "seq_len": 16, "steps": 3}
    experiment = Experiment.of(**(usual | keys))
    shape = check(experiment)
    samples, length = experiment.samples, experiment.seq_len

    def batches(_: int) -> Batch:
        tokens = np.arange(samples * length).reshape(samples, length) % shape.vocab
        return Batch(inputs=tokens, labels=tokens)

    watch = Stopwatch(time.perf_counter, lambda start, end: end - start)
    engine = loop.Engine(experiment, shape, f"{DEVICE}:0", batches=batches, watch=watch)
    return engine.step


def loss_of_driver(keys: dict[str, Any]) -> Callable[[], None]:
    """A driver's own loss of a model of transformers', forward and backward."""
    import transformers

    from trainrig.train.drivers import deepspeed
    from trainrig.train.drivers.huggingface_model import sum_over_targets
    from trainrig.workload import find
    from trainrig.workload.hf_config import class_names, config_of

    shape = find(keys["model"])
    config_class, model_class = class_names(shape)
    config = getattr(transformers, config_class)(**config_of(shape))
    model = getattr(transformers, model_class)(config).to(f"{DEVICE}:0", torch.bfloat16)
    tokens = torch.zeros(2, 16, dtype=torch.int64, device=f"{DEVICE}:0")

    def step() -> None:
        outputs = model(input_ids=tokens, labels=tokens)
        if keys["loss_of"] == "deepspeed":
            engine = deepspeed.Zero.__new__(deepspeed.Zero)
            engine.narrowing, engine._accum, engine._stages, engine.data_ranks = 1.0, 1, 1, 1
            engine.task = types.SimpleNamespace(options={"precision": "bf16"})
            engine._targets = engine._all_targets([{"labels": tokens}])
            loss = engine._share_of_loss(outputs.logits, tokens)
        else:
            loss = sum_over_targets(outputs, tokens, (tokens >= 0).sum())
        loss.backward()

    return step


def findings_of(keys: dict[str, Any]) -> list[str]:
    """What is found in two steps of an experiment."""
    from trainrig import models
    from trainrig.train.native import loop

    fault = keys.pop("fault", "")
    models.fill_weights = lambda *_, **__: None
    split = loop.split
    loop.split = lambda batch, count, **how: split(batch, count, **(how | {"pinned": False}))
    watch = DeviceWatch()
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), planted(fault):
            step = loss_of_driver(keys) if "loss_of" in keys else step_of_ours(keys)
            for _ in range(2):
                with watch:
                    step()
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        watch.note("sync", str(error.func), traceback.extract_tb(error.__traceback__))
    except RuntimeError as error:
        words = str(error)
        kind = "mismatch" if "device" in words else "error"
        watch.note(kind, words.splitlines()[0][:200], traceback.extract_tb(error.__traceback__))
    finally:
        loop.split = split
    return watch.findings


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    install(sys.argv[1])
    requests = json.load(sys.stdin)
    json.dump([findings_of(keys) for keys in requests], sys.stdout)


if __name__ == "__main__":
    main()
