"""What Megatron's optimizer is given, without ranks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_fp16s_loss_is_scaled_by_what_the_optimizer_divides_by(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else gradients are 2^32 times too small; and from 2^32 down the first steps overflow."""
    pytest.importorskip("megatron.core", reason="needs megatron-core")
    from megatron.core import optimizer

    from trainrig.train.drivers import megatron

    given: list[Any] = []

    def made(config: Any, _: Any) -> Any:
        given.append(config)
        return SimpleNamespace(scale_loss=lambda loss: loss * config.initial_loss_scale)

    monkeypatch.setattr(optimizer, "get_megatron_optimizer", made)
    core: Any = megatron.Core.__new__(megatron.Core)
    options = {"optimizer": "adamw", "zero": 0, "lr": 1e-3, "weight_decay": 0.0, "clip": 1.0}
    options |= {"beta1": 0.9, "beta2": 0.95, "eps": 1e-8}
    core.task, core.chunks = SimpleNamespace(options=options), []
    core._config = SimpleNamespace(
        fp16=precision == "fp16",
        bf16=precision == "bf16",
        params_dtype=torch.float16,
        grad_scale_func=None,
    )
    core._make_optimizer()
    scale = core._config.grad_scale_func
    assert (scale(1.0) if scale else None) == (2.0**16 if precision == "fp16" else None)
    assert given[0].initial_loss_scale == 2.0**16 and given[0].hysteresis == 1
