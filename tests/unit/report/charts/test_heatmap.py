"""Layers by batch and sequence: the share of the measured peak, beside what others published."""

from __future__ import annotations

import io

import pytest

import report_views as made
from report_views import matmul_case, point
from trainrig.analysis.patterns import find_patterns
from trainrig.analysis.run_view import RunView, rows
from trainrig.catalog.published import published_records
from trainrig.record import Record
from trainrig.report.charts.heatmap import (
    LEVELS,
    MAX_GRIDS,
    Cell,
    HeatMap,
    heat_legend,
    heat_maps,
    heat_table,
)
from trainrig.report.render.old_html import render_html
from trainrig.report.render.old_markdown import markdown
from trainrig.report.render.old_terminal import print_report

BERT = {"layer": "BERT-large layer", "dtype": "bf16", "pass": "forward+backward"}
BERT |= {"hidden": 1024, "heads": 16, "ffn": 4096}


def layer(batch: int, seq: int, value: float | None, **more: object) -> Record:
    case = {**BERT, "batch": batch, "seq": seq}
    return point("layer", case, value, **({"metric": "flop_rate", "unit": "FLOP/s"} | more))


def maps(*records: Record, baselines: tuple[Record, ...] = ()) -> tuple[HeatMap, ...]:
    view = RunView(name="run", records=records, baselines=baselines)
    return heat_maps(view, rows(view), find_patterns(view))


PEAK = point("matmul", matmul_case("bf16", 8192), 160e12)
OTHER = point("matmul", matmul_case("fp16", 8192), 200e12)
GRID = (layer(2, 128, 8e12), layer(2, 512, 80e12), layer(8, 128, 40e12))


def test_a_cells_share_is_of_the_matmul_of_its_dtype() -> None:
    (one,) = maps(PEAK, OTHER, *GRID)
    (grid,) = one.grids
    assert (grid.batches, grid.seqs, grid.peak) == ((2, 8), (128, 512), "160")
    assert grid.cells == (
        (Cell(value="8.00", share="5.0 %", level=0), Cell(value="80.0", share="50 %", level=3)),
        (Cell(value="40.0", share="25 %", level=2), None),
    )


def test_without_a_measured_matmul_there_is_no_share() -> None:
    """The data sheet's number is not the peak that is meant."""
    (one,) = maps(made.claimed("bf16", 165.2e12), OTHER, *GRID)
    assert one.grids[0].peak == ""
    assert {cell.share for line in one.grids[0].cells for cell in line if cell} == {""}


def test_a_disturbed_matmul_is_no_peak() -> None:
    (one,) = maps(PEAK.replace(disturbed="busy"), *GRID)
    assert one.grids[0].peak == ""


@pytest.mark.parametrize("share", [*LEVELS, 0.0001, 1.2])
def test_colours_rise_with_the_share(share: float) -> None:
    (one,) = maps(PEAK, layer(2, 128, 160e12 * share * 1.0001), layer(4, 128, 1e12))
    cell = one.grids[0].cells[0][0]
    assert cell is not None
    assert cell.level == sum(share >= level for level in LEVELS)


def test_published_grids_of_the_same_layer_stand_beside() -> None:
    (one,) = maps(PEAK, *GRID, baselines=published_records())
    assert [(grid.label, grid.peak) for grid in one.grids] == [
        ("RTX 4090", "160"),
        ("RTX 3090 Ti", "81"),
        ("RTX 4090", "169"),
    ]
    assert "mli/" in one.grids[1].source
    assert one.grids[1].batches == (2, 4, 8, 16, 32, 64, 128)


def test_another_layer_or_pass_is_not_beside() -> None:
    forward = [record.replace(case={**record.case, "pass": "forward"}) for record in GRID]
    unknown = [record.replace(case={**record.case, "layer": "Mamba"}) for record in GRID]
    baselines = tuple(r for r in published_records() if r.case.get("pass") == "forward+backward")
    assert [len(one.grids) for one in maps(*forward, baselines=baselines)] == [1]
    assert [len(one.grids) for one in maps(*unknown, baselines=baselines)] == [1]


def test_many_devices_leave_room_for_the_published() -> None:
    cards = [
        record.replace(device_index=n, id=f"{n}{record.id}") for n in range(8) for record in GRID
    ]
    (one,) = maps(*cards, baselines=published_records())
    assert len(one.grids) == MAX_GRIDS
    assert [grid.label for grid in one.grids[-2:]] == ["RTX 3090 Ti", "RTX 4090"]


def test_one_cell_is_no_map() -> None:
    assert maps(PEAK, layer(2, 128, 8e12)) == ()


def test_what_is_not_judged_is_marked() -> None:
    failed = layer(8, 512, None, status="oom", reason="out of memory")
    (one,) = maps(PEAK, *GRID[:2], GRID[2].replace(disturbed="busy"), failed)
    lines = one.grids[0].cells
    assert lines[1][0] == Cell(value="40.0", share="25 %", level=2, note="disturbed: busy")
    assert lines[1][1] == Cell(value="oom", share="", level=0, note="out of memory")
    assert one.grids[0].has_notes
    assert not maps(PEAK, *GRID)[0].grids[0].has_notes


def test_launch_bound_cells_are_marked() -> None:
    """The rate grows with the batch from 1 to 4, so the time does not."""
    row = [layer(batch, 128, 3e12 * batch) for batch in (1, 2, 4)]
    (one,) = maps(PEAK, *row, layer(8, 128, 12.1e12))
    flat = [cell.flat for (cell,) in one.grids[0].cells if cell]
    assert flat == [True, True, True, False]
    assert heat_legend(one).endswith("*: launch-bound")


def test_the_forward_pass_is_folded_away() -> None:
    forward = [record.replace(case={**record.case, "pass": "forward"}) for record in GRID]
    assert [one.folded for one in maps(*forward, *GRID)] == [False, True]


def test_a_plain_table_is_as_wide_as_it_may_be() -> None:
    (one,) = maps(PEAK, *GRID, baselines=published_records())
    headings, lines = heat_table(one, max_columns=3)
    assert headings == (
        "batch",
        "RTX 4090, 128 tokens",
        "RTX 4090, 512 tokens",
        "RTX 3090 Ti, 128 tokens",
    )
    assert lines[0] == ("2", "8.00 5.0 %", "80.0 50 %", "14.6 18 %")
    assert all(len(line) == len(headings) for line in lines)


def test_all_three_reports_show_it() -> None:
    from rich.console import Console

    view = made.layers_view()
    stream = io.StringIO()
    print_report(view, Console(file=stream, width=80))
    text = stream.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    assert "bf16 BERT-large layer, forward + backward" in text
    assert "share of the best matmul (RTX 4090 157" in text
    assert "| batch | RTX 4090, 128 tokens |" in markdown(view)
    html = render_html([view])
    assert html.count('<table class="heat">') > 6
    assert '<th scope="row">2</th>' in html
