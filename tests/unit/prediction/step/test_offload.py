"""What is offloaded runs beside the device as far as its framework lets it, and no further."""

from __future__ import annotations

import numpy as np
import pytest

from trainrig.catalog import require_chip
from trainrig.prediction.rates.from_chip import rates_of_chip
from trainrig.prediction.step import predict_step
from trainrig.prediction.step.communication import MeshSizes
from trainrig.prediction.step.offload import offloaded
from trainrig.workload import named
from trainrig.workload.layout import Layout
from trainrig.workload.layout.groups import OFFLOAD_OVERLAP

SHAPE = named("llama-1B")
RATES = rates_of_chip(require_chip("A100 SXM4 80GB"))
DEEPSPEED = Layout.of(
    gpus=8, zero=2, batch_size=8, grad_accum=4, framework="deepspeed", offload="host", seq_len=2048
)
FSDP = DEEPSPEED.replace(framework="torchtitan", zero=3)


def waits(layout: Layout, how: str = "auto") -> float:
    return float(predict_step(SHAPE, layout.replace(offload_overlap=how), RATES).offload)


@pytest.mark.parametrize("layout", [DEEPSPEED, FSDP, DEEPSPEED.replace(offload="disk")])
def test_more_overlap_never_waits_longer(layout: Layout) -> None:
    none, copies, update, delayed = (waits(layout, how) for how in OFFLOAD_OVERLAP[1:])
    assert none > copies >= update
    assert copies > delayed
    pieces = offloaded(MeshSizes(SHAPE, layout.replace(offload_overlap="none")), RATES)
    each = pieces.forward + pieces.backward + pieces.gradients
    assert none == pytest.approx(4 * each + pieces.once + pieces.update + pieces.back)
    pieces = offloaded(MeshSizes(SHAPE, layout.replace(offload_overlap="copies")), RATES)
    assert copies >= pieces.update + pieces.back, "an update waits for its gradients' norm"


def test_what_is_longer_than_the_computation_is_waited_for() -> None:
    """A step of one short sequence has nothing to hide a copy of the weights behind."""
    short = FSDP.replace(batch_size=1, seq_len=16)
    pieces = offloaded(MeshSizes(SHAPE, short), RATES)
    alone = predict_step(SHAPE, short.replace(offload="none"), RATES)
    passed = float(alone.forward + alone.backward + alone.gaps)
    copied = 4 * (pieces.forward + max(pieces.backward, pieces.gradients))
    assert waits(short) > copied - passed + pieces.update


@pytest.mark.parametrize(
    ("framework", "zero", "usual"),
    [
        ("deepspeed", 3, "copies"),
        ("deepspeed", 1, "none"),  # gradients leave when backward is over
        ("torchtitan", 3, "copies"),
        ("huggingface", 3, "none"),
        ("megatron", 1, "none"),
    ],
)
def test_defaults_are_the_frameworks(framework: str, zero: int, usual: str) -> None:
    layout = DEEPSPEED.replace(framework=framework, zero=zero)
    assert waits(layout) == waits(layout, usual)
    assert waits(layout, "none") > waits(layout, "copies")


def test_many_layouts_at_once_wait_as_long_as_each() -> None:
    sizes = np.array([1, 4, 64])
    many = predict_step(SHAPE, DEEPSPEED.replace(batch_size=sizes), RATES).offload
    each = [waits(DEEPSPEED.replace(batch_size=int(size))) for size in sizes]
    assert many == pytest.approx(each)


def test_deepspeed_adds_micro_batches_up_on_the_host() -> None:
    """From the second on what is there crosses twice; with ZeRO 2 one owner after the other."""
    mesh = MeshSizes(SHAPE, DEEPSPEED.replace(grad_accum=4))
    link, half = RATES.host_link, 2.0 * mesh.trained  # bytes in 16 bit
    second = offloaded(mesh, RATES)
    buckets = mesh.trained / 2e8
    in_turn = min(2e8, mesh.trained / 8) * buckets / (mesh.trained / 8)
    assert in_turn > 5, "an eighth of the model is less than a bucket"
    assert second.gradients == pytest.approx(in_turn * half / 8 * (2 * 3 / 4) / link)
    assert second.once == pytest.approx(in_turn * 2 * half / 8 / link), "the last one, in fp32"
    third = offloaded(MeshSizes(SHAPE, DEEPSPEED.replace(zero=3)), RATES)
    assert third.gradients == pytest.approx(half / 8 * 2 / link), "all ranks at once"
    alone = offloaded(MeshSizes(SHAPE, DEEPSPEED.replace(grad_accum=1)), RATES)
    assert alone.gradients == 0
    megatron = DEEPSPEED.replace(framework="megatron", zero=1)
    other = offloaded(MeshSizes(SHAPE, megatron), RATES)
    assert second.update == pytest.approx(1.5 * other.update), "it also clips and narrows there"


def test_two_cards_of_a_desktop_share_lanes_and_channels() -> None:
    card = rates_of_chip(require_chip("RTX 4090"))
    one, two = card.offload(1e9), card.offload(1e9, devices=2)
    assert two == pytest.approx(2 * one)
    assert RATES.offload(1e9) == RATES.offload(1e9, devices=8), "a server has lanes for each"
    assert card.host_memory < RATES.host_memory / 2


def test_a_bucket_that_is_the_whole_model_hides_nothing() -> None:
    small = DEEPSPEED.replace(offload="none", batch_size=64)
    found = {
        name: predict_step(named(name), small.replace(seq_len=512), RATES)
        for name in ("gpt2", "llama-1B")
    }
    shares = {
        name: float(one.overlapped / (one.overlapped + one.data_comm))
        for name, one in found.items()
    }
    assert shares["gpt2"] == 0 < shares["llama-1B"]
