"""Training on one GPU: what a first contact would trip over.  Unverified on hardware so far.

Each row is a training in processes of its own, compared with one process of ours on the same GPU:
rank, layout, the exchange over NCCL of one rank, Trainer's driver, and what a lack of memory is
called.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainrig.process.child import failure_of
from trainrig.process.supervisor import Command, launch
from trainrig.record import Outcome, Status
from trainrig.runner import train as runner
from trainrig.runner.view import training_summary
from trainrig.train.config import Experiment

pytestmark = pytest.mark.gpu
MODEL = "gpt2:num_layers=2,hidden=128,num_heads=2,vocab=512,max_positions=64"


def row_of(data: Path, out: Path, **keys: Any) -> dict[str, Any]:
    """The row of a training on the GPU, which must have agreed."""
    usual = {"model": MODEL, "seq_len": 64, "batch_size": 4, "steps": 6, "device": "cuda"}
    own = Experiment.of(name="one", data=str(data), **usual | keys)
    outcome = runner.train((own,), out=out)
    found = training_summary(outcome)
    assert found["row_verdict"] == "agreed", (found["reason"], found["wrong_layout"])
    assert outcome.verdict.outcome in (Outcome.PASS, Outcome.MEASURED)
    return found


@pytest.mark.parametrize(
    "keys",
    [
        {"precision": "fp32"},
        {"precision": "tf32"},
        {"precision": "bf16", "grad_accum": 2},
        {"precision": "fp16"},
        {"precision": "fp8"},
        {"precision": "fp8", "compile": True, "recompute": "selective"},
        {"precision": "bf16", "compile": True, "recompute": "selective"},
        {"precision": "fp32", "model": "bert:num_layers=2,hidden=128,vocab=512"},
        {"precision": "bf16", "framework": "huggingface"},
        {"precision": "fp32", "framework": "huggingface"},
    ],
    ids=lambda keys: "-".join(map(str, keys.values()))[:40],
)
def test_a_training_agrees_with_one_process_and_its_layout_is_found(
    prepared_text: Path, tmp_path: Path, keys: dict[str, Any]
) -> None:
    if keys["precision"] == "fp8":
        import torch

        if torch.cuda.get_device_capability() < (8, 9):
            pytest.skip("this GPU has no products of fp8")
        pytest.importorskip("torchao")
    found = row_of(prepared_text, tmp_path, **keys)
    assert found["layout_found"]["precision"] == keys["precision"]
    assert found["layout_found"]["device"] == "cuda"
    assert found["memory_by_rank"][0]["outside_bytes"] > 0


WORLD_OF_ONE = """
import os, sys, torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from trainrig import models
from trainrig.train.native import tensor_parallel
from trainrig.workload import find
os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29400"}
dist.init_process_group("nccl", device_id=torch.device("cuda:0"))
shape, losses = find(sys.argv[1]), []
tokens = torch.randint(0, shape.vocab, (2, 64), generator=torch.Generator().manual_seed(1)).cuda()
mesh = dist.device_mesh.init_device_mesh("cuda", (1,), mesh_dim_names=("tp",))
for how in ("plain", "ddp", "fsdp", "tp"):
    model = models.build(shape, device="cuda:0")
    if how == "tp":
        tensor_parallel.apply(model, shape, mesh, sequence_parallel=False)
    if how == "fsdp":
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    whole = DistributedDataParallel(model) if how == "ddp" else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    for _ in range(3):
        if how == "tp":  # the head's matrix is a DTensor, which the loss in chunks takes
            loss = model(tokens, labels=tokens) / tokens.numel()
        else:
            logits = whole(tokens).flatten(0, 1)
            loss = torch.nn.functional.cross_entropy(logits, tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    losses.append(float(loss))
    assert abs(losses[-1] - losses[0]) < 1e-4, (how, losses)
    if how == "fsdp":  # a checkpoint of shards, and back
        import tempfile
        import torch.distributed.checkpoint as dcp
        state = model.state_dict()
        whole = [each.full_tensor().clone() for each in state.values()]
        with tempfile.TemporaryDirectory() as folder:
            dcp.save(state, checkpoint_id=folder)
            for each in state.values():
                each.to_local().zero_()
            dcp.load(state, checkpoint_id=folder)
        assert all(map(torch.equal, whole, [each.full_tensor() for each in state.values()]))
dist.destroy_process_group()
"""


def test_one_rank_over_nccl_trains_as_ddp_fsdp_and_tp_and_saves() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WORLD_OF_ONE, MODEL],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]


HANGS = """
import os, sys, torch, torch.distributed as dist
from pathlib import Path
from trainrig.process.events import Events
events = Events(Path(sys.argv[1]), 0)
events.emit("alive")
dist.init_process_group("nccl", device_id=torch.device("cuda:0"))
long = torch.randn(16384, 16384, device="cuda:0")
for _ in range(20_000):  # what the sum stands behind
    long = (long @ long).clamp(-1.0, 1.0)
events.set_position(step=3, part="backward", operation="all_reduce")
dist.all_reduce(long)
torch.cuda.synchronize()
"""


def test_a_hang_names_its_collective(tmp_path: Path) -> None:
    command = Command(argv=(sys.executable, "-c", HANGS, str(tmp_path)), ranks=1)
    ended = launch(command, tmp_path, stall_timeout=20.0)
    assert ended.status is not Status.OK
    assert "all_reduce in backward of step 3" in str(ended.reason)


def test_a_cuda_graph_trains_what_its_step_does(prepared_text: Path, tmp_path: Path) -> None:
    losses = [
        row_of(prepared_text, tmp_path / str(graph), precision="bf16", steps=8, cuda_graph=graph)[
            "losses"
        ]
        for graph in (False, True)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_first_weights_are_the_same_on_a_gpu() -> None:
    """Trainer's are made on the host: drawn by a GPU they were others, and no row comparable."""
    from trainrig import models
    from trainrig.workload import find

    digests = {
        hashlib.sha256(
            b"".join(w.cpu().numpy().tobytes() for w in model.state_dict().values())
        ).hexdigest()
        for model in (models.build(find(MODEL), device=d, seed=3) for d in ("cpu", "cuda:0"))
    }
    assert len(digests) == 1


def test_a_gpu_without_memory_says_so_and_is_understood() -> None:
    import torch

    with pytest.raises(RuntimeError, match="memory") as caught:
        torch.empty(1 << 50, device="cuda:0")
    assert failure_of(caught.value)["kind"] == "oom"
