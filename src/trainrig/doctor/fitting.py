"""Does the software fit the machine: torch, CUDA, compilers, the route of installation, settings.

torch is not run: its versions are read from its files.  Which CUDA knows which architecture and
which compiler, and which cards a wheel has kernels for, stands in `catalog.cuda`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from trainrig.catalog.cuda import cuda_table, parts_of
from trainrig.doctor.check import (
    AMD_ID,
    ENVIRONMENT,
    NO_GPU,
    NVIDIA_ID,
    HealthCheck,
    NotApplicable,
    device_name,
    devices,
    finding,
    gpus_of,
    in_container,
    needs_gpus,
    numbers,
    version_of,
)
from trainrig.machine.health import Health, NetworkPort
from trainrig.machine.snapshot import Gpu, Missing, Snapshot, value_or
from trainrig.record import Finding
from trainrig.units import format_memory

_LEAST_SHM_BYTES = 2**30
_LEAST_MEMLOCK_BYTES = 2**26
_LEAST_FILES = 1024
_ON = ("1", "true", "yes", "on")


def _torch_build(snapshot: Snapshot) -> Iterator[Finding]:
    software = snapshot.software
    if isinstance(software.torch, Missing):
        fix = "make setup, or: pip install torch"
        yield finding("torch-missing", "warning", software.torch.reason, fix)
        return
    nvidia = _first_device_of(snapshot, NVIDIA_ID)
    amd = _first_device_of(snapshot, AMD_ID)
    # One torch is built for one of the two: with cards of both, it fits those that it is for.
    is_for_nvidia = isinstance(software.torch_cuda, str) and bool(nvidia)
    is_for_amd = isinstance(software.torch_hip, str) and bool(amd)
    if nvidia and software.torch_cuda is None and not is_for_amd:
        evidence = f"torch {software.torch} is built without CUDA; here is {nvidia}"
        fix = "pip install --force-reinstall torch from an index with CUDA builds (pytorch.org)"
        yield finding("gpu-not-usable-by-torch", "error", evidence, fix)
    if amd and software.torch_hip is None and not is_for_nvidia:
        evidence = f"torch {software.torch} is built without ROCm; here is {amd}"
        fix = "pip install --force-reinstall torch from an index with ROCm builds (pytorch.org)"
        yield finding("gpu-not-usable-by-torch", "error", evidence, fix)
    yield from _cuda_versions(snapshot)


def _first_device_of(snapshot: Snapshot, vendor: str) -> str:
    """Name of the first training device of a vendor, empty where there is none."""
    of_vendor = [device for device in devices(snapshot) if device.pci_id.startswith(vendor)]
    if of_vendor:
        return device_name(of_vendor[0])
    vendors = {NVIDIA_ID: "nvidia", AMD_ID: "amd"}
    listed = [gpu for gpu in gpus_of(snapshot) if gpu.vendor == vendors[vendor]]
    return value_or(listed[0].name, "a GPU") if listed else ""


def _cuda_versions(snapshot: Snapshot) -> Iterator[Finding]:
    """Find a torch whose CUDA the driver or a GPU does not run."""
    built = version_of(snapshot.software.torch_cuda)
    spoken = version_of(snapshot.software.cuda_driver)
    if built is None:
        return
    shown = f"torch {snapshot.software.torch} is built for CUDA {snapshot.software.torch_cuda}"
    if spoken is not None and built[0] > spoken[0]:
        evidence = f"{shown}; the driver speaks CUDA {snapshot.software.cuda_driver} at most"
        fix = f"install a newer NVIDIA driver, or a torch built for CUDA {spoken[0]}"
        yield finding("gpu-not-usable-by-torch", "error", evidence, fix)
    for gpu in gpus_of(snapshot):
        capability = value_or(gpu.compute_capability, "")
        other = _other_torch(snapshot, built, capability) if version_of(capability) else None
        if other is not None:
            capable = f"{value_or(gpu.name, 'GPU')} has compute capability {capability}"
            yield finding("gpu-not-usable-by-torch", "error", f"{shown}; {capable}", other)


def _other_torch(snapshot: Snapshot, built: tuple[int, int], capability: str) -> str | None:
    """Return which torch to install, where this one has no kernels for the GPU."""
    table = cuda_table()
    needs = table.card_needs(capability)
    if needs is not None and needs.first_cuda and built < parts_of(needs.first_cuda):
        return f"install a torch built for CUDA {needs.first_cuda} or newer"
    if needs is not None and needs.dropped_in and built >= parts_of(needs.dropped_in):
        return f"install a torch built for CUDA below {needs.dropped_in}"
    wheel = table.wheel_of(value_or(snapshot.software.torch, ""))
    if wheel is None or snapshot.host.architecture != "x86_64" or wheel.runs_on(capability):
        return None
    others = [torch_set for torch_set in table.torch if torch_set.runs_on(capability)]
    if not others:
        return "build torch from source"
    return f"install torch {others[0].version}, built for CUDA {others[0].cuda}"


def _hidden_gpus(snapshot: Snapshot) -> Iterator[Finding]:
    visible = snapshot.software.environment.get("CUDA_VISIBLE_DEVICES")
    gpus = [gpu for gpu in gpus_of(snapshot) if gpu.vendor == "nvidia"]
    if visible is not None and gpus and visible.strip() in ("", "-1", "NoDevFiles"):
        evidence = f"CUDA_VISIBLE_DEVICES={visible!r} hides {len(gpus)} GPU from torch"
        yield finding("gpu-hidden", "warning", evidence, "unset CUDA_VISIBLE_DEVICES")
    barred = [gpu for gpu in gpus if gpu.mode.compute == "prohibited"]
    if barred:
        evidence = f"{numbers(barred)} is in compute mode prohibited"
        yield finding("gpu-not-usable-by-torch", "error", evidence, "sudo nvidia-smi -c DEFAULT")


# ---- building extensions: toolkit, host compiler, ninja


def _extension_builds(snapshot: Snapshot) -> Iterator[Finding]:
    """Find what stops apex, DeepSpeed's operators or flash-attn from being compiled."""
    software, health = snapshot.software, snapshot.health
    toolkit, built = version_of(software.cuda_toolkit), version_of(software.torch_cuda)
    if toolkit is None:
        return
    if built is not None and toolkit[0] != built[0]:
        evidence = (
            f"nvcc is of CUDA {software.cuda_toolkit}, torch is built for {software.torch_cuda}"
        )
        fix = (
            f"sudo apt install cuda-toolkit-{built[0]}-{built[1]}; "
            f"export CUDA_HOME=/usr/local/cuda-{built[0]}.{built[1]}"
        )
        yield finding("toolkit-differs-from-torch", "warning", evidence, fix)
    if isinstance(health, Missing):
        return
    tools = health.toolchain
    newest = cuda_table().newest_gcc(f"{toolkit[0]}.{toolkit[1]}")
    gcc = tools.gcc.split(".")[0] if isinstance(tools.gcc, str) else ""
    if newest is not None and gcc.isdecimal() and int(gcc) > newest:
        evidence = (
            f"gcc is {tools.gcc}; nvcc of CUDA {software.cuda_toolkit} takes {newest} at most"
        )
        fix = (
            f"sudo apt install gcc-{newest} g++-{newest}; "
            f"export CC=gcc-{newest} CXX=g++-{newest} NVCC_PREPEND_FLAGS='-ccbin g++-{newest}'"
        )
        yield finding("gcc-too-new", "warning", evidence, fix)
    if built is not None and isinstance(tools.ninja, Missing):
        evidence = "ninja is not installed; torch builds extensions with it"
        fix = "python -m pip install ninja"
        yield finding("ninja-missing", "info", evidence, fix)


# ---- routes and containers


def _routes(snapshot: Snapshot) -> dict[str, str]:
    """Return what each of the three ways to install lacks; empty where it is whole."""
    software, health = snapshot.software, snapshot.health
    driver = "" if isinstance(software.nvidia_driver, str) else "no driver"
    torch = isinstance(software.torch_cuda, str)
    toolkit = isinstance(software.cuda_toolkit, str)
    lacks = {
        "toolkit + pip": driver or ("" if toolkit else "no toolkit (nvcc)"),
        "driver + pip or conda": driver or ("" if torch else "no torch built for CUDA"),
    }
    if not isinstance(health, Missing):
        tools = health.toolchain
        engine = "" if isinstance(tools.containers, str) else "no Docker or Podman"
        ctk = "" if isinstance(tools.container_toolkit, str) else "no NVIDIA container toolkit"
        lacks["driver + container"] = driver or engine or ctk
    return lacks


def _routes_note(snapshot: Snapshot) -> str:
    return "; ".join(f"{name}: {lack or 'whole'}" for name, lack in _routes(snapshot).items())


def _route_findings(snapshot: Snapshot) -> Iterator[Finding]:
    health = snapshot.health
    if isinstance(health, Missing) or in_container(snapshot):
        return
    tools = health.toolchain
    if isinstance(tools.containers, str) and isinstance(tools.container_toolkit, Missing):
        evidence = f"containers ({tools.containers}) get no GPU: {tools.container_toolkit.reason}"
        fix = (
            "sudo apt install nvidia-container-toolkit; "
            "sudo nvidia-ctk runtime configure --runtime=docker; sudo systemctl restart docker"
        )
        yield finding("container-toolkit-missing", "info", evidence, fix)


def _process_limits(snapshot: Snapshot) -> Iterator[Finding]:
    """Find what a container's or a shell's limits take away."""
    quota, threads = snapshot.cpu.quota_cpus, snapshot.cpu.usable_threads
    if isinstance(quota, float) and isinstance(threads, int) and quota < threads:
        evidence = f"the control group allows {quota:g} processors; {threads} are visible"
        fix = f"start the container with more (--cpus), or set OMP_NUM_THREADS={max(1, int(quota))}"
        yield finding("cpu-quota", "warning", evidence, fix)
    shm = snapshot.memory.shm_bytes
    if isinstance(shm, int) and shm < _LEAST_SHM_BYTES:
        evidence = f"/dev/shm has {format_memory(shm)}; data loaders and NCCL pass buffers there"
        fix = "start the container with --ipc=host or --shm-size=8g"
        yield finding("shm-small", "info", evidence, fix)
    health = snapshot.health
    if isinstance(health, Missing):
        return
    locked, files = health.settings.memlock_bytes, health.settings.open_files
    active = any(port.kind == "infiniband" and port.up is True for port in _ports(health))
    if isinstance(locked, int) and locked < _LEAST_MEMLOCK_BYTES and active:
        evidence = f"a process may lock {format_memory(locked)}; InfiniBand locks its buffers"
        fix = (
            "echo '* - memlock unlimited' | sudo tee /etc/security/limits.d/99-memlock.conf; "
            "log in again; in a container: --ulimit memlock=-1"
        )
        yield finding("memlock-low", "warning", evidence, fix)
    if isinstance(files, int) and files < _LEAST_FILES:
        evidence = f"a process may open {files} files; data loaders pass tensors as open files"
        fix = (
            "ulimit -n 65536; for good: '* - nofile 65536' in /etc/security/limits.d/99-files.conf"
        )
        yield finding("open-files-low", "warning", evidence, fix)


def _ports(health: Health) -> tuple[NetworkPort, ...]:
    return value_or(health.network, ())


# ---- variables that hide, reorder, forbid


def _device_order(snapshot: Snapshot) -> Iterator[Finding]:
    """Find a CUDA_VISIBLE_DEVICES that names absent GPUs or hides some, and CUDA's own order."""
    variables, gpus = snapshot.software.environment, gpus_of(snapshot)
    nvidia = [gpu for gpu in gpus if gpu.vendor == "nvidia"]
    yield from _visible_devices(nvidia, variables.get("CUDA_VISIBLE_DEVICES") or "")
    models = {gpu.name for gpu in nvidia if isinstance(gpu.name, str)}
    if len(models) > 1 and variables.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        evidence = "CUDA numbers unlike GPUs by speed, nvidia-smi by their place on the bus"
        fix = "export CUDA_DEVICE_ORDER=PCI_BUS_ID"
        yield finding("device-order-by-speed", "info", evidence, fix)


def _visible_devices(nvidia: Sequence[Gpu], visible: str) -> Iterator[Finding]:
    names = [word.strip() for word in visible.split(",") if word.strip()]
    if not nvidia or not names or names[0] in ("-1", "NoDevFiles"):
        return
    known = {str(gpu.index) for gpu in nvidia}
    uuids = tuple(gpu.uuid for gpu in nvidia if isinstance(gpu.uuid, str))
    is_wrong = any(
        name not in known
        and not any(uuid.startswith(name) for uuid in uuids)
        and not name.startswith("MIG-")
        for name in names
    )
    if is_wrong or len(set(names)) < len(names):
        evidence = f"CUDA_VISIBLE_DEVICES={visible}: there are GPUs 0 to {len(nvidia) - 1}"
        yield finding("gpu-index-unknown", "warning", evidence, "unset CUDA_VISIBLE_DEVICES")
    elif len(names) < len(nvidia) or names != sorted(names, key=lambda name: (len(name), name)):
        effect = "shows" if len(names) < len(nvidia) else "reorders"
        evidence = f"CUDA_VISIBLE_DEVICES={visible} {effect} {len(names)} of {len(nvidia)} GPUs"
        yield finding("gpus-partly-visible", "info", evidence, "unset CUDA_VISIBLE_DEVICES")


def _collectives(snapshot: Snapshot) -> Iterator[Finding]:
    """Find interfaces, switches and time-outs of NCCL and gloo that do not fit this machine."""
    variables, health = snapshot.software.environment, snapshot.health
    ports = () if isinstance(health, Missing) else value_or(health.network, ())
    there = {port.name: port for port in ports if port.kind == "ethernet"}
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        value = variables.get(name)
        if value and there and not _interface_fits(value, {*there, "lo"}):
            evidence = f"{name}={value}; there are {', '.join(sorted(there))}"
            fix = f"unset {name}, or export {name}={_first_up(snapshot)}"
            yield finding("interface-unknown", "warning", evidence, fix)
    links = value_or(snapshot.topology.links, ())
    direct = any(link.p2p_read == "ok" for link in links)
    if direct and variables.get("NCCL_P2P_DISABLE", "").lower() in _ON:
        evidence = "NCCL_P2P_DISABLE=1, though GPUs reach each other directly here"
        yield finding("nccl-p2p-disabled", "warning", evidence, "unset NCCL_P2P_DISABLE")
    active = any(port.kind == "infiniband" and port.up is True for port in ports)
    if active and variables.get("NCCL_IB_DISABLE", "").lower() in _ON:
        evidence = "NCCL_IB_DISABLE=1, though InfiniBand is up here"
        yield finding("nccl-ib-disabled", "warning", evidence, "unset NCCL_IB_DISABLE")
    for name in ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING"):
        if variables.get(name) == "0":
            evidence = f"{name}=0: a collective that lost a rank waits for ever"
            yield finding("nccl-time-out-off", "warning", evidence, f"unset {name}")


def _interface_fits(value: str, there: set[str]) -> bool:
    """Return whether NCCL finds an interface: prefixes; ``=``: whole names; ``^``: all others."""
    if value.startswith("^"):
        return True
    whole = value.startswith("=")
    names = [word.strip().partition(":")[0] for word in value.lstrip("=").split(",")]
    return any(
        interface == name or (not whole and name and interface.startswith(name))
        for name in names
        for interface in there
    )


def _first_up(snapshot: Snapshot) -> str:
    health = snapshot.health
    ports = () if isinstance(health, Missing) else value_or(health.network, ())
    names = [port.name for port in ports if port.kind == "ethernet" and port.up is True]
    return next((name for name in names if not re.match(r"docker|veth|br-|virbr", name)), "eth0")


def _tf32_override(snapshot: Snapshot) -> Iterator[Finding]:
    override = snapshot.software.environment.get("NVIDIA_TF32_OVERRIDE")
    if override is not None and gpus_of(snapshot):
        evidence = f"NVIDIA_TF32_OVERRIDE={override} rounds or forbids tf32 whatever a program asks"
        fix = "unset NVIDIA_TF32_OVERRIDE; products are measured here without it, trainings with it"
        yield finding("tf32-overridden", "warning", evidence, fix)


def _torch_note(snapshot: Snapshot) -> str:
    """Say only that torch is installed where there is no GPU that it must fit."""
    torch = snapshot.software.torch
    has_gpu = bool(gpus_of(snapshot) or devices(snapshot))
    return "" if has_gpu or isinstance(torch, Missing) else f"torch {torch} is installed"


def _needs_nvidia_toolkit(snapshot: Snapshot) -> object:
    if not any(gpu.pci_id.startswith(NVIDIA_ID) for gpu in devices(snapshot)) and not gpus_of(
        snapshot
    ):
        return NO_GPU
    return None


def _needs_nvidia_gpu(snapshot: Snapshot) -> object:
    return None if _first_device_of(snapshot, NVIDIA_ID) else NotApplicable("no NVIDIA GPU here")


CHECKS = (
    HealthCheck(
        id="torch-fits",
        title="torch is built for this driver and these GPUs",
        reads="torch/version.py, NVML",
        finds=("torch-missing", "gpu-not-usable-by-torch"),
        judge=_torch_build,
        facts=("software.torch?",),
        note=_torch_note,
    ),
    HealthCheck(
        id="extensions-build",
        title="Extensions can be built: toolkit, compiler and ninja fit torch",
        reads="nvcc, version.json, gcc, ninja",
        finds=("toolkit-differs-from-torch", "gcc-too-new", "ninja-missing"),
        judge=_extension_builds,
        facts=("software.cuda_toolkit", "software.torch_cuda", "health.toolchain.gcc"),
        needs=_needs_nvidia_toolkit,
    ),
    HealthCheck(
        id="routes",
        title="Which way to install is whole: toolkit, driver alone, container",
        reads="NVML, torch/version.py, nvcc, docker, podman, nvidia-ctk",
        finds=("container-toolkit-missing",),
        judge=_route_findings,
        facts=("software.cuda_toolkit?", "software.torch?", "health.toolchain.containers?"),
        needs=_needs_nvidia_gpu,
        note=_routes_note,
    ),
    HealthCheck(
        id="limits",
        title="Control group, /dev/shm and limits leave room",
        reads="/sys/fs/cgroup, /dev/shm, /proc/self/limits",
        finds=("cpu-quota", "shm-small", "memlock-low", "open-files-low"),
        judge=_process_limits,
        facts=("memory.shm_bytes", "health.settings.memlock_bytes", "health.settings.open_files"),
    ),
    HealthCheck(
        id="gpus-visible",
        title="No setting hides, reorders or bars GPUs",
        reads="CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER, NVML's compute mode",
        finds=(
            "gpu-hidden",
            "gpu-not-usable-by-torch",
            "gpu-index-unknown",
            "gpus-partly-visible",
            "device-order-by-speed",
        ),
        judge=lambda snapshot: (*_hidden_gpus(snapshot), *_device_order(snapshot)),
        facts=(ENVIRONMENT,),
        needs=needs_gpus,
    ),
    HealthCheck(
        id="collectives",
        title="NCCL's and gloo's interfaces, switches and time-outs fit",
        reads="environment variables NCCL_*, GLOO_*, TORCH_NCCL_*; /sys/class/net",
        finds=(
            "interface-unknown",
            "nccl-p2p-disabled",
            "nccl-ib-disabled",
            "nccl-time-out-off",
        ),
        judge=_collectives,
        facts=(ENVIRONMENT,),
    ),
    HealthCheck(
        id="tf32",
        title="tf32 is left to programs",
        reads="NVIDIA_TF32_OVERRIDE",
        finds=("tf32-overridden",),
        judge=_tf32_override,
        facts=(ENVIRONMENT,),
        needs=needs_gpus,
    ),
)
