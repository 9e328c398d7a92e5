"""``trainrig metrics``: what this machine does now, for Prometheus."""

from __future__ import annotations

from pathlib import Path

import click

from trainrig.cli.verb import PATH, json_option, option, verb


@verb()
@option("--port", type=click.IntRange(0, 65535), default=9835, help="Port; 0 takes a free one.")
@option(
    "--bind",
    metavar="ADDRESS",
    default="127.0.0.1",
    help="Address to answer on; beyond loopback a token is needed.",
)
@option(
    "--token-file",
    type=PATH,
    default_text="none",
    help="File of mode 600 with the token that every request must bear.",
)
@option("--once", is_flag=True, help="Print the metrics once and serve nothing.")
@json_option("Print where it answers as one JSON object, then serve.")
def command(port: int, bind: str, token_file: Path | None, once: bool, as_json: bool) -> int:
    """Serve sensors, trainings and burns to Prometheus, on loopback.

    \b
    trainrig metrics
    trainrig metrics --once
    trainrig metrics --bind 0.0.0.0 --token-file ~/.config/trainrig/token

    Temperature, power, clocks, errors of each device; tokens a second and loss of
    the training that runs; rate and errors of a burn.  Units are in the names, by
    Prometheus' conventions.  Ctrl-C ends it.  Needs prometheus_client:
    pip install 'trainrig[metrics]'.
    """
    from trainrig.cli import output
    from trainrig.errors import EXIT_OK
    from trainrig.remote.setups import read_secret
    from trainrig.runner.progress import interrupted_once
    from trainrig.watch.live import LiveWatch
    from trainrig.watch.prometheus import address_of, open_server, registry_of, text_of

    token = read_secret(token_file, "token") if token_file is not None else None
    watch = LiveWatch()
    registry = registry_of(watch.look)
    if once:
        click.echo(text_of(registry), nl=False)
        return EXIT_OK
    server = open_server(registry, port, bind, token)
    if as_json:
        output.print_json({"url": address_of(server), "token": token is not None})
    else:
        output.say(f"metrics at {address_of(server)}; Ctrl-C ends", err=True)
    try:
        with interrupted_once():
            server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        output.say("metrics ended", err=True)
    finally:
        server.server_close()
    return EXIT_OK
