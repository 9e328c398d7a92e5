"""The precision of an experiment that names none: the device's fastest, chosen before and said."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from machine_fakes import healthy
from report_views import point
from runner_fakes import EMULATED, HOST, NATIVE, gpu
from trainrig.benchmarks.matmul import matmul_case
from trainrig.catalog.arithmetic import Accelerator, arithmetic_of
from trainrig.cli.main import cli
from trainrig.errors import NeedsGpuError, UsageError
from trainrig.prediction.scenario import space
from trainrig.prediction.search import search
from trainrig.runner import layout_search, train_prepare, tune
from trainrig.runner.bench import BenchRequest
from trainrig.runner.matmul_search import _usual_dtypes
from trainrig.runner.progress import describe
from trainrig.runner.train_prepare import lacks, precision_lines, requested_experiments
from trainrig.train.config import Experiment
from trainrig.train.engines import Site

OLD, NEW = arithmetic_of(Accelerator(capability="7.0")), gpu(0).arithmetic
AVX2 = Site(gpus=0, cores=2, arithmetic={None: EMULATED})
AMX = Site(gpus=0, cores=2, arithmetic={None: NATIVE})
CARDS = Site(gpus=2, cores=2, numbers=(0, 1), arithmetic={None: EMULATED, 0: NEW, 1: OLD})


@pytest.mark.parametrize(
    ("site", "keys", "expected"),
    [
        (AVX2, {}, "fp32"),
        (AVX2, {"device": "cpu"}, "fp32"),
        (AVX2, {"precision": "auto"}, "fp32"),
        (AVX2, {"precision": "bf16"}, "bf16"),
        (AMX, {}, "bf16"),
        (AMX, {"precision": "fp32"}, "fp32"),
        (AMX, {"device": "cuda"}, "bf16"),
        (CARDS, {"device": "cuda:0"}, "bf16"),
        (CARDS, {"device": "cuda:1"}, "fp16"),
        (CARDS, {"devices": "0,1"}, "fp16"),
        (CARDS, {}, "fp16"),
        (CARDS, {"device": "cpu"}, "fp32"),
    ],
)
def test_the_fastest_that_all_its_devices_have(
    site: Site, keys: dict[str, str], expected: str
) -> None:
    (own,) = requested_experiments(None, {"model": "gpt2", **keys}, lambda: site)
    assert own.precision == expected


def test_a_file_says_auto_or_nothing_and_the_machine_is_looked_at_once(tmp_path: Path) -> None:
    file, looks = tmp_path / "file.toml", []
    named = '[[experiment]]\nname = "{}"\nprecision = "{}"\n'
    rows = [named.format(word, word) for word in ("auto", "bf16", "fp32")]
    file.write_text('model = "gpt2"\n[[experiment]]\nname = "none"\n' + "".join(rows))

    def look() -> Site:
        looks.append(1)
        return AVX2

    found = requested_experiments(file, {}, look)
    assert [own.precision for own in found] == ["fp32", "fp32", "bf16", "fp32"]
    assert looks == [1]
    file.write_text('model = "gpt2"\nprecision = "fp32"\n')
    requested_experiments(file, {}, look)
    assert looks == [1]  # nothing is left to the device


def test_why_it_is_chosen_and_that_it_is_emulated_are_one_line_each() -> None:
    usual, other = Experiment.of(device="cpu"), Experiment.of(device="cpu", precision="bf16")
    assert precision_lines([usual, usual], AVX2) == (EMULATED.line,)
    (line,) = precision_lines([other, other], AVX2)
    assert line.startswith("warning: precision bf16 is emulated") and "100 times slower" in line
    assert precision_lines([other], AMX) == (NATIVE.line,)
    assert precision_lines([usual], AMX) == ()  # fp32 was asked for
    assert precision_lines([other.replace(device="cuda")], CARDS) == (OLD.warning("bf16"),)


def test_a_row_that_asks_for_the_instructions_is_skipped_without_them() -> None:
    own = Experiment.of(device="cpu", precision="bf16", emulate=False)
    refusal = lacks(own, AVX2)
    assert isinstance(refusal, NeedsGpuError)  # which has failed nothing
    assert "bf16 is emulated here" in refusal.message and refusal.hint == EMULATED.line
    assert lacks(own, AMX) is None
    assert lacks(own.replace(precision="fp32"), AVX2) is None
    assert lacks(own.replace(emulate=True), AVX2) is None


@pytest.mark.parametrize("site", [AVX2, AMX])
def test_a_dry_run_shows_it_with_its_reason(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_prepare, "this_site", lambda: site)
    has = site.arithmetic[None]
    words = ["train", "--model", "gpt2", "--device", "cpu", "--dry-run"]
    shown = " ".join(CliRunner().invoke(cli, words, catch_exceptions=False).output.split())
    assert has.line in shown
    found = json.loads(CliRunner().invoke(cli, [*words, "--json"], catch_exceptions=False).output)
    assert [own["precision"] for own in found["experiments"]] == [has.fastest]


def test_no_torch_is_loaded_to_choose_it() -> None:
    program = (
        "import sys; from pathlib import Path; from trainrig.runner import train_prepare as t;"
        "t.requested_experiments(None, {'model': 'gpt2'}); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_tune_trains_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, trained = tmp_path / "file.toml", []
    rows = "".join(f'[[experiment]]\nname = "{n}"\nbatch_size = {n}\n' for n in (1, 2))
    file.write_text(f'model = "gpt2-small-cpu"\ndevice = "cpu"\n{rows}')

    def train(experiments: list[Experiment], **_: object) -> None:
        trained.extend(own.precision for own in experiments)
        raise UsageError("enough")

    monkeypatch.setattr(tune, "inspect", healthy)
    monkeypatch.setattr(tune, "site_of", lambda *_: AVX2)
    monkeypatch.setattr(tune, "train", train)
    with pytest.raises(UsageError, match="enough"):
        tune.tune(file, {}, out=tmp_path / "runs")
    assert trained == ["fp32", "fp32"]


def test_a_plan_writes_what_the_chip_has_and_a_tiny_rehearsal_what_its_own_device_has(
    tmp_path: Path,
) -> None:
    for chip, expected in (("V100 SXM2 16GB", "fp16"), ("RTX 4090", "bf16")):
        options = {"model": "gpt2", "on": chip, "gpus": 1, "global_batch": 8}
        every, cluster = space(options)
        best = search(every, cluster.rates(), top=1).best
        (file, *_) = layout_search.write_experiments(best, None, "gpt2", tmp_path / expected)
        (whole,) = requested_experiments(file, {}, lambda: CARDS)
        assert whole.precision == expected
        (small,) = requested_experiments(file, {"scale": "tiny", "device": "cpu"}, lambda: AVX2)
        assert small.precision == "fp32"


def test_a_search_for_the_fastest_product_leaves_out_what_is_emulated() -> None:
    assert BenchRequest(benchmark="matmul").dtypes == ()
    slow = dataclasses.replace(HOST, arithmetic=EMULATED)
    assert (_usual_dtypes(slow), _usual_dtypes(HOST)) == (("fp32",), ("fp32", "bf16"))
    assert _usual_dtypes(gpu(0)) == ("bf16", "fp16")
    assert _usual_dtypes(dataclasses.replace(gpu(0), arithmetic=OLD)) == ("fp16",)


def test_a_result_in_what_is_emulated_says_so() -> None:
    seen = point("matmul", matmul_case("bf16", 256), 1e9)
    assert "(emulated)" not in describe(seen, None)
    slow = seen.replace(conditions={"emulated": "about 100 times slower"})
    assert "GFLOPS (emulated)" in describe(slow, None)
