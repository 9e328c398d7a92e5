"""Model shapes: by name, by numbers, from config.json; and the field's formulas, without torch."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig import workload
from trainrig.errors import DataError, TrainrigError, UsageError
from trainrig.workload.blocks import block
from trainrig.workload.hf_config import class_names, config_of, shape_of_config
from trainrig.workload.layout import Layout
from trainrig.workload.model import SHAPE_KEYS, ModelShape
from trainrig.workload.shape_parts import RopeScaling

PUBLISHED_MODELS = Path(workload.__file__).with_name("published_models.toml")

# As counted in the published weights (BERT: with its masked-language-model head).
PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "gpt-neo-1.3B": 1_315_575_808,
    "bert-base": 109_514_298,
    "bert-large": 335_174_458,
    "t5-base": 222_903_552,
    "t5-large": 737_668_096,
    "llama-1B": 1_235_814_400,
    "llama-7B": 6_738_415_616,
    "llama-8B": 8_030_261_248,
    "llama-13B": 13_015_864_320,
    "transformer-xl-base-full-softmax": 191_948_759,
    "transformer-xl-large-full-softmax": 519_963_095,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_named_shape_has_the_published_number_of_parameters(name: str) -> None:
    assert workload.parameters(workload.named(name)).total == PUBLISHED[name]


def test_each_further_model_has_a_source_or_the_published_count() -> None:
    text = PUBLISHED_MODELS.read_text(encoding="utf-8")
    table = tomllib.loads(text)
    named = [name for names in table["sources"].values() for name in names] + [*table["counted"]]
    assert sorted(named) == sorted(table["models"])
    assert "recall" not in text.casefold()
    for name, billions in table["counted"].items():
        total = workload.parameters(workload.named(name)).total
        assert total / 1e9 == pytest.approx(billions, rel=0.01), name


@given(
    b=st.integers(1, 64),
    s=st.integers(1, 4096),
    heads=st.integers(1, 32),
    vocab=st.integers(1, 60000),
    layers=st.integers(1, 48),
)
def test_the_fields_formulas(b: int, s: int, heads: int, vocab: int, layers: int) -> None:
    """16bsh² + 8bsh² + 4bs²h a layer, cross-attention once more, logits 2bshV, backward twice."""
    h = 64 * heads
    numbers = {"num_layers": layers, "hidden": h, "vocab": vocab, "num_heads": heads}
    attention = 8 * b * s * h * h + 4 * b * s * s * h
    layer = 16 * b * s * h * h + attention
    logits = 2 * b * s * h * vocab
    gpt = layers * layer + logits
    expected = {
        "gpt2": gpt,
        "bert": gpt + 2 * b * s * h * h,
        "t5": gpt + layers * (layer + attention),
    }
    for family, forward in expected.items():
        shape = workload.custom(family, **numbers)
        ops = workload.step_ops(shape, Layout.of(batch_size=b, seq_len=s))
        assert workload.total_flops(ops, "forward") == forward
        assert workload.model_flops(shape, b, s) == 3 * forward


@pytest.mark.parametrize("family", ["gpt2", "gpt-neo", "llama", "t5", "bert"])
def test_half_takes_half_of_the_causal_scores_and_nothing_else(family: str) -> None:
    shape = workload.custom(family, num_layers=3, hidden=128)
    b, s, h = 2, 96, 128
    full = workload.model_flops(shape, b, s)
    num_causal = {"bert": 0}.get(family, 3)  # t5: its decoder's, but no cross-attention
    saved = 3 * num_causal * 2 * b * s * s * h
    layout, num = Layout.of(batch_size=b, seq_len=s), shape.num_layers
    kinds = [(False, num), (True, shape.num_decoder_layers)]
    whole, half = (
        sum(
            count * (part.forward.flops + part.backward.flops)
            for decoder, count in kinds
            if count
            for part in block(shape, layout, decoder=decoder, half=how)
        )
        for how in (False, True)
    )
    assert whole - half == saved and whole < full


def test_grouped_heads_and_gates_by_hand() -> None:
    b, s, h, f, keys = 2, 10, 256, 600, 128
    shape = workload.custom(
        "llama", num_layers=1, hidden=h, num_heads=4, num_kv_heads=2, ffn=f, vocab=50
    )
    rows = b * s
    by_hand = 2 * rows * (2 * h * h + 2 * h * keys) + 4 * b * s * s * h + 3 * 2 * rows * h * f
    ops = workload.block_ops(shape, Layout.of(batch_size=b, seq_len=s))
    assert workload.total_flops(ops, "forward") == by_hand


def test_a_segment_before_its_own_by_hand() -> None:
    b, s, h, f = 2, 12, 128, 512
    plain = workload.custom("gpt2", num_layers=1, hidden=h, vocab=50)
    shape, layout = plain.replace(memory=1), Layout.of(batch_size=b, seq_len=s, kernels="flash")
    keys = 2 * s
    of_weights = 2 * b * keys * h * 3 * h + 2 * keys * h * h + 2 * b * s * (h * h + 2 * h * f)
    scores = 3 * 2 * b * s * keys * h  # by keys, by positions, and of values
    ops = workload.block_ops(shape, layout)
    assert workload.total_flops(ops, "forward") == of_weights + scores
    few = shape.replace(shortlist=5)
    logits = [
        op.flops
        for one in (shape, few)
        for op in workload.step_ops(one, layout)
        if (op.name, op.phase) == ("model.head.logits", "forward")
    ]
    assert logits == [2 * b * s * h * 50, 2 * b * s * h * 5]


@pytest.mark.parametrize("family", ["gpt2", "bert", "t5", "llama"])
@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_recomputing_costs_the_hardware_and_not_the_model(family: str, recompute: str) -> None:
    shape = workload.custom(family, num_layers=2, hidden=128)
    plain = {"kernels": "eager"}
    model = workload.model_flops(shape, 2, 64)
    assert workload.model_flops(shape, 2, 64, recompute=recompute) == model
    hardware = workload.hardware_flops(shape, 2, 64, recompute=recompute, **plain)
    again = hardware - workload.hardware_flops(shape, 2, 64, **plain)
    forward = sum(
        op.flops * op.count
        for op in workload.step_ops(shape, Layout.of(batch_size=2, seq_len=64))
        if "block" in op.name and op.phase == "forward"
    )
    assert again == 0 if recompute == "selective" else 0.6 * forward < again <= forward


def ops_by_name(**choices: Any) -> dict[tuple[str, str], workload.Op]:
    shape = workload.custom("gpt2", num_layers=2, hidden=64, vocab=100)
    layout = Layout.of(**({"seq_len": 8} | choices))
    return {(op.name, op.phase): op for op in workload.step_ops(shape, layout)}


def test_bytes_by_hand() -> None:
    """Each operand read once, each result written once, in bf16; b·s = 8, h = 64, f = 256."""
    ops = ops_by_name()
    up = ops["block.ffn.up", "forward"]
    assert (up.read_bytes, up.write_bytes) == (2 * (8 * 64 + 64 * 256), 2 * 8 * 256)
    back = ops["block.ffn.up", "backward"]
    assert back.read_bytes == 2 * (2 * 8 * 256 + 64 * 256 + 8 * 64)
    assert back.write_bytes == 2 * (8 * 64 + 64 * 256)
    gelu = ops["block.ffn.activation", "forward"]
    assert (gelu.read_bytes, gelu.write_bytes, gelu.flops) == (2 * 8 * 256, 2 * 8 * 256, 0)
    assert ops["block.ffn.activation", "backward"].num_bytes == 3 * 2 * 8 * 256
    attend = ops["block.attention.attend", "forward"]
    assert attend.num_bytes == 2 * 4 * 8 * 64 + 4 * 8  # q, k, v, the result; a sum a row in fp32
    assert attend.count == 2
    num = workload.parameters(workload.custom("gpt2", num_layers=2, hidden=64, vocab=100)).total
    assert ops["adamw", "optimizer"].num_bytes == 28 * num
    assert ops["cast.weights", "forward"].num_bytes == 6 * num


def test_plain_attention_moves_its_scores() -> None:
    fused, plain = ops_by_name(seq_len=512), ops_by_name(seq_len=512, kernels="eager")
    scores = 2 * 512 * 512
    assert plain["block.attention.attend.softmax", "forward"].num_bytes == 2 * scores
    name = "block.attention.attend"
    moved = sum(op.num_bytes for (op_name, _), op in plain.items() if op_name.startswith(name))
    assert moved > 5 * sum(op.num_bytes for (n, _), op in fused.items() if n.startswith(name))


def test_weights_computed_in_as_they_are_need_no_cast() -> None:
    assert ("cast.weights", "forward") not in ops_by_name(precision="fp32")


def test_a_step_has_every_phase() -> None:
    assert {phase for _, phase in ops_by_name()} == {
        "forward",
        "backward",
        "optimizer",
        "recompute",
    }


@pytest.mark.parametrize(
    "choice",
    [
        {"kernels": "plain"},
        {"recompute": "some"},
        {"precision": "fp13"},
        {"batch_size": 0},
        {"seq_len": -1},
        {"target_seq_len": -4},
    ],
)
def test_a_step_that_there_is_not_is_refused(choice: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        ops_by_name(**choice)
    assert caught.value.hint


def test_a_shape_is_found_by_name_by_numbers_and_by_file(tmp_path: Path) -> None:
    assert workload.find("GPT2-Medium") == workload.named("gpt2-medium")
    found = workload.find("llama:num_layers=2,hidden=128,num_kv_heads=1,tied=true,norm_eps=1e-6")
    assert (found.num_layers, found.attention.num_heads, found.attention.num_kv_heads) == (2, 2, 1)
    assert found.head.tied is True and found.norm_eps == 1e-6
    (tmp_path / "config.json").write_text(json.dumps(GPT2))
    for where in (tmp_path, tmp_path / "config.json"):
        read = workload.find(str(where))
        assert replace(read, name="gpt2") == workload.named("gpt2")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gpt5", "unknown model 'gpt5'"),
        ("gpt2:hidden=256", "needs num_layers"),
        ("gpt2:num_layers=2,hidden=x", "cannot read 'hidden=x'"),
        ("gpt2:num_layers=2,hidden=64,depth=3", "has no 'depth'"),
        ("gpt2:num_layers=2,hidden=100,num_heads=3", "do not make a width of 100"),
        ("gpt2:num_layers=0,hidden=64", "needs num_layers"),
        ("gpt2:num_layers=2,hidden=64,vocab=0", "vocab = 0"),
        ("gpt2:num_layers=2,hidden=64,num_heads=0", "num_heads = 0"),
        ("gpt2:num_layers=2,hidden=64,vocab=1.5", "vocab = 1.5"),
        ("gpt2:num_layers=2,hidden=64,tied=5", "tied = 5"),
        ("gpt2:num_layers=2,hidden=64,norm_eps=0", "norm_eps = 0"),
        ("gpt2:num_layers=2,hidden=64,norm_eps=nan", "norm_eps = nan"),
        ("gpt2:num_layers=2,hidden=64,windows=a", "windows"),
        ("gpt2:num_layers=2,hidden=64,name=x", "name"),
        ("gpt2:num_layers=2,hidden=64,family=x", "family"),
        ("gpt2:num_layers=2,hidden=64,num_kv_heads=1,num_heads=2", "a head of keys"),
        ("llama:num_layers=2,hidden=64,num_heads=3,num_kv_heads=2", "cannot share"),
        ("llama:num_layers=2,hidden=64,head_dim=7", "must be even"),
        ("t5:num_layers=2,hidden=64,num_buckets=2", "4 buckets"),
        ("t5:num_layers=2,hidden=64,max_distance=3", "max_distance"),
        ("bert:num_layers=2,hidden=64,num_decoder_layers=1", "only t5"),
        ("bert:num_layers=2,hidden=64,tied=false", "token embedding"),
        ("bert:num_layers=2,hidden=64,token_types=0", "segments"),
        ("gpt2:num_layers=2,hidden=64,activation=tanh", "unknown activation"),
        ("/nowhere/config.json", "cannot read"),
        ("", "unknown model"),
    ],
)
def test_what_is_no_shape_is_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(TrainrigError, match=said) as caught:
        workload.find(text)
    assert "\n" not in caught.value.message
    assert caught.value.exit_code == 2


GPT2 = {
    "model_type": "gpt2",
    "vocab_size": 50257,
    "n_positions": 1024,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "activation_function": "gelu_new",
    "resid_pdrop": 0.1,
    "architectures": ["GPT2LMHeadModel"],
}
LLAMA = {
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
}


def test_an_untied_t5_has_a_head_of_its_own_and_unscaled_logits() -> None:
    """As in the published configurations and weights of T5 v1.1."""
    sizes = {"vocab_size": 100, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2}
    config = {"model_type": "t5", "num_heads": 4} | sizes
    tied = shape_of_config(config, "x")
    apart = shape_of_config(config | {"tie_word_embeddings": False}, "x")
    assert (tied.head.tied, tied.head.scale_logits) == (True, True)
    assert (apart.head.tied, apart.head.scale_logits) == (False, False)
    counts = [workload.parameters(shape).total for shape in (tied, apart)]
    assert counts[1] - counts[0] == 100 * 64


def test_rotary_numbers_are_read_in_both_spellings() -> None:
    scaling = {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    old = {"rope_theta": 500000.0, "rope_scaling": scaling | {"rope_type": "llama3"}}
    new = {"rope_parameters": scaling | {"rope_type": "llama3", "rope_theta": 500000.0}}
    shapes = [shape_of_config(LLAMA | rope, "x") for rope in (old, new)]
    assert shapes[0] == shapes[1]
    assert shapes[0].position.rope_scaling == workload.named("llama-8B").position.rope_scaling
    assert replace(shape_of_config(LLAMA, "x"), name="llama-7B") == workload.named("llama-7B")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ([], "model_type is missing"),
        ({}, "model_type is missing"),
        ({"model_type": ["gpt2"]}, "unknown model_type"),
        ({"model_type": "mamba"}, "unknown model_type 'mamba'"),
        ({"model_type": "gpt2"}, "x: vocab_size is missing"),
        (GPT2 | {"n_layer": "12"}, "x: n_layer"),
        (GPT2 | {"n_layer": -1}, "x: n_layer"),
        (GPT2 | {"n_layer": True}, "x: n_layer"),
        (GPT2 | {"n_head": 7}, "do not make a width"),
        (GPT2 | {"activation_function": "swish2"}, "x: activation_function"),
        (GPT2 | {"add_cross_attention": True}, "x: add_cross_attention"),
        (GPT2 | {"scale_attn_by_inverse_layer_idx": True}, "x: scale_attn_by"),
        (LLAMA | {"rope_scaling": {"type": "linear", "factor": 2.0}}, "x: .*rope_scaling"),
        (
            LLAMA | {"rope_scaling": {"rope_type": "llama3", "low_freq_factor": 9.0}},
            "needs 0 < low < high",
        ),
        (LLAMA | {"rope_parameters": {"rope_type": "yarn"}}, "x: .*rope_parameters"),
    ],
)
def test_a_config_that_is_not_built_here_is_refused_in_one_line(config: Any, said: str) -> None:
    with pytest.raises(TrainrigError, match=said) as caught:
        shape_of_config(config, "x")
    assert "\n" not in caught.value.message
    assert caught.value.exit_code == 2


_NEO_WINDOWS = workload.custom("gpt-neo", num_layers=2, hidden=128)
_UNTIED_T5 = workload.custom(
    "t5", num_layers=2, hidden=64, tied=False, scale_logits=False, activation="gelu_tanh",
    gated_ffn=True, num_decoder_layers=3,
)  # fmt: skip


DENSE = [shape for shape in map(workload.named, workload.NAMED) if not shape.moe.num_experts]
"""Mixtures of experts are not read from Hugging Face's configurations, nor written."""


@pytest.mark.parametrize(
    "shape",
    [*DENSE, _NEO_WINDOWS, _UNTIED_T5],
    ids=lambda shape: shape.name,
)
def test_a_shape_survives_its_configuration(shape: workload.ModelShape) -> None:
    config = config_of(shape)
    model_type = {"gpt-neo": "gpt_neo"}.get(shape.family, shape.family)
    back = shape_of_config(config | {"model_type": model_type}, shape.name)
    assert back.replace(windows=shape.attention.windows) == shape
    assert not any(back.attention.windows) or back.attention.windows == shape.attention.windows


@pytest.mark.parametrize("name", ["gpt2", "gpt-neo-1.3B", "bert-base", "t5-base", "llama-1B"])
def test_transformers_takes_every_key_that_is_written(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    shape = workload.named(name)
    config = getattr(transformers, class_names(shape)[0])(**config_of(shape))
    assert hasattr(transformers, class_names(shape)[1])
    assert replace(shape_of_config(json.loads(config.to_json_string()), name)) == shape


@pytest.mark.parametrize(
    ("family", "numbers"),
    [
        ("gpt2", {"qkv_bias": False}),
        ("llama", {"qkv_bias": True}),
        ("gpt-neo", {"windows": (128, 256)}),
        ("t5", {"activation": "gelu_tanh"}),
        ("bert", {"ffn_bias": False}),
    ],
)
def test_a_shape_that_hugging_face_does_not_have_is_refused(family: str, numbers: Any) -> None:
    shape = workload.custom(family, num_layers=2, hidden=128, **numbers)
    with pytest.raises(UsageError, match="Hugging Face has no"):
        config_of(shape)


def test_a_file_that_is_no_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    for content in (b"", b"{", b"\xff\xfe\x00"):
        path.write_bytes(content)
        with pytest.raises(DataError, match="is not JSON") as caught:
            workload.find(str(path))
        assert "--model takes a name" in (caught.value.hint or "")
    path.write_text('{"model_type": "llama"}')
    with pytest.raises(DataError, match="is missing") as caught:
        workload.find(str(path))
    assert "--model takes a name" in (caught.value.hint or "")
    with pytest.raises(DataError, match=r"cannot read absent\.json: No such file") as caught:
        workload.find("absent.json")
    assert "--model takes a name" in (caught.value.hint or "")


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(base=st.sampled_from([GPT2, LLAMA]), key=st.data(), value=_JSON)
def test_any_value_in_a_config_is_read_or_refused(base: Any, key: Any, value: Any) -> None:
    name = key.draw(st.sampled_from(sorted(base)))
    try:
        shape = shape_of_config(base | {name: value}, "x")
    except TrainrigError:
        return
    assert workload.parameters(shape).total > 0


def test_a_folder_s_configuration_wins_over_a_name_like_it(tmp_path: Path) -> None:
    folder = tmp_path / "mistral-7b"
    folder.mkdir()
    config = config_of(workload.find("llama-1B")) | {"model_type": "llama"}
    (folder / "config.json").write_text(json.dumps(config))
    assert workload.find(str(folder)).hidden == workload.find("llama-1B").hidden


def test_what_is_configured_as_another_is_only_predicted() -> None:
    sizes = {"dim": 768, "hidden_dim": 3072, "n_layers": 6, "n_heads": 12, "vocab_size": 30522}
    small = sizes | {"model_type": "distilbert", "max_position_embeddings": 512}
    shape = shape_of_config(small, "here")
    assert (shape.family, shape.num_layers, shape.variant) == ("bert", 6, "distilbert")
    assert shape.is_only_predicted


_OTHER_VALUES: dict[str, tuple[str, Any]] = {
    "family": ("gpt-neo-1.3B", "gpt2"),
    "num_decoder_layers": ("t5-base", 6),
    "windows": ("gpt-oss-20B", ()),
    "num_kv_heads": ("deepseek-v3", 64),
    "rope_scaling": (
        "llama-7B",
        RopeScaling(factor=8.0, low=1.0, high=4.0, original_positions=8192),
    ),
    "state_keys": ("qwen3-next-80B-A3B", 2048),
    "activation": ("deepseek-v3", "gelu"),
}
"""A model, and a value that it may have instead of its own, by flat key."""


def _varied(key: str) -> tuple[ModelShape, Any]:
    """Return a model and another value for one of its flat keys."""
    name, value = _OTHER_VALUES.get(key, ("deepseek-v3", None))
    shape = workload.named(name)
    now = SHAPE_KEYS.flat(shape)[key]
    if value is None:
        value = not now if isinstance(now, bool) else "other" if isinstance(now, str) else 2 * now
        value = 1 if value == 0 and not isinstance(now, bool) else value
    return shape, value


@pytest.mark.parametrize("key", SHAPE_KEYS.places)
def test_each_flat_key_of_a_shape_is_a_value_of_its_own(key: str) -> None:
    shape, value = _varied(key)
    changed = shape.replace(**{key: value})
    before, after = SHAPE_KEYS.flat(shape), SHAPE_KEYS.flat(changed)
    assert {name for name in before if before[name] != after[name]} == {key}
    assert changed != shape, "caches would answer for the other"
    assert changed.replace(**{key: before[key]}) == shape
    assert ModelShape.of(**after) == changed
