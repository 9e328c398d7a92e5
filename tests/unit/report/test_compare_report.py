"""How a comparison is shown: in a terminal, as markdown and JSON, by the verb."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

from click.testing import CliRunner, Result

from compared_runs import matmul, near, point, run, show
from trainrig.analysis.compare import RunComparison, compare_runs, to_dict
from trainrig.cli import compare as verb
from trainrig.errors import DataError, UsageError
from trainrig.record import RunView, Status
from trainrig.report.compare_report import comparison_document, comparisons_document, headline
from trainrig.report.document import Table
from trainrig.report.render.markdown import to_markdown
from trainrig.store import create_run

# ---------------------------------------------------------------- how it is shown


def table_of(comparison: RunComparison, title: str) -> Table:
    tables = [b for b in comparison_document(comparison).blocks if isinstance(b, Table)]
    (table,) = [table for table in tables if table.title == title]
    return table


def example() -> RunComparison:
    def whole(seed: int, slow: float, name: str) -> RunView:
        gpu = [
            point(
                matmul(size),
                near(1.6e14 * (slow if index else 1.0), seed * 99 + size + index, 0.001),
                device_index=index,
            )
            for size in (1024, 16384)
            for index in (0, 1)
        ]
        bad = point(matmul(8192), (1e14, 2e14), disturbed="2 workers disagree by 50 %")
        machine = {"software": {"torch": f"2.{seed}"}}
        return run(*gpu, bad, name=name, machine=machine)

    return compare_runs(whole(1, 1.0, "first"), whole(2, 0.8, "second"))


def test_the_terminal_shows_the_worst_first_in_eighty_columns() -> None:
    text = show(example())
    assert all(len(line.rstrip()) <= 80 for line in text.splitlines())
    titles = [
        line.strip() for line in text.splitlines() if line.startswith(("Setup", "RTX", "Not"))
    ]
    assert titles == ["Setup differences", "RTX 4090 #1", "RTX 4090 #0", "Not judged"]
    assert "worse  matmul bf16 16384³  160 TFLOPS  128 TFLOPS" in text.replace("161", "160")
    assert "2 workers disagree by 50 %" in text
    assert headline(example()) == "2 worse, 2 the same; 1 not judged"


def test_what_hardly_moved_is_counted_below_the_table() -> None:
    table = table_of(example(), "RTX 4090 #0")
    assert table.rows == ()
    assert len(table.notes) == 1
    assert table.notes[0].startswith("2 the same: moved by 1.0 % at most; could see ")


def test_reasons_that_differ_in_numbers_alone_are_one_row() -> None:
    some = run(*(point(matmul(size), near(1e14, size)) for size in range(1, 5)))
    skipped = run(
        *(
            [point(matmul(size), ())[-1].replace(status=Status.SKIPPED, value=None, reason=why)]
            for size, why in ((1, "takes 1.5 s"), (2, "takes 12 s"), (3, "no room"), (4, "no room"))
        )
    )
    assert table_of(compare_runs(some, skipped), "Not judged").rows == (
        ("matmul bf16 1³ and 1 more", "new: skipped: takes 1.5 s; the others alike"),
        ("matmul bf16 3³ and 1 more", "new: skipped: no room"),
    )


def test_markdown_is_a_page_and_a_name_is_no_markup() -> None:
    comparison = replace(example(), old="<script>x|y", new="`n*e*w`")
    text = to_markdown(comparison_document(comparison))
    assert text.startswith("- old: \\<script\\>x\\|y\n- new: \\`n\\*e\\*w\\`\n")
    table = [line for line in text.splitlines() if line.startswith("| worse")]
    assert len(table) == 2
    assert table[0].count("|") == 7


def test_json_has_everything_in_base_units() -> None:
    found = to_dict(example())
    assert found["result"] == "worse"
    assert found["counts"] == {"better": 0, "worse": 2, "same": 2, "cannot tell": 0}
    worst = found["judged"][0]
    assert worst["change"] == "worse"
    assert worst["interval"][0] < worst["ratio"] < worst["interval"][1]
    assert worst["old"]["value"] > 1e14
    assert worst["old"]["device_index"] == 1
    assert found["unjudged"][0]["reason"] == "old: noisy: 2 workers disagree by 50 %"


# ---------------------------------------------------------------- the verb


def written(parent: Path, slow: float, seed: int) -> Path:
    with create_run(parent, "qualify", {}) as writer:
        for size in range(6):
            for record in point(matmul(size), near(1e14 * slow, seed + size)):
                writer.append(record)
    return writer.path


def call(*words: object) -> Result:
    return CliRunner().invoke(verb.command, [str(word) for word in words], standalone_mode=False)


def test_the_verb_ends_in_one_when_something_got_worse(tmp_path: Path) -> None:
    old, new = written(tmp_path / "a", 1.0, 1), written(tmp_path / "b", 0.8, 50)
    worse = call(old, new, "--md", tmp_path / "c.md")
    assert worse.return_value == 1
    assert worse.stdout.rstrip().endswith("6 worse")
    assert "6 worse" in (tmp_path / "c.md").read_text()
    better = call(new, old, "--json")
    assert better.return_value == 0
    assert json.loads(better.stdout)["counts"]["better"] == 6


def test_the_verb_ends_in_three_where_nothing_was_compared(tmp_path: Path) -> None:
    """A gate that compared nothing must not be green."""
    paths = []
    for name in "ab":
        with create_run(tmp_path / name, "qualify", {}) as writer:
            for record in point(matmul(1), near(1e14, 1), disturbed="load 9"):
                writer.append(record)
        paths.append(writer.path)
    for more in ([], ["--json"]):
        assert call(*paths, *more).return_value == 3
    assert "Nothing was compared; 1 not judged" in call(*paths).stdout


def test_a_run_and_its_copy_are_one_run(tmp_path: Path) -> None:
    """A copy that was resumed holds more; what both hold is the same measurement."""
    old = written(tmp_path / "a", 1.0, 1)
    copy = shutil.copytree(old, tmp_path / "another name")
    (copy / "verdict.json").unlink(missing_ok=True)
    for other in (old, tmp_path / "a", copy):  # itself, the folder that holds it, a copy
        found = call(old, other)
        assert isinstance(found.exception, UsageError) and "are one run" in str(found.exception)
        assert found.stdout == ""


def test_the_verb_refuses_what_is_no_run(tmp_path: Path) -> None:
    old = written(tmp_path / "a", 1.0, 1)
    result = CliRunner().invoke(verb.command, [str(old), str(tmp_path / "none")])
    assert isinstance(result.exception, DataError)
    assert result.stdout == ""


def several() -> list[RunComparison]:
    def one(name: str, seed: int, slow: float) -> RunView:
        cases = [point(matmul(n), near(1.6e14 * slow, seed * 9 + n, 0.001)) for n in (512, 1024)]
        return run(*cases, name=name, machine={"software": {"torch": f"2.{seed}"}})

    base = one("golden", 1, 1.0)
    return [compare_runs(base, one("monday", 2, 1.0)), compare_runs(base, one("tuesday", 3, 0.8))]


def test_several_runs_stand_against_one_baseline_in_one_table() -> None:
    document = comparisons_document(several())
    (cases,) = [b for b in document.blocks if isinstance(b, Table) and b.title == "RTX 4090"]
    assert [one.head for one in cases.columns] == ["case", "baseline", "1", "2"]
    texts = [[cell.small for cell in cells] for _, cells in cases.lines()]
    assert len(texts) == 2
    assert all("−20 %" in row[3] and "−20 %" not in row[2] for row in texts)
    text = to_markdown(document)
    assert text.index("All in all") < text.index("Setup differences")
    assert "- baseline: golden" in text
    assert text.count("**Setup differences**") == 1  # a column a run
    assert "2 worse" in text


def test_one_run_is_compared_as_ever() -> None:
    assert comparisons_document([example()]) == comparison_document(example())


def test_the_verb_takes_several_runs_and_writes_a_page(tmp_path: Path) -> None:
    runs = [
        written(tmp_path / name, slow, 9 * n)
        for n, (name, slow) in enumerate((("golden", 1.0), ("same", 1.0), ("slow", 0.8)))
    ]
    page = tmp_path / "page.html"
    result = call(*runs, "--html", page, "--json")
    assert result.return_value == 1
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [one["result"] for one in found] == ["not worse", "worse"]
    assert "against the baseline" in page.read_text()
    twice = call(runs[0], runs[1], runs[1])
    assert isinstance(twice.exception, UsageError)


def test_each_gpu_that_was_set_otherwise_has_a_line_beside_several_runs() -> None:
    """Two cards of one limit that differ since: the second is not said in place of the first."""

    def limits(name: str, *watts: float) -> RunView:
        gpus = [{"name": "RTX 4090", "power_limit_w": each} for each in watts]
        return run(point(matmul(512), near(1e14, 1)), name=name, machine={"gpus": gpus})

    base = limits("golden", 450.0, 450.0)
    found = [
        compare_runs(base, limits("a", 300.0, 400.0)),
        compare_runs(base, limits("b", 450, 450)),
    ]
    document = comparisons_document(found)
    (table,) = [b for b in document.blocks if isinstance(b, Table) and b.title.startswith("Setup")]
    assert table.rows == (
        ("power limit", "450 W", "300 W", ""),
        ("power limit", "450 W", "400 W", ""),
    )
