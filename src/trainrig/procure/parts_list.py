"""The file of a build: which parts, how many, at which price, for what, in which room.

    currency = "CNY"

    [[gpu]]
    part = "ASUS TUF Gaming RTX 4090"
    price = 15999

    [[ram]]
    part = "DDR5-5600 UDIMM 32 GiB"
    count = 2
    price = 699

    [[case]]                      # one that the catalog does not know: its fields
    part = "My own case"
    gpu_length_mm = 400
    ...

    [use]                         # what it is for: disks and RAM are held against it
    model = "gpt3-1.3B"
    tokens = 26e9

    [room]
    volts = 230
    breaker_amps = 16

Fields of a part that stand in an entry replace the catalog's (``watts = 350``: a power limit).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trainrig.errors import DataError, UsageError, invalid, unknown
from trainrig.procure.part_catalog import own_part
from trainrig.procure.parts import KINDS, Board, Chassis, GpuCard, Part, PowerSupply
from trainrig.procure.price_list import Price, currency_of, price_of
from trainrig.safe_read import parse_toml, read_settings

MOST = 512
"""Most pieces of one entry."""
Number = Annotated[float, Field(gt=0, le=1e15, allow_inf_nan=False)]
Kind = TypeVar("Kind", bound=Part)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Use(_Strict):
    """Purpose of the machine: model, tokens and what is stored."""

    model: str | None = None
    tokens: Number | None = None
    bytes_per_token: Number | None = None
    """Bytes of one token on disk; None: 2 up to a vocabulary of 65,536, else 4."""
    keep_checkpoints: Annotated[int, Field(ge=1, le=1000)] = 3
    bytes_per_parameter: Number = 14.0
    """Bytes of a checkpoint per parameter: bf16 weights, fp32 masters, Adam's two states."""
    disk_tb: Number | None = None
    """Disk for text, environments and results, in TB."""


class Room(_Strict):
    """Room of the machine: circuit, cooling, noise and rack."""

    volts: Annotated[float, Field(ge=90, le=480)] | None = None
    breaker_amps: Number | None = None
    circuits: Annotated[int, Field(ge=1, le=100)] = 1
    other_watts: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    """Watts of other devices on the same circuits."""
    cooling_btu_per_h: Number | None = None
    noise_limit_db: Number | None = None
    rack_units: Annotated[int, Field(ge=1, le=100)] | None = None


class Wiring(_Strict):
    """Settings and cabling that are no parts of their own."""

    psu_sync: bool = False
    """True with an adapter that starts several supplies together."""
    board_supply: Annotated[int, Field(ge=1, le=MOST)] | None = None
    """Number of the supply that the board hangs on; None: where it loads least."""
    gpu_supplies: tuple[Annotated[int, Field(ge=1, le=MOST)], ...] | None = None
    """Number of the supply of each card, in the list's order; None: as they load least."""
    link_generation: Annotated[int, Field(ge=1, le=7)] | None = None
    """PCIe generation that the firmware is set to for slots with risers."""


class _Entry(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)
    part: Annotated[str, Field(min_length=1, max_length=200)]
    count: Annotated[int, Field(ge=1, le=MOST)] = 1
    price: Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)] | None = None


class _Head(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    name: Annotated[str, Field(max_length=200)] = ""
    currency: str = ""
    use: Use = Use()
    room: Room = Room()
    wiring: Wiring = Wiring()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartCount:
    """A part with its count and price."""

    kind: str
    part: Part
    count: int = 1
    price: float | None = None
    """Price of one piece; None: not known."""
    priced: str = ""
    """Source of the price: the list itself, or source and date."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """A machine that may be built."""

    name: str
    items: tuple[PartCount, ...]
    is_complete: bool = True
    """True where the list states all parts: an absent kind is missing, else not known."""
    currency: str = ""
    use: Use = field(default_factory=Use)
    room: Room = field(default_factory=Room)
    wiring: Wiring = field(default_factory=Wiring)

    def part_counts(self, part_type: type[Kind]) -> list[tuple[Kind, int]]:
        """Return the parts of a type, with their counts."""
        return [
            (cast(Kind, item.part), item.count)
            for item in self.items
            if isinstance(item.part, part_type)
        ]

    def pieces(self, part_type: type[Kind]) -> list[Kind]:
        """Return every single piece of a type."""
        return [part for part, count in self.part_counts(part_type) for _ in range(count)]

    @property
    def cards(self) -> list[GpuCard]:
        """Return every GPU."""
        return self.pieces(GpuCard)

    @property
    def board(self) -> Board | None:
        """Return the board, the first of several."""
        return next(iter(self.pieces(Board)), None)

    @property
    def chassis(self) -> Chassis | None:
        """Return the case, the first of several."""
        return next(iter(self.pieces(Chassis)), None)

    @property
    def supplies(self) -> list[PowerSupply]:
        """Return every power supply."""
        return self.pieces(PowerSupply)

    @property
    def unpriced(self) -> list[str]:
        """Parts without a price."""
        return [item.part.name for item in self.items if item.price is None]

    @property
    def priced_total(self) -> float:
        """Sum of what has a price."""
        return sum(item.count * item.price for item in self.items if item.price is not None)

    @property
    def total(self) -> float | None:
        """Price of all; None where one is not known."""
        return None if self.unpriced else self.priced_total


def read_build(path: Path, prices: Iterable[Price] = (), currency: str = "") -> Build:
    """Return the build of a file; what has no price there gets the newest of ``prices``.

    Raises DataError for an unreadable file, UsageError for a part that is not known.
    """
    return build_of(read_content(path), str(path), prices, currency)


def read_content(path: Path) -> Mapping[str, Any]:
    """Return the tables of a list's file.  Raises DataError."""
    try:
        return parse_toml(read_settings(path))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise DataError(f"parts list {path}: {reason}", "trainrig build check FILE.toml") from None
    except UnicodeDecodeError:
        raise DataError(f"parts list {path} is no text in UTF-8", _HINT) from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"parts list {path} is not TOML: {error}", _HINT) from None


def build_of(
    content: Mapping[str, Any],
    where: str,
    prices: Iterable[Price] = (),
    currency: str = "",
    *,
    is_complete: bool = True,
    described: Collection[str] = (),
) -> Build:
    """Return the build that tables of parts describe.

    Args:
        content: Tables by kind, and the list's head.
        where: Its name in messages.
        prices: For parts without one.
        currency: Where the list names none.
        is_complete: Whether the tables state all parts; else what is not there is not known.
        described: Kinds that are named in words, of which few fields are asked for.

    Raises:
        DataError: Nothing usable in it.
        UsageError: What is missing or wrong, of all entries at once.
    """
    head_keys = _Head.model_fields
    for key in content:
        if key not in KINDS and key not in head_keys:
            error = unknown("table", key, (*KINDS, *head_keys))
            raise UsageError(f"{where}: {error.message}", error.hint or _HINT)
    try:
        head = _Head.model_validate({key: content[key] for key in head_keys if key in content})
    except ValidationError as error:
        raise invalid(error, where, _Head) from None
    if head.currency and currency and currency_of(head.currency) != currency_of(currency):
        raise UsageError(
            f"{where}: its prices are in {head.currency}, not in {currency}",
            "change its currency, or leave --currency out",
        )
    money = head.currency or currency
    money = currency_of(money) if money else ""
    items = _items(content, where, tuple(prices), money, described)
    if not items:
        raise DataError(f"{where}: no parts in it", _HINT)
    if not money and any(item.price is not None for item in items):
        hint = '--currency CNY; or currency = "CNY" at its top' if is_complete else "--currency CNY"
        raise UsageError(f"{where}: prices in which money?", hint)
    return Build(
        name=head.name or where.rpartition("/")[2].removesuffix(".toml"),
        items=tuple(items),
        is_complete=is_complete,
        currency=money,
        use=head.use,
        room=head.room,
        wiring=head.wiring,
    )


_HINT = f"tables [[{']], [['.join(KINDS)}]], and [use], [room], [wiring]"


def _entries(kind: str, content: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    table = content.get(kind, [])
    entries = [table] if isinstance(table, dict) else table
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise DataError(f"{where}: {kind} is no table", f"write [[{kind}]] and part = below it")
    return entries


def _items(
    content: Mapping[str, Any],
    where: str,
    prices: tuple[Price, ...],
    currency: str,
    described: Collection[str],
) -> list[PartCount]:
    """Return all parts of a list.  Raises UsageError with the faults of every entry."""
    items: list[PartCount] = []
    errors: list[UsageError] = []
    for kind in KINDS:
        is_complete = kind not in described
        for entry in _entries(kind, content, where):
            try:
                items.append(_item(kind, entry, where, prices, currency, is_complete=is_complete))
            except UsageError as error:
                errors.append(error)
    if errors:
        raise _all_of(errors, where)
    return items


def _all_of(errors: list[UsageError], where: str) -> UsageError:
    """Return one error that says what several say of one list."""
    if len(errors) == 1:
        return errors[0]
    messages = [error.message.removeprefix(f"{where}: ") for error in errors]
    hints = dict.fromkeys(error.hint for error in errors if error.hint)
    return UsageError(f"{where}: {'; '.join(messages)}", "; ".join(hints) or None)


def _item(
    kind: str,
    entry: dict[str, Any],
    where: str,
    prices: tuple[Price, ...],
    currency: str,
    *,
    is_complete: bool,
) -> PartCount:
    try:
        read = _Entry.model_validate(entry)
    except ValidationError as error:
        hint = 'part = "its name", count = 1, price = what one costs'
        raise invalid(error, f"{where}: [[{kind}]]", _Entry, hint) from None
    part = own_part(kind, read.part, read.model_extra or {}, where, is_complete=is_complete)
    price, origin = read.price, "the list"
    if price is None and (listed_price := price_of(prices, part.name, currency, kind=kind)):
        price, origin = listed_price.price, f"{listed_price.source}, {listed_price.date}"
    return PartCount(
        kind=kind,
        part=part,
        count=read.count,
        price=price,
        priced=origin if price is not None else "",
    )
