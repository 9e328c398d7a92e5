"""`trainrig import` as people use it: verdicts, report, compare, ledger; all or nothing."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from trainrig.cli.main import cli
from trainrig.errors import DataError, StoreError
from trainrig.importers import importers
from trainrig.store import RunWriter, find_runs, read_run

SAMPLES = Path(__file__).resolve().parents[1] / "unit" / "importers" / "samples"


def run(*words: object) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words], standalone_mode=False)


def code_of(done: Result) -> int:
    """What the process would end with, of a verb that raised nothing."""
    assert done.exception is None, done.exception
    return int(done.return_value or 0)


def imported(
    out: Path, *names: str, code: int = 0, options: tuple[str, ...] = ()
) -> dict[str, object]:
    """What ``--json`` prints of these samples; None of them may end in another exit code."""
    done = run("import", *(SAMPLES / name for name in names), "--out", out, "--json", *options)
    assert code_of(done) == code, done.output
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


VERDICTS = {
    "nccl-all-reduce-wrong.txt": ("FAIL", 1, "wrong-answer"),
    "nccl-all-reduce-8xa100.txt": ("MEASURED", 0, None),
    "nvbandwidth-4x5090.json": ("FAIL", 1, "below-band"),
    "nvbandwidth-gh200.txt": ("MEASURED", 0, "not-run-by-the-tool"),
    "bandwidthTest-quick.txt": ("FAIL", 1, "below-band"),
    "bandwidthTest-shmoo.txt": ("PASS", 0, None),
    "p2p-2x4090.txt": ("MEASURED", 0, "no-p2p"),
    "p2p-2x3090ti-nvlink.txt": ("MEASURED", 0, None),
    "dcgm-diag-skip.json": ("INCOMPLETE", 3, "health-test-not-done"),
    "dcgm-diag-pass.json": ("PASS", 0, None),
    "dcgm-diag-allocation.json": ("FAIL", 1, "tool-failure"),
    "gpu-burn-2x-ok.txt": ("PASS", 0, None),
    "gpu-burn-faulty.txt": ("FAIL", 1, "wrong-answer"),
    "gpu-burn-cut-off.txt": ("INCOMPLETE", 3, "health-test-not-done"),
    "gpu-fryer-unhealthy.txt": ("FAIL", 1, "tool-failure"),
    "megatron-zero-timers.txt": ("INCOMPLETE", 3, "not-in-the-file"),
    "milabench-error.jsonl": ("FAIL", 1, "tool-failure"),
    "milabench-rate.jsonl": ("MEASURED", 0, None),
    "hf-bert-large-4090.txt": ("MEASURED", 0, "training-slower-than-published"),
    "torch-trace.json": ("MEASURED", 0, "trace-idle"),
    "nvidia-smi-q-8xa100.txt": ("MEASURED", 0, None),
    "nvidia-smi-q-ecc.txt": ("FAIL", 1, "ecc-uncorrected-errors"),
    "mamf-finder-h100.txt": ("PASS", 0, None),
}
"""Sample: its verdict, exit code, and a finding; faults beside their healthy twins."""


@pytest.mark.parametrize("name", VERDICTS)
def test_its_verdict_and_its_finding(name: str, tmp_path: Path) -> None:
    outcome, code, finding = VERDICTS[name]
    answer = imported(tmp_path, name, code=code)
    findings = answer["findings"]
    assert isinstance(findings, list)
    ids = {each["id"] for each in findings}
    assert answer["verdict"] == outcome, answer["reason"]
    serious = {each["id"] for each in findings if each["severity"] != "info"}
    assert finding in ids if finding else not serious, findings
    run_folder = Path(str(answer["run"]))
    assert run_folder.parent == tmp_path
    assert (run_folder / "report.html").is_file()


@pytest.mark.parametrize("name", [name for one in importers() for name in one.tested_on])
def test_report_and_compare_show_every_format(name: str, tmp_path: Path) -> None:
    runs = []
    for folder in ("a", "b"):
        done = run("import", SAMPLES / name, "--out", tmp_path / folder, "--json")
        assert code_of(done) in (0, 1, 3), done.output
        runs.append(json.loads(done.stdout)["run"])
    shown = run("report", runs[0])
    assert code_of(shown) == 0
    assert name in shown.stdout
    both = run("compare", *runs)
    assert code_of(both) in (0, 3), both.output
    assert code_of(run("report", *runs, "--html", tmp_path / "both.html")) == 0


def test_two_cards_without_p2p_are_one_table_with_latencies(tmp_path: Path) -> None:
    answer = imported(tmp_path, "p2p-2x4090.txt")
    text = run("report", answer["run"], "--md", "-").stdout
    (table,) = [part for part in text.split("\n\n") if "GPU 0 → 1" in part and "|" in part]
    assert "22.4 GB/s" in table and "10.2 µs" in table and "5.24 µs" in table
    assert "latency, CPU, P2P on" in table
    assert "no P2P" in text
    linked = imported(tmp_path, "p2p-2x3090ti-nvlink.txt")
    assert "no P2P" not in run("report", linked["run"], "--md", "-").stdout


def test_the_classic_log_says_what_is_unexpected_about_it(tmp_path: Path) -> None:
    answer = imported(tmp_path, "hf-bert-large-4090.txt", options=("--on", "RTX 4090"))
    (finding,) = [f for f in answer["findings"] if f["id"] == "training-slower-than-published"]  # type: ignore[attr-defined]
    for words in ("9.0 samples/s", "9.97 TFLOPS", "10.0 TFLOPS in the log", "2.7 times as fast"):
        assert words in finding["evidence"]
    assert "launch-bound or misconfigured host" in finding["evidence"]
    assert "then: trainrig train --model bert-large" in finding["fix"]


def test_worse_is_seen_between_two_files_of_a_tool(tmp_path: Path) -> None:
    worse = tmp_path / "gpu-burn-2x-ok.txt"
    worse.write_text((SAMPLES / "gpu-burn-2x-ok.txt").read_text().replace("58000", "38000"))
    old = imported(tmp_path / "runs", "gpu-burn-2x-ok.txt")["run"]
    done = run("import", worse, "--out", tmp_path / "runs", "--json")
    done = run("compare", old, json.loads(done.stdout)["run"], "--json")
    assert "burn" in done.stdout


def test_the_ledger_holds_what_was_expected_of_an_import_and_names_its_tool(tmp_path: Path) -> None:
    imported(tmp_path, "nvbandwidth-4x5090.json", code=1)
    shown = run("ledger", tmp_path)
    assert code_of(shown) == 0
    assert "nvbandwidth 0.8" in shown.stdout


def nvbandwidth_of(tmp_path: Path, *tests: tuple[str, list[str]]) -> Path:
    """A file of nvbandwidth on four RTX 5090: each test with the line of its matrix."""
    cards = [f"{i}: NVIDIA GeForce RTX 5090 (00000000:{i}1:00)" for i in range(4)]
    cases = [
        {
            "name": name,
            "status": "Passed",
            "bandwidth_description": "memcpy bandwidth (GB/s)",
            "bandwidth_matrix": [cells],
        }
        for name, cells in tests
    ]
    whole = {"git_version": "v0.8", "GPU Device list": cards, "testcases": cases}
    path = tmp_path / "nvbandwidth.json"
    path.write_text(json.dumps({"nvbandwidth": whole}))
    return path


def test_a_rate_as_expected_and_like_its_neighbours_is_nothing_to_do(tmp_path: Path) -> None:
    rates = ["56.40", "56.38", "56.39", "56.40"]
    path = nvbandwidth_of(tmp_path, ("host_to_device_memcpy_ce", rates))
    done = run("import", path, "--out", tmp_path / "runs")
    assert code_of(done) == 0
    assert "4 points reached what is expected" in done.stdout
    assert "To do" not in done.stdout


def test_a_cell_of_a_matrix_is_named_by_its_gpu(tmp_path: Path) -> None:
    path = nvbandwidth_of(
        tmp_path,
        ("device_local_copy", ["750.1", "761.2", "752.3", "751.4"]),
        ("all_to_host_memcpy_ce", ["38.52", "37.5", "38.4", "37.99"]),
    )
    done = run("import", path, "--out", tmp_path / "runs")
    assert "Copy within GPU 1 (device_local_copy): 761.2 GB/s on RTX 5090" in done.stdout
    assert "GPU 2 (all_to_host_memcpy_ce)" in done.stdout
    assert "row 0" not in done.stdout


def test_a_card_that_the_file_contradicts_is_said_not_to_be_used(tmp_path: Path) -> None:
    words = "--on RTX 3090 is not used: the file names RTX 4090"
    for name, card, is_said in (
        ("gpu-burn-tensor-cores.txt", "RTX 3090", True),
        ("gpu-burn-tensor-cores.txt", "RTX 4090", False),
        ("hf-bert-large-4090.txt", "RTX 3090", False),
    ):
        findings = imported(tmp_path, name, options=("--on", card))["findings"]
        assert (words in json.dumps(findings)) is is_said, (name, card)


LAUNCH = "[2024-05-02 04:27:39,976] torch.distributed.run: [WARNING] OMP_NUM_THREADS is 1\n"
TRACEBACK = """[rank1]: Traceback (most recent call last):
[rank1]:   File "train.py", line 1134, in <module>
[rank1]: AssertionError: no data
"""
LSCPU = "Architecture: x86_64\nCPU(s): 104\nVendor ID: GenuineIntel\nNUMA node0 CPU(s): 0-51\n"


@pytest.mark.parametrize(
    ("text", "problem", "hint"),
    [
        (LAUNCH + TRACEBACK + LSCPU, "failed, without results: line 4: ", "start again"),
        ("Loading\n" + TRACEBACK, "failed, without results: line 4: ", "start again"),
        (LAUNCH + LSCPU, "the log of a training, in no format", "trainrig doctor"),
        (LSCPU, "lscpu, which holds no results", "trainrig doctor"),
        ("Loading\nAssertionError: no data\n", "not a file of a tool", "--as"),
    ],
)
def test_a_launch_that_failed_is_no_description_of_a_machine(
    text: str, problem: str, hint: str, tmp_path: Path
) -> None:
    path = tmp_path / "log.txt"
    path.write_text(text)
    error = run("import", path, "--out", tmp_path / "runs").exception
    assert isinstance(error, DataError)
    assert problem in error.message
    assert hint in str(error.hint)


def test_several_files_are_one_run(tmp_path: Path) -> None:
    answer = imported(tmp_path, "p2p-2x4090.txt", "topo-2x4090.txt", "stress-ng-cpu-vm.yaml")
    assert answer["tool"] is None
    files = answer["files"]
    assert isinstance(files, list)
    assert [each["tool"] for each in files] == [
        "p2pBandwidthLatencyTest",
        "nvidia-smi-topo",
        "stress-ng",
    ]
    assert len(find_runs(tmp_path)) == 1
    bundle = tmp_path / "all.bundle"
    assert code_of(run("bundle", answer["run"], "--out", bundle)) == 0
    assert "SYS" in run("report", bundle).stdout


def test_nothing_is_imported_of_a_refused_file_nor_of_those_beside_it(tmp_path: Path) -> None:
    bad = tmp_path / "bad.txt"
    bad.write_text((SAMPLES / "p2p-2x4090.txt").read_text().replace("911.10", "911,10"))
    out = tmp_path / "runs"
    done = run("import", SAMPLES / "topo-2x4090.txt", bad, "--out", out)
    assert "bad.txt:10: no number of a matrix: '911,10'" in str(done.exception)
    assert not out.exists()


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, count = RunWriter.append, 0

    def append(self: RunWriter, record: object) -> object:
        nonlocal count
        count += 1
        if count == 5:
            raise StoreError("the disk is full")
        return real(self, record)  # type: ignore[arg-type]

    monkeypatch.setattr(RunWriter, "append", append)
    done = run("import", SAMPLES / "p2p-2x4090.txt", "--out", tmp_path)
    assert isinstance(done.exception, StoreError)
    assert list(tmp_path.iterdir()) == []


def test_the_command_ends_in_2_and_one_line(tmp_path: Path) -> None:
    (tmp_path / "any.txt").write_text("hello\n")
    for words in (
        ["any.txt"],
        ["absent"],
        ["any.txt", "--as", "nope"],
        ["any.txt", "--model", "x"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "trainrig", "import", *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2, done.stderr
        first, *_ = done.stderr.splitlines()
        assert first.startswith("trainrig: ") and "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    command = f"{sys.executable} -m trainrig import <(cat {SAMPLES / 'topo-2x4090.txt'}) --json"
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("needs bash")
    done = subprocess.run(
        [bash, "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tool"] == "nvidia-smi-topo"


def test_an_imported_run_is_whole_and_no_machine_of_ours(tmp_path: Path) -> None:
    answer = imported(tmp_path, "dcgm-diag-pass.json")
    view = read_run(Path(str(answer["run"])))
    assert view.problems == ()
    assert view.config["imported"] == [{"file": "dcgm-diag-pass.json", "tool": "dcgm"}]
    assert view.machine is not None
    assert view.machine["cpu"]["model"] == {"missing": "not in the imported file"}
