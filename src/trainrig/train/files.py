"""Experiment files: TOML that says what is trained, several times with a difference.

    model = "gpt2"              what all of them share
    batch_size = 4

    [[experiment]]              one of them; its keys come before the shared ones
    name = "DDP"
    nproc = 2

    [sweep]                     each experiment once for each combination of these
    precision = ["fp32", "bf16"]

    [tiny]                      what ``--scale tiny`` changes besides the model
    seq_len = 128

Keys are those of the command line, with underscores.  A key that there is not, a value of another
type and a combination that contradicts itself are refused with their line.  `plan_of` gives what
the rest of the program reads: frozen experiments, every default filled in.
"""

from __future__ import annotations

import itertools
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainrig.errors import DataError, UsageError
from trainrig.train.experiment import Experiment, check, from_dict
from trainrig.train.layouts import check_layout
from trainrig.workload import find

FIELDS = {
    "batch_size": "batch",
    "seq_len": "seq",
    "precision": "dtype",
    "lr": "learning_rate",
}
"""Keys that are called otherwise inside."""
SAME = (
    "name",
    "backend",
    "python",
    "model",
    "data",
    "device",
    "nproc",
    "zero",
    "shard_size",
    "offload",
    "p2p",
    "rounds",
    "grad_accum",
    "steps",
    "recompute",
    "compile",
    "optimizer",
    "warmup",
    "weight_decay",
    "clip",
    "seed",
)
KEYS = (*FIELDS, *SAME, "tokens", "scale")
LATER = {
    "tp": "tensor parallelism",
    "pp": "pipeline parallelism",
    "interleave": "pipeline parallelism",
    "schedule": "pipeline parallelism",
    "sequence_parallel": "sequence parallelism",
}
"""Keys of layouts that are not trained yet."""
AUTO = "auto"
SCALES = ("full", "tiny")
_TABLES = ("experiment", "sweep", "tiny")

_TINY = {
    "gpt2": "num_layers=2,hidden=128,vocab=8192,max_positions=1024",
    "gpt-neo": "num_layers=2,hidden=128,num_heads=2,vocab=8192,max_positions=1024",
    "bert": "num_layers=2,hidden=128,vocab=8192,max_positions=1024",
    "t5": "num_layers=2,hidden=128,vocab=8192,max_positions=1024",
    "llama": "num_layers=2,hidden=128,vocab=8192,max_positions=1024",
}

Keys = Mapping[str, Any]


def tiny(model: str) -> str:
    """The model's family at a size that trains in seconds."""
    family = find(model).family
    return f"{family}:{_TINY[family]}"


def read_file(path: Path, changes: Keys) -> tuple[Experiment, ...]:
    """The experiments of a file; ``changes`` of the command line come before its keys.

    Raises DataError for what cannot be read, UsageError with the line of what is wrong.
    """
    try:
        text = path.read_text(encoding="utf-8")
        content = tomllib.loads(text)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DataError(f"{path} is no TOML: {error}") from None
    lines = _Lines(path, text)
    _check_keys(content, lines)
    shared = {key: value for key, value in content.items() if key not in _TABLES}
    scale = changes.get("scale", shared.get("scale", "full"))
    smaller = content.get("tiny", {}) if scale == "tiny" else {}
    found = []
    for number, own in enumerate(content.get("experiment", [{}])):
        for swept in _combinations(content.get("sweep", {})):
            keys = {**shared, **own, **swept, **smaller, **changes}
            if swept:
                keys["name"] = _swept_name(keys.get("name"), swept)
            with lines.blaming(number):
                found.append(experiment_of(keys))
    return _named(found)


def experiment_of(keys: Keys) -> Experiment:
    """One experiment of keys as the command line has them.  Raises UsageError."""
    _refuse_later(keys)
    unknown = [key for key in keys if key not in KEYS]
    if unknown:
        raise UsageError(f"an experiment has no {unknown[0]!r}", "it has: " + ", ".join(KEYS))
    keys = dict(keys)
    scale, tokens = keys.pop("scale", "full"), keys.pop("tokens", None)
    if scale not in SCALES:
        raise UsageError(f"unknown scale {scale!r}", "one of: " + ", ".join(SCALES))
    if tokens is not None and "steps" in keys:
        raise UsageError("steps and tokens both say how long it trains", "leave one of them out")
    if isinstance(keys.get("optimizer"), str) and keys["optimizer"] == "adamw-fused":
        keys["optimizer"] = "adamw"
    if keys.get("batch_size") == AUTO:
        if tokens is not None:
            raise UsageError(
                "tokens and batch_size auto: how many steps they are is not known before",
                "steps instead of tokens",
            )
        keys |= {"batch_size": 1, "auto_batch": True}
    named = {FIELDS.get(key, key): value for key, value in keys.items()}
    found = from_dict({"heldout_batches": 0, "checkpoint_every": 0, **named})
    if scale == "tiny":
        found = found.replace(model=tiny(found.model))
    if tokens is not None:
        found = found.replace(steps=_steps_for(tokens, found))
    check_layout(found)
    check(found)
    return found


def _refuse_later(keys: Keys) -> None:
    for key, what in LATER.items():
        if key in keys:
            raise UsageError(
                f"{key} = {keys[key]}: {what} comes in a later version",
                f"leave {key} out; nproc and zero spread a training over ranks",
            )


def _steps_for(tokens: Any, found: Experiment) -> int:
    if not isinstance(tokens, int | float) or isinstance(tokens, bool) or not tokens >= 1:
        raise UsageError(f"tokens = {tokens}", "a number from 1")
    per_step = max(1, found.global_samples * found.seq)
    return max(1, math.ceil(min(tokens, 2.0**60) / per_step))


def _combinations(sweep: Any) -> Iterator[dict[str, Any]]:
    """Each combination of the swept values; one without any where nothing is swept."""
    for values in itertools.product(*sweep.values()):
        yield dict(zip(sweep, values, strict=True))


def _swept_name(name: Any, swept: Keys) -> str:
    words = ", ".join(f"{key} {value}" for key, value in swept.items())
    return f"{name}, {words}" if name else words


def _named(found: Sequence[Experiment]) -> tuple[Experiment, ...]:
    """Every one with a name of its own."""
    named: list[Experiment] = []
    for number, experiment in enumerate(found, 1):
        name = experiment.name or f"experiment {number}"
        if any(other.name == name for other in named):
            raise UsageError(f"two experiments are called {name!r}", "give each a name of its own")
        named.append(experiment.replace(name=name))
    return tuple(named)


def _check_keys(content: Keys, lines: _Lines) -> None:
    """Every key is one that there is, every table of the right kind."""
    tables = content.get("experiment", [{}])
    if not isinstance(tables, list) or not all(isinstance(own, dict) for own in tables):
        raise lines.error("experiment", None, "experiments are tables", "[[experiment]]")
    for name in ("sweep", "tiny"):
        if not isinstance(content.get(name, {}), dict):
            raise lines.error(name, None, f"{name} is a table", f"[{name}]")
    shared = [(key, None) for key in content if key not in _TABLES]
    own = [(key, number) for number, table in enumerate(tables) for key in table]
    rest = [(key, name) for name in ("sweep", "tiny") for key in content.get(name, {})]
    for key, place in [*shared, *own, *rest]:
        if key not in KEYS and key not in LATER:
            hint = "it has: " + ", ".join(KEYS)
            raise lines.error(key, place, f"an experiment has no {key!r}", hint)
    for key, values in content.get("sweep", {}).items():
        if not isinstance(values, list) or not values:
            raise lines.error(key, "sweep", f"{key} is swept over a list", f"{key} = [1, 2]")


class _Lines:
    """Where a key stands in a file: tomllib does not say."""

    def __init__(self, path: Path, text: str) -> None:
        self._path = path
        self._at: dict[tuple[str, object], int] = {}
        self._headers: dict[object, int] = {}
        place: object = None
        experiments = -1
        for number, line in enumerate(text.splitlines(), 1):
            header = re.match(r"\s*\[+\s*([A-Za-z_-]+)\s*\]", line)
            if header:
                experiments += header[1] == "experiment"
                place = experiments if header[1] == "experiment" else header[1]
                self._headers.setdefault(place, number)
                continue
            key = re.match(r"""\s*["']?([^\s=.'"]+)["']?\s*=""", line)
            if key:
                self._at.setdefault((key[1], place), number)

    def error(self, key: str, place: object, words: str, hint: str | None) -> UsageError:
        """An error with the line of ``key`` in its table, or of the table."""
        line = self._at.get((key, place)) or self._headers.get(key) or self._headers.get(place, 1)
        return UsageError(f"{self._path}, line {line}: {words}", hint)

    def blaming(self, number: int) -> _Blame:
        """What is refused inside is refused with a line of experiment ``number``."""
        return _Blame(self, number)

    def of_words(self, words: str, number: int) -> str | None:
        """The key among the file's that a refusal speaks of, the experiment's own first."""
        inside = {inner: key for key, inner in FIELDS.items()}
        spoken = set(re.findall(r"[a-z_0-9]+", words))
        spoken |= {inside[word] for word in spoken if word in inside}
        keys = [key for key, place in self._at if place == number]
        keys += [key for key, place in self._at if place in (None, "sweep", "tiny")]
        return next((key for key in keys if key in spoken), None)

    def place_of(self, key: str, number: int) -> object:
        """The table in which a key is set for an experiment."""
        for place in (number, "sweep", "tiny", None):
            if (key, place) in self._at:
                return place
        return number


class _Blame:
    """Adds the line to a UsageError."""

    def __init__(self, lines: _Lines, number: int) -> None:
        self._lines, self._number = lines, number

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, UsageError):
            key = self._lines.of_words(error.message, self._number) or ""
            place = self._lines.place_of(key, self._number)
            raise self._lines.error(key, place, error.message, error.hint) from None
