"""Ways of spreading data: torch.nn.DataParallel, Megatron-FSDP.

The published pair is Hugging Face's own (transformers, "Efficient training on multiple GPUs": 2
TITAN RTX with two NVLinks, torch 1.8, run_clm of GPT-2 in fp32, 4 samples of 1024 tokens each, 200
steps): DataParallel 110.6 s, DDP 101.9 s.
"""

from __future__ import annotations

import pytest
from validation.normalise.case import case_of

from trainrig.prediction.as_json import prediction_dict
from trainrig.prediction.prediction import Prediction, predict
from trainrig.prediction.scenario import question

ASKED = {
    "model": "gpt2",
    "on": "TITAN RTX",
    "gpus": 2,
    "batch_size": 4,
    "seq_len": 1024,
    "precision": "fp32",
    "kernels": "eager",
    "framework": "huggingface",
    "link": "nvlink",
    "optimizer": "adamw",
}


def found(parallel: str, **more: object) -> Prediction:
    return predict(question(ASKED | {"parallel": parallel} | more))


def test_it_costs_what_was_published() -> None:
    ours, theirs = found("dataparallel"), found("ddp")
    assert ours.time == pytest.approx(110.5948 / 200, rel=0.1)
    assert theirs.time == pytest.approx(101.9003 / 200, rel=0.1)
    assert ours.time / theirs.time == pytest.approx(1.085, abs=0.04)


def test_its_four_exchanges_hide_nowhere_and_come_with_each_micro_batch() -> None:
    one, two = found("dataparallel"), found("dataparallel", grad_accum=2)
    costs = one.data_parallel
    assert costs is not None
    assert list(costs) == ["scatter", "replicate", "gather", "reduce"]
    assert min(costs.values()) > 0.0
    assert costs["scatter"] < 0.1 * costs["replicate"]
    assert costs["gather"] > costs["reduce"], "logits are more than GPT-2 has weights"
    assert float(two.step.data_comm) == pytest.approx(2.0 * float(one.step.data_comm))
    assert float(one.step.data_comm) >= sum(costs.values())
    assert prediction_dict(one)["data_parallel_s"] == costs
    assert prediction_dict(found("ddp"))["data_parallel_s"] is None
    ours = found("dataparallel", framework="native").data_parallel
    assert ours is not None
    assert ours["gather"] < 1e-3, "our own models return a loss alone"


def test_one_interpreter_launches_for_all_and_gpu_0_holds_more() -> None:
    small = {"batch_size": 1, "seq_len": 64}
    alone, four = (found("dataparallel", gpus=n, gpus_per_node=4, **small) for n in (1, 4))
    assert float(four.step.gaps) > 2.0 * float(alone.step.gaps)
    assert found("dataparallel").memory.total > found("ddp").memory.total


@pytest.mark.parametrize(
    ("words", "scheme"),
    [
        ({"framework": "PyTorch nn.DataParallel"}, "dataparallel"),
        ({"framework": "HF Trainer, DP"}, "dataparallel"),
        ({"framework": "PyTorch", "parallel": "DP"}, "dataparallel"),
        ({"framework": "PyTorch DistributedDataParallel"}, "ddp"),
        ({"framework": "torch", "parallel": "FullyShardedDataParallel, ddp"}, "ddp"),
        ({"framework": "PyTorch nn.DataParallel", "num_gpus": "16", "gpus_per_node": "8"}, "ddp"),
    ],
)
def test_a_table_names_it(words: dict[str, str], scheme: str) -> None:
    row = {"chip": "RTX 3090", "num_gpus": "2", "model": "gpt2", "micro_batch": "4"}
    assert case_of(row | words).layout.scheme == scheme


MEGATRON = {
    "model": "llama-8B",
    "on": "8x H100 SXM5 80GB",
    "framework": "megatron",
    "kernels": "flash+fused",
    "seq_len": 8192,
    "grad_accum": 4,
}


def test_megatron_fsdp_shards_more_and_sends_more() -> None:
    """`optim`, `optim_grads` and `optim_grads_params` of its data-parallel sharding strategy."""
    one, two, three = (predict(question(MEGATRON | {"zero": stage})) for stage in (1, 2, 3))
    assert two.memory.gradients == one.memory.gradients / 8
    assert three.memory.gradients == two.memory.gradients
    assert three.memory.weights == two.memory.weights / 8
    assert one.memory.total > two.memory.total > three.memory.total
    assert one.step.data_comm < two.step.data_comm < three.step.data_comm
    computed = float(three.step.forward + three.step.backward)
    assert float(three.step.data_comm) < 0.2 * computed, "gathered and scattered beside computation"
    assert float(three.step.overlapped) > 0.1 * float(three.step.data_comm)


def test_a_table_means_megatron_fsdp_by_its_name() -> None:
    row = {"chip": "H100", "num_gpus": "64", "model": "llama-8B", "global_batch": "128"}
    layout = case_of(row | {"framework": "Megatron-FSDP (Megatron Bridge)"}).layout
    assert (layout.framework, layout.sharding.zero, layout.kernels.stack) == (
        "megatron",
        3,
        "flash+fused",
    )
    layout = case_of(row | {"framework": "Megatron-Core", "zero_stage": "optim_grads"}).layout
    assert (layout.framework, layout.sharding.zero) == ("megatron", 2)


TITAN = {"model": "llama-8B", "on": "8x H100 SXM5 80GB", "gpus": 32, "pp": 4, "grad_accum": 16}


def test_torchtitan_shards_the_stages_of_a_pipeline() -> None:
    """Its fsdp_reshard_after_forward: never in a pipeline (ZeRO 2) by default, or always (3)."""
    one, two, three = (
        predict(question(TITAN | {"zero": stage, "framework": framework, "seq_len": 4096}))
        for stage, framework in ((1, "megatron"), (2, "torchtitan"), (3, "torchtitan"))
    )
    assert question(TITAN | {"zero": 3}).layout.framework == "torchtitan"
    whole = 8e9 / 4
    assert two.memory.gradients > 3.9 * whole, "added up whole, in fp32, to the last micro-batch"
    assert three.memory.total < two.memory.total < one.memory.total * 1.5
    assert three.step.data_comm > two.step.data_comm > 0.0
    twice = predict(question(TITAN | {"zero": 2, "seq_len": 4096, "grad_accum": 32}))
    assert twice.step.data_comm == pytest.approx(two.step.data_comm, rel=0.05), "once a step"
    again = predict(question(TITAN | {"zero": 3, "seq_len": 4096, "grad_accum": 32}))
    assert again.step.overlapped > 1.5 * three.step.overlapped, "with each micro-batch"
    row = {"chip": "H100", "num_gpus": "32", "pp": "4", "model": "llama-8B", "global_batch": "128"}
    layout = case_of(row | {"framework": "torchtitan", "seq": "4096"}).layout
    assert (layout.framework, layout.sharding.zero, layout.scheme) == ("torchtitan", 2, "fsdp")


def test_zbv_has_its_two_stages_by_itself() -> None:
    layout = question(TITAN | {"schedule": "zbv", "framework": "native"}).layout
    assert layout.pipeline.interleave == 2
    assert question(TITAN | {"schedule": "dualpipe"}).layout.framework == "megatron"


def test_our_pipelines_gather_zero_2_once_a_step_too() -> None:
    ours = [
        predict(question(TITAN | {"zero": 2, "framework": "native", "grad_accum": micro})).step
        for micro in (16, 32)
    ]
    assert ours[1].overlapped < 2.0 * ours[0].overlapped, "gradients alone come again"


def test_moments_and_all_states_in_bf16_may_be_asked_for() -> None:
    """16 bytes a parameter with fp32 moments and gradients' buffer of 4: 18; 14; 8 in all bf16."""
    usual, narrow, pure = (
        predict(question(MEGATRON | {"zero": 0, "gpus": 1} | more)).memory
        for more in ({}, {"moments": "bf16"}, {"states": "pure"})
    )
    assert narrow.optimizer == usual.optimizer / 2
    assert (narrow.master, narrow.gradients) == (usual.master, usual.gradients)
    assert (pure.master, pure.gradients) == (0, usual.gradients / 2)
    assert pure.optimizer == narrow.optimizer
    wide = predict(question(MEGATRON | {"states": "pure", "moments": "fp32"})).memory
    assert wide.optimizer == 2 * predict(question(MEGATRON | {"states": "pure"})).memory.optimizer
    row = {"chip": "H100", "num_gpus": "8", "model": "llama-8B", "global_batch": "8"}
    for words, meant in (
        ({"states": "masters, bf16 moments"}, ("masters", "bf16")),
        ({"optimizer": "AdamW, exp_avg in bf16"}, ("auto", "bf16")),
        ({"moments": "bfloat16"}, ("auto", "bf16")),
        ({"states": "pure bf16"}, ("pure", "auto")),
        ({"framework": "HAI-LLM"}, ("auto", "bf16")),
        ({}, ("auto", "auto")),
    ):
        layout = case_of(row | {"framework": "Megatron-Core"} | words).layout
        assert (layout.precision.states, layout.precision.moments) == meant, words
