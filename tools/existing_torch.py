"""Let an environment of its own see the torch that the user already has.

`make qualify TORCH=existing` must measure the user's stack and leave it as it
is: their packages are put last on the path of .venv-existing, where pip sees
that they are there and never writes to them.  A plain --system-site-packages
would do for a system's python, but from within a virtual environment it shows
the python below that environment, which has another torch or none.

    python existing_torch.py find NOTE         theirs: write down where torch is, or exit 3
    python existing_torch.py link NOTE VENV    ours: put their packages on VENV's path
    python existing_torch.py check NOTE        VENV's: it is really their torch, or exit 3

NOTE doubles as pip's constraints file: their torch and numpy stay as they are.
Standard library only, and nothing here imports torch.
"""

import importlib.metadata
import importlib.util
import json
import re
import shutil
import sys
from pathlib import Path

PINNED = ("torch", "numpy")
PREFIX = "# "


def find_torch() -> str | None:
    """The file that `import torch` would load, without importing it."""
    spec = importlib.util.find_spec("torch")
    return spec.origin if spec else None


def describe() -> dict[str, object]:
    """Return what identifies this python, its torch, and where its packages lie."""
    return {
        "python": sys.executable,
        "version": sys.version.split()[0],
        "torch": find_torch(),
        "packages": [
            path for path in sys.path if path.endswith(("site-packages", "dist-packages"))
        ],
    }


def least_torch() -> str:
    """The floor that pyproject.toml states."""
    text = (Path(__file__).resolve().parents[1] / "pyproject.toml").read_text()
    return re.search(r'^torch = \["torch>=([\d.]+)"\]', text, re.MULTILINE)[1]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.match(r"\d+(?:\.\d+)*", version)[0].split(".")))


def pins() -> list[str]:
    """Constraints that hold the user's versions."""
    found = {dist.name.lower(): dist.version for dist in importlib.metadata.distributions()}
    return [f"{name}=={found[name]}" for name in PINNED if name in found]


def read_note(note: Path) -> dict[str, object]:
    return dict(json.loads(note.read_text().splitlines()[0].removeprefix(PREFIX)))


def find(note: Path) -> None:
    """Write NOTE.  It keeps its date while nothing has changed, so that make has nothing to do."""
    if find_torch() is None:
        stop(
            f"{sys.executable} has no torch", "name the python that has it: PYTHON=/path/to/python"
        )
    have = importlib.metadata.version("torch")
    if _numbers(have) < _numbers(least_torch()):
        stop(
            f"torch {have} is older than {least_torch()}, which trainrig needs",
            "make qualify, which installs one in an environment of its own",
        )
    text = "\n".join([PREFIX + json.dumps(describe()), *pins()]) + "\n"
    if not note.exists() or note.read_text() != text:
        shutil.rmtree(note.with_suffix(""), ignore_errors=True)  # made for another torch
        note.write_text(text)


def link(note: Path, venv: Path) -> None:
    """Put the user's packages last on VENV's path, their own .pth files included."""
    lines = [f"import site; site.addsitedir({path!r})" for path in read_note(note)["packages"]]
    (site_packages,) = venv.glob("lib/python*/site-packages")
    (site_packages / "theirs.pth").write_text("\n".join(lines) + "\n")


def check(note: Path) -> None:
    """Run by VENV's python: its torch is the user's."""
    theirs, ours = read_note(note)["torch"], find_torch()
    if theirs != ours:
        stop(f"{sys.executable} sees the torch in {ours}, not the one in {theirs}", "make clean")
    print(f"torch is the one in {Path(str(ours)).parent}", file=sys.stderr)


def stop(message: str, hint: str) -> None:
    print(f"trainrig: {message}\n  hint: {hint}", file=sys.stderr)
    sys.exit(3)


if __name__ == "__main__":
    verb, *paths = sys.argv[1:]
    {"find": find, "link": link, "check": check}[verb](*map(Path, paths))
