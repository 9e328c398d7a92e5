"""What a training step is made of: every operation with its FLOPs and bytes, and their sums.

Model FLOPs are what the mathematics needs: forward, and backward as twice that; they are the
numerator of MFU.  Hardware FLOPs add what is computed a second time (checkpointing, and the scores
inside a fused attention's backward); they are the numerator of HFU.  Matrix products alone have
FLOPs; everything else has bytes.  Equal, as integers, to what torch's FlopCounterMode counts in
our models and in Hugging Face's.

Each layer counts as what it is.  Causal attention to all of n tokens counts in full, 4n an element
of the heads and token (2n where asked for by ``half``); of a window w it looks at min(w, n) tokens,
on average w - w²/2n where counted by half; a state is written and read (`operators.state_kernels`),
which no length changes.

Counted although some leave it out: BERT's masked-language-model head (2bsh² + 2bshV, over all
tokens and not only the masked ones).  Not counted: BERT's pooler (not trained here), T5's relative
position bias and Llama's rotary angles (look-ups and additions, no product of matrices).  Counted
in full: GPT-Neo's local layers, which our code and Hugging Face's compute in full and mask, and
windows where no kernel skips what lies outside them (hardware FLOPs alone).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from trainrig.workload.blocks import block, embed, head
from trainrig.workload.layout import Layout, check_sizes
from trainrig.workload.model import BlockKind, ModelShape, block_kinds, parameters
from trainrig.workload.operators import Cost, Operator, dtype_bytes, norm

_WEIGHT = 4
"""Bytes of a weight, a gradient and each of the optimizer's two moments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One operation of a step."""

    name: str
    kind: str
    """matmul, attention, softmax, elementwise, norm, embedding, cross_entropy, cast, optimizer."""
    phase: str
    """forward, backward, recompute or optimizer."""
    flops: int
    """FLOPs of one call."""
    read_bytes: int
    write_bytes: int
    count: int = 1
    """Calls in a step."""

    @property
    def num_bytes(self) -> int:
        return self.read_bytes + self.write_bytes


def step_ops(shape: ModelShape, layout: Layout, *, half: bool = False) -> tuple[Op, ...]:
    """Return operations of one step in the order of their first calls; blocks once for each kind.

    ``half``: of causal attention the scores that are seen count alone.
    """
    check_sizes(layout)
    sections = _sections(shape, layout, half)
    ops = [op for section in sections for op in section.in_phase("forward")]
    for section in reversed(sections):
        if section.is_block:
            ops += section.recomputed(layout.memory.recompute)
        ops += section.in_phase("backward")
    size = parameters(shape).total * _WEIGHT
    # Clipping reads the gradients once; AdamW reads four arrays and writes three.
    clip = _on_weights("clip", "optimizer", "optimizer", size, 0)
    adamw = _on_weights("adamw", "optimizer", "optimizer", 4 * size, 3 * size)
    return (*_casts(shape, layout), *ops, clip, adamw)


def block_ops(shape: ModelShape, layout: Layout, *, decoder: bool = False) -> tuple[Op, ...]:
    """Return the operations of one block by itself, without an optimizer."""
    check_sizes(layout)
    section = _Section("block", block(shape, layout, decoder=decoder), 1, is_block=True)
    return (
        *section.in_phase("forward"),
        *section.recomputed(layout.memory.recompute),
        *section.in_phase("backward"),
    )


def total_flops(ops: Iterable[Op], *phases: str) -> int:
    """FLOPs of all calls, of the given phases or of all."""
    return sum(op.flops * op.count for op in ops if not phases or op.phase in phases)


def model_flops(
    shape: ModelShape, batch: int, seq: int, *, half: bool = False, **words: Any
) -> int:
    """FLOPs that the mathematics of a step needs; ``words`` are fields of `Layout`.

    What is recomputed does not change it, nor does what runs it (``kernels``).  ``half``: of causal
    attention the scores that are seen count alone.
    """
    words["kernels"] = "flash"  # of a window nothing outside it is needed
    ops = step_ops(shape, Layout.of(batch_size=batch, seq_len=seq, **words), half=half)
    return total_flops(ops, "forward", "backward")


def hardware_flops(
    shape: ModelShape, batch: int, seq: int, *, half: bool = False, **words: Any
) -> int:
    """FLOPs that the device computes: the model's, and what is computed a second time."""
    layout = Layout.of(batch_size=batch, seq_len=seq, **words)
    return total_flops(step_ops(shape, layout, half=half))


@dataclass(frozen=True, slots=True)
class _Section:
    """Parts that run together, ``count`` times."""

    name: str
    parts: list[Operator]
    count: int
    is_block: bool = False

    def in_phase(self, phase: str) -> list[Op]:
        if phase == "forward":
            return [self._op(part, phase, part.forward) for part in self.parts]
        ops = []
        for part in reversed(self.parts):
            if part.backward.again:
                again = Cost(flops=part.backward.again, read_bytes=0, write_bytes=0)
                ops.append(self._op(part, "recompute", again))
            ops.append(self._op(part, phase, part.backward))
        return ops

    def recomputed(self, how: str) -> list[Op]:
        """Return the part that checkpointing runs once more before this section's backward."""
        parts = [] if how == "none" else until_saved(self.parts)
        if how == "selective":
            parts = [part for part in parts if part.kind not in ("matmul", "attention")]
        return [self._op(part, "recompute", part.forward) for part in parts]

    def _op(self, part: Operator, phase: str, cost: Cost) -> Op:
        return Op(
            name=f"{self.name}.{part.name}",
            kind=part.kind,
            phase=phase,
            flops=cost.flops,
            read_bytes=cost.read_bytes,
            write_bytes=cost.write_bytes,
            count=self.count,
        )


def until_saved(parts: list[Operator]) -> list[Operator]:
    """Return a block up to the last thing that backward needs, where torch stops recomputing.

    An addition needs nothing, and a matmul its inputs but not its result: a block that ends
    `down(…) + x` does not run `down` again.
    """
    parts = list(parts)
    while parts and parts[-1].name.endswith(".residual"):
        parts.pop()
    if parts and parts[-1].kind == "matmul":
        parts.pop()
    return parts


def _sections(shape: ModelShape, layout: Layout, half: bool) -> list[_Section]:
    logits = head(shape, layout)
    blocks = [_blocks(shape, layout, kind, half) for kind in block_kinds(shape)]
    if shape.family != "t5":
        return [
            _Section("model", embed(shape, layout, layout.part_of_sequence), 1),
            *blocks,
            _Section("model", logits, 1),
        ]
    last = norm(
        "norm",
        int(layout.batch.micro) * layout.batch.seq_len,
        shape.hidden,
        layout.precision.compute,
    )
    return [
        _Section("encoder", embed(shape, layout, layout.part_of_sequence), 1),
        *blocks[:-1],
        _Section("encoder", [last], 1),
        _Section("decoder", embed(shape, layout, layout.batch.written), 1),
        blocks[-1],
        _Section("decoder", logits, 1),
    ]


def _blocks(shape: ModelShape, layout: Layout, kind: BlockKind, half: bool) -> _Section:
    """Blocks of one kind; their name tells it from others of the model."""
    window = 0 if shape.family == "gpt-neo" else kind.window  # which is computed and masked
    parts = block(shape, layout, decoder=kind.decoder, dense=kind.dense, half=half, window=window)
    name = {"t5": "decoder.block" if kind.decoder else "encoder.block"}.get(shape.family, "block")
    name += ".dense" * kind.dense
    if kind.window:
        name += ".state" if shape.state.width else f".window{kind.window}"
    return _Section(name, parts, kind.num, is_block=True)


def _casts(shape: ModelShape, layout: Layout) -> list[Op]:
    """Weights kept wider than they are computed in are narrowed once a step."""
    if layout.precision.compute == "fp32":
        return []
    num = parameters(shape).total
    wide, narrow = num * _WEIGHT, num * dtype_bytes(layout.precision.compute)
    down = _on_weights("cast.weights", "cast", "forward", wide, narrow)
    up = _on_weights("cast.gradients", "cast", "backward", narrow, wide)
    return [down, up]


def _on_weights(name: str, kind: str, phase: str, read_bytes: int, write_bytes: int) -> Op:
    return Op(
        name=name, kind=kind, phase=phase, flops=0, read_bytes=read_bytes, write_bytes=write_bytes
    )
