"""How long a training step takes on a machine, and what it is made of.

Answers seconds by part for one layout, or arrays of them for many.  A step is
    micro-batches · (forward + backward + what is recomputed + their exchanges)
    + filling and draining the pipeline + exposed gradients + optimizer + offload
where a phase takes the longer of its device time and the host's time to launch it, and a collective
that an engine starts early counts for what is left after the computation beside it (as does what
is copied to the host: `offload`).  The seconds
that are composed come from `profile`; the shares that hide from `calibration`.

Sources: the pipeline's bubble, (p − 1)/(m·v) of the ideal time, is Narayanan et al. 2021, section
2.2; ZB-H1's, (p − 1)·(F + B − W) where B is of inputs alone, Qi et al. 2023, table 2, and half of
it in ZB-V (as torch's order of it comes out in `simulate`); DualPipe's, (p/2 − 1)·(F&B + B − 3W)
where B is whole, DeepSeek-V3's report (arXiv 2412.19437), table 2; the volumes
of tensor and sequence parallel are Korthikanti et al. 2022, section 4.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from trainrig.prediction.rates import Rates
from trainrig.prediction.step.calibration import Constants, fitted
from trainrig.prediction.step.offload import NOTHING, Offload, waited_for
from trainrig.prediction.step.profile import Array, Profile, price_blocks, profile
from trainrig.workload.arrays import choose, hypotenuse, larger, smaller
from trainrig.workload.layout import SIZES, Layout
from trainrig.workload.model import ModelShape

CHUNK = 1 << 14
"""Layouts that are composed at once: what stays in the cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of a step by part, on the slowest device; floats, or arrays over layouts."""

    forward: Any
    backward: Any
    recompute: Any
    gaps: Any
    """The device waits for the host's launches."""
    tensor_comm: Any
    expert_comm: Any
    """Tokens on their way to experts on other devices, and back."""
    pipeline_comm: Any
    bubble: Any
    """Stages that wait for the first micro-batch to come and the last to go."""
    data_comm: Any
    """Weights and gradients, as far as nothing hides them."""
    optimizer: Any
    offload: Any
    data: Any
    overlapped: Any
    """Communication behind computation: not part of the sum."""
    faster: Any
    """Half width of the 80 % interval towards shorter steps, as a natural logarithm."""
    slower: Any
    """Half width of the interval towards longer times."""

    @property
    def total(self) -> Any:
        """Return seconds of the whole step."""
        return sum(getattr(self, name) for name in PARTS)

    def lasting(self, seconds: float) -> StepTime:
        """Return the parts of a step that takes so long, as one layout's simulation found.

        The pipeline's bubble takes the difference; where it is not long enough, all other parts do.
        """
        bubble = self.bubble + seconds - self.total
        if bubble >= 0.0:
            return dataclasses.replace(self, bubble=bubble)
        share = seconds / (self.total - self.bubble)
        parts = {name: getattr(self, name) * share for name in PARTS}
        return dataclasses.replace(self, **(parts | {"bubble": 0.0}))

    @property
    def interval(self) -> tuple[Any, Any]:
        """80 %: four in five steps are expected to lie between."""
        return self.interval_with(0.0, 0.0)

    def interval_with(self, faster: Any, slower: Any) -> tuple[Any, Any]:
        """Return the interval where something else is unsure, too, by these half widths."""
        low, high = hypotenuse(self.faster, faster), hypotenuse(self.slower, slower)
        return self.total * math.e**-low, self.total * math.e**high


PARTS = tuple(f.name for f in dataclasses.fields(StepTime))[:-3]
"""Parts that add up to a step."""


def predict_step(
    shape: ModelShape,
    layout: Layout,
    rates: Rates,
    *,
    constants: Constants | None = None,
    head: float = 1.0,
) -> StepTime:
    """Return seconds of one step of each layout; ``head``: share of the tokens that have logits."""
    names, constants = [field.name for field in dataclasses.fields(StepTime)], constants or fitted()
    if layout.is_one:
        return compose(profile(shape, layout, rates, head), constants)
    import numpy as np

    computed = price_blocks(shape, layout, rates, head)  # of all: pieces have the same blocks
    pieces = [
        compose(profile(shape, layout.part(some), rates, head, computed.part(some)), constants)
        for some in (slice(at, at + CHUNK) for at in range(0, len(layout), CHUNK))
    ]
    fields = {name: np.concatenate([getattr(piece, name) for piece in pieces]) for name in names}
    return StepTime(**fields)


def stage_seconds(
    shape: ModelShape, layout: Layout, rates: Rates, head: float = 1.0
) -> tuple[StepTime, dict[str, Array]]:
    """Seconds of one step of each layout, and of its blocks and ends by themselves (`simulate`).

    Numbers for one layout whose sizes are, arrays for many.
    """
    named: dict[str, Array] = {}
    if not layout.is_one:
        import numpy as np

        num = len(layout)
        sizes = (np.broadcast_to(size, (num,)) for size in layout.sizes)
        layout = layout.replace(**dict(zip(SIZES, sizes, strict=True)))
    step = compose(profile(shape, layout, rates, head), fitted(), named)
    once = 1.0 / (3.0 if layout.memory.recompute == "full" else 2.0)
    named["each_forward"] = named["exchanged"] * once + named["exposed_forward"]
    named["each_backward"] = named["exchanged"] * (1.0 - once) + named["exposed_backward"]
    named["blocks"] = 0.0 * named["send"] + float(layout.overlaps != "tensor")
    return step, named


class _Loads(NamedTuple):
    """Seconds of a block's passes, and of both ends there and back: the device's, or the host's."""

    forward: Array
    backward: Array
    again: Array
    """Seconds of recomputation before a block's backward."""
    last: Array
    """Head and loss."""
    first: Array
    """The embedding."""


class _Stage(NamedTuple):
    """Seconds of a micro-batch on the busiest stage."""

    forward: Array
    backward: Array
    recompute: Array
    gap_forward: Array
    """The device waits for the host's launches."""
    gap_backward: Array
    ends: Array
    """Seconds that a stage computes besides its blocks: a third of it in the forward."""


class _Data(NamedTuple):
    """Seconds of what data-parallel ranks exchange, as far as nothing hides it."""

    forward: Array
    """Seconds of gathering weights in a block's forward."""
    backward: Array
    """Seconds of weights and gradients in a block's backward."""
    once: Array
    """Seconds a step that are not exchanged with every micro-batch."""
    total: Array
    """Seconds a step of all data-parallel exchanges."""
    hidden_backward: Array
    """Behind a block's backward."""
    overlapped: Array
    """Seconds a step that run behind computation."""


def compose(profile: Profile, c: Constants, named: dict[str, Array] | None = None) -> StepTime:
    """Return seconds of each part from the profile: what is hidden, what waits for what.

    ``named`` is filled with the seconds of a block, of the ends and of what is done once.
    """
    p = profile
    device, host = _loads(p, c)
    stage, host = _busiest(p, device, host, c)
    m, n = p.pipeline.micro_batches, p.pipeline.stage_layers
    computed = stage.forward + stage.backward + stage.recompute
    gaps = stage.gap_forward + stage.gap_backward
    routed, hidden_routed = _exposed_all_to_all(
        p, n * c.tensor * p.communication.all_to_all, (computed, gaps), c
    )
    # Exchanges of each block beside its computation, or while the device waits for the host.
    beside_f = device.forward + stage.gap_forward / n
    beside_b = device.backward + device.again + stage.gap_backward / n
    tensor, waiting = _split(p, beside_f + beside_b, c)
    data = _data(p, device, stage, (beside_f + waiting, beside_b + waiting), c)
    sends = c.send * 2.0 * p.pipeline.virtual * p.pipeline.send
    ahead = stage.forward + stage.gap_forward
    later = stage.backward + stage.recompute + stage.gap_backward
    late = p.pipeline.splits_weight_grad * _products(p, p.compute.backward, c) / 2.0
    whole = _all_stages(p, device, host, p.pipeline.stages * (c.streams * p.compute.weights))
    bubble = _bubble(
        p, (ahead, later), whole, tensor + routed + sends, p.pipeline.stage_layers * late
    )
    parts: dict[str, Any] = {
        "forward": m * stage.forward,
        "backward": m * stage.backward,
        "recompute": m * stage.recompute,
        "gaps": m * gaps,
        "tensor_comm": m * tensor,
        "expert_comm": m * routed,
        "pipeline_comm": m * sends,
        "bubble": bubble,
        "data_comm": data.total,
        "optimizer": c.optimizer * p.compute.optimizer,
        "offload": _exposed_offload_time(
            p, (ahead, (1.0 - p.communication.bucket) * (later - n * data.hidden_backward)), c
        ),
        "data": c.fixed + 0.0 * data.total,
    }
    if named is not None:
        named |= _of_blocks(p, device, host, data, c) | {
            "device_weights": late,
            "exchanged": (tensor - c.tensor * p.communication.tensor_ends + routed) / n,
            "after": parts["optimizer"] + parts["offload"] + c.fixed,
        }
    overlapped = data.overlapped + m * hidden_routed
    return StepTime(**parts, overlapped=overlapped, **_half_widths(parts, p, c))


def _of_blocks(
    p: Profile, device: _Loads, host: _Loads, data: _Data, c: Constants
) -> dict[str, Array]:
    """Return a simulation's seconds of a block's passes, of ends, messages and weights."""
    return {
        "device_forward": device.forward,
        "device_backward": device.backward + device.again,
        "host_forward": host.forward,
        "host_backward": host.backward + host.again,
        "device_first": device.first,
        "device_last": device.last + c.tensor * p.communication.tensor_ends,
        "host_first": host.first,
        "host_last": host.last,
        "weights": c.streams * p.compute.weights
        + c.data * p.communication.ends * p.communication.every_micro_batch,
        "exposed_forward": data.forward,
        "exposed_backward": data.backward,
        "send": c.send * p.pipeline.send,
        "exposed": data.once,
        **{name: getattr(p.pipeline, name) for name in ("layers", "stage_layers")},
        **{name: getattr(p.pipeline, name) for name in ("fewer_first", "fewer_last")},
    }


def _loads(p: Profile, c: Constants) -> tuple[_Loads, _Loads]:
    """Return seconds of a block's passes and of both ends: the device's and the host's."""
    loaded = (
        p.compute.forward,
        p.compute.backward,
        p.compute.recompute,
        p.compute.last,
        p.compute.first,
    )
    device, alone = zip(*(_times(p, load, c) for load in loaded), strict=True)
    return _Loads(*device), _hosts(p, _Loads(*alone), c)


def _busiest(p: Profile, device: _Loads, host: _Loads, c: Constants) -> tuple[_Stage, _Loads]:
    """Return a micro-batch on the busiest stage.

    And the host's seconds with those of added gradients.

    Either pass takes the longer of its device's and its host's time: what the host takes longer is
    a gap.
    """
    n, ends, ends_host = p.pipeline.stage_layers, _ends(p, device), _ends(p, host)
    host = host._replace(backward=host.backward + c.launch * p.host.grad_accum_launch)
    forward = n * device.forward + ends / 3.0
    backward = n * device.backward + ends * (2.0 / 3.0) + c.streams * p.compute.weights
    recompute = n * device.again
    launched = n * (host.backward + host.again) + ends_host * (2.0 / 3.0)
    return (
        _Stage(
            forward=forward,
            backward=backward,
            recompute=recompute,
            gap_forward=larger(n * host.forward + ends_host / 3.0 - forward, 0.0),
            gap_backward=larger(launched - backward - recompute, 0.0),
            ends=ends,
        ),
        host,
    )


def _data(
    p: Profile, device: _Loads, stage: _Stage, block: tuple[Array, Array], c: Constants
) -> _Data:
    """Return the seconds that data-parallel ranks exchange.

    They run beside a block's passes of ``block`` seconds.

    Weights are gathered, and gradients scattered, with every micro-batch
    (`Exchanges.every_micro_batch`) beside the block's own passes; or once a step beside the last
    backward, as far as the engine starts early.  Updated weights are gathered beside the next
    step's first forward.
    """
    m, n, comm = p.pipeline.micro_batches, p.pipeline.stage_layers, p.communication
    contention = smaller(c.contention * comm.contention, 1.0)
    forward, hidden_f = _overlap(c.data * comm.gather_forward, block[0], contention, c)
    backward, hidden_b = _overlap(
        c.data * (comm.gather_backward + comm.scatter * comm.every_micro_batch),
        block[1],
        contention,
        c,
        share=1.0 - comm.bucket,
    )
    load = n * (forward + backward) + c.data * comm.ends * comm.every_micro_batch
    once = (1.0 - comm.every_micro_batch) * (n * comm.scatter + comm.ends)
    window = n * device.backward + stage.ends * (2.0 / 3.0) + stage.gap_backward
    exposed, hidden = _overlap(c.data * once, window * comm.overlaps_backward, contention, c)
    # Buckets are as long as blocks: the last one is left over.
    last = choose(once > 0, comm.scatter, 0.0) * (1.0 - comm.every_micro_batch)
    exposed = larger(exposed, c.data * last)
    first = stage.forward + stage.gap_forward
    ahead, hidden_ahead = _overlap(c.data * comm.ahead, first, contention, c)
    after = c.data * comm.after
    return _Data(
        forward=forward,
        backward=backward,
        once=exposed + ahead + after,
        total=m * load + exposed + ahead + after,
        hidden_backward=hidden_b,
        overlapped=m * n * (hidden_f + hidden_b) + hidden + hidden_ahead,
    )


def _bubble(
    p: Profile, passes: tuple[Array, Array], whole: Array, exchanged: Array, late: Array
) -> Array:
    """Filling and draining, of a micro-batch's passes on one stage and through all (``whole``).

    ``late``: gradients of a stage's weights, which a zero-bubble schedule computes while others
    wait, twice a stage's worth.
    """
    forward, backward = passes
    others = larger(whole - forward - backward, 0.0)
    others = others + (p.pipeline.stages - 1.0) * (exchanged - 2.0 * late)
    both_ends = (p.pipeline.stages / 2.0 - 1.0) * (
        forward + 2.0 * backward + 1.5 * exchanged - 3.0 * late
    )
    others = choose(p.pipeline.dual > 0, both_ends, others)
    return choose(p.pipeline.stages > 1, larger(others, 0.0) / p.pipeline.virtual, 0.0)


def _exposed_offload_time(p: Profile, windows: tuple[Array, Array], c: Constants) -> Array:
    """Return the seconds that the device waits for the host's part of offloading."""
    if p.host.offload is NOTHING:
        return 0.0 * windows[0]
    return waited_for(Offload(*p.host.offload), p.pipeline.micro_batches, windows, c)


def _hosts(p: Profile, alone: _Loads, c: Constants) -> _Loads:
    """Host seconds of a block's passes and of both ends, of those (``alone``) of one thread.

    Threads of one interpreter launch forward passes in turn; autograd's for backward need none.
    """
    both, fetching = (p.host.threads + 2.0) / 3.0, c.launch * p.host.zero3_gather_launch
    turns, more = (
        (p.host.threads, 1.0, p.host.threads, both, both),
        (1.0, 1.0, p.compute.recomputes, 0.0, 0.0),
    )
    return _Loads(
        *(
            host * turn + passes * fetching
            for host, turn, passes in zip(alone, turns, more, strict=True)
        )
    )


def _split(p: Profile, block: Array, c: Constants) -> tuple[Array, Array]:
    """Return the seconds that tensor and context parallel add to a micro-batch.

    They run beside blocks of those seconds.

    And for how long a block waits for them each way, in which weights and gradients move.
    """
    exposed, _ = _overlap(c.tensor * p.communication.tensor_overlap, block, c.sliced, c)
    waiting = c.tensor * p.communication.tensor + exposed
    return p.pipeline.stage_layers * waiting + c.tensor * p.communication.tensor_ends, waiting / 2.0


def _exposed_all_to_all(
    p: Profile, exchanged: Array, computed_and_gaps: tuple[Array, Array], c: Constants
) -> tuple[Array, Array]:
    """Return the exposed and the hidden seconds of a micro-batch's all-to-all.

    ``computed_and_gaps``: seconds of computation, and of waiting for the host.  All of that goes
    without the processors that are given up (how many is set once, for a whole training); where
    this would cost more than it hides, nobody gives them up, and nothing is hidden.
    """
    computed, gaps = computed_and_gaps
    hidden = smaller(p.communication.all_to_all_overlap * exchanged, c.hidden * (computed + gaps))
    # The processors that are given up are what its kernels take: `contention` would count twice.
    cost = p.communication.reserved_sm_share * computed
    gained = larger(hidden - cost, 0.0)
    return exchanged - gained, choose(gained > 0, hidden, 0.0)


def _ends(p: Profile, loads: _Loads) -> Array:
    """Return the seconds of the busiest stage besides its blocks.

    Of several it is an end, as far as that is more than the blocks which the end lacks.
    """
    block, last, first = loads.forward + loads.backward + loads.again, loads.last, loads.first
    over = larger(last - p.pipeline.fewer_last * block, first - p.pipeline.fewer_first * block)
    both = last + first - (p.pipeline.fewer_last + p.pipeline.fewer_first) * block
    over = choose(p.pipeline.v_schedule > 0, p.pipeline.v_schedule * both, over)
    return choose(p.pipeline.stages > 1, larger(over, 0.0), last + first)


def _all_stages(p: Profile, device: _Loads, host: _Loads, weights: Array) -> Array:
    """Return seconds of a micro-batch through all stages, one after the other.

    Each direction takes the longer of its device's and its host's time, as on a single stage;
    ``weights``: device seconds of all stages' weights, once each.
    """
    ends = [(seconds, seconds.last + seconds.first) for seconds in (device, host)]
    forward = larger(*(p.pipeline.layers * seconds.forward + end / 3.0 for seconds, end in ends))
    back = [
        p.pipeline.layers * (seconds.backward + seconds.again) + end * (2.0 / 3.0)
        for seconds, end in ends
    ]
    return forward + larger(back[0] + weights, back[1])


def _half_widths(parts: dict[str, Any], p: Profile, c: Constants) -> dict[str, Any]:
    """Return the interval's half widths: towards shorter and longer times."""
    unsure = _uncertainty(parts, p.communication.link_unsure)
    return {name: hypotenuse(getattr(c, name) * unsure, p.unsure) for name in ("faster", "slower")}


def _uncertainty(parts: dict[str, Any], link: Any) -> Any:
    """Relative, of the sum: parts err by themselves, what is computed errs together.

    And what is exchanged errs together, where it is not known what the ``link`` goes through.
    """
    total = sum(parts.values())
    squares = sum((sigma * parts[name] / total) ** 2 for name, sigma in _UNSURE.items())
    exchanged = sum(parts[name] for name in parts if name.endswith("_comm"))
    return (_COMPUTED**2 + squares + (link * exchanged / total) ** 2) ** 0.5


_UNSURE = {
    "gaps": 0.4,
    "tensor_comm": 0.25,
    "expert_comm": 0.5,
    "pipeline_comm": 0.5,
    "bubble": 0.2,
    "data_comm": 0.4,
    "optimizer": 0.3,
    "offload": 0.5,
    "data": 1.0,
}
"""Relative uncertainty (one standard deviation) of each part; the rest shares `_COMPUTED`'s.

Presumed, by how much a part depends on what no layout says (the host, the network's other users,
how experts are chosen): only their ratios count, for the interval's sides are scaled so that they
hold four in five published steps of families that no constant was fitted to (`Constants.faster`
and ``slower``; `python -m validation.protocols`).
"""
_COMPUTED = 0.1


def _times(p: Profile, load: Array, c: Constants) -> tuple[Array, Array]:
    """Device and host seconds."""
    attention = c.attention + (c.newest - c.attention) * p.compute.newest_attention
    device = _products(p, load, c) + attention * load[1] + c.streams * load[2]
    return device, c.launch * load[3]


def _products(p: Profile, load: Array, c: Constants) -> Array:
    """Device seconds of products of matrices.

    Power is limited over many kernels: streams between products leave them some of theirs.
    """
    busy = load[0] / larger(load[0] + load[1] + load[2], 1e-12)
    return (1.0 + (c.products - 1.0) * p.compute.tensor_cores * busy) / p.compute.untuned * load[0]


def _overlap(
    exchanged: Array, computed: Array, lost: Array, c: Constants, share: Array = 1.0
) -> tuple[Array, Array]:
    """Return the seconds that a collective adds to a computation beside it, and those hidden.

    ``share``: share of either during which the other may run.
    """
    hidden = share * smaller(exchanged, c.hidden * computed)
    return exchanged - hidden + lost * hidden, hidden
