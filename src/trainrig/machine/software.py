"""Read the software that measurements run on: Python, torch, CUDA, drivers and settings.

Nothing is imported to find out.  torch's versions are literals in its
``version.py``, which is parsed, not run; packages are read from their metadata.
Of the environment only variables that bear on speed are read: no other can end
up in a report that is passed on.
"""

from __future__ import annotations

import ast
import os
import platform
import re
import sys
from collections.abc import Iterable, Mapping
from importlib.machinery import PathFinder

from trainrig.machine.parse import first, json_object, text
from trainrig.machine.snapshot import Missing, Software
from trainrig.machine.system_access import Host

_PACKAGES = re.compile(
    r"torch|torchvision|torchao|triton|pytorch[-_]triton.*|numpy|transformers|accelerate|deepspeed"
    r"|megatron[-_]core|transformer[-_]engine.*|flash[-_]attn.*|xformers|liger[-_]kernel|apex"
    r"|bitsandbytes|nvidia[-_](?:nccl|cudnn|cublas|cuda[-_]runtime)(?:[-_]cu\d+)?",
    re.IGNORECASE,
)
_VARIABLES = re.compile(
    r"(?:NCCL|RCCL|PYTORCH|ATEN|CUDA|CUBLAS|CUDNN|NVTE|OMP|GOMP|KMP|MKL|OPENBLAS|DNNL|ONEDNN|HIP|ROCR"
    r"|HSA|GLOO|MALLOC)_[A-Z0-9_]+|TORCH_(?:NCCL|CUDNN|BLAS|ALLOW)_[A-Z0-9_]+|LD_PRELOAD"
    r"|NVIDIA_VISIBLE_DEVICES|NVIDIA_TF32_OVERRIDE|NVIDIA_DRIVER_CAPABILITIES|TORCHINDUCTOR_[A-Z_]+"
)
_DRIVER = re.compile(r"Kernel Module\s+(?:for \S+\s+)?(\d{2,4}\.\d+(?:\.\d+)?)")
_NVCC = re.compile(r"release (\d{1,3}\.\d{1,2})")
_CUDA_HOMES = ("/usr/local/cuda", "/opt/cuda")


def software(host: Host, search: list[str] | None = None) -> Software:
    """Return what is installed; `search` are the folders of packages (default: sys.path)."""
    folders = sys.path if search is None else search
    packages = find_packages(folders)
    torch, cuda, hip = torch_versions(host, folders)
    return Software(
        python=platform.python_version(),
        torch=torch,
        torch_cuda=cuda,
        torch_hip=hip,
        nvidia_driver=driver_version(host.read("/proc/driver/nvidia/version")),
        cuda_driver=Missing("no NVIDIA driver answered"),
        cuda_toolkit=_toolkit(host),
        cudnn=first([_package(packages, "cudnn"), _cudnn_header(host)], "cuDNN"),
        nccl=_package(packages, "nccl"),
        rocm=text(host.read("/opt/rocm/.info/version"), "ROCm"),
        packages=packages,
        environment=relevant(host.environment),
    )


def relevant(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables that bear on speed, by name."""
    return {
        name: value[:500]
        for name, value in sorted(environment.items())
        if _VARIABLES.fullmatch(name)
    }


def find_packages(folders: Iterable[str]) -> Mapping[str, str]:
    """Return name → version of installed packages that bear on speed, by their metadata.

    Reading every package's metadata file takes a hundred milliseconds in a large
    environment; the folder is called ``name-version.dist-info``.
    """
    versions: dict[str, str] = {}
    for folder in folders:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        for name in names:
            package, _, version = name.removesuffix(".dist-info").partition("-")
            if name.endswith(".dist-info") and version and _PACKAGES.fullmatch(package):
                versions.setdefault(package.replace("_", "-").lower(), version)
    return dict(sorted(versions.items()))


def torch_versions(
    host: Host, folders: list[str]
) -> tuple[str | Missing, str | None | Missing, str | None | Missing]:
    """Return the versions of torch, its CUDA and its HIP; None: built without."""
    try:
        spec = PathFinder.find_spec("torch", folders)
    except (ImportError, ValueError, OSError):
        spec = None
    if spec is None or not spec.origin:
        absent = Missing("torch is not installed")
        return absent, absent, absent
    literals = version_literals(host.read(os.path.join(os.path.dirname(spec.origin), "version.py")))
    if isinstance(literals, Missing):
        return literals, literals, literals
    version = text(literals.get("__version__"), "version in torch/version.py")
    return version, _build(literals, "cuda"), _build(literals, "hip")


def version_literals(content: str | Missing) -> Mapping[str, object] | Missing:
    """Return names that a Python file sets to a literal at its top level; nothing is run."""
    if isinstance(content, Missing):
        return content
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Missing("torch/version.py is not Python")
    literals: dict[str, object] = {}
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        value = getattr(node, "value", None)
        if isinstance(value, ast.Constant):
            literals.update({t.id: value.value for t in targets if isinstance(t, ast.Name)})
    return literals


def _build(literals: Mapping[str, object], name: str) -> str | None | Missing:
    if name not in literals:
        return Missing(f"torch/version.py does not name {name}")
    value = literals[name]
    return None if value is None else text(value, f"{name} version of torch")


def driver_version(content: str | Missing) -> str | Missing:
    """Return the version in /proc/driver/nvidia/version: ``550.54.14``."""
    if isinstance(content, Missing):
        return Missing("the NVIDIA kernel module is not loaded")
    match = _DRIVER.search(content)
    return match[1] if match else Missing(f"no version in {content[:60]!r}")


_COMPILER_S = 10.0
"""For nvcc's first answer, which comes off a disk that may be a network's: what does not come is
part of the environment's digest, and would make another of an unchanged machine."""


def _toolkit(host: Host) -> str | Missing:
    """Return the version of CUDA's toolkit, by its version.json, else by nvcc."""
    homes = [host.environment.get("CUDA_HOME", ""), *_CUDA_HOMES]
    for home in homes:
        value = json_object(host.read(f"{home}/version.json"), "version.json") if home else None
        cuda = value.get("cuda") if isinstance(value, Mapping) else None
        if isinstance(cuda, dict) and isinstance(cuda.get("version"), str):
            return text(cuda["version"], "CUDA version")
    output = host.run("nvcc", "--version", timeout_s=_COMPILER_S)
    if isinstance(output, Missing):
        return Missing("no CUDA toolkit found") if "not installed" in output.reason else output
    match = _NVCC.search(output)
    return match[1] if match else Missing("nvcc printed no version")


def _package(packages: Mapping[str, str], word: str) -> str | Missing:
    for name, version in packages.items():
        if word in name:
            return version
    return Missing(f"no package of {word}")


def _cudnn_header(host: Host) -> str | Missing:
    header = host.read("/usr/include/cudnn_version.h")
    if isinstance(header, Missing):
        return Missing("no cuDNN found")
    parts = dict(re.findall(r"#define CUDNN_(MAJOR|MINOR|PATCHLEVEL) (\d{1,5})", header))
    if len(parts) < 3:
        return Missing("cudnn_version.h names no version")
    return f"{parts['MAJOR']}.{parts['MINOR']}.{parts['PATCHLEVEL']}"
