"""Scripts for torchrun and Slurm: as a shell runs them, with stand-ins for what they start."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from trainrig.errors import UsageError
from trainrig.process.supervisor import Command
from trainrig.runner.launch_scripts import node_script, sbatch_script, write_scripts
from trainrig.runner.progress import null_progress
from trainrig.train.config import Experiment
from trainrig.train.config_file import experiment_of

MODEL = "gpt2:num_layers=1,hidden=32,num_heads=2,vocab=512,max_positions=32"


def experiment(data: Path, **changes: object) -> Experiment:
    keys = {"model": MODEL, "data": str(data), "seq_len": 16, "nproc": 4, "device": "cpu"}
    return experiment_of(keys | {"name": "four ranks", "max_restarts": 2} | changes)


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs that write down how they were called; FAIL is the exit code of what srun runs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    programs = {
        "srun": '[ "$3" = hostname ] && { echo node7; exit; }\n'
        'echo "srun $* NNODES=$NNODES PER=$NPROC_PER_NODE RDZV=$RDZV ID=$RDZV_ID" >> "$TOLD"\n'
        '${ACT:+eval "$ACT"}\nexit "$FAIL"\n',
        "scontrol": 'echo "scontrol $*" >> "$TOLD"\n',
        "python": 'echo "$*" >> "$TOLD"; env >> "$TOLD"; echo "$$" >> "$TOLD"\n',
    }
    for name, text in programs.items():
        (folder / name).write_text("#!/bin/sh\n" + text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TOLD", str(tmp_path / "told"))
    return folder


def told(tmp_path: Path) -> list[str]:
    return (tmp_path / "told").read_text().splitlines()


def test_a_node_runs_torchrun_with_its_environment(
    prepared_text: Path, tmp_path: Path, stand_ins: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = str(stand_ins / "python")
    monkeypatch.setattr("trainrig.train.engines.python_of", lambda _: python)
    own = experiment(prepared_text, checkpoint_every=5, heldout_batches=2)
    (folder,) = write_scripts((own,), tmp_path / "out", null_progress, 60.0)
    request = json.loads((folder / "experiment.json").read_text())
    assert request["checkpoint"] == request["resume"] == str(folder / "checkpoints")
    assert request["stall_timeout"] == 60.0 and not request["probe"] and request["heldout"]
    assert request["experiment"]["threads"] == 1
    subprocess.run(["sh", str(folder / "node.sh")], check=True, env=os.environ | {"NNODES": "1:2"})
    command, *env = told(tmp_path)
    assert command == (
        "-m torch.distributed.run --nnodes 1:2 --nproc-per-node 4 --max-restarts 2 "
        "--rdzv-backend c10d --rdzv-endpoint localhost:0 --rdzv-id four-ranks "
        "--rdzv-conf keep_alive_interval=1,keep_alive_max_attempt=3,last_call_timeout=2 "
        f"-m trainrig.train.native.rank_main {folder}"
    )
    assert {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1", "OMP_NUM_THREADS=1"} <= set(env)
    assert f"TRAINRIG_PARENT={env[-1]}" in env  # the agent itself: exec keeps its number
    with pytest.raises(UsageError, match="is there already"):
        write_scripts((own,), tmp_path / "out", null_progress)


def job(tmp_path: Path, own: Experiment, **env: str) -> int:
    (tmp_path / "job").write_text(sbatch_script(own, tmp_path / "a folder"))
    slurm = {"SLURM_NNODES": "2", "SLURM_JOB_ID": "12345", "FAIL": "0"}
    slurm |= {"SLURM_CPUS_ON_NODE": "64"}
    words = [shutil.which("bash") or "bash", str(tmp_path / "job")]
    return subprocess.run(words, check=False, env=os.environ | slurm | env).returncode


def test_a_slurm_job_shares_the_ranks_out_over_its_nodes(
    prepared_text: Path, tmp_path: Path, stand_ins: Path
) -> None:
    own = experiment(prepared_text)
    assert job(tmp_path, own) == 0
    place = "NNODES=2:2 PER=2 RDZV=node7:22345 ID=12345-0"
    assert told(tmp_path) == [
        f"srun --kill-on-bad-exit=1 --cpus-per-task=64 sh {tmp_path}/a folder/node.sh {place}"
    ]
    assert job(tmp_path, own, SLURM_NNODES="3") == 2
    assert len(told(tmp_path)) == 1
    elastic = experiment(prepared_text, min_nproc=1)
    assert job(tmp_path, elastic, SLURM_NNODES="4") == 0
    assert "--kill-on-bad-exit=0" in told(tmp_path)[-1] and "NNODES=1:4 PER=1" in told(tmp_path)[-1]
    assert "#SBATCH --no-kill\n" in sbatch_script(elastic, tmp_path)
    assert "#SBATCH --no-kill\n" not in sbatch_script(own, tmp_path)


def test_a_slurm_job_whose_step_is_lost_is_requeued_so_many_times(
    prepared_text: Path, tmp_path: Path, stand_ins: Path
) -> None:
    own = experiment(prepared_text)
    assert job(tmp_path, own, FAIL="137", SLURM_RESTART_COUNT="1") == 137
    assert told(tmp_path)[-1] == "scontrol requeue 12345"
    assert "ID=12345-1" in told(tmp_path)[-2]  # no earlier attempt's agents are met
    assert job(tmp_path, own, FAIL="137", SLURM_RESTART_COUNT="2") == 137
    assert told(tmp_path)[-1].startswith("srun ")
    # A checkpoint that was not there before is progress: the end of an allocation's time.
    saved = f"mkdir -p '{tmp_path}/a folder/checkpoints/step-000000005'"
    assert job(tmp_path, own, FAIL="1", ACT=saved, SLURM_RESTART_COUNT="9") == 1
    assert told(tmp_path)[-1] == "scontrol requeue 12345"
    assert job(tmp_path, own, FAIL="1", ACT=saved, SLURM_RESTART_COUNT="9") == 1
    assert told(tmp_path)[-1].startswith("srun ")  # the same one: no progress
    never = experiment(prepared_text, max_restarts=0)
    assert job(tmp_path, never, FAIL="1") == 1 and told(tmp_path)[-1].startswith("srun ")


def test_a_batch_that_is_looked_for_is_named_before_others_start_it(
    prepared_text: Path, tmp_path: Path
) -> None:
    own = experiment(prepared_text, batch_size="auto")
    with pytest.raises(UsageError, match="batch_size auto"):
        write_scripts((own,), tmp_path, null_progress)


def test_binding_is_torchruns_with_gpus_and_refused_without(
    prepared_text: Path, tmp_path: Path, stand_ins: Path
) -> None:
    own = experiment(prepared_text, device="cuda", bind=True)
    command = Command(argv=(str(stand_ins / "python"), "-m", "ranks"), ranks=4)
    script = tmp_path / "node.sh"
    for each, expected in ((own, True), (own.replace(bind=False), False)):
        script.write_text(node_script(each, command))
        (tmp_path / "told").unlink(missing_ok=True)
        subprocess.run(["sh", str(script)], check=True)
        assert (" --numa-binding=node -m ranks" in told(tmp_path)[0]) is expected
    with pytest.raises(UsageError, match="binds ranks with GPUs alone"):
        write_scripts((experiment(prepared_text, bind=True),), tmp_path / "out", null_progress)


def test_a_job_on_gpus_asks_for_those_of_a_node_and_refuses_more_ranks_than_them(
    prepared_text: Path, tmp_path: Path, stand_ins: Path
) -> None:
    own = experiment(prepared_text, device="cuda", nproc=16)
    script = sbatch_script(own, tmp_path, 2)
    for line in ("--nodes=2", "--gpus-per-node=8", "--ntasks-per-node=1", "--exclusive"):
        assert f"#SBATCH {line}\n" in script
    (tmp_path / "job").write_text(script)
    slurm = {"SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": "64", "FAIL": "0"}
    bash = [shutil.which("bash") or "bash", str(tmp_path / "job")]
    for nodes, expected in (("2", 0), ("4", 0), ("1", 2)):
        env = os.environ | slurm | {"SLURM_NNODES": nodes}
        done = subprocess.run(bash, check=False, env=env, capture_output=True, text=True)
        assert done.returncode == expected
    assert "--nodes 1" in done.stderr and "16 ranks a node" in done.stderr


def test_a_script_has_nothing_of_the_machine_that_wrote_it(
    prepared_text: Path, tmp_path: Path, stand_ins: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many processors and which GPUs are here is nothing to the machines that train."""
    monkeypatch.setattr("trainrig.train.engines.python_of", lambda _: str(stand_ins / "python"))
    monkeypatch.setattr("trainrig.train.engines._cores", lambda: 1234)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:77")
    own = experiment(prepared_text, device="cuda", nproc=8)
    (folder,) = write_scripts((own,), tmp_path / "out", null_progress, nodes=2)
    script = (folder / "node.sh").read_text()
    for words in ("CUDA_VISIBLE_DEVICES", "154", "1234", "max_split_size_mb"):
        assert words not in script
    env = {name: text for name, text in os.environ.items() if name != "OMP_NUM_THREADS"}
    subprocess.run(["sh", str(folder / "node.sh")], check=True, env=env)
    command, *told_env = told(tmp_path)
    assert "--nnodes 2 --nproc-per-node 4" in command
    (threads,) = (line for line in told_env if line.startswith("OMP_NUM_THREADS="))
    assert int(threads.partition("=")[2]) == max(1, -(-len(os.sched_getaffinity(0)) // 4))
    told_file = tmp_path / "told"
    told_file.unlink()
    subprocess.run(["sh", str(folder / "node.sh")], check=True, env=env | {"OMP_NUM_THREADS": "3"})
    assert "OMP_NUM_THREADS=3" in told(tmp_path)


def test_above_sixteen_nodes_the_rendezvous_is_static(
    prepared_text: Path, tmp_path: Path, stand_ins: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainrig.train.engines.python_of", lambda _: str(stand_ins / "python"))
    own = experiment(prepared_text, nproc=17)
    elastic = own.replace(min_nproc=1)
    for one, nodes, is_static in ((own, 17, True), (own, 1, False), (elastic, 17, False)):
        script = sbatch_script(one, tmp_path, nodes)
        env = {"SLURM_NNODES": str(nodes), "SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": "8"}
        (tmp_path / "job").write_text(script)
        run = [shutil.which("bash") or "bash", str(tmp_path / "job")]
        shown = {"ACT": 'echo "$RDZV_BACKEND" >> "$TOLD"', "FAIL": "0"}
        (tmp_path / "told").unlink(missing_ok=True)
        subprocess.run(run, check=True, env=os.environ | env | shown)
        assert (told(tmp_path)[-1] == "static") is is_static
    (folder,) = write_scripts((own,), tmp_path / "out", null_progress, nodes=17)
    (tmp_path / "told").unlink()
    static = os.environ | {"RDZV_BACKEND": "static", "RDZV": "node1:29500"}
    node = ["sh", str(folder / "node.sh")]
    assert subprocess.run(node, check=False, env=static, capture_output=True).returncode != 0
    subprocess.run(node, check=True, env=static | {"SLURM_NODEID": "5"})
    assert "--max-restarts 0 --rdzv-backend static --rdzv-endpoint node1:29500" in told(tmp_path)[0]
    assert "--node-rank 5 -m trainrig" in told(tmp_path)[0]


def test_ranks_that_no_number_of_nodes_shares_evenly_are_refused(
    prepared_text: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="4 ranks cannot be shared out evenly"):
        write_scripts((experiment(prepared_text),), tmp_path / "out", null_progress, nodes=3)
    on_gpus = experiment(prepared_text, device="cuda", devices="0,1,2,3")
    with pytest.raises(UsageError, match="numbers of GPUs on one machine"):
        write_scripts((on_gpus,), tmp_path / "out", null_progress, nodes=2)
    assert not (tmp_path / "out").exists()
