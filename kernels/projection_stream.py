"""Catalogue entries of the streaming projection: Q8_0 and Q4 panels through rings of bulk copies.

Dims: grid: blocks along N. splits: blocks along K. warps: of a block that multiply, a panel or two each at a time; one
more feeds them where not all activations have room. stages: of a warp's ring. span: chunks of a stage, or one of each
of two panels. held: buffers of activations, a part of a slice each. part: chunks of a part.
"""

from kernels.entry import Buffer, Dims, Geometry, Kernel, Param, Rule, Scalar
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
from kernels.rules import BLOCK, IN_REGISTERS, SHARED, UNIT, between, ceil_div, scale_rows

COLS = Param("COLS", (8, 16, 32, 64))
COLS_Q4 = Param("COLS", (1, *COLS.values))
MOST_HELD = 32  # buffers of activations
SCHEDULERS = 4  # of a multiprocessor
MOST, MOST_OF_MANY = 20, 12  # warps of a block, and of one of many sequences
#: Activations by columns, of which a part is one copy.
CODES = Buffer("codes", "i8", ("units", "WORDS", "rows", UNIT), "r", align=16)
SCALES = Buffer("scales", "f32", ("KB", "scale_rows"), "r", align=16)
LAYOUT = (Scalar("stages"), Scalar("span"), Scalar("held"), Scalar("part"))
ARGS: tuple[Buffer | Scalar, ...] = (CODES, SCALES, *ARGS_TILED[2:], *LAYOUT)


def together(words: int, cols: int) -> bool:
    """Whether a warp takes two panels together, as kernels/projection_stream.cu is compiled."""
    return words * cols >= 64  # words of all sequences


def most_warps(words: int, cols: int) -> int:
    """Warps of a block, as kernels/projection_stream.cu is compiled: many sums leave registers for fewer."""
    return MOST_OF_MANY if together(words, cols) else MOST


def widest(words: int, cols: int, panels: int, warps: int) -> int:
    """Panels of the widest unit of a block of so many panels, as kernels/stream_units.cuh shares them out."""
    return 2 if together(words, cols) and panels > warps else 1


def part_bytes(rows: int, cols: int, words: int, part: int) -> int:
    """Bytes of a buffer: a part of so many chunks, codes of the rows that a block has, and their scales."""
    room = min(rows, cols)
    return part * PANEL_BLOCKS * (room * words * BLOCK + 4 * scale_rows(room))


def slices_of(splits: int) -> int:
    """Slices of the block that has most of them."""
    return ceil_div(SLICES, splits)


def parts_of(splits: int, chunks: int, part: int) -> int:
    """Parts of all slices of the block that has most of them: with as many buffers nothing is copied twice."""
    return slices_of(splits) * ceil_div(chunks, part)


def fixed_bytes(
    rows: int, cols: int, words: int, part: int, splits: int, warps: int, held: int, panels: int
) -> int:
    """Shared memory of a block of so many panels besides its rings: state of buffers, sums of slices, activations."""
    summed = 0 if splits > 1 else min(widest(words, cols, panels, warps) * warps, panels)
    sums = summed * PANEL_ROWS * cols * 4
    if cols == 1:  # whose sums are registers; lanes exchange the dots of two chunks
        sums = min(warps, panels) * 2 * PANEL_ROWS * PANEL_BLOCKS * 4
    return MOST_HELD * 16 + sums + held * part_bytes(rows, cols, words, part) + UNIT * max(8, cols)


def stage_bytes(bits: int, span: int, wide: int) -> int:
    """Bytes of one stage of one warp: so many chunks of each panel of its widest unit, and its barrier."""
    return wide * span * panel_bytes(bits) + 8


def _smem(d: Dims) -> int:
    """Bytes of a block: more than half of a multiprocessor's, so that no two share one while another is empty."""
    words, cols, warps, panels = int(d["WORDS"]), int(d["COLS"]), int(d["warps"]), panels_of(d)
    stage = stage_bytes(int(d["BITS"]), int(d["span"]), widest(words, cols, panels, warps))
    rows, splits, held, part = (int(d[name]) for name in ("rows", "splits", "held", "part"))
    fixed = fixed_bytes(rows, cols, words, min(part, int(d["chunks"])), splits, warps, held, panels)
    return max(SHARED // 2 + 1024, warps * int(d["stages"]) * stage + fixed)


def _warps(d: Dims) -> int:
    """Warps of a block: those that multiply, and the one that feeds them."""
    return int(d["warps"]) + (int(d["held"]) < parts_of(int(d["splits"]), int(d["chunks"]), int(d["part"])))


def _geometry(d: Dims) -> Geometry:
    grid = (int(d["grid"]), ceil_div(int(d["rows"]), int(d["COLS"])), int(d["splits"]))
    return Geometry(grid, (32 * _warps(d), 1, 1), _smem(d))


def _panels(d: Dims) -> int:
    return ceil_div(int(d["N"]), PANEL_ROWS)


def panels_of(d: Dims) -> int:
    """Panels of the block that has most of them."""
    return ceil_div(_panels(d), int(d["grid"]))


def _warps_rule(many: bool, most: int) -> Rule:
    """The warps of a block of many sequences, or of another, which has other limits."""
    return Rule(
        lambda d: together(int(d["WORDS"]), int(d["COLS"])) != many or 1 <= int(d["warps"]) <= _warps(d) <= most,
        f"warps = {{warps}} of a block of {{COLS}} sequences of {{WORDS}} words: it has 1 to {most}, with the one that "
        "feeds them where held = {held} parts are not all",
    )


RULES = (
    *SIZE_RULES,
    *SPLIT_RULES,
    row_groups("y", 8),
    GRID_RULE,
    between("stages", 1, 16, "the stages that a ring is built for"),
    between("span", 1, 32, "the chunks of one copy"),
    between("part", 1, 32, "the chunks of a part"),
    between("held", 1, MOST_HELD, "the buffers that the threads of a warp set up"),
    *(_warps_rule(many, most) for many, most in ((False, MOST), (True, MOST_OF_MANY))),
    Rule(
        lambda d: int(d["span"]) == 1 or widest(int(d["WORDS"]), int(d["COLS"]), panels_of(d), int(d["warps"])) == 1,
        "span = {span} where a warp takes two panels together: a stage has one chunk of each",
    ),
    Rule(
        lambda d: d["scale_rows"] == scale_rows(int(d["rows"])) and int(d["units"]) * UNIT == int(d["K"]),
        "scale_rows = {scale_rows} and units = {units} do not follow from {rows} rows of K = {K}",
    ),
    Rule(
        lambda d: _panels(d) * SLICES * int(d["chunks"]) < 2**31,
        "{N} rows of K = {K} in chunks exceed what an int can count",
    ),
    Rule(
        lambda d: _smem(d) <= SHARED,
        "{warps} rings of {stages} stages of {span} chunks, and {held} parts of {part} chunks of {rows} rows of "
        f"{{WORDS}} words, exceed {SHARED} bytes of shared memory",
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
        derive=derived(_panels, bits=bits, warps=4, stages=3, span=1, held=1, part=6),
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
    "Panels of 16 weight rows streamed by warps through rings of bulk copies; one panel a warp, or two together.",
)
PROJECTION_STREAM_Q4 = _kernel(
    "projection_stream_q4",
    (Param("WORDS", (1,)), Param("BITS", (4,)), COLS_Q4),
    "The same with Q4 panels.",
)

KERNELS = (PROJECTION_STREAM, PROJECTION_STREAM_Q4)
