"""AMD's GPUs as their own tools describe them: amd-smi, else the older rocm-smi.

Both print JSON.  rocm-smi's values are text under names that carry the unit;
amd-smi's are numbers, or objects of value and unit, in a list that newer
versions wrap in ``gpu_data``.  Blanks are 65535, 2^32-1 and ``N/A``.
Source of amd-smi's names: its repository's Python command line (ROCm 6 and 7).
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any

from trainrig.machine.parse import (
    first,
    integer,
    json_object,
    link_generation,
    number,
    objects,
    percent,
    scaled,
    size_bytes,
    text,
)
from trainrig.machine.pci import AMD
from trainrig.machine.snapshot import Gpu, Missing, PcieLink, unknown_link
from trainrig.machine.system_access import Host

# Both are Python programs that load the driver's library; they take about a second.
_TIMEOUT_S = 6.0
_ADDRESS = re.compile(r"[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")
_DEVICE_ID = re.compile(r"0x([0-9a-fA-F]{3,4})")
_CLOCK = re.compile(r"\(?(\d{1,6}) ?[Mm]hz\)?")
_LINK = re.compile(r"\((\d{1,3}(?:\.\d)?)GT/s x(\d{1,2})\)")

Fields = Mapping[str, Any]


def amd_gpus(host: Host) -> tuple[Gpu, ...] | Missing:
    """Return AMD's GPUs, or why neither tool described any."""
    static = host.run("amd-smi", "static", "--json", timeout_s=_TIMEOUT_S)
    gpus = parse_amd_smi(static)
    if not isinstance(gpus, Missing):
        return gpus
    older = parse_rocm_smi(host.run("rocm-smi", "-a", "--json", timeout_s=_TIMEOUT_S))
    return first([older, gpus], "AMD GPU")


def parse_rocm_smi(output: str | Missing) -> tuple[Gpu, ...] | Missing:
    """Return the cards that `rocm-smi -a --json` prints."""
    value = json_object(output, "rocm-smi")
    if isinstance(value, Missing):
        return value
    cards = {name: card for name, card in value.items() if re.fullmatch(r"card\d{1,3}", name)}
    ordered = sorted(cards.items(), key=lambda item: int(item[0][4:]))
    listed = [card for _, card in ordered if isinstance(card, dict)]
    gpus = tuple(_rocm_gpu(index, card) for index, card in enumerate(listed))
    return gpus if gpus else Missing("rocm-smi listed no card")


def _rocm_gpu(index: int, card: Fields) -> Gpu:
    names = [text(card.get(name), "name") for name in ("Device Name", "Card series", "Card Series")]
    ids = [_pci_id(card.get(name)) for name in ("Device ID", "GPU ID")]
    # The hottest point of the chip, where the card has a sensor there.
    heat = [f"Temperature (Sensor {place}) (C)" for place in ("junction", "edge")]
    temperatures = [number(card.get(name), "temperature", most=200) for name in heat]
    powers = ("Average Graphics Package Power (W)", "Current Socket Graphics Package Power (W)")
    return Gpu.unknown(
        Missing("rocm-smi does not tell"),
        index=index,
        vendor="amd",
        name=first(names, "name"),
        uuid=text(card.get("Unique ID"), "unique id"),
        pci_address=_address(card.get("PCI Bus")),
        pci_id=first(ids, "PCI id"),
        memory_total_bytes=integer(card.get("VRAM Total Memory (B)"), "memory size"),
        memory_used_bytes=integer(card.get("VRAM Total Used Memory (B)"), "memory use"),
        vbios=text(card.get("VBIOS version"), "VBIOS version"),
        link=_rocm_link(card.get("pcie clock level")),
        power_w=first([number(card.get(name), "power", most=5000) for name in powers], "power"),
        power_limit_w=number(card.get("Max Graphics Package Power (W)"), "limit", most=5000),
        sm_clock_hz=_clock(card.get("sclk clock speed:")),
        memory_clock_hz=_clock(card.get("mclk clock speed:")),
        temperature_c=first(temperatures, "sensor"),
        utilization=percent(card.get("GPU use (%)"), "utilization"),
    )


def parse_amd_smi(output: str | Missing) -> tuple[Gpu, ...] | Missing:
    """Return the GPUs that `amd-smi static --json` prints."""
    if isinstance(output, Missing):
        return output
    try:
        value = json.loads(output)
    except (ValueError, RecursionError):
        return Missing("amd-smi did not print JSON")
    listed = objects(value.get("gpu_data") if isinstance(value, dict) else value)
    gpus = tuple(_smi_gpu(index, gpu) for index, gpu in enumerate(listed))
    return gpus if gpus else Missing("amd-smi listed no GPU")


def _smi_gpu(index: int, gpu: Fields) -> Gpu:
    asic, bus, vram = _part(gpu, "asic"), _part(gpu, "bus"), _part(gpu, "vram")
    limit, vbios = _part(gpu, "limit"), _part(gpu, "vbios")
    size = _part(vram, "size")  # {"value": 192, "unit": "GB"}: AMD's GB is a power of 1024
    missing = Missing("amd-smi's static part does not tell")
    return Gpu.unknown(
        missing,
        index=index,
        vendor="amd",
        name=text(asic.get("market_name"), "name"),
        uuid=text(asic.get("asic_serial"), "serial number"),
        pci_address=_address(bus.get("bdf")),
        pci_id=_pci_id(asic.get("device_id")),
        memory_total_bytes=size_bytes(f"{_value(size)} {size.get('unit')}", "memory size"),
        memory_bus_bits=integer(_value(vram.get("bit_width")), "bus width"),
        num_cores=integer(asic.get("num_compute_units"), "compute units"),
        vbios=text(vbios.get("version"), "VBIOS version"),
        link=dataclasses.replace(
            unknown_link(missing.reason),
            max_generation=link_generation(_value(bus.get("max_pcie_speed"))),
            max_width=integer(bus.get("max_pcie_width"), "link width"),
        ),
        power_limit_w=number(_value(limit.get("socket_power")), "power limit", most=5000),
        power_limit_max_w=number(_value(limit.get("max_power")), "power limit", most=5000),
    )


def _part(gpu: Fields, name: str) -> Fields:
    part = gpu.get(name)
    return part if isinstance(part, dict) else {}


def _value(value: object) -> object:
    """Return the number in ``{"value": 5, "unit": "W"}``, or a plain number."""
    return value.get("value") if isinstance(value, dict) else value


def _address(value: object) -> str | Missing:
    if isinstance(value, str) and _ADDRESS.fullmatch(value):
        return value.lower()
    return Missing("no PCI address")


def _pci_id(value: object) -> str | Missing:
    match = _DEVICE_ID.fullmatch(value) if isinstance(value, str) else None
    return f"{AMD}:{match[1].lower():0>4}" if match else Missing("no PCI id")


def _clock(value: object) -> float | Missing:
    match = _CLOCK.fullmatch(value) if isinstance(value, str) else None
    return scaled(match[1] if match else None, 1e6, "clock")


def _rocm_link(value: object) -> PcieLink:
    link = unknown_link("rocm-smi does not tell")
    match = _LINK.search(value) if isinstance(value, str) else None
    if match is None:
        return link
    generation, width = link_generation(match[1]), integer(match[2], "link width")
    return dataclasses.replace(link, generation=generation, width=width)
