"""How a row's model and batch are split over devices, and what the ranks exchange.

Answers the numbers of devices, ranks and batches, of which most are blank and follow from the
others; the stage of ZeRO, the framework, pipeline schedule and context parallelism; and what is
exchanged beside computation.  A layout that rules forbid is `feasible`'s.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import lru_cache

from trainrig.catalog import Chip
from trainrig.errors import UsageError
from trainrig.prediction.rates.from_chip import joined_trays
from trainrig.workload.arrays import divisors
from trainrig.workload.layout import Layout
from trainrig.workload.layout.groups import CP_COMM
from trainrig.workload.model import ModelShape, parameters
from validation.normalise.cells import Cells, meanings, means, mentions
from validation.normalise.machines import server_in, tpu_slice
from validation.normalise.row_compute import is_all_to_all
from validation.normalise.row_lengths import (
    batch_tokens,
    stated_mean,
    usual_length,
    usual_samples,
)
from validation.normalise.training_programs import program_of


def sizes_of(cells: Cells, shape: ModelShape) -> dict[str, int]:
    """Devices and batch; what is blank follows from the other numbers."""
    tp, pp, cp = (cells.whole(name, 1) or 1 for name in ("tp", "pp", "cp"))
    dp, split = cells.whole("dp", 0), tp * pp * cp
    words = f"tp {tp} × pp {pp}" + (f" × cp {cp}" if cp > 1 else "")
    gpus = _of_nodes(cells) or cells.whole("num_gpus", dp * split) or _counted(cells)
    gpus = gpus or _of_batches(cells) * split or _of_one_node(cells)
    if split == 1 and (more := _sharing_samples(cells, gpus)) > 1:
        tp, cp = _within(
            more, min(cells.whole("gpus_per_node", _NODE), shape.attention.num_kv_heads), cells
        )
        split = tp * cp
    if gpus % split and cp > 1 and gpus % (tp * pp) == 0:
        cells.presume("cp")  # counted among the data-parallel ranks
        cp, split = math.gcd(cp, gpus // (tp * pp)), tp * pp * math.gcd(cp, gpus // (tp * pp))
    if 0 < gpus % split <= gpus / 16:  # as many replicas as there can be; the rest stood by
        cells.presume("num_gpus")
        gpus -= gpus % split
    if gpus % split:
        raise UsageError(f"{gpus} GPUs are no multiple of {words}")
    if dp not in (0, gpus // split):
        cells.presume("dp")  # some count the ranks of experts or of one sequence apart
    dp = gpus // split
    micro, accum = _batch_of(cells, shape, dp, pp)
    if not cells["zero_stage"] and dp > 1:
        cells.presume("zero_stage")
    zero = 3 if streams_weights(cells, gpus) else _stage_of(cells, pp)
    return {
        "gpus": gpus,
        "gpus_per_node": _node_of(cells, gpus, tp),
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "ep": _sharing_experts(cells, shape, gpus // (tp * pp)),
        "interleave": cells.whole("vpp", 1) if pp > 1 else 1,
        "batch_size": micro,
        "grad_accum": accum,
        "zero": zero,
        "sequence_parallel": int(tp > 1 and cells.word("seq_parallel") in _YES),
    }


def _node_of(cells: Cells, gpus: int, tp: int) -> int:
    """Devices of a node: as stated or counted in words, else as many as fill whole servers."""
    all_in_text, per_node = _counts(cells.word("hardware") or cells.word("chip"))
    per_node = per_node or (
        all_in_text if 1 < all_in_text < gpus and all_in_text <= 2 * _NODE else 0
    )
    most = min(_of_server(cells) or _NODE, gpus)
    filled = max(n for n in range(1, most + 1) if gpus % n == 0)
    filled = per_node if per_node and gpus % per_node == 0 else filled
    node = min(cells.whole("gpus_per_node", filled), gpus)
    if not cells["gpus_per_node"] and tp > node and gpus % (most := math.lcm(node, tp)) == 0:
        node = most  # tensor parallelism stays where links are quick: such nodes are larger
        cells.presume("gpus_per_node")
    if gpus % node:
        cells.presume("gpus_per_node")
        node = math.gcd(gpus, node)
    return node


def _of_server(cells: Cells) -> int:
    """Devices of the server that is named; 0: none is."""
    server = server_in(cells["hardware"]) or server_in(cells["chip"])
    return (server and server.gpus) or 0


def _sharing_samples(cells: Cells, gpus: int) -> int:
    """Ranks that share each sample, where fewer are stated than there are devices; 1: none do.

    Of Megatron, of programs that search for a plan over all devices, and of pre-training in JAX,
    whose batch is the whole job's; nothing else may be stated of the split.
    """
    batch = cells.whole("global_batch", 0)
    at_once = batch // (cells.whole("grad_accum", 1) * cells.whole("micro_batch", 1))
    is_open = not any(cells[name] for name in ("tp", "pp", "cp", "dp", "ep"))
    is_whole = cells.splits_models or (cells.is_xla and cells.is_pretraining)
    is_shared = (
        is_open
        and (is_whole or bool(cells.program.spreading.searches_layout))
        and 0 < at_once < gpus
    )
    return gpus // at_once if is_shared and gpus % at_once == 0 else 1


def _within(ranks: int, most: int, cells: Cells) -> tuple[int, int]:
    """Of ranks that share a sample, how many share tensors; the rest share its sequence."""
    tp = max(n for n in (1, 2, 4, 8) if n <= most and ranks % n == 0)
    cells.presume("tp", "cp")
    return tp, ranks // tp


def _sharing_experts(cells: Cells, shape: ModelShape, ranks: int) -> int:
    """Ranks that share experts: all that can, where nobody says and a dispatcher is named."""
    if cells["ep"] or not (shape.moe.num_experts and (sends_once(cells) or is_all_to_all(cells))):
        return cells.whole("ep", 1) or 1
    cells.presume("ep")  # what is dispatched has ranks to go to
    return math.gcd(ranks, shape.moe.num_experts)


def _of_one_node(cells: Cells) -> int:
    """Devices where nothing tells how many: those of the named server, else one.

    Several take as long as one for what each works on; for a stated whole batch they do not.
    """
    cells.presume("num_gpus", *(["nodes"] if cells["global_batch"] else []))
    return _of_server(cells) or 1


def _stage_of(cells: Cells, pp: int) -> int:
    """Stage of ZeRO: a number, or what is said of it: ``ZeRO-3``, ``full shard``."""
    words = cells.word("zero_stage")
    if not words:  # programs are named with it: "DeepSpeed ZeRO-2", "Megatron-FSDP"
        named = re.search(r"(?:zero|stage)[-_ ]*([1-3])|z([1-3])\b", cells.word("framework"))
        words = named[0] if named else ""
    words = means("zero_stage", words) or words
    if re.fullmatch(r"-?\d+(\.0*)?", words):
        stage = int(float(words))
    elif figure := re.search(r"\d", words):
        stage = int(figure[0])
    elif words:  # Megatron-FSDP's words are optim, optim_grads and optim_grads_params
        stage = 3 if re.search("shard|fsdp|param", words) else 2 if "grad" in words else 0
        stage = stage or (1 if "opt" in words else 0)
    else:
        stage = _usual_stage(cells, pp)
    if not 0 <= stage <= 3:
        raise UsageError(f"zero_stage = {stage}: 0 to 3")
    held = cells.word("precision") or cells.word("dtype")
    if stage == 0 and cells.program.spreading.shards_bf16_optimizer and _IS_BF16.search(held):
        return 1
    return stage


_IS_BF16 = re.compile(r"bf\w*-?16|bfloat")


_YES = ("true", "1", "1.0", "yes", "y", "on", "t")


def _counted(cells: Cells) -> int:
    """How many devices the hardware's text counts, ``8x MI350X``, else those of nodes; 0: none."""
    printed = cells.word("hardware") or cells.word("chip")
    counted, _ = _counts(printed)
    if not counted and (slice_ := tpu_slice(cells["chip"]) or tpu_slice(printed)):
        counted = slice_[1]
    if not counted:
        per_node = cells.whole("gpus_per_node", _NODE if cells["nodes"] else 0)
        counted = per_node * cells.whole("nodes", 1)
    if counted:
        cells.presume("num_gpus")
    return counted


@lru_cache(maxsize=1024)
def _counts(printed: str) -> tuple[int, int]:
    """Devices in all and of each node that a text in small letters counts; 0: it doesn't.

    ``words.toml`` has how each is written; of several numbers of devices the largest counts, and
    beside nodes no more than eight are those of one node.
    """
    words = re.sub(r"(?<=\d),(?=\d{3}\b)", "", printed[:400])
    for pattern, number in meanings()["number"]:
        words = re.sub(pattern, number, words)
    counts: dict[str, list[int]] = {"nodes": [], "each": [], "devices": [], "cores": []}
    for pattern, what in meanings()["count"]:
        for match in re.finditer(pattern, words):
            for name, number in zip(what.split(), match.groups(), strict=True):
                counts[name].append(int(number))
        words = re.sub(pattern, " ", words)
    devices = max(counts["devices"] + [n // 2 for n in counts["cores"]], default=0)
    nodes, per_node = max(counts["nodes"], default=0), max(counts["each"], default=0)
    if not nodes:
        return devices or per_node, per_node
    server = server_in(printed)
    per_node = per_node or (devices if devices <= _NODE else 0)
    per_node = per_node or (0 if devices else (server and server.gpus) or _NODE)
    total = nodes * per_node if per_node else devices
    return total, per_node or (total // nodes if total % nodes == 0 else 0)


def _of_nodes(cells: Cells) -> int:
    """Devices of a cell that counts nodes: ``64x8``, ``64 nodes``; 0: it doesn't."""
    match = re.fullmatch(
        r"(\d{1,6})\s*(?:nodes?|hosts?|servers?)?\s*(?:[x×*]\s*(\d{1,4}))?", cells.word("num_gpus")
    )
    if match is None or cells["num_gpus"].isdigit():
        return 0
    return int(match[1]) * int(match[2] or cells.whole("gpus_per_node", _NODE))


_NODE = 8
"""Devices of a server, where only servers are counted."""


def _of_batches(cells: Cells) -> int:
    """Data-parallel ranks by the three numbers of a batch; one where they don't say."""
    batch, micro = cells.whole("global_batch", 0), cells.whole("micro_batch", 0)
    accum = cells.whole("grad_accum", 0)
    is_split = any(cells.whole(name, 1) > 1 for name in ("tp", "pp", "cp"))
    if not (batch and micro and accum) and not is_split:
        return 0
    cells.presume("num_gpus")
    return max(1, batch // (micro * accum)) if batch and micro and accum else 1


def joined(chip: Chip, sizes: dict[str, int]) -> tuple[int, dict[str, int]]:
    """Trays of a rack that the chips' link joins to one node, and the sizes with that node."""
    trays = joined_trays(chip, sizes["gpus_per_node"], sizes["gpus"])
    return trays, sizes | {"gpus_per_node": sizes["gpus_per_node"] * trays}


def _batch_of(cells: Cells, shape: ModelShape, dp: int, pp: int) -> tuple[int, int]:
    """Micro-batch and how many, of a program that cuts a batch into as many as stages, too."""
    micro, accum = _stated_batch_of(cells, shape, dp, pp)
    if (
        cells.program.spreading.cuts_by_stages
        and pp > 1
        and micro % pp == 0
        and not cells["micro_batch"]
    ):
        return micro // pp, accum * pp
    return micro, accum


def _stated_batch_of(cells: Cells, shape: ModelShape, dp: int, pp: int) -> tuple[int, int]:
    """Micro-batch and how many: from two of global batch, micro-batch and accumulation."""
    micro, accum = _micro_of(cells, shape), cells.whole("grad_accum", 0)
    batch = _global_batch(cells)
    if not batch and not micro:
        cells.presume(*([] if accum else ["global_batch"]), "micro_batch")
        micro = max(1, _AT_ONCE // cells.whole("seq", 2048)) if accum else 1
        accum = accum or _usual_samples(cells, shape, dp, pp)
    if batch and not accum and cells.is_xla and pp == 1 and batch % dp == 0:
        # `per_device_batch_size` (MaxText) is of each chip, of which several share a sample; XLA's
        # programs go through all of them at once.
        if not micro:
            cells.presume("micro_batch")
        return batch // dp, 1
    if not micro:
        if not accum:
            cells.presume("micro_batch")
        # Stages are kept busy by many.
        is_least = pp > 1 and not accum
        micro = 1 if is_least else max(1, batch // (dp * max(accum, 1)))
    if not accum and pp > 1 and not batch:  # stages wait for each other unless there are many
        cells.presume("global_batch")
        accum = pp * max(4, _usual_samples(cells, shape, dp, pp) // (pp * micro))
    if not accum:
        usual = _usual_samples(cells, shape, dp, pp) // micro if pp > 1 else 1
        accum = max(1, round(batch / (dp * micro))) if batch else max(usual, pp)
        if not batch:
            cells.presume("grad_accum")
    if batch and not 0.95 < batch / (micro * accum * dp) < 1.05:
        return _agreed(cells, batch, micro, accum, dp)
    return micro, accum


def _global_batch(cells: Cells) -> int:
    """Samples of a step, 0: not stated; papers count tokens, too (``4M``, ``0.5M tokens``)."""
    batch = cells.whole("global_batch", 0)
    if batch and re.search(r"tok|[mM]$", cells["global_batch"]):
        return max(1, round(batch / cells.whole("seq", 2048)))
    words = cells.text_of("kernel_stack", "framework")
    token_batch = None if batch or not cells["seq"] else _BATCH_OF_TOKENS.search(words)
    if token_batch is None:
        return batch
    factor = {"": 1, "k": 1024, "m": 1024**2}[token_batch[2] or token_batch[4] or ""]
    tokens = float((token_batch[1] or token_batch[3]).replace(",", "")) * factor
    return max(1, round(tokens / cells.whole("seq")))


_BATCH_OF_TOKENS = re.compile(
    r"(?<![\d.,])(\d[\d,]*(?:\.\d+)?) ?([km]?)[ -]?tok(?:en)?s?"
    r"[ -]?(?:/|an?|per|each|in an?)? ?"
    r"(?:(?:global|total) batch|(?:global |optimizer )?step|update)\b"
    r"|\b(?:global|total|effective) batch(?: size)?(?: of)?\W{1,3}"
    r"(\d[\d,]*(?:\.\d+)?) ?([km]?)[ -]?tok"
)
"""``524,288 tokens a global batch``, ``global batch of 4M tokens``."""


def _micro_of(cells: Cells, shape: ModelShape) -> int:
    """Samples of a micro-batch, 0: not stated; some programs limit its tokens."""
    if not (tokens := batch_tokens(cells)):
        return cells.whole("micro_batch", 0)
    length = stated_mean(cells) or usual_length(cells, shape)
    return max(1, round(tokens / cells.whole("seq", length)))


def _usual_samples(cells: Cells, shape: ModelShape, dp: int, pp: int) -> int:
    """Samples of a rank's step where nobody says: tokens a second hardly depend on it.

    A pre-training's are its share of the tokens that GPT-3's models of the size had (Brown et al.
    2020, table 2.1: half a million of 125 million parameters, 3.2 million of 175 billion), within
    bounds that one step of a rank seldom leaves; another training has the least of these, and so
    has a device alone, which trains none of those models to the end.
    """
    if cells.is_tuning and shape.family == "bert":  # a usual micro-batch
        return usual_samples(cells)
    size = parameters(shape).total / 125e6
    whole = 0.5e6 * min(max(size, 1.0), 1400.0) ** 0.256
    is_tuned = cells.is_tuning or cells.is_more
    is_trial = is_tuned or dp * pp * cells.whole("tp", 1) * cells.whole("cp", 1) == 1
    tokens = _LEAST if is_trial else min(max(whole / dp, _LEAST), _MOST if pp == 1 else whole)
    length = 2048 if is_tuned else usual_length(cells, shape)
    samples = max(1.0, tokens / cells.whole("seq", length), 4.0 * pp if pp > 1 else 1.0)
    return pp * (1 << max(0, round(math.log2(samples / pp))))


_AT_ONCE = 4096
"""Tokens of a micro-batch where only their number is stated: a sample of most of today's models."""
_LEAST, _MOST = 8192, 65536
"""Tokens of a rank's step, the least and, without stages to fill, the most that are presumed."""


def _agreed(cells: Cells, batch: int, micro: int, accum: int, dp: int) -> tuple[int, int]:
    """Micro-batch and how many, where the numbers of a batch contradict each other."""
    others = max(1, round(batch / (dp * micro)))
    if cells["micro_batch"] and 0.95 < others * dp * micro / batch < 1.05:
        cells.presume("grad_accum")  # the other three agree without it
        return micro, others
    cells.presume("global_batch")
    if batch < dp:  # that of each rank, as some programs print it
        return micro, accum
    share = batch // dp
    micro = max(n for n in divisors(share) if n <= micro)
    return micro, share // micro


def _usual_stage(cells: Cells, pp: int) -> int:
    """Stage of ZeRO where nobody says: the program's."""
    if cells.is_fsdp and pp > 1 and not cells.is_xla:
        return 2  # its weights stay gathered in a pipeline, by default
    if cells.is_fsdp and pp == 1:
        return 3
    if cells.program.spreading.shards_gradients and cells.program.trains_as == "deepspeed":
        return 2 if pp == 1 else 1
    return int(cells.does(cells.program.spreading.shards_optimizer))


def accumulated(layout: Layout) -> Layout:
    """As many micro-batches, where nobody says, as make an offloaded update cheap beside them.

    Whoever keeps states off the device adds up until their way there and back no longer rules.
    """
    ranks = layout.mesh.dp if layout.memory.offload == "host" else 0.25
    tokens = int(layout.batch.seq_len * layout.batch.micro * ranks)
    return layout.replace(grad_accum=max(int(layout.batch.grad_accum), _OFFLOADED // tokens))


_OFFLOADED = 512 * 1024
"""Tokens of a step whose states are off the device, of all ranks (with a disk, some ten times
slower, four times as many of each), presumed: 512 samples of 1024."""


def sends_once(cells: Cells) -> bool:
    """Say whether tokens leave once for each node, by the program or the kernels that are named."""
    if is_all_to_all(cells):
        return False
    return program_of(cells.text_of("kernel_stack", "framework")).spreading.sends_once is True


def overlaps_dispatch(cells: Cells, chip: Chip, layout: Layout) -> bool:
    """Return whether tokens' way to experts runs beside computation: on Hopper, or beyond a node.

    With graphs of whole iterations it does inside a node, too.  Where kernels of that way are
    named, and nothing of an overlap, they run alone: it is an option.  Recipes of tunings lack it.
    """
    words = cells.text_of("kernel_stack")
    if cells.is_tuning or (mentions("dispatcher", words) and not mentions("overlaps", words)):
        return False
    is_slow = (chip.product.year or 0) < 2024 or layout.mesh.ep > layout.mesh.gpus_per_node
    is_graphed = cells.does(cells.program.code.mixtures_graphed)
    return cells.program.spreading.overlaps_dispatch is True and bool(is_slow or is_graphed)


def cuts_no_expert(cells: Cells, shape: ModelShape) -> bool:
    """Return whether tensor parallelism leaves experts whole that are no wider than the model."""
    is_narrow = 0 < shape.expert_width <= shape.hidden
    return is_narrow and cells.does(cells.program.spreading.whole_experts)


def framework_of(cells: Cells, sizes: Mapping[str, int]) -> tuple[str, str]:
    """Framework and parallel scheme, by the framework's name, else by how the model is split.

    What torch alone spreads computes as Hugging Face's models do; a program that nobody here knows
    and that shards its optimizer is one for large models, with Megatron's way of doing it.
    """
    named = cells.program.trains_as
    split = any(sizes[name] > 1 for name in ("tp", "pp", "cp", "ep", "zero"))
    is_alone = 1 < sizes["gpus"] <= sizes["gpus_per_node"] and not split
    if named in ("", "trainer") and is_alone and _is_data_parallel(cells):
        return "huggingface", "dataparallel"
    is_torch = cells.program.spreading.torch_pipelines or (named == "fsdp" and not cells.is_xla)
    if is_torch and sizes["pp"] > 1:
        return "torchtitan", "auto"  # whose pipelines are torch's
    if named == "fsdp" or streams_weights(cells, sizes["gpus"]):
        return "huggingface", "fsdp" if sizes["zero"] else "ddp"
    # DeepSpeed's pipelines are of the modules that it is given; who splits tensors is Megatron.
    is_split = sizes["tp"] > 1 or (sizes["pp"] > 1 and named != "deepspeed")
    if named == "megatron" or is_split or (not named and sizes["ep"] > 1):
        return "megatron", "auto"
    # Trainer has whole weights and a host's optimizer by DeepSpeed alone, which has stages.
    is_away = named == "trainer" and sizes["zero"] in (1, 2) and cells.word("offload") == "host"
    is_staged = (
        cells.program.code.transformers_models and cells["zero_stage"] and sizes["zero"] >= 2
    )
    if named == "deepspeed" or is_away or (named == "trainer" and is_staged):
        return "deepspeed", "auto"
    if not named and cells.program.code.other_runtime:
        cells.presume("framework")
    return "megatron" if not named and sizes["zero"] in (1, 2) else "huggingface", "auto"


def streams_weights(cells: Cells, gpus: int) -> bool:
    """Whether a device alone fetches frozen weights from the host for each pass, as FSDP would."""
    words = re.search(r"stream|layer.by.layer|param", cells.word("offload"))
    return gpus == 1 and cells.is_adapted and words is not None


def _is_data_parallel(cells: Cells) -> bool:
    """Whether torch.nn.DataParallel is named: in one word that no other one is joined to, or DP."""
    framework = cells.word("framework")
    words = f"{framework} {cells.word('parallel')}"
    return bool(re.search(r"(?<![a-z])dataparallel\b", words) or re.search(r"\bdp\b", words))


def schedule_of(cells: Cells) -> str:
    """One of SCHEDULES: what the cell says, or the program's; interleaving is ``vpp``'s.

    Of a mixture of words (``interleaved 1F1B``) the schedule's name counts.
    """
    if usual := cells.program.spreading.schedule:
        return usual
    return means("schedule", cells.text_of("schedule", "framework")) or "1f1b"


def cp_comm_of(cells: Cells) -> str:
    """One of CP_COMM: what the cell says, or the program's."""
    return cells.choice(
        "cp_comm", CP_COMM, cells.program.spreading.cp_comm or "auto", is_unsure=False
    )


def overlap_of(cells: Cells, chip: Chip, kernels: str) -> str:
    """One of OVERLAPS: what a program runs beside computation, where its name tells.

    Megatron-LM's by itself is told of its layers by Transformer Engine, which could do more.  On
    Intel's GPUs collectives wait for computation and it for them, whatever their streams
    (intel/intel-extension-for-pytorch #599, with traces of a Max 1550).
    """
    if chip.product.architecture == "Xe-HPC":
        return "none"
    named = cells.program.spreading.overlap or "auto"
    return "auto" if named == "data" and kernels != "flash+fused" else named


def interleaves(layout: Layout) -> bool:
    """Return whether stages are interleaved where nobody says: in today's Megatron with 1F1B."""
    return layout.overlaps == "tensor" and layout.pipeline.schedule == "1f1b"


def most_groups(shape: ModelShape, layout: Layout) -> int:
    """Of today's Megatron where nobody says: as many groups of two layers or more as there may be.

    Its recipes interleave wherever micro-batches can be dealt to the stages.
    """
    dealt = layout.batch.grad_accum % layout.mesh.pp == 0
    for layers in (shape.num_layers, shape.num_layers + 1, shape.num_layers + 2):
        stage = layers // layout.mesh.pp  # head, then embedding, may count as layers (126 on 16)
        groups = [n for n in range(2, stage // 2 + 1) if layers % (layout.mesh.pp * n) == 0]
        if groups and dealt:
            return max(groups)
    return 1


def splits_sequence(layout: Layout, cells: Cells) -> bool:
    """Return whether tensor parallelism goes with sequence parallelism where nobody says.

    NeMo's recipes switch it on, Megatron-Core demands it of mixtures (its guide on experts), and
    Megatron's scripts of 2023 and later have it (examples/pretrain_gpt_distributed_with_mp.sh,
    LLaMA's of FlagScale); it came in 2022 (Korthikanti et al.).
    """
    is_later = layout.kernels.stack == "flash+fused" or (
        layout.kernels.is_flash and cells.is_since("2023-06")
    )
    return layout.framework == "megatron" and is_later
