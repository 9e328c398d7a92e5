"""Claims of a host's parts against figures that their makers print."""

from __future__ import annotations

import pytest

from trainrig.catalog.host_parts import HostClaim, cpu_peaks, memory_bandwidth, pcie_bandwidth
from trainrig.errors import UsageError

SAPPHIRE_RAPIDS = "fma avx2 avx512f avx512_bf16 avx512_vnni avx512_fp16 amx_tile amx_bf16 amx_int8"
ZEN4 = "fma avx2 avx512f avx512_bf16 avx512_vnni"


def claim(dtype: str, flags: str, **changes: object) -> HostClaim | None:
    settings = {"cores": 56, "clock": 2.0e9, "flags": flags.split()} | changes
    found = cpu_peaks(**settings)  # type: ignore[arg-type]
    return next((one for one in found if one.dtype == dtype), None)


def test_amx_does_1024_bf16_and_2048_int8_operations_per_cycle_and_core() -> None:
    bf16, int8 = claim("bf16", SAPPHIRE_RAPIDS), claim("int8", SAPPHIRE_RAPIDS)
    assert bf16 is not None and int8 is not None
    assert bf16.low == bf16.high == 56 * 2.0e9 * 1024
    assert int8.high == 56 * 2.0e9 * 2048
    assert (bf16.unit, int8.unit) == ("FLOP/s", "OP/s")


def test_avx512_is_a_range_because_flags_do_not_count_units() -> None:
    fp32, fp64 = claim("fp32", SAPPHIRE_RAPIDS), claim("fp64", SAPPHIRE_RAPIDS)
    assert fp32 is not None and fp64 is not None
    assert (fp32.low, fp32.high) == (56 * 2.0e9 * 32, 56 * 2.0e9 * 64)
    assert fp64.high == fp32.high / 2
    assert fp32.note is not None and "number of units" in fp32.note
    assert "56 cores × 2 GHz × 1 to 2 avx512f units × 32 operations" in fp32.formula


def test_a_documented_family_has_no_range() -> None:
    zen4 = claim("fp32", ZEN4, vendor="AuthenticAMD", family=25)
    assert zen4 is not None
    assert zen4.low == zen4.high == 56 * 2.0e9 * 32  # two 256-bit units, or one of 512 bits
    zen3 = claim("fp32", "fma avx2", vendor="AuthenticAMD", family=25)
    assert zen3 is not None and zen3.high == zen4.high


def test_a_wider_vector_wins_and_an_unknown_type_is_absent() -> None:
    avx2 = claim("fp32", "fma avx2")
    assert avx2 is not None and avx2.high == 56 * 2.0e9 * 32
    assert claim("bf16", "fma avx2") is None
    assert cpu_peaks(cores=4, clock=1e9, flags=["sse2"]) == ()


def test_arm() -> None:
    neon, sve = claim("fp32", "asimd"), claim("fp32", "asimd sve")
    assert neon is not None and sve is not None
    assert (neon.low, neon.high) == (56 * 2.0e9 * 8, 56 * 2.0e9 * 32)
    assert sve.high == 2 * neon.high


@pytest.mark.parametrize(
    ("cores", "clock"), [(0, 1e9), (-1, 1e9), (4, 0.0), (4, -1.0), (4, float("nan")), (4, 1e13)]
)
def test_an_impossible_processor_is_refused(cores: int, clock: float) -> None:
    with pytest.raises(UsageError):
        cpu_peaks(cores=cores, clock=clock, flags=["fma"])


def test_memory_bandwidth_is_transfers_times_channels_times_8_bytes() -> None:
    assert memory_bandwidth(3200e6, 8).high == pytest.approx(204.8e9)
    assert memory_bandwidth(4800e6, 12).high == pytest.approx(460.8e9)
    assert "3200 MT/s × 8 channels × 8 bytes" in memory_bandwidth(3200e6, 8).formula
    for transfers, channels in ((0.0, 2), (3200e6, 0), (float("nan"), 2)):
        with pytest.raises(UsageError):
            memory_bandwidth(transfers, channels)


# Bytes per second and direction, the line rate less its encoding.
@pytest.mark.parametrize(
    ("generation", "lanes", "rate"),
    [(1, 16, 4e9), (2, 16, 8e9), (3, 16, 15.754e9), (4, 16, 31.508e9), (4, 4, 7.877e9),
     (5, 16, 63.015e9), (6, 16, 121e9)],
)  # fmt: skip
def test_pcie(generation: int, lanes: int, rate: float) -> None:
    assert pcie_bandwidth(generation, lanes).high == pytest.approx(rate, rel=1e-3)


@pytest.mark.parametrize(("generation", "lanes"), [(0, 16), (9, 16), (4, 3), (4, 0), (4, -4)])
def test_an_impossible_link_is_refused(generation: int, lanes: int) -> None:
    with pytest.raises(UsageError):
        pcie_bandwidth(generation, lanes)
