"""layer: both codes against a wider reference, planted faults, counted FLOPs, published cases."""

from __future__ import annotations

import dataclasses
import gc
import importlib.util
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from trainrig.benchmarks.layer import (
    BENCHMARK,
    CODES,
    LAYERS,
    PARTS,
    PASSES,
    layer_case,
    layer_shape,
    layer_tokens,
    layer_work,
    part_case,
)
from trainrig.errors import UsageError
from trainrig.measure import layer
from trainrig.measure.layer_blocks import Runnable, _Names, fresh_state
from trainrig.measure.timing import Unsupported
from trainrig.record import Case

BOTH = "forward+backward"
HAVE_THEIRS = importlib.util.find_spec("transformers") is not None


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def case(name: str = "BERT-large layer", **changes: Any) -> Case:
    """A layer in miniature."""
    sizes = {"batch_size": 2, "seq_len": 16, "hidden": 64, "heads": 4, "ffn": 256}
    code = changes.get("code", "trainrig")
    usual = "plain" if code == "huggingface" else "sdpa"
    whole = {"layer": name, "dtype": "fp32", "pass": BOTH, **sizes, "code": code}
    return {**whole, "attention": usual, **changes}


def part(name: str, code: str = "trainrig", **changes: Any) -> Case:
    full = part_case(name, "fp32", 64, code)
    small = {"k": 64, "n": 256, "seq_len": 16, "heads": 4}
    return full | {key: value for key, value in small.items() if key in full} | changes


def needs(code: str) -> None:
    if code == "huggingface" and not HAVE_THEIRS:
        pytest.skip("needs transformers")


def found_by(checked: Case) -> str | None:
    """What is said of an answer before and after two more calls."""
    BENCHMARK.check(checked)
    prepared = layer.prepare(checked, "cpu")
    before = prepared.wrong()
    prepared.call()
    prepared.call()
    return before or prepared.wrong()


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("name", LAYERS)
def test_right_answers_raise_no_alarm(name: str, code: str) -> None:
    needs(code)
    for dtype, attention, batch, seq in (
        ("fp32", "sdpa", 2, 16),
        ("fp32", "plain", 3, 9),
        ("bf16", "plain", 2, 16),
        ("bf16", "sdpa", 3, 9),
        ("fp16", "sdpa", 3, 9),
    ):
        chosen = case(
            name, code=code, dtype=dtype, attention=attention, batch_size=batch, seq_len=seq
        )
        assert found_by(chosen) is None, chosen
    assert found_by(case(name, code=code, **{"pass": "forward"})) is None


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("name", PARTS)
def test_right_answers_of_the_parts(name: str, code: str) -> None:
    needs(code)
    for dtype in ("fp32", "bf16"):
        assert found_by(part(name, code, dtype=dtype)) is None
    assert (
        found_by(part(name, code, m=7, **({"seq_len": 7} if "attention" in name else {}))) is None
    )


def test_many_equal_sequences_in_bf16_are_still_right() -> None:
    """torch adds up a norm's gradient in bf16 on a CPU."""
    assert found_by(case(dtype="bf16", batch_size=64, seq_len=64)) is None


Fault = Callable[[Runnable], Runnable]


def _weight(name: str, change: Callable[[torch.Tensor], object]) -> Fault:
    def plant(runnable: Runnable) -> Runnable:
        with torch.no_grad():
            change(runnable.weights[name])
        return runnable

    return plant


def _output(change: Callable[[torch.Tensor, Runnable], torch.Tensor]) -> Fault:
    return lambda right: dataclasses.replace(right, run=lambda: change(right.run(), right))


def _one_sequence_lost(y: torch.Tensor, _: Runnable) -> torch.Tensor:
    keep = torch.ones(y.shape[0], 1, 1)
    keep[3] = 0.0
    return y * keep


def _gradient(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Fault:
    def spoiled(gradients: dict[str, Any]) -> dict[str, Any]:
        return gradients | {name: change(gradients[name])}

    return lambda right: dataclasses.replace(right, native=spoiled)


def _without_first_row(gradient: torch.Tensor) -> torch.Tensor:
    return torch.cat((torch.zeros_like(gradient[:1]), gradient[1:]))


FAULTS: dict[str, Fault] = {
    "wrong weight element": _weight("ffn.up.weight", lambda w: w[3, 5].add_(1.0)),
    "zeroed head": _weight("attention.out.weight", lambda w: w[:, :16].zero_()),
    "no bias": _weight("ffn.down.bias", lambda w: w.zero_()),
    "skipped residual": _output(lambda y, right: y - right.inputs["x"]),
    "one sequence lost": _output(_one_sequence_lost),
    "gradient of half the batch": _gradient("attention.k.weight", lambda g: g / 2),
    "a row of a gradient lost": _gradient("ffn.down.weight", _without_first_row),
    "a gradient of a bias lost": _gradient("ffn.up.bias", torch.zeros_like),
    "NaN": _gradient("norm_1.weight", lambda g: g * torch.nan),
}


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(fault: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In what is measured alone: the reference is built first, and stays right."""
    built: list[Runnable] = []
    right = layer.build

    def build(*arguments: Any) -> Runnable:
        runnable = right(*arguments)
        built.append(FAULTS[fault](runnable) if built else runnable)
        return built[-1]

    monkeypatch.setattr(layer, "build", build)
    found = found_by(case(batch_size=4, dtype=dtype))
    assert found is not None
    assert "rounding explains" in found
    assert len(built) == 2


@pytest.mark.parametrize("name", ["GPT-2 medium block", "T5-large encoder block", "Llama-7B block"])
def test_a_missing_head_is_seen_in_every_family(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = layer.build
    built: list[Runnable] = []

    def build(*arguments: Any) -> Runnable:
        runnable = right(*arguments)
        if built:
            FAULTS["zeroed head"](runnable)
        built.append(runnable)
        return runnable

    monkeypatch.setattr(layer, "build", build)
    assert "the output is off" in (found_by(case(name, dtype="bf16")) or "")


def test_a_call_that_writes_nothing_is_seen() -> None:
    prepared = layer.prepare(case(), "cpu")
    assert prepared.wrong() is None
    assert prepared.wrong() is not None


@pytest.mark.parametrize("code", CODES)
def test_calls_leave_no_garbage(code: str) -> None:
    """A worker does not collect while it measures."""
    needs(code)
    prepared = layer.prepare(case(code=code), "cpu")

    def tensors() -> int:
        return sum(issubclass(type(found), torch.Tensor) for found in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        prepared.call()
        before = tensors()
        for _ in range(5):
            prepared.call()
        assert tensors() == before
    finally:
        gc.enable()


# ---------------------------------------------------------------- what is counted


def counted(chosen: Case) -> int:
    """The counter's marks in the graph bear no autograd.grad, but backward, which is the same."""

    def grad(y: torch.Tensor, wanted: tuple[torch.Tensor, ...], dy: torch.Tensor) -> Any:
        y.backward(dy)
        return tuple(tensor.grad for tensor in wanted)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.autograd, "grad", grad)
        return _counted(chosen)


def _counted(chosen: Case) -> int:
    with FlopCounterMode(display=False) as counter:
        layer.prepare(chosen, "cpu").call()
    return int(counter.get_total_flops())


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("name", LAYERS)
def test_the_formula_is_torchs_count(name: str, code: str) -> None:
    """Reference (of the two sequences that the batch has), first call and one more."""
    needs(code)
    for how in PASSES:
        chosen = case(name, code=code, attention="plain", **{"pass": how})
        assert counted(chosen) == 3 * layer_work(chosen).flops


@pytest.mark.parametrize("name", PARTS)
def test_the_formula_of_a_part_is_torchs_count(name: str) -> None:
    plain = {"attention": "plain"} if name == "attention block" else {}
    chosen = part(name, m=32, seq_len=16, **plain) if plain else part(name, m=128)
    batch, _ = layer_tokens(chosen)
    shared = 1 + 1 / max(1, batch // 2) + 1  # the reference runs each distinct sequence once
    assert counted(chosen) == shared * layer_work(chosen).flops


def test_the_published_tables_formulas() -> None:
    b, s, h = 64, 128, 1024
    ffn, attention = 16 * b * s * h * h, 8 * b * s * h * h + 4 * b * s * s * h
    for name in ("BERT-large layer", "GPT-2 medium block", "T5-large encoder block"):
        assert layer_work(layer_case(name, "fp16", "forward", b, s)).flops == ffn + attention
        both = layer_work(layer_case(name, "fp16", BOTH, b, s)).flops
        assert both == 3 * (ffn + attention)
    decoder = layer_case("T5-large decoder block", "fp16", BOTH, b, s)
    assert layer_work(decoder).flops == 3 * (ffn + 2 * attention)
    sizes = {"dense h->4h": ffn / 2, "dense+GELU": ffn / 2, "FFN": ffn}
    for name, flops in (sizes | {"attention block": attention}).items():
        assert layer_work(part_case(name, "fp16", b * s)).flops == flops
    activation = layer_work(part_case("dense+GELU", "fp16", b * s)).num_bytes
    dense = layer_work(part_case("dense h->4h", "fp16", b * s)).num_bytes
    assert activation - dense == 2 * 2 * b * s * 4 * h


def test_memory_grows_with_what_is_kept() -> None:
    def memory(**changes: Any) -> int:
        return BENCHMARK.memory(case(**{"batch_size": 64, "seq_len": 512, **changes}))

    weights = 4 * (4 * 64 * 64 + 2 * 64 * 256)
    activations = 4 * 64 * 512 * (9 * 64 + 2 * 256)
    assert memory() > weights + activations
    assert memory(attention="plain") > memory() + 4 * 64 * 4 * 512 * 512
    assert memory(batch_size=128) > 1.5 * memory()
    assert memory(**{"pass": "forward"}) < memory()


# ---------------------------------------------------------------- cases


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"layer": "MoE layer"}, "unknown layer"),
        ({"dtype": "fp8"}, "dtype"),
        ({"pass": "backward"}, "pass"),
        ({"code": "megatron"}, "code"),
        ({"attention": "flash"}, "attention"),
        ({"heads": 5}, "heads"),
        ({"batch_size": 0}, "batch_size"),
        ({"seq_len": True}, "seq_len"),
        ({"hidden": 2**40}, "hidden"),
        ({"m": 8}, "'m'"),
    ],
)
def test_nonsense_is_refused(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        BENCHMARK.check({**case(), **changes})


def test_a_case_states_all_its_fields_and_no_others() -> None:
    for chosen in (case(), part("attention block"), part("FFN")):
        for field in chosen:
            if field in ("layer", "seq_len", "heads") and "m" in chosen:
                continue  # without them it is another case
            with pytest.raises(UsageError):
                BENCHMARK.check({key: value for key, value in chosen.items() if key != field})
    for changes in ({"pass": BOTH}, {"cache": "cold"}, {"m": 65, "seq_len": 16}):
        with pytest.raises(UsageError):
            BENCHMARK.check({**part("attention block"), **changes})


def test_what_is_not_there_is_skipped_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(Unsupported, match="transformers is not installed"):
        layer.prepare(case(code="huggingface"), "cpu")
    with pytest.raises(Unsupported, match="tf32"):
        layer.prepare(case(dtype="tf32"), "cpu")


@pytest.mark.parametrize("name", LAYERS)
def test_weights_go_there_and_back(name: str) -> None:
    shape, decoder = layer_shape(case(name))
    names = _Names(shape, decoder)
    state = fresh_state(case(name), torch.Generator().manual_seed(1))
    theirs = names.hf(state)
    assert not set(theirs) & set(state)
    back = names.native(theirs)
    assert set(back) == set(state)
    assert all(torch.equal(back[key], state[key]) for key in state)
