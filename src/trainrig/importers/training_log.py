"""A training that another program logged, as records of benchmark ``training``.

Steps, rates and memory as the log states them; model FLOPs by `workload.flops`, the one formula of
this program, where model and tokens a sample are known: from the log, from what the user adds, or
from its own numbers where they fit one model alone.  A time that the log has no timer of, or whose
timer reads 0, is missing with a reason and never 0.
"""

from __future__ import annotations

import dataclasses
import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

from trainrig.benchmarks.training import BENCHMARK, PRECISIONS, WARM_UP
from trainrig.errors import TrainrigError
from trainrig.importers.extract import LARGEST, device_name, point
from trainrig.importers.file import FilePart
from trainrig.importers.importer import ImportHints
from trainrig.record import Case, Record
from trainrig.stats import median
from trainrig.workload import find, model_flops

MOST_SAMPLES = 10_000
"""The most steps whose times stand in a record; its value is of all of them."""
_MOST_GPUS = 1 << 12
_PARTS = (
    *("forward", "backward", "forward_backward", "optimizer"),
    *("communication", "data_wait"),
)
"""Parts of a step that have timers, under the names of our own trainings."""
_GUESSES = tuple(
    (model, seq)
    for model in ("bert-base", "bert-large", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
    for seq in (128, 256, 384, 512, 1024, 2048)
    if seq <= (512 if model.startswith("bert") else 1024)
)
"""Models and samples that a log without a name may be of."""


@dataclass(slots=True, kw_only=True)
class LogSettings:
    """Settings that hold for a whole training; None: its log does not state them."""

    model: str | None = None
    seq_len: int | None = None
    batch_size: int | None = None
    """Samples that one GPU processes at once."""
    global_batch: int | None = None
    grad_accum: int | None = None
    tokens_per_step: int | None = None
    precision: str | None = None
    device: str | None = None
    num_gpus: int | None = None


@dataclass(slots=True, kw_only=True)
class Log:
    """Numbers that a log states of a training; None: it does not."""

    framework: str
    settings: LogSettings = field(default_factory=LogSettings)
    series: dict[str, array[float]] = field(default_factory=dict)
    """``time`` (seconds), ``token_rate`` (of all GPUs), ``token_rate_per_gpu``, ``flop_rate`` (of a
    GPU, by the log's own formula), ``mfu`` (of a peak that the program assumed): one a step."""
    line: int | None = None
    """Line of the last step that has a time."""
    is_rate_of_whole: bool = False
    """True where the rate is of the whole training, with its evaluations and checkpoints."""
    samples_per_s: tuple[int, float] | None = None
    """Line and value, all GPUs together."""
    digits: float | None = None
    """Largest rounding error of the printed rate, either way."""
    printed_flops: tuple[float, float] | None = None
    """FLOP/s of a GPU as the log has it, and by how much it may be rounded."""
    peak_memory: float | None = None
    """Bytes of a GPU."""
    memory_kind: str | None = None
    timers: dict[str, list[float]] = field(default_factory=dict)
    """Part of a step: seconds of each step that has a timer of it."""
    has_timers: bool = True
    """True where the framework prints timers of parts at all."""
    loss: float | None = None
    number: int = 0
    """Number of the training in the file, from 1."""

    def middle(self, name: str) -> float | None:
        """Return the median of a series; None where there is none."""
        numbers = self.series.get(name)
        return median(numbers) if numbers else None


def _complete(settings: LogSettings, hints: ImportHints) -> None:
    """Add the settings that the user states, which come before those of the log."""
    for name in ("model", "precision", "seq_len", "batch_size", "num_gpus"):
        setattr(settings, name, getattr(hints, name) or getattr(settings, name))
    settings.device = device_name(hints.device) or settings.device


T = TypeVar("T", "Log", "LogSettings")


def fill(log: T, other: T) -> None:
    """Take from another log of the same training what this one does not have."""
    for field_name in dataclasses.fields(log):
        mine, theirs = getattr(log, field_name.name), getattr(other, field_name.name)
        if isinstance(mine, LogSettings):
            fill(mine, theirs)
        elif isinstance(mine, dict):
            for name, numbers in theirs.items():
                if not any(number > 0.0 for number in mine.get(name, ())):
                    mine[name] = numbers
        elif mine is None:
            setattr(log, field_name.name, theirs)


def records_of(file: FilePart, log: Log, hints: ImportHints) -> Iterator[Record]:
    """Yield the records of one training."""
    if not (log.series or log.samples_per_s or log.timers or log.loss is not None):
        return
    _complete(log.settings, hints)
    if (flop_rate := log.middle("flop_rate")) is not None and log.printed_flops is None:
        log.printed_flops = (flop_rate, 0.0)
    inferred = " ".join(
        filter(None, (_infer(log) if log.settings.model is None else None, _count(log)))
    )
    shown: dict[str, Any] = {
        "framework_log": log.framework,
        "inferred": inferred or None,
        "memory_kind": log.memory_kind,
        "printed_flop_rate": log.printed_flops[0] if log.printed_flops else None,
        "num_steps": len(log.series.get("time", ())) or None,
        "printed_mfu": log.middle("mfu"),
    }
    case = _case(log)
    times = log.series.get("time", ())
    counted = times[min(WARM_UP, max(0, len(times) - 1)) :]
    line = log.line

    def made(
        metric: str,
        unit: str,
        value: float | None,
        line: int | None = line,
        conditions: Case | None = None,
        **more: Any,
    ) -> Record:
        return point(
            file,
            line,
            BENCHMARK.name,
            case,
            (metric, unit),
            value,
            device=log.settings.device,
            index=0 if log.settings.device else None,
            count=log.settings.num_gpus,
            conditions={**shown, **(conditions or {})},
            **more,
        )

    step = median(counted) if counted else None
    if step is not None and step > 0.0:
        samples = tuple(times[-MOST_SAMPLES:]) if len(times) > 1 else None
        stated: Case = {"samples": f"the last {MOST_SAMPLES} of {len(times)} steps"}
        more = stated if len(times) > MOST_SAMPLES else {}
        yield made("time", "s", step, samples=samples, conditions=more)
    yield from _rates(log, step, line, made)
    yield from _token_rates(log, step, line, made)
    if log.peak_memory is not None:
        yield made("peak_memory", "B", log.peak_memory)
    if log.loss is not None and abs(log.loss) < LARGEST:
        yield made("train_loss", "1", log.loss)
    yield from _parts(log, made)


_Make = Callable[..., Record]


def _rates(log: Log, step_s: float | None, line: int | None, make: _Make) -> Iterator[Record]:
    """Yield samples, tokens and FLOPs a second, from the steps' time where no rate is printed."""
    rate_line, rate = log.samples_per_s or (line, None)
    if rate is None and step_s and log.settings.global_batch:
        rate = log.settings.global_batch / step_s
    if rate is None:
        return
    yield make("sample_rate", "sample/s", rate, line=rate_line)
    if log.settings.seq_len and "token_rate" not in log.series:
        yield make("token_rate", "token/s", rate * log.settings.seq_len, line=rate_line)
    yield from _flop_rate(log, rate, rate_line, make)


def _token_rates(log: Log, step_s: float | None, line: int | None, make: _Make) -> Iterator[Record]:
    """Return tokens/s as the log prints them, or a step's tokens over its time."""
    per_gpu, printed = log.middle("token_rate_per_gpu"), log.middle("token_rate")
    if printed is not None:
        yield make("token_rate", "token/s", printed, line=line)
    elif per_gpu is not None and log.settings.num_gpus:
        yield make("token_rate", "token/s", per_gpu * log.settings.num_gpus, line=line)
    elif log.settings.tokens_per_step and step_s and not log.samples_per_s:
        yield make("token_rate", "token/s", log.settings.tokens_per_step / step_s, line=line)
    if per_gpu is not None:
        yield make("token_rate_per_gpu", "token/s", per_gpu, line=line)
    if log.printed_flops is not None and not (log.samples_per_s or log.settings.global_batch):
        yield make("printed_flop_rate", "FLOP/s", log.printed_flops[0], line=line)


def _count(log: Log) -> str | None:
    """Set the number of GPUs where the log's own FLOP/s and samples/s fit one number alone."""
    flops = _sample_flops(log.settings.model, log.settings.seq_len)
    if log.settings.num_gpus or not (
        flops and log.printed_flops and log.samples_per_s and log.digits
    ):
        return None
    (printed, off), rate = log.printed_flops, log.samples_per_s[1]
    if printed <= off:
        return None
    low = (rate - log.digits) * flops / (printed + off)
    high = (rate + log.digits) * flops / (printed - off)
    fitting = [gpus for gpus in range(1, _MOST_GPUS) if low <= gpus <= high]
    if len(fitting) != 1:
        return None
    log.settings.num_gpus = fitting[0]
    return f"samples/s over TFLOPS of a GPU fit {fitting[0]} GPUs and no other number"


def _flop_rate(log: Log, rate: float, line: int | None, make: _Make) -> Iterator[Record]:
    """Return the model FLOP/s of a GPU, with an interval where printed values are rounded."""
    flops = _sample_flops(log.settings.model, log.settings.seq_len)
    if flops is None:
        if log.printed_flops is None:
            yield make(
                "flop_rate",
                "FLOP/s",
                None,
                line=line,
                reason="model or tokens a sample are not in the log: --model NAME --seq-len N",
            )
        else:
            yield make("printed_flop_rate", "FLOP/s", log.printed_flops[0], line=line)
        return
    gpus = log.settings.num_gpus
    if gpus is None:
        why = "the log does not say of how many GPUs: --gpus N"
        yield make("flop_rate", "FLOP/s", None, line=line, reason=why)
        if log.printed_flops is not None:
            yield make("printed_flop_rate", "FLOP/s", log.printed_flops[0], line=line)
        return
    value, interval = rate * flops / gpus, None
    if log.digits:
        low, high = ((rate + way * log.digits) * flops / gpus for way in (-1.0, 1.0))
        if log.printed_flops is not None:
            printed, off = log.printed_flops
            both = max(low, printed - off), min(high, printed + off)
            if both[0] <= both[1]:
                low, high = both
                value = (low + high) / 2.0
        interval = (low, high)
    formula = f"samples/s × {flops:.6g} model FLOPs of a sample / {gpus} GPU"
    yield make(
        "flop_rate",
        "FLOP/s",
        value,
        line=line,
        interval=interval,
        conditions={"formula": formula},
    )


def _parts(log: Log, make: _Make) -> Iterator[Record]:
    required = ["optimizer", "communication"]
    if "forward_backward" not in log.timers:
        required += ["forward", "backward"]
    for part in _PARTS:
        timed = [seconds for seconds in log.timers.get(part, []) if seconds > 0.0]
        if timed:
            counted = timed[min(WARM_UP, max(0, len(timed) - 1)) :]
            yield make(f"time.{part}", "s", median(counted))
        elif part in log.timers:
            why = "its timer reads 0 in every step: nothing was timed under that name"
            yield make(f"time.{part}", "s", None, reason=why)
        elif log.has_timers and part in required:
            why = "the log has no timer of it"
            yield make(f"time.{part}", "s", None, reason=why)


def _case(log: Log) -> Case:
    case: dict[str, str | int | None] = {
        "framework": log.framework,
        "model": log.settings.model,
        "precision": log.settings.precision,
        "batch_size": log.settings.batch_size,
        "seq_len": log.settings.seq_len,
        "grad_accum": log.settings.grad_accum,
        "nproc": log.settings.num_gpus,
        "tool": f"{log.framework} log",
        "training": log.number or None,
    }
    return {name: value for name, value in case.items() if value is not None}


@cache
def _sample_flops(model: str | None, seq_len: int | None) -> int | None:
    """Return a sample's model FLOPs, forward and backward; None: the model is not known."""
    if model is None or seq_len is None or not 0 < seq_len <= 1 << 24:
        return None
    try:
        return model_flops(find(model), 1, seq_len)
    except TrainrigError:
        return None


def _infer(log: Log) -> str | None:
    """Set model and tokens a sample where the log's own FLOPs and samples fit one model alone."""
    if log.printed_flops is None or log.samples_per_s is None or not log.digits:
        return None
    rate, (printed, off) = log.samples_per_s[1], log.printed_flops
    if rate <= log.digits or printed <= off:
        return None
    low = (printed - off) / (rate + log.digits)
    high = (printed + off) / (rate - log.digits)
    fitting = [
        (model, seq)
        for model, seq in _GUESSES
        if low <= (_sample_flops(model, seq) or 0) <= high and log.settings.seq_len in (None, seq)
    ]
    if len(fitting) != 1:
        return None
    model, seq_len = log.settings.model, log.settings.seq_len = fitting[0]
    return (
        f"the log names no model; its TFLOPS and samples/s fit {model} with samples of {seq_len} "
        "tokens and no other that is known"
    )


# ---- words of command lines and settings

_SETTINGS: Mapping[str, Sequence[str]] = {
    "model": ("config_name", "model_name_or_path", "model_name", "model_type"),
    "seq_len": ("max_seq_length", "block_size", "seq_length", "max_seq_len", "seq_len"),
    "batch_size": (
        "per_device_train_batch_size",
        "per_gpu_train_batch_size",
        "micro_batch_size",
        "train_micro_batch_size_per_gpu",
    ),
    "global_batch": ("train_batch_size", "global_batch_size"),
    "grad_accum": ("gradient_accumulation_steps",),
}
_MODELS = {"bert-large-uncased": "bert-large", "bert-base-uncased": "bert-base"}


def _setting(text: str, names: Sequence[str]) -> str | None:
    for name in names:
        spelled = name.replace("_", "[-_]")
        match = re.search(
            rf"(?:--|['\"]|^\s*|\s){spelled}['\"]?\s*(?:[=:]|\.{{2,}}|\s)\s*['\"]?([\w./:+-]+)",
            text,
            re.MULTILINE,
        )
        if match and not _is_wrapped(text, match.end()):
            return match[1].strip("'\",")
    return None


def _is_wrapped(text: str, end: int) -> bool:
    """Return whether a value may go on in the next line, which a terminal's width began."""
    if text[end : end + 1] != "\n" or not re.match(r"[\w.]", text[end + 1 : end + 2]):
        return False
    return end - (text.rfind("\n", 0, end) + 1) >= _NARROWEST


_NARROWEST = 72
"""Columns of the narrowest terminal whose wrapped lines are told."""


def read_settings(text: str) -> LogSettings:
    """Return the settings that a command line or a printed configuration in the log states."""
    stated = LogSettings()
    model = _setting(text, _SETTINGS["model"])
    if model is not None:
        short = model.rpartition("/")[2].lower()
        stated.model = _known_model(_MODELS.get(short, short))
    for name in ("seq_len", "batch_size", "global_batch", "grad_accum"):
        value = _setting(text, _SETTINGS[name])
        if value and re.fullmatch(r"[0-9]{1,9}", value) and int(value) > 0:
            setattr(stated, name, int(value))
    for precision in ("fp16", "bf16"):
        option = rf"--{precision}(?:[ =](?:1|[Tt]rue)\b|\s+--|\s*\\?$)"
        setting = rf"{precision}\s*\.{{3,}}\s*True|['\"]?{precision}['\"]?[=:] ?True"
        if re.search(f"{option}|{setting}", text, re.MULTILINE):
            stated.precision = precision
    if stated.precision is None and re.search(r"--(?:fp16|bf16)[ =](?:0|[Ff]alse)\b", text):
        stated.precision = "fp32"
    if stated.precision not in (None, *PRECISIONS):
        stated.precision = None
    return stated


def _known_model(name: str) -> str | None:
    try:
        find(name)
    except TrainrigError:
        return None
    return name
