"""The record: what is written comes back, and nothing else is taken for one."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig.errors import DataError
from trainrig.record import (
    SCHEMA_VERSION,
    Derivation,
    Finding,
    Kind,
    Limit,
    Outcome,
    Record,
    Status,
    Verdict,
    case_label,
    digest,
    from_json,
    new_id,
    to_json,
    verdict_from_json,
    verdict_to_json,
)

ROOT = Path(__file__).resolve().parents[2]

_FLOATS = st.floats(allow_nan=False, allow_infinity=False)
_TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
_CASES = st.dictionaries(
    _TEXTS, _TEXTS | st.integers(-(2**63), 2**63 - 1) | _FLOATS | st.booleans() | st.none()
)
_RECORDS = st.builds(
    Record,
    id=_TEXTS,
    run=_TEXTS,
    kind=st.sampled_from(Kind),
    benchmark=_TEXTS,
    version=st.integers(1, 9),
    case=_CASES,
    metric=_TEXTS,
    unit=_TEXTS,
    value=st.none() | _FLOATS,
    samples=st.none() | st.lists(_FLOATS).map(tuple),
    derived=st.none() | st.builds(Derivation, ids=st.lists(_TEXTS).map(tuple), formula=_TEXTS),
    interval=st.none() | st.tuples(_FLOATS, _FLOATS),
    confidence=st.none() | st.floats(0.0, 1.0),
    attempt=st.none() | st.integers(1, 99),
    limit=st.none() | st.builds(Limit, value=_FLOATS, source=_TEXTS),
    status=st.sampled_from(Status),
    reason=st.none() | _TEXTS,
    device_index=st.none() | st.integers(0, 7),
    conditions=_CASES,
    duration=st.none() | _FLOATS,
)


def make(**fields: Any) -> Record:
    given_fields: dict[str, Any] = {
        "kind": Kind.MEASURED,
        "benchmark": "matmul",
        "case": {"dtype": "bf16", "m": 8, "k": 8, "n": 8, "cache": "hot"},
        "metric": "flop_rate",
        "unit": "FLOP/s",
    }
    return Record(**{**given_fields, **fields})


def line(**fields: Any) -> str:
    return json.dumps({**json.loads(to_json(make())), **fields})


@given(_RECORDS)
def test_what_is_written_comes_back(record: Record) -> None:
    text = to_json(record)
    assert "\n" not in text
    again = from_json(text.encode())
    assert again == record
    kinds = {name: type(value) for name, value in record.case.items()}
    assert {name: type(value) for name, value in again.case.items()} == kinds


def test_the_scripted_fields_are_there_even_when_null() -> None:
    written = json.loads(to_json(make()))
    for name in ("value", "interval", "limit", "reason", "disturbed"):
        assert written[name] is None
    assert written["status"] == "ok"
    assert "attempt" not in written
    derived = json.loads(to_json(make(derived=Derivation(ids=("a",), formula="f"))))
    assert derived["from"] == {"ids": ["a"], "formula": "f"}


def test_half_a_surrogate_pair_does_not_cost_the_record() -> None:
    spoken = b"broken \xff byte".decode("utf-8", "surrogateescape")
    assert from_json(to_json(make(reason=spoken)).encode()).reason == "broken ? byte"


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_that_json_does_not_have_is_never_written(value: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json(make(value=value))


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"schema": "1"}, "schema"),
        ({"schema": 1.0}, "schema"),
        ({"schema": True}, "schema"),
        ({"schema": None}, "no schema version"),
        ({"id": None}, "id"),
        ({"id": 5}, "id"),
        ({"kind": "guessed"}, "kind"),
        ({"value": "1.5"}, "value"),
        ({"value": True}, "value"),
        ({"value": 10**400}, "value"),
        ({"samples": "12"}, "samples"),
        ({"samples": ["1"]}, r"entry 1 in \[samples\]"),
        ({"interval": [1.0]}, "interval"),
        ({"interval": [1.0, 2.0, 3.0]}, "interval"),
        ({"attempt": "3"}, "attempt"),
        ({"attempt": 0}, "attempt"),
        ({"device_count": 2.5}, "device_count"),
        ({"device_count": 0}, "device_count"),
        ({"device_index": -1}, "device_index"),
        ({"confidence": 95.0}, "confidence"),
        ({"case": {"m": {"n": 1}}}, "case.m"),
        ({"case": {"m": [1]}}, "case.m"),
        ({"case": {"m": 10**400}}, "case.m"),
        ({"case": [["m", 1]]}, "case"),
        ({"limit": {"value": 1.0}}, r"source is missing in \[limit\]"),
        ({"limit": {"value": 1.0, "source": "x", "more": 1}}, r"unknown key 'more' in \[limit\]"),
        ({"derived": {"ids": [], "formula": ""}}, "derived"),
        ({"colour": "red"}, "colour"),
        ({"two\nlines\x1b[31m": 1}, r"two\?lines\?"),
    ],
)
def test_what_is_not_a_record_is_refused_by_its_place(fields: dict[str, Any], place: str) -> None:
    with pytest.raises(DataError, match=place) as caught:
        from_json(line(**fields))
    assert caught.value.message.isprintable()


@pytest.mark.parametrize("name", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("place", ["value", "conditions"])
def test_numbers_that_are_none_are_refused(name: str, place: str) -> None:
    number = name if place == "value" else f'{{"load": {name}}}'
    text = line(**{place: "HERE"}).replace('"HERE"', number)
    with pytest.raises(DataError, match=place):
        from_json(text)


@pytest.mark.parametrize("name", ["schema", "id", "kind", "benchmark", "case", "metric", "unit"])
def test_a_record_without_its_essentials_is_refused(name: str) -> None:
    fields = json.loads(to_json(make()))
    del fields[name]
    with pytest.raises(DataError, match=name):
        from_json(json.dumps(fields))


@pytest.mark.parametrize("text", ["", "{", "null", "[]", "5", '"x"', "\x00", "[" * 100_000])
def test_what_is_not_even_an_object_is_refused(text: str) -> None:
    for read in (from_json, verdict_from_json):
        with pytest.raises(DataError):
            read(text)


@pytest.mark.parametrize(
    ("schema", "words", "hint"),
    [
        (SCHEMA_VERSION + 1, "newer trainrig", "upgrade"),
        (SCHEMA_VERSION - 1, "older trainrig", "run.toml"),
        (2**40, "no schema version", "is it a trainrig run"),
        (-1, "no schema version", "is it a trainrig run"),
    ],
)
def test_another_schema_is_named_before_what_follows_from_it(
    schema: int, words: str, hint: str
) -> None:
    texts = [line(schema=schema, invented_later=1), json.dumps({"schema": schema, "says": "yes"})]
    for text, read in zip(texts, (from_json, verdict_from_json), strict=True):
        with pytest.raises(DataError, match=words) as caught:
            read(text)
        assert caught.value.hint is not None
        assert hint in caught.value.hint


def test_a_newer_verdict_with_the_same_fields_is_refused() -> None:
    verdict = Verdict(outcome=Outcome.PASS, reason="all of it ran")
    newer = verdict_to_json(verdict).replace('"schema": 1', '"schema": 2')
    with pytest.raises(DataError, match="the verdict was written by a newer trainrig"):
        verdict_from_json(newer)


def test_a_verdict_comes_back() -> None:
    finding = Finding(
        id="below-band", severity="error", evidence="1 of 2", fix="look", records=("a",)
    )
    verdict = Verdict(outcome=Outcome.FAIL, reason="slow", findings=(finding,))
    assert verdict_from_json(verdict_to_json(verdict)) == verdict


def test_records_meet_by_what_was_asked_not_by_when_or_where_in_the_machine() -> None:
    one = make(device="RTX 4090", device_index=0, value=1.0)
    assert one.key == make(device="RTX 4090", device_index=3, value=2.0, run="other").key
    assert one.key == make(device="RTX 4090", case=dict(reversed(one.case.items()))).key
    for other in (
        {"device": "RTX 4090 D"},
        {"device": "RTX 4090", "device_count": 2},
        {"device": "RTX 4090", "version": 2},
        {"device": "RTX 4090", "metric": "time"},
        {"device": "RTX 4090", "case": {**one.case, "cache": "cold"}},
    ):
        assert one.key != make(**other).key


def test_a_point_is_measured_and_no_attempt() -> None:
    assert make().is_point
    assert not make(attempt=1).is_point
    assert not make(kind=Kind.PREDICTED).is_point


def test_ids_differ_and_digests_depend_on_content_alone() -> None:
    assert len({new_id() for _ in range(1000)}) == 1000
    assert digest({"a": 1, "b": [2]}) == digest({"b": [2], "a": 1})
    assert digest({"a": 1}) != digest({"a": 2})


def test_a_case_reads_as_people_say_it() -> None:
    case = {"m": 2, "n": 4, "k": 3, "cache": "hot", "dtype": "bf16"}
    assert case_label(case) == "bf16 2×3×4 hot"
    assert case_label({"direction": "h2d", "bytes": 64}) == "64 h2d"


def test_the_published_schema_is_the_code() -> None:
    script = [sys.executable, ROOT / "tools" / "record_schema.py"]
    printed = subprocess.run(script, check=True, capture_output=True, text=True, env=_env()).stdout
    schema = json.loads(printed)
    assert printed == (ROOT / "docs" / "record.schema.json").read_text(encoding="utf-8"), (
        "run: python tools/record_schema.py > docs/record.schema.json"
    )
    fields = {field.name for field in dataclasses.fields(Record)} - {"derived"} | {"from"}
    assert set(schema["properties"]) == fields
    assert {"schema", "id", "kind", "case"} <= set(schema["required"])
    undocumented = [
        name
        for name, entry in schema["properties"].items()
        if "description" not in entry and "$ref" not in entry
    ]
    assert undocumented == []


def _env() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONIOENCODING": "utf-8"}
