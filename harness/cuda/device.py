"""A GPU as a device: guarded memory, catalogue kernels compiled for its own architecture, streams, events, graphs."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from harness.cuda.compile import compile_instances
from harness.cuda.compiler import version_text
from harness.cuda.context import Context
from harness.cuda.gpus import list_gpus
from harness.cuda.graph import Capture, CudaGraph
from harness.cuda.launch import DEFAULT_SHARED, Built, check_geometry, configuration, pack
from harness.cuda.memory import GUARD, GUARD_BYTE, WATCHED, check_guard, footprint, guards, place
from harness.device import POISON, Argument, DeviceError, Memory, NotRun, OutOfBounds, Properties
from harness.workers import SHARERS, budget, memory_budget
from kernels.entry import Geometry, Instance


class CudaDevice:
    """One GPU. Raises NotRun when it is not there; see harness.device.Device for what each method does.

    uuid is the GPU's own; budget is what this process may hold of its memory in bytes, guards included, or None.
    options go to the compiler beside the contract's, such as `--ptxas-options=-O1`: no bit may depend on them.
    """

    def __init__(self, index: int = 0, options: Sequence[str] = ()) -> None:
        listing = list_gpus()
        gpu = listing.require(index)
        left_out = os.environ.get(WATCHED, "").split(",")
        self._guarded = "guards" not in left_out
        self.properties = Properties(
            name=gpu.name,
            kind="cuda",
            arch=gpu.arch,
            multiprocessors=gpu.multiprocessors,
            shared_per_block=gpu.shared_per_block,
            memory=gpu.memory,
            compiler=version_text(),
            driver="CUDA {}.{}".format(*(listing.driver or (0, 0))),
            poisons="poison" not in left_out,
        )
        self.uuid = gpu.uuid
        self.budget = memory_budget()
        if self.budget is None and int(os.environ.get(SHARERS, "1")) > 1:
            self.budget = budget(gpu.memory, int(os.environ[SHARERS]))
        self._options = tuple(options)
        self._clusters = gpu.capability >= (9, 0)
        self._context = Context(index)
        self._built: dict[str, Built] = {}
        self._opted_in: dict[int, int] = {}
        self._held = 0

    # memory

    def alloc(self, name: str, nbytes: int, align: int = 16) -> Memory:
        """Guarded memory filled with POISON. Raises DeviceError when the GPU or this worker's budget has no room."""
        context = self._context
        context.enter(f"alloc of {name}")
        total = footprint(nbytes, align) if self._guarded else max(nbytes, 1)
        if self.budget is not None and self._held + total > self.budget:
            raise DeviceError(
                f"{context.label}: buffer {name} of {nbytes} bytes exceeds this worker's budget of {self.budget} "
                f"bytes, of which {self._held} are in use"
            )
        base = int(context.ok(context.api.cuMemAlloc(total), f"alloc of {nbytes} bytes for {name}"))
        self._held += total
        memory = Memory(name, place(base, align) if self._guarded else base, nbytes, (base, total))
        for address, _ in guards(memory) if self._guarded else ():
            context.set_bytes(address, GUARD_BYTE, GUARD, f"guard of {name}")
        if self.properties.poisons:
            context.set_bytes(memory.address, POISON, nbytes, f"poison of {name}")
        context.settle(f"poison of {name}")
        return memory

    def free(self, memory: Memory) -> None:
        """Check the guards, then give the memory back; a device that has faulted has nothing left to give back."""
        if self._context.fault:
            return
        try:
            self.check(memory)
        finally:
            base, total = memory.handle
            self._held -= total
            if not self._context.fault:
                self._context.ok(self._context.api.cuMemFree(base), f"free of {memory.name}")

    def write(self, memory: Memory, data: np.ndarray, offset: int = 0) -> None:
        """Copy an array's bytes to the device after every earlier launch."""
        source = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        self._span(memory, offset, source.nbytes, "write")
        self.synchronize()
        self._context.store(memory.address + offset, source, f"write to {memory.name}")

    def read(self, memory: Memory, nbytes: int | None = None, offset: int = 0) -> np.ndarray:
        """Copy bytes back as uint8 after every earlier launch."""
        count = memory.nbytes - offset if nbytes is None else nbytes
        self._span(memory, offset, count, "read")
        self.synchronize()
        return self._context.fetch(memory.address + offset, count, f"read of {memory.name}")

    def fill(self, memory: Memory, byte: int) -> None:
        """Set every byte, after every earlier launch."""
        self.synchronize()
        self._context.set_bytes(memory.address, byte, memory.nbytes, f"fill of {memory.name}")
        self._context.settle(f"fill of {memory.name}")

    def check(self, memory: Memory) -> None:
        """Raise OutOfBounds, naming the last kernels, buffer and byte, if a guard changed."""
        self.synchronize()
        who = f"{self._context.label}: {self._context.last or 'a kernel'}"
        for address, offset in guards(memory) if self._guarded else ():
            check_guard(memory, offset, self._context.fetch(address, GUARD, f"guard of {memory.name}"), who)

    def _span(self, memory: Memory, offset: int, count: int, verb: str) -> None:
        if offset < 0 or count < 0 or offset + count > memory.nbytes:
            raise OutOfBounds(
                f"{self._context.label}: {verb} of bytes {offset} to {offset + count} of {memory.name}, "
                f"which has {memory.nbytes}"
            )

    # kernels

    def build(self, instance: Instance) -> Built:
        """Compile for this GPU and load. Raises BuildError; NotRun where the entry does not name this GPU."""
        context, arch = self._context, self.properties.arch
        if arch not in instance.kernel.archs:
            named = ", ".join(instance.kernel.archs)
            raise NotRun(f"{instance.kernel.name} is for {named}; {context.label} is {arch}")
        key = f"{instance.kernel.name}: {instance.expression}"
        if key in self._built:
            return self._built[key]
        program = compile_instances((instance,), arch, self._options)
        what = f"load of {instance.expression} for {arch} from {version_text()} under {self.properties.driver}"
        context.enter(what)
        module = context.ok(context.api.cuModuleLoadData(program.cubin), what)
        lowered = program.lowered(instance.expression).encode()
        function = context.ok(context.api.cuModuleGetFunction(module, lowered), what)
        threads = context.api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK
        most = int(context.ok(context.api.cuFuncGetAttribute(threads, function), what))
        self._built[key] = Built(instance, function, module, program.report(instance.expression), most)
        return self._built[key]

    def launch(
        self,
        built: Built,
        geometry: Geometry,
        args: Sequence[Argument],
        stream: Any = None,
        *,
        dependent: bool = False,
    ) -> None:
        """Launch on a stream (None: the device's own). A fault inside the kernel shows at `synchronize`.

        A kernel that waits by itself (its entry says so) starts before the one ahead of it on the stream has ended;
        dependent asks for the same.
        """
        context, name = self._context, built.instance.expression
        context.enter(f"launch of {name}")
        check_geometry(built, geometry, self.properties.shared_per_block, self._clusters)
        packed = pack(built.instance, args)
        if geometry.smem + built.report.smem > DEFAULT_SHARED:
            self._opt_in(built, geometry.smem)
        early = self._clusters and (dependent or built.instance.kernel.dependent)
        config = configuration(geometry, self._stream(stream), dependent=early)
        if isinstance(stream, Capture):
            stream.names.append(name)
        else:
            context.ran(name)
        context.ok(
            context.api.cuLaunchKernelEx(config, built.function, packed.pointer, 0),
            f"launch of {name} with grid {geometry.grid}, block {geometry.block}, {geometry.smem} bytes shared",
        )

    def _opt_in(self, built: Built, nbytes: int) -> None:
        """Ask the driver for dynamic shared memory beyond the default; again only for more."""
        context, function = self._context, int(built.function)
        if nbytes <= self._opted_in.get(function, 0):
            return
        what = f"{built.instance.expression}: opt-in to {nbytes} bytes of shared memory"
        attributes = context.api.CUfunction_attribute
        # a multiprocessor divides one memory between the L1 and what blocks share. Kernels that opt in want all of it
        # shared, so that their blocks fit; the others live on the L1 and ask for nothing.
        for attribute, value in (
            (attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, nbytes),
            (attributes.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 100),
        ):
            context.ok(context.api.cuFuncSetAttribute(built.function, attribute, value), what)
        self._opted_in[function] = nbytes

    def synchronize(self) -> None:
        """Wait for all launches; raises DeviceError naming the launches of which one faulted."""
        self._context.synchronize()

    # streams, events, graphs

    def stream(self) -> Any:
        """A new stream that does not wait for the null stream."""
        self._context.enter("stream")
        return self._context.new_stream()

    def event(self, stream: Any = None) -> Any:
        """An event recorded on the stream now."""
        context = self._context
        context.enter("event")
        event = context.ok(context.api.cuEventCreate(0), "event")
        context.ok(context.api.cuEventRecord(event, self._stream(stream)), "event")
        return event

    def elapsed(self, start: Any, end: Any) -> float:
        """Milliseconds between two events; waits for the second."""
        context = self._context
        context.enter("elapsed")
        context.ok(context.api.cuEventSynchronize(end), "elapsed")
        return float(context.ok(context.api.cuEventElapsedTime(start, end), "elapsed"))

    @contextmanager
    def capture(self) -> Iterator[Capture]:
        """Record launches; yields the stream to launch on, whose `.graph` is set when the context ends."""
        context = self._context
        context.synchronize()
        capture = Capture(context.new_stream())
        # relaxed: memory may be allocated and kernels loaded meanwhile, neither of which belongs to the graph
        mode = context.api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        context.ok(context.api.cuStreamBeginCapture(capture.handle, mode), "begin of a capture")
        context.capturing = True
        try:
            yield capture
        finally:
            context.capturing = False
            ended = context.api.cuStreamEndCapture(capture.handle)
        graph = context.ok(ended, "end of a capture")
        executable = context.ok(context.api.cuGraphInstantiate(graph, 0), "instantiation of a graph")
        context.ok(context.api.cuGraphDestroy(graph), "graph")
        capture.graph = CudaGraph(executable, tuple(capture.names), self._replay)

    def _replay(self, graph: CudaGraph, stream: Any) -> None:
        context = self._context
        context.enter("replay")
        context.ran(*graph.names)
        context.ok(context.api.cuGraphLaunch(graph.executable, self._stream(stream)), "replay of a graph")

    def _stream(self, stream: Any) -> Any:
        if stream is None:
            return self._context.stream
        return stream.handle if isinstance(stream, Capture) else stream
