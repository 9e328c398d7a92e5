"""What may be wrong with another engine: each is a record with its cause and what to do, no orphan.

Faults lie below what sees them: environments without a package or with an old one, a compiler that
is not there, a socket that holds the port, a limit of the kernel on a rank's memory.
"""

from __future__ import annotations

import json
import resource
import socket
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest

from trainrig.process.supervisor import launch
from trainrig.record import Status
from trainrig.train.config_file import experiment_of
from trainrig.train.engines import ENGINES, Job

MODEL = "gpt2:num_layers=2,hidden=32,num_heads=2,vocab=8192,max_positions=32"
NEEDS = {
    "huggingface": ("torch", "numpy", "transformers", "accelerate"),
    "deepspeed": ("torch", "numpy", "transformers", "deepspeed"),
    "megatron": ("torch", "numpy", "megatron.core"),
}
TrainRig = Callable[..., tuple[int, str, str]]


@pytest.fixture
def elsewhere(tmp_path: Path) -> Callable[..., Path]:
    """An environment with packages of these versions, which hold nothing but their names."""

    def made(**versions: str) -> Path:
        home = tmp_path / f"elsewhere-{len(list(tmp_path.iterdir()))}"
        command = [sys.executable, "-m", "venv", "--without-pip", str(home)]
        subprocess.run(command, check=True, capture_output=True)
        (site,) = home.glob("lib/python*/site-packages")
        for name, version in versions.items():
            folder = site.joinpath(*name.split("."))
            folder.mkdir(parents=True)
            (folder / "__init__.py").touch()
            info = site / f"{name.replace('.', '_')}-{version}.dist-info"
            info.mkdir()
            text = f"Metadata-Version: 2.1\nName: {name.replace('.', '-')}\nVersion: {version}\n"
            (info / "METADATA").write_text(text)
        return home / "bin" / "python"

    return made


def options(framework: str, data: Path, out: Path) -> list[str]:
    return [
        *("--framework", framework, "--model", MODEL, "--data", str(data), "--device", "cpu"),
        *("--precision", "fp32", "--seq-len", "16", "--batch-size", "2", "--steps", "4"),
        *("--out", str(out)),
    ]


@pytest.mark.parametrize("framework", NEEDS)
def test_an_engine_that_is_missing_or_old_is_named_with_what_to_do(
    framework: str,
    elsewhere: Callable[..., Path],
    trainrig: TrainRig,
    prepared_text: Path,
    tmp_path: Path,
) -> None:
    """The newest of each will do: the healthy twin."""
    new = dict.fromkeys(NEEDS[framework], "99.0")
    own = NEEDS[framework][-2] if framework == "huggingface" else NEEDS[framework][-1]
    without = {name: version for name, version in new.items() if name != own}
    words = options(framework, prepared_text, tmp_path / "runs")
    for versions, said in (
        ({}, "is not installed"),
        (without, f"{own} is not installed in "),
        (new | {own: "0.1"}, f"{own} is 0.1 in "),
    ):
        code, out, err = trainrig("train", *words, "--python", str(elsewhere(**versions)))
        assert code == 3 and out == "" and said in err, err
        assert "hint:" in err and "make engines" in err and "Traceback" not in err
        assert not (tmp_path / "runs").exists()
    assert ENGINES[framework].missing(str(elsewhere(**new))) is None


def test_of_several_what_lacks_its_engine_is_a_record(
    elsewhere: Callable[..., Path],
    trainrig: TrainRig,
    prepared_text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trainrig.runner.train.measure_ceiling", lambda *_: None)
    file = tmp_path / "two.toml"
    common = f'model = "{MODEL}"\ndata = "{prepared_text}"\ndevice = "cpu"\nprecision = "fp32"\n'
    common += "seq_len = 16\nbatch_size = 2\nsteps = 4\nthreads = 1\n"
    rows = '[[experiment]]\nname = "ours"\n[[experiment]]\nname = "theirs"\n'
    file.write_text(f'{common}{rows}framework = "megatron"\npython = "{elsewhere()}"\n')
    code, out, _ = trainrig("train", str(file), "--out", str(tmp_path / "runs"), "--json")
    found = {row["name"]: row for row in json.loads(out)["experiments"]}
    assert found["ours"]["row_verdict"] == "agreed"
    assert found["theirs"]["row_verdict"] == "skipped"
    assert "torch is not installed" in found["theirs"]["reason"]
    assert code == 3  # one row lacked something that no GPU would bring


@pytest.mark.parametrize("compiler", ["/nowhere/g++", "no-such-compiler"])
def test_without_a_compiler_deepspeed_does_not_start(
    compiler: str,
    trainrig: TrainRig,
    prepared_text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if find_spec("deepspeed") is None:
        pytest.skip("needs deepspeed")
    monkeypatch.setenv("CXX", compiler)
    words = options("deepspeed", prepared_text, tmp_path / "runs")
    code, out, err = trainrig("train", *words)
    assert code == 3 and out == "" and compiler in err and "apt install g++" in err


@pytest.mark.parametrize("framework", NEEDS)
def test_a_port_that_is_taken_is_refused_before_anything_starts(
    framework: str,
    trainrig: TrainRig,
    prepared_text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    package = NEEDS[framework][-1]
    if find_spec(package) is None:
        pytest.skip(f"needs {package}")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setenv("MASTER_PORT", str(port))
        words = options(framework, prepared_text, tmp_path / "runs")
        code, out, err = trainrig("train", *words, "--nproc", "2")
    assert code == 2 and out == "" and f"port {port}" in err and "unset MASTER_PORT" in err
    assert not (tmp_path / "runs").exists()


@pytest.mark.acceptance
@pytest.mark.parametrize(
    ("framework", "changes"),
    [
        ("deepspeed", {"zero": 1}),
        ("deepspeed", {"pp": 2, "grad_accum": 2}),
        ("megatron", {"tp": 2, "batch_size": 160}),
        ("huggingface", {"steps": 8}),  # it tells its rows behind the last step
    ],
)
def test_a_rank_without_memory_is_an_oom_and_leaves_nobody(
    framework: str, changes: dict[str, Any], prepared_text: Path, tmp_path: Path
) -> None:
    """From its second row on the kernel gives it no more: logits take 42 MB in one piece.

    A rank's: of less than 32 MB malloc would hand out again what it has kept.
    """
    if find_spec(NEEDS[framework][-1]) is None:
        pytest.skip(f"needs {NEEDS[framework][-1]}")
    keys = {"model": MODEL, "data": str(prepared_text), "batch_size": 80, "seq_len": 16}
    keys |= {"steps": 500, "threads": 1, "precision": "fp32", "device": "cpu", "nproc": 2}
    own = experiment_of(keys | {"framework": framework, "optimizer": "adamw"} | changes)
    engine = ENGINES[framework]
    limited: list[psutil.Process] = []

    def limit(_: int, event: Any) -> None:
        if event["event"] == "row" and not limited:
            limited.extend(ranks_in(tmp_path))
            for rank in limited:
                most = rank.memory_info().vms
                resource.prlimit(rank.pid, resource.RLIMIT_AS, (most, most))

    ended = launch(engine.command(own, tmp_path, Job()), tmp_path, on_event=limit)
    assert ended.status is Status.OOM, ended.reason
    assert "out of memory" in str(ended.reason) and len(limited) == 2
    assert ranks_in(tmp_path) == []


def ranks_in(folder: Path) -> list[psutil.Process]:
    """The ranks of a training that live."""
    return [
        each
        for each in psutil.process_iter()
        if str(folder) in (words := _words(each)) and any("start.py" in word for word in words)
    ]


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
