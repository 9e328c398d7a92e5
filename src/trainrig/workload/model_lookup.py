"""Which shape a user means: a name, a Hugging Face config.json, or a family with its numbers."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainrig.errors import UsageError
from trainrig.workload.model import FAMILIES, ModelShape
from trainrig.workload.presets import NAMED, custom, named


def find(text: str) -> ModelShape:
    """The shape that a user means: a name, a path to a config.json, or `family:number=value,…`.

    Behind a name or a path, ``:num_layers=2`` leaves it all but its first layers.
    """
    family, colon, numbers = text.partition(":")
    if colon and family in FAMILIES:
        return custom(family, name=text, **dict(map(_number, numbers.split(","))))
    whole, _, layers = text.rpartition(_LAYERS)
    if whole and layers.isdecimal():
        return _first_layers(find(whole), int(layers), text)
    path, is_folder = Path(text), os.path.isdir(text)
    known = text == "" or text.lower() in map(str.lower, NAMED)
    if not known and (other := _ALSO.get(_plain(text))):
        return named(other)
    if not known and (text.endswith(".json") or is_folder):
        from trainrig.workload.hf_config import read_config  # pydantic: formulas need none

        return read_config(path / "config.json" if is_folder else path)
    return named(text)


_LAYERS = ":num_layers="


def spelled(text: str) -> ModelShape | None:
    """The known model that a text names in its own way, ``Llama 2 7B`` or ``Grok1 314b``, or None.

    Letters and figures count alone; of several names the longest does.
    """
    wanted = _plain(text)
    names = {_plain(name): name for name in NAMED} | _ALSO
    found = max((plain for plain in names if plain in wanted), key=len, default="")
    return named(names[found]) if len(found) >= _SHORTEST else None


def _plain(text: str) -> str:
    return "".join(letter for letter in text.lower() if letter.isalnum())


_SHORTEST = 5
_ALSO = {
    "llama27b": "llama-7B",
    "llama213b": "llama-13B",
    "llama270b": "llama-70B",
    "llama33b": "llama-30B",
    "llama38b": "llama-8B",
    "llama318b": "llama-8B",
    "llama3170b": "llama3-70B",
    "llama3370b": "llama3-70B",
    "llama31405b": "llama3-405B",
    "llama321b": "llama-1B",
    "llama323b": "llama-3B",
    "gpt3175b": "gpt3-175B",
    "qwen3moe30b": "qwen3-30B-A3B",
    "qwen3moe235b": "qwen3-235B-A22B",
}
"""Other spellings, letters and figures alone, of names in NAMED."""


def with_layers(text: str, layers: int) -> str:
    """How `find` is asked for a model of the same width with so many layers in each stack."""
    family, colon, _ = text.partition(":")
    if colon and family in FAMILIES:
        decoder = f",num_decoder_layers={layers}" if family == "t5" else ""
        return f"{text},num_layers={layers}{decoder}"
    return f"{text}{_LAYERS}{layers}"


def _first_layers(shape: ModelShape, layers: int, name: str) -> ModelShape:
    layers = min(layers, shape.num_layers)
    decoder = min(layers, shape.num_decoder_layers)
    windows = shape.windows[:layers]
    return replace(shape, name=name, num_layers=layers, num_decoder_layers=decoder, windows=windows)


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
    if name == "activation":
        return name, value
    raise UsageError(f"cannot read {item!r} as number=value", "as in gpt2:num_layers=4,hidden=256")
