"""The demo's bundle: published figures only, marked as such, and what the tables give."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from reports import tables_of
from trainrig.analysis.patterns import find_patterns
from trainrig.analysis.rows import rows
from trainrig.analysis.run_summary import summarise
from trainrig.analysis.waterfall import build_waterfalls
from trainrig.benchmarks.spec import case_text
from trainrig.catalog.published import published_records
from trainrig.cli.report import read_view
from trainrig.record import Kind, Outcome
from trainrig.report import DEMO as BUNDLE
from trainrig.report.charts.heatmap import heat_maps
from trainrig.store import read_run
from trainrig.store.bundle import open_bundle

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_demo", ROOT / "tools" / "make_demo.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_two_cards_trained_is_trained_by_two_again() -> None:
    commands = [action.command for action in summarise(read_view(BUNDLE)).actions if action.command]
    assert commands
    assert all("--nproc 2" in command for command in commands)


def test_the_tables_give_the_packaged_run(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "BUNDLE", tmp_path / "demo.bundle")
    tool.main()
    # The files, not the archive's bytes: another zlib compresses them otherwise.
    assert open_bundle(tmp_path / "demo.bundle") == open_bundle(BUNDLE)


def test_every_figure_is_a_claim_or_somebodys_and_says_whose() -> None:
    run = read_run(BUNDLE)
    assert run.problems == ()
    assert str(run.config["origin"]).startswith("published")
    assert {record.kind for record in run.records} == {Kind.CLAIMED, Kind.BASELINE}
    assert all(record.source for record in run.records)
    assert run.verdict is not None
    assert run.verdict.outcome is Outcome.MEASURED
    verdict = read_view(BUNDLE).verdict
    assert verdict == run.verdict, "as stored: what is published has no points to confirm"


def test_no_two_trainings_are_shown_by_one_name() -> None:
    trainings = [r for r in read_run(BUNDLE).records if r.benchmark == "training"]
    named = [(r.metric, case_text("training", r.case)) for r in trainings]
    assert len(set(named)) == len(named)


def test_every_figure_stands_in_the_tables_unchanged() -> None:
    known = {record.id: record for record in published_records()}
    figures = [r for r in read_run(BUNDLE).records if r.id in known]
    assert len(figures) > 90
    for figure in figures:
        assert figure.replace(run="", device_index=None) == known[figure.id]


def test_steps_are_the_printed_throughputs() -> None:
    """GPT-2 medium, 1024 tokens: 17.4k tokens/s on one card, at 2.43 GFLOP a token."""
    steps = [r for r in read_run(BUNDLE).records if r.benchmark == "training"]
    printed = {r.id: r for r in steps if r.metric == "token_rate"}
    rates = {r.derived.ids[0]: r.value for r in steps if r.derived and r.metric == "flop_rate"}
    assert rates.keys() == printed.keys()
    (alone,) = [r for r in printed.values() if r.device_count == 1]
    assert alone.value == 17403.0
    assert rates[alone.id] == pytest.approx(42.2e12, rel=2e-3)
    assert len(printed) == 5


def test_the_story_of_the_bridge_is_told_in_printed_numbers() -> None:
    summary = summarise(read_view(BUNDLE))
    assert summary.verdict == "MEASURED"
    assert summary.reason.startswith("Two cards train 1.81 times as fast as one")
    (finding,) = summary.findings
    for number in ("21.9k", "31.4k", "32.3k"):
        assert number in finding.evidence
    assert [(number.name, number.others) for number in summary.key_numbers] == [
        ("Training", None),
        ("Best matmul", None),
        ("Memory bandwidth", None),
        ("GPU to GPU", None),
    ]


def test_the_training_number_is_of_the_step_that_the_sentence_names() -> None:
    """43.9 TFLOPS on each of two cards are 36.2k tokens/s; 17.4k are those of one card."""
    summary = summarise(read_view(BUNDLE))
    assert "43.9 TFLOPS, on each of 2 devices" in summary.headline
    training = summary.key_numbers[0]
    assert training.value * 2.43e9 / 2 == pytest.approx(43.9e12, rel=5e-3)


def test_the_classic_answers_are_visible() -> None:
    found = [pattern.id for pattern in find_patterns(read_view(BUNDLE))]
    assert {"boost-clock", "memory-bound"} <= set(found)


def test_the_heat_map_stands_beside_the_published_grids() -> None:
    view = read_view(BUNDLE)
    tables = tables_of(heat_maps(view, rows(view), find_patterns(view))[0][1])
    assert [table.title for table in tables] == ["RTX 3090 Ti, TFLOPS", "RTX 4090, TFLOPS"]


def test_the_waterfall_goes_from_the_claim_to_two_cards() -> None:
    """The trainings are bf16, the products fp16: on this card the two have one peak."""
    (found,) = (each for each in build_waterfalls(read_view(BUNDLE)) if each.dtype == "bf16")
    assert [round((level.value or 0.0) / 1e12) for level in found.levels] == [80, 81, 62, 42, 44]
    causes = [level.gap.cause.split(":")[0].split(",")[0] for level in found.levels if level.gap]
    assert causes == [
        "at the claim",
        "memory-bound work between the matmuls",
        "attention scores kept in memory",
        "attention scores kept in memory",  # of four micro-batches: held against the matmul
    ]
    for level in found.levels[2:4]:
        assert level.gap is not None
        assert sum(share.amount for share in level.gap.shares) == pytest.approx(-level.gap.amount)
    assert all("published by" in level.provenance for level in found.levels[1:])
