"""Catalogue entries of the streaming projection: Q8_0 and Q4 panels through rings of bulk copies.

Dims: grid: blocks along N. splits: blocks along K. warps: of a block. stages: of a warp's ring. span: chunks of a
stage. width: panels whose slice sums a block holds at a time. held: buffers of activations, PART chunks each.
"""

from kernels.entry import Dims, Geometry, Kernel, Param, Rule, Scalar
from kernels.projections import (
    ARGS_TILED,
    GRID_RULE,
    PANEL_BLOCKS,
    PANEL_ROWS,
    SIZE_RULES,
    SLICES,
    SPLIT_RULES,
    WORDS,
    derived,
    panel_bytes,
    row_groups,
)
from kernels.rules import BLOCK, IN_REGISTERS, SHARED, between, ceil_div

#: Chunks of a slice that a buffer holds, as kernels/projection_stream.cu is compiled.
PART = 6
COLS = Param("COLS", (8, 16, 32, 64))
ARGS = (*ARGS_TILED, Scalar("stages"), Scalar("span"), Scalar("width"), Scalar("held"))


def held_rows(rows: int, cols: int) -> int:
    """Activation rows that a block has room for: a batch below one fragment is held as it is."""
    return min(rows, cols) if cols == 8 else cols  # columns of one fragment


def most_warps(cols: int) -> int:
    """Warps of a block, as kernels/projection_stream.cu is compiled: from 64 sequences on they need more registers."""
    return 20 if cols <= 32 else 16  # sequences


def part_bytes(rows: int, cols: int, words: int) -> int:
    """Bytes of a buffer: rows of codes, a multiple of 128 and 16 bytes apart, and of scales, an odd multiple of 16
    apart; and its state.
    """
    return held_rows(rows, cols) * (words * (PART * PANEL_BLOCKS * BLOCK + 16) + (PART | 1) * 16) + 16


def slices_of(splits: int) -> int:
    """Slices of the block that has most of them."""
    return ceil_div(SLICES, splits)


def fixed_bytes(rows: int, cols: int, words: int, splits: int, width: int, held: int) -> int:
    """Shared memory of a block besides its rings: sums with a turn each, and parts of the activations."""
    sums = 0 if splits > 1 else width * (PANEL_ROWS * cols * 4 + 4)
    return sums + held * part_bytes(rows, cols, words)


def stage_bytes(bits: int, span: int) -> int:
    """Bytes of one stage of one warp: so many chunks, and its barrier."""
    return span * panel_bytes(bits) + 8


def _smem(d: Dims) -> int:
    rings = int(d["warps"]) * int(d["stages"])
    sizes = (int(d[name]) for name in ("rows", "COLS", "WORDS", "splits", "width", "held"))
    return rings * stage_bytes(int(d["BITS"]), int(d["span"])) + fixed_bytes(*sizes)


def _window(d: Dims) -> int:
    """Chunks that all buffers hold."""
    return int(d["held"]) * PART


def _geometry(d: Dims) -> Geometry:
    grid = (int(d["grid"]), ceil_div(int(d["rows"]), int(d["COLS"])), int(d["splits"]))
    return Geometry(grid, (32 * int(d["warps"]), 1, 1), _smem(d))


def _panels(d: Dims) -> int:
    return ceil_div(int(d["N"]), PANEL_ROWS)


RULES = (
    *SIZE_RULES,
    *SPLIT_RULES,
    row_groups("y", 8),
    GRID_RULE,
    between("stages", 1, 16, "the stages that a ring is built for"),
    between("width", 1, 32, "the panels whose sums a block can hold"),
    between("span", 1, 32, "the chunks of one copy"),
    between("held", 1, 32, "the buffers that the threads of a warp set up"),
    Rule(
        lambda d: PART % int(d["span"]) == 0 or int(d["chunks"]) <= PART,
        f"span = {{span}}: a copy of so many chunks crosses the end of a buffer of {PART}",
    ),
    Rule(
        lambda d: 1 <= int(d["warps"]) <= most_warps(int(d["COLS"])),
        "warps = {warps} of a block of {COLS} sequences: it has at least 1, and at most 20 up to 32 sequences, else 16",
    ),
    Rule(
        lambda d: _window(d) >= int(d["chunks"]) or int(d["width"]) <= int(d["warps"]),
        "{held} buffers hold less than a slice of {chunks} chunks, which {warps} warps read more than once for {width} "
        "panels: every warp would wait for another",
    ),
    Rule(
        lambda d: _smem(d) <= SHARED,
        f"{{warps}} rings of {{stages}} stages, {{width}} panels of sums and {{held}} parts of {{rows}} rows of "
        f"K = {{K}} exceed {SHARED} bytes of shared memory",
    ),
)


def _kernel(name: str, params: tuple[Param, ...], doc: str) -> Kernel:
    bits = int(next(p for p in params if p.name == "BITS").values[0])
    return Kernel(
        name=name,
        room="projection_stream",
        family="projection",
        symbol="projection_stream",
        params=params,
        args=ARGS,
        geometry=_geometry,
        derive=derived(_panels, bits=bits, warps=4, stages=3, span=1, width=2, held=1),
        rules=RULES,
        archs=("sm_90a",),
        limits={"registers": 255, "smem": 0, **IN_REGISTERS},
        doc=doc,
        dependent=True,
        early=("tiles",),
    )


PROJECTION_STREAM = _kernel(
    "projection_stream",
    (WORDS, Param("BITS", (8,)), COLS),
    "Panels of 16 weight rows streamed by warps through rings of bulk copies; slice sums handed on in order.",
)
PROJECTION_STREAM_Q4 = _kernel(
    "projection_stream_q4",
    (Param("WORDS", (1,)), Param("BITS", (4,)), COLS),
    "The same with Q4 panels.",
)

KERNELS = (PROJECTION_STREAM, PROJECTION_STREAM_Q4)
