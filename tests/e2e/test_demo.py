"""The demo's bundle: published figures only, marked as such, and what the tables give."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from reports import tables_of
from trainrig.analysis.patterns import find_patterns
from trainrig.analysis.run_view import rows
from trainrig.analysis.waterfall import build_waterfalls
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
    assert run.verdict.outcome is Outcome.INCOMPLETE


def test_every_figure_stands_in_the_tables_unchanged() -> None:
    known = {record.id: record for record in published_records()}
    figures = [r for r in read_run(BUNDLE).records if r.id.startswith("published-")]
    assert len(figures) > 90
    for figure in figures:
        assert figure.replace(run="", device_index=None) == known[figure.id]


def test_steps_are_the_printed_throughputs(tool: ModuleType) -> None:
    """BERT-large, 384 tokens: 739 GFLOP a sample; 93 samples/s on one card, 139 on two."""
    steps = [r for r in read_run(BUNDLE).records if r.benchmark == "step"]
    assert pytest.approx(739.4e9, rel=1e-3) == tool.STEP_FLOPS
    rates = {r.device_count: r.value for r in steps if r.metric == "flop_rate"}
    assert rates == {1: pytest.approx(68.8e12, rel=1e-3), 2: pytest.approx(51.4e12, rel=1e-3)}
    printed = {r.id: r for r in steps if r.metric == "throughput"}
    assert {r.derived.ids[0] for r in steps if r.derived} == printed.keys()


def test_the_classic_answers_are_visible() -> None:
    found = [pattern.id for pattern in find_patterns(read_view(BUNDLE))]
    assert set(found) == {
        "launch-bound",
        "lives-in-cache",
        "boost-clock",
        "memory-bound",
        "no-p2p",
    }


def test_the_heat_map_stands_beside_the_published_grids() -> None:
    view = read_view(BUNDLE)
    tables = tables_of(heat_maps(view, rows(view), find_patterns(view))[0][1])
    assert [table.title for table in tables][:2] == ["RTX 4090 #0, TFLOPS", "RTX 4090 #1, TFLOPS"]
    assert tables[-1].title == "RTX 3090 Ti, TFLOPS"
    assert any(cell.marked for _, cells in tables[0].lines() for cell in cells)


def test_the_waterfall_goes_from_the_claim_to_two_cards() -> None:
    found = next(each for each in build_waterfalls(read_view(BUNDLE)) if each.device_index == 0)
    assert [round((level.value or 0.0) / 1e12) for level in found.levels] == [165, 174, 102, 69, 51]
    causes = [level.gap.cause.split(":")[0].split(",")[0] for level in found.levels if level.gap]
    assert causes == [
        "boost clock above the data sheet's",
        "memory-bound work between the matmuls",
        "optimizer",
        "exposed communication",
    ]
    for level in found.levels[2:4]:
        assert level.gap is not None
        assert sum(share.amount for share in level.gap.shares) == pytest.approx(-level.gap.amount)
    assert all("published by" in level.provenance for level in found.levels[1:])
