"""Extensions of trainrig: entry points of installed packages, and files of the user.

A package declares entry points in one of three groups, each under the name that a user types:

    trainrig.verbs        a `click.Command`
    trainrig.importers    an `importers.Importer`
    trainrig.benchmarks   a `benchmarks.spec.Benchmark`; its measuring half is any importable module

Nothing of a package is imported before somebody names it; importers are also loaded to recognise a
file whose format nobody named.  Chips of one's own are TOML files in the user's folder of settings
(`user_files`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainrig.errors import UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

VERBS, IMPORTERS, BENCHMARKS = "trainrig.verbs", "trainrig.importers", "trainrig.benchmarks"


def find(group: str, name: str, kind: type) -> Any | None:
    """Load what an installed package calls ``name`` in ``group``; None where no package does.

    Raises UsageError, with the package's name, where it cannot be imported or is not a ``kind``.
    """
    from importlib.metadata import entry_points

    matching = [point for point in entry_points(group=group) if point.name == name]
    return _load(matching[0], kind) if matching else None


def find_all(group: str, kind: type) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Load all that installed packages declare in ``group``.

    Returns:
        What could be loaded, by name, and why the others could not, a line each: somebody's broken
        package stops nobody who did not name it.
    """
    from importlib.metadata import entry_points

    loaded: dict[str, Any] = {}
    broken: list[str] = []
    for point in entry_points(group=group):
        try:
            loaded[point.name] = _load(point, kind)
        except UsageError as error:
            broken.append(error.message)
    return loaded, tuple(broken)


def user_files(folder: str, environ: Mapping[str, str] = os.environ) -> list[Path]:
    """Return the user's TOML files of one kind (``chips``), sorted by name.

    They lie in ``$XDG_CONFIG_HOME/trainrig/FOLDER``, by default ``~/.config/trainrig/FOLDER``.
    """
    try:
        base = Path(environ.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser())
    except RuntimeError:  # no HOME, and no entry in passwd
        return []
    return sorted((base / "trainrig" / folder).glob("*.toml"))


def _load(point: EntryPoint, kind: type) -> Any:
    package = point.dist.name if point.dist is not None else point.module
    plugin_words = f"the plug-in {point.name!r} of the package {package}"
    hint = f"python -m pip install --upgrade {package}, or uninstall it"
    try:
        loaded = point.load()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise UsageError(f"{plugin_words} cannot be loaded: {reason}", hint) from error
    if not isinstance(loaded, kind):
        raise UsageError(
            f"{plugin_words} is a {type(loaded).__name__}, not a {kind.__name__}", hint
        )
    return loaded
