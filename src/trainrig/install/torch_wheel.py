"""Which wheel of torch `make` installs: by the GPUs and the driver that are here.

    python -m trainrig.install.torch_wheel REQUEST CONSTRAINTS

REQUEST is ``auto``, ``cpu``, the name of another build (``cu126``) or a version (``2.9.1``).  pip's
constraints are printed: CONSTRAINTS with the torch that was chosen, and the index that has it.  On
stderr stands what is installed, why, and how large it is, before anything is downloaded.

pip's own settings say where packages come from.  An index of builds, in which each has a folder of
its name, is named by TORCH_INDEX: PyTorch's own, or a mirror of it.  Exit code 3: there is no such
torch.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainrig.catalog.cuda import parts_of
from trainrig.catalog.lookup import chip_by_pci_id
from trainrig.catalog.torch_builds import GpuVendor, TorchBuild, torch_builds
from trainrig.errors import EXIT_INCOMPLETE
from trainrig.machine.pci import AMD, INTEL, NVIDIA
from trainrig.machine.probes import inspect
from trainrig.machine.snapshot import Snapshot, value_or
from trainrig.process.programs import run_program
from trainrig.process.python_env import LEAST_TORCH

INDEX_VARIABLE = "TORCH_INDEX"
PIP_TIMEOUT_S = 20
"""Seconds that pip waits for an index to answer."""
_NAME_INDEX = "name an index that has a folder per build: TORCH_INDEX=URL"


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelHost:
    """The machine, as far as the choice of a wheel depends on it."""

    vendor: GpuVendor | None = None
    """Maker of its GPUs; None: it has none that torch runs on."""
    gpu: str = ""
    capabilities: tuple[str, ...] = ()
    driver: str | None = None
    """NVIDIA's driver; None: not installed, or unknown."""
    has_builds: bool = True
    """True if the table is for this operating system and processor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelChoice:
    """What pip is asked for, and the reason."""

    requirement: str
    """``torch==2.13.0+cu126``."""
    index: str | None
    """Index that has it besides pip's own."""
    lines: tuple[str, ...]
    """What the user reads."""


ListVersions = Callable[[str | None], Sequence[str]]
"""Versions of torch that pip can install with a further index, or without one."""


class NoSuchTorch(Exception):
    """The request can't be met; the text says why."""


def host_of(snapshot: Snapshot) -> WheelHost:
    """Describe the machine of a snapshot: its first maker of GPUs, NVIDIA before others."""
    gpus = value_or(snapshot.gpus, ())
    on_bus = value_or(snapshot.pci_gpus, ())
    has_builds = platform.system() == "Linux" and platform.machine() in ("x86_64", "AMD64")
    makers: dict[GpuVendor, str] = {"nvidia": NVIDIA, "amd": AMD, "intel": INTEL}
    for vendor, pci_vendor in makers.items():
        described = [gpu for gpu in gpus if gpu.vendor == vendor]
        ids = [gpu.pci_id for gpu in on_bus if gpu.pci_id.startswith(pci_vendor)]
        listed = [chip for pci_id in ids if (chip := chip_by_pci_id(pci_id)) is not None]
        if not described and not listed:
            continue
        capabilities = {chip.compute.capability or "" for chip in listed}
        capabilities |= {value_or(gpu.compute_capability, "") for gpu in described}
        is_cuda = vendor == "nvidia"
        return WheelHost(
            vendor=vendor,
            gpu=listed[0].name if listed else value_or(described[0].name, f"{vendor} GPU"),
            capabilities=tuple(sorted(capabilities - {""}, key=parts_of)) if is_cuda else (),
            driver=value_or(snapshot.software.nvidia_driver, None) if is_cuda else None,
            has_builds=has_builds,
        )
    return WheelHost(has_builds=has_builds)


def obstacle(build: TorchBuild, host: WheelHost) -> str | None:
    """Return why a machine's GPUs can't run a build for their maker; None: they can."""
    lacking = [one for one in host.capabilities if not build.runs_on(one)]
    if lacking and build.capabilities:
        return f"it has no machine code for compute capability {lacking[0]}"
    least = build.least_driver(host.capabilities)
    if least is None:
        return None
    if host.driver is None:
        return f"it needs NVIDIA's driver {least} or newer, and none answers"
    if parts_of(host.driver) < parts_of(least):
        return f"it needs driver {least} or newer, and here is {host.driver}"
    return None


def choose_wheel(
    host: WheelHost, request: str, versions: ListVersions, index: str | None = None
) -> WheelChoice:
    """Choose torch's wheel.

    Args:
        host: The machine.
        request: ``auto``, a build's name, or a version of torch.
        versions: Asks pip which versions an index has.
        index: The address that the builds' folders lie in, if one is named.

    Raises:
        NoSuchTorch: The request names no build, or a torch that is too old.
    """
    wanted, version = _requested(request)
    if not host.has_builds and wanted is None:
        pinned = version or torch_builds()[0].torch
        line = f"torch {pinned}: pip's own build; the table of builds is for Linux on x86_64"
        return WheelChoice(requirement=f"torch=={pinned}", index=None, lines=(line,))
    lines = list(_gpu_lines(host)) if wanted is None else []
    for build in [wanted] if wanted is not None else _candidates(host):
        torch = version or build.torch
        full, folder = f"{torch}+{build.name}", index and f"{index.rstrip('/')}/{build.name}"
        sizes = f"about {build.download_gb:g} GB to download"
        for place in dict.fromkeys([None, folder]):
            listed = versions(place)
            if full in listed or (place is None and build.is_default and torch in listed):
                # == prefers a wheel with a plus, which may be another build
                pin = f"torch=={full}" if full in listed else f"torch==={torch}"
                lines.append(f"torch {full} {_reason(build, host, request)}; {sizes}")
                return WheelChoice(requirement=pin, index=place, lines=tuple(lines))
        lines.append(f"torch {full} is in no index that pip reaches; {_NAME_INDEX}")
    pinned = version or torch_builds()[0].torch
    what = "whatever build pip's own index has is installed instead"
    lines.append(f"torch {pinned}: {what}; with CUDA's libraries several GB")
    if host.vendor is not None and wanted is None:
        lines.append(f"if it has no kernels for {host.gpu}, the processor is measured")
    return WheelChoice(requirement=f"torch=={pinned}", index=None, lines=tuple(lines))


def _requested(request: str) -> tuple[TorchBuild | None, str | None]:
    """Return the build that a request names, or the version, or neither for ``auto``."""
    if request == "auto":
        return None, None
    for build in torch_builds():
        if build.name == request:
            return build, None
    if not re.fullmatch(r"\d+\.\d+(\.\d+)?", request):
        names = ", ".join(build.name for build in torch_builds())
        raise NoSuchTorch(
            f"TORCH={request} is no torch\n  hint: existing, a version as 2.9.1, or one of {names}"
        )
    if parts_of(request) < parts_of(LEAST_TORCH):
        raise NoSuchTorch(
            f"torch {request} is older than {LEAST_TORCH}, which trainrig needs\n"
            f"  hint: TORCH={LEAST_TORCH}.0 or newer"
        )
    return None, request if request.count(".") == 2 else f"{request}.0"


def _candidates(host: WheelHost) -> Iterator[TorchBuild]:
    """Yield the builds that run here: those that use the GPUs, then the processors' own."""
    for vendor in dict.fromkeys([host.vendor, None]):
        for build in torch_builds():
            if build.vendor == vendor and (vendor is None or obstacle(build, host) is None):
                yield build


def _gpu_lines(host: WheelHost) -> Iterator[str]:
    """Say why no build runs on GPUs that are here, where none does."""
    if host.vendor is None:
        return
    builds = [build for build in torch_builds() if build.vendor == host.vendor]
    obstacles = [obstacle(build, host) for build in builds]
    if None in obstacles:
        return
    shown = f"{host.gpu}: no build of torch {LEAST_TORCH} or newer runs on it"
    easiest = min(range(len(builds)), key=lambda at: parts_of(builds[at].least_driver(()) or "0"))
    yield f"{shown}: of {builds[easiest].version}, {obstacles[easiest]}"
    yield "the processor is measured, the GPU only inspected"


def _reason(build: TorchBuild, host: WheelHost, request: str) -> str:
    """Say why a build is taken."""
    if request not in ("auto", build.torch) and not build.vendor:
        return "as TORCH= asks for it"
    if build.vendor is None:
        return "for the processor" + ("" if host.vendor else ": no GPU that torch runs on is here")
    if build.vendor != host.vendor:
        return "as TORCH= asks for it"
    driver = f", driver {host.driver}" if host.driver else ""
    capability = f", compute capability {host.capabilities[0]}" if host.capabilities else ""
    return f"for {host.gpu}{capability}{driver}"


def pip_versions(index: str | None) -> Sequence[str]:
    """Ask pip for the versions of torch in its indexes; none where they can't be reached."""
    command = [sys.executable, "-m", "pip", "--no-input", "index", "versions", "torch"]
    command += ["--retries", "0", "--timeout", str(PIP_TIMEOUT_S)]
    command += ["--extra-index-url", index] if index else []
    done = run_program(command, 3 * PIP_TIMEOUT_S)
    listed = re.search(r"^Available versions: (.*)$", done.stdout.decode(), re.MULTILINE)
    return listed[1].split(", ") if listed else ()


def constraints(text: str, choice: WheelChoice) -> str:
    """Return pip's constraints with the torch of a choice, and its index."""
    kept = [line for line in text.splitlines() if not re.match(r"torch==", line)]
    index = [f"--extra-index-url {choice.index}"] if choice.index else []
    return "\n".join([*index, *kept, choice.requirement]) + "\n"


def main(request: str, path: str) -> int:
    """Print the constraints for this machine; say what was chosen on stderr."""
    answers: dict[str | None, Sequence[str]] = {}

    def versions(index: str | None) -> Sequence[str]:
        if index not in answers:
            answers[index] = pip_versions(index)
        return answers[index]

    try:
        index = os.environ.get(INDEX_VARIABLE) or None
        choice = choose_wheel(host_of(inspect()), request, versions, index)
    except NoSuchTorch as error:
        sys.stderr.write(f"trainrig: {error}\n")
        return EXIT_INCOMPLETE
    sys.stderr.writelines(f"{line}\n" for line in choice.lines)
    sys.stdout.write(constraints(Path(path).read_text(), choice))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
