"""How the streaming projection is laid over a machine: split, warps, rings, buffers. A choice of speed alone."""

import itertools
from dataclasses import dataclass

from kernels.entry import Value
from kernels.projection_stream import (
    MOST_HELD,
    PART,
    fixed_bytes,
    most_warps,
    panels_of_unit,
    slices_of,
    stage_bytes,
)
from kernels.projections import PANEL_ROWS, SLICES, chunks_of_slice
from kernels.rules import SHARED, ceil_div

COLS = (8, 16, 32, 64)
#: Widest band of units whose sums a block keeps: the narrower, the fewer warps and the longer their rings.
BAND, NARROW_BAND = 20, 6
LARGE = 32  # sequences whose products take as long as their weights
#: Shares of the best number of warps, tried in order.
SHARES = (1.0, 0.67, 0.5, 0.25)
#: Sequences times words -> chunks that each warp should have on their way.
FLYING = {8: 3, 16: 3, 32: 2, 64: 1, 128: 1}


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
    def of_unit(self) -> int:
        """Panels that a warp multiplies at a time."""
        return panels_of_unit(self.words, self.cols)

    @property
    def flying(self) -> int:
        """Chunks that each warp should have on their way: the longer it multiplies, the fewer."""
        return PART if self.light else FLYING[self.words * self.cols]

    @property
    def light(self) -> bool:
        """Whether the products of a block of weights take less than its bytes."""
        return self.bits == 8 and self.words * self.cols == 8  # bits of a code, words of a fragment


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
    cols = next((c for c in COLS if c >= rows), COLS[-1])
    work = Work(ceil_div(N, PANEL_ROWS), chunks_of_slice(K // 32), rows, words, bits, cols)
    template: dict[str, Value] = {"WORDS": words, "BITS": bits, "COLS": cols}
    narrow = work.panels < 4 * multiprocessors  # so few panels a multiprocessor that one more is much more
    splits = (SLICES, 1) if planes and narrow and K // 32 >= SLICES else (1,)
    bands = (NARROW_BAND,) if work.light else (BAND, NARROW_BAND)
    tries = itertools.product(splits, bands, SHARES)
    found = (layout(work, max(1, multiprocessors // split), split, band, share) for split, band, share in tries)
    return [Stream(template, dims) for dims in found if dims]


def layout(work: Work, blocks: int, splits: int, band: int, share: float) -> dict[str, Value]:
    """The dims of blocks with this share of the warps that are best; none where no stage of a ring fits.

    Activations stay where all slices have room; else the more slices a block holds, the less a warp waits for the
    slowest. Both give way to the weights on their way.
    """
    blocks = min(blocks, work.panels)
    each = ceil_div(ceil_div(work.panels, blocks), work.of_unit)  # units of a block and slice
    parts = ceil_div(work.chunks, PART)  # of a slice
    resident = slices_of(splits) * parts
    width = min(each, BAND) if splits > 1 else ceil_div(each, ceil_div(each, band))
    warps = max(1, int(_warps(work, splits, each, width) * share))
    helds = [min(resident, n * parts) for n in (SLICES, 4, 3, 2, 1)]
    for least, held in (*itertools.product((work.flying, 1), helds), (1, 1)):
        wide = min(width, warps) if held < parts else width
        free = SHARED - fixed_bytes(work.rows, work.cols, work.words, splits, wide, held)
        chunks = free // (warps * stage_bytes(work.bits, 1, work.of_unit))  # of a warp's ring
        # warps that multiply long wait for the slowest of a slice where the next one has no room
        alone = work.cols * work.words == 2 * LARGE and held <= parts < resident and share > SHARES[-1]
        if held <= MOST_HELD and chunks >= least and not alone:
            stages, span = _ring(work, splits, chunks)
            return {
                "grid": blocks, "splits": splits, "warps": warps, "stages": stages, "span": span, "width": wide,
                "held": held,
            }  # fmt: skip  # a map
    return {}


def _warps(work: Work, splits: int, each: int, width: int) -> int:
    """Two a unit of the band, so that a slice ends for all at once; of one slice, one for one unit or two."""
    most = most_warps(work.words, work.cols)
    if splits == 1:
        return most if work.of_unit > 1 else min(most, 2 * width)
    if work.of_unit > 1:
        return min(most, each)
    if work.cols == LARGE:
        return min(most, ceil_div(3 * each, 5))
    return min(most, ceil_div(each, 2) if work.light or work.chunks <= PART else each)


def _ring(work: Work, splits: int, chunks: int) -> tuple[int, int]:
    """Stages of a ring, and the chunks of a stage, where so many chunks fit."""
    whole = min(chunks, work.chunks) if splits > 1 else chunks  # a block with one slice needs no more at a time
    most, longest = (4, 3) if work.light else (3, 1)
    if work.cols > 8 and (splits > 1 or work.of_unit > 1):  # sequences
        most, longest = 2, 2
    elif work.cols > 8:  # sequences
        most = 2
    elif work.bits == 4:  # bits of a code
        most, longest = 2, 3
    span = next((n for n in range(longest, 1, -1) if whole >= 2 * n), 1)
    return max(1, min(most, whole // span)), span
