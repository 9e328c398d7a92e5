"""What `trainrig fits` shows: nothing is cut, and what does not fit says what would."""

from __future__ import annotations

import pytest

from training_summaries import printed
from trainrig.prediction.fit.methods import fits
from trainrig.report.document import Strip, Table
from trainrig.report.fits_report import fits_document


def test_the_moment_of_the_peak_is_named() -> None:
    """Recomputed and without sharding, gradients are all there at the end of backward."""
    asked = {"model": "llama-7B", "on": "RTX 4090"}
    text = printed(fits_document(fits(asked | {"recompute": "full"})))
    assert "peak at: " in " ".join(text.split())
    assert "the end of backward, when all gradients exist" in text
    long = {"model": "gpt2", "on": "A100 SXM4 80GB", "batch_size": 8, "seq_len": 1024}
    assert "the loss, when all activations and logits exist" in printed(
        fits_document(fits(long)), 120
    )


@pytest.mark.parametrize("width", [60, 80, 120])
def test_fits_cuts_no_number_head_or_option(width: int) -> None:
    found = fits({"model": "llama-7B", "on": "A100 SXM4 80GB", "gpus": 8, "zero": 3})
    text = printed(fits_document(found), width)
    assert "…" not in text and max(map(len, text.splitlines())) <= width
    for one in found.asked_fit.options[:12]:
        assert one.change in text
        assert f"{one.memory_bytes_per_gpu / 2**30:.1f}" in text
    assert "change" in text and "GiB" in text and "tokens/s" in text and "borderline" in text


def test_what_does_not_fit_says_what_was_tried_and_what_would() -> None:
    found = fits({"model": "llama-7B", "on": "RTX 4090", "gpus": 4})
    text = " ".join(printed(fits_document(found), 100).split())
    assert len(found.asked_fit.sequence) > 1 and "batch size 1 does not fit" in text
    assert f"to make it fit: {found.asked_fit.sequence[0].change} " in text
    found = fits({"model": "gpt3-175B", "on": "RTX 2080 Ti"})
    text = " ".join(printed(fits_document(found), 100).split())
    assert found.asked_fit.tried and not found.asked_fit.sequence
    assert f"not enough together: {', '.join(found.asked_fit.tried)}" in text
    assert "more GPUs, or a smaller model" in text


def test_parts_that_do_not_fit_are_drawn_to_their_sum_with_what_a_gpu_has_below() -> None:
    bare = {"framework": "trainrig", "recompute": "none"}
    found = fits({"model": "llama-7B", "on": "RTX 4090", **bare})
    (memory,) = [
        block
        for block in fits_document(found).blocks
        if isinstance(block, Table) and block.columns[0].head == "memory"
    ]
    strips = [cells[3].drawing for _, cells in memory.lines() if cells[3].drawing is not None]
    assert all(isinstance(each, Strip) and each.start < each.end <= 1.0 for each in strips)
    *parts, limit = strips
    assert len(parts) >= 6 and parts[-1].end == pytest.approx(1.0)
    assert limit.end == pytest.approx(23.59 / 142.3, rel=0.01)


def test_the_legend_of_a_reach_is_of_a_cell_of_the_table() -> None:
    (table,) = [
        block
        for block in fits_document(fits({"model": "llama-7B", "on": "RTX 4090"})).blocks
        if isinstance(block, Table) and "batch" in [column.head for column in block.columns]
    ]
    (legend,) = [note for note in table.notes if "are borderline" in note]
    texts = [cell.text for _, cells in table.lines() for cell in cells]
    assert legend.partition(":")[0] in texts
