"""Rates of a chip that nobody has measured here: its vendor's claims, times what its class reaches.

Answers `rates_of_chip`.  A large product's rate is the claimed peak times
    min(cap, κ · (TDP / peak)^power_exponent)        W per claimed TFLOP/s, of bf16 or fp16
where power sets the limit on most cards: halving the power of the same silicon (A100 PCIe against
SXM4, A6000 against RTX 3090 Ti) does not halve its rate, since lower clocks need lower voltage.
Memory reaches a share of its claim, links and fabrics too; latencies are their generation's.
What is not claimed is taken from the nearest thing that is, in words, and with a wider spread.

The constants are read from rates.toml (docs/definitions.md: how they were found).  A class is a
generation of silicon of one vendor: chips of one class share a process and a design, and no
constant knows who measured.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from trainrig.catalog.chip import Chip, peak
from trainrig.catalog.host_parts import pcie_bandwidth
from trainrig.catalog.offered_memory import offered_memory
from trainrig.errors import UsageError
from trainrig.prediction.rates import AttentionRates, Direction, Rates, Stream
from trainrig.prediction.rates.chip_place import host_of, topology_of
from trainrig.prediction.rates.links import Link, Links
from trainrig.prediction.rates.matmul import MatmulRates

PATH = Path(__file__).parent / "rates.toml"
_NVIDIA = {
    "7.0": "volta",
    "7.5": "turing",
    "8.0": "ga100",
    "8.6": "ga102",
    "8.9": "ada",
    "9.0": "hopper",
    "10.0": "blackwell",
    "10.3": "blackwell",
    "12.0": "blackwell-consumer",
    "12.1": "blackwell-consumer",
}
_ARCHITECTURES = {
    "Hopper": "hopper",
    "Blackwell": "blackwell",
    "Gaudi": "gaudi",
    "TPU": "tpu",
    "Da Vinci": "davinci",
    "RDNA 2.0": "rdna2",
    "RDNA 3.0": "rdna",
    "RDNA 3.5": "rdna",
    "RDNA 4.0": "rdna",
    "Xe-HPG": "xe",
    "Xe2-HPG": "xe",
    "Xe-HPC": "xe-hpc",
    "MXC500": "gpgpu",
    "Iluvatar": "gpgpu",
    "MUSA": "gpgpu",
}


class Class(NamedTuple):
    """Constants of one generation of chips: [class.…] of rates.toml explains each."""

    cap: float
    lanes: float
    bandwidth: float
    power: float = 1.0
    flash: float = 0.5
    flash_backward: float = 0.4
    own: float = 0.0
    """0: no other kernels are known."""
    own_backward: float = 0.0
    most: tuple[float, float] = (1.0, 1.0)
    """Share of the claimed peak that the generation's own kernels reach where they are fastest,
    forward and backward."""
    each: float = 0.0
    """FLOP/s of a processor's tensor cores in bf16, of the chip that attention's shares are of."""
    wide: float = 0.0
    """0: as elsewhere, a share of flash attention's rate."""
    wide_backward: float = 0.0
    flash_rows: int = 128
    """Queries that one processor works on at a time in the forward."""
    drain: float = 0.0
    """0: as elsewhere."""
    per_processor: float = 0.0
    """0: no such limit seen."""
    multicast: float = 0.0
    """0: the switch has no reduction of its own."""
    widened: float = 0.5
    """Rate of bf16, of fp32's, where no unit multiplies it: operands are widened."""
    plain: float = 1.0
    """Share of a stream's rate that torch's own kernels reach, of norms, softmax and sums."""
    untuned: float = 0.0
    """Share of the claimed tensor peak that is reached where nobody tunes; 0: tuning is no step."""


@cache
def constants() -> Mapping[str, Any]:
    """Return the whole file."""
    import tomllib

    return tomllib.loads(PATH.read_text(encoding="utf-8"))


def _class(name: str) -> Class:
    """Return a class, what it does not say taken from the one that it is like."""
    own = dict(constants()["class"][name])
    like = own.pop("like", None)
    return _class(like)._replace(**own) if like else Class(**own)


def class_of(chip: Chip) -> str:
    """Return the name of a chip's class; ``other`` where none fits."""
    if (chip.product.architecture or "").startswith("CDNA"):
        return "cdna2" if chip.product.architecture == "CDNA 2.0" else "cdna"
    if chip.name in _WIDE_TPUS:
        return "tpu-wide"
    if chip.vendor == "Apple":  # from the M3 on, bf16 is a type of the GPU's own (Metal's family 9)
        return "apple" if chip.name.startswith(("Apple M1", "Apple M2")) else "apple-m3"
    name = _NVIDIA.get(chip.compute.capability or "")
    return name or _ARCHITECTURES.get(chip.product.architecture or "", "other")


def fuses_attention(chip: Chip) -> bool:
    """Return whether flash attention is built for the chip: from 2020 on, and not left out."""
    return (chip.product.year or 2020) >= 2020 and not leaves_scores(chip)


def leaves_scores(chip: Chip) -> bool:
    """Return whether a training's scores lie in the chip's memory: no library has a fused kernel.

    AOTriton is built for AMD's gfx90a and later of CDNA and gfx11 and later of RDNA; XPU's fused
    kernel was forward alone until torch 2.11.
    """
    return chip.product.architecture in _PLAIN


def widens_bf16(chip: Chip) -> bool:
    """Return whether bf16 operands are widened to fp32, which takes twice as long."""
    kind = _class(class_of(chip))
    return kind.widened < 1.0 and peak(chip, "bf16") is None and peak(chip, "fp32") is not None


def is_graphed(chip: Chip) -> bool:
    """Return whether NVIDIA's recipes for the chip launch from CUDA graphs (`Rates.graphed`).

    They do on data centers' Blackwell.  Flags and tables ask this alone; a chip's year says nothing
    of it: an H200 is of 2024, and a Hopper.
    """
    return class_of(chip) == "blackwell"


def has_cuda_graphs(chip: Chip) -> bool:
    """Return whether torch records CUDA or HIP graphs on the chip (torch.cuda.graph)."""
    return chip.vendor in ("NVIDIA", "AMD")


def runs_graphs(chip: Chip) -> bool:
    """Return whether XLA's, Neuron's or Gaudi's compiler makes graphs for the chip."""
    return _GRAPHS.match(chip.name) is not None


_GRAPHS = re.compile(r"TPU v[4-9]|TPU[7-9]|Trainium|Gaudi")
"""Names of chips with graph compilers: of TPUs those with fused attention."""
_WIDE_TPUS = ("TPU v6e", "TPU7x")
_PLAIN = ("CDNA 1.0", "RDNA 2.0", "Xe-HPC", "Xe-HPG", "Xe2-HPG")
TERA = 1e12
LINKS = ("nvlink", "pcie", "ici", "hccs", "none")
"""Words for the link inside a node; None: the chip's own."""
_DTYPES = ("fp32", "tf32", "bf16", "fp16", "fp8", "int8")
# Where a chip has no unit for a dtype, products run in the first of these that it has.
_INSTEAD = {
    "tf32": ("fp32", "bf16"),
    "bf16": ("fp32", "fp16"),
    "fp16": ("fp32", "bf16"),
    "fp8": ("bf16", "fp16"),
    "int8": ("fp8", "bf16", "fp16"),
    "fp32": ("tf32", "bf16", "fp16"),
}
_FABRIC_OF_NO_ONE = 12.5e9
_BANDWIDTH_OF_NO_ONE = 500e9
_OF_PCIE = 0.8  # of one direction's claim, that copies reach
# B/s of a node's memory that an optimizer's threads reach: of 256 claimed on a DGX-2 (Ren et al.
# 2021, ZeRO-Offload, table of CPU-Adam), and what updates of 8B on H200 and B200 servers come to,
# of 600 and more claimed (stas00/ml-engineering, when-to-upgrade-gpus): not a share of the claim.
_SERVER_MEMORY = {2017: 120e9, 2022: 180e9}
# Two channels: 27 GB/s of DDR4-3000 (STREAM triad on a Ryzen 5900X, noonghunna/club-3090 #1095), 63
# of DDR5-4800 (copies by all cores of a 14900KF, JustVugg/colibri #537); read 2026-11-23.
_DESKTOP_MEMORY = 40e9
_SHARED_LANES = 8  # a desktop's processor has sixteen, and two cards share them
_LEAST = 0.02  # of the claim, whatever power is said to be left
_USUAL_NODE = 8
SLICE = 256  # TPUs that one torus joins: the whole slice of a v5e or v6e, part of the others'
_TORUS = 2  # axes of one at least: v4, v5p and TPU7x have three (Scaling Book, "TPU networking")
_PROCESSORS = {"blackwell": 148}  # where no source says: B200, GB200 and B300 have as many
_UNSEEN_CLASS = 0.3  # natural logarithm: of a step on chips of a class that nobody published
_SUPERCHIP = 0.78  # of the module's power; the rest is its processor's


def _check_place(chip: Chip, link: str | None, fabric: float | None) -> None:
    """UsageError for an unknown link, one that the chip lacks, or a rate that is no rate."""
    if link is not None and link not in LINKS:
        raise UsageError(f"unknown link {link!r}", "one of: " + ", ".join(LINKS))
    if link == "nvlink" and chip.link.name == "none":
        raise UsageError(f"{chip.name} has no NVLink", "leave the link out, or say pcie")
    if fabric is not None and not 0.0 < fabric < 1e15:
        raise UsageError(f"a fabric of {fabric!r} B/s", "give the bytes a second of one node")


def rates_of_chip(
    chip: Chip,
    *,
    link: str | None = None,
    fabric: float | None = None,
    p2p: bool | None = None,
    power: float | None = None,
) -> Rates:
    """Rates from the catalog's claims.

    ``link``: nvlink, pcie, ici, hccs or none inside the node (None: as the chip's own);
    ``fabric``: B/s of one node into the network, one direction; ``p2p``: whether one device reads
    another's memory over PCIe; ``power``: W that it is limited to (None: its own).
    Raises UsageError for an unknown link or a rate that is no rate.
    """
    _check_place(chip, link, fabric)
    name = class_of(chip)
    kind = _class(name)
    full, words = _sustained(chip, kind)
    sustained = {dtype: rate * power_slows(chip, power) for dtype, rate in full.items()}
    # Of large streams: a share of the claim, and no more than the processors ask for.
    bandwidth = (
        chip.memory.bandwidth or chip.memory.computed_bandwidth or _BANDWIDTH_OF_NO_ONE
    ) * kind.bandwidth
    if requested := kind.per_processor * (chip.compute.num_sms or 0):
        bandwidth = min(bandwidth, requested)
    links = Links(inside=_inside(chip, kind, link, p2p), between=_between(chip, fabric))
    stream, wider = constants()["stream"], 2.0 if name == "other" else 1.0
    spread = {key: float(value) * wider for key, value in constants()["spread"].items()}
    spread["collective"] *= 1.5 if fabric is None and chip.link.p2p is None else 1.0
    years = constants()["launch"][host_of(chip)]
    year = max((y for y in years if int(y) <= (chip.product.year or 2022)), default=min(years))
    return Rates(
        device=chip.name,
        matmuls=_matmuls(chip, kind, sustained, bandwidth),
        streams=Stream(
            bandwidth=bandwidth,
            latency=stream["latency"],
            cache=(chip.memory.l2 or 0.0) * stream["cache_share"],
            cache_bandwidth=(chip.compute.num_sms or 0) * stream["cache_per_processor"],
        ),
        attentions=_attentions(kind, chip),
        links=links,
        launch=float(years[year]),
        supports_non_tn_fp8=takes_any_order(chip),
        graphed=is_graphed(chip),
        host_link=_pcie(chip, chip.pcie.lanes) * _OF_PCIE,
        host_link_shared=_pcie(chip, _lanes(chip)) * _OF_PCIE,
        host_memory=_host_memory(chip),
        disk=3e9,
        memory_bytes=offered_memory(chip) or 16e9,
        power=chip.board.tdp,
        peaks=_claimed(chip),
        spread=spread,
        untuned=_untuned(chip, kind, full),
        plain=kind.plain,
        unsure=0.0 if name in constants()["error"]["published"] else _UNSEEN_CLASS,
        provenance=_provenance(chip, name, kind, words, links),
    )


def _untuned(chip: Chip, kind: Class, full: Mapping[str, float]) -> float:
    """`Rates.untuned`: what is left of the tuned rate."""
    claim = peak(chip, "bf16") if kind.untuned else None
    return min(1.0, kind.untuned * claim.rate / full["bf16"]) if claim else 1.0


def _claimed(chip: Chip) -> dict[str, float]:
    return {d: p.rate for d in _DTYPES if (p := peak(chip, d)) is not None}


def _sustained(chip: Chip, kind: Class) -> tuple[Mapping[str, float], str]:
    """FLOP/s of large products by dtype, and how the half-precision one came about."""
    claimed = _claimed(chip) or dict.fromkeys(
        ("fp32", "fp16"), (chip.compute.num_sms or 10) * 0.4e12
    )
    rates = {
        d: rate * power_share(chip, kind, d, rate, kind.lanes if d == "fp32" else kind.cap)
        for d, rate in claimed.items()
    }
    if chip.vendor == "AMD":  # torch's switch for TF32 does nothing on ROCm
        rates["tf32"] = rates["fp32"]
    half = next(d for d in ("bf16", "fp16", "fp32") if d in claimed)
    words = f"{half} claimed × {rates[half] / claimed[half]:.2f}"
    for dtype in _DTYPES:
        if dtype not in rates:
            other = next(other for other in _INSTEAD[dtype] if other in rates)
            is_wide = (dtype, other) == ("bf16", "fp32")
            rates[dtype] = rates[other] * (kind.widened if is_wide else 1.0)
    return rates, words


def takes_any_order(chip: Chip) -> bool:
    """Return `Rates.supports_non_tn_fp8` of a chip."""
    return class_of(chip) == "blackwell"


def joined_trays(chip: Chip, tray: int, gpus: int) -> int:
    """Trays of so many chips that the chips' link joins to one node: NVL72's of four, a torus's."""
    most = min(chip.link.domain or (SLICE if chip.link.name == "ICI" else tray), gpus) // tray
    return max((n for n in range(1, most + 1) if gpus % (tray * n) == 0), default=1)


def usual_tray(chip: Chip) -> int | None:
    """Devices that share a host, of a chip whose link joins several hosts to a rack; else None."""
    return _TRAYS.get(chip.name)


_TRAYS = {"GB200": 4, "GB300": 4, "Ascend 910C": 8, "Ascend 910C die": 16, "Trainium3": 16}
"""An NVL72 has 18 trays of four (NVIDIA, multi-node tuning guide), a CloudMatrix nodes of eight,
a Trn3 UltraServer of 64 four servers of 16 (AWS Neuron documentation, Trn3 architecture)."""


def in_fp4(rates: Rates, chip: Chip) -> Rates:
    """Rates of a step whose fp8 products are in fp4 (NVFP4, MXFP4), where the chip claims those."""
    return narrowed(rates, chip, "fp4")


def narrowed(rates: Rates, chip: Chip, dtype: str) -> Rates:
    """Rates of a step whose fp8 products are in another ``dtype``, where the chip claims those."""
    claimed = peak(chip, dtype)
    if claimed is None:
        return rates
    kind = _class(class_of(chip))
    narrow = claimed.rate * power_share(chip, kind, dtype, claimed.rate)
    sustained = {**rates.matmuls.sustained, "fp8": narrow}
    matmuls = dataclasses.replace(rates.matmuls, sustained=sustained)
    return rates.replace(matmuls=matmuls, peaks={**rates.peaks, "fp8": claimed.rate})


def widened_once(rates: Rates) -> Rates:
    """Rates where a compiler widens bf16 that nothing multiplies: products are fp32's (XLA)."""
    whole = rates.matmuls.sustained
    sustained = {**whole, "bf16": whole["fp32"]}
    return rates.replace(matmuls=dataclasses.replace(rates.matmuls, sustained=sustained))


def with_flash2(rates: Rates) -> Rates:
    """Rates where plain flash attention is its second version (Dao 2023), written for Ampere.

    There it is the generation's own; elsewhere the rates are its own already.  What the first
    version's were slower by inside a step is none of its.
    """
    kernels = dataclasses.replace(rates.attentions, is_current=True)
    if rates.device.startswith(_FLASH2):
        directions = kernels.generation
        kernels = dataclasses.replace(kernels, forward=directions[0], backward=directions[1])
    return rates.replace(attentions=kernels)


def with_newest_attention(rates: Rates) -> Rates:
    """Rates where attention is the kernel that was written for this generation of chips."""
    kernels = rates.attentions
    newest = dataclasses.replace(
        kernels, forward=kernels.generation[0], backward=kernels.generation[1], is_current=True
    )
    return rates.replace(attentions=newest)


def with_plain_attention(rates: Rates) -> Rates:
    """Rates where what is fused beside attention brings no attention of the generation's own."""
    kernels = with_flash2(rates).attentions
    directions = kernels.forward, kernels.backward
    return rates.replace(attentions=dataclasses.replace(kernels, generation=directions))


_FLASH2 = ("A100", "A800", "A30")
"""Chips of the generation that it was written for and measured on."""


def power_slows(chip: Chip, power: float | None) -> float:
    """Return the share of a product's rate that a power limit leaves."""
    if not power or not chip.board.tdp:
        return 1.0
    return float(min(1.0, power / chip.board.tdp) ** constants()["matmul"]["power_exponent"])


def unsure_of(chip: Chip, rate: str) -> float:
    """By how much a sound chip's rate may differ from the predicted one, as a share.

    ``what``: a dtype of products, or ``stream``.
    """
    rule = constants()["error"]
    width = float(rule["stream" if rate == "stream" else "matmul"])
    known = rate in rule["published"].get(class_of(chip), ())
    return width if known else width * float(rule["unpublished"])


def power_share(
    chip: Chip, kind: Class, dtype: str, claimed: float, most: float | None = None
) -> float:
    """Share of a claimed peak that power leaves to products, and design (``most``: the cores')."""
    most = kind.cap if most is None else most
    if chip.board.tdp is None:
        return most
    rule = constants()["matmul"]
    power = chip.board.tdp * (_SUPERCHIP if chip.product.form_factor == "superchip" else 1.0)
    watts = power / (claimed / TERA) / rule["energy"].get(dtype, 1.0)
    return float(max(_LEAST, min(most, kind.power * watts ** rule["power_exponent"])))


def _attentions(kind: Class, chip: Chip) -> AttentionRates:
    """An older kernel is late by its instructions: no later where tensor cores are cut (H20)."""
    rule = constants()["attention"]

    claim = peak(chip, "bf16")
    rate_of_sm = claim.rate / (chip.compute.num_sms or 1) if claim else 0.0
    cut = rate_of_sm / kind.each if 0.0 < rate_of_sm < kind.each / 2.0 else 1.0
    most = [claim.rate * min(1.0, share / cut) if claim else math.inf for share in kind.most]

    def both(forward: float, backward: float) -> tuple[Direction, Direction]:
        return (
            Direction(share=forward, rows=kind.flash_rows, tail=rule["tail"], most=most[0]),
            Direction(share=backward, rows=128, tail=rule["tail_backward"], most=most[1]),
        )

    pairs = (kind.flash, kind.own), (kind.flash_backward, kind.own_backward)
    forward, backward = both(*(min(max(pair), pair[0] / cut) for pair in pairs))
    own_directions = both(kind.own or kind.flash, kind.own_backward or kind.flash_backward)
    shares = (kind.wide / kind.flash, kind.wide_backward / kind.flash_backward)
    return AttentionRates(
        forward=forward,
        backward=backward,
        generation=own_directions,
        softmax=rule["softmax"],
        wide=(shares[0] or rule["wide"], shares[1] or rule["wide"]),
        lanes=(kind.wide or rule["lanes"], kind.wide_backward or rule["lanes_backward"]),
    )


def _matmuls(
    chip: Chip, kind: Class, sustained: Mapping[str, float], bandwidth: float
) -> MatmulRates:
    rule = constants()["matmul"]
    tiles = tuple((*map(int, size.split("x")), share) for size, share in rule["tiles"].items())
    return MatmulRates(
        sustained=sustained,
        bandwidth=bandwidth,
        processors=chip.compute.num_sms or _PROCESSORS.get(class_of(chip), 64),
        tiles=tiles,
        split_k=rule["split_k"],
        drain=kind.drain or rule["drain"],
        latency=rule["latency"],
        overlap=rule["overlap"],
    )


def _inside(chip: Chip, kind: Class, link: str | None, p2p: bool | None) -> Link:
    own = (
        chip.link.name is not None and chip.link.name != "none" and chip.link.bandwidth is not None
    )
    wanted = link or ("nvlink" if own else "pcie")
    if link == "none" or (link is None and chip.link.name == "NVLink bridge"):
        wanted = "pcie"  # a bridge is bought apart: it is there where it is said to be
    if wanted != "pcie" and own and chip.link.bandwidth is not None:
        return dataclasses.replace(
            _link(topology_of(chip), chip.link.bandwidth / 2.0, str(chip.link.name)),
            multicast=kind.multicast,
            **(_of_torus(chip) if chip.link.name == "ICI" else {}),
        )
    consumer = _is_consumer(chip)
    reads = (chip.link.p2p is not False and not consumer) if p2p is None else p2p
    rate = _pcie(chip, _lanes(chip))
    words = "PCIe, from device to device" if reads else "PCIe, through host memory"
    return _link("pcie" if reads else "host", rate, words)


def _of_torus(chip: Chip) -> dict[str, Any]:
    """Axes of a TPU's torus, and the share of its links that groups of chips go around on.

    What closes an axis is there from a cube of 64 chips on, or along 16 in two dimensions (Google
    Cloud TPU documentation, v5p; Scaling Book, "TPU networking"); an open one's last chips have one
    of its two links.
    """
    closed = 64 if chip.name in _CUBES else SLICE
    return {"axes": _TORUS, "shares": (0.5,) * (closed - 1) + (1.0,)}


_CUBES = ("TPU v4", "TPU v5p", "TPU7x")
"""TPU generations whose torus has three dimensions."""


def _host_memory(chip: Chip) -> float:
    """Return the memory bandwidth of hosts that such chips are usually in."""
    if _is_consumer(chip):
        return _DESKTOP_MEMORY
    return max(
        rate for year, rate in _SERVER_MEMORY.items() if year <= max(chip.product.year or 0, 2017)
    )


def _lanes(chip: Chip) -> int | None:
    """Return the B/s to the host of each of several devices."""
    return _SHARED_LANES if _is_consumer(chip) else chip.pcie.lanes


def _is_consumer(chip: Chip) -> bool:
    """Return a card for desktops.

    Drivers let those read each other over a bridge alone, not over PCIe.

    Told by what vendors halve on such cards: products that are summed in fp32.
    """
    narrow, wide = peak(chip, "fp16", "fp16"), peak(chip, "fp16")
    halved = narrow is not None and wide is not None and narrow.rate > 1.5 * wide.rate
    return halved or chip.link.p2p is False


def _pcie(chip: Chip, lanes: int | None) -> float:
    if chip.pcie.generation is None or lanes is None:
        return 25e9
    return pcie_bandwidth(chip.pcie.generation, lanes).high


def _between(chip: Chip, fabric: float | None) -> Link:
    """Not stated: what nodes of such chips are usually sold with, a port a module."""
    if fabric is not None:
        return _link("fabric", fabric, "fabric between nodes")
    words = "fabric not stated: presumed by the chip's class"
    if chip.link.name == "ICI" and chip.link.bandwidth:
        # One of a block's six sides leads to the next block.
        rate = SLICE * chip.link.bandwidth / 2.0 / 6.0
        return _link("fabric", rate, "the torus between blocks of a slice")
    return _link("fabric", usual_fabric(chip), words)


def usual_fabric(chip: Chip) -> float:
    """B/s of a node into the network, one way, that such chips are usually sold with."""
    port, node = port_of(chip), chip.link.domain or _USUAL_NODE
    return _FABRIC_OF_NO_ONE if port is None else node * port


def port_of(chip: Chip) -> float | None:
    """B/s into the network of a module's own port, by its year; None: a card has none.

    On boards of B300 and GB300 it is a ConnectX-8 of 800 Gb/s (NVIDIA, data sheets of DGX B300 and
    GB300 NVL72).  Of Gaudi's own three leave the node.
    """
    if chip.link.name == "RoCE" and chip.link.bandwidth:
        return _LEAVING * chip.link.bandwidth / 2.0 / (chip.link.count or 1)
    form = chip.product.form_factor or ("PCIe" if chip.link.bandwidth is None else "module")
    ports = {2017: 6.25e9, 2020: 25e9, 2022: 50e9}
    if chip.vendor == "NVIDIA":
        ports[2025] = 100e9
    year = max((y for y in ports if y <= (chip.product.year or 2022)), default=2017)
    return None if "PCIe" in form or form == "SoC" else ports[year]


_LEAVING = 3  # of a Gaudi's Ethernet ports (Intel's network configuration of Gaudi 2 and 3)


def _link(name: str, claimed: float, words: str) -> Link:
    rule: Mapping[str, Any] = constants()["link"][name]
    return Link(
        name=words,
        bandwidth=claimed * rule["share"],
        direct=claimed * rule.get("direct", 0.0),
        latency=rule["latency"],
        hop=rule["hop"],
        ramp=rule["ramp"],
        contention=rule.get("contention", 1.0),
        unsure=rule.get("unsure", 0.0),
        shares=tuple(rule.get("shares", (1.0,))),
    )


def _provenance(
    chip: Chip, name: str, kind: Class, words: str, links: Links
) -> Mapping[str, str]:  # fmt: skip
    return {
        "matmul": f"{chip.name}: {words} ({name}: power rule, tiles and waves)",
        "attention": f"forward {kind.flash:.2f}, backward {kind.flash_backward:.2f} of large "
        f"products; {kind.own or kind.flash:.2f} and {kind.own_backward or kind.flash_backward:.2f}"
        f" in kernels of its own generation ({name})",
        "stream": f"{kind.bandwidth:.2f} of the claimed bandwidth ({name})",
        "launch": "presumed for machines of the chip's year",
        "collective": f"{links.inside.name}; {links.between.name}",
        "host_link": "0.8 of the claimed PCIe rate",
        "disk": "presumed: one NVMe disk",
    }
