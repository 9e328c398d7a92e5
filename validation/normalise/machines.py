"""Which machine a row of a table means: chip, die, power, link, server and network.

Answers from what strangers write of their hardware.  A chip's name that is short of a variant
("H100") stands for the one that is sold in most servers; one with the memory's size behind it is
the chip of that size; names of no chip are refused: nothing is taken from a neighbour.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from trainrig.catalog import Chip, find_chip
from trainrig.catalog.lookup import candidates, server_module
from trainrig.catalog.servers import Server, instances, named_server
from trainrig.errors import UsageError
from trainrig.prediction.rates import Rates
from trainrig.prediction.rates.from_chip import (
    port_of,
    widened_once,
    widens_bf16,
    with_flash2,
    with_newest_attention,
    with_plain_attention,
)
from validation.normalise.cells import Cells, meanings
from validation.normalise.row_compute import is_flash2
from validation.normalise.training_programs import torch_version

_MEMORY = re.compile(r"(?<!gpu)(?<!gpu-)\s*[(-]?\s*(\d+\s*gi?b|\d{2,}\s*g)\)?\s*$", re.IGNORECASE)
"""``80GB``, ``(80 GiB)`` or ``80G`` behind a name; ``gpu-16g`` is a cloud's number of cards."""


def chip_of(cells: Cells) -> Chip:
    """The chip of a row; blank: the one that is named in what is printed of the hardware."""
    if _NO_GPU.search(cells.text_of("hardware", "framework")):
        raise UsageError("a neural engine beside the GPU: not modelled")
    name, printed = cells["chip"], _PLURAL.sub(r"\1", cells["hardware"])
    if name:
        chip = find_chip(name) or find_chip(f"RTX {name}") or _of_size(name) or _usual(name, cells)
        if chip is None and _has_size(near := _named_in(name, cells), name):
            chip = near
    else:
        chip = find_chip(printed) or find_chip(f"RTX {printed}") or _named_in(printed, cells)
    chip = chip or _of_line(f"{name} {printed}".lower(), cells)
    if chip is None:
        what = (
            f"{name[:60]!r} is not in the catalog" if name else "not stated, or none of the catalog"
        )
        raise UsageError(f"chip: {what}")
    return chip


def _of_line(printed: str, cells: Cells) -> Chip | None:
    """The chip that a maker's line is at the row's time, where the line alone is named.

    Huawei's are 910s: the B is in its servers since 2023.  Habana's first had no number
    (HL-205); Intel's are later ones.
    """
    if re.search(r"\bgaudi\b(?![ -]?(?:v?[23]\b|ii|hl-?[23]))", printed) and "intel" not in printed:
        cells.presume("chip")
        return find_chip("Gaudi1")
    if not re.search(r"\bascend\b(?!\W*\d{3}(?!\d))|昇腾(?!\W*\d)", printed):
        return None
    cells.presume("chip")
    return find_chip(("Ascend 910A", "Ascend 910B")[cells.is_since("2023-07")])


_NO_GPU = re.compile(r"neural[ -]?engine|\bane\b")
"""Words for the part of a system on a chip that is neither its GPU nor its processor."""
_PLURAL = re.compile(
    r"\b((?!L40s)(?:(?:[A-Z]{1,2}|MI|RTX[ -]?|GTX[ -]?)?\d{2,4}[A-Z]?|[TL]4|Gaudi ?\d|v\d[ep]?))s\b"
)
"""``V100s``, ``RTX 3090s``: several; V100S and L40S are written with a capital, or are L40s."""
_DIES = {
    "MI250X": ("MI250X GCD", 4),
    "MI250": ("MI250 GCD", 4),
    "Ascend 910C": ("Ascend 910C die", 8),
    "Data Center GPU Max 1550": ("Data Center GPU Max 1550 stack", 6),
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
        cells.presume("chip")
    return float(watts[1]) if watts else None


def _named_in(printed: str, cells: Cells) -> Chip | None:
    """The chip in a longer text: ``8x A100-SXM4-80GB (AWS)``, ``p4d.24xlarge``, ``TPU v5e-256``.

    A whole name counts before a machine's, unless it is a part of that (an a2-highgpu is no A2),
    and that before a shortened one with its memory; of several whole names the longest does.
    """
    counted = _uncounted(printed)
    words = re.findall(r"[\w+]+", counted)[:_MOST_WORDS]
    besides = _PARTS & set(words)
    machine = "-".join(words)
    known = (word for word in instances() if re.search(rf"(^|-){word}(-|$)", machine))
    instance = next(known, "")
    parts = [(i, j) for i in range(len(words)) for j in range(i + 1, len(words) + 1)]
    for i, j in sorted(parts, key=lambda ends: len("".join(words[slice(*ends)])), reverse=True):
        chip = find_chip("".join(words[i:j])) if besides <= set(words[i:j]) else None
        if chip is not None and "-".join(words[i:j]) not in instance.split("-")[:-1]:
            longer = " ".join(words[i : j + 1])  # an M2 Ultra is no M2
            larger = _usual(longer, cells) if "".join(words[j : j + 1]).isalpha() else None
            return larger or _held_by(chip, counted, cells)
    if besides:
        return None
    if server := server_in(counted):
        return server.chip
    if instance:
        return find_chip(instances()[instance])
    size = re.search(r"(\d+)\s*gi?b?\b", counted)
    form = next((w[:4] for w in words if w.startswith(("pcie", "sxm", "nvl"))), "")
    more = (f" {form} {size[1]}GB" if size else f" {form}", f" {size[1]}GB" if size else "", "")
    for at in range(len(words)):
        for text in (" ".join(words[at : at + 2]), words[at]):
            fitting = (_usual(text + detail, cells) for detail in more)
            if any(map(str.isdigit, text)) and (chip := next(filter(None, fitting), None)):
                return chip
    return None


_MOST_WORDS = 48
"""Of a machine's description, in which each run of words may be a name."""


def _uncounted(printed: str) -> str:
    """The text in small letters, chips as the catalog writes them, without how many there are."""
    plain = printed.lower().replace("_", " ").replace("昇腾", "ascend ").replace("升腾", "ascend ")
    for pattern, name in meanings()["chip"]:
        plain = re.sub(pattern, name, plain)
    if slice_ := tpu_slice(plain):
        plain = _SLICE.sub(slice_[0].lower(), plain)
    plain = re.sub(
        r"(?<!\S)\d{1,3}[x×*]\d{1,2}(?:[x×*](?=[a-z])|\b)|\d*卡", " ", plain
    )  # nodes too
    return re.sub(
        r"(?<!\bmi[ -])\b\d+\s*[x×*](?!tx?\b)\s*(?=[a-z]|\d0\d0(?: ?ti)?\b)"  # no MI-355X, XTX
        r"|(?:(?<=\d)|(?<=\dx)|\s)[x×*]\s*\d+\b",
        " ",
        plain,
    )


def _held_by(chip: Chip, printed: str, cells: Cells) -> Chip:
    """The chip, or the least of its line that is sold with the memory that is printed.

    Of makers whose chips' names are a line's ("M3") as well as the least chip's in it.
    """
    size = re.search(r"\b(\d+)\s*gi?b\b", printed)
    if size is None or chip.vendor not in _SHARED_MEMORY or chip.memory.size is None:
        return chip
    wanted = float(size[1]) * 2**30
    large_enough = [
        candidate
        for candidate in candidates(chip.name)
        if (candidate.memory.size or 0.0) >= 0.99 * wanted
    ]
    if chip in large_enough or not large_enough:
        return chip
    cells.presume("chip")
    return min(
        large_enough,
        key=lambda candidate: (candidate.memory.size or 0.0, -(candidate.compute.num_sms or 0)),
    )


_SLICE = re.compile(r"\b(?:tpu[ -]*)?(v[2-6][a-z]*|(?:tpu|v)[ -]*7x?|ironwood)-(\d+)\b")


def _generation(printed: str) -> str:
    if printed.startswith("v5lite"):
        return "v5e"
    return "7x" if "7" in printed or printed == "ironwood" else printed


def tpu_slice(printed: str) -> tuple[str, int] | None:
    """A TPU slice's chip and number of chips; but for v5e and v6e the figure is of cores, two each.

    Source: cloud.google.com/tpu/docs, "TPU versions".
    """
    match = _SLICE.search(printed.lower())
    if match is None:
        return None
    chip = _generation(match[1])
    name = "TPU7x" if chip == "7x" else f"TPU {chip}"
    return name, int(match[2]) // (1 if chip in ("v5e", "v6e") else 2)


_SHARED_MEMORY = ("Apple",)
"""Makers of chips whose memory is the processor's, and comes in more sizes than are listed."""
_PARTS = {"laptop", "mobile", "mig", "grid", "vgpu"}
"""What is said of another chip than the one whose name it bears, or of a part of one."""


def _has_size(chip: Chip | None, name: str) -> bool:
    """Return whether a chip has the memory that stands behind its name, where one does."""
    stated = _MEMORY.search(name)
    if chip is None or stated is None or chip.memory.size is None:
        return True
    share = float(stated[1].lower().rstrip("gib ")) * 2**30 / chip.memory.size
    return share < 1.1 and (share > 0.9 or chip.vendor in _SHARED_MEMORY)


def _of_size(name: str) -> Chip | None:
    """``RTX 4090 24GB``: the chip without its memory, if that is its memory."""
    stated = _MEMORY.search(name)
    chip = find_chip(name[: stated.start()]) if stated else None
    if stated is None or chip is None or chip.memory.size is None:
        return None
    return chip if _has_size(chip, name) else None


def _usual(name: str, cells: Cells) -> Chip | None:
    """``A100``: the module for servers, where all that fit are variants of one chip."""
    fitting = candidates(name)
    if len(fitting) < 2:
        return fitting[0] if fitting else None
    if not any(map(str.isdigit, name)):  # "RTX" or "TPU" alone is a family, not a chip
        return None
    cells.presume("chip")
    return server_module(name) or fitting[0]


def link_of(cells: Cells, chip: Chip) -> str | None:
    """The link inside a node; blank: the chip's own."""
    word = cells.word("link")
    word = next((link for part, link in meanings()["link"] if re.search(part, word)), word)
    if not word:
        cells.presume("link")
        return None
    if word not in ("nvlink", "pcie", "ici", "hccs", "none"):
        cells.presume("link")  # what it says is of no link here: the chip's own
        return None
    if word == "none" and not cells["num_gpus"]:
        cells.presume(
            "link"
        )  # of one card there is none: of several that are presumed it says nothing
        return None
    if word == "nvlink" and (chip.link.name is None or chip.link.name == "none"):
        cells.presume("link")  # the card has none: it is another's, or a mistake
        return None
    return word


@lru_cache(maxsize=1024)
def server_in(printed: str) -> Server | None:
    """The server of the catalog that a text has among other words: ``64 x p4d.24xlarge``."""
    words = re.findall(r"[\w.+-]+", printed)[:24]
    parts = (" ".join(words[at : at + num]) for num in (3, 2, 1) for at in range(len(words)))
    return next(filter(None, map(named_server, parts)), None)


def as_run(rates: Rates, cells: Cells, chip: Chip, kernels: str) -> Rates:
    """Rates of the attention that is called, and of products that XLA widens; a card's memory.

    Some cards come with twice the memory that others of their name have (MI50, a changed RTX 4090).
    """
    printed = re.search(r"\b(\d+) ?gi?b\b", cells.text_of("hardware", "chip"))
    held = float(printed[1]) * 2.0**30 if printed else 0.0
    if chip.product.form_factor == "PCIe" and 1.9 < held / rates.memory_bytes < 2.1:
        rates = rates.replace(memory_bytes=held)
    if disks := _DISKS.search(cells.text_of("hardware", "offload")):
        rates = rates.replace(disk=int(disks[1]) * _OF_DISK)
    if _is_newest_attention(cells, chip):
        return with_newest_attention(rates)
    # Liger's kernels are norms, activations and losses (its README): attention is who calls it's.
    words = _stack(cells)
    if kernels == "flash+fused" and "liger" in words and re.search(_PLAIN, words):
        return with_plain_attention(rates)
    if kernels == "flash" and is_flash2(cells):
        return with_flash2(rates)
    return widened_once(rates) if cells.is_xla and widens_bf16(chip) else rates


_DISKS = re.compile(r"\b(\d{1,2}) ?(?:[x×] ?(?:[\w.-]+ ){0,3}(?:ssd|tb nvme)|nvme|ssd|u\.2)")
_OF_DISK = 5e9
"""B/s of each of several SSDs, half read and half written: of those for PCIe 4 (D7-P5510, PM9A3,
7450) makers print 6.5 to 7 GB/s read and 3.4 to 5.3 written, whose harmonic mean is 4.5 to 6."""


def _is_newest_attention(cells: Cells, chip: Chip) -> bool:
    """Return whether the attention that is named was written for the chip's generation.

    FlashAttention-3 is Hopper's (Shah et al. 2024), FlashAttention-4 Blackwell's, cuDNN has one for
    either, AITER and Composable Kernel have AMD's Instincts'.
    """
    words = _stack(cells)
    family = next((name for name in _NEWEST if name in (chip.product.architecture or "")), "")
    is_named = bool(family) and re.search(_NEWEST[family], words) is not None
    return is_named or (family == "CDNA" and _calls_amd_s(cells, chip, words))


def _calls_amd_s(cells: Cells, chip: Chip, words: str) -> bool:
    """Return whether attention that is called on an Instinct is AMD's own, though nobody names it.

    The package flash-attn is built on Composable Kernel (its csrc/flash_attn_ck), fast since
    2024-07, when its backward pass was rewritten (ROCm/flash-attention #44), and Megatron calls it.
    Torch calls AITER's kernels from MI300 on since 2.9 (pytorch #161754; ROCm's 2.8 has them, too).
    """
    is_package = "flash attention 2" in words or cells.splits_models
    is_late = cells.is_since("2025-11") or torch_version(cells.word("framework")) >= (2, 9)
    is_called = is_package and cells.is_since("2024-07")
    is_called = is_called or (is_late and (chip.product.year or 0) >= 2023)
    return is_called and "triton att" not in words


def _stack(cells: Cells) -> str:
    """The words that may name a kernel."""
    return cells.text_of("framework", "kernel_stack")


_PLAIN = r"\bsdpa\b|\bfa-?2|flash.?att\w*.?2"
_NEWEST = {
    "Hopper": r"\bfa[-_ ]?[34]\b|flash[-_ ]?att\w*?[-_ ]?v?[34]\b|cudnn",
    "Blackwell": r"\bfa[-_ ]?4\b|flash[-_ ]?att\w*?[-_ ]?v?4\b|cudnn",
    "CDNA": r"\baiter\b|composable|\bck\b",
}


def fabric_of(cells: Cells, chip: Chip, sizes: Mapping[str, int]) -> float | None:
    """B/s of a node into the network; blank: the named server's, or what the words for it tell.

    None where they tell nothing, and nodes are as such chips are usually sold; of fewer modules
    each has its own port, and a card alone in its node is a cloud's virtual machine.
    """
    name, node = "fabric_gbps_per_node", sizes["gpus_per_node"]
    if cells[name]:
        rate = cells.number(name) / 8.0 * 1e9
        if not 1e6 < rate < 1e15:
            raise UsageError(f"{name} = {cells[name][:40]}: Gbit/s of one node")
        return rate
    if sizes["gpus"] <= node:
        return None
    server = server_in(cells["hardware"]) or server_in(cells["chip"])
    if server is not None and server.fabric:
        return server.fabric
    port, words = (
        port_of(chip),
        "; ".join(map(cells.__getitem__, ("hardware", "link"))),
    )
    is_own = chip.link.name == "RoCE"  # adapters that are named are the host's
    if not is_own and (named := _named_fabric(words, node, port)):
        return named
    cells.presume(name)
    if port is None:
        is_alone = node == 1 and cells["gpus_per_node"] and chip.product.form_factor == "PCIe"
        return _OF_A_CLOUD if is_alone else None
    is_small = cells["gpus_per_node"] and node < _PORTS and not chip.link.domain
    return node * port if is_small else None


def _named_fabric(words: str, node: int, port: float | None) -> float | None:
    """B/s of a node's network that a text names: by its rate, ``3.2 Tbps RoCE``, or its kind.

    ``8x 400 Gb/s`` is of eight ports, ``400 Gb/s per GPU`` of one for each of ``node`` devices; so
    is what an adapter has (``ConnectX-7, 400 Gb/s``), if it is what such modules' own ports have.
    """
    if rate_match := _FABRIC_RATE.search(words):
        rate = float(rate_match[2]) * {"T": 1e12, "G": 1e9}[rate_match[3].upper()] / 8.0
        is_own = _ADAPTER.search(words) is not None and rate == port
        rate *= int(rate_match[1]) if rate_match[1] else node if rate_match[4] or is_own else 1
        return min(rate, _BY_TCP) if _TCP.search(words.lower()) else rate
    return next((rate for pattern, rate in _FABRICS if pattern.search(words.lower())), None)


_FABRIC_RATE = re.compile(
    r"(?:\b(\d{1,2}) ?[x×*] ?|\b)(\d+(?:\.\d+)?) ?([TGtg])(?:b(?:ps|/s|its?/s)|bE|BE)\b"
    r"([\w -]{0,24}(?:\b(?:per|each|a) ?|/ ?)(?:GPU|gpu|device|accelerator)\b)?"
)
"""Bits, for bytes a second are what links inside a node are sold by."""
_ADAPTER = re.compile(r"connectx|\bcx-?\d\b|bluefield|\b[hnx]dr\b", re.IGNORECASE)
"""Names of adapters, or of InfiniBand's generations: what stands beside them is one port's rate."""
_TCP = re.compile(r"\btcp\b|\beth0\b|\bsockets\b")
_BY_TCP = 32e9 / 8.0
"""B/s at most through the kernel's TCP, whatever the adapter: NCCL opens one socket a connection,
which one processor copies (NCCL's manual, ``NCCL_SOCKET_NTHREADS``, ``NCCL_NSOCKS_PERTHREAD``);
3.2 GB/s of a reduction were measured on an adapter of 80 Gbit/s (Azure's ND H100 v5)."""
_OF_A_CLOUD = 25e9 / 8.0
"""B/s of a virtual machine with one card: 24 Gbit/s (Oracle's VM.GPU.A10.1), up to 25 (Amazon's
g5.4xlarge), by their makers' pages."""
_FABRICS = (
    (re.compile(r"slingshot"), 100e9),  # four ports of 200 Gbit/s, as HPE's blades for AI have them
    (
        re.compile(r"(?<!\dg )(?<!spectrum-x )\bethernet\b|\beth0\b|standard network|\btcp\b"),
        _OF_A_CLOUD,
    ),
)
"""What words for a network mean where no rate is beside them."""
_PORTS = 8
"""Modules of the servers that are usually sold."""
