"""The script of `trainrig env` in a fresh Debian: run, run again, undone, as far as no GPU allows.

debootstrap makes the root folder, the script runs in it by chroot in a mount and process namespace
of its own.  The driver's step finds no card and says so; torch's gigabytes are left out.  Packages
come from wherever this machine's apt is set up to take them from.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.acceptance, pytest.mark.needs("debootstrap", "unshare", "chroot")]

WITHOUT_GPU = "system packages nouveau updates driver python"


def mirror() -> str:
    """The Debian mirror of this machine's apt."""
    files = [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")]
    text = "\n".join(path.read_text() for path in files if path.is_file())
    found = re.search(r"^(?:deb .*?|URIs: *)(\S+://\S+/debian/?)(?: |$)", text, re.MULTILINE)
    if found is None or os.getuid() != 0:
        pytest.skip("needs root and apt with a Debian mirror")
    return found[1]


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fresh") / "root"
    command = ["debootstrap", "--variant=minbase", "bookworm", str(folder), mirror()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"needs a mirror that answers: {done.stdout.strip().splitlines()[-1:]}")
    shutil.copy("/etc/resolv.conf", folder / "etc" / "resolv.conf")
    return folder


def inside(root: Path, command: str) -> subprocess.CompletedProcess[str]:
    """A command in the folder as a system of its own; no mount or process outlives it."""
    words = ["unshare", "--mount", "--pid", "--fork", f"--mount-proc={root}/proc", "chroot"]
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C"}
    return subprocess.run(
        [*words, str(root), "bash", "-c", command],
        capture_output=True,
        text=True,
        check=False,
        env=env,
    )


def packages(root: Path) -> set[str]:
    done = inside(root, "dpkg-query -W -f '${Package} ${db:Status-Status}\\n'")
    return {line.split()[0] for line in done.stdout.splitlines() if line.endswith(" installed")}


def test_the_script_gets_as_far_as_it_says_and_takes_it_back(fresh: Path, trainrig) -> None:
    out = fresh / "root" / "env.sh"
    code, _, err = trainrig("env", "--os", "debian12", "--on", "RTX-4090", "--out", str(out))
    assert code == 0, err
    before = packages(fresh)

    first = inside(fresh, f"bash /root/env.sh {WITHOUT_GPU}")
    assert first.returncode == 0, first.stderr[-2000:]
    assert "no NVIDIA GPU is on the PCI bus: the driver is left out" in first.stdout
    assert first.stdout.rstrip().endswith(f"== done: {WITHOUT_GPU}")
    assert "blacklist nouveau" in (fresh / "etc/modprobe.d/trainrig-nouveau.conf").read_text()
    config = inside(fresh, "apt-config dump Unattended-Upgrade::Package-Blacklist")
    assert '"^nvidia-"' in config.stdout
    assert inside(fresh, "/root/trainrig-env/bin/python -m pip --version && c++ --version").stdout
    changes = (fresh / "var/lib/trainrig-env/changes").read_text()
    assert "package build-essential\n" in changes and "environment /root/trainrig-env\n" in changes

    again = inside(fresh, f"bash /root/env.sh {WITHOUT_GPU}")
    assert again.returncode == 0, again.stderr[-2000:]
    assert "wrote " not in again.stdout and "Unpacking" not in again.stdout
    assert again.stdout.count("as it should be") == 2 and "it is there: Python" in again.stdout
    assert (fresh / "var/lib/trainrig-env/changes").read_text() == changes

    torch = inside(fresh, "PIP_INDEX=file:///nowhere bash /root/env.sh torch")
    assert torch.returncode == 1 and "nowhere" in torch.stdout + torch.stderr

    undone = inside(fresh, "bash /root/env.sh undo")
    assert undone.returncode == 0, undone.stderr[-2000:]
    for path in (
        "root/trainrig-env",
        "var/lib/trainrig-env",
        "etc/modprobe.d/trainrig-nouveau.conf",
    ):
        assert not (fresh / path).exists(), path
    named = {line.split()[1] for line in changes.splitlines() if line.startswith("package ")}
    assert before <= packages(fresh) and not named & packages(fresh)


def test_a_script_for_another_system_stops_at_once(fresh: Path, trainrig) -> None:
    out = fresh / "root" / "other.sh"
    trainrig("env", "--os", "ubuntu24", "--on", "RTX-4090", "--out", str(out))
    done = inside(fresh, "bash /root/other.sh")
    assert (
        done.returncode == 1 and "this is debian 12, the script is for ubuntu 24.04" in done.stderr
    )
    assert not (fresh / "var/lib/trainrig-env").exists()
