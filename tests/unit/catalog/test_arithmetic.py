"""The precision that a device is fastest in, over processors and GPUs; what is emulated."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from trainrig.catalog.arithmetic import (
    HALF,
    UNKNOWN,
    Accelerator,
    Arithmetic,
    HostProcessor,
    arithmetic_of,
)
from trainrig.catalog.lookup import require_chip
from trainrig.machine import inspect
from trainrig.runner.targets import host_arithmetic

AVX2 = ("avx2", "fma")
SKYLAKE = (*AVX2, "avx512f", "avx512bw", "avx512dq", "avx512vl")
ZEN4 = (*SKYLAKE, "avx512_bf16")
SAPPHIRE_RAPIDS = (*ZEN4, "avx512_fp16", "amx_bf16", "amx_int8")
GRAVITON3 = ("asimd", "asimdhp", "sve", "bf16", "i8mm")


@pytest.mark.parametrize(
    ("flags", "mask", "fastest", "emulated"),
    [
        (AVX2, "", "fp32", {"bf16": "100", "fp16": "60"}),
        (SKYLAKE, "", "fp32", {"bf16": "4", "fp16": "60"}),
        (ZEN4, "", "bf16", {"fp16": "60"}),
        (SAPPHIRE_RAPIDS, "", "bf16", {}),
        (GRAVITON3, "", "bf16", {"fp16": "60"}),
        (("asimd",), "", "fp32", {"bf16": "100", "fp16": "60"}),
        (SAPPHIRE_RAPIDS, "AVX2", "fp32", {"bf16": "100", "fp16": "60"}),
        (SAPPHIRE_RAPIDS, "avx2", "fp32", {"bf16": "100", "fp16": "60"}),
        (SAPPHIRE_RAPIDS, "AVX512_CORE", "fp32", {"bf16": "4", "fp16": "60"}),
        (SAPPHIRE_RAPIDS, "AVX512_CORE_BF16", "bf16", {"fp16": "60"}),
        (SAPPHIRE_RAPIDS, "AVX512_CORE_AMX", "bf16", {}),
        (SAPPHIRE_RAPIDS, "no such word", "bf16", {}),
    ],
)
def test_a_processor_is_fastest_in_what_it_has_instructions_for(
    flags: tuple[str, ...], mask: str, fastest: str, emulated: dict[str, str]
) -> None:
    for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"):
        found = arithmetic_of(HostProcessor(flags=flags, environment={name: mask}))
        assert found.fastest == fastest
        assert dict(found.emulated) == {
            dtype: f"about {times} times slower than fp32" for dtype, times in emulated.items()
        }
        assert found.trained_in == (("fp32", "bf16") if fastest == "bf16" else ("fp32",))


def test_onednns_newer_name_of_the_mask_counts_before_the_older_one() -> None:
    both = {"DNNL_MAX_CPU_ISA": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_AMX"}
    assert arithmetic_of(HostProcessor(flags=SAPPHIRE_RAPIDS, environment=both)).fastest == "bf16"


@pytest.mark.parametrize(
    ("name", "fastest", "slower"),
    [
        ("RTX 4090", "bf16", None),
        ("A100 SXM4 80GB", "bf16", None),
        ("MI300X", "bf16", None),
        ("V100 SXM2 16GB", "fp16", "no faster than fp32, 8 times slower than fp16"),
        ("T4", "fp16", "no faster than fp32, 8 times slower than fp16"),
        ("GTX 1660", "fp32", "no faster than fp32"),
        ("P100 SXM2 16GB", "fp32", "no faster than fp32"),
        ("GTX 1080", "fp32", "no faster than fp32"),
    ],
)
def test_a_gpu_of_the_catalog_is_fastest_in_what_is_claimed_for_it(
    name: str, fastest: str, slower: str | None
) -> None:
    found = arithmetic_of(Accelerator(chip=require_chip(name)))
    assert (found.fastest, dict(found.emulated).get("bf16")) == (fastest, slower)
    assert not found.is_emulated("fp32") and not found.is_emulated("tf32")


@pytest.mark.parametrize(
    ("capability", "fastest"),
    [("5.2", "fp32"), ("6.1", "fp32"), ("7.0", "fp16"), ("7.5", "fp16"), ("8.0", "bf16")]
    + [("8.6", "bf16"), ("9.0", "bf16"), ("10.0", "bf16"), ("12.1", "bf16")],
)
def test_a_gpu_that_the_catalog_lacks_is_known_by_its_capability(
    capability: str, fastest: str
) -> None:
    found = arithmetic_of(Accelerator(capability=capability))
    assert found.fastest == fastest
    assert found.is_emulated("bf16") == (fastest != "bf16")


def test_what_is_not_known_is_said() -> None:
    gpu = arithmetic_of(Accelerator())
    assert gpu.fastest == "bf16" and gpu.reason.startswith("presumed")
    assert arithmetic_of(HostProcessor(flags=None)) == UNKNOWN
    assert not any(UNKNOWN.is_emulated(dtype) for dtype in HALF)


def test_the_line_names_the_reason_and_the_warning_the_factor() -> None:
    found = arithmetic_of(HostProcessor(flags=AVX2))
    assert found.line == "precision fp32: this processor has no bf16 instructions"
    assert found.warning("fp32") is None
    assert found.warning("bf16") == (
        "warning: precision bf16 is emulated here, about 100 times slower than fp32; " + found.line
    )
    masked = arithmetic_of(HostProcessor(flags=ZEN4, environment={"ONEDNN_MAX_CPU_ISA": "AVX2"}))
    assert "AVX2" in masked.line and "no bf16" not in masked.line


ASK_TORCH = """
import json, torch
names = ("bf16", "fp16")
print(json.dumps({n: getattr(torch.ops.mkldnn, f"_is_mkldnn_{n}_supported")() for n in names}))
"""


@pytest.mark.parametrize("mask", ["AVX2", "AVX512_CORE_BF16"])
def test_torch_takes_the_fast_way_where_the_flags_and_the_mask_say_so(
    mask: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is native here must be oneDNN's in torch's own words, under a mask of instructions."""
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", mask)
    found: Arithmetic = host_arithmetic(inspect())
    command = [sys.executable, "-c", ASK_TORCH]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ})
    supported = json.loads(done.stdout)
    for dtype in HALF:
        if not found.is_emulated(dtype) and found != UNKNOWN:
            assert supported[dtype]
        elif mask == "AVX2":
            assert not supported[dtype]
