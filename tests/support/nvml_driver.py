"""The stand-in libnvidia-ml.so.1, built by gcc, and programs that find it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a stand-in libnvidia-ml.so.1."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    folder = tmp_path_factory.mktemp("nvml")
    source = ROOT / "src" / "trainrig" / "selftest" / "nvml_stand_in.c"
    flags = ["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(
        ["gcc", *flags, "-o", str(folder / "libnvidia-ml.so.1"), str(source)], check=True
    )
    return folder


def run(driver: Path, program: str, *arguments: str, **settings: str) -> str:
    """What a program prints that finds the stand-in driver."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={
            **os.environ,
            "LD_LIBRARY_PATH": str(driver),
            "PYTHONPATH": str(ROOT / "src"),
            **{f"NVML_SHIM{name}": value for name, value in settings.items()},
        },
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""
    return done.stdout
