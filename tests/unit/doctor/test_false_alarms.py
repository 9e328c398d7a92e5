"""Machines that look odd and are sound: no alarm, no harmful fix, no door that stops a verdict."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
from pathlib import Path
from typing import Any

import pytest

from machine_fakes import gpu, healthy, pci_device, with_gpu
from trainrig.doctor import CHECKS, diagnose, of_speed
from trainrig.doctor.check import finding
from trainrig.doctor.crash import explain
from trainrig.doctor.remedy import remedies
from trainrig.machine import inspect
from trainrig.machine.health import Crash
from trainrig.machine.kernel_log import kernel_events, parse_kernel_log
from trainrig.machine.snapshot import Missing, PcieLink
from trainrig.machine.system_access import ThisMachine
from trainrig.record import Finding
from trainrig.selftest.doctor_faults import bases, build

replace = dataclasses.replace
MOUNTS = (
    "overlay / overlay rw,relatime 0 0\n"
    "/dev/sda1 /usr/bin/nvidia-smi ext4 ro,nosuid,nodev,relatime,errors=remount-ro 0 0"
)
BOUND = "99 85 8:1 /usr/bin/nvidia-smi /usr/bin/nvidia-smi ro,nosuid - ext4 /dev/sda1 {},errors=x"


def found(base: str, **overlay: Any) -> list[str]:
    return [one.id for one in diagnose(inspect(build(base, overlay), with_health=True))]


def infiniband(name: str, rate: str, layer: str, lanes: str = "16") -> dict[str, str]:
    folder = f"/sys/class/infiniband/{name}"
    return {
        f"{folder}/ports/1/state": "4: ACTIVE" if rate else "1: DOWN",
        f"{folder}/ports/1/rate": rate or "10 Gb/sec (4X SDR)",
        f"{folder}/ports/1/link_layer": layer,
        f"{folder}/device/current_link_speed": "16.0 GT/s PCIe",
        f"{folder}/device/max_link_speed": "16.0 GT/s PCIe",
        f"{folder}/device/current_link_width": lanes,
        f"{folder}/device/max_link_width": "16",
    }


def ethernet(name: str, speed: str, lanes: str) -> dict[str, str]:
    folder = f"/sys/class/net/{name}"
    return {
        f"{folder}/operstate": "up",
        f"{folder}/speed": speed,
        f"{folder}/device/current_link_speed": "16.0 GT/s PCIe",
        f"{folder}/device/max_link_speed": "16.0 GT/s PCIe",
        f"{folder}/device/current_link_width": lanes,
        f"{folder}/device/max_link_width": "4",
    }


@pytest.mark.parametrize(("system", "alarm"), [("rw", False), ("ro", True)])
def test_the_driver_s_files_in_a_container_are_read_only_mounts(system: str, alarm: bool) -> None:
    files = {"/proc/self/mounts": MOUNTS, "/proc/self/mountinfo": BOUND.format(system)}
    assert ("filesystem-errors" in found("desktop", files=files)) is alarm


def test_storage_and_management_cards_are_no_slow_rails() -> None:
    files = infiniband("mlx5_4", "50 Gb/sec (2X)", "Ethernet") | infiniband(
        "mlx5_5", "", "Ethernet"
    )
    assert found("a100", files=files) == []
    rail = infiniband("mlx5_4", "", "InfiniBand")
    assert "infiniband-down" in found("a100", files=rail)


def test_a_card_on_fewer_lanes_than_it_has_is_slow_where_its_port_needs_more() -> None:
    assert found("desktop", files=ethernet("enp1s0", "10000", "1")) == []
    assert "nic-link-below-max" in found("desktop", files=ethernet("enp1s0", "100000", "1"))


def test_the_management_chip_s_port_behind_usb_is_no_slow_network() -> None:
    files = {"/sys/class/net/enx0/operstate": "up", "/sys/class/net/enx0/speed": "425"}
    files["/sys/class/net/enx0/device/idVendor"] = "046b"
    links = {"/sys/class/net/enx0/device": "/sys/devices/pci0000:00/usb1/1-1/1-1:1.0"}
    assert "ethernet-slow" in found("cpu-server", files=files)
    assert found("cpu-server", files=files, links=links) == []


def test_no_driver_is_not_put_down_to_secure_boot_without_a_module() -> None:
    variable = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
    ids = found(
        "desktop",
        driver_of_cards="",
        files={
            variable: "\x06\0\0\0\x01",
            "/proc/modules": "ext4 1044480 1 - Live 0x0",
            "/sys/module/nvidia/version": "ABSENT",
            "/proc/driver/nvidia/version": "ABSENT",
        },
        commands={"nvml": '{"missing": "NVML: driver not loaded"}', "dkms status": "ABSENT"},
    )
    assert "gpu-without-driver" in ids and "driver-refused-by-secure-boot" not in ids


def test_a_fabric_manager_that_rests_beside_cards_without_nvlink_is_right() -> None:
    commands = {
        "nv-fabricmanager --version": "Fabric Manager version is : 570.86.15",
        "systemctl is-active nvidia-fabricmanager": "inactive",
    }
    snapshot = inspect(build("a100", {"commands": commands}), with_health=True)
    assert not isinstance(snapshot.health, Missing) and not isinstance(snapshot.gpus, Missing)
    driver = replace(snapshot.health.driver, fabric_manager="570.86.15", fabric_active=False)
    down = replace(snapshot, health=replace(snapshot.health, driver=driver))
    assert "fabric-manager-down" in [one.id for one in diagnose(down)]
    bare = tuple(one.replace(nvlinks_active=0, nvlinks_inactive=0) for one in snapshot.gpus)
    assert "fabric-manager-down" not in [one.id for one in diagnose(replace(down, gpus=bare))]


def test_a_laptop_s_npu_without_a_driver_is_no_gpu_without_one() -> None:
    npu = pci_device("0000:00:0b.0", "8086:7d1d", pci_class="1200", driver=None)
    assert diagnose(replace(healthy(), pci_gpus=(npu,))) == diagnose(healthy())


def test_a_laptop_s_gpu_has_the_lanes_that_it_was_soldered_with() -> None:
    narrow = PcieLink(generation=4, width=8, max_generation=4, max_width=8)
    whole = replace(narrow, max_width=16)
    device = pci_device("0000:01:00.0", "10de:2757", link=whole, slot=narrow, driver="nvidia")
    base = replace(healthy(1), pci_gpus=(device,))
    one = {"pci_address": "0000:01:00.0", "link": narrow}
    names = ("NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090")
    seen = [[each.id for each in diagnose(with_gpu(base, name=name, **one))] for name in names]
    assert seen == [[], ["pcie-link-below-max"]]


def test_torch_for_one_of_two_makers_cards_is_not_refused() -> None:
    both = replace(healthy(1), gpus=(gpu(0), gpu(1, vendor="amd", name="AMD Radeon Graphics")))
    assert "gpu-not-usable-by-torch" not in [one.id for one in diagnose(both)]


def test_twelve_gpus_in_their_own_order_are_not_reordered() -> None:
    base = healthy(12)
    environment = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(12)))}
    shown = replace(base, software=replace(base.software, environment=environment))
    assert diagnose(shown) == diagnose(base)


@pytest.mark.parametrize(
    ("home", "group", "alarm"),
    [("755", "ada:x:1000:", True), ("700", "hpc:x:1000:bob", False), ("750", "hpc:x:1000:", True)]
    + [("750", "ada:x:1000:", False)],
)
def test_a_closed_home_guards_its_secrets(home: str, group: str, alarm: bool) -> None:
    ids = found(
        "desktop",
        environment={"HOME": "/home/ada"},
        files={
            "/home/ada/.netrc": "machine a login b password c",
            "/etc/passwd": "ada:x:1000:1000::/home/ada:/bin/bash",
            "/etc/group": group,
        },
        modes={"/home/ada": home, "/home/ada/.netrc": "644"},
    )
    assert ("secret-readable" in ids) is alarm


@pytest.mark.parametrize(
    ("path", "text", "alarm"),
    [
        (".aws/credentials", "[default]\naws_secret_access_key = x", True),
        (".docker/config.json", '{"auths": {"ghcr.io": {"auth": "YTpi"}}}', True),
        (".docker/config.json", '{"auths": {}}', False),
        (".git-credentials", "https://ada:ghp_x@github.com", True),
        (".kube/config", "users:\n- user:\n    client-key-data: x", True),
        (".ssh/id_ecdsa", "-----BEGIN OPENSSH PRIVATE KEY-----", True),
        (".cloudflared/0f6e.json", '{"AccountTag": "a", "TunnelSecret": "b"}', True),
        (".cloudflared/config.yml", "tunnel: 0f6e", False),
        (".pgpass", "db.example:5432:*:ada:hunter2", True),
        (".npmrc", "registry=https://npm.example/", False),
    ],
)
def test_a_file_that_holds_a_secret_is_known(path: str, text: str, alarm: bool) -> None:
    place = f"/home/ada/{path}"
    ids = found(
        "desktop",
        environment={"HOME": "/home/ada"},
        files={place: text},
        modes={"/home/ada": "755", place.rpartition("/")[0]: "755", place: "644"},
    )
    assert ("secret-readable" in ids) is alarm


def test_an_open_door_is_a_fault_and_does_not_fail_a_verdict_on_speed() -> None:
    door = finding("port-runs-programs", "error", "jupyter on 0.0.0.0:8888", "stop it")
    lost = finding("gpu-fell-off-bus", "error", "GPU 1", "power it off")
    assert [one.severity for one in of_speed((door, lost))] == ["error", "warning"]
    assert of_speed((lost,)) == (lost,)


def test_ninja_that_is_there_and_not_on_path_is_not_taken_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    missing = Finding(id="ninja-missing", severity="info", evidence="none", fix="pip install ninja")
    monkeypatch.setattr("trainrig.doctor.remedy.version", lambda _: "1.11")
    assert remedies(missing) == ()

    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("trainrig.doctor.remedy.version", absent)
    assert [one.text for one in remedies(missing)] == ["pip install ninja"]


def test_reinstalling_an_extension_leaves_torch_alone_and_takes_the_right_apex() -> None:
    frame = 'File "/x/apex/optimizers.py", line 3 in step'
    crash = Crash(run="r", log="l", signal="SIGSEGV", frames=(frame,))
    fix = explain(crash, ()).fix
    assert "--no-deps" in fix and "github.com/NVIDIA/apex" in fix


def test_the_fix_for_swap_does_not_switch_it_off_for_good() -> None:
    memory = replace(healthy().memory, swap_total_bytes=2**33, swap_free_bytes=2**30)
    (one,) = [f for f in diagnose(replace(healthy(), memory=memory)) if f.id == "swap-used"]
    assert "swapon -a" in one.fix and "available" in one.fix


def test_a_little_that_was_swapped_out_long_ago_is_no_finding() -> None:
    memory = replace(healthy().memory, total_bytes=2**35, swap_total_bytes=2**31)
    for left, ids in ((2**31 - 2**29, []), (0, ["swap-used"])):
        seen = diagnose(replace(healthy(), memory=replace(memory, swap_free_bytes=left)))
        assert [one.id for one in seen if one.id == "swap-used"] == ids


def test_a_card_that_a_virtual_machine_has_fails_no_machine_with_others() -> None:
    device = pci_device("0000:09:00.0", "10de:2684", driver="vfio-pci")
    (one,) = [f for f in diagnose(replace(healthy(), pci_gpus=(device,))) if "vfio" in f.evidence]
    assert one.severity == "warning"


# ---- the kernel's log

XID = "NVRM: Xid (PCI:0000:01:00): "


def test_a_log_file_is_read_from_the_last_boot_on() -> None:
    log = f"kernel: {XID}79, fallen off\nkernel: Linux version 6.8.0-47-generic\nkernel: usb 1-1"
    absent = dict.fromkeys(("dmesg", "journalctl"), "ABSENT")
    host = build("desktop", {"commands": absent, "files": {"/var/log/kern.log": log}})
    assert kernel_events(host) == ()
    again = build(
        "desktop",
        {"commands": absent, "files": {"/var/log/kern.log": f"{log}\nkernel: {XID}79, off"}},
    )
    events = kernel_events(again)
    assert not isinstance(events, Missing) and [one.code for one in events] == [79]


@pytest.mark.parametrize(
    ("lines", "severity"),
    [
        (["154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"], "error"),
        (
            [
                "154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
                "154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
            ],
            None,
        ),
        (["145, RLW_SRC_TRACK Nonfatal XC0 i0 Link 08"], "warning"),
        (["150, MSE_ERROR Fatal XC0 i0 Link 00"], "error"),
    ],
)
def test_what_an_xid_s_line_says_counts(lines: list[str], severity: str | None) -> None:
    log = "\n".join(f"[  1.0] {XID}{line}" for line in lines)
    snapshot = inspect(build("desktop", {"commands": {"dmesg": log}}), with_health=True)
    own = [one for one in diagnose(snapshot) if one.id.startswith("xid-")]
    assert [one.severity for one in own] == ([severity] if severity else [])
    assert all("Reset Required" in one.evidence for one in own if "154" in one.evidence)


def test_equal_lines_keep_the_latest() -> None:
    (event,) = parse_kernel_log(f"{XID}31, first\n{XID}31, second")
    assert event.count == 2 and event.text.endswith("second")


def test_machine_checks_are_seen_where_the_memory_controller_counts_nothing() -> None:
    (check,) = [one for one in CHECKS if one.id == "kernel-log"]
    log = "[ 1.0] mce: [Hardware Error]: CPU 1: Machine Check: 0 Bank 5: bea0000000000108"
    assert "desktop" in bases()
    snapshot = inspect(build("desktop", {"commands": {"dmesg": log}}), with_health=True)
    assert isinstance(snapshot.health, Missing) is False
    assert not isinstance(check.needs(snapshot), Missing)
    assert "machine-check" in [one.id for one in diagnose(snapshot)]


def test_a_pipe_or_device_that_a_command_line_names_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "frps.toml")
    read = ThisMachine().read(str(tmp_path / "frps.toml"))
    assert isinstance(read, Missing) and "not a file" in read.reason
    assert isinstance(ThisMachine().read("/dev/zero"), Missing)
