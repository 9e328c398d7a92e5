"""Columns of `predict --cases`: what is read, and what is refused with its line and a hint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainrig.cli.predict_options import case_columns
from trainrig.errors import DataError, TrainrigError, UsageError
from trainrig.prediction.cases.columns import MEASURED, REFUSED_NAMES, CaseRow, read_rows


def rows_of(folder: Path, text: str | bytes, name: str = "cases.csv") -> list[CaseRow]:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_rows(path, case_columns())


def test_a_csv_and_json_lines_say_the_same(tmp_path) -> None:
    head = "id,model,on,gpus,zero,sequence_parallel,fabric_gbps,measured_step_s"
    csv = rows_of(tmp_path, f"{head}\na, gpt2 ,RTX 4090,2,,true,400,0.5\n,gpt2,RTX 4090,,,,,\n")
    full = {"id": "a", "model": "gpt2", "on": "RTX 4090", "gpus": 2, "zero": None}
    full |= {"sequence_parallel": True, "fabric_gbps": 400, "measured_step_s": 0.5}
    objects = (full, {"model": "gpt2", "on": "RTX 4090"})
    lines = rows_of(tmp_path, "\n".join(map(json.dumps, objects)), "cases.jsonl")
    given = {"model": "gpt2", "on": "RTX 4090", "gpus": 2, "sequence_parallel": 1}
    assert csv[0].options == lines[0].options == given | {"fabric_gbps": 400.0}
    assert csv[0].measured == lines[0].measured == {"measured_step_s": 0.5}
    assert csv[1].options == lines[1].options == {"model": "gpt2", "on": "RTX 4090"}
    assert [row.name for row in csv] == ["a", ""]
    assert [row.line for row in csv] == [2, 3] and [row.line for row in lines] == [1, 2]


def test_a_spreadsheet_s_semicolons_mark_and_quoted_lines_are_read(tmp_path) -> None:
    text = '\ufeffid;model;gpus\r\n"two\r\nlines";gpt2;2\r\n\r\nb;gpt2;4\r\n'
    rows = rows_of(tmp_path, text)
    assert [(row.line, row.options["gpus"]) for row in rows] == [(3, 2), (5, 4)]


def test_flags_spelling_of_a_column_is_the_column(tmp_path) -> None:
    (row,) = rows_of(tmp_path, "--model,seq-len,batch_size\ngpt2,512,4\n")
    assert row.options == {"model": "gpt2", "seq_len": 512, "batch_size": 4}


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("model,gpu\ngpt2,2\n", "cases.csv:1: unknown column 'gpu'", "gpus"),
        ("model,notes\n", "cases.csv:1: unknown column 'notes'", ""),
        ("model,gpus\ngpt2,2\ngpt2,two\n", "cases.csv:3: gpus: 'two'", "--gpus"),
        ("model,chip\ngpt2,RTX 4090\n", "cases.csv:2: chip: RTX 4090", "--on"),
        ("model,on,chip\ngpt2,RTX 4090,a.toml\n", "cases.csv:2: chip: on is given, too", "one"),
        ("model,model\n", "cases.csv:1: two columns 'model'", "one"),
        ("model,gpus\ngpt2,2,3\n", "cases.csv:2: 3 cells under 2 columns", "quote"),
        ("model,measured_step_s\ngpt2,0\n", "cases.csv:2: measured_step_s: 0", "above 0"),
        ("model,p2p\ngpt2,maybe\n", "cases.csv:2: p2p: 'maybe'", "--p2p"),
    ],
)
def test_what_is_no_column_or_value_is_refused_with_its_line(
    tmp_path, text: str, message: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        rows_of(tmp_path, text)
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("new", "old"), [(new, old) for new in REFUSED_NAMES for old in REFUSED_NAMES[new]]
)
def test_an_old_column_is_refused_with_the_new_one(tmp_path, new: str, old: str) -> None:
    known = {column.name for column in case_columns()} | set(MEASURED)
    assert new in known and old not in known
    with pytest.raises(UsageError) as caught:
        rows_of(tmp_path, f"{old}\n1\n")
    assert new in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "its first line names no columns"),
        ("\n\n", "its first line names no columns"),
        (b"\xff\xfe\x00", "is not in UTF-8"),
        ('model\n"gpt2', "no CSV"),
        ('{"model": "gpt2"}\n[1]\n', "cases.csv:2: no JSON object"),
        ('{"model": ["gpt2"]}\n', "model is neither text nor a number"),
    ],
)
def test_a_file_that_is_no_table_is_one_line_and_a_hint(tmp_path, text, says) -> None:
    with pytest.raises((DataError, UsageError)) as caught:
        rows_of(tmp_path, text)
    assert says in caught.value.message and caught.value.hint


def test_a_file_that_cannot_be_read_is_one_line_and_a_hint(tmp_path) -> None:
    with pytest.raises(TrainrigError, match="cannot read"):
        read_rows(tmp_path / "absent.csv", case_columns())
