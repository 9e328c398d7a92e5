"""An extension is really built; what is missing is taken away below torch, and named."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from trainrig.errors import DataError
from trainrig.install.extension import explain, explain_file, try_extension

torch_needed = pytest.mark.skipif(
    not any(Path(path, "torch").is_dir() for path in sys.path), reason="needs torch"
)


def tools(folder: Path, *names: str) -> dict[str, str]:
    """The environment with these programs on PATH and no others."""
    folder.mkdir()
    for name in names:
        found = shutil.which(name)
        if found is None:
            pytest.skip(f"needs {name}")
        (folder / name).symlink_to(found)
    return {**os.environ, "PATH": str(folder), "TORCH_CUDA_ARCH_LIST": ""}


@torch_needed
@pytest.mark.needs("c++", "ninja")
@pytest.mark.acceptance
def test_an_extension_is_built_and_computes_right() -> None:
    built = try_extension(sys.executable)
    assert built.error is None, built.output
    assert built.torch and built.seconds and "ninja" not in (built.error or "")


@torch_needed
def test_without_ninja_it_says_so(tmp_path: Path) -> None:
    built = try_extension(sys.executable, tools(tmp_path / "bin", "c++", "as", "ld"))
    assert built.error is not None and built.error.id == "ninja-missing"
    assert "pip install ninja" in built.error.fix and built.seconds is None


@torch_needed
def test_without_a_compiler_it_says_so(tmp_path: Path) -> None:
    env = tools(tmp_path / "bin", "ninja", "sh", "which", "env")
    env.pop("CXX", None)
    built = try_extension(sys.executable, env)
    assert built.error is not None and built.error.id == "compiler-missing", built.output
    assert "build-essential" in built.error.fix


@torch_needed
@pytest.mark.needs("ninja")
def test_a_compiler_that_is_killed_is_short_of_memory(tmp_path: Path) -> None:
    """A compiler that prints what gcc does when its cc1plus is killed, and fails as it does."""
    fake = tmp_path / "c++"
    fake.write_text(
        '#!/bin/sh\ncase "$*" in *--version*|*-dumpfullversion*) echo 12.2.0; exit 0;; esac\n'
        "echo 'c++: fatal error: Killed signal terminated program cc1plus' >&2; exit 1\n"
    )
    fake.chmod(0o755)
    built = try_extension(sys.executable, {**os.environ, "CXX": str(fake)})
    assert built.error is not None and built.error.id == "out-of-memory", built.output
    assert "MAX_JOBS=1" in built.error.fix


def test_a_python_without_torch_says_so(tmp_path: Path) -> None:
    fake = tmp_path / "python"
    fake.write_text(f'#!/bin/sh\nshift\nexec {sys.executable} -I -S -c "$@"\n')
    fake.chmod(0o755)
    built = try_extension(str(fake))
    assert built.error is not None and built.error.id == "no-torch"


def test_an_answer_that_is_wrong_is_no_success(tmp_path: Path) -> None:
    fake = tmp_path / "python"
    answer = json.dumps({"torch": "2.13.0", "seconds": 1.0, "found": [1.0, 3.0, 5.0, 8.0]})
    fake.write_text(f"#!/bin/sh\necho '{answer}'\n")
    fake.chmod(0o755)
    built = try_extension(str(fake))
    assert built.error is not None and built.error.id == "wrong-answer"


LOGS = {
    "gcc-too-new": "/usr/local/cuda/include/crt/host_config.h:143:2: error: #error -- unsupported "
    "GNU version! gcc versions later than 13 are not supported!",
    "cuda-torch-mismatch": "RuntimeError:\nThe detected CUDA version (12.4) mismatches the version "
    "that was used to compile\nPyTorch (13.0). Please make sure to use the same CUDA versions.",
    "apex-cuda-mismatch": "RuntimeError: Cuda extensions are being compiled with a version of Cuda "
    "that does not match the version used to compile Pytorch binaries.  Pytorch binaries were "
    "compiled with Cuda 11.3.\nIn some cases, a minor-version mismatch will not cause later errors",
    "toolkit-missing": "OSError: CUDA_HOME environment variable is not set. Please set it to your "
    "CUDA install root.",
    "architecture-unknown": "nvcc fatal   : Unsupported gpu architecture 'compute_120'",
    "python-headers-missing": "torch/csrc/python_headers.h:12:10: fatal error: Python.h: No such "
    "file or directory",
    "wrong-abi": "ImportError: flash_attn_2_cuda.so: undefined symbol: "
    "_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcE",
    "libstdcxx-too-old": "ImportError: /opt/conda/lib/libstdc++.so.6: version `GLIBCXX_3.4.32' "
    "not found (required by fused_adam.so)",
    "build-isolation": "  File \"<string>\", line 22\nModuleNotFoundError: No module named 'torch'",
    "linker-missing-library": "/usr/bin/ld: cannot find -lcudart: No such file or directory",
    "disk-full": "cc1plus: fatal error: error writing to /tmp/ccX.s: No space left on device",
    "out-of-memory": "c++: fatal error: Killed signal terminated program cc1plus\n"
    "compilation terminated.",
    "compile-error": "csrc/x.cpp:14:3: error: 'DeprecatedTypeProperties' was not declared",
}


@pytest.mark.parametrize("id_", LOGS)
def test_a_log_is_explained(tmp_path: Path, trainrig, id_: str) -> None:
    log = tmp_path / "build.log"
    log.write_text(f"running build_ext\n[1/4] c++ -MMD\n{LOGS[id_]}\nninja: build stopped\n")
    found = explain_file(log)
    assert found.id == id_ and found.line and found.fix and "{" not in found.cause + found.fix
    code, out, _ = trainrig("env", "--explain", str(log), "--json")
    assert code == 1 and json.loads(out)["id"] == id_


def test_the_versions_that_differ_are_named() -> None:
    found = explain(LOGS["cuda-torch-mismatch"])
    assert found is not None and "nvcc is of CUDA 12.4, torch is built for CUDA 13.0" in found.cause


def test_a_build_that_went_well_has_no_cause() -> None:
    assert explain("[1/2] c++ -MMD -c main.cpp\n[2/2] c++ main.o -shared -o x.so\n") is None


def test_an_unknown_log_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "build.log"
    log.write_bytes(b"\xff\xfe nothing here")
    with pytest.raises(DataError, match="no cause"):
        explain_file(log)
