"""``trainrig tune``: a plan's folder or a file, trained interleaved and ranked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from trainrig.errors import UsageError
from trainrig.runner import tune
from trainrig.train.config import Experiment
from trainrig.workload import find

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


def test_what_cannot_be_trained_here_gives_its_place_to_the_next(
    tmp_path: Path, prepared_text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And layouts of one family train one tiny model, whatever their stages."""
    fine = 'device = "cpu"\nseq_len = 16\nbatch_size = 2\n'
    folder = plan_folder(
        tmp_path / "plan",
        prepared_text,
        fine + 'precision = "fp8"\n',
        fine + "pp = 2\n",
        fine + "nproc = 2\npp = 2\ngrad_accum = 4\n",
        fine + "nproc = 4\npp = 4\ngrad_accum = 4\n",
        fine,
    )
    for path in folder.iterdir():
        path.write_text(path.read_text().replace("num_layers=2", "num_layers=4"))
    asked: list[list[Experiment]] = []

    def stop(best: list[Experiment], **_: object) -> None:
        asked.append(best)
        raise KeyboardInterrupt

    monkeypatch.setattr(tune, "train", stop)
    for keys in ({}, {"scale": "tiny"}):
        with pytest.raises(KeyboardInterrupt):
            tune.tune(folder, keys, top=2)
    plain, tiny = asked
    assert [own.name for own in plain] == [own.name for own in tiny] == ["layout 3", "layout 4"]
    assert {find(own.model).num_layers for own in tiny} == {4}
    for number in (3, 4):
        (folder / f"{number:02d}-layout.toml").unlink()
    with pytest.raises(UsageError, match="1 experiment to train: nothing to rank") as refused:
        tune.tune(folder, {}, top=2)
    assert "1 GPUs cannot be divided" in str(refused.value.hint)


@pytest.mark.acceptance
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
        common + "seq_len = 256\n",
    )
    (folder / "04-layout.toml").rename(folder / "00-layout.toml")
    runs = tmp_path / "runs"
    code, out, err = trainrig("tune", str(folder), "--top", "2", "--out", str(runs), "--json")
    assert code == 0, err
    found = json.loads(out)
    assert [one["name"] for one in found["ranking"]] == ["layout 2", "layout 1"]
    assert found["left_out"] == ["layout 3"]
    assert [one["name"] for one in found["refused"]] == ["00-layout"]
    assert "knows 128 positions" in found["refused"][0]["reason"]
    first, second = found["ranking"]
    assert first["place"] == 1 and first["row_verdict"] == "agreed" and first["step_time_s"] > 0
    assert second["place"] in (1, 2) and "predicted_step_time_s" in second
    assert len(list(runs.iterdir())) == 1
