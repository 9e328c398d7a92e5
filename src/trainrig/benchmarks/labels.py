"""Short names for people: of cases, devices, ranges and quantities."""

from __future__ import annotations

from collections.abc import Iterable

from trainrig.record import Case, case_label, dtype_of
from trainrig.units import binary

Device = tuple[str | None, int | None]

_DIRECTIONS = {"h2d": "host to GPU", "d2h": "GPU to host", "d2d": "within the GPU"}


def case_text(benchmark: str, case: Case) -> str:
    """``fp16 8192 × 8192 × 8192``, ``scale fp32, 64 Mi elements, cold``."""
    writer = {
        "matmul": _matmul,
        "vector": _vector,
        "copy": _copy,
        "storage": _storage,
        "layer": _layer,
        "step": _step,
        "training": _training,
    }.get(benchmark)
    return (writer(case) if writer else None) or _by_name(case)


def _by_name(case: Case) -> str:
    """A case that no label knows: ``p2p, peer access off, from 0, to 1``."""
    words = []
    for name, value in case.items():
        spaced = name.replace("_", " ")
        if isinstance(value, bool):
            words.append(f"{spaced} {'on' if value else 'off'}")
        elif value is not None:
            words.append(value if isinstance(value, str) else f"{spaced} {value}")
    return ", ".join(words)


def _matmul(case: Case) -> str | None:
    if not {"m", "k", "n"} <= case.keys():
        kinds = [str(case["dtype"])] if "dtype" in case else []
        kinds += [f"{case['accumulate']} accumulation"] if "accumulate" in case else []
        return ", ".join(kinds) or None
    shape = " × ".join(str(case[axis]) for axis in ("m", "k", "n"))
    return f"{case.get('dtype')} {shape}{', sustained' if case.get('sustained') else ''}"


def _vector(case: Case) -> str | None:
    if not isinstance(elements := case.get("num_elements"), int):
        return None
    return f"{case.get('op')} {case.get('dtype')}, {binary(elements)} elements, {case.get('cache')}"


def _copy(case: Case) -> str | None:
    direction, memory = str(case.get("direction")), case.get("memory")
    words = [_DIRECTIONS.get(direction, direction)]
    if isinstance(size := case.get("bytes"), int):
        words.append(f"{binary(size)}B")
    if isinstance(memory, str) and memory != "device":
        words.append(memory)
    return ", ".join(words)


_STORAGE = {
    "read": "sequential read",
    "write": "sequential write",
    "randread": "random read",
    "fsync": "write and fsync",
    "tokens": "training loader",
}


def _storage(case: Case) -> str:
    words = [_STORAGE.get(str(case.get("op")), str(case.get("op")))]
    if isinstance(block := case.get("block"), int):
        words.append(f"{binary(block)}B blocks")
    words += [f"{name} {case[name]}" for name in ("batch_size", "seq_len", "depth") if name in case]
    return ", ".join([*words, str(case.get("tool"))])


_CODES = {"huggingface": "Hugging Face's"}


def _layer(case: Case) -> str | None:
    words = [f"{case.get('dtype')} {case.get('layer')}"]
    words += [f"{name} {case[name]}" for name in ("batch_size", "seq_len") if case.get(name)]
    if "m" in case:
        words.append(f"{case['m']} tokens")
    words += [_CODES[code] for code in (str(case.get("code")),) if code in _CODES]
    return ", ".join([*words, str(case.get("pass", "")).replace("+", " + ")])


def _step(case: Case) -> str:
    words = [f"{dtype_of(case)} {case.get('model')}"]
    return ", ".join(
        words + [f"{name} {case[name]}" for name in ("batch_size", "seq_len") if name in case]
    )


def _training(case: Case) -> str:
    """An experiment by its name; what others published has none."""
    return str(case["experiment"]) if case.get("experiment") else _step(case)


def family_text(benchmark: str, case: Case) -> str:
    """What cases of one kind and several sizes have in common."""
    sizes = {"m", "k", "n", "num_elements", "bytes", "batch_size", "seq_len"}
    return f"{benchmark} {case_label({k: v for k, v in case.items() if k not in sizes})}"


def name_devices(devices: Iterable[Device]) -> dict[Device, str]:
    """A name for each device: numbered only where the machine has several GPUs."""
    known = list(devices)
    several = sum(index is not None for _, index in known) > 1
    return {
        (device, index): f"{device or 'unknown device'} #{index}"
        if several and index is not None
        else device or "unknown device"
        for device, index in known
    }
