"""Make the demo's bundle, src/trainrig/report/demo.bundle, from published figures.

    python tools/make_demo.py

Two RTX 4090s stand side by side as #0 and #1, whose owners measured and printed the
same notebook's figures; what passes between #0 and its sibling is the first owner's as
well.  The training steps are a third party's, on one card and on two.  Nothing is
invented: every record is of kind "baseline" and names its source, and where a card has no
published figure there is none.  The same tables give the same files.

Left out: mli's summary of a third RTX 4090, and the figures that the table marks as not
checked.
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
from trainrig.machine.snapshot import (
    Cpu,
    Gpu,
    HostInfo,
    MemoryInfo,
    Missing,
    PcieLink,
    Snapshot,
    Software,
    Topology,
    to_dict,
)
from trainrig.predict.expected import gpu_claims
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
from trainrig.units import format_quantity

NAME = "two-rtx-4090s-as-published"
DEVICE = "RTX 4090"
# Whose figures stand for which card: the beginning of the source.
CARDS = {"the owner of": 0, "qhduan": 1}

# lambdal/deeplearning-benchmark, pytorch/pytorch-train-throughput-fp16.csv: BERT-large on
# SQuAD, sequence 384, 28 samples a card; samples/s of the whole machine by number of cards.
STEP_SOURCE = "lambdal/deeplearning-benchmark pytorch/pytorch-train-throughput-fp16.csv"
STEPS = {1: 93.0, 2: 139.0}
LAYERS, HIDDEN, SEQ, BATCH = 24, 1024, 384, 28
# Forward 24sh² + 4s²h a layer and sample, backward twice that; the head of two outputs is nothing.
STEP_FLOPS = 3 * LAYERS * (24 * SEQ * HIDDEN**2 + 4 * SEQ**2 * HIDDEN)
STEP_FORMULA = "samples/s / cards × 3·L·(24·s·h² + 4·s²·h), L = 24, s = 384, h = 1024"


def main() -> None:
    """Write the bundle."""
    records = [*claims(), *figures(), *steps()]
    config = {
        "schema": SCHEMA_VERSION,
        "name": NAME,
        "verb": "demo",
        "origin": "published figures, not measured by trainrig",
        "sources": {
            f"{DEVICE} #0": "its owner's prints of mli/transformers-benchmarks' notebook",
            f"{DEVICE} #1": "qhduan/transformers-benchmarks, micro_bench_4090.ipynb",
            "Training steps": STEP_SOURCE,
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
    """What NVIDIA claims; one copy serves both cards."""
    chip = find_chip(DEVICE)
    assert chip is not None
    for number, record in enumerate(gpu_claims(chip, None)):
        yield record.replace(id=f"claim-{number}", run=NAME)


def figures() -> Iterator[Record]:
    """Both cards' published figures."""
    for record in published_records():
        card = next(
            (n for start, n in CARDS.items() if (record.source or "").startswith(start)), None
        )
        if record.device == DEVICE and card is not None:
            sender = record.case.get("from")  # of a pair, the one that sends
            yield record.replace(run=NAME, device_index=card if sender is None else int(sender))


def steps() -> Iterator[Record]:
    """The published throughputs, and the rates a card that follow from them."""
    for cards, throughput in STEPS.items():
        case = {"model": "BERT-large", "precision": "fp16", "seq_len": SEQ, "batch_size": BATCH}
        printed = Record(
            id=f"lambda-throughput-{cards}",
            run=NAME,
            kind=Kind.BASELINE,
            benchmark="step",
            case=case,
            metric="throughput",
            unit="samples/s",
            value=throughput,
            device=DEVICE,
            device_index=0,
            device_count=cards,
            source=STEP_SOURCE,
        )
        yield printed
        yield printed.replace(
            id=f"lambda-rate-{cards}",
            metric="flop_rate",
            unit="FLOP/s",
            value=throughput / cards * STEP_FLOPS,
            derived=Derivation(ids=(printed.id,), formula=STEP_FORMULA),
        )
        yield printed.replace(
            id=f"lambda-time-{cards}",
            metric="time",
            unit="s",
            value=BATCH * cards / throughput,
            derived=Derivation(ids=(printed.id,), formula="samples a step / samples/s"),
        )


def verdict(records: list[Record]) -> Verdict:
    """Nothing was run here, so nothing can pass; what the figures show is said all the same."""
    return Verdict(
        outcome=Outcome.INCOMPLETE,
        reason="Nothing was measured: others published these figures, each of their own cards.",
        findings=tuple(findings({r.id: r for r in records})),
    )


def findings(records: dict[str, Record]) -> Iterator[Finding]:
    """What a reader of the figures should notice, with the numbers out of the records."""
    case = {
        "layer": "BERT-large layer",
        "pass": "forward+backward",
        "batch_size": 2,
        "seq_len": 128,
    }
    slow, fast = sorted(
        (r for r in records.values() if r.benchmark == "layer" and case.items() <= r.case.items()),
        key=lambda r: r.device_index or 0,
    )
    assert slow.value is not None and fast.value is not None
    yield Finding(
        id="odd-device",
        severity="warning",
        evidence=f"{DEVICE} #0 is behind #1 in small layers, level in large matmuls: BERT-large "
        f"layer, batch 2, 128 tokens, at {format_quantity(slow.value, slow.unit)} against "
        f"{format_quantity(fast.value, fast.unit)}. The cards are alike, their hosts are not.",
        fix="compare the processors' single-core speed, and the versions of torch and CUDA",
        records=(slow.id, fast.id),
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
        gpus=tuple(gpu(index) for index in CARDS.values()),
        topology=Topology(links=UNSAID),
        software=Software(
            **all_missing(Software) | {"python": "not stated", "packages": {}, "environment": {}}
        ),
    )


UNSAID = Missing("published figures: not stated")


def gpu(index: int) -> Gpu:
    fields = all_missing(Gpu) | {"index": index, "vendor": "nvidia", "name": DEVICE}
    return Gpu(**fields | {"link": PcieLink(**all_missing(PcieLink))})


def all_missing(noun: type) -> dict[str, object]:
    return {field.name: UNSAID for field in dataclasses.fields(noun)}


if __name__ == "__main__":
    main()
