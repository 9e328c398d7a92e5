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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from trainrig.errors import TrainrigError
from trainrig.prediction.prediction import Prediction, predict
from trainrig.prediction.scenario import question
from trainrig.prediction.verdict import BORDERLINE, DOES_NOT_FIT, FITS
from trainrig.workload.model_lookup import find

GIB = 1 << 30
QUESTIONS = Path(__file__).with_name("published") / "questions.csv"
_USUAL_RANK = 16
_LONGEST_POSITION = 8192
_SIZES = {"TP": "tp", "PP": "pp", "CP": "cp", "EP": "ep", "VP": "interleave"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One question's options, and its prediction or refusal."""

    row: Mapping[str, str]
    options: Mapping[str, Any]
    prediction: Prediction | None
    refusal: str = ""

    @property
    def memory(self) -> tuple[float, float, float] | None:
        """GiB of the fullest GPU as the row reports it: low end, middle and high end.

        A longest context and a full card are what is needed, a log's figure what the allocator has
        reserved, any other what nvidia-smi shows.
        """
        if self.prediction is None:
            return None
        memory, stated = self.prediction.memory, self.row["stated"]
        if not self.row["reported_memory_gib"] or re.search(r"longest|nearly all", stated):
            (low, high), middle = memory.needed_interval, memory.total
        elif "reserved" in stated or self.prediction.question.program.saving.logged_memory:
            (low, high), middle = memory.interval("reserved"), memory.reserved
        else:
            (low, high), middle = memory.interval("device"), memory.shown
        return float(low) / GIB, float(middle) / GIB, float(high) / GIB

    @property
    def verdict(self) -> str:
        """One of `verdict.VERDICTS`, or refused."""
        return "refused" if self.prediction is None else self.prediction.verdict


def options_of(row: Mapping[str, str]) -> dict[str, Any]:
    """Return the options that say what a row's columns say."""
    method, chip = row["method"], re.sub(r"^\d+x ", "", row["chip"])
    model, vocabulary = row["model"], re.search(r"\(vocab (\d+)\)", row["model"])
    if vocabulary:
        model = _with_vocabulary(model[: vocabulary.start()], int(vocabulary[1]))
    options: dict[str, Any] = {
        "model": model,
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


def _with_vocabulary(model: str, vocabulary: int) -> str:
    """Return a named model by its numbers, with another vocabulary."""
    shape = find(re.sub(r" \d+M\b", "", model).strip())
    sizes = f"num_layers={shape.num_layers},hidden={shape.hidden},vocab={vocabulary}"
    return f"{shape.family}:{sizes},max_positions={_LONGEST_POSITION}"


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
            return Answer(row=row, options=given, prediction=predict(question(given)))
        except TrainrigError as error:
            refusal = f"{error.message}; {error.hint}"
            if "framework" not in refusal:
                break
    return Answer(row=row, options=options, prediction=None, refusal=refusal)


def main(arguments: list[str]) -> None:
    """Print every answer beside its report, then the sums."""
    file = Path(arguments[0]) if arguments else QUESTIONS
    with file.open(encoding="utf-8", newline="") as lines:
        answers = [ask(row) for row in csv.DictReader(lines)]
    for answer in answers:
        print(_line(answer))
    print()
    for line in _sums(answers):
        print(line)


def _line(answer: Answer) -> str:
    row, prediction = answer.row, answer.prediction
    if prediction is None or answer.memory is None:
        return f"{row['id']}  refused: {answer.refusal}"
    low, middle, high = answer.memory
    reported = row["reported_memory_gib"] or "-"
    offered = prediction.rates.memory_bytes / GIB
    step, stated = prediction.time, row["reported_step_s"] or "-"
    program = answer.options.get("framework", "presumed")
    return (
        f"{row['id']}  {row['model'][:24]:24} {program:13} "
        f"{middle:6.1f} ({low:.1f} to {high:.1f}) of {offered:.0f} GiB, reported {reported}; "
        f"{step:.3g} s, reported {stated}; {answer.verdict}, "
        f"ran: {row['reported_runs'] or '-'}{_miss(answer)}"
    )


def _miss(answer: Answer) -> str:
    """Return FALSE YES or FALSE NO where the verdict is wrong."""
    wrong = {(FITS, "no"): "  FALSE YES", (DOES_NOT_FIT, "yes"): "  FALSE NO"}
    return wrong.get((answer.verdict, answer.row["reported_runs"]), "")


def _sums(answers: Sequence[Answer]) -> Iterator[str]:
    refused = sum(answer.prediction is None for answer in answers)
    yield f"asked {len(answers)}, refused {refused}"
    judged = [answer for answer in answers if answer.row["reported_runs"] and answer.prediction]
    yield f"false yes {sum('YES' in _miss(answer) for answer in judged)}"
    yield f"false no {sum('FALSE NO' in _miss(answer) for answer in judged)}"
    close = sum(answer.verdict == BORDERLINE for answer in judged)
    at_limit = sum("longest" in answer.row["stated"] for answer in judged)
    yield f"borderline {close} of {len(judged)}, where {at_limit} report the longest that fits"
    memories, times = [], []
    for answer in answers:
        if answer.row["reported_memory_gib"] and answer.memory:
            memories.append((*answer.memory, float(answer.row["reported_memory_gib"])))
        if answer.row["reported_step_s"] and (prediction := answer.prediction):
            low, high = prediction.interval
            times.append((low, prediction.time, high, float(answer.row["reported_step_s"])))
    yield f"memory: {_errors(memories)}"
    yield f"step: {_errors(times)}"


def _errors(values: Sequence[tuple[float, float, float, float]]) -> str:
    """Summarise (low end, middle, high end, reported value) of several predictions."""
    error = median(abs(middle / reported - 1.0) for _, middle, _, reported in values)
    held = sum(low <= reported <= high for low, _, high, reported in values)
    width = median((high - low) / middle for low, middle, high, _ in values)
    return (
        f"median error {error:.1%}, interval holds {held} of {len(values)}, "
        f"width {width:.0%} of the middle"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
