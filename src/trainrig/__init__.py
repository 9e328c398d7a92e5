"""trainrig: what a machine should do when it trains transformers, and what it does.

The public API is what `__all__` lists; the command line is built on the same
functions.  Each is loaded when it is first used, so that importing trainrig costs
nothing.

    inspect()             what this machine is
    find_chip(name)       what a vendor claims about a chip, or None
    qualify(...)          inspect, measure, judge: a run folder and a verdict
    bench(request, ...)   measure the cases asked for
    read_run(path)        a run, from its folder or its bundle
    render_html(views)    the offline report of one or several runs (see view_of)
    compare_runs(a, b)    better, worse or cannot tell, point by point
    pack(run, file)       a run in one file with a content hash
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = (
    False  # typing's own costs as much as the rest: Ctrl-C is not handled before this ends
)
if TYPE_CHECKING:
    from trainrig.analysis.compare import compare_runs
    from trainrig.catalog.lookup import find_chip
    from trainrig.machine import inspect
    from trainrig.report.run_report import render_html
    from trainrig.runner.bench import BenchRequest, bench
    from trainrig.runner.session import qualify
    from trainrig.runner.view import view_of
    from trainrig.store import pack, read_run

__all__ = [
    "BenchRequest",
    "bench",
    "compare_runs",
    "find_chip",
    "inspect",
    "pack",
    "qualify",
    "read_run",
    "render_html",
    "view_of",
]

_HOME = {
    "BenchRequest": "trainrig.runner.bench",
    "bench": "trainrig.runner.bench",
    "compare_runs": "trainrig.analysis.compare",
    "find_chip": "trainrig.catalog.lookup",
    "inspect": "trainrig.machine",
    "pack": "trainrig.store",
    "qualify": "trainrig.runner.session",
    "read_run": "trainrig.store",
    "render_html": "trainrig.report.run_report",
    "view_of": "trainrig.runner.view",
}


def __getattr__(name: str) -> object:
    """Load a public name from its room."""
    if name not in _HOME:
        raise AttributeError(f"module 'trainrig' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
