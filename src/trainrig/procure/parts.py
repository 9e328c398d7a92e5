"""What each kind of part says of itself: the figures that the rules of a build compare.

Units are those that data sheets print, and stand in the name: mm, W, dB, GiB.  A field without a
default is needed by a rule that no build escapes, and is asked for where an entry lacks it; None
elsewhere means unknown, and the rule that needs it is not applied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field

from trainrig.catalog.chip import Provenance

Text = Annotated[str, Field(min_length=1, max_length=200)]
Size = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=100_000)]
Some = Annotated[int, Field(ge=1, le=100_000)]
Generation = Annotated[int, Field(ge=1, le=7)]
Connector = Literal["12V-2x6", "8-pin", "6-pin", "eps", "8-pin-eps"]
Cooling = Literal["axial", "blower", "water", "passive"]
_STRICT = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """An expansion slot of a board."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    position: Annotated[int, Field(ge=1, le=20)]
    """1 is next to the processor; each position is 20.32 mm further."""
    lanes: Literal[1, 2, 4, 8, 16]
    """Wired, whatever the length of the socket."""
    generation: Generation
    from_cpu: bool = True
    """False where the lanes come through the chipset, which shares one link."""
    splits: tuple[Literal[2, 4], ...] = ()
    """Into how many links the firmware can divide it (bifurcation)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCard:
    """A board partner's card."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    name: Text
    chip: Text
    """Of `trainrig catalog`, where its memory, power and PCIe generation stand."""
    length_mm: Size
    slots: Annotated[float, Field(gt=0, le=10)]
    """Width in positions; 2.5-slot cards exist."""
    cooling: Cooling
    """``axial`` (open-air), ``blower``, ``water``, ``passive`` (needs the chassis' fans)."""
    connectors: Mapping[Connector, Some]
    watts: Size | None = None
    """None: the chip's TDP."""
    radiator_mm: Some | None = None
    noise_db: Size | None = None
    provenance: Mapping[str, Provenance] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """A motherboard."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    name: Text
    socket: Text
    form_factor: Text
    memory_type: Text
    memory_slots: Some
    memory_channels: Some
    slots: Annotated[tuple[Slot, ...], Field(min_length=1, max_length=20)]
    m2_slots: Count
    memory_max_gib: Some | None = None
    registered: bool = False
    """Whether it takes RDIMMs, and no UDIMMs."""
    eps_connectors: Some = 2
    sata_ports: Count = 4
    u2_ports: Count = 0
    sockets: Annotated[int, Field(ge=1, le=8)] = 1
    lane_modes: tuple[tuple[Count, ...], ...] = ()
    """Lanes of each slot in the ways in which the board can share them; none: all as wired."""
    management: bool = False
    """IPMI or BMC."""
    provenance: Mapping[str, Provenance] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """A CPU."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    name: Text
    socket: Text
    watts: Size
    """Of the package under sustained load (PPT, PL2)."""
    lanes: Some
    """For slots and disks, without the link to the chipset."""
    generation: Generation
    memory_channels: Some
    memory_types: tuple[Text, ...]
    cores: Some | None = None
    provenance: Mapping[str, Provenance] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryModule:
    """A module of RAM."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    name: Text
    capacity_gib: Some
    memory_type: Text
    registered: bool
    speed_mt_s: Some | None = None
    watts: Size = 5.0
    provenance: Mapping[str, Provenance] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerSupply:
    """A power supply."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    name: Text
    watts: Size
    atx: Literal["2", "3.0", "3.1"]
    """Version of the design guide that it follows: 3.x takes excursions of cards."""
    connectors: Mapping[Connector, Some]
    efficiency: Annotated[float, Field(gt=0.5, le=1.0)]
    """At half load."""
    length_mm: Size | None = None
    watts_115v: Size | None = None
    """Rating at 100 to 120 V, where that is less."""
    form_factor: Text = "ATX"
    noise_db: Size | None = None
    provenance: Mapping[str, Provenance] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chassis:
    """A case, an open frame or a server's chassis."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    name: Text
    form_factors: tuple[Text, ...]
    gpu_length_mm: Size
    slots: Some
    """Openings for cards, counted from the first position of the board."""
    cooler_height_mm: Size
    airflow: Literal["tower", "front-to-back", "open"]
    psu_bays: Some = 1
    radiator_mm: Count = 0
    """Of the longest radiator that it takes."""
    radiators: Count = 2
    """How many of them."""
    riser_cards: Count = 0
    """Cards that it holds away from the board."""
    rack_units: Some | None = None
    noise_db: Size | None = None
    provenance: Mapping[str, Provenance] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cooler:
    """Cooling of a processor."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    name: Text
    sockets: tuple[Text, ...]
    watts: Size
    """That it takes away."""
    height_mm: Size | None = None
    radiator_mm: Some | None = None
    noise_db: Size | None = None
    provenance: Mapping[str, Provenance] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskPart:
    """A disk to buy."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    name: Text
    capacity_tb: Size
    """As sold, 10^12 bytes."""
    interface: Literal["m2", "u2", "sata"]
    watts: Size = 8.0
    endurance_tb: Size | None = None
    qlc: bool = False
    provenance: Mapping[str, Provenance] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkCard:
    """A network card."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    name: Text
    gbps: Size
    """Of a port."""
    lanes: Literal[1, 2, 4, 8, 16]
    generation: Generation
    ports: Some = 1
    watts: Size = 15.0
    provenance: Mapping[str, Provenance] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Riser:
    """A cable or adapter from a slot to a card elsewhere."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    name: Text
    generation: Generation
    length_mm: Size
    splits: Literal[1, 2, 4] = 1
    """Cards that one slot feeds through it."""
    retimer: bool = False
    powered: bool = False
    """Its card takes nothing through the slot: it has a plug of its own."""
    provenance: Mapping[str, Provenance] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bridge:
    """An NVLink bridge between two cards."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    name: Text
    chips: tuple[Text, ...]
    span: Annotated[int, Field(ge=1, le=8)]
    """Positions from one card's to the next one's."""
    provenance: Mapping[str, Provenance] = field(default_factory=dict, hash=False)


Part = (
    GpuCard
    | Board
    | Processor
    | MemoryModule
    | PowerSupply
    | Chassis
    | Cooler
    | DiskPart
    | NetworkCard
    | Riser
    | Bridge
)
KINDS: Mapping[str, type[Part]] = {
    "gpu": GpuCard,
    "board": Board,
    "cpu": Processor,
    "ram": MemoryModule,
    "psu": PowerSupply,
    "case": Chassis,
    "cooling": Cooler,
    "disk": DiskPart,
    "nic": NetworkCard,
    "riser": Riser,
    "bridge": Bridge,
}
"""By the name of its table in a parts list."""
NEEDED = ("gpu", "board", "cpu", "ram", "psu", "case", "cooling", "disk")


def kind_of(part: Part) -> str:
    """``gpu`` of a card, ``psu`` of a power supply."""
    return next(kind for kind, made in KINDS.items() if isinstance(part, made))


def field_names(kind: str) -> tuple[str, ...]:
    """What may be said of a part of this kind, its name aside."""
    return tuple(one.name for one in fields(KINDS[kind]) if one.name not in ("name", "provenance"))
