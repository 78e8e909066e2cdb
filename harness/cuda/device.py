"""A GPU as a device: guarded memory, catalogue kernels compiled for its own architecture, streams, events, graphs.

The primary context is made current before every call, so that several GPUs can be used from one process. All work of
the device runs on streams of its own: the legacy null stream cannot be captured into a graph.
"""

import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from harness.cuda.bindings import checked, describe, driver
from harness.cuda.compile import compile_instances
from harness.cuda.compiler import version_text
from harness.cuda.gpus import list_gpus
from harness.cuda.graph import Capture, CudaGraph
from harness.cuda.launch import DEFAULT_SHARED, Built, check_geometry, configuration, pack
from harness.cuda.memory import GUARD, GUARD_BYTE, check_guard, footprint, guards, place
from harness.device import POISON, Argument, DeviceError, Memory, NotRun, OutOfBounds, Properties
from harness.workers import SHARERS, budget, memory_budget
from kernels.entry import Geometry, Instance

#: Results after which the context is lost: every later call fails with the same code, whatever it does.
_FATAL = frozenset((214, 220, 700, 702, 710, 714, 715, 716, 717, 718, 719))

#: How many launches an asynchronous error names; the culprit is among those since the last synchronisation.
_REMEMBERED = 8


class CudaDevice:
    """One GPU. Raises NotRun when it is not there; see harness.device.Device for what each method does."""

    def __init__(self, index: int = 0) -> None:
        listing = list_gpus()
        gpu = listing.require(index)
        self._api = driver()
        self._label = f"cuda:{index}"
        self._gpu = gpu
        self._pending: deque[str] = deque(maxlen=_REMEMBERED)
        self._last = ""
        self._fault = ""
        self._capturing = False
        self._built: dict[str, Built] = {}
        self._held = 0
        self._budget = memory_budget()
        if self._budget is None and int(os.environ.get(SHARERS, "1")) > 1:
            self._budget = budget(gpu.memory, int(os.environ[SHARERS]))
        self._device = checked(self._api.cuDeviceGet(index), self._label)
        self._context = checked(self._api.cuDevicePrimaryCtxRetain(self._device), self._label)
        self._enter()
        self._main = self._new_stream()
        self.properties = Properties(
            name=gpu.name,
            kind="cuda",
            arch=gpu.arch,
            multiprocessors=gpu.multiprocessors,
            shared_per_block=gpu.shared_per_block,
            memory=gpu.memory,
            compiler=version_text(),
            driver="CUDA {}.{}".format(*(listing.driver or (0, 0))),
        )

    # memory

    def alloc(self, name: str, nbytes: int, align: int = 16) -> Memory:
        """Guarded memory filled with POISON. Raises DeviceError when the GPU or this worker's budget has no room."""
        self._enter(f"alloc of {name}")
        total = footprint(nbytes, align)
        if self._budget is not None and self._held + total > self._budget:
            raise DeviceError(
                f"{self._label}: buffer {name} of {nbytes} bytes exceeds this worker's budget of {self._budget} "
                f"bytes, of which {self._held} are in use"
            )
        base = int(self._ok(self._api.cuMemAlloc(total), f"alloc of {nbytes} bytes for {name}"))
        self._held += total
        memory = Memory(name, place(base, align), nbytes, (base, total))
        for address, _ in guards(memory):
            self._set(address, GUARD_BYTE, GUARD, name)
        self._set(memory.address, POISON, nbytes, name)
        self._ok(self._api.cuStreamSynchronize(self._main), f"fill of {name}")
        return memory

    def free(self, memory: Memory) -> None:
        """Check the guards, then give the memory back; a device that has faulted has nothing left to give back."""
        if self._fault:
            return
        try:
            self.check(memory)
        finally:
            base, total = memory.handle
            self._held -= total
            if not self._fault:
                self._ok(self._api.cuMemFree(base), f"free of {memory.name}")

    def write(self, memory: Memory, data: np.ndarray, offset: int = 0) -> None:
        """Copy an array's bytes to the device after every earlier launch."""
        source = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        self._span(memory, offset, source.nbytes, "write")
        self.synchronize()
        if source.nbytes:
            self._ok(
                self._api.cuMemcpyHtoDAsync(
                    memory.address + offset, source.ctypes.data, source.nbytes, self._main
                ),
                f"write to {memory.name}",
            )
            self._ok(self._api.cuStreamSynchronize(self._main), f"write to {memory.name}")

    def read(self, memory: Memory, nbytes: int | None = None, offset: int = 0) -> np.ndarray:
        """Copy bytes back as uint8 after every earlier launch."""
        count = memory.nbytes - offset if nbytes is None else nbytes
        self._span(memory, offset, count, "read")
        self.synchronize()
        return self._fetch(memory.address + offset, count, memory.name)

    def fill(self, memory: Memory, byte: int) -> None:
        """Set every byte, after every earlier launch."""
        self.synchronize()
        self._set(memory.address, byte, memory.nbytes, memory.name)
        self._ok(self._api.cuStreamSynchronize(self._main), f"fill of {memory.name}")

    def check(self, memory: Memory) -> None:
        """Raise OutOfBounds, naming the last kernels, buffer and byte, if a guard changed."""
        self.synchronize()
        who = f"{self._label}: {self._last or 'a kernel'}"
        for address, offset in guards(memory):
            check_guard(memory, offset, self._fetch(address, GUARD, memory.name), who)

    # kernels

    def build(self, instance: Instance) -> Built:
        """Compile for this GPU and load. Raises BuildError, NotRun where the entry does not name this GPU."""
        arch = self.properties.arch
        if arch not in instance.kernel.archs:
            raise NotRun(f"{instance.kernel.name} is for {', '.join(instance.kernel.archs)}; {self._label} is {arch}")
        key = f"{instance.kernel.name}: {instance.expression}"
        if key in self._built:
            return self._built[key]
        program = compile_instances((instance,), arch)
        self._enter(f"load of {instance.expression}")
        what = f"load of {instance.expression} for {arch} from {version_text()} under {self.properties.driver}"
        module = self._ok(self._api.cuModuleLoadData(program.cubin), what)
        lowered = program.lowered(instance.expression).encode()
        function = self._ok(self._api.cuModuleGetFunction(module, lowered), what)
        threads = self._api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK
        most = int(self._ok(self._api.cuFuncGetAttribute(threads, function), what))
        built = Built(instance, function, module, program.report(instance.expression), most)
        self._built[key] = built
        return built

    def launch(
        self,
        built: Built,
        geometry: Geometry,
        args: Sequence[Argument],
        stream: Any = None,
        *,
        dependent: bool = False,
    ) -> None:
        """Launch on a stream (None: the device's own). A fault inside the kernel shows at `synchronize`."""
        name = built.instance.expression
        self._enter(f"launch of {name}")
        check_geometry(built, geometry, self.properties.shared_per_block, self._gpu.capability >= (9, 0))
        packed = pack(built.instance, args)
        if geometry.smem + built.report.smem > DEFAULT_SHARED:
            opt_in = self._api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._ok(self._api.cuFuncSetAttribute(built.function, opt_in, geometry.smem), f"{name}: shared memory")
        config = configuration(geometry, self._handle(stream), dependent=dependent)
        if isinstance(stream, Capture):
            stream.names.append(name)
        else:
            self._ran(name)
        self._ok(
            self._api.cuLaunchKernelEx(config, built.function, packed.pointer, 0),
            f"launch of {name} with grid {geometry.grid}, block {geometry.block}, {geometry.smem} bytes shared",
        )

    def synchronize(self) -> None:
        """Wait for all launches; raises DeviceError naming the launches of which one faulted."""
        self._enter("synchronize")
        if self._capturing:
            raise DeviceError(f"{self._label}: cannot wait for the device while launches are captured")
        self._ok(self._api.cuCtxSynchronize(), "synchronize")
        self._pending.clear()

    # streams, events, graphs

    def stream(self) -> Any:
        """A new stream that does not wait for the null stream."""
        self._enter("stream")
        return self._new_stream()

    def event(self, stream: Any = None) -> Any:
        """An event recorded on the stream now."""
        self._enter("event")
        event = self._ok(self._api.cuEventCreate(0), "event")
        self._ok(self._api.cuEventRecord(event, self._handle(stream)), "event")
        return event

    def elapsed(self, start: Any, end: Any) -> float:
        """Milliseconds between two events; waits for the second."""
        self._enter("elapsed")
        self._ok(self._api.cuEventSynchronize(end), "elapsed")
        return float(self._ok(self._api.cuEventElapsedTime(start, end), "elapsed"))

    @contextmanager
    def capture(self) -> Iterator[Capture]:
        """Record launches; yields the stream to launch on, whose `.graph` is set when the context ends."""
        self.synchronize()
        capture = Capture(self._new_stream())
        mode = self._api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        self._ok(self._api.cuStreamBeginCapture(capture.handle, mode), "begin of a capture")
        self._capturing = True
        try:
            yield capture
        finally:
            self._capturing = False
            result = self._api.cuStreamEndCapture(capture.handle)
        graph = self._ok(result, "end of a capture")
        executable = self._ok(self._api.cuGraphInstantiate(graph, 0), "graph")
        self._ok(self._api.cuGraphDestroy(graph), "graph")
        capture.graph = CudaGraph(executable, tuple(capture.names), self._replay)

    def _replay(self, graph: CudaGraph, stream: Any) -> None:
        self._enter("replay")
        self._ran(*graph.names)
        self._ok(self._api.cuGraphLaunch(graph.executable, self._handle(stream)), "replay of a graph")

    # what every call goes through

    def _enter(self, what: str = "open") -> None:
        """Make this GPU's context current; refuse to go on after a fault."""
        if self._fault:
            raise DeviceError(f"{self._label}: no {what} any more, the context is lost since: {self._fault}")
        checked(self._api.cuCtxSetCurrent(self._context), f"{self._label}: {what}")

    def _ok(self, result: tuple[Any, ...], what: str) -> Any:
        """The value of a driver call, or a DeviceError naming the launches since the last synchronisation."""
        code = result[0]
        if int(code) == 0:
            return result[1] if len(result) == 2 else result[1:]
        suspects = self._suspects()
        message = f"{what}: {describe(code)}" + (f", after {suspects}" if suspects else "")
        if int(code) in _FATAL:
            self._fault = message
        raise DeviceError(f"{self._label}: {message}")

    def _ran(self, *names: str) -> None:
        self._pending.extend(names)
        self._last = ", ".join(dict.fromkeys(names)) or self._last

    def _suspects(self) -> str:
        return ", ".join(dict.fromkeys(reversed(self._pending)))

    def _handle(self, stream: Any) -> Any:
        if stream is None:
            return self._main
        return stream.handle if isinstance(stream, Capture) else stream

    def _new_stream(self) -> Any:
        return self._ok(self._api.cuStreamCreate(1), "stream")  # 1: CU_STREAM_NON_BLOCKING

    def _set(self, address: int, byte: int, count: int, name: str) -> None:
        if count:
            self._ok(self._api.cuMemsetD8Async(address, byte, count, self._main), f"fill of {name}")

    def _fetch(self, address: int, count: int, name: str) -> np.ndarray:
        data = np.empty(count, np.uint8)
        if count:
            self._ok(
                self._api.cuMemcpyDtoHAsync(data.ctypes.data, address, count, self._main), f"read of {name}"
            )
            self._ok(self._api.cuStreamSynchronize(self._main), f"read of {name}")
        return data

    def _span(self, memory: Memory, offset: int, count: int, verb: str) -> None:
        if offset < 0 or count < 0 or offset + count > memory.nbytes:
            raise OutOfBounds(
                f"{self._label}: {verb} of bytes {offset} to {offset + count} of {memory.name}, "
                f"which has {memory.nbytes}"
            )
