"""layer: how fast one block of a transformer goes, forward, or forward and backward.

Definition: one call is one pass of a block (BERT-large, GPT-2 medium, T5-large encoder or
decoder, Llama 7B) or of a part of a BERT layer, on (batch_size, seq_len, hidden) random hidden
states, the same buffers in every call: ours, or Hugging Face's class built from a configuration.
Forward is as in training: autograd notes what backward needs.  Backward computes new gradients of
the inputs and of all weights.  No dropout, no optimizer.  flop_rate: model FLOPs of the block
(`workload`) over the median time of a call.  Per device.

The names and numbers of a case are those of the published tables, whose layers are Hugging
Face's with plain attention: ``code`` and ``attention`` say whose code ran, and how attention was
computed.

A whole layer states batch_size, seq_len, hidden, heads and ffn; the named shape gives the rest
(activation, biases, positions).  A part of a BERT layer states its product as the tables do: m
tokens, width k, and n where it is one product.  Operations and FLOPs are those of
`workload.blocks`: nothing is counted a second time here.

One case is required of a qualification: our BERT-large layer, forward and backward.  After it come
the block of the training step that is measured later, which is that step's ceiling, Hugging
Face's, the row of growing batches that shows where launches end and arithmetic begins, the parts
of a layer, and the other models' blocks, as far as the time goes.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainrig.benchmarks import spec
from trainrig.benchmarks.training import GPU_SIZES, HOST_SIZES
from trainrig.errors import UsageError
from trainrig.record import Case, Scalar
from trainrig.workload import (
    ModelShape,
    Op,
    Work,
    block_ops,
    block_parameters,
    dtype_bytes,
    named,
)
from trainrig.workload.layout import Layout

LAYERS = {
    "BERT-large layer": ("bert-large", False),
    "GPT-2 medium block": ("gpt2-medium", False),
    "T5-large encoder block": ("t5-large", False),
    "T5-large decoder block": ("t5-large", True),
    "Llama-7B block": ("llama-7B", False),
}
"""Name: the model, and whether it is a block with cross-attention."""

PARTS: dict[str, tuple[str, ...]] = {
    "dense h->4h": ("ffn.up",),
    "dense+GELU": ("ffn.up", "ffn.activation"),
    "FFN": ("ffn.",),
    "attention block": ("attention.",),
}
"""Name: the operations of a BERT layer that it is, by the beginning of their names."""

PASSES = {"forward": ("forward",), "forward+backward": ("forward", "recompute", "backward")}
"""Pass of a case: the phases of its operations."""

DTYPES = ("fp32", "tf32", "bf16", "fp16")
CODES = ("trainrig", "huggingface")
ATTENTIONS = ("sdpa", "tiles", "plain")

MAX_SIZE = 1 << 20
LARGE = 8192
"""Tokens: below it a layer waits for its launches, on the GPUs and software of the tables."""

_TOKENS = 128
"""Tokens of a sequence where a part does not depend on it."""
_SEQUENCES_CHECKED = 2
_IMPORT = 2.0
"""Seconds that the first of Hugging Face's waits for its import."""


# ---- cases


def layer_case(
    layer: str, dtype: str, passes: str, batch: int, seq: int, code: str = "trainrig"
) -> Case:
    """Return a whole layer's case at its model's size; Hugging Face's with published attention."""
    shape = named(LAYERS[layer][0])
    return {
        "layer": layer,
        "dtype": dtype,
        "pass": passes,
        "batch_size": batch,
        "seq_len": seq,
        "hidden": shape.hidden,
        "heads": shape.attention.num_heads,
        "ffn": shape.ffn.width,
        "code": code,
        "attention": _usual_attention(code),
    }


def code_text(case: Case) -> str:
    """Whose code a case runs, and how attention is computed where that is not as usual."""
    code = str(case.get("code"))
    if code not in CODES:
        return "the source's code"
    words = "Hugging Face's code" if code == "huggingface" else "trainrig's code"
    attention = case.get("attention")
    return words if attention in (None, _usual_attention(code)) else f"{words}, {attention}"


def code_framework(case: Case) -> str:
    """Return the framework whose kernels a case's code launches, as a layout calls it."""
    return "huggingface" if case.get("code") == "huggingface" else Layout().framework


def own_layer_case(model: str, dtype: str, batch: int, seq: int) -> Case:
    """Return the case of a GPT-2 block, at the batch and sequence that it is trained with."""
    shape = named(model)
    sizes = {"hidden": shape.hidden, "heads": shape.attention.num_heads, "ffn": shape.ffn.width}
    return {**layer_case(_GPT2, dtype, "forward+backward", batch, seq), **sizes}


def part_case(part: str, dtype: str, num_tokens: int, code: str = "trainrig") -> Case:
    """Return the case of one part of a BERT-large layer, on sequences of 128 tokens."""
    shape = named(LAYERS[_BERT][0])
    case: dict[str, Scalar] = {"layer": part, "dtype": dtype, "pass": "forward", "cache": "hot"}
    case |= {"code": code, "m": num_tokens, "k": shape.hidden}
    if part.startswith("dense"):
        case["n"] = shape.ffn.width
    elif part == "attention block":
        case |= {
            "seq_len": _TOKENS,
            "heads": shape.attention.num_heads,
            "attention": _usual_attention(code),
        }
    return case


def _usual_attention(code: str) -> str:
    """torch's own in our block; Hugging Face's as it was in the published tables."""
    return "plain" if code == "huggingface" else "sdpa"


def _check_more(case: Case) -> None:
    layer_shape(case)
    layer_tokens(case)
    layer = str(case["layer"])
    if layer in PARTS and case["pass"] != "forward":
        raise UsageError(f"{layer} is measured forward", "whole layers have a backward")
    usual = part_case(layer, "", 1) if layer in PARTS else layer_case(layer, "", "", 1, 1)
    for name in sorted(set(usual) ^ set(case)):
        lacks = "needs the" if name in usual else "has no"
        raise UsageError(f"layer {layer!r} {lacks} case field {name!r}")


def layer_shape(case: Case) -> tuple[ModelShape, bool]:
    """Return a case's model shape, and whether its decoder block.  UsageError if none fits."""
    layer = str(case.get("layer"))
    if layer in PARTS:
        name, decoder = LAYERS[_BERT]
        hidden = size_of(case, "k")
        heads = size_of(case, "heads") if "heads" in case else 1
        ffn = size_of(case, "n") if "n" in case else 4 * hidden
    elif layer in LAYERS:
        name, decoder = LAYERS[layer]
        hidden, heads, ffn = (size_of(case, axis) for axis in ("hidden", "heads", "ffn"))
    else:
        raise UsageError(f"unknown layer {layer!r}", spec.one_of([*LAYERS, *PARTS]))
    if hidden % heads:
        raise UsageError(f"{heads} heads do not divide a width of {hidden}")
    shape = named(name).replace(
        hidden=hidden,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=hidden // heads,
        ffn=ffn,
    )
    return shape, decoder


def layer_tokens(case: Case) -> tuple[int, int]:
    """Return (batch, seq) of a case.  UsageError where m is no whole number of sequences."""
    if str(case.get("layer")) not in PARTS:
        return size_of(case, "batch_size"), size_of(case, "seq_len")
    tokens = size_of(case, "m")
    seq = size_of(case, "seq_len") if "seq_len" in case else _TOKENS
    if tokens % seq:
        if "seq_len" in case:
            raise UsageError(f"m = {tokens} tokens are no whole number of sequences of {seq}")
        return 1, tokens
    return tokens // seq, seq


def layer_ops(case: Case, kernels: str = "flash") -> tuple[Op, ...]:
    """Return the operations of one call, as model FLOPs count them; eager kernels keep scores."""
    shape, decoder = layer_shape(case)
    batch, seq = layer_tokens(case)
    pass_name = str(case.get("pass"))
    if pass_name not in PASSES:
        raise UsageError(f"unknown pass {pass_name!r}", "one of: " + ", ".join(PASSES))
    precision = str(case["dtype"])
    layout = Layout.of(batch_size=batch, seq_len=seq, precision=precision, kernels=kernels)
    phases = {*PASSES[pass_name]} - {"recompute"}
    ops = [op for op in block_ops(shape, layout, decoder=decoder) if op.phase in phases]
    wanted = PARTS.get(str(case["layer"]))
    if wanted is None:
        return tuple(ops)
    starts = tuple(f"block.{start}" for start in wanted)
    return tuple(op for op in ops if op.name.startswith(starts))


def layer_work(case: Case) -> Work:
    """FLOPs and counted bytes of one call."""
    ops = layer_ops(case)
    return Work(flops=sum(op.flops for op in ops), num_bytes=sum(op.num_bytes for op in ops))


def size_of(case: Case, axis: str) -> int:
    """Return a size of a case.  UsageError unless it is a whole number in range."""
    return spec.count_of("layer", case, axis, MAX_SIZE)


# ---- what is counted


def _memory(case: Case) -> int:
    """Weights and gradients, every result of the pass, and the check's wide copies."""
    batch, _ = layer_tokens(case)
    shape, decoder = layer_shape(case)
    size = dtype_bytes(str(case["dtype"]))
    wide = 4 if size == 2 else 8
    num_weights = block_parameters(shape, decoder=decoder)
    share = min(1.0, _SEQUENCES_CHECKED / batch)
    results = _result_bytes(case)
    checked = round(results * share * wide / size)
    return num_weights * (4 + 2 * size + 3 * wide) + results + checked


def _result_bytes(case: Case) -> int:
    """Return the bytes one pass writes; attention with a learned bias keeps its scores (T5)."""
    shape, _ = layer_shape(case)
    keeps = case.get("attention") in ("plain", "tiles") or shape.family == "t5"
    ops = layer_ops({**case, "pass": "forward"}, "eager" if keeps else "flash")
    written = sum(op.write_bytes for op in ops)
    # Scores are turned to fp32 and back; backward holds some gradients beside what it needs.
    return written * (2 if keeps else 1) + (written if case["pass"] != "forward" else 0)


# ---- what is run


OPS = {
    "bert-large": "BERT-large layer",
    "gpt2-medium": "GPT-2 medium block",
    "t5-large-encoder": "T5-large encoder block",
    "t5-large-decoder": "T5-large decoder block",
    "llama-7b": "Llama-7B block",
    "dense": "dense h->4h",
    "dense-gelu": "dense+GELU",
    "ffn": "FFN",
    "attention": "attention block",
}
"""Names of the operations in ``bench layer --op``."""

_BOTH = "forward+backward"
_BERT = "BERT-large layer"
_GPT2 = "GPT-2 medium block"
_BATCHES = (2, 4, 8, 16, 32, 64, 128)
_PART_TOKENS = 64 * 128


def _qualify(scope: spec.Scope) -> list[spec.PlannedCase]:
    if scope.is_small or scope.beside_gpus:
        return []
    native = scope.arithmetic.trained_in
    cases = gpu_cases() if scope.is_gpu else host_cases(native)
    required = cases[: 1 if scope.is_gpu else len(native)]
    return [_planned(case, required=case in required) for case in cases]


def _planned(case: Case, *, required: bool) -> spec.PlannedCase:
    """Plan a case, naming Hugging Face's block as such: it may not be installed."""
    owner = " of Hugging Face" if case["code"] == "huggingface" else ""
    step = f"{case['dtype']} {_name(case)}{owner}"
    return spec.PlannedCase(case=case, step=step, required=required)


def _name(case: Case) -> str:
    """Return the layer's name, with its width where that differs from the model of this name."""
    name, hidden = str(case.get("layer")), case.get("hidden")
    usual = named(LAYERS[name][0]).hidden if name in LAYERS else hidden
    return name if hidden in (None, usual) else f"{name} of width {hidden}"


def gpu_cases() -> list[Case]:
    """Return a GPU's cases, the required one first: fp16 as published, bf16 as trained today."""
    cases = [layer_case(_BERT, dtype, _BOTH, 64, 128) for dtype in ("fp16", "bf16")]
    # Which of them is trained follows from the card's memory: those that do not fit are left out.
    cases += [own_layer_case(model, "bf16", batch, seq) for model, batch, seq in GPU_SIZES]
    cases += [
        layer_case(_BERT, "fp16", pass_name, 64, 128, "huggingface")
        for pass_name in (_BOTH, "forward")
    ]
    cases += [layer_case(_BERT, "fp16", "forward", 64, 128)]
    cases += [
        layer_case(_BERT, "fp16", _BOTH, batch, 128, code) for code in CODES for batch in _BATCHES
    ]
    cases += [part_case(part, "fp16", _PART_TOKENS, code) for code in CODES for part in PARTS]
    for code in CODES:
        cases += [
            layer_case(_GPT2, "fp16", _BOTH, 32, 512, code),
            layer_case("T5-large encoder block", "fp16", _BOTH, 32, 512, code),
            layer_case("T5-large decoder block", "fp16", _BOTH, 32, 512, code),
            layer_case("Llama-7B block", "bf16", _BOTH, 4, 2048, code),
            layer_case(_BERT, "fp16", _BOTH, 32, 512, code),
        ]
    for code in CODES:  # the notebooks' rows: each model forward, then by batch both ways
        cases += [
            layer_case(layer, "fp16", pass_name, batch, 512, code)
            for batch in (32, 8, 2, 128)
            for layer in (_BERT, _GPT2, "T5-large encoder block", "T5-large decoder block")
            for pass_name in PASSES
        ]
    return list({tuple(case.items()): case for case in cases}.values())  # each once


def host_cases(dtypes: Sequence[str]) -> list[Case]:
    """Return a processor's cases, required ones first; few tokens: a call takes 0.1 s."""
    best = dtypes[-1]
    cases = [layer_case(_BERT, dtype, _BOTH, 2, 128) for dtype in dtypes]
    model, batch, seq = HOST_SIZES[0]
    cases += [own_layer_case(model, dtype, batch, seq) for dtype in dtypes]
    cases += [part_case(part, best, 2 * 128) for part in PARTS]
    cases += [layer_case(_BERT, best, _BOTH, 2, 128, "huggingface")]
    cases += [layer_case(_BERT, best, _BOTH, batch, 128) for batch in (4, 8)]
    cases += [
        layer_case(layer, best, _BOTH, 2, 128)
        for layer in (_GPT2, "T5-large encoder block", "T5-large decoder block")
    ]
    return cases


def _select(selection: spec.Selection) -> list[spec.PlannedCase]:
    """Select cases of both codes, forward alone and with backward."""
    spec.check_options("layer", "--op", selection.ops, tuple(OPS))
    spec.check_options("layer", "--dtype", selection.dtypes, DTYPES)
    cases: list[Case] = []
    for layer in (OPS[op] for op in selection.ops or ("bert-large",)):
        for size in selection.sizes or ("2x128",):
            batch_size, seq_len = spec.sizes_of(size, (2,), MAX_SIZE, "batch x sequence, as 64x128")
            for dtype in selection.dtypes or selection.arithmetic.trained_in:
                cases += _of_layer(layer, dtype, batch_size, seq_len)
    return [_planned(case, required=case["code"] == "trainrig") for case in cases]


def _of_layer(layer: str, dtype: str, batch: int, seq: int) -> list[Case]:
    if layer not in PARTS:
        return [
            layer_case(layer, dtype, pass_name, batch, seq, code)
            for code in CODES
            for pass_name in PASSES
        ]
    cases = [part_case(layer, dtype, batch * seq, code) for code in CODES]
    return [{**case, "seq_len": seq} if "seq_len" in case else case for case in cases]


# ---- what is shown


_NAMED = ("dtype", "layer")


def _label(case: Case) -> str:
    named = [str(case[name]) if name == "dtype" else _name(case) for name in _NAMED if name in case]
    words = [" ".join(named), *spec.sizes_text(case)]
    if "m" in case:
        words.append(f"{case['m']} tokens")
    if case.get("code") == "huggingface":
        words.append("Hugging Face's")
    return ", ".join(filter(None, [*words, str(case.get("pass", "")).replace("+", " + ")]))


def _is_large(case: Case) -> bool:
    tokens = spec.number_in(case, "batch_size") * spec.number_in(case, "seq_len")
    return max(tokens, spec.number_in(case, "m")) >= LARGE


BENCHMARK = spec.Benchmark(
    name="layer",
    version=2,
    title="blocks of transformers and their parts",
    order=40,
    module="trainrig.measure.layer",
    role=spec.Role.BLOCK,
    example=layer_case("BERT-large layer", "bf16", "forward+backward", 2, 128),
    fields={
        "layer": (*LAYERS, *PARTS),
        "dtype": DTYPES,
        "pass": tuple(PASSES),
        "code": CODES,
    },
    optional={
        "attention": ATTENTIONS,
        "cache": ("hot",),
        **dict.fromkeys(("batch_size", "seq_len", "hidden", "heads", "ffn"), MAX_SIZE),
        **dict.fromkeys("mkn", MAX_SIZE),
    },
    check_more=_check_more,
    work=layer_work,
    metrics=lambda case: (spec.flop_rate(layer_work(case), "model FLOPs of the layer / time"),),
    memory=_memory,
    # A reference is computed in a wider type, which takes a few calls' time more.
    cost=spec.CaseCost(
        first_case=lambda case: _IMPORT if case.get("code") == "huggingface" else 0.0, calls=8.0
    ),
    qualify=_qualify,
    weight=3.0,
    options={
        "dtype": " ".join(DTYPES),
        "size": "batch x sequence: 64x128",
        "op": ", ".join(OPS),
        "device": "",
    },
    select=_select,
    label=_label,
    sizes=frozenset(["batch_size", "seq_len", "m", "k", "n"]),
    levels=(
        spec.LevelRule(
            quantity=spec.COMPUTE,
            name="Best layer",
            order=40,
            fits=lambda case, _: case.get("pass") == "forward+backward",
        ),
    ),
    claim=spec.peak_claim,
    is_large=_is_large,
    # Shape and code decide how near a layer comes to the peak: the very case.
    nature=lambda case: tuple(f"{name} {case[name]}" for name in sorted(case) if name != "dtype"),
)
