"""Which driver, CUDA, torch and extensions go together on a machine, and what stands between.

`choose` takes the newest torch of `catalog.cuda`'s table whose wheel has machine code for every
card and whose CUDA the driver can run.  A driver that is there and will do is left as it is: a
newer torch is then named in a finding, not forced.  Findings are `record.Finding`: error where no
script can help, warning where the script changes or needs something, info for what is left out.

What is wrong with the machine otherwise is `doctor`'s.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from trainrig.catalog.cuda import (
    CardNeeds,
    Cuda,
    CudaTable,
    LinuxSystem,
    TorchSet,
    cuda_table,
    newest,
    parts_of,
)
from trainrig.catalog.lookup import chip_by_pci_id, chips_named
from trainrig.errors import UsageError
from trainrig.machine.snapshot import Snapshot, value_or
from trainrig.record import Finding, Severity, by_severity
from trainrig.units import one_line

Route = Literal["toolkit", "driver", "container"]
ROUTES: dict[Route, str] = {
    "toolkit": "driver, CUDA toolkit and pip: extensions are built here",
    "driver": "driver and pip (or conda): torch brings its CUDA, nothing is compiled for the GPU",
    "container": "driver and a container image that holds all the rest",
}
"""Installation routes and their purposes."""
INSTALLED_BRANCH = 580
"""Driver branch that is installed: CUDA 13, and the last that runs Maxwell, Pascal and Volta."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallTarget:
    """The machine that the script is for, as far as versions depend on it."""

    system: LinuxSystem
    gpus: tuple[str, ...]
    """Names of its NVIDIA GPUs, each once."""
    capabilities: tuple[str, ...]
    """Compute capabilities of the GPUs."""
    driver: str | None
    """Installed driver version; None: none, or unknown."""
    is_here: bool
    """True for this machine, False for one that was described."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallChoice:
    """Versions that fit a machine."""

    target: InstallTarget
    route: Route
    torch: TorchSet
    cuda: Cuda
    driver: str
    """Oldest driver that runs this torch on these cards."""
    installs_driver: bool
    """True where the driver has to be installed or replaced."""
    modules: Literal["open", "proprietary"]
    extensions: tuple[str, ...]
    """Names of the extensions that are installed."""
    findings: tuple[Finding, ...]

    @property
    def is_possible(self) -> bool:
        """Return whether a script can bring the machine there."""
        return all(finding.severity != "error" for finding in self.findings)


def target_here(snapshot: Snapshot, system: str | None, release: str | None) -> InstallTarget:
    """Return this machine as a target.

    Raises UsageError where the system is none of the table's and ``system`` names none.
    """
    table = cuda_table()
    chips = [chip_by_pci_id(gpu.pci_id) for gpu in value_or(snapshot.pci_gpus, ())]
    nvidia_chips = [chip for chip in chips if chip is not None and chip.vendor == "NVIDIA"]
    described = [gpu for gpu in value_or(snapshot.gpus, ()) if gpu.vendor == "nvidia"]
    capabilities = [chip.compute.capability for chip in nvidia_chips if chip.compute.capability]
    capabilities += [value_or(gpu.compute_capability, "") for gpu in described]
    names = [chip.name for chip in nvidia_chips] or [value_or(gpu.name, "GPU") for gpu in described]
    return InstallTarget(
        system=table.system_named(system) if system else system_of(release or ""),
        gpus=tuple(dict.fromkeys(map(one_line, names))),
        capabilities=tuple(
            sorted({capability for capability in capabilities if capability}, key=parts_of)
        ),
        driver=value_or(snapshot.software.nvidia_driver, None),
        is_here=True,
    )


def target_named(names: Iterable[str], system: str, driver: str | None) -> InstallTarget:
    """Return a machine with these chips of the catalog.  Raises UsageError."""
    chips = [chip for name in names for chip in chips_named(name)]
    for chip in chips:
        if chip.vendor != "NVIDIA" or chip.compute.capability is None:
            hint = "the table of versions is for NVIDIA GPUs"
            raise UsageError(f"{chip.name} is not run by CUDA", hint)
    if driver is not None and not re.fullmatch(r"\d{1,4}(\.\d{1,4}){1,2}", driver):
        raise UsageError(f"--driver {driver!r} is no version", "as nvidia-smi shows it: 550.54.14")
    capabilities = {chip.compute.capability for chip in chips if chip.compute.capability}
    return InstallTarget(
        system=cuda_table().system_named(system),
        gpus=tuple(dict.fromkeys(chip.name for chip in chips)),
        capabilities=tuple(sorted(capabilities, key=parts_of)),
        driver=driver,
        is_here=False,
    )


def system_of(release: str) -> LinuxSystem:
    """Return the table's system that the text of /etc/os-release names.  Raises UsageError."""
    table = cuda_table()
    pairs = (line.partition("=") for line in release.splitlines())
    release_values = {key.strip(): value.strip().strip("\"'") for key, _, value in pairs}
    for system in table.system:
        name, version = system.release
        if release_values.get(
            "ID"
        ) == name and f"{release_values.get('VERSION_ID', '')}.".startswith(f"{version}."):
            return system
    title = release_values.get("PRETTY_NAME") or "this system"
    system_names = ", ".join(system.name for system in table.system)
    raise UsageError(
        f"{title} is not in the table of systems", f"name the nearest: --os {system_names}"
    )


def choose(target: InstallTarget, route: Route, torch: str | None = None) -> InstallChoice:
    """Return the versions for a machine; ``torch`` names a version.

    Raises UsageError for a version that is not in the table.  Where nothing fits, the selection
    has a finding of severity error and the nearest versions.
    """
    table = cuda_table()
    needs = [need for capability in target.capabilities if (need := table.card_needs(capability))]
    if torch is not None:
        best = table.torch_set(torch)
    else:
        best = next(_fitting(table, target, needs), None) or _nearest(table, target)
    cuda = table.cuda_of(best.cuda)
    oldest_driver = newest([cuda.driver, *(need.driver for need in needs)])
    is_old = target.driver is None or parts_of(target.driver) < parts_of(oldest_driver)
    is_open = all(need.modules == "open" for need in needs)  # mixed cards: the proprietary ones
    extensions = tuple(
        extension.name
        for extension in table.extension
        if _can_build(target, extension.capability)
        and (route != "driver" or not extension.needs_nvcc)
    )
    chosen = InstallChoice(
        target=target,
        route=route,
        torch=best,
        cuda=cuda,
        driver=oldest_driver,
        installs_driver=is_old,
        modules="open" if is_open else "proprietary",
        extensions=extensions,
        findings=(),
    )
    return replace(chosen, findings=by_severity(_findings(table, chosen, needs)))


def _fitting(table: CudaTable, target: InstallTarget, needs: list[CardNeeds]) -> Iterator[TorchSet]:
    """Yield the torch sets that run on the cards, those that the driver runs first."""
    fitting_sets = [
        torch_set for torch_set in table.torch if all(map(torch_set.runs_on, target.capabilities))
    ]
    card_drivers = {need.driver for need in needs}
    if target.driver is not None:
        for torch_set in fitting_sets:
            needed_driver = newest([table.cuda_of(torch_set.cuda).driver, *card_drivers])
            if parts_of(target.driver) >= parts_of(needed_driver):
                yield torch_set
    yield from fitting_sets


def _nearest(table: CudaTable, target: InstallTarget) -> TorchSet:
    """Return the set that runs on most of the cards; the newest of several."""
    return max(table.torch, key=lambda torch_set: sum(map(torch_set.runs_on, target.capabilities)))


def _can_build(target: InstallTarget, capability: str) -> bool:
    return all(
        parts_of(device_capability) >= parts_of(capability)
        for device_capability in target.capabilities
    )


def _findings(table: CudaTable, chosen: InstallChoice, needs: list[CardNeeds]) -> Iterator[Finding]:
    yield from _card_findings(table, chosen, needs)
    yield from _driver_findings(chosen)
    yield from _build_findings(table, chosen)


def _finding(id_: str, severity: Severity, evidence: str, fix: str) -> Finding:
    return Finding(id=f"env-{id_}", severity=severity, evidence=evidence, fix=fix)


def _card_findings(
    table: CudaTable, chosen: InstallChoice, needs: list[CardNeeds]
) -> Iterator[Finding]:
    target, torch = chosen.target, chosen.torch
    if not target.capabilities:
        where = "this machine has no NVIDIA GPU that the catalog knows"
        fix = "name the card: trainrig env --on RTX-4090"
        yield _finding("no-gpu", "warning", f"{where}: the newest versions are taken", fix)
    for capability in target.capabilities:
        if torch.runs_on(capability):
            continue
        built = ", ".join(torch.capabilities)
        evidence = f"compute capability {capability}: torch {torch.version} is built for {built}"
        torch_versions = [
            torch_set.version for torch_set in table.torch if torch_set.runs_on(capability)
        ]
        fix = (
            f"--torch {torch_versions[0]}"
            if torch_versions
            else "build torch from source, or use a newer card"
        )
        if torch_versions and len(target.capabilities) > 1:
            fix = "cards of these generations share no wheel: an environment for each of them"
        yield _finding("no-kernels-for-card", "error", evidence, fix)
    for need in needs:
        branch = parts_of(target.driver)[0] if target.driver else INSTALLED_BRANCH
        if need.last_branch is not None and branch > need.last_branch:
            driver_text = f"driver {target.driver or f'branch {branch}'}"
            evidence = (
                f"{driver_text} no longer knows cards that branch {need.last_branch} still did"
            )
            fix = f"install branch {need.last_branch}, the last that does"
            yield _finding("driver-too-new-for-card", "error", evidence, fix)


def _driver_findings(chosen: InstallChoice) -> Iterator[Finding]:
    target, cuda = chosen.target, chosen.cuda
    why = f"torch {chosen.torch.version} (CUDA {cuda.version})"
    if target.driver is not None and chosen.installs_driver:
        evidence = f"driver {target.driver} is older than {chosen.driver}, which {why} needs"
        fix = f"the script installs branch {INSTALLED_BRANCH}; then reboot"
        yield _finding("driver-too-old", "warning", evidence, fix)
    elif target.driver is not None:
        newer = [torch_set for torch_set in cuda_table().torch if _is_newer(torch_set, chosen)]
        if newer:
            needed_driver = cuda_table().cuda_of(newer[0].cuda).driver
            evidence = f"driver {target.driver} will do for torch {chosen.torch.version} and stays"
            fix = (
                f"for torch {newer[0].version} (driver {needed_driver}): --torch {newer[0].version}"
            )
            yield _finding("newer-torch", "info", evidence, fix)
        if chosen.route == "toolkit" and parts_of(target.driver) < parts_of(cuda.own_driver):
            evidence = f"driver {target.driver} is older than the toolkit's own, {cuda.own_driver}"
            fix = "programs run; what is compiled to PTX alone does not: name the capabilities"
            yield _finding("driver-below-toolkit", "info", evidence, fix)
    branch = chosen.target.system.branch
    needed = parts_of(chosen.driver)[0]
    if chosen.installs_driver and branch < needed:
        has = f"packages driver branch {branch} at most" if branch else "packages no NVIDIA driver"
        evidence = f"{target.system.title} {has}; {why} needs {chosen.driver}"
        fix = "--nvidia-repo URL, or set NVIDIA's package repository up before"
        yield _finding("needs-nvidia-repository", "warning", evidence, fix)


def _is_newer(torch_set: TorchSet, chosen: InstallChoice) -> bool:
    return parts_of(torch_set.version) > parts_of(chosen.torch.version) and all(
        map(torch_set.runs_on, chosen.target.capabilities)
    )


def _build_findings(table: CudaTable, chosen: InstallChoice) -> Iterator[Finding]:
    target = chosen.target
    if chosen.route == "toolkit":
        if target.system.gcc > chosen.cuda.gcc:
            evidence = (
                f"{target.system.title} compiles with gcc {target.system.gcc}; "
                f"nvcc {chosen.cuda.version} takes {chosen.cuda.gcc} at most"
            )
            fix = f"the script installs gcc {chosen.cuda.gcc} and sets NVCC_CCBIN"
            yield _finding("gcc-too-new", "warning", evidence, fix)
        evidence = f"no distribution packages CUDA {chosen.cuda.version}"
        fix = "--nvidia-repo URL, or set NVIDIA's package repository up before"
        yield _finding("toolkit-needs-nvidia-repository", "info", evidence, fix)
    for extension in table.extension:
        if extension.name in chosen.extensions:
            continue
        if not _can_build(target, extension.capability):
            lowest = target.capabilities[0]
            evidence = f"{extension.name} needs capability {extension.capability}; here is {lowest}"
            fix = "torch's own attention and optimizers take its place"
        else:
            evidence = f"{extension.name} is compiled for the GPU, and route driver has no nvcc"
            fix = "--route toolkit or --route container"
        yield _finding("extension-left-out", "info", evidence, fix)
    untested = [name for name in chosen.torch.untested if name in chosen.extensions]
    if untested:
        evidence = f"not tried together with torch {chosen.torch.version}: {', '.join(untested)}"
        fix = "the script's last step imports each and says which fails"
        yield _finding("untested-together", "info", evidence, fix)
