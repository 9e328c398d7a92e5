"""What a card offers to programs: less than its nominal size, as users' error messages say."""

from __future__ import annotations

import pytest

from trainrig.catalog.load import load_chips
from trainrig.catalog.lookup import require_chip
from trainrig.catalog.offered_memory import offered_memory, offered_shares

GIB = 1 << 30


@pytest.mark.parametrize(
    ("chip", "gib"),
    [
        ("RTX 4090", 23.64),
        ("RTX 5090", 31.37),
        ("T4", 14.7),
        ("A10G", 22.0),
        ("L40S", 44.4),
        ("A100 SXM4 80GB", 79.25),
        ("A100 SXM4 40GB", 39.59),
        ("H200 SXM 141GB", 139.72),
        ("MI355X", 287.98),
    ],
)
def test_a_card_offers_what_its_driver_leaves(chip: str, gib: float) -> None:
    offered = offered_memory(require_chip(chip))
    assert offered is not None and offered / GIB == pytest.approx(gib, rel=0.011)


def test_no_chip_offers_more_than_it_has() -> None:
    for chip in load_chips():
        offered = offered_memory(chip)
        assert (offered is None) == (chip.memory is None)
        assert offered is None or 0.7 * chip.memory.size <= offered <= chip.memory.size


@pytest.mark.parametrize("rule", offered_shares(), ids=lambda rule: rule.name)
def test_each_share_is_near_the_reports_it_was_read_from(rule) -> None:
    known = {chip.name for chip in load_chips()}
    assert set(rule.chips) <= known
    for report in rule.reports:
        assert report.gib / report.of == pytest.approx(rule.share, abs=0.02), report.url
