"""plan --write: files for every layout that an engine here can run, and which it cannot."""

from __future__ import annotations

import json
from pathlib import Path

from trainrig.train.config_file import read_file

NODES = ("plan", "--model", "gpt2-xl", "--on", "A100 SXM4 80GB", "--gpus", "16")
NODES = (*NODES, "--global-batch", "64", "--top", "4")


def test_layouts_of_several_nodes_are_written(trainrig, tmp_path: Path) -> None:
    folder = tmp_path / "plans"
    code, out, _ = trainrig(*NODES, "--write", str(folder), "--json")
    told = json.loads(out)
    files = sorted(folder.glob("*.toml"))
    assert code == 0 and [str(path) for path in files] == told["written"] and files
    trained = [one for one in told["families"] if one["predict_only"] is None]
    assert len(trained) == len([path for path in files if not path.name.startswith("trains-")])
    for path in files:
        (experiment,) = read_file(path, {})
        assert experiment.nproc == 16
        script = (path.with_suffix("") / "torchrun.sh").read_text()
        assert f"trainrig train ../{path.name} --write ranks --nodes 2" in script
        assert "sbatch ranks/01-*/job.sbatch" in script and "unverified on hardware" in script
        accelerate = path.with_suffix("") / "accelerate_config.json"
        if accelerate.exists():
            config = json.loads(accelerate.read_text())
            assert (config["num_machines"], config["num_processes"]) == (2, 16)


def test_several_nodes_are_told_with_the_command(trainrig, tmp_path: Path) -> None:
    _, out, _ = trainrig(*NODES)
    text = " ".join(out.split())
    assert "trainrig train FILE --write launch --nodes 2" in text
    assert "unverified on hardware" in text and "later version" not in text


def test_what_is_not_written_is_told(trainrig, tmp_path: Path) -> None:
    words = (*NODES[:-1], "40", "--write", str(tmp_path / "plans"))
    told = json.loads(trainrig(*words, "--json")[1])
    refused = [n for n, one in enumerate(told["families"], 1) if one["predict_only"] is not None]
    listed = " ".join(told["not_written"])
    assert all(f"{number:02d}" in listed for number in refused)
    assert bool(refused) == bool(listed)


def test_no_folder_is_left_empty(trainrig, tmp_path: Path) -> None:
    """No engine here trains with Muon: that is said, and no folder is made."""
    folder = tmp_path / "plans"
    code, out, _ = trainrig(*NODES, "--optimizer", "muon", "--write", str(folder))
    assert code == 0 and not folder.exists()
    text = " ".join(out.split())
    assert "no file is written" in text and "optimizer muon is not trained yet" in text


def test_the_files_are_those_of_the_rows_that_are_shown(trainrig, tmp_path: Path) -> None:
    """Each file bears the number of its row, and the first lines count the files."""
    words = ("plan", "--model", "3B", "--on", "H100", "--gpus", "64", "--global-batch", "512")
    folder = tmp_path / "plans"
    _, out, _ = trainrig(*words, "--write", str(folder))
    numbers = [path.name[:2] for path in sorted(folder.glob("*.toml"))]
    assert numbers == [f"{number:02d}" for number in range(1, 11)]
    assert "10 of the 10 layouts below are written to" in " ".join(out.split())[:400]
    assert "not written" not in out


def test_a_row_without_a_file_says_how_to_train_it(trainrig, tmp_path: Path) -> None:
    words = (*NODES, "--optimizer", "muon", "--write", str(tmp_path / "plans"), "--json")
    listed = json.loads(trainrig(*words)[1])["not_written"]
    assert listed and all("; to train it: " in text for text in listed)
