"""``trainrig top``: what this machine does now, again and again."""

from __future__ import annotations

import click

from trainrig.cli.verb import TIME, json_option, option, verb

_SHORTEST_S, _LONGEST_S = 0.2, 60.0


@verb()
@option("--interval", type=TIME, default="1s", help="Time between two looks: 500ms, 2s, 1m.")
@option("--once", is_flag=True, help="One look as text, as where stdout is no terminal.")
@json_option("One look as one JSON object on stdout.")
def command(interval: float, once: bool, as_json: bool) -> int:
    """Watch devices, processes, and the training or burn that runs.

    \b
    trainrig top
    trainrig top --once
    trainrig top --json

    What nvidia-smi and top show, and what runs behind it: use, temperature, power,
    clocks and what holds them down; runs that are being written on this machine with
    their rate, loss or errors; their processes.  Reads, and changes nothing.  q ends
    it, p pauses.  The screen needs textual: pip install 'trainrig[top]'.
    """
    import sys
    import time

    from trainrig.cli import output
    from trainrig.errors import EXIT_OK, UnavailableError, UsageError
    from trainrig.units import duration_text
    from trainrig.watch.lines import plain_lines
    from trainrig.watch.live import LiveWatch

    if not _SHORTEST_S <= interval <= _LONGEST_S:
        raise UsageError(f"--interval {duration_text(interval)} is out of range", "200ms to 1m")
    if not (as_json or once) and sys.stdout.isatty():
        try:
            from trainrig.watch.screen import Top
        except ModuleNotFoundError:
            hint = "pip install 'trainrig[top]'; without it: trainrig top --once"
            raise UnavailableError("textual is not installed", hint) from None
        Top(LiveWatch(), interval).run()
        return EXIT_OK
    watch = LiveWatch()
    watch.look()
    time.sleep(min(interval, 1.0))  # shares are of the time between two looks
    view = watch.look()
    if as_json:
        output.print_json(view.to_dict())
    else:
        for line in plain_lines(view):
            click.echo(line)
    return EXIT_OK
