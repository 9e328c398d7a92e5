"""The traps of training without a GPU, each with the fault that it lets through and what stops it.

P1  a rank that ends as programs do aborts at exit          here; run_rank in every driver
P2  clipping and fused steps meet Tensor and DTensor        here; test_training_on_ranks trains it
P3  Trainer scales BERT's loss by ranks and micro-batches   here; "bert-bf16-ddp" trains it
P4  FSDP on a CPU is DDP, and nobody says so                here
P5  DeepSpeed compiles when it starts                       test_engine_faults, ..._builds
P6  Megatron-Core allocates on "cuda"                       here; test_driven_engines trains it
P7  fp16 on a CPU: refused where there are no kernels       here
P8  a launcher that ignores SIGTERM                         here; test_supervisor kills deaf ranks
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from trainrig.errors import UsageError
from trainrig.selftest.train_faults import RANK_FACTS
from trainrig.train.config_file import experiment_of
from trainrig.train.engines import ENGINES, Job
from trainrig.train.layout_check import differences, observed_layout, requested_layout
from trainrig.train.parity import Probe, disagreement

REFERENCE = Probe(losses=(6.928, 6.9, 6.8, 6.7, 6.6), grad_norms=(1.5708, 1.5, 1.4, 1.3, 1.2))


def experiment(**changes: Any) -> Any:
    keys = {"model": "gpt2-small-cpu", "device": "cpu", "nproc": 2, "precision": "fp32"}
    return experiment_of({**keys, **changes})


def test_p1_a_rank_leaves_before_the_interpreter_shuts_down(tmp_path: Path) -> None:
    """What aborts while the interpreter goes (at exit; in life a thread of gloo) is not run."""
    head = "import atexit, os\natexit.register(os.abort)\n"
    run = "from trainrig.process.child import run_rank\nrun_rank(lambda folder, events: None)\n"
    codes = {}
    for name, body in (("plain", "pass\n"), ("rank", run)):
        program = tmp_path / f"{name}.py"
        program.write_text(head + body)
        words = [sys.executable, str(program), str(tmp_path)]
        codes[name] = subprocess.run(words, check=False, capture_output=True).returncode
    assert codes == {"plain": -6, "rank": 0}


def test_p2_a_norm_over_tensors_and_dtensors_is_taken_of_each_kind() -> None:
    """torch refuses to take one over both; ours takes the squares of each apart."""
    torch = pytest.importorskip("torch", reason="needs torch")
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor, Shard, init_device_mesh

    if dist.is_initialized():
        pytest.skip("this process has a group of its own")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        plain = torch.nn.Parameter(torch.ones(4))
        split = torch.nn.Parameter(DTensor.from_local(torch.ones(4, 2), mesh, [Shard(0)]))
        for weight in (plain, split):
            weight.grad = torch.ones_like(weight) * 2.0
        with pytest.raises(RuntimeError, match=r"mixed torch\.Tensor"):
            torch.nn.utils.clip_grad_norm_([plain, split], 1.0)
        apart = [torch.nn.utils.get_total_norm([each.grad]) for each in (plain, split)]
        whole = sum(float(getattr(n, "full_tensor", lambda n=n: n)()) ** 2 for n in apart) ** 0.5
        assert whole == pytest.approx((12 * 4.0) ** 0.5)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(("factor", "why"), [(2.0, "ranks"), (4.0, "micro-batches")])
def test_p3_a_loss_that_is_scaled_is_not_comparable(factor: float, why: str) -> None:
    """Trainer's own BERT: 13.856 and 3.1415 on two ranks for 6.928 and 1.5708."""
    scaled = dataclasses.replace(
        REFERENCE,
        losses=tuple(loss and loss * factor for loss in REFERENCE.losses),
        grad_norms=tuple(norm and norm * factor for norm in REFERENCE.grad_norms),
    )
    said = disagreement(scaled, REFERENCE, "fp32")
    assert said is not None and f"({factor:g} times" in said, why
    hidden = dataclasses.replace(scaled, losses=REFERENCE.losses)  # by Adam: the norm alone says it
    assert "gradient norm" in str(disagreement(hidden, REFERENCE, "fp32"))
    assert disagreement(REFERENCE, REFERENCE, "fp32") is None


def test_p4_shards_that_are_not_there_are_refused_and_would_be_found() -> None:
    with pytest.raises(UsageError, match="accelerate would run DDP and not say so"):
        experiment(framework="huggingface", zero=3)
    asked = requested_layout(experiment(framework="native", zero=3, batch_size=4, seq_len=256))
    said = differences(asked, observed_layout(RANK_FACTS))
    assert any(line.startswith("zero: asked 3, found 0") for line in said)
    assert any("DistributedDataParallel" in line for line in said)


def test_p6_what_megatron_asks_of_cuda_is_made_on_the_host() -> None:
    """In a process of its own: the names stay replaced."""
    if find_spec("torch") is None:
        pytest.skip("needs torch")
    program = (
        "import torch\nfrom trainrig.train.drivers import megatron_cpu\n"
        "try:\n    torch.empty(2, device='cuda')\n    raise SystemExit(3)\n"
        "except (AssertionError, RuntimeError):\n    pass\n"
        "megatron_cpu.install()\n"
        "assert torch.empty(2, device='cuda').device.type == 'cpu'\n"
        "assert torch.zeros(2, device=torch.cuda.current_device()).to('cuda').is_cpu\n"
        "assert torch.ones(2).cuda().type() == 'torch.cuda.FloatTensor'\n"
        "ids, ones = torch.zeros(999, dtype=torch.long), torch.ones(999, 4).bfloat16()\n"
        "table = torch.zeros(2, 4, dtype=torch.bfloat16, requires_grad=True)\n"
        "torch.nn.functional.embedding(ids, table).backward(ones)\n"
        "assert torch.equal(table.grad[0], torch.full((4,), 999.0).bfloat16())\n"
        "norm = torch.nn.LayerNorm(4).bfloat16()\n"
        "norm(torch.randn(999, 4).bfloat16()).backward(ones)\n"
        "assert torch.equal(norm.bias.grad, torch.full((4,), 999.0).bfloat16())\n"
        "assert torch.cuda.Event().record() is None and torch.cuda.get_rng_state().is_cpu\n"
    )
    if __import__("torch").cuda.is_available():
        pytest.skip("needs no CUDA")
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize(
    ("framework", "changes"), [("deepspeed", {"zero": 1}), ("megatron", {"tp": 2})]
)
def test_p7_fp16_without_kernels_is_refused(framework: str, changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"fp16.* on a CPU") as refused:
        experiment(framework=framework, precision="fp16", **changes)
    assert refused.value.hint is not None and "bf16 or fp32" in refused.value.hint
    assert experiment(framework=framework, precision="bf16", **changes).precision == "bf16"


@pytest.mark.parametrize("framework", ENGINES)
def test_p8_no_launcher_stands_between_us_and_the_ranks(framework: str, tmp_path: Path) -> None:
    """torchrun's agent was seen to ignore SIGTERM for minutes: ranks are children of ours."""
    own = experiment(framework=framework, data="data")
    command = ENGINES[framework].command(own, tmp_path, Job())
    words = " ".join(command.argv[:-1])
    assert "torchrun" not in words and "torch.distributed.run" not in words
    assert "launch" not in words and command.ranks == 2
