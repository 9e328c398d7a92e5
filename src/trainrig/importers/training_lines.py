"""Reader of every training's log: formats are patterns in trainings/*.toml.

A pattern's named groups are quantities (`step`, `time`, `loss`, `timer_forward`, …); a line of
``name: value`` pairs is looked up in the format's table of names.  A line that has a step, or is a
step, adds a row; a step below the last one, or behind an end, begins the next training.  Lines that
several ranks print are read once.  Two formats whose lines are interleaved are one training: the
first one's numbers count, the second's fill what is missing in it (GPT-NeoX prints Megatron's
lines and DeepSpeed's).
"""

from __future__ import annotations

import importlib
import json
import math
import re
import tempfile
import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, cast

from trainrig.errors import DataError
from trainrig.importers.extract import LARGEST, word
from trainrig.importers.file import HEAD_BYTES, FileLine, FilePart, ToolFile
from trainrig.importers.importer import Importer, ImportHints, Reading
from trainrig.importers.runs import Marks
from trainrig.importers.training_formats import CompiledRule, Format, formats
from trainrig.importers.training_log import Log, fill, read_settings, records_of

_SETTINGS = ("num_gpus", "global_batch", "batch_size", "grad_accum", "seq_len", "tokens_per_step")
"""Quantities that hold for a training: fields of `LogSettings`."""
_RATES = ("sample_rate", "total_sample_rate", "token_rate", "token_rate_per_gpu", "flop_rate")
_ROW = ("loss", "time", "lr", *_RATES)
"""Quantities of a step: a line that has one of them is a step's, whether it says which or not."""
_SERIES = ("time", "token_rate", "token_rate_per_gpu", "flop_rate", "mfu")
_KEPT = (
    "step",
    "epoch",
    *_ROW,
    "eval_loss",
    "grad_norm",
    "mfu",
    "memory",
    "num_tokens",
    "mean_time",
)
"""Quantities that a row of the steps holds."""
_END = ("end_runtime", "end_sample_rate", "end_step_rate", "end_loss")
_SAME_LOSS = 1e-6
_SAME = 0.01
"""Clocks of ranks that print the end of one training differ by no more than this share."""
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|inf|-inf|NaN|Infinity|-Infinity"
_VALUE = re.compile(rf"({_NUMBER}|\d{{1,3}}(?:,\d{{3}})+(?:\.\d+)?)\s*[A-Za-z/%()]*\s*$")
_QUOTED = re.compile(rf"['\"]([\w./ -]+)['\"]:\s*['\"]?({_NUMBER})['\"]?\s*(?=[,}}])")
_SPOOLED = 1 << 22


class LoggedSteps:
    """Rows of steps, on disk where they are many."""

    def __init__(self) -> None:
        spooled = tempfile.SpooledTemporaryFile(_SPOOLED, "w+")  # noqa: SIM115
        self._file: IO[str] = cast("IO[str]", spooled)
        weakref.finalize(self, self._file.close)
        self.count = 0

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a row."""
        self._file.write(json.dumps(row) + "\n")
        self.count += 1

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        self._file.seek(0)
        for line in self._file:
            yield json.loads(line)


@dataclass(slots=True, kw_only=True)
class _Training:
    """Steps and settings of a training, as far as it was read."""

    log: Log
    first: int
    last: int
    row: dict[str, float] = field(default_factory=dict)
    """The step whose lines are being read."""
    step: float = -math.inf
    epoch: float = -math.inf
    closing: dict[str, float] = field(default_factory=dict)
    label: str | None = None
    summed: dict[str, float] = field(default_factory=dict)
    """Timers of the step, by part."""
    steps: LoggedSteps = field(default_factory=LoggedSteps)
    rates: list[float] = field(default_factory=list)
    about: list[str] = field(default_factory=list)
    """Lines in which settings may stand."""
    not_finite: int = 0
    repeated: int = 0


class _About:
    """Lines of no format, in which settings may stand: they are of the training that follows."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.size = 0
        self.latest: _Training | None = None

    def add(self, text: str) -> None:
        if self.size < HEAD_BYTES:
            self.lines.append(text)
            self.size += len(text)

    def give(self, training: _Training) -> None:
        """Hand the lines since the last line of a training to this one."""
        if self.lines and len(training.about) < _MOST_ABOUT:
            training.about += self.lines
        self.lines, self.size, self.latest = [], 0, training

    def finish(self) -> None:
        """Hand the lines at the end to the training before them."""
        if self.latest is not None:
            self.give(self.latest)


_MOST_ABOUT = 4096
_MOST_NAMES = 4096


class _Reader:
    """Reads the lines of one format."""

    def __init__(self, file: ToolFile, spec: Format, about: _About) -> None:
        self.file, self.spec = file, spec
        self.rules = [CompiledRule(rule) for rule in spec.rule]
        self.trainings: list[_Training] = []
        self.pending: dict[str, float] = {}
        self.about = about
        self.bar: tuple[float, float] | None = None
        self.total: float | None = None
        self.torn: DataError | None = None
        self.notes: list[str] = []
        self.known: dict[str, tuple[str, float]] = {}
        """Names of pairs as they are printed, with their spaces."""

    @property
    def open(self) -> _Training | None:
        return self.trainings[-1] if self.trainings else None

    def take(self, line: FileLine, *, is_weak: bool = False) -> bool:
        """Read a line by its strong or its weak rules; False: it is none of this format's."""
        if self.torn is not None:
            raise self.torn
        text, is_read = line.text, False
        rule_matches: list[tuple[int, CompiledRule, re.Match[str]]] = []
        for rule in self.rules:
            if rule.rule.weak is not is_weak or (rule.rule.near and rule.rule.near not in text):
                continue
            matches = rule.find.finditer(text) if rule.rule.many else (rule.find.search(text),)
            before = len(rule_matches)
            rule_matches += [(match.start(), rule, match) for match in matches if match]
            if len(rule_matches) == before and rule.torn is not None and rule.torn.search(text):
                problem = f"a line of {self.spec.name}'s that is broken off"
                self.torn = self.file.refuse(line.number, problem)
                return True
            if len(rule_matches) > before and rule.ends is not None and not rule.ends.search(text):
                problem = f"a line of {self.spec.name}'s without its end"
                self.torn = self.file.refuse(line.number, problem)
                return True
        for _, rule, match in sorted(rule_matches, key=lambda row: row[0]):
            self._apply(line, rule, match)
            is_read = True
        return is_read

    # ---- a line's quantities

    def _apply(self, line: FileLine, compiled: CompiledRule, match: re.Match[str]) -> None:
        values, off = self._values(line, compiled, match)
        lacking = [name for name in compiled.rule.needs if name not in values]
        if lacking:
            problem = f"a line of {self.spec.name}'s without its {lacking[0]}: it is broken off"
            raise self.file.refuse(line.number, problem)
        if "bar_step" in values:
            self.bar = values["bar_step"], values["bar_total"]
            return
        if "loss" in values and "step" not in values and self.bar is not None:
            self.total = self.total or self.pending.get("total_steps") or self.bar[1]
            if self.bar[1] == self.total:
                values["step"] = self.bar[0]
        is_end = any(name in values for name in _END)
        is_row = any(name in values for name in _ROW) and not is_end
        if not (is_end or is_row or "step" in values):
            self._state(line, values, is_alone=compiled.rule.alone, off=off)
            return
        training = self._training(line, values, is_end=is_end, is_row=is_row)
        if training is None:
            return
        self.about.give(training)
        training.last = line.number
        if is_end:
            self._end(training, line, values)
        else:
            self._step(training, line, values, off)

    def _values(
        self, line: FileLine, compiled: CompiledRule, match: re.Match[str]
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Return the quantities of a line in SI units, and by how much each may be rounded."""
        groups = {name: text for name, text in match.groupdict().items() if text is not None}
        pairs = groups.pop("pairs", None)
        named = [(groups.pop("name"), groups.pop("value"))] if "name" in groups else []
        values: dict[str, float] = {}
        off: dict[str, float] = {}
        for name, text in groups.items():
            scale = compiled.rule.scale.get(name, 1.0)
            values[name] = self._number(line, text, name) * scale
            if compiled.rule.digits:
                off[name] = 0.5 * 10.0 ** -len(text.strip().partition(".")[2]) * scale
        if pairs is not None:
            named += _bars(pairs) if compiled.rule.pair_style == "bars" else _QUOTED.findall(pairs)
        for name, text in named:
            known = self.known.get(name)
            if known is None:
                known = self.spec.names.get(" ".join(name.split()), ("", 1.0))
                if len(self.known) < _MOST_NAMES:
                    self.known[name] = known
            quantity, scale = known
            if quantity:
                value = self._number(line, text, name) * scale
                # Several timers of a part in one line are added up.
                is_timer = quantity.startswith("timer_")
                values[quantity] = value + (values.get(quantity, 0.0) if is_timer else 0.0)
        return values, off

    def _number(self, line: FileLine, text: str, name: str) -> float:
        try:
            value = float(text)
        except ValueError:
            match = _VALUE.match(text.strip())
            if match is None:
                raise self.file.refuse(
                    line.number, f"no {word(name)}: {word(text)[:40]!r}"
                ) from None
            value = float(match[1].replace(",", ""))
        if math.isfinite(value) and abs(value) > LARGEST:
            raise self.file.refuse(line.number, f"no {word(name)}: {word(text)[:40]!r}")
        return value

    def _state(
        self, line: FileLine, values: dict[str, float], *, is_alone: bool, off: Mapping[str, float]
    ) -> None:
        """Take what holds for the training, or for the step whose lines these are."""
        training = self.open
        timers = {name: value for name, value in values.items() if name.startswith("timer_")}
        if timers:
            # Before the first step the timers are the set-up's.
            is_alone = is_alone or self.spec.timers == "line"
            if is_alone or (training is not None and training.row):
                owner = training or self._begin(line)
                owner.last = line.number
                self._timed(owner, timers, is_alone=is_alone)
            return
        for name in ("memory", "eval_loss", "printed_flops"):
            if name in values and training is not None:
                self._step(training, line, {name: values[name]}, off)
        self.pending.update({n: v for n, v in values.items() if n in (*_SETTINGS, "total_steps")})

    def _timed(self, training: _Training, timers: Mapping[str, float], *, is_alone: bool) -> None:
        for name, seconds in timers.items():
            if is_alone:
                training.log.timers.setdefault(name.removeprefix("timer_"), []).append(seconds)
            else:
                training.summed[name] = training.summed.get(name, 0.0) + seconds

    # ---- trainings

    def _training(
        self, line: FileLine, values: Mapping[str, float], *, is_end: bool, is_row: bool
    ) -> _Training | None:
        """Return the training that a line belongs to; None where another rank prints it again."""
        training = self.open
        if training is None:
            return self._begin(line)
        if is_row and training.label is not None and line.label not in (None, training.label):
            training.repeated += 1
            return None
        step = values.get("step", training.step if not training.closing else -math.inf)
        if is_end:
            shared = [n for n in _END if n in values and n in training.closing]
            if shared and any(_differs(values[n], training.closing[n]) for n in shared):
                return self._begin(line)
        elif is_row or "step" in values:
            goes_back = values.get("epoch", math.inf) < training.epoch
            if (training.closing and is_row) or step < training.step or (is_row and goes_back):
                return self._begin(line)
        return training

    def _begin(self, line: FileLine) -> _Training:
        if self.trainings:
            self._close(self.trainings[-1])
        log = Log(framework=self.spec.name, has_timers=self.spec.has_timers)
        log.number = len(self.trainings)
        training = _Training(log=log, first=line.number, last=line.number, label=line.label)
        self.about.give(training)
        for name, value in self.pending.items():
            if name in _SETTINGS:
                setattr(log.settings, name, max(1, int(value)))
        self.pending, self.total = {}, None
        self.trainings.append(training)
        return training

    def _step(
        self,
        training: _Training,
        line: FileLine,
        values: dict[str, float],
        off: Mapping[str, float],
    ) -> None:
        log = training.log
        again = values.get("step") == training.row.get("step") and line.label is None
        losses = values.get("loss"), training.row.get("loss")
        if again and None not in losses and _differs(*losses, _SAME_LOSS):  # type: ignore[arg-type]
            # Ranks print the same loss: this is the step of another training.
            training = self._begin(line)
            log = training.log
        if ("step" in values and values["step"] != training.row.get("step")) or (
            "loss" in values and "loss" in training.row and "step" not in values
        ):
            self._close_row(training)
        if "total_sample_rate" in values and log.samples_per_s is not None:
            training = self._begin(line)
            log = training.log
        bad = [name for name, value in values.items() if not math.isfinite(value)]
        training.not_finite += bool(bad)
        values = {name: value for name, value in values.items() if name not in bad}
        fresh = {name: value for name, value in values.items() if name not in training.row}
        training.repeated += bool(values) and not fresh
        training.row.update(fresh)
        training.step = values.get("step", training.step)
        training.epoch = values.get("epoch", training.epoch)
        self._add(training, line, fresh, off)
        timers = {name: value for name, value in fresh.items() if name.startswith("timer_")}
        if timers:
            self._timed(training, timers, is_alone=False)

    def _add(
        self,
        training: _Training,
        line: FileLine,
        values: Mapping[str, float],
        off: Mapping[str, float],
    ) -> None:
        log = training.log
        for name, value in values.items():
            if name in _SETTINGS:
                setattr(log.settings, name, max(1, int(value)))
            if name in _RATES and value < 0.0:
                raise self.file.refuse(line.number, f"{name.replace('_', ' ')} below zero")
            # nanoGPT prints -100 % before it knows.
            if name in _SERIES and not (name == "mfu" and value < 0.0):
                log.series.setdefault(name, array("d")).append(value)
        if "time" in values:
            if values["time"] <= 0.0:
                raise self.file.refuse(line.number, "a step that took no time")
            log.line = line.number
        if "mean_time" in values:  # of all steps so far: the last one counts
            log.series["time"] = array("d", [values["mean_time"]])
            log.line = line.number
        if "sample_rate" in values:
            training.rates.append(values["sample_rate"])
            log.samples_per_s = (line.number, values["sample_rate"])
        if "memory" in values:
            log.peak_memory = max(log.peak_memory or 0.0, values["memory"])
            log.memory_kind = self.spec.memory or None
        log.loss = values.get("loss", log.loss)
        self._stated_once(log, line, values, off)

    def _stated_once(
        self, log: Log, line: FileLine, values: Mapping[str, float], off: Mapping[str, float]
    ) -> None:
        """Take the rates that a benchmark prints of a whole training, and how they are rounded."""
        if "total_sample_rate" in values:
            log.samples_per_s = (line.number, values["total_sample_rate"])
            log.digits = off.get("total_sample_rate")
        if "printed_flops" in values:
            log.printed_flops = (values["printed_flops"], off.get("printed_flops", 0.0))

    def _end(self, training: _Training, line: FileLine, values: Mapping[str, float]) -> None:
        self._close_row(training)
        again = all(name in training.closing for name in values if name in _END)
        training.repeated += again
        if again:
            return
        log = training.log
        training.closing |= {n: v for n, v in values.items() if n not in training.closing}
        if "end_sample_rate" in values:
            log.samples_per_s = (line.number, values["end_sample_rate"])
            log.is_rate_of_whole = True
        rate = values.get("end_step_rate", 0.0)
        # A rate of 0.007 steps a second has one digit: the time is not taken from it.
        if rate >= 0.1 and "time" not in log.series:
            log.series["time"] = array("d", [1.0 / rate])
            log.line = line.number
        if "end_loss" in values and math.isfinite(values["end_loss"]):
            log.loss = values["end_loss"]

    def _close_row(self, training: _Training) -> None:
        row = {name: training.row[name] for name in _KEPT if name in training.row}
        if any(name in row for name in ("step", *_ROW)):
            training.steps.append(
                {n: int(v) if n == "step" and v == int(v) else v for n, v in row.items()}
            )
        for name, seconds in training.summed.items():
            training.log.timers.setdefault(name.removeprefix("timer_"), []).append(seconds)
        training.row, training.summed = {}, {}

    def _close(self, training: _Training) -> None:
        self._close_row(training)
        log = training.log
        if self.spec.rate == "median" and training.rates and not log.is_rate_of_whole:
            middle = sorted(training.rates)[len(training.rates) // 2]
            even = len(training.rates) % 2 == 0
            below = sorted(training.rates)[len(training.rates) // 2 - 1] if even else middle
            assert log.samples_per_s is not None
            log.samples_per_s = (log.samples_per_s[0], (middle + below) / 2.0)
        if self.spec.rate == "last" and "token_rate" in log.series:
            log.series["token_rate"] = log.series["token_rate"][-1:]
        for part in [part for part in log.timers if part.startswith("micro_")]:
            times = log.timers.pop(part)
            log.timers.setdefault(part.removeprefix("micro_"), times)

    def finish(self) -> None:
        """Close the open step; a last line that is broken off is noted and not read."""
        if self.torn is not None:
            self.notes.append(f"{self.torn.message.partition(': ')[2]}; it was not read")
            if not self.trainings:
                raise self.torn
        if self.trainings:
            self._close(self.trainings[-1])
        for training in self.trainings:
            fill(training.log.settings, read_settings("\n".join(training.about)))
            training.about.clear()


def _differs(a: float, b: float, share: float = _SAME) -> bool:
    return abs(a - b) > share * max(abs(a), abs(b))


def _bars(text: str) -> list[tuple[str, str]]:
    parts = [part.partition(":") for part in text.split("|")]
    return [(name, value) for name, _, value in parts if value and not value.isspace()]


# ---- a file


def read_stream(
    file: ToolFile, names: Sequence[str], hints: ImportHints
) -> Iterable[tuple[str, Reading]]:
    """Return the trainings in a file, each of its own, by the name of their format.

    Raises DataError with the line that cannot be read.
    """
    about = _About()
    readers = [_Reader(file, formats()[name], about) for name in names]
    weak = [reader for reader in readers if any(rule.rule.weak for rule in reader.rules)]
    for line in file.lines():
        is_read = [reader.take(line) for reader in readers]
        if any(is_read) or _take_weak(weak, line):
            file.use(line.number)
        elif not file.is_used(line.number):
            about.add(line.text)
    about.finish()
    for reader in readers:
        reader.finish()
    hosts: list[_Training] = []
    trainings: list[list[tuple[int, _Training]]] = []
    for reader in readers:
        alone = []
        for number, training in enumerate(reader.trainings):
            host = next(
                (rows_of_host for rows_of_host in hosts if _overlap(rows_of_host, training)), None
            )
            if host is None:
                alone.append((number, training))
            else:
                fill(host.log, training.log)
        hosts += [training for _, training in alone]
        trainings.append(alone)
    for reader, alone in zip(readers, trainings, strict=True):
        for number, training in alone:
            yield reader.spec.name, _reading(file, reader, number, training, hints)


def _take_weak(readers: Sequence[_Reader], line: FileLine) -> bool:
    is_read = [reader.take(line, is_weak=True) for reader in readers]
    return any(is_read)


def _overlap(host: _Training, other: _Training) -> bool:
    return host.first <= other.last and other.first <= host.last


def _reading(
    file: ToolFile, reader: _Reader, number: int, training: _Training, hints: ImportHints
) -> Reading:
    spec, log = reader.spec, training.log
    notes = list(reader.notes) if number == len(reader.trainings) - 1 else []
    zero = sorted(p for p, times in log.timers.items() if not any(t > 0.0 for t in times))
    if zero and spec.notes.zero_timers:
        notes.append(
            f"timers that read 0 and are missing: {', '.join(zero)}; {spec.notes.zero_timers}"
        )
    if spec.notes.no_timers and not log.timers:
        notes.append(spec.notes.no_timers)
    if spec.notes.no_end and not log.samples_per_s:
        notes.append(spec.notes.no_end)
    if spec.notes.no_memory and log.peak_memory is None:
        notes.append(spec.notes.no_memory)
    if training.not_finite:
        notes.append(f"{training.not_finite} lines have a number that is not finite (nan, inf)")
    if training.repeated:
        notes.append(f"{training.repeated} lines repeat a step or an end (other ranks)")
    part = FilePart(file, ())
    return Reading(records=tuple(records_of(part, log, hints)), steps=training.steps, notes=notes)


# ---- the importers


def _json_reader(module: str) -> Callable[[FilePart, ImportHints], Reading]:
    def read(part: FilePart, hints: ImportHints) -> Reading:
        part.use_all()
        reading: Reading = importlib.import_module(module).read_json(part, hints)
        return reading

    return read


def _importer(spec: Format) -> Importer:
    return Importer(
        name=spec.name,
        title=spec.title,
        order=spec.order,
        marks=Marks(near=spec.near, line=spec.line, keys=spec.keys, is_stream=True),
        read=_json_reader(spec.json),
        stream=read_stream,
        definition=spec.definition,
        judged_by=spec.judged_by,
        source=spec.source,
        tested_on=spec.tested_on,
    )


IMPORTERS = tuple(_importer(spec) for spec in formats().values())
