"""What ``train --json`` prints when its run is closed, read back from the run's own records."""

from __future__ import annotations

import dataclasses
from typing import Any

from trainrig.analysis import training_results
from trainrig.analysis.compare_training import speedups
from trainrig.runner.view import RunOutcome, view_of
from trainrig.store import read_run


def summary(outcome: RunOutcome) -> dict[str, Any]:
    """What ``train --json`` prints last: a list, and a single experiment flat beside it."""
    view = view_of(read_run(outcome.run))
    results = training_results.results(view)
    experiments = [training_results.as_json(result) for result in results]
    compared = [dataclasses.asdict(each) for each in speedups(results)]
    head = outcome.to_dict()
    return {
        **(experiments[0] if len(experiments) == 1 else {}),
        "verdict_reason": head.pop("reason"),
        **head,
        "published": [dataclasses.asdict(f) for f in training_results.published_figures(view)],
        "predicted": [dataclasses.asdict(p) for p in training_results.predictions(view)],
        "experiments": experiments,
        **({"comparisons": compared} if len(experiments) != 1 else {}),
    }
