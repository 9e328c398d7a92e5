"""Predictions on tables that no constant was fitted to: the honest figure, how it is counted."""

from __future__ import annotations

import pytest
from validation.cases import cases
from validation.normalise.answers import time_of
from validation.normalise.case import case_of
from validation.normalise.training_programs import COMPARED
from validation.out_of_family import Outcome, cell_lines, half_of, outcome, read, summary
from validation.protocols import compared_runs, family_of, score, weights


def test_rows_of_other_families_are_predicted_better_than_by_a_flat_mfu() -> None:
    cells = cell_lines(map(outcome, read()))
    known = summary(cells)
    assert len(cells) == 9 and known.num > 1900
    assert known.median < 0.14 and known.p90 < 0.26  # 0.46 and 0.73 before any rule
    assert known.median < 0.5 * known.flat
    assert 0.70 < known.inside < 0.97  # nine cells; the third table has 190, and 80 %
    assert known.answered > 0.85


def test_a_refused_row_counts_with_the_flat_error_or_as_wrong_and_cells_weigh_alike() -> None:
    outcomes = [
        Outcome(cell="a", error=0.1, inside=True, flat=0.5),
        Outcome(cell="a", error=None, flat=-0.5, refused="comes later"),
        *[Outcome(cell="b", error=0.0, inside=False, flat=0.1)] * 9,
        Outcome(cell="c", error=None, flat=None, refused="no such chip"),
        Outcome(cell="d", error=None, flat=None, is_asked=False, refused="FLOPs alone"),
    ]
    cells = cell_lines(outcomes)
    assert [(one.name, one.num, one.answered) for one in cells] == [
        ("a", 2, 0.5),
        ("b", 9, 1.0),
        ("c", 1, 0.0),
    ]
    assert [round(one.median, 6) for one in cells] == [0.3, 0.0, 1.0]
    assert round(summary(cells).median, 6) == 0.433333 and summary(cells).inside == 0.5


def test_memory_counts_where_it_is_printed_and_halves_are_dealt_by_name() -> None:
    outcomes = [
        Outcome(cell="a", error=0.1, flat=0.5, memory=-0.2, is_memory_inside=True),
        Outcome(cell="b", error=0.1, flat=0.5),
    ]
    known = summary(cell_lines(outcomes))
    assert (known.memory, known.memory_inside) == (0.2, 1.0)
    assert summary(cell_lines(outcomes[1:])).memory is None
    assert {half_of(f"source {n}") for n in range(20)} == {"choose", "unseen"}


def test_no_source_weighs_more_than_its_share_however_many_cards_it_has() -> None:
    sources = ["lambda"] * 15 + [f"s{n}" for n in range(25)]
    found = dict.fromkeys(sources, 0.0)
    for name, one in zip(sources, weights(sources), strict=True):
        found[name] += one
    assert sum(found.values()) == pytest.approx(1.0)
    assert found["lambda"] == pytest.approx(0.05)
    assert found["s0"] == pytest.approx(0.95 / 25)
    assert sum(weights(["a", "a", "b"])) == pytest.approx(1.0)  # too few to hold the bound


def test_a_family_of_software_is_left_out_whole() -> None:
    rows = ({"group": "dgxc", "framework": f} for f in ("NVIDIA NeMo 25", "MaxText/JAX"))
    assert [family_of(row) for row in rows] == ["megatron-core", "jax"]
    assert family_of({"group": "llm.c", "framework": "CUDA"}) == "llm.c"
    one = Outcome(cell="a x", error=0.1, inside=True, flat=0.5)
    other = Outcome(cell="b x", error=None, flat=-0.5)
    found = score([one, other])
    assert (found.median, found.inside, found.answered) == pytest.approx((0.3, 1.0, 0.5))


def test_the_large_runs_that_everybody_asks_about_come_out() -> None:
    met = {line.what.split(",")[0]: line.is_met for line in cases()}
    assert met["Llama 3 405B on 16"] and met["Llama 3 70B on 512 H100"]
    assert met["DeepSeek-V3 on 2"] and met["torchtune's 8B on one 4090 (18.9 GiB)"]


def test_what_was_compared_is_written_down_and_others_have_wider_intervals() -> None:
    assert compared_runs() == COMPARED.read_text(encoding="utf-8")
    row = {"model": "llama-7b", "hardware": "8 x A100 80GB SXM", "num_gpus": "8", "seq": "2048"}
    known, other = (
        time_of(case_of(row | {"framework": name, "micro_batch": "1"}))
        for name in ("Megatron-LM", "MindSpeed-LLM")
    )
    (low, middle, high), (least, centre, most) = known, other
    assert least / centre < low / middle < 1.0 < high / middle < most / centre
    assert high / middle > middle / low  # what nobody prints only adds
