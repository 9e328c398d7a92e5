"""What recipes for Megatron do, which rows of NeMo, Megatron-Bridge and others seldom say.

Answers what gradients, weights and moments are held in, who shards states, whether kernels come
from CUDA graphs and how tokens reach experts.  Each rule names the file that it was read in.
"""

from __future__ import annotations

import re

from trainrig.catalog import Chip
from trainrig.predict.table_words import Cells, moments_of
from trainrig.workload.model import ModelShape


def is_recipe(cells: Cells) -> bool:
    """Whether a row is of NVIDIA's recipes for Megatron: either NeMo's, or Megatron-Bridge's.

    They shard the optimizer's states and reduce gradients in bf16 (NeMo's `distributed_fused_adam`
    with `grad_sync_dtype: bf16`; `use_distributed_optimizer` and `grad_reduce_in_fp32 = False` of
    Megatron-Bridge's scripts/performance, read 2026-11-23).
    """
    framework = cells.word("framework")
    is_other = "automodel" in framework or "deepspeed" in framework
    return not is_other and bool(re.search(r"nemo|(megatron.?|\bm)bridge", framework))


def is_graphed(cells: Cells, chip: Chip) -> bool:
    """Whether kernels are launched from CUDA graphs, or without Python between them (llm.c, XLA).

    Megatron-Bridge's recipes have them on nearly all of Blackwell's presets, and on none of
    Hopper's (`cuda_graph_impl` in its scripts/performance/configs, read 2026-11-23).
    """
    words = cells.word("kernel_stack") + " " + cells.word("framework")
    if chip.vendor == "Google" or cells.is_xla:
        return True
    is_new = chip.vendor == "NVIDIA" and (chip.year or 0) >= 2024
    return bool(re.search(r"cuda[ _-]?graph|llm\.c\b", words)) or (is_new and is_recipe(cells))


def sends_once(cells: Cells) -> bool:
    """Whether tokens leave once for each node: DeepEP or HybridEP is named, or Megatron-Bridge is.

    Bridge's presets for mixtures have Megatron-Core's flex dispatcher on one of the two
    (`moe_flex_dispatcher_backend` in its scripts/performance/configs, read 2026-11-23).
    """
    words = cells.word("kernel_stack") + " " + cells.word("framework")
    return bool(re.search(r"(deep|hybrid)[ _-]?ep\b|(megatron.?|\bm)bridge", words))


def shards_optimizer(cells: Cells) -> bool:
    """Whether a Megatron shards its optimizer, where nobody says: in scripts of 2024 and later.

    Of Megatron-LM's examples all have `use-distributed-optimizer` but GPT-3's, BERT's and T5's, the
    oldest (read 2026-11-23).
    """
    is_megatron = re.search(r"megatron|mcore|primus|flagscale|mindspeed", cells.word("framework"))
    return is_megatron is not None and cells.is_since("2024-01")


def has_narrow_weights(cells: Cells, precision: str) -> bool:
    """Whether weights of blocks are held in fp8 alone, by NVIDIA's recipes for it.

    Of NeMo 2 (`fp8_params`, `fp8_param_gather` in its recipes/precision/mixed_precision.py) and
    Megatron-Bridge (training/mixed_precision.py, read 2026-11-23), but for scales of blocks.
    """
    words = f"{cells.word('precision')} {cells.word('dtype')}"
    is_launcher = "launcher" in cells.word("framework")
    is_left_out = re.search(r"block|sub-?channel|fp4", words) is not None or is_launcher
    return precision == "fp8" and is_recipe(cells) and not is_left_out


def moments_in(cells: Cells, shape: ModelShape) -> str:
    """One of MOMENTS_IN; Megatron-Bridge's recipes of latent attention have bf16, if not said.

    `exp_avg_dtype` of DeepSeek-V3 and V4 and Moonlight (its recipes/deepseek, recipes/moonlight and
    perf_recipes/deepseek, read 2026-11-23; DeepSeek-V2's have fp32).
    """
    found = moments_of(cells)
    is_bridge = is_recipe(cells) and "bridge" in cells.word("framework")
    return "bf16" if found == "auto" and is_bridge and shape.kv_rank else found
