"""The host device: implements harness.device.Device on this processor."""

import ctypes
import itertools
import os
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from harness.device import (
    Argument,
    DeviceError,
    Divergence,
    Memory,
    OutOfBounds,
    Properties,
)
from harness.host.arguments import Packed, pack
from harness.host.builds import MAX_THREADS, Builder, Built
from harness.host.compilers import find, march_of_machine
from harness.host.graph import Capture, HostGraph
from harness.host.library import DIVERGENCE, LAUNCH, OUT_OF_BOUNDS, Runtime, runtime
from harness.host.options import HostOptions, coded
from harness.sources import KERNELS
from kernels.catalogue import KERNELS as CATALOGUE
from kernels.entry import Geometry, Instance

_ERRORS: dict[int, type[DeviceError]] = {OUT_OF_BOUNDS: OutOfBounds, DIVERGENCE: Divergence}


#: Options that decide how kernels are compiled.
BUILDING = ("march", "compiler", "source_root", "watch")
#: A room with at most this many instantiations is built as one library: they cost little more than one alone.
BUNDLE = 16


@dataclass(slots=True)
class Mapping:
    """The host's record of a memory."""

    alive: bool = True


def neighbours(instance: Instance) -> list[Instance]:
    """All instantiations of the same source in the catalogue, if they are few; none for a kernel from elsewhere."""
    room = [k for k in CATALOGUE if k.source == instance.kernel.source]
    if not any(k is instance.kernel for k in room):
        return []
    together = [Instance(k, values) for k in room for values in itertools.product(*(p.values for p in k.params))]
    return together if len(together) <= BUNDLE else []


class HostDevice:
    """CUDA's semantics on the host, block by block, each launch run to its end before `launch` returns."""

    def __init__(self, options: HostOptions | None = None, **changes: Any) -> None:
        """Find the compiler and load the runtime. Raises NotRun without a C++20 compiler."""
        self.options = replace(options or HostOptions(), **changes)
        self.compiler = find(self.options.compiler)
        self.march = march_of_machine() if self.options.march is None else self.options.march
        self._runtime: Runtime = runtime(self.compiler, self.march)
        root = self.options.source_root or KERNELS
        self._builder = Builder(self.compiler, self.march, root.resolve(), self._runtime, watched=self.options.watch)
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self.properties = Properties(
            "host", "host", self.march or os.uname().machine, 1, 227 << 10, pages, self.compiler.version, "none"
        )

    def with_options(self, **changes: Any) -> "HostDevice":
        """A device with other choices that shares this one's builds unless the compiler or sources change."""
        options = replace(self.options, **changes)
        if any(getattr(options, n) != getattr(self.options, n) for n in BUILDING):
            return HostDevice(options)
        other = object.__new__(HostDevice)
        other.__dict__.update(self.__dict__)
        other.options = options
        return other

    @property
    def counters(self) -> dict[str, int]:
        """Work of the last launch.

        dp4a, load16, store16, cp_async and atomics count threads; shuffles, votes, mma_s8, mma_e4m3 and ldmatrix count
        warp instructions as a GPU issues them (five shuffles a value of a warp reduction); barriers count blocks.
        Of a watched kernel, store_bytes counts the bytes that it stores to buffers, and stored_again those which the
        same launch stored before.
        """
        return self._runtime.counts()

    def alloc(self, name: str, nbytes: int, align: int = 16) -> Memory:
        """Guarded, poisoned memory. Raises DeviceError when there is not enough or align is no power of two."""
        if nbytes < 0 or align < 1 or align & (align - 1):
            raise DeviceError(f"host device: buffer {name} of {nbytes} bytes aligned to {align} is not possible")
        at = self._runtime.library.lanelock_alloc(name.encode(), nbytes, align, self.options.align == "end")
        if not at:
            raise DeviceError(f"host device: no memory for buffer {name} of {nbytes} bytes")
        return Memory(name, at, nbytes, Mapping())

    def free(self, memory: Memory) -> None:
        """Unmap after checking the guards. Raises OutOfBounds if one changed, DeviceError if freed before."""
        self._require(memory)
        try:
            self.check(memory)
        finally:
            memory.handle.alive = False
            self._runtime.library.lanelock_free(memory.address)

    def write(self, memory: Memory, data: np.ndarray, offset: int = 0) -> None:
        """Copy an array's bytes to the buffer."""
        source = np.ascontiguousarray(data)
        ctypes.memmove(self._span(memory, source.nbytes, offset), source.ctypes.data, source.nbytes)

    def read(self, memory: Memory, nbytes: int | None = None, offset: int = 0) -> np.ndarray:
        """Copy bytes back as uint8."""
        count = memory.nbytes - offset if nbytes is None else nbytes
        out = np.empty(count, np.uint8)
        ctypes.memmove(out.ctypes.data, self._span(memory, count, offset), count)
        return out

    def fill(self, memory: Memory, byte: int) -> None:
        """Set every byte."""
        ctypes.memset(self._span(memory, memory.nbytes, 0), byte, memory.nbytes)

    def check(self, memory: Memory) -> None:
        """Raise OutOfBounds if a canary byte between the buffer and its guard pages changed, DeviceError if freed."""
        self._require(memory)
        text = ctypes.create_string_buffer(256)
        if self._runtime.library.lanelock_check(memory.address, text, len(text)):
            raise OutOfBounds(f"host device: {text.value.decode()}")

    def _require(self, memory: Memory) -> None:
        if not memory.handle.alive:
            raise DeviceError(f"host device: buffer {memory.name} was freed")

    def _span(self, memory: Memory, nbytes: int, offset: int) -> int:
        self._require(memory)
        if offset < 0 or nbytes < 0 or offset + nbytes > memory.nbytes:
            raise DeviceError(
                f"host device: {nbytes} bytes at offset {offset} do not lie in buffer {memory.name} of {memory.nbytes}"
            )
        return memory.address + offset

    def build(self, instance: Instance) -> Built:
        """Compile an instantiation, or find it in the cache. Raises BuildError."""
        built = self._builder.find(instance)
        # a watched kernel runs in few locks, and alone
        return built or self._builder.build([instance, *([] if self.options.watch else neighbours(instance))])[0]

    def build_many(self, instances: Sequence[Instance]) -> list[Built]:
        """Compile instantiations together, one library a source: far faster than one by one. Raises BuildError."""
        return self._builder.build(instances)

    def launch(self, built: Built, geometry: Geometry, args: Sequence[Argument], stream: Any = None) -> None:
        """Run to the end; in a capture only record. Raises OutOfBounds, Divergence or DeviceError."""
        packed = pack(built.name, built.slots, args)
        if isinstance(stream, Capture):
            stream.launches.append(lambda: self._replay(built, geometry, packed))
            stream.names.append(built.name)
            return
        self._run(built, geometry, packed)

    def _replay(self, built: Built, geometry: Geometry, packed: Packed) -> None:
        for memory in packed.memories:
            if not memory.handle.alive:
                raise DeviceError(f"{built.name} on the host device: captured memory {memory.name} was freed")
        self._run(built, geometry, packed)

    def _run(self, built: Built, geometry: Geometry, packed: Packed) -> None:
        schedule, seed = coded(self.options.schedule, ("ascending", "descending"))
        copies, copies_seed = coded(self.options.copies, ("eager", "late"))
        g = geometry
        threads = g.block[0] * g.block[1] * g.block[2]
        if built.threads < threads <= MAX_THREADS:
            raise DeviceError(
                f"{built.name} on the host device: a block of {threads} threads exceeds the {built.threads} of its "
                "launch bounds"
            )
        try:
            launch = LAUNCH.pack(
                built.thunk, *g.grid, *g.block, g.smem, g.cluster, schedule, copies, seed, copies_seed,
                self.options.align == "end",
            )  # fmt: skip
        except struct.error as error:
            raise DeviceError(f"{built.name} on the host device: {geometry} is not possible: {error}") from None
        failure = self._runtime.library.lanelock_launch(launch, packed.words, len(built.slots))
        if failure:
            text = self._runtime.message_text()
            raise _ERRORS.get(failure, DeviceError)(
                f"{built.name} on the host device: {text} [--device host {self.options.flags}]"
            )

    def synchronize(self) -> None:
        """Nothing to wait for: every launch has ended."""

    def stream(self) -> None:
        """A host stream runs everything at once, in order."""

    def event(self, stream: Any = None) -> float:  # noqa: ARG002  # the protocol's; all streams are one
        """The time now, in seconds."""
        return time.perf_counter()

    def elapsed(self, start: float, end: float) -> float:
        """Milliseconds between two events."""
        return (end - start) * 1e3

    @contextmanager
    def capture(self) -> Iterator[Capture]:
        """Record the launches given the yielded stream; its `graph` replays them afterwards."""
        capture = Capture()
        yield capture
        capture.graph = HostGraph(tuple(capture.launches), tuple(capture.names))
