"""What the words in a table's cells mean, and what is presumed where they are blank."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from trainrig.catalog import Chip
from trainrig.errors import UsageError
from trainrig.workload.layout import KERNELS, PRECISIONS, RECOMPUTE
from trainrig.workload.model import ModelShape

Row = Mapping[str, str]

_ENGINES = (
    # The first that the framework's name contains, so the most particular first.
    ("megatron", "megatron"),
    ("fsdp", "fsdp"),
    ("torchtitan", "fsdp"),
    ("pax", "fsdp"),
    ("jax", "fsdp"),
    ("nemo", "megatron"),
    ("deepspeed", "deepspeed"),
)


_TORCH_2_1 = re.compile(r"torch 2\.[1-9]")

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


def engine_of(row: Row, sizes: Mapping[str, int]) -> str:
    """From the framework's name; where it says nothing, from how the model is split."""
    framework = _word(row, "framework")
    named = next((engine for word, engine in _ENGINES if word in framework), None)
    if named == "deepspeed" and (sizes["tp"] > 1 or sizes["pp"] > 1):
        return "megatron"
    if named == "fsdp" and sizes["zero"] == 0:
        named = "ddp"
    if named:
        return named
    if sizes["tp"] > 1 or sizes["pp"] > 1:
        return "megatron"
    if sizes["zero"] == 3:
        return "fsdp"
    if sizes["zero"] > 0:
        return "deepspeed"
    return "ddp"


def states_of(row: Row, shape: ModelShape) -> str:
    """Masters where apex is (NVIDIA's examples); all in bf16 where that is the framework's way.

    That is torchtune's and LitGPT's.  Models that are published in bf16 (the Llama family) are
    loaded, and by scripts of one device trained, as they are.
    """
    framework = _word(row, "framework").replace(" ", "")
    if "apex" in framework or "deeplearningexamples" in framework:
        return "masters"
    is_loaded = framework.startswith("hftransformers") and shape.family == "llama"
    is_bf16 = _word(row, "precision") == "bf16"
    by_default = "torchtune" in framework or ("litgpt" in framework and is_bf16)
    return "pure" if by_default or (is_loaded and is_bf16) else "auto"


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
    """One of KERNELS; not stated: fused attention, where precision, chip and code have it."""
    framework = _word(row, "framework")
    older = (chip.year or 2020) < 2020 or "deeplearningexamples" in framework.replace(" ", "")
    default = "eager" if older or precision in ("fp32", "tf32") else "flash"
    if "jax" in framework or "pax" in framework:
        # XLA fuses what is pointwise; fused attention came to it with cuDNN's, for Hopper.
        is_later = "transformer engine" in framework or (chip.year or 2020) >= 2022
        default = "flash+fused" if is_later else "fused"
    stack = _choice(row, "kernel_stack", KERNELS, default, missing)
    # Libraries call torch's fused attention unless told not to, since its version 2.1 (transformers
    # asks for 2.1.1).
    return "flash" if stack == "eager" and _TORCH_2_1.search(framework) else stack


def _choice(
    row: Row, name: str, known: tuple[str, ...], default: str, missing: Unstated
) -> str:  # fmt: skip
    word = _word(row, name)
    if not word:
        missing.add(name)
        return default
    if word not in known:
        raise UsageError(f"{name} {word[:40]!r}: one of {', '.join(known)}")
    return word


def is_binned(row: Row) -> bool:
    """Batches are filled from bins of 64 tokens, so that the length that is printed is the longest.

    NVIDIA's BERT does so in its second phase, of 512 tokens (its README: LDDL).
    """
    framework = _word(row, "framework").replace(" ", "")
    is_theirs = "deeplearningexamples" in framework and "bert" in _word(row, "model")
    return is_theirs and _word(row, "kind") == "pretrain" and _word(row, "seq") == "512"


BINNED = 5 / 8
"""Mean length against the longest, where batches are filled from bins; presumed."""


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
    """B/s of a node into the network; blank: as the printed fabric, or as such nodes are sold."""
    text = _word(row, "fabric_gbps_per_node")
    if not text:
        if sizes["gpus"] > sizes["gpus_per_node"]:
            missing.add("fabric_gbps_per_node")
        if "omni-path" in _word(row, "interconnect"):  # ports of 100 Gbit/s, one for two GPUs
            return 12.5e9 * max(1, sizes["gpus_per_node"] // 2)
        return None
    try:
        rate = float(text) / 8.0 * 1e9
    except ValueError:
        raise UsageError(f"fabric_gbps_per_node = {text[:40]!r}: not a number") from None
    if not 1e6 < rate < 1e15:
        raise UsageError(f"fabric_gbps_per_node = {text[:40]}: Gbit/s of one node")
    return rate
