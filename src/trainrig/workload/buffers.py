"""Communication buffers: gradients in buckets, gathered weights, in bytes of one rank.

ddp         torch copies all gradients into its buckets, which stay (gradient_as_bucket_view off)
fsdp        two blocks' weights gathered at a time, the one computed with and the next one, the
            embedding and head for the whole step, and one block's whole gradients; with ZeRO 2
            all weights stay gathered
deepspeed   during all of backward a bucket for 2e8 gradients, with stage 2 a second one, filled
            while the first is on its way (`overlap_comm`); with stage 3 the gathered weights
megatron    gradients lie in their buffer already; with sequence parallelism what is gathered
Sources: torch's and DeepSpeed's documentation of the options named here.
"""

from __future__ import annotations

from typing import Any

from trainrig.workload.layout import Layout
from trainrig.workload.parameters import block_parameters, parameters
from trainrig.workload.shapes import ModelShape
from trainrig.workload.states import States

_BUCKET = 2e8
"""reduce_bucket_size of Hugging Face's DeepSpeed configurations, in numbers."""


def buffers(shape: ModelShape, layout: Layout, states: States, num_parameters: Any) -> Any:
    """Bytes of buffers beside ``num_parameters`` of one rank."""
    import numpy as np

    many, zero = np.asarray(layout.gpus) > layout.tp * layout.pp, np.asarray(layout.zero)
    grad = states.lasting_grad + states.passing_grad
    size: Any = 0.0
    if layout.engine == "ddp":
        size = np.where(many & (zero == 0), grad * num_parameters, 0.0)
    if (zero >= 3).any():
        gathered = _gathered(shape, layout, 0.0 if layout.lora_rank else grad)
        size = size + np.where(many & (zero >= 3), gathered, 0.0)
    if layout.engine == "fsdp" and (zero == 2).any():
        narrow = 4 if layout.precision in ("fp32", "tf32") else 2
        size = np.where(many & (zero == 2), narrow * num_parameters, size)
    if layout.engine == "megatron":
        shared = (np.asarray(layout.sequence_parallel) > 0) & (np.asarray(layout.tp) > 1)
        size = size + shared * (2 * layout.seq * shape.hidden) * layout.micro_batch
    return size


def _gathered(shape: ModelShape, layout: Layout, grad: float) -> Any:
    """Whole weights of two blocks and of the ends, whole gradients of one block."""
    narrow = 4 if layout.precision in ("fp32", "tf32") else 2
    block = block_parameters(shape, decoder=shape.num_decoder_layers > 0) / layout.tp
    found = parameters(shape)
    ends = (found.embedding + found.head) / layout.tp
    return narrow * (2 * block + ends) + grad * block


def buckets(layout: Layout, states: States) -> Any:
    """DeepSpeed's buckets of gradients: full from the loss on, however small the model."""
    import numpy as np

    if layout.engine != "deepspeed":
        return 0.0
    zero = np.asarray(layout.zero)
    many = np.where((np.asarray(layout.dp) > 1) & (zero < 3), np.minimum(zero, 2), 0)
    return many * _BUCKET * (states.lasting_grad + states.passing_grad)
