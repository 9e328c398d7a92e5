"""Which shape a user means: a name, a Hugging Face config.json, or a family with its numbers."""

from __future__ import annotations

import math
import os
import re
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from trainrig.errors import UsageError
from trainrig.workload.model import FAMILIES, ModelShape, parameters
from trainrig.workload.presets import (
    NAMED,
    custom,
    known,
    named,
    published,
    spellings,
    table,
    wordlist,
)


def find(text: str) -> ModelShape:
    """Return shape that a user means: a name, a path to a config.json, or `family:number=value,…`.

    Behind a name or a path, ``:num_layers=2`` leaves it all but its first layers.  A name may be
    the beginning of one, or say how weights are stored or tuned (``unsloth/…-bnb-4bit``).
    """
    try:
        return _exact(text)
    except UsageError:
        if (other := _read_as(text)) is None:
            raise
    return named(other)


def note_of(text: str, shape: ModelShape) -> str | None:
    """Return a note on a tower or another attention that a shape lacks, or on a guess; or None."""
    short = text.strip().rpartition("/")[2]
    if _SIZE.fullmatch(text) and known(text.strip()) is None:
        heads, vocabulary = shape.attention.num_heads, shape.vocab
        return (
            f"{short} is presumed to be a Llama of {shape.num_layers} layers, hidden "
            f"{shape.hidden}, {heads} heads, vocabulary {vocabulary}; name a model for its own"
        )
    plain = _plain(short)
    for name, (_, note) in _stand_ins().items():
        if plain == name:
            return f"{short} is priced as {shape.name}: {note}"
    words = set(re.split(r"[ _.-]+", short.lower()))
    if _is_name(short) and words & set(wordlist("towers")):
        return f"{short} is priced as its language model, {shape.name}, without its other tower"
    is_whole = not _is_name(short) or known(short) is not None or _other_name(short) is not None
    whole = None if is_whole else _only_beginning(short)
    if whole is None or _pointed(whole) == _pointed(short):
        return None
    return f"{short} is read as {whole}, the only known name that begins so"


def _is_name(text: str) -> bool:
    family, colon, _ = text.partition(":")
    is_by_numbers = bool(colon) and family in FAMILIES
    return "=" not in text and not is_by_numbers and not text.endswith(".json")


def _read_as(text: str) -> str | None:
    """Return the known name that a text with words around it, or the beginning of a name, means.

    None.
    """
    if not _is_name(text) or len(text) > _LONGEST:
        return None
    short = text.strip().rpartition("/")[2]
    if stand_in := _stand_ins().get(_plain(short)):
        return stand_in[0]
    for pattern, read_as in spellings("tuned_from").items():
        short = re.sub(pattern, read_as, short, flags=re.IGNORECASE)
    suffixes = {*wordlist("towers"), *wordlist("stored")}
    words = [word for word in re.split(r"[ _-]+", short) if word.lower() not in suffixes]
    plain = "-".join(words)
    return _other_name(plain) or _only_beginning(plain)


def _only_beginning(text: str) -> str | None:
    """Return the one name that begins so, no number of it cut.

    ``qwen2.5-7`` is no qwen2.5-72B; None.
    """
    start = _pointed(text)
    names = {
        name
        for plain, name in _pointed_names().items()
        if plain.startswith(start)
        and not (start[-1:].isdigit() and plain[len(start) :][:1].isdigit())
    }
    return names.pop() if len(start) >= _SHORTEST_BEGINNING and len(names) == 1 else None


_LONGEST, _SHORTEST_BEGINNING = 200, 4


@cache
def _stand_ins() -> dict[str, tuple[str, str]]:
    """By plain name: the known model that another is priced as, and what differs."""
    return {name: (known, note) for name, (known, note) in table("stand_ins").items()}


def _exact(text: str) -> ModelShape:
    """Return the shape of a whole name, a path or numbers.  Raises UsageError."""
    family, colon, numbers = text.partition(":")
    if colon and family in FAMILIES:
        return custom(family, name=text, **_numbers(numbers))
    whole, _, layers = text.rpartition(_LAYERS)
    if whole and layers.isdecimal():
        return _first_layers(find(whole), int(layers), text)
    path, is_folder = Path(text), os.path.isdir(text)
    known = text == "" or text.lower() in map(str.lower, NAMED)
    # A folder with a configuration may be called as a model is.
    is_config = text.endswith(".json") or os.path.isfile(path / "config.json")
    if not (known or is_config) and (other := _other_name(text)):
        return named(other)
    if not known and (is_config or is_folder):
        from trainrig.workload.hf_config import read_config  # pydantic: formulas need none

        return read_config(path / "config.json" if is_folder else path)
    if not known and (billions := _SIZE.fullmatch(text)):
        return of_size(float(billions[1]) * (1e9 if billions[2] in "bB" else 1e6), text.strip())
    return named(text)


_LAYERS = ":num_layers="


@lru_cache(maxsize=4096)
def spelled(text: str) -> ModelShape | None:
    """The known model that a text names in its own way, ``Llama 2 7B`` or ``Grok1 314b``, or None.

    Letters and figures count alone, and a point between figures; of several names the longest does.
    """
    short = text.rpartition("/")[2]  # without whose it is: microsoft/phi-4
    short = re.split(r"[(\[,]| (?:cut|with|reduced)\b", short)[0] or short  # nor what is said of it
    whole = (spellings("spellings") | spellings("families")).get(_plain(short))
    if whole is not None and _is_of_size(named(whole), text):
        return named(whole)
    text = _TOWERS.sub(r"\1", text).replace("*", "x")
    for pattern, read_as in spellings("tuned_from").items():
        text = re.sub(pattern, read_as, text, flags=re.IGNORECASE)
    for plain_of, names in ((_pointed, _pointed_names()), (_plain, _plain_names())):
        wanted = plain_of(text)
        longest = max((plain for plain in names if plain in wanted), key=len, default="")
        if len(longest) >= _SHORTEST and _is_of_size(known := named(names[longest]), text):
            return known
        if (name := names.get(plain_of(short))) and _is_of_size(named(name), text):
            return named(name)
    words = re.split(r"[ _-]+", text)
    fewer = " ".join(word for word in words if not _is_beside(word.lower()))
    if fewer != " ".join(words):
        return spelled(fewer)
    return _with_its_size(text)


def _with_its_size(text: str) -> ModelShape | None:
    """Return known model of a family that a text names with its own size: ``GLM-5.1 757B MoE``."""
    sizes = re.findall(_WITH_SIZE, text.lower())
    names = _plain_names() | spellings("families")
    name = names.get(_plain(re.sub(_WITH_SIZE, " ", text.lower())))
    if name is None or len(sizes) != 1:
        return None
    stated = float(sizes[0]) * 1e9  # 0 where somebody writes "0B": of no model
    difference = abs(parameters(shape := named(name)).total - stated)
    return shape if difference < 0.1 * stated else None


_WITH_SIZE = r"(?<![\w.])(\d+(?:\.\d+)?)b(?:-a\d+(?:\.\d+)?b)?(?:[ _-]*moe)?(?![a-z\d])"
"""Parameters of all, and maybe those that a token meets."""


def _is_of_size(shape: ModelShape, text: str) -> bool:
    """Return whether no number with a point says another size: 1.3B is no 13B."""
    stated = re.search(r"(?<![\da.])(\d+\.\d+) ?b(?![a-z])", text.lower())
    size = float(stated[1]) * 1e9 if stated else parameters(shape).total
    return abs(math.log(parameters(shape).total / size)) < 1.0


def _other_name(text: str) -> str | None:
    """Return the name of a model that is spelled otherwise: ``Qwen/Qwen2.5-7B-Instruct``."""
    short = re.split("[ _-]", text.strip().rpartition("/")[2].lower())
    words = [word for word in short if word not in _BESIDE]
    unversioned = [word for word in words if not _VERSION.fullmatch(word)]
    for spelling in (text, "-".join(short), "-".join(words), "-".join(unversioned)):
        for plain, names in (
            (_pointed, _pointed_names()),
            (_plain, _plain_names()),
            (_plain, spellings("families")),
        ):
            if name := names.get(plain(spelling)):
                return name
    return None


_BESIDE = {"instruct", "chat", "base", "hf", "it", "pt", "meta", "preview", "bf16", "fp8"} | {
    f"{thousands}k" for thousands in (4, 8, 16, 32, 128)
}
"""Words of a model's name that do not change its shape."""
_TUNED = re.compile(r"q?lora|dora|r=?\d+|unsloth|bnb|\d-?bit")
"""Words behind a model's name that say how it is tuned: ``Phi-4 QLoRA r=16``."""
_VERSION = re.compile(r"v\d+\.\d+|2[45]\d\d")
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([bBmM])\s*")


@lru_cache(maxsize=1024)
def of_size(wanted: float, name: str) -> ModelShape:
    """Return a dense Llama of about so many parameters, 128 times as wide as it has layers.

    Of the published ones of one to a hundred billion parameters all are 80 to 160 times as wide.
    """
    if numbers := _OF_GPT3.get(round(wanted / 1e9, 3)):
        sizes: dict[str, Any] = dict(
            zip(("num_layers", "hidden", "num_heads"), numbers, strict=True)
        )
        tied = {"vocab": 50257, "tied": True} if sizes["hidden"] < 1536 else {}
        return custom("llama", name=name, **sizes, **tied)
    _, shape = min(_llamas(), key=lambda candidate: abs(math.log(candidate[0] / wanted)))
    return shape.replace(name=name)


@cache
def _llamas() -> list[tuple[int, ModelShape]]:
    """Parameters and shapes of dense Llamas of all sizes that `of_size` chooses from."""
    shapes = (
        custom("llama", num_layers=max(2, layers), hidden=wide, num_heads=wide // 128)
        for wide in range(256, 25600, 128)
        for layers in {wide // 128 + more for more in (-wide // 1024, 0, wide // 1024)}
    )
    return [(parameters(shape).total, shape) for shape in shapes]


def _is_beside(word: str) -> bool:
    """Return whether a word of a model's name does not change its shape."""
    return word in _BESIDE or bool(_TUNED.fullmatch(word) or _VERSION.fullmatch(word))


_OF_GPT3 = {
    0.125: (12, 768, 12),
    0.35: (24, 1024, 16),
    0.76: (24, 1536, 16),
    1.3: (24, 2048, 16),
    2.7: (32, 2560, 32),
    6.7: (32, 4096, 32),
    13.0: (40, 5120, 40),
}
"""Layers, width and heads of GPT-3's models by billions of parameters (Brown et al. 2020,
table 2.1): who names a model by one of these sizes has taken it from there."""


def _plain(text: str) -> str:
    return "".join(letter for letter in text.lower() if letter.isalnum())


def _pointed(text: str) -> str:
    """Return `_plain`, but 2.5-7B is not 2-57B."""
    return _plain(re.sub(r"(?<=\d)\.(?=\d)", "point", text))


@cache
def _plain_names() -> dict[str, str]:
    return {_plain(name): name for name in (*published(), *NAMED)} | spellings("spellings")


@cache
def _pointed_names() -> dict[str, str]:
    return {_pointed(name): name for name in (*published(), *NAMED)}


_TOWERS = re.compile(r"(qwen[\d.]*)[- _]*(?:vl|coder|math|omni|audio)\b", re.IGNORECASE)
"""Qwen's models for pictures, programs and the like have the language model of their size."""
_SHORTEST = 5


def with_layers(text: str, layers: int) -> str:
    """Return the text by which `find` finds a model with so many layers in each stack."""
    family, colon, _ = text.partition(":")
    if colon and family in FAMILIES:
        decoder = f",num_decoder_layers={layers}" if family == "t5" else ""
        return f"{text},num_layers={layers}{decoder}"
    return f"{text}{_LAYERS}{layers}"


def _first_layers(shape: ModelShape, layers: int, name: str) -> ModelShape:
    layers = min(layers, shape.num_layers)
    decoder = min(layers, shape.num_decoder_layers)
    windows = shape.attention.windows[:layers]
    return shape.replace(name=name, num_layers=layers, num_decoder_layers=decoder, windows=windows)


def _numbers(text: str) -> dict[str, Any]:
    """Return the numbers of a shape; ``windows=1024/0`` is of its layers in turn."""
    numbers = dict(map(_number, text.split(",")))
    if "windows" in numbers:
        widths = str(numbers["windows"]).split("/")
        if not all(map(str.isdecimal, widths)):
            raise UsageError(f"cannot read windows={numbers['windows']}", "as windows=1024/0")
        layers = numbers["num_layers"] if isinstance(numbers.get("num_layers"), int) else 0
        numbers["windows"] = tuple(int(widths[at % len(widths)]) for at in range(layers))
    return numbers


def _number(item: str) -> tuple[str, Any]:
    name, _, value = item.partition("=")
    if name in ("name", "family"):
        raise UsageError(f"{name} is not a number of a shape")
    if value in ("true", "false"):
        return name, value == "true"
    for read in (int, float):
        try:
            return name, read(value)
        except ValueError:
            continue
    if name in ("activation", "variant", "windows"):
        return name, value
    raise UsageError(f"cannot read {item!r} as number=value", "as in gpt2:num_layers=4,hidden=256")
