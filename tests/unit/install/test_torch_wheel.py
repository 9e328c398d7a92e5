"""The wheel of torch for five kinds of machine, from a stub of an index."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from machine_fakes import gpu, healthy, pci_device
from trainrig.catalog.chip import Chip
from trainrig.catalog.load import load_chips
from trainrig.catalog.torch_builds import torch_builds
from trainrig.install import torch_wheel
from trainrig.install.torch_wheel import NoSuchTorch, WheelChoice, choose_wheel, host_of
from trainrig.machine.snapshot import Snapshot

PLAIN = ["2.13.0", "2.10.0", "2.9.1"]
SERVER = "file:///builds"


def pip_default(index: str | None) -> Sequence[str]:
    """An index as pip's own: one wheel a version, no builds."""
    return PLAIN


def build_server(index: str | None) -> Sequence[str]:
    """The same, and a server of builds where it is named."""
    builds = {f"{SERVER}/{build.name}": build.version for build in torch_builds()}
    return [*PLAIN, *([builds[index]] if index else [])]


def unreachable(index: str | None) -> Sequence[str]:
    return []


def chip_of(vendor: str, name: str = "") -> Chip:
    chips = [chip for chip in load_chips() if chip.vendor == vendor and chip.pci_ids]
    return next(chip for chip in chips if name in chip.name)


def with_chip(chip: Chip, driver: str | None) -> Snapshot:
    bare = healthy(0)
    software = dataclasses.replace(bare.software, nvidia_driver=driver)
    on_bus = (pci_device("0000:01:00.0", chip.pci_ids[0]),)
    return dataclasses.replace(bare, pci_gpus=on_bus, software=software)


NEW_NVIDIA = with_chip(chip_of("NVIDIA", "H100"), "580.95.05")
OLD_DRIVER = with_chip(chip_of("NVIDIA", "A100"), "470.82.01")
LATE_12 = with_chip(chip_of("NVIDIA", "A100"), "535.104.05")
VOLTA = with_chip(chip_of("NVIDIA", "V100"), "580.65.06")
BLACKWELL = with_chip(chip_of("NVIDIA", "B200"), "570.124.06")
AMD = with_chip(chip_of("AMD", "MI300X"), None)
INTEL = with_chip(chip_of("Intel", "Max"), None)
GAUDI = with_chip(chip_of("Intel", "Gaudi"), None)
NOTHING = dataclasses.replace(healthy(0), pci_gpus=())


@pytest.fixture(autouse=True)
def _on_linux_x86(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_wheel.platform, "system", lambda: "Linux")
    monkeypatch.setattr(torch_wheel.platform, "machine", lambda: "x86_64")


def chosen(
    machine: Snapshot, versions: torch_wheel.ListVersions = build_server, request: str = "auto"
) -> WheelChoice:
    return choose_wheel(host_of(machine), request, versions, SERVER)


@pytest.mark.parametrize(
    ("machine", "requirement", "folder", "reason"),
    [
        (NEW_NVIDIA, "torch===2.13.0", None, "driver 580.95.05; about 3 GB"),
        (OLD_DRIVER, "torch==2.13.0+cpu", "cpu", "the processor is measured"),
        (LATE_12, "torch==2.13.0+cu126", "cu126", "compute capability 8.0, driver 535.104.05"),
        (VOLTA, "torch==2.13.0+cu126", "cu126", "compute capability 7.0"),
        (BLACKWELL, "torch===2.10.0", None, "2.10.0+cu128 for"),
        (AMD, "torch==2.13.0+rocm7.2", "rocm7.2", "about 6 GB"),
        (INTEL, "torch==2.13.0+xpu", "xpu", "2.13.0+xpu for"),
        (GAUDI, "torch==2.13.0+cpu", "cpu", "no GPU that torch runs on is here"),
        (NOTHING, "torch==2.13.0+cpu", "cpu", "no GPU that torch runs on is here; about 0.3 GB"),
    ],
    ids=[
        "new-nvidia",
        "driver-470",
        "driver-535",
        "volta",
        "blackwell",
        "amd",
        "intel",
        "gaudi",
        "none",
    ],
)
def test_the_machine_decides_and_the_reason_and_size_are_said(
    machine: Snapshot, requirement: str, folder: str | None, reason: str
) -> None:
    choice = chosen(machine)
    assert choice.requirement == requirement
    assert choice.index == (folder and f"{SERVER}/{folder}")
    assert reason in "\n".join(choice.lines)


def test_an_old_driver_is_told_what_it_would_need() -> None:
    first = chosen(OLD_DRIVER).lines[0]
    assert "it needs driver 525.60.13 or newer, and here is 470.82.01" in first


@pytest.mark.parametrize(
    ("machine", "requirement", "missing"),
    [
        (NEW_NVIDIA, "torch===2.13.0", None),
        (LATE_12, "torch===2.10.0", "torch 2.13.0+cu126"),
        (AMD, "torch==2.13.0", "torch 2.13.0+rocm7.2"),
        (INTEL, "torch==2.13.0", "torch 2.13.0+xpu"),
        (NOTHING, "torch==2.13.0", "torch 2.13.0+cpu"),
    ],
    ids=["new-nvidia", "driver-535", "amd", "intel", "none"],
)
def test_a_build_out_of_reach_gets_one_line_and_what_is_installed_instead(
    machine: Snapshot, requirement: str, missing: str | None
) -> None:
    choice = chosen(machine, pip_default)
    assert choice.requirement == requirement
    assert choice.index is None
    found = [line for line in choice.lines if missing and line.startswith(missing)]
    assert len(found) == (missing is not None)
    assert all("TORCH_INDEX=URL" in line for line in found)


def test_without_any_index_the_last_line_says_what_is_measured() -> None:
    assert "the processor is measured" in chosen(AMD, unreachable).lines[-1]


@pytest.mark.parametrize(
    ("request_", "requirement"),
    [("cpu", "torch==2.13.0+cpu"), ("2.9.1", "torch===2.9.1"), ("cu126", "torch==2.13.0+cu126")],
)
def test_what_is_asked_for_is_installed(request_: str, requirement: str) -> None:
    assert chosen(NEW_NVIDIA, request=request_).requirement == requirement


@pytest.mark.parametrize("request_", ["2.6", "1.13.1", "cuda", "latest", "2.13+cpu"])
def test_what_is_no_torch_or_too_old_is_refused(request_: str) -> None:
    with pytest.raises(NoSuchTorch, match="hint"):
        chosen(NEW_NVIDIA, request=request_)


def test_a_described_gpu_counts_where_its_id_is_unknown() -> None:
    machine = dataclasses.replace(NOTHING, gpus=(gpu(0),))
    software = dataclasses.replace(machine.software, nvidia_driver="580.95.05")
    assert chosen(dataclasses.replace(machine, software=software)).requirement == "torch===2.13.0"


def test_other_processors_take_pip_s_own_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_wheel.platform, "machine", lambda: "aarch64")
    assert chosen(NEW_NVIDIA).requirement == "torch==2.13.0"


def test_pip_reads_a_stub_of_an_index(tmp_path: Path) -> None:
    """Given an index that is a folder, pip's own answer leads to constraints that name it."""
    wheel = "torch-2.13.0+cpu-py3-none-any.whl"
    folder = tmp_path / "cpu" / "torch"
    folder.mkdir(parents=True)
    (folder / wheel).touch()
    (folder / "index.html").write_text(f'<a href="{wheel}">{wheel}</a>')
    (tmp_path / "empty").mkdir()
    (tmp_path / "pins.txt").write_text("numpy==2.4.6\ntorch==2.13.0\n")
    done = subprocess.run(
        [sys.executable, "-m", "trainrig.install.torch_wheel", "cpu", tmp_path / "pins.txt"],
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_INDEX_URL": f"file://{tmp_path}/empty",
            "TORCH_INDEX": f"file://{tmp_path}",
            "PYTHONPATH": "src",
        },
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    index, numpy, torch = done.stdout.splitlines()
    assert (numpy, torch) == ("numpy==2.4.6", "torch==2.13.0+cpu")
    assert index == f"--extra-index-url file://{tmp_path}/cpu"
    assert "torch 2.13.0+cpu" in done.stderr
