"""Which layouts are refused, with which sentence; a search's mask refuses the same ones."""

from __future__ import annotations

import contextlib
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainrig.errors import DataError, UsageError
from trainrig.prediction.search.space import Space, layouts
from trainrig.workload import custom, named, parameters
from trainrig.workload import layout as layout_rules
from trainrig.workload.arrays import divisors
from trainrig.workload.hf_config import shape_of_config
from trainrig.workload.layout import Layout

LLAMA = named("llama-70B")
GPT = named("gpt2-medium")
T5 = named("t5-base")
NARROW = custom("llama", num_layers=2, hidden=64, num_heads=4, head_dim=16, ffn=101)
MANY = {"gpus": 64, "framework": "deepspeed"}
DUAL = {"schedule": "dualpipe", "framework": "megatron"}
DDP = {"framework": "huggingface", "parallel": "ddp"}
FSDP = {"framework": "huggingface", "parallel": "fsdp"}

REFUSED = [
    (
        LLAMA,
        {"gpus": 32, "tp": 32},
        "8 heads of keys and values cannot be split over 32",
        "2, 4, 8",
    ),
    (GPT, {"gpus": 12, "gpus_per_node": 12, "tp": 12}, "16 heads cannot be split over 12", "1, 2"),
    (
        GPT,
        {"gpus": 16, "pp": 8, "interleave": 2, "grad_accum": 8},
        "3 layers of a stage cannot be divided into 2 interleaved groups",
        "--interleave one of: 1, 3",
    ),
    (
        GPT,
        {"gpus": 8, "tp": 4, "pp": 4},
        "8 GPUs cannot be divided into 4 tensor",
        "multiple of 16",
    ),
    (GPT, {"gpus": 12, "gpus_per_node": 8}, "12 GPUs do not fill nodes of 8", "as 16 GPUs"),
    (GPT, {"interleave": 2}, "interleaving 2 stages needs a pipeline", "--pp 2"),
    (
        GPT,
        {"pp": 2, "interleave": 2, "schedule": "gpipe", "grad_accum": 2},
        "GPipe does not interleave",
        "--schedule 1f1b",
    ),
    (GPT, {"pp": 4, "interleave": 2, "grad_accum": 6}, "6 micro-batches cannot be dealt", "of 4"),
    (GPT, {"sequence_parallel": 1}, "what tensor parallelism leaves whole", "--tp 2"),
    (GPT, {"tp": 2, "sequence_parallel": 1, "seq_len": 1023}, "sequences of 1023", "--seq-len"),
    (
        GPT,
        {"tp": 2, "cp": 32, "gpus": 64, "framework": "native"},
        "16 heads .* split over 64 devices",
        "one of",
    ),
    (GPT, {"cp": 2, "seq_len": 1023}, "sequences of 1023 cannot be shared by 2", "--cp 1"),
    (T5, {"cp": 2}, "context parallelism of .* comes later", "--cp 1"),
    (GPT, {"ep": 2}, "is dense", "--ep 1"),
    (GPT, {"ep": 3}, "is dense", "--ep 1"),
    (named("mixtral-8x7B"), {"ep": 16}, "8 experts cannot be dealt to 16 ranks", "2, 4, 8"),
    (GPT, {"schedule": "zb"}, "zb needs a pipeline", "--pp 2"),
    (
        GPT,
        {"pp": 2, "schedule": "zb", "recompute": "selective"},
        "none through compiled blocks",
        "--recompute full",
    ),
    (GPT, {"pp": 2, "schedule": "zb"}, "deepspeed has no schedule zb", "native or torchtitan"),
    (GPT, {"pp": 2, "schedule": "zbv"}, "two stages on each rank", "--interleave 2"),
    (GPT, {"pp": 8, "grad_accum": 3, **DUAL}, "from both ends", "an even --pp"),
    (GPT, {"pp": 8, "grad_accum": 8, **DUAL}, "do not fill DualPipe's 8", "16 at least"),
    (GPT, {"pp": 2, "grad_accum": 4, "schedule": "dualpipe"}, "no schedule dualpipe", "megatron"),
    (GPT, {"pp": 2, "zero": 2}, "ZeRO 2 cannot shard what 2 pipeline", "--zero 1"),
    (GPT, {"pp": 2, "zero": 3}, "ZeRO 3 cannot shard what 2 pipeline", "--pp 1"),
    (
        GPT,
        {"pp": 2, "zero": 3, "schedule": "zb", "framework": "native"},
        "backward pass of their own, and ZeRO 3",
        "--schedule 1f1b",
    ),
    (
        GPT,
        {"pp": 16, "interleave": 2, "framework": "native"},
        "24 layers are too few",
        "24 at most",
    ),
    (
        T5,
        {"tp": 2, "sequence_parallel": 1, "target_seq_len": 29},
        "29 tokens that are written cannot be split over 2",
        "another --seq-len",
    ),
    (
        named("mixtral-8x7B"),
        {"tp": 2, "ep": 2, "framework": "native"},
        "experts are not split",
        "--sequence-parallel",
    ),
    (GPT, {"shard_size": 8}, "nothing is sharded", "--zero"),
    (GPT, {"zero": 3, "shard_size": 5}, "cannot be cut into groups of 5", "1, 2, 4, 8"),
    (T5, {"pp": 2}, "encoder-decoder .* come later", "--pp 1"),
    (GPT, {"parallel": "ddp"}, "deepspeed has its own data parallelism", "--parallel"),
    (GPT, {"framework": "torchtitan", "parallel": "dataparallel"}, "DataParallel", "native"),
    (GPT, {"framework": "huggingface", "tp": 2}, "DDP splits neither", "--tp 1"),
    (GPT, {**DDP, "zero": 2}, "DDP shards the optimizer at most", "--parallel fsdp"),
    (GPT, {"framework": "megatron", "zero": 3, "pp": 2}, "ZeRO 3 cannot shard what 2", "--zero 1"),
    (GPT, {**FSDP, "zero": 1}, "ZeRO 1 neither", "--zero 3"),
    (GPT, {"offload_overlap": "delayed"}, "nothing is offloaded", "--offload host"),
    (GPT, {"lora_on": "qkv"}, "there are no adapters", "--lora-rank 16"),
    (GPT, {"router_spread": 0.3}, "gpt.* has no experts", "--router-spread"),
    (named("mixtral-8x7B"), {"router_spread": -0.1}, "router-spread = -0.1", "from 0"),
    (named("mixtral-8x7B"), {"router_spread": math.nan}, "router-spread = nan", "from 0"),
    (GPT, {"fp8_params": 1}, "products are in bf16", "--precision fp8"),
    (
        GPT,
        {"fp8_params": 1, "precision": "fp8", "framework": "native"},
        "native keeps wider weights",
        "--framework megatron",
    ),
    (GPT, {"quantize": "nf4"}, "weights in nf4 are not trained", "--lora-rank 16"),
    (
        GPT,
        {"fp8_params": 1, "precision": "fp8", "framework": "megatron", "quantize": "nf4"}
        | {"lora_rank": 8, "kernels": "flash+fused"},
        "frozen weights are held in nf4",
        "--quantize or --fp8-params",
    ),
    (
        GPT,
        {"quantize": "nf4", "lora_rank": 8, "framework": "megatron", "kernels": "flash+fused"},
        "megatron has layers of its own, and nf4 is of torch's",
        "--framework huggingface",
    ),
    (GPT, {"grad_reduce": "bf16", "precision": "fp16"}, "not summed in bf16", "--precision bf16"),
    (
        GPT,
        {"optimizer_in_backward": 1, "grad_accum": 2, "framework": "native"},
        "gradients of 2 micro-batches add up",
        "--grad-accum 1",
    ),
    (GPT, {"offload_checkpoints": 1}, "--recompute none: inputs of blocks", "--recompute full"),
    (GPT, {"optimizer_in_backward": 1}, "deepspeed updates weights after backward", "native"),
    (GPT, {"seq_len": 2048}, "gpt2-medium knows 1024 positions, not 2048", "--seq-len 1024"),
    (NARROW, {"tp": 2}, "widths of 64 and 101 cannot be split over 2", "one of: 1, 2, 4"),
    (GPT, {"tp": 0}, "tp = 0", "from 1"),
    (GPT, {"batch_size": -4}, "--micro-batch: batch-size = -4", "from 1"),
    (GPT, {"gpus": 10**9}, "gpus = 1000000000", "to 1048576"),
    (GPT, {"gpus_per_node": 0}, "gpus-per-node = 0", "from 1"),
    (GPT, {"zero": 4}, "zero = 4", "0 to 3"),
    (GPT, {"seq_len": 10**9}, "seq-len = 1000000000", "from 1"),
    (GPT, {"grad_accum": True}, "grad-accum = True", "from 1"),
]


@pytest.mark.parametrize(("shape", "numbers", "says", "hint"), REFUSED)
def test_what_cannot_be_run_is_refused_in_a_sentence(shape, numbers, says, hint) -> None:
    with pytest.raises(UsageError, match=says) as refused:
        layout_rules.check_layout(shape, Layout.of(**MANY | numbers))
    assert "\n" not in refused.value.message
    assert hint in (refused.value.hint or "")


@pytest.mark.parametrize(
    ("shape", "numbers"),
    [
        (GPT, {}),
        (GPT, {"gpus": 1, "framework": "native"}),
        (GPT, {"gpus": 3, "framework": "huggingface"}),
        (GPT, {"tp": 16, "sequence_parallel": 1}),
        (GPT, {"pp": 4, "interleave": 3, "grad_accum": 8, "framework": "megatron"}),
        (GPT, {"zero": 3, "shard_size": 8, "framework": "huggingface"}),
        (named("llama-8B"), {"seq_len": 2**20}),
        (T5, {"tp": 4}),
        (GPT, {"pp": 16, "framework": "native"}),  # of 24 layers: eight stages of two
        (GPT, {"gpus": 10, "gpus_per_node": 10, "pp": 5}),
        (
            named("llama3-405B"),  # 126 layers and two ends, one to each of 128 groups
            {"gpus": 128, "pp": 16, "interleave": 8, "grad_accum": 16, "framework": "megatron"},
        ),
        (GPT, {"pp": 2, "zero": 3, "framework": "native"}),
    ],
)
def test_what_can_be_run_is_not(shape, numbers) -> None:
    layout_rules.check_layout(shape, Layout.of(**MANY | numbers))


def test_every_rule_is_seen_to_refuse() -> None:
    seen = set()
    for shape, numbers, _, _ in REFUSED:
        asked = layout_rules.Pairing(shape, Layout.of(**MANY | numbers))
        with contextlib.suppress(ZeroDivisionError):  # out of range, which is refused before
            seen |= {number for number, rule in enumerate(layout_rules.RULES) if rule.broken(asked)}
    assert seen == set(range(len(layout_rules.RULES)))


def test_tensor_parallelism_beyond_a_node_is_warned_of() -> None:
    inside, outside = Layout.of(gpus=16, tp=8), Layout.of(gpus=16, tp=16)
    assert layout_rules.layout_warnings(inside) == ()
    assert "leaves the node of 8" in layout_rules.layout_warnings(outside)[0]


SMALL = st.sampled_from([1, 2, 3, 4, 6, 8, 16])


@given(
    rows=st.lists(st.tuples(SMALL, SMALL, SMALL, SMALL, SMALL), min_size=1, max_size=20),
    zero=st.integers(0, 3),
    sequence=st.integers(0, 1),
    framework=st.sampled_from(["native", "huggingface", "megatron", "deepspeed"]),
    shape=st.sampled_from([GPT, LLAMA, T5]),
)
@settings(max_examples=100, deadline=None)
def test_the_mask_refuses_what_the_sentences_refuse(rows, zero, sequence, framework, shape) -> None:
    tp, pp, interleave, accum, shard = np.array(rows).T
    many = Layout.of(
        gpus=64, tp=tp, pp=pp, interleave=interleave, grad_accum=accum, framework=framework,
        zero=np.full(len(tp), zero), shard_size=shard * (zero > 0), sequence_parallel=sequence,
        seq_len=512,
    )  # fmt: skip
    for index, allowed in enumerate(layout_rules.legal_mask(shape, many)):
        try:
            layout_rules.check_layout(shape, many.at(index))
        except UsageError:
            assert not allowed
        else:
            assert allowed


def test_divisors() -> None:
    assert divisors(1) == [1]
    assert divisors(36) == [1, 2, 3, 4, 6, 9, 12, 18, 36]


def by_hand(shape, gpus: int, batch: int) -> set[tuple[int, ...]]:
    """Every combination of small sizes, one by one: what the enumeration must find."""
    found = set()
    sizes = range(1, gpus + 1)
    for tp, pp, vpp, micro, zero, shard, sp in itertools.product(
        sizes, sizes, range(1, shape.num_layers + 1), range(1, batch + 1),
        range(4), range(gpus), (0, 1),
    ):  # fmt: skip
        dp, rest = divmod(gpus, tp * pp)
        if rest or batch % (dp * micro) or (zero > 0 and dp == 1) or shard in (1, dp):
            continue
        if -(-shape.num_layers // pp) % vpp:  # a search has groups of one length
            continue
        if pp > 1 and zero > 1:  # searched where a framework is named that shards stages
            continue
        layout = Layout.of(
            gpus=gpus, tp=tp, pp=pp, interleave=vpp, batch_size=micro, zero=zero,
            grad_accum=batch // (dp * micro), shard_size=shard, sequence_parallel=sp,
            seq_len=64,
        )  # fmt: skip
        layout = layout.replace(framework=layout.usual_framework)
        try:
            layout_rules.check_layout(shape, layout)
        except UsageError:
            continue
        found.add(tuple(map(int, layout.sizes)))
    return found


@pytest.mark.parametrize(("gpus", "batch"), [(1, 3), (4, 8), (6, 12)])
def test_the_enumeration_misses_nothing(gpus: int, batch: int) -> None:
    shape = custom("gpt2", num_layers=4, hidden=96, num_heads=6)
    space = Space(shape=shape, base=Layout.of(gpus=gpus, seq_len=64), global_batch=batch)
    groups = layouts(space)
    rows = [
        tuple(map(int, group.at(i).sizes))
        for group in groups
        if group.memory.recompute == "none" and group.pipeline.schedule == "1f1b"
        for i in range(len(group))
    ]
    assert len(rows) == len(set(rows))
    assert set(rows) == by_hand(shape, gpus, batch)
    assert {g.memory.recompute for g in groups} == {"none", "selective", "full"}


def test_stages_are_sharded_where_a_framework_that_does_is_named() -> None:
    shape = custom("gpt2", num_layers=4, hidden=96, num_heads=6)
    for framework, most in (("torchtitan", 3), ("native", 3), ("megatron", 1)):
        base = Layout.of(gpus=4, seq_len=64)
        groups = layouts(Space(shape=shape, base=base, global_batch=8, framework=framework))
        assert (
            max(int(np.max(group.sharding.zero * (group.mesh.pp > 1))) for group in groups) == most
        )


def test_each_group_makes_the_global_batch_and_is_legal() -> None:
    shape = named("gpt3-6.7B")
    groups = layouts(Space(shape=shape, base=Layout.of(gpus=64, seq_len=2048), global_batch=192))
    for group in groups:
        assert np.all(np.asarray(group.global_batch) == 192)
        assert layout_rules.legal_mask(shape, group).all()
        if group.pipeline.schedule == "gpipe":
            assert np.all(group.mesh.pp > 1)
    assert {g.pipeline.schedule for g in groups} == {"1f1b", "gpipe"}


def test_a_batch_that_no_layout_makes_is_refused() -> None:
    base = Layout.of(gpus=7, gpus_per_node=7)
    odd = Space(shape=named("gpt2"), base=base, global_batch=10, framework="huggingface")
    with pytest.raises(UsageError, match="no layout of gpt2 on 7 GPUs makes a global batch of 10"):
        layouts(odd)


LATENT = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "vocab_size": 129280,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
MIXED = {
    "model_type": "mixtral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}


@pytest.mark.parametrize(
    ("config", "known"), [(LATENT, "deepseek-v3"), (MIXED, "mixtral-8x7B")], ids=["latent", "mixed"]
)
def test_a_mixture_is_read_from_its_configuration(config: dict[str, object], known: str) -> None:
    assert parameters(shape_of_config(config, "config.json")) == parameters(named(known))


def test_a_mixture_that_lacks_a_number_is_refused() -> None:
    lacking = {name: value for name, value in MIXED.items() if name != "num_experts_per_tok"}
    with pytest.raises(DataError, match="num_experts_per_tok"):
        shape_of_config(lacking, "config.json")
