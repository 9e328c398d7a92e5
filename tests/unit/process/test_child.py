"""What a rank that failed is said to have failed of."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from trainrig.process.child import failure_of, is_out_of_memory

# What torch 2.4 to 2.13 and the libraries under it say on a GPU without memory.
NO_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total"),
    getattr(torch, "AcceleratorError", RuntimeError)(
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"
    ),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    dist.DistBackendError(
        "NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:77, unhandled cuda "
        "error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.5\n"
        "ncclUnhandledCudaError: Call to CUDA function failed.\n"
        "Last error:\nCuda failure 2 'out of memory'"
    ),
    dist.DistBackendError(
        "[1]: ncclUnhandledCudaError: Call to CUDA function failed. "
        "Last error: Failed to CUDA calloc async 608 bytes"
    ),
    RuntimeError("Failed: CUDA driver error: out of memory"),
    RuntimeError("HIP out of memory. Tried to allocate 2.00 GiB."),
    MemoryError(),
]


@pytest.mark.parametrize("error", NO_MEMORY, ids=lambda error: str(error)[:40])
def test_a_gpu_without_memory_is_known_by_whoever_says_so(error: Exception) -> None:
    assert failure_of(error)["kind"] == "oom"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (dist.DistBackendError("NCCL error: remote process exited, Cuda failure 217"), "peer"),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "error"),
        (RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), "error"),
    ],
)
def test_other_faults_of_a_gpu_are_not_taken_for_it(error: Exception, kind: str) -> None:
    assert not is_out_of_memory(error)
    assert failure_of(error)["kind"] == kind
