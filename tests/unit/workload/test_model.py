"""FLOPs of whole models as integers: the formula, torch's counter in our models, and in theirs.

Counted on the meta device, where nothing is computed and attention is not fused; on the CPU with
a formula for its fused attention, which torch's counter has none for, or without fusing it.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from trainrig import models, workload
from trainrig.models.loss import cross_entropy
from trainrig.models.t5 import shift_right
from trainrig.workload.hf_config import shape_of_config
from trainrig.workload.layout import Layout

torch = pytest.importorskip("torch", reason="needs torch")
from torch.utils.flop_counter import (  # noqa: E402
    FlopCounterMode,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)

SHAPES = {
    shape.name: shape
    for shape in [
        workload.custom("gpt2", name="gpt2", num_layers=3, hidden=128, vocab=512),
        workload.custom("gpt2", name="gpt2-untied", num_layers=1, hidden=64, ffn=100, tied=False),
        workload.custom("gpt-neo", name="gpt-neo", num_layers=2, hidden=128, windows=(0, 16)),
        workload.custom("bert", name="bert", num_layers=3, hidden=128, vocab=512),
        workload.custom("t5", name="t5", num_layers=2, num_decoder_layers=3, hidden=128),
        workload.custom(
            "t5",
            name="t5-gated",
            num_layers=1,
            hidden=128,
            num_heads=6,
            head_dim=16,
            gated_ffn=True,
            activation="gelu_tanh",
        ),
        workload.custom("llama", name="llama", num_layers=2, hidden=128, num_heads=4, vocab=512),
        workload.custom(
            "llama", name="llama-grouped", num_layers=3, hidden=128, num_heads=8, num_kv_heads=2
        ),
    ]
}
BATCH = 2


def inputs(shape: workload.ModelShape, seq: int, device: str, written: int = 0) -> tuple[Any, ...]:
    """Tokens and targets; for t5, ``written`` of the latter."""
    ones = {"dtype": torch.long, "device": device}
    last = written or seq
    return torch.ones(BATCH, seq, **ones), torch.ones(BATCH, last, **ones)


def counted(run: Any, *, train: bool, mapping: dict[Any, Any] | None = None) -> int:
    with FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        result = run()
        if train:
            result.sum().backward()
    return int(counter.get_total_flops())


def logits_of(model: Any, shape: workload.ModelShape, read: Any, targets: Any) -> Any:
    return model(read, shift_right(targets)) if shape.family == "t5" else model(read)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize(("seq", "attention"), [(32, "sdpa"), (96, "plain")])
def test_the_formula_is_the_count(name: str, seq: int, attention: str) -> None:
    """Forward, and forward and backward, of logits and of the chunked loss."""
    shape = SHAPES[name]
    model = models.build(shape, device="meta", attention=attention)
    read, targets = inputs(shape, seq, "meta")
    ops = workload.step_ops(shape, Layout.of(batch_size=BATCH, seq_len=seq))
    forward = workload.total_flops(ops, "forward")
    training = workload.model_flops(shape, BATCH, seq)
    assert counted(lambda: logits_of(model, shape, read, targets), train=False) == forward
    assert counted(lambda: logits_of(model, shape, read, targets), train=True) == training
    assert counted(lambda: model.loss(read, targets), train=True) == training
    assert training == 3 * forward


CLASSES = {
    "gpt2": ("GPT2Config", "GPT2LMHeadModel"),
    "gpt-neo": ("GPTNeoConfig", "GPTNeoForCausalLM"),
    "bert": ("BertConfig", "BertForMaskedLM"),
    "t5": ("T5Config", "T5ForConditionalGeneration"),
    "llama": ("LlamaConfig", "LlamaForCausalLM"),
}


@pytest.mark.parametrize("family", CLASSES)
@pytest.mark.parametrize("seq", [32, 96])
def test_the_formula_is_the_count_of_theirs(family: str, seq: int) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    config, model = CLASSES[family]
    numbers = {"vocab_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4}
    wide = {"d_model": 128, "d_kv": 32} if family == "t5" else {"hidden_size": 128}
    more = {"llama": {"num_key_value_heads": 2}}.get(family, {})
    if family == "gpt-neo":
        more = {"attention_types": [[["global", "local"], 1]]}
    if family.startswith("gpt"):
        more |= {"bos_token_id": None, "eos_token_id": None}
    config = getattr(transformers, config)(**numbers, **wide, **more)
    shape = shape_of_config(json.loads(config.to_json_string()), family)
    config._attn_implementation = "eager"  # their masks read values: not on the meta device
    theirs = getattr(transformers, model)(config)
    read, targets = inputs(shape, seq, "cpu")
    given = {"input_ids": read} | ({"decoder_input_ids": targets} if family == "t5" else {})
    ops = workload.step_ops(shape, Layout.of(batch_size=BATCH, seq_len=seq))
    for train, phases in ((False, ("forward",)), (True, ("forward", "backward"))):
        count = counted(lambda: theirs(**given, use_cache=False).logits, train=train)
        assert count == workload.total_flops(ops, *phases)


def test_reading_and_writing_may_differ_in_length() -> None:
    shape = SHAPES["t5"]
    model = models.build(shape, device="meta")
    read, targets = inputs(shape, 96, "meta", written=32)
    expected = workload.model_flops(shape, BATCH, 96, target_seq_len=32)
    assert counted(lambda: model.loss(read, targets), train=True) == expected
    assert expected < workload.model_flops(shape, BATCH, 96)


ATEN = torch.ops.aten
FUSED_ON_CPU = {
    ATEN._scaled_dot_product_flash_attention_for_cpu: (
        lambda q, k, v, *a, out_shape=None, **kw: sdpa_flop_count(q, k, v)
    ),
    ATEN._scaled_dot_product_flash_attention_for_cpu_backward: (
        lambda g, q, k, v, *a, out_shape=None, **kw: sdpa_backward_flop_count(g, q, k, v)
    ),
}


@pytest.mark.parametrize("name", ["gpt2", "bert", "llama"])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("attention", ["sdpa", "plain"])
def test_hardware_flops_are_what_a_cpu_runs(name: str, recompute: str, attention: str) -> None:
    """What is computed a second time: by checkpointing, and inside a fused attention.

    The one for short sequences keeps its scores; torch's own, as on a GPU, computes them again.
    """
    shape = SHAPES[name]
    model = models.build(shape, attention=attention, recompute=recompute)
    read, targets = inputs(shape, 32, "cpu")
    step = {
        "kernels": "flash" if attention == "sdpa" else "eager",
        "recompute": recompute,
    }
    count = counted(lambda: model.loss(read, targets), train=True, mapping=FUSED_ON_CPU)
    hardware = workload.hardware_flops(shape, BATCH, 32, **step)
    assert count == hardware
    model_flops = workload.model_flops(shape, BATCH, 32, **step)
    assert model_flops == workload.model_flops(shape, BATCH, 32)
    assert (hardware > model_flops) == (recompute == "full" or attention == "sdpa")


@pytest.mark.parametrize("name", ["gpt2", "gpt-neo", "bert", "t5", "t5-gated", "llama-grouped"])
@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_recomputed_flops_are_counted_on_meta(name: str, recompute: str) -> None:
    shape = SHAPES[name]
    model = models.build(shape, device="meta", recompute=recompute)
    read, targets = inputs(shape, 32, "meta")
    expected = workload.hardware_flops(shape, BATCH, 32, recompute=recompute, kernels="eager")
    assert counted(lambda: model.loss(read, targets), train=True) == expected


@pytest.mark.parametrize(
    ("name", "decoder"), [*((name, False) for name in SHAPES), ("t5", True), ("t5-gated", True)]
)
def test_a_block_by_itself(name: str, decoder: bool) -> None:
    shape, seq, length = SHAPES[name], 48, 32 if decoder else 48
    block = models.build_block(shape, decoder=decoder, device="meta")
    x, memory = (
        torch.ones(BATCH, n, shape.hidden, device="meta", requires_grad=True) for n in (length, seq)
    )
    given = models.block_inputs(shape, x, memory if decoder else None)
    layout = Layout.of(batch_size=BATCH, seq_len=seq, target_seq_len=32)
    ops = workload.block_ops(shape, layout, decoder=decoder)
    forward = workload.total_flops(ops, "forward")
    assert counted(lambda: block(*given), train=False) == forward
    training = workload.total_flops(ops, "forward", "backward")
    assert counted(lambda: block(*given), train=True) == training
    assert workload.block_parameters(shape, decoder=decoder) == sum(
        parameter.numel() for parameter in block.parameters()
    )


def test_the_chunked_loss_does_the_work_of_the_plain_one() -> None:
    hidden = torch.ones(40, 16, requires_grad=True)
    weight, targets = torch.ones(64, 16, requires_grad=True), torch.ones(40, dtype=torch.long)
    linear, definition = torch.nn.functional.linear, torch.nn.functional.cross_entropy
    plain = counted(lambda: definition(linear(hidden, weight), targets), train=True)
    chunked = counted(lambda: cross_entropy(hidden, weight, targets, rows=7), train=True)
    assert plain == chunked == 6 * 40 * 16 * 64
