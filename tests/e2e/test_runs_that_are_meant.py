"""Which run `report` and `compare` take where none is named, or only a part of a name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import report_views
from stored_runs import store
from trainrig.errors import DataError
from trainrig.runner.chosen_runs import newest_like, newest_pair, newest_run
from trainrig.store import place_of


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


VIEW = report_views.cpu_view()


def test_report_alone_shows_the_newest_run(trainrig, runs: Path) -> None:
    store(VIEW, runs, day=2)
    newest = store(VIEW, runs, day=3)
    store(VIEW, runs, day=1)
    code, out, err = trainrig("report", "--json")
    assert code == 0 and newest.name in err
    assert json.loads(out)["run"] == newest.name


def test_report_alone_without_runs_says_what_makes_one(trainrig, runs: Path) -> None:
    code, out, err = trainrig("report")
    assert code == 2 and out == "" and "runs/" in err and "trainrig qualify" in err
    assert len(err.splitlines()) == 2


def test_compare_alone_takes_the_one_before_of_the_same_verb_and_machine(
    trainrig, runs: Path
) -> None:
    store(VIEW, runs, day=1)
    old = store(VIEW, runs, day=2)
    store(VIEW, runs, day=3, host="another")
    store(VIEW, runs, "bench", day=4, benchmark="matmul")
    new = store(VIEW, runs, day=5)
    assert newest_pair(runs) == (old, new)
    code, out, err = trainrig("compare", "--json")
    assert code == 0 and old.name in err and new.name in err
    assert (json.loads(out)["old"], json.loads(out)["new"]) == (old.name, new.name)


@pytest.mark.parametrize("other", [{"benchmark": "copy"}, {"host": "another"}, {"verb": "burn"}])
def test_compare_alone_takes_no_run_of_another_kind(
    trainrig, runs: Path, other: dict[str, str]
) -> None:
    usual = {"verb": "bench", "benchmark": "matmul"}
    store(VIEW, runs, day=1, **{**usual, **other})
    store(VIEW, runs, day=2, **usual)
    code, out, err = trainrig("compare")
    assert code == 2 and out == "" and len(err.splitlines()) == 2
    assert "trainrig compare OLD NEW" in err


def test_a_baseline_alone_is_held_against_the_newest_of_its_kind(trainrig, runs: Path) -> None:
    golden = store(VIEW, runs, day=1)
    store(VIEW, runs, day=2)
    new = store(VIEW, runs, day=3)
    store(VIEW, runs, "burn", day=4)
    assert newest_like(golden) == new
    assert trainrig("compare", str(golden))[0] == 0
    with pytest.raises(DataError, match="no later run"):
        newest_like(new)


def test_a_bundle_alone_is_held_against_the_newest_of_its_kind(trainrig, runs: Path) -> None:
    golden = store(VIEW, runs, day=1)
    assert trainrig("bundle", str(golden), "--out", "golden.bundle")[0] == 0
    new = store(VIEW, runs, day=2)
    code, _, err = trainrig("compare", "golden.bundle")
    assert code == 0 and new.name in err


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("run.toml", "", "written by a newer trainrig"),
        ("run.toml", "[", "damaged"),
        ("machine.json", "{", "damaged"),
    ],
)
def test_compare_says_what_is_wrong_with_the_newest_run(
    trainrig, runs: Path, file: str, content: str, said: str
) -> None:
    """It is no run without a partner: it cannot be read."""
    store(VIEW, runs, day=1)
    changed = store(VIEW, runs, day=2) / file
    text = changed.read_text(encoding="utf-8")
    changed.write_text(content or text.replace("schema = 1", "schema = 9"), encoding="utf-8")
    code, out, err = trainrig("compare")
    assert code == 2 and out == "" and len(err.splitlines()) == 2
    assert said in err


def test_a_baseline_that_is_none_is_no_run(trainrig, runs: Path) -> None:
    code, _, err = trainrig("compare", "nowhere")
    assert code == 2 and "no such run: nowhere" in err


def test_a_run_without_records_is_not_compared(runs: Path) -> None:
    old, new = (store(VIEW, runs, day=day) for day in (1, 2))
    (store(VIEW, runs, day=3) / "records.jsonl").write_bytes(b"")
    assert newest_pair(runs) == (old, new)
    assert newest_run(runs) not in (old, new)


def test_a_part_of_a_name_means_the_only_run_that_has_it(trainrig, runs: Path) -> None:
    first, second = store(VIEW, runs, day=1), store(VIEW, runs, day=2)
    part = first.name[-6:]
    assert place_of(Path(part)).resolve() == first
    assert json.loads(trainrig("report", part, "--json")[1])["run"] == first.name
    code, _, err = trainrig("compare", first.name[-6:], second.name[-6:])
    assert code == 0, err
    code, out, err = trainrig("report", "qualify")
    assert code == 2 and out == "" and "fits 2 runs" in err and second.name in err
    assert trainrig("bundle", part, "--out", "one.bundle")[0] == 0
    assert Path("one.bundle").is_file()


def test_what_is_there_is_meant_before_a_part_of_a_name(runs: Path) -> None:
    store(VIEW, runs, day=1)
    Path("qualify").mkdir()
    assert place_of(Path("qualify")) == Path("qualify")
    assert place_of(Path("runs/none")) == Path("runs/none")
    assert place_of(Path("none")) == Path("none")


@pytest.mark.parametrize("name", ["", ".", "..", "a" * 5000, "*", "[", "-"])
def test_odd_names_are_refused_in_a_line(trainrig, runs: Path, name: str) -> None:
    store(VIEW, runs, day=1)
    code, out, err = trainrig("report", "--", name)
    assert "Traceback" not in err and (code == 2 or name in ("", ".", "-"))
    assert out == "" or code == 0
