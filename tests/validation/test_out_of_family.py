"""Predictions on tables that no constant was fitted to: the honest figure, how it is counted."""

from __future__ import annotations

from validation.out_of_family import Outcome, cell_lines, outcome, read, summary


def test_rows_of_other_families_are_predicted_better_than_by_a_flat_mfu() -> None:
    cells = cell_lines(map(outcome, read()))
    known = summary(cells)
    assert len(cells) == 9 and known.num > 1900
    assert known.median < 0.18 and known.p90 < 0.33  # 0.46 and 0.73 before the rules of today
    assert known.median < 0.5 * known.flat
    assert 0.70 < known.inside < 0.92
    assert known.answered > 0.85


def test_a_refused_row_counts_with_the_flat_error_and_cells_weigh_alike() -> None:
    outcomes = [
        Outcome(cell="a", error=0.1, inside=True, flat=0.5),
        Outcome(cell="a", error=None, flat=-0.5, refused="comes later"),
        *[Outcome(cell="b", error=0.0, inside=False, flat=0.1)] * 9,
        Outcome(cell="c", error=None, flat=None, refused="nobody can score it"),
    ]
    cells = cell_lines(outcomes)
    assert [(one.name, one.num, one.answered) for one in cells] == [("a", 2, 0.5), ("b", 9, 1.0)]
    assert [round(one.median, 6) for one in cells] == [0.3, 0.0]
    assert round(summary(cells).median, 6) == 0.15 and summary(cells).inside == 0.5
