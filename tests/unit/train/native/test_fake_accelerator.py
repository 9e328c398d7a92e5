"""Every kind of step on a device that computes nothing: no mismatch, no wait, nothing on the host.

What such a device cannot show (kernels, numbers, time) is unverified on hardware.  The combinations
and the places where the host may wait are those of docs/fake-accelerator.md.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

ROOT = Path(__file__).resolve().parents[4]
SOURCES = ROOT / "tests" / "support" / "fake_accelerator"
PAGE = (ROOT / "docs" / "fake-accelerator.md").read_text()
SIZES = "num_layers=1,hidden=32,num_heads=2,vocab=64"
FAMILIES = {
    "gpt2": f"gpt2:{SIZES}",
    "gpt-neo": f"gpt-neo:{SIZES}",
    "bert": f"bert:{SIZES}",
    "t5": f"t5:{SIZES}",
    "llama": f"llama:{SIZES}",
    "mixture": f"llama:{SIZES},num_experts=4",
}
PRECISIONS, RECOMPUTE = ("fp32", "bf16", "fp16"), ("none", "selective", "full")
KERNELS: tuple[dict[str, Any], ...] = (
    *({"optimizer": optimizer} for optimizer in ("adamw", "sgd")),
    *({"unfused": words} for words in ("norm,gelu,loss,clip", "pad", "foreach", "sdpa")),
    {"attention": "plain"},
    {"dropout": 0.1},
    {"grad_accum": 2},
)
FAULTS = {
    "item": "sync: aten._local_scalar_dense",
    "nonzero": "sync: aten.nonzero",
    "host tensor": "host: aten.ones",
    "mismatch": "mismatch: ",
}
ALLOWED = set(re.findall(r"^\| `([\w/]+\.py:\w+)` \|", PAGE, re.MULTILINE))


def library(folder: Path) -> Path:
    """guard.cpp, compiled against this torch."""
    compiler = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("c++")
    if compiler is None:
        pytest.skip("needs a C++ compiler: the device is one")
    package = Path(torch.__file__).parent
    built = folder / "guard.so"
    options = ["-O0", "-shared", "-fPIC", "-std=c++20", "-I", package / "include"]
    link = ["-L", package / "lib", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{package / 'lib'}"]
    done = subprocess.run(
        [compiler, *options, SOURCES / "guard.cpp", *link, "-o", built],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:  # no headers, an older standard
        pytest.skip(f"the compiler cannot build against torch: {done.stderr.splitlines()[0]}")
    return built


def name_of(keys: dict[str, Any]) -> str:
    return json.dumps(keys)


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What one program finds in all steps, by the experiment's keys."""
    requests: list[dict[str, Any]] = [
        {"model": FAMILIES[family], "precision": precision, "recompute": recompute}
        for family, precision, recompute in product(FAMILIES, PRECISIONS, RECOMPUTE)
    ]
    requests += [
        {"model": FAMILIES[family], "precision": "bf16", **kernels}
        for family, kernels in product(("gpt2", "llama"), KERNELS)
    ]
    requests += [{"model": FAMILIES["gpt2"], "precision": "fp16", "optimizer": "adamw"}]
    requests += [{"model": FAMILIES["gpt2"], "fault": fault} for fault in FAULTS]
    drivers = ("huggingface", "deepspeed") if find_spec("transformers") else ()
    requests += [
        {"model": FAMILIES[family], "loss_of": driver}
        for family, driver in product(("gpt2", "llama"), drivers)
    ]
    done = subprocess.run(
        [sys.executable, SOURCES / "program.py", library(tmp_path_factory.mktemp("guard"))],
        input=json.dumps(requests),
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    return {name_of(keys): rows for keys, rows in zip(requests, found, strict=True)}


def test_no_step_waits_or_leaves_the_device_but_at_the_listed_places(
    findings: dict[str, list[str]],
) -> None:
    unexpected = {
        keys: [row for row in rows if row.rpartition(" at ")[2] not in ALLOWED]
        for keys, rows in findings.items()
        if "fault" not in json.loads(keys)
    }
    assert len(unexpected) >= 73
    assert {keys: rows for keys, rows in unexpected.items() if rows} == {}


def test_each_listed_place_is_one(findings: dict[str, list[str]]) -> None:
    places = {row.rpartition(" at ")[2] for rows in findings.values() for row in rows}
    assert ALLOWED and places >= ALLOWED


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(findings: dict[str, list[str]], fault: str) -> None:
    keys = name_of({"model": FAMILIES["gpt2"], "fault": fault})
    assert any(row.startswith(FAULTS[fault]) for row in findings[keys])
