"""A `torch.cuda` that is not there: a GPU's paths, followed on any machine, by a virtual clock.

    with FakeCuda(2) as cuda:                    # torch sees cuda:0 and cuda:1
        x = torch.randn(8, 8, device="cuda:1")   # computed on the processor, remembered as cuda:1's
        y = x @ x                                # takes `cuda.work` seconds of cuda:1's stream
        torch.cuda.synchronize("cuda:1")         # and the host waits so long: `cuda.now`

How.  Tensors are the processor's: what is computed is right.  A `TorchFunctionMode` sees each call
of torch that Python makes, takes ``device=`` and ``pin_memory=`` out of it, remembers on which
device the result lies (``tensor.device`` and ``is_cuda`` say so), and puts the call's seconds at
the end of a stream.  As on a GPU, a call works on the current stream of *its tensors'* device, and
an event is recorded on the current stream of the *current* device: whoever forgets `set_device`
times an empty stream.  A launch takes the host ``launch`` seconds (none by default); only what
waits (`synchronize`, ``item``, a blocking copy) winds the host's clock on.  A copy to the host that
does not block holds NaN until somebody has waited for it.

What is not there: kernels that torch calls by itself (an autograd's backward is one call), graphs,
memory pools (an allocation is as large as its tensor), other threads (a mode is one thread's).
"""

from __future__ import annotations

import math
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from trainrig.machine.nvidia import read_device
from trainrig.machine.snapshot import Gpu

PRODUCT_RATES = {
    torch.float64: 1e8,
    torch.float32: 2e8,
    torch.bfloat16: 2e9,
    torch.float16: 2e9,
    torch.int8: 4e9,
}
"""FLOP/s of `seconds_of_call`'s products; tf32's is another: `TF32_RATE`.

Slow chips: small tensors then take milliseconds, and a sample is a few calls.
"""
TF32_RATE = 1e9
BYTE_RATE = 1e8
LINK_RATE = 2e7
IDLE_HZ, BUSY_HZ = 0.2e9, 1.8e9

_PRODUCTS = frozenset(["matmul", "mm", "bmm", "linear", "_int_mm", "_scaled_mm", "__matmul__"])
_WAITING = frozenset(
    ["item", "tolist", "numpy", "nonzero", "__bool__", "__float__", "__int__", "__index__"]
)
_FREE = frozenset(
    [
        *("size", "dim", "numel", "stride", "element_size", "view", "reshape", "__getitem__"),
        *("detach", "detach_", "requires_grad_", "split", "flatten", "expand", "unbind", "__len__"),
        *("is_contiguous", "record_stream", "transpose", "t", "unsqueeze", "squeeze", "__iter__"),
        *("is_floating_point", "data_ptr", "storage_offset", "view_as", "chunk", "empty"),
    ]
)


@dataclass(frozen=True, repr=False)
class Call:
    """One call of torch that works on a device."""

    name: str
    device: int
    tensors: tuple[torch.Tensor, ...]
    """Inputs that are tensors, then results."""
    tf32: bool
    """Whether products of fp32 were allowed to round."""


def seconds_of_call(call: Call) -> float:
    """The default of `FakeCuda.work`: products by their FLOPs, all else by the largest tensor."""
    first = call.tensors[0]
    if call.name in _PRODUCTS and len(call.tensors) > 2:
        flops = 2.0 * call.tensors[-1].numel() * first.shape[-1]
        rounded = call.tf32 and first.dtype is torch.float32
        return flops / (TF32_RATE if rounded else PRODUCT_RATES.get(first.dtype, 4e9))
    return max(t.numel() * t.element_size() for t in call.tensors) / BYTE_RATE


@dataclass(eq=False, repr=False)
class Stream:
    """Work in order; ``end`` is when the last of it is done."""

    cuda: FakeCuda
    device_index: int
    end: float = 0.0

    def put(self, seconds: float) -> None:
        self.end = max(self.end, self.cuda.now) + seconds

    def synchronize(self) -> None:
        self.cuda.wait_until(self.end)

    def query(self) -> bool:
        return self.end <= self.cuda.now

    def wait_event(self, event: Event) -> None:
        self.end = max(self.end, event.moment or 0.0)

    def wait_stream(self, other: Stream) -> None:
        self.end = max(self.end, other.end)

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event(self.cuda)
        event.record(self)
        return event


class Event:
    """A mark in a stream: the moment when all work before it is done."""

    def __init__(self, cuda: FakeCuda, enable_timing: bool = False, **_: Any) -> None:
        self._cuda, self._timing = cuda, enable_timing
        self.moment: float | None = None
        self.device_index: int | None = None

    def record(self, stream: Stream | None = None) -> None:
        self._cuda.check()
        stream = stream or self._cuda.current_stream()
        self.device_index = stream.device_index
        stream.put(0.0)
        self.moment = stream.end

    def synchronize(self) -> None:
        self._cuda.check()
        self._cuda.wait_until(self.moment or 0.0)

    def query(self) -> bool:
        return self.moment is None or self.moment <= self._cuda.now

    def wait(self, stream: Stream | None = None) -> None:
        (stream or self._cuda.current_stream()).wait_event(self)

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds.  RuntimeError where CUDA has one."""
        if not (self._timing and end._timing):
            raise RuntimeError("Both events must be created with argument 'enable_timing=True'.")
        if self.moment is None or end.moment is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        if self.device_index != end.device_index:
            raise RuntimeError("CUDA error: invalid resource handle")
        if end.moment > self._cuda.now:
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        return (end.moment - self.moment) * 1e3


@dataclass(eq=False, repr=False)
class Device:
    """One of the GPUs."""

    index: int
    name: str
    memory_bytes: int
    l2_bytes: int
    streams: list[Stream]
    uuid: str
    allocated: int = 0
    peak: int = 0
    seed: int | None = None

    @property
    def end(self) -> float:
        """When all of its streams are done."""
        return max(stream.end for stream in self.streams)

    @property
    def properties(self) -> types.SimpleNamespace:
        return types.SimpleNamespace(
            name=self.name,
            uuid=self.uuid,
            total_memory=self.memory_bytes,
            L2_cache_size=self.l2_bytes,
            major=8,
            minor=9,
            multi_processor_count=128,
        )


class _Generator(torch.Generator):
    """Draws on the processor, and says that it does so on its GPU."""

    fake: torch.device

    @property
    def device(self) -> torch.device:
        return self.fake


@dataclass(eq=False, repr=False)
class FakeCuda:
    """The GPUs of a machine, their streams and the clock.  Use as a context manager."""

    count: int = 2
    work: Callable[[Call], float] = seconds_of_call
    """Seconds that a call takes on its device."""
    launch: float = 0.0
    """Seconds that each call takes the host."""
    memory_bytes: int = 1 << 34
    l2_bytes: int = 1 << 16
    now: float = 1000.0
    """The host's clock."""
    error: str | None = None
    """A sticky error: every later call of CUDA raises it, as after an illegal access."""
    calls: list[Call] = field(default_factory=list)
    current: int = 0

    def __post_init__(self) -> None:
        self.devices = [
            Device(
                index=number,
                name=f"Fake GPU {number}",
                memory_bytes=self.memory_bytes,
                l2_bytes=self.l2_bytes,
                streams=[Stream(self, number)],
                uuid=f"00000000-0000-0000-0000-{number:012d}",
            )
            for number in range(self.count)
        ]
        self._current_streams = [device.streams[0] for device in self.devices]
        self._arriving: list[tuple[float, torch.Tensor, torch.Tensor]] = []
        self._patch = pytest.MonkeyPatch()
        self._mode = _Mode(self)
        self._sizes: dict[int, tuple[int, int]] = {}

    # ---- the clock

    def wait_until(self, moment: float) -> None:
        """The host sleeps; what was to arrive by then has arrived."""
        self.now = max(self.now, moment)
        there = [each for each in self._arriving if each[0] <= self.now]
        self._arriving = [each for each in self._arriving if each[0] > self.now]
        with torch._C.DisableTorchFunction():
            for _, target, value in there:
                target.copy_(value)

    def wind(self, *modules: types.ModuleType) -> None:
        """Let these modules' ``time`` be the host's virtual clock."""
        import time

        for module in modules:
            self._patch.setattr(
                module,
                "time",
                types.SimpleNamespace(
                    perf_counter=lambda: self.now,
                    perf_counter_ns=lambda: round(self.now * 1e9),
                    monotonic=lambda: self.now,
                    time=lambda: self.now,
                    thread_time=lambda: self.now,
                    get_clock_info=time.get_clock_info,
                ),
            )

    def busy(self, device: Any = None) -> bool:
        """Whether a device has work at this moment."""
        return self.devices[self.index_of(device)].end > self.now

    def conditions(self, device: int | str, **_: Any) -> Gpu:
        """As `machine.counters.gpu_conditions` has it: clocks fall at rest."""
        of = {gpu.uuid: gpu.index for gpu in self.devices}
        number = of[device.removeprefix("GPU-")] if isinstance(device, str) else device
        clock = BUSY_HZ if self.busy(number) else IDLE_HZ
        return read_device(number, {"sm_clock": clock / 1e6, "throttle": 0, "processes": []})

    # ---- torch.cuda

    def __enter__(self) -> FakeCuda:
        patch = partial(self._patch.setattr, torch.cuda)
        patch("is_available", lambda: True)
        patch("is_initialized", lambda: True)
        patch("init", lambda: None)
        patch("device_count", lambda: self.count)
        patch("current_device", lambda: self.current)
        patch("set_device", self.set_device)
        patch("device", self.device)
        patch("Event", partial(Event, self))
        patch("Stream", self.new_stream)
        patch("current_stream", self.current_stream)
        patch("default_stream", lambda device=None: self._of(device).streams[0])
        patch("stream", self.stream)
        patch("synchronize", self.synchronize)
        patch("get_device_properties", lambda device=None: self._of(device).properties)
        patch("get_device_name", lambda device=None: self._of(device).name)
        patch("get_device_capability", lambda device=None: (8, 9))
        patch("mem_get_info", self.mem_get_info)
        patch("memory_allocated", lambda device=None: self._of(device).allocated)
        patch("memory_reserved", lambda device=None: self._of(device).allocated)
        patch("max_memory_allocated", lambda device=None: self._of(device).peak)
        patch("max_memory_reserved", lambda device=None: self._of(device).peak)
        patch("reset_peak_memory_stats", self.reset_peak_memory_stats)
        patch("empty_cache", self.check)
        patch("manual_seed", lambda seed: self._seed(seed, [self.devices[self.current]]))
        patch("manual_seed_all", lambda seed: self._seed(seed, self.devices))
        self._patch.setattr(torch, "Generator", self._generator_type())
        self._tf32 = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = False
        self._mode.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._mode.__exit__(None, None, None)
        torch.backends.cuda.matmul.allow_tf32 = self._tf32
        self._patch.undo()

    def check(self) -> None:
        """Raise the sticky error, if there is one."""
        if self.error is not None:
            raise torch.AcceleratorError(self.error)

    def index_of(self, device: Any) -> int:
        """The number of a device, however it is named; RuntimeError where there is none."""
        if device is None:
            return self.current
        number = device if isinstance(device, int) else torch.device(device).index
        number = self.current if number is None else number
        if not 0 <= number < self.count:
            raise RuntimeError("CUDA error: invalid device ordinal")
        return int(number)

    def set_device(self, device: Any) -> None:
        self.check()
        self.current = self.index_of(device)

    @contextmanager
    def device(self, device: Any) -> Iterator[None]:
        before, self.current = self.current, self.index_of(device)
        yield
        self.current = before

    def new_stream(self, device: Any = None, **_: Any) -> Stream:
        owner = self._of(device)
        owner.streams.append(Stream(self, owner.index))
        return owner.streams[-1]

    def current_stream(self, device: Any = None) -> Stream:
        return self._current_streams[self.index_of(device)]

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        number = stream.device_index
        before, here = self._current_streams[number], self.current
        self._current_streams[number], self.current = stream, number
        yield
        self._current_streams[number], self.current = before, here

    def synchronize(self, device: Any = None) -> None:
        self.check()
        self.wait_until(self._of(device).end)

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        self.check()
        found = self._of(device)
        return found.memory_bytes - found.allocated, found.memory_bytes

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        self._of(device).peak = self._of(device).allocated

    def _of(self, device: Any) -> Device:
        return self.devices[self.index_of(device)]

    def _seed(self, seed: int, devices: list[Device]) -> None:
        for device in devices:
            device.seed = seed

    def _generator_type(self) -> type[torch.Generator]:
        """Return a type, because torch writes ``Generator | None`` where it is first imported."""
        cuda = self

        class OnFakeGpu(_Generator):
            def __new__(cls, device: Any = "cpu") -> OnFakeGpu:
                made = super().__new__(cls, device="cpu")
                kind = torch.device(device)
                is_gpu = kind.type == "cuda"
                made.fake = torch.device("cuda", cuda.index_of(kind)) if is_gpu else kind
                return made

        return OnFakeGpu

    # ---- what the mode asks

    def run(self, call: Call) -> None:
        """Put a call's work at the end of its device's stream."""
        self.check()
        self.now += self.launch
        self.calls.append(call)
        self._current_streams[call.device].put(self.work(call))

    def arrive(self, target: torch.Tensor, device: int) -> None:
        """A copy to the host is on its way: NaN until the stream has come so far."""
        moment = self._current_streams[device].end
        if target.is_floating_point() and moment > self.now:
            self._arriving.append((moment, target, target.clone()))
            target.fill_(math.nan)

    def allocate(self, tensor: torch.Tensor, device: int) -> None:
        """Count a new tensor's bytes.  `torch.OutOfMemoryError` where they are not free."""
        place, size = tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes()
        if not size or place in self._sizes:
            return
        gpu = self.devices[device]
        if gpu.allocated + size > gpu.memory_bytes:
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {size} bytes. GPU {device} has a total "
                f"capacity of {gpu.memory_bytes} bytes of which {gpu.allocated} are in use."
            )
        gpu.allocated += size
        gpu.peak = max(gpu.peak, gpu.allocated)
        self._sizes[place] = (device, size)
        weakref.finalize(tensor, self._release, place)

    def owner_of(self, tensor: torch.Tensor) -> int | None:
        """Whose memory a tensor lies in."""
        place = tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0
        return self._sizes[place][0] if place in self._sizes else None

    def _release(self, place: int) -> None:
        device, size = self._sizes.pop(place)
        self.devices[device].allocated -= size


def _name_of(func: Any) -> str:
    """``matmul``; of a property, its own name."""
    name = str(getattr(func, "__name__", func))
    return str(getattr(func.__self__, "__name__", name)) if name == "__get__" else name


def _tensors(values: Any) -> list[torch.Tensor]:
    """Tensors among arguments or results, one level of lists deep."""
    if isinstance(values, torch.Tensor):
        return [values]
    if isinstance(values, dict):
        values = values.values()
    if not isinstance(values, list | tuple | type({}.values())):
        return []
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += [each for each in value if isinstance(each, torch.Tensor)]
    return found


def fake_device(tensor: torch.Tensor) -> int | None:
    """Which GPU a tensor is taken to lie on; None for the host."""
    return tensor.__dict__.get("fake_cuda_device")


def _mark(values: Any, device: int | None) -> None:
    for tensor in _tensors(values):
        tensor.__dict__["fake_cuda_device"] = device


def _as_device(value: Any) -> torch.device | None:
    """A device among positional arguments."""
    if isinstance(value, torch.device):
        return value
    if isinstance(value, str) and value.partition(":")[0] in ("cpu", "cuda"):
        return torch.device(value)
    return None


class _Mode(TorchFunctionMode):
    """Sees every call of torch."""

    def __init__(self, cuda: FakeCuda) -> None:
        super().__init__()
        self._cuda = cuda

    def _where(self, tensor: Any) -> int | None:
        """An autograd function is handed other tensors than its caller has, of the same memory."""
        if not isinstance(tensor, torch.Tensor) or (known := fake_device(tensor)) is not None:
            return known if isinstance(tensor, torch.Tensor) else None
        found = self._cuda.owner_of(tensor)
        if found is not None:
            _mark(tensor, found)
        return found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = dict(kwargs or {}), _name_of(func)
        owner = next(
            (d for t in [*_tensors(args), *_tensors(kwargs)] if (d := self._where(t)) is not None),
            None,
        )
        if name in ("device", "is_cuda") and args and isinstance(args[0], torch.Tensor):
            if fake_device(args[0]) is None:
                return func(*args, **kwargs)
            return True if name == "is_cuda" else torch.device("cuda", fake_device(args[0]))
        if name in ("to", "cpu", "cuda", "pin_memory", "copy_"):
            return self._move(name, func, args, kwargs)
        asked = kwargs.get("device")
        kwargs.pop("pin_memory", None)
        if asked is not None:
            kind = torch.device(asked)
            owner = self._cuda.index_of(kind) if kind.type == "cuda" else None
            kwargs["device"] = "cpu"
        if owner is None:
            return func(*args, **kwargs)
        self._cuda.check()
        result = func(*args, **kwargs)
        self._note(name, owner, args, kwargs, result)
        return result

    def _note(self, name: str, owner: int, args: Any, kwargs: Any, result: Any) -> None:
        """Where a result lies, what it took, whether the host waits for it."""
        results = [each for each in _tensors(result) if fake_device(each) != owner]
        _mark(results, owner)
        for each in results:
            self._cuda.allocate(each, owner)
        tensors = (*_tensors(args), *_tensors(kwargs), *_tensors(result))
        if name not in _FREE and name not in _WAITING and tensors:
            tf32 = bool(torch.backends.cuda.matmul.allow_tf32)
            self._cuda.run(Call(name, owner, tensors, tf32))
        if name in _WAITING:
            self._cuda.wait_until(self._cuda.current_stream(owner).end)

    def _move(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        """Between host and GPU, or from one to the other."""
        source = args[0] if name != "copy_" else args[1]
        before = self._where(source)
        blocking = not (kwargs.get("non_blocking") or (name == "copy_" and True in args[2:]))
        if name == "copy_":
            after, result = self._where(args[0]), func(*args, **kwargs)
        else:
            after, result = self._moved(name, func, args, kwargs, before)
        if before is None and after is None:
            return result
        owner = after if after is not None else before
        assert owner is not None
        if result is not source:
            _mark(result, after)
            if after is not None:
                self._cuda.allocate(result, after)
            crosses = before != after
            seconds = result.numel() * result.element_size() / (LINK_RATE if crosses else BYTE_RATE)
            self._cuda.check()
            self._cuda.calls.append(Call(name, owner, (source, result), False))
            stream = self._cuda.current_stream(before if before is not None else after)
            stream.put(seconds)
            if crosses and blocking:
                stream.synchronize()
            elif after is None and before is not None:
                with torch._C.DisableTorchFunction():
                    self._cuda.arrive(result, before)
        return result

    def _moved(
        self, name: str, func: Any, args: Any, kwargs: Any, before: int | None
    ) -> tuple[int | None, Any]:
        """Where ``to``, ``cpu`` and ``cuda`` lead, and the tensor there."""
        if name == "pin_memory":
            return before, args[0]
        wanted = torch.device("cpu") if name == "cpu" else None
        if name == "cuda":
            wanted = torch.device("cuda", self._cuda.index_of(kwargs.pop("device", None)))
            return self._index(wanted), args[0].clone()
        rest = []
        for value in args[1:]:
            found = _as_device(value)
            wanted = found or wanted
            if isinstance(value, torch.Tensor):  # as another tensor is
                wanted = value.device
            rest += [] if found else [value]
        if kwargs.get("device") is not None:
            wanted = torch.device(kwargs.pop("device"))
        after = before if wanted is None else self._index(wanted)
        with torch._C.DisableTorchFunction():
            result = args[0].to(*rest, **kwargs) if rest or kwargs else args[0]
            if after != before and result is args[0]:
                result = args[0].clone()
        return after, result

    def _index(self, device: torch.device) -> int | None:
        return self._cuda.index_of(device) if device.type == "cuda" else None
