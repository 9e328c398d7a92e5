"""How fast operations go on one machine: the one object that a predicted time is made of.

Answers the seconds of an operation of a training step (product of matrices, attention, streams of
bytes, collectives, sends) on a chip by itself, with where each rate comes from and how uncertain it
is.  Does not answer what a step is made of (workload) nor what overlaps (the predictor's step).
Built from claims (`rates_of_chip`) or from this machine's own measurements (`rates_of_records`):
the same type.  Sizes are numbers or arrays of equal shape; seconds come back as they went in.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainrig.errors import UsageError
from trainrig.prediction.rates.links import Links
from trainrig.prediction.rates.matmul import MatmulRates
from trainrig.workload.arrays import Number, Real, ceil_div, choose, larger, smaller
from trainrig.workload.operators import dtype_bytes

OPERATIONS = ("matmul", "attention", "stream", "launch", "collective", "host_link", "disk")
"""The keys of `Rates.spread` and `Rates.provenance`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Kernels that move bytes and do next to nothing else."""

    bandwidth: float
    """B/s that large ones reach."""
    latency: float
    """s of the shortest kernel."""
    cache: float = 0.0
    """B: what was just written and is smaller is still in the chip's cache."""
    cache_bandwidth: float = 0.0
    """B/s from there."""

    def time(self, num_bytes: Number) -> Real:
        """Return seconds of one kernel that moves ``num_bytes``."""
        from_memory = num_bytes / self.bandwidth
        if self.cache <= 0.0 or self.cache_bandwidth <= self.bandwidth:
            return self.latency + from_memory
        cached = smaller(num_bytes, self.cache) / self.cache_bandwidth
        # Past the cache's size the benefit goes, over as many bytes again.
        lost = larger(num_bytes - self.cache, 0.0)
        slope = 2.0 / self.bandwidth - 1.0 / self.cache_bandwidth
        return self.latency + smaller(from_memory, cached + lost * slope)


@dataclass(frozen=True, slots=True, kw_only=True)
class Direction:
    """A fused attention's forward or its backward."""

    share: float
    """Rate at a head's size of 128, of what large products run at."""
    rows: int
    """Queries that one processor works on at a time."""
    tail: float
    """Blocks of rows that the last processor works on alone, on average."""
    most: float = math.inf
    """FLOP/s at a head's size of 128, in half precision, that the fastest published run of such a
    kernel reaches, of the FLOPs that are needed: not those of scores that are masked afterwards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRates:
    """softmax(q·kᵀ)·v without a score matrix in memory."""

    forward: Direction
    backward: Direction
    generation: tuple[Direction, Direction]
    """Forward and backward of kernels that were written for this generation of chips."""
    softmax: float
    """Exponentials and sums of a score cost as much as this many further elements of a head."""
    step: int = 32
    """Kernels are built for heads of multiples of this size; others are padded."""
    wide: tuple[float, float] = (1.0, 1.0)
    """Rate of the memory-efficient kernel, which takes TF32, against flash attention's, forward and
    backward."""
    lanes: tuple[float, float] = (0.5, 0.4)
    """Element rates in fp32, against products in fp32: no tensor core is waited for, and what flash
    attention reaches of a generation's tensor cores says nothing of it."""

    is_current: bool = False
    """True if plain flash attention is today's library, whose rates these are as they stand."""

    def direction(self, kernels: str, backward: bool) -> Direction:
        """Plain flash attention is an older generation's; fused stacks bring their own."""
        if kernels in ("flash+fused", "compiled"):
            return self.generation[1] if backward else self.generation[0]
        return self.backward if backward else self.forward

    def padded(self, head_dim: Number) -> Real:
        """Elements of a head that products run over, softmax's worth added."""
        return ceil_div(head_dim, self.step) * self.step + self.softmax


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Seconds of operations on one machine, and where they come from."""

    device: str
    matmuls: MatmulRates
    streams: Stream
    attentions: AttentionRates
    links: Links
    launch: float
    """Host seconds for each kernel that an eager framework launches."""
    host_link: float
    """B/s between host memory and device, one direction."""
    host_link_shared: float = 0.0
    """B/s between host and a device where a node's devices share lanes; 0: as one alone."""
    disk: float
    """B/s that a disk reads or writes."""
    host_memory: float = field(default=120e9)
    """B/s of host memory that all devices of a node share; presumed unless a cluster says it."""
    memory_bytes: float
    """B that one device offers to programs, without what its driver keeps."""
    power: float | None
    """Power limit of one device in W; None where no source states it."""
    peaks: Mapping[str, float] = field(default_factory=dict)
    """FLOP/s as claimed, by dtype: the denominator of MFU."""
    spread: Mapping[str, float] = field(default_factory=dict)
    """Relative uncertainty (one standard deviation) of each of OPERATIONS."""
    provenance: Mapping[str, str] = field(default_factory=dict)
    """Origin of the rates of each of OPERATIONS, in words."""
    supports_non_tn_fp8: bool = False
    """True if fp8 products take operands in any order of memory (Blackwell; Transformer Engine's
    `is_non_tn_fp8_gemm_supported`): elsewhere each is transposed, as well as narrowed."""
    graphed: bool = False
    """True if NVIDIA's recipes for the chip launch from CUDA graphs: nearly all of those in
    Megatron-Bridge's perf_recipes for data centers' Blackwell do, and hardly any for Hopper, of
    which H200 and H20 are (v0.6)."""
    untuned: float = 1.0
    """Share of the tensor cores' rate that a step's products reach where the library chooses
    kernels by itself and the rate was found with tuning."""
    plain: float = 1.0
    """Share of a stream's rate that torch's own kernels reach, which nothing fuses."""
    unsure: float = 0.0
    """Additional half width of a step's interval (natural logarithm) where nobody published
    anything of chips of this class."""

    def matmul(
        self,
        m: Number,
        n: Number,
        k: Number,
        *,
        batch: Number = 1,
        dtype: str,
        output_bytes: float | None = None,
    ) -> Real:
        """Device seconds of one call: ``batch`` products (m, k)·(k, n).

        ``output_bytes``: of an element of the result, the dtype's own unless given (fp32 gradients
        that are accumulated are read and written: 8).
        """
        self._check(dtype)
        size = dtype_bytes(dtype) if output_bytes is None else output_bytes
        return self.matmuls.time(m, n, k, batch, dtype, max(size, 2.0))

    def attention(
        self,
        *,
        batch: Number,
        heads: Number,
        queries: Number,
        keys: Number,
        head_dim: Number,
        dtype: str,
        causal: bool,
        backward: bool = False,
        kv_heads: Number | None = None,
        kernels: str = "flash",
    ) -> Real:
        """Device seconds of softmax(q·kᵀ)·v over all heads, one direction, in one fused kernel.

        q: (batch, heads, queries, head_dim); k and v: (batch, kv_heads, keys, head_dim), as many
        heads of keys as of queries unless ``kv_heads`` says.  Forward multiplies twice, backward
        five times, for it computes the scores again: 2·queries·keys·head_dim FLOPs each (Dao 2023,
        FlashAttention-2, arXiv 2307.08691, section 4.1), half of the keys seen where ``causal``.
        It takes the longest of these at the kernel's share of the products' rate
        (`AttentionRates`) with
        what its last blocks leave idle, of those that are needed at the most that such kernels
        reach (`Direction.most`), and of its tensors' way through memory: forward reads q, k,
        v and writes the output; backward moves each of those four times.  Kernels that write
        scores are none of this: the workload counts batched products and streams for them.
        Raises UsageError where the device has no rate of the dtype.
        """
        self._check(dtype)
        products, how = (5.0 if backward else 2.0), self.attentions.direction(kernels, backward)
        wide = self.attentions.padded(head_dim) * 128.0 / self.attentions.padded(128)
        num_bytes = 2.0 * products * wide
        # A causal block works on the keys up to its last query: half, and half a block more.
        seen = smaller((keys + how.rows) / 2.0, keys) if causal else keys * 1.0
        share = how.share
        if dtype == "fp32":
            share = self.attentions.lanes[int(backward)]
        elif dtype == "tf32":
            share = share * self.attentions.wide[int(backward)]
        rate = self.matmuls.sustained[dtype] * share
        compute = num_bytes * batch * heads * queries * seen / rate
        least = num_bytes * batch * heads * queries * (keys * (0.5 if causal else 1.0)) / how.most
        tail = (
            how.tail
            * num_bytes
            * smaller(queries, how.rows)
            * keys
            * self.matmuls.processors
            / rate
        )
        vectors = heads * queries + (heads if kv_heads is None else kv_heads) * keys
        moved = (products - 1.0) * 2.0 * dtype_bytes(dtype) * batch * head_dim * vectors
        busy = larger(compute + tail, least if dtype in ("bf16", "fp16") else 0.0)
        return self.streams.latency + larger(busy, moved / self.streams.bandwidth)

    def stream(self, num_bytes: Number, *, kernels: Number = 1) -> Real:
        """Device seconds of ``kernels`` memory-bound kernels that move ``num_bytes`` together.

        ``num_bytes``: B read and written, of all of them; each moves its equal part by itself.
        """
        return kernels * self.streams.time(num_bytes / larger(kernels, 1))

    def optimizer(self, num_bytes: Number, *, tensors: Number, style: str = "fused") -> Real:
        """Return seconds of one optimizer step over ``num_bytes`` of states, weights and gradients.

        ``fused``: one kernel for about a hundred tensors; ``multi``: foreach's handful of kernels
        over lists, which read and write what they hand on; ``loop``: a dozen kernels a tensor.
        """
        if style not in _OPTIMIZER:
            raise UsageError(
                f"unknown optimizer style {style!r}", "one of: " + ", ".join(_OPTIMIZER)
            )
        factor, per_tensor, group = _OPTIMIZER[style]
        launches = per_tensor * larger(tensors / group, 1.0)
        device = self.streams.latency * launches + factor * num_bytes / self.streams.bandwidth
        return larger(device, launches * self.launch)

    def offload(self, num_bytes: Number, *, to: str = "host", devices: Number = 1) -> Real:
        """Seconds to move ``num_bytes`` one way between the device and host memory or a disk.

        ``num_bytes``: B of one device; ``devices``: of the node, which do so at the same time and
        share its lanes.
        """
        link = choose(devices > 1, self.host_link_shared or self.host_link, self.host_link)
        return num_bytes / {"host": link, "disk": smaller(link, self.disk)}[to]

    def replace(self, **changes: Any) -> Rates:
        """Return a copy with other fields."""
        return dataclasses.replace(self, **changes)

    def _check(self, dtype: str) -> None:
        if dtype not in self.matmuls.sustained:
            raise UsageError(
                f"no rate of {dtype} products on {self.device}",
                "one of: " + ", ".join(sorted(self.matmuls.sustained)),
            )


_OPTIMIZER = {"fused": (1.0, 1.0, 100.0), "multi": (1.9, 12.0, 100.0), "loop": (1.9, 12.0, 1.0)}
"""Times the bytes of one pass; launches of a group of tensors; tensors of a group."""
