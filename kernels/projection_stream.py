"""Catalogue entries of the streaming projection: Q8_0 and Q4 panels through rings of bulk copies.

Dims: grid: blocks along N. splits: blocks along K. warps: of a block. stages: of a warp's ring. span: chunks of a
stage. width: units (panels that a warp multiplies at a time) whose slice sums a block holds. held: buffers of
activations, PART chunks each.
"""

from dataclasses import replace

from kernels.entry import Buffer, Dims, Geometry, Kernel, Param, Rule, Scalar
from kernels.projections import (
    ARGS_TILED,
    GRID_RULE,
    PANEL_BLOCKS,
    PANEL_ROWS,
    SCALES,
    SIZE_RULES,
    SLICES,
    SPLIT_RULES,
    WORDS,
    derived,
    panel_bytes,
    row_groups,
)
from kernels.rules import BLOCK, IN_REGISTERS, SHARED, UNIT, between, ceil_div

#: Chunks of a slice that a buffer holds, as kernels/projection_stream.cu is compiled.
PART = 6
COLS = Param("COLS", (8, 16, 32, 64))
MOST_WIDTH = 32  # units whose sums a block can hold
MOST_HELD = 32  # buffers of activations
#: Codes by columns, of which a part is one copy; scales are copied 16 bytes at a time where slices are whole chunks.
CODES = Buffer("codes", "i8", ("units", "WORDS", "rows", UNIT), "r", align=16)
LAYOUT = (Scalar("stages"), Scalar("span"), Scalar("width"), Scalar("held"))
ARGS: tuple[Buffer | Scalar, ...] = (CODES, replace(SCALES, align=16), *ARGS_TILED[2:], *LAYOUT)


def panels_of_unit(words: int, cols: int) -> int:
    """Panels that a warp multiplies at a time, as kernels/projection_stream.cu is compiled."""
    return 1 if words * cols < 64 else 2  # words of all sequences


def most_warps(words: int, cols: int) -> int:
    """Warps of a block, as kernels/projection_stream.cu is compiled: the more sums a thread holds, the fewer."""
    return {8: 20, 16: 20, 32: 16}.get(words * cols, 12)  # words of all sequences


def part_bytes(rows: int, cols: int, words: int) -> int:
    """Bytes of a buffer: codes of the rows, scales of as many as a block is built for, an odd multiple of 16 bytes
    apart.
    """
    return min(rows, cols) * words * PART * PANEL_BLOCKS * BLOCK + cols * (PART | 1) * 16


def slices_of(splits: int) -> int:
    """Slices of the block that has most of them."""
    return ceil_div(SLICES, splits)


def fixed_bytes(rows: int, cols: int, words: int, splits: int, width: int, held: int) -> int:
    """Shared memory of a block besides its rings: barriers and flags, sums, and parts of the activations."""
    sums = 0 if splits > 1 else width * panels_of_unit(words, cols) * PANEL_ROWS * cols * 4
    return MOST_HELD * 16 + MOST_WIDTH * 4 + sums + held * part_bytes(rows, cols, words)


def stage_bytes(bits: int, span: int, panels: int) -> int:
    """Bytes of one stage of one warp: so many chunks of each panel of a unit, and its barrier."""
    return panels * span * panel_bytes(bits) + 8


def _smem(d: Dims) -> int:
    rings = int(d["warps"]) * int(d["stages"])
    sizes = (int(d[name]) for name in ("rows", "COLS", "WORDS", "splits", "width", "held"))
    panels = panels_of_unit(int(d["WORDS"]), int(d["COLS"]))
    return rings * stage_bytes(int(d["BITS"]), int(d["span"]), panels) + fixed_bytes(*sizes)


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
    between("width", 1, MOST_WIDTH, "the units whose sums a block can hold"),
    between("span", 1, 32, "the chunks of one copy"),
    between("held", 1, MOST_HELD, "the buffers that the threads of a warp set up"),
    Rule(
        lambda d: PART % int(d["span"]) == 0 or int(d["chunks"]) <= PART,
        f"span = {{span}}: a copy of so many chunks crosses the end of a buffer of {PART}",
    ),
    Rule(
        lambda d: 1 <= int(d["warps"]) <= most_warps(int(d["WORDS"]), int(d["COLS"])),
        "warps = {warps} of a block of {COLS} sequences of {WORDS} words: it has at least 1, and at most 20, or, from "
        "32 words of all sequences on, 16, or, from 64 on, 12",
    ),
    Rule(
        lambda d: _window(d) >= int(d["chunks"]) or int(d["width"]) <= int(d["warps"]),
        "{held} buffers hold less than a slice of {chunks} chunks, which {warps} warps read more than once for {width} "
        "units: every warp would wait for another",
    ),
    Rule(
        lambda d: _smem(d) <= SHARED,
        f"{{warps}} rings of {{stages}} stages, {{width}} units of sums and {{held}} parts of {{rows}} rows of "
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
