"""The catalog of parts: large enough, each value with its source, unknown parts asked for."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from trainrig.errors import DataError, UsageError
from trainrig.procure.part_catalog import (
    PARTS_DIR,
    chip_of,
    find_part,
    load_parts,
    own_part,
    read_parts_file,
)
from trainrig.procure.parts import KINDS, Board, GpuCard


def test_there_are_parts_of_every_kind_and_more_than_80_in_all() -> None:
    counts = {kind: len(parts) for kind, parts in load_parts().items()}
    assert counts.keys() == KINDS.keys() and all(counts.values())
    assert sum(counts[kind] for kind in ("gpu", "board", "psu", "case", "cooling", "cpu")) >= 80


def test_every_value_has_a_source_and_a_date() -> None:
    for parts in load_parts().values():
        for part in parts:
            assert part.provenance, part.name
            assert all(one.source.title and one.source.date for one in part.provenance.values())


def test_a_value_is_looked_up_or_follows_by_a_rule_that_is_stated() -> None:
    origins = Counter()
    for parts in load_parts().values():
        for part in parts:
            for one in part.provenance.values():
                assert one.source.url, one.source.title
                assert one.verified or one.source.title.startswith("Rule: "), one.source.title
                origins[one.source.key] += 1
    assert origins["buildcores"] > 1000 and origins["dmi"] > 50


def test_every_card_carries_a_chip_of_the_catalog() -> None:
    for card in load_parts()["gpu"]:
        assert isinstance(card, GpuCard)
        assert chip_of(card).memory.size and 0.5 < (card.slots or 0) <= 5
        assert card.length_mm is None or 150 <= card.length_mm <= 380


def test_lanes_of_a_board_are_within_its_slots() -> None:
    for board in load_parts()["board"]:
        assert isinstance(board, Board)
        if board.slots is None:
            continue
        there = [slot.position for slot in board.slots if slot.position is not None]
        assert len(there) in (0, len(board.slots))
        assert there == sorted(set(there)) and max(there, default=0) <= 8
        for mode in board.lane_modes:
            assert len(mode) == len(board.slots)
            assert all(n <= slot.lanes for n, slot in zip(mode, board.slots, strict=True))


def test_a_part_is_found_by_its_name_and_no_neighbour() -> None:
    assert find_part("psu", "corsair-ax1600i") is not None
    assert find_part("psu", "Corsair AX1500i") is None


def test_an_unknown_part_is_asked_for_by_its_fields() -> None:
    with pytest.raises(UsageError) as error:
        own_part("case", "My crate", {"slots": 8}, "list.toml")
    assert "My crate" in error.value.message
    for field in ("gpu_length_mm", "cooler_height_mm", "form_factors", "airflow"):
        assert field in (error.value.hint or "")
    assert "slots" not in (error.value.hint or "").split(", ")


def test_a_chip_is_no_card_and_its_cards_are_named() -> None:
    with pytest.raises(UsageError, match="the card matters") as error:
        own_part("gpu", "RTX 4090", {}, "list.toml")
    assert "ASUS TUF Gaming RTX 4090" in (error.value.hint or "")


def test_fields_replace_the_catalog_s() -> None:
    card = own_part("gpu", "ASUS TUF Gaming RTX 4090", {"watts": 350}, "list.toml")
    assert isinstance(card, GpuCard) and card.watts == 350 and card.length_mm == 348


@pytest.mark.parametrize(
    ("kind", "values", "said"),
    [
        ("psu", {"volts": 12}, "no 'volts'"),
        ("psu", {"watts": -5}, "watts"),
        ("gpu", {"chip": "RTX 9999"}, "RTX 9999"),
    ],
)
def test_what_is_wrong_in_an_entry_is_one_line(kind: str, values: dict, said: str) -> None:
    name = {"psu": "Corsair AX1600i", "gpu": "ASUS TUF Gaming RTX 4090"}[kind]
    with pytest.raises(UsageError) as error:
        own_part(kind, name, values, "list.toml")
    assert said in error.value.message and "\n" not in error.value.message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("schema = 1", "kind"),
        ('schema = 1\nkind = "cat"\nsources = {}\npart = []', "no kind"),
        ('schema = 1\nkind = "psu"\nsources = {}\n[[part]]\nname = "x"\nfrom.a = {}', "source 'a'"),
        ("kind =", "broken.toml"),
    ],
)
def test_a_broken_file_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "broken.toml"
    file.write_text(text)
    with pytest.raises(DataError, match="parts file") as error:
        read_parts_file(file)
    assert said in error.value.message


def test_the_data_files_are_one_a_kind() -> None:
    assert len(list(PARTS_DIR.glob("*.toml"))) == len(KINDS)


def test_a_network_card_is_shown_by_the_catalog(trainrig) -> None:
    code, out, _ = trainrig("catalog", "ConnectX-7", "--json")
    content = json.loads(out)
    assert code == 0 and content["kind"] == "nic" and content["fields"]["gbps"] == 400
    assert content["sources"]["gbps"]["url"].startswith("https://docs.nvidia.com")
    code, out, _ = trainrig("catalog", "ConnectX-7")
    assert code == 0 and "400" in out
