"""`trainrig inspect`: what this machine is, and what is wrong with it at a glance."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer

import click

from trainrig.cli.verb import TIME, json_option, option, verb
from trainrig.machine.nvidia import PATIENCE_S
from trainrig.machine.snapshot import Snapshot

_MOST_PATIENCE_S = 3600.0
# A healthy machine answers within this time.
_SILENCE_S = 2.0


@verb()
@json_option()
@option(
    "--wait",
    type=TIME,
    default=f"{PATIENCE_S:g}s",
    help="How long NVIDIA's driver may take to answer.",
)
def command(as_json: bool, wait: float) -> None:
    """Show what this machine is: processor, memory, disks, GPUs, software.

    \b
    trainrig inspect

    What nvidia-smi, lscpu, lsblk, dmidecode and smartctl say, in one place.  Looks and
    changes nothing; needs no torch and no root.  Memory modules (dmidecode) and the
    health of disks (smartctl) are shown to root alone.
    """
    from trainrig.cli.output import answer
    from trainrig.doctor import diagnose
    from trainrig.machine import inspect, to_dict
    from trainrig.report.machine_report import machine_document

    patience = min(wait, _MOST_PATIENCE_S)
    with _wait_note(patience):
        snapshot = inspect(patience_s=patience)
    findings, chips = diagnose(snapshot), chip_names(snapshot)
    answer(
        as_json,
        lambda: {
            **to_dict(snapshot),
            "chips": chips,
            "findings": [dataclasses.asdict(finding) for finding in findings],
        },
        lambda: machine_document(snapshot, chips, findings),
    )


@contextmanager
def _wait_note(patience: float) -> Iterator[None]:
    """Return a line on stderr where the machine does not answer at once."""
    words = f"waiting for the machine's drivers, up to {patience:g} s"
    timer = Timer(_SILENCE_S, click.echo, [words], {"err": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def chip_names(snapshot: Snapshot) -> dict[str, str]:
    """PCI id → the catalog's name, for the ids that it knows."""
    from trainrig.catalog.lookup import chip_by_pci_id
    from trainrig.machine import value_or

    ids = [device.pci_id for device in value_or(snapshot.pci_gpus, ())]
    ids += [value_or(gpu.pci_id, "") for gpu in value_or(snapshot.gpus, ())]
    chips = {pci_id: chip_by_pci_id(pci_id) for pci_id in ids}
    return {pci_id: chip.name for pci_id, chip in chips.items() if chip is not None}
