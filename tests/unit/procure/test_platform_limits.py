"""Limits of a platform refuse a build whose board is a chipset or not named, and never pass it."""

from __future__ import annotations

import pytest

from trainrig.procure.build_rules import BuildReport, check_build
from trainrig.procure.part_words import entries_of
from trainrig.procure.parts_list import build_of
from trainrig.procure.platforms import chipset_fields, platforms_file

AM5 = {"board": ["B650E"], "cpu": ["7950X"]}
SERVER = {"board": ["ASRock Rack ROMED8-2T"], "cpu": ["AMD EPYC 7443P"]}
NAMED = {"board": ["ASUS ProArt X670E-Creator WiFi"], "cpu": ["7950X"]}


def checked(words: dict[str, list[str]]) -> BuildReport:
    tables = entries_of(words)
    return check_build(build_of(tables, "words", is_complete=False, described=tables))


def severities(report: BuildReport, rule: str) -> set[str]:
    return {check.severity for check in report.checks if check.rule == rule}


REFUSED = [
    # rule, parts that break it, parts that do not
    ("memory-type", AM5 | {"ram": ["2x 32 GB DDR5 RDIMM"]}, AM5 | {"ram": ["2x 32 GB DDR5"]}),
    ("memory-type", AM5 | {"ram": ["2x 32 GB DDR5 LRDIMM"]}, AM5 | {"ram": ["2x 32 GB DDR5"]}),
    ("memory-type", AM5 | {"ram": ["2x 32 GB DDR4"]}, AM5 | {"ram": ["2x 32 GB DDR5 UDIMM"]}),
    ("memory-type", AM5 | {"ram": ["2x 32 GB DDR5 SO-DIMM"]}, AM5 | {"ram": ["2x 32 GB DDR5"]}),
    ("memory-type", {"board": ["Z790"], "ram": ["32 GB DDR3"]}, AM5 | {"ram": ["32 GB DDR5"]}),
    ("memory-type", {"cpu": ["7950X"], "ram": ["32 GB DDR4"]}, AM5 | {"ram": ["32 GB DDR5"]}),
    ("memory-type", SERVER | {"ram": ["8x 64 GB DDR4"]}, SERVER | {"ram": ["8x 64 GB DDR4 RDIMM"]}),
    ("memory-slots", AM5 | {"ram": ["8x 32 GB DDR5"]}, NAMED | {"ram": ["4x 32 GB DDR5"]}),
    ("memory-slots", NAMED | {"ram": ["5x 32 GB DDR5"]}, NAMED | {"ram": ["4x 32 GB DDR5"]}),
    (
        "memory-slots",
        {"board": ["B650E"], "ram": ["8x 32 GB DDR5"]},
        NAMED | {"ram": ["32 GB DDR5"]},
    ),
    ("memory-module", AM5 | {"ram": ["2x 3000 GB DDR5"]}, NAMED | {"ram": ["2x 48 GB DDR5"]}),
    ("memory-module", {"board": ["X570"], "ram": ["64 GB DDR4"]}, NAMED | {"ram": ["48 GB DDR5"]}),
    (
        "memory-module",
        SERVER | {"ram": ["8x 512 GB DDR4 RDIMM"]},
        SERVER | {"ram": ["8x 256 GB DDR4 RDIMM"]},
    ),
    ("memory-capacity", AM5 | {"ram": ["4x 128 GB DDR5"]}, NAMED | {"ram": ["4x 48 GB DDR5"]}),
    ("memory-capacity", NAMED | {"ram": ["4x 64 GB DDR5"]}, NAMED | {"ram": ["2x 64 GB DDR5"]}),
    ("slots", AM5 | {"gpu": ["8x RTX 4090"]}, None),
    ("slots", {"cpu": ["7950X"], "gpu": ["8x RTX 4090"]}, None),
    ("lanes", AM5 | {"gpu": ["8x RTX A4000"]}, None),
    ("card-form", AM5 | {"gpu": ["H100 SXM5 80GB"]}, AM5 | {"gpu": ["H100 PCIe 80GB"]}),
    (
        "airflow",
        AM5 | {"gpu": ["A100 PCIe 80GB"], "case": ["Fractal Design Torrent"]},
        AM5 | {"gpu": ["A100 PCIe 80GB"], "case": ["4U server"]},
    ),
    ("psu-rating", {"psu": ["5000 W ATX 3.1"]}, {"psu": ["2000 W"]}),
    ("card-form", AM5 | {"gpu": ["MI300X"]}, AM5 | {"gpu": ["RTX 4090"]}),
]


@pytest.mark.parametrize(("rule", "broken", "healthy"), REFUSED)
def test_a_limit_refuses_and_its_healthy_twin_holds(rule, broken, healthy) -> None:
    report = checked(broken)
    assert not report.legal and "error" in severities(report, rule)
    assert all(check.arithmetic and check.fix for check in report.findings)
    if healthy is not None:
        assert severities(checked(healthy), rule) == {"ok"}


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("memory-slots", AM5 | {"ram": ["4x 32 GB DDR5"]}),
        ("memory-module", AM5 | {"ram": ["2x 32 GB DDR5"]}),
        ("memory-capacity", AM5 | {"ram": ["2x 32 GB DDR5"]}),
        ("memory-type", {"board": ["Z790"], "ram": ["2x 32 GB DDR5"]}),
        ("memory-slots", {"cpu": ["7950X"], "ram": ["2x 32 GB DDR5"]}),
        ("slots", AM5 | {"gpu": ["2x RTX 4090"], "case": ["Fractal Design Torrent"]}),
    ],
)
def test_within_a_platform_s_limit_nothing_is_known_to_fit(rule, words) -> None:
    assert severities(checked(words), rule) == {"unknown"}


@pytest.mark.parametrize("name", ["TPU v5e", "Apple M4 Max (40-core)"])
def test_what_is_no_card_is_refused_by_its_form(trainrig, name: str) -> None:
    code, out, err = trainrig("build", "check", "--gpu", name, "--board", "B650E")
    assert (code, out) == (2, "") and "not sold as a card" in err


def test_cards_on_a_server_board_are_not_refused_by_a_desktop_s_limit() -> None:
    assert "error" not in severities(checked(SERVER | {"gpu": ["7x RTX A4000"]}), "lanes")
    assert "error" not in severities(checked(SERVER | {"gpu": ["4x RTX 4090"]}), "slots")


def test_every_chipset_and_limit_has_its_platform_and_source() -> None:
    content = platforms_file()
    names = [name for chipset in content.chipset for name in chipset.names]
    assert len(names) == len(set(names))
    for name in names:
        board = chipset_fields(name)
        assert board is not None and board["socket"] in {row.socket for row in content.platform}
