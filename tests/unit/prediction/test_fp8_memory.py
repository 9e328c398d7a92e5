"""Bytes of weights and gradients in Transformer Engine's formats, by format, chip and flags.

By its quantizers (float8_tensor.py, mxfp8_tensor.py, nvfp4_tensor.py): one copy or two of each
block's weight beside the bf16 one, or none beside them with parameters in fp8.
"""

from __future__ import annotations

from typing import Any

import pytest
from validation.normalise.case import case_of

from trainrig.errors import UsageError
from trainrig.prediction.as_json import prediction_dict
from trainrig.prediction.prediction import predict
from trainrig.prediction.scenario import question
from trainrig.prediction.verdict import DOES_NOT_FIT, FITS
from trainrig.workload import named, parameters

SHAPE = named("llama-8B")
ENDS = parameters(SHAPE).embedding + parameters(SHAPE).head
BLOCKS = parameters(SHAPE).total - ENDS
ASKED = {"model": "llama-8B", "framework": "megatron", "kernels": "flash+fused", "gpus": 8}


def _of(chip: str, precision: str, **more: Any) -> Any:
    return predict(question(ASKED | {"on": chip, "precision": precision} | more))


@pytest.mark.parametrize(
    ("chip", "precision", "width"),
    [
        ("H100 SXM5 80GB", "fp8", 2.0),
        ("H200 SXM 141GB", "fp8", 2.0),
        ("GB200", "fp8", 1.0),
        ("B300 SXM", "fp8", 1.0),
        ("RTX PRO 6000 Blackwell Server", "fp8", 2.0),
        ("GB200", "mxfp8", 2 * (1 + 1 / 32)),
        ("GB300", "nvfp4", 2 * (0.5 + 1 / 16)),
    ],
)
def test_weights_have_the_copies_that_products_read(
    chip: str, precision: str, width: float
) -> None:
    beside, alone = (_of(chip, precision, fp8_params=int(is_alone)) for is_alone in (False, True))
    assert beside.memory.weights == pytest.approx(2 * (BLOCKS + ENDS) + width * BLOCKS, rel=1e-3)
    assert alone.memory.weights == pytest.approx(2 * ENDS + width * BLOCKS, rel=1e-3)
    assert alone.step.total == beside.step.total
    assert prediction_dict(alone)["layout"]["fp8_params"] == 1


def test_gradients_are_as_wide_as_is_asked() -> None:
    wide, narrow = (_of("GB200", "mxfp8", grad_reduce=name) for name in ("fp32", "bf16"))
    assert wide.memory.gradients == pytest.approx(2 * narrow.memory.gradients)
    assert narrow.memory.gradients == pytest.approx(2 * (BLOCKS + ENDS), rel=1e-3)
    assert narrow.step.total <= wide.step.total
    assert prediction_dict(narrow)["layout"]["grad_reduce"] == "bf16"
    with pytest.raises(UsageError, match="unknown grad_reduce"):
        _of("GB200", "mxfp8", grad_reduce="fp16")


def test_a_published_run_fits_as_its_recipe_keeps_it() -> None:
    """Llama 3.1 405B in MXFP8 on GB300, as Megatron-Bridge's `bf16_with_mxfp8_mixed` sets it."""
    run = {"model": "llama3-405B", "on": "GB300", "gpus": 128, "tp": 2, "pp": 8, "cp": 2}
    run |= {"interleave": 8, "grad_accum": 64, "seq_len": 8192, "zero": 1, "precision": "mxfp8"}
    run |= {"framework": "megatron", "kernels": "flash+fused", "sequence_parallel": 1}
    assert predict(question(run)).verdict != FITS
    narrow = predict(question(run | {"fp8_params": 1, "grad_reduce": "bf16"}))
    assert narrow.verdict != DOES_NOT_FIT


@pytest.mark.parametrize(
    ("precision", "scaled"), [("fp8", ""), ("mxfp8", "mxfp8"), ("FP8-MX", "mxfp8"), ("bf16", "")]
)
def test_a_table_names_the_format(precision: str, scaled: str) -> None:
    row = {"chip": "GB200", "num_gpus": "8", "model": "llama3-8b", "precision": precision}
    layout = case_of(row | {"framework": "NeMo 25.09"}).layout
    assert (layout.precision.scaled, layout.precision.supports_non_tn_fp8) == (scaled, 1)
    assert case_of(row | {"chip": "H100"}).layout.precision.supports_non_tn_fp8 == 0


def test_weights_are_held_in_one_format_and_gradients_in_no_wider_ones_than_they_are() -> None:
    with pytest.raises(UsageError, match="frozen weights are held in nf4"):
        _of("GB200", "fp8", fp8_params=1, lora_rank=8, quantize="nf4")
    for precision in ("fp16", "fp32"):
        with pytest.raises(UsageError, match="not summed in bf16"):
            _of("H100 SXM5 80GB", precision, grad_reduce="bf16", kernels="flash")
    half = _of("V100 SXM2 32GB", "fp16", kernels="fused", states="pure")
    assert prediction_dict(half)["layout"]["grad_reduce"] == "auto", "as it can be asked"
