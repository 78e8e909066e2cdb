"""The host processor as a device: see harness.device.Device for what each method does."""

import ctypes
import dataclasses
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from harness.device import (
    POISON,
    Argument,
    BuildError,
    DeviceError,
    Divergence,
    Memory,
    OutOfBounds,
    Pointer,
    Properties,
)
from harness.host.build import BUNDLE, Built, compile_kernels, room_instances
from harness.host.compilers import best_march, find_compiler
from harness.host.library import CLaunch, load_runtime
from harness.host.options import HostOptions
from harness.sources import KERNELS
from kernels.entry import Geometry, Instance

FAILURES: Mapping[int, type[DeviceError]] = {1: OutOfBounds, 2: Divergence, 3: DeviceError, 4: DeviceError}
SHARED_LIMIT = 227 << 10  # what sm_90 gives a block, the most that any kernel of ours may ask for
MESSAGE_ROOM = 512


@dataclasses.dataclass(slots=True)
class HostStream:
    """Launches on it run at once, in order; one that is being captured records them instead."""

    launches: list[tuple[Built, Geometry, tuple[Argument, ...]]] | None = None
    graph: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class HostGraph:
    """Captured launches, with pointers and scalars as they were when captured."""

    device: "HostDevice"
    launches: tuple[tuple[Built, Geometry, tuple[Argument, ...]], ...]

    def replay(self, stream: Any = None) -> None:
        """Run them in the order they were captured."""
        for built, geometry, args in self.launches:
            self.device.launch(built, geometry, args, stream)


class HostDevice:
    """The host device. Devices made by `with_options` share what is built; memory belongs to the one that made it."""

    def __init__(
        self,
        options: HostOptions | None = None,
        source_root: Path = KERNELS,
        built: dict[tuple[str, str, str, str], Built] | None = None,
    ) -> None:
        self.options = options or HostOptions()
        self.source_root = source_root
        self._compiler = find_compiler(self.options.compiler)
        self._march = self.options.march or best_march()
        self._runtime = load_runtime(self._compiler, self._march)
        self._built = {} if built is None else built
        self.properties = Properties(
            name="host",
            kind="host",
            arch=self._march or "default",
            multiprocessors=os.cpu_count() or 1,
            shared_per_block=SHARED_LIMIT,
            memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            compiler=self._compiler.version,
            driver="none",
        )

    def with_options(self, **changes: Any) -> "HostDevice":
        """The same device under other options, sharing its builds."""
        return HostDevice(dataclasses.replace(self.options, **changes), self.source_root, self._built)

    # memory

    def alloc(self, name: str, nbytes: int, align: int = 16) -> Memory:
        """Memory between guard pages, filled with POISON; its end or start lies against a guard."""
        align = 1 << (max(align, 1) - 1).bit_length()
        address = self._runtime.lanelock_alloc(name.encode(), nbytes, align, self.options.align == "end")
        if not address:
            raise DeviceError(f"host: no memory for {nbytes} bytes of {name}")
        return Memory(name, int(address), nbytes, None)

    def free(self, memory: Memory) -> None:
        """Check the guards, then give the memory back."""
        try:
            self.check(memory)
        finally:
            self._runtime.lanelock_free(memory.address)

    def write(self, memory: Memory, data: np.ndarray, offset: int = 0) -> None:
        """Copy an array's bytes in."""
        source = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        self._span(memory, offset, source.nbytes, "write")
        ctypes.memmove(memory.address + offset, source.ctypes.data, source.nbytes)

    def read(self, memory: Memory, nbytes: int | None = None, offset: int = 0) -> np.ndarray:
        """Copy bytes out as uint8."""
        count = memory.nbytes - offset if nbytes is None else nbytes
        self._span(memory, offset, count, "read")
        result = np.empty(count, np.uint8)
        ctypes.memmove(result.ctypes.data, memory.address + offset, count)
        return result

    def fill(self, memory: Memory, byte: int = POISON) -> None:
        """Set every byte."""
        ctypes.memset(memory.address, byte, memory.nbytes)

    def check(self, memory: Memory) -> None:
        """Raise OutOfBounds if a canary byte beside the memory changed (the guard pages catch the rest at once)."""
        text = ctypes.create_string_buffer(MESSAGE_ROOM)
        if self._runtime.lanelock_check(memory.address, text, MESSAGE_ROOM):
            raise OutOfBounds(f"host: {text.value.decode()}")

    def _span(self, memory: Memory, offset: int, count: int, verb: str) -> None:
        if offset < 0 or count < 0 or offset + count > memory.nbytes:
            raise OutOfBounds(
                f"host: {verb} of bytes {offset} to {offset + count} of {memory.name}, which has {memory.nbytes}"
            )

    # kernels

    def build(self, instance: Instance) -> Built:
        """Compile an instantiation, together with its room's others when they are few. Raises BuildError."""
        key = self._key(instance)
        if key not in self._built:
            self.build_many(self._bundle(instance))
        return self._built[key]

    def build_many(self, instances: Sequence[Instance]) -> None:
        """Compile instantiations of one source as one library."""
        source = self.source_root / instances[0].kernel.source
        if not source.is_file():
            raise BuildError(f"host: {instances[0].kernel.name}: there is no source {source.name}")
        try:
            machine = self._runtime.lanelock_machine()
            built = compile_kernels(self._compiler, self._march, source, instances, machine)
        except BuildError as error:
            raise BuildError(f"host: {instances[0].kernel.name}: {error}") from None
        self._built.update((self._key(one.instance), one) for one in built)

    def _bundle(self, instance: Instance) -> list[Instance]:
        from kernels.catalogue import KERNELS as CATALOGUE

        room = [k for k in CATALOGUE if k.source == instance.kernel.source]
        together = room_instances(room) if instance.kernel in room and self.source_root == KERNELS else []
        return together if instance in together and len(together) <= BUNDLE else [instance]

    def _key(self, instance: Instance) -> tuple[str, str, str, str]:
        options = f"{self._compiler.version} {self._march}"
        return str(self.source_root / instance.kernel.source), instance.kernel.name, instance.expression, options

    def launch(self, built: Built, geometry: Geometry, args: Sequence[Argument], stream: Any = None) -> None:
        """Run a launch to its end. Raises OutOfBounds, Divergence or DeviceError for what went wrong in it."""
        if stream is not None and stream.launches is not None:
            stream.launches.append((built, geometry, tuple(args)))
            return
        inst = built.instance
        if len(args) != len(built.scalars):
            raise DeviceError(f"host: {inst.expression} takes {len(built.scalars)} arguments, got {len(args)}")
        cells = [_cell(arg, scalar) for arg, scalar in zip(args, built.scalars, strict=True)]
        pointers = (ctypes.c_void_p * len(cells))(*(ctypes.addressof(cell) for cell in cells))
        code = self._runtime.lanelock_launch(ctypes.byref(self._launch_record(built, geometry, pointers)))
        if code:
            raise FAILURES[code](f"host: {inst.expression}: {self._runtime.lanelock_message().decode()}")

    def _launch_record(self, built: Built, geometry: Geometry, pointers: Any) -> CLaunch:
        schedule, schedule_seed = _choice(self.options.schedule, ("ascending", "descending"))
        copies, copies_seed = _choice(self.options.copies, ("eager", "late"))
        return CLaunch(
            built.thunk,
            ctypes.addressof(pointers),
            built.instance.expression.encode(),
            (ctypes.c_uint * 3)(*geometry.grid),
            (ctypes.c_uint * 3)(*geometry.block),
            geometry.smem,
            geometry.cluster,
            schedule,
            copies,
            schedule_seed,
            copies_seed,
            self.options.align == "end",
        )

    @property
    def counters(self) -> dict[str, int]:
        """What the last launch did: blocks, barriers, collectives, products, copies and their bytes."""
        names = self._runtime.lanelock_counter_names().decode().split()
        values = self._runtime.lanelock_counters()
        return {name: int(values[i]) for i, name in enumerate(names)}

    # streams, events, graphs

    def synchronize(self) -> None:
        """Nothing to wait for: a launch returns when it is done."""

    def stream(self) -> HostStream:
        """A new stream."""
        return HostStream()

    def event(self, stream: Any = None) -> float:
        """The time now."""
        return time.perf_counter()

    def elapsed(self, start: float, end: float) -> float:
        """Milliseconds between two events."""
        return (end - start) * 1e3

    @contextmanager
    def capture(self) -> Iterator[HostStream]:
        """Record launches on the stream it gives; afterwards its `graph` replays them."""
        stream = HostStream([])
        yield stream
        stream.graph, stream.launches = HostGraph(self, tuple(stream.launches or ())), None


def _cell(arg: Argument, scalar: type[Any] | None) -> Any:
    """Memory that holds one argument's value."""
    if scalar is not None:
        if not isinstance(arg, int | float):
            raise DeviceError(f"host: argument {arg!r} is not a number, which the kernel takes there")
        return scalar(arg)
    if arg is None:
        return ctypes.c_void_p(None)
    if not isinstance(arg, Memory | Pointer):
        raise DeviceError(f"host: argument {arg!r} is not memory, which the kernel takes there")
    return ctypes.c_void_p(arg.address)


def _choice(value: str | int, words: tuple[str, str]) -> tuple[int, int]:
    """Enumerator and seed of a schedule or copy mode."""
    return (2, value & (2**64 - 1)) if isinstance(value, int) else (words.index(value), 0)
