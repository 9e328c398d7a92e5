"""A sample that is cut, prefixed, wrapped or joined: the same records, or its line refused."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from trainrig.errors import DataError
from trainrig.importers import importers, read_file
from trainrig.record import Record, Status

SAMPLES = Path(__file__).parent / "samples"
EVERY = [name for one in importers() for name in one.tested_on]
LINES = [name for name in EVERY if name != "torch-trace.json"]
"""The trace is one JSON value that is streamed; nobody prints one into a log."""

WRAPPED_SETTINGS = ("hf-bert-large-4090.txt",)
"""A sample with a command line that is longer than a terminal is wide."""
ONE_STEP = ("megatron-zero-timers.txt", "neox.txt", "dmon-2x.txt")
"""Samples whose only step, printed twice, may be of two ranks, or whose head is repeated anyway."""

PREFIXES: dict[str, Callable[[int], str]] = {
    "srun": lambda _: "0: ",
    "srun, wide": lambda _: "  3: ",
    "mpirun": lambda _: "[1,0]<stdout>:",
    "mpirun 5": lambda _: "[prterun-node1-77@1,0]<stdout>: ",
    "kubectl": lambda n: f"2026-11-20T10:{n // 60 % 60:02d}:{n % 60:02d}.123456789Z ",
    "kubectl, pod": lambda _: "[pod/train-0/main] ",
    "journald": lambda n: f"Nov 20 10:{n // 60 % 60:02d}:{n % 60:02d} node1 python3[4321]: ",
    "compose": lambda _: "train-1  | ",
    "logger": lambda n: f"2026-11-20 10:{n // 60 % 60:02d}:{n % 60:02d},123 - INFO - ",
    "logger, level first": lambda _: "INFO:bench:",
    "torchrun": lambda _: "[default0]:",
    "rank": lambda _: "[rank0]:",
    "pdsh": lambda _: "node-17: ",
    "quoted": lambda _: "> ",
    "nested": lambda n: f"2026-11-20T10:00:{n % 60:02d}Z [1,0]<stdout>:",
}


def told(records: tuple[Record, ...]) -> Counter[object]:
    """What was said, without the lines where it stands."""
    return Counter(
        (r.benchmark, json.dumps(dict(r.case), sort_keys=True), r.metric, r.value, r.status.value)
        + (r.device, r.device_index, r.device_count)
        for r in records
    )


def told_of(path: Path) -> Counter[object]:
    return told(tuple(r for _, reading in read_file(path) for r in reading.records))


@cache
def told_of_sample(name: str) -> Counter[object]:
    return told_of(SAMPLES / name)


def refused_with_line(path: Path, error: DataError) -> bool:
    where = rf"{re.escape(path.name)}:\d+: |\S+: (not a file|no result)"
    return re.match(where, error.message) is not None


def text_of(name: str) -> str:
    return (SAMPLES / name).read_bytes().decode().replace("\r\n", "\n")


@pytest.mark.parametrize("name", LINES)
def test_a_prefix_changes_nothing(name: str, tmp_path: Path) -> None:
    lines = text_of(name).split("\n")
    for launcher, prefix in PREFIXES.items():
        (tmp_path / name).write_text("\n".join(prefix(n) + line for n, line in enumerate(lines)))
        assert told_of(tmp_path / name) == told_of_sample(name), launcher


ENCODED: dict[str, Callable[[str], bytes]] = {
    "CRLF": lambda text: text.replace("\n", "\r\n").encode(),
    "BOM": lambda text: b"\xef\xbb\xbf" + text.encode(),
    "UTF-16": lambda text: text.encode("utf-16"),
    "UTF-16, no mark": lambda text: text.encode("utf-16-le"),
    "colours": lambda text: "\n".join(
        f"\x1b[1;32m{line}\x1b[0m" if line else line for line in text.split("\n")
    ).encode(),
    "zeros at the end": lambda text: text.encode() + bytes(4096),
}


@pytest.mark.parametrize("name", LINES)
def test_an_encoding_changes_nothing(name: str, tmp_path: Path) -> None:
    for encoding, encode in ENCODED.items():
        (tmp_path / name).write_bytes(encode(text_of(name)))
        assert told_of(tmp_path / name) == told_of_sample(name), encoding


@pytest.mark.parametrize("name", LINES)
def test_wrapped_lines_change_nothing_or_are_refused(name: str, tmp_path: Path) -> None:
    for width in (72, 80, 100, 132):
        check_wrapped(tmp_path / name, width)


def check_wrapped(path: Path, width: int) -> None:
    name = path.name
    lines = [
        line[start : start + width]
        for line in text_of(name).split("\n")
        for start in range(0, max(1, len(line)), width)
    ]
    path.write_text("\n".join(lines))
    try:
        found = told_of(path)
    except DataError as refused:
        if not refused_with_line(path, refused):
            raise
        return
    expected = told_of_sample(name)
    if name in WRAPPED_SETTINGS:  # what a wrapped command line stated is missing
        metrics = {key[2:4] for key in expected}  # type: ignore[index]
        new = {key[2:4] for key in found} - metrics  # type: ignore[index]
        assert new <= {("printed_flop_rate", 10e12)}
    else:
        assert found == expected


@pytest.mark.parametrize("name", LINES)
def test_a_file_that_is_cut_has_the_first_records_and_a_note_or_is_refused(
    name: str, tmp_path: Path
) -> None:
    content = (SAMPLES / name).read_bytes()
    whole = [r for _, reading in read_file(SAMPLES / name) for r in reading.records]
    values = {each for r in whole for each in (r.value, *(r.samples or ()))}
    values |= {r.conditions.get("median") for r in whole}  # of GPUs that failed later
    for place in range(1, len(content), max(1, len(content) // 40)):
        (tmp_path / name).write_bytes(content[:place])
        try:
            readings = read_file(tmp_path / name)
        except DataError:
            continue
        records = [r for _, reading in readings for r in reading.records]
        extra = [
            r
            for r in records
            if r.benchmark != "training"
            and r.status is Status.OK
            and r.value not in values
            and not (r.samples and values.issuperset(r.samples))
        ]
        assert not extra, (place, extra[0].metric, extra[0].value, extra[0].case)


@pytest.mark.parametrize("name", LINES)
def test_two_files_joined_have_the_records_of_both(name: str, tmp_path: Path) -> None:
    other = LINES[(LINES.index(name) + 7) % len(LINES)]
    joined = text_of(name).rstrip("\n") + "\n" + text_of(other)
    (tmp_path / "joined.txt").write_text(joined)
    expected = told_of_sample(name) + told_of_sample(other)
    found = told_of(tmp_path / "joined.txt")
    assert without_numbers(found) == without_numbers(expected)


def without_numbers(found: Counter[object]) -> Counter[object]:
    """Without the numbers that tell equal runs of a file apart."""
    pattern = re.compile(r', "(?:run|training)": \d+|"(?:run|training)": \d+, ')
    return Counter(
        {(key[0], pattern.sub("", key[1]), *key[2:]): n for key, n in found.items()}  # type: ignore[index]
    )


@pytest.mark.parametrize("name", LINES)
def test_a_file_twice_has_the_records_twice(name: str, tmp_path: Path) -> None:
    text = text_of(name).rstrip("\n") + "\n"
    (tmp_path / "twice.txt").write_text(text + text)
    once = told_of_sample(name)
    try:
        found = told_of(tmp_path / "twice.txt")
    except DataError as refused:
        if not refused_with_line(tmp_path / "twice.txt", refused):
            raise
        return
    times = 1 if name in ONE_STEP else 2
    assert sum(found.values()) == times * sum(once.values())
