"""``trainrig fits``: does it fit in memory, and if not, which option to change first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainrig.cli.predict_options import COMMON, FRAMEWORK, HOW, WHAT, WHERE, machines, measured
from trainrig.cli.verb import PAGES, Pages, json_option, options, verb


@verb(common=COMMON)
@options(WHAT, WHERE, FRAMEWORK, HOW, PAGES)
@json_option()
def command(rates: Path | None, pages: Pages, as_json: bool, **keys: Any) -> int:
    """Say whether a training fits: all weights, LoRA and QLoRA, and what saves most.

    \b
    trainrig fits --model qwen2.5-7B --on "RTX 4090"
    trainrig fits --model llama-8B --on "RTX 4090" --method qlora --seq-len 8k
    trainrig fits --model llama-8B --on "RTX 4090" --on "RTX 5090" --on "A100 80GB"
    trainrig fits --model qwen2.5-7B --on "RTX 4090" --html fits.html

    Exit code 1 where the asked method (full, where none is asked) does not fit; borderline is 0.
    """
    from trainrig.cli.output import publish
    from trainrig.errors import EXIT_FINDING, EXIT_OK
    from trainrig.prediction.as_json import fits_dict
    from trainrig.prediction.fit.methods import fits
    from trainrig.prediction.machine_comparison import compare_machines, comparison_dict
    from trainrig.prediction.verdict import DOES_NOT_FIT
    from trainrig.report.fits_report import fits_document
    from trainrig.report.side_by_side import fits_side_by_side

    questions = machines(**keys)
    if len(questions) > 1:
        several = compare_machines(
            questions, lambda asked_question: fits(asked_question, measured(rates))
        )
        publish(
            as_json,
            lambda: comparison_dict(several, fits_dict),
            lambda: fits_side_by_side(several),
            pages,
            schema="fits-beside",
        )
        return (
            EXIT_OK if all(asked_question.may_fit for asked_question in several) else EXIT_FINDING
        )
    answer = fits(questions[0], measured(rates))
    publish(as_json, lambda: fits_dict(answer), lambda: fits_document(answer), pages)
    return EXIT_FINDING if answer.verdict == DOES_NOT_FIT else EXIT_OK
