"""Every legal layout of a model on so many GPUs, as arrays: the space that a search goes through.

Varied are the sizes of the mesh (tensor and pipeline parallel, interleaved stages), the
ranks that share a mixture's experts, the
micro-batch (what divides a rank's share of the global batch), what is sharded over how many ranks
(ZeRO stage, hybrid sharding), sequence parallelism, and, as words, recomputation, the pipeline's
schedule and the framework (ZeRO 2 and 3 inside pipeline stages: of one that is named and has them).
Fixed are the global batch, the sequence, the precision, the kernels
and the optimizer: with another one of these it would not be the same training.

Each size is a divisor of what it divides, so that the candidates are few; which of them are legal
is `legal_mask`'s to say.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from trainrig.errors import UsageError
from trainrig.workload.arrays import divisors
from trainrig.workload.layout import Layout, legal_mask
from trainrig.workload.layout.groups import RECOMPUTE
from trainrig.workload.layout_rules import ONE_BACKWARD, has_schedule, longest_stage
from trainrig.workload.programs import FRAMEWORKS, LEAST_RESTRICTED
from trainrig.workload.programs.usual import usual_program

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainrig.prediction.cluster import Cluster
    from trainrig.prediction.presumed import Presumed
    from trainrig.workload.model import ModelShape

    Columns = dict[str, NDArray[np.int64]]


LEAST_PART = 4096
"""Tokens of a sequence that a search leaves on each rank: shorter ones are not shared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Layouts that a search goes through."""

    shape: ModelShape
    base: Layout
    """GPUs, nodes, sequence and the words that stay; its sizes of the mesh do not count."""
    global_batch: int
    framework: str | None = None
    """None: what usually runs such a layout (`Layout.usual_framework`)."""
    programs: Mapping[str, Presumed] = field(default_factory=dict, hash=False)
    """The program that runs an engine's layouts, and what it does by default, by the engine."""
    recompute: Sequence[str] = RECOMPUTE
    schedules: Sequence[str] = ("1f1b", "gpipe", "zb", "zbv")
    """Schedules of pipelines; DualPipe by its name alone."""
    host_memory: float | None = None
    """B of a node's memory, for what is offloaded; None: no limit."""
    micro_batch: int | None = None
    """Samples at once on a rank; None: any."""
    grad_accum: int | None = None
    """Micro-batches of a step; None: any."""

    def replace(self, **changes: Any) -> Space:
        """Return a copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    def words_of(self, framework: str) -> dict[str, Any]:
        """Return what that engine's program does by default, by the flat keys of a layout."""
        if framework not in self.programs:
            return {}
        return self.programs[framework].fields()

    def presumed_of(self, layout: Layout) -> Presumed | None:
        """Return the program that runs one of its layouts, and why; None: nobody says."""
        presumed = self.programs.get(layout.framework)
        if presumed is None or not presumed.because:
            return presumed
        return dataclasses.replace(presumed, because=usual_program(layout.spread).reason)

    def on(self, cluster: Cluster) -> Space:
        """Layouts of other GPUs of the same chip, with the memory of their nodes' hosts."""
        base = self.base.replace(gpus=cluster.gpus, gpus_per_node=cluster.gpus_per_node)
        return self.replace(base=base, host_memory=cluster.host_memory)


def layouts(space: Space) -> tuple[Layout, ...]:
    """Return all legal layouts, in groups that share their words; each group's sizes are arrays.

    Raises UsageError where there is none.
    """
    groups: list[Layout] = []
    for cp in _context_ranks(space):
        part = space.replace(base=space.base.replace(cp=cp))
        groups += [group for group in _groups(part, _sizes(part)) if len(group)]
    if not groups:
        raise UsageError(
            f"no layout of {space.shape.name} on {space.base.mesh.gpus} GPUs makes a global "
            "batch of "
            f"{space.global_batch}",
            f"a --global-batch that {space.base.mesh.gpus} divides, fewer --gpus, or neither "
            "--micro-batch nor --grad-accum",
        )
    return tuple(groups)


def _context_ranks(space: Space) -> list[int]:
    """Ranks that may share a sequence: each keeps LEAST_PART tokens of it."""
    most = 1 if space.shape.num_decoder_layers else max(1, space.base.batch.seq_len // LEAST_PART)
    return [cp for cp in divisors(int(space.base.mesh.gpus)) if cp & (cp - 1) == 0 and cp <= most]


def _expert_ranks(space: Space) -> list[int]:
    """Ranks that may share a mixture's experts: equal parts for each."""
    gpus = int(space.base.mesh.gpus)
    return [ep for ep in divisors(max(1, space.shape.moe.num_experts)) if gpus % ep == 0]


def _sizes(space: Space) -> Columns:
    """Return a row for each combination of sizes; not all of them are legal."""
    gpus = int(space.base.mesh.gpus)
    grids = []
    for tp, pp, dp, share in _meshes(space):
        interleaves = divisors(longest_stage(space.shape, pp)) if pp > 1 else [1]
        shardings = _shardings(dp, pp, space)
        splits = [0, 1] if tp > 1 else [0]
        micro = _micro_batches(space, share)
        grid = np.meshgrid(
            tp, pp, interleaves, np.array(micro, dtype=np.int64), shardings, splits, indexing="ij"
        )
        grids.append(np.stack([axis.ravel() for axis in grid]))
    rows = np.concatenate([np.empty((6, 0), dtype=np.int64), *grids], axis=1)
    ranks = _expert_ranks(space)
    ep = np.repeat(ranks, rows.shape[1])
    tps, pps, interleave, micro, sharding, sequence = np.tile(rows, len(ranks))
    return {
        "tp": tps,
        "pp": pps,
        "interleave": interleave,
        "batch_size": micro,
        "grad_accum": space.global_batch // (gpus // (tps * pps * space.base.mesh.cp) * micro),
        "zero": sharding % 4,
        "shard_size": sharding // 4,
        "sequence_parallel": sequence,
        "ep": ep,
    }


def _micro_batches(space: Space, share: int) -> list[int]:
    """Micro-batches that divide a rank's ``share`` of samples, of which some may be asked for."""
    return [
        micro
        for micro in divisors(share)
        if space.micro_batch in (None, micro) and space.grad_accum in (None, share // micro)
    ]


def _meshes(space: Space) -> Iterator[tuple[int, int, int, int]]:
    """Legal tensor and pipeline parallel sizes, the data-parallel ranks and samples of each."""
    gpus = int(space.base.mesh.gpus) // space.base.mesh.cp
    pairs = [(tp, pp) for tp in divisors(gpus) for pp in divisors(gpus // tp)]
    tp, pp = np.array(pairs, dtype=np.int64).T
    ones = np.ones_like(tp)
    meshes = space.base.replace(
        tp=tp,
        pp=pp,
        gpus=ones * space.base.mesh.gpus,
        framework=LEAST_RESTRICTED,
        parallel="auto",
        **dict.fromkeys(("zero", "shard_size", "sequence_parallel"), 0 * ones),
    ).replace(interleave=ones, batch_size=ones, grad_accum=ones)
    for number in np.flatnonzero(legal_mask(space.shape, meshes)):
        dp = gpus // (pairs[number][0] * pairs[number][1])
        if space.global_batch % dp == 0:
            yield *pairs[number], dp, space.global_batch // dp


def _shardings(dp: int, pp: int, space: Space) -> list[int]:
    """Stage of ZeRO and size of a group in one number: stage + 4 · size."""
    if dp == 1:
        return [3] if space.base.sharding.parallel == "fsdp" else [0]
    sizes = [0, *divisors(dp)[1:-1]]
    engine = space.framework or _engine_of_schedule(space)
    shards_stages = engine is not None and FRAMEWORKS[engine].ranks.shards_stages
    stages = (1,) if pp > 1 and not shards_stages else (1, 2, 3)
    return [0, *(stage + 4 * size for stage in stages for size in sizes)]


def _engine_of_schedule(space: Space) -> str | None:
    """Return the engine that a schedule implies, where one alone is asked for that few have."""
    if len(space.schedules) > 1 or space.schedules[0] in ONE_BACKWARD:
        return None
    return space.base.replace(pp=2, schedule=space.schedules[0]).usual_framework


def _groups(space: Space, columns: Columns) -> Iterator[Layout]:
    """Yield the rows, by framework and scheme; those of each once for every pair of words."""
    groups = 2 * _frameworks(space, columns) + (columns["zero"] >= 2)
    for group in np.unique(groups):
        rows = {name: column[groups == group] for name, column in columns.items()}
        name = list(FRAMEWORKS)[group // 2]
        base = space.base.replace(framework=name, schedule="1f1b", **space.words_of(name))
        legal = legal_mask(space.shape, base.replace(**rows))
        rows = {name: column[legal] for name, column in rows.items()}
        for schedule, chosen in _by_schedule(space, rows):
            if not has_schedule(base.traits, schedule):
                continue  # all would be refused, one by one
            for recompute in space.recompute:
                words = base.replace(schedule=schedule, recompute=recompute)
                layout = words.replace(**chosen)
                if schedule in ONE_BACKWARD:
                    yield layout
                elif len(layout):
                    yield layout.part(legal_mask(space.shape, layout))


def _by_schedule(space: Space, rows: Columns) -> Iterator[tuple[str, Columns]]:
    """Yield rows by the schedules that they may have: without a pipeline 1F1B stands for all.

    1F1B interleaves any number of stages and ZB-V two; the others' are simulated alone.
    """

    def those(mask: NDArray[np.bool_]) -> Columns:
        return {name: column[mask] for name, column in rows.items()}

    piped, groups = rows["pp"] > 1, rows["interleave"]
    if "1f1b" not in space.schedules:
        yield "1f1b", those(~piped)
    for schedule in space.schedules:
        if schedule == "1f1b":
            yield schedule, rows
        else:
            yield schedule, those(piped & (groups == (2 if schedule == "zbv" else 1)))


def _frameworks(space: Space, columns: Columns) -> NDArray[np.int64]:
    """For each row the framework that runs it, by its place in `FRAMEWORKS`."""
    names = list(FRAMEWORKS)
    if space.framework is not None:
        return np.full(len(columns["tp"]), names.index(space.framework))
    named = space.schedules[0] if len(space.schedules) == 1 else "1f1b"
    meshes = ((1, 1, "1f1b"), (2, 1, "1f1b"), (1, 2, named))
    usual = [
        space.base.replace(tp=tp, pp=pp, zero=zero, schedule=schedule).usual_framework
        for tp, pp, schedule in meshes
        for zero in range(4)
    ]
    places = np.array([names.index(name) for name in usual])
    split = np.where(columns["pp"] > 1, 2, columns["tp"] > 1)
    indices: NDArray[np.int64] = places[4 * split + columns["zero"]]
    return indices
