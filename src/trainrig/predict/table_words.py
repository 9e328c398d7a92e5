"""What the words in a table's cells mean, and what stands for those that are blank.

Answers chip, precision, kernels, framework, link and the like of one row, as strangers spell them;
what is not stated is noted in `Cells.unstated` and widens the interval.  What follows from the
numbers is `table`'s.  A chip's name that is short of a variant ("H100") stands for the one that is
sold in most servers; one with the memory's size behind it is the chip of that size; names of no
chip are refused: nothing is taken from a neighbour.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import lru_cache

from trainrig.catalog import Chip, find_chip
from trainrig.catalog.lookup import candidates
from trainrig.catalog.servers import Server, named_server
from trainrig.errors import UsageError
from trainrig.workload.layout import CP_COMM, KERNELS, STATES

Row = Mapping[str, str]

UNSURE = {
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
    "params_b": 0.15,
    "vpp": 0.1,
    "layers": 0.25,
    "seq_len": 0.5,
    "num_gpus": 0.2,
    "dp": 0.1,
    "ep": 0.2,
    "tp": 0.2,
    "pp": 0.2,
    "cp": 0.1,
    "cp_comm": 0.05,
    "framework": 0.1,
    "gpus_per_node": 0.1,
    "seq_parallel": 0.05,
    "states": 0.1,
    "global_batch": 0.3,
    "num_experts": 0.3,
}
"""What a cell that is not stated adds to the uncertainty of a step's time (natural logarithm)."""
_WITH_NONE = ("link", "recompute", "offload")
"""Columns in which ``none`` is a word."""
_BLANK = ("nan", "none", "null", "n/a", "na", "-")
_MAY_BE_ZERO = ("zero_stage", "dp", "cp", "ep")
_BINARY = ("seq", "mean_seq", "global_batch", "micro_batch")
_NUMBER = re.compile(
    r"(?:[tpdcev]p\s*=?)?\s*[~≈]?\s*(\d[\d,_]*(?:\.\d+)?)\s*([kmb]?)\s*"
    r"(?:tokens|gpus|chips|seqs|sequences|samples|layers|gbps|gb/s)?\s*(?:\([^()]*\))?"
)
"""Ways of writing a number: ``1,024``, ``4k``, ``~7B``, ``TP8``, ``64 (8x8)``."""
_RANGE = re.compile(
    r"(?:\d[\d.,]*[kmb]?\s*(?:-+>?|/|→|to|\.\.+|–)|up to|max\.?|<=?|≤)\s*"
    r"(\d[\d.,]*\s*[kmb]?\D*)"
)
"""Two ends of a number, ``512-2048``, or the upper one alone, ``up to 8192``."""


class Cells:
    """The cells of one row, and the names of those that a default stands for."""

    def __init__(self, row: Row) -> None:
        self.unstated: list[str] = []
        self._row = row
        self._read: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        """What stands there; what tables write where nothing does is nothing."""
        if (text := self._read.get(name)) is None:
            text = (self._row.get(name) or "").strip()
            is_word = text.lower() == "none" and name in _WITH_NONE
            if text.lower() in _BLANK and not is_word:
                text = ""
            self._read[name] = text
        return text

    def word(self, name: str) -> str:
        """What stands there, in small letters."""
        return self[name].lower()

    def whole(self, name: str, default: int | None = None) -> int:
        """A whole number from 0.  UsageError where it is none, or blank without default."""
        text = self[name]
        if not text:
            if default is None:
                raise UsageError(f"{name}: not stated")
            return default
        value = self.number(name)
        if value != value or value != int(min(max(value, -1e18), 1e18)) or not 0 <= value < 2**31:
            raise UsageError(f"{name} = {text[:40]}: a whole number from 0 was expected")
        if value == 0 and name not in _MAY_BE_ZERO:
            if default is None:
                raise UsageError(f"{name} = 0: a whole number from 1 was expected")
            return default  # of what there is none of: tables write a zero
        return int(value)

    def number(self, name: str) -> float:
        """A number of a cell that is not blank.  UsageError where it is none."""
        text = self[name]
        try:
            return float(text)
        except ValueError:
            pass
        found = _NUMBER.fullmatch(text.lower())
        if found is None and (ends := _RANGE.fullmatch(text.lower())):
            self.unstated.append(name if name in UNSURE else "global_batch")
            found = _NUMBER.fullmatch(ends[1])  # a ramp's end, or the longest
        if found is None:
            raise UsageError(f"{name} = {text[:40]!r}: not a number")
        thousand = 1024 if name in _BINARY else 1000
        factor = {"": 1, "k": thousand, "m": thousand**2, "b": 1 if name == "params_b" else 1e9}
        return float(found[1].replace(",", "").replace("_", "")) * factor[found[2]]

    def choice(
        self, name: str, known: tuple[str, ...], default: str, *, is_unsure: bool = True
    ) -> str:
        """One of ``known``; ``is_unsure``: a default for a blank cell widens the interval.

        A word that is none of them nor an ``_ALSO`` for one says nothing: it is as a blank cell.
        """
        word = self.word(name)
        if word and word not in known:
            also = (to for pattern, to in _ALSO.get(name, ()) if re.search(pattern, word))
            word, is_unsure = next(also, ""), True
            word = word if word in known else ""
        if not word and is_unsure:
            self.unstated.append(name)
        return word or default

    @property
    def is_fsdp(self) -> bool:
        """Whether the framework's name says that it shards weights; MaxText does by default."""
        words = ("fsdp", "torchtitan", "fully_shard", "maxtext")
        return any(word in self.word("framework") for word in words)

    @property
    def spread(self) -> float:
        """What blank cells add to the half width of the interval; they err by themselves."""
        return math.hypot(*(UNSURE[name] for name in self.unstated))


_ALSO = {
    # What cells contain, and the word for it; the first that is found counts.
    "kernel_stack": (
        (r"eager|math|naive|plain", "eager"),
        (r"compil|inductor|dynamo|xla|jit|triton", "compiled"),
        (
            r"(flash|fa[-_ ]?[234]?\b|sdpa|cudnn).*(fused|te\b|liger|apex|transformer)",
            "flash+fused",
        ),
        (r"(fused|te\b|liger|apex|transformer).*(flash|fa[-_ ]?[234]\b|sdpa|cudnn)", "flash+fused"),
        (r"transformer.?engine|\bte\b|liger|mcore|unsloth", "flash+fused"),
        (r"flash|\bfa[-_ ]?[234]|sdpa|xformers|memory.?efficient|cudnn|splash|\bck\b", "flash"),
        (r"fused|apex", "fused"),
    ),
    "recompute": (
        (r"no\b|none|off|false|^0|disab|without", "none"),
        (r"select|core|attn|attention|partial|every", "selective"),
        (r"full|true|yes|on\b|uniform|block|^1|all|layer|enab|checkpoint|activation", "full"),
    ),
    "offload": (
        (r"no\b|none|off$|false|^0|disab", "none"),
        (r"nvme|disk|ssd", "disk"),
        (r"cpu|host|optim|param|true|yes|^1|zero.?off", "host"),
    ),
    "cp_comm": (
        (r"p2p|zig|strip|balanc", "zigzag"),
        (r"gather", "all-gather"),
        (r"a2a|ulys|all.?to.?all", "ulysses"),
    ),
    "states": (
        (r"pure|^bf16$|all", "pure"),
        (r"auto.?cast|amp|o1", "autocast"),
        (r"master|mixed|o2|fp32", "masters"),
    ),
}
_MEMORY = re.compile(r"\s*[(-]?\s*(\d+\s*gi?b|\d{2,}\s*g)\)?\s*$", re.IGNORECASE)
"""``80GB``, ``(80 GiB)`` or ``80G`` behind a name; ``8g`` is a cloud's number of cards."""


def chip_of(cells: Cells) -> Chip:
    """The chip of a row; blank: the one that is named in what is printed of the hardware."""
    name, printed = cells["chip"], cells["hardware"]
    if name:
        found = find_chip(name) or find_chip(f"RTX {name}") or _of_size(name) or _usual(name, cells)
        if found is None and _has_size(near := _named_in(name, cells), name):
            found = near
    else:
        found = find_chip(printed) or find_chip(f"RTX {printed}") or _named_in(printed, cells)
    if found is None:
        what = (
            f"{name[:60]!r} is not in the catalog" if name else "not stated, or none of the catalog"
        )
        raise UsageError(f"chip: {what}")
    return found


_DIES = {
    "MI250X": ("MI250X GCD", 4),
    "MI250": ("MI250 GCD", 4),
    "Ascend 910C": ("Ascend 910C die", 8),
}
"""Modules of two dies, each a device to software: the die, and modules of a node as it is sold."""


def die_of(chip: Chip, cells: Cells) -> Chip:
    """One die of a module, where a node has more devices than modules are sold in one."""
    name, modules = _DIES.get(chip.name, ("", 0))
    if not name or cells.whole("gpus_per_node", 0) <= modules:
        return chip
    return find_chip(name) or chip


def power_of(cells: Cells) -> float | None:
    """W that a row's chips are limited to, where it says that they are and to how many."""
    printed = cells["hardware"].lower()
    if not any(word in printed for word in ("limit", "capped", "custom")):
        return None
    watts = re.search(r"(\d{2,4})\s*w\b", printed)
    if watts is None:
        cells.unstated.append("chip")
    return float(watts[1]) if watts else None


_MACHINES = (
    # Clouds' and makers' names of whole machines; the first that is found counts.
    ("p3dn", "V100 SXM2 32GB"),
    ("p3", "V100 SXM2 16GB"),
    ("p4de", "A100 SXM4 80GB"),
    ("p4d", "A100 SXM4 40GB"),
    ("p5en", "H200 SXM 141GB"),
    ("p5e", "H200 SXM 141GB"),
    ("p5", "H100 SXM5 80GB"),
    ("p6", "B200 SXM"),
    ("g4dn", "T4"),
    ("g5", "A10G"),
    ("g6e", "L40S"),
    ("g6", "L4"),
    ("trn1n", "Trainium1"),
    ("trn1", "Trainium1"),
    ("trn2", "Trainium2"),
    ("a2-ultragpu", "A100 SXM4 80GB"),
    ("a2-megagpu", "A100 SXM4 40GB"),
    ("a2-highgpu", "A100 SXM4 40GB"),
    ("a3-ultragpu", "H200 SXM 141GB"),
    ("a3", "H100 SXM5 80GB"),
    ("a4", "B200 SXM"),
    ("nd96amsr", "A100 SXM4 80GB"),
    ("nd96asr", "A100 SXM4 40GB"),
    ("nd96isr", "H100 SXM5 80GB"),
    ("dgx-1", "V100 SXM2 32GB"),
    ("dgx-2", "V100 SXM2 32GB"),
    ("dgx-a100", "A100 SXM4 80GB"),
    ("dgx-h100", "H100 SXM5 80GB"),
    ("dgx-h200", "H200 SXM 141GB"),
    ("dgx-b200", "B200 SXM"),
    ("dgx-spark", "GB10"),
    ("p6e", "GB200"),
    ("a4x", "GB200"),
    ("g7e", "RTX PRO 6000 Blackwell"),
    ("grace-hopper", "GH200 96GB"),
    ("grace-blackwell", "GB200"),
)
"""Sources: the makers' pages of these instances and systems."""


def _named_in(printed: str, cells: Cells) -> Chip | None:
    """The chip in a longer text: ``8x A100-SXM4-80GB (AWS)``, ``p4d.24xlarge``, ``TPU v5e-256``.

    A whole name counts before a machine's, and that before a shortened one with its memory; of
    several whole names the longest does.
    """
    plain = printed.lower().replace("_", " ").replace("昇腾", "ascend ").replace("升腾", "ascend ")
    if slice_ := tpu_slice(plain):
        plain = _SLICE.sub(slice_[0].lower(), plain)
    counted = re.sub(r"\b\d+\s*[x×*]\s*(?=[a-z])|(?:(?<=\d)|(?<=\dx)|\s)[x×*]\s*\d+\b", " ", plain)
    words = re.findall(r"[\w+]+", counted)
    if _PARTS & set(words):
        return None
    parts = [(i, j) for i in range(len(words)) for j in range(i + 1, len(words) + 1)]
    for i, j in sorted(parts, key=lambda ends: len("".join(words[slice(*ends)])), reverse=True):
        if (found := find_chip("".join(words[i:j]))) is not None:
            longer = " ".join(words[i : j + 1])  # an M2 Ultra is no M2
            return (_usual(longer, cells) if "".join(words[j : j + 1]).isalpha() else None) or found
    machine = "-".join(words)
    for word, name in _MACHINES:
        if re.search(rf"(^|-){word}(-|$)", machine):
            return find_chip(name)
    size = re.search(r"(\d+)\s*gi?b?\b", counted)
    form = next((w[:4] for w in words if w.startswith(("pcie", "sxm", "nvl"))), "")
    more = (f" {form} {size[1]}GB" if size else f" {form}", f" {size[1]}GB" if size else "", "")
    for at in range(len(words)):
        for text in (" ".join(words[at : at + 2]), words[at]):
            fitting = (_usual(text + detail, cells) for detail in more)
            if any(map(str.isdigit, text)) and (found := next(filter(None, fitting), None)):
                return found
    return None


_SLICE = re.compile(r"\b(?:tpu[ -]*)?(v[2-6][a-z]*|(?:tpu|v)[ -]*7x?|ironwood)-(\d+)\b")


def _generation(printed: str) -> str:
    if printed.startswith("v5lite"):
        return "v5e"
    return "7x" if "7" in printed or printed == "ironwood" else printed


def tpu_slice(printed: str) -> tuple[str, int] | None:
    """A TPU slice's chip and number of chips; but for v5e and v6e the figure is of cores, two each.

    Source: cloud.google.com/tpu/docs, "TPU versions".
    """
    found = _SLICE.search(printed.lower())
    if found is None:
        return None
    chip = _generation(found[1])
    name = "TPU7x" if chip == "7x" else f"TPU {chip}"
    return name, int(found[2]) // (1 if chip in ("v5e", "v6e") else 2)


_SHARED_MEMORY = ("Apple",)
"""Makers of chips whose memory is the processor's, and comes in more sizes than are listed."""
_PARTS = {"laptop", "mobile", "mig", "grid", "vgpu"}
"""What is said of another chip than the one whose name it bears, or of a part of one."""


def _has_size(chip: Chip | None, name: str) -> bool:
    """Whether a chip has the memory that stands behind its name, where one does."""
    stated = _MEMORY.search(name)
    if chip is None or stated is None or chip.memory is None:
        return True
    share = float(stated[1].lower().rstrip("gib ")) * 2**30 / chip.memory
    return share < 1.1 and (share > 0.9 or chip.vendor in _SHARED_MEMORY)


def _of_size(name: str) -> Chip | None:
    """``RTX 4090 24GB``: the chip without its memory, if that is its memory."""
    stated = _MEMORY.search(name)
    found = find_chip(name[: stated.start()]) if stated else None
    if stated is None or found is None or found.memory is None:
        return None
    return found if _has_size(found, name) else None


def _usual(name: str, cells: Cells) -> Chip | None:
    """``A100``: the module for servers, where all that fit are variants of one chip."""
    fitting = candidates(name)
    if len(fitting) < 2:
        return fitting[0] if fitting else None
    if not any(map(str.isdigit, name)):  # "RTX" or "TPU" alone is a family, not a chip
        return None
    cells.unstated.append("chip")
    modules = [chip for chip in fitting if "SXM" in (chip.form_factor or "")]
    return max(modules or fitting[:1], key=lambda chip: chip.memory or 0.0)


_FRAMEWORKS = (
    # The first that the framework's name contains, so the most particular first.
    ("megatron", "megatron"),
    ("fsdp", "fsdp"),
    ("torchtitan", "fsdp"),
    ("maxtext", "fsdp"),
    ("pax", "fsdp"),
    ("jax", "fsdp"),
    ("nemo", "megatron"),
    ("mcore", "megatron"),
    ("primus", "megatron"),
    ("mindspeed", "megatron"),
    ("deepspeed", "deepspeed"),
)


def framework_of(cells: Cells, sizes: Mapping[str, int]) -> tuple[str, str]:
    """Framework and parallel scheme, by the framework's name, else by how the model is split.

    What torch alone spreads computes as Hugging Face's models do; a program that nobody here knows
    and that shards its optimizer is one for large models, with Megatron's way of doing it.
    """
    framework = cells.word("framework")
    named = next((name for word, name in _FRAMEWORKS if word in framework), None)
    split = any(sizes[name] > 1 for name in ("tp", "pp", "cp", "ep", "zero"))
    is_alone = 1 < sizes["gpus"] <= sizes["gpus_per_node"] and not split
    if named is None and is_alone and _is_data_parallel(cells):
        return "huggingface", "dataparallel"
    if named == "fsdp":
        return "huggingface", "fsdp" if sizes["zero"] else "ddp"
    is_split = any(sizes[name] > 1 for name in ("tp", "pp"))
    if named == "megatron" or is_split or (named is None and sizes["ep"] > 1):
        return "megatron", "auto"
    if named == "deepspeed":
        return named, "auto"
    is_own = not any(word in framework for word in ("torch", "hf", "hugging", "transformers"))
    return "megatron" if is_own and sizes["zero"] in (1, 2) else "huggingface", "auto"


def states_of(cells: Cells, family: str) -> str:
    """One of STATES; not stated: masters where apex is, all in bf16 where that is the usual way.

    torchtune trains so.  Models that are published in bf16 (the Llama family) are loaded, and by
    scripts of one device trained, as they are.
    """
    framework = cells.word("framework").replace(" ", "")
    is_loaded = framework.startswith("hftransformers") and family == "llama"
    is_pure = "torchtune" in framework or (is_loaded and cells.word("precision") == "bf16")
    usual = "masters" if "apex" in framework else "pure" if is_pure else "auto"
    return cells.choice("states", STATES, usual, is_unsure=False)


def _is_data_parallel(cells: Cells) -> bool:
    """Whether torch.nn.DataParallel is named: in one word that no other one is joined to, or DP."""
    framework = cells.word("framework")
    words = f"{framework} {cells.word('parallel')}"
    return bool(re.search(r"(?<![a-z])dataparallel\b", words) or re.search(r"\bdp\b", words))


_SPELLED = (
    # The first that is found counts, so the most particular first.
    (re.compile(r"nv-?fp4|mx-?fp4"), "fp8"),
    (re.compile(r"fp8|float8|e4m3|e5m2|hybrid"), "fp8"),
    (re.compile(r"bf-?16|bfloat"), "bf16"),
    (re.compile(r"tf-?32"), "tf32"),
    (re.compile(r"fp-?16|float16|half|16-mixed|^f16|^16$|^o[12]$"), "fp16"),
    (re.compile(r"fp-?32|float32|single|^f32|^32$|full"), "fp32"),
)
"""Ways of writing a precision."""
_QUANTIZED = (
    (re.compile(r"nf4|qlora|bnb|bitsandbytes"), "nf4"),
    (re.compile(r"int8|8-?bit"), "int8"),
    (re.compile(r"int4|4-?bit|(?<!nv)(?<!mx)fp4"), "nf4"),
)
"""Ways of writing that frozen weights are stored narrower than they are multiplied."""


def precision_of(cells: Cells, chip: Chip) -> str:
    """One of PRECISIONS; not stated: bf16, and fp16 on chips that came before it.

    Microscaled fp8 is timed as fp8, fp4 as fp8 with its products' rate (`is_fp4`), and beside
    quantised weights it is what is multiplied.
    """
    word = cells.word("precision") or cells.word("dtype")
    found = next((name for pattern, name in _SPELLED if pattern.search(word)), None)
    if found is None:
        if quantized_of(cells) == "none":
            cells.unstated.append("precision")
        return (
            "bf16" if (chip.year or 2020) >= 2020 and chip.compute_capability != "7.5" else "fp16"
        )
    return found


def cp_comm_of(cells: Cells) -> str:
    """One of CP_COMM: what the cell says, or a program's name."""
    usual = "ulysses" if "ulysses" in cells.word("framework") else "auto"
    return cells.choice("cp_comm", CP_COMM, usual, is_unsure=False)


def offload_overlap_of(cells: Cells) -> str:
    """One of OFFLOAD_OVERLAP, where the offload's cell says more than what is offloaded."""
    word = cells.word("offload")
    also = (
        (r"delay|dpu", "delayed"),
        (r"(no|without).{0,3}overlap", "none"),
        (r"overlap", "update"),
    )
    return next((how for pattern, how in also if re.search(pattern, word)), "auto")


def is_fp4(cells: Cells) -> bool:
    """Whether products are in NVFP4 or MXFP4."""
    return bool(re.search(r"(nv|mx)-?fp4", cells.word("precision") or cells.word("dtype")))


def quantized_of(cells: Cells) -> str:
    """One of QUANTIZE: how frozen weights are stored beside adapters."""
    words = " ".join(cells.word(name) for name in ("precision", "dtype", "kind"))
    return next((name for pattern, name in _QUANTIZED if pattern.search(words)), "none")


def kernels_of(cells: Cells, chip: Chip, engine: str) -> str:
    """One of KERNELS; not stated: fused attention, where the chip has it.

    Megatron's layers are Transformer Engine's by default since December 2023 (its option
    --transformer-impl), AMD's build has them for its chips of 2023 and later (rocm.docs.amd.com,
    "Training a model with Megatron-LM"), and a chip of 2022 was hardly trained on before.
    """
    framework, year = cells.word("framework"), chip.year or 2020
    is_late = year >= 2022 and chip.vendor in ("NVIDIA", "AMD") and "deepspeed" not in framework
    default = "eager" if year < 2020 else "flash"
    if any(word in framework for word in ("jax", "pax", "maxtext")):
        # XLA fuses what is pointwise; fused attention came to it with cuDNN's, for Hopper.
        # A TPU has had its own since Pallas.
        is_later = "transformer engine" in framework or year >= 2022 or chip.vendor == "Google"
        default = "flash+fused" if is_later else "fused"
    elif year >= 2020 and (_ENGINES.search(framework) or (engine == "megatron" and is_late)):
        default = "flash+fused"
    stack = cells.choice("kernel_stack", KERNELS, default)
    # Libraries call torch's fused attention unless told not to, since its version 2.1 (transformers
    # asks for 2.1.1).
    return "flash" if stack == "eager" and re.search(r"torch 2\.[1-9]", framework) else stack


_ENGINES = re.compile(
    r"nemo|megatron.?(core|bridge|fsdp)|mcore|primus|transformer.?engine|hai.?llm"
)
"""Programs that are built on Transformer Engine, or on kernels as new."""


def overlap_of(cells: Cells, kernels: str) -> str:
    """One of OVERLAPS: what a program runs beside computation, where its name tells.

    DualPipe and DeepEP are DeepSeek's (arXiv 2412.19437, section 3.2), HAI-LLM the program around
    them.  Megatron-LM by itself has tensor parallel's user buffers off (its --tp-comm-overlap),
    which NeMo's and Megatron-Bridge's recipes switch on.
    """
    framework = cells.word("framework")
    if re.search(r"hai.?llm|dual.?pipe|deep.?ep\b", framework):
        return "experts"
    is_plain = "megatron-lm" in framework.replace(" ", "-") and not _ENGINES.search(framework)
    return "data" if is_plain and kernels == "flash+fused" else "auto"


_LINKS = {
    "nvlink": "nvlink",
    "nvswitch": "nvlink",
    "nvl72": "nvlink",
    "pcie": "pcie",
    "sxm": "nvlink",
    "nvl": "nvlink",
    "xgmi": "",
    "infinity fabric": "",
    "neuronlink": "",
    "oam": "",
    "ici": "ici",
    "hccs": "hccs",
}
"""What words for links contain; what AMD's modules have is their own."""


def link_of(cells: Cells, chip: Chip) -> str | None:
    """The link inside a node; blank: the chip's own."""
    word = cells.word("link")
    word = next((link for part, link in _LINKS.items() if part in word), word)
    if not word:
        cells.unstated.append("link")
        return None
    if word not in ("nvlink", "pcie", "ici", "hccs", "none"):
        cells.unstated.append("link")  # what it says is of no link here: the chip's own
        return None
    if word == "nvlink" and (chip.link is None or chip.link == "none"):
        cells.unstated.append("link")  # the card has none: it is another's, or a mistake
        return None
    return word


@lru_cache(maxsize=1024)
def server_in(printed: str) -> Server | None:
    """The server of the catalog that a text has among other words: ``64 x p4d.24xlarge``."""
    words = re.findall(r"[\w.+-]+", printed)[:24]
    parts = (" ".join(words[at : at + num]) for num in (3, 2, 1) for at in range(len(words)))
    return next(filter(None, map(named_server, parts)), None)


def fabric_of(cells: Cells, sizes: Mapping[str, int]) -> float | None:
    """B/s of a node into the network; blank: the named server's, or as such nodes are sold."""
    name = "fabric_gbps_per_node"
    if not cells[name]:
        if sizes["gpus"] <= sizes["gpus_per_node"]:
            return None
        server = server_in(cells["hardware"]) or server_in(cells["chip"])
        if server is not None and server.fabric:
            return server.fabric
        cells.unstated.append(name)
        return None
    rate = cells.number(name) / 8.0 * 1e9
    if not 1e6 < rate < 1e15:
        raise UsageError(f"{name} = {cells[name][:40]}: Gbit/s of one node")
    return rate
