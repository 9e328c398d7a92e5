"""Where a step's time went, from traces as Kineto writes them."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from trainrig.trace import (
    STEP,
    MissingActivityError,
    both,
    break_down,
    length,
    merged,
    read_events,
    step_spans,
    without,
)

HOST, COMPUTE, NCCL, COPY = 1, 7, 20, 24


class Trace:
    """A trace of one rank; times in milliseconds."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._ids = count(100)
        self.annotate(STEP, 0, 100)

    def add(self, category: str, name: str, begin: float, end: float, **args: Any) -> None:
        """Add a complete event as libkineto's output_json.cpp writes it."""
        thread = args.get("stream", HOST)
        self.events.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": 0,
                "tid": thread,
                "ts": begin * 1e3,
                "dur": (end - begin) * 1e3,
                "args": args,
            }
        )

    def annotate(self, name: str, begin: float, end: float) -> None:
        """Add a host's annotation and, as Kineto does, its copy on each stream."""
        self.add("user_annotation", name, begin, end)
        for stream in (COMPUTE, NCCL):
            self.add("gpu_user_annotation", name, begin, end, stream=stream)

    def kernel(
        self,
        name: str,
        begin: float,
        end: float,
        *,
        stream: int = COMPUTE,
        operation: str = "aten::mm",
        collective: str = "",
        group: str = "",
        metadata_on_kernel: bool = True,
    ) -> None:
        """Add a kernel, the call that launched it and the operation around that call."""
        identity, launch = next(self._ids), begin / 100
        described = {"Collective name": collective, "Process Group Description": group}
        described = {key: value for key, value in described.items() if value}
        self.add("cpu_op", operation, launch, launch + 0.003, **{"External id": identity})
        if collective:
            identity = next(self._ids)
            self.add(
                "cpu_op",
                "record_param_comms",
                launch,
                launch + 0.003,
                **{"External id": identity},
                **described,
            )
        self.add(
            "cuda_runtime",
            "cudaLaunchKernelExC",
            launch + 0.001,
            launch + 0.002,
            correlation=identity,
            **{"External id": identity},
        )
        self.add(
            "kernel",
            name,
            begin,
            end,
            stream=stream,
            correlation=identity,
            **{"External id": identity},
            **(described if metadata_on_kernel else {}),
        )

    def parts(self, *, piped: bool = False) -> dict[str, float]:
        """The step's parts in milliseconds."""
        events = read_events({"traceEvents": self.events})
        (step,) = step_spans(events)
        parts = break_down(events, step, piped=piped, on_device=True)
        del parts["own_in"]
        assert parts["own_s"] + parts["communication_s"] + parts["bubble_s"] == pytest.approx(0.1)
        return {name: round(seconds * 1e3, 6) for name, seconds in parts.items()}


def test_annotations_copied_to_the_device_are_no_work() -> None:
    """20 ms of exposed and 20 ms of overlapped communication, 5 ms idle."""
    trace = Trace()
    trace.annotate("Optimizer.step#AdamW.step", 0, 100)
    trace.kernel("ampere_bf16_gemm", 0, 75)
    trace.kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(...)", 55, 75, stream=NCCL)
    trace.kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(...)", 80, 100, stream=NCCL)
    parts = trace.parts()
    assert parts["communication_s"] == pytest.approx(20, abs=1)
    assert parts["overlapped_s"] == pytest.approx(20, abs=1)
    assert parts["idle_s"] == pytest.approx(5, abs=1)


@pytest.mark.parametrize("metadata_on_kernel", [True, False])
def test_an_all_to_all_is_no_pipeline_message(metadata_on_kernel: bool) -> None:
    """Expert parallelism's kernels are named like those of a pipeline's messages."""
    trace = Trace()
    trace.kernel("gemm", 0, 60)
    trace.kernel(
        "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
        60,
        80,
        stream=NCCL,
        operation="c10d::alltoall_base_",
        collective="all_to_allv",
        metadata_on_kernel=metadata_on_kernel,
    )
    trace.kernel(
        "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
        85,
        95,
        stream=NCCL,
        operation="c10d::recv_",
        collective="recv",
        metadata_on_kernel=metadata_on_kernel,
    )
    parts = trace.parts(piped=True)
    assert (parts["communication_s"], parts["bubble_s"], parts["idle_s"]) == (20, 10, 10)
    assert trace.parts()["communication_s"] == 30, "without stages every message is communication"


def test_the_operation_around_a_launch_tells_where_metadata_do_not() -> None:
    trace = Trace()
    trace.kernel("gemm", 0, 60)
    trace.kernel("ncclDevKernel_SendRecv", 60, 80, stream=NCCL, operation="c10d::alltoall_")
    parts = trace.parts(piped=True)
    assert (parts["communication_s"], parts["bubble_s"]) == (20, 0)


def test_rccl_s_generic_kernels_are_told_by_their_operation() -> None:
    """Every kernel of RCCL has one name; AMD's roctracer writes the same categories."""
    trace = Trace()
    trace.kernel("Cijk_Ailk_Bljk_BBS_BH", 0, 60)
    generic = "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)"
    trace.kernel(generic, 60, 75, stream=NCCL, operation="c10d::allreduce_", collective="allreduce")
    trace.kernel(generic, 80, 90, stream=NCCL, operation="c10d::send", collective="send")
    trace.add("gpu_memcpy", "CopyHostToDevice", 95, 100, stream=COPY)
    parts = trace.parts(piped=True)
    assert (parts["communication_s"], parts["bubble_s"], parts["idle_s"]) == (15, 10, 10)


def test_a_message_of_another_group_than_the_pipeline_s_is_communication() -> None:
    """Ring attention sends and receives beside a pipeline."""
    trace = Trace()
    trace.kernel("gemm", 0, 60)
    for begin, group in ((60, "mesh_cp"), (75, "mesh_pp"), (90, "PIPELINE_MODEL_PARALLEL_GROUP")):
        trace.kernel(
            "ncclDevKernel_SendRecv",
            begin,
            begin + 10,
            stream=NCCL,
            operation="c10d::recv_",
            collective="recv",
            group=group,
        )
    parts = trace.parts(piped=True)
    assert (parts["communication_s"], parts["bubble_s"]) == (10, 20)


def test_kernels_of_a_cuda_graph_are_told_by_their_own_names() -> None:
    """A graph is launched as one: no operation belongs to a kernel in it."""
    trace = Trace()
    trace.add("cuda_runtime", "cudaGraphLaunch", 0, 0.1, correlation=5)
    node = {"correlation": 5, "graph node id": 9, "stream": COMPUTE}
    trace.add("kernel", "gemm", 0, 60, **node)
    trace.add("kernel", "ncclDevKernel_AllGather_RING_LL", 60, 80, **node)
    trace.add("kernel", "ncclDevKernel_SendRecv", 80, 90, **node)
    parts = trace.parts(piped=True)
    assert (parts["communication_s"], parts["bubble_s"], parts["idle_s"]) == (20, 10, 10)
    assert trace.parts()["communication_s"] == 30


def test_communication_beside_computation_of_another_stream_is_overlapped() -> None:
    trace = Trace()
    trace.kernel("gemm", 0, 30)
    trace.kernel("flash_fwd_kernel", 20, 60, stream=9)
    trace.kernel("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", 40, 80, stream=NCCL)
    trace.kernel("ncclDevKernel_AllGather_RING_LL", 50, 70, stream=21)
    parts = trace.parts()
    assert (parts["communication_s"], parts["overlapped_s"], parts["idle_s"]) == (20, 20, 20)


def test_a_trace_without_kernels_says_why_and_has_no_parts() -> None:
    """Without CUPTI the profiler sees launches only: the device would look idle."""
    trace = Trace()
    trace.add("cuda_runtime", "cudaLaunchKernel", 0, 50, correlation=3)
    with pytest.raises(MissingActivityError, match="CUPTI"):
        trace.parts()


def test_events_of_older_versions_are_read() -> None:
    (event,) = read_events(
        {
            "traceEvents": [
                {"ph": "M", "name": "process_name"},
                {"ph": "X", "cat": "Kernel", "name": "gemm", "ts": 5, "dur": 1, "args": None},
                {"ph": "X", "cat": "kernel", "name": "no time"},
            ]
        }
    )
    assert event.is_device_work
    assert event.span == pytest.approx((5e-6, 6e-6))


def test_intervals() -> None:
    assert merged([(3, 4), (0, 1), (1, 2), (5, 5)]) == [(0, 2), (3, 4)]
    assert both([(0, 4), (6, 9)], [(1, 2), (3, 7), (8, 10)]) == [(1, 2), (3, 4), (6, 7), (8, 9)]
    assert without([(0, 10)], [(1, 2), (4, 6), (9, 12)]) == [(0, 1), (2, 4), (6, 9)]
    assert without([(0, 1), (2, 3)], []) == [(0, 1), (2, 3)]
    assert length([(0, 2), (1, 4)]) == 4
