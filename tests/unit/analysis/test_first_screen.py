"""The first screen of a report: its sentence, its numbers among others, and what to do next."""

from __future__ import annotations

import dataclasses
import json
import shlex

import pytest
from click.testing import CliRunner

from report_views import claimed, cpu_view, matmul_case, point
from roofline_machine import level_of, step_run
from trainrig.analysis import first_screen
from trainrig.analysis.evidence import bench_command
from trainrig.analysis.first_screen import (
    ACTIONS,
    RunMetadata,
    actions,
    headline,
    key_numbers,
    run_metadata,
)
from trainrig.analysis.waterfall import build_waterfalls, largest_gap
from trainrig.benchmarks import training
from trainrig.catalog.published.tables import read
from trainrig.cli.train import command as train
from trainrig.record import Finding, RunView
from trainrig.units import format_quantity, format_share

MATMUL = {"metric": "flop_rate", "unit": "FLOP/s", "device_index": 0}
FAULT = Finding(severity="error", evidence="GPU 1 is gone", fix="reseat it", id="gpu-lost")
WARNING = dataclasses.replace(FAULT, severity="warning", evidence="2 GB free", fix="free more")


def found_in(view: RunView, *findings: Finding) -> list[tuple[str, float | None]]:
    return [(one.what, one.gain) for one in actions(view, build_waterfalls(view), findings)]


def sentence_of(view: RunView, **disturbed: str) -> str:
    """The headline, where points of the named benchmarks are noisy."""
    records = tuple(
        each.replace(disturbed=disturbed.get(each.benchmark, each.disturbed))
        for each in view.records
    )
    noisy = dataclasses.replace(view, records=records)
    return headline(noisy, build_waterfalls(noisy))


def test_the_sentence_holds_a_step_against_its_best_matmul() -> None:
    view = step_run(optimizer=0.08)
    step, _ = level_of(view, "Training step")
    matmul, _ = level_of(view, "Best matmul")
    assert step.ceiling == "Best layer", "the waterfall shows the layer's share"
    share, rate = format_share(step.value / matmul.value), format_quantity(matmul.value, "FLOP/s")
    sentence = sentence_of(view)
    assert sentence.startswith("Trains gpt2-medium in bf16 at ")
    assert sentence.endswith(f", {share} of its best matmul, {rate}.")


def test_of_a_noisy_matmul_the_share_is_at_most_so_much() -> None:
    sentence = sentence_of(step_run(optimizer=0.08), matmul="busy")
    assert ", at most " in sentence and sentence.endswith(" or more.")


def test_without_a_matmul_a_step_is_held_against_the_nearest_measured_level() -> None:
    view = step_run(optimizer=0.08)
    bare = dataclasses.replace(
        view, records=tuple(r for r in view.records if r.benchmark != "matmul")
    )
    assert "best layer" in sentence_of(bare)
    assert "matmul" not in sentence_of(bare)


def test_a_matmul_that_a_layer_exceeds_is_no_ceiling() -> None:
    view = step_run(optimizer=0.08)
    slow = dataclasses.replace(
        view,
        records=tuple(
            r.replace(value=1e12) if r.benchmark == "matmul" and r.value else r
            for r in view.records
        ),
    )
    assert "of its best matmul" not in sentence_of(slow)


@pytest.mark.parametrize("part", ["optimizer", "communication", "data_wait"])
def test_what_costs_most_is_the_first_action_with_its_worth(part: str) -> None:
    view = step_run(**{part: 0.2})
    _, gap = level_of(view, "Training step")
    cause = max(gap.shares, key=lambda share: share.seconds)
    whole = next(each.value for each in view.records if each.metric == "time")
    assert whole is not None
    (what, gain), *_ = found_in(view)
    assert what == cause.name
    assert gain == pytest.approx(cause.seconds / (whole - cause.seconds))


def test_what_one_command_puts_right_is_one_action() -> None:
    view = cpu_view()
    steps = [dataclasses.replace(FAULT, evidence=f"step {n}: no time") for n in range(5)]
    same = found_in(view, *steps, WARNING)
    assert [what for what, _ in same[:2]] == ["step 0: no time (and 4 more)", WARNING.evidence]


def test_a_command_to_copy_is_one_that_trainrig_takes() -> None:
    view = step_run(optimizer=0.2, launch_gap=0.1)
    commands = [one.command for one in actions(view, build_waterfalls(view), ()) if one.command]
    assert commands
    for command in commands:
        result = CliRunner().invoke(train, [*shlex.split(command)[2:], "--dry-run"])
        assert result.exit_code == 0, result.output


@pytest.mark.parametrize("model", ["NousResearch/nobody", "x" + ":num_layers=1" * 2000, "gpt2:q=1"])
def test_a_model_that_train_does_not_know_has_no_command(model: str) -> None:
    """Other tools' logs and strangers' bundles name whatever they like."""
    assert first_screen._command({"model": model}, "--grad-accum 8") == ""
    assert first_screen._command({}, "--grad-accum 8") == ""
    assert first_screen._command({"model": "gpt2-medium"}, "--grad-accum 8") != ""


def test_what_a_command_leaves_out_is_what_train_takes_by_itself() -> None:
    """The options that `_DEFAULTS` leaves out of commands to copy."""
    found = CliRunner().invoke(train, ["--dry-run", "--json"])
    (experiment,) = json.loads(found.output)["experiments"]
    assert {name: experiment[name] for name in training._DEFAULTS} == training._DEFAULTS


def test_when_for_how_long_and_by_which_version() -> None:
    config = {"started": "2026-11-20T09:59:00+00:00", "trainrig": "0.1.0"}
    view = dataclasses.replace(step_run(), config=config)
    when = run_metadata(view)
    assert (when.started, when.version) == ("2026-11-20T09:59:00+00:00", "0.1.0")
    assert when.duration_s == pytest.approx(61.5)
    assert run_metadata(dataclasses.replace(view, config={"started": "soon"})) == RunMetadata()


def test_fp64_is_no_headline_where_training_lost_something() -> None:
    """A gap of fp64 is larger, and matters to nobody who trains."""
    half, double = (
        point("matmul", matmul_case(dtype, 8192), rate, **MATMUL)
        for dtype, rate in (("bf16", 140e12), ("fp64", 0.3e12))
    )
    view = RunView(
        name="run", records=(claimed("bf16", 165e12), claimed("fp64", 1.3e12), half, double)
    )
    found = largest_gap(build_waterfalls(view))
    assert found is not None
    assert found.waterfall.dtype == "bf16"


def test_faults_come_before_gains_and_gains_before_warnings() -> None:
    texts = [what for what, _ in found_in(step_run(optimizer=0.2), WARNING, FAULT)]
    assert texts[0] == FAULT.evidence
    assert WARNING.evidence not in texts[:2]
    assert len(texts) <= ACTIONS
    assert found_in(step_run(), WARNING)[-1] == (WARNING.evidence, None)


def test_a_number_stands_among_what_others_published_of_the_card() -> None:
    card = "H100 SXM5 80GB"
    own = point("matmul", matmul_case("bf16", 8192), 7e14, **MATMUL, device=card)
    view = RunView(name="run", records=(own,))
    (number,) = key_numbers(view, build_waterfalls(view))
    rates = [
        each.value
        for each in (*read("matmul"), *read("squares"))
        if (each.device, each.case.get("dtype"), each.benchmark) == (card, "bf16", "matmul")
        and each.value
    ]
    assert (number.name, number.value, number.what) == ("Best matmul", 7e14, "bf16")
    assert number.others is not None
    assert number.others.high == max(rates)
    assert min(rates) <= number.others.low
    assert 1 <= number.others.num <= len(rates)


def test_what_only_moved_bytes_says_how_fast() -> None:
    case = {"direction": "h2d", "memory": "pinned", "bytes": 1 << 28, "cache": "cold"}
    slow, fast = (
        point("link", case | {"bytes": size}, rate, metric="byte_rate", unit="B/s")
        for size, rate in ((1 << 20, 5e9), (1 << 28, 25e9))
    )
    view = RunView(name="run", records=(slow, fast))
    assert headline(view, build_waterfalls(view)).startswith("Moves 25.0 GB/s at the most: ")


def test_a_processor_is_not_set_among_cards() -> None:
    view = cpu_view()
    found = key_numbers(view, build_waterfalls(view))
    assert found
    assert all(one.others is None for one in found)


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ({"batch_size": 8, "nproc": 1, "zero": 0}, "--model gpt2"),
        ({"batch_size": 1, "nproc": 1}, "--model gpt2 --micro-batch 1"),
        ({"nproc": 2, "zero": 1, "precision": "bf16"}, "--precision bf16 --nproc 2 --zero 1"),
        ({"model": "a model of a log"}, None),
    ],
)
def test_a_training_is_trained_again_as_it_was(
    case: dict[str, str | int], words: str | None
) -> None:
    options = training.options_of({"model": "gpt2", **case})
    assert options is None if words is None else options is not None and options.endswith(words)
    again = bench_command(point("training", {"model": "gpt2", **case}, 1e12))
    assert again == ("" if options is None else f"trainrig train {options}")
