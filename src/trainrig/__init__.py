"""trainrig: what a machine should do when it trains transformers, and what it does.

The public functions are those of `trainrig.api`, on which nothing but Python is needed to be known:

    predict(model=..., on=...)   time and memory of a training step
    fits(model=..., on=...)      whether it fits: all weights, LoRA and QLoRA
    plan(model=..., gpus=...)    every legal layout, ranked
    qualify(budget="4m")         this machine, measured and judged
    bench("matmul")              one benchmark
    read_run(path)               a run, from its folder or its bundle
    compare(old, new)            better, worse or cannot tell, case by case
    render_html(run)             its page
    pack(run, file)              a run in one file
    inspect()                    what this machine is
    find_chip(name)              what a vendor claims of a chip, or None

Each is loaded when it is first used: importing trainrig costs nothing.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = (
    False  # typing's own costs as much as the rest: Ctrl-C is not handled before this ends
)
if TYPE_CHECKING:
    from trainrig.analysis.compare import RunComparison
    from trainrig.api import (
        TrainingOptions,
        bench,
        compare,
        fits,
        pack,
        plan,
        predict,
        qualify,
        read_run,
        render_html,
    )
    from trainrig.catalog.chip import Chip
    from trainrig.catalog.lookup import find_chip
    from trainrig.errors import TrainrigError
    from trainrig.machine import inspect
    from trainrig.machine.snapshot import Snapshot
    from trainrig.prediction.fit.methods import FitAnswer
    from trainrig.prediction.prediction import Prediction
    from trainrig.record import Record, RunView
    from trainrig.runner.layout_search import Planned
    from trainrig.runner.view import RunOutcome

    __version__: str

__all__ = [
    "Chip",
    "FitAnswer",
    "Planned",
    "Prediction",
    "Record",
    "RunComparison",
    "RunOutcome",
    "RunView",
    "Snapshot",
    "TrainingOptions",
    "TrainrigError",
    "__version__",
    "bench",
    "compare",
    "find_chip",
    "fits",
    "inspect",
    "pack",
    "plan",
    "predict",
    "qualify",
    "read_run",
    "render_html",
]

_MODULE_OF = {
    "Chip": "catalog.chip",
    "FitAnswer": "prediction.fit.methods",
    "Planned": "runner.layout_search",
    "Prediction": "prediction.prediction",
    "Record": "record",
    "RunComparison": "analysis.compare",
    "RunOutcome": "runner.view",
    "RunView": "record",
    "Snapshot": "machine.snapshot",
    "TrainrigError": "errors",
    "find_chip": "catalog.lookup",
    "inspect": "machine",
}
"""Module that defines a public name, if not `trainrig.api`."""


def __getattr__(name: str) -> object:
    """Load a public name."""
    if name == "__version__":
        from importlib.metadata import version

        return version("trainrig")
    if name not in __all__:
        raise AttributeError(f"module 'trainrig' has no attribute {name!r}")
    return getattr(importlib.import_module(f"trainrig.{_MODULE_OF.get(name, 'api')}"), name)
