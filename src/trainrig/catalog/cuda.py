"""Versions that go together on NVIDIA GPUs: CUDA, driver, gcc, torch and what is built on torch.

`cuda_table` reads cuda.toml, in which each row names its sources.  A driver runs every CUDA of its
own major version and older ones (minor-version compatibility), so `Cuda.driver` is the least of the
major version.  Machine code for one compute capability runs on later minor numbers of the same
major one: an RTX 4090 (8.9) runs what is built for 8.6.

Not answered here: what is installed (`machine`), and what is wrong with it (`doctor`).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, StringConstraints

from trainrig.errors import DataError, unknown
from trainrig.record import read_by, read_toml

PATH = Path(__file__).parent / "cuda.toml"

Version = Annotated[str, StringConstraints(pattern=r"^\d+(\.\d+)*$")]
_CONFIG = ConfigDict(extra="forbid")


@read_by(_CONFIG)
class Cuda:
    """One version of the CUDA toolkit."""

    version: Version
    driver: Version
    """The oldest driver that runs programs built with it."""
    own_driver: Version
    """The driver that the toolkit is released with."""
    gcc: int
    """The newest major version of gcc that nvcc takes."""
    image: str
    """Container image with the compiler."""
    sources: tuple[str, ...]


@read_by(_CONFIG)
class OlderCuda:
    """A toolkit that nothing is chosen from and that machines still have."""

    version: Version
    """First CUDA version of the row, which holds until the next row's."""
    gcc: int
    """The newest major version of gcc that nvcc takes."""
    sources: tuple[str, ...]


@read_by(_CONFIG)
class TorchSet:
    """A version of torch, the CUDA of its default wheel, and what goes with it."""

    version: Version
    cuda: Version
    capabilities: tuple[Version, ...]
    """Compute capabilities that the wheel has machine code for."""
    least_python: Version
    deepspeed: Version
    megatron_core: Version
    flash_attn: Version
    apex: Version
    """Tag of apex' repository: no package index has it."""
    transformers: Version
    untested: tuple[str, ...]
    """Names among the above that no test of this project has run together with this torch."""
    sources: tuple[str, ...]

    def runs_on(self, capability: str) -> bool:
        """Return whether the wheel has machine code for a compute capability (``8.9``)."""
        major, minor = parts_of(capability)[:2]
        built = [parts_of(capability) for capability in self.capabilities]
        return any(version[0] == major and version[1] <= minor for version in built)


@read_by(_CONFIG)
class CardNeeds:
    """Driver and CUDA that a generation of cards needs."""

    capability: Version
    driver: Version
    modules: Literal["open", "proprietary"]
    """Flavour of NVIDIA's kernel modules: open or proprietary."""
    last_branch: int | None = None
    """Last driver branch that supports the generation."""
    first_cuda: Version | None = None
    """First CUDA that compiles for the generation; None: every one in use."""
    dropped_in: Version | None = None
    """First CUDA that no longer compiles for the generation."""
    sources: tuple[str, ...]


@read_by(_CONFIG)
class ExtensionNeeds:
    """Requirements of a package that is built on torch."""

    name: str
    module: str
    """Python module that a program imports of it."""
    capability: Version
    needs_nvcc: bool
    sources: tuple[str, ...]


@read_by(_CONFIG)
class LinuxSystem:
    """A distribution, and what it packages itself."""

    name: str
    title: str
    release: tuple[str, str]
    """ID and VERSION_ID of /etc/os-release; a VERSION_ID may go on after a dot."""
    packager: Literal["apt", "dnf"]
    branch: int
    """Driver branch that is taken of those that the distribution packages; 0: it packages none."""
    gcc: int
    python: Version
    driver_open: tuple[str, ...]
    driver_proprietary: tuple[str, ...]
    sources: tuple[str, ...]


@read_by(_CONFIG)
class DocumentRead:
    """A document that rows were read from."""

    title: str
    date: str
    url: str | None = None


@read_by(_CONFIG)
class CudaTable:
    """All rows of cuda.toml."""

    schema: Literal[1]
    sources: dict[str, DocumentRead]
    cuda: tuple[Cuda, ...]
    older_cuda: tuple[OlderCuda, ...]
    torch: tuple[TorchSet, ...]
    card: tuple[CardNeeds, ...]
    extension: tuple[ExtensionNeeds, ...]
    system: tuple[LinuxSystem, ...]

    def cuda_of(self, version: str) -> Cuda:
        """Return the CUDA toolkit ``12.8``.  Raises UsageError for one that is not listed."""
        for toolkit in self.cuda:
            if toolkit.version == version:
                return toolkit
        raise unknown("CUDA version", version, [toolkit.version for toolkit in self.cuda])

    def newest_gcc(self, toolkit: str) -> int | None:
        """Return the newest major version of gcc that nvcc takes; None for one beyond the table."""
        listed = {toolkit.version: toolkit.gcc for toolkit in self.cuda}
        listed |= {toolkit.version: toolkit.gcc for toolkit in self.older_cuda}
        rows = sorted((parts_of(version), gcc) for version, gcc in listed.items())
        if parts_of(toolkit)[:1] > rows[-1][0][:1]:
            return None
        gcc_versions = [gcc for version, gcc in rows if version <= parts_of(toolkit)]
        return gcc_versions[-1] if gcc_versions else None

    def wheel_of(self, torch: str) -> TorchSet | None:
        """Return the torch set of a wheel's name, ``2.10.0+cu128``; None for other builds."""
        names = {
            f"{torch_set.version}+cu{torch_set.cuda.replace('.', '')}": torch_set
            for torch_set in self.torch
        }
        return names.get(torch)

    def torch_set(self, version: str) -> TorchSet:
        """Return the torch that a version or the beginning of one means.  Raises UsageError."""
        for torch_set in self.torch:
            if f"{torch_set.version}.".startswith(f"{version.strip()}."):
                return torch_set
        raise unknown("torch version", version, [torch_set.version for torch_set in self.torch])

    def system_named(self, name: str) -> LinuxSystem:
        """Return the system ``ubuntu24``.  Raises UsageError."""
        for system in self.system:
            if system.name == name:
                return system
        raise unknown("system", name, [system.name for system in self.system])

    def card_needs(self, capability: str) -> CardNeeds | None:
        """Return the needs of a card by its compute capability; None below all rows."""
        rows = [row for row in self.card if parts_of(row.capability) <= parts_of(capability)]
        return max(rows, key=lambda row: parts_of(row.capability), default=None)


def parts_of(version: str) -> tuple[int, ...]:
    """Return a version as numbers, ``(580, 65, 6)``, so that versions compare."""
    return tuple(int(part) for part in version.split(".") if part.isdecimal())


def newest(versions: Iterable[str]) -> str:
    """Return the highest of some versions."""
    return max(versions, key=parts_of)


@cache
def cuda_table(path: Path = PATH) -> CudaTable:
    """Return the table, checked: each row names sources that are listed.  Raises DataError."""
    table = read_toml(path, CudaTable, path.name)
    named = [
        *(row.sources for row in table.cuda),
        *(row.sources for row in table.older_cuda),
        *(row.sources for row in table.torch),
        *(row.sources for row in table.card),
        *(row.sources for row in table.extension),
        *(row.sources for row in table.system),
    ]
    if missing := {name for names in named for name in names} - table.sources.keys():
        raise DataError(f"{path.name}: no source is called {min(missing)!r}")
    return table
