"""What was unlike about two runs: machine, settings, software, the program itself.

A difference is listed where both runs know the value and the values differ.
What one of them could not read is no difference that can be told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trainrig.analysis.run_view import RunView
from trainrig.units import format_memory, format_quantity, format_time


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One fact in which two runs are unlike, in words."""

    what: str
    old: str
    new: str


# What bears on speed, in the order in which it is asked about.
_FACTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("host", ("host", "hostname")),
    ("CPU", ("cpu", "model")),
    ("threads allowed", ("cpu", "usable_threads")),
    ("CPU quota", ("cpu", "quota_cpus")),
    ("memory", ("memory", "total_bytes")),
    ("container", ("host", "container")),
    ("virtualization", ("host", "virtualization")),
    ("OS", ("host", "os")),
    ("kernel", ("host", "kernel")),
    ("driver", ("software", "nvidia_driver")),
    ("ROCm", ("software", "rocm")),
    ("torch", ("software", "torch")),
    ("torch's CUDA", ("software", "torch_cuda")),
    ("torch's HIP", ("software", "torch_hip")),
    ("cuDNN", ("software", "cudnn")),
    ("NCCL", ("software", "nccl")),
    ("Python", ("software", "python")),
)
_GPU_FACTS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("GPU", ("name",), ""),
    ("power limit", ("power_limit_w",), "W"),
    ("ECC", ("ecc",), ""),
    ("PCIe generation", ("link", "max_generation"), ""),
    ("PCIe lanes", ("link", "max_width"), ""),
    ("persistence", ("persistence",), ""),
)


def differences(old: RunView, new: RunView) -> tuple[Difference, ...]:
    """What was unlike, the machine first; the digest alone where nothing else explains it."""
    found = [
        *_devices(old, new),
        *_facts(old, new),
        *_gpus(old, new),
        *_named("package", old, new, "packages"),
        *_named("variable", old, new, "environment"),
        *_program(old, new),
    ]
    if not found:
        found = _unequal("environment digest", _digests(old), _digests(new))
    return tuple(found)


def is_same_run(old: RunView, new: RunView) -> bool:
    """Whether both are one run, or copies of it: one of them may have been resumed since."""
    names = [view.config.get("name") for view in (old, new)]
    return names[0] is not None and names[0] == names[1]


def _unequal(what: str, old: object, new: object) -> list[Difference]:
    if old == new or _is_unknown(old) or _is_unknown(new):
        return []
    return [Difference(what=what, old=_text(what, old), new=_text(what, new))]


def _is_unknown(value: object) -> bool:
    return value == "" or (isinstance(value, Mapping) and "missing" in value)


def _text(what: str, value: object) -> str:
    if what == "memory" and isinstance(value, int):
        return format_memory(value)
    if what == "budget" and isinstance(value, int | float):
        return format_time(value)
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else str(value)


_UNKNOWN = {"missing": "not in the file"}


def _at(value: object, *path: str) -> Any:
    """The value at ``path``; the mark of the unknown where there is none."""
    for name in path:
        if not isinstance(value, Mapping) or name not in value:
            return _UNKNOWN
        value = value[name]
    return value


def _devices(old: RunView, new: RunView) -> list[Difference]:
    def models(view: RunView) -> str:
        return ", ".join(sorted({r.device for r in view.records if r.is_point and r.device}))

    return _unequal("measured devices", models(old), models(new))


def _facts(old: RunView, new: RunView) -> Iterable[Difference]:
    for what, path in _FACTS:
        yield from _unequal(what, _at(old.machine, *path), _at(new.machine, *path))


def _gpus(old: RunView, new: RunView) -> Iterable[Difference]:
    """Facts of the GPUs, index by index; the same everywhere is said once."""
    first, second = _at(old.machine, "gpus"), _at(new.machine, "gpus")
    if not isinstance(first, list | tuple) or not isinstance(second, list | tuple):
        return
    yield from _unequal("number of GPUs", len(first), len(second))
    for what, path, unit in _GPU_FACTS:
        sides = [[_shown(_at(gpu, *path), unit) for gpu in gpus] for gpus in (first, second)]
        pairs = dict.fromkeys(zip(*sides, strict=False))
        for one, other in pairs:
            yield from _unequal(what, one, other)


def _shown(value: object, unit: str) -> str:
    """In words; empty where it is unknown."""
    if _is_unknown(value):
        return ""
    if unit and isinstance(value, int | float) and not isinstance(value, bool):
        return format_quantity(value, unit)
    return _text("", value)


def _named(kind: str, old: RunView, new: RunView, table: str) -> Iterable[Difference]:
    """Packages or environment variables; one that only one run has is none in the other."""
    first, second = _at(old.machine, "software", table), _at(new.machine, "software", table)
    if _is_unknown(first) or _is_unknown(second):
        return
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        for name in dict.fromkeys([*first, *second]):
            if name != "torch":  # it has a line of its own
                yield from _unequal(f"{kind} {name}", first.get(name), second.get(name))


def _program(old: RunView, new: RunView) -> Iterable[Difference]:
    for what, name in (("trainrig", "trainrig"), ("budget", "budget_s")):
        yield from _unequal(what, _at(old.config, name), _at(new.config, name))


def _digests(view: RunView) -> str:
    return ", ".join(sorted({r.environment for r in view.records if r.is_point and r.environment}))
