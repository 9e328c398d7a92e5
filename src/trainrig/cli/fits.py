"""``trainrig fits``: does it fit in memory, and if not, which option to change first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainrig.cli.predict_options import FRAMEWORK, HOW, WHAT, WHERE, given
from trainrig.cli.verb import json_option, options, verb


@verb()
@options(WHAT, WHERE, FRAMEWORK, HOW)
@json_option()
def command(rates: Path | None, as_json: bool, **keys: Any) -> int:
    """Show the fullest GPU's memory by part, the largest batch size that fits, and what saves most.

    \b
    trainrig fits --model llama-7B --on "RTX 4090" --gpus 4
    trainrig fits --model gpt2-xl --on "RTX 3090" --batch-size 4 --recompute full

    Exit code 1 where it does not fit.
    """
    from trainrig.cli.output import answer
    from trainrig.errors import EXIT_FINDING, EXIT_OK
    from trainrig.predict.prediction import fit_dict
    from trainrig.predict.scenario import question
    from trainrig.predict.search.memory_options import fit
    from trainrig.report.prediction_report import fits_document
    from trainrig.runner.view import measured

    found = fit(question(given(**keys), measured(rates)))
    answer(as_json, lambda: fit_dict(found), lambda: fits_document(found))
    return EXIT_OK if found.fits else EXIT_FINDING
