"""`trainrig env`: a script that installs driver, CUDA, torch and what is built on it; never run."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trainrig.cli.output import say
from trainrig.cli.verb import PATH, Names, json_option, options, rows, verb
from trainrig.errors import EXIT_FINDING, EXIT_OK, UsageError

if TYPE_CHECKING:
    from trainrig.install.choose import InstallChoice, InstallTarget


def _systems() -> list[str]:
    """Return names alone, read without checking the table: help is shown at once."""
    import tomllib

    import trainrig

    path = Path(trainrig.__file__).parent / "catalog" / "cuda.toml"
    return [system["name"] for system in tomllib.loads(path.read_text(encoding="utf-8"))["system"]]


_MACHINE = rows(
    "For which machine",
    ("--os", Names(_systems), "this system", "System: {words}."),
    ("--on", ["CHIP"], "the cards here", "Card of another machine, by the catalog's name."),
    ("--driver", "VERSION", "what is loaded here; none with --on", "Driver that is installed."),
)
_WHAT = rows(
    "What is installed",
    (
        "--route",
        click.Choice(["toolkit", "driver", "container"]),
        "driver",
        "Way: driver and pip; with the CUDA toolkit, to build extensions; or a container.",
    ),
    ("--torch", "VERSION", "the newest that fits", "Version of torch, from the table."),
)
_MIRRORS = rows(
    "Where packages come from",
    ("--pip-index", "URL", "as pip is set up", "Package index for pip."),
    ("--torch-index", "URL", "as pip is set up", "Package index for torch alone."),
    ("--conda-channel", "NAME", "no conda", "Take Python from this channel, a name or URL."),
    ("--nvidia-repo", "URL", "as the system is set up", "Folder of NVIDIA's packages."),
    ("--image", "NAME", "NVIDIA's of that CUDA", "Image that the Dockerfile begins with."),
)
_BUILDS = rows(
    "Extensions of torch",
    ("--try-extension", None, "", "Build a small one here, and explain a failure."),
    ("--python", "PATH", "the one that runs this", "Python with the torch to build with."),
    ("--explain", PATH, "no log", "Find the cause in the log of a failed build."),
)


@verb()
@options(_MACHINE, _WHAT, _MIRRORS, _BUILDS, rows("", ("--out", PATH, "stdout", "File to write.")))
@json_option()
def command(as_json: bool, out: Path | None, **given: Any) -> int:
    """Write a script that sets a machine up: driver, CUDA, torch, DeepSpeed, apex, flash-attn.

    \b
    trainrig env --out env.sh
    trainrig env --route toolkit --os ubuntu24 --on RTX-4090 --out env.sh
    trainrig env --route container --on A100-SXM4-80GB --os ubuntu22 --out Dockerfile
    trainrig env --try-extension
    trainrig env --explain build.log

    The versions go together, and fit the cards and the driver.  The script is to
    be read: it says why at each step, may be run again, and undoes its changes
    with `undo`.  It is never run from here.  A file named Dockerfile gets the
    image alone.
    """
    if given["explain"] or given["try_extension"]:
        return _extension(given, as_json)
    from trainrig.install.choose import choose
    from trainrig.install.script import Mirrors

    places = ("pip_index", "torch_index", "conda_channel", "nvidia_repo", "image")
    mirrors = Mirrors(**{name: given[name] or "" for name in places})
    selection = choose(_target(given), given["route"] or "driver", given["torch"])
    return _write(selection, mirrors, out, as_json)


def _target(given: dict[str, Any]) -> InstallTarget:
    """Return the machine here, or the one that options name."""
    from trainrig.install.choose import target_here, target_named
    from trainrig.machine import inspect
    from trainrig.machine.snapshot import value_or
    from trainrig.machine.system_access import ThisMachine

    release = value_or(ThisMachine().read("/etc/os-release"), "")
    if given["on"]:
        from trainrig.install.choose import system_of

        system = given["os"] or system_of(release).name
        return target_named(given["on"], system, given["driver"])
    if given["driver"]:
        raise UsageError("--driver is for another machine", "name its card too: --on RTX-4090")
    return target_here(inspect(), given["os"], release)


def _write(selection: InstallChoice, mirrors: Any, out: Path | None, as_json: bool) -> int:
    from trainrig.cli.output import print_json
    from trainrig.install.script import dockerfile, script, steps_of
    from trainrig.store import store_errors

    is_image = out is not None and out.name.endswith("Dockerfile")
    if is_image and selection.route != "container":
        raise UsageError(f"{out} would be an image's", "--route container")
    text = ""
    if selection.is_possible:
        name = out.name if out is not None else "env.sh"
        text = dockerfile(selection, mirrors) if is_image else script(selection, mirrors, name)
    if out is not None and text:
        with store_errors(out):
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(text, encoding="utf-8")
    if as_json:
        print_json(
            {
                "route": selection.route,
                "os": selection.target.system.name,
                "target": {
                    "gpus": selection.target.gpus,
                    "capabilities": selection.target.capabilities,
                    "driver": selection.target.driver,
                    "here": selection.target.is_here,
                },
                "driver": selection.driver,
                "installs_driver": selection.installs_driver,
                "modules": selection.modules,
                "cuda": selection.cuda.version,
                "torch": dataclasses.asdict(selection.torch),
                "extensions": selection.extensions,
                "steps": steps_of(selection),
                "findings": [dataclasses.asdict(finding) for finding in selection.findings],
                "file": str(out) if out is not None and text else None,
                "script": text if out is None and text else None,
            }
        )
    else:
        _show(selection, out if text else None)
        if out is None and text:
            click.echo(text, nl=False)
    return EXIT_OK if selection.is_possible else EXIT_FINDING


def _show(selection: InstallChoice, written: Path | None) -> None:
    """On stderr, so that stdout may be piped into a file."""
    for finding in selection.findings:
        say(f"{finding.severity}: {finding.evidence}\n  {finding.fix}", err=True)
    if not selection.is_possible:
        say("no script is written: no versions fit", err=True)
    elif written is not None:
        versions = f"torch {selection.torch.version}, CUDA {selection.cuda.version}"
        say(f"{written}: {versions}, driver {selection.driver} or newer", err=True)
        if not written.name.endswith("Dockerfile"):
            say(f"read it, then: bash {written}", err=True)


def _extension(given: dict[str, Any], as_json: bool) -> int:
    from trainrig.cli.output import print_json
    from trainrig.install.extension import explain_file, try_extension
    from trainrig.process.python_env import interpreter_for
    from trainrig.units import format_time

    if given["explain"]:
        reasons = explain_file(given["explain"])
        if as_json:
            print_json(dataclasses.asdict(reasons), "env-explain")
        else:
            say(f"{reasons.cause} [{reasons.id}]\n  seen: {reasons.line}\n  {reasons.fix}")
        return EXIT_FINDING
    built = try_extension(interpreter_for(given["python"] or "", "extension"))
    if as_json:
        print_json(dataclasses.asdict(built), "env-try-extension")
    elif built.error is None:
        took = format_time(built.seconds or 0.0)
        say(f"an extension of torch {built.torch} was built in {took}, and computes right")
    else:
        why = built.error
        line_seen = f"\n  seen: {why.line}" if why.line else ""
        say(f"{why.cause} [{why.id}]{line_seen}\n  {why.fix}")
    return EXIT_OK if built.error is None else EXIT_FINDING
