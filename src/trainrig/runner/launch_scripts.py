"""Scripts that start an experiment's ranks in place of our supervisor: torchrun's, and Slurm's.

A folder for each experiment, on a disk that all nodes see:

    run.toml          it is a run: every verb that reads one reads it (`started_elsewhere`)
    records.jsonl     what is predicted, where a device of that kind is here, too
    experiment.json   what is trained; ranks read it, and write their events beside it
    node.sh           the ranks of one node: torchrun, with its environment
    job.sbatch        node.sh on each node of a Slurm job, which is requeued until it is done

Ranks save checkpoints there and go on from the newest one, whoever starts them again: torchrun
after a lost rank, the remaining agents after a lost node, Slurm after a lost job.  What torchrun is
told besides the usual: TORCH_DISABLE_SHARE_RDZV_TCP_STORE, without which a new attempt may read the
address of a dead rank in the rendezvous' store; a lost agent is missed after three seconds (15 are
torch's default), and where fewer nodes will do the others are waited for two seconds (30; one that
comes later joins by a restart); the time that ranks have to save after SIGTERM (30; torch 2.11 has
no such word and keeps it); TRAINRIG_PARENT, by which a rank knows its agent, and ends with it.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path

from trainrig.data.manifest import read_manifest
from trainrig.errors import UsageError
from trainrig.machine import inspect, to_dict
from trainrig.machine.snapshot import Snapshot
from trainrig.process.supervisor import STALL_TIMEOUT, Command
from trainrig.report.document import Column, Document, Table
from trainrig.runner.expectations import Grounds, forecast, grounds_of
from trainrig.runner.history import machine_key
from trainrig.runner.progress import Watcher
from trainrig.runner.targets import described, find_targets
from trainrig.runner.train_prepare import config_of, environment_of, placed, site_of, with_data
from trainrig.runner.train_records import slug_of
from trainrig.store import create_run, store_errors
from trainrig.train.config import Experiment, case_of
from trainrig.train.engines import ENGINES, Job
from trainrig.train.parity import REFERENCE

GRACE = 120
"""Seconds between SIGTERM and the end of a Slurm job: ranks save and leave."""


def write_scripts(
    experiments: Sequence[Experiment],
    out: Path,
    watch: Watcher,
    stall_timeout: float = STALL_TIMEOUT,
    *,
    runs: Path = Path("runs"),
) -> list[Path]:
    """Write a folder for each experiment, new ones in ``out``; predicted from what ``runs`` hold.

    Raises UsageError, StoreError.
    """
    snapshot = described(inspect())
    site = site_of(snapshot)
    grounds = grounds_of(runs, machine_key(to_dict(snapshot)), site.cores)
    ready = [placed(own, site) for own in experiments]
    ready = with_data([own.replace(threads=own.threads or 1) for own in ready], watch)
    folders: list[Path] = []
    for number, own in enumerate(ready, 1):
        folder = out.resolve() / f"{number:02d}-{slug_of(own.name)}"
        if folder.exists():
            raise UsageError(f"{folder} is there already", "another folder, or remove it")
        if own.auto_batch:
            raise UsageError("batch_size auto is looked for here, not by others", "name one")
        if own.bind and not own.device.startswith("cuda"):
            raise UsageError("torchrun binds ranks with GPUs alone", "leave bind out on a CPU")
        saved = str(folder / "checkpoints")
        heldout = own.framework == REFERENCE and own.heldout_batches > 0
        job = Job(probe=False, checkpoint=saved, resume=saved, heldout=heldout)
        job = dataclasses.replace(job, stall_timeout=stall_timeout)
        _as_run(own, folder, snapshot, grounds)
        with store_errors(folder):
            command = ENGINES[own.framework].command(own, folder, job)
            (folder / "node.sh").write_text(node_script(own, command))
            (folder / "job.sbatch").write_text(sbatch_script(own, folder))
        folders.append(folder)
    return folders


def _as_run(own: Experiment, folder: Path, snapshot: Snapshot, grounds: Grounds) -> None:
    """Make ``folder`` a run, with what is predicted before anything is trained."""
    fitting = [t for t in find_targets(snapshot) if t.is_gpu == own.device.startswith("cuda")]
    with create_run(folder.parent, "train", config_of([own])) as run:
        for target in fitting[:1]:
            case = case_of(own, read_manifest(Path(own.data)).corpus_sha256)
            where = environment_of(own, snapshot)
            for record in forecast(own, case, target, where, grounds):
                run.append(record)
    with store_errors(folder):
        run.path.rename(folder)


def node_script(experiment: Experiment, command: Command) -> str:
    """``node.sh``: what one node runs."""
    python, *program = command.argv
    env = "".join(f"export {name}={shlex.quote(text)}\n" for name, text in command.env.items())
    prepare = f"{shlex.join(command.prepare)}\n" if command.prepare else ""
    ranks = command.ranks
    numa = "    --numa-binding=node \\\n" if experiment.bind else ""
    return f"""#!/bin/sh
# The ranks of one node of {experiment.name!r}: {ranks} in all, by torchrun.
#   one node        sh node.sh
#   several         NNODES=2 NPROC_PER_NODE={max(1, ranks // 2)} RDZV=HOST:29500 sh node.sh
#   one may go      NNODES=1:2, with min_nproc in the experiment
set -eu
: "${{NNODES:=1}}" "${{NPROC_PER_NODE:={ranks}}}" "${{RDZV:=localhost:0}}"
: "${{MAX_RESTARTS:={experiment.max_restarts}}}" "${{RDZV_ID:={slug_of(experiment.name)}}}"
{env}export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 PYTHONSAFEPATH=1 TRAINRIG_PARENT=$$
export PET_SHUTDOWN_TIMEOUT={GRACE - 20}
{prepare}exec {shlex.quote(python)} -m torch.distributed.run \\
    --nnodes "$NNODES" --nproc-per-node "$NPROC_PER_NODE" --max-restarts "$MAX_RESTARTS" \\
    --rdzv-backend c10d --rdzv-endpoint "$RDZV" --rdzv-id "$RDZV_ID" \\
    --rdzv-conf keep_alive_interval=1,keep_alive_max_attempt=3,last_call_timeout=2 \\
{numa}    {shlex.join(program)}
"""


def sbatch_script(experiment: Experiment, folder: Path) -> str:
    """``job.sbatch``: ``sbatch --nodes 2 job.sbatch`` shares the ranks out over two nodes."""
    own, where = experiment, shlex.quote(str(folder))
    gpus = ""
    if own.device.startswith("cuda"):
        gpus = f"#SBATCH --gpus-per-node={own.processes}\n"
    least, elastic = own.min_nproc or own.processes, ""
    if own.min_nproc:
        elastic = "#SBATCH --no-kill\n"
    return f"""#!/bin/bash
# {own.name!r} by torchrun on one node; sbatch --nodes N job.sbatch shares the ranks out over N.
# TERM comes {GRACE} s before the time is over: ranks save a checkpoint and leave, and the job goes
# on in another allocation, as it does after a lost step.
#SBATCH --job-name={slug_of(own.name)}
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
{gpus}{elastic}#SBATCH --signal=TERM@{GRACE}
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output="{folder}/slurm-%j.log"
set -u
per_node=$(({own.processes} / SLURM_NNODES))
if [ $((per_node * SLURM_NNODES)) -ne {own.processes} ]; then
    echo "{own.processes} ranks cannot be shared out over $SLURM_NNODES nodes" >&2
    exit 2
fi
export NPROC_PER_NODE=$per_node NNODES=$((({least} + per_node - 1) / per_node)):$SLURM_NNODES
export RDZV_ID=$SLURM_JOB_ID-${{SLURM_RESTART_COUNT:-0}}
first=$(srun --nodes=1 --ntasks=1 hostname)
export RDZV=$first:$((20000 + SLURM_JOB_ID % 10000))
saved=$(ls {where}/checkpoints 2>/dev/null)
srun --kill-on-bad-exit={0 if own.min_nproc else 1} sh {where}/node.sh && exit 0
code=$?
# A lost step or the end of the time: the same job goes on from its newest checkpoint, also beyond
# max_restarts while each allocation brings it further.
if [ {own.max_restarts} -gt 0 ]; then
    if [ "$(ls {where}/checkpoints 2>/dev/null)" != "$saved" ] ||
        [ "${{SLURM_RESTART_COUNT:-0}}" -lt {own.max_restarts} ]; then
        scontrol requeue "$SLURM_JOB_ID"
    fi
fi
exit $code
"""


def scripts_document(folders: Sequence[Path]) -> Document:
    """Which command starts each."""
    table = Table(
        columns=(Column("by torchrun", "words"), Column("by Slurm", "words")),
        rows=tuple((f"sh {folder}/node.sh", f"sbatch {folder}/job.sbatch") for folder in folders),
        title="Scripts",
        notes=("several nodes: the first lines of node.sh, and sbatch --nodes N",),
    )
    return Document(title="", blocks=(table,))
