"""Builds of torch's wheel: for which GPUs, which torch, how large, and where pip finds them.

A build's name is the part of a version behind the plus: ``cu126`` of ``2.13.0+cu126``.
`install.torch_wheel` chooses among the rows of torch_builds.toml.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict

from trainrig.catalog.cuda import DocumentRead, Version, cuda_table, newest, parts_of
from trainrig.errors import DataError
from trainrig.record import read_by, read_toml

PATH = Path(__file__).parent / "torch_builds.toml"
_CONFIG = ConfigDict(extra="forbid")

GpuVendor = Literal["nvidia", "amd", "intel"]


@read_by(_CONFIG)
class TorchBuild:
    """A wheel of one version of torch for one kind of GPU, or for processors alone."""

    name: str
    torch: Version
    download_gb: float
    """Size of the wheel and of the packages that it requires, in GB."""
    sources: tuple[str, ...]
    vendor: GpuVendor | None = None
    """Maker of the GPUs that it runs on; None: it uses no GPU."""
    cuda: Version | None = None
    capabilities: tuple[Version, ...] = ()
    """Compute capabilities that the wheel has machine code for."""
    is_default: bool = False
    """True if an index that has one wheel of this version, without a plus, has this build."""

    @property
    def version(self) -> str:
        """torch's version with the build's name: ``2.13.0+cu126``."""
        return f"{self.torch}+{self.name}"

    def runs_on(self, capability: str) -> bool:
        """Return whether machine code for a compute capability is in the wheel."""
        major, minor = parts_of(capability)[:2]
        compiled_for = [parts_of(built) for built in self.capabilities]
        return any(built[0] == major and built[1] <= minor for built in compiled_for)

    def least_driver(self, capabilities: tuple[str, ...]) -> str | None:
        """Return the oldest NVIDIA driver that runs it on GPUs of these compute capabilities."""
        if self.cuda is None:
            return None
        table = cuda_table()
        cards = [needs for one in capabilities if (needs := table.card_needs(one)) is not None]
        return newest([table.cuda_of(self.cuda).driver, *(needs.driver for needs in cards)])


@read_by(_CONFIG)
class TorchBuildFile:
    """torch_builds.toml as a whole."""

    schema: Literal[1]
    sources: dict[str, DocumentRead]
    build: tuple[TorchBuild, ...]


@cache
def torch_builds(path: Path = PATH) -> tuple[TorchBuild, ...]:
    """Return the builds, newest first.  Raises DataError for a source that is not listed."""
    table = read_toml(path, TorchBuildFile, path.name)
    named = {name for build in table.build for name in build.sources}
    if missing := named - table.sources.keys():
        raise DataError(f"{path.name}: no source is called {min(missing)!r}")
    return table.build
