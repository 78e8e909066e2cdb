"""A decode seen launch by launch: digests of what every launch wrote, and the arrays of any one of them.

A run is watched as one sequence sees it: of every written buffer only the rows of that sequence count, so that a
sequence in a batch can be compared with the same one alone.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from harness.engine import Engine, Request, Stream, decode
from kernels.columns import by_rows, scales_by_rows
from kernels.entry import Buffer, Instance, buffer_shape
from kernels.plan import Launch, Use

#: What identifies a launch across runs: pass the sequence takes part in, program, label, and its count in the program.
Key = tuple[int, str, str, int]


@dataclass(frozen=True, slots=True)
class Written:
    """One buffer that a launch wrote, as one sequence sees it."""

    key: Key
    kernel: str
    buffer: str
    shape: tuple[int, ...]
    digest: str
    array: np.ndarray | None = field(default=None, compare=False)

    @property
    def place(self) -> str:
        """In words."""
        at, program, label, _ = self.key
        return f"pass {at} ({program}), launch {label} ({self.kernel}), buffer {self.buffer}"


class Reached(Exception):  # not an error: it ends a run at the launch that was asked for
    """The launch was reached; holds the arrays it wrote."""

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        self.arrays = arrays


def argument(instance: Instance, name: str) -> Buffer:
    """The catalogue's description of a buffer argument."""
    return next(b for b in instance.kernel.buffers if b.name == name)


def seen_by(engine: Engine, item: Launch, use: Use, b: int, count: int) -> np.ndarray:
    """What a launch wrote through one argument, for sequence b: its first `count` rows of a pass, its slot of a state.

    Buffers without a sequence axis (none are written by plans) come whole.
    """
    buffer = argument(item.instance, use.argument)
    shape = buffer_shape(buffer, item.dims)
    flat = engine.read(use.ref.buffer)[use.ref.offset :]
    rows = tuple("rows" if name == "scale_rows" else name for name in buffer.shape)
    if item.dims.get("columns") and buffer.name in ("codes", "scales"):
        flat, lines = flat[: int(np.prod(shape))], int(item.dims["rows"])
        flat = by_rows(flat, *shape[:2]) if buffer.name == "codes" else scales_by_rows(flat, lines)
        shape = flat.shape
    if buffer.pitch is not None:
        pitch, width = int(item.dims[buffer.pitch]), shape[-1]
        lines = int(np.prod(shape[:-1]))
        flat = np.lib.stride_tricks.as_strided(flat, (lines, width), (pitch * flat.itemsize, flat.itemsize))
    array = np.ascontiguousarray(flat).reshape(-1)[: int(np.prod(shape))].reshape(shape)
    B = engine.setting.B
    if "slots" in buffer.shape:
        return np.asarray(np.take(array, b, axis=buffer.shape.index("slots")))
    if "rows" in rows:
        axis = rows.index("rows")
        tokens = array.reshape(*array.shape[:axis], -1, B, *array.shape[axis + 1 :])
        mine = np.take(tokens, b, axis=axis + 1)
        return np.asarray(np.take(mine, range(min(count, mine.shape[axis])), axis=axis))
    if "B" in buffer.shape:
        return np.asarray(np.take(array, b, axis=buffer.shape.index("B")))
    return array


@dataclass(slots=True)
class _Watch:
    """Counts passes and launches of a run, and hands each launch's written arrays to `see`."""

    engine: Engine
    request: int
    see: Callable[[Key, Launch, Use, np.ndarray], None]
    passes: int = -1
    count: int = 0
    lane: int | None = None
    labels: Counter[str] = field(default_factory=Counter)

    def __call__(self, program: str, item: Launch) -> None:
        """After one launch."""
        if item is self.engine.plan.programs[program][0]:
            self._begin(program)
        number = self.labels[item.label]
        self.labels[item.label] += 1
        if self.lane is None:
            return
        for use in item.uses:
            if use.writes:
                array = seen_by(self.engine, item, use, self.lane, self.count)
                self.see((self.passes, program, item.label, number), item, use, array)

    def _begin(self, program: str) -> None:
        self.labels.clear()
        slot = np.flatnonzero(self.engine.read("slot") == self.request)
        self.lane, self.count = (int(slot[0]) if slot.size else None), 1 << 30
        if self.lane is not None and program.startswith("prefill"):
            self.count = int(self.engine.read("chunk.length")[self.lane])
            self.lane = self.lane if self.count > 0 else None
        if self.lane is not None:
            self.passes += 1


def trace(
    engine: Engine, requests: Sequence[Request], sequence: int = 0, *, keep: bool = False
) -> tuple[list[Stream], list[Written]]:
    """Decode, and list what every launch wrote for one sequence. All requests run at once (a lane each).

    keep: with the arrays, which a small model's few hundred launches a token leave room for.
    Error:  none: tracing reads, and a control run shows the same streams.
    """
    found: list[Written] = []

    def see(key: Key, item: Launch, use: Use, array: np.ndarray) -> None:
        kept = array.copy() if keep else None
        found.append(Written(key, item.instance.kernel.name, use.ref.buffer, array.shape, digest_of(array), kept))

    watched = replace(engine, after=_Watch(engine, sequence, see))
    return decode(watched, requests), found


def arrays_at(engine: Engine, requests: Sequence[Request], key: Key, sequence: int = 0) -> dict[str, np.ndarray]:
    """What the launch of that key wrote, by buffer. Raises KeyError if the run never comes to it."""
    found: dict[str, np.ndarray] = {}

    def see(at: Key, _item: Launch, use: Use, array: np.ndarray) -> None:
        if found and at != key:
            raise Reached(found)
        if at == key:
            found[use.ref.buffer] = array.copy()

    try:
        decode(replace(engine, after=_Watch(engine, sequence, see)), requests)
    except Reached as reached:
        return reached.arrays
    if not found:
        raise KeyError(key)
    return found


def digest_of(array: np.ndarray) -> str:
    """Half a SHA-256 of the bits, any NaN like any other."""
    return hashlib.sha256(canonical(array).tobytes()).hexdigest()[:32]


def canonical(array: np.ndarray) -> np.ndarray:
    """The array with every NaN the same NaN: payloads differ between devices by nature."""
    if array.dtype.kind != "f":
        return np.ascontiguousarray(array)
    return np.where(np.isnan(array), np.asarray(np.nan, array.dtype), array)


def hexadecimal(value: np.generic) -> str:
    """The bits of one value."""
    return f"0x{value.tobytes()[::-1].hex()}"
