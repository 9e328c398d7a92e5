"""fits: from what was said to the answer; measured rates are a run's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainrig.predict.scenario import question
from trainrig.predict.search.memory_options import Fit, fit
from trainrig.runner.predict import measured


def fits(options: dict[str, Any], *, rates: Path | None) -> Fit:
    """Whether it fits.  Raises UsageError for what cannot be, DataError for a run without rates."""
    return fit(question(options, measured(rates)))
