"""Mistranslations per 10,000 sentences that are made of the message forms of the catalogue.

    python -m validation.translations [--sentences N] [--seed N] [--show N]

Each sentence is a form with values in its places: numbers with units, names of chips with spaces
and brackets, paths, quoted text, words of other messages.  It is right where it reads as the
translation of its own form, each value as it is or as its own translation.  Everything else counts:
another form was taken, a value was lost or changed, the sentence stayed English.  Exit 1 above
LIMIT.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections import Counter
from dataclasses import dataclass

from trainrig.language.catalogue import PLACE, Catalogue

LIMIT = 0.001
_TAG = "zh-CN"
NUMBERS = ("1", "3", "8", "64", "1,024", "0.25", "12.5", "90", "4096")
QUANTITIES = (
    *("57 %", "1.20 TFLOPS", "80.4 GB/s", "12.5 ms", "23.5 GiB", "700 W", "2 h 10 min", "-4.4 %"),
    *("1 GPU", "3 GPUs", "8 nodes", "4,096 tokens", "±161 %", "$2.50", "415 µs", "5.0 GT/s", "12×"),
)
NAMES = (
    *("NVIDIA H100 80GB HBM3", "Intel(R) Xeon(R) Platinum 8480+", "RTX 4090", "GPU 0", "nvme0n1"),
    *("AMD Radeon RX 7900 XTX (gfx1100)", "AMD EPYC 9654 96-Core Processor", "meta-llama/Llama-3"),
    *("Tesla V100-SXM2-16GB (32 GB)", "qwen2.5-7b", "fp8_e4m3", "MI300X", "node-7.example.org"),
)
PATHS = ("/data/my runs/2026-11-28", "runs/a.toml", "/tmp/x (copy)/run.toml", "~/models/gpt2")
QUOTED = ("'a b'", "'memory bandwidth of all'", "'No such file: x, y'", '"tp=2; pp=4"')
_NARROW = str.maketrans("（），；：", "(),;:")
_NUMBER_PLACE = re.compile(r"number|count$|index|gpus$|nodes$|steps$|bytes|lines?$|hits|times")
_PATH_PLACE = re.compile(r"path|folder|file|run$|out$")
_NAME_PLACE = re.compile(r"name|label|device|chip|model|host|card|kind|where")


@dataclass(frozen=True, slots=True)
class Sentence:
    """A form of the catalogue with a value in each place."""

    form: str
    values: dict[str, str]

    @property
    def text(self) -> str:
        """The sentence in English."""
        return PLACE.sub(lambda place: self.values[place[1]], self.form)


class Checker:
    """Makes sentences of a catalogue's forms and reads their translations."""

    def __init__(self, entries: dict[str, str], seed: int) -> None:
        self.entries = entries
        self.forms = sorted(form for form in entries if PLACE.search(form))
        self.catalogue = Catalogue(entries)
        self._words = sorted(
            text for text in entries if re.fullmatch(r"[A-Za-z][A-Za-z0-9 ,-]{2,38}[a-z]", text)
        )
        self._random = random.Random(seed)

    def sentence(self) -> Sentence:
        """Return a form, each place of it filled with a value that its name allows."""
        form = self._random.choice(self.forms)
        pieces = PLACE.split(form)
        values = {}
        for at, name in enumerate(pieces[1::2]):
            value = self._value(name)
            before, after = pieces[2 * at], pieces[2 * at + 2]
            if (before[-1:].isalpha() or (at and not before)) and not name.startswith("number"):
                value = self._random.choice(("", f", {value}", f" ({value})"))  # added to a word
            elif re.match(r"s\b", after):
                value = self._random.choice(NUMBERS)
            elif after[:1].isalpha():
                value = self._random.choice(("", f"{value}, ", f"{value} "))
            values[name] = value
        return Sentence(form, values)

    def _value(self, name: str) -> str:
        choose = self._random.choice
        if name.startswith("number") or name.endswith("count"):
            return choose(NUMBERS[:5])
        if _NUMBER_PLACE.search(name):
            return choose((*NUMBERS, *QUANTITIES))
        if _PATH_PLACE.search(name):
            return choose(PATHS)
        if _NAME_PLACE.search(name):
            return choose((*NAMES, *QUOTED))
        return choose(choose((NUMBERS, QUANTITIES, NAMES, PATHS, QUOTED, self._words)))

    def fault(self, sentence: Sentence) -> str:
        """Return what is wrong with the translation of a sentence; empty where nothing is."""
        shown = self.catalogue.translate(sentence.text)
        if shown in self._right(sentence):
            return ""
        if shown == sentence.text:
            return "untranslated"
        lost = [
            value
            for value in sentence.values.values()
            if _plain(value) not in _plain(shown)
            and _plain(self.catalogue.translate(value)) not in _plain(shown)
        ]
        return "value lost" if lost else "another form"

    def _right(self, sentence: Sentence) -> _Right:
        """Return the readings of the form, each value as it is or translated."""
        pattern, translation = "", self.entries[sentence.form]
        for number, part in enumerate(PLACE.split(translation)):
            if number % 2 == 0:
                pattern += re.escape(_plain(part))
            else:
                value = sentence.values[part]
                ways = {value, self.catalogue.translate(value)}
                pattern += f"(?:{'|'.join(re.escape(_plain(way)) for way in sorted(ways))})"
        return _Right(re.compile(pattern))


@dataclass(frozen=True, slots=True)
class _Right:
    pattern: re.Pattern[str]

    def __contains__(self, text: str) -> bool:
        return self.pattern.fullmatch(_plain(text)) is not None


def _plain(text: str) -> str:
    """Return the text without spaces, its brackets and capital letters as everywhere."""
    return re.sub(r"\s", "", text).translate(_NARROW).lower()


def main() -> int:
    """Count the mistranslations, show some of them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sentences", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=40)
    parser.add_argument("--show", type=int, default=0, help="print so many of each kind of fault")
    arguments = parser.parse_args()
    checker = Checker(Catalogue.entries_of(_TAG), arguments.seed)
    faults: Counter[str] = Counter()
    for _ in range(arguments.sentences):
        sentence = checker.sentence()
        if fault := checker.fault(sentence):
            faults[fault] += 1
            if faults[fault] <= arguments.show:
                print(f"{fault}: {sentence.form}\n    {sentence.text}")
                print(f"    {checker.catalogue.translate(sentence.text)}")
    share = faults.total() / arguments.sentences
    counts = ", ".join(f"{number} {fault}" for fault, number in faults.most_common())
    print(f"{faults.total()} of {arguments.sentences} mistranslated: {share:.2%} ({counts})")
    return 1 if share > LIMIT else 0


if __name__ == "__main__":
    sys.exit(main())
