"""layer: how fast one block of a transformer goes, forward, or forward and backward.

Definition: one call is one pass of a block (BERT-large, GPT-2 medium, T5-large encoder or
decoder, Llama 7B) or of a part of a BERT layer, on (batch, seq, hidden) random hidden states, the
same buffers in every call: ours, or Hugging Face's class built from a configuration.  Forward is
as in training: autograd notes what backward needs.  Backward computes new gradients of the
inputs and of all weights.  No dropout, no optimizer.  flop_rate: model FLOPs of the block
(`workload`) over the median time of a call.  Per device.

The names and numbers of a case are those of the published tables, whose layers are Hugging
Face's with plain attention: ``code`` and ``attention`` say whose code ran, and how attention was
computed.  The answer is checked in `layer_check`.
"""

from __future__ import annotations

from trainrig.errors import UsageError
from trainrig.measure.family import Family, Metric, Prepared, Unsupported
from trainrig.measure.layer_blocks import ATTENTIONS, CODES
from trainrig.record import Case, Scalar
from trainrig.workload import Work, block_parameters, dtype_bytes
from trainrig.workload.layers import (
    PARTS,
    PASSES,
    layer_numbers,
    layer_ops,
    layer_shape,
    layer_tokens,
    layer_work,
)

DTYPES = ("fp32", "tf32", "bf16", "fp16")
WHOLE = frozenset(
    [
        "layer",
        "dtype",
        "pass",
        "batch_size",
        "seq_len",
        "hidden",
        "heads",
        "ffn",
        "code",
        "attention",
    ]
)
_PART = frozenset(["layer", "dtype", "pass", "m", "k", "cache", "code"])
PART = {
    "dense h->4h": _PART | {"n"},
    "dense+GELU": _PART | {"n"},
    "FFN": _PART,
    "attention block": _PART | {"seq_len", "heads", "attention"},
}
"""Fields of the parts of a layer, as the published tables state them."""
_SEQUENCES_CHECKED = 2


def layer_case(
    layer: str, dtype: str, passes: str, batch: int, seq: int, code: str = "trainrig"
) -> Case:
    """A whole layer in its model's own size; theirs with the published tables' attention."""
    return {
        "layer": layer,
        "dtype": dtype,
        "pass": passes,
        "batch_size": batch,
        "seq_len": seq,
        **layer_numbers(layer),
        "code": code,
        "attention": _usual_attention(code),
    }


def part_case(part: str, dtype: str, num_tokens: int, code: str = "trainrig") -> Case:
    """A part of a BERT-large layer on so many tokens, in sequences of 128."""
    numbers = layer_numbers("BERT-large layer")
    case: dict[str, Scalar] = {"layer": part, "dtype": dtype, "pass": "forward", "cache": "hot"}
    case |= {"code": code, "m": num_tokens, "k": numbers["hidden"]}
    if part.startswith("dense"):
        case["n"] = numbers["ffn"]
    elif part == "attention block":
        case |= {"seq_len": 128, "heads": numbers["heads"], "attention": _usual_attention(code)}
    return case


def _usual_attention(code: str) -> str:
    """Fused in ours; theirs as it was in the published tables."""
    return "plain" if code == "huggingface" else "fused"


def _check(case: Case) -> None:
    _check_choice(case, "dtype", DTYPES)
    _check_choice(case, "pass", tuple(PASSES))
    _check_choice(case, "code", CODES)
    layer_shape(case)
    layer_tokens(case)
    layer = str(case["layer"])
    fields = PART.get(layer, WHOLE)
    if layer in PARTS and case["pass"] != "forward":
        raise UsageError(f"{layer} is measured forward", "whole layers have a backward")
    if "attention" in fields:
        _check_choice(case, "attention", tuple(ATTENTIONS))
    if "cache" in fields:
        _check_choice(case, "cache", ("hot",))
    for name in sorted(fields ^ set(case)):
        lacks = "needs the" if name in fields else "has no"
        raise UsageError(f"layer {layer!r} {lacks} case field {name!r}")


def _check_choice(case: Case, field: str, known: tuple[str, ...]) -> None:
    if case.get(field) not in known:
        raise UsageError(
            f"unknown {field} {case.get(field)!r} for layer", "one of: " + ", ".join(known)
        )


def _work(case: Case) -> Work:
    return layer_work(case)


def _metrics(case: Case) -> tuple[Metric, ...]:
    flops = _work(case).flops
    formula = "model FLOPs of the layer / time"
    return (Metric(name="flop_rate", unit="FLOP/s", amount=flops, formula=formula),)


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
    """What one pass writes; attention with a bias that is learned keeps its scores (T5)."""
    shape, _ = layer_shape(case)
    keeps = case.get("attention") == "plain" or shape.family == "t5"
    ops = layer_ops({**case, "pass": "forward"}, "plain" if keeps else "fused")
    written = sum(op.write_bytes for op in ops)
    # Scores are turned to fp32 and back; backward holds some gradients beside what it needs.
    return written * (2 if keeps else 1) + (written if case["pass"] != "forward" else 0)


def _prepare(case: Case, device: str) -> Prepared:
    from trainrig.measure.layer_check import prepare

    if case["dtype"] == "tf32" and device == "cpu":
        raise Unsupported("tf32 is a mode of NVIDIA's tensor cores; this is a CPU")
    try:
        return prepare(case, device)
    except (NotImplementedError, RuntimeError) as error:
        if "not implemented" not in str(error):
            raise
        reason = str(error).splitlines()[0][:160]
        raise Unsupported(f"{case['dtype']} layers do not run here: {reason}") from None


FAMILY = Family(
    name="layer",
    version=2,
    check=_check,
    work=_work,
    metrics=_metrics,
    memory=_memory,
    prepare=_prepare,
)
