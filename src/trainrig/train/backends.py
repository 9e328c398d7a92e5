"""Whose engine trains: three functions each, and always a process of its own.

    missing(site)              why it cannot run here, in one line, or None
    command(experiment, run)   how it is started, with what it needs written to the folder ``run``
    collect(run)               what came of it, read from the events that its ranks told

    native        ours: `rank`
    huggingface   transformers.Trainer, by a driver that knows nothing of this package but its data
    dataparallel  ours in one process on several GPUs, by torch.nn.DataParallel

Imports no torch: which of them can run is a question of what is installed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from trainrig.errors import UnavailableError
from trainrig.train.experiment import Experiment, to_dict
from trainrig.train.launch import Command
from trainrig.train.parity import Probe
from trainrig.train.telling import read_events


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What an experiment finds on this machine."""

    gpus: int
    """Those that CUDA_VISIBLE_DEVICES leaves."""
    cores: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a training told."""

    rows: tuple[Mapping[str, Any], ...] = ()
    """A step each, of rank 0."""
    facts: Mapping[str, Any] | None = None
    """Of the layout, of rank 0."""
    memory: float | None = None
    """The peak of the rank that held most, in bytes."""
    reserved: float | None = None
    probe: Probe | None = None


class Backend(Protocol):
    """An engine that can be started."""

    def missing(self, site: Site) -> str | None:
        """Why it cannot run here, or None."""

    def command(self, experiment: Experiment, run: Path, *, probe: bool = True) -> Command:
        """How to start it; what it reads is in ``run`` then."""

    def collect(self, run: Path) -> Result:
        """What its ranks told."""


@dataclass(frozen=True, slots=True)
class _Python:
    """A program in Python that reads experiment.json and tells events."""

    program: tuple[str, ...]
    needs: tuple[str, ...]
    """Packages."""
    prepare: tuple[str, ...] = ()
    gpus_only: bool = False
    one_process: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)

    def missing(self, site: Site) -> str | None:
        """Why it cannot run here, or None."""
        absent = [name for name in self.needs if find_spec(name) is None]
        if absent:
            return f"{absent[0]} is not installed"
        if self.gpus_only and not site.gpus:
            return "it runs on GPUs, and there is none"
        return None

    def command(self, experiment: Experiment, run: Path, *, probe: bool = True) -> Command:
        """One process a rank; on the CPU each has one thread."""
        run.mkdir(parents=True, exist_ok=True)
        request = {"experiment": to_dict(experiment), "probe": probe}
        (run / "experiment.json").write_text(json.dumps(request))
        env = dict(self.settings)
        if not experiment.device.startswith("cuda"):
            env["OMP_NUM_THREADS"] = "1"
        if not experiment.p2p:
            env["NCCL_P2P_DISABLE"] = "1"
        return Command(
            argv=(sys.executable, *self.program, str(run)),
            ranks=1 if self.one_process else experiment.nproc,
            env=env,
            prepare=(sys.executable, *self.prepare, str(run)) if self.prepare else (),
        )

    def collect(self, run: Path) -> Result:
        """Rows and facts of rank 0, memory of the rank that held most."""
        first = [event for _, event in read_events(run, 0)]
        memory = [
            event
            for rank in range(len(list(run.glob("events-*.jsonl"))))
            for _, event in read_events(run, rank)
            if event["event"] == "memory"
        ]
        probes = [event for event in first if event["event"] == "parity"]
        facts = [event for event in first if event["event"] == "layout"]
        return Result(
            rows=tuple(event for event in first if event["event"] == "row"),
            facts=facts[-1] if facts else None,
            memory=max((event["peak"] for event in memory), default=None),
            reserved=max((e["reserved"] for e in memory if e.get("reserved")), default=None),
            probe=Probe(
                losses=tuple(probes[-1]["losses"]), grad_norms=tuple(probes[-1]["grad_norms"])
            )
            if probes
            else None,
        )


_DRIVER = str(Path(__file__).resolve().parent / "drivers" / "huggingface.py")

ALL: Mapping[str, Backend] = {
    "native": _Python(("-m", "trainrig.train.rank"), ("torch",)),
    "huggingface": _Python(
        (_DRIVER,),
        ("torch", "transformers", "accelerate"),
        prepare=("-m", "trainrig.train.weights"),
        settings={"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
    ),
    "dataparallel": _Python(
        ("-m", "trainrig.train.rank"), ("torch",), gpus_only=True, one_process=True
    ),
}


def check_site(experiment: Experiment, site: Site) -> None:
    """Refuse what this machine cannot run.  Raises UnavailableError, in one line."""
    lacking = ALL[experiment.backend].missing(site)
    if lacking is not None:
        raise UnavailableError(f"{experiment.backend}: {lacking}", "another --backend")
    on_gpu = experiment.device.startswith("cuda")
    have, what = (site.gpus, "GPU") if on_gpu else (site.cores, "core")
    if experiment.nproc > have:
        raise UnavailableError(
            f"{experiment.nproc} ranks, and {have} {what}{'' if have == 1 else 's'}: "
            "each rank needs one of its own",
            f"--nproc {max(1, have)}" + ("; CUDA_VISIBLE_DEVICES is honoured" if on_gpu else ""),
        )
    if not experiment.p2p and not on_gpu:
        raise UnavailableError("p2p off is a matter of GPUs", "leave p2p out on a CPU")
    if experiment.optimizer == "adamw-8bit" and find_spec("torchao") is None:
        raise UnavailableError("adamw-8bit needs torchao", "pip install torchao")
