"""``trainrig tune``: a plan's folder or a file, trained interleaved and ranked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., tuple[int, str, str]]
MODEL = "gpt2:num_layers=2,hidden=32,num_heads=2,vocab=512,max_positions=128"


def plan_folder(folder: Path, data: Path, *rows: str) -> Path:
    """What ``plan --write`` leaves: a file a layout, the best first."""
    folder.mkdir()
    for number, row in enumerate(rows, 1):
        text = f'model = "{MODEL}"\nname = "layout {number}"\ndata = "{data}"\nsteps = 12\n{row}'
        (folder / f"{number:02d}-layout.toml").write_text(text)
    return folder


def test_what_cannot_be_ranked_is_refused_in_a_line(
    trainrig: Run, tmp_path: Path, prepared_text: Path
) -> None:
    one = plan_folder(tmp_path / "one", prepared_text, 'device = "cpu"\nseq_len = 16\n')
    empty = tmp_path / "empty"
    empty.mkdir()
    for words, said in (
        ((str(empty),), "no experiment files"),
        ((str(one),), "nothing to rank"),
        ((str(one), "--top", "1"), "nothing to be ranked with"),
        ((str(tmp_path / "none"),), "cannot read"),
        ((str(one), "--rounds", "0"), "rounds"),
    ):
        code, out, err = trainrig("tune", *words)
        assert code == 2 and out == "" and said in err and "Traceback" not in err


@pytest.mark.smoke
def test_the_slower_layout_is_ranked_behind_though_the_plan_has_it_first(
    trainrig: Run, tmp_path: Path, prepared_text: Path
) -> None:
    """It reads eight times as much to train the same samples; a third is not trained."""
    common = 'device = "cpu"\nprecision = "fp32"\nthreads = 1\n'
    folder = plan_folder(
        tmp_path / "plan",
        prepared_text,
        common + 'seq_len = 16\nbatch_size = 1\ngrad_accum = 8\nrecompute = "full"\n',
        common + "seq_len = 16\nbatch_size = 8\n",
        common + "seq_len = 16\nbatch_size = 4\n",
    )
    runs = tmp_path / "runs"
    code, out, err = trainrig("tune", str(folder), "--top", "2", "--out", str(runs), "--json")
    assert code == 0, err
    found = json.loads(out)
    assert [one["name"] for one in found["ranking"]] == ["layout 2", "layout 1"]
    assert found["left_out"] == ["layout 3"]
    first, second = found["ranking"]
    assert first["place"] == 1 and first["row_verdict"] == "agreed" and first["step_time_s"] > 0
    assert second["place"] in (1, 2) and "predicted_step_time_s" in second
    assert len(list(runs.iterdir())) == 1
