"""Limits of a socket's platform, read from catalog/platforms.toml.

A platform's limit refuses a build whose board is not named, or of which a figure is not known.  It
never proves that a build fits: a board may have fewer slots than its platform allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

import trainrig.catalog
from trainrig.errors import DataError
from trainrig.procure.parts import Processor
from trainrig.procure.parts_list import Build
from trainrig.record import read_toml

PLATFORMS_FILE = Path(trainrig.catalog.__file__).parent / "platforms.toml"
Count = Annotated[int, Field(ge=1, le=100_000)]
ModuleKind = Literal["UDIMM", "RDIMM"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Platform(_Strict):
    """A processor socket and the memory that its processors can drive."""

    socket: str
    memory_types: tuple[str, ...]
    module_kinds: tuple[ModuleKind, ...]
    """Unbuffered modules, registered ones (LRDIMM among them), or both."""
    memory_channels: Count
    """Memory channels of one processor, at most."""
    modules_per_channel: Count | None = None
    memory_max_gib: Count | None = None
    """Largest capacity of one processor's memory, in GiB."""
    two_modules_mt_s: Count | None = None
    """Supported MT/s of a channel with two modules, where it is less than with one."""
    sources: tuple[str, ...]

    @property
    def registered(self) -> bool | None:
        """True for registered modules only, False for unbuffered ones only, None for either."""
        return None if len(self.module_kinds) > 1 else self.module_kinds[0] == "RDIMM"


class Chipset(_Strict):
    """Boards that are named by their chipset alone."""

    names: tuple[str, ...]
    socket: str
    memory_channels: Count | None = None
    """Memory channels of its boards, where fewer than the platform's."""
    source: str


class LargestModule(_Strict):
    """The largest memory module that is made of a kind."""

    memory_type: str
    kind: ModuleKind
    largest_gib: Count
    source: str


class _Source(_Strict):
    title: str
    url: Annotated[str, Field(pattern=r"^https?://")]
    date: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")]


class _File(_Strict):
    schema_: Annotated[Literal[1], Field(alias="schema")]
    sources: Mapping[str, _Source]
    platform: tuple[Platform, ...]
    chipset: tuple[Chipset, ...]
    module: tuple[LargestModule, ...]


@cache
def platforms_file() -> _File:
    """Return the tables of catalog/platforms.toml.  Raises DataError where a source is missing."""
    content = read_toml(PLATFORMS_FILE, _File, PLATFORMS_FILE.name)
    cited = {source for platform in content.platform for source in platform.sources}
    cited |= {chipset.source for chipset in content.chipset}
    cited |= {module.source for module in content.module}
    if missing := sorted(cited - set(content.sources)):
        raise DataError(f"{PLATFORMS_FILE.name}: unknown source {missing[0]!r}")
    return content


def platform_of_socket(socket: str) -> Platform | None:
    """Return the platform of a socket; None where the catalog has none."""
    rows = platforms_file().platform
    return next((row for row in rows if row.socket.casefold() == socket.casefold()), None)


def platform_of(build: Build) -> Platform | None:
    """Return the platform of a build's board, or of its processor where no board is named."""
    processor = next(iter(build.pieces(Processor)), None)
    part = build.board or processor
    return None if part is None else platform_of_socket(part.socket)


def chipset_fields(name: str) -> dict[str, object] | None:
    """Return the fields of a board that its chipset decides; None for an unknown chipset."""
    chipset_name = name.strip().upper()
    chipset = next((row for row in platforms_file().chipset if chipset_name in row.names), None)
    if chipset is None:
        return None
    platform = platform_of_socket(chipset.socket)
    assert platform is not None  # platforms_file's sockets are checked by a test
    board: dict[str, object] = {
        "socket": chipset.socket,
        "memory_channels": chipset.memory_channels or platform.memory_channels,
        "registered": platform.registered,
    }
    if len(platform.memory_types) == 1:
        board["memory_type"] = platform.memory_types[0]
    return board


def largest_module_gib(memory_type: str, registered: bool) -> int | None:
    """Return the capacity in GiB of the largest module of a kind; None where it is not known."""
    kind = "RDIMM" if registered else "UDIMM"
    rows = platforms_file().module
    return next(
        (row.largest_gib for row in rows if (row.memory_type, row.kind) == (memory_type, kind)),
        None,
    )
