"""How the streaming projection is laid over a machine: split, warps, stages, panels a warp. A choice of speed alone."""

import itertools
from dataclasses import dataclass

from kernels.entry import Value
from kernels.projection_stream import fixed_bytes, most_warps, slices_of, stage_bytes
from kernels.projections import PANEL_ROWS, SLICES
from kernels.rules import ceil_div

#: Shared memory that one block, or each of two blocks on one multiprocessor, can have (sm_90: 228 KB, 1 KB each kept).
WHOLE, HALF = 227 * 1024, 113 * 1024
#: Bytes in flight that a multiprocessor needs to keep its share of the memory busy; less costs in proportion.
IN_FLIGHT = 40 * 1024
COLS = (8, 16, 32, 64)
#: Widest band whose sums a block keeps, in groups.
BAND = 24


@dataclass(frozen=True, slots=True)
class Knobs:
    """Forced values, 0: by the rules. resident: blocks a multiprocessor has room for, so that two launches overlap."""

    splits: int = 0
    warps: int = 0
    stages: int = 0
    panels: int = 0
    resident: int = 0
    blocks: int = 0
    held: int = 0


@dataclass(frozen=True, slots=True)
class Stream:
    """One way to lay a projection over a machine, and the share of the memory's speed expected of it."""

    template: dict[str, Value]
    dims: dict[str, Value]
    share: float

    @property
    def kernel(self) -> str:
        """Name in the catalogue."""
        if self.template["BITS"] == 4:  # bits of a code
            return "projection_stream_q4"
        return "projection_stream_pairs" if self.template["PANELS"] == 2 else "projection_stream"


def streams(
    N: int, K: int, rows: int, words: int, bits: int, multiprocessors: int, *, planes: bool, knobs: Knobs = Knobs()
) -> list[Stream]:
    """Every layout that fits shared memory, the fastest expected first.

    Shapes: rows activation rows of K (words int8 words an element), N outputs, weights of so many bits; planes: whether
    K may be split.
    Units:  share is relative to the machine's read bandwidth.
    Error:  none: bits do not depend on the layout.
    Source: measured on an H200; see the bench records. Raises nothing; the list is empty where nothing fits.
    """
    cols = next((c for c in COLS if c >= rows), COLS[-1])
    few = cols <= 16  # 16 warps have registers enough
    pairs = (1,) if few or bits == 4 or words == 2 else (2, 1)  # bits of a code, words of another
    splittable = planes and K // 32 >= SLICES
    # a launch too short to fill the shared memory twice leaves half of it to the next, whose rings fill meanwhile
    short = cols <= 32 and N * (K * bits // 8 + K // 16) < 2 * WHOLE * multiprocessors  # sequences
    found = []
    for splits in (knobs.splits,) if knobs.splits else (1, SLICES) if splittable else (1,):
        warps = min(knobs.warps or (16 if few and splits == 1 else 8), most_warps(cols))
        resident = (knobs.resident,) if knobs.resident else (2, 1) if short and splits > 1 else (1,)
        for panels, blocks_each in itertools.product((knobs.panels,) if knobs.panels else pairs, resident):
            template: dict[str, Value] = {"WORDS": words, "BITS": bits, "COLS": cols, "PANELS": panels}
            groups = ceil_div(N, PANEL_ROWS * panels)
            blocks = min(knobs.blocks or max(1, multiprocessors // splits), groups)
            each = ceil_div(groups, blocks)  # groups of a block
            width = 1 if splits > 1 else ceil_div(each, ceil_div(each, band(cols, panels)))
            whole = slices_of(splits)
            for held in (knobs.held,) if knobs.held else dict.fromkeys((whole, min(2, whole))):
                taken = fixed_bytes(rows, K // 32, cols, words, panels, splits, width, held)
                free = (WHOLE, HALF)[blocks_each - 1] - taken
                stages = min(knobs.stages or 8, free // (warps * stage_bytes(bits, panels)))
                if stages < 1:
                    continue
                share = groups / (each * blocks) * min(1.0, blocks * splits / (0.97 * multiprocessors))
                share *= _depth(warps * stages * stage_bytes(bits, panels), stages, cols)
                stored = 2 * 4 * SLICES * rows / K * min(1.0, 16 / cols)
                share *= _cost(panels != pairs[0], splits, stored, held < whole)
                share *= 1.0 if blocks_each == resident[0] else 0.95
                # no sums are kept of slices that go to planes: the whole block is one band
                dims: dict[str, Value] = {
                    "grid": blocks, "splits": splits, "warps": warps, "stages": stages,
                    "width": min(each, 32) if splits > 1 else width, "held": held,
                }  # fmt: skip  # one line a launch
                found.append(Stream(template, dims, share))
    return sorted(found, key=lambda s: -s.share)


def band(cols: int, panels: int) -> int:
    """Groups whose sums a block keeps: a wider one saves no wait, and for 64 sequences its sums crowd out the ring."""
    return BAND if cols <= 32 else BAND // 2 if panels == 1 else BAND // 6  # sequences


def _depth(flying: int, stages: int, cols: int) -> float:
    """Share of the memory's speed that so many bytes in flight keep; a block that multiplies longer needs fewer."""
    return min(1.0, flying / (IN_FLIGHT * min(1.0, 16 / cols))) * (0.9 if stages == 1 else 1.0)


def _cost(single: bool, splits: int, stored: float, refilled: bool) -> float:
    """Measured factors: single panels where pairs share activations, planes written and read, slices filled again."""
    alone = 0.75 if single and splits == 1 else 1.0
    return alone / (1 + (stored if splits > 1 else 0.0)) * (1.0 if splits == 1 else 0.98) * (0.97 if refilled else 1.0)
