"""Each probe on files and outputs in the formats that real machines print."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from machine_fakes import FakeHost, fixture
from trainrig.machine.amd import amd_gpus, parse_amd_smi, parse_rocm_smi
from trainrig.machine.cgroup import cpu_quota, memory_left, memory_limit, throttled_s
from trainrig.machine.cpu import cpu_info, lscpu_caches, lscpu_fields, physical_cores
from trainrig.machine.disks import disks, parse_lsblk
from trainrig.machine.memory import count_channels, has_several_nodes, memory_info, parse_dimms
from trainrig.machine.os_info import host_info
from trainrig.machine.pci import names_in_pci_ids, pci_gpus
from trainrig.machine.probes import inspect
from trainrig.machine.snapshot import Cache, Missing
from trainrig.machine.software import driver_version, find_packages, relevant, software
from trainrig.machine.system_access import COMMAND_TIMEOUT_S

DEVICES = "/sys/bus/pci/devices"


def reason(value: object) -> str:
    assert isinstance(value, Missing), value
    return value.reason


# --- the machine as a whole ---


def test_a_machine_that_tells_nothing_is_missing_everywhere_and_raises_nowhere() -> None:
    snapshot = inspect(FakeHost())
    assert isinstance(snapshot.cpu.model, Missing)
    assert isinstance(snapshot.memory.total_bytes, Missing)
    assert isinstance(snapshot.disks, Missing)
    assert isinstance(snapshot.pci_gpus, Missing)
    assert isinstance(snapshot.gpus, Missing)
    assert "lscpu is not installed" in reason(snapshot.cpu.cores)


@pytest.mark.parametrize(
    ("host", "kind"),
    [
        (FakeHost(files={"/.dockerenv": ""}), "docker"),
        (FakeHost(files={"/run/.containerenv": ""}), "podman"),
        (FakeHost(environment={"KUBERNETES_SERVICE_HOST": "10.0.0.1"}), "kubernetes"),
        (FakeHost(commands={"systemd-detect-virt --container": "lxc\n"}), "lxc"),
        (FakeHost(commands={"systemd-detect-virt --container": "none\n"}), "none"),
    ],
)
def test_container_kind(host: FakeHost, kind: str) -> None:
    assert host_info(host).container == kind


def test_a_machines_id_is_not_handed_on() -> None:
    uuid = "0123456789abcdef" * 2
    found = host_info(FakeHost(files={"/etc/machine-id": uuid + "\n"})).machine
    assert isinstance(found, str) and uuid not in found
    for files in ({"/etc/machine-id": "uninitialized"}, {}):
        assert isinstance(host_info(FakeHost(files=files)).machine, Missing)


def test_virtual_machine_from_the_hypervisor_flag_where_systemd_is_absent() -> None:
    seen = FakeHost(files={"/proc/cpuinfo": "flags\t: fpu hypervisor avx2"})
    assert host_info(seen).virtualization == "unknown hypervisor"
    assert host_info(FakeHost(files={"/proc/cpuinfo": "flags\t: fpu"})).virtualization == "none"
    assert (
        host_info(FakeHost(files={"/proc/version": "Linux 5.15 Microsoft"})).virtualization == "wsl"
    )


def test_os_name_without_quotes_and_with_a_broken_quote() -> None:
    named = FakeHost(files={"/etc/os-release": 'ID=x\nPRETTY_NAME="Example Linux 1"'})
    assert host_info(named).os == "Example Linux 1"
    broken = FakeHost(files={"/etc/os-release": 'PRETTY_NAME="Example Linux'})
    assert host_info(broken).os == "Example Linux"


# --- processors ---


def test_nested_lscpu() -> None:
    host = FakeHost(
        commands={
            "lscpu -J": fixture("lscpu_dual_socket.json"),
            "lscpu -J -B -C": fixture("lscpu_caches.json"),
        }
    )
    cpu = cpu_info(host)
    assert (cpu.sockets, cpu.cores, cpu.threads, cpu.numa_nodes) == (2, 32, 64, 2)
    assert cpu.max_clock_hz == 3.5e9
    assert cpu.base_clock_hz == 2.4e9
    assert cpu.flags == ("fpu", "fma", "avx2", "avx512f", "constant_tsc")
    assert isinstance(cpu.caches, tuple)
    assert cpu.caches[1] == Cache(name="L2", total_bytes=41943040, instance_bytes=1310720)
    assert cpu.usable_threads == 4


def test_cpuinfo_stands_in_for_lscpu() -> None:
    cpu = cpu_info(FakeHost(files={"/proc/cpuinfo": fixture("cpuinfo_two.txt")}))
    assert cpu.model == "AMD Example 16-Core Processor"
    assert (cpu.sockets, cpu.cores, cpu.threads) == (1, 2, 2)
    assert cpu.base_clock_hz == 4.5e9  # half of bogomips, the time-stamp counter's rate
    assert cpu.clock_hz == 4e9  # the median of 3 and 5 GHz
    assert isinstance(cpu.caches, Missing)


def test_counter_rate_is_no_base_clock_where_it_is_not_constant() -> None:
    content = fixture("cpuinfo_two.txt").replace("constant_tsc", "tsc")
    assert isinstance(cpu_info(FakeHost(files={"/proc/cpuinfo": content})).base_clock_hz, Missing)


def test_caches_from_the_text_field_only_where_it_says_how_many() -> None:
    fields = {"Socket(s)": "1", "L2 cache": "4 MiB (8 instances)", "L3 cache": "8192K"}
    entries = [{"field": f"{name}:", "data": data} for name, data in fields.items()]
    cpu = cpu_info(FakeHost(commands={"lscpu -J": json.dumps({"lscpu": entries})}))
    assert cpu.caches == (Cache(name="L2", total_bytes=2**22, instance_bytes=2**19),)


def test_two_kinds_of_cores_keep_both_names() -> None:
    entries = [{"field": "Model name:", "data": name} for name in ("Cortex-A", "Cortex-X")]
    fields = lscpu_fields(json.dumps({"lscpu": entries}))
    assert isinstance(fields, dict) and fields["Model name"] == "Cortex-A + Cortex-X"


def test_cores_by_threads_where_there_are_no_sockets() -> None:
    assert physical_cores({"CPU(s)": "8", "Thread(s) per core": "2", "Socket(s)": "-"}) == 4
    assert isinstance(physical_cores({"CPU(s)": "8", "Thread(s) per core": "0"}), Missing)


@pytest.mark.parametrize("output", ["", "{}", "[]", "null", '{"lscpu": 3}', "{" * 100_000])
def test_lscpu_that_says_nonsense(output: str) -> None:
    assert isinstance(lscpu_fields(output), Missing)
    assert isinstance(lscpu_caches(output), Missing)


# --- control groups ---


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"/sys/fs/cgroup/box/cpu.max": "150000 100000"}, 1.5),
        (
            {"/sys/fs/cgroup/box/cpu.max": "max 100000", "/sys/fs/cgroup/cpu.max": "400000 100000"},
            4.0,
        ),
        ({"/sys/fs/cgroup/box/cpu.max": "max 100000"}, None),
        ({"/sys/fs/cgroup/box/cpu.max": "rubbish"}, None),
        ({"/sys/fs/cgroup/box/cpu.max": "100000 0"}, None),
    ],
)
def test_cpu_quota_v2(files: dict[str, str], quota: float | None) -> None:
    assert cpu_quota(FakeHost(files={"/proc/self/cgroup": "0::/box", **files})) == quota


def test_the_tightest_quota_on_the_way_to_the_root_counts() -> None:
    files = {
        "/sys/fs/cgroup/box/cpu.max": "300000 100000",
        "/sys/fs/cgroup/cpu.max": "200000 100000",
    }
    assert cpu_quota(FakeHost(files={"/proc/self/cgroup": "0::/box", **files})) == 2.0


def test_limits_v1() -> None:
    host = FakeHost(
        files={
            "/proc/self/cgroup": "4:memory:/box\n3:cpu,cpuacct:/box",
            "/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us": "250000",
            "/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us": "100000",
            "/sys/fs/cgroup/cpu,cpuacct/box/cpu.stat": "nr_throttled 3\nthrottled_time 2500000000",
            "/sys/fs/cgroup/memory/box/memory.limit_in_bytes": "1073741824",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        }
    )
    assert cpu_quota(host) == 2.5
    assert memory_limit(host) == 2**30
    assert throttled_s(host) == 2.5


def test_what_a_group_may_still_take() -> None:
    """Pages of files are not lost: of 1 GiB 700 MiB are used, 200 MiB of them such pages."""
    used = {"memory.current": 700 << 20, "memory.max": 1 << 30}
    files = {f"/sys/fs/cgroup/box/{name}": str(value) for name, value in used.items()}
    files["/sys/fs/cgroup/box/memory.stat"] = f"anon 1\ninactive_file {200 << 20}"
    files["/sys/fs/cgroup/memory.max"] = "max"
    host = FakeHost(files={"/proc/self/cgroup": "0::/box", **files})
    assert memory_left(host) == (1 << 30) - (500 << 20)
    assert memory_left(FakeHost(files={"/proc/self/cgroup": "0::/"})) is None
    assert isinstance(memory_left(FakeHost()), Missing)


def test_no_control_group_is_unknown_not_unlimited() -> None:
    assert isinstance(cpu_quota(FakeHost()), Missing)
    assert isinstance(memory_limit(FakeHost()), Missing)


# --- memory ---


def test_memory_of_two_channels() -> None:
    host = FakeHost(
        files={
            "/proc/meminfo": fixture("meminfo.txt"),
            "/sys/devices/system/node/node0/meminfo": "Node 0 MemTotal:  1024 kB",
            "/sys/devices/system/node/node0/cpulist": "0-3",
        },
        commands={"dmidecode -t 17": fixture("dmidecode_two_channels.txt")},
    )
    memory = memory_info(host)
    assert memory.total_bytes == 65536000 * 1024
    assert isinstance(memory.dimms, tuple) and len(memory.dimms) == 2
    assert memory.dimms[0].size_bytes == memory.dimms[1].size_bytes == 32 * 2**30
    assert memory.speed_mt_per_s == 4800.0  # what they run at, not what they are sold for
    assert memory.channels == 2
    assert isinstance(memory.nodes, tuple) and memory.nodes[0].total_bytes == 2**20
    assert memory.nodes[0].cpus == "0-3"


def test_several_nodes_are_seen() -> None:
    nodes = [f"/sys/devices/system/node/node{number}/cpulist" for number in (0, 1)]
    assert has_several_nodes(FakeHost(files=dict.fromkeys(nodes, "0")))
    assert not has_several_nodes(FakeHost(files={nodes[0]: "0"}))
    assert not has_several_nodes(FakeHost())


def test_numbered_slots_leave_channels_unknown() -> None:
    dimms = parse_dimms(fixture("dmidecode_numbered.txt"))
    assert "names no channel" in reason(count_channels(dimms))
    assert isinstance(dimms, tuple) and dimms[0].rated_mt_per_s == 3200.0


def test_the_last_letter_of_dimm_is_no_channel() -> None:
    content = fixture("dmidecode_two_channels.txt").replace("DIMM_A2", "DIMM1")
    assert reason(count_channels(parse_dimms(content))) == "the locator 'DIMM1' names no channel"


def test_without_root_the_reason_is_what_dmidecode_said() -> None:
    memory = memory_info(FakeHost())
    assert reason(memory.dimms) == reason(memory.channels) == "dmidecode is not installed"


# --- disks ---


def test_disks() -> None:
    found = disks(FakeHost(commands={"lsblk -J -b -O": fixture("lsblk.json")}))
    assert isinstance(found, tuple)
    assert [disk.name for disk in found] == ["nvme0n1", "sda", "vda"]
    fast, slow, virtual = found
    assert [mount.path for mount in fast.mounts] == ["/boot/efi", "/", "/home"]
    assert fast.mounts[0].size_bytes == 535805952
    assert (fast.rotational, slow.rotational) == (False, True)
    assert slow.model == "Example HDD" and slow.size_bytes == 8001563222016
    assert isinstance(virtual.rotational, Missing)


@pytest.mark.parametrize("output", ["", "[]", '{"blockdevices": {}}', '{"blockdevices": "x"}'])
def test_lsblk_that_says_nonsense(output: str) -> None:
    assert isinstance(parse_lsblk(output), Missing)


# --- PCI ---


def device(address: str, pci_class: str, vendor: str, model: str) -> dict[str, str]:
    files = {"class": pci_class, "vendor": vendor, "device": model}
    return {f"{DEVICES}/{address}/{name}": value for name, value in files.items()}


def test_gpus_on_the_bus_without_a_driver() -> None:
    card = f"{DEVICES}/0000:01:00.0"
    port = "/sys/devices/pci0000:00/0000:00:01.1"
    host = FakeHost(
        files={
            **device("0000:01:00.0", "0x030000", "0x10de", "0x2684"),
            **device("0000:01:00.1", "0x040300", "0x10de", "0x22ba"),  # its sound
            **device("0000:02:00.0", "0x030000", "0x1a03", "0x2000"),  # a management chip
            **device("0000:03:00.0", "0x120000", "0x19e5", "0xd802"),  # an accelerator
            f"{card}/current_link_speed": "2.5 GT/s PCIe",
            f"{card}/max_link_speed": "16.0 GT/s PCIe",
            f"{card}/current_link_width": "8",
            f"{card}/max_link_width": "16",
            f"{port}/max_link_width": "8",
            "/usr/share/misc/pci.ids": "10de  NVIDIA\n\t2684  AD102\n\t\t1043 889a  x\n1a03  A\n",
        },
        links={card: f"{port}/0000:01:00.0"},
    )
    found = pci_gpus(host)
    assert isinstance(found, tuple)
    gpu, accelerator = found
    assert (gpu.pci_id, gpu.driver, gpu.name) == ("10de:2684", None, "AD102")
    assert (gpu.link.generation, gpu.link.max_generation) == (1, 4)
    assert (gpu.link.width, gpu.link.max_width, gpu.slot.max_width) == (8, 16, 8)
    assert accelerator.pci_id == "19e5:d802" and isinstance(accelerator.name, Missing)


def test_a_bound_driver_is_named() -> None:
    card = f"{DEVICES}/0000:01:00.0"
    host = FakeHost(
        files=device("0000:01:00.0", "0x030200", "0x10de", "0x20b5"),
        links={f"{card}/driver": "/sys/bus/pci/drivers/nouveau"},
    )
    found = pci_gpus(host)
    assert isinstance(found, tuple) and found[0].driver == "nouveau"


@pytest.mark.parametrize("speed", ["Unknown", "", "2.5e9 GT/s", "17 GT/s"])
def test_an_unknown_link_speed_is_missing(speed: str) -> None:
    files = device("0000:01:00.0", "0x030200", "0x10de", "0x20b5")
    files[f"{DEVICES}/0000:01:00.0/current_link_speed"] = speed
    files[f"{DEVICES}/0000:01:00.0/current_link_width"] = "255"
    found = pci_gpus(FakeHost(files=files))
    assert isinstance(found, tuple)
    assert isinstance(found[0].link.generation, Missing)
    assert isinstance(found[0].link.width, Missing)


def test_names_in_pci_ids_do_not_cross_vendors() -> None:
    content = "10de  NVIDIA\n\t0001  one\nC 03  Display\n\t0001  class\n1002  AMD\n\t0001  other\n"
    wanted = {"10de:0001", "1002:0001"}
    assert names_in_pci_ids(content, wanted) == {"10de:0001": "one", "1002:0001": "other"}


# --- AMD ---


def test_rocm_smi() -> None:
    found = parse_rocm_smi(fixture("rocm_smi_two.json"))
    assert isinstance(found, tuple)
    odd, sound = found
    assert sound.pci_id == "1002:740f" and sound.pci_address == "0000:83:00.0"
    assert sound.memory.total_bytes == 68702699520
    assert (sound.power.draw_w, sound.power.limit_w) == (41.0, 300.0)
    assert sound.cooling.temperature_c == 45.0
    assert (sound.clocks.sm_hz, sound.link.generation, sound.link.width) == (8e8, 4, 16)
    assert sound.activity.utilization == 0.12
    blanks = (odd.memory.total_bytes, odd.activity.utilization, odd.clocks.sm_hz, odd.pci_address)
    assert all(isinstance(value, Missing) for value in blanks)


def test_amd_smi_in_both_wrappings() -> None:
    wrapped = fixture("amd_smi_static.json")
    bare = json.dumps(json.loads(wrapped)["gpu_data"])
    for output in (wrapped, bare):
        found = parse_amd_smi(output)
        assert isinstance(found, tuple)
        assert found[0].pci_id == "1002:74a1"
        assert found[0].memory.total_bytes == 196592 * 2**20
        assert found[0].link.max_generation == 5
        assert found[0].power.limit_max_w == 750.0


def test_rocm_smi_stands_in_for_amd_smi() -> None:
    host = FakeHost(commands={"rocm-smi -a --json": fixture("rocm_smi_two.json")})
    found = amd_gpus(host)
    assert isinstance(found, tuple) and len(found) == 2
    assert "rocm-smi is not installed" in reason(amd_gpus(FakeHost()))


# --- software ---


def test_torch_is_read_not_imported(tmp_path: Path) -> None:
    folder = tmp_path / "torch"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('imported')")
    version = folder / "version.py"
    version.write_text(
        "from typing import Optional\n__version__ = '9.9+cu999'\n"
        "cuda: Optional[str] = '99.9'\nhip: Optional[str] = None\n"
    )
    (tmp_path / "nvidia_nccl_cu12-2.27.3.dist-info").mkdir()
    (tmp_path / "secret_thing-1.0.dist-info").mkdir()
    host = FakeHost(files={str(version): version.read_text()})
    found = software(host, [str(tmp_path)])
    assert (found.torch, found.torch_cuda, found.torch_hip) == ("9.9+cu999", "99.9", None)
    assert found.nccl == "2.27.3"
    assert list(find_packages([str(tmp_path)])) == ["nvidia-nccl-cu12"]


@pytest.mark.parametrize("content", ["def", "\0", "x = " + "(" * 5000, "", "cuda = compute()"])
def test_a_broken_torch_is_missing(tmp_path: Path, content: str) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    host = FakeHost(files={str(tmp_path / "torch" / "version.py"): content})
    found = software(host, [str(tmp_path)])
    assert isinstance(found.torch, Missing) and isinstance(found.torch_cuda, Missing)


def test_no_torch(tmp_path: Path) -> None:
    assert reason(software(FakeHost(), [str(tmp_path)]).torch) == "torch is not installed"


def test_only_settings_that_bear_on_speed_are_read() -> None:
    environment = {"OMP_NUM_THREADS": "4", "NCCL_DEBUG": "INFO", "AWS_SECRET": "x", "HOME": "/"}
    environment |= {"HF_TOKEN": "secret", "NVIDIA_VISIBLE_DEVICES_TOKEN": "x", "MY_OMP_SECRET": "x"}
    assert relevant(environment) == {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "4"}


def test_driver_version_of_both_kernel_modules() -> None:
    closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  440.31  Sun Oct 27"
    opened = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build"
    assert driver_version(closed) == "440.31"
    assert driver_version(opened) == "570.86.15"
    assert isinstance(driver_version("NVRM version: none"), Missing)


def test_cuda_toolkit_from_its_file_then_from_nvcc() -> None:
    file = {"/usr/local/cuda/version.json": '{"cuda": {"version": "12.8.0"}}'}
    nvcc = {"nvcc --version": "Cuda compilation tools, release 12.4, V12.4.131"}
    assert software(FakeHost(files=file, commands=nvcc), []).cuda_toolkit == "12.8.0"
    assert software(FakeHost(commands=nvcc), []).cuda_toolkit == "12.4"
    assert reason(software(FakeHost(), []).cuda_toolkit) == "no CUDA toolkit found"


def test_nvcc_may_come_off_a_slow_disk() -> None:
    """It is part of the environment's digest: an unchanged machine has one digest."""

    class Slow(FakeHost):
        def run(
            self, *command: str, timeout_s: float = COMMAND_TIMEOUT_S, any_exit: bool = False
        ) -> str | Missing:
            if timeout_s < 5.0:
                return Missing(f"{command[0]} did not answer in {timeout_s:g} s")
            return super().run(*command, timeout_s=timeout_s, any_exit=any_exit)

    nvcc = {"nvcc --version": "Cuda compilation tools, release 12.4, V12.4.131"}
    assert software(Slow(commands=nvcc), []).cuda_toolkit == "12.4"
