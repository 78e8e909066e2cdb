"""How the streaming projection is laid over a machine: split, warps, stages, panels a warp. A choice of speed alone."""

import itertools
from dataclasses import dataclass

from kernels.entry import Value
from kernels.projection_stream import fixed_bytes, most_warps, slices_of, stage_bytes
from kernels.projections import PANEL_ROWS, SLICES
from kernels.rules import ceil_div

#: Shared memory that one block, or each of two blocks on one multiprocessor, can have (sm_90: 228 KB, 1 KB a block kept).
WHOLE, HALF = 227 * 1024, 113 * 1024
#: Bytes in flight that a multiprocessor needs to keep its share of the memory busy; less costs in proportion.
IN_FLIGHT = 40 * 1024
COLS = (8, 16, 32, 64)
#: Widest band whose sums a block keeps: a wider one saves no wait.
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
        if self.template["BITS"] == 4:  # noqa: PLR2004  # bits of a code
            return "projection_stream_q4"
        return "projection_stream_pairs" if self.template["PANELS"] == 2 else "projection_stream"  # noqa: PLR2004


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
    few = cols <= 16  # noqa: PLR2004  # 16 warps have registers enough
    warps = min(knobs.warps or (16 if few else 8), most_warps(cols))
    pairs = (1,) if few or bits == 4 or words == 2 else (2, 1)  # noqa: PLR2004  # bits of a code, words of another
    budget = (WHOLE, HALF)[max(knobs.resident, 1) - 1]
    splittable = planes and K // 32 >= SLICES
    found = []
    for splits, panels in itertools.product(
        (knobs.splits,) if knobs.splits else (1, SLICES) if splittable else (1,), (knobs.panels,) if knobs.panels else pairs
    ):
        groups = ceil_div(N, PANEL_ROWS * panels)
        blocks = min(knobs.blocks or max(1, multiprocessors // splits), groups)
        each = ceil_div(groups, blocks)  # groups of a block
        for held in (knobs.held,) if knobs.held else dict.fromkeys((slices_of(splits), min(2, slices_of(splits)))):
            bands = ceil_div(each, BAND if cols <= 32 else BAND // 2)  # noqa: PLR2004  # sequences
            width = 1 if splits > 1 else ceil_div(each, bands)
            free = budget - fixed_bytes(rows, K // 32, cols, words, panels, splits, width, held)
            stages = min(knobs.stages or 8, free // (warps * stage_bytes(bits, panels)))
            if stages < 1:
                continue
            if splits > 1:
                width = each if each <= 32 else 32  # noqa: PLR2004  # no sums are kept: the whole block is one band
            used = min(1.0, blocks * splits / (0.97 * multiprocessors))
            balance = groups / (each * blocks) * used
            depth = min(1.0, warps * stages * stage_bytes(bits, panels) / IN_FLIGHT)
            stored = 2 * 4 * SLICES * rows / K if splits > 1 else 0.0  # planes written and read, a byte of weights
            cost = (1.0 if panels == pairs[0] else 0.9) / (1 + stored) * (1.0 if splits == 1 else 0.98)
            cost *= 1.0 if held >= slices_of(splits) else 0.97
            dims: dict[str, Value] = {
                "grid": blocks, "splits": splits, "warps": warps, "stages": stages, "width": width, "held": held,
            }  # fmt: skip  # one line a launch
            template: dict[str, Value] = {"WORDS": words, "BITS": bits, "COLS": cols, "PANELS": panels}
            found.append(Stream(template, dims, balance * depth * cost))
    return sorted(found, key=lambda s: -s.share)
