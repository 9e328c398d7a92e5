"""Rates derived from claims: what must hold whatever the constants are."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainrig.catalog import Chip, find_chip, load_chips
from trainrig.errors import UsageError
from trainrig.prediction.rates import OPERATIONS, Rates
from trainrig.prediction.rates.from_chip import class_of, rates_of_chip
from trainrig.prediction.rates.links import FACTORS

A100 = rates_of_chip(find_chip("A100 SXM4 80GB") or pytest.fail("no A100"), fabric=200e9)
CHIPS = sorted({chip.name: chip for chip in load_chips()}.values(), key=lambda chip: chip.name)
SIZES = st.integers(1, 20_000)
BYTES = st.floats(1e3, 1e11)


def chip(name: str, **changes: Any) -> Chip:
    found = find_chip(name)
    assert found is not None
    return found.replace(**changes)


def calls(rates: Rates, m: Any, n: Any, k: Any) -> dict[str, Any]:
    """One call of each method, with sizes made of three numbers or arrays of numbers."""
    shape: dict[str, Any] = {"batch": 2, "heads": 16, "queries": m, "keys": n, "head_dim": 96}
    return {
        "matmul": rates.matmul(m, n, k, batch=3, dtype="bf16"),
        "flash": rates.attention(**shape, dtype="bf16", causal=True),
        "own": rates.attention(**shape, dtype="bf16", causal=False, kernels="flash+fused"),
        "back": rates.attention(**shape, dtype="bf16", causal=True, backward=True),
        "stream": rates.stream(1000.0 * m, kernels=2),
        "collective": rates.links.collective("all_reduce", 4000.0 * n, k, 8, sharing=2),
        "send": rates.links.send(1000.0 * m, k % 2),
        "optimizer": rates.optimizer(1e5 * n, tensors=k, style="multi"),
    }


def test_every_chip_of_the_catalog_has_rates() -> None:
    for chip in CHIPS:
        check_rates(chip)


def check_rates(chip: Chip) -> None:
    rates = rates_of_chip(chip)
    for dtype in ("fp32", "tf32", "bf16", "fp16", "fp8", "int8"):
        assert 0 < rates.matmul(4096, 4096, 4096, dtype=dtype) < 10
    for words, time in calls(rates, 2048, 1024, 16).items():
        assert 0 < time < 100, words
    assert set(rates.spread) == set(rates.provenance) == set(OPERATIONS)
    assert all(0 < spread < 1.5 for spread in rates.spread.values())
    assert min(rates.launch, rates.host_link, rates.disk, rates.memory_bytes) > 0
    assert rates.power == chip.board.tdp  # unknown stays unknown


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("MI100", "cdna"), ("MI50", "other"), ("Radeon RX 7900 XTX", "rdna"),
        ("P100 SXM2 16GB", "other"), ("Arc B580", "xe"), ("Trainium1", "other"),
        ("GB10", "blackwell-consumer"), ("TPU7x", "tpu-wide"), ("MI250X GCD", "cdna2"),
    ],
)  # fmt: skip
def test_silicon_that_nobody_published_is_less_sure(name: str, kind: str) -> None:
    found = chip(name)
    assert class_of(found) == kind
    assert (rates_of_chip(found).unsure > 0.0) == (kind != "blackwell-consumer")


@pytest.mark.parametrize("name", ["P100 PCIe 16GB", "P40", "GTX 1080 Ti", "MI50"])
def test_half_precision_without_matrix_units_runs_as_fp32_does(name: str) -> None:
    sustained = rates_of_chip(chip(name)).matmuls.sustained
    assert sustained["fp16"] == sustained["fp32"] == 2.0 * sustained["bf16"]  # which is widened


@pytest.mark.parametrize(
    ("name", "dtype", "measured"),
    [  # products of 8,192 squares (squares.csv)
        ("RTX A4000", "bf16", 56.1), ("A40", "bf16", 110.6), ("L4", "bf16", 59.4),
        ("L4", "fp32", 10.7), ("A40", "fp32", 23.7), ("RTX 4060", "bf16", 30.7),
        ("Radeon RX 7900 XTX", "bf16", 93.7), ("Arc A770", "bf16", 85.1),
        ("TITAN RTX", "bf16", 4.8),
        ("Apple M1 Pro (16-core)", "bf16", 2.2), ("Apple M4 Max (40-core)", "bf16", 12.3),
    ],
)  # fmt: skip
def test_cards_that_power_limits_reach_what_was_measured(
    name: str, dtype: str, measured: float
) -> None:
    sustained = rates_of_chip(chip(name)).matmuls.sustained[dtype] / 1e12
    assert 0.8 < sustained / measured < 1.25


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(SIZES, SIZES, SIZES), min_size=1, max_size=4))
def test_arrays_equal_scalars(sizes: list[tuple[int, int, int]]) -> None:
    columns = [np.array(column) for column in zip(*sizes, strict=True)]
    together = calls(A100, *columns)
    for at, one in enumerate(sizes):
        for words, time in calls(A100, *one).items():
            assert isinstance(time, float), words
            assert together[words][at] == pytest.approx(time, rel=1e-12), words


@settings(max_examples=100, deadline=None)
@given(SIZES, SIZES, SIZES, st.integers(1, 64), st.sampled_from("mnkb"), st.integers(1, 3000))
def test_a_larger_product_never_takes_less_time(
    m: int, n: int, k: int, batch: int, axis: str, more: int
) -> None:
    sizes = {"m": m, "n": n, "k": k, "b": batch}
    larger = sizes | {axis: sizes[axis] + more}

    def time(of: dict[str, int]) -> float:
        return A100.matmul(of["m"], of["n"], of["k"], batch=of["b"], dtype="bf16")

    assert time(larger) >= time(sizes)


@settings(max_examples=60, deadline=None)
@given(SIZES, SIZES, SIZES, st.floats(1.0, 10.0))
def test_more_bandwidth_is_never_slower(m: int, n: int, k: int, more: float) -> None:
    base = chip("RTX A6000", bandwidth=768e9)
    faster = rates_of_chip(chip("RTX A6000", bandwidth=768e9 * more))
    slower = rates_of_chip(base)
    for words, time in calls(faster, m, n, k).items():
        assert time <= calls(slower, m, n, k)[words] * (1 + 1e-12), words


@settings(max_examples=60, deadline=None)
@given(BYTES, st.floats(1.0, 100.0), st.sampled_from(sorted(FACTORS)), st.integers(1, 512))
def test_collectives_grow_with_bytes_and_shrink_with_fabric(
    num_bytes: float, more: float, kind: str, ranks: int
) -> None:
    one = A100.links.collective(kind, num_bytes, ranks, 8)
    assert A100.links.collective(kind, num_bytes * more, ranks, 8) >= one
    wide = rates_of_chip(chip("A100 SXM4 80GB"), fabric=200e9 * more)
    assert wide.links.collective(kind, num_bytes, ranks, 8) <= one
    assert A100.links.collective(kind, num_bytes, ranks, 8, sharing=8) >= one


@settings(max_examples=60, deadline=None)
@given(BYTES, st.floats(1.0, 100.0))
def test_streams_grow_with_bytes(num_bytes: float, more: float) -> None:
    ada = rates_of_chip(chip("RTX 4090"))  # its cache is large: the edge must not fall
    assert ada.stream(num_bytes * more) >= ada.stream(num_bytes) * (1 - 1e-12)
    assert ada.stream(num_bytes, kernels=4) >= 0


def test_large_work_runs_at_the_stated_rates() -> None:
    size = 65536
    rate = 2.0 * size**3 / A100.matmul(size, size, size, dtype="bf16")
    assert rate == pytest.approx(A100.matmuls.sustained["bf16"], rel=0.01)
    assert 1e12 / A100.stream(1e12) == pytest.approx(A100.streams.bandwidth, rel=1e-3)
    # Two nodes' fabric is the narrow place: a ring sends 2·15/16 of the buffer over it.
    bus = 2.0 * 15 / 16 * 1e13 / A100.links.collective("all_reduce", 1e13, 16, 8)
    assert bus == pytest.approx(A100.links.between.bandwidth, rel=1e-3)


def test_nobody_to_talk_to_takes_no_time() -> None:
    assert [A100.links.collective(kind, 1e9, 1, 1) for kind in FACTORS] == [0.0] * len(FACTORS)


def test_a_last_wave_costs_and_depth_heals_it() -> None:
    processors = A100.matmuls.processors
    full, one_more = 256 * processors, 256 * processors + 1
    shallow = [A100.matmul(m, 128, 1024, dtype="bf16") for m in (full, one_more)]
    deep = [A100.matmul(m, 128, 65536, dtype="bf16") for m in (full, one_more)]
    assert shallow[1] / shallow[0] > 1.25
    assert 1.0 < deep[1] / deep[0] < 1.1


def test_half_the_power_is_more_than_half_the_rate() -> None:
    whole = rates_of_chip(chip("A100 SXM4 80GB")).matmuls.sustained["bf16"]
    for name in ("A100 PCIe 80GB", "A100 PCIe 40GB"):
        rate = rates_of_chip(chip(name)).matmuls.sustained["bf16"]
        assert (chip(name).board.tdp or 0) / 400 * whole < rate < whole
    # The same silicon with power to spare boosts above its data sheet.
    assert rates_of_chip(chip("RTX 3090 Ti")).matmuls.sustained["fp16"] > 80e12
    assert rates_of_chip(chip("RTX A6000")).matmuls.sustained["fp16"] < 0.75 * 154e12


def test_attention_counts_half_when_causal_and_more_backward() -> None:
    shape: dict[str, Any] = {"batch": 8, "heads": 32, "head_dim": 128, "dtype": "bf16"}
    seen = [
        A100.attention(**shape, queries=8192, keys=8192, causal=causal) for causal in (True, False)
    ]
    assert 1.8 < seen[1] / seen[0] < 2.0
    back = A100.attention(**shape, queries=8192, keys=8192, causal=True, backward=True)
    assert 2.0 < back / seen[0] < 4.0


def test_few_heads_leave_processors_idle() -> None:
    shape: dict[str, Any] = {"batch": 1, "queries": 2048, "keys": 2048, "head_dim": 128}
    few, many = (
        A100.attention(**shape, heads=heads, dtype="bf16", causal=True) for heads in (2, 64)
    )
    assert many < 20 * few  # 32 times the work


def test_a_generations_own_kernels_are_quicker_where_there_are_any() -> None:
    shape: dict[str, Any] = {"batch": 4, "heads": 32, "queries": 4096, "keys": 4096}
    more: dict[str, Any] = {"head_dim": 128, "dtype": "bf16", "causal": True}
    for name, quicker in (("H100 SXM5 80GB", True), ("RTX 4090", False)):
        rates = rates_of_chip(chip(name))
        plain, own = (
            rates.attention(**shape, **more, kernels=kernels) for kernels in ("flash", "compiled")
        )
        assert (own < 0.9 * plain) is quicker


def test_a_switch_that_adds_up_beats_its_own_links() -> None:
    rates = rates_of_chip(chip("H100 SXM5 80GB"))
    bus = 2.0 * 7 / 8 * 1e10 / rates.links.collective("all_reduce", 1e10, 8, 8)
    ring = 7 / 8 * 1e10 / rates.links.collective("all_gather", 1e10, 8, 8)
    assert ring < rates.links.inside.bandwidth * 1.001 < bus


def test_links_as_stated() -> None:
    card = chip("RTX 3090 Ti")
    ways = [
        rates_of_chip(card, link="nvlink"),
        rates_of_chip(card, link="pcie", p2p=True),
        rates_of_chip(card, link="pcie", p2p=False),
    ]
    times = [rates.links.collective("all_reduce", 1e9, 2, 2) for rates in ways]
    assert times == sorted(times)
    assert len(set(times)) == 3
    assert "host memory" in ways[2].provenance["collective"]
    # A bridge is bought apart, and without it drivers keep consumer cards from one another.
    assert rates_of_chip(card).links == ways[2].links
    workstation = rates_of_chip(chip("RTX A6000")).links.inside
    assert workstation.name.endswith("from device to device")
    # A 4090 cannot read another's memory, so its PCIe goes through the host unless told otherwise.
    assert rates_of_chip(chip("RTX 4090"), link="pcie").links.inside.name.endswith("host memory")


def test_eight_groups_share_a_fabric_like_one_with_an_eighth_of_it() -> None:
    eighth = rates_of_chip(chip("A100 SXM4 80GB"), fabric=25e9)
    shared = A100.links.collective("all_gather", 1e9, 16, 1, sharing=8)
    assert shared == pytest.approx(eighth.links.collective("all_gather", 1e9, 16, 1))


def test_half_of_a_cube_has_less_than_half_of_its_links() -> None:
    volta = rates_of_chip(chip("V100 SXM2 32GB"))
    buses = [
        2.0 * (n - 1) / n * 1e10 / volta.links.collective("all_reduce", 1e10, n, 8)
        for n in (2, 4, 8)
    ]
    assert buses == sorted(buses)
    assert buses[0] < buses[2] / 4


def test_offload_goes_at_the_narrowest_place() -> None:
    assert A100.offload(1e9) == pytest.approx(1e9 / A100.host_link)
    assert A100.offload(1e9, to="disk") == pytest.approx(1e9 / min(A100.disk, A100.host_link))


def test_what_cannot_be_meant_is_refused() -> None:
    h100 = chip("H100 SXM5 80GB")
    for wrong in ({"link": "string"}, {"fabric": -1.0}, {"fabric": math.nan}):
        with pytest.raises(UsageError) as caught:
            rates_of_chip(h100, **wrong)  # type: ignore[arg-type]
        assert caught.value.hint
    with pytest.raises(UsageError, match="has no NVLink"):
        rates_of_chip(chip("RTX 4090"), link="nvlink")
    for call in (
        lambda: A100.matmul(1, 1, 1, dtype="bf17"),
        lambda: A100.links.collective("all_shout", 1e6, 8, 8),
        lambda: A100.optimizer(1e6, tensors=1, style="quick"),
    ):
        with pytest.raises(UsageError, match=r"bf17|all_shout|quick"):
            call()


def test_plain_numbers_need_no_numpy() -> None:
    code = (
        "import sys; from trainrig.catalog import find_chip;"
        "from trainrig.prediction.rates.from_chip import rates_of_chip;"
        "r = rates_of_chip(find_chip('RTX 4090'));"
        "r.matmul(512, 512, 512, dtype='bf16'); r.links.collective('all_reduce', 1e6, 8, 8);"
        "r.attention(batch=1, heads=2, queries=128, keys=128, head_dim=64, dtype='bf16',"
        " causal=True);"
        "sys.exit('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", ["RTX 3090", "RTX A6000", "H100 SXM5 80GB"])
def test_no_link_between_cards_is_pcie(name: str) -> None:
    chip = find_chip(name)
    assert chip is not None

    def rate(link: str | None) -> float:
        return rates_of_chip(chip, link=link).links.inside.bandwidth

    assert rate("none") == rate("pcie") < rate("nvlink")


def test_a_head_fills_half_of_a_wider_matrix_unit_and_torch_streams_slower_on_rocm() -> None:
    v5p, v6e = (rates_of_chip(chip(name)).attentions for name in ("TPU v5p", "TPU v6e"))
    assert v6e.forward.share == v5p.forward.share / 2.0
    assert rates_of_chip(chip("MI300X")).plain < 1.0 == rates_of_chip(chip("H100 SXM5 80GB")).plain


def test_attention_in_fp32_waits_for_no_tensor_core() -> None:
    a100, h100 = (rates_of_chip(chip(name)) for name in ("A100 SXM4 80GB", "H100 SXM5 80GB"))

    def share(rates: Rates, dtype: str) -> float:
        seconds = rates.attention(
            batch=64, heads=16, queries=2048, keys=2048, head_dim=64, dtype=dtype, causal=False
        )
        return 1.0 / float(seconds * rates.matmuls.sustained[dtype])

    assert share(h100, "fp32") == pytest.approx(share(a100, "fp32"), rel=0.02)
    assert share(h100, "tf32") < 0.9 * share(a100, "tf32")
