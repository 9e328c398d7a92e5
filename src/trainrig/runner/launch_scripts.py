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

from trainrig.analysis.machine_key import machine_key
from trainrig.data.manifest import read_manifest
from trainrig.errors import UsageError
from trainrig.machine import inspect, to_dict
from trainrig.machine.snapshot import Snapshot
from trainrig.process.supervisor import STALL_TIMEOUT, Command
from trainrig.report.document import Column, Document, Table
from trainrig.runner.expectations import Grounds, forecast, grounds_of
from trainrig.runner.progress import Progress, Watcher
from trainrig.runner.targets import described, find_targets
from trainrig.runner.train_prepare import (
    config_of,
    environment_of,
    placed,
    precision_lines,
    site_of,
    with_data,
)
from trainrig.runner.train_records import slug_of
from trainrig.store import create_run, store_errors
from trainrig.train.config import Experiment, case_of
from trainrig.train.engines import ENGINES, Job
from trainrig.train.parity import REFERENCE

GRACE = 120
"""Seconds between SIGTERM and the end of a Slurm job: ranks save and leave."""
MOST_DYNAMIC_NODES = 16
"""Above it the rendezvous is static: agents of a dynamic one all keep alive at one store."""


def write_scripts(
    experiments: Sequence[Experiment],
    out: Path,
    watch: Watcher,
    stall_timeout: float = STALL_TIMEOUT,
    *,
    nodes: int = 1,
    runs: Path = Path("runs"),
) -> list[Path]:
    """Write a folder for each experiment, new ones in ``out``; predicted from what ``runs`` hold.

    Args:
        experiments: What is trained.
        out: The folder of the folders, on a disk that all nodes see.
        watch: Is told what is prepared.
        stall_timeout: Seconds without a move of any rank after which each ends by itself.
        nodes: Machines that share the ranks out, each as many.
        runs: Earlier runs, whose measurements predictions rest on.

    Raises:
        UsageError: Ranks that cannot be shared out, or what others cannot start.
        StoreError: A file cannot be written.
    """
    snapshot = described(inspect())
    site = site_of(snapshot)
    grounds = grounds_of(runs, machine_key(to_dict(snapshot)), site.cores)
    # Which GPUs this machine would take says nothing about those that will run it.
    ready = [
        placed(experiment, site).replace(devices=experiment.placement.devices)
        for experiment in experiments
    ]
    for line in precision_lines(ready, site):
        watch(Progress(text=line, level="stage"))
    ready = with_data(
        [experiment.replace(threads=experiment.placement.threads or 1) for experiment in ready],
        watch,
    )
    folders: list[Path] = []
    for number, experiment in enumerate(ready, 1):
        folder = out.resolve() / f"{number:02d}-{slug_of(experiment.name)}"
        if folder.exists():
            raise UsageError(f"{folder} is there already", "another folder, or remove it")
        if experiment.auto_batch:
            raise UsageError("batch_size auto is looked for here, not by others", "name one")
        if experiment.placement.bind and not experiment.device.startswith("cuda"):
            raise UsageError("torchrun binds ranks with GPUs alone", "leave bind out on a CPU")
        _check_nodes(experiment, nodes)
        saved = str(folder / "checkpoints")
        heldout = experiment.framework == REFERENCE and experiment.heldout.batches > 0
        job = Job(probe=False, checkpoint=saved, resume=saved, heldout=heldout)
        job = dataclasses.replace(job, stall_timeout=stall_timeout, elsewhere=True)
        _as_run(experiment, folder, snapshot, grounds)
        with store_errors(folder):
            command = ENGINES[experiment.framework].command(experiment, folder, job)
            (folder / "node.sh").write_text(node_script(experiment, command, nodes))
            (folder / "job.sbatch").write_text(sbatch_script(experiment, folder, nodes))
        folders.append(folder)
    return folders


def _check_nodes(experiment: Experiment, nodes: int) -> None:
    """Raise UsageError where an experiment's ranks cannot be shared out over the nodes."""
    if experiment.processes % nodes:
        raise UsageError(
            f"--nodes {nodes}: {experiment.processes} ranks cannot be shared out evenly over them",
            f"a divisor of {experiment.processes}, or another layout",
        )
    if nodes > 1 and (devices := experiment.placement.devices):
        raise UsageError(
            f"devices = {devices}: numbers of GPUs on one machine, and there are {nodes}",
            "leave devices out: each rank takes the GPU of its local rank",
        )


def _as_run(experiment: Experiment, folder: Path, snapshot: Snapshot, grounds: Grounds) -> None:
    """Make ``folder`` a run, with what is predicted before anything is trained."""
    fitting = [
        t for t in find_targets(snapshot) if t.is_gpu == experiment.device.startswith("cuda")
    ]
    with create_run(folder.parent, "train", config_of([experiment])) as run:
        for target in fitting[:1]:
            case = case_of(experiment, read_manifest(Path(experiment.data)).corpus_sha256)
            environment = environment_of(experiment, snapshot)
            for record in forecast(experiment, case, target, environment, grounds):
                run.append(record)
    with store_errors(folder):
        run.path.rename(folder)


def node_script(experiment: Experiment, command: Command, nodes: int = 1) -> str:
    """Return ``node.sh``: what one of ``nodes`` nodes runs."""
    python, *program = command.argv
    env = "".join(f"export {name}={shlex.quote(text)}\n" for name, text in command.env.items())
    prepare = f"{shlex.join(command.prepare)}\n" if command.prepare else ""
    ranks, per_node = command.ranks, command.ranks // nodes
    threads = ""
    if experiment.device.startswith("cuda") and "omp" not in experiment.unfused_parts:
        threads = _THREADS
    numa = "    --numa-binding=node \\\n" if experiment.placement.bind else ""
    return f"""#!/bin/sh
# The ranks of one node of {experiment.name!r}: {ranks} in all, by torchrun.
#   one node        NNODES=1 NPROC_PER_NODE={ranks} sh node.sh
#   several         NNODES=2 NPROC_PER_NODE={max(1, ranks // 2)} RDZV=HOST:29500 sh node.sh
#   one may go      NNODES=1:2, with min_nproc in the experiment
#   more than {MOST_DYNAMIC_NODES}    RDZV_BACKEND=static NODE_RANK=0, 1, 2 ..., each node its own
set -eu
: "${{NNODES:={nodes}}}" "${{NPROC_PER_NODE:={per_node}}}" "${{RDZV:=localhost:0}}"
: "${{MAX_RESTARTS:={experiment.recovery.max_restarts}}}" "${{RDZV_ID:={slug_of(experiment.name)}}}"
: "${{RDZV_BACKEND:=c10d}}"
{env}{threads}export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 PYTHONSAFEPATH=1 TRAINRIG_PARENT=$$
export PET_SHUTDOWN_TIMEOUT={GRACE - 20}
{prepare}if [ "$RDZV_BACKEND" = static ]; then
    # A lost rank ends the job: agents of a static rendezvous do not meet a second time.
    set -- --node-rank "${{NODE_RANK:-${{SLURM_NODEID:?which node is it: NODE_RANK=0, 1, 2}}}}"
    MAX_RESTARTS=0
else
    set -- --rdzv-conf keep_alive_interval=1,keep_alive_max_attempt=3,last_call_timeout=2
fi
exec {shlex.quote(python)} -m torch.distributed.run \\
    --nnodes "$NNODES" --nproc-per-node "$NPROC_PER_NODE" --max-restarts "$MAX_RESTARTS" \\
    --rdzv-backend "$RDZV_BACKEND" --rdzv-endpoint "$RDZV" --rdzv-id "$RDZV_ID" "$@" \\
{numa}    {shlex.join(program)}
"""


_THREADS = """\
: "${OMP_NUM_THREADS:=$((($(nproc) + NPROC_PER_NODE - 1) / NPROC_PER_NODE))}"
export OMP_NUM_THREADS
"""
"""A share of the node's processors for each rank, unless somebody has said how many."""


def sbatch_script(experiment: Experiment, folder: Path, nodes: int = 1) -> str:
    """Return ``job.sbatch``: a Slurm job that shares the ranks out over ``nodes`` nodes.

    The task of a node has all of its processors: since Slurm 22.05 ``srun`` gives a task one unless
    it is told how many (slurm.schedmd.com/srun.html, --cpus-per-task).
    """
    own, quoted_folder = experiment, shlex.quote(str(folder))
    log = _in_directive(folder)
    on_gpu, per_node = own.device.startswith("cuda"), own.processes // nodes
    gpus = f"#SBATCH --gpus-per-node={per_node}\n" if on_gpu else ""
    limit = ""
    if on_gpu:
        limit = f"""\
if [ $per_node -gt {per_node} ]; then
    echo "$per_node ranks a node, and this file asks for {per_node} GPUs a node: write it with" \\
        "trainrig train --write --nodes $SLURM_NNODES" >&2
    exit 2
fi
"""
    fewest, elastic = own.recovery.min_nproc, ""
    floor = fewest or own.processes
    if fewest:
        elastic = "#SBATCH --no-kill\n"
    static = "" if fewest else _STATIC
    return f"""#!/bin/bash
# {own.name!r} by torchrun: {own.processes} ranks, {per_node} on each of {nodes} nodes.
# TERM comes {GRACE} s before the time is over: ranks save a checkpoint and leave, and the job goes
# on in another allocation, as it does after a lost step.
#SBATCH --job-name={slug_of(own.name)}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
{gpus}{elastic}#SBATCH --signal=TERM@{GRACE}
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output="{log}/slurm-%j.log"
set -u
per_node=$(({own.processes} / SLURM_NNODES))
if [ $((per_node * SLURM_NNODES)) -ne {own.processes} ]; then
    echo "{own.processes} ranks cannot be shared out over $SLURM_NNODES nodes" >&2
    exit 2
fi
{limit}export NPROC_PER_NODE=$per_node NNODES=$((({floor} + per_node - 1) / per_node)):$SLURM_NNODES
{static}export RDZV_ID=$SLURM_JOB_ID-${{SLURM_RESTART_COUNT:-0}}
first=$(srun --nodes=1 --ntasks=1 hostname)
export RDZV=$first:$((20000 + SLURM_JOB_ID % 10000))
saved=$(ls {quoted_folder}/checkpoints 2>/dev/null)
srun --kill-on-bad-exit={0 if fewest else 1} --cpus-per-task="$SLURM_CPUS_ON_NODE" \\
    sh {quoted_folder}/node.sh && exit 0
code=$?
# A lost step or the end of the time: the same job goes on from its newest checkpoint, also beyond
# max_restarts while each allocation brings it further.
if [ {own.recovery.max_restarts} -gt 0 ]; then
    if [ "$(ls {quoted_folder}/checkpoints 2>/dev/null)" != "$saved" ] ||
        [ "${{SLURM_RESTART_COUNT:-0}}" -lt {own.recovery.max_restarts} ]; then
        scontrol requeue "$SLURM_JOB_ID"
    fi
fi
exit $code
"""


def _in_directive(folder: Path) -> str:
    """Return a folder as ``#SBATCH --output="..."`` takes it: % is doubled, a line cannot break.

    Raises UsageError for what would end the quotes or the line.
    """
    text = str(folder)
    if any(not c.isprintable() for c in text) or '"' in text or "\\" in text:
        hint = "another --out, without quotes, backslashes and line breaks"
        raise UsageError(f"{text!r} cannot stand in a Slurm script", hint)
    return text.replace("%", "%%")


_STATIC = f"""\
if [ "$SLURM_NNODES" -gt {MOST_DYNAMIC_NODES} ]; then
    export NNODES=$SLURM_NNODES RDZV_BACKEND=static
fi
"""


def scripts_document(folders: Sequence[Path]) -> Document:
    """Return the command that starts each experiment."""
    table = Table(
        columns=(Column("by torchrun", "words"), Column("by Slurm", "words")),
        rows=tuple((f"sh {folder}/node.sh", f"sbatch {folder}/job.sbatch") for folder in folders),
        title="Scripts",
        notes=("several nodes: --nodes N, and the first lines of node.sh",),
    )
    return Document(title="", blocks=(table,))
