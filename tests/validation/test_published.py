"""Published figures: complete, in our vocabulary, thresholds kept out."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from trainrig.catalog.lookup import find_chip
from trainrig.catalog.published import published_for, published_records, tables
from trainrig.errors import DataError
from trainrig.record import Kind, Record, from_json, to_json

COLLECTED = Path(__file__).resolve().parents[3] / "shared" / "published"


def values(benchmark: str, device: str, **case: object) -> list[float | None]:
    found = published_for(benchmark, device)
    return [r.value for r in found if case.items() <= dict(r.case).items()]


def test_every_record_is_a_sourced_baseline_with_a_value() -> None:
    records = published_records()
    assert len(records) > 1300
    assert len({record.id for record in records}) == len(records)
    for record in records:
        assert record.kind is Kind.BASELINE
        assert record.source
        assert record.value is not None and record.value > 0
        assert record.unit in ("FLOP/s", "OP/s", "B/s", "s")


def test_they_survive_being_written_and_read() -> None:
    for record in published_records()[::50]:
        assert from_json(to_json(record)) == record


def test_matmul_in_our_vocabulary() -> None:
    square = {"dtype": "fp16", "m": 8192, "k": 8192, "n": 8192, "cache": "hot"}
    assert values("matmul", "RTX 4090", **square) == [172e12, 161.307e12, 156.083e12]
    for record in published_for("matmul"):
        assert set(record.case) == {"dtype", "m", "k", "n", "cache"}
        assert (record.metric, record.unit) == ("flop_rate", "FLOP/s")


def test_tf32_where_the_chip_has_it() -> None:
    assert values("matmul", "RTX 3090 Ti", dtype="tf32", m=8192)
    assert not values("matmul", "RTX 3090 Ti", dtype="fp32")
    assert values("matmul", "V100 SXM2 16GB", dtype="fp32", m=8192)
    assert not values("matmul", "V100 SXM2 16GB", dtype="tf32")


def test_a_name_of_several_chips_means_what_all_of_them_have() -> None:
    """Any A100 has TF32 and no V100 has: drawn as fp32, 100 TFLOPS of an A100 are impossible."""
    assert values("matmul", "A100 80GB", dtype="tf32", m=8192) == [116e12]
    assert not values("matmul", "A100 80GB", dtype="fp32")
    assert values("matmul", "V100 32GB", dtype="fp32", m=8192)
    assert not values("matmul", "V100 32GB", dtype="tf32")


def test_products_with_more_around_them_are_no_plain_matmul() -> None:
    kinds = {str(record.conditions.get("kind")) for record in published_for("matmul")}
    assert not [k for k in kinds if k.startswith(("block", "grouped", "transformer"))]
    assert not [k for k in kinds if "accumulate" in k or "mmapeak" in k]
    assert len(published_for("matmul_accumulate")) == 287
    assert "FFN" in {record.case["layer"] for record in published_for("layer")}


def test_vector_and_copy_in_our_vocabulary() -> None:
    assert values("vector", "RTX 3090 Ti", op="scale", num_elements=4194304) == [859.757e9, 856e9]
    assert values("copy", "H200 SXM 141GB", direction="read", memory="device") == [2756e9]
    assert values("copy", "H100 SXM5 80GB", direction="h2d") == [54.8e9]
    directions = {record.case["direction"] for record in published_for("copy")}
    assert directions == {"read", "write", "copy", "triad", "d2d", "h2d", "d2h"}


def test_owners_prints_in_our_vocabulary() -> None:
    pair = {"direction": "p2p", "from": 0, "to": 1, "ways": 1}
    assert values("link", "RTX 4090", **pair, peer_access=False) == [21.89e9]
    assert values("link", "RTX 4090", **pair, peer_access=True) == [22.43e9]
    assert {r.device_count for r in published_for("link")} == {1, 2}  # one: within its own memory
    large = {"op": "scale", "dtype": "fp32", "num_elements": 4194304}
    assert 3777.138e9 in values("vector", "RTX 4090", **large)
    batch = {
        "layer": "BERT-large layer",
        "pass": "forward+backward",
        "seq_len": 128,
        "batch_size": 2,
    }
    assert values("layer", "RTX 4090", **batch) == [42.401e12, 3.129e12]


def test_thresholds_are_no_measurements() -> None:
    assert not [r for r in published_records() if "threshold" in str(r.conditions.get("test"))]


def fits_the_catalog(record: Record) -> bool:
    return find_chip(record.device or "") is not None


def test_devices_are_the_catalogs_names_or_the_printed_ones() -> None:
    printed = {r.device for r in published_records() if not fits_the_catalog(r)}
    assert printed == {
        "A100 80GB", "A100 40GB", "A100 SXM4", "H100 SXM5", "V100", "V100 32GB",
        "MI250X (single GCD)", "MI250X (both GCDs busy, per GCD)",
        "not stated (A100 class)", "V100 SXM2",
        "not stated (4 nodes; ratio busbw/algbw=1.94 => 32 GPUs)",
    }  # fmt: skip
    named = {r.device for r in published_records() if fits_the_catalog(r)}
    assert all(find_chip(str(name)).name == name for name in named)  # type: ignore[union-attr]


def test_an_unknown_benchmark_or_device_has_none() -> None:
    assert published_for("telepathy") == ()
    assert published_for("matmul", "RTX 4090 Laptop") == ()


def test_a_broken_table_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.csv"):
        list(tables.read_rows(tmp_path / "none.csv"))
    broken = tmp_path / "broken.csv"
    broken.write_bytes(b"a,b\n\xff\xfe,2\n")
    with pytest.raises(DataError, match=r"broken\.csv"):
        list(tables.read_rows(broken))
    with pytest.raises(DataError, match="not a number"):
        tables.number("fast")


@pytest.mark.parametrize("name", ["matmul.csv", "bandwidth.csv", "layers.csv"])
def test_the_package_holds_every_collected_row(name: str) -> None:
    if not COLLECTED.is_dir():
        pytest.skip("the collected tables are not beside the checkout")
    ours = Path(tables.__file__).with_name(name)
    with ours.open(newline="") as packed, (COLLECTED / name).open(newline="") as collected:
        skip = {"source"}
        assert [
            {k: v for k, v in row.items() if k not in skip} for row in csv.DictReader(packed)
        ] == [{k: v for k, v in row.items() if k not in skip} for row in csv.DictReader(collected)]


def test_collectives_by_ranks_nodes_and_size() -> None:
    case = {"collective": "all_reduce", "ranks": 8, "nodes": 1, "bytes": 1 << 30}
    assert values("collective", "A100 SXM4 80GB", **case) == [229.04e9]
    # A source that prints the algorithm's bandwidth alone: 2·7/8 of it on the bus, 2·3/4 here.
    case |= {"ranks": 4, "bytes": 4_000_000_000}
    assert values("collective", "V100 SXM2", **case) == [pytest.approx(1.5 * 165.8e9)]
    assert {r.metric for r in published_for("collective")} == {"bus_rate"}
    notes = [str(r.conditions.get("notes")) for r in published_for("collective")]
    assert not [words for words in notes if "threshold" in words]
