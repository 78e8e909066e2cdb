"""How the streaming projection is laid over a machine: split, warps, rings, buffers. A choice of speed alone."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from kernels.entry import Value
from kernels.projection_stream import (
    MOST_HELD,
    SCHEDULERS,
    fixed_bytes,
    most_warps,
    parts_of,
    slices_of,
    stage_bytes,
    together,
    widest,
)
from kernels.projections import PANEL_ROWS, SLICES, chunks_of_slice, panel_bytes
from kernels.rules import SHARED, ceil_div

COLS = (8, 16, 32, 64)
#: Chunks of a part, at most: the longer, the fewer copies and waits, unless a short one leaves room for a longer ring,
#: or K is split, where the first of many rows is waited for.
PART, SHORT = 6, 3
#: Bytes of weights that a block should have on their way: more would stand in front of the activations at the start.
#: Of two fragments, and of many rows through all slices, where only the first stage stands there.
FLYING, FLYING_OF_TWO, FLYING_OF_MANY = 75_000, 140_000, 105_000
#: Warps of a block: of a slice whose products take less than their bytes, of another, of all slices.
FEW, MANY, ALL = 10, 20, 17


@dataclass(frozen=True, slots=True)
class Work:
    """A projection as a block sees it: panels, chunks of a slice, activation rows, what a kernel is built for."""

    panels: int
    chunks: int
    rows: int
    words: int
    bits: int
    cols: int

    @property
    def fragments(self) -> int:
        """Words of all sequences, 8 a fragment."""
        return self.words * ceil_div(self.cols, 8)

    @property
    def light(self) -> bool:
        """Whether the products of a block of weights take much less than its bytes."""
        return self.bits == 8 and self.fragments <= 2  # bits of a code


@dataclass(frozen=True, slots=True)
class Stream:
    """One way to lay a projection over a machine."""

    template: dict[str, Value]
    dims: dict[str, Value]

    @property
    def kernel(self) -> str:
        """Name in the catalogue."""
        return "projection_stream_q4" if self.template["BITS"] == 4 else "projection_stream"  # bits of a code


def streams(N: int, K: int, rows: int, words: int, bits: int, multiprocessors: int, *, planes: bool) -> list[Stream]:
    """Every layout that fits shared memory, the fastest expected first.

    Shapes: rows activation rows of K (words int8 words an element), N outputs, weights of so many bits; planes: whether
    K may be split.
    Units:  none.
    Error:  none: bits do not depend on the layout.
    Source: sweeps on an H200; see the bench records. Raises nothing; the list is empty where nothing fits.
    """
    cols = 1 if rows == 1 and bits == 4 else next((c for c in COLS if c >= rows), COLS[-1])  # bits of a code
    work = Work(ceil_div(N, PANEL_ROWS), chunks_of_slice(K // 32), rows, words, bits, cols)
    template: dict[str, Value] = {"WORDS": words, "BITS": bits, "COLS": cols}
    narrow = work.panels < 4 * multiprocessors  # so few panels a multiprocessor that one more is much more
    splits = (SLICES, 1) if planes and narrow and K // 32 >= SLICES else (1,)
    tries = itertools.product(splits, (MANY, ALL, FEW + 1, FEW, FEW // 2, 1))
    found = (layout(work, max(1, multiprocessors // split), split, warps) for split, warps in tries)
    return [Stream(template, dims) for dims in found if dims]


def layout(work: Work, blocks: int, splits: int, most: int) -> dict[str, Value]:
    """The dims of blocks of at most so many warps; none where no stage of a ring fits.

    Bands are as even as can be. Activations stay where all slices have room beside the weights that should be on their
    way; else a few parts are enough, and a warp feeds them.
    """
    blocks = min(blocks, work.panels)
    each = ceil_div(work.panels, blocks)  # panels of a block
    row = work.cols == 1
    fastest = FEW if row or (splits > 1 and work.light) else ALL if splits == 1 else MANY
    most = min(most, fastest, most_warps(work.words, work.cols))
    warps = _warps(work, each, most)
    wide = widest(work.words, work.cols, each, warps)
    ring = _ring_of_row(work, ceil_div(each, warps) * slices_of(splits) * work.chunks)
    wanted = ring[0] * ring[1] if row else _wanted(work, splits, warps, wide)
    for least, part, held in _activations(work, splits, wanted):
        parts = parts_of(splits, work.chunks, part)
        if held > min(parts, MOST_HELD) or warps + (held < parts) > most_warps(work.words, work.cols):
            continue
        free = SHARED - fixed_bytes(work.rows, work.cols, work.words, part, splits, warps, held, each)
        chunks = free // (warps * stage_bytes(work.bits, 1, wide))  # of each panel in a warp's ring
        if chunks >= least:
            stages, span = ring if row and chunks >= wanted else _ring(work, min(chunks, wanted), wide)
            shape = {"grid": blocks, "splits": splits, "warps": warps, "stages": stages, "span": span}
            return {**shape, "held": held, "part": part}
    return {}


def _activations(work: Work, splits: int, wanted: int) -> Iterator[tuple[int, int, int]]:
    """Chunks that a ring then has at least, chunks of a part, and parts that are held; what is tried first is best."""
    part, heavy = min(PART, work.chunks), together(work.words, work.cols)
    for least in (wanted, 1):
        for length in sorted({part, min(part, SHORT)} if heavy else {part}, reverse=splits == 1):
            for held in (parts_of(splits, work.chunks, length), *((2,) if heavy else (4, 3, 2))):
                yield least, length, held
    yield 1, part, 1


def _warps(work: Work, panels: int, most: int) -> int:
    """Warps of a block of so many panels: bands as even as can be, or units that schedulers share evenly."""
    if not together(work.words, work.cols):
        return ceil_div(panels, ceil_div(panels, most))
    even = (panels - 1) // (2 * SCHEDULERS) * SCHEDULERS  # warps of pairs, as many on each scheduler
    return even + 2 if panels > most and panels == 2 * even + 1 else min(panels, most)


def _wanted(work: Work, splits: int, warps: int, wide: int) -> int:
    """Chunks of each of a warp's panels that should be on their way."""
    if work.light and work.fragments == 1:
        return 12
    each = warps * wide * panel_bytes(work.bits)
    if together(work.words, work.cols):
        return max(1, round((FLYING_OF_MANY if splits == 1 else FLYING) / each))
    return min(8, max(2, round((FLYING_OF_TWO if work.light else FLYING) / each)))


def _ring_of_row(work: Work, chunks: int) -> tuple[int, int]:
    """Stages of a ring, and the chunks of a stage, of a warp that reads so many chunks: a slice, or all in thirds."""
    span = min(PART, work.chunks)
    return (3, span) if chunks >= 4 * span else (2, max(1, chunks // 3))


def _ring(work: Work, chunks: int, wide: int) -> tuple[int, int]:
    """Stages of a ring, and the chunks of a stage, of so many chunks."""
    spans, least = ((3, 2), 3) if work.light else ((4, 3, 2), 2)
    span = 1 if wide > 1 else next((n for n in spans if chunks >= least * n), 1)
    return min(4, chunks // span), span
