"""Runs that are damaged, cut off, foreign or of another version: a line, a hint, what is left."""

from __future__ import annotations

import dataclasses
import json
import random
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

import experiment_views
import report_views
from stored_runs import store
from trainrig.record import RunView
from trainrig.store import pack, read_what_is_left


def trained() -> RunView:
    records = report_views.layers_view().records
    return dataclasses.replace(experiment_views.experiments_view(), records=records)


VIEWS: dict[str, Callable[[], RunView]] = {"qualify": report_views.cpu_view, "train": trained}


@pytest.fixture(params=["qualify", "train"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return store(VIEWS[request.param](), tmp_path / "runs", request.param)


def cuts(data: bytes, seed: int) -> list[int]:
    """Places to cut: the edges, some lines' ends, some anywhere."""
    chance = random.Random(seed)
    ends = [at + 1 for at, byte in enumerate(data) if byte == 10][:-1]
    some = chance.sample(ends, min(1, len(ends)))
    return sorted({0, len(data) - 1, *some, *(chance.randrange(len(data)) for _ in range(2))})


def is_enough(data: bytes) -> bool:
    try:
        return "verb" in tomllib.loads(data.decode())
    except tomllib.TOMLDecodeError:
        return False


@pytest.mark.parametrize("name", ["run.toml", "machine.json", "verdict.json", "records.jsonl"])
def test_a_file_that_is_cut_anywhere_costs_no_more_than_itself(
    trainrig, run: Path, name: str
) -> None:
    whole = (run / name).read_bytes()
    for at in cuts(whole, seed=len(name)):
        (run / name).write_bytes(whole[:at])
        code, out, err = trainrig("report", str(run))
        # What is left of a run.toml may say all that has to be said.
        is_whole = name == "run.toml" and is_enough(whole[:at])
        assert code == (0 if is_whole else 3), (at, err)
        assert out.strip() and "Traceback" not in err
        assert is_whole or err.splitlines()[0].startswith(f"trainrig: {run}: ")
        assert is_whole or "hint: " in err
        left = read_what_is_left(run)
        if name != "records.jsonl":
            (run / name).write_bytes(whole)
            assert left.records == read_what_is_left(run).records


def test_damage_in_the_middle_costs_one_record(trainrig, run: Path) -> None:
    lines = (run / "records.jsonl").read_bytes().splitlines(keepends=True)
    num_records = len(lines)
    lines[1] = lines[1][:-20] + b"\n"
    (run / "records.jsonl").write_bytes(b"".join(lines))
    code, out, err = trainrig("report", str(run))
    assert code == 3 and out.strip() and "records.jsonl is damaged in line 2" in err
    assert len(read_what_is_left(run).records) == num_records - 1


@pytest.mark.parametrize("name", ["run.toml", "machine.json", "verdict.json", "records.jsonl"])
def test_files_of_noise_are_no_traceback(trainrig, run: Path, name: str) -> None:
    chance = random.Random(7)
    contents = (
        bytes(chance.randrange(256) for _ in range(400)),
        b"\0" * 100,
        b"[" * 100_000,
        b'{"schema": 1',
        b"[1, 2]\n",
        b"\xff\xfe\n",
        b'{"schema": 1, "host": 3, "gpus": {"a": NaN}}\n',
    )
    for number, content in enumerate(contents):
        (run / name).write_bytes(content)
        code, _, err = trainrig("report", str(run), *(["--json"] if number % 2 else []))
        assert code in (2, 3) and "Traceback" not in err, (content[:20], err)
        assert "hint: " in err


def test_a_lost_record_makes_no_pass(trainrig, run: Path) -> None:
    lines = (run / "records.jsonl").read_bytes().splitlines(keepends=True)
    (run / "records.jsonl").write_bytes(b"".join(lines[:-1]))
    code, out, _ = trainrig("report", str(run), "--json")
    assert code == 3 and json.loads(out)["verdict"] not in ("PASS", "MEASURED")


def test_a_run_without_records_shows_its_machine(trainrig, run: Path) -> None:
    (run / "verdict.json").unlink()
    (run / "records.jsonl").write_bytes(b"")
    shutil.rmtree(run / "series")
    code, out, err = trainrig("report", str(run))
    assert code == 3 and out.strip() and "no records" in err and "hint: " in err


@pytest.mark.parametrize("schema", [0, 2, 99])
@pytest.mark.parametrize("verb", ["report", "bundle"])
def test_another_version_is_named_with_what_to_do(
    trainrig, run: Path, verb: str, schema: int
) -> None:
    text = (run / "run.toml").read_text().replace("schema = 1", f"schema = {schema}")
    (run / "run.toml").write_text(text)
    code, out, err = trainrig(verb, str(run))
    assert code == 2 and out == "" and len(err.splitlines()) == 2
    assert f"schema {schema}; this one reads 1" in err
    assert ("pip install --upgrade" if schema > 1 else "run.toml") in err


@pytest.mark.parametrize("verb", ["report", "bundle", "export", "compare", "generate"])
def test_an_unknown_run_is_a_line_and_a_hint(trainrig, tmp_path: Path, verb: str) -> None:
    code, out, err = trainrig(verb, str(tmp_path / "nothing"))
    assert code in (2, 3) and out == "" and len(err.splitlines()) == 2, err
    (tmp_path / "empty").mkdir()
    code, out, err = trainrig(verb, str(tmp_path / "empty"))
    assert code in (2, 3) and out == "" and len(err.splitlines()) == 2, err


def test_a_damaged_run_is_compared_as_far_as_it_goes(trainrig, tmp_path: Path) -> None:
    old = store(report_views.cpu_view(), tmp_path / "runs", day=1)
    new = store(report_views.cpu_view(), tmp_path / "runs", day=2)
    (new / "machine.json").write_text("{")
    code, out, err = trainrig("compare", str(old), str(new))
    assert code == 3 and out.strip() and "machine.json is damaged" in err


@pytest.mark.parametrize("damage", ["run.toml", "machine.json", "records.jsonl", "verdict.json"])
def test_what_is_damaged_is_not_packed_as_evidence(trainrig, run: Path, damage: str) -> None:
    data = (run / damage).read_bytes()
    (run / damage).write_bytes(data[: len(data) // 2] + b"\n" + data[len(data) // 2 + 9 :])
    target = run.parent / "x.bundle"
    code, out, err = trainrig("bundle", str(run), "--out", str(target))
    assert code == 2 and out == "" and not target.exists() and "hint: " in err, err


def test_a_bundle_that_is_cut_is_refused(trainrig, run: Path) -> None:
    bundle = run.parent / "x.bundle"
    pack(run, bundle)
    whole = bundle.read_bytes()
    for at in cuts(whole, seed=3):
        bundle.write_bytes(whole[:at])
        code, out, err = trainrig("report", str(bundle))
        assert code == 2 and out == "" and "hint: " in err, (at, err)


def test_an_export_of_a_run_without_weights_says_so(trainrig, run: Path, tmp_path: Path) -> None:
    code, out, err = trainrig("export", str(run), "--out", str(tmp_path / "weights"))
    assert code in (2, 3) and out == "" and len(err.splitlines()) == 2, err
    assert not (tmp_path / "weights").exists()
