"""The search: its best is brute force's, its front is a front, and gaps are sums of their parts."""

from __future__ import annotations

import dataclasses
import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainrig.catalog import require_chip
from trainrig.errors import UsageError
from trainrig.prediction import search as searching
from trainrig.prediction.cluster import Cluster
from trainrig.prediction.prediction import predict
from trainrig.prediction.scenario import Question, question, space
from trainrig.prediction.search import SIMULATED, TIE, price, search
from trainrig.prediction.search.gpu_count import _between, _Counts, _tried_counts, gpus_needed
from trainrig.prediction.search.space import Space, layouts
from trainrig.prediction.step import PARTS, predict_step
from trainrig.prediction.step.simulate import simulated
from trainrig.report.document import Table
from trainrig.report.prediction_report import plan_document
from trainrig.train.config_file import read_file
from trainrig.units import DAY
from trainrig.workload import custom
from trainrig.workload.layout import Layout
from trainrig.workload.memory import memory

SMALL = custom("gpt2", num_layers=4, hidden=768, num_heads=12)
CHIPS = ("RTX 4090", "A100 SXM4 80GB", "V100 SXM2 16GB")


def small_space(gpus: int, batch: int, seq: int = 512) -> Space:
    base = Layout.of(gpus=gpus, gpus_per_node=min(gpus, 4), seq_len=seq, precision="fp16")
    return Space(shape=SMALL, base=base, global_batch=batch)


def every(space: Space, rates) -> list:
    """Each layout by itself, one after the other."""
    return [
        price(space, group.at(index), rates)
        for group in layouts(space)
        for index in range(len(group))
    ]


@given(
    chip=st.sampled_from(CHIPS),
    gpus=st.sampled_from([1, 2, 4]),
    batch=st.sampled_from([4, 6, 8]),
    memory=st.floats(0.6, 4.0),
)
@settings(max_examples=6, deadline=None)
def test_the_best_is_that_of_brute_force(chip, gpus, batch, memory) -> None:
    rates = Cluster(chip=require_chip(chip), gpus=gpus).rates()
    rates = rates.replace(memory_bytes=memory * 2**30 + 1e9)
    asked = small_space(gpus, batch)
    found = search(asked, rates, top=5)
    one_by_one = every(asked, rates)
    assert found.considered == len(one_by_one)
    fitting = sorted((c for c in one_by_one if c.fits), key=lambda c: (c.time, c.memory))
    assert found.fitting == len(fitting)
    if not fitting:
        assert not found.best[0].fits and found.front == ()
        assert found.best[0].memory == min(c.memory for c in one_by_one)
        return
    assert [c.time for c in found.best] == pytest.approx([c.time for c in fitting[:5]])
    assert found.best[0].memory <= rates.memory_bytes
    # The front: nothing that fits is faster without needing more.
    times, sizes = (np.array([getattr(c, n) for c in fitting]) for n in ("time", "memory"))
    for one in found.front:
        better = (times < one.time * (1 - 1e-9)) & (sizes <= one.memory)
        assert not better.any()
    assert found.front[0].time == found.best[0].time
    assert found.front[-1].memory == sizes.min()


@pytest.mark.parametrize(
    ("model", "chip", "gpus"),
    [
        ("mixtral-8x7B", "H100 SXM5 80GB", 32),
        ("bert-large", "V100 SXM2 16GB", 8),
        ("qwen3.5-9B", "H100 SXM5 80GB", 8),
        ("nemotron-3-super-120B-A12B", "B200 SXM", 16),
    ],
)
def test_a_layout_costs_among_many_what_it_costs_alone(model, chip, gpus) -> None:
    asked, cluster = space({"model": model, "on": chip, "gpus": gpus, "global_batch": 4 * gpus})
    rates = cluster.rates()
    for group in layouts(asked)[::7]:
        together, needed = predict_step(asked.shape, group, rates), memory(asked.shape, group)
        for index in range(0, len(group), 1 + len(group) // 3):
            alone = price(asked, group.at(index), rates)
            parts = {name: getattr(together, name)[index] for name in PARTS}
            assert parts == pytest.approx(alone.parts, rel=1e-12)
            assert needed.total[index] == alone.memory


BIG = {
    "llama-3-405B": (
        {"on": "H100 SXM5 80GB", "gpus": 16384, "global_batch": 2048, "seq_len": 8192},
        {"tp": 8, "pp": 16, "interleave": 8},
        6.3,  # 41 % of the peak (arXiv 2407.21783, table 4)
    ),
    "llama-3-70B": (
        {"on": "H100 SXM5 80GB", "gpus": 512, "global_batch": 1024, "seq_len": 8192},
        {"tp": 4, "pp": 4, "cp": 2, "interleave": 5},
        None,
    ),
    "deepseek-v3": (
        {"on": "H800 SXM5 80GB", "gpus": 2048, "global_batch": 15360, "seq_len": 4096}
        | {"precision": "fp8", "overlap": "experts"},
        {"pp": 16, "ep": 64, "recompute": "selective"},
        19.9,  # 180,000 hours of a GPU for 10¹² tokens (arXiv 2412.19437, section 1)
    ),
}
"""What was asked, the layout that was published, and seconds of its step where they are."""


@pytest.mark.parametrize("model", BIG)
def test_a_plan_finds_the_published_layout_or_a_better_one(model) -> None:
    given, published, measured = BIG[model]
    options = {"model": model, "kernels": "flash+fused", "framework": "megatron"} | given
    asked, cluster = space(options)
    (best,) = search(asked, cluster.rates(), top=1, simulate=128).best
    assert best.fits and best.simulated is not None
    batch = options.pop("global_batch")
    shared = published.get("tp", 1) * published["pp"] * published.get("cp", 1)
    options |= {"zero": 1, "sequence_parallel": int(published.get("tp", 1) > 1)} | published
    theirs = question(options | {"grad_accum": batch * shared // given["gpus"]})
    needed = memory(theirs.shape, theirs.layout).total
    seconds = simulated(theirs.shape, theirs.layout, cluster.rates())[0][0]
    assert needed > cluster.rates().memory_bytes or best.simulated < 1.05 * seconds
    assert measured is None or best.simulated < 1.05 * measured


def test_a_gap_is_the_sum_of_its_parts() -> None:
    rates = Cluster(chip=require_chip("A100 SXM4 80GB"), gpus=8).rates()
    first, *others = search(small_space(8, 24), rates, top=20).best
    for other in others:
        gap = first.gap(other)
        assert list(gap) == [*PARTS, "simulated"] and gap["simulated"] == 0.0
        assert sum(gap.values()) == pytest.approx(other.time - first.time, abs=1e-12)
        slow = dataclasses.replace(other, simulated=2.0 * other.time)
        assert sum(first.gap(slow).values()) == pytest.approx(slow.ranked_by - first.time)
        assert sum(other.parts.values()) == pytest.approx(other.time)


def test_more_memory_is_never_slower_and_a_wall_is_a_wall() -> None:
    rates = Cluster(chip=require_chip("RTX 4090"), gpus=4).rates()
    times = []
    for gib in (2.0, 3.0, 6.0, 24.0):
        best = search(small_space(4, 48), rates.replace(memory_bytes=gib * 2**30), top=1).best[0]
        assert best.memory <= gib * 2**30 or not best.fits
        times.append(best.time if best.fits else np.inf)
    assert times == sorted(times, reverse=True)
    assert times[0] > times[-1]


def test_what_is_fixed_stays() -> None:
    asked = {"model": "gpt2", "on": "RTX 4090", "gpus": 4, "global_batch": 16}
    every_, cluster = space(asked | {"recompute": "full", "framework": "megatron"})
    found = search(every_, cluster.rates())
    assert {(c.layout.memory.recompute, c.layout.framework) for c in found.best} == {
        ("full", "megatron")
    }


def test_counts_of_gpus() -> None:
    assert [n for n in _tried_counts(8, 8) if n <= 100] == [1, 2, 4, 8, 16, 24, 32, 48, 64, 96]
    racks = [1, 2, 4, 8, 16, 32, 64, 72, 144, 216]
    assert [n for n in _tried_counts(4, 72) if n <= 216] == racks
    nodes = Cluster(chip=None, gpus=8, gpus_per_node=8)
    assert _between(32, 48, nodes) == [40]
    assert _between(24, 48, nodes) == [32, 40]
    assert _between(2, 4, nodes) == [3]
    assert _between(64, 144, nodes.replace(gpus_per_node=72, trays=18)) == [*range(68, 144, 8)]


def test_how_many_gpus_is_the_least_that_is_fast_enough() -> None:
    chip = require_chip("A100 SXM4 80GB")
    cluster = Cluster(chip=chip, gpus=8, gpus_per_node=8)
    asked = Space(shape=SMALL, base=Layout.of(gpus=8, seq_len=512), global_batch=96)
    tokens = 2e12
    found = gpus_needed(asked, cluster, tokens, days=30.0)
    steps = tokens / (96 * 512)

    def days(gpus: int) -> float:
        base = asked.base.replace(gpus=gpus, gpus_per_node=min(gpus, 8))
        there = cluster.replace(gpus=gpus, gpus_per_node=min(gpus, 8))
        try:
            ranked = search(asked.replace(base=base), there.rates(), top=1, simulate=SIMULATED)
        except UsageError:
            return np.inf
        return steps * ranked.best[0].ranked_by / 86400.0

    assert found.days == pytest.approx(days(found.cluster.gpus))
    assert found.days <= 30.0
    fewer = [n for n in (1, 2, 3, 4, 6, 8, 16, 24, 32, 40, 48) if n < found.cluster.gpus]
    assert fewer and all(days(n) > 30.0 for n in fewer)
    below, above = found.neighbours
    assert below.cluster.gpus < found.cluster.gpus < above.cluster.gpus
    assert below.days == pytest.approx(days(below.cluster.gpus)) and below.days > 30.0
    assert above.days == pytest.approx(days(above.cluster.gpus))


def test_just_fast_enough_is_fast_enough() -> None:
    cluster = Cluster(chip=require_chip("A100 SXM4 80GB"), gpus=8, gpus_per_node=8)
    asked = Space(shape=SMALL, base=Layout.of(gpus=8, seq_len=512), global_batch=96)
    # In 35 days 3 GPUs would do, at a fifth more GPU-days than 4; in 36 two do, at the fewest.
    for days in (27.0, 35.0, 36.0):
        found = gpus_needed(asked, cluster, 2e12, days=days)
        again = gpus_needed(asked, cluster, 2e12, days=found.days)
        assert (again.cluster.gpus, again.days) == (found.cluster.gpus, found.days)
        assert found.cluster.gpus == {27.0: 4, 35.0: 4, 36.0: 2}[days]
        if days == 35.0:  # of all in time the fewest GPU-days are taken and the fewest GPUs shown
            (fewest,) = [one for one in found.neighbours if one.cluster.gpus == 3]
            assert fewest.days < 35.0 and fewest.gpu_days > 1.1 * found.gpu_days


def test_a_front_has_no_dominated_row_and_the_times_it_is_ranked_by() -> None:
    every, cluster = space(
        {"model": "gpt2-xl", "on": "A100 SXM4 40GB", "gpus": 16, "global_batch": 64}
    )
    found = search(every, cluster.rates(), top=20, simulate=64)
    assert all(one.simulated is not None for one in found.front)
    times = [one.ranked_by for one in found.front]
    needs = [one.memory for one in found.front]
    assert times == sorted(times) and needs == sorted(needs, reverse=True)
    assert len(set(needs)) == len(needs) and found.front[0] == found.best[0]


def test_parts_of_a_simulated_layout_sum_to_its_time() -> None:
    every, cluster = space(
        {"model": "gpt2-xl", "on": "A100 SXM4 40GB", "gpus": 16, "global_batch": 64}
    )
    for one in search(every, cluster.rates(), top=50, simulate=64).best:
        assert sum(one.parts_of_step.values()) == pytest.approx(one.ranked_by)
        assert min(one.parts_of_step.values()) >= 0.0


def test_what_no_number_of_gpus_does_is_refused_with_a_batch_that_would_do() -> None:
    cluster = Cluster(chip=require_chip("RTX 4090"), gpus=8)
    asked = Space(shape=SMALL, base=Layout.of(gpus=8, seq_len=512), global_batch=2)
    with pytest.raises(UsageError, match=r"no number of GPUs .* in 1e-06 days"):
        gpus_needed(asked, cluster, 1e12, days=1e-6)
    # Two samples keep two GPUs busy; more wait for them.
    with pytest.raises(
        UsageError, match=r"in 20 days with a global batch of 2; \d+ take \d+"
    ) as error:
        gpus_needed(asked, cluster, 2e12, days=20.0)
    hint = error.value.hint or ""
    batch = int(hint.removeprefix("--global-batch ").partition(":")[0])
    assert gpus_needed(asked.replace(global_batch=batch), cluster, 2e12, days=20.0).days <= 20.0


PLAN = ("plan", "--model", "gpt2", "--on", "RTX 4090")
BATCH = ("--global-batch", "16")


def test_a_plan_as_json(trainrig) -> None:
    words = ("--gpus", "4", *BATCH, "--top", "3", "--tokens", "1e9", "--what-if", "+4gpu")
    code, out, _ = trainrig(*PLAN, *words, "--json")
    told = json.loads(out)
    assert code == 0 and told["fits"] is True
    assert told["layouts_considered"] >= told["layouts_fitting"] > 3 == len(told["best"])
    assert told["seconds"] > 0.0
    first, second, _ = told["best"]
    gap = told["gap_to_next"]
    assert gap["step_time_s"] == pytest.approx(second["step_time_s"] - first["step_time_s"])
    assert sum(gap["parts_s"].values()) == pytest.approx(gap["step_time_s"], abs=1e-12)
    assert told["prediction"]["step_time_s"] == pytest.approx(first["step_time_s"])
    assert told["prediction"]["days"] > 0.0
    assert told["upgrades"][0]["gain"] > 0.0
    assert all(one["layout"]["global_batch"] == 16 for one in told["best"])


@pytest.mark.parametrize("width", [60, 80])
def test_a_plan_for_people(trainrig, monkeypatch, width) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    code, out, _ = trainrig(*PLAN, "--gpus", "4", *BATCH, "--tokens", "1e9")
    assert code == 0
    for said in ("fastest", "less memory", "next best takes", "1.00B tokens:", "kWh"):
        assert said in " ".join(out.split())
    assert "…" not in out
    assert all(len(line) <= width for line in out.splitlines())


def test_how_many_gpus_is_told(trainrig) -> None:
    words = ("--global-batch", "64", "--tokens", "1e11", "--days", "10", "--json")
    code, out, _ = trainrig(*PLAN, *words)
    told = json.loads(out)
    assert code == 0
    assert told["budget"]["gpus"] == told["gpus"] == told["best"][0]["layout"]["gpus"]
    assert told["budget"]["days"] <= 10.0
    assert told["budget"]["days"] == pytest.approx(told["prediction"]["days"])


def test_nothing_fits_is_a_finding(trainrig) -> None:
    words = ("plan", "--model", "gpt3-175B", "--on", "RTX 4090", "--gpus", "8", *BATCH)
    code, out, _ = trainrig(*words)
    assert code == 1
    assert "Nothing fits in memory" in out
    code, out, _ = trainrig(*words, "--json")
    told = json.loads(out)
    assert code == 1 and told["fits"] is False and told["layouts_fitting"] == 0
    assert told["best"][0]["memory_bytes_per_gpu"] > 24 * 2**30


def test_winners_are_experiment_files(trainrig, tmp_path) -> None:
    folder = tmp_path / "plans" / "new"
    words = ("--gpus", "4", *BATCH, "--top", "40", "--write", str(folder), "--json")
    code, out, _ = trainrig(*PLAN, *words)
    told = json.loads(out)
    assert code == 0
    trained = [one for one in told["families"] if one["predict_only"] is None]
    shown = [path for path in sorted(folder.glob("*.toml")) if path.name[0].isdigit()]
    assert len(shown) == len(trained) > 0 and {str(path) for path in shown} <= {*told["written"]}
    for path, one in zip(shown, trained, strict=True):
        layout = one["layout"]
        assert path.read_text().startswith("# Predicted: ")
        (experiment,) = read_file(path, {})
        assert experiment.zero == layout["zero"] and experiment.nproc == 4
        assert experiment.batch_size == layout["batch_size"]
        assert experiment.global_samples == 16


def test_the_best_that_can_be_trained_is_written_beside_winners_that_cannot(
    trainrig, tmp_path
) -> None:
    folder = tmp_path / "plans"
    where = ("--on", "RTX 4090", "--gpus", "2", *BATCH, "--top", "3")
    asked = ("plan", "--model", "llama-1B", *where)
    code, out, _ = trainrig(*asked, "--write", str(folder), "--json")
    told = json.loads(out)
    assert code == 0 and all(one["predict_only"] for one in told["best"])
    slower = told["best_that_trains"]["slower"]
    assert slower > 1.0
    (best,) = folder.glob("*.toml")
    assert best.read_text().startswith(f"# {slower:.2f} times as long as the best, predict only: ")
    _, out, _ = trainrig(*asked)
    assert "predict only: 1, 2" in out and "llama-1B (llama): Megatron-Core computes" in out
    assert f"{slower:.2f} ×" in out


def test_the_table_shows_the_seconds_that_it_is_ranked_by() -> None:
    options = {"model": "gpt2", "on": "RTX 4090", "gpus": 4, "global_batch": 16}
    every, cluster = space(options)
    found = search(every, cluster.rates(), top=2)
    first, second = found.best
    slower = dataclasses.replace(first, simulated=80.0 * first.time)
    found = dataclasses.replace(found, best=(second, slower))
    best = predict(Question(shape=every.shape, layout=second.layout, cluster=cluster))
    blocks = plan_document(every, found, best).blocks
    ranked = next(one for one in blocks if isinstance(one, Table))
    shown = [str(cells[0].text) for _, cells in ranked.lines()]
    assert shown == [f"{second.time:.3g}", f"{80.0 * first.time:.3g}"]


def test_a_layout_that_can_be_trained_is_never_faster_than_the_best(trainrig) -> None:
    """Another framework than the usual one runs the fastest layout here: then that is the best."""
    asked = ("--model", "llama-3B", "--on", "RTX 4090", "--gpus", "2", "--global-batch", "32")
    code, out, _ = trainrig("plan", *asked, "--optimizer", "adamw-8bit", "--json")
    told = json.loads(out)
    assert code == 0
    best, trains = told["best"][0], told["best_that_trains"]
    assert trains["slower"] is None or trains["slower"] >= 1.0
    assert (trains["slower"] is None) == (trains["layout"] == best["layout"])
    assert best["step_time_s"] == min(one["step_time_s"] for one in told["best"] + told["front"])
    assert told["mfu"] == told["prediction"]["mfu"] == pytest.approx(best["mfu"])
    assert best["mfu"] > told["best"][1]["mfu"]


def test_what_can_be_trained_is_ranked_by_its_simulation_too(trainrig) -> None:
    """By the closed form it is the fastest, 33 stages of unequal length are by their simulation."""
    asked = (
        "plan",
        "--model",
        "llama-7B",
        "--on",
        "GB200",
        "--gpus",
        "72",
        "--global-batch",
        "576",
    )
    told = json.loads(trainrig(*asked, "--json")[1])
    layouts = [json.dumps(one["layout"], sort_keys=True) for one in told["families"]]
    seconds = [one["simulated_step_time_s"] for one in told["families"]]
    assert len(set(layouts)) == len(layouts)
    pairs = itertools.combinations(seconds, 2)  # as fast is not faster: borderline ones go behind
    assert all(before <= (1.0 + TIE) * behind for before, behind in pairs)
    tokens = [one["tokens_per_s"] * one["simulated_step_time_s"] for one in told["families"]]
    assert tokens == pytest.approx([576 * 4096] * len(tokens))
    assert told["best_that_trains"]["slower"] > 1.0


REFUSED = [
    ((*PLAN, *BATCH), "missing --gpus", "--days"),
    ((*PLAN, "--gpus", "4"), "missing --global-batch", "--global-batch"),
    ((*PLAN, "--gpus", "4", "--global-batch", "0"), "global-batch = 0", "from 1"),
    (
        (*PLAN, "--gpus", "7", *BATCH, "--framework", "huggingface"),
        "no layout of gpt2 on 7 GPUs",
        "that 7 divides",
    ),
    ((*PLAN, "--gpus", "12", *BATCH), "12 GPUs do not fill nodes of 8", "16"),
    ((*PLAN, "--gpus", "0", *BATCH), "gpus = 0", "from 1"),
    ((*PLAN, "--gpus", "4", *BATCH, "--top", "0"), "top = 0", "from 1"),
    (
        (*PLAN, "--gpus", "4", *BATCH, "--framework", "megatrn"),
        "unknown framework 'megatrn'",
        "megatron",
    ),
    ((*PLAN, "--gpus", "4", *BATCH, "--recompute", "ful"), "unknown recompute 'ful'", "full"),
    ((*PLAN, "--gpus", "4", *BATCH, "--days", "3"), "how many tokens", "--tokens"),
    ((*PLAN, "--gpus", "4", *BATCH, "--days", "3", "--tokens", "1e9"), "--gpus says it", "days"),
    ((*PLAN, *BATCH, "--days", "-3", "--tokens", "1e9"), "days = -3", "above 0"),
    ((*PLAN, *BATCH, "--days", "3", "--tokens", "nan"), "not a number of tokens: 'nan'", "above 0"),
    ((*PLAN, "--gpus", "4", *BATCH, "--seq-len", "2048"), "knows 1024 positions", "1024"),
    ((*PLAN, "--gpus", "4", *BATCH, "--what-if", "faster"), "unknown upgrade 'faster'", "nvlink"),
]


@pytest.mark.parametrize(("words", "says", "hint"), REFUSED, ids=lambda v: str(v)[-40:])
def test_bad_input_is_one_line_and_a_hint(trainrig, words, says, hint) -> None:
    code, out, err = trainrig(*words)
    assert (code, out) == (2, "")
    message, told = err.splitlines()
    assert message.startswith("trainrig: ") and says in message
    assert told.startswith("  hint: ") and hint in told


def test_few_layouts_start_no_process_and_pieces_answer_as_the_whole(monkeypatch) -> None:
    rates = Cluster(chip=require_chip("RTX 4090"), gpus=4).rates()
    asked = small_space(4, 8)
    assert len(layouts(asked)) > 4  # groups, of few layouts each

    def never(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    with monkeypatch.context() as alone:
        alone.setattr(searching, "ordered_map", never)
        found = search(asked, rates)
    monkeypatch.setattr(searching, "_FEWEST", 1)
    monkeypatch.setattr(searching, "_PIECE", 7)
    shared = search(asked, rates)
    assert (shared.considered, shared.fitting) == (found.considered, found.fitting)
    assert (shared.best, shared.front) == (found.best, found.front)


def test_no_frozen_model_is_faster_than_the_bound_of_its_days() -> None:
    """Its weights have no gradients: 5 % less than three passes at the peak are enough for it."""
    asked = {"model": "llama-70B", "on": "RTX 4090", "gpus": 8, "seq_len": 4096, "lora_rank": 8}
    words = {"tp": 1, "zero": 3, "batch_size": 8, "kernels": "compiled", "recompute": "none"}
    found = predict(question({**asked, **words}))
    assert found.mfu is None and found.flop_rate > found.rates.peaks["bf16"]
    every, cluster = space({**asked, "global_batch": 64})
    days = found.time * 1e9 / found.tokens / DAY
    assert _Counts(every, cluster, 1e9).least_days(8) < days


def test_a_folder_that_cannot_be_written(trainrig, tmp_path) -> None:
    taken = tmp_path / "file"
    taken.write_text("")
    code, _, err = trainrig(*PLAN, "--gpus", "4", *BATCH, "--write", str(taken / "plans"))
    assert code == 3
    assert "cannot write" in err
