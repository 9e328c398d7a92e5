"""How a row's layers are computed: number format, kernels, graphs of them, and experts.

Answers what products are of, whether attention and what is pointwise are fused, what the loss
holds, whether the host launches each kernel, and how a mixture's experts run.  What ranks exchange
is `row_layout`'s, what is kept in memory `row_memory`'s.
"""

from __future__ import annotations

import re
from functools import lru_cache

from trainrig.catalog import Chip
from trainrig.catalog.chip import peak
from trainrig.prediction.rates.from_chip import (
    fuses_attention,
    leaves_scores,
    runs_graphs,
    widens_bf16,
)
from trainrig.workload.families import facts_of
from trainrig.workload.layout.groups import KERNELS
from trainrig.workload.model import ModelShape
from trainrig.workload.programs import FRAMEWORKS
from trainrig.workload.programs.program import PROGRAM_KEYS, Program
from validation.normalise.cells import Cells, meanings, means, mentions
from validation.normalise.training_programs import affirmed, program_of, torch_version


def precision_of(cells: Cells, chip: Chip) -> str:
    """One of PRECISIONS; not stated: bf16, and fp16 on chips that have none of it.

    Microscaled fp8 is timed as fp8, fp4 and int8 as fp8 with their products' rate (`narrow_of`),
    and beside quantised weights it is what is multiplied.
    """
    if narrow_of(cells, chip):
        return "fp8"
    words = (cells.word("precision"), cells.word("dtype"))
    text = ((word, affirmed(word)) for word in words)  # no mixed precision is said of fp32
    named = (
        name
        for word, plain in text
        for pattern, name in meanings()["precision"]
        if re.search(pattern, word if name == "fp32" else plain)
    )
    precision = next(named, None)
    if precision is None:
        return _usual_precision(cells, chip)
    if precision == "amp":  # sixteen bits, and which is not said
        cells.presume("precision")
        return _sixteen(chip)
    return "tf32" if precision == "fp32" and _multiplies_tf32(cells, chip) else precision


def _usual_precision(cells: Cells, chip: Chip) -> str:
    """One of PRECISIONS where none is stated."""
    if quantized_of(cells) == "none":
        cells.presume("precision")
    if cells.program.numbers.fp8 and peak(chip, "fp8"):
        return "fp8"
    if cells.program.numbers.precision and chip.vendor == "NVIDIA":
        return "tf32" if _multiplies_tf32(cells, chip) else cells.program.numbers.precision
    return _sixteen(chip)


def _sixteen(chip: Chip) -> str:
    """bf16 where the chip has it."""
    is_late = (chip.product.year or 2020) >= 2020 and not widens_bf16(chip)
    return "bf16" if is_late or peak(chip, "bf16") else "fp16"


def _multiplies_tf32(cells: Cells, chip: Chip) -> bool:
    """Say whether what is called fp32 is multiplied as TF32: by the program, or torch before 1.12.

    Its `allow_tf32` of products was on from 1.7 to 1.11 and is off since (release notes of 1.12,
    2022-06).
    """
    if peak(chip, "tf32") is None:
        return False
    words = cells.text_of("kernel_stack")
    if stated := means("tf32", words):
        return stated == "on"
    if cells.program.numbers.tf32 is not None:
        return cells.program.numbers.tf32
    version = torch_version(cells.word("framework"))
    return (1, 7) <= version < (1, 12) if version[0] else cells.is_before("2022-07")


def narrow_of(cells: Cells, chip: Chip) -> str:
    """Return what is multiplied where it is narrower than fp8, or int8 instead; empty: neither.

    NVFP4 or MXFP4; int8 of a pre-training (AQT, torchao), but for weights that are stored so.
    Where no format is stated it is FP4 if the program's trait says so of NVIDIA's chips that have
    it (`Program.fp4`).
    """
    if not (cells["precision"] or cells["dtype"]):
        has_fp4 = chip.vendor == "NVIDIA" and peak(chip, "fp4") is not None
        return "fp4" if has_fp4 and cells.does(cells.program.numbers.fp4) else ""
    kind = r"(?:(?:nv|mx)[-_ ]?|)" if _trains_whole(cells) else r"(?:nv|mx)[-_ ]?"
    words = cells.text_of("precision", "dtype")
    is_wide = re.fullmatch(r"(?:bf|fp|tf)-?(?:16|32)", cells.word("precision"))  # of products
    if not is_wide and re.search(rf"\b{kind}fp-?4", words):
        return "fp4"
    is_int8 = "int8" in words and "weight" not in words and quantized_of(cells) == "none"
    return "int8" if is_int8 else ""


def quantized_of(cells: Cells) -> str:
    """One of QUANTIZE: how frozen weights are stored beside adapters.

    A pre-training freezes none: its 8 bits are what is multiplied (`narrow_of`).
    """
    words = cells.text_of("precision", "dtype", "kind")
    format_name = means("quantize", words) or "none"
    is_product = format_name == "int8" or re.search(r"fp-?4", words)
    return "none" if is_product and _trains_whole(cells) else format_name


def _trains_whole(cells: Cells) -> bool:
    """Return whether no weights are frozen: narrow numbers are then what is multiplied."""
    return cells.is_pretraining and not cells.is_adapted


def kernels_of(cells: Cells, chip: Chip, framework: str, shape: ModelShape) -> str:
    """One of KERNELS: of the rules below the first that holds.

    In this order: what the row states by name; else, of its word (or the usual one, where it states
    none), what the program adds by its traits since whatever month; else the word itself.
    """
    stated, program = cells.word("kernel_stack"), cells.program
    by_hand = program.code.kernels if program.code.graphed else ""
    if has_scores(cells):  # what else is fused may be named beside attention
        return by_hand or ("flash+fused" if "transformer" in stated else "eager")
    usual = _usual_kernels(cells, chip, framework)
    word = cells.choice("kernel_stack", KERNELS, usual)
    writes_scores = bool(program.code.scores) and "flash" not in stated
    is_plain_t5 = (
        shape.family == "t5" and facts_of(shape).has_position_bias and not cells["kernel_stack"]
    )
    is_plain_t5 = is_plain_t5 and FRAMEWORKS[framework].models.autocasts
    is_torch = framework in _ON_TORCH and not cells.is_xla
    fuses_by_default = torch_version(cells.word("framework")) >= (2, 1) or cells.is_since(_SPREAD)
    rules = (
        # An attention's name takes nothing from kernels that are written by hand.
        (word == "flash" and by_hand, by_hand),
        # Programs that write scores do so beside whatever else is fused.
        (writes_scores and word in ("eager", "flash"), "eager"),
        (writes_scores, "fused"),
        # XLA fuses what is pointwise whatever attention is named.
        (word == "flash" and cells.is_xla, "flash+fused"),
        # Hugging Face's T5 had its scores in memory until transformers 5.
        (word in ("eager", "flash") and is_plain_t5, "eager"),
        # Libraries call torch's fused attention unless told not to: "eager" is not compiled.
        (word == "eager" and fuses_by_default and not lacks_kernel(cells, chip), "flash"),
        # "fused" is then what is beside attention; on a chip of 2022 torch is of 2023.
        (word == "fused" and is_torch and fuses_by_default, "flash+fused"),
        (word == "fused" and is_torch and (chip.product.year or 2020) >= 2022, "flash+fused"),
        # Words for what else is fused (experts, a norm) take no attention from who fuses it anyway.
        (word == "fused" != stated and usual == "flash+fused", "flash+fused"),
        (True, word),
    )
    return next(str(kernels) for holds, kernels in rules if holds)


def _usual_kernels(cells: Cells, chip: Chip, framework: str) -> str:
    """One of KERNELS where none are stated: of the rules below the first that holds.

    In this order: what the program's traits say, what its layers are since a month, and what torch
    had on the chip at the time.
    """
    program = _undenied(cells)
    is_own = program.trains_as == "megatron"  # with fused kernels of its own
    is_before_te = program.code.transformer_engine is False and chip.vendor in ("NVIDIA", "AMD")
    first = _SDPA if program.code.transformers_models or is_own else _FIRST
    is_before = cells.is_before(first) or (is_own and is_before_te)
    is_before = is_before and not program.code.kernels
    rules = (
        # Whatever runs on a TPU is XLA's, also on those before attention was fused there.
        (cells.is_xla or chip.name in _UNFUSED, _kernels_of_xla(cells, chip, program)),
        # What a program's own code says, of torch's modules.
        (framework in _ON_TORCH and program.code.kernels, program.code.kernels),
        (_has_te_layers(cells, chip, framework, program), "flash+fused"),
        # Compilers of chips that run whole graphs fuse what is pointwise.
        (framework != "megatron" and runs_graphs(chip), "flash+fused"),
        (not fuses_attention(chip), "eager"),
        # Before fused attention was usual, Megatron's --use-flash-attn being off by default.
        (is_before and (is_own or "xla" in cells.word("framework")), "fused"),
        (is_before, "eager"),
        (True, "flash"),
    )
    return next(kernels for holds, kernels in rules if holds)


_UNFUSED = ("TPU v2", "TPU v3")


def _kernels_of_xla(cells: Cells, chip: Chip, program: Program) -> str:
    """XLA fuses what is pointwise; fused attention came to it with cuDNN's, for Hopper.

    A TPU has had its own since Pallas (2023-08), from v4 on: maxtext #791, jax #18595.
    """
    if chip.vendor == "Google":
        is_later = fuses_attention(chip) and not cells.is_before("2023-08")
    else:
        is_later = bool(program.code.transformer_engine) or (chip.product.year or 2020) >= 2022
    return "flash+fused" if is_later else "fused"


def _has_te_layers(cells: Cells, chip: Chip, framework: str, program: Program) -> bool:
    """Return whether layers are Transformer Engine's, or as new: a trait, or Megatron's default.

    Megatron's are since December 2023 (its option --transformer-impl), AMD's build has them for its
    chips of 2023 and later (rocm.docs.amd.com, "Training a model with Megatron-LM"), and a chip of
    2022 was hardly trained on before.
    """
    year = chip.product.year or 2020
    if year < 2020:
        return False
    if program.code.transformer_engine is None:
        is_later = year >= 2022 or cells.is_since("2024-01")
        return framework == "megatron" and is_later and chip.vendor in ("NVIDIA", "AMD")
    since = program.code.transformer_engine_on_old_chips
    is_new = year >= 2022 or since is None or cells.does(since, undated=True)
    return program.code.transformer_engine and is_new


def _undenied(cells: Cells) -> Program:
    """The program without the kernels that a row denies it."""
    text = cells.text_of("framework", "kernel_stack")
    program = cells.program
    if mentions("own_layers", text):
        program = PROGRAM_KEYS.replace(program, transformer_engine=False)
    is_plain = (
        program.code.kernels == "compiled" and "compil" in text and "compil" not in affirmed(text)
    )
    return PROGRAM_KEYS.replace(program, kernels="") if is_plain else program


def is_flash2(cells: Cells) -> bool:
    """Whether fused attention is FlashAttention-2: named, or since torch has it (2.2, 2024-01)."""
    words = cells.text_of("framework", "kernel_stack")
    return mentions("flash2", words) or torch_version(words) >= (2, 2) or cells.is_since("2024-01")


def has_scores(cells: Cells) -> bool:
    """Return whether attention's scores lie in memory, by name."""
    return mentions("scores", cells.word("kernel_stack"))


def lacks_kernel(cells: Cells, chip: Chip) -> bool:
    """Return whether torch has no fused attention that trains on the chip.

    On Intel's it has since 2.11 (intel/torch-xpu-ops #2232; released in March 2026).
    """
    version = torch_version(cells.word("framework"))
    is_later = version >= (2, 11) if version[0] else cells.is_since("2026-04")
    return leaves_scores(chip) and not (chip.vendor == "Intel" and is_later)


_SDPA = "2024-01"
"""Since when transformers' models call torch's fused attention by default (4.36, 2023-12), and
Megatron's layers are Transformer Engine's; its own --use-flash-attn is off by default."""
_FIRST = "2023-03"
"""Since when torch has one (2.0): programs on it that are dated earlier had no other."""
_SPREAD = "2024-07"
"""Since when a program will have transformers' version of it, half a year later; who names torch
has it since 2.1, which transformers asks for (2.1.1)."""
_ON_TORCH = ("huggingface", "deepspeed")
"""Frameworks whose layers are torch's modules."""


def loss_of(cells: Cells) -> str:
    """One of LOSS, where what is run with says more than that it is fused or compiled."""
    words = affirmed(cells.text_of("kernel_stack", "framework"))
    compiles = cells.program.code.compiles_loss
    if compiles is not None and not cells.does(compiles, undated=True):
        return "whole"
    if loss := means("loss", words):
        return loss
    if cells.does(cells.program.code.fuses_loss):
        return "fused"
    shared = cells.program.code.shared_loss if cells.whole("cp", 1) > 1 else ""
    return shared or cells.program.code.loss or "auto"


def software_of(cells: Cells) -> str:
    """One of SOFTWARE: torch's version, or its year where no version is named."""
    version = torch_version(cells.word("framework"))[0]
    is_first = cells.is_before(_TORCH2) and not (cells.is_xla or cells.program.code.other_runtime)
    return "torch1" if version == 1 or (not version and is_first) else "current"


_TORCH2 = "2023-01"
"""Torch 2.0 is of March 2023: what is of an earlier year ran torch 1."""


def graphs_of(cells: Cells, chip: Chip, shape: ModelShape) -> str:
    """One of CUDA_GRAPHS: as they are named, or as the program launches by itself.

    auto: a recipe of NVIDIA's, of which `Layout.launched_as` answers as of flags.  Other than for
    flags, which stand for today's recipes of pre-training, programs without recipes have none; and
    of a mixture on an x86 host none had before the program could, for no graph knew how many tokens
    each expert gets.  Nor has any beside plain all-to-all or DeepEP, whose counts a host waits for,
    or in a tuning of a mixture.
    """
    program, is_mixture = cells.program, bool(shape.moe.num_experts)
    named = _named_graphs(cells.text_of("kernel_stack", "framework"))
    is_recipe = program.code.graphed_recipes is True
    if is_mixture and (is_late := program.code.mixtures_graphed) is not None:
        can = cells.does(is_late) or chip.link.domain is not None
        waits = mentions("counted_dispatch", cells.text_of("kernel_stack"))
        is_recipe = is_recipe and can and not (cells.is_tuning or waits)
        named = named if can else ""
    is_lazy = chip.vendor == "Google" or cells.is_xla or bool(program.code.graphed)
    if is_lazy and named in ("", "layers"):
        return "runtime"
    return named or ("auto" if is_recipe else "none")


@lru_cache(maxsize=1 << 12)
def _named_graphs(words: str) -> str:
    """Return what words in small letters say of CUDA graphs; "": nothing.

    none: where all are denied (``full-iteration graph; no CUDA graph``), or the only ones named.
    """
    if any(not match["kind"] for match in _NO_GRAPHS.finditer(words)):
        return "none"
    left = affirmed(_NO_GRAPHS.sub("", words))
    return means("graphs", left) or ("none" if _ANY_GRAPHS.search(words) else "")


_ANY_GRAPHS = re.compile(r"cuda[ _-]?graph")
_NO_GRAPHS = re.compile(
    r"\b(?:no|not|non|without|w/o|disabl[a-z]*)[ _-]+"
    r"(?:using |the |any )*(?P<kind>(?:(?:full|whole|iteration|per|layer|te)[ _-])*)"
    r"cuda[ _-]?graphs?\b"
    r"|cuda[ _-]?graphs?(?:[ _-](?:impl|scope|modules|enabled))?(?: (?:is|are|was|were))?"
    r"(?:[ _:=-]{1,3}(?:(?:off|none|false|disabled|unused)\b|(?:no|0)\b(?!\s*[\w.])"
    r"|not (?:used|enabled|on|available|supported|captured)\b)| ?\((?:off|none|disabled)\))"
)
"""CUDA graphs that are denied: before their name, or right behind it, where another word that is
denied (``CUDA graphs, no recompute``) is not theirs."""


def is_all_to_all(cells: Cells) -> bool:
    """Return whether plain all-to-all is named as experts' dispatcher."""
    return mentions("plain_dispatch", cells.text_of("kernel_stack"))


def experts_of(cells: Cells, shape: ModelShape, framework: str, chip: Chip) -> str:
    """One of EXPERTS: of the rules below the first that holds.

    Kernels of programs by themselves may be named beside another one, or in the model's cell.
    """
    words = cells.text_of("framework", "kernel_stack", "model")
    brings_kernels = cells.does(program_of(words).code.grouped_experts, undated=True)
    rules = (
        (not shape.moe.num_experts, "grouped"),
        (mentions("sorted_experts", words), "sorted"),
        (chip.vendor == "Huawei", "sorted"),  # torch_npu.npu_moe_token_permute
        (brings_kernels or framework not in _ON_TORCH, "grouped"),
        # Experts that ranks share: GroupedGemmParallel of transformers' guide on them.
        (cells.whole("ep", 1) > 1, "grouped"),
        # transformers' models have them in turn until its version 5.
        (not cells.program.code.transformers_models or cells.is_transformers_5, "grouped"),
        (True, facts_of(shape).experts),
    )
    return next(experts for holds, experts in rules if holds)


def with_all_experts(shape: ModelShape, experts: str) -> ModelShape:
    """The shape as transformers runs Llama 4: every token meets every expert, weighed afterwards.

    Its block repeats the tokens for each expert (modeling_llama4, Llama4TextMoe).
    """
    is_whole = facts_of(shape).all_experts and experts == "modules"
    return shape.replace(experts_per_token=shape.moe.num_experts) if is_whole else shape


def router_spread_of(cells: Cells) -> float:
    """Spread of an expert's tokens where a router deals them: programs of XLA have a capacity.

    Benchmarks that deal tokens evenly are of pre-training; a task's examples are of few kinds, and
    whoever tunes on them asks no balance of a router that is trained.
    """
    is_even = cells.is_xla or (cells.program.spreading.balanced_router and not cells.is_tuning)
    words = cells.text_of("framework", "kernel_stack")
    if is_even or mentions("balanced", words):
        return 0.0
    return _ROUTER_TUNED if cells.is_tuning else _ROUTER


_ROUTER, _ROUTER_TUNED = 0.3, 0.9
"""Of its share: beside an auxiliary loss the fullest of 64 experts then has 0.7 more than that, 2.4
deviations (presumed: such a loss is 1 and its square, which stays at 1.0 to 1.2), and without one
1.87 of Qwen3-30B (both: PithTrain's issue 79).  Between 0, tokens dealt evenly, and 1."""
