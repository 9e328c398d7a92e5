"""`trainrig inspect`: one JSON object or a table, with names, findings, and no torch."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest
from click.testing import CliRunner, Result

from machine_fakes import gpu, healthy, pci_device, with_gpu
from trainrig import machine
from trainrig.cli.inspect import chip_names, command
from trainrig.errors import UsageError
from trainrig.machine import Missing, Snapshot, from_dict
from trainrig.machine.snapshot import Disk, Mount
from trainrig.report.document import Paragraph, Section
from trainrig.report.machine_report import machine_document, machine_rows


@pytest.fixture
def inspect(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Run the verb on a machine that is given."""

    def run(snapshot: Snapshot, *arguments: str) -> Result:
        monkeypatch.setattr(machine, "inspect", lambda **_: snapshot)
        return CliRunner().invoke(command, arguments, catch_exceptions=False)

    return run


def cells(snapshot: Snapshot) -> str:
    rows = machine_rows(snapshot, chip_names(snapshot))
    return "\n".join(" ".join([title, *row]) for title, section in rows for row in section)


def test_json_is_one_object_with_names_and_findings(inspect) -> None:  # type: ignore[no-untyped-def]
    snapshot = with_gpu(healthy(), power_limit_w=300.0)
    found = json.loads(inspect(snapshot, "--json").stdout)
    assert found.pop("chips") == {"10de:2684": "RTX 4090"}
    ids = [finding["id"] for finding in found.pop("findings")]
    assert "power-limit-below-default" in ids
    assert found.pop("schema") == "trainrig.command/1"  # what a run stores has a number of its own
    assert from_dict({"schema": 1, **found}) == snapshot


def test_table_names_the_cards_and_says_what_to_do(inspect) -> None:  # type: ignore[no-untyped-def]
    done = inspect(with_gpu(healthy(), power_limit_w=300.0))
    assert done.exit_code == 0
    assert "NVIDIA GeForce RTX 4090 (catalog: RTX 4090)" in done.stdout
    assert "sudo nvidia-smi -i 0 -pl 450" in done.stdout


def test_a_card_without_a_driver_is_named_by_its_id() -> None:
    bare = dataclasses.replace(
        healthy(0),
        pci_gpus=(pci_device("0000:01:00.0", "10de:2684", driver=None),),
        gpus=Missing("NVML: driver not loaded"),
    )
    shown = cells(bare)
    assert "RTX 4090 (10de:2684), no driver" in shown
    assert "unknown (NVML: driver not loaded)" in shown


def test_values_that_are_missing_are_shown_with_their_reason() -> None:
    snapshot = with_gpu(healthy(1), name=Missing("NVML: gpu is lost"), power_w=Missing("x"))
    shown = cells(snapshot)
    assert "unknown (NVML: gpu is lost)" in shown
    assert "? of 450 W" in shown


def test_markup_in_a_name_is_text(inspect) -> None:  # type: ignore[no-untyped-def]
    assert "[bold]odd[/bold]" in inspect(with_gpu(healthy(1), name="[bold]odd[/bold]")).stdout


def test_a_disk_with_dozens_of_mounts_takes_one_line() -> None:
    paths = ["/", "/boot", *(f"/var/lib/pods/{number}/volume" for number in range(40))]
    mounts = tuple(
        Mount(path=path, filesystem="ext4", size_bytes=1, available_bytes=1) for path in paths
    )
    disk = Disk(
        name="vda",
        model="Example",
        size_bytes=2 * 10**12,
        rotational=True,
        transport="sata",
        mounts=mounts,
    )
    shown = cells(dataclasses.replace(healthy(), disks=(disk,)))
    assert "2.00 TB, Example, sata, rotating, / /boot" in shown
    assert "and 38 more" in shown


def test_no_findings_is_said() -> None:
    blocks = machine_document(healthy(), {}, ()).blocks
    assert blocks[-1] == Section("Findings", (Paragraph("no findings"),))


@pytest.mark.parametrize("wait", ["0", "-1", "nan", "x", "1e9", ""])
def test_absurd_waits_are_refused(wait: str) -> None:
    with pytest.raises(UsageError, match="not a duration"):
        CliRunner().invoke(command, ["--wait", wait], catch_exceptions=False)


def test_idle_is_not_shown_as_held_down() -> None:
    assert "held down" not in cells(with_gpu(healthy(1), throttle_reasons=("idle",)))
    assert "held down by: hw_slowdown" in cells(
        with_gpu(healthy(1), throttle_reasons=("idle", "hw_slowdown"))
    )


def test_the_real_command_prints_one_object_and_loads_no_torch() -> None:
    program = (
        "import sys; sys.argv = ['trainrig', 'inspect', '--json']\n"
        "from trainrig.cli.main import cli\n"
        "cli.main(standalone_mode=False)\n"
        "heavy = {'torch', 'numpy', 'scipy', 'altair'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["schema"] == "trainrig.inspect/1" and "findings" in found


def test_gpu_lines_stay_short_enough_for_a_terminal() -> None:
    rows = dict(machine_rows(healthy(1), {}))["GPUs"]
    assert rows[0] == ("0", gpu().name)
    assert all(len(value) <= 100 for _, value in rows)
