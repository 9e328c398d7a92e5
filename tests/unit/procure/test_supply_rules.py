"""Several supplies: each carries its own cards, peaks and plugs, whatever the others have left."""

from __future__ import annotations

from typing import Any

import pytest

from trainrig.errors import UsageError
from trainrig.procure.assembly import as_markdown
from trainrig.procure.build_rules import check_build, report_dict
from trainrig.procure.parts_list import Build, build_of
from trainrig.procure.supply_rules import supply_loads

RISER = "SlimSAS x16 adapter with retimer, 500 mm"
OPEN = "Open frame for eight cards on risers"


def build(gpus: list[dict[str, Any]], supplies: list[dict[str, Any]], **more: Any) -> Build:
    """Cards in an open frame on risers of their own plugs: nothing comes through a slot."""
    content = {
        "gpu": gpus,
        "board": [{"part": "ASRock Rack ROMED8-2T"}],
        "cpu": [{"part": "AMD EPYC 7443P", "watts": 200}],
        "ram": [{"part": "DDR4-3200 RDIMM 32 GiB", "count": 8, "watts": 5}],
        "psu": supplies,
        "case": [{"part": OPEN, "psu_bays": 4}],
        "cooling": [{"part": "Noctua NH-U14S TR4-SP3"}],
        "disk": [{"part": "Samsung 990 PRO 4 TB", "watts": 8}],
        "riser": [{"part": RISER, "count": 8, "powered": True}],
        "wiring": {"psu_sync": True},
    }  # fmt: skip
    return build_of(content | more, "list.toml")


def card(count: int, watts: float) -> dict[str, Any]:
    """An RTX 3090 of so many watts: it peaks at 1.75 times that."""
    return {"part": "ASUS TUF Gaming RTX 3090", "count": count, "watts": watts}


def supply(watts: float, count: int = 1, **more: Any) -> dict[str, Any]:
    fields = {"part": "EVGA SuperNOVA 1600 P2", "watts": watts, "count": count}
    plugs = {"eps": 2, "8-pin": 9}
    return fields | {"watts_115v": watts, "atx": "3.0", "connectors": plugs} | more


def verdict(found: Build, rule: str) -> list[str]:
    return [one.severity for one in check_build(found).checks if one.rule == rule]


def test_the_board_may_hang_on_the_smaller_supply() -> None:
    """308 W of board, three cards of 400 W: 800 of 0.9 × 1,000 W, 708 of 0.9 × 800, only so."""
    found = supply_loads(build([card(3, 400)], [supply(1000), supply(800)]))
    assert [one.is_board for one in found] == [False, True]
    assert [(one.watts, len(one.cards)) for one in found] == [(800, 2), (708, 1)]
    assert "error" in verdict(build([card(4, 400)], [supply(1000), supply(800)]), "psu-rails")


def test_peaks_are_each_supply_s_own() -> None:
    """The old one holds 1.3 × 1,000 W; its board and two cards peak at 1,358 W, carry 908 W."""
    two = [supply(1200), supply(1010, atx="2")]
    wiring = {"psu_sync": True, "board_supply": 2, "gpu_supplies": [1, 1, 2, 2]}
    bad = build([card(4, 300)], two, wiring=wiring)
    found = [one for one in check_build(bad).checks if one.rule == "psu-transients"]
    assert [one.severity for one in found] == ["ok", "error"]
    assert found[1].arithmetic.startswith("308 W + 2 × 1.75 × 300 W = 1,358 W > 1,313")
    loads = supply_loads(bad)
    assert sum(one.peak for one in loads) < sum(one.peak_limit for one in loads)  # a sum would pass
    assert verdict(bad, "psu-rails") == ["ok"] * 3
    assert check_build(build([card(4, 300)], two)).legal  # the board on the other one


def test_plugs_of_another_supply_do_not_help() -> None:
    few, many = supply(2000, connectors={"eps": 2, "8-pin": 2}), supply(600)
    found = supply_loads(build([card(3, 350)], [few, many]))
    assert [(len(one.cards), one.eight_pins, one.eight_pins_available) for one in found] == [
        (1, 2, 2),
        (2, 4, 9),
    ]
    bad = build([card(3, 350)], [few, many])
    assert verdict(bad, "psu-rails")[1] == "error"  # 700 W on 0.9 × 600
    assert check_build(build([card(3, 350)], [supply(2000), many])).legal


def test_a_slot_s_watts_may_be_either_supply_s() -> None:
    """Some cards take 10 W through their slot, some 75: neither supply may count on the other."""
    plain = [{"part": "PCIe 4.0 x16 riser, 300 mm", "count": 4}]
    wiring = {"psu_sync": True, "board_supply": 1, "gpu_supplies": [1, 1, 2, 2]}
    found = supply_loads(build([card(4, 350)], [supply(1600)] * 2, riser=plain, wiring=wiring))
    assert found[0].watts == 308 + 2 * 350 + 2 * 75 and "+ 2 × 75 W" in found[0].text
    assert found[1].watts == 2 * 350 and found[1].text == "2 × 350 W"
    assert found[1].peak == 2 * 1.75 * 350
    tight = [supply(1600), supply(700)]  # 0.9 × 700 W is enough for 2 × (350 W − 75 W) alone
    report = check_build(build([card(4, 350)], tight, riser=plain, wiring=wiring))
    assert [one.severity for one in report.checks if one.rule == "psu-rails"][1] == "error"


@pytest.mark.parametrize(
    ("wiring", "said"),
    [({"gpu_supplies": [1, 2]}, "names 2 of 4 cards"), ({"board_supply": 3}, "supply 3 of 2")],
)
def test_wiring_that_cannot_be_is_refused(wiring: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check_build(build([card(4, 350)], [supply(1600)] * 2, wiring=wiring))


def test_which_card_hangs_where_is_printed_and_stands_in_the_checklist() -> None:
    report = check_build(build([card(4, 350)], [supply(1600)] * 2))
    shown = report_dict(report)["supplies"]
    assert sorted(card for one in shown for card in one["gpus"]) == [0, 1, 2, 3]
    assert [one["board"] for one in shown].count(True) == 1
    assert "Supply 2 (EVGA SuperNOVA 1600 P2): " in as_markdown(report)
