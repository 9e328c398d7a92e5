"""Words that people search for stand in the help and the pages of the feature that covers them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).resolve().parents[3] / "docs"


@pytest.mark.parametrize(
    ("word", "verb"),
    [
        ("nvidia-smi", ["inspect"]),
        ("nvidia-smi", ["top"]),
        ("nouveau", ["doctor"]),
        ("numactl", ["doctor"]),
        ("numactl", ["train", "--help-all"]),
        ("dmidecode", ["inspect"]),
        ("smartctl", ["inspect"]),
        ("ssh -L", ["remote", "forward"]),
        ("CUDA_VISIBLE_DEVICES", ["qualify"]),
        ("CUDA_VISIBLE_DEVICES", ["burn"]),
        ("CUDA_VISIBLE_DEVICES", ["train", "--help-all"]),
    ],
)
def test_help_has_the_word(trainrig: Any, word: str, verb: list[str]) -> None:
    words = verb if "--help-all" in verb else [*verb, "--help"]
    code, out, _ = trainrig(*words)
    assert code == 0 and word in " ".join(out.split())


@pytest.mark.parametrize(
    "word",
    ["nvidia-smi", "nouveau", "numactl", "dmidecode", "smartctl", "ssh -L", "CUDA_VISIBLE_DEVICES"],
)
def test_a_page_of_a_question_has_the_word(word: str) -> None:
    pages = [path.read_text(encoding="utf-8") for path in (DOCS / "questions").glob("*.md")]
    assert any(word in page for page in pages)
