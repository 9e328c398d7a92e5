"""What is run: shapes to FLOPs, bytes and parameters, one formula each for the whole program.

model            the numbers that fix a transformer, and how many weights it has
presets          shapes by name and by numbers
hf_config        shapes to and from a Hugging Face config.json
model_lookup     which of these a user means
programs         what each training program does by default, and the engines they train on
layout           how a step is spread over devices, what it is run with, and what can be run
operators        one operation, forward and backward: a matmul, a copy, an attention
blocks           the operations of a block, in order
kernels          what a device runs for them
flops            the operations of a training step, and their sums
numerics         bytes of weights, gradients and states
memory           what a step needs on each GPU, by part
span_corruption  how many tokens T5 reads and writes in training
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainrig import lazy

if TYPE_CHECKING:
    from trainrig.workload.flops import (
        Op,
        block_ops,
        hardware_flops,
        model_flops,
        step_ops,
        total_flops,
    )
    from trainrig.workload.model import (
        FAMILIES,
        ModelShape,
        Parameters,
        block_parameters,
        parameters,
    )
    from trainrig.workload.model_lookup import find
    from trainrig.workload.operators import (
        COPY_DIRECTIONS,
        DTYPE_BYTES,
        VECTOR_OPS,
        Work,
        copy,
        dtype_bytes,
        matmul,
        output_bytes,
        vector,
    )
    from trainrig.workload.presets import NAMED, custom, named
    from trainrig.workload.shape_parts import RopeScaling
else:
    __getattr__ = lazy.exports(
        __name__,
        {
            "flops": (
                "Op",
                "block_ops",
                "hardware_flops",
                "model_flops",
                "step_ops",
                "total_flops",
            ),
            "model": (
                "FAMILIES",
                "ModelShape",
                "Parameters",
                "block_parameters",
                "parameters",
            ),
            "model_lookup": ("find",),
            "operators": (
                "COPY_DIRECTIONS",
                "DTYPE_BYTES",
                "VECTOR_OPS",
                "Work",
                "copy",
                "dtype_bytes",
                "matmul",
                "output_bytes",
                "vector",
            ),
            "presets": (
                "NAMED",
                "custom",
                "named",
            ),
            "shape_parts": ("RopeScaling",),
        },
    )

__all__ = [
    "COPY_DIRECTIONS",
    "DTYPE_BYTES",
    "FAMILIES",
    "NAMED",
    "VECTOR_OPS",
    "ModelShape",
    "Op",
    "Parameters",
    "RopeScaling",
    "Work",
    "block_ops",
    "block_parameters",
    "copy",
    "custom",
    "dtype_bytes",
    "find",
    "hardware_flops",
    "matmul",
    "model_flops",
    "named",
    "output_bytes",
    "parameters",
    "step_ops",
    "total_flops",
    "vector",
]
