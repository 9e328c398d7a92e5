"""The doctor's checks on whole machines as data: healthy hosts, each fault, and its repair.

A host is files, links, what programs print, NVML's answers and environment variables: everything
a probe reads, and nothing that a check is handed.  A fault host names its base; ``both`` is what it
and its repaired twin have, ``fault`` what is wrong, ``repaired`` what stands there once it is put
right.  ``gpu.N`` changes NVML's answers of GPU N, ``gpus`` of all, ``pci.N`` files in the card's
folder on the bus, ``runs`` files of earlier runs, ``after`` the host once it was under load.
"""

from __future__ import annotations

import copy
import json
import os
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trainrig.doctor import CHECKS, diagnose
from trainrig.machine import inspect
from trainrig.machine.snapshot import Missing, Snapshot
from trainrig.record import Finding
from trainrig.runner.earlier_runs import with_history
from trainrig.selftest.registry import HEALTHY, Fault

HOSTS = Path(__file__).parent / "hosts"
DEVICES = "/sys/bus/pci/devices"
Tree = dict[str, Any]


class FakeHost:
    """A host whose files, links and commands are given; everything else is absent."""

    def __init__(
        self,
        files: Mapping[str, str] | None = None,
        commands: Mapping[str, str] | None = None,
        links: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        modes: Mapping[str, int] | None = None,
        shm_bytes: int = 2**34,
        threads: int = 4,
    ) -> None:
        self.files = dict(files or {})
        self.commands = dict(commands or {})
        self.links = dict(links or {})
        self.environment = dict(environment or {})
        self.modes = dict(modes or {})
        self.shm_bytes = shm_bytes
        self.threads = threads

    def read(self, path: str) -> str | Missing:
        return self.files.get(path, Missing(f"{path}: no such file"))

    def names(self, path: str) -> tuple[str, ...] | Missing:
        start = path.rstrip("/") + "/"
        paths = [name for name in [*self.files, *self.links] if name.startswith(start)]
        entries = {name[len(start) :].split("/")[0] for name in paths}
        return tuple(sorted(entries)) if entries else Missing(f"{path}: no such folder")

    def resolve(self, path: str) -> str | Missing:
        return self.links.get(path, Missing(f"{path}: no such link"))

    def link_text(self, path: str) -> str | Missing:
        return self.links.get(path, Missing(f"{path}: no such link"))

    def mode(self, path: str) -> int | Missing:
        return self.modes.get(path, Missing(f"{path}: no such file"))

    def capacity_bytes(self, path: str) -> int | Missing:
        return self.shm_bytes if path == "/dev/shm" else Missing(f"{path}: no such file system")

    def run(self, *command: str, timeout_s: float = 1.0, any_exit: bool = False) -> str | Missing:
        name = "nvml" if command[0] == sys.executable else os.path.basename(command[0])
        typed = " ".join([name, *(word for word in command[1:] if name != "nvml")])
        return self.commands.get(typed, Missing(f"{name} is not installed"))

    def usable_threads(self) -> int | Missing:
        return self.threads


@dataclass
class FaultHost:
    """A host with a fault, and the same host repaired."""

    name: str
    base: str
    finding: str
    evidence: str
    source: str
    severity: str = ""
    """Severity of the finding; a test holds every host to stating it."""
    check: str = ""
    """The check that sees it, where several have this finding; empty: the first of them."""
    allowed: list[str] = field(default_factory=list)
    """Findings that both may have besides: a memory that was repaired stays so."""
    both: Tree = field(default_factory=dict)
    fault: Tree = field(default_factory=dict)
    repaired: Tree = field(default_factory=dict)

    @property
    def seen_by(self) -> str:
        """Return the id of the check that sees it."""
        return self.check or next(check.id for check in CHECKS if self.finding in check.finds)

    def snapshot(self, state: Tree, folder: Path) -> Snapshot:
        """Return machine as it is with the fault, or repaired; its earlier runs go to a folder."""
        snapshot = inspect(build(self.base, self.both, state), with_health=True)
        if after := state.get("after"):
            later = inspect(build(self.base, self.both, state, after))
            snapshot = replace(snapshot, gpus_after=later.gpus)
        for name, content in merged(self.both, state).get("runs", {}).items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content.replace("MACHINE", str(snapshot.host.machine)))
        return with_history(snapshot, folder)

    def findings(self, state: Tree, folder: Path) -> tuple[Finding, ...]:
        """Return the doctor's findings on the host with the fault, or repaired."""
        return diagnose(self.snapshot(state, folder))


def bases() -> list[str]:
    """Return the names of the healthy hosts."""
    return sorted(path.stem for path in (HOSTS / "healthy").glob("*.toml"))


def fault_hosts() -> Iterator[FaultHost]:
    """Yield all fault hosts, in the order of their files."""
    for path in sorted(HOSTS.glob("*.toml")):
        for row in tomllib.loads(path.read_text(encoding="utf-8"))["host"]:
            yield FaultHost(**{"name": row["finding"], "base": "desktop", **row})


def build(base: str, *overlays: Mapping[str, Any]) -> FakeHost:
    """A host out of a base and what is laid over it, later ones on top."""
    text = (HOSTS / "healthy" / f"{base}.toml").read_text(encoding="utf-8")
    common = tomllib.loads((HOSTS / "healthy" / "common" / "linux.toml").read_text("utf-8"))
    whole = merged(common, tomllib.loads(text))
    for overlay in overlays:
        whole = merged(whole, overlay)
    files, links = dict(whole.get("files", {})), dict(whole.get("links", {}))
    if (spec := find_spec("torch")) and spec.origin and whole.get("torch"):
        files[str(Path(spec.origin).with_name("version.py"))] = whole["torch"]
    gone = [path for path, content in files.items() if content == "ABSENT"]
    commands = {
        name: printed for name, printed in whole.get("commands", {}).items() if printed != "ABSENT"
    }
    answers = []
    for number, card in enumerate(whole.get("cards", [])):
        answers.append(_answers(whole, number, card))
        for name, content in _bus(whole, number, card).items():
            files[f"{DEVICES}/{card['address']}/{name}"] = content
        driver = str(whole.get("driver_of_cards", "nvidia"))
        folder = f"{DEVICES}/{card['address']}"
        if driver:
            links[f"{folder}/driver"] = f"/sys/bus/pci/drivers/{driver}"
        links[folder] = f"/sys/devices/pci0000:00/0000:00:01.{number % 8}/{card['address']}"
    for path in gone:
        files.pop(path)
    if answers and "nvml" not in commands:
        commands["nvml"] = json.dumps(_inventory(whole, answers))
    return FakeHost(
        files={path: content for path, content in files.items() if content != "ABSENT"},
        commands=commands,
        links={path: target for path, target in links.items() if target != "ABSENT"},
        environment=whole.get("environment", {}),
        modes={path: int(mode, 8) for path, mode in whole.get("modes", {}).items()},
        shm_bytes=whole.get("shm_bytes", 2**34),
        threads=whole.get("threads", 16),
    )


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> Tree:
    """Return two trees in one; where both have a table, its parts are merged."""
    tree = copy.deepcopy(dict(below))
    for name, value in above.items():
        below_value = tree.get(name)
        if isinstance(value, Mapping) and isinstance(below_value, Mapping):
            tree[name] = merged(below_value, value)
        else:
            tree[name] = copy.deepcopy(value)
    return tree


def _bus(whole: Tree, number: int, card: Tree) -> Tree:
    """Return the files of a card's folder in sysfs."""
    vendor, device = card["id"].split(":")
    files = {
        "class": "0x030000" if card.get("display", True) else "0x030200",
        "vendor": f"0x{vendor}",
        "device": f"0x{device}",
        "subsystem_vendor": "0x10de",
        "subsystem_device": "0x16f3",
        "numa_node": str(card.get("node", 0)),
        "config": "\ufffd\x10" + "\x00" * 62,
        "current_link_speed": "16.0 GT/s PCIe",
        "max_link_speed": "16.0 GT/s PCIe",
        "current_link_width": "16",
        "max_link_width": "16",
        "aer_dev_correctable": "RxErr 0\nTOTAL_ERR_COR 0",
        "aer_dev_fatal": "DLP 0\nTOTAL_ERR_FATAL 0",
    }
    return {**files, **whole.get("pci", {}).get(str(number), {})}


def _answers(whole: Tree, number: int, card: Tree) -> Tree:
    """NVML's answers of one GPU."""
    answers = merged(SOUND, whole.get("gpus", {}))
    answers = merged(
        answers,
        {
            "uuid": f"GPU-00000000-0000-0000-0000-{number:012d}",
            "pci": {
                "busId": f"0000{card['address']}".upper(),
                "pciDeviceId": int(card["id"][5:] + card["id"][:4], 16),
            },
        },
    )
    answers = merged(answers, card.get("nvml", {}))
    return merged(answers, whole.get("gpu", {}).get(str(number), {}))


SOUND: Tree = {
    "name": "NVIDIA GeForce RTX 4090",
    "memory": {"total": 25757220864, "used": 400000000, "free": 25357220864},
    "memory_bus": 384,
    "cores": 16384,
    "capability": [8, 9],
    "vbios": "95.02.18.80.01",
    "pcie_generation": 4,
    "pcie_width": 16,
    "pcie_max_generation": 4,
    "pcie_max_width": 16,
    "power": 25000,
    "power_limit": 450000,
    "power_default": 450000,
    "power_range": [150000, 600000],
    "ecc": {"missing": "NVML: not supported"},
    "uncorrected_volatile": 0,
    "uncorrected_aggregate": 0,
    "corrected_volatile": 0,
    "corrected_aggregate": 0,
    "retired_single": {"missing": "NVML: not supported"},
    "retired_double": {"missing": "NVML: not supported"},
    "retirement_pending": {"missing": "NVML: not supported"},
    "remapped": [0, 0, 0, 0],
    "sm_clock": 210,
    "memory_clock": 405,
    "max_sm_clock": 3120,
    "max_memory_clock": 10501,
    "temperature": 38,
    "throttle": 1,
    "pcie_replays": 0,
    "utilization": {"gpu": 0, "memory": 0},
    "mig": {"missing": "NVML: not supported"},
    "persistence": 1,
    "compute_mode": 0,
    "processes": [],
    "fan": 30,
    "bar1": {"bar1Total": 34359738368, "bar1Free": 34359738368},
    "slowdown_temperature": 98,
    "links": {"missing": "NVML: not supported"},
}


def _inventory(whole: Tree, answers: list[Tree]) -> Tree:
    pairs = [
        {"a": a, "b": b, **whole.get("pairs", {"ancestor": 30, "read": 5, "write": 5})}
        for b in range(len(answers))
        for a in range(b)
    ]
    changed_pairs = whole.get("pair", {})
    for pair in pairs:
        pair.update(changed_pairs.get(f"{pair['a']}-{pair['b']}", {}))
    return {
        "driver": whole.get("driver", "570.133.20"),
        "cuda": whole.get("cuda", 12080),
        "devices": answers[: whole.get("listed", len(answers))],
        "pairs": pairs,
    }


# ---- the faults of all of them


@dataclass(frozen=True, slots=True)
class _Scene:
    host: FaultHost
    state: Any
    folder: Path


def faults() -> Iterator[Fault]:
    """Yield a fault for each fault host; its repaired host is the twin."""
    seen: set[str] = set()
    for host in fault_hosts():
        name = host.name if host.name != host.finding else host.evidence
        name = f"{host.finding}: {name}"
        if name in seen:
            name = f"{name} ({host.base})"
        seen.add(name)
        yield Fault(
            name=name,
            check=f"doctor.{host.seen_by}",
            finds=host.finding,
            says=host.evidence,
            begins=f"{host.severity} {host.finding}:",
            inject=partial(_open, host),
            observe=_diagnose,
        )


@contextmanager
def _open(host: FaultHost, folder: Path, variant: Any) -> Iterator[_Scene]:
    yield _Scene(host, host.repaired if variant is HEALTHY else host.fault, folder)


def _diagnose(scene: _Scene) -> Iterable[str]:
    findings = scene.host.findings(scene.state, scene.folder)
    if scene.state is scene.host.repaired:
        findings = tuple(finding for finding in findings if finding.id not in scene.host.allowed)
    return [f"{finding.severity} {finding.id}: {finding.evidence}" for finding in findings]
