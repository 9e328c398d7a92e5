"""Layers by batch and sequence: the share of the measured peak, beside what others published."""

from __future__ import annotations

import io

import pytest

import report_views as made
from report_views import matmul_case, point
from reports import markdown, print_report, tables_of
from trainrig.analysis.patterns import find_patterns
from trainrig.analysis.rows import rows
from trainrig.catalog.published import published_records
from trainrig.record import Record, RunView
from trainrig.report.charts.heatmap import LEVELS, MAX_GRIDS, heat_maps
from trainrig.report.document import Cell, Group
from trainrig.report.run_report import render_html

BERT = {"layer": "BERT-large layer", "dtype": "bf16", "pass": "forward+backward"}
BERT |= {"hidden": 1024, "heads": 16, "ffn": 4096}


def layer(batch: int, seq: int, value: float | None, **more: object) -> Record:
    case = {**BERT, "batch_size": batch, "seq_len": seq}
    return point("layer", case, value, **({"metric": "flop_rate", "unit": "FLOP/s"} | more))


def maps(*records: Record, baselines: tuple[Record, ...] = ()) -> list[Group]:
    view = RunView(name="run", records=records, baselines=baselines)
    return [card for _, card in heat_maps(view, rows(view), find_patterns(view))]


def cells(one: Group) -> list[Cell]:
    """The first table's, row by row."""
    return [cell for _, line in tables_of(one)[0].lines() for cell in line[1:]]


def titles(one: Group) -> list[str]:
    """The devices."""
    return [table.title.removesuffix(", TFLOPS") for table in tables_of(one)]


PEAK = point("matmul", matmul_case("bf16", 8192), 160e12)
OTHER = point("matmul", matmul_case("fp16", 8192), 200e12)
GRID = (layer(2, 128, 8e12), layer(2, 512, 80e12), layer(8, 128, 40e12))


def test_a_cells_share_is_of_the_matmul_of_its_dtype() -> None:
    (one,) = maps(PEAK, OTHER, *GRID)
    (table,) = tables_of(one)
    assert [column.head for column in table.columns] == ["batch", "seq 128", "seq 512"]
    assert table.notes == ("best matmul 160 TFLOPS",)
    assert table.rows == (
        ("2", Cell("8.00", small="5.0 %", shade=0), Cell("80.0", small="50 %", shade=3)),
        ("8", Cell("40.0", small="25 %", shade=2), Cell("")),
    )


def test_without_a_measured_matmul_there_is_no_share() -> None:
    """The data sheet's number is not the peak that is meant."""
    (one,) = maps(made.claimed("bf16", 165.2e12), OTHER, *GRID)
    assert tables_of(one)[0].notes == ("no matmul measured",)
    assert {cell.small for cell in cells(one)} == {""}


def test_a_noisy_matmul_is_a_peak_that_is_marked() -> None:
    (one,) = maps(PEAK.replace(disturbed="busy"), *GRID)
    assert tables_of(one)[0].notes == ("best matmul ≥ 160 TFLOPS",)


def test_where_a_layer_exceeds_its_matmul_no_cell_has_a_share() -> None:
    """A cell of 107 % said nothing of the layer and much of the matmul."""
    (one,) = maps(PEAK, layer(2, 128, 171e12), layer(4, 128, 80e12))
    assert [cell.small for cell in cells(one)] == ["", ""]
    assert "not measured well enough" in tables_of(one)[0].notes[0]


@pytest.mark.parametrize("share", [*LEVELS, 0.0001, 1.2])
def test_colours_rise_with_the_share(share: float) -> None:
    (one,) = maps(PEAK, layer(2, 128, 160e12 * share * 1.0001), layer(4, 128, 1e12))
    assert cells(one)[0].shade == sum(share >= level for level in LEVELS)


def test_published_grids_of_the_same_layer_stand_beside() -> None:
    (one,) = maps(PEAK, *GRID, baselines=published_records())
    assert titles(one) == ["RTX 4090", "RTX 3090 Ti", "RTX 4090"]
    peaks = [table.notes[0].partition(";")[0] for table in tables_of(one)]
    assert peaks == [f"best matmul {rate} TFLOPS" for rate in ("160", "81.3", "169")]
    assert "published by mli/" in tables_of(one)[1].notes[0]
    batches = [line[0].text for _, line in tables_of(one)[1].lines()]
    assert batches == ["2", "4", "8", "16", "32", "64", "128"]


def test_a_host_beside_published_cards_has_its_own_unit() -> None:
    host = {"device": "EPYC", "device_index": None}
    records = [
        record.replace(value=(record.value or 0.0) / 2e4, **host) for record in (PEAK, *GRID)
    ]
    (one,) = maps(*records, baselines=published_records())
    assert tables_of(one)[0].title == "EPYC, GFLOPS"
    assert tables_of(one)[0].notes == ("best matmul 8.00 GFLOPS",)
    assert [cell.text for cell in cells(one)] == ["0.400", "4.00", "2.00", ""]
    assert tables_of(one)[1].title == "RTX 3090 Ti, TFLOPS"


def test_another_layer_or_pass_is_not_beside() -> None:
    forward = [record.replace(case={**record.case, "pass": "forward"}) for record in GRID]
    unknown = [record.replace(case={**record.case, "layer": "Mamba"}) for record in GRID]
    baselines = tuple(r for r in published_records() if r.case.get("pass") == "forward+backward")
    assert [len(tables_of(one)) for one in maps(*forward, baselines=baselines)] == [1]
    assert [len(tables_of(one)) for one in maps(*unknown, baselines=baselines)] == [1]


def test_many_devices_leave_room_for_the_published() -> None:
    cards = [
        record.replace(device_index=n, id=f"{n}{record.id}") for n in range(8) for record in GRID
    ]
    (one,) = maps(*cards, baselines=published_records())
    assert len(tables_of(one)) == MAX_GRIDS
    assert titles(one)[-2:] == ["RTX 3090 Ti", "RTX 4090"]


def test_one_cell_is_no_map() -> None:
    assert maps(PEAK, layer(2, 128, 8e12)) == []


def test_what_is_not_judged_is_marked() -> None:
    failed = layer(8, 512, None, status="oom", reason="out of memory")
    (one,) = maps(PEAK, *GRID[:2], GRID[2].replace(disturbed="busy"), failed)
    assert cells(one)[2] == Cell("≥ 40.0", small="25 %", shade=2)
    assert cells(one)[3] == Cell("oom?", shade=0)


def test_launch_bound_cells_are_marked() -> None:
    """The rate grows with the batch from 1 to 4, so the time does not."""
    row = [layer(batch, 128, 3e12 * batch) for batch in (1, 2, 4)]
    (one,) = maps(PEAK, *row, layer(8, 128, 12.1e12))
    assert [cell.marked for cell in cells(one)] == [True, True, True, False]


def test_the_forward_pass_is_folded_away() -> None:
    forward = [record.replace(case={**record.case, "pass": "forward"}) for record in GRID]
    view = RunView(name="run", records=(*forward, *GRID))
    assert [is_forward for is_forward, _ in heat_maps(view, rows(view))] == [False, True]


def test_all_three_reports_show_it() -> None:
    from rich.console import Console

    view = made.layers_view()
    stream = io.StringIO()
    print_report(view, Console(file=stream, width=80))
    text = stream.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    assert "bf16 BERT-large layer, forward + backward" in text
    assert "best matmul 157 TFLOPS" in text
    assert "| batch | seq 128 |" in markdown(view)
    assert render_html([view]).count('<table class="heat">') > 6
