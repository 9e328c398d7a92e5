"""Experiment files: TOML that says what is trained, several times with a difference.

    model = "gpt2"              what all of them share
    batch_size = 4

    [[experiment]]              one of them; its keys come before the shared ones
    name = "DDP"
    nproc = 2
    tiny = { batch_size = 2 }   what ``--scale tiny`` changes in this one

    [sweep]                     each experiment once for each combination of these
    precision = ["fp32", "bf16"]

    [tiny]                      what ``--scale tiny`` changes besides the model
    seq_len = 128

Keys are those of the command line, with underscores.  A key that there is not, a value of another
type and a combination that contradicts itself are refused with their line, which tomllib does not
say: `Lines` reads headers of tables and keys at the beginning of a line; a key inside an inline
table has the line on which that begins.  What comes out is what the rest of the program reads:
frozen experiments, every default filled in.

A run keeps its own as experiments.toml (`file_of`): ``trainrig train RUN/experiments.toml`` trains
the same.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tomli_w

from trainrig.errors import DataError, TrainrigError, UsageError, reading, unknown
from trainrig.safe_read import parse_toml, read_settings
from trainrig.train.config import KEYS as EXPERIMENT_KEYS
from trainrig.train.config import Experiment, check, field_text, no_key
from trainrig.train.engines import SHARING, engine_of
from trainrig.train.weight_forms import form_of, model_of
from trainrig.workload import find
from trainrig.workload.layout import Layout

_EXPERIMENT = "experiment"
_HEADER = re.compile(r"""\s*\[+\s*["']?([A-Za-z_-]+)["']?\s*\]""")
_KEY = re.compile(r"""\s*(?:["']?([A-Za-z_-]+)["']?\s*\.\s*)?["']?([^\s=.'"#]+)["']?\s*[=.]""")


class Lines:
    """The lines of keys and tables."""

    def __init__(self, path: Path, text: str) -> None:
        self._path = path
        self._at: dict[tuple[str, object], int] = {}
        self._tables: dict[object, int] = {}
        table: object = None
        experiments = -1
        for number, line in enumerate(text.split("\n"), 1):
            if header := _HEADER.match(line):
                experiments += header[1] == _EXPERIMENT
                table = experiments if header[1] == _EXPERIMENT else header[1]
                self._tables.setdefault(table, number)
            elif key := _KEY.match(line):  # of this table, or of one that is named before a dot
                self._at.setdefault((key[2], table if key[1] is None else key[1]), number)

    def error(self, key: str, table: object, words: str, hint: str | None) -> UsageError:
        """Return an error with the line of ``key`` in its table, or of the table."""
        name = _EXPERIMENT if isinstance(table, int) else table
        line = self._at.get((key, table)) or self._tables.get(key) or self._tables.get(table)
        line = line or self._at.get((str(name), None), 1)
        return UsageError(f"{self._path}, line {line}: {words}", hint)

    @contextmanager
    def blaming(self, number: int) -> Iterator[None]:
        """Add the line of the key that a refusal of experiment ``number`` speaks of.

        It is looked for in the message, then in the hint; the experiment's own keys come first.
        """
        try:
            yield
        except TrainrigError as error:
            place = self._first_named_key(number, error) or ("", number)
            raise self.error(*place, error.message, error.hint) from None

    def _first_named_key(self, number: int, error: TrainrigError) -> tuple[str, object] | None:
        """Return the first key, and its table, that a refusal of experiment ``number`` names."""
        tables = (number, "sweep", "tiny", None)
        keys = [place for place in self._at if place[1] in tables]
        keys.sort(key=lambda place: tables.index(place[1]))
        for text in (error.message, error.hint or ""):
            spoken = re.findall(r"[a-z0-9]+(?:_[a-z0-9]+)*", text.lower().replace("-", "_"))
            if named := [place for place in keys if place[0] in spoken]:
                return named[0]
        return None


_NO_KEYS = {"auto_batch"}
"""Keys that ``batch_size = "auto"`` stands for."""
FIELDS = tuple(name for name in EXPERIMENT_KEYS if name not in _NO_KEYS)
KEYS = (*FIELDS, "tokens", "scale")
AUTO = "auto"
SCALES = ("full", "tiny")
MOST = 10_000
"""Experiments of one file: a sweep's product is counted before it is made."""
_TABLES = ("experiment", "sweep", "tiny")
_LENGTH = {"steps", "tokens"}
"""Two words for one thing: the one in the nearer table holds."""
_MOST_BYTES = 1 << 24
_MOST_TOKENS = 1e18

_TINY = "vocab=8192,max_positions=1024"

Keys = Mapping[str, Any]


def tiny(model: str, layout: Layout | None = None) -> str:
    """Return model's family at a size that trains in seconds, as far as its layout can split it.

    A layer for each pipeline stage, and one more where the model's own are not dealt out equally;
    a head for each rank that shares them.
    """
    shape, small_layout = find(model), layout or Layout()
    if shape.moe.num_experts:
        return "mixtral-small-cpu"
    stages, sharing = (
        int(small_layout.mesh.pp * small_layout.pipeline.interleave),
        int(small_layout.mesh.tp) * small_layout.mesh.cp,
    )
    layers = max(2, stages) + (shape.num_layers % stages > 0)
    hidden = 128 if 128 % sharing == 0 else 64 * sharing
    heads = f",num_heads={max(2, sharing)}" if shape.family == "gpt-neo" or sharing > 2 else ""
    return f"{shape.family}:num_layers={layers},hidden={hidden},{_TINY}{heads}"


def _fewer_ranks(experiment: Experiment) -> Experiment:
    """Return the experiment with as many ranks as may share a host's cores; only dp shrinks.

    First replicas, then the ranks that share one copy; the name says so.  What cannot be shrunk
    stays as it is, and is refused where it is trained.
    """
    mesh, whole = experiment.mesh, experiment.shard_size
    if mesh.ranks <= SHARING or experiment.placement.devices or not mesh.dp:
        return experiment
    inner = mesh.ranks // mesh.dp
    for shards in (n for n in range(whole or 1, 1 if whole else 0, -1) if (whole or 1) % n == 0):
        group = math.lcm(shards * (2 if whole < mesh.dp else 1) if whole else 2, mesh.ep)
        fitting = [n for n in range(group, mesh.dp, group) if n * inner <= SHARING]
        if fitting:
            ranks = fitting[-1] * inner
            name = f"{experiment.name}, {ranks} of {mesh.ranks} ranks".removeprefix(", ")
            return experiment.replace(nproc=ranks, name=name, shard_size=shards if whole else 0)
    return experiment


Fastest = Callable[[str, tuple[int, ...]], str]
"""A device, as a file names it, and numbers of GPUs → the precision that it is fastest in."""


def of_every_device(_device: str, _numbers: tuple[int, ...]) -> str:
    """Return the precision that every device has in hardware."""
    return "fp32"


def read_file(
    path: Path, changes: Keys, fastest: Fastest = of_every_device
) -> tuple[Experiment, ...]:
    """Return the experiments of a file; ``changes`` of the command line come before its keys.

    ``fastest`` chooses the precision of those that say "auto", or nothing.

    Raises DataError for what cannot be read, UsageError with the line of what is wrong.
    """
    text, content = _content(path)
    lines = Lines(path, text)
    _check_keys(content, lines)
    _check_sweep(content, changes, lines)
    experiments: dict[str, Experiment] = {}
    for number, keys in _keys_of_each(content, changes):
        with lines.blaming(number):
            experiment = experiment_of(keys, fastest)
            name = experiment.name or f"experiment {len(experiments) + 1}"
            if name in experiments:
                words = f"two experiments are called {name!r}"
                raise UsageError(words, "give each a name of its own: name")
            experiments[name] = experiment.replace(name=name)
    return tuple(experiments.values())


def _keys_of_each(content: Keys, changes: Keys) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield all keys of each experiment, and the number of the table that it was made of.

    The nearer key holds: the command line's, ``tiny``'s where that is asked for, the sweep's, the
    experiment's own, then those that all experiments share.
    """
    shared = {key: value for key, value in content.items() if key not in _TABLES}
    sweep = content.get("sweep", {})
    for number, table in enumerate(content.get("experiment", [{}])):
        table_keys = {key: value for key, value in table.items() if key != "tiny"}
        smaller = [content_part.get("tiny", {}) for content_part in (content, table)]
        for values in itertools.product(*sweep.values()):
            swept = dict(zip(sweep, values, strict=True))
            keys = _together(shared, table_keys, swept)
            is_tiny = changes.get("scale", keys.get("scale")) == "tiny"
            keys = _together(keys, *(smaller if is_tiny else ()), changes)
            if swept:
                words = ", ".join(f"{key} {value}" for key, value in swept.items())
                keys["name"] = f"{name}, {words}" if (name := keys.get("name")) else words
            yield number, keys


def _content(path: Path) -> tuple[str, dict[str, Any]]:
    """Return the text of a file, and what it says."""
    hint = "trainrig plan --write DIR makes such files, and docs/experiments.md shows one"
    try:
        with reading(path, hint):
            data = read_settings(path, _MOST_BYTES)
        text = data.decode("utf-8-sig").replace("\r\n", "\n")
        return text, parse_toml(text, _MOST_BYTES)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is no TOML: {error}", hint) from None


def _together(*tables: Keys) -> dict[str, Any]:
    """Keys of several tables, a later one's before an earlier one's."""
    keys: dict[str, Any] = {}
    for table in tables:
        if _LENGTH & table.keys():
            keys = {key: value for key, value in keys.items() if key not in _LENGTH}
        keys |= table
    return keys


def _check_values(keys: Keys) -> None:
    """Every key is one that there is, what it says can be printed, and a length is said once."""
    for key, value in keys.items():
        if key not in KEYS:
            raise no_key(key)
        if isinstance(value, str) and not value.isprintable():
            raise UsageError(field_text(key, value), "text without line breaks and control codes")
    if keys.keys() >= _LENGTH:
        raise UsageError("steps and tokens both say how long it trains", "leave one of them out")


def experiment_of(keys: Keys, fastest: Fastest = of_every_device) -> Experiment:
    """Return one experiment of keys as the command line has them.  Raises UsageError."""
    _check_values(keys)
    keys = {"heldout_batches": 0, "checkpoint_every": 0, **_of_init(keys)}
    scale, tokens = keys.pop("scale", "full"), keys.pop("tokens", None)
    if scale not in SCALES:
        raise unknown("scale", str(scale), SCALES)
    if keys.get("batch_size") == AUTO:
        if tokens is not None:
            raise UsageError(
                "tokens and batch_size auto: how many steps they are is not known before",
                "steps instead of tokens",
            )
        keys |= {"batch_size": 1, "auto_batch": True}
    if "devices" in keys:
        devices = keys["devices"]
        if isinstance(devices, list):
            devices = keys["devices"] = ",".join(map(str, devices))
        if not isinstance(devices, str) or not devices:
            raise UsageError(field_text("devices", devices), 'numbers of GPUs: devices = "0,1"')
        keys.setdefault("nproc", devices.count(",") + 1)
    experiment = _in_its_precision(keys, fastest)
    try:
        find(experiment.model)
    except TrainrigError as error:
        words = f"{field_text('model', experiment.model)}: {error.message}"
        raise UsageError(words, error.hint) from None
    if scale == "tiny":
        experiment = _fewer_ranks(
            experiment.replace(model=tiny(experiment.model, experiment.layout))
        )
    if tokens is not None:
        experiment = experiment.replace(steps=_steps_for(tokens, experiment))
    check(experiment)
    engine_of(experiment.framework).check(experiment)
    return experiment


def _in_its_precision(keys: Keys, fastest: Fastest) -> Experiment:
    """Return the experiment, in the precision that its device is fastest in where none is named."""
    if keys.get("precision", AUTO) != AUTO:
        return Experiment.of(**keys)
    experiment = Experiment.of(**{key: value for key, value in keys.items() if key != "precision"})
    return experiment.replace(precision=fastest(experiment.device, experiment.device_numbers))


def _of_init(keys: Keys) -> dict[str, Any]:
    """With the model whose weights ``init`` holds, where none is named.  UsageError, DataError."""
    init = keys.get("init")
    if not isinstance(init, str) or "model" in keys:
        return dict(keys)
    if (model := model_of(init)) is None:
        try:
            form_of(Path(init))
        except DataError as error:
            raise UsageError(f"{field_text('init', init)}: {error.message}", error.hint) from None
        words = f"{field_text('init', init)} does not say of which model"
        raise UsageError(words, "name it: model, or --model")
    return {**keys, "model": model}


def _steps_for(tokens: Any, experiment: Experiment) -> int:
    is_number = isinstance(tokens, int | float) and not isinstance(tokens, bool)
    if not is_number or not 1 <= tokens <= _MOST_TOKENS:
        raise UsageError(field_text("tokens", tokens), "a number from 1 to 1e18")
    return math.ceil(tokens / (experiment.global_samples * experiment.seq_len))


def _check_keys(content: Keys, lines: Lines) -> None:
    """Every key is one that there is, every table of the right kind."""
    if not content:
        raise lines.error("model", None, "the file holds no experiment", 'as model = "gpt2"')
    tables = content.get("experiment", [{}])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise lines.error("experiment", None, "experiments are tables", "[[experiment]]")
    if not tables:
        raise lines.error("experiment", None, "the list of experiments is empty", "[[experiment]]")
    for name in ("sweep", "tiny"):
        if not isinstance(content.get(name, {}), dict):
            raise lines.error(name, None, f"{name} is a table", f"[{name}]")
    keys: list[tuple[str, object]] = [(key, None) for key in content if key not in _TABLES]
    for number, table in enumerate(tables):
        if not isinstance(table.get("tiny", {}), dict):
            raise lines.error("tiny", number, "tiny is a table", "tiny = { batch_size = 2 }")
        keys += [(key, number) for key in (*table, *table.get("tiny", {})) if key != "tiny"]
    keys += [(key, name) for name in ("sweep", "tiny") for key in content.get(name, {})]
    for key, place in keys:
        if key not in KEYS:
            error = no_key(key, _TABLES if place is None else ("tiny",))
            raise lines.error(key, place, error.message, error.hint)


def _check_sweep(content: Keys, changes: Keys, lines: Lines) -> None:
    """Lists of values, not too many, that nothing overrules: names are made of them."""
    sweep, tables = content.get("sweep", {}), content.get("experiment", [{}])
    for key, values in sweep.items():
        if not isinstance(values, list) or not values:
            raise lines.error(key, "sweep", f"{key} is swept over a list", f"{key} = [1, 2]")
        is_tiny = "tiny" in (changes.get("scale"), content.get("scale"))
        smaller = [content_part.get("tiny", {}) for content_part in (content, *tables)]
        if key in changes or (is_tiny and any(key in content_part for content_part in smaller)):
            other = f"--{key.replace('_', '-')}" if key in changes else "[tiny]"
            words = f"{key} is swept, and {other} says one value for all"
            raise lines.error(key, "sweep", words, f"leave {other} or the sweep of {key} out")
    count = len(tables) * math.prod(len(values) for values in sweep.values())
    if count > MOST:
        words = f"{count:,} experiments, at most {MOST:,} in one file"
        raise lines.error("sweep", None, words, "shorter lists, or several files")


NAME = "experiments.toml"
_TITLE = "# What was trained, every default filled in; trainrig train FILE trains it again.\n"


def file_of(experiments: Sequence[Experiment], texts: Mapping[str, str]) -> str:
    """Return the file of these experiments.

    ``texts``: which text a folder of data holds, by its hash.
    """
    tables = [keys_of(experiment) for experiment in experiments]
    shared = {
        key: value
        for key, value in tables[0].items()
        if all(key in table and table[key] == value for table in tables)
    }
    differing_keys = [
        {key: value for key, value in table.items() if key not in shared} for table in tables
    ]
    notes = "".join(f"# text of {digest}: {folder!r}\n" for folder, digest in texts.items())
    listed: dict[str, Any] = {"experiment": differing_keys} if any(differing_keys) else {}
    return _TITLE + notes + tomli_w.dumps(shared | listed)


def keys_of(experiment: Experiment) -> dict[str, Any]:
    """Return an experiment in the words of a file; what is empty stays out."""
    values = {key: experiment.get(key) for key in FIELDS}
    values["warmup"] = "" if experiment.lr.warmup_tokens else experiment.warmup_steps
    if experiment.auto_batch:
        values["batch_size"] = AUTO
    return {key: value for key, value in values.items() if value != ""}
