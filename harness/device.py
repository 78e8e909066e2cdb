"""The device protocol: what a GPU and the host processor have in common.

A device owns memory (guarded and poisoned), builds catalogue kernels, launches them on streams, times them with
events, and captures launches into graphs. Errors name the kernel, the argument and the device.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from kernels.entry import Geometry, Instance
from oracle.errors import LanelockError

#: The byte that fills memory nobody has written: NaN as float32 and float16, -1 as an integer.
POISON = 0xFF


class DeviceError(LanelockError):
    """A launch, a build or a memory operation failed; the message names kernel, argument and device."""


class OutOfBounds(DeviceError):
    """A kernel read or wrote outside a buffer; the message names kernel, buffer and byte offset."""


class Divergence(DeviceError):
    """A barrier or a warp collective that not all of its threads reached; the message says who waits where."""


class Race(DeviceError):
    """Two schedules that the programming model allows gave different bits."""


class BuildError(DeviceError):
    """A kernel did not compile; the message holds the compiler's first error."""


class NotRun(LanelockError):
    """The device is not on this machine: what asked for it was not run, which is not a pass."""


@dataclass(frozen=True, slots=True)
class Properties:
    """What a device is. arch is such as `sm_90a` or `x86-64-v3`; sizes in bytes."""

    name: str
    kind: str  # "host" or "cuda"
    arch: str
    multiprocessors: int
    shared_per_block: int
    memory: int
    compiler: str
    driver: str
    poisons: bool = True  # fresh memory is full of POISON; not where a checker looks for reads of unset memory


@dataclass(frozen=True, slots=True)
class Memory:
    """A piece of device memory. address is the first byte that belongs to the caller."""

    name: str
    address: int
    nbytes: int
    handle: Any  # the device's own record (mapping, guards)

    def at(self, byte_offset: int) -> "Pointer":
        """A pointer into this memory; the offset is in bytes and may be wider than 32 bits."""
        return Pointer(self, byte_offset)


@dataclass(frozen=True, slots=True)
class Pointer:
    """An argument that points into a memory, `offset` bytes behind its start."""

    memory: Memory
    offset: int = 0

    @property
    def address(self) -> int:
        """The device address."""
        return self.memory.address + self.offset


Argument = Pointer | Memory | int | float | None


class Graph(Protocol):
    """Captured launches that replay in the order they were captured."""

    def replay(self, stream: Any = None) -> None:
        """Launch the whole list once."""


class Device(Protocol):
    """Both devices do exactly this. All sizes in bytes, times in milliseconds."""

    properties: Properties

    def alloc(self, name: str, nbytes: int, align: int = 16) -> Memory:
        """Guarded memory filled with POISON. Raises DeviceError when there is not enough."""

    def free(self, memory: Memory) -> None:
        """Give memory back after checking its guards (raises OutOfBounds)."""

    def write(self, memory: Memory, data: np.ndarray, offset: int = 0) -> None:
        """Copy an array's bytes to the device; waits for earlier launches."""

    def read(self, memory: Memory, nbytes: int | None = None, offset: int = 0) -> np.ndarray:
        """Copy bytes back as uint8; waits for earlier launches."""

    def fill(self, memory: Memory, byte: int) -> None:
        """Set every byte."""

    def check(self, memory: Memory) -> None:
        """Raise OutOfBounds if a guard byte around the memory changed."""

    def build(self, instance: Instance) -> Any:
        """Compile an instantiation (cached by source, flags and compiler). Raises BuildError."""

    def launch(self, built: Any, geometry: Geometry, args: Sequence[Argument], stream: Any = None) -> None:
        """Launch with the arguments in catalogue order. Host: runs to the end and raises what went wrong."""

    def synchronize(self) -> None:
        """Wait for all launches; raises DeviceError for a fault in any of them."""

    def stream(self) -> Any:
        """A new stream."""

    def event(self, stream: Any = None) -> Any:
        """An event recorded on the stream now."""

    def elapsed(self, start: Any, end: Any) -> float:
        """Milliseconds between two events."""

    def capture(self) -> AbstractContextManager[Any]:
        """Context in which launches are recorded; yields a stream to launch on, then `.graph` is a Graph."""
