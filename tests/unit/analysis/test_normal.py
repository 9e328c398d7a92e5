"""What is normal: published figures by card and case; which card is meant; a run among them."""

from __future__ import annotations

import dataclasses

import pytest

from report_views import gpu_view, matmul_case, point
from trainrig.analysis.normal import (
    KINDS,
    PublishedSelection,
    best_of,
    card_summaries,
    check_words,
    devices_of,
    placed_cases,
    published_cases,
    ratios,
)
from trainrig.catalog.published import (
    is_measurement,
    published_records,
    published_source,
    published_trainings,
)
from trainrig.errors import DataError, UsageError

OWNER = "the owner of two RTX 4090s"


def test_every_source_of_the_tables_is_known() -> None:
    records = (*published_records(), *published_trainings())
    known = {published_source(str(record.source)) for record in records}
    assert len(known) > 20
    assert sum(bool(one.date) for one in known) > 0.8 * len(known)
    with pytest.raises(DataError, match="no source that begins"):
        published_source("somebody's blog")


def test_a_source_counts_once_with_its_best() -> None:
    one = next(r for r in published_records() if r.benchmark == "matmul")
    mine = [one.replace(value=value, source="a") for value in (1.0, 3.0, 2.0)]
    found = best_of([*mine, one.replace(value=5.0, source="b")])
    assert found is not None
    assert (found.low, found.high, found.num) == (3.0, 5.0, 2)
    assert best_of([]) is None


def test_factors_of_a_simulator_are_no_measurement() -> None:
    fitted = [one for one in published_records() if not is_measurement(one)]
    assert len(fitted) > 500
    assert best_of(fitted) is None
    shown = {figure.id for one in published_cases() for figure in one.figures}
    assert not shown & {one.id for one in fitted}


def test_every_kind_is_there_and_every_case_has_its_spread() -> None:
    cases = published_cases()
    assert {one.kind for one in cases} == set(KINDS)
    assert all(one.best[0] <= one.value <= one.best[-1] for one in cases)
    several = [one for one in cases if one.num > 1]
    assert len(several) > 50
    big = next(one for one in several if one.device == "RTX 4090" and one.what == "fp16 8192³")
    assert big.num == 3
    assert big.dates == "2023 to 2024"


@pytest.mark.parametrize(
    ("words", "devices"),
    [
        (["RTX", "4090"], ("RTX 4090",)),
        (["RTX-4090"], ("RTX 4090",)),
        (["RTX 3090 Ti", "RTX 4090"], ("RTX 3090 Ti", "RTX 4090")),
        (["RTX", "3090", "Ti", "RTX", "4090"], ("RTX 3090 Ti", "RTX 4090")),
        (["A100 80GB"], ("A100 80GB",)),  # as a source printed it: no single chip is meant
        ([], ()),
    ],
)
def test_words_that_mean_cards(words: list[str], devices: tuple[str, ...]) -> None:
    assert devices_of(words) == devices


@pytest.mark.parametrize(
    ("words", "hint"),
    [(["RTX 409"], "RTX 4090"), (["RTX", "4900"], "RTX 4090"), (["zzz"], "trainrig published")],
)
def test_what_is_no_card_is_refused_with_near_names(words: list[str], hint: str) -> None:
    with pytest.raises(UsageError) as refused:
        devices_of(words)
    assert hint in f"{refused.value} {refused.value.hint}"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ({"model": "bert-lage"}, "BERT-large"),
        ({"model": "nosuch"}, "one of"),
        ({"precision": "fp61"}, "fp16"),
    ],
)
def test_a_model_or_a_type_that_nothing_is_of_is_refused(words: dict[str, str], hint: str) -> None:
    with pytest.raises(UsageError, match="unknown") as refused:
        check_words(PublishedSelection(**words))
    assert hint in (refused.value.hint or "")


def test_a_word_of_several_cards_means_all_that_figures_are_of() -> None:
    cards = devices_of(["4090", "A100"])
    assert cards[0] == "RTX 4090" and {"A100 SXM4 80GB", "A100 PCIe 40GB"} < set(cards)
    assert all(name.startswith("A100") for name in cards[1:])


def test_a_selection_takes_model_and_type() -> None:
    wanted = PublishedSelection(devices=("RTX 4090",), model="gpt-2", precision="fp16")
    found = published_cases(wanted)
    assert found
    assert {one.device for one in found} == {"RTX 4090"}
    assert {one.dtype for one in found} == {"fp16"}
    assert all("gpt-2" in one.model.lower() for one in found)
    nothing = dataclasses.replace(wanted, model="no such model")
    assert published_cases(nothing) == ()
    assert nothing.words() == "RTX 4090, model no such model, precision fp16"


def test_two_cards_meet_case_by_case() -> None:
    found = ratios("RTX 3090 Ti", "RTX 4090", published_cases())
    assert {one.first.kind for one in found} >= {"matmul", "layer", "bandwidth"}
    assert all(dict(one.first.case) == dict(one.second.case) for one in found)
    big = next(one for one in found if one.first.what == "fp16 8192³")
    assert 1.9 < big.ratio < 2.1
    back = next(
        one
        for one in ratios("RTX 4090", "RTX 3090 Ti", published_cases())
        if one.first.what == "fp16 8192³"
    )
    assert big.ratio * back.ratio == pytest.approx(1.0)


def test_cards_are_listed_by_their_matmul() -> None:
    cards = card_summaries(published_cases())
    highs = [one.matmul.high for one in cards if one.matmul]
    assert highs == sorted(highs, reverse=True)
    own = next(one for one in cards if one.device == "RTX 4090")
    assert own.matmul is not None
    assert own.matmul.num == 3
    assert own.memory is not None
    assert own.memory.high < 1.1e12  # of the memory, not of the cache: 3.9 TB/s were printed


@pytest.mark.parametrize(
    ("rate", "place"), [(120e12, "below"), (161e12, "among"), (190e12, "above")]
)
def test_a_run_stands_among_the_others_of_its_card(rate: float, place: str) -> None:
    own = point("matmul", matmul_case("fp16", 8192), rate)
    view = dataclasses.replace(gpu_view(), records=(own,), baselines=published_records())
    (found,) = placed_cases(view)
    assert found.others.num == 3
    assert found.place == place
    assert (
        list(placed_cases(dataclasses.replace(view, config={"origin": "published figures"}))) == []
    )
    noisy = dataclasses.replace(view, records=(own.replace(disturbed="busy"),))
    (found,) = placed_cases(noisy)  # it does that at least: above is above, below says nothing
    assert found.place == ("cannot tell" if place == "below" else place)
