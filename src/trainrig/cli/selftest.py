"""``trainrig selftest``: plant a fault below every check, and see that it is found."""

from __future__ import annotations

import click

from trainrig.cli.verb import json_option, option, verb


@verb()
@option(
    "--only",
    metavar="WORD",
    multiple=True,
    default_text="all",
    help="A family (doctor), a check (doctor.pcie), the id of a finding, or the beginning of a "
    "fault's name; may be repeated.",
)
@option(
    "--clean-runs",
    type=click.IntRange(0, 1000),
    default=5,
    help="How often every healthy twin is looked at.",
)
@option(
    "--seed",
    type=click.IntRange(0, 2**32),
    default_text="drawn, and printed",
    help="Seed of the random places in which faults are planted.",
)
@option("--list", "as_list", is_flag=True, help="List the faults and plant none.")
@json_option()
def command(
    only: tuple[str, ...], clean_runs: int, seed: int | None, as_list: bool, as_json: bool
) -> int:
    """Does trainrig see what it should?  Plants a fault below each check, and looks.

    \b
    trainrig selftest
    trainrig selftest --only doctor.pcie --only burn
    trainrig selftest --json

    A flipped bit, an x8 link, a hung rank, a full disk ...: each is planted where the
    check cannot know of it, in tensors, files, processes, drivers' answers, at random
    places and 10 % beyond each threshold.  What counts is the outcome: verdict, exit
    code, severity.  Healthy twins, 10 % inside, must raise nothing.  Changes nothing on
    this machine.  Exit code 1 where a fault was missed or a healthy twin accused, else 0.
    """
    import random

    from trainrig.cli.output import answer
    from trainrig.errors import EXIT_FINDING, EXIT_OK
    from trainrig.selftest.page import listed, selftest_document
    from trainrig.selftest.registry import all_faults
    from trainrig.selftest.run import run_all

    if as_list:
        faults = [fault for check_faults in all_faults(only).values() for fault in check_faults]
        rows = [{"fault": fault.name, "check": fault.check} for fault in faults]
        answer(as_json, lambda: {"faults": rows}, lambda: listed(faults), schema="selftest-list")
        return EXIT_OK
    seed = random.SystemRandom().randrange(10**6) if seed is None else seed
    result = run_all(only, clean_runs, watch=_print_caught, seed=seed)
    answer(as_json, result.to_dict, lambda: selftest_document(result))
    return EXIT_OK if result.is_sound else EXIT_FINDING


def _print_caught(event: object) -> None:
    """Print a missed fault at once; on a terminal also a caught one."""
    import sys

    from trainrig.cli.output import say
    from trainrig.selftest.registry import Alarm, FaultResult

    if isinstance(event, Alarm):
        say(f"FALSE ALARM {event.check}: {event.message}", err=True)
    elif isinstance(event, FaultResult) and event.caught is False:
        say(f"MISSED {event.check}: {event.fault}: {event.reason}", err=True)
    elif isinstance(event, FaultResult) and sys.stderr.isatty():
        click.echo(f"\r\x1b[2K{event.check}: {event.fault}"[:79], err=True, nl=False)
