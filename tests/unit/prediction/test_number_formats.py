"""Number formats with a scale for each block: what is said of them, and which chips have them."""

from __future__ import annotations

import pytest
from validation.normalise.answers import time_of
from validation.normalise.case import case_of

from training_summaries import printed
from trainrig.catalog import load_chips
from trainrig.catalog.chip import has_block_scales, peak
from trainrig.errors import UsageError
from trainrig.prediction.as_json import layout_dict, prediction_dict
from trainrig.prediction.prediction import Prediction, predict
from trainrig.prediction.scenario import question, space
from trainrig.report.prediction_report import layout_text, prediction_document
from trainrig.workload.layout.groups import SCALED

ASKED = {"model": "llama-8B", "on": "GB200", "framework": "trainrig"}


def _of(precision: str, **others: str) -> Prediction:
    return predict(question(ASKED | others | {"precision": precision}))


@pytest.mark.parametrize(
    ("precision", "claimed"),
    [("bf16", "bf16"), ("fp8", "fp8"), ("mxfp8", "fp8"), ("nvfp4", "fp4"), ("mxfp4", "fp4")],
)
def test_mfu_is_of_the_peak_that_the_words_name(precision: str, claimed: str) -> None:
    found = _of(precision)
    chip = found.question.cluster.chip
    assert chip is not None and (claim := peak(chip, claimed)) is not None
    assert found.claimed == claimed
    assert found.mfu == pytest.approx(found.flop_rate / claim.rate)
    text = printed(prediction_document(found))
    assert f"of the claimed {claimed} peak" in text
    peaks = [word for warning in found.warnings for word in warning.split() if "MFU is" in warning]
    assert "fp8" not in peaks[-2:]


@pytest.mark.parametrize("precision", ["fp8", *SCALED])
def test_a_layout_says_the_format_that_was_asked_for(precision: str) -> None:
    found = _of(precision)
    assert (
        found.layout.precision.compute == "fp8"
        and found.layout.precision.number_format == precision
    )
    assert prediction_dict(found)["layout"]["precision"] == precision
    assert f"{precision} with fp32 masters" in layout_text(found.layout)
    every, _ = space(ASKED | {"precision": precision, "gpus": 8, "global_batch": 8})
    assert layout_dict(every.base)["precision"] == precision


def test_json_has_the_experts_mesh() -> None:
    asked = {"model": "qwen3-30B-A3B", "on": "DGX H100", "ep": 8}
    assert prediction_dict(predict(question(asked)))["layout"]["ep"] == 8


@pytest.mark.parametrize("chip", ["H100 SXM5 80GB", "MI300X", "RTX 4090", "Gaudi3"])
def test_chips_without_scales_of_blocks_refuse_their_formats(chip: str) -> None:
    with pytest.raises(UsageError, match="scale for each block") as caught:
        _of("mxfp8", on=chip)
    assert "--precision fp8" in str(caught.value.hint)
    assert _of("fp8", on=chip).layout.precision.scaled == ""


@pytest.mark.parametrize("chip", ["B200 SXM", "RTX 5090", "MI355X", "Trainium3"])
def test_chips_with_scales_of_blocks_have_mxfp8(chip: str) -> None:
    assert _of("mxfp8", on=chip).layout.precision.number_format == "mxfp8"


def test_fp4_is_always_in_blocks() -> None:
    assert all(has_block_scales(chip) for chip in load_chips() if peak(chip, "fp4"))


@pytest.mark.parametrize(
    ("words", "chip", "scaled"),
    [
        ("NVFP4", "B200 SXM", "nvfp4"),
        ("nv fp4", "B200 SXM", "nvfp4"),
        ("mx fp4", "MI355X", "mxfp4"),
        ("fp4", "B200 SXM", "nvfp4"),
        ("fp-4", "MI355X", "mxfp4"),
    ],
)
def test_fp4_of_a_table_is_multiplied_and_held_as_one_format(
    words: str, chip: str, scaled: str
) -> None:
    row = {"chip": chip, "model": "llama3-8b", "num_gpus": "8", "framework": "NeMo"}
    row |= {"seq": "8192", "global_batch": "128", "kind": "pretrain"}
    found, named = (case_of(row | {"dtype": word}) for word in (words, scaled))
    assert found.layout == named.layout and found.layout.precision.scaled == scaled
    assert time_of(found) == time_of(named)


def test_a_program_s_own_fp4_is_held_as_it_is_multiplied() -> None:
    row = {"chip": "B200", "model": "llama3.1-405b", "num_gpus": "512", "date": "2025-11"}
    row |= {"framework": "MLPerf 5.1 NeMo", "seq": "8192", "global_batch": "1152", "tp": "4"}
    assert (
        case_of(row | {"pp": "8", "cp": "2", "kind": "pretrain"}).layout.precision.scaled == "nvfp4"
    )
