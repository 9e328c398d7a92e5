"""A row of a table of training runs: the model, layout and rates it means, and its prediction.

Answers what `trainrig predict --cases` asks: for each row of a CSV with the published table's
columns, seconds of a step and bytes a GPU with an interval each, or a reason why not.  A blank
cell is not stated: a default stands for it (`table_words`, or what follows from the other cells)
and widens the interval.  Where a row comes from and what is noted about it is not read: `READ`
lists all columns that are.

The architecture is the one that the model's name says (it is what is run); otherwise the one that
the numbers say: a feed-forward width near 8/3 of the hidden is a gated Llama; fewer heads of keys
than heads is a Llama, gated unless its width is 4·hidden; the rest is a GPT.  Where the number of
parameters is printed, it decides whether the feed-forward net is gated and the head tied.
"""

from __future__ import annotations

import csv
import dataclasses
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from trainrig.catalog import Chip, require_chip
from trainrig.errors import DataError, TrainrigError, UsageError
from trainrig.predict.rates import Rates
from trainrig.predict.rates.from_chip import rates_of_chip
from trainrig.predict.step import predict_step
from trainrig.predict.table_words import (
    Cells,
    Row,
    chip_of,
    fabric_of,
    framework_of,
    kernels_of,
    link_of,
    power_of,
    precision_of,
    states_of,
)
from trainrig.workload.layout import OFFLOAD, RECOMPUTE, Layout, check_layout
from trainrig.workload.memory import memory
from trainrig.workload.model import ModelShape, parameters
from trainrig.workload.model_lookup import spelled
from trainrig.workload.presets import custom

NEEDED = ("chip", "layers", "hidden", "seq")
"""Columns that a table must have."""
READ = (
    *("chip", "hardware", "num_gpus", "gpus_per_node", "link", "fabric_gbps_per_node", "framework"),
    *("model", "params_b", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq"),
    *("global_batch", "micro_batch", "dp", "tp", "pp", "vpp", "cp", "ep", "grad_accum"),
    *("zero_stage", "seq_parallel", "precision", "dtype", "kernel_stack", "recompute", "kind"),
    *("memory_kind", "offload", "states", "mean_seq", "masked_share"),
    *("num_experts", "topk", "moe_ffn", "shared_experts", "first_dense_layers"),
)
"""Every column that a prediction may depend on."""
LONGEST_CELL = 1 << 24
Three = tuple[float, float, float]
"""Low, predicted, high."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What a row asks."""

    shape: ModelShape
    layout: Layout
    rates: Rates
    chip: Chip
    head: float = 1.0
    """Share of the tokens that logits are computed for."""
    mean_seq: int = 0
    """Tokens of a sequence on average, where the layout's are the most; 0: they are the mean."""
    memory_kind: str = "allocated"
    """Whose bytes: the framework's peak, what its allocator reserved, or the device's."""
    unstated: tuple[str, ...] = ()
    """Cells that a default stands for."""
    spread: float = 0.0
    """What they add to the half width of the interval of the time (natural logarithm)."""


def case_of(row: Row) -> Case:
    """The case that a row means.  UsageError with the reason where it means none."""
    cells = Cells(row)
    _refuse(cells)
    chip = chip_of(cells)
    shape = _shape_of(cells)
    is_named = not cells["layers"]
    cells.unstated += [name for name in ("heads", "ffn", "vocab") if not cells[name]]
    sizes = _sizes_of(cells)
    trays, sizes = _joined(chip, sizes)
    zero = sizes["zero"]
    framework, parallel = framework_of(cells, sizes)
    precision = precision_of(cells, chip)
    fabric = fabric_of(cells, sizes)
    rates = _rates(chip.name, link_of(cells), fabric and fabric * trays, power_of(cells))
    is_torch1 = re.search(r"torch 1\.", cells.word("framework"))
    layout = Layout(
        **sizes,  # type: ignore[arg-type]
        seq_len=cells.whole("seq"),
        precision=precision,
        # Not stated: full where weights are sharded, for want of memory.
        recompute=cells.choice("recompute", RECOMPUTE, "full" if zero == 3 else "none"),
        kernels=kernels_of(cells, chip),
        framework=framework,
        parallel=parallel,
        optimizer="adamw-fused",
        states=states_of(cells, shape.family),
        software="torch1" if is_torch1 else "current",
        # DeepSpeed's usual configurations of ZeRO 2 and 3 keep the optimizer on the host, which
        # takes less memory: there a blank cell is not known, and the interval begins with it.
        offload=cells.choice(
            "offload", OFFLOAD, "none", is_unsure=framework == "deepspeed" and zero >= 2
        ),
        lora_rank=8 if cells["kind"] == "lora" else 0,
    )
    check_layout(_evened(shape, layout), layout)
    if "micro_batch" in cells.unstated:
        layout = _fitting(shape, layout, rates.memory_bytes)
    if not cells["vpp"] and layout.pp > 1 and layout.overlaps == "all":
        layout = layout.replace(interleave=_usual_interleave(shape, layout))
        cells.unstated.append("vpp")
    least = memory(shape, layout.replace(recompute="full")).total if is_named else 0
    if least > _TOO_MUCH * rates.memory_bytes:  # scaled down for few GPUs, and nobody says so
        raise UsageError(f"layers: not stated, and {shape.name} whole does not fit: a part of it?")
    mean_seq = cells.whole("mean_seq", 0)
    if mean_seq > layout.seq_len:
        raise UsageError(f"mean_seq = {mean_seq}: more than seq, {layout.seq_len}")
    if mean_seq:  # batches are filled from bins, or padded: what is printed is the longest
        cells.unstated.append("seq")
    kind = cells["memory_kind"]
    return Case(
        shape=shape,
        layout=layout,
        rates=rates,
        chip=chip,
        head=_head_share(cells, shape.family),
        mean_seq=mean_seq,
        memory_kind=kind if kind in ("reserved", "device") else "allocated",
        unstated=tuple(cells.unstated),
        spread=cells.spread,
    )


_TOO_MUCH = 1.3
"""Of a GPU's memory: more than what is not known of a run can explain."""


def _refuse(cells: Cells) -> None:
    if "transformer-xl" in cells.word("model"):
        raise UsageError("Transformer-XL attends to what it remembers: not modelled")


def _evened(shape: ModelShape, layout: Layout) -> ModelShape:
    """What has to be legal: a run that was trained had stages of some length.

    DeepSpeed deals layers by weight, Megatron counts embedding and loss as layers: a stage has at
    most what rounding up gives.
    """
    stages = int(layout.pp * layout.interleave)
    if not layout.traits.own_scheme or shape.num_decoder_layers:
        return shape
    return dataclasses.replace(shape, num_layers=-(-shape.num_layers // stages) * stages)


def _fitting(shape: ModelShape, layout: Layout, capacity: float) -> Layout:
    """Micro-batches that are not stated: the largest that memory holds, else of one sample.

    A pipeline gets four for each stage where there are as many samples.
    """
    samples = int(layout.batch_size * layout.grad_accum)
    least = min(samples, 4 * int(layout.pp)) if layout.pp > 1 else 1
    sizes = [samples] + [1 << n for n in range(10, -1, -1) if 1 << n < samples]
    for size in sizes:
        one = layout.replace(batch_size=size, grad_accum=samples // size)
        dealt = layout.interleave == 1 or one.grad_accum % layout.pp == 0
        can_be = samples % size == 0 and one.grad_accum >= least and dealt
        if can_be and memory(shape, one).total <= capacity:
            return one
    return layout.replace(batch_size=1, grad_accum=samples)


@lru_cache(maxsize=256)
def _rates(chip: str, link: str | None, fabric: float | None, power: float | None) -> Rates:
    return rates_of_chip(require_chip(chip), link=link, fabric=fabric, power=power)


def _sizes_of(cells: Cells) -> dict[str, int]:
    """Devices and batch; what is blank follows from the other numbers."""
    tp, pp, cp = cells.whole("tp", 1), cells.whole("pp", 1), cells.whole("cp", 1) or 1
    dp, split = cells.whole("dp", 0), tp * pp * cp
    words = f"tp {tp} × pp {pp}" + (f" × cp {cp}" if cp > 1 else "")
    gpus = cells.whole("num_gpus", dp * split)
    if not gpus:
        raise UsageError("num_gpus: not stated, nor does it follow from dp")
    if gpus % split:
        raise UsageError(f"{gpus} GPUs are no multiple of {words}")
    if dp not in (0, gpus // split):
        raise UsageError(f"dp = {dp}: {gpus} GPUs by {words} are {gpus // split}")
    dp = gpus // split
    micro, accum = _batch_of(cells, dp)
    if not cells["zero_stage"] and dp > 1:
        cells.unstated.append("zero_stage")
    zero = cells.whole("zero_stage", 3 if cells.is_fsdp and pp == 1 else 0)
    if zero > 3:
        raise UsageError(f"zero_stage = {zero}: 0 to 3")
    filled = max(n for n in range(1, 9) if gpus % n == 0)
    return {
        "gpus": gpus,
        "gpus_per_node": cells.whole("gpus_per_node", filled),
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "ep": cells.whole("ep", 1) or 1,
        "interleave": cells.whole("vpp", 1) if pp > 1 else 1,
        "batch_size": micro,
        "grad_accum": accum,
        "zero": zero,
        "sequence_parallel": int(tp > 1 and cells.word("seq_parallel") in ("true", "1", "1.0")),
    }


def _joined(chip: Chip, sizes: dict[str, int]) -> tuple[int, dict[str, int]]:
    """Trays of a rack that the chips' link joins to one node, and the sizes with that node."""
    tray, gpus = sizes["gpus_per_node"], sizes["gpus"]
    most = min(chip.link_domain or tray, gpus) // tray
    trays = max((n for n in range(1, most + 1) if gpus % (tray * n) == 0), default=1)
    return trays, sizes | {"gpus_per_node": tray * trays}


def _batch_of(cells: Cells, dp: int) -> tuple[int, int]:
    """Micro-batch and how many: from two of global batch, micro-batch and accumulation."""
    micro, accum = cells.whole("micro_batch", 0), cells.whole("grad_accum", 0)
    batch = cells.whole("global_batch", 0)
    if not batch and not micro:
        raise UsageError("neither global_batch nor micro_batch is stated")
    if not micro:
        if not accum:
            cells.unstated.append("micro_batch")
        micro = max(1, batch // (dp * max(accum, 1)))
    if not accum:
        accum = max(1, round(batch / (dp * micro))) if batch else 1
        if not batch:
            cells.unstated.append("grad_accum")
    if batch and not 0.95 < batch / (micro * accum * dp) < 1.05:
        others = round(batch / (dp * micro))
        if cells["grad_accum"] and cells["micro_batch"] and others * dp * micro == batch:
            cells.unstated.append("grad_accum")  # the other three agree without it
            return micro, others
        raise UsageError(
            f"a global batch of {batch} is not micro-batches of {micro} × {accum} × {dp} ranks"
        )
    return micro, accum


def _usual_interleave(shape: ModelShape, layout: Layout) -> int:
    """Of today's Megatron where nobody says: as many groups of two layers or more as there may be.

    Its recipes interleave wherever micro-batches can be dealt to the stages.
    """
    stage, dealt = shape.num_layers // layout.pp, layout.grad_accum % layout.pp == 0
    groups = [n for n in range(1, stage // 2 + 1) if shape.num_layers % (layout.pp * n) == 0]
    return max(groups, default=1) if dealt else 1


@lru_cache(maxsize=1024)
def _usual_heads(hidden: int, tp: int) -> int:
    """Where heads are not stated: a number that tensor parallel divides, each about 64 wide."""
    fitting = [tp * n for n in range(1, hidden // tp + 1) if hidden % (tp * n) == 0]
    aligned = [n for n in fitting if hidden // n % 8 == 0] or fitting or [1]
    return min(aligned, key=lambda n: abs(hidden / n - 64))


_MIXTURE = {
    "num_experts": "num_experts",
    "experts_per_token": "topk",
    "expert_ffn": "moe_ffn",
    "shared_experts": "shared_experts",
    "dense_layers": "first_dense_layers",
}
"""Numbers of a mixture of experts and the columns that state them."""
_PLAIN = {
    "num_layers": "layers",
    "hidden": "hidden",
    "num_heads": "heads",
    "num_kv_heads": "kv_heads",
    "ffn": "ffn",
    "vocab": "vocab",
}
"""Numbers of any model, and theirs."""


def _mixture_of(cells: Cells) -> dict[str, int]:
    """What a row states of its mixture of experts: nothing of a dense model."""
    found = {field: cells.whole(name) for field, name in _MIXTURE.items() if cells[name]}
    if found.get("num_experts", 0) <= 1 and cells["num_experts"]:
        return {}
    words = re.split("[^a-z]+", cells.word("model"))
    if found or cells.whole("ep", 1) > 1 or set(words) & {"moe", "mixtral", "experts", "switch"}:
        return {"num_experts": 0} | found
    return {}


def _published(cells: Cells, mixture: Mapping[str, int]) -> ModelShape | None:
    """A model that is known by its name, where a row leaves its numbers to that; with those stated.

    None where the row states them itself, or no name is known.
    """
    if cells["layers"] and cells["hidden"] and (not mixture or mixture["num_experts"]):
        return None
    shape = spelled(cells["model"])
    if shape is None or (mixture and not shape.num_experts):
        return None
    stated: dict[str, Any] = {f: cells.whole(name) for f, name in _PLAIN.items() if cells[name]}
    stated |= {field: number for field, number in mixture.items() if number}
    if stated.get("hidden", shape.hidden) != shape.hidden:
        raise UsageError(f"hidden = {stated['hidden']}: {shape.name} has {shape.hidden}")
    return dataclasses.replace(shape, **stated)


def _shape_of(cells: Cells) -> ModelShape:
    """The shape of a row.  UsageError where numbers are missing or contradict."""
    mixture = _mixture_of(cells)
    if (known := _published(cells, mixture)) is not None:
        return known
    if mixture and not mixture["num_experts"]:
        raise UsageError("num_experts: not stated, nor is the model known by its name")
    layers, hidden = cells.whole("layers"), cells.whole("hidden")
    heads = cells.whole("heads", _usual_heads(hidden, cells.whole("tp", 1)))
    kv_heads, ffn = cells.whole("kv_heads", heads), cells.whole("ffn", 0)
    sizes = {"num_heads": heads, "ffn": ffn, "vocab": cells.whole("vocab", 0)}
    seq, name = cells.whole("seq"), cells["model"]
    if hidden % heads:
        raise UsageError(f"{heads} heads do not divide a width of {hidden}")
    word = name.lower()
    named = (family for family, words in _FAMILIES.items() if any(one in word for one in words))
    is_gated = 2.2 < ffn / hidden < 3.9 or (kv_heads != heads and ffn != 4 * hidden)
    stated = next(named, None)
    family = stated or ("llama" if is_gated else "gpt2")
    if hidden // heads % 2 and family == "llama":
        raise UsageError(f"heads of {hidden // heads}: rotary positions turn pairs")
    numbers: dict[str, Any] = {"num_layers": layers, "hidden": hidden}
    numbers |= {field: size for field, size in sizes.items() if size}
    numbers |= {"name": name or None, "max_positions": max(seq, 512)}
    if mixture:
        return custom("llama", **numbers | mixture | {"num_kv_heads": kv_heads})
    if family == "t5":
        halves = dict.fromkeys(("num_layers", "num_decoder_layers"), max(1, layers // 2))
        return custom(family, **numbers | halves)
    if family == "bert":
        return custom(family, **numbers)
    shared: dict[str, Any] = {"num_kv_heads": kv_heads}
    is_tanh = any(one in word for one in _TANH)
    plain: dict[str, Any] = {"activation": "gelu_tanh" if is_tanh else "gelu"}
    gated, ungated = ("llama", shared), ("llama", shared | {"gated_ffn": False} | plain)
    if family == "llama":
        ways = [gated] if stated else [gated, ungated]
    else:  # a GPT whose heads share keys is told by the numbers alone
        ways = [("gpt2", plain) if kv_heads == heads else ungated]
        ways += [] if stated else [gated]
    tied = [{}, {"tied": True}, {"tied": False}]
    shapes = [custom(kind, **numbers | more | end) for end in tied for kind, more in ways]
    return _nearest(shapes, cells)


def _nearest(shapes: Sequence[ModelShape], cells: Cells) -> ModelShape:
    """The usual one (the first), unless another has the number of parameters that is printed."""
    if not cells["params_b"]:
        return shapes[0]
    printed = cells.number("params_b") * 1e9
    if not 1e3 < printed < 1e16:
        raise UsageError(f"params_b = {cells['params_b'][:40]}: billions of parameters")
    off = [abs(math.log(parameters(shape).total / printed)) for shape in shapes]
    best = min(range(len(shapes)), key=off.__getitem__)
    if off[best] > _MOST_APART:
        cells.unstated.append("params_b")
    return shapes[0] if off[0] < off[best] + _ROUNDED else shapes[best]


_ROUNDED = 0.02
"""Parameters are printed rounded: what fits no worse than this is as good (natural logarithm)."""
_MOST_APART = 0.1
"""Beyond it, the printed number and the shape contradict each other."""


_FAMILIES = {
    "bert": ("bert", "electra", "vit-"),
    "t5": ("t5", "bart", "enc-dec", "pegasus", "marian"),
    "llama": ("llama", "mistral", "qwen", "gemma", "yi-", "deepseek"),
    "gpt2": ("gpt", "mpt", "opt-", "bloom", "neox", "pythia", "megatron"),
}
"""Words in the names of models; the first family that has one counts."""
_TANH = ("gpt-2", "gpt2", "neo")
"""Models whose GELU is the tanh form, which is written out in Python where nothing fuses it."""


def _head_share(cells: Cells, family: str) -> float:
    """Share of the tokens that logits are computed for: a fine-tuned encoder has a small head.

    ``masked_share`` is of the tokens that a masked language model is asked for, where its code
    computes no other logits.
    """
    if family != "bert":
        return 1.0
    if cells.word("kind") == "finetune":
        return 0.0
    text = cells["masked_share"]
    try:
        share = float(text) if text else 1.0
    except ValueError:
        share = math.nan
    if not 0.0 < share <= 1.0:
        raise UsageError(f"masked_share = {text[:40]!r}: a share, above 0 and at most 1")
    return share


def read_rows(path: Path) -> Iterator[dict[str, str]]:
    """Rows of a CSV, one by one, however many.  DataError where it is none."""
    try:
        # A letter of another encoding in a name or a note is no reason to refuse the numbers.
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as lines:
            yield from _rows(lines, path.name)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}", "name a CSV file") from None
    except csv.Error as error:
        raise DataError(f"{path} is no CSV: {error}", "name a CSV file") from None


def _rows(lines: Iterator[str], name: str) -> Iterator[dict[str, str]]:
    head = next(lines, "")
    between = max(",;\t", key=head.count)
    csv.field_size_limit(LONGEST_CELL)
    table = csv.DictReader(chain([head], lines), restkey="", restval="", delimiter=between)
    columns = [column.strip() for column in table.fieldnames or ()]
    table.fieldnames = columns
    lacking = [column for column in NEEDED if column not in columns]
    if lacking and "\ufffd" in head:
        raise DataError(f"{name} is no CSV in UTF-8", "name a CSV file")
    if lacking:
        raise DataError(f"{name}: no column {', '.join(lacking)}", "it needs: " + ", ".join(NEEDED))
    for row in table:
        yield {key: value for key, value in row.items() if isinstance(value, str)}


def predict_rows(rows: Iterable[Row]) -> Iterator[dict[str, Any]]:
    """One object for each row, in order."""
    for number, row in enumerate(rows):
        yield {"row": number} | predict_row(row)


def predict_row(row: Row) -> dict[str, Any]:
    """Step time and memory of a row with 80 % intervals, or the reason why there are none."""
    time, needed, reason = _known(tuple(row.get(name) or "" for name in READ))
    found = {"step_time_s": time, "memory_bytes_per_gpu": needed}
    middles = {name: None if three is None else three[1] for name, three in found.items()}
    ends = {name: None if three is None else three[::2] for name, three in found.items()}
    return {**middles, "interval": ends, "reason": reason}


@lru_cache(maxsize=1 << 14)
def _known(row: tuple[str, ...]) -> tuple[Three | None, Three | None, str | None]:
    """Time, memory and reason of a row, of which long tables have many alike."""
    try:
        case = case_of(dict(zip(READ, row, strict=True)))
        return time_of(case), memory_of(case), None
    except (TrainrigError, OverflowError) as error:
        return None, None, str(error)


def time_of(case: Case) -> Three:
    """Low, predicted, high seconds of a step."""
    layout = case.layout.replace(seq_len=case.mean_seq) if case.mean_seq else case.layout
    step = predict_step(case.shape, layout, case.rates, head=case.head)
    factor = math.exp(math.hypot(step.spread, case.spread))
    return step.total / factor, step.total, step.total * factor


_MEMORY_UNSURE = {
    "kernel_stack": 0.25,
    "recompute": 0.5,
    "micro_batch": 0.3,
    "precision": 0.3,
    "zero_stage": 0.3,
    "ffn": 0.1,
    "vocab": 0.1,
}
"""What a cell that is not stated adds to the uncertainty of memory (natural logarithm)."""


def memory_of(case: Case) -> Three:
    """Low, predicted, high bytes on each GPU, of the kind that the row states."""
    found, kind = memory(case.shape, case.layout, head=case.head), case.memory_kind
    low, high = found.interval(kind)
    if "offload" in case.unstated:
        away = memory(case.shape, case.layout.replace(offload="host"), head=case.head)
        low = min(low, away.interval(kind)[0])
    wider = math.exp(math.hypot(*(_MEMORY_UNSURE.get(name, 0.0) for name in case.unstated)))
    middle = {"allocated": found.allocated, "reserved": found.reserved, "device": found.total}
    return low / wider, middle[kind], high * wider
