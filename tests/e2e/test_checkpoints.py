"""Runs that are cut off in the middle of a training, by whatever, and go on from a checkpoint."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import checkpoint_ranks
import rank_program
from trainrig.process.events import read_events
from trainrig.runner.train_resume import checkpoints_of
from trainrig.store import read_run
from trainrig.train import checkpoint_folder
from trainrig.train.config import Experiment, to_dict
from trainrig.train.engines import Job

MODEL = "gpt2:num_layers=2,hidden=32,num_heads=2,vocab=512,max_positions=32"
FILE = """
steps = {steps}
checkpoint_every = 5
precision = "fp32"
batch_size = 4
seq_len = 16
device = "cpu"
data = "{data}"
model = "{model}"

[[experiment]]
name = "first"
steps = 6

[[experiment]]
name = "second"
nproc = 2
zero = 3
batch_size = 2
"""
LONG = 100_000
"""Steps that no test waits for."""


class Training:
    """`trainrig train` as a process of its own."""

    def __init__(self, out: Path, *options: str) -> None:
        self.out = out
        self.process = subprocess.Popen(
            (sys.executable, "-m", "trainrig", "train", *options, "--json"),
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for(self, is_there: Callable[[Path], object]) -> Path:
        """Until ``is_there(run)``; the run."""
        end = time.monotonic() + 240.0
        while time.monotonic() < end and self.process.poll() is None:
            runs = [path.parent for path in self.out.glob("*/run.toml")]
            if runs and is_there(runs[0]):
                return runs[0]
            time.sleep(0.002)
        pytest.fail(f"it never came so far: {self.process.communicate()[1][-2000:]}")

    def end(self) -> tuple[int, dict[str, Any], str]:
        """Exit code, the JSON, and what was said on the way."""
        said, told = self.process.communicate(timeout=240.0)
        return self.process.returncode, json.loads(said) if said else {}, told


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Training]]:
    started: list[Training] = []

    def begin(*options: str) -> Training:
        placed = {"--resume", "--out"} & set(options)
        new = () if placed else ("--out", str(tmp_path / "runs"))
        started.append(Training(tmp_path / "runs", *options, *new))
        return started[-1]

    yield begin
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
            each.process.wait()


def saved(run: Path, slug: str) -> int:
    """The next step of the newest checkpoint of an experiment; 0: there is none."""
    return (checkpoint_folder.steps_in(checkpoints_of(run, slug)) or [0])[-1]


def steps_of(run: Path, series: str) -> list[int]:
    return [row["step"] for row in read_run(run).series[series] if row["round"] == 1]


def options(data: Path, *more: str, steps: int = LONG) -> tuple[str, ...]:
    given = {"model": MODEL, "data": data, "precision": "fp32", "batch-size": 4, "seq-len": 16}
    given |= {"steps": steps, "device": "cpu"}
    return (*(word for key, value in given.items() for word in (f"--{key}", str(value))), *more)


@pytest.mark.acceptance
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_a_row_that_was_cut_off_goes_on_inside(
    start: Callable[..., Training], prepared_text: Path, tmp_path: Path, number: signal.Signals
) -> None:
    file = tmp_path / "rows.toml"
    file.write_text(FILE.format(steps=40, data=prepared_text, model=MODEL))
    training = start(str(file))
    run = training.wait_for(lambda run: saved(run, "02-second") >= 10)
    training.process.send_signal(number)
    code, _, _ = training.end()
    assert code == (-number if number == signal.SIGKILL else 130)
    goes_on = saved(run, "02-second")
    assert 10 <= goes_on < 40
    code, found, told = start("--resume", str(run)).end()
    assert code == 0, told
    assert f"second: goes on from step {goes_on}" in told
    assert [row["status"] for row in found["experiments"]] == ["ok", "ok"]
    assert steps_of(run, "steps-second")[-(40 - goes_on) :] == list(range(goes_on, 40))
    assert not list((run / ".checkpoints").glob("*"))  # nobody asks for more steps of a file's row


@pytest.mark.acceptance
def test_one_process_goes_on_under_another_layout_and_back(
    start: Callable[..., Training], prepared_text: Path, tmp_path: Path
) -> None:
    _, expected, _ = start(*options(prepared_text, steps=400)).end()
    again = tmp_path / "again"
    training = start(*options(prepared_text, "--out", str(again), steps=400))
    training.out = again
    run = training.wait_for(lambda run: saved(run, "01-native") >= 100)
    training.process.kill()
    training.end()
    step = saved(run, "01-native")
    assert 100 <= step < 400
    code, found, told = start("--resume", str(run), "--tp", "2").end()
    assert code == 0, told
    assert found["layout_found"]["ranks"] == 2
    assert found["losses"][:3] == pytest.approx(expected["losses"][step : step + 3], rel=1e-6)
    assert steps_of(run, "steps-native")[-1] == 399
    code, found, told = start("--resume", str(run), "--steps", "405").end()
    assert code == 0, told
    assert found["layout_found"]["ranks"] == 1
    assert steps_of(run, "steps-native")[-5:] == [400, 401, 402, 403, 404]


@pytest.mark.acceptance
def test_sigterm_saves_one_process_where_it_is(
    start: Callable[..., Training], prepared_text: Path
) -> None:
    training = start(*options(prepared_text))
    run = training.wait_for(lambda run: len(read_run(run).series.get("steps-native", ())) > 20)
    training.process.terminate()
    code, _, _ = training.end()
    assert code == 130
    step = saved(run, "01-native")
    assert step > 20 and steps_of(run, "steps-native")[-1] == step - 1
    code, _, told = start("--resume", str(run), "--steps", str(step + 5)).end()
    assert code == 0, told
    assert steps_of(run, "steps-native")[-5:] == list(range(step, step + 5))


@pytest.mark.acceptance
def test_a_sigterm_to_torchrun_saves_on_all_ranks(prepared_text: Path, tmp_path: Path) -> None:
    own = Experiment.of(model=MODEL, data=str(prepared_text), batch_size=2, seq_len=16, nproc=2)
    own = own.replace(steps=LONG, precision="fp32", zero=3, device="cpu", threads=1)
    job = Job(checkpoint=str(tmp_path / "saved"), resume=str(tmp_path / "saved"))
    request = {"experiment": to_dict(own), **asdict(job)}
    (tmp_path / "experiment.json").write_text(json.dumps(request))
    agent = subprocess.Popen(
        (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
        + ("-m", "trainrig.train.native.rank_main", str(tmp_path)),
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )

    def named(event: str) -> list[int]:
        return [each["step"] for _, each in read_events(tmp_path, 0) if each["event"] == event]

    while agent.poll() is None and len(named("row")) < 5:
        time.sleep(0.02)
    agent.terminate()
    _, told = agent.communicate(timeout=240.0)
    (step,) = named("stopped") or pytest.fail(told[-2000:])
    assert checkpoint_folder.steps_in(tmp_path / "saved") == [step]
    assert named("row")[-1] == step - 1


# ---- five layouts by five


LAYOUTS: dict[str, dict[str, Any]] = {
    "one": {},
    "ddp x 2": {"nproc": 2, "batch_size": 4},
    "zero-3 x 2": {"nproc": 2, "batch_size": 4, "zero": 3},
    "tp x 2, sp": {"nproc": 2, "tp": 2, "sequence_parallel": True},
    "pp x 2, zbv": {"nproc": 2, "pp": 2, "interleave": 2, "schedule": "zbv"}
    | {"batch_size": 2, "grad_accum": 4},
}
RICHER: dict[str, dict[str, Any]] = {
    "one": {},
    "ddp x 4": {"nproc": 4, "batch_size": 2},
    "hybrid 2 x 2, zero-3": {"nproc": 4, "batch_size": 2, "zero": 3, "shard_size": 2},
    "dp 2 x tp 2, zero-3": {"nproc": 4, "batch_size": 4, "zero": 3, "tp": 2},
    "pp 2 x dp 2, zero-1": {"nproc": 4, "pp": 2, "zero": 1, "batch_size": 2, "grad_accum": 2},
    "dp 2 x cp 2, offload": {"nproc": 4, "batch_size": 4, "zero": 3, "cp": 2, "offload": "host"},
}
EXPERTS: dict[str, dict[str, Any]] = {
    "one": {},
    "ddp x 4": {"nproc": 4, "batch_size": 2},
    "ep 4": {"nproc": 4, "batch_size": 2, "ep": 4},
    "ep 2 of 4": {"nproc": 4, "batch_size": 2, "ep": 2},
    "ep 2 of 4, zero-3": {"nproc": 4, "batch_size": 2, "ep": 2, "zero": 3},
}


@pytest.mark.acceptance
@pytest.mark.parametrize(
    ("layouts", "model", "ranks"),
    [(LAYOUTS, "deep", 2), (RICHER, "llama", 4), (EXPERTS, "experts", 4)],
)
def test_any_layout_goes_on_from_any_other(
    tmp_path: Path, layouts: dict[str, dict[str, Any]], model: str, ranks: int
) -> None:
    """The next three losses: those of who saved, to 1e-6; bit for bit under the same layout."""
    base = Experiment.of(model=model, batch_size=8, seq_len=16, steps=6, precision="fp32", warmup=2)
    several = [name for name in layouts if name != "one"]

    def case(name: str, folder: str, save: int = 0) -> dict[str, Any]:
        keys = to_dict(base.replace(**layouts[name]))
        return {"folder": str(tmp_path / folder), "save": save, "experiment": keys}

    expected = {"one": checkpoint_ranks.act(case("one", "one", 3))}
    asked = {f"-> {name}": case(name, name, 3) for name in several}
    asked |= {f"{old} -> {new}": case(new, old) for new in several for old in layouts}
    program = checkpoint_ranks.__file__
    got, *_ = rank_program.run(program, asked, tmp_path, ranks=ranks, patience=240.0)
    expected |= {name: got[f"-> {name}"] for name in several}
    found = {(new, old): got[f"{old} -> {new}"] for new in several for old in layouts}
    for folder in layouts:
        found["one", folder] = checkpoint_ranks.act(case("one", folder))
    print(table_of(found, expected))
    for (name, folder), losses in found.items():
        assert losses == pytest.approx(expected[folder], rel=1e-6), f"{folder} -> {name}"
        assert name != folder or losses == expected[name], name


def table_of(found: dict[tuple[str, str], list[float]], expected: dict[str, list[float]]) -> str:
    """A row for each layout that saved, a column for each that resumed: the largest gap."""
    names = list(expected)
    lines = [" | ".join(["saved under", *names])]
    for folder in names:
        gaps = [
            max(abs(a - b) / b for a, b in zip(found[name, folder], expected[folder], strict=True))
            for name in names
        ]
        lines.append(
            " | ".join([folder, *("bitwise" if gap == 0 else f"{gap:.1e}" for gap in gaps)])
        )
    return "\n".join(lines)


# ---- a disk that is full, a kill in the middle of a save


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 22 MiB: two checkpoints of LARGE, and no third."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=22m,mode=755", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("no mount here")
    if done.returncode != 0:
        pytest.skip("no right to mount a small disk here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


LARGE = MODEL.replace("hidden=32", "hidden=128").replace("vocab=512", "vocab=2048")
"""8 MB of weights and moments."""


def one_row(folder: Path, data: Path, **keys: Any) -> str:
    """A file with a row of two ranks that saves often."""
    file = folder / "row.toml"
    text = FILE.format(steps=40, data=data, model=LARGE).split('name = "first"')[0]
    text += 'name = "row"\nnproc = 2\nzero = 3\nbatch_size = 2\n'
    file.write_text(text + "".join(f"{key} = {value}\n" for key, value in keys.items()))
    return str(file)


@pytest.mark.acceptance
def test_a_full_disk_leaves_the_one_before_whole_and_is_told(
    start: Callable[..., Training], prepared_text: Path, small_disk: Path, tmp_path: Path
) -> None:
    training = start(one_row(tmp_path, prepared_text), "--out", str(small_disk))
    code, found, told = training.end()
    assert code == 1
    (row,) = found["experiments"]
    assert "No space left on device" in row["reason"] and "\n" not in row["reason"]
    run = next(small_disk.glob("*/run.toml")).parent
    goes_on = saved(run, "01-row")
    assert goes_on >= 5
    assert (
        checkpoint_folder.damage(checkpoint_folder.read_saved(checkpoints_of(run, "01-row")))
        is None
    )
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    code, found, told = start("--resume", str(run)).end()
    assert code == 0, told
    assert f"row: goes on from step {goes_on}" in told
    assert steps_of(run, "steps-row")[-1] == 39


@pytest.mark.acceptance
@pytest.mark.parametrize("who", ["trainrig", "a rank"])
def test_a_kill_in_the_middle_of_a_save_leaves_the_one_before_whole(
    start: Callable[..., Training], prepared_text: Path, tmp_path: Path, who: str
) -> None:
    training = start(one_row(tmp_path, prepared_text, steps=LONG))

    def is_saving(run: Path) -> bool:
        return saved(run, "01-row") >= 5 and bool(checkpoint_folder.broken_off(folder_of(run)))

    run = training.wait_for(is_saving)
    pid = training.process.pid
    if who == "a rank":
        pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[-1])
    os.kill(pid, signal.SIGKILL)
    code, _, told = training.end()
    assert code == (1 if who == "a rank" else -signal.SIGKILL), told
    goes_on, cut_off = saved(run, "01-row"), checkpoint_folder.broken_off(folder_of(run))
    assert checkpoint_folder.damage(checkpoint_folder.read_saved(folder_of(run))) is None
    resumed = start("--resume", str(run))
    resumed.wait_for(lambda run: saved(run, "01-row") > goes_on)
    resumed.process.terminate()
    code, _, told = resumed.end()
    assert code == 130
    words = f"row: goes on from step {goes_on}"
    words += f"; the save of step {cut_off[0]} was broken off" if cut_off else ""
    assert words in told


def folder_of(run: Path) -> Path:
    return checkpoints_of(run, "01-row")
