"""``trainrig doctor``: what is wrong with this machine, and how to put it right."""

from __future__ import annotations

from pathlib import Path

import click

from trainrig.cli.verb import PATH, json_option, option, verb

# A driver that has not answered by then is a finding itself.
_PATIENCE_S = 2.5


@verb()
@click.argument("file", nargs=-1, type=PATH)
@option("--markdown", "as_markdown", is_flag=True, help="Markdown on stdout.")
@option(
    "--apply",
    is_flag=True,
    help="Carry out fixes that need no root and can be undone; undo what did not help.",
)
@option(
    "--runs",
    type=PATH,
    default=Path("runs"),
    help="Folder of earlier runs: their GPUs, and what crashed.",
)
@json_option()
def command(
    file: tuple[Path, ...], as_markdown: bool, apply: bool, runs: Path, as_json: bool
) -> int:
    """Find what is wrong with a machine, and how to put it right.

    \b
    trainrig doctor
    trainrig doctor --markdown > doctor.md
    trainrig doctor --apply
    trainrig doctor dmesg.txt nvidia-bug-report.log.gz
    ssh host sudo dmesg | trainrig doctor -

    Looks at bus, driver (nouveau in its place, nvidia-smi without an answer),
    software (CUDA_VISIBLE_DEVICES), GPUs, links, host (memory modules by dmidecode,
    disks by smartctl, NUMA nodes by numactl), network, what listens, and what
    crashed.  Each finding has its cause, its risk, the exact fix, whether that
    needs a reboot, and how to undo it.  Needs no root and changes nothing without
    --apply.  With FILE it reads what another machine printed (dmesg, journalctl -k,
    nvidia-smi -q, lspci -vvv, dmidecode, smartctl, lsblk -J, nvidia-bug-report.log.gz,
    a folder or tar of them; - is standard input): the same checks on what they hold.
    Exit code 1 where something is at fault, else 0.
    """
    import os

    from trainrig.cli.output import answer, say
    from trainrig.doctor import Answer, answers, answers_of_files, what_root_adds
    from trainrig.doctor.remedy import apply_remedies
    from trainrig.errors import EXIT_FINDING, EXIT_OK, DataError, UsageError
    from trainrig.machine import Missing, inspect
    from trainrig.report.doctor_report import doctor_document, to_dict
    from trainrig.report.render.markdown import to_markdown
    from trainrig.runner.earlier_runs import with_history
    from trainrig.runner.elsewhere import snapshot_of

    if as_json and as_markdown:
        raise UsageError("--json and --markdown are two forms of one answer", "choose one")

    if file and apply:
        raise UsageError("--apply changes this machine; FILE is of another", "leave one out")
    notes: tuple[str, ...] = ()

    def look() -> tuple[Answer, ...]:
        nonlocal notes
        if file:
            machine = snapshot_of(file)
            notes = machine.notes
            of_files = answers_of_files(machine.snapshot, machine.incomplete)
            if all(check.state == "not checkable" for check in of_files):
                lspci = "lspci -vvv, " if isinstance(machine.snapshot.pci_gpus, Missing) else ""
                raise DataError(
                    "; ".join(("no check is answered by what these files hold", *notes)),
                    f"add dmesg, nvidia-smi -q, {lspci}dmidecode, smartctl -x of that machine",
                )
            return of_files
        return answers(with_history(inspect(patience_s=_PATIENCE_S, with_health=True), runs))

    checks = look()
    changes: tuple[str, ...] = ()
    if apply:
        checks, changes = apply_remedies(checks, look)
    for note in notes:
        say(f"note: {note}", err=True)
    missed = () if file or os.geteuid() == 0 else what_root_adds(checks)
    if as_markdown:
        click.echo(to_markdown(doctor_document(checks, missed, changes)))
    else:
        answer(
            as_json,
            lambda: to_dict(checks, missed, changes),
            lambda: doctor_document(checks, missed, changes),
        )
    return (
        EXIT_FINDING if any(doctor_check.state == "fault" for doctor_check in checks) else EXIT_OK
    )
