"""What must hold of every prediction: parts and their sums, sizes and their products."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainrig.catalog import require_chip
from trainrig.errors import UsageError
from trainrig.prediction.rates.from_chip import rates_of_chip
from trainrig.prediction.step import PARTS, predict_step
from trainrig.workload import named
from trainrig.workload.layout import Layout, check_layout

EXAMPLES = settings(max_examples=25, deadline=None)
CHIPS = [require_chip(name) for name in ("RTX 4090", "A100 SXM4 80GB", "H100 SXM5 80GB")]
SHAPES = [named(name) for name in ("gpt2-medium", "llama-1B", "bert-large", "t5-base")]
POWERS = st.sampled_from([1, 2, 4, 8])


@st.composite
def legal_layouts(draw) -> tuple[object, Layout]:
    """A model and a layout of it that can be run."""
    shape = draw(st.sampled_from(SHAPES))
    tp, pp = draw(POWERS), draw(POWERS) if shape.family != "t5" else 1
    dp = draw(POWERS)
    zero = draw(st.sampled_from([0, 1] if pp > 1 else [0, 1, 2, 3]))
    gpus = tp * pp * dp
    layout = Layout.of(
        gpus=gpus, gpus_per_node=min(gpus, 8), tp=tp, pp=pp, zero=zero,
        sequence_parallel=draw(st.sampled_from([0, 1])) if tp > 1 else 0,
        batch_size=draw(st.sampled_from([1, 2, 5])), grad_accum=draw(st.sampled_from([1, 4, 8])),
        recompute=draw(st.sampled_from(["none", "selective", "full"])),
        kernels=draw(st.sampled_from(["eager", "fused", "flash", "flash+fused"])),
        seq_len=512,
    )  # fmt: skip
    layout = layout.replace(framework=layout.usual_framework)
    try:
        check_layout(shape, layout)
    except UsageError:  # fewer heads than parts
        layout = layout.replace(tp=1, gpus=pp * dp, gpus_per_node=min(pp * dp, 8))
        layout = layout.replace(sequence_parallel=0)
        layout = layout.replace(framework=layout.usual_framework)
        check_layout(shape, layout)
    return shape, layout


@given(asked=legal_layouts(), chip=st.sampled_from(CHIPS))
@EXAMPLES
def test_parts_are_not_negative_and_sum_to_the_whole(asked, chip) -> None:
    shape, layout = asked
    step = predict_step(shape, layout, rates_of_chip(chip))
    parts = {name: float(getattr(step, name)) for name in PARTS}
    assert all(value >= 0.0 for value in parts.values())
    assert sum(parts.values()) == pytest.approx(float(step.total))
    low, high = step.interval
    assert 0.0 < low < step.total < high
    if layout.mesh.tp == 1:
        assert parts["tensor_comm"] == 0.0
    if layout.mesh.pp == 1:
        assert parts["bubble"] == parts["pipeline_comm"] == 0.0
    if layout.mesh.gpus == 1:
        assert parts["data_comm"] == 0.0
    if layout.memory.recompute == "none":
        assert parts["recompute"] == 0.0
    assert layout.mesh.tp * layout.mesh.pp * layout.mesh.dp == layout.mesh.gpus
    assert layout.global_batch == layout.batch.micro * layout.batch.grad_accum * layout.mesh.dp


@given(
    shape=st.sampled_from(SHAPES), chip=st.sampled_from(CHIPS), batch=st.sampled_from([1, 4, 16])
)
@EXAMPLES
def test_without_communication_a_step_is_its_micro_batches_and_an_update(
    shape, chip, batch
) -> None:
    """T(m) = m · (forward + backward) + optimizer: linear in m, the same optimizer throughout."""
    one = Layout.of(gpus=1, gpus_per_node=1, batch_size=batch, seq_len=512, framework="native")
    rates = rates_of_chip(chip)
    steps = [predict_step(shape, one.replace(grad_accum=m), rates) for m in (2, 3, 4)]
    times = [float(step.total) for step in steps]
    assert times[2] - times[1] == pytest.approx(times[1] - times[0], rel=1e-9)
    for m, step in zip((2, 3, 4), steps, strict=True):
        once = (step.forward + step.backward + step.gaps) / m
        assert float(step.total) == pytest.approx(m * once + step.optimizer + step.data)
    assert steps[0].optimizer == steps[2].optimizer


@given(
    shape=st.sampled_from(SHAPES[:2]), chip=st.sampled_from(CHIPS), m=st.sampled_from([4, 8, 16])
)
@EXAMPLES
def test_the_bubble_shrinks_with_micro_batches_and_interleaving(shape, chip, m) -> None:
    rates = rates_of_chip(chip)
    base = Layout.of(gpus=4, gpus_per_node=4, pp=4, seq_len=512, framework="megatron", grad_accum=m)
    plain = predict_step(shape, base, rates)
    longer = predict_step(shape, base.replace(grad_accum=2 * m), rates)
    dealt = predict_step(shape, base.replace(interleave=2), rates)
    assert longer.bubble / longer.total < plain.bubble / plain.total
    assert dealt.bubble < plain.bubble
    assert dealt.pipeline_comm >= plain.pipeline_comm
