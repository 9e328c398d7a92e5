"""Readers on garbage: whatever a file holds, what comes out is a TrainrigError or a value.

Garbage alone rarely gets past the first check, so each reader also meets its own
valid input with bytes changed, and values of the right kind in the wrong place.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from trainrig.analysis.compare import compare_runs, to_dict
from trainrig.errors import TrainrigError
from trainrig.record import (
    Derivation,
    Finding,
    Kind,
    Limit,
    Outcome,
    Record,
    RunView,
    Status,
    Verdict,
    case_label,
    from_json,
    to_json,
    verdict_from_json,
    verdict_to_json,
)
from trainrig.report.compare_report import comparison_document
from trainrig.report.render.markdown import to_markdown
from trainrig.report.render.terminal import print_document
from trainrig.store import create_run, pack, read_run, resume_run, unpack
from trainrig.store.bundle import open_bundle

settings.register_profile(
    "fuzz",
    max_examples=50,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
fuzz = settings.get_profile("fuzz")

# Names that the files use and numbers at the edges, so that values land where they hurt.
_WORDS = st.sampled_from(
    [
        "schema",
        "id",
        "kind",
        "case",
        "from",
        "ids",
        "value",
        "matmul",
        "measured",
        "ok",
        "time",
        "s",
    ]
)
_NUMBERS = (
    st.integers()
    | st.floats(allow_nan=True, allow_infinity=True)
    | st.sampled_from([0, 1, 2, -1, 2**31, 2**63, 10**400, 1e308, 5e-324])
)
_ANYTHING = st.recursive(
    st.none() | st.booleans() | _NUMBERS | _WORDS | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(_WORDS | st.text(), inner, max_size=5)
    ),
    max_leaves=12,
)

_RECORD = Record(
    kind=Kind.MEASURED,
    benchmark="matmul",
    case={"dtype": "bf16", "m": 64, "scale": 1.5, "hot": True, "none": None},
    metric="flop_rate",
    unit="FLOP/s",
    value=1e14,
    derived=Derivation(ids=("a", "b"), formula="2·m·k·n / t"),
    interval=(0.9e14, 1.1e14),
    confidence=0.95,
    limit=Limit(value=1.65e14, source="data sheet"),
    conditions={"load": 0.1},
)
_VERDICT = Verdict(
    outcome=Outcome.FAIL,
    reason="slow",
    findings=(Finding(id="below-band", severity="error", evidence="e", fix="f"),),
)


def survives(read: Callable[[], object]) -> None:
    """Either it reads, or it says why not in one printable line."""
    said = []
    try:
        read()
    except TrainrigError as error:
        said.append(error.message)
    assert all(message.isprintable() for message in said)


@st.composite
def changed(draw: st.DrawFn, whole: bytes) -> bytes:
    """``whole`` with a few bytes replaced, cut out, doubled or put in."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(data)))
        length = draw(st.integers(0, 12))
        piece = draw(st.binary(max_size=6) | st.just(bytes(data[place : place + length])))
        data[place : place + length] = piece
    return bytes(data)


@st.composite
def twisted(draw: st.DrawFn, whole: str) -> str:
    """The JSON object ``whole`` with values of any kind in some of its places."""
    value = json.loads(whole)
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from(sorted(value)) | st.text(max_size=5))
        value[name] = draw(_ANYTHING)
        if isinstance(value.get("from"), dict) and draw(st.booleans()):
            value["from"][draw(_WORDS)] = draw(_ANYTHING)
    return json.dumps(value)


@settings(fuzz)
@given(
    st.binary(max_size=80)
    | _ANYTHING.map(lambda value: json.dumps(value).encode())
    | changed(to_json(_RECORD).encode())
    | twisted(to_json(_RECORD)).map(str.encode)
)
def test_a_line_is_a_record_or_refused(line: bytes) -> None:
    def read() -> None:
        record = from_json(line)
        # What was read can be written, shown and read again.
        assert from_json(to_json(record)) == record
        assert isinstance(case_label(record.case), str)
        hash(record.key)

    survives(read)


@settings(fuzz)
@given(
    st.binary(max_size=80)
    | _ANYTHING.map(lambda value: json.dumps(value).encode())
    | changed(verdict_to_json(_VERDICT).encode())
    | twisted(verdict_to_json(_VERDICT)).map(str.encode)
)
def test_a_file_is_a_verdict_or_refused(data: bytes) -> None:
    survives(lambda: verdict_to_json(verdict_from_json(data)))


def _make_run(parent: Path) -> Path:
    with create_run(parent, "qualify", {"budget_s": 5.0}) as writer:
        for number in range(3):
            writer.append(_RECORD.replace(id=f"id{number}"))
        writer.append_series("gpu0", {"t": 0.0})
        writer.write_machine({"schema": 1, "host": {"hostname": "h"}})
        writer.write_verdict(_VERDICT)
    return writer.path


@pytest.fixture(scope="module")
def run() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as parent:
        yield _make_run(Path(parent))


_FILES = ["run.toml", "machine.json", "records.jsonl", "verdict.json", "series/gpu0.jsonl"]


@contextlib.contextmanager
def with_content(file: Path, data: bytes) -> Iterator[None]:
    before = file.read_bytes()
    file.write_bytes(data)
    try:
        yield
    finally:
        file.write_bytes(before)


@pytest.mark.parametrize("name", _FILES)
@settings(fuzz, max_examples=25)
@given(data=st.data())
def test_a_run_with_garbage_in_a_file_is_read_or_refused(
    run: Path, name: str, data: st.DataObject
) -> None:
    whole = (run / name).read_bytes()
    lines = _ANYTHING.map(lambda value: (json.dumps(value) + "\n").encode())
    garbage = data.draw(st.binary(max_size=100) | changed(whole) | lines)
    with with_content(run / name, garbage):
        survives(lambda: read_run(run))
        if name == "run.toml":
            survives(lambda: resume_run(run).close())
            (run / "verdict.json").write_text(verdict_to_json(_VERDICT))


def _seal(payload: bytes) -> bytes:
    return f"trainrig-bundle 1 {hashlib.sha256(payload).hexdigest()}\n".encode() + payload


@pytest.fixture(scope="module")
def bundle(run: Path) -> Iterator[bytes]:
    with tempfile.TemporaryDirectory() as parent:
        pack(run, Path(parent) / "x.bundle")
        yield (Path(parent) / "x.bundle").read_bytes()


@settings(fuzz, max_examples=60)
@given(data=st.data())
def test_a_bundle_is_opened_or_refused_and_writes_nothing_outside(
    bundle: bytes, data: st.DataObject
) -> None:
    archive = gzip.decompress(bundle.partition(b"\n")[2])
    raw = data.draw(
        st.one_of(
            st.binary(max_size=200),
            changed(bundle),
            st.binary(max_size=200).map(_seal),
            changed(bundle.partition(b"\n")[2]).map(_seal),
            # The hash is right and the archive is not: what a stranger would send.
            changed(archive).map(lambda tar: _seal(gzip.compress(tar, 1))),
            _headers_changed(archive).map(lambda tar: _seal(gzip.compress(tar, 1))),
        )
    )
    with tempfile.TemporaryDirectory() as parent:
        file = Path(parent) / "x.bundle"
        file.write_bytes(raw)
        survives(lambda: open_bundle(file))
        survives(lambda: read_run(file))
        survives(lambda: unpack(file, Path(parent) / "to"))
        assert {path.name for path in Path(parent).iterdir()} <= {"x.bundle", "to"}


@st.composite
def _headers_changed(draw: st.DrawFn, archive: bytes) -> bytes:
    """The archive with bytes of a header changed and its checksum made right again."""
    data = bytearray(archive)
    start = 512 * draw(st.integers(0, len(data) // 512 - 1))
    for _ in range(draw(st.integers(1, 6))):
        # Name, mode, size, type and link are where a header can lie.
        place = draw(
            st.sampled_from([*range(12), 100, *range(124, 136), 156, *range(157, 165), 345])
        )
        data[start + place] = draw(
            st.sampled_from(b"/.\\0123456789xgLKSDVNM\x00\x80\xff ") | st.integers(0, 255)
        )
    data[start + 148 : start + 156] = b" " * 8
    checksum = sum(data[start : start + 512])
    data[start + 148 : start + 156] = f"{checksum:06o}\0 ".encode()
    return bytes(data)


_VALUES = st.none() | st.sampled_from([0.0, 1.0, -1.0, 1e-3, 1.02e-3, 5e-324, 1.7e308, 1e300])
_TEXTS = st.sampled_from(["a", "b", "[bold]x[/]", "[/]", "\x1b[31m", "|", "é\n", ""])
_RECORDS = st.builds(
    Record,
    id=st.sampled_from("abcdef"),
    kind=st.sampled_from([Kind.MEASURED, Kind.MEASURED, Kind.PREDICTED, Kind.BASELINE]),
    benchmark=st.sampled_from(["matmul", "vector", "copy"]) | _TEXTS,
    version=st.integers(1, 2),
    case=st.sampled_from(
        [{}, {"m": 1, "k": 1, "n": 1}, {"num_elements": "x"}, {"bytes": -1}, {"op": None}]
    ),
    metric=st.sampled_from(["time", "flop_rate"]),
    unit=st.sampled_from(["s", "FLOP/s"]) | _TEXTS,
    value=_VALUES,
    derived=st.none()
    | st.lists(st.sampled_from("abcdef"), max_size=4).map(
        lambda ids: Derivation(ids=tuple(ids), formula="f")
    ),
    attempt=st.none() | st.integers(1, 3),
    status=st.sampled_from([Status.OK, Status.OK, Status.FAILED]),
    reason=st.none() | _TEXTS,
    disturbed=st.none() | st.none() | _TEXTS,
    device=st.none() | _TEXTS,
    device_count=st.integers(1, 2),
    device_index=st.none() | st.integers(0, 1),
    environment=st.none() | _TEXTS,
)
_VIEWS = st.builds(
    RunView,
    name=_TEXTS,
    config=st.dictionaries(st.sampled_from(["trainrig", "budget_s", "origin"]), _ANYTHING),
    machine=st.none()
    | st.dictionaries(
        st.sampled_from(["host", "cpu", "memory", "software", "gpus"]),
        _ANYTHING
        | st.lists(st.dictionaries(st.sampled_from(["name", "power_limit_w", "link"]), _ANYTHING))
        | st.dictionaries(
            st.sampled_from(["hostname", "total_bytes", "torch", "packages", "environment"]),
            _ANYTHING,
        ),
    ),
    records=st.lists(_RECORDS, max_size=10).map(tuple),
)


@settings(fuzz, max_examples=40)
@given(_VIEWS, _VIEWS)
def test_any_two_runs_that_can_be_read_can_be_compared_and_shown(
    old: RunView, new: RunView
) -> None:
    comparison = compare_runs(old, new)
    console = Console(width=80, file=io.StringIO())
    document = comparison_document(comparison)
    print_document(document, console)
    assert "\x1b" not in to_markdown(document)
    whole: dict[str, Any] = to_dict(comparison)
    json.dumps(whole, allow_nan=False)
