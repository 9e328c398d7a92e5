"""Machines as people name them: a server of the catalog, so many of a chip, or a file of their own.

Answers which chip, how many to a node, how they are joined and what a node has into the network
(`find_server`).  Not what a machine is that one stands before (`machine` reads that).  servers.toml
has the catalog's; a user's file is either a chip or a cluster:

    name = "My card"            a chip: fields are those of the catalog's chips, in their units, and
    memory_gib = 96             dense peaks in TFLOPS by data type
    peaks = { bf16 = 400 }

    [chips]                     a cluster: chips by name, or with `file` of one's own
    name = "H100 SXM5 80GB"
    [node]
    chips = 8
    count = 4
    [links]                     inside a node: `gb_s` of a chip, both ways
    kind = "nvlink"
    [fabric]                    between nodes: of a whole node, one way
    gbps = 3200
    [cpu]
    memory_gb_s = 300

What is left out stays unknown, or is the chip's own.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from trainrig.catalog.chip import (
    DEFAULT_ACCUMULATE,
    Chip,
    Count,
    Peak,
    Provenance,
    Size,
    Source,
    Text,
)
from trainrig.catalog.chip_file import KNOWN, Dtype
from trainrig.catalog.fields import FIELDS
from trainrig.catalog.lookup import (
    candidates,
    find_chip,
    most_common,
    normalise,
    require_chip,
)
from trainrig.errors import DataError, UsageError, invalid, reading
from trainrig.record import read_toml
from trainrig.safe_read import parse_toml, read_settings

PATH = Path(__file__).parent / "servers.toml"
_GBIT = 1e9 / 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Chips of one kind in a node; a field that is None is not known."""

    name: str
    chip: Chip
    gpus: int | None = None
    """Chips of one node."""
    is_uncounted: bool = False
    """A cloud's instance whose name does not say how many chips it has."""
    nodes: int = 1
    requested_name: str | None = None
    """Requested chip name, where it fits several and the most common is presumed."""
    fabric: float | None = None
    """Network rate of one node in B/s, one way."""
    link: str | None = None
    """Link inside the node: nvlink or pcie; None: the chip's own."""
    p2p: bool | None = None
    host_memory: float | None = None
    """Bandwidth of the processors' memory in B/s."""
    disk: float | None = None
    """Rate of the node's disks in B/s."""
    cpu: str | None = None
    memory: float | None = None
    """Host memory in bytes."""
    joined_by: str | None = None
    ports: str | None = None
    """Network ports of one node."""
    source: str | None = None
    url: str | None = None
    date: str | None = None

    @property
    def switch_bandwidth(self) -> float | None:
        """NVSwitch total in B/s, both ways: link bandwidth of a chip × chips; None without one."""
        link = self.chip.link
        is_rack = link.name == "NVLink" and link.domain == self.gpus
        if self.gpus is None or link.bandwidth is None:
            return None
        return (
            self.gpus * link.bandwidth if is_rack or "NVSwitch" in (self.joined_by or "") else None
        )


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _ServerEntry(_Strict):
    name: Text
    aliases: Annotated[tuple[Text, ...], Field(strict=False)] = ()
    chip: Text
    gpus: Count
    fabric_gbps: Size | None = None
    cpu: Text | None = None
    memory_gib: Size | None = None
    joined_by: Text
    ports: Text | None = None
    source: Text
    url: Annotated[str, Field(pattern=r"^https?://")]
    date: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")]


class _Pattern(_Strict):
    """A form of instance names that say which chips an instance has, and how many."""

    form: Text
    """Regular expression with the groups ``chip``, and ``gpus`` where the name has their number."""
    chip: Text | None = None
    """The chip, where the name does not say it."""
    gpus: Count | None = None
    suffix: str = ""
    """Words that the chip's name in the catalog has behind the matched one."""
    is_module: bool = False
    """True where the chips are modules of a baseboard with NVSwitches."""


class _Slice(_Strict):
    chip: Text
    cores: Literal[1, 2]


class _ServersFile(_Strict):
    schema_: Literal[1] = Field(alias="schema")
    providers: Annotated[tuple[Text, ...], Field(strict=False)]
    exchanged_memory: dict[Text, list[Count]]
    slices: dict[Text, _Slice]
    instances: dict[Text, Text]
    pattern: list[_Pattern]
    server: list[_ServerEntry]


@cache
def _file() -> _ServersFile:
    return read_toml(PATH, _ServersFile, PATH.name)


def instances() -> dict[str, str]:
    """Return chips by the beginnings of machines' names; the first match counts."""
    return _file().instances


@cache
def load_servers() -> dict[str, Server]:
    """Return every server of the catalog, by its names as `normalise` writes them."""
    return {
        normalise(name): _server_of(entry)
        for entry in _file().server
        for name in (entry.name, *entry.aliases)
    }


@cache
def _server_of(entry: _ServerEntry) -> Server:
    return Server(
        chip=require_chip(entry.chip),
        fabric=None if entry.fabric_gbps is None else entry.fabric_gbps * _GBIT,
        memory=None if entry.memory_gib is None else entry.memory_gib * 1024.0**3,
        **entry.model_dump(exclude={"chip", "fabric_gbps", "memory_gib", "aliases"}),
    )


def find_server(text: str) -> Server:
    """Return the machine that a user means: a server, a chip, ``8x MI350X``, or a .toml file.

    So many of a chip, a server, a rack or an instance may be said behind it, too (``H100x8``), and
    a rack by what it joins (``GB200 NVL72``).  A cloud's instance that is no server of the catalog
    has the chip of its line.  A short name that fits several chips ("H100") means the most common
    one (`lookup.most_common`), and the server says how it was called.  Raises UsageError for an
    unknown name, DataError for a file that cannot be read.
    """
    if text.lower().endswith(".toml"):
        return read_server(Path(text))
    text = _without_provider(text)
    if (machine := named_server(text)) is not None:
        return machine
    if (counted := _counted(text)) is None:
        if (machine := named_machine(text)) is not None:
            return machine
        chip, short = _named_chip(text)
        return Server(name=chip.name, chip=chip, requested_name=short)
    number, counted_name = counted
    if number < 1:
        raise UsageError(f"{text.strip()}: no chips at all", "as 8x MI350X")
    if (machine := named_machine(counted_name)) is not None:
        return dataclasses.replace(machine, nodes=number)
    chip, short = _named_chip(counted_name)
    return Server(name=chip.name, chip=chip, gpus=number, requested_name=short)


_TIMES = r"\s*[x×*]\s*"


def _counted(text: str) -> tuple[int, str] | None:
    """Return number and name of ``8x H100`` or ``H100x8``; None without a number.

    A 7900 XTX is one, and what is a chip's whole name has no number behind it.
    """
    before = re.fullmatch(r"\s*(\d{1,5})\s*[x×*](?!tx?\b)\s*(.+)", text, re.IGNORECASE)
    behind = re.fullmatch(rf"(.*\w){_TIMES}(\d{{1,5}})\s*", text, re.IGNORECASE)
    if behind is not None and (find_chip(text) is not None or not _is_known(behind[1])):
        behind = None
    if before is not None and (behind is None or _is_known(before[2])):
        return int(before[1]), before[2]
    return None if behind is None else (int(behind[2]), behind[1])


def _is_known(name: str) -> bool:
    return bool(find_chip(name) or named_machine(name) or candidates(name))


def named_machine(name: str) -> Server | None:
    """Return the server, rack, slice or cloud's instance of a name, or None."""
    name = _without_provider(name)
    return named_server(name) or _rack(name) or _slice(name) or _of_pattern(name) or _instance(name)


def _of_pattern(text: str) -> Server | None:
    """Return the machine whose name says its chips: ``BM.GPU.H100.8``, ``HGX H20``."""
    name = re.sub(r"[\s._-]+", "-", text.strip().casefold()).removeprefix("standard-")
    if len(name) > _MAX_NAME:
        return None
    for pattern in _file().pattern:
        match = re.fullmatch(pattern.form, name)
        if match is None:
            continue
        called = pattern.chip or f"{match['chip'].replace('-', ' ')}{pattern.suffix}"
        chip = find_chip(called) or most_common(called)
        if chip is None or (pattern.is_module and "SXM" not in (chip.product.form_factor or "")):
            continue
        return Server(
            name=text.strip(),
            chip=chip,
            gpus=pattern.gpus or int(match["gpus"]),
            joined_by="NVSwitches" if pattern.is_module else None,
        )
    return None


def _without_provider(text: str) -> str:
    """Return a name without the cloud before it: ``2xT4`` of ``Kaggle 2xT4``."""
    first, _, rest = text.strip().partition(" ")
    return rest if rest and first.casefold() in _file().providers else text


def _slice(text: str) -> Server | None:
    """Return a TPU slice by its name, ``v6e-256``; None for another name."""
    match = re.fullmatch(r"\s*(?:tpu[ -]?)?(v\d\w*)-(\d{1,5})\s*", text, re.IGNORECASE)
    slice_row = _file().slices.get(match[1].casefold()) if match else None
    if match is None or slice_row is None or int(match[2]) < slice_row.cores:
        return None
    chips = int(match[2]) // slice_row.cores
    return Server(name=text.strip(), chip=require_chip(slice_row.chip), gpus=chips)


def _chip_with_memory(name: str) -> Chip | None:
    """Return a chip named with its memory, or with exchanged memory (``RTX 4090 48GB``)."""
    match = re.fullmatch(r"\s*(.+?)[ _-]*(\d{1,3}) ?(?:GB|G)\s*", name, re.IGNORECASE)
    chip = find_chip(match[1]) if match else None
    if match is None or chip is None:
        return None
    size = int(match[2]) * 1024.0**3
    if chip.memory.size == size:
        return chip
    if int(match[2]) not in _file().exchanged_memory.get(chip.name, []):
        return None
    return chip.replace(name=f"{chip.name} {match[2]}GB", memory=size)


def _rack(text: str) -> Server | None:
    """Return a rack by its name, ``GB200 NVL72``; None for another name."""
    match = re.fullmatch(r"(.+?)[\s_-]*nvl[\s_-]*(\d+)\s*", text, re.IGNORECASE)
    chip = find_chip(match[1]) if match else None
    if match is None or chip is None or chip.link.domain != int(match[2]):
        return None
    return Server(name=f"{chip.name} NVL{match[2]}", chip=chip, gpus=chip.link.domain)


def _instance(text: str) -> Server | None:
    """Return a cloud's instance by its line and number: ``a3-megagpu-8g``."""
    name = text.strip().casefold()
    name = name.replace("_", "-").removeprefix("standard-")
    line = next((line for line in instances() if re.match(rf"{line}[.-]", name)), None)
    if line is None or re.search(r"\s", name):
        return None
    chips = re.search(r"-(\d{1,2})g$", name)
    chip = require_chip(instances()[line])
    gpus = int(chips[1]) if chips else None
    return Server(name=text.strip(), chip=chip, gpus=gpus, is_uncounted=gpus is None)


def _named_chip(name: str) -> tuple[Chip, str | None]:
    """Return the chip, and the name where it fits several, of which the most common is presumed."""
    is_short = find_chip(name) is None and len(candidates(name)) > 1
    presumed = most_common(name) if is_short else None
    if find_chip(name) is None and (chip_of_size := _chip_with_memory(name)) is not None:
        return chip_of_size, None
    return (require_chip(name), None) if presumed is None else (presumed, name.strip())


def named_server(text: str) -> Server | None:
    """Return the server of the catalog that is called so, or None."""
    normalised_name = normalise(text) if len(text) <= _MAX_NAME else ""
    for entry in _file().server if normalised_name else ():
        if normalised_name in map(normalise, (entry.name, *entry.aliases)):
            return _server_of(entry)
    return None


_MAX_NAME = 200


def known_servers() -> tuple[Server, ...]:
    """Return every server of the catalog once, in the file's order."""
    return tuple(dict.fromkeys(load_servers().values()))


def server_dict(server: Server) -> dict[str, Any]:
    """Return a server for JSON, in base SI under names with their units."""
    return {
        "name": server.name,
        "chip": server.chip.name,
        "gpus": server.gpus,
        "fabric_bytes_per_s": server.fabric,
        "memory_bytes": server.memory,
        "cpu": server.cpu,
        "joined_by": server.joined_by,
        "switch_bytes_per_s": server.switch_bandwidth,
        "ports": server.ports,
        "source": {"title": server.source, "url": server.url, "date": server.date},
    }


def read_server(path: Path) -> Server:
    """Return a user's own chip or cluster.  Raises DataError with the first thing that is wrong."""
    values = _read(path)
    tables = {name for name, value in values.items() if name == "chips" or isinstance(value, dict)}
    is_cluster = bool(tables & _Cluster.model_fields.keys())  # a chip's file has no table but peaks
    return _cluster(values, path) if is_cluster else _chip_server(values, path)


def _read(path: Path) -> dict[str, Any]:
    try:
        with reading(path, _EXAMPLES):
            return parse_toml(read_settings(path))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not TOML: {error}", _EXAMPLES) from None


_EXAMPLES = "docs/machines.md has a chip's file and a cluster's"

if TYPE_CHECKING:

    class _OwnChip(_Strict):
        name: Text
        vendor: Text = "own"
        peaks: dict[Dtype, Size] = Field(default_factory=dict)
else:
    _OwnChip = create_model(
        "_OwnChip",
        __base__=_Strict,
        name=(Text, ...),
        vendor=(Text, "own"),
        peaks=(dict[Dtype, Size], Field(default_factory=dict)),
        **KNOWN,
    )


def _chip_server(values: dict[str, Any], path: Path) -> Server:
    chip = _own_chip(values, path)
    return Server(name=chip.name, chip=chip)


def _own_chip(values: dict[str, Any], path: Path) -> Chip:
    read: Any = _validated(_OwnChip, values, path)
    if "bf16" not in read.peaks and "fp16" not in read.peaks and "fp32" not in read.peaks:
        raise DataError(f"{path}: peaks: none of bf16, fp16 and fp32", "as peaks = { bf16 = 400 }")
    if read.memory_gib is None:
        raise DataError(f"{path}: memory_gib is missing", "GiB of one chip, as memory_gib = 80")
    printed = {name: field for field in FIELDS for name in (*field.printed, field.name)[:1]}
    file_values = read.model_dump(exclude_none=True, exclude={"name", "vendor", "peaks"})
    chip_values = {
        printed[name].name: value * printed[name].printed[name] if printed[name].printed else value
        for name, value in file_values.items()
    }
    peaks = tuple(
        Peak(
            dtype=dtype,
            accumulate=DEFAULT_ACCUMULATE[dtype],
            unit="vector" if dtype in ("fp32", "fp64") else "tensor",
            rate=tera * 1e12,
        )
        for dtype, tera in read.peaks.items()
    )
    source = Source(key="own", title=str(path), url=None, date="")
    names = (*chip_values, *(peak.field for peak in peaks))
    origin = dict.fromkeys(names, Provenance(source=source, verified=False))
    return Chip.of(
        name=read.name, vendor=read.vendor, peaks=peaks, provenance=origin, **chip_values
    )


class _Chips(_Strict):
    name: Text | None = None
    file: Text | None = None


class _Node(_Strict):
    chips: Count = 8
    count: Count = 1


class _Links(_Strict):
    kind: Literal["nvlink", "pcie", "none"] | None = None
    gb_s: Size | None = None
    p2p: bool | None = None


class _Fabric(_Strict):
    gbps: Size | None = None


class _Cpu(_Strict):
    name: Text | None = None
    memory_gib: Size | None = None
    memory_gb_s: Size | None = None
    disk_gb_s: Size | None = None


class _Cluster(_Strict):
    name: Text | None = None
    chips: _Chips
    node: _Node = _Node()
    links: _Links = _Links()
    fabric: _Fabric = _Fabric()
    cpu: _Cpu = _Cpu()


def _cluster(values: dict[str, Any], path: Path) -> Server:
    read = _validated(_Cluster, values, path)
    if (read.chips.name is None) == (read.chips.file is None):
        hint = 'as name = "H100 SXM5 80GB", or file = "my-chip.toml"'
        raise DataError(f"{path}: chips: give either a name or a file", hint)
    if read.chips.file is not None:
        chip_path = path.parent / read.chips.file
        chip = _own_chip(_read(chip_path), chip_path)
    else:
        assert read.chips.name is not None
        chip = require_chip(read.chips.name)
    if read.links.gb_s is not None:
        link = "NVLink" if chip.link.name in (None, "none") else chip.link.name
        chip = chip.replace(link_bandwidth=read.links.gb_s * 1e9, link=link)
    cpu = read.cpu
    return Server(
        name=read.name or path.stem,
        chip=chip,
        gpus=read.node.chips,
        nodes=read.node.count,
        fabric=None if read.fabric.gbps is None else read.fabric.gbps * _GBIT,
        link=read.links.kind,
        p2p=read.links.p2p,
        host_memory=None if cpu.memory_gb_s is None else cpu.memory_gb_s * 1e9,
        disk=None if cpu.disk_gb_s is None else cpu.disk_gb_s * 1e9,
        cpu=cpu.name,
        memory=None if cpu.memory_gib is None else cpu.memory_gib * 1024.0**3,
        source=str(path),
    )


Model = TypeVar("Model", bound=BaseModel)


def _validated(model: type[Model], values: dict[str, Any], path: Path) -> Model:
    try:
        read = model.model_validate(values)
    except ValidationError as error:
        raise invalid(error, str(path), model, _EXAMPLES) from None
    for place, value in _in_units(values):
        if value > _MOST:
            raise DataError(f"{path}: {place} = {value:g} is too much in its unit", _UNITS)
    return read


def _in_units(values: dict[str, Any], above: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers of a file that carry data-sheet units, with their places."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _in_units(value, f"{above}{name}.")
        elif above == "peaks." or name.endswith(("_gib", "gb_s", "gbps")):
            yield f"{above}{name}", value


_MOST = 1e9
"""Largest plausible TFLOPS, GiB or GB/s; above it somebody wrote FLOP/s or bytes."""
_UNITS = "as data sheets print it: peaks in TFLOPS, memory in GiB, rates in GB/s"
