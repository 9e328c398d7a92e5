"""Memory by formula against the memory of the real modules, tracked tensor by tensor."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from trainrig.workload import find
from trainrig.workload.layout import Layout
from trainrig.workload.memory import memory

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "support" / "fixtures" / "memory_golden.csv"
LIVE = (
    "gpt2 batch_size=4",
    "bert-base batch_size=32 seq_len=128",
    "llama-1B batch_size=4 seq_len=2048",
)
TOLERANCE = 0.03


def rows() -> list[dict[str, str]]:
    with GOLDEN.open(newline="") as file:
        return list(csv.DictReader(file))


def layout_of(words: str) -> Layout:
    """The layout that `describe` in the tool has written down."""
    kinds = Layout().flat()
    pairs = dict(word.split("=") for word in words.split())
    values = {n: int(v) if isinstance(kinds[n], int) else v for n, v in pairs.items()}
    return Layout.of(**values)


def test_there_are_thirty_configurations_of_all_families_and_policies() -> None:
    found = rows()
    assert len({(row["model"], row["layout"]) for row in found}) == len(found) >= 30
    assert {find(row["model"]).family for row in found} == {
        *("gpt2", "gpt-neo", "bert", "t5", "llama")
    }
    assert {layout_of(row["layout"]).memory.recompute for row in found} == {
        "none",
        "selective",
        "full",
    }
    assert {layout_of(row["layout"]).kernels.stack for row in found} == {"eager", "flash"}


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row['model']} {row['layout']}")
def test_memory_is_what_the_modules_need(row: dict[str, str]) -> None:
    predicted = memory(find(row["model"]), layout_of(row["layout"])).allocated
    assert predicted == pytest.approx(int(row["peak_bytes"]), rel=TOLERANCE)


@pytest.mark.parametrize("name", LIVE)
def test_the_stored_figures_are_those_of_todays_modules(name: str) -> None:
    pytest.importorskip("torch", reason="needs torch")
    model, _, words = name.partition(" ")
    stored = {(row["model"], row["layout"]): int(row["peak_bytes"]) for row in rows()}
    from validation.memory_golden import step_peak

    assert step_peak(find(model), layout_of(words)) == stored[model, words]


def test_the_tracker_counts_what_is_alive_at_once() -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    from validation.memory_golden import Tracker

    tracker = Tracker()
    with tracker:
        first = torch.zeros(256)
        view = first.view(16, 16)
        second = first + 1
        del first, view
        third = second * 2
    assert tracker.peak == 2048, "two of 1024 B at a time; a view is no second one"
    assert tracker.now == second.nbytes + third.nbytes


def test_the_tracker_agrees_with_the_profiler_on_real_tensors() -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    from torch.profiler import ProfilerActivity, profile
    from validation.memory_golden import Tracker

    from trainrig import models

    def run() -> None:
        model = models.build(shape, attention="plain")
        tokens = torch.zeros(2, 32, dtype=torch.int64)
        model(tokens).float().logsumexp(-1).sum().backward()

    shape = find("gpt2:num_layers=2,hidden=64,vocab=512,max_positions=32")
    tracker = Tracker()
    with tracker:
        run()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        run()
    peak = now = 0
    for event in sorted(_allocations(seen), key=lambda e: e[0]):
        now += event[1]
        peak = max(peak, now)
    assert tracker.peak == pytest.approx(peak, rel=0.02)


def _allocations(seen: Any) -> list[tuple[int, int]]:
    """(time, bytes) of each allocation and release."""
    events = seen.profiler.kineto_results.events()
    return [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
