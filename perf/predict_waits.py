"""What who predicts waits for: one layout, a search with its simulations, tables of distinct rows.

    python perf/predict_waits.py

Each is a fresh process, by the clock and in processor time.  Rows are published ones, varied until
no two say the same.  Peer: reading the same table with csv and writing a line of JSON a row, the
least that any answer costs.  Targets: one layout cold under 0.6 s; a search of 730,680 layouts
(DeepSeek-V3 on 2,048 H800) at a million a second, cold, and its 1,024 simulations under 3 s;
100,000 rows by the closed form and 10,000 simulated, each under 60 s.
"""

from __future__ import annotations

import csv
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from _shared import Cost, cost_of, middle, options, say_load, verdict

from trainrig.catalog.published import training

RUN = [sys.executable, "-m", "trainrig"]
ONE = [*RUN, "predict", "--model", "gpt2-medium", "--on", "RTX 4090"]
LARGE = ["deepseek-v3", "--on", "H800", "--gpus", "2048", "--global-batch", "15360"]
SMALL = ["gpt2-medium", "--on", "RTX 4090", "--gpus", "4", "--global-batch", "64"]
VARIED = {
    "seq_len": [512, 1024, 2048, 4096, 8192],
    "grad_accum": [n << k for n in (1, 3, 5) for k in range(7)],
    "batch_size": [1, 2, 3, 4, 6, 8, 16],
    "gpus": [8, 16, 24, 32, 48, 64, 128, 256, 512, 1024],
    "tp": [1, 2, 4, 8],
    "pp": [1, 2, 4, 8],
    "recompute": ["", "none", "selective", "full"],
    "fabric_gbps": ["", 100, 200, 400, 800, 1600, 3200],
    "precision": ["", "bf16"],
}
OPTIONS = (
    *("on", "gpus", "tp", "pp", "cp", "ep", "zero", "batch_size", "grad_accum", "seq_len"),
    *("precision", "recompute", "offload", "lora_rank", "quantize", "interleave", "schedule"),
)
SIZES = ("num_layers", "hidden", "num_heads", "num_kv_heads", "ffn", "vocab")
COLUMNS = ("model", *OPTIONS, "fabric_gbps")
_READ = """
import csv, json, sys
for row in csv.DictReader(open(sys.argv[1])): print(json.dumps(row))
"""


def distinct_rows() -> Iterator[dict[str, str]]:
    """Published rows with up to four cells changed, without end; no two say the same."""
    published, chance, seen = list(training.steps()), random.Random(0), set()
    while True:
        step = chance.choice(published)
        numbers = ",".join(f"{name}={step[name]}" for name in SIZES)
        row = {name: step[name] for name in OPTIONS}
        row |= {"model": f"{step['family']}:{numbers},max_positions=8192"}
        for name in chance.sample(list(VARIED), chance.randint(1, 4)):
            row[name] = str(chance.choice(VARIED[name]))
        key = tuple(row.get(name) or "" for name in COLUMNS)
        if key not in seen:
            seen.add(key)
            yield row


def write_rows(path: Path, num: int) -> list[str]:
    """A table of ``num`` distinct rows; the command that reads it and does nothing else."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(islice(distinct_rows(), num))
    return [sys.executable, "-c", _READ, str(path)]


def told(what: str, found: Cost, target_s: float, *, can_tell: bool) -> None:
    """One line: by the clock, in processor time, and whether the target was met."""
    judged = verdict(found.wall_s < target_s, can_tell=can_tell)
    print(
        f"{what:28s} {found.wall_s:7.2f} s, {found.cpu_s:7.2f} s of processor time; "
        f"target under {target_s:g} s: {judged}"
    )


def search(*, quick: bool) -> None:
    """One plan, with what it says of its own seconds."""
    asked = [*RUN, "plan", "--json", "--model", *(SMALL if quick else LARGE)]
    done = subprocess.run(asked, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    num, seconds = found["layouts_considered"], found["search_seconds"]
    rate = num / seconds
    print(
        f"{num} layouts searched in {seconds:.2f} s, {rate / 1e6:.2f} million a second; "
        f"target 1 million: {verdict(rate >= 1e6, can_tell=not quick)}"
    )
    seconds = found["simulation_seconds"]
    judged = verdict(seconds < 3.0, can_tell=not quick)
    print(f"the fastest simulated in {seconds:.2f} s; target under 3 s: {judged}")


def main() -> None:
    """All of them, one after the other."""
    quick = options(str(__doc__)).parse_args().quick
    say_load()
    can_tell = not quick
    cold = [cost_of(ONE) for _ in range(1 if quick else 7)]
    print(f"one layout, cold: {middle([one.wall_s for one in cold])}")
    wall_s = statistics.median(one.wall_s for one in cold)
    cpu_s = statistics.median(one.cpu_s for one in cold)
    told("one layout, cold", Cost(wall_s=wall_s, cpu_s=cpu_s), 0.6, can_tell=can_tell)
    search(quick=quick)
    with tempfile.TemporaryDirectory() as folder:
        many, fewer = Path(folder) / "many.csv", Path(folder) / "fewer.csv"
        num = 200 if quick else 100_000
        reading = cost_of(write_rows(many, num))
        closed = cost_of([*RUN, "predict", "--cases", str(many), "--json"])
        told(f"{num} rows", closed, 60.0, can_tell=can_tell)
        write_rows(fewer, num // 10)
        simulated = [*RUN, "predict", "--cases", str(fewer), "--json", "--simulate"]
        told(f"{num // 10} rows, simulated", cost_of(simulated), 60.0, can_tell=can_tell)
    print(f"ratio {closed.cpu_s / reading.cpu_s:.1f} of reading and writing the rows alone")


if __name__ == "__main__":
    main()
