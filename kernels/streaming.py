"""How the streaming projection is laid over a machine: cluster, warps, stages, panels a warp. A choice of speed alone."""

import itertools
from dataclasses import dataclass

from kernels.entry import Value
from kernels.projection_stream import fixed_bytes, most_warps, stage_bytes
from kernels.projections import PANEL_ROWS, SLICES
from kernels.rules import ceil_div

#: Shared memory that one block, or each of two blocks on one multiprocessor, can have (sm_90: 228 KB, 1 KB a block kept).
WHOLE, HALF = 227 * 1024, 113 * 1024
#: Bytes in flight that a multiprocessor needs to keep its share of the memory busy; less costs in proportion.
IN_FLIGHT = 40 * 1024
COLS = (8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class Knobs:
    """Forced values, 0: by the rules. resident: blocks a multiprocessor has room for, so that two launches overlap."""

    ranks: int = 0
    warps: int = 0
    stages: int = 0
    panels: int = 0
    resident: int = 0
    clusters: int = 0


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
    N: int, K: int, rows: int, words: int, bits: int, multiprocessors: int, knobs: Knobs = Knobs()
) -> list[Stream]:
    """Every layout that fits shared memory, the fastest expected first.

    Shapes: rows activation rows of K (words int8 words an element), N outputs, weights of so many bits.
    Units:  share is relative to the machine's read bandwidth.
    Error:  none: bits do not depend on the layout.
    Source: measured on an H200; see the bench records. Raises nothing; the list is empty where nothing fits.
    """
    cols = next((c for c in COLS if c >= rows), COLS[-1])
    few = cols <= 16  # noqa: PLR2004  # a block leaves room for the next launch's
    budget = (WHOLE, HALF)[(knobs.resident or (2 if few else 1)) - 1]
    warps = min(knobs.warps or 8, most_warps(cols))
    pairs = (1,) if few or bits == 4 else (2, 1)  # noqa: PLR2004  # bits of a code
    found = []
    for ranks, panels in itertools.product(
        (knobs.ranks,) if knobs.ranks else (1, 2, 4, 8), (knobs.panels,) if knobs.panels else pairs
    ):
        groups = ceil_div(N, PANEL_ROWS * panels)
        clusters = min(knobs.clusters or clusters_of(multiprocessors, ranks), groups)
        held = warps * ranks // SLICES  # groups that the warps of a block work on at a time
        for slots in dict.fromkeys((held + 2, max(2, held), max(2, held // 2))):
            slots = min(groups, slots)
            free = budget - fixed_bytes(rows, K // 32, cols, words, panels, ranks, slots)
            stages = min(knobs.stages or 8, free // (warps * stage_bytes(bits, panels)))
            if stages < 1:
                continue
            used = min(1.0, clusters * ranks / (0.97 * multiprocessors))
            balance = groups / (ceil_div(groups, clusters) * clusters) * used
            depth = min(1.0, warps * stages * stage_bytes(bits, panels) / IN_FLIGHT)
            cost = 0.98 ** (ranks.bit_length() - 1) * (1.0 if panels == pairs[0] else 0.9) * (1.0 if slots > held else 0.97)
            dims: dict[str, Value] = {"ranks": ranks, "grid": clusters, "warps": warps, "stages": stages, "slots": slots}
            template: dict[str, Value] = {"WORDS": words, "BITS": bits, "COLS": cols, "PANELS": panels}
            found.append(Stream(template, dims, balance * depth * cost))
    return sorted(found, key=lambda s: -s.share)


def clusters_of(multiprocessors: int, ranks: int) -> int:
    """Clusters that run at a time: graphics clusters have 16 or 18 multiprocessors, so that larger ones leave some idle."""
    idle = {1: 0, 2: 0, 4: 4, 8: 12}[ranks]
    return max(1, (multiprocessors - idle if multiprocessors > 2 * idle else multiprocessors) // ranks)
