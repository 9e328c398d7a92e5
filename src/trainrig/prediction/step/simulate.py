"""A step's pipeline, event by event: what each rank does when, from the closed form's own seconds.

Answers how long a step takes where the closed form (`step`) has formulas for a uniform pipeline:
stages of different length and ends that are heavier, 1F1B, GPipe, interleaved and zero-bubble
schedules, messages that run beside computation or hold it up, and gradients that one stage
exchanges while another still computes.  Of all devices one of each stage is looked at: those that
share a stage do the same.  Many layouts are simulated at once, those
that share stages, groups and micro-batches, as arrays.

Streams of a rank: its computation (with the collectives of its blocks, as far as they are exposed),
messages between stages, gradients.  Of a long step 4·stages micro-batches and more are simulated;
the rest repeats: each further round of ``stages`` micro-batches takes as long as the last one.

Interleaved stages are simulated in the order of 1F1B, whatever the schedule, but ZB-V's, of which
each rank has one on the way out and one on the way back.  DualPipe is the closed form's alone.

Sources: 1F1B and its interleaved form are Narayanan et al. 2021 (arXiv 2104.04473), section 2.2, in
Megatron-LM's order; ZB-H1, whose backward is cut in two, is Qi et al. 2023 (arXiv 2401.10241).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from trainrig.prediction.rates import Rates
from trainrig.prediction.step import StepTime, stage_seconds
from trainrig.workload.layout import Layout
from trainrig.workload.model import ModelShape

Array = Any
FORWARD, BACKWARD, WEIGHTS = 0, 1, 2
Task = tuple[int, int, int]
"""Kind, group of layers on the rank, micro-batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """Seconds of pipelines of one form: arrays (layouts, ranks, groups), but where said."""

    forward: Array
    backward: Array
    """Seconds of the inputs' backward alone, where ``weights`` has the rest."""
    weights: Array
    """Gradients of weights, where the schedule computes them apart; zeros elsewhere."""
    send: Array
    """(layouts,): one message between two stages."""
    blocks: Array
    """(layouts,): 1 where a message holds up both its ends, 0 where it runs beside."""
    reduce: Array
    """(layouts, ranks): gradients behind the last backward, as far as nothing hides them."""
    after: Array
    """(layouts,): what all ranks do once, when the slowest is done."""


def orders(schedule: str, ranks: int, groups: int, batches: int) -> tuple[tuple[Task, ...], ...]:
    """Return the tasks of each rank, in order: Megatron-LM's, GPipe's, ZB-H1's or ZB-V's."""
    if schedule == "gpipe":
        order = [(FORWARD, 0, i) for i in range(batches)] + [
            (BACKWARD, 0, i) for i in range(batches)
        ]
        return tuple(tuple(order) for _ in range(ranks))
    if schedule == "zbv":
        return tuple(_folded(rank, ranks, batches) for rank in range(ranks))
    if groups > 1:
        return tuple(_interleaved(rank, ranks, groups, batches) for rank in range(ranks))
    return tuple(_one_by_one(rank, ranks, batches, schedule) for rank in range(ranks))


def _one_by_one(rank: int, ranks: int, batches: int, schedule: str) -> tuple[Task, ...]:
    ahead = min(ranks - 1 - rank, batches)
    order = [(FORWARD, 0, i) for i in range(ahead)]
    # ZB-H1 leaves as many gradients of weights for the end as the rank waits for there.
    late = rank if schedule == "zb" else batches
    for i in range(batches):
        if ahead + i < batches:
            order.append((FORWARD, 0, ahead + i))
        order.append((BACKWARD, 0, i))
        if schedule == "zb" and i >= late:
            order.append((WEIGHTS, 0, i - late))
    if schedule == "zb":
        order += [(WEIGHTS, 0, i) for i in range(max(0, batches - late), batches)]
    return tuple(order)


def _folded(rank: int, ranks: int, batches: int) -> tuple[Task, ...]:
    """ZB-V: the second half of the stages comes back over the ranks, the last one on the first.

    The order of torch's ScheduleZBVZeroBubble, which deals micro-batches that do not exist where
    there are fewer than 2·ranks - 1.
    """
    ahead, behind = (FORWARD, 0), (FORWARD, 1)
    early, late = ([(BACKWARD, group), (WEIGHTS, group)] for group in (0, 1))
    dealt = max(2 * ranks - 1, batches)
    outward = dealt - (2 * ranks - rank - 1)  # forward passes that are left for later
    order = [ahead] * (2 * (ranks - rank) - 1) + [behind, ahead] * rank
    order += [behind, *late] * (ranks - rank)
    for turn in range(dealt - ranks):
        order += [*([ahead] if turn < outward else []), *early, behind, *late]
    order += [early[0], late[0]] * rank + early * (ranks - rank)
    order += [late[1]] * rank + [early[1]] * rank
    number: Counter[tuple[int, int]] = Counter()
    tasks = []
    for kind, group in order:
        tasks.append((kind, group, number[kind, group]))
        number[kind, group] += 1
    return tuple(task for task in tasks if task[2] < batches)


def _interleaved(rank: int, ranks: int, groups: int, batches: int) -> tuple[Task, ...]:
    total = batches * groups
    ahead = min(2 * (ranks - rank - 1) + (groups - 1) * ranks, total)

    def task(kind: int, number: int) -> Task:
        turn, place = divmod(number, ranks * groups)
        group, within = divmod(place, ranks)
        return kind, group if kind == FORWARD else groups - 1 - group, turn * ranks + within

    order = [task(FORWARD, number) for number in range(ahead)]
    for number in range(total):
        if ahead + number < total:
            order.append(task(FORWARD, ahead + number))
        order.append(task(BACKWARD, number))
    return tuple(order)


@dataclass(frozen=True, slots=True)
class _Wave:
    """Tasks that wait for none of each other: arrays with a number for each."""

    rank: Array
    kind: Array
    group: Array
    before: Array
    """Place of the rank's task before, in one row of all ends; the last place is time 0."""
    other: Array
    """Place of the task on another stage that it waits for."""
    place: Array
    sent: Array
    """1 where it waits for a message."""


@lru_cache(maxsize=512)  # of a megabyte each, mostly
def _waves(schedule: str, ranks: int, groups: int, batches: int) -> tuple[tuple[_Wave, ...], int]:
    """Return the tasks in waves, and how many there are."""
    needs = _needed_folded if schedule == "zbv" else _needed
    lists = orders(schedule, ranks, groups, batches)
    place: dict[tuple[int, int, int, int], int] = {}
    total = sum(map(len, lists))
    at, waves = [0] * ranks, []
    last = [total] * ranks
    while len(place) < total:
        rows = []
        for rank in range(ranks):
            if at[rank] == len(lists[rank]):
                continue
            task = lists[rank][at[rank]]
            needed = needs(rank, task, ranks, groups)
            if needed is not None and needed not in place:
                continue
            is_sent = needed is not None and needed[0] != rank
            rows.append((rank, task, total if needed is None else place[needed], int(is_sent)))
        if not rows:
            raise AssertionError(f"{schedule} of {ranks} × {groups}, {batches}: waits for ever")
        numbers = []
        for rank, task, other, sent in rows:
            number = len(place)
            place[rank, *task] = number
            numbers.append((rank, task[0], task[1], last[rank], other, number, sent))
            last[rank], at[rank] = number, at[rank] + 1
        waves.append(_Wave(*np.array(numbers, dtype=np.int64).T))
    return tuple(waves), total


def _needed(rank: int, task: Task, ranks: int, groups: int) -> tuple[int, int, int, int] | None:
    """Return task that has what this one works on: on the stage before, or behind in a backward."""
    kind, group, batch = task
    if kind == WEIGHTS:
        return rank, BACKWARD, group, batch
    if kind == FORWARD:
        if rank > 0:
            return rank - 1, FORWARD, group, batch
        return (ranks - 1, FORWARD, group - 1, batch) if group > 0 else None
    if rank < ranks - 1:
        return rank + 1, BACKWARD, group, batch
    if group < groups - 1:
        return 0, BACKWARD, group + 1, batch
    return rank, FORWARD, group, batch


def _needed_folded(
    rank: int, task: Task, ranks: int, _groups: int
) -> tuple[int, int, int, int] | None:
    """Return `_needed` where the second group of each rank is on the way back."""
    kind, group, batch = task
    if kind == WEIGHTS:
        return rank, BACKWARD, group, batch
    outward = (kind == FORWARD) == (group == 0)  # from the first rank to the last
    if outward and rank > 0:
        return rank - 1, kind, group, batch
    if not outward and rank < ranks - 1:
        return rank + 1, kind, group, batch
    if group == (0 if kind == FORWARD else 1):  # where a micro-batch's way begins, or turns
        return None if kind == FORWARD else (rank, FORWARD, 1, batch)
    return rank, kind, 1 - group, batch


def run_pipeline(stages: Stages, schedule: str, batches: int) -> Array:
    """Return (layouts,): seconds until the slowest rank of each is done with its step."""
    ranks = stages.forward.shape[1]
    few = min(batches, 4 * ranks)
    if few == batches:
        return _ran(stages, schedule, batches) + stages.after
    remainder = batches % ranks  # rounds are whole: the remainder is simulated, too
    shorter, longer = (_ran(stages, schedule, n * ranks + remainder) for n in (3, 4))
    rounds = (batches - remainder) // ranks - 4
    return longer + rounds * (longer - shorter) + stages.after


def _ran(stages: Stages, schedule: str, batches: int) -> Array:
    ranks, groups = stages.forward.shape[1:]
    waves, total = _waves(schedule, ranks, groups, batches)
    kinds = stages.forward, stages.backward, stages.weights
    seconds = np.stack([np.moveaxis(kind, 0, -1) for kind in kinds])  # the layouts last of all
    # What holds up its ends costs the sender as much; the first and last stage send once less.
    blocking, flight = (
        stages.send * stages.blocks * (ranks > 1),
        stages.send * (1.0 - stages.blocks),
    )
    waits, overlaps = bool(blocking.any()), bool(flight.any())
    ends = np.zeros((total + 1, len(flight)))
    done = np.zeros((ranks, len(flight)))
    for wave in waves:
        other = ends[wave.other]
        if overlaps:
            other += wave.sent[:, None] * flight
        end = np.maximum(ends[wave.before], other) + seconds[wave.kind, wave.rank, wave.group]
        if waits:
            end += (wave.kind != WEIGHTS)[:, None] * blocking
        ends[wave.place] = end
        done[wave.rank] = end
    reduced: Array = (done + stages.reduce.T).max(axis=0)
    return reduced


def simulated(
    shape: ModelShape, layout: Layout, rates: Rates, head: float = 1.0
) -> tuple[Array, StepTime]:
    """Return seconds of one step of each layout, and the closed form's parts of the same.

    ``head``: share of the tokens that have logits.  Without a pipeline there is nothing to
    simulate: the closed form's own seconds.
    """
    step, seconds = stage_seconds(shape, layout, rates, head)
    arrays = {name: np.reshape(value, -1) for name, value in seconds.items()}
    forms = layout.mesh.pp, layout.pipeline.interleave, layout.batch.grad_accum
    return _through(np.reshape(step.total, -1), arrays, forms, layout.pipeline.schedule), step


def simulated_together(
    requested: Sequence[tuple[Layout, StepTime, Mapping[str, float]]],
) -> list[float]:
    """Return seconds of one step of each of some layouts, whatever their models and machines.

    Each is one layout with what `stage_seconds` says of it.
    """
    totals = np.array([step.total for _, step, _ in requested], dtype=float)
    for schedule in {layout.pipeline.schedule for layout, _, _ in requested}:
        chosen = [
            n
            for n, (candidate, _, _) in enumerate(requested)
            if candidate.pipeline.schedule == schedule
        ]
        layouts, _, forms = zip(*(requested[n] for n in chosen), strict=True)
        pp, groups, batches = (
            np.array([candidate.get(size) for candidate in layouts])
            for size in ("pp", "interleave", "grad_accum")
        )
        seconds = {name: np.array([candidate[name] for candidate in forms]) for name in forms[0]}
        totals[chosen] = _through(totals[chosen], seconds, (pp, groups, batches), schedule)
    several: list[float] = totals.tolist()
    return several


def _through(
    total: Array, seconds: Mapping[str, Array], forms: tuple[Array, Array, Array], schedule: str
) -> Array:
    """Return (layouts,).

    Seconds through the stages; the closed form's ``total`` where there are none.

    ``forms``: stages, groups of layers on each and micro-batches.
    """
    totals = np.array(total, dtype=float)
    sizes = np.stack([np.broadcast_to(size, totals.shape) for size in forms], axis=1)
    several = np.flatnonzero(sizes[:, 0] > 1)
    if not len(several) or schedule == "dualpipe":
        return totals
    distinct, inverse = np.unique(sizes[several], axis=0, return_inverse=True)
    for number, (ranks, groups, batches) in enumerate(distinct.tolist()):
        chosen = several[inverse.reshape(-1) == number]
        folded = schedule == "zbv"
        halves = folded or (schedule == "zb" and groups == 1)
        stages = _stages(seconds, chosen, ranks, groups, halves=halves, folded=folded)
        totals[chosen] = run_pipeline(stages, schedule, batches)
    return totals


def _stages(
    seconds: Mapping[str, Array],
    chosen: Array,
    ranks: int,
    groups: int,
    *,
    halves: bool,
    folded: bool,
) -> Stages:
    """Return seconds of each rank and group from those of a block and of the ends.

    ``halves``: gradients of blocks' weights are computed apart, in the time that they take there;
    ``folded``: the last stage is on the first rank.
    """
    end_rank = 0 if folded else -1

    def of(name: str) -> Array:
        return seconds[name][chosen]

    of_group = (of("stage_layers") / groups)[:, None, None]
    layers = np.broadcast_to(of_group, (len(chosen), ranks, groups)).copy()
    layers[:, 0, 0] -= of("fewer_first")
    layers[:, end_rank, -1] -= of("fewer_last")
    lacking = layers.sum(axis=(1, 2)) - of("layers")
    layers[:, 1:-1, -1] -= np.arange(1, ranks - 1) <= lacking[:, None]
    layers = np.maximum(layers, 0.0)
    ends = {}
    for name in ("device", "host"):
        for way, share in (("forward", 1.0 / 3.0), ("backward", 2.0 / 3.0)):
            end = np.zeros_like(layers)
            end[:, 0, 0] += of(f"{name}_first") * share
            end[:, end_rank, -1] += of(f"{name}_last") * share
            ends[name, way] = layers * of(f"{name}_{way}")[:, None, None] + end
    more = {name: of(name)[:, None, None] for name in ("each_forward", "each_backward")}
    forward = np.maximum(ends["device", "forward"], ends["host", "forward"])
    device = ends["device", "backward"] + (of("weights") / groups)[:, None, None]
    backward = np.maximum(device, ends["host", "backward"])
    reduce = np.broadcast_to(of("exposed")[:, None], (len(chosen), ranks))
    weights = layers * of("device_weights")[:, None, None] * float(halves)
    return Stages(
        forward=forward + layers * more["each_forward"],
        backward=backward - weights + layers * more["each_backward"],
        weights=weights,
        send=of("send"),
        blocks=of("blocks"),
        reduce=reduce,
        after=of("after"),
    )
