"""Transformer layers as tasks: which of them a qualification runs, and what `bench` may ask for.

One telling case is required: our BERT-large layer, forward and backward.  After it come Hugging
Face's, the row of growing batches that shows where launches end and arithmetic begins, the parts
of a layer, and the other models' blocks, as far as the time goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trainrig.errors import UsageError
from trainrig.measure.layer import DTYPES, layer_case, part_case
from trainrig.measure.layer_blocks import CODES
from trainrig.record import Case
from trainrig.workload.layers import MAX_SIZE, PARTS, PASSES

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
"""What ``bench layer --op`` calls them."""

_BOTH = "forward+backward"
_BERT = "BERT-large layer"
_BATCHES = (2, 4, 8, 16, 32, 64, 128)
_PART_TOKENS = 64 * 128


def gpu_required() -> list[Case]:
    """What a qualification of a GPU cannot do without."""
    return [layer_case(_BERT, "fp16", _BOTH, 64, 128)]


def gpu_cases() -> list[Case]:
    """A GPU's, the required one first: fp16 as published, bf16 as trained today."""
    cases = [*gpu_required(), layer_case(_BERT, "bf16", _BOTH, 64, 128)]
    cases += [layer_case(_BERT, "fp16", how, 64, 128, "huggingface") for how in (_BOTH, "forward")]
    cases += [layer_case(_BERT, "fp16", "forward", 64, 128)]
    cases += [
        layer_case(_BERT, "fp16", _BOTH, batch, 128, code) for code in CODES for batch in _BATCHES
    ]
    cases += [part_case(part, "fp16", _PART_TOKENS, code) for code in CODES for part in PARTS]
    for code in CODES:
        cases += [
            layer_case("GPT-2 medium block", "fp16", _BOTH, 32, 512, code),
            layer_case("T5-large encoder block", "fp16", _BOTH, 32, 512, code),
            layer_case("T5-large decoder block", "fp16", _BOTH, 32, 512, code),
            layer_case("Llama-7B block", "bf16", _BOTH, 4, 2048, code),
            layer_case(_BERT, "fp16", _BOTH, 32, 512, code),
        ]
    return _once(cases)


def host_required(dtypes: Sequence[str]) -> list[Case]:
    """What a qualification of a processor cannot do without, in its native dtypes."""
    return [layer_case(_BERT, dtype, _BOTH, 2, 128) for dtype in dtypes]


def host_cases(dtypes: Sequence[str]) -> list[Case]:
    """A processor's: few tokens, since a call takes a tenth of a second on two cores."""
    best = dtypes[-1]
    cases = host_required(dtypes)
    cases += [part_case(part, best, 2 * 128) for part in PARTS]
    cases += [layer_case(_BERT, best, _BOTH, 2, 128, "huggingface")]
    cases += [layer_case(_BERT, best, _BOTH, batch, 128) for batch in (4, 8)]
    cases += [
        layer_case(layer, best, _BOTH, 2, 128)
        for layer in ("GPT-2 medium block", "T5-large encoder block", "T5-large decoder block")
    ]
    return cases


def step_name(case: Case) -> str:
    """``fp16 BERT-large layer``; theirs by its own name: it may not be installed."""
    theirs = " of Hugging Face" if case["code"] == "huggingface" else ""
    return f"{case['dtype']} {case['layer']}{theirs}"


def asked_cases(ops: Sequence[str], sizes: Sequence[str], dtypes: Sequence[str]) -> list[Case]:
    """The cases that `bench layer` was asked for, of both codes, forward and with backward.

    ``sizes``: batch x sequence, ``64x128``.  Raises UsageError for unknown words.
    """
    for op in ops:
        if op not in OPS:
            raise UsageError(f"unknown --op {op!r} for layer", "one of: " + ", ".join(OPS))
    for dtype in dtypes:
        if dtype not in DTYPES:
            raise UsageError(f"unknown dtype {dtype!r} for layer", "one of: " + ", ".join(DTYPES))
    cases: list[Case] = []
    for layer in (OPS[op] for op in ops or ("bert-large",)):
        for batch, seq in map(_batch_and_seq, sizes or ("2x128",)):
            for dtype in dtypes or ("fp32", "bf16"):
                cases += _of_layer(layer, dtype, batch, seq)
    return cases


def _of_layer(layer: str, dtype: str, batch: int, seq: int) -> list[Case]:
    if layer not in PARTS:
        return [layer_case(layer, dtype, how, batch, seq, code) for code in CODES for how in PASSES]
    cases = [part_case(layer, dtype, batch * seq, code) for code in CODES]
    return [{**case, "seq_len": seq} if "seq_len" in case else case for case in cases]


def _batch_and_seq(text: str) -> tuple[int, int]:
    batch, x, seq = text.lower().replace("×", "x").partition("x")
    if not (x and batch.isdecimal() and seq.isdecimal()):
        raise UsageError(f"not a layer's size: {text!r}", "batch x sequence, as 64x128")
    for number in (batch, seq):
        if not 1 <= int(number) <= MAX_SIZE:
            raise UsageError(f"not a layer's size: {text!r}", f"from 1 to {MAX_SIZE} each")
    return int(batch), int(seq)


def _once(cases: Iterable[Case]) -> list[Case]:
    """Each case where it stands first."""
    return list({tuple(sorted(case.items())): case for case in cases}.values())
