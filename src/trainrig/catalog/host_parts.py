"""What a host's parts claim: arithmetic of the processor, bandwidth of memory and PCIe.

    CPU peak  = cores × clock × FLOPs per cycle and core
    per cycle = FMA units × vector width / element width × 2
    memory    = transfers per second × channels × 8 bytes
    PCIe      = transfers per second × lanes × encoding / 8, per direction

The flags that a machine reports give the vector width; they do not say how
many units a core has, and the clock under AVX-512 or AMX load is lower than
the one that lscpu prints.  So a CPU claim is a range, from the fewest units
that are built to the most, with its formula.  A measurement above the range
means that the clock was higher than assumed.  What is not here: caches, turbo tables, NUMA.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from trainrig.errors import UsageError

_BITS = {"fp64": 64, "fp32": 32, "bf16": 16, "fp16": 16, "int8": 8}
_BYTES_PER_TRANSFER = 8  # a DDR channel is 64 bits wide, ECC bits aside

# Giga-transfers per second and lane, and the share of them that carries data.
_PCIE = {
    1: (2.5, 8 / 10),
    2: (5.0, 8 / 10),
    3: (8.0, 128 / 130),
    4: (16.0, 128 / 130),
    5: (32.0, 128 / 130),
    6: (64.0, 242 / 256),
}
PCIE_LANES = (1, 2, 4, 8, 12, 16, 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostClaim:
    """A ceiling that follows from a host's parts."""

    dtype: str | None
    low: float
    """Lower end in FLOP/s, OP/s or B/s; equal to `high` where nothing is uncertain."""
    high: float
    unit: str
    formula: str
    """Formula of the claim, with its numbers."""
    note: str | None = None
    """Remark on the uncertainty of the range."""

    @property
    def source(self) -> str:
        """Formula as a source text."""
        return self.formula if self.note is None else f"{self.formula}; {self.note}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Engine:
    """One way of a core to multiply and add: what it takes, and operations per cycle and unit."""

    flag: str
    dtype: str
    width: int
    """Vector width in bits; 0 for a unit without vectors."""
    units: tuple[int, int] = (1, 2)
    """Vector units of one core, at least and at most."""
    per_cycle: int | None = None
    """Multiply-adds per cycle and unit where width / element width does not say it."""


# Flags as Linux prints them in /proc/cpuinfo.  Matrix units: one AMX tile multiplication is 16×16
# results of 32 (bf16) or 64 (int8) products in 16 cycles, so 512 or 1024 multiply-adds per cycle,
# one unit a core.  VNNI and the bf16 dot product do two (bf16) or four (int8) products per 32-bit
# lane, which is what vector width / element width × 2 says as well.  Arm's matrix instructions
# (bf16, i8mm) do twice that per 128 bits.  SVE's width is not in the flags: counted in units of
# 128 bits, from one to two units of 512.
_ENGINES = (
    _Engine(flag="avx512f", dtype="fp64", width=512),
    _Engine(flag="avx512f", dtype="fp32", width=512),
    _Engine(flag="avx512_bf16", dtype="bf16", width=512),
    _Engine(flag="avx512_fp16", dtype="fp16", width=512),
    _Engine(flag="avx512_vnni", dtype="int8", width=512),
    _Engine(flag="amx_bf16", dtype="bf16", width=0, units=(1, 1), per_cycle=512),
    _Engine(flag="amx_fp16", dtype="fp16", width=0, units=(1, 1), per_cycle=512),
    _Engine(flag="amx_int8", dtype="int8", width=0, units=(1, 1), per_cycle=1024),
    _Engine(flag="fma", dtype="fp64", width=256),
    _Engine(flag="fma", dtype="fp32", width=256),
    _Engine(flag="avx_vnni", dtype="int8", width=256),
    _Engine(flag="asimd", dtype="fp64", width=128, units=(1, 4)),
    _Engine(flag="asimd", dtype="fp32", width=128, units=(1, 4)),
    _Engine(flag="asimdhp", dtype="fp16", width=128, units=(1, 4)),
    _Engine(flag="asimddp", dtype="int8", width=128, units=(1, 4)),
    _Engine(flag="bf16", dtype="bf16", width=128, units=(1, 4), per_cycle=16),
    _Engine(flag="i8mm", dtype="int8", width=128, units=(1, 4), per_cycle=32),
    _Engine(flag="sve", dtype="fp64", width=128, units=(1, 8)),
    _Engine(flag="sve", dtype="fp32", width=128, units=(1, 8)),
    _Engine(flag="sve", dtype="fp16", width=128, units=(1, 8)),
)

# Units that the vendor documents for a family of processors, by vendor, family and flag.  Zen 4
# runs a 512-bit operation as two halves on its 256-bit units; Zen 2 and 3 have two of those.
_KNOWN_UNITS: Mapping[tuple[str | None, int | None, str], tuple[int, int]] = {
    ("AuthenticAMD", 25, "avx512f"): (1, 1),
    ("AuthenticAMD", 25, "avx512_bf16"): (1, 1),
    ("AuthenticAMD", 25, "avx512_vnni"): (1, 1),
    ("AuthenticAMD", 25, "fma"): (2, 2),
    ("AuthenticAMD", 26, "fma"): (2, 2),
}


def cpu_peaks(
    *,
    cores: int,
    clock: float,
    flags: Collection[str],
    vendor: str | None = None,
    family: int | None = None,
) -> tuple[HostClaim, ...]:
    """Return the peak of a processor by data type, from what the machine reports.

    ``cores`` are physical cores (threads share their core's units), ``clock``
    is in Hz, ``flags``, ``vendor`` (``AuthenticAMD``) and ``family`` are
    Linux's.  A data type that no flag speaks for is left out.
    Raises UsageError unless cores and clock are positive.
    """
    if cores < 1 or not 0.0 < clock < 1e12:
        raise UsageError(f"not a processor: {cores} cores at {clock} Hz")
    known = [
        replace(engine, units=_KNOWN_UNITS.get((vendor, family, engine.flag), engine.units))
        for engine in _ENGINES
        if engine.flag in flags
    ]
    claims = []
    for dtype in _BITS:
        engines = [engine for engine in known if engine.dtype == dtype]
        if engines:
            fastest = max(engines, key=lambda engine: engine.units[1] * _per_unit(engine))
            claims.append(_claim(fastest, cores, clock))
    return tuple(claims)


def _per_unit(engine: _Engine) -> int:
    """Return the operations per cycle of one unit; a multiply-add is two."""
    multiply_adds = engine.per_cycle or engine.width // _BITS[engine.dtype]
    return 2 * multiply_adds


def _claim(engine: _Engine, cores: int, clock: float) -> HostClaim:
    low, high = (cores * clock * units * _per_unit(engine) for units in engine.units)
    fewest, most = engine.units
    counted = str(fewest) if fewest == most else f"{fewest} to {most}"
    certain = "" if fewest == most else "the flags do not give the number of units; "
    return HostClaim(
        dtype=engine.dtype,
        low=low,
        high=high,
        unit="OP/s" if engine.dtype.startswith("int") else "FLOP/s",
        formula=f"{cores} cores × {clock / 1e9:.3g} GHz × {counted} {engine.flag} units "
        f"× {_per_unit(engine)} operations per cycle",
        note=f"{certain}the clock under such load differs from the one reported",
    )


def memory_bandwidth(transfers: float, channels: int) -> HostClaim:
    """Return the peak of a host's memory, B/s.

    ``transfers`` per second and channel (3200e6 for DDR4-3200), ``channels``
    of 64 bits that are filled (a DDR5 module's two half channels are one).
    Raises UsageError unless both are positive.
    """
    if channels < 1 or not 0.0 < transfers < 1e12:
        raise UsageError(f"not a memory: {channels} channels at {transfers} transfers/s")
    rate = transfers * channels * _BYTES_PER_TRANSFER
    formula = f"{transfers / 1e6:.5g} MT/s × {channels} channels × {_BYTES_PER_TRANSFER} bytes"
    return HostClaim(dtype=None, low=rate, high=rate, unit="B/s", formula=formula)


def pcie_bandwidth(generation: int, lanes: int) -> HostClaim:
    """Return the ceiling of a copy over PCIe in one direction, B/s.

    The line rate less its encoding.  Packet headers take a further 5 to 15 %,
    depending on the payload size that the root port allows.
    Raises UsageError for a link that does not exist.
    """
    if generation not in _PCIE or lanes not in PCIE_LANES:
        raise UsageError(f"not a PCIe link: generation {generation}, {lanes} lanes")
    giga, share = _PCIE[generation]
    rate = giga * 1e9 * lanes * share / 8.0
    return HostClaim(
        dtype=None,
        low=rate,
        high=rate,
        unit="B/s",
        formula=f"{giga:g} GT/s × {lanes} lanes × {share:.4g} encoding / 8, per direction",
        note="packet headers take a further 5 to 15 %",
    )
