"""Bytes that a launch moves, and the least time that takes at a device's bandwidth."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from kernels.entry import DTYPES, Buffer, buffer_shape
from kernels.plan import Launch, Use


@dataclass(frozen=True, slots=True)
class Floor:
    """One launch. read, written: bytes; floor: microseconds at the bandwidth, nothing for the launch itself."""

    label: str
    kernel: str
    grid: tuple[int, int, int]
    block: int
    smem: int
    read: int
    written: int
    floor: float


def argument(item: Launch, use: Use) -> Buffer:
    """The catalogue's description of what a use binds."""
    return next(b for b in item.instance.kernel.buffers if b.name == use.argument)


def moved(item: Launch, use: Use) -> int:
    """Bytes that a launch must touch through one argument: its shape, and of a state pool only the batch's slots.

    Units:  bytes. Of an embedding, a table of angles and a history it touches its own rows alone; attention reads a
    cache whole, as at the last position, and what writes a cache writes its rows alone.
    """
    buffer = argument(item, use)
    shape = list(buffer_shape(buffer, item.dims))
    if "context" in buffer.shape and use.writes:
        shape[buffer.shape.index("slots")], shape[buffer.shape.index("context")] = 1, int(item.dims["rows"])
    elif "slots" in buffer.shape:
        shape[buffer.shape.index("slots")] = int(item.dims["B"])
    if buffer.shape[0] in ("V", "table"):
        shape[0] = int(item.dims["rows"])
    if "columns" in buffer.shape:
        shape[buffer.shape.index("columns")] = int(item.dims.get("T", 1))
    return int(np.prod(shape)) * int(np.dtype(DTYPES[use.dtype][0]).itemsize)


def floors(launches: Iterable[Launch], bandwidth: float) -> list[Floor]:
    """The floor of each launch.

    Shapes: bandwidth in GB a second.
    Units:  bytes and microseconds.
    Error:  a lower bound: what a cache serves again is counted once a launch.
    """
    found = []
    for item in launches:
        # a kernel that writes rows of a cache reads none of it, though its access is "rw"
        reads = [u for u in item.uses if u.reads and not (u.writes and "context" in argument(item, u).shape)]
        read, written = sum(moved(item, u) for u in reads), sum(moved(item, u) for u in item.uses if u.writes)
        g = item.geometry
        time = (read + written) / bandwidth / 1e3
        threads = int(np.prod(g.block))
        found.append(Floor(item.label, item.instance.expression, g.grid, threads, g.smem, read, written, time))
    return found
