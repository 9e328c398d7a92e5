"""`trainrig remote`: reach a machine from elsewhere, with nothing exposed that asks for no key."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trainrig.cli.output import say
from trainrig.cli.verb import DETACH, PATH, Verb, budget, json_option, option, options, rows
from trainrig.errors import EXIT_FINDING, EXIT_OK

if TYPE_CHECKING:
    from trainrig.remote.setups import Setup

_NAME = option("--name", default_text="by what it is", help="Name of the set-up.")
_CONFIG = option("--config", type=PATH, default_text="~/.ssh/config", help="OpenSSH's settings.")

_END = "This end"
_TLS = rows(
    "Which relay it is",
    ("--ca", PATH, "none: not verified", "Machine, visitor: certificate to verify the relay by."),
    ("--cert", PATH, "none", "Relay: its certificate (PEM)."),
    ("--key", PATH, "none", "Relay: the key of --cert, mode 600."),
)


@click.group()
def command() -> None:
    """Reach a machine from elsewhere, with nothing exposed without authentication."""


@command.command(cls=Verb, short_help="Forward a port of a host to this machine's loopback.")
@click.argument("host")
@option("--port", default="8888", metavar="PORT", help="PORT, or LOCAL:REMOTE.")
@option("--reverse", is_flag=True, help="A port of this machine on the host's loopback.")
@_NAME
@_CONFIG
@json_option()
def forward(
    host: str, port: str, reverse: bool, name: str | None, config: Path | None, as_json: bool
) -> int:
    """Write a supervised forward by OpenSSH; jump hosts are those of ~/.ssh/config.

    \b
    trainrig remote forward gpu1 --port 8888
    trainrig remote forward relay --port 2222:22 --reverse

    It is ssh -L that comes back when the line drops (ssh -R with --reverse).  Both
    ends are on loopback, and keys alone are taken.  Nothing is started: what
    starts it is printed.
    """
    from trainrig.remote import tunnels

    chosen = name or f"{tunnels.check_host(host).replace('@', '-').replace(':', '-')}-{port}"
    chosen = chosen.replace(":", "-")
    return _write(tunnels.forward(chosen, host, port, reverse=reverse, config=config), as_json)


@command.command(cls=Verb, short_help="A relay by frp, where no machine reaches the other.")
@option(
    "--role",
    type=click.Choice(["relay", "machine", "visitor"]),
    default="machine",
    group=_END,
    help="What this end is.",
)
@option(
    "--server",
    default_text="none",
    group=_END,
    help="The relay's address; not for the relay itself.",
)
@option("--server-port", type=int, default=7000, group=_END, help="The relay's port.")
@option("--port", type=int, default=8888, group=_END, help="Port on this end's loopback.")
@option(
    "--token-file",
    type=PATH,
    default=Path("~/.config/trainrig/frp.token"),
    group=_END,
    help="File of mode 600 with the token of all three.",
)
@option(
    "--secret-file",
    type=PATH,
    default=Path("~/.config/trainrig/frp.secret"),
    group=_END,
    help="File of mode 600 with the key of machine and visitor.",
)
@option(
    "--name", default="gpu", group=_END, help="Name of the proxy, alike on machine and visitor."
)
@options(_TLS)
@json_option()
def frp(role: str, as_json: bool, **given: Any) -> int:
    """Write frp's files: token, TLS, stcp with a secret key, no dashboard.

    \b
    trainrig remote frp --role relay
    trainrig remote frp --role machine --server relay.example --port 8888
    trainrig remote frp --role visitor --server relay.example --port 8888

    Nobody reaches the machine's port but a visitor with the secret key.  Without
    --ca nothing notices who poses as the relay: give it --cert and --key, and the
    others that certificate.  frp 0.64 or newer is the user's own; where it is
    installed, it checks the file.  Unverified: no test here has run frp itself.
    """
    from trainrig.errors import UsageError
    from trainrig.remote import tunnels

    token, secret = given["token_file"].expanduser(), given["secret_file"].expanduser()
    name, cert, key, ca = (given[word] for word in ("name", "cert", "key", "ca"))
    if role == "relay":
        if ca is not None:
            raise UsageError("--ca is for machine and visitor", "the relay takes --cert and --key")
        if (cert is None) != (key is None):
            raise UsageError("--cert and --key go together", "openssl req -x509 makes both")
        pair = None if cert is None or key is None else (cert, key)
        setup = tunnels.frp_server(f"{name}-relay", token, given["server_port"], pair)
    else:
        if given["server"] is None:
            raise UsageError("which relay?", "--server ADDRESS")
        if cert is not None or key is not None:
            raise UsageError("--cert and --key are for the relay", f"the {role} takes --ca")
        relay = tunnels.FrpRelay(
            server=given["server"], port=given["server_port"], token_file=token, ca=ca
        )
        make = tunnels.frp_machine if role == "machine" else tunnels.frp_visitor
        setup = make(name, relay, secret, given["port"])
    return _write(setup, as_json)


@command.command(cls=Verb, short_help="A tunnel by cloudflared that lets a team's members in.")
@option("--tunnel", default="trainrig", help="Name of the tunnel.")
@option("--hostname", required=True, default_text="none", help="Name under which it is reached.")
@option("--team", required=True, default_text="none", help="The team's name at Cloudflare.")
@option("--aud", required=True, default_text="none", help="Audience tag of the Access application.")
@option("--port", type=int, default=8888, help="Port on this machine's loopback.")
@_NAME
@json_option()
def cloudflared(
    tunnel: str, hostname: str, team: str, aud: str, port: int, name: str | None, as_json: bool
) -> int:
    """Write cloudflared's file, with an access policy, which is required.

    \b
    trainrig remote cloudflared --hostname gpu.example.com --team lab --aud TAG

    Who has not signed in is turned away at the edge, and again here.  Unverified:
    no test here has run cloudflared itself; where it is installed, it checks its file.
    """
    from trainrig.remote import tunnels

    return _write(tunnels.cloudflared(name or tunnel, tunnel, hostname, port, team, aud), as_json)


@command.command(cls=Verb, short_help="JupyterLab on loopback with its token.")
@option("--port", type=int, default=8888, help="Port on loopback.")
@option("--root", type=PATH, default=Path("."), help="Folder that it shows.")
@option("--python", default_text="the one that runs this", help="Python with JupyterLab.")
@option("--name", default="notebook", help="Name of the set-up.")
@json_option()
def notebook(port: int, root: Path, python: str | None, name: str, as_json: bool) -> int:
    """Write a set-up of JupyterLab that listens on loopback and asks for its token.

    \b
    trainrig remote notebook
    trainrig remote notebook --port 8890 --root ~/work

    It is reached through a forward, and no other way.  The token lies in a file of
    mode 600 and on no command line.
    """
    from trainrig.process.python_env import interpreter_for
    from trainrig.remote.notebook import notebook as make

    setup, _ = make(name, interpreter_for(python or "", "notebook"), port, root)
    return _write(setup, as_json)


def _write(setup: Setup, as_json: bool) -> int:
    """Write a set-up, let its program check it, and say what starts it."""
    from trainrig.cli import output
    from trainrig.remote.setups import remove_setup, setups_folder, start_commands, write_setup
    from trainrig.remote.tunnels import check_with

    files = write_setup(setup)
    try:
        checked = check_with(setup, setups_folder() / setup.name)
    except BaseException:
        remove_setup(setup.name)
        raise
    start = start_commands(setup.name)
    if as_json:
        about = {"name": setup.name, "kind": setup.kind, "reach": setup.reach}
        more = {"files": [str(path) for path in files], "start": start, "checked": checked}
        output.print_json({**about, **more, "notes": setup.notes})
        return EXIT_OK
    checks = [checked] if checked else []
    for line in (*(f"wrote {path}" for path in files), *checks, "", "start it:"):
        say(line)
    for line in start:
        say(f"  {line}")
    for line in ("", "reach it:", f"  {setup.reach}", *(f"  {note}" for note in setup.notes)):
        say(line)
    return EXIT_OK


@command.command("list", cls=Verb, short_help="What is set up here.")
@json_option()
def list_(as_json: bool) -> int:
    """List what is set up here to reach a machine, or to be reached.

    \b
    trainrig remote list

    Where each leads, and which files were written for it.
    """
    from trainrig.cli import output
    from trainrig.remote.setups import all_setups

    setups = all_setups()
    if as_json:
        columns = ("name", "kind", "reach", "files")
        output.print_json({"setups": [{key: setup[key] for key in columns} for setup in setups]})
    for setup in () if as_json else setups:
        say(f"{setup['name']:<24} {setup['kind']:<12} {setup['reach']}")
    if not setups and not as_json:
        say("nothing is set up")
    return EXIT_OK


@command.command(cls=Verb, short_help="Run a set-up here, started again when it ends.")
@click.argument("name")
@DETACH
@json_option("With --detach: the job as one JSON object.")
def run(name: str, detach: str, as_json: bool) -> int:
    """Run a set-up where there is no systemd: again whenever it ends, until Ctrl-C.

    \b
    trainrig remote run notebook
    trainrig remote run gpu1-8888 --detach

    With --detach it is a job: trainrig jobs lists and ends it.
    """
    from trainrig.cli import output
    from trainrig.remote.detached import start_trainrig, summary_of
    from trainrig.remote.setups import command_of, keep_running

    words = command_of(name)
    if detach:
        job = start_trainrig(["remote", "run", name], f"remote-{name}", detach == "tmux")
        if as_json:
            output.print_json(summary_of(job), "job")
        else:
            say(f"job {job.id} goes on by itself; end it: trainrig jobs --end {job.id}")
        return EXIT_OK
    keep_running(words, lambda line: say(line, err=True))
    return EXIT_OK


@command.command(cls=Verb, short_help="Take back what a set-up wrote.")
@click.argument("name")
@json_option()
def remove(name: str, as_json: bool) -> int:
    """Stop a set-up and delete its files and unit; a file that was changed since stays.

    \b
    trainrig remote remove notebook

    Jobs of `remote run` that run it are ended, too.
    """
    from trainrig.cli import output
    from trainrig.remote.detached import all_jobs, end_job
    from trainrig.remote.setups import remove_setup

    for job in all_jobs():
        if job.state == "running" and job.command[3:] == ("remote", "run", name):
            end_job(job)
    gone, stay = remove_setup(name)
    if as_json:
        output.print_json({"removed": [str(p) for p in gone], "changed": [str(p) for p in stay]})
    else:
        for path in gone:
            say(f"removed {path}")
        for path in stay:
            say(f"left {path}: it was changed since it was written")
    return EXIT_OK


@command.command(cls=Verb, short_help="Latency, throughput and loss to hosts; which hop limits.")
@click.argument("host", nargs=-1, required=True)
@budget("3s", "How long each direction of each hop is measured.")
@_CONFIG
@json_option()
def test(host: tuple[str, ...], budget: float, config: Path | None, as_json: bool) -> int:
    """Measure the way to a HOST of ~/.ssh/config, hop by hop; several are compared.

    \b
    trainrig remote test gpu1
    trainrig remote test gpu1-by-relay gpu1-direct

    Everything goes through OpenSSH, jump hosts included, so that the numbers are
    what a forward gets.
    """
    from trainrig.cli import output
    from trainrig.errors import EXIT_INCOMPLETE, UsageError
    from trainrig.remote.link_test import measure_way, way_document
    from trainrig.units import duration_text

    if not 0.1 <= budget <= 60:
        raise UsageError(f"--budget {duration_text(budget)} is out of range", "100ms to 1m")
    ways = [measure_way(host_name, config, budget) for host_name in host]
    output.answer(
        as_json,
        lambda: {"ways": [dataclasses.asdict(way) for way in ways]},
        lambda: way_document(ways),
    )
    return EXIT_INCOMPLETE if any(way.hops[-1].error for way in ways) else EXIT_OK


@command.command(cls=Verb, short_help="What lets others into this machine, named with its fix.")
@json_option()
def audit(as_json: bool) -> int:
    """Find what lets others in: open ports without a token, passwords for ssh, frp, cloudflared.

    \b
    trainrig remote audit

    Reads what listens and the services' files; connects to nothing and changes
    nothing.  Exit code 1 where somebody could come in.
    """
    import os

    from trainrig.cli import output
    from trainrig.doctor import what_root_adds
    from trainrig.machine import inspect
    from trainrig.machine.system_access import ThisMachine
    from trainrig.remote.audit import audit as look
    from trainrig.report.doctor_report import doctor_document, to_dict

    checks = look(ThisMachine(), str(Path.home()), inspect(patience_s=2.5, with_health=True))
    missed = () if os.geteuid() == 0 else what_root_adds(checks)
    output.answer(
        as_json,
        lambda: to_dict(checks, missed, ()),
        lambda: doctor_document(checks, missed, ()),
    )
    return EXIT_FINDING if any(check.state == "fault" for check in checks) else EXIT_OK
