"""Does it fit, how much more would, and which option comes first: against brute force."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from click.testing import CliRunner

from trainrig.cli.fits import command
from trainrig.errors import UsageError
from trainrig.prediction.fit.memory_options import (
    MOST_SAMPLES,
    STACKS,
    Fit,
    fit,
    largest_batch_size,
    memory_options,
)
from trainrig.prediction.scenario import Question, question
from trainrig.prediction.step import predict_step
from trainrig.prediction.verdict import BORDERLINE, DOES_NOT_FIT, FITS, VERDICTS, verdict_of
from trainrig.workload import custom, named
from trainrig.workload.layout import Layout, check_layout
from trainrig.workload.layout.groups import OFFLOAD, OPTIMIZERS, RECOMPUTE
from trainrig.workload.memory import memory

GIB = 1 << 30
BROAD = custom("llama", num_layers=64, hidden=4096, num_heads=64, ffn=16384)
"""Everything divides it: what `check` refuses is the framework's."""


def asked(model: str, chip: str, **more: Any) -> Question:
    return question({"model": model, "on": chip} | more)


ASKED = [
    ("llama-7B", "RTX 4090", {"gpus": 4}),
    ("gpt2-xl", "RTX 3090", {"batch_size": 8}),
    ("gpt2-xl", "A100 SXM4 80GB", {"gpus": 8, "batch_size": 12, "grad_accum": 2}),
    ("llama-13B", "H100 SXM5 80GB", {"gpus": 16, "tp": 2, "framework": "megatron"}),
    ("bert-large", "V100 SXM2 32GB", {"batch_size": 64, "seq_len": 512}),
    ("llama-8B", "A100 SXM4 80GB", {"gpus": 8, "zero": 3, "batch_size": 4}),
]


def found(case: tuple[str, str, dict[str, Any]]) -> Fit:
    model, chip, more = case
    return fit(asked(model, chip, **more))


def by_hand(of: Fit) -> list[tuple[tuple[int, bool, float, float], Layout]]:
    """Each change of a number or a word that can be an option, ranked by the definition."""
    base, shape, rates = of.question.layout, of.question.shape, of.question.cluster.rates()
    before = memory(shape, base).total
    ranked = []
    for layout in neighbours(base):
        try:
            check_layout(shape, layout)
        except UsageError:
            continue
        needs = float(memory(shape, layout).total)
        time = float(predict_step(shape, layout, rates).total) / int(layout.global_batch)
        if needs < before:
            interval = memory(shape, layout).needed_interval
            place = VERDICTS.index(verdict_of(interval, rates.memory_bytes))
            last = (layout.memory.optimizer_in_backward, layout.precision.states) != (0, "auto")
            fits = place < VERDICTS.index(DOES_NOT_FIT)
            key = (place, last, time, needs) if fits else (3, last, needs, time)
            ranked.append((key, layout))
    return sorted(ranked, key=lambda pair: pair[0])


def neighbours(base: Layout) -> list[Layout]:
    batch = int(base.global_batch)
    found = [base.replace(recompute=how) for how in RECOMPUTE]
    found += [base.replace(offload=where) for where in OFFLOAD if where != "disk"]
    found += [base.replace(optimizer=o) for o in OPTIMIZERS if "8bit" in o or "paged" in o]
    found += [base.replace(optimizer_in_backward=1), base.replace(states="pure")]
    found.append(base.replace(offload_checkpoints=1))
    found += [base.replace(kernels=stack) for stack in STACKS.get(base.kernels.stack, ())]
    if base.mesh.gpus == 1 and base.memory.offload == "none":
        found += [
            base.replace(offload="host", zero=zero, framework=framework)
            for framework, zero in (("deepspeed", 2), ("huggingface", 3))
        ]
    if base.mesh.tp > 1:
        found.append(base.replace(sequence_parallel=1))
    powers = (1, 2, 4, 8, 16)
    for micro, zero, tp, pp, cp in itertools.product(
        range(1, int(base.batch.micro) + 1), range(4), powers, powers, powers
    ):
        sizes = {"batch_size": micro, "zero": zero, "tp": tp, "pp": pp, "cp": cp}
        changed = [name for name, size in sizes.items() if size != base.get(name)]
        lowered = changed == ["pp", "zero"] or changed == ["zero", "pp"]
        if len(changed) != 1 and not (lowered and zero == min(base.sharding.zero, 1)):
            continue
        if (
            base.mesh.gpus % (tp * pp * cp)
            or (zero < base.sharding.zero and not lowered)
            or tp * pp < base.mesh.tp
        ):
            continue
        if (
            (tp > base.mesh.tp and tp > base.mesh.gpus_per_node)
            or tp < base.mesh.tp
            or pp < base.mesh.pp
        ):
            continue
        once = base.mesh.gpus // (tp * pp * cp) * micro
        if batch % once == 0 and (zero <= base.sharding.zero or base.mesh.dp > 1):
            new = base.replace(**sizes, grad_accum=batch // once)
            found.append(new.replace(framework=framework(base, new)))
    return [layout for layout in found if layout != base]


def framework(base: Layout, new: Layout) -> str:
    """The same one where it runs the layout, else the usual one."""
    for name in (base.framework, new.usual_framework):
        try:
            check_layout(BROAD, new.replace(framework=name))
        except UsageError:
            continue
        return name
    return base.framework


@pytest.mark.parametrize("case", ASKED, ids=lambda case: f"{case[0]} on {case[1]}")
def test_the_order_is_that_of_brute_force(case: tuple[str, str, dict[str, Any]]) -> None:
    of = found(case)
    expected = [layout for _, layout in by_hand(of)]
    flash = (
        set(STACKS)
        if of.question.cluster.chip and of.question.cluster.chip.product.year >= 2020
        else set()
    )
    expected = [
        x
        for x in expected
        if flash or x.kernels.stack in (of.question.layout.kernels.stack, "fused")
    ]
    assert [one.layout for one in of.options] == expected
    assert len(expected) >= 4


@pytest.mark.parametrize("case", ASKED, ids=lambda case: f"{case[0]} on {case[1]}")
def test_each_option_says_what_predict_says(case: tuple[str, str, dict[str, Any]]) -> None:
    of = found(case)
    for one in of.options:
        assert one.saved_bytes == int(of.memory.total) - one.memory_bytes_per_gpu > 0
        assert one.slower == pytest.approx(one.sample_time_s / of.sample_time)
        assert int(one.layout.global_batch) == int(of.question.layout.global_batch)


@pytest.mark.parametrize("case", ASKED, ids=lambda case: f"{case[0]} on {case[1]}")
def test_the_largest_batch_size_is_the_last_that_fits(
    case: tuple[str, str, dict[str, Any]],
) -> None:
    of = found(case)
    shape, layout = of.question.shape, of.question.layout
    most = of.largest_batch_size
    shown = [memory(shape, layout.replace(batch_size=b)).shown <= of.capacity for b in range(1, 99)]
    asked = int(layout.batch.micro) * (of.memory.total <= of.capacity)
    assert most == max(
        sum(shown), asked, memory(shape, layout.replace(batch_size=1)).total <= of.capacity
    )
    assert all(shown[: sum(shown)])
    assert not most or memory(shape, layout.replace(batch_size=most)).total <= of.capacity


def test_a_micro_batch_has_an_end() -> None:
    tiny = named("gpt2")
    assert largest_batch_size(tiny, Layout.of(seq_len=1), 1e15) == MOST_SAMPLES
    assert largest_batch_size(tiny, Layout.of(seq_len=1), 1e9) == 0


def test_of_two_options_that_suffice_the_fastest_are_named() -> None:
    """One by one the first would be what saves most: tensor parallelism, 2.6 times as slow."""
    bare = {"framework": "trainrig", "recompute": "none", "ep": 8}
    of = fit(asked("qwen3-30B-A3B", "8x H100 SXM", **bare))
    sharded = fit(asked("qwen3-30B-A3B", "8x H100 SXM", **bare | {"zero": 3, "recompute": "full"}))
    assert of.verdict == DOES_NOT_FIT != sharded.verdict and len(of.sequence) == 2
    assert of.sequence[-1].verdict == FITS
    assert of.sequence[-1].sample_time_s < 1.5 * of.sample_time


def test_a_sequence_ends_where_it_fits() -> None:
    of = found(ASKED[0])
    assert of.verdict == DOES_NOT_FIT and len(of.sequence) >= 2
    *before, last = [one.verdict for one in of.sequence]
    assert last in (FITS, BORDERLINE) and last not in before
    assert of.sequence[0] in of.options
    assert not found(("gpt2", "A100 SXM4 80GB", {})).sequence, "what fits needs no sequence"
    assert not found(("megatron-1T", "RTX 3090", {})).sequence, "no option brings 1T onto one card"


def test_one_gpu_is_offered_frameworks_that_offload_more() -> None:
    of = found(("llama-8B", "RTX 4090", {"seq_len": 2048, "recompute": "full"}))
    offers = {one.change: one.verdict for one in of.options if one.option == "offload"}
    assert offers["--offload host --zero 3 --framework huggingface"] != DOES_NOT_FIT
    assert len(offers) == 3 and len(of.sequence) == 1


def test_an_absurd_batch_is_answered_at_once() -> None:
    huge = Layout.of(batch_size=2**31 - 1)
    sizes = [
        int(after.batch.micro)
        for change, after in memory_options(named("gpt2"), huge)
        if "batch_size" in change
    ]
    assert sizes == [1], "a prime has one smaller divisor; not two thousand million are tried"


def test_no_option_is_illegal() -> None:
    shape = named("llama-7B")
    for layout in (
        Layout(),
        Layout.of(gpus=8, framework="megatron", tp=4),
        Layout.of(gpus=6, zero=1),
    ):
        for _, after in memory_options(shape, layout):
            check_layout(shape, after)


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(command, list(words), standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return int(result.return_value), result.output


def test_the_command_answers_in_json() -> None:
    code, text = run("--model", "llama-7b", "--on", "RTX 4090", "--gpus", "4", "--json")
    answer = json.loads(text)
    assert code == 1 and answer["fits"] is False
    assert sum(answer["memory_parts_bytes"].values()) == answer["memory_bytes_per_gpu"]
    assert answer["options"][0]["change"].startswith("--")
    assert 23.4 * GIB < answer["gpu_memory_bytes"] < 23.7 * GIB, "what the driver leaves of 24"
    code, text = run("--model", "gpt2-medium", "--on", "RTX 4090", "--batch-size", "4", "--json")
    assert code == 0 and json.loads(text)["largest_batch_size"] >= 4


def test_the_command_answers_people() -> None:
    code, text = run("--model", "llama-7b", "--on", "RTX 4090", "--gpus", "4")
    text = " ".join(text.split())
    assert code == 1
    assert text.startswith(
        "llama-7B on 4 × RTX 4090, "
    ) and "full training does not fit" in " ".join(text.split())
    assert "batch size 1 does not fit" in text
    assert "to make it fit: --" in " ".join(text.split())


@pytest.mark.parametrize("gpus", ["1", "4"])
def test_eighty_columns_hold_every_number_and_option(
    monkeypatch: pytest.MonkeyPatch, gpus: str
) -> None:
    """They were cut: ``27.…``, the heads, and the option to copy."""
    words = ("--model", "llama-7B", "--on", "RTX 4090", "--gpus", gpus)
    options = [effect["change"] for effect in json.loads(run(*words, "--json")[1])["options"]]
    monkeypatch.setenv("COLUMNS", "80")
    _, text = run(*words)
    assert "…" not in text and max(map(len, text.splitlines())) <= 80
    shown = [line.split("  ")[0] for line in text.splitlines() if line.startswith("--")]
    assert shown and set(shown) <= set(options)


@pytest.mark.parametrize(
    ("words", "says", "hint"),
    [
        (["--model", "lama-7b", "--on", "RTX 4090"], "unknown model", "llama-7B"),
        (["--model", "gpt2", "--on", "RTX 4091"], "unknown chip", "RTX 4090"),
        (["--model", "gpt2", "--on", "RTX 4090", "--tp", "5", "--gpus", "5"], "12 heads", "1"),
        (["--model", "gpt2", "--on", "RTX 4090", "--batch-size", "-1"], "-1", "whole number"),
        (
            ["--model", "gpt2", "--on", "RTX 4090", "--ep", "8"],
            "is dense: it has no experts",
            "--ep 1",
        ),
        (["--on", "RTX 4090"], "missing --model", "--model"),
    ],
)
def test_bad_input_is_one_line_and_a_hint(words: list[str], says: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        run(*words)
    assert says in caught.value.message and "\n" not in caught.value.message
    assert hint in f"{caught.value.message} {caught.value.hint}"
