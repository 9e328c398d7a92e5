"""Files that are cut, shuffled and broken: one line, or a reading whose records can be stored.

The faults come in below the readers: in the bytes of the files.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainrig.errors import DataError, TrainrigError
from trainrig.importers import importers, read_file
from trainrig.record import from_json, to_json

SAMPLES = Path(__file__).parent / "samples"
EVERY = [(one.name, name) for one in importers() for name in one.tested_on]
QUICK = settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
BAD = [b"", b"-", b"nan", b"inf", b"1e999", b"-7", b"9" * 400, b"0x1f", b"\xff\xfe", b"null", b"[]"]
BAD += [b'"', b"{", b"]", b"\x1b[31m", b"NaN", b"1e30", b"18446744073709551616", b"\xe2\x82"]


def check(path: Path, tool: str | None) -> None:
    """It is read into records that can be stored, or refused in one printable line."""
    message, records = "", ()
    try:
        records = tuple(read_file(path, tool)[0][1].records)
    except TrainrigError as error:
        message = error.message
    assert message.isprintable(), message
    for record in records:
        assert from_json(to_json(record)) == record


@pytest.mark.parametrize(("tool", "name"), EVERY)
@QUICK
@given(data=st.data())
def test_bytes_that_are_cut_off(tool: str, name: str, tmp_path: Path, data: st.DataObject) -> None:
    content = (SAMPLES / name).read_bytes()
    start = data.draw(st.integers(0, len(content)))
    end = data.draw(st.integers(start, len(content)))
    is_head = data.draw(st.booleans())
    (tmp_path / name).write_bytes(content[:end] if is_head else content[:start] + content[end:])
    check(tmp_path / name, data.draw(st.sampled_from([None, tool])))


@pytest.mark.parametrize(("tool", "name"), EVERY)
@QUICK
@given(data=st.data())
def test_lines_that_are_swapped_and_doubled(
    tool: str, name: str, tmp_path: Path, data: st.DataObject
) -> None:
    lines = (SAMPLES / name).read_bytes().splitlines(keepends=True)
    for _ in range(data.draw(st.integers(1, 4))):
        a, b = (data.draw(st.integers(0, len(lines) - 1)) for _ in range(2))
        lines[a], lines[b] = lines[b], lines[a]
    lines.insert(data.draw(st.integers(0, len(lines))), data.draw(st.sampled_from(lines)))
    (tmp_path / name).write_bytes(b"".join(lines))
    check(tmp_path / name, data.draw(st.sampled_from([None, tool])))


@pytest.mark.parametrize(("tool", "name"), EVERY)
@QUICK
@given(data=st.data())
def test_numbers_that_are_broken(tool: str, name: str, tmp_path: Path, data: st.DataObject) -> None:
    content = (SAMPLES / name).read_bytes()
    numbers = list(re.finditer(rb"\d+(?:\.\d+)?", content))
    for found in sorted(
        data.draw(st.lists(st.sampled_from(numbers), min_size=1, max_size=5)),
        key=lambda each: -each.start(),
    ):
        bad = data.draw(st.sampled_from(BAD))
        content = content[: found.start()] + bad + content[found.end() :]
    (tmp_path / name).write_bytes(content)
    check(tmp_path / name, tool)


# ---- a fault of each kind, and the line that it is refused with

BROKEN = [
    ("nccl-all-reduce-8xa100.txt", "67108864      16777216", "67108864      1677x216", 19),
    ("nccl-all-reduce-8xa100.txt", "  640.0", "  64o.0", 19),
    ("nccl-all-reduce.json", '"alg_bw": 104', '"alg_bw": x104', 70),
    ("nvbandwidth-4x5090.json", '"56.37"', '"fast"', None),
    ("nvbandwidth-gh200.txt", "SUM host_to_device_memcpy_ce", "SUM other", 15),
    ("bandwidthTest-quick.txt", "25.1", "25.1.2", 10),
    ("p2p-2x4090.txt", "911.10", "911,10", 10),
    ("gpu-fryer-unhealthy.txt", "681200 Gflops/s (min: 676000.00", "68 (min: 6760x", None),
    ("mamf-finder-h100.txt", "756.1 TFLOPS @ 8192x", "756.1 TFLOPS @ 81-92x", 23),
    ("stress-ng-cpu-vm.yaml", "3049.623634", "3049.6x", 16),
    ("megatron-timers.txt", "129028.8 |", "129o28.8 |", 10),
    ("deepspeed-sft.txt", "CurrSamplesPerSec=171.407", "Curr", 5),
    ("hf-bert-large-4090.txt", ": 9.0", ": nine", 2),
    ("hf-trainer-state.json", '"log_history": [', '"log_history": {', None),
    ("milabench-rate.jsonl", '"rate": 864.5', '"rate": "much"', 6),
    ("milabench-rate.jsonl", '{"event": "start"', '{"event": start', 3),
    ("dcgm-diag-skip.json", '"status": "Skip"', '"status": 7', None),
    ("topo-8xa100.txt", "GPU3\tNV12", "GPU3\tNVxx", 5),
    ("torch-trace.json", '"dur": 400.0', '"dur": "long"', None),
]


@pytest.mark.parametrize(("name", "right", "wrong", "line"), BROKEN)
def test_a_broken_line_is_named(
    name: str, right: str, wrong: str, line: int | None, tmp_path: Path
) -> None:
    content = (SAMPLES / name).read_text()
    assert right in content, "the sample has changed"
    (tmp_path / name).write_text(content.replace(right, wrong, 1))
    tool = next(one.name for one in importers() if name in one.tested_on)
    read_file(SAMPLES / name, tool)  # the twin is sound
    with pytest.raises(DataError) as refused:
        read_file(tmp_path / name, tool)
    if line is not None:
        assert refused.value.message.startswith(f"{name}:{line}: "), refused.value.message
    else:
        assert refused.value.message.startswith(name)


def test_more_results_than_can_be_held_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainrig.importers.runs.MOST_LINES", 20)
    with pytest.raises(DataError, match="20 lines of results"):
        read_file(SAMPLES / "stress-ng-cpu-vm.yaml")


def test_a_line_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainrig.importers.file.MOST_BYTES", 1 << 21)
    (tmp_path / "large.txt").write_bytes(b"first\n" + b"x" * (1 << 22))
    with pytest.raises(DataError, match=r"^large\.txt:2: a line longer than 2\.0 MiB"):
        read_file(tmp_path / "large.txt")


@pytest.mark.parametrize("content", [b"", b"  \n", b"\x00" * 100, b"\x1f\x8b broken", b"hello\n"])
def test_what_is_no_output_of_any_tool(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "any").write_bytes(content)
    with pytest.raises(DataError):
        read_file(tmp_path / "any")
    for one in importers():
        with pytest.raises(DataError):
            read_file(tmp_path / "any", one.name)
    with pytest.raises(DataError, match="cannot read"):
        read_file(tmp_path)
    with pytest.raises(DataError, match="cannot read"):
        read_file(tmp_path / "absent")
