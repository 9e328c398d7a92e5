"""Make the demo's bundle, src/trainrig/report/demo.bundle, from published figures.

    python tools/make_demo.py

One machine of one owner: two RTX 3090 Ti with an NVLink bridge, of which mli printed matmul,
vectors, layers, the link and whole trainings, on one card and on two, with the bridge and without,
in two notebooks of one repository.  Nothing is invented: every record is of kind "baseline" and
names its source, and where there is no figure there is none.  The same tables give the same files.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import tomli_w

from trainrig.catalog import find_chip
from trainrig.catalog.published import published_records
from trainrig.catalog.published.tables import read_rows
from trainrig.catalog.published.training import PATH as TRAINING
from trainrig.machine.snapshot import (
    Cpu,
    Gpu,
    HostInfo,
    MemoryInfo,
    Missing,
    Snapshot,
    Software,
    Topology,
    to_dict,
)
from trainrig.prediction.expected import gpu_claims
from trainrig.record import (
    SCHEMA_VERSION,
    Derivation,
    Finding,
    Kind,
    Outcome,
    Record,
    Verdict,
    to_json,
    verdict_to_json,
)
from trainrig.report import DEMO as BUNDLE
from trainrig.store import pack
from trainrig.units import format_count
from trainrig.workload import find, model_flops

NAME = "two-rtx-3090-ti-as-published"
DEVICE = "RTX 3090 Ti"
OWNER = "mli/transformers-benchmarks"
NOTEBOOKS = (f"{OWNER} micro_bench.ipynb @3370b2b", f"{OWNER} transformers.ipynb")
MODEL = "GPT-2 medium"
"""What was trained on one card and on two."""
SOFTWARE = "Megatron-LM, torch 1.13"


def main() -> None:
    """Write the bundle."""
    records = [*claims(), *figures(), *steps()]
    config = {
        "schema": SCHEMA_VERSION,
        "name": NAME,
        "verb": "demo",
        "origin": "published figures, not measured by trainrig",
        "sources": {
            "Matmul, vectors, layers": NOTEBOOKS[0],
            "Link, trainings": NOTEBOOKS[1],
            "Software of trainings": SOFTWARE,
        },
    }
    with tempfile.TemporaryDirectory() as parent:
        run = Path(parent) / NAME
        run.mkdir()
        (run / "run.toml").write_text(tomli_w.dumps(config))
        (run / "machine.json").write_text(json.dumps(to_dict(machine()), indent=1))
        (run / "records.jsonl").write_text("".join(to_json(r) + "\n" for r in records))
        (run / "verdict.json").write_text(verdict_to_json(verdict(records)))
        BUNDLE.unlink(missing_ok=True)
        digest = pack(run, BUNDLE)
    print(f"{BUNDLE}: {len(records)} records, {BUNDLE.stat().st_size} bytes, {digest[:12]}")


def claims() -> Iterator[Record]:
    """Return what NVIDIA claims; one copy serves both cards."""
    chip = find_chip(DEVICE)
    assert chip is not None
    for number, record in enumerate(gpu_claims(chip, None)):
        yield record.replace(id=f"claim-{number}", run=NAME)


def figures() -> Iterator[Record]:
    """The notebooks' figures; both cards are alike, and the first one's are printed."""
    for record in published_records():
        if record.device == DEVICE and (record.source or "").startswith(NOTEBOOKS):
            yield record.replace(run=NAME, device_index=0)


def steps() -> Iterator[Record]:
    """The trainings: tokens/s as printed, and what follows from them for a card."""
    for name, row in read_rows(TRAINING):
        is_ours = row["source"].startswith(NOTEBOOKS[1]) and row["model"] == MODEL
        if not is_ours or row["framework"] != SOFTWARE or row["tp"] != "1":
            continue
        cards, accum = int(row["num_gpus"]), int(row["grad_accum"])
        case = {
            "model": "gpt2-medium",
            "precision": row["precision"],
            "batch_size": int(row["micro_batch"]),
            "seq_len": int(row["seq"]),
            "grad_accum": accum,
            "optimizer": "adamw-fused",
            "framework": "megatron",
            "nproc": cards,
            "p2p": "PCIe" not in row["interconnect"],
        }
        batch = case["batch_size"], case["seq_len"]
        tokens = float(row["tokens_per_s_per_gpu"])
        printed = Record(
            id=f"{name}-tokens",
            run=NAME,
            kind=Kind.BASELINE,
            benchmark="training",
            case=case,
            metric="token_rate",
            unit="token/s",
            value=tokens * cards,
            device=DEVICE,
            device_index=0,
            device_count=cards,
            conditions={"software": SOFTWARE},
            source=row["source"],
        )
        yield printed
        of_token = model_flops(find("gpt2-medium"), *batch) / (batch[0] * batch[1])
        yield printed.replace(
            id=f"{name}-flops",
            metric="flop_rate",
            unit="FLOP/s",
            value=tokens * of_token,
            derived=Derivation(ids=(printed.id,), formula=STEP_FORMULA),
        )
        yield printed.replace(
            id=f"{name}-time", metric="time", unit="s", value=float(row["step_time_s"])
        )


STEP_FORMULA = "tokens/s / cards × model FLOPs of a token (docs/definitions.md, training)"


def verdict(records: list[Record]) -> Verdict:
    """Nobody set targets for this machine, so it is measured, not passed."""
    rates = {r.case["nproc"]: r.value or 0.0 for r in trained(records, accum=1, bridge=True)}
    return Verdict(
        outcome=Outcome.MEASURED,
        reason=f"Two cards train {rates[2] / rates[1]:.2f} times as fast as one; "
        "no target to judge by",
        findings=tuple(findings(records)),
    )


def trained(records: list[Record], *, accum: int, bridge: bool) -> list[Record]:
    """Printed tokens/s, with the NVLink bridge or over PCIe alone."""
    return [
        r
        for r in records
        if r.benchmark == "training"
        and r.metric == "token_rate"
        and (r.device_count == 1 or r.case["p2p"] is bridge)
        and r.case["grad_accum"] == accum
    ]


def findings(records: list[Record]) -> Iterator[Finding]:
    """Return what a reader of the figures should notice, with the numbers out of the records."""
    bridged, without, rare = (
        next(r for r in trained(records, accum=accum, bridge=bridge) if r.device_count == 2)
        for accum, bridge in ((1, True), (1, False), (4, False))
    )
    assert bridged.value is not None
    assert without.value is not None
    assert rare.value is not None
    yield Finding(
        id="nvlink-worth",
        severity="info",
        evidence=f"Without the NVLink bridge two cards train {MODEL} at "
        f"{format_count(without.value)} tokens/s instead of {format_count(bridged.value)}; four "
        f"micro-batches between exchanges make it {format_count(rare.value)}.",
        fix="keep the bridge; without one, accumulate gradients",
        records=(bridged.id, without.id, rare.id),
    )


def machine() -> Snapshot:
    """Two cards, and nothing else that the sources say."""
    return Snapshot(
        taken="2023-01-01T00:00:00Z",
        host=HostInfo(**all_missing(HostInfo)),
        cpu=Cpu(**all_missing(Cpu)),
        memory=MemoryInfo(**all_missing(MemoryInfo)),
        disks=UNSAID,
        pci_gpus=UNSAID,
        gpus=tuple(gpu(index) for index in (0, 1)),
        topology=Topology(links=UNSAID),
        software=Software(
            **all_missing(Software) | {"python": "not stated", "packages": {}, "environment": {}}
        ),
    )


UNSAID = Missing("published figures: not stated")


def gpu(index: int) -> Gpu:
    return Gpu.unknown(UNSAID, index=index, vendor="nvidia", name=DEVICE)


def all_missing(noun: type) -> dict[str, object]:
    return {field.name: UNSAID for field in dataclasses.fields(noun)}


if __name__ == "__main__":
    main()
