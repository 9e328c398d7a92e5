"""Start a driver in its engine's environment, and give it this package alone.

    python start.py huggingface FOLDER

The package may lie among another environment's packages: with their folder on the path a driver
would import that one's numpy or torch.  So the package is loaded from its place, and no path leads
there.  Works under torchrun too.  Imports the standard library alone.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent.parent


def main() -> None:
    """Load the package, then run the driver that is named."""
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # this folder: its files have the names of the projects that they drive
    load_package()
    driver = importlib.import_module(f"trainrig.train.drivers.{sys.argv.pop(1)}")
    driver.main()


def load_package() -> None:
    """Make ``import trainrig`` find the package that this file belongs to."""
    spec = importlib.util.spec_from_file_location(
        "trainrig", PACKAGE / "__init__.py", submodule_search_locations=[str(PACKAGE)]
    )
    assert spec is not None and spec.loader is not None
    sys.modules["trainrig"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["trainrig"])


if __name__ == "__main__":
    main()
