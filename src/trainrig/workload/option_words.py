"""An option's value as people and other programs type it: ``paged_adamw_8bit``, ``4bit``, ``cpu``.

`usual_word` answers with our word for it, from option_words.toml.  What is not in there stays as
it was typed, and is refused, where it is no word, by whoever knows the words.
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

PATH = Path(__file__).parent / "option_words.toml"


@cache
def option_words() -> dict[str, dict[str, str]]:
    """Our words by option, with underscores, and by other words, as `_plain` writes them."""
    content = tomllib.loads(PATH.read_text(encoding="utf-8"))
    return {
        option: {_plain(word): ours for word, ours in words.items()}
        for option, words in content.items()
        if option != "schema"
    }


def usual_word(option: str, value: Any) -> Any:
    """Return our word for an option's value, or the value where there is none.

    Args:
        option: The option's name with underscores: ``lora_on``.
        value: As it was typed; what is no text stays.
    """
    words = option_words().get(option)
    if words is None or not isinstance(value, str):
        return value
    if value.lower() in words.values():
        return value.lower()
    return words.get(_plain(value), value)


def option_of(key: str) -> str:
    """Return the option that a key of a layout or an experiment is typed as: ``--micro-batch``."""
    return "--" + _OPTIONS.get(key, key).replace("_", "-")


_OPTIONS = {"batch_size": "micro_batch"}


def _plain(word: str) -> str:
    return word.strip().lower().replace("-", "").replace("_", "").replace(" ", "")
