"""What residuals say of widths: that they are found again where they are known."""

from __future__ import annotations

import random
from statistics import NormalDist

from validation.normalise.cells import UNSURE
from validation.widths import EIGHTY, Residual, held, widths


def test_widths_that_residuals_were_drawn_with_are_found_and_hold_four_in_five() -> None:
    draw, true = random.Random(1), {"seq": 0.5, "chip": 0.0}
    rows = []
    for at in range(4000):
        blank = frozenset(name for name in true if draw.random() < 0.5)
        wide = sum(true[name] ** 2 for name in blank) + 0.2**2
        off = NormalDist(0.0, wide**0.5 / EIGHTY).inv_cdf(draw.uniform(0.001, 0.999))
        rows.append(Residual(cell=str(at % 20), log=off, own=0.2, presumed=blank))
    found = {one.column: one.found or 0.0 for one in widths(rows)}
    assert abs(found["seq"] - 0.5) < 0.05 and found["chip"] < 0.1
    assert abs(held(rows, found) - 0.8) < 0.03 < held(rows, UNSURE | {"seq": 1.0}) - 0.8
