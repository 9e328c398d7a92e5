"""What DeepSpeed builds when it starts: libaio that a compiler finds or not, locks left behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from trainrig.errors import UnavailableError
from trainrig.train.config import Experiment
from trainrig.train.deepspeed_builds import lacking_for_builds


def deepspeed(**changes: object) -> Experiment:
    keys = {"framework": "deepspeed", "device": "cpu", "nproc": 2, "zero": 2, "precision": "bf16"}
    return Experiment.of(**{**keys, **changes})


@pytest.fixture(autouse=True)
def extensions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where torch keeps what it has built: nothing yet."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "extensions"))
    return tmp_path / "extensions"


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_libaio_is_what_the_compiler_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in of its header and library, then the library gone from beside it."""
    own = deepspeed(offload="disk")
    header, library = tmp_path / "libaio.h", tmp_path / "libaio.so"
    header.write_text("struct iocb;\n")
    make = ["g++", "-x", "c++", "/dev/null", "-shared", "-o", str(library)]
    subprocess.run(make, check=True)
    for name in ("CPATH", "LIBRARY_PATH"):
        monkeypatch.setenv(name, str(tmp_path))
    assert lacking_for_builds(own) is None
    header.write_text("#error not this one\n")  # whatever the machine has, this one comes first
    said = lacking_for_builds(own)
    assert isinstance(said, UnavailableError) and said.message.startswith("missing: offload disk")
    assert said.hint is not None and "libaio-dev" in said.hint and "offload host" in said.hint
    assert lacking_for_builds(deepspeed(offload="host")) is None  # which does not ask


def test_a_lock_that_nobody_holds_is_named_with_its_age(extensions: Path) -> None:
    """torch's builds wait for it for ever; one that is being built is waited for."""
    own = deepspeed()
    lock = extensions / "deepspeed_shm_comm" / "lock"
    lock.parent.mkdir(parents=True)
    assert lacking_for_builds(own) is None
    building = os.open(lock, os.O_CREAT | os.O_EXCL)  # as torch.utils.file_baton does
    assert lacking_for_builds(own) is None
    os.close(building)
    os.utime(lock, (time.time() - 7200.0,) * 2)
    said = lacking_for_builds(own)
    assert said is not None and str(lock) in said.message and "2 h ago" in said.message
    assert said.hint is not None and f"rm {lock}" in said.hint
    assert lacking_for_builds(deepspeed(device="cuda")) is None  # it builds nothing there
    lock.unlink()
    assert lacking_for_builds(own) is None


def test_only_what_will_be_loaded_is_waited_for(extensions: Path) -> None:
    lock = extensions / "cpu_adam" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    assert lacking_for_builds(deepspeed(optimizer="adamw")) is None
    offloaded = {"optimizer": "adamw-fused", "offload": "host"}
    assert lacking_for_builds(deepspeed(**offloaded)) is not None
    assert lacking_for_builds(deepspeed(**offloaded, device="cuda")) is not None
