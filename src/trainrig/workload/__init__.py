"""What is run: shapes to FLOPs, bytes and parameters, one formula each for the whole program.

primitives   one matmul, vector operation or copy
shapes       the numbers that fix a transformer
named        shapes by name and by numbers
config_json  shapes from a Hugging Face config.json
find         which of these a user means
parameters   how many weights they have
parts        one operation of a transformer, forward and backward
blocks       the operations of a block, in order
ops          the operations of a training step, and their sums
spans        how many tokens T5 reads and writes in training
"""

from __future__ import annotations

from trainrig.workload.blocks import Step
from trainrig.workload.flops import (
    Op,
    block_flops,
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
    RopeScaling,
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
    "Step",
    "Work",
    "block_flops",
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
