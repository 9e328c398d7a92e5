"""What the words in a table's cells mean, and what stands for those that are blank.

Answers chip, precision, kernels, engine, link and the like of one row, as strangers spell them;
what is not stated is noted in `Unstated` and widens the interval.  The numbers, and what follows
from them, are `table`'s.  A chip's name that is short of a variant ("H100") stands for the one that
is sold in most servers; one with the memory's size behind it is the chip of that size; names of no
chip are refused: nothing is taken from a neighbour.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from trainrig.catalog import Chip, find_chip
from trainrig.catalog.lookup import candidates
from trainrig.errors import UsageError
from trainrig.workload.layout import KERNELS, OFFLOAD, PRECISIONS, RECOMPUTE, STATES
from trainrig.workload.model import ModelShape

Row = Mapping[str, str]

_UNSURE = {
    "recompute": 0.15,
    "kernel_stack": 0.15,
    "micro_batch": 0.15,
    "precision": 0.25,
    "fabric_gbps_per_node": 0.1,
    "grad_accum": 0.05,
    "seq": 0.15,
    "link": 0.05,
    "chip": 0.25,
    "zero_stage": 0.1,
    "offload": 0.15,
    "heads": 0.05,
    "ffn": 0.1,
    "vocab": 0.05,
}
"""What a cell that is not stated adds to the uncertainty of a step's time (natural logarithm)."""


class Unstated:
    """Names of the cells that a default stands for."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def add(self, name: str) -> None:
        self.names.append(name)

    @property
    def spread(self) -> float:
        """What they add to the half width of the interval; they err by themselves."""
        return math.hypot(*(_UNSURE[name] for name in self.names))


def cell(row: Row, name: str) -> str:
    """What stands there; what tables write where nothing does is nothing."""
    text = (row.get(name) or "").strip()
    if text.lower() == "none" and name in ("link", "recompute", "offload"):
        return text  # a word of theirs
    return "" if text.lower() in _BLANK else text


_BLANK = ("nan", "none", "null", "n/a", "na", "-")


def _word(row: Row, name: str) -> str:
    return cell(row, name).lower()


def whole(row: Row, name: str, default: int | None = None) -> int:
    """A whole number from 0 of a cell.  UsageError where it is none, or blank without default."""
    text = cell(row, name)
    if not text:
        if default is None:
            raise UsageError(f"{name}: not stated")
        return default
    try:
        value = float(text)
    except ValueError:
        raise UsageError(f"{name} = {text[:40]!r}: not a number") from None
    if value != value or value != int(min(max(value, -1e18), 1e18)) or not 0 <= value < 2**31:
        raise UsageError(f"{name} = {text[:40]}: a whole number from 0 was expected")
    if value == 0 and name not in ("zero_stage", "dp", "cp", "ep"):
        raise UsageError(f"{name} = 0: a whole number from 1 was expected")
    return int(value)


_MEMORY = re.compile(r"\s*[(-]?\s*(\d+)\s*g(?:i?b)?\)?\s*$", re.IGNORECASE)


def chip_of(row: Row, missing: Unstated) -> Chip:
    """The chip of a row; blank: what is printed of the hardware, where that is a chip's name."""
    name, printed = cell(row, "chip"), cell(row, "hardware")
    if not name and find_chip(printed) is None:
        raise UsageError("chip: not stated, or none of the catalog")
    if any(word in printed.lower() for word in ("limit", "capped", "custom")):
        raise UsageError("hardware: printed with another power limit than the catalog's chip")
    name = name or printed
    found = find_chip(name) or _of_size(name) or _usual(name, missing)
    if found is None:
        raise UsageError(f"chip: {name[:60]!r} is not in the catalog")
    return found


def _of_size(name: str) -> Chip | None:
    """``RTX 4090 24GB``: the chip without its memory, if that is its memory."""
    stated = _MEMORY.search(name)
    found = find_chip(name[: stated.start()]) if stated else None
    if stated is None or found is None or found.memory is None:
        return None
    gigabytes = float(stated[1])
    return found if 0.9 < found.memory / (gigabytes * 2**30) < 1.1 else None


def _usual(name: str, missing: Unstated) -> Chip | None:
    """``A100``: the module for servers, where all that fit are variants of one chip."""
    fitting = candidates(name)
    if len(fitting) < 2:
        return fitting[0] if fitting else None
    model = fitting[0].name.split()[0]  # "RTX" or "TPU" alone is a family, not a chip
    if not any(letter.isdigit() for letter in model):
        return None
    missing.add("chip")
    modules = [chip for chip in fitting if "SXM" in (chip.form_factor or "")]
    return max(modules or fitting[:1], key=lambda chip: chip.memory or 0.0)


_FRAMEWORKS = (
    # The first that the framework's name contains, so the most particular first.
    ("megatron", "megatron"),
    ("fsdp", "fsdp"),
    ("torchtitan", "fsdp"),
    ("pax", "fsdp"),
    ("jax", "fsdp"),
    ("nemo", "megatron"),
    ("deepspeed", "deepspeed"),
)


def framework_of(row: Row, sizes: Mapping[str, int]) -> tuple[str, str]:
    """Framework and parallel scheme, by the framework's name, else by how the model is split.

    What torch alone spreads computes as Hugging Face's models do.
    """
    framework = _word(row, "framework")
    is_split = sizes["tp"] > 1 or sizes["pp"] > 1
    named = next((name for word, name in _FRAMEWORKS if word in framework), None)
    if named == "fsdp":
        return "huggingface", "fsdp" if sizes["zero"] else "ddp"
    if named == "deepspeed" and is_split:
        return "megatron", "auto"
    if named:
        return named, "auto"
    if is_split:
        return "megatron", "auto"
    return "deepspeed" if sizes["zero"] in (1, 2) else "huggingface", "auto"


def states_of(row: Row, shape: ModelShape) -> str:
    """One of STATES; not stated: masters where apex is, all in bf16 where that is the usual way.

    torchtune trains so.  Models that are published in bf16 (the Llama family) are loaded, and by
    scripts of one device trained, as they are.
    """
    framework = _word(row, "framework").replace(" ", "")
    is_loaded = framework.startswith("hftransformers") and shape.family == "llama"
    is_pure = "torchtune" in framework or (is_loaded and _word(row, "precision") == "bf16")
    usual = "masters" if "apex" in framework else "pure" if is_pure else "auto"
    return _choice(row, "states", STATES, usual)


_SPELLED = (
    # The first that is found counts, so the most particular first.
    (re.compile(r"nf4|int[48]|fp4|[48]-?bit|qlora"), ""),
    (re.compile(r"fp8|float8"), "fp8"),
    (re.compile(r"bf16|bfloat16"), "bf16"),
    (re.compile(r"tf32"), "tf32"),
    (re.compile(r"fp16|float16|half|16-mixed"), "fp16"),
    (re.compile(r"fp32|float32"), "fp32"),
)
"""Ways of writing a precision; what quantises weights is none of them."""


def precision_of(row: Row, chip: Chip, missing: Unstated) -> str:
    """One of PRECISIONS; not stated: bf16, and fp16 on chips that came before it.

    Microscaled fp8 is timed as fp8.
    """
    word = _word(row, "precision") or _word(row, "dtype")
    found = next((name for pattern, name in _SPELLED if pattern.search(word)), None)
    if found:
        return found
    if found is None and (not word or "amp" in word or "mixed" in word):
        missing.add("precision")
        return "bf16" if (chip.year or 2020) >= 2020 else "fp16"
    raise UsageError(f"precision {word[:40]!r}: one of {', '.join(PRECISIONS)}")


def is_fsdp(row: Row) -> bool:
    """Whether the framework's name says that it shards weights."""
    return any(word in _word(row, "framework") for word in ("fsdp", "torchtitan"))


def recompute_of(row: Row, zero: int, missing: Unstated) -> str:
    """One of RECOMPUTE; not stated: full where weights are sharded, for want of memory."""
    return _choice(row, "recompute", RECOMPUTE, "full" if zero == 3 else "none", missing)


def kernels_of(row: Row, chip: Chip, precision: str, missing: Unstated) -> str:
    """One of KERNELS; not stated: fused attention, where precision and chip have it."""
    framework, year = _word(row, "framework"), chip.year or 2020
    default = "eager" if year < 2020 or precision in ("fp32", "tf32") else "flash"
    if "jax" in framework or "pax" in framework:
        # XLA fuses what is pointwise; fused attention came to it with cuDNN's, for Hopper.
        is_later = "transformer engine" in framework or year >= 2022
        default = "flash+fused" if is_later else "fused"
    stack = _choice(row, "kernel_stack", KERNELS, default, missing)
    # Libraries call torch's fused attention unless told not to, since its version 2.1 (transformers
    # asks for 2.1.1).
    return "flash" if stack == "eager" and _TORCH_2_1.search(framework) else stack


_TORCH_2_1 = re.compile(r"torch 2\.[1-9]")


def _choice(
    row: Row, name: str, known: tuple[str, ...], default: str, missing: Unstated | None = None
) -> str:
    word = _word(row, name)
    if word and word not in known:
        raise UsageError(f"{name} {word[:40]!r}: one of {', '.join(known)}")
    if not word and missing is not None:
        missing.add(name)
    return word or default


def software_of(row: Row) -> str:
    """``torch1`` where the framework's name says so."""
    return "torch1" if re.search(r"torch 1\.", _word(row, "framework")) else "current"


def offload_of(row: Row, framework: str, zero: int, missing: Unstated) -> str:
    """One of OFFLOAD; not stated: none.

    DeepSpeed's usual configurations of ZeRO 2 and 3 keep the optimizer on the host, which takes
    less memory: there it is not known, and the interval begins with it.
    """
    is_unsure = framework == "deepspeed" and zero >= 2
    return _choice(row, "offload", OFFLOAD, "none", missing if is_unsure else None)


_LINKS = {
    "nvlink": "nvlink",
    "nvswitch": "nvlink",
    "nvl72": "nvlink",
    "pcie": "pcie",
    "xgmi": "",
    "infinity fabric": "",
}
"""What words for links contain; what AMD's modules have is their own."""


def link_of(row: Row, missing: Unstated) -> str | None:
    """The link inside a node; blank: the chip's own."""
    word = _word(row, "link")
    word = next((link for part, link in _LINKS.items() if part in word), word)
    if not word:
        missing.add("link")
        return None
    if word not in ("nvlink", "pcie", "ici", "hccs", "none"):
        raise UsageError(f"link {word[:40]!r}: one of nvlink, pcie, ici, hccs, none")
    return word


def fabric_of(row: Row, sizes: Mapping[str, int], missing: Unstated) -> float | None:
    """B/s of a node into the network; blank: as such nodes are sold."""
    text = _word(row, "fabric_gbps_per_node")
    if not text:
        if sizes["gpus"] > sizes["gpus_per_node"]:
            missing.add("fabric_gbps_per_node")
        return None
    try:
        rate = float(text) / 8.0 * 1e9
    except ValueError:
        raise UsageError(f"fabric_gbps_per_node = {text[:40]!r}: not a number") from None
    if not 1e6 < rate < 1e15:
        raise UsageError(f"fabric_gbps_per_node = {text[:40]}: Gbit/s of one node")
    return rate
