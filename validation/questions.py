"""Questions that people asked in public, each asked once by what its columns say.

    python -m validation.questions [FILE]      what came out, and what is still missed

A row is a report: model, chip, number of GPUs, method, sizes, program, and what was measured or
whether it ran out of memory.  Its words become the options that a reader of `--help` would give;
none is added because it is known to work.  A question that is refused counts as unanswered.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from trainrig.errors import TrainrigError
from trainrig.prediction.prediction import Prediction, predict
from trainrig.prediction.scenario import question

GIB = 1 << 30
QUESTIONS = Path(__file__).with_name("published") / "questions.csv"
_USUAL_RANK = 16
_SIZES = {"TP": "tp", "PP": "pp", "CP": "cp", "EP": "ep", "VP": "interleave"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What was asked, and what came out."""

    row: Mapping[str, str]
    options: Mapping[str, Any]
    found: Prediction | None
    refusal: str = ""

    @property
    def memory(self) -> tuple[float, float, float] | None:
        """GiB of the fullest GPU: low end, middle and high end of the interval."""
        if self.found is None:
            return None
        low, high = self.found.memory.interval("device")
        return float(low) / GIB, float(self.found.memory.total) / GIB, float(high) / GIB

    @property
    def verdict(self) -> str:
        """fits, borderline, does not fit or refused."""
        if self.found is None or self.memory is None:
            return "refused"
        low, _, high = self.memory
        has = self.found.rates.memory_bytes / GIB
        if not self.found.question.fits_host or low > has:
            return "does not fit"
        return "fits" if high <= has else "borderline"


def options_of(row: Mapping[str, str]) -> dict[str, Any]:
    """Return the options that say what a row's columns say."""
    method, chip = row["method"], re.sub(r"^\d+x ", "", row["chip"])
    options: dict[str, Any] = {
        "model": row["model"],
        "on": chip,
        "gpus": int(row["num_gpus"]),
        "seq_len": int(row["seq"]),
        "batch_size": int(row["micro_batch"]),
        "grad_accum": int(row["grad_accum"]),
        "precision": row["precision"],
    }
    if row["framework"] and "no --framework" not in method:
        options["framework"] = row["framework"]
    return options | dict((*_trained(method), *_sizes(method), *_kept(method)))


def _trained(method: str) -> Iterator[tuple[str, Any]]:
    """Yield what is trained: all weights, or adapters beside weights of some format."""
    if "lora" not in method.lower():
        if "full" in method.split():
            yield "lora_rank", 0
        return
    rank = re.search(r"\br(\d+)", method)
    yield "lora_rank", int(rank[1]) if rank else _USUAL_RANK
    is_narrow = "qlora" in method.lower()
    yield "quantize", "nf4" if is_narrow else "int8" if "int8" in method else "none"
    if "q,v" in method:
        yield "lora_on", "qkv"


def _sizes(method: str) -> Iterator[tuple[str, Any]]:
    """Yield how the model is sharded and split."""
    if zero := re.search(r"ZeRO-(\d)", method):
        yield "zero", int(zero[1])
    elif re.search(r"FSDP\d", method):
        yield "zero", 3
    for word, key in _SIZES.items():
        if size := re.search(rf"\b{word}(\d+)", method):
            yield key, int(size[1])


def _kept(method: str) -> Iterator[tuple[str, Any]]:
    """Yield what is kept where, and the kernels."""
    if re.search(r"\b(?:full|no) AC", method):
        yield "recompute", "full" if "full AC" in method else "none"
    if "compile" in method:
        yield "kernels", "compiled"
    if "offload" in method:
        yield "offload", "host"
    if memory := re.search(r"(\d+) (GB|TB) of RAM", method):
        yield "host_memory", int(memory[1]) * (1e9 if memory[2] == "GB" else 1e12) / GIB
    if "8-bit" in method and "adamw" in method:
        yield "optimizer", "adamw-8bit"


def ask(row: Mapping[str, str]) -> Answer:
    """Ask one question; a program that is not known is left out."""
    options, refusal = options_of(row), ""
    for given in (options, {name: options[name] for name in options if name != "framework"}):
        try:
            return Answer(row=row, options=given, found=predict(question(given)))
        except TrainrigError as error:
            refusal = f"{error.message}; {error.hint}"
            if "framework" not in refusal:
                break
    return Answer(row=row, options=options, found=None, refusal=refusal)


def main(arguments: list[str]) -> None:
    """Print every answer beside its report, then the sums."""
    file = Path(arguments[0]) if arguments else QUESTIONS
    with file.open(encoding="utf-8", newline="") as lines:
        answers = [ask(row) for row in csv.DictReader(lines)]
    for one in answers:
        print(_line(one))
    print()
    for line in _sums(answers):
        print(line)


def _line(one: Answer) -> str:
    row = one.row
    if one.found is None or one.memory is None:
        return f"{row['id']}  refused: {one.refusal}"
    low, middle, high = one.memory
    reported = row["reported_memory_gib"] or "-"
    has = one.found.rates.memory_bytes / GIB
    step, stated = one.found.time, row["reported_step_s"] or "-"
    program = one.options.get("framework", "presumed")
    return (
        f"{row['id']}  {row['model'][:24]:24} {program:13} "
        f"{middle:6.1f} ({low:.1f} to {high:.1f}) of {has:.0f} GiB, reported {reported}; "
        f"{step:.3g} s, reported {stated}; {one.verdict}, "
        f"ran: {row['reported_runs'] or '-'}{_miss(one)}"
    )


def _miss(one: Answer) -> str:
    wrong = {("fits", "no"): "  FALSE YES", ("does not fit", "yes"): "  FALSE NO"}
    return wrong.get((one.verdict, one.row["reported_runs"]), "")


def _sums(answers: list[Answer]) -> Iterator[str]:
    judged = [one for one in answers if one.row["reported_runs"] and one.found is not None]
    yield f"asked {len(answers)}, refused {sum(one.found is None for one in answers)}"
    yield f"false yes {sum('YES' in _miss(one) for one in judged)}"
    yield f"false no {sum('FALSE NO' in _miss(one) for one in judged)}"
    close = sum(one.verdict == "borderline" for one in judged)
    yield f"borderline {close} of {len(judged)}"
    measured = [one for one in answers if one.row["reported_memory_gib"] and one.memory]
    errors, held, widths = [], 0, []
    for one in measured:
        assert one.memory is not None
        low, middle, high = one.memory
        stated = float(one.row["reported_memory_gib"])
        errors.append(abs(middle / stated - 1.0))
        held += low <= stated <= high
        widths.append((high - low) / middle)
    yield f"memory: median error {median(errors):.1%}, interval holds {held} of {len(measured)}, "
    yield f"  width {median(widths):.0%} of the middle"
    timed = [one for one in answers if one.row["reported_step_s"] and one.found is not None]
    ratios = [one.found.time / float(one.row["reported_step_s"]) for one in timed if one.found]
    inside = 0
    for one in timed:
        assert one.found is not None
        low, high = one.found.interval
        inside += low <= float(one.row["reported_step_s"]) <= high
    off = median(abs(ratio - 1.0) for ratio in ratios)
    yield f"step: median error {off:.1%}, interval holds {inside} of {len(timed)}"


if __name__ == "__main__":
    main(sys.argv[1:])
