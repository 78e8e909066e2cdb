"""Catalogue entries of the streaming projection: Q8_0 and Q4 panels through rings of bulk copies.

Dims: grid: blocks along N. splits: blocks along K. warps: of a block. stages: of a warp's ring. width: groups of panels
whose slice sums a block holds at a time. held: slices whose activation codes it holds.
"""

from kernels.entry import Dims, Geometry, Kernel, Param, Rule, Scalar
from kernels.projections import (
    ARGS_TILED,
    GRID_RULE,
    PANEL_ROWS,
    SIZE_RULES,
    SLICES,
    SPLIT_RULES,
    WORDS,
    chunks_of_slice,
    derived,
    panel_bytes,
    row_groups,
)
from kernels.rules import BLOCK, IN_REGISTERS, between, ceil_div

SHARED_BUDGET = 227 * 1024
COLS_ONE = Param("COLS", (8, 16, 32, 64))
ARGS = (*ARGS_TILED, Scalar("stages"), Scalar("width"), Scalar("held"))


def held_rows(rows: int, cols: int) -> int:
    """Activation rows that a block has room for: a batch below one fragment is held as it is."""
    return min(rows, cols) if cols == 8 else cols  # columns of one fragment


def row_pitch_bytes(blocks: int) -> int:
    """Bytes from one staged row to the next: room for a last chunk's padding, and 16 more than a multiple of 128."""
    return ceil_div(ceil_div(blocks, SLICES) * BLOCK + 128, 128) * 128 + 16


def slices_of(splits: int) -> int:
    """Slices of the block that has most of them."""
    return ceil_div(SLICES, splits)


def fixed_bytes(rows: int, blocks: int, cols: int, words: int, panels: int, splits: int, width: int, held: int) -> int:
    """Shared memory of a block besides its rings: sums with a turn each, activation scales and codes."""
    sums = 0 if splits > 1 else width * (panels * PANEL_ROWS * cols * 4 + 4)
    scales = slices_of(splits) * chunks_of_slice(blocks) * 4 * cols * 4
    return sums + scales + held * (words * held_rows(rows, cols) * row_pitch_bytes(blocks) + 16)


def stage_bytes(bits: int, panels: int) -> int:
    """Bytes of one stage of one warp: a chunk of every panel, and its barrier."""
    return panels * panel_bytes(bits) + 8


def _smem(d: Dims) -> int:
    rows, blocks, cols, words = (int(d[name]) for name in ("rows", "KB", "COLS", "WORDS"))
    panels, splits, width, held = (int(d[name]) for name in ("PANELS", "splits", "width", "held"))
    rings = int(d["warps"]) * int(d["stages"]) * stage_bytes(int(d["BITS"]), panels)
    return rings + fixed_bytes(rows, blocks, cols, words, panels, splits, width, held)


def _geometry(d: Dims) -> Geometry:
    grid = (int(d["grid"]), ceil_div(int(d["rows"]), int(d["COLS"])), int(d["splits"]))
    return Geometry(grid, (32 * int(d["warps"]), 1, 1), _smem(d))


def _groups(d: Dims) -> int:
    return ceil_div(int(d["N"]), PANEL_ROWS * int(d["PANELS"]))


def most_warps(cols: int) -> int:
    """Warps of a block: from 32 sequences on a thread needs more registers than 16 warps leave it."""
    return 16 if cols <= 16 else 8  # as kernels/projection_stream.cu is compiled


RULES = (
    *SIZE_RULES,
    *SPLIT_RULES,
    row_groups("y", 8),
    GRID_RULE,
    between("stages", 1, 16, "the stages that a ring is built for"),
    between("width", 1, 32, "the groups whose sums a block can hold"),
    between("held", 1, SLICES, "the slices of K"),
    Rule(
        lambda d: 1 <= int(d["warps"]) <= most_warps(int(d["COLS"])),
        "warps = {warps} of a block of {COLS} sequences: it has at least 1, and at most 16 up to 16 sequences, else 8",
    ),
    Rule(
        lambda d: _smem(d) <= SHARED_BUDGET,
        f"{{warps}} rings of {{stages}} stages, {{width}} groups of sums and {{held}} slices of {{rows}} rows of "
        f"K = {{K}} exceed {SHARED_BUDGET} bytes of shared memory",
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
        derive=derived(_groups, bits=bits, warps=4, stages=3, width=2, held=2),
        rules=RULES,
        archs=("sm_90a",),
        limits={"registers": 255, "smem": 0, **IN_REGISTERS},
        doc=doc,
        dependent=True,
        early=("tiles",),
    )


PROJECTION_STREAM = _kernel(
    "projection_stream",
    (WORDS, Param("BITS", (8,)), COLS_ONE, Param("PANELS", (1,))),
    "Panels of 16 weight rows streamed by warps through rings of bulk copies; slice sums handed on in order.",
)
PROJECTION_STREAM_PAIRS = _kernel(
    "projection_stream_pairs",
    (Param("WORDS", (1,)), Param("BITS", (8,)), Param("COLS", (32, 64)), Param("PANELS", (2,))),
    "The same with two panels a warp, which share every activation fragment.",
)
PROJECTION_STREAM_Q4 = _kernel(
    "projection_stream_q4",
    (Param("WORDS", (1,)), Param("BITS", (4,)), COLS_ONE, Param("PANELS", (1,))),
    "The same with Q4 panels.",
)

KERNELS = (PROJECTION_STREAM, PROJECTION_STREAM_PAIRS, PROJECTION_STREAM_Q4)
