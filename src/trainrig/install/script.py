"""A selection of versions → a shell script that installs them, or a Dockerfile; neither is run.

The script is meant to be read: a comment for each step, versions at the top, every step may be run
again, every change is noted and `undo` takes it back.  No package host stands in it: packages come
from what the system is set up with, or from mirrors that the user names.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from trainrig.catalog.cuda import cuda_table, parts_of
from trainrig.errors import UsageError
from trainrig.install.choose import INSTALLED_BRANCH, ROUTES, InstallChoice

if TYPE_CHECKING:
    from jinja2 import Environment

_TEMPLATES = Path(__file__).parent / "templates"
# What may stand unquoted in a script: no quotes, spaces, dollars, backticks or line ends.
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[A-Za-z0-9@:%._/~+=&?#,-]+")
_CHANNEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirrors:
    """Package sources that the user names; empty: those of the system."""

    pip_index: str = ""
    torch_index: str = ""
    conda_channel: str = ""
    """Conda channel by name or URL."""
    nvidia_repo: str = ""
    """URL of the folder of NVIDIA's packages for the system."""
    image: str = ""
    """Base image of the Dockerfile."""

    def __post_init__(self) -> None:
        """Raise UsageError for text that is no URL or name: it would end up in a script."""
        for option, value in (
            ("--pip-index", self.pip_index),
            ("--torch-index", self.torch_index),
            ("--nvidia-repo", self.nvidia_repo),
        ):
            if value and not _URL.fullmatch(value):
                raise UsageError(f"{option} {value!r} is no URL", "https://... or file:///...")
        channel = self.conda_channel
        if channel and not (_URL.fullmatch(channel) or _CHANNEL.fullmatch(channel)):
            raise UsageError(f"--conda-channel {channel!r} is neither a channel's name nor a URL")
        if self.image and not _IMAGE.fullmatch(self.image):
            raise UsageError(f"--image {self.image!r} is no image", "name:tag")


def steps_of(selection: InstallChoice) -> tuple[str, ...]:
    """Return the script's steps, in order."""
    first = ("system", "packages", "nouveau", "updates", "driver")
    if selection.route == "container":
        return (*first, "engine", "image")
    cuda = ("cuda",) if selection.route == "toolkit" else ()
    return (*first, *cuda, "python", "torch", "extensions", "verify")


def script(selection: InstallChoice, mirrors: Mirrors, name: str = "env.sh") -> str:
    """Return the shell script; ``name`` is what its comments call it."""
    system, torch = selection.target.system, selection.torch
    packages = ("transformers", *selection.extensions)
    requirements = [("TORCH", f"torch=={torch.version}")] + [
        (package.upper(), f"{package.replace('_', '-')}=={getattr(torch, package)}")
        for package in packages
        if package != "apex"
    ]
    return _render(
        "script.sh.j2",
        selection,
        mirrors,
        name=name,
        steps=steps_of(selection),
        routes=ROUTES,
        requirements=requirements,
        modules_to_import=["transformers", *_modules(selection)],
        branch=INSTALLED_BRANCH,
        needed_branch=parts_of(selection.driver)[0],
        system_driver=system.driver_open
        if selection.modules == "open"
        else system.driver_proprietary,
        image_tag=f"trainrig:torch{torch.version}-cuda{selection.cuda.version}",
        dockerfile=dockerfile(selection, mirrors) if selection.route == "container" else "",
    )


def _modules(selection: InstallChoice) -> list[str]:
    """Return the Python modules to import of each extension."""
    rows = {extension.name: extension.module for extension in cuda_table().extension}
    return [rows[name] for name in selection.extensions]


def dockerfile(selection: InstallChoice, mirrors: Mirrors) -> str:
    """Return the image of the container route."""
    return _render("Dockerfile.j2", selection, mirrors, image=mirrors.image or selection.cuda.image)


def _render(template: str, selection: InstallChoice, mirrors: Mirrors, **more: object) -> str:
    from importlib.metadata import version

    target, table = selection.target, cuda_table()
    used = (*selection.torch.sources, *selection.cuda.sources, *target.system.sources)
    sources = [table.sources[name] for name in dict.fromkeys(used)]
    return (
        _environment()
        .get_template(template)
        .render(
            version=version("trainrig"),
            system=target.system,
            cards=", ".join(target.gpus) or "no NVIDIA GPU",
            driver_now=f"driver {target.driver}" if target.driver else "no driver yet",
            capabilities=target.capabilities,
            route=selection.route,
            torch=selection.torch,
            cuda=selection.cuda,
            driver=selection.driver,
            modules=selection.modules,
            extensions=selection.extensions,
            findings=selection.findings,
            sources=[f"{source.title} ({source.date})" for source in sources],
            pip_index=mirrors.pip_index,
            torch_index=mirrors.torch_index,
            conda_channel=mirrors.conda_channel,
            nvidia_repo=mirrors.nvidia_repo,
            **more,
        )
    )


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # a shell script is no HTML; values are quoted by `sh`
        comment_start_string="<#--",  # the shell's ${#list[@]} is no comment
        comment_end_string="--#>",
    )
    environment.filters["sh"] = lambda value: shlex.quote(str(value))
    return environment
