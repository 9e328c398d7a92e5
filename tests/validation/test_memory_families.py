"""Memory by formula against what Hugging Face's models keep, counted tensor by tensor."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from trainrig.workload.layout import Layout
from trainrig.workload.memory.pipeline_stage import stage_of
from trainrig.workload.model import ModelShape
from trainrig.workload.shape_parts import RopeScaling

FIXTURE = Path(__file__).resolve().parents[1] / "support" / "fixtures" / "memory_families.csv"
WRITTEN_OUT = {("t5", "sdpa"): 0.09, ("falcon", "sdpa"): 0.05}
"""A bias or mask of one sample's scores for each block, which is not counted."""


def rows() -> list[dict[str, str]]:
    with FIXTURE.open(newline="") as file:
        return list(csv.DictReader(file))


def shape_of(words: str) -> ModelShape:
    numbers = json.loads(words)
    if scaling := numbers.get("rope_scaling"):
        numbers["rope_scaling"] = RopeScaling(**scaling)
    return ModelShape.of(**{k: tuple(v) if isinstance(v, list) else v for k, v in numbers.items()})


def layout_of(row: dict[str, str]) -> Layout:
    return Layout.of(
        framework="huggingface",
        batch_size=4,
        seq_len=512,
        precision="fp32" if row["mode"] == "fp32" else "bf16",
        states="pure" if row["mode"] == "pure" else "auto",
        kernels="flash" if row["attention"] == "sdpa" else "eager",
    )


def test_every_family_is_counted_in_every_way() -> None:
    found = rows()
    assert len({row["family"] for row in found}) >= 16
    assert {row["mode"] for row in found} == {"fp32", "autocast", "pure"}
    assert {row["attention"] for row in found} == {"eager", "sdpa"}


@pytest.mark.parametrize("family", sorted({row["family"] for row in rows()}))
def test_a_block_keeps_what_was_counted(family: str) -> None:
    for row in (row for row in rows() if row["family"] == family):
        shape = shape_of(row["shape"])
        stage = stage_of(shape, layout_of(row), "last")
        told = sum(stage.of_one) / (3 * 4 * 512 * shape.hidden)
        limit = WRITTEN_OUT.get((family, row["attention"]), 0.01)
        assert told == pytest.approx(float(row["bytes"]), rel=limit), row


def test_the_allocator_splits_joins_and_gives_back() -> None:
    """By hand: torch's segments of 2, of 20 and of whole MiB."""
    pytest.importorskip("transformers", reason="needs transformers")
    from validation.allocator import MIB, Allocator, replayed

    found = Allocator()
    small = found.allocate(1000)
    assert (found.allocated, found.reserved) == (1024, 2 * MIB)
    first, second = found.allocate(8 * MIB), found.allocate(8 * MIB)
    assert found.reserved == 22 * MIB, "both in one segment of 20"
    found.release(first)
    found.release(second)
    assert found.allocate(12 * MIB).size == 12 * MIB
    assert found.reserved == 22 * MIB, "two that are free have become one"
    found.release(small)
    large = [(1, 11 * MIB), (1, -1), (2, 15 * MIB)]
    assert replayed(large).reserved == 28 * MIB, "12 do not hold 15: both stay"
    assert replayed(large, limit=20 * MIB).reserved == 16 * MIB, "the first is given back"
    with pytest.raises(MemoryError):
        replayed(large[:1] + large[2:], limit=20 * MIB)
