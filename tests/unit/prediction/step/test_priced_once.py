"""What is priced once is priced for what was asked: every field that counts is part of the key."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from trainrig.catalog import require_chip
from trainrig.errors import TrainrigError
from trainrig.prediction.rates import Rates
from trainrig.prediction.rates.from_chip import rates_of_chip
from trainrig.prediction.step import compute
from trainrig.prediction.step.compute import DeviceTimes, device_times
from trainrig.workload.layout import PLACES, Layout
from trainrig.workload.model import ModelShape
from trainrig.workload.presets import named
from trainrig.workload.programs import FRAMEWORKS

H100 = rates_of_chip(require_chip("H100 SXM5 80GB"))
SIZES: dict[str, Any] = {"gpus": 64, "tp": 2, "pp": 2, "grad_accum": 8, "seq_len": 2048}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "dense": ("llama-8B", {}),
    "dropout": (
        "gpt2-medium",
        {"framework": "huggingface", "kernels": "eager", "recompute": "full"},
    ),
    "encoder-decoder": ("t5-large", {"target_seq_len": 512, "recompute": "selective"}),
    "mixture": ("mixtral-8x7B", {"framework": "megatron", "kernels": "flash+fused", "ep": 4}),
    "latent": ("deepseek-v3", {"framework": "megatron", "precision": "fp8", "ep": 8, "cp": 2}),
    "adapters": ("mixtral-8x7B", {"framework": "huggingface", "lora_rank": 16, "quantize": "nf4"}),
}


@pytest.fixture(autouse=True)
def _nothing_known() -> Iterator[None]:
    forget()
    yield
    forget()


def forget() -> None:
    compute._latest.clear()
    compute._by_device.clear()


def other_values(key: str, layout: Layout) -> list[Any]:
    """Values that a key of a layout may have besides the one that it has."""
    if key == "framework":
        return [name for name in FRAMEWORKS if name != layout.framework]
    group, name = PLACES[key]
    words = getattr(type(getattr(layout, group)), "WORDS", {}).get(name)
    if words is not None:
        return [word for word in words if word != layout.get(key)]
    now = layout.get(key)
    if isinstance(now, float):
        return [now + 0.25]
    switch = key in ("sequence_parallel", "whole_experts", "plain_attention", "fp8_params")
    return (
        [1 - now]
        if switch or key.startswith(("optimizer_in", "supports", "dedup"))
        else [2 * now + 2]
    )


def priced(shape: ModelShape, layout: Layout, rates: Rates) -> DeviceTimes | str:
    try:
        return device_times(shape, layout, rates)
    except (TrainrigError, KeyError) as error:  # no such rate: cached or not
        return type(error).__name__


@pytest.mark.parametrize("case", CASES)
def test_each_key_of_a_layout_counts_as_much_as_without_a_cache(case: str) -> None:
    model, keys = CASES[case]
    shape, layout = named(model), Layout.of(**(SIZES | keys))
    others = [layout.replace(**{key: v}) for key in PLACES for v in other_values(key, layout)]
    device_times(shape, layout, H100)
    cached = [priced(shape, other, H100) for other in others]
    assert len({str(times) for times in cached}) > 5
    for other, times in zip(others, cached, strict=True):
        forget()
        assert priced(shape, other, H100) == times, other


def test_each_field_of_rates_counts_as_much_as_without_a_cache() -> None:
    shape, layout = named("llama-8B"), Layout.of(**(SIZES | {"kernels": "eager"}))
    chip = require_chip("B200")
    others = [H100, rates_of_chip(chip), rates_of_chip(require_chip("RTX 4090"))]
    others += list(changed(H100))
    cached = [priced(shape, layout, rates) for rates in others]
    assert len({str(times) for times in cached}) > 10
    for rates, times in zip(others, cached, strict=True):
        forget()
        assert priced(shape, layout, rates) == times


def changed(rates: Rates) -> Iterator[Rates]:
    """Rates with one number changed, those of its parts too."""
    for field in dataclasses.fields(rates):
        value = getattr(rates, field.name)
        if isinstance(value, bool):
            yield rates.replace(**{field.name: not value})
        elif isinstance(value, int | float):
            yield rates.replace(**{field.name: 2 * value + 1})
        elif dataclasses.is_dataclass(value):
            for one in dataclasses.fields(value):
                number = getattr(value, one.name)
                if isinstance(number, int | float) and not isinstance(number, bool):
                    part: Any = dataclasses.replace(value, **{one.name: 2 * number + 1})  # type: ignore[type-var]
                    yield rates.replace(**{field.name: part})
    faster = {dtype: 2.0 * rate for dtype, rate in rates.matmuls.sustained.items()}
    yield rates.replace(matmuls=dataclasses.replace(rates.matmuls, sustained=faster))
    curve = {"bf16": ((30.0, 0.5), (40.0, 0.9))}
    yield rates.replace(matmuls=dataclasses.replace(rates.matmuls, measured=curve))
