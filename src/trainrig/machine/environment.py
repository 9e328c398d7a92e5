"""Record the software and settings that can change a measured number.

Two measurements are of one environment where these facts are equal: Python, torch and the CUDA or
ROCm it was built for, the packages that torch loads (triton, numpy, NVIDIA's libraries), driver,
kernel, processor, GPUs, and the environment variables that bear on speed.  What torch does not load
(transformers, accelerate, deepspeed, a CUDA toolkit) changes no number of `qualify` or of a
training by trainrig's own loop, so installing it leaves the environment as it is; a training by
another framework counts all of it.  Clocks, temperatures, free memory and the moment are no part.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from trainrig.machine.snapshot import Snapshot, to_dict
from trainrig.record import digest

_ABSENT = "none"
_LOADED_BY_TORCH = re.compile(r"torch|triton|pytorch-triton.*|numpy|nvidia-.*")
_SOFTWARE = {
    "python": "Python",
    "torch": "torch",
    "torch_cuda": "CUDA of torch",
    "torch_hip": "ROCm of torch",
    "nvidia_driver": "NVIDIA driver",
    "rocm": "ROCm",
}
"""Fields of `Software` and what they are called in a message."""


def environment_facts(machine: Mapping[str, Any], *, all_packages: bool = False) -> dict[str, str]:
    """Return what can change a number, by name, from a machine.json or `to_dict` of a snapshot.

    ``all_packages``: also the packages and the toolkit that torch itself does not load.
    """
    software = _part(machine, "software")
    facts = {words: _text(software.get(name)) for name, words in _SOFTWARE.items()}
    packages = {str(name): _text(version) for name, version in _part(software, "packages").items()}
    loaded = {
        name: version
        for name, version in packages.items()
        if all_packages or _LOADED_BY_TORCH.fullmatch(name)
    }
    if not any("cudnn" in name for name in loaded):  # the system's, where torch brings none
        facts["cuDNN"] = _text(software.get("cudnn"))
    if all_packages:
        facts["CUDA toolkit"] = _text(software.get("cuda_toolkit"))
    facts |= {name: version for name, version in loaded.items() if name != "torch"}
    facts |= {name: _text(v) for name, v in _part(software, "environment").items()}
    facts["kernel"] = _text(_part(machine, "host").get("kernel"))
    facts["processor"] = _text(_part(machine, "cpu").get("model"))
    gpus = machine.get("gpus")
    names = [_text(gpu.get("name")) for gpu in _sequence(gpus) if isinstance(gpu, Mapping)]
    facts["GPUs"] = ", ".join(names)
    return {name: value for name, value in facts.items() if value}


def environment_digest(snapshot: Snapshot, *, all_packages: bool = False) -> str:
    """Return the name of a snapshot's environment: equal facts, equal names."""
    return machine_digest(to_dict(snapshot), all_packages=all_packages)


def machine_digest(machine: Mapping[str, Any], *, all_packages: bool = False) -> str:
    """Return the name of the environment that a machine.json describes."""
    return digest(environment_facts(machine, all_packages=all_packages))


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what differs between two machine.json: ``numpy 2.4.5 → 2.4.6``."""
    old, new = environment_facts(before), environment_facts(after)
    return tuple(
        f"{name} {old.get(name, _ABSENT)} → {new.get(name, _ABSENT)}"
        for name in dict.fromkeys([*old, *new])
        if old.get(name) != new.get(name)
    )


def _part(whole: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = whole.get(name)
    return value if isinstance(value, Mapping) and "missing" not in value else {}


def _sequence(value: object) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _text(value: object) -> str:
    """Return a fact as text; empty for what is absent or could not be read."""
    return "" if value is None or isinstance(value, Mapping) else str(value)
