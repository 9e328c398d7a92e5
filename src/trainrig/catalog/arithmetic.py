"""The precision that a device trains fastest in, and what it only emulates.

`arithmetic_of` is the one function that decides: for a processor by its instructions, as far as
oneDNN, which multiplies for torch, may use them; for a GPU of the catalog by its claimed peaks, for
another one by its compute capability.  The facts stand in arithmetic.toml, each with its source.

Not answered here: how fast a device really is (`runner.bench`), and 8-bit formats, which nobody
gets without asking.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trainrig.catalog.chip import Chip, peak

if TYPE_CHECKING:
    from trainrig.catalog.arithmetic_file import ArithmeticTable

HALF = ("bf16", "fp16")
"""Formats of 16 bits, the one that needs no loss scaling first."""

_MASKS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
"""Environment variables by which oneDNN is told to use fewer instructions; the first one counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostProcessor:
    """Known arithmetic of a host's processor."""

    flags: Collection[str] | None
    """Processor flags as Linux prints them; None where they could not be read."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that a library is started with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """Known arithmetic of a GPU."""

    chip: Chip | None = None
    """The GPU's entry in the catalog."""
    capability: str | None = None
    """NVIDIA's compute capability: ``8.9``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """Data types that a device multiplies in hardware, and those that it emulates."""

    fastest: str
    """Default precision: ``bf16``, ``fp16`` or ``fp32``."""
    reason: str
    """Reason for the default precision: ``this processor has no bf16 instructions``."""
    emulated: tuple[tuple[str, str], ...] = ()
    """Formats of 16 bits that are emulated, each with how much slower that is."""

    @property
    def line(self) -> str:
        """Precision and reason: ``precision fp32: this processor has no bf16 instructions``."""
        return f"precision {self.fastest}: {self.reason}"

    def is_emulated(self, dtype: str) -> bool:
        """Return whether torch emulates ``dtype`` on the device."""
        return dtype in dict(self.emulated)

    def warning(self, dtype: str) -> str | None:
        """Return the line that a training in an emulated ``dtype`` begins with; None elsewhere."""
        slower = dict(self.emulated).get(dtype)
        if slower is None:
            return None
        return f"warning: precision {dtype} is emulated here, {slower}; {self.line}"

    @property
    def trained_in(self) -> tuple[str, ...]:
        """Data types that trainings compute in on the device: fp32, and what is faster."""
        return tuple(dict.fromkeys(("fp32", self.fastest)))


UNKNOWN = Arithmetic(fastest="fp32", reason="it is not known what this device has in hardware")


def arithmetic_of(device: HostProcessor | Accelerator) -> Arithmetic:
    """Return the precision that ``device`` is fastest in, and the types that it emulates."""
    return _of_processor(device) if isinstance(device, HostProcessor) else _of_gpu(device)


def _of_processor(device: HostProcessor) -> Arithmetic:
    if device.flags is None:
        return UNKNOWN
    from trainrig.catalog.arithmetic_file import arithmetic_table

    table, mask = arithmetic_table(), _mask(device.environment)
    usable = {
        row.dtype: row.flag
        for row in reversed(table.instruction)
        if row.flag in device.flags and mask not in row.masked_by
    }
    emulated = tuple(
        (dtype, f"about {_times(table, device, dtype, mask):g} times slower than fp32")
        for dtype in HALF
        if dtype not in usable
    )
    if "bf16" in usable:
        reason = f"this processor multiplies it in hardware ({usable['bf16']})"
        return Arithmetic(fastest="bf16", reason=reason, emulated=emulated)
    reason = "this processor has no bf16 instructions"
    if any(row.dtype == "bf16" and row.flag in device.flags for row in table.instruction):
        reason = f"oneDNN may not use this processor's bf16 instructions ({mask})"
    return Arithmetic(fastest="fp32", reason=reason, emulated=emulated)


def _mask(environment: Mapping[str, str]) -> str:
    """Return oneDNN's instruction limit, in capitals; empty where none is set."""
    mask = next((environment[name] for name in _MASKS if environment.get(name)), "")
    return mask.upper()


def _times(table: ArithmeticTable, device: HostProcessor, dtype: str, mask: str) -> float:
    rows = [row for row in table.emulation if row.dtype == dtype]
    fitting = (r for r in rows if r.flag in (device.flags or ()) and mask not in r.masked_by)
    usual = next(row for row in rows if not row.flag)
    return next(fitting, usual).times


def _of_gpu(device: Accelerator) -> Arithmetic:
    chip = device.chip
    if chip is not None and chip.peaks:
        fastest = next((dtype for dtype in HALF if peak(chip, dtype)), "fp32")
    elif device.capability is not None:
        fastest = _of_capability(device.capability)
    else:
        reason = "presumed: the compute capability of this GPU is not known"
        return Arithmetic(fastest="bf16", reason=reason)
    reasons = {
        "bf16": "this GPU multiplies it in hardware",
        "fp16": "this GPU has no bf16 in hardware, and tensor cores for fp16",
        "fp32": "this GPU has neither bf16 nor tensor cores for fp16",
    }
    slower = f"no faster than fp32{_claimed(chip, fastest)}"
    emulated = () if fastest == "bf16" else (("bf16", slower),)
    return Arithmetic(fastest=fastest, reason=reasons[fastest], emulated=emulated)


def _claimed(chip: Chip | None, fastest: str) -> str:
    """Return how much slower fp32 is than the fastest type, where both are claimed."""
    wide, narrow = (peak(chip, dtype) if chip else None for dtype in ("fp32", fastest))
    if wide is None or narrow is None or narrow.rate <= wide.rate:
        return ""
    return f", {narrow.rate / wide.rate:.2g} times slower than {fastest}"


def _of_capability(capability: str) -> str:
    from trainrig.catalog.arithmetic_file import arithmetic_table
    from trainrig.catalog.cuda import parts_of

    rows = [r for r in arithmetic_table().gpu if parts_of(r.capability) <= parts_of(capability)]
    return max(rows, key=lambda row: parts_of(row.capability)).fastest
