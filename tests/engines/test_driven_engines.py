"""DeepSpeed, Megatron-Core and Trainer on real ranks, compared with one process; their faults.

All of it trains on two gloo ranks: one row an engine in ``make smoke``, all in ``make acceptance``.
"""

from __future__ import annotations

import json
import os
import signal
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from trainrig.process.supervisor import Ended, launch
from trainrig.record import Status
from trainrig.train.config import Experiment
from trainrig.train.config_file import experiment_of
from trainrig.train.engines import ENGINES, Job, Result
from trainrig.train.layout_check import differences, observed_layout, requested_layout
from trainrig.train.parity import Probe, disagreement, reference_of

smoke, acceptance = pytest.mark.smoke, pytest.mark.acceptance
SIZES = "num_layers=4,hidden=32,num_heads=4,vocab=512,max_positions=32"
GPT, LLAMA = f"gpt2:{SIZES}", f"llama:{SIZES},num_kv_heads=2"
BERT = f"bert:{SIZES}"
MANY = {"batch_size": 32, "seq_len": 32}
"""1,024 tokens a step: sums over them in bf16 would be seen."""
_REFERENCES: dict[tuple[Any, ...], Probe] = {}


def experiment(data: str, framework: str, **changes: Any) -> Experiment:
    packages = {"megatron": "megatron.core", "huggingface": "transformers", "native": "torch"}
    package = packages.get(framework, framework)
    if find_spec(package) is None:
        pytest.skip(f"needs {package}")
    keys = {"model": GPT, "data": data, "batch_size": 2, "seq_len": 16, "steps": 6, "threads": 1}
    keys |= {"precision": "fp32", "device": "cpu", "nproc": 2, "optimizer": "adamw"}
    return experiment_of(keys | {"framework": framework} | changes)


def started(own: Experiment, folder: Path, **request: Any) -> tuple[Ended, Result]:
    """One training; ``request`` is added to what experiment.json says."""
    engine = ENGINES[own.framework]
    command = engine.command(own, folder, Job())
    path = folder / "experiment.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | request))
    return launch(command, folder), engine.collect(folder)


def trained(own: Experiment, folder: Path, **request: Any) -> Result:
    ended, result = started(own, folder, **request)
    assert ended.status is Status.OK, ended.reason
    return result


def reference(own: Experiment, folder: Path) -> Probe:
    one = reference_of(own).replace(steps=1)
    key = (one.model, one.precision, one.batch_size, one.grad_accum)
    if key not in _REFERENCES:
        found = trained(one, folder / "reference").probe
        assert found is not None
        _REFERENCES[key] = found
    return _REFERENCES[key]


def check(own: Experiment, folder: Path) -> Result:
    """The layout is there, the five steps are those of one process, the parts add up."""
    found = trained(own, folder / "own")
    assert found.facts is not None and found.probe is not None
    assert differences(requested_layout(own), observed_layout(found.facts)) == []
    assert disagreement(found.probe, reference(own, folder), own.precision) is None
    check_parts(found)
    return found


def check_parts(found: Result) -> None:
    """The parts of a step with what is left of it, and of a profiled one, are the step."""
    for row in found.rows[1:]:
        parts = sum(row[name] for name in ("data_wait", "forward", "backward", "optimizer"))
        assert parts + row["other"] == pytest.approx(row["time"], rel=1e-6)
        assert row["forward"] > 0 and row["backward"] > 0 and row["optimizer"] > 0
    profiled = found.profiled
    assert profiled is not None
    waits = profiled["own_s"] + profiled["communication_s"] + profiled["bubble_s"]
    assert waits == pytest.approx(profiled["step_s"], rel=0.03)


def test_what_they_do_not_train_is_refused_before_anything_starts(data: str) -> None:
    for framework, changes, words in (
        ("deepspeed", {"precision": "fp16", "zero": 1}, "on a CPU"),
        ("deepspeed", {"precision": "bf16"}, "not in fp32"),
        ("deepspeed", {"tp": 2}, "tensor parallelism"),
        ("deepspeed", {"offload": "host"}, "there are none"),
        ("megatron", {"zero": 2}, "is ZeRO 1"),
        ("deepspeed", {"pp": 2, "zero": 2, "grad_accum": 2}, "cannot shard"),
        ("deepspeed", {"pp": 2}, "do not fill"),
        ("deepspeed", {"zero": 2, "offload": "disk"}, "under stage 3 alone"),
        ("deepspeed", {"pp": 2, "grad_accum": 2, "interleave": 2}, "one schedule"),
        ("deepspeed", {"pp": 2, "grad_accum": 2, "model": BERT}, "not cut into stages"),
        ("deepspeed", {"pp": 2, "nproc": 4, "grad_accum": 2, "precision": "bf16"}, "not in fp32"),
        ("megatron", {"model": f"t5:{SIZES}"}, "another model"),
        ("megatron", {"pp": 2}, "do not fill"),
        ("native", {"offload": "disk", "zero": 1}, "DeepSpeed's"),
    ):
        keys = {"model": GPT, "data": data, "nproc": 2, "seq_len": 16, "device": "cpu"}
        keys |= {"precision": "fp32"}
        with pytest.raises(Exception, match=words):
            experiment_of(keys | {"framework": framework} | changes)


@smoke
def test_deepspeed_shards_gradients(data: str, tmp_path: Path) -> None:
    own = experiment(data, "deepspeed", zero=2, grad_accum=2)
    found = check(own, tmp_path)
    config = json.loads((tmp_path / "own" / "ds_config.json").read_text())
    assert config["zero_optimization"]["stage"] == 2 and config["train_batch_size"] == 8
    assert found.facts is not None and "deepspeed" in found.facts["software"]


@smoke
def test_megatron_splits_matrices_and_sequences(data: str, tmp_path: Path) -> None:
    found = check(experiment(data, "megatron", tp=2, sequence_parallel=True), tmp_path)
    assert found.facts is not None and found.facts["software"]["kernels"] == "unfused"


@acceptance
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"zero": 0}, id="zero-0"),
        pytest.param({"zero": 1, "grad_accum": 2}, id="zero-1"),
        pytest.param({"zero": 3, "grad_accum": 2}, id="zero-3"),
        pytest.param({"zero": 2, "offload": "host"}, id="offload"),
        pytest.param({"zero": 3, "offload": "host"}, id="offload-weights"),
        pytest.param({"zero": 1, "offload": "host", "optimizer": "adamw-fused"}, id="cpu-adam"),
        pytest.param({"zero": 3, "precision": "bf16"}, id="bf16"),
        pytest.param({"zero": 1, "model": BERT, "recompute": "full"}, id="bert-recomputed"),
        pytest.param({"zero": 2, "model": BERT, "precision": "bf16", **MANY}, id="bert-bf16"),
    ],
)
def test_deepspeed_trains_what_one_process_does(
    data: str, tmp_path: Path, changes: dict[str, Any]
) -> None:
    check(experiment(data, "deepspeed", **changes), tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"grad_accum": 4}, id="fp32", marks=smoke),
        pytest.param({"grad_accum": 3, "precision": "bf16"}, id="bf16", marks=acceptance),
        pytest.param(
            {"grad_accum": 3, "precision": "bf16", "model": LLAMA}, id="llama", marks=acceptance
        ),
        pytest.param(
            {"grad_accum": 3, "precision": "bf16", "nproc": 4, "zero": 1},
            id="with-zero-1",
            marks=acceptance,
        ),
        pytest.param(
            {"grad_accum": 2, "nproc": 4, "attention": "plain"}, id="with-ddp", marks=acceptance
        ),
    ],
)
def test_deepspeeds_own_pipeline_trains_what_one_process_does(
    data: str, tmp_path: Path, changes: dict[str, Any]
) -> None:
    found = check(experiment(data, "deepspeed", pp=2, **changes), tmp_path)
    assert found.facts is not None and found.facts["wrapped"] == "PipelineEngine"
    config = json.loads((tmp_path / "own" / "ds_config.json").read_text())
    assert config["pipeline"]["stages"] == 2
    profiled = found.profiled
    assert profiled is not None and profiled["bubble_s"] > 0


@acceptance
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="data-parallel"),
        pytest.param({"model": BERT, "tp": 2}, id="bert-tp"),
        pytest.param({"model": BERT, "tp": 2, "sequence_parallel": True}, id="bert-sp"),
        pytest.param(
            {"model": BERT, "tp": 2, "sequence_parallel": True, "precision": "bf16", **MANY},
            id="bert-sp-bf16",
        ),
        pytest.param({"model": BERT, "pp": 2, "grad_accum": 2, "attention": "plain"}, id="bert-pp"),
        pytest.param({"tp": 2}, id="tp"),
        pytest.param({"pp": 2, "grad_accum": 2}, id="pp"),
        pytest.param({"pp": 2, "interleave": 2, "grad_accum": 4}, id="interleaved"),
        pytest.param(
            {"pp": 2, "interleave": 2, "grad_accum": 4, "precision": "bf16", "batch_size": 3},
            id="interleaved-bf16",
        ),
        pytest.param({"zero": 1}, id="distributed-optimizer"),
        pytest.param({"zero": 1, "precision": "bf16"}, id="distributed-optimizer-bf16"),
        pytest.param({"tp": 2, "model": LLAMA, "sequence_parallel": True}, id="llama-sp"),
        pytest.param(
            {"tp": 2, "pp": 2, "nproc": 8, "zero": 1, "grad_accum": 2}, id="all-on-8-ranks"
        ),
    ],
)
def test_megatron_trains_what_one_process_does(
    data: str, tmp_path: Path, changes: dict[str, Any]
) -> None:
    check(experiment(data, "megatron", **changes), tmp_path)


@acceptance
def test_parts_of_our_own_engine_add_up_as_everybodys(data: str, tmp_path: Path) -> None:
    check(experiment(data, "native", zero=2, grad_accum=2), tmp_path)


@acceptance
def test_sends_that_gloo_mixes_up_are_not_comparable(data: str, tmp_path: Path) -> None:
    """Megatron's interleaved schedule with batched sends: no error, another loss."""
    own = experiment(data, "megatron", pp=2, interleave=2, grad_accum=4)
    ended, found = started(own, tmp_path / "batched", batch_p2p_comm=True)
    assert ended.status is Status.OK and found.probe is not None
    said = disagreement(found.probe, reference(own, tmp_path), "fp32")
    assert said is not None and "one-process reference" in said


@acceptance
def test_deepspeed_keeps_weights_and_states_on_a_disk(data: str, tmp_path: Path) -> None:
    """Where async_io is built, or can be; its files are gone afterwards.

    DeepSpeed leaves in memory what is below 100,000 weights, and states below 1 MiB.
    """
    large = "gpt2:num_layers=2,hidden=128,num_heads=4,vocab=8192,max_positions=32"
    own = experiment(data, "deepspeed", zero=3, offload="disk", model=large)
    if (lacks := ENGINES["deepspeed"].lacks(own)) is not None:
        assert "libaio" in lacks.message
        pytest.skip(f"needs libaio: {lacks.hint}")
    swapped: list[int] = []

    def look(_: int, event: Any) -> None:
        if event["event"] == "row":
            swapped.append(sum(path.stat().st_size for path in tmp_path.rglob("*.swp")))

    engine = ENGINES["deepspeed"]
    ended = launch(engine.command(own, tmp_path / "own", Job()), tmp_path / "own", on_event=look)
    found = engine.collect(tmp_path / "own")
    assert ended.status is Status.OK and found.probe is not None and found.facts is not None, ended
    assert disagreement(found.probe, reference(own, tmp_path), "fp32") is None
    assert max(swapped) >= 4 * found.facts["weights"]  # this rank's weights alone are as large
    assert not (tmp_path / "own" / "nvme").exists()


# ---- Trainer, with adapters, Adafactor, arguments by their names


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"lora_rank": 4, "recompute": "full"}, id="lora", marks=acceptance),
        pytest.param({"lora_rank": 4, "model": LLAMA, "nproc": 1}, id="llama", marks=acceptance),
        pytest.param({"optimizer": "adafactor"}, id="adafactor", marks=acceptance),
        pytest.param(
            {"trainer": "optim=rmsprop,skip_memory_metrics=false"}, id="by-name", marks=acceptance
        ),
        pytest.param(
            {"model": BERT, "precision": "bf16", "batch_size": 9, "nproc": 1},
            id="bert-bf16",
            marks=acceptance,
        ),
        pytest.param(
            {"model": BERT, "precision": "bf16", "batch_size": 5},
            id="bert-bf16-ddp",
            marks=acceptance,
        ),
        pytest.param(
            {"precision": "bf16", "batch_size": 3, "grad_accum": 3}, id="gpt-bf16", marks=acceptance
        ),
    ],
)
def test_trainer_has_what_was_asked_and_is_compared(
    data: str, tmp_path: Path, changes: dict[str, Any]
) -> None:
    own = experiment(data, "huggingface", **{"model": GPT, **changes})
    if own.lora_rank:
        pytest.importorskip("peft", reason="needs peft")
    found = trained(own, tmp_path / "own")
    assert found.facts is not None and found.probe is not None
    assert differences(requested_layout(own), observed_layout(found.facts)) == []
    one = reference(own, tmp_path)
    assert disagreement(found.probe, one, own.precision) is None
    assert found.facts["lora_rank"] == own.lora_rank
    if own.nproc > 1:
        check_parts(found)
    if own.lora_rank:  # its gradients are of other weights
        assert found.facts["num_parameters"] < 20_000
        assert found.probe.only_first and found.probe.grad_norms[0] != one.grad_norms[0]
    if own.kernels.trainer:
        assert found.facts["optimizer"] == "RMSprop"
    losses = [row["loss"] for row in found.rows]
    assert own.lora_rank or losses[-1] < losses[0]  # adapters begin at zero, and learn slowly


# ---- faults


@acceptance
@pytest.mark.parametrize(
    ("framework", "changes"),
    [
        ("deepspeed", {"zero": 1}),
        ("deepspeed", {"pp": 2, "grad_accum": 2}),
        ("megatron", {"tp": 2}),
        ("huggingface", {}),
    ],
)
def test_a_killed_rank_is_named_and_leaves_nobody(
    data: str, tmp_path: Path, framework: str, changes: dict[str, Any]
) -> None:
    own = experiment(data, framework, steps=2000, **changes)
    engine = ENGINES[framework]
    killed: list[int] = []

    def kill(rank: int, event: Any) -> None:
        if event["event"] == "row" and not killed:
            killed.append(_pid_of_rank(tmp_path, 1))
            os.kill(killed[0], signal.SIGKILL)

    ended = launch(engine.command(own, tmp_path, Job()), tmp_path, on_event=kill)
    assert ended.status is Status.FAILED and "rank 1" in str(ended.reason)
    assert _processes_of(tmp_path) == []


@acceptance
def test_a_compiler_that_fails_is_in_the_reason(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = experiment(data, "deepspeed", nproc=2)
    monkeypatch.setenv("CXX", "/bin/false")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "extensions"))
    ended, _ = started(own, tmp_path / "own")
    assert ended.status is Status.FAILED and "rror" in str(ended.reason)
    assert _processes_of(tmp_path) == []


def _processes_of(folder: Path) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if str(folder).encode() in words and b"start.py" in b" ".join(words):
            found.append(int(path.parent.name))
    return found


def _pid_of_rank(folder: Path, rank: int) -> int:
    for pid in _processes_of(folder):
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        if f"RANK={rank}".encode() in variables:
            return pid
    raise AssertionError("no such rank")
