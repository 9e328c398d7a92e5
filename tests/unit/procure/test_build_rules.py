"""Each rule refuses a build that breaks it, and passes the repaired twin.

A build here is the content of a parts list: the fault is in the list, below every checker.
"""

from __future__ import annotations

import copy
import dataclasses
import re
import tomllib
from typing import Any

import pytest

from trainrig.language.catalogue import Catalogue
from trainrig.procure.build_rules import BuildReport, check_build, report_dict
from trainrig.procure.parts import KINDS
from trainrig.procure.parts_list import build_of
from trainrig.procure.rule_book import rule_book
from trainrig.report.build_report import build_document
from trainrig.report.render.markdown import to_markdown

Content = dict[str, Any]

ONE: Content = {
    "name": "one 4090",
    "currency": "CNY",
    "gpu": [{"part": "MSI RTX 4090 Ventus 3X OC", "price": 15999}],
    "board": [{"part": "ASUS ProArt X670E-Creator WiFi", "price": 3799}],
    "cpu": [{"part": "AMD Ryzen 9 7950X", "price": 3999}],
    "ram": [{"part": "DDR5-5600 UDIMM 48 GiB", "count": 2, "price": 1299}],
    "psu": [{"part": "MSI MEG Ai1300P PCIE5", "price": 2199}],
    "case": [{"part": "Fractal Design Torrent", "price": 1399}],
    "cooling": [{"part": "be quiet! Dark Rock Pro 5", "price": 699}],
    "disk": [{"part": "Samsung 990 PRO 4 TB", "price": 2399}],
    "nic": [{"part": "Intel X710-T2L", "price": 909}],
    "use": {"model": "gpt3-1.3B", "tokens": 26e9},
    "room": {"volts": 230, "breaker_amps": 16},
}
"""About 34,000 CNY."""

CREATOR = [
    {
        "part": "ASUS ProArt X670E-Creator WiFi",
        "slots": [
            {"position": 2, "lanes": 16, "generation": 5, "splits": [2, 4]},
            {"position": 5, "lanes": 8, "generation": 5},
            {"position": 7, "lanes": 2, "generation": 4, "from_cpu": False},
        ],
    }
]
"""Its slots as a builder reads them in its manual: the catalog has no source for positions."""

SERVER: Content = {
    "name": "four blowers",
    "gpu": [{"part": "ASUS Turbo RTX 3090", "count": 4}],
    "board": [{"part": "ASRock Rack ROMED8-2T"}],
    "cpu": [{"part": "AMD EPYC 7443P"}],
    "ram": [{"part": "DDR4-3200 RDIMM 32 GiB", "count": 8}],
    "psu": [{"part": "SilverStone HELA 2050 Platinum", "atx": "3.0"}],
    "case": [{"part": "Phanteks Enthoo Pro 2 Server Edition"}],
    "cooling": [{"part": "Noctua NH-U14S TR4-SP3"}],
    "disk": [{"part": "Samsung 990 PRO 4 TB"}],
}
FRAME: Content = SERVER | {
    "name": "four on risers",
    "gpu": [{"part": "ASUS TUF Gaming RTX 3090", "count": 4}],
    "case": [{"part": "Open frame for eight cards on risers"}],
    "riser": [{"part": "PCIe 4.0 x16 riser, 300 mm", "count": 4}],
}
PAIR: Content = SERVER | {
    "name": "two with a bridge",
    "gpu": [{"part": "ASUS TUF Gaming RTX 3090", "count": 2}],
    "bridge": [{"part": "NVLink bridge RTX 3090, 4 slots"}],
}


CUBE = {"form_factors": ["mATX", "Mini-ITX"], "gpu_length_mm": 340, "slots": 4,
        "cooler_height_mm": 170, "airflow": "tower"}  # fmt: skip
UNSPLIT = [{"position": 2, "lanes": 16, "generation": 4, "splits": []}]


def changed(base: Content, **tables: Any) -> Content:
    """A list with some tables replaced; None takes one out."""
    content = copy.deepcopy(base) | tables
    return {key: value for key, value in content.items() if value is not None}


def part(name: str, count: int = 1, **more: Any) -> list[Content]:
    return [{"part": name, "count": count, **more}]


def checked(content: Content) -> BuildReport:
    return check_build(build_of(content, "list.toml"))


def broken(report: BuildReport) -> set[str]:
    return {one.rule for one in report.findings if one.severity == "error"}


def close(report: BuildReport) -> set[str]:
    return {one.rule for one in report.findings if one.severity == "warning"}


@pytest.mark.parametrize("base", [ONE, SERVER, FRAME, PAIR], ids=lambda base: base["name"])
def test_the_healthy_twins_are_legal(base: Content) -> None:
    report = checked(base)
    assert report.legal, [(one.rule, one.arithmetic) for one in report.findings]


BAD: dict[str, tuple[Content, Content]] = {
    # rule: what breaks it, what repairs it
    "missing-part": (changed(ONE, psu=None), ONE),
    "socket": (changed(ONE, cpu=part("Intel Core i9-14900K")), ONE),
    "memory-type": (changed(ONE, ram=part("DDR5-4800 RDIMM 32 GiB", 2)), ONE),
    "memory-size": (changed(SERVER, ram=part("DDR4-3200 RDIMM 16 GiB", 4)), SERVER),
    "psu-rating": (changed(ONE, psu=part("MSI MEG Ai1300P PCIE5", watts=5000)), ONE),
    "memory-slots": (changed(ONE, ram=part("DDR5-5600 UDIMM 32 GiB", 6)), ONE),
    "memory-module": (changed(ONE, ram=part("DDR5-5600 UDIMM 32 GiB", 2, capacity_gib=256)), ONE),
    "memory-capacity": (changed(ONE, ram=part("DDR5-5600 UDIMM 64 GiB", 4)), ONE),
    "memory-channels": (
        changed(ONE, ram=[*part("DDR5-5600 UDIMM 32 GiB"), *part("DDR5-5600 UDIMM 48 GiB")]),
        ONE,
    ),
    "card-form": (
        changed(ONE, gpu=part("ASUS TUF Gaming RTX 4090", chip="H100 SXM5 80GB", watts=450)),
        ONE,
    ),
    "form-factor": (
        changed(ONE, case=part("My cube", **CUBE)),
        ONE,
    ),
    "card-length": (
        changed(ONE, gpu=part("ASUS ROG Strix RTX 4090 OC"), case=part("Fractal Design Meshify C")),
        changed(
            ONE,
            gpu=part("NVIDIA RTX 4090 Founders Edition"),
            case=part("Fractal Design Meshify C"),
        ),
    ),
    "slots": (changed(SERVER, gpu=part("ASUS TUF Gaming RTX 3090", 4)), FRAME),
    "airflow": (
        changed(
            SERVER,
            gpu=part("NVIDIA A40", 4),
            psu=part("Seasonic Prime TX-1600", 2),
            wiring={"psu_sync": True},
        ),
        changed(SERVER, gpu=part("PNY RTX A6000", 4)),
    ),
    "lanes": (
        changed(
            ONE,
            gpu=part("PNY RTX A4000", 2),
            board=[
                {
                    "part": "ASUS ProArt X670E-Creator WiFi",
                    "slots": [
                        {"position": 1, "lanes": 16, "generation": 4},
                        {"position": 4, "lanes": 2, "generation": 4},
                    ],
                    "lane_modes": [],
                }
            ],
            psu=part("Corsair RM1000x (2021)"),
            nic=None,
        ),
        changed(ONE, gpu=part("PNY RTX A4000", 2), psu=part("Corsair RM1000x (2021)")),
    ),
    "bifurcation": (
        changed(
            ONE,
            board=part("ASRock X570 Phantom Gaming X", slots=UNSPLIT, lane_modes=[]),
            nic=None,
            riser=part("PCIe 4.0 x16 to two x8 riser"),
            case=part("Open frame for eight cards on risers"),
        ),
        changed(
            ONE,
            nic=None,
            board=CREATOR,
            riser=part("PCIe 4.0 x16 to two x8 riser"),
            case=part("Open frame for eight cards on risers"),
        ),
    ),
    "riser-generation": (
        changed(FRAME, riser=part("PCIe 3.0 x16 riser, 200 mm", 4)),
        changed(FRAME, riser=part("PCIe 3.0 x16 riser, 200 mm", 4), wiring={"link_generation": 3}),
    ),
    "psu-watts": (
        changed(SERVER, psu=part("Seasonic Vertex GX-1000")),
        SERVER,
    ),
    "psu-transients": (
        changed(
            ONE,
            gpu=part("ASUS Turbo RTX 3090", 2),
            nic=None,
            psu=part("Corsair HX1200i", watts=1150),
        ),
        changed(
            ONE, gpu=part("ASUS Turbo RTX 3090", 2), nic=None, psu=part("MSI MEG Ai1300P PCIE5")
        ),
    ),
    "psu-connectors": (
        changed(
            SERVER,
            psu=part("Super Flower Leadex Platinum 2000W", connectors={"eps": 2, "8-pin": 4}),
        ),
        SERVER,
    ),
    "psu-rails": (
        changed(FRAME, psu=part("EVGA SuperNOVA 1600 P2", 2)),
        changed(FRAME, psu=part("EVGA SuperNOVA 1600 P2", 2), wiring={"psu_sync": True}),
    ),
    "psu-bays": (
        changed(
            ONE,
            psu=part("Seasonic Vertex GX-1000", 3),
            wiring={"psu_sync": True},
            case=part("Phanteks Enthoo 719", psu_bays=2),
        ),
        changed(
            ONE,
            psu=part("Seasonic Vertex GX-1000", 2),
            wiring={"psu_sync": True},
            case=part("Phanteks Enthoo 719", psu_bays=2),
        ),
    ),
    "cooler": (changed(ONE, cooling=part("Noctua NH-U12A", watts=190)), ONE),
    "radiator": (
        changed(
            ONE,
            cooling=part("ARCTIC Liquid Freezer III 420"),
            case=part("Corsair 5000D Airflow", radiator_mm=360),
        ),
        changed(
            ONE,
            cooling=part("ARCTIC Liquid Freezer III 360"),
            case=part("Corsair 5000D Airflow", radiator_mm=360),
        ),
    ),
    "breaker": (
        changed(SERVER, room={"volts": 115, "breaker_amps": 15}),
        changed(SERVER, room={"volts": 230, "breaker_amps": 16}),
    ),
    "heat": (
        changed(ONE, room={"cooling_btu_per_h": 2500}),
        changed(ONE, room={"cooling_btu_per_h": 5000}),
    ),
    "noise": (
        changed(SERVER, room={"noise_limit_db": 50}),
        changed(ONE, room={"noise_limit_db": 50}),
    ),
    "rack-units": (
        changed(SERVER, room={"rack_units": 4}),
        changed(
            SERVER,
            case=part("4U server case for eight two-slot cards"),
            cooling=part("Noctua NH-U14S TR4-SP3", height_mm=115),
            room={"rack_units": 4},
        ),
    ),
    "disk-capacity": (
        changed(ONE, use={"model": "gpt3-13B", "tokens": 300e9, "keep_checkpoints": 20}),
        changed(
            ONE,
            use={"model": "gpt3-13B", "tokens": 300e9, "keep_checkpoints": 5},
        ),
    ),
    "disk-ports": (
        changed(ONE, board=part("MSI PRO B650M-P"), disk=part("Crucial MX500 4 TB", 6)),
        ONE,
    ),
    "nvlink-bridge": (
        changed(PAIR, bridge=part("NVLink bridge RTX A6000, 2 slots")),
        PAIR,
    ),
}
CLOSE: dict[str, tuple[Content, Content]] = {
    # what is a warning: it works, and costs something
    "outlet": (
        changed(
            ONE,
            psu=part("Seasonic Prime TX-1600", watts_115v=1300),
            room={"volts": 115, "breaker_amps": 20},
        ),
        changed(ONE, psu=part("Seasonic Prime TX-1600"), room={"volts": 230, "breaker_amps": 20}),
    ),
    "memory-channels": (changed(SERVER, ram=part("DDR4-3200 RDIMM 32 GiB", 6)), SERVER),
    "riser-generation": (
        changed(FRAME, riser=part("PCIe 4.0 x16 riser, 300 mm", 4, length_mm=600)),
        FRAME,
    ),
}


@pytest.mark.parametrize("rule", BAD)
def test_a_build_that_breaks_a_rule_is_refused_and_its_twin_is_not(rule: str) -> None:
    bad, repaired = BAD[rule]
    report, twin = checked(bad), checked(repaired)
    assert rule in broken(report)
    assert not report.legal
    found = next(one for one in report.findings if one.rule == rule and one.severity == "error")
    assert found.arithmetic and found.fix
    assert rule not in broken(twin), [one.arithmetic for one in twin.findings]


@pytest.mark.parametrize("rule", CLOSE)
def test_what_is_close_is_a_warning_and_stays_legal(rule: str) -> None:
    bad, repaired = CLOSE[rule]
    report = checked(bad)
    assert rule in close(report) and rule not in broken(report)
    assert rule not in close(checked(repaired))


# ---- what the catalog does not know


WATER = changed(
    SERVER,
    gpu=part("EVGA RTX 3090 XC3 Ultra Hybrid", 2, radiator_mm=240),
    psu=part("SilverStone HELA 2050 Platinum", watts_115v=1650),
    disk=part("Samsung 990 PRO 4 TB", 9),
    cooling=part("ARCTIC Liquid Freezer WS360-SP6", watts=380),
    riser=part("PCIe 4.0 x16 riser, 200 mm"),
    case=part("Fractal Design Torrent", radiator_mm=360, radiators=3, riser_cards=1),
    room={"volts": 115, "breaker_amps": 60, "noise_limit_db": 90},
)
ASKED = [
    (kind, one.name)
    for kind, made in KINDS.items()
    for one in dataclasses.fields(made)
    if "needed" in one.metadata and kind not in ("bridge",)
]
SOMETIMES = [
    ("gpu", "radiator_mm"),
    ("case", "radiator_mm"),
    ("case", "radiators"),
    ("psu", "watts_115v"),
    ("cooling", "height_mm"),
]


@pytest.mark.parametrize(("kind", "name"), [*ASKED, *SOMETIMES])
def test_a_figure_that_is_missing_is_asked_for_and_never_passes(kind: str, name: str) -> None:
    """The fault lies in the part itself: the one field of it that nobody knows."""
    content = changed(WATER, cooling=part("Noctua NH-U14S TR4-SP3", watts=280)) if (
        name in ("height_mm", "cooler_height_mm")) else WATER  # fmt: skip
    build = build_of(content, "list.toml")
    blank = tuple(
        dataclasses.replace(item, part=dataclasses.replace(item.part, **{name: None}))
        if item.kind == kind
        else item
        for item in build.items
    )
    whole, report = check_build(build), check_build(dataclasses.replace(build, items=blank))
    asked = {field for one in report.not_known for field in one.not_known}
    assert f"{kind}.{name}" in asked - {f for one in whole.not_known for f in one.not_known}
    fixes = [one.fix for one in report.not_known if f"{kind}.{name}" in one.not_known]
    assert all(name in fix and f"[[{kind}]]" in fix for fix in fixes)
    assert "not_known" in report_dict(report)["parts"][0]


def test_slots_of_unknown_position_are_asked_for_where_it_matters() -> None:
    one, two = changed(ONE, nic=None), changed(ONE, gpu=part("PNY RTX A4000", 2), nic=None)
    assert not {"slots", "lanes"} & {check.rule for check in checked(one).not_known}
    report = checked(two)
    assert {"slots", "lanes"} <= {check.rule for check in report.not_known}
    assert report.placement is None and "position = …" in report.not_known[0].fix
    known = checked(changed(two, board=CREATOR))
    assert known.placement is not None and not {"slots", "lanes"} & {
        check.rule for check in known.not_known
    }


def test_shops_lists_of_formats_end_at_atx() -> None:
    board = part("Gigabyte TRX50 AI TOP")
    report = checked(changed(ONE, board=board, case=part("Fractal Design Define 7 XL")))
    assert "form-factor" in {check.rule for check in report.not_known}
    assert "form-factor" not in broken(report)


def test_every_rule_of_the_book_has_a_build_that_breaks_it() -> None:
    assert set(rule_book().rules) == set(BAD) | set(CLOSE)


def test_every_rule_and_warning_has_a_source_that_is_there() -> None:
    book = rule_book()
    for one in (*book.rules, *(warning.id for warning in book.warnings)):
        assert book.source_of(one).title and book.source_of(one).date


# ---- the cases that must come out


def test_about_34000_cny_with_one_4090_is_legal_and_adds_up() -> None:
    report = checked(ONE)
    assert report.legal
    assert report.build.total == 15999 + 3799 + 3999 + 2 * 1299 + 2199 + 1399 + 699 + 2399 + 909
    assert report.build.total == 34_000


def test_two_4090s_on_1000_w_are_refused_with_the_arithmetic() -> None:
    two = changed(ONE, gpu=part("MSI RTX 4090 Ventus 3X OC", 2),
                  psu=part("Seasonic Vertex GX-1000"))  # fmt: skip
    report = checked(two)
    assert "psu-watts" in broken(report)
    found = next(one for one in report.findings if one.rule == "psu-watts")
    assert found.arithmetic == (
        "2 × 450 W + 230 W processor + 93 W rest = 1,223 W > 0.9 × 1,000 W = 900 W"
    )


@pytest.mark.parametrize(
    "board", ["ASRock Rack ROMED8-2T", "ASUS Pro WS WRX80E-Sage SE WiFi", "Gigabyte TRX50 AI TOP"]
)
def test_four_three_slot_open_air_cards_side_by_side_are_refused(board: str) -> None:
    report = checked(
        changed(SERVER, gpu=part("ASUS TUF Gaming RTX 3090", 4), board=part(board),
                case=part("Open frame for twelve cards on risers", slots=16))
    )  # fmt: skip
    assert {"slots", "airflow"} <= broken(report)


def test_three_open_air_cards_that_fit_but_touch_are_refused() -> None:
    """By air alone: a board long enough for them."""
    slots = [{"position": n, "lanes": 16, "generation": 4} for n in (1, 4, 7, 10)]
    board = part("ASRock Rack ROMED8-2T", slots=slots)
    long = part("Open frame for twelve cards on risers", slots=16)
    gpu = part("ASUS TUF Gaming RTX 3090", 4)
    report = checked(changed(SERVER, gpu=gpu, board=board, case=long))
    assert broken(report) == {"airflow"}
    blowers = part("ASUS Turbo RTX 3090", 4)
    assert checked(changed(SERVER, gpu=blowers, board=board, case=long)).legal


# ---- placement


def test_cards_take_the_slots_with_most_lanes_and_leave_air() -> None:
    report = checked(changed(SERVER, gpu=part("ASUS TUF Gaming RTX 3090", 2)))
    assert report.placement is not None
    seats = [(seat.slot.position, seat.lanes) for seat in report.placement.gpus()]
    assert seats[1][0] - seats[0][0] >= 4 and {lanes for _, lanes in seats} == {16}
    assert "airflow" not in close(report)


def test_a_shared_slot_takes_lanes_from_the_first() -> None:
    two = changed(ONE, gpu=part("RTX 4090 blower, two slots", 2), nic=None, board=CREATOR,
                  psu=part("be quiet! Straight Power 12 1500W"))  # fmt: skip
    report = checked(two)
    assert report.placement is not None
    assert [seat.lanes for seat in report.placement.gpus()] == [8, 8]


def test_a_bridge_of_the_wrong_length_is_refused() -> None:
    three = part("NVLink bridge RTX A6000, 3 slots")
    slots = [{"position": n, "lanes": 16, "generation": 4} for n in (1, 5)]
    board = part("ASRock Rack ROMED8-2T", slots=slots)
    assert "nvlink-bridge" in broken(checked(changed(PAIR, bridge=three, board=board)))
    assert checked(changed(PAIR, board=board)).legal


# ---- what is asked for


def test_what_is_asked_for_is_asked_once_and_can_be_pasted() -> None:
    name = "ASUS ProArt X670E-Creator WiFi"
    report = checked(changed(ONE, board=part(name)))
    asked = {one.rule: one.fix for one in report.not_known}
    assert asked["slots"] == asked["lanes"]
    shown = to_markdown(build_document(report))
    assert shown.count("position = …, lanes = 16") == 1 and "slots, lanes" in shown
    assert f"{name} (?)" not in shown  # its slots are known, but for their positions
    found = re.search(r"add (slots = .*) to \[\[board\]\]", asked["slots"])
    assert found is not None and found[1] in Catalogue.load("zh-CN").translate(asked["slots"])
    places = iter("258")
    pasted = tomllib.loads(re.sub("…", lambda _: next(places), found[1]))
    again = checked(changed(ONE, board=part(name, **pasted)))
    assert not {"slots", "lanes"} & {one.rule for one in again.not_known}


# ---- warnings of the hard way


@pytest.mark.parametrize(
    ("warning", "has", "lacks"),
    [
        ("12v-2x6-seating", ONE, SERVER),
        ("no-p2p", changed(ONE, gpu=part("RTX 4090 blower, two slots", 2)), ONE),
        ("card-sag", ONE, SERVER),
        ("two-supplies", changed(FRAME, psu=part("EVGA SuperNOVA 1600 P2", 2)), FRAME),
        ("above-4g", SERVER, PAIR),
        ("slow-post", SERVER, ONE),
        ("no-ecc", ONE, SERVER),
        ("riser-errors", FRAME, SERVER),
        ("blower-noise", SERVER, ONE),
        ("aio-life", changed(ONE, gpu=part("MSI RTX 4090 Suprim Liquid X")), ONE),
        ("qlc-checkpoints", changed(ONE, disk=part("Samsung 870 QVO 4 TB")), ONE),
        ("used-cards", SERVER, ONE),
        ("daisy-chain", SERVER, ONE),
        ("no-bmc", changed(SERVER, board=part("ASUS Pro WS W790E-Sage SE")), SERVER),
        ("power-limit", SERVER, ONE),
        (
            "chipset-slot",
            changed(ONE, board=[{
                "part": "ASUS TUF Gaming B650-Plus",
                "slots": [{"position": 2, "lanes": 4, "generation": 4, "from_cpu": False}],
            }], nic=None),
            ONE,
        ),
    ],
)  # fmt: skip
def test_a_warning_is_given_where_it_holds(warning: str, has: Content, lacks: Content) -> None:
    assert warning in {one.id for one in checked(has).warnings}
    assert warning not in {one.id for one in checked(lacks).warnings}


def test_what_the_list_does_not_state_is_named() -> None:
    assert any(text.startswith("breaker") for text in checked(SERVER).not_checked)
    assert not any(text.startswith("breaker") for text in checked(ONE).not_checked)
