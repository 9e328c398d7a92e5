"""The time of a step: what must hold whatever the constants are, and the classic story."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainrig.catalog import find_chip
from trainrig.prediction.rates import Rates
from trainrig.prediction.rates.from_chip import rates_of_chip, with_plain_attention
from trainrig.prediction.step import PARTS, StepTime, predict_step
from trainrig.prediction.step.calibration import fitted
from trainrig.prediction.step.compute import DeviceTimes, device_times
from trainrig.workload import custom, named
from trainrig.workload.layout import SIZES, Layout

GPT = custom("gpt2", num_layers=16, hidden=1024, num_heads=16, vocab=1024)
SMALL = named("gpt2")


def rates(name: str = "A100 SXM4 80GB", **where: Any) -> Rates:
    chip = find_chip(name)
    assert chip is not None
    return rates_of_chip(chip, **({"fabric": 200e9} | where))


A100 = rates()


def seconds(**words: Any) -> StepTime:
    shape = words.pop("shape", GPT)
    return predict_step(shape, Layout.of(**words), words.pop("rates", A100))


LAYOUTS = st.fixed_dictionaries(
    {
        "tp": st.sampled_from([1, 2, 4, 8]),
        "pp": st.sampled_from([1, 2, 4]),
        "batch_size": st.sampled_from([1, 2, 8]),
        "grad_accum": st.sampled_from([1, 4, 16]),
        "zero": st.sampled_from([0, 1]),
        "sequence_parallel": st.sampled_from([0, 1]),
    }
)
WORDS = st.fixed_dictionaries(
    {
        "framework": st.sampled_from(["native", "huggingface", "megatron", "deepspeed"]),
        "recompute": st.sampled_from(["none", "selective", "full"]),
        "kernels": st.sampled_from(["eager", "fused", "flash", "flash+fused", "compiled"]),
        "precision": st.sampled_from(["bf16", "fp16", "fp32", "tf32", "fp8"]),
    }
)


def close(a: Any, b: Any) -> None:
    np.testing.assert_allclose(a, b, rtol=1e-9)


@given(LAYOUTS, WORDS)
@settings(max_examples=40)
def test_parts_are_never_negative_and_add_up(sizes: dict[str, int], words: dict[str, str]) -> None:
    found = seconds(gpus=64, **sizes, **words)
    parts = [getattr(found, name) for name in PARTS]
    assert all(part >= 0.0 for part in parts)
    assert all(isinstance(part, float) for part in parts)
    close(found.total, sum(parts))
    low, high = found.interval
    assert 0.0 < low < found.total < high


@given(st.lists(LAYOUTS, min_size=2, max_size=5), WORDS)
@settings(max_examples=20)
def test_arrays_equal_scalars(sizes: list[dict[str, int]], words: dict[str, str]) -> None:
    arrays = {name: np.array([one[name] for one in sizes]) for name in sizes[0]}
    many = predict_step(GPT, Layout.of(gpus=64, **arrays, **words), A100)
    for at, one in enumerate(sizes):
        alone = seconds(gpus=64, **one, **words)
        for name in (*PARTS, "overlapped", "faster", "slower"):
            close(getattr(many, name)[at], getattr(alone, name))


def test_many_layouts_are_cut_into_chunks_and_joined() -> None:
    batches = np.tile([1, 2, 4], 10_000)
    found = predict_step(GPT, Layout.of(gpus=8, batch_size=batches), A100)
    assert found.total.shape == (30_000,)
    close(found.total[:3], found.total[-3:])
    assert found.total[0] < found.total[1] < found.total[2]


@given(LAYOUTS, WORDS, st.floats(1.0, 20.0))
@settings(max_examples=30)
def test_more_bandwidth_is_never_slower(
    sizes: dict[str, int], words: dict[str, str], factor: float
) -> None:
    layout = Layout.of(gpus=64, **sizes, **words)
    slow = predict_step(GPT, layout, A100).total
    for better in (
        rates(fabric=200e9 * factor),
        A100.replace(
            links=dataclasses.replace(
                A100.links,
                inside=dataclasses.replace(
                    A100.links.inside, bandwidth=A100.links.inside.bandwidth * factor
                ),
            )
        ),
        A100.replace(
            streams=dataclasses.replace(
                A100.streams,
                bandwidth=A100.streams.bandwidth * factor,
                cache_bandwidth=A100.streams.cache_bandwidth * factor,
            )
        ),
    ):
        assert predict_step(GPT, layout, better).total <= slow * (1.0 + 1e-9)


def test_a_single_device_is_the_closed_sum_of_its_parts() -> None:
    layout = Layout.of(
        gpus=1, batch_size=16, seq_len=1024, kernels="flash+fused", framework="huggingface"
    )
    parts, c = device_times(GPT, layout, A100), fitted()

    def device(load: tuple[float, ...]) -> float:
        products = 1.0 + (c.products - 1.0) * load[0] / sum(load[:3])
        return products * load[0] + c.newest * load[1] + c.streams * load[2]

    blocks = 16 * (device(parts.forward) + device(parts.backward))
    found = predict_step(GPT, layout, A100)
    assert found.gaps == 0.0
    assert found.tensor_comm == found.pipeline_comm == found.data_comm == found.bubble == 0.0
    weights = found.backward + found.forward - blocks - device(parts.first) - device(parts.last)
    assert 0.0 <= weights < 0.1 * blocks  # casts of weights and gradients, and nothing else
    close(found.total, found.forward + found.backward + found.optimizer + found.data)


def test_small_work_waits_for_the_host() -> None:
    assert seconds(gpus=1, batch_size=1, seq_len=64, kernels="eager").gaps > 0.0
    assert seconds(gpus=1, batch_size=64, seq_len=1024, kernels="eager").gaps == 0.0


def test_each_choice_of_kernels_helps_where_it_should() -> None:
    by_stack = {
        stack: seconds(gpus=1, batch_size=8, kernels=stack).total
        for stack in ("eager", "fused", "flash", "flash+fused", "compiled")
    }
    assert by_stack["eager"] > by_stack["fused"] > by_stack["flash+fused"]
    assert by_stack["eager"] > by_stack["flash"] > by_stack["flash+fused"]
    assert by_stack["compiled"] < by_stack["flash"]


@pytest.mark.parametrize("kernels", ["eager", "fused", "flash"])
def test_recomputation_costs_time(kernels: str) -> None:
    none, some, all_of_it = (
        seconds(gpus=1, batch_size=8, framework="huggingface", kernels=kernels, recompute=how)
        for how in ("none", "selective", "full")
    )
    assert none.recompute == 0.0
    assert none.total < some.total < all_of_it.total
    assert all_of_it.recompute == pytest.approx(all_of_it.forward, rel=0.25)


@pytest.mark.parametrize(("pp", "m", "v"), [(2, 4, 1), (4, 8, 1), (8, 32, 1), (4, 8, 2)])
def test_the_bubble_is_its_textbook_share(pp: int, m: int, v: int) -> None:
    found = predict_step(
        custom("gpt2", num_layers=16, hidden=2048, vocab=8),  # nearly no ends
        Layout.of(gpus=pp, pp=pp, grad_accum=m, interleave=v, batch_size=4, framework="megatron"),
        A100,
    )
    ideal = found.forward + found.backward + found.pipeline_comm
    assert found.bubble / ideal == pytest.approx((pp - 1) / (m * v), rel=0.05)


def test_devices_that_share_do_not_lose_work() -> None:
    """4 × 4 × 4 devices compute together at least what one would, and not much more."""
    shape = custom("gpt2", num_layers=16, hidden=4096, num_heads=32, vocab=51200)
    words = {"kernels": "flash", "framework": "megatron", "sequence_parallel": 1}
    one = predict_step(shape, Layout.of(gpus=1, batch_size=4, grad_accum=16, **words), A100)  # type: ignore[arg-type]
    many = predict_step(
        shape,
        Layout.of(gpus=64, tp=4, pp=4, batch_size=4, grad_accum=4, **words),  # type: ignore[arg-type]
        A100,
    )
    alone = one.forward + one.backward
    together = 64 * (many.forward + many.backward)
    assert alone < together < 1.6 * alone


def test_what_a_framework_hides() -> None:
    shape = named("llama-7B")
    kinds = {
        name: predict_step(
            shape, Layout.of(gpus=16, batch_size=2, seq_len=2048, framework=name), A100
        )
        for name in ("huggingface", "megatron")
    }
    assert kinds["huggingface"].overlapped > 0.0
    assert kinds["megatron"].overlapped == 0.0
    assert kinds["huggingface"].data_comm < kinds["megatron"].data_comm


def test_sharded_weights_are_gathered_with_every_micro_batch() -> None:
    shape = named("llama-7B")

    def traffic(zero: int, accum: int) -> float:
        found = predict_step(
            shape,
            Layout.of(
                gpus=8,
                zero=zero,
                grad_accum=accum,
                batch_size=1,
                seq_len=512,
                framework="huggingface",
            ),
            A100,
        )
        return float(found.overlapped + found.data_comm)

    assert traffic(3, 8) > 4.0 * traffic(3, 1)
    assert traffic(0, 8) == pytest.approx(traffic(0, 1), rel=0.5)


def test_hybrid_sharding_gathers_inside_the_node() -> None:
    shape, words = named("llama-7B"), {"zero": 3, "framework": "huggingface", "seq_len": 512}
    slow = rates(fabric=12.5e9)
    whole = predict_step(shape, Layout.of(gpus=64, **words), slow)  # type: ignore[arg-type]
    hybrid = predict_step(shape, Layout.of(gpus=64, shard_size=8, **words), slow)  # type: ignore[arg-type]
    assert hybrid.data_comm < whole.data_comm


def test_offloading_takes_its_time() -> None:
    on, off = (seconds(shape=SMALL, gpus=1, offload=place) for place in ("none", "host"))
    assert on.offload == 0.0 and on.optimizer > 0.0
    assert off.optimizer == 0.0 and off.offload > on.optimizer
    assert seconds(shape=SMALL, gpus=1, offload="disk").offload > off.offload


def test_fsdp_brings_offloaded_weights_for_each_pass() -> None:
    away = {"shape": SMALL, "gpus": 1, "framework": "huggingface", "offload": "host"}
    both, forward = (seconds(**away, zero=zero).offload for zero in (3, 2))
    assert both > forward >= seconds(shape=SMALL, gpus=1, offload="host").offload
    assert seconds(**away, zero=3, grad_accum=4).offload > 2 * both


def test_adapters_have_no_gradients_of_weights() -> None:
    shape = named("llama-8B")
    full, lora = (
        predict_step(shape, Layout.of(gpus=1, batch_size=2, seq_len=2048, lora_rank=rank), A100)
        for rank in (0, 8)
    )
    assert lora.backward < 0.75 * full.backward
    assert lora.optimizer < 0.1 * full.optimizer


def test_heads_of_odd_widths_are_charged() -> None:
    even, odd = (
        predict_step(
            custom("gpt2", num_layers=8, hidden=13824, num_heads=heads),
            Layout.of(gpus=8, tp=8, kernels="fused", framework="megatron", seq_len=2048),
            A100,
        )
        for heads in (96, 128)  # of 144 and of 108
    )
    assert odd.total > 1.1 * even.total


def test_a_layout_of_words_alone_is_a_float() -> None:
    assert isinstance(seconds(gpus=1).total, float)
    assert set(SIZES) >= {"tp", "pp"}


STORY = [  # link, accumulation, samples a second, communication, optimizer (shares of the step)
    ("nvlink", 1, 30.684, 0.10, 0.07),
    ("pcie", 1, 21.381, 0.38, None),
    ("nvlink", 4, 35.361, 0.03, 0.02),
    ("pcie", 4, 31.499, 0.14, None),
]


@pytest.mark.parametrize(("link", "accum", "rate", "comm", "optimizer"), STORY)
def test_the_classic_story_of_two_cards(
    link: str, accum: int, rate: float, comm: float, optimizer: float | None
) -> None:
    """GPT-2-medium on two RTX 3090 Ti, five samples each, Megatron, as published (tf-bench)."""
    layout = Layout.of(
        gpus=2,
        gpus_per_node=2,
        batch_size=5,
        grad_accum=accum,
        kernels="fused",
        framework="megatron",
    )
    found = predict_step(named("gpt2-medium"), layout, rates("RTX 3090 Ti", link=link))
    assert 10.0 * accum / found.total == pytest.approx(rate, rel=0.12)
    assert found.data_comm / found.total == pytest.approx(comm, abs=0.05)
    if optimizer is not None:
        assert found.optimizer / found.total == pytest.approx(optimizer, abs=0.05)


def test_one_ring_has_one_port_of_the_fabric_and_no_less() -> None:
    def exchanged(fabric: float, framework: str, zero: int) -> float:
        found = rates(fabric=fabric)
        words: dict[str, Any] = {"gpus": 16, "gpus_per_node": 8, "zero": zero}
        words |= {"precision": "fp16", "framework": framework}
        return float(predict_step(GPT, Layout.of(**words), found).data_comm)

    # A fabric of one port: the ring has all of it, as every framework's exchanges have.
    # But what is summed on its owner passes whole: 16/15 of a ring's share.
    one, other = exchanged(12.5e9, "deepspeed", 1), exchanged(12.5e9, "megatron", 1)
    assert other < one < other * 16 / 15
    # Eight ports: one ring gains nothing from the other seven.
    assert exchanged(200e9, "deepspeed", 1) > 0.9 * exchanged(25e9, "deepspeed", 1)
    assert exchanged(200e9, "megatron", 1) < 0.5 * exchanged(25e9, "megatron", 1)
    steps = [exchanged(fabric, "deepspeed", 3) for fabric in np.geomspace(1e9, 1e12, 30)]
    assert all(b <= a * (1.0 + 1e-9) for a, b in itertools.pairwise(steps))


def test_weights_of_a_sharded_optimizer_are_gathered_after_it() -> None:
    words: dict[str, Any] = {"gpus": 8, "gpus_per_node": 8, "framework": "megatron"}
    whole = seconds(**words, precision="fp16", zero=0).data_comm
    sharded = seconds(**words, precision="fp16", zero=1).data_comm
    # Half of an all_reduce is a scatter, the other half this gather.
    assert 0.8 * whole < sharded < 1.6 * whole


def test_recomputing_a_block_repeats_its_tensor_exchanges() -> None:
    words: dict[str, Any] = {"gpus": 8, "gpus_per_node": 8, "tp": 8, "framework": "megatron"}
    once = seconds(**words, recompute="none").tensor_comm
    again = seconds(**words, recompute="full").tensor_comm
    assert 1.3 * once < again < 1.6 * once


def test_what_hides_still_costs_its_share_of_the_computation() -> None:
    words: dict[str, Any] = {"gpus": 16, "gpus_per_node": 8, "zero": 3, "framework": "huggingface"}
    layout, c = Layout.of(**words, batch_size=64), fitted()
    found = predict_step(GPT, layout, A100)
    none = predict_step(GPT, layout, A100, constants=dataclasses.replace(c, contention=0.0))
    assert found.overlapped == none.overlapped > 0.0
    close(found.data_comm - none.data_comm, c.contention * found.overlapped)


def test_a_layer_is_priced_once_for_all_networks_of_a_chip_and_for_no_other_chip() -> None:
    """A table has many of them; what one device computes by is all that may differ nowhere."""
    layout = Layout.of(tp=2, gpus=16, batch_size=3, seq_len=512)

    def priced(where: Rates) -> DeviceTimes:
        return device_times(GPT, layout, where)

    first = priced(rates(fabric=25e9))
    assert priced(rates(fabric=100e9)) is first
    assert priced(rates(fabric=25e9, link="pcie")) is first
    others = rates(power=250.0), rates("A100 PCIe 80GB"), with_plain_attention(rates())
    slower_host = rates().replace(launch=2.0 * A100.launch)
    for other in (*others, slower_host, rates().replace(plain=0.5)):
        assert priced(other) is not first
    assert priced(others[0]).forward[0] > first.forward[0]
    assert priced(slower_host).forward[3] == pytest.approx(2.0 * first.forward[3])
