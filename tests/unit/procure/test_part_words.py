"""Parts in a person's own words: flags stand for a list, and what they do not say is not judged."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from trainrig.errors import UsageError
from trainrig.procure.build_rules import check_build
from trainrig.procure.part_words import entry_of
from trainrig.procure.parts import KINDS, field_names, required_fields
from trainrig.procure.parts_list import build_of
from trainrig.procure.platforms import platforms_file
from trainrig.procure.rule_book import rule_book

ROOT = Path(__file__).resolve().parents[3]
RIG = ("--gpu", "2x RTX 4090", "--psu", "1000", "--cpu", "7950X", "--board", "B650E")


def found(trainrig, *words):
    code, out, _ = trainrig("build", "check", *words, "--json")
    return code, json.loads(out)


def rule_of(content, rule):
    return next(one for one in content["checks"] if one["rule"] == rule)


# ---- flags


def test_a_rig_is_checked_from_flags(trainrig) -> None:
    code, content = found(trainrig, *RIG)
    watts = rule_of(content, "psu-watts")
    assert code == 1 and watts["severity"] == "error" and "2 × 450 W + 230 W" in watts["arithmetic"]
    assert rule_of(content, "socket")["severity"] == "ok"
    missing = rule_of(content, "missing-part")
    assert missing["severity"] == "unknown" and "ram" in missing["arithmetic"]


def test_advice_is_by_the_rule_that_it_answers(trainrig) -> None:
    """A supply of the advised watts passes the rule, one a little smaller does not."""
    _, content = found(trainrig, *RIG)
    watts = rule_of(content, "psu-watts")
    advised = int(re.match(r"([\d,]+) W", watts["fix"])[1].replace(",", ""))
    assert "/ 0.9" in watts["fix"]
    again = [*RIG[:2], "--psu", str(advised), *RIG[4:]]
    _, content = found(trainrig, *again)
    assert rule_of(content, "psu-watts")["severity"] == "warning"
    again[3] = str(advised - 2)
    assert rule_of(found(trainrig, *again)[1], "psu-watts")["severity"] == "error"


def test_without_a_processor_no_watts_are_advised(trainrig) -> None:
    code, content = found(trainrig, "--gpu", "2x RTX 4090", "--psu", "1000")
    watts = rule_of(content, "psu-watts")
    assert code == 1 and not re.search(r"\d W or more", watts["fix"])
    _, out, _ = trainrig("build", "check", "--gpu", "2x RTX 4090", "--psu", "1000")
    assert "0 W processor" not in out and "without a processor" in out


def test_without_a_processor_nothing_is_known_to_be_enough(trainrig) -> None:
    code, content = found(trainrig, "--gpu", "RTX 4090", "--psu", "1000")
    watts = rule_of(content, "psu-watts")
    assert code == 0 and watts["severity"] == "unknown" and "--cpu" in watts["fix"]


def test_all_that_is_wrong_is_told_in_one_answer(trainrig) -> None:
    words = ("--gpu", "RTX 4099", "--cpu", "79", "--board", "Q999")
    code, out, err = trainrig("build", "check", *words)
    assert (code, out) == (2, "") and len(err.strip().splitlines()) == 2
    for part in ("RTX 4099", "'79'", "Q999", "memory_channels"):
        assert part in err


def test_all_missing_fields_of_a_file_are_told_in_one_answer() -> None:
    content = {
        "cpu": {"part": "Own CPU", "watts": 100},
        "board": {"part": "Own board", "socket": "AM5"},
        "ram": {"part": "Own RAM", "capacity_gib": 32},
    }
    with pytest.raises(UsageError) as error:
        build_of(content, "mine.toml")
    for name in ("Own CPU", "Own board", "Own RAM"):
        assert name in error.value.message
    for field in ("memory_channels", "m2_slots", "registered", "lanes"):
        assert field in (error.value.hint or "")


def test_options_stand_for_tables_of_a_file(trainrig) -> None:
    file = str(ROOT / "docs" / "examples" / "one-4090.toml")
    _, content = found(trainrig, file, "--psu", "500")
    assert rule_of(content, "psu-watts")["severity"] == "error"
    assert rule_of(content, "missing-part")["severity"] == "ok"


def test_nothing_at_all_names_both_ways(trainrig) -> None:
    code, _, err = trainrig("build", "check")
    assert code == 2 and "FILE" in err and "--gpu" in err


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("gpu", "2x RTX 4090", {"chip": "RTX 4090", "count": 2}),
        ("gpu", "4 × H100 PCIe 80GB", {"count": 4}),
        ("gpu", "ASUS TUF Gaming RTX 4090", {"part": "ASUS TUF Gaming RTX 4090", "count": 1}),
        ("psu", "1000", {"watts": 1000.0}),
        ("psu", "2x 1600W ATX 3.1", {"watts": 1600.0, "atx": "3.1", "count": 2}),
        ("cpu", "7950x", {"part": "AMD Ryzen 9 7950X"}),
        ("board", "b650e", {"socket": "AM5", "memory_type": "DDR5"}),
        ("ram", "2x32GB DDR5-5600 UDIMM", {"capacity_gib": 32, "registered": False, "count": 2}),
        ("ram", "8x 64 GiB DDR5 RDIMM", {"capacity_gib": 64, "registered": True, "count": 8}),
        ("disk", "4 TB NVMe", {"capacity_tb": 4.0, "interface": "m2"}),
        ("disk", "960 GB SATA", {"capacity_tb": 0.96, "interface": "sata"}),
        ("gpu", "七彩虹 RTX 4090 水冷", {"chip": "RTX 4090", "cooling": "water"}),
        ("gpu", "RTX 4090 x2", {"chip": "RTX 4090", "count": 2}),
        ("gpu", "L20", {"cooling": "passive"}),
        ("board", "技嘉 B650E", {"socket": "AM5", "part": "技嘉 B650E"}),
        ("board", "微星 B650M 迫击炮 WIFI", {"socket": "AM5", "memory_type": "DDR5"}),
        ("board", "Biostar Z790 Valkyrie", {"socket": "LGA1700"}),
        ("cpu", "锐龙 9 7950X", {"part": "AMD Ryzen 9 7950X"}),
        ("cpu", "AMD 7950X 处理器", {"part": "AMD Ryzen 9 7950X"}),
        ("ram", "金士顿 DDR5 4×32GB", {"capacity_gib": 32, "memory_type": "DDR5", "count": 4}),
        ("ram", "2x 32 GB", {"capacity_gib": 32, "memory_type": None}),
        ("ram", "32GB DDR5 SO-DIMM", {"so_dimm": True}),
        ("psu", "长城 1000W ATX3.0 金牌全模组", {"watts": 1000.0, "atx": "3.0"}),
        ("psu", "1000 瓦", {"watts": 1000.0}),
        ("disk", "爱国者 2TB M.2", {"capacity_tb": 2.0, "interface": "m2"}),
        ("disk", "2 TB SSD", {"capacity_tb": 2.0, "interface": None}),
        ("cooling", "瓦尔基里 360 水冷", {"radiator_mm": 360, "part": "瓦尔基里 360 水冷"}),
        ("cooling", "240 mm AIO", {"radiator_mm": 240}),
        ("cooling", "air cooler 160 mm", {"height_mm": 160.0}),
        ("case", "机箱", {"airflow": "tower"}),
        ("case", "ATX 机箱", {"airflow": "tower", "form_factors": ("ATX",)}),
        ("case", "4U 服务器机箱", {"airflow": "front-to-back", "rack_units": 4}),
        ("psu", "1000 W @ 1399", {"watts": 1000.0, "price": 1399.0}),
    ],
)
def test_words_are_read(kind: str, text: str, expected: dict) -> None:
    assert expected.items() <= entry_of(kind, text).items()


def test_words_of_several_parts_name_them() -> None:
    with pytest.raises(UsageError, match="is one of") as error:
        entry_of("board", "Gigabyte TRX50")
    assert "Gigabyte TRX50 Aero D" in error.value.message and error.value.hint


def test_each_chipset_makes_a_board() -> None:
    for name in (name for chipset in platforms_file().chipset for name in chipset.names):
        content = {"board": [entry_of("board", name)], "cpu": [entry_of("cpu", "7950X")]}
        build = build_of(content, "x", is_complete=False, described=content)
        assert build.board is not None and build.board.memory_channels >= 2


EIGHT_PARTS = (
    *("--gpu", "七彩虹 RTX 4090 水冷 @ 15999", "--board", "技嘉 B650E @ 2499"),
    *("--cpu", "锐龙 9 7950X @ 3999", "--ram", "4x 32GB DDR5 金士顿 @ 1100"),
    *("--disk", "爱国者 2TB M.2 @ 900", "--psu", "微星 1000W ATX3.0 金牌 @ 1399"),
    *("--cooling", "瓦尔基里 360 水冷 @ 990", "--case", "机箱 @ 3801", "--currency", "CNY"),
)


def test_eight_parts_in_a_person_s_words_are_one_list(trainrig) -> None:
    code, content = found(trainrig, *EIGHT_PARTS)
    assert code == 0 and content["legal"] and content["total"] == 33_987
    rules = {check["rule"]: check["severity"] for check in content["checks"]}
    held = ("missing-part", "socket", "memory-type", "psu-watts", "psu-transients", "card-form")
    assert {rules[rule] for rule in held} == {"ok"}
    assert {rules[rule] for rule in ("slots", "cooler", "form-factor", "radiator")} == {"unknown"}


def test_the_same_eight_parts_with_two_cards_are_refused_by_their_watts(trainrig) -> None:
    two = [word.replace("七彩虹", "2x 七彩虹") for word in EIGHT_PARTS]
    code, content = found(trainrig, *two)
    watts = rule_of(content, "psu-watts")
    assert code == 1 and watts["severity"] == "error" and "1,218 W" in watts["arithmetic"]


# ---- what modules call themselves


@pytest.mark.parametrize("called", ["DDR5", "ddr5", "DDR5 UDIMM", "DDR5-5600 UDIMM", "DDR5 DIMM"])
def test_a_memory_type_is_read_as_the_module_calls_itself(called: str) -> None:
    content = {
        "board": {"part": "ASUS ProArt X670E-Creator WiFi"},
        "cpu": {"part": "AMD Ryzen 9 7950X"},
        "ram": {
            "part": "Mine",
            "count": 2,
            "capacity_gib": 32,
            "memory_type": called,
            "registered": False,
        },
    }
    report = check_build(build_of(content, "x"))
    assert [one.severity for one in report.checks if one.rule == "memory-type"] == ["ok"]


def test_registered_is_read_of_the_type() -> None:
    ram = {"part": "Mine", "capacity_gib": 32, "memory_type": "DDR5 RDIMM"}
    build = build_of({"ram": ram}, "x")
    assert build.items[0].part.registered is True


# ---- the list of fields


def test_help_and_the_page_have_every_field(trainrig) -> None:
    page = (ROOT / "docs" / "parts.md").read_text()
    _, text, _ = trainrig("build", "check", "--help")
    for kind in KINDS:
        row = next(line for line in page.splitlines() if line.startswith(f"| `[[{kind}]]`"))
        needed = required_fields(kind)
        for name in field_names(kind):
            assert f"`{name}`" in row and re.search(rf"\b{name}\b", text), (kind, name)
            assert (f"**`{name}`**" in row) == (name in needed), (kind, name)


# ---- clusters


def test_a_cluster_repeats_the_rule_that_refuses(trainrig, tmp_path: Path) -> None:
    file = tmp_path / "weak.toml"
    text = (ROOT / "docs" / "examples" / "one-4090.toml").read_text()
    file.write_text(text.replace("MSI MEG Ai1300P PCIE5", "Corsair RM850x (2018)"))
    text = file.read_text().replace("count = 2, price = 1299", "count = 3, price = 1299")
    file.write_text(text)
    words = ("--budget", "1e6", "--tokens", "1e9", "--network", "10=500", "--model", "gpt2")
    code, _, err = trainrig("build", "cluster", str(file), *words)
    first = next(
        one for one in found(trainrig, str(file))[1]["findings"] if one["severity"] == "error"
    )
    assert code == 2 and first["rule"] in err and first["arithmetic"] in err and first["fix"] in err
    assert first["rule"] in rule_book().rules


def test_two_modules_on_a_channel_run_below_their_speed(trainrig) -> None:
    words = ("--cpu", "7950X", "--board", "B650E", "--gpu", "RTX 4090")
    checks = found(trainrig, *words, "--ram", "4x32 GB DDR5-5600")[1]["checks"]
    slow = [one for one in checks if "5600 MT/s > 3600 MT/s" in one["arithmetic"]]
    assert [one["severity"] for one in slow] == ["warning"]
    assert "DDR5-3600" in slow[0]["message"]
    checks = found(trainrig, *words, "--ram", "2x32 GB DDR5-5600")[1]["checks"]
    assert not any("MT/s" in one["arithmetic"] for one in checks)


def test_an_unknown_figure_of_a_card_names_one_that_has_it(trainrig) -> None:
    _, content = found(trainrig, *RIG)
    (check,) = [one for one in content["checks"] if one["not_known"] == ["gpu.length_mm"]]
    assert 'or name the card: --gpu "NVIDIA RTX 4090 Founders Edition"' in check["fix"]


def test_the_inlet_is_bounded_by_the_circuit_that_is_stated(trainrig) -> None:
    words = (*RIG, "--volts", "230", "--breaker-amps", "16")
    assert "16 A × 230 V" in rule_of(found(trainrig, *words)[1], "psu-rating")["arithmetic"]


def test_a_price_in_words_asks_for_the_option(trainrig) -> None:
    code, _, err = trainrig("build", "check", "--gpu", "RTX 4090 @ 2000")
    assert code == 2 and "--currency CNY" in err and "at its top" not in err


def test_a_file_that_is_no_text_is_refused_in_plain_words(trainrig, tmp_path) -> None:
    path = tmp_path / "parts.bin"
    path.write_bytes(b"\xa2\xff")
    code, _, err = trainrig("build", "check", str(path))
    assert code == 2 and "is no text in UTF-8" in err and "codec" not in err
