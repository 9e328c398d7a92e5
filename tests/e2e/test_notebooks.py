"""The runs of the founding notebooks as a file, by the notebooks' own flags."""

from __future__ import annotations

from pathlib import Path

from trainrig.catalog.published.training import baselines, baselines_of_case
from trainrig.train.config import case_of
from trainrig.train.config_file import read_file

FILE = Path(__file__).resolve().parents[2] / "experiments" / "notebooks.toml"


def test_the_file_has_the_notebooks_batches_optimizers_and_layouts() -> None:
    full = {own.name: own for own in read_file(FILE, {})}
    batches = [(own.framework, own.batch_size, own.grad_accum) for own in full.values()]
    assert batches == [
        *[("huggingface", 8, 1), ("huggingface", 11, 1), ("huggingface", 11, 1)],
        *[("huggingface", 11, 4), ("huggingface", 66, 4), ("megatron", 16, 1)],
        *[("huggingface", 2, 4), ("megatron", 5, 1), ("megatron", 5, 1), ("megatron", 5, 1)],
        *[("megatron", 5, 4), ("megatron", 5, 4), ("megatron", 10, 1), ("megatron", 10, 4)],
        ("deepspeed", 1, 16),
    ]
    assert full["HF 32-bit"].optimizer == "adamw" and full["HF 32-bit"].precision == "fp32"
    assert full["HF 16-bit, fused-adam"].optimizer == "adamw-fused"  # adamw_apex_fused
    assert {own.seq_len for own in full.values()} == {512, 1024, 2048}


def test_the_small_scale_trains_every_row_on_a_processor() -> None:
    small = read_file(FILE, {"scale": "tiny"})
    assert len(small) == 15 and {own.seq_len for own in small} == {64}
    assert max(own.batch_size for own in small) == 22


def test_what_the_notebooks_printed_stands_beside_each_row() -> None:
    known = tuple(baselines())
    published = {
        own.name: {
            round(record.value or 0.0) for record in baselines_of_case(case_of(own, ""), known)
        }
        for own in read_file(FILE, {}, lambda *_: "bf16")
    }
    assert published["Megatron GPT2, 2 GPUs, TP"] == {15216, 7388}
    assert published["HF GPT2"] == {7881, 12156}
    missing = [name for name, rates in published.items() if not rates]
    assert missing == ["HF GPT-Neo-1.3B, 2 GPUs, zero-2, grad_accum=16"]
