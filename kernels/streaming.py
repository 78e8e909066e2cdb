"""How the streaming projection is laid over a machine: split, warps, rings, buffers. A choice of speed alone."""

import itertools
from dataclasses import dataclass

from kernels.entry import Value
from kernels.projection_stream import PART, fixed_bytes, most_warps, slices_of, stage_bytes
from kernels.projections import PANEL_ROWS, SLICES, chunks_of_slice
from kernels.rules import SHARED, ceil_div

COLS = (8, 16, 32, 64)
#: Widest band whose sums a block keeps, in panels.
BAND = 20
#: Deepest ring: a deeper one is filled later than it helps.
STAGES = 3
#: Sequences times words -> chunks that each warp should have on their way: the longer it multiplies, the fewer.
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
    warps = (most_warps(cols), most_warps(cols) // 2, most_warps(cols) // 4)
    found = (layout(work, max(1, multiprocessors // split), split, n) for split in splits for n in warps)
    return [Stream(template, dims) for dims in found if dims]


def layout(work: Work, blocks: int, splits: int, warps: int) -> dict[str, Value]:
    """The dims of blocks of so many warps; none where no stage of a ring fits.

    Activations stay where all slices have room; else the more slices a block holds, the less a warp waits for the
    slowest. Both give way to the weights on their way.
    """
    blocks = min(blocks, work.panels)
    each, parts = ceil_div(work.panels, blocks), ceil_div(work.chunks, PART)  # panels of a block, parts of a slice
    resident = slices_of(splits) * parts
    helds = dict.fromkeys((resident, *(min(resident, n * parts) for n in (4, 3, 2, 1))))
    for least, held in (*itertools.product((FLYING[work.cols * work.words], 1), helds), (1, 1)):
        width = min(each, BAND) if splits > 1 else ceil_div(each, ceil_div(each, BAND))
        width = min(width, warps) if held < parts else width
        free = SHARED - fixed_bytes(work.rows, work.cols, work.words, splits, width, held)
        chunks = free // (warps * stage_bytes(work.bits, 1))  # of a warp's ring
        if held <= 32 and chunks >= least:  # buffers
            span = 2 if work.cols <= 16 and chunks >= 4 and work.chunks > 1 else 1  # sequences, chunks
            return {
                "grid": blocks, "splits": splits, "warps": warps, "stages": min(STAGES, chunks // span), "span": span,
                "width": width, "held": held,
            }  # fmt: skip  # a map
    return {}
