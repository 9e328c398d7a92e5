"""What each kind of part says of itself: the figures that the rules of a build compare.

Units are those that data sheets print, and stand in the name: mm, W, dB, GiB.  A field without a
default, or with `NEEDED_FIELD`, is what a rule that no build escapes compares: a user's own entry
is asked for it.  The catalog leaves such a field out where no source was found for it, and the rule
says "cannot tell" instead of judging.  None of another field: the part has no such thing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, field, fields
from typing import Annotated, Literal, TypeVar

from pydantic import ConfigDict, Field

from trainrig.catalog.chip import Provenance
from trainrig.record import read_by

Text = Annotated[str, Field(min_length=1, max_length=200)]
Size = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=100_000)]
Some = Annotated[int, Field(ge=1, le=100_000)]
Generation = Annotated[int, Field(ge=1, le=7)]
Connector = Literal["12V-2x6", "8-pin", "6-pin", "eps", "8-pin-eps"]
Cooling = Literal["axial", "blower", "water", "passive"]
_STRICT = ConfigDict(extra="forbid", frozen=True)
_Value = TypeVar("_Value")


NEEDED_FIELD: Mapping[str, bool] = {"needed": True}
"""Metadata of a figure that a rule compares: asked for in a user's own entry."""


def known_value(value: _Value | None) -> _Value:
    """Return a value that a rule's guard has found to be known."""
    assert value is not None
    return value


@read_by(_STRICT)
class Slot:
    """An expansion slot of a board."""

    position: Annotated[int, Field(ge=1, le=20)] | None = None
    """Position on the board from 1, next to the processor, at 20.32 mm; None: not known."""
    lanes: Literal[1, 2, 4, 8, 16]
    """PCIe lanes as wired, whatever the length of the socket."""
    generation: Generation
    from_cpu: bool = True
    """False where the lanes come through the chipset, which shares one link."""
    splits: tuple[Literal[2, 4], ...] | None = None
    """Numbers of links that the firmware can divide it into (bifurcation); None: not known."""


Slots = Annotated[tuple[Slot, ...], Field(min_length=1, max_length=20)]


@read_by(_STRICT)
class GpuCard:
    """A board partner's card."""

    name: Text
    chip: Text
    """Chip by its name in `trainrig catalog`, which has memory, power and PCIe generation."""
    length_mm: Size | None = field(default=None, metadata=NEEDED_FIELD)
    slots: Annotated[float, Field(gt=0, le=10)] | None = field(default=None, metadata=NEEDED_FIELD)
    """Width in slot positions; 2.5-slot cards exist."""
    cooling: Cooling | None = field(default=None, metadata=NEEDED_FIELD)
    """Cooling: ``axial`` (open-air), ``blower``, ``water``, ``passive`` (the chassis' fans)."""
    connectors: Mapping[Connector, Some] | None = field(default=None, metadata=NEEDED_FIELD)
    watts: Size | None = None
    """Power limit of the card in watts; None: the chip's TDP."""
    radiator_mm: Some | None = None
    """Length of a water-cooled card's radiator; None: not known."""
    noise_db: Size | None = None
    provenance: Mapping[str, Provenance] = field(default_factory=dict, hash=False)


@read_by(_STRICT)
class Board:
    """A motherboard."""

    name: Text
    socket: Text
    form_factor: Text | None = field(default=None, metadata=NEEDED_FIELD)
    memory_type: Text | None = field(default=None, metadata=NEEDED_FIELD)
    """Generation of memory, ``DDR5``; a module's full name (``DDR5-5600 UDIMM``) is read too."""
    memory_slots: Some | None = field(default=None, metadata=NEEDED_FIELD)
    memory_channels: Some
    slots: Slots | None = field(default=None, metadata=NEEDED_FIELD)
    m2_slots: Count | None = field(default=None, metadata=NEEDED_FIELD)
    memory_max_gib: Some | None = None
    registered: bool | None = None
    """True: takes RDIMMs only; False: UDIMMs only; None: either."""
    so_dimm: bool = False
    """True where the memory slots take SO-DIMMs."""
    eps_connectors: Some | None = None
    sata_ports: Count | None = None
    u2_ports: Count | None = None
    sockets: Annotated[int, Field(ge=1, le=8)] = 1
    lane_modes: tuple[tuple[Count, ...], ...] = ()
    """Lanes of each slot in the ways in which the board can share them; none: all as wired."""
    management: bool = False
    """True with a management controller (IPMI, BMC)."""
    provenance: Mapping[str, Provenance] = field(default_factory=dict, hash=False)


@read_by(_STRICT)
class Processor:
    """A CPU."""

    name: Text
    socket: Text
    watts: Size
    """Watts of the package under sustained load (PPT, PL2)."""
    lanes: Some | None = field(default=None, metadata=NEEDED_FIELD)
    """PCIe lanes for slots and disks, without the link to the chipset."""
    generation: Generation | None = None
    memory_channels: Some
    memory_types: tuple[Text, ...]
    cores: Some | None = None
    provenance: Mapping[str, Provenance] = field(default_factory=dict, hash=False)


@read_by(_STRICT)
class MemoryModule:
    """A module of RAM."""

    name: Text
    capacity_gib: Some
    memory_type: Text | None = field(default=None, metadata=NEEDED_FIELD)
    registered: bool
    so_dimm: bool = False
    """True for a short module (SO-DIMM), for notebooks and small boards."""
    speed_mt_s: Some | None = None
    watts: Size = 5.0
    provenance: Mapping[str, Provenance] = field(default_factory=dict, hash=False)


@read_by(_STRICT)
class PowerSupply:
    """A power supply."""

    name: Text
    watts: Size
    atx: Literal["2", "3.0", "3.1"] | None = field(default=None, metadata=NEEDED_FIELD)
    """Version of the design guide that it follows: 3.x takes excursions of cards."""
    connectors: Mapping[Connector, Some] | None = field(default=None, metadata=NEEDED_FIELD)
    efficiency: Annotated[float, Field(gt=0.5, le=1.0)]
    """Efficiency at half load, 0.5 to 1."""
    length_mm: Size | None = None
    watts_115v: Size | None = None
    """Rating at 100 to 120 V, where that is less."""
    form_factor: Text = "ATX"
    noise_db: Size | None = None
    provenance: Mapping[str, Provenance] = field(default_factory=dict, hash=False)


@read_by(_STRICT)
class Chassis:
    """A case, an open frame or a server's chassis."""

    name: Text
    form_factors: tuple[Text, ...] | None = field(default=None, metadata=NEEDED_FIELD)
    gpu_length_mm: Size | None = field(default=None, metadata=NEEDED_FIELD)
    slots: Some | None = field(default=None, metadata=NEEDED_FIELD)
    """Openings for cards, counted from the first position of the board; a frame needs none."""
    cooler_height_mm: Size | None = field(default=None, metadata=NEEDED_FIELD)
    airflow: Literal["tower", "front-to-back", "open"]
    psu_bays: Some | None = None
    """Number of bays for supplies, where more than one."""
    radiator_mm: Count | None = None
    """Length of the longest radiator that it takes; 0: none."""
    radiators: Count | None = None
    """Number of radiators that it takes, where more than one."""
    riser_cards: Count = 0
    """Cards that it holds away from the board."""
    rack_units: Some | None = None
    noise_db: Size | None = None
    provenance: Mapping[str, Provenance] = field(default_factory=dict, hash=False)

    def room(self, name: str) -> float | None:
        """Return one of the case's measures; an open frame has no limit where none is stated."""
        stated_: float | None = getattr(self, name)
        return 1e3 if stated_ is None and self.airflow == "open" else stated_


@read_by(_STRICT)
class Cooler:
    """Cooling of a processor."""

    name: Text
    sockets: tuple[Text, ...] | None = field(default=None, metadata=NEEDED_FIELD)
    watts: Size | None = field(default=None, metadata=NEEDED_FIELD)
    """Heat that it takes away, in watts."""
    height_mm: Size | None = None
    radiator_mm: Some | None = None
    noise_db: Size | None = None
    provenance: Mapping[str, Provenance] = field(default_factory=dict, hash=False)


@read_by(_STRICT)
class DiskPart:
    """A disk to buy."""

    name: Text
    capacity_tb: Size
    """Capacity as sold, in units of 10^12 bytes."""
    interface: Literal["m2", "u2", "sata"] | None = field(default=None, metadata=NEEDED_FIELD)
    watts: Size = 8.0
    endurance_tb: Size | None = None
    qlc: bool = False
    provenance: Mapping[str, Provenance] = field(default_factory=dict, hash=False)


@read_by(_STRICT)
class NetworkCard:
    """A network card."""

    name: Text
    gbps: Size
    """Rate of one port, in Gb/s."""
    lanes: Literal[1, 2, 4, 8, 16]
    generation: Generation | None = None
    ports: Some = 1
    watts: Size = 15.0
    provenance: Mapping[str, Provenance] = field(default_factory=dict, hash=False)


@read_by(_STRICT)
class Riser:
    """A cable or adapter from a slot to a card elsewhere."""

    name: Text
    generation: Generation | None = field(default=None, metadata=NEEDED_FIELD)
    length_mm: Size | None = field(default=None, metadata=NEEDED_FIELD)
    splits: Literal[1, 2, 4] = 1
    """Cards that one slot feeds through it."""
    retimer: bool = False
    powered: bool = False
    """True where the riser has a plug of its own, so that its card takes no slot power."""
    provenance: Mapping[str, Provenance] = field(default_factory=dict, hash=False)


@read_by(_STRICT)
class Bridge:
    """An NVLink bridge between two cards."""

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
"""Part types by the name of their table in a parts list."""
NEEDED = ("gpu", "board", "cpu", "ram", "psu", "case", "cooling", "disk")


def kind_of(part: Part) -> str:
    """Return the kind of a part: ``gpu``, ``psu``."""
    return next(kind for kind, part_type in KINDS.items() if isinstance(part, part_type))


def field_names(kind: str) -> tuple[str, ...]:
    """Return the fields of a kind of part, its name aside."""
    return tuple(
        field.name for field in fields(KINDS[kind]) if field.name not in ("name", "provenance")
    )


def required_fields(kind: str, *, by_rules: bool = True) -> tuple[str, ...]:
    """Return fields without which a part of a kind cannot be described.

    Args:
        kind: One of KINDS.
        by_rules: Whether fields count that only a rule compares; without them it "cannot tell".
    """
    return tuple(
        field.name
        for field in fields(KINDS[kind])
        if field.name != "name"
        and field.default_factory is MISSING
        and (field.default is MISSING or (by_rules and "needed" in field.metadata))
    )


def unknown_fields(part: Part) -> tuple[str, ...]:
    """Return fields that rules compare, and of which no source is known."""
    return tuple(
        field.name
        for field in fields(part)
        if "needed" in field.metadata and getattr(part, field.name) is None
    )
