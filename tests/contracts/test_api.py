"""The public API: what it is called, that it can be loaded, and that loading is lazy."""

from __future__ import annotations

import subprocess
import sys

import pytest

import trainrig


def test_the_names_are_pinned():
    types = {name for name in trainrig.__all__ if name[0].isupper()}
    assert types == {
        *("Chip", "FitAnswer", "Planned", "Prediction", "Record", "RunComparison", "RunOutcome"),
        *("RunView", "Snapshot", "TrainingOptions", "TrainrigError"),
    }
    assert set(trainrig.__all__) - types == {
        *("__version__", "bench", "compare", "find_chip", "fits", "inspect", "pack", "plan"),
        *("predict", "qualify", "read_run", "render_html"),
    }


@pytest.mark.parametrize("name", trainrig.__all__)
def test_each_name_loads_and_is_documented(name):
    assert getattr(trainrig, name).__doc__
    is_function = name[0].islower()
    assert not is_function or f"{name}(" in (trainrig.__doc__ or "")


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'speed'"):
        _ = trainrig.speed


def test_importing_it_loads_nothing():
    code = (
        "import sys, trainrig; print(sorted(m for m in sys.modules if m.startswith('trainrig.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
