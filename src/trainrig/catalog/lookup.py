"""From a name or a PCI id to a chip: the right one or none.

A name is matched exactly after normalisation: case, spaces, dashes and
brackets do not count, nor do leading vendor words (NVIDIA, GeForce, Tesla,
AMD Instinct ...).  Nothing else is forgiven.  "RTX 4090 Laptop GPU" is another
chip than "RTX 4090"; a slice ("MIG 1g.10gb", "GRID
A100-10C") is not the whole chip.  A short name that fits several chips
("A100") is exactly none of them: `candidates` lists them, and `most_common` presumes one where
whoever asks says so.
"""

from __future__ import annotations

import difflib
import re
from functools import cache
from pathlib import Path

from trainrig.catalog.chip import Chip
from trainrig.catalog.load import (
    chip_files,
    chips_of_file,
    file_hint,
    file_label,
    load_chips,
    names_in_file,
)
from trainrig.errors import DataError, UsageError

# Dropped only where they lead: "Quadro" stays, since a Quadro RTX 6000 is not an RTX 6000 Ada.
_VENDOR_WORDS = frozenset(
    ["nvidia", "geforce", "tesla", "amd", "radeon", "instinct"]
    + ["intel", "habana", "google", "huawei", "aws", "apple"]
)
# A plus or a letter of any script is part of a word: "4090+" is not a 4090.  A bar below is none.
_WORD = re.compile(r"(?:[^\W_]|[.+])+")
# A chip's number with its letters, as H100 or 4090; 80GB is a size.
_NUMBER = re.compile(r"(?!\d+gb$)[a-z]*\d{2,}[a-z]*")
_PCI_ID = re.compile(
    r"(?:(?P<vendor>[0-9a-f]{4}):|(?:[\w .,()]* )?device )(?P<device>[0-9a-f]{4})(?: \(rev \w+\))?",
    re.IGNORECASE,
)
_MAX_NAME = 200
_MAX_CANDIDATES = 12


def normalise(name: str) -> str:
    """Return a name without case, spaces, dashes and vendor: ``rtx4090``."""
    return "".join(_words(name))


def find_chip(name: str) -> Chip | None:
    """Return the chip that ``name`` means, or None: unknown, or fitting several.

    Of the catalog's files the one that has the name is read, which takes a tenth of the time.
    """
    normalised_name = normalise(name)
    path = _file_of().get(normalised_name)
    if path is None:
        return None
    return next(
        (chip for chip in chips_of_file(path) if normalised_name in map(normalise, _names(chip))),
        None,
    )


def chip_by_pci_id(pci_id: str) -> Chip | None:
    """Return the chip with a PCI id (``10de:2684``), or that lspci calls ``Device 2684``."""
    match = _PCI_ID.fullmatch(pci_id.strip())
    if match is None:
        return None
    id_ending = f"{match['vendor'] or ''}:{match['device']}".lower()
    chips = [
        chip for chip in load_chips() if any(pci_id.endswith(id_ending) for pci_id in chip.pci_ids)
    ]
    return chips[0] if len(chips) == 1 else None


def candidates(name: str) -> tuple[Chip, ...]:
    """Return the chips that a shortened ``name`` may mean: ``A100`` fits four, ``A100 80GB`` two.

    The first word is taken whole, so that ``A10`` does not mean an A100; letters that only one
    name has behind such a number may lack (``MI355``), and its parts be apart (``MI-355X``).
    """
    name_words = _words(name)
    if not name_words:
        return ()
    if name_words[0].isalpha() and name_words[0] not in _by_first_word():
        name_words = ["".join(name_words[:2]), *name_words[2:]]
    first = name_words[0] if name_words[0] in _by_first_word() else _lengthened(name_words[0])
    chips_with_words = _by_first_word().get(first, [])
    return tuple(chip for chip, words in chips_with_words if _fits(words, name_words))


def _lengthened(word: str) -> str:
    """Return the only first word that begins with ``word`` (``MI355``), letters added."""
    if not re.fullmatch(r"[a-z]+\d{2,}", word):
        return ""
    longer = {
        first_word
        for first_word in _by_first_word()
        if first_word.startswith(word) and first_word[len(word) :].isalpha()
    }
    return longer.pop() if len(longer) == 1 else ""


def server_module(name: str) -> Chip | None:
    """Return the server module with the most memory among `candidates`, or None."""
    modules = [chip for chip in candidates(name) if "SXM" in (chip.product.form_factor or "")]
    return max(modules, key=lambda chip: chip.memory.size or 0.0, default=None)


def most_common(name: str) -> Chip | None:
    """Return the chip that a short name is presumed to mean; None where it is too short for one.

    The module of servers with the most memory ("A100": A100 SXM4 80GB), else the chip that the
    catalog lists first of those that the name fits.  A line alone ("RTX", "TPU") means none.
    """
    several = candidates(name)
    words = _words(name)
    if not several or not any(letter.isdigit() for word in words for letter in word):
        return None
    spelled = [chip for chip in several if _is_spelled(_words(chip.name), words)]
    return server_module(name) or (spelled or several)[0]


def did_you_mean(name: str) -> tuple[str, ...]:
    """Return similar names of the catalog, as a hint for people, never as a match.

    Of a number that chips have, as ``H100``, only those: ``H100 SMX`` is no B100.
    """
    words = _words(name)
    number = next(filter(_NUMBER.fullmatch, words), None)
    same = [chip for chip in load_chips() if number in _numbers(chip)]
    chips = same or load_chips()
    spelled = {normalise(chip_name): chip.name for chip in chips for chip_name in _names(chip)}
    cutoff = 0.0 if same else 0.6
    close_names = difflib.get_close_matches(
        normalise(name)[:_MAX_NAME], spelled, n=6, cutoff=cutoff
    )
    names = dict.fromkeys(spelled[near_name] for near_name in close_names)
    return tuple(sorted(names, key=lambda chip_name: _words(chip_name)[:1] != words[:1]))[:3]


def _numbers(chip: Chip) -> set[str]:
    """Return the words of a chip's name that may be its number: ``rtx4090``, ``4090``."""
    first, *others = _words(chip.name)
    return {first, *others, *(first + word for word in others[:1])}


def require_chip(name: str) -> Chip:
    """Return the chip that a name or a PCI id means.

    Raises UsageError that lists the candidates, or names that look like it.
    """
    chip = find_chip(name) or chip_by_pci_id(name)
    if chip is not None:
        return chip
    several = candidates(name)
    spelled = [chip for chip in several if _is_spelled(_words(chip.name), _words(name))]
    if len(spelled) == 1:
        return spelled[0]
    if len(several) > 1:
        usual = most_common(name) or several[0]
        hint = f'give the whole name, as "{usual.name}"'
        raise UsageError(f"{_shown(name)} is one of: {_listed(several)}", hint)
    similar_names = tuple(fitting.name for fitting in several) or did_you_mean(name)
    hint = (
        f"did you mean {' or '.join(similar_names)}?"
        if similar_names
        else "list them with: trainrig catalog"
    )
    raise UsageError(f"unknown chip: {_shown(name)}", hint)


def chips_named(name: str) -> tuple[Chip, ...]:
    """Return the chip that a name means, or all that a short one fits: ``A100``.

    Raises:
        UsageError: No chip is called so, or the name is a line alone, as ``RTX``.
    """
    if find_chip(name) is None and most_common(name) is not None:
        return candidates(name)
    return (require_chip(name),)


@cache
def _file_of() -> dict[str, Path]:
    """Return the data file of each chip, by its normalised names."""
    path_by_name: dict[str, Path] = {}
    for path in chip_files():
        for name in names_in_file(path):
            first_path = path_by_name.setdefault(normalise(name), path)
            if first_path != path:
                hint = file_hint(path) or file_hint(first_path)
                message = f"catalog: {name!r} stands in both {file_label(first_path)}"
                raise DataError(f"{message} and {file_label(path)}", hint)
    return path_by_name


@cache
def _by_first_word() -> dict[str, list[tuple[Chip, list[str]]]]:
    """Return chips and the words of their names, by the first of these."""
    index: dict[str, list[tuple[Chip, list[str]]]] = {}
    for chip in load_chips():
        words = _words(chip.name)
        index.setdefault(words[0], []).append((chip, words))
    return index


def _names(chip: Chip) -> tuple[str, ...]:
    return (chip.name, *chip.short_names, *chip.aliases)


def _words(name: str) -> list[str]:
    """Return the words of ``name`` without leading vendor words; none if it is absurdly long."""
    words = _WORD.findall(name.casefold()) if len(name) <= _MAX_NAME else []
    while words and words[0] in _VENDOR_WORDS:
        words.pop(0)
    return words


def _fits(words: list[str], name_words: list[str]) -> bool:
    """Return whether each name word begins one of a chip's words, the first left out."""
    return all(any(word.startswith(part) for word in words[1:]) for part in name_words[1:])


def _is_spelled(words: list[str], name_words: list[str]) -> bool:
    """Return whether each name word is a whole word of a chip's, a number aside."""
    whole_words = {word.rstrip("0123456789") for word in words} | set(words)
    return all(part in whole_words for part in name_words)


def _listed(chips: tuple[Chip, ...]) -> str:
    names = [chip.name for chip in chips[:_MAX_CANDIDATES]]
    more = len(chips) - len(names)
    return ", ".join([*names, *([f"and {more} more"] if more else [])])


def _shown(name: str) -> str:
    return name if len(name) <= 60 else name[:57] + "..."
