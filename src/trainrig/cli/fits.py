"""``trainrig fits``: does it fit in memory, and if not, which option to change first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainrig.cli.predict_options import FRAMEWORK, HOW, WHAT, WHERE, machines, measured
from trainrig.cli.verb import json_option, options, verb


@verb()
@options(WHAT, WHERE, FRAMEWORK, HOW)
@json_option()
def command(rates: Path | None, as_json: bool, **keys: Any) -> int:
    """Show the fullest GPU's memory by part, the largest batch size that fits, and what saves most.

    \b
    trainrig fits --model llama-7B --on "RTX 4090" --gpus 4
    trainrig fits --model gpt2-xl --on "RTX 3090" --batch-size 4 --recompute full
    trainrig fits --model llama-8B --on "RTX 4090" --on "RTX 5090" --lora-rank 16

    Exit code 1 where it does not fit.
    """
    from trainrig.cli.output import answer
    from trainrig.errors import EXIT_FINDING, EXIT_OK
    from trainrig.prediction.as_json import fit_dict
    from trainrig.prediction.beside import beside, beside_dict
    from trainrig.prediction.scenario import question
    from trainrig.prediction.search.memory_options import fit
    from trainrig.report.prediction_report import fits_document
    from trainrig.report.side_by_side import fits_beside

    questions = machines(**keys)
    if len(questions) > 1:
        several = beside(questions, lambda one: fit(question(one, measured(rates))))
        answer(
            as_json,
            lambda: beside_dict(several, fit_dict),
            lambda: fits_beside(several),
            schema="fits-beside",
        )
        return EXIT_OK if all(one.fits for one in several) else EXIT_FINDING
    found = fit(question(questions[0], measured(rates)))
    answer(as_json, lambda: fit_dict(found), lambda: fits_document(found))
    return EXIT_OK if found.fits else EXIT_FINDING
