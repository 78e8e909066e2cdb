"""Arguments, derived dims, rules and launch shapes that the lowerings of a projection share.

Dims: rows (sequences or tokens), N outputs, K inputs, KB = K / 32 blocks. splits: blocks along K; with more than one
the kernel writes 8 planes, one a slice. grid: blocks along the tiles of N; by default one a tile, and no bit depends on
it.
"""

from collections.abc import Callable

from kernels.entry import Buffer, Dims, Geometry, Param, Rule, Scalar, Value
from kernels.rules import BLOCK, GRID_X, GRID_Y, UNIT, between, ceil_div, multiple, row_pitch, scale_rows

SLICES = 8
PANEL_ROWS = 16  # weight rows of a fragment, and of a pre-tiled panel
PANEL_BLOCKS = 4  # blocks of a pre-tiled panel
MAX_WARPS = 8  # of a tensor-core block, a panel each

WORDS = Param("WORDS", (1, 2))
CODES = Buffer("codes", "i8", ("rows", "WORDS", "K"), "r", align=16)
CODES_A8 = Buffer("codes", "i8", ("rows", 1, "K"), "r", align=16)
SCALES = Buffer("scales", "f32", ("rows", "KB"), "r", align=4)
WEIGHTS = Buffer("w", "i8", ("N", "K"), "r", align=16)
WEIGHTS_Q4 = Buffer("w", "u8", ("N", "half"), "r", align=16)
WEIGHT_SCALES = Buffer("ws", "f16", ("N", "KB"), "r", align=4)
TILES = Buffer("tiles", "u8", ("panels", SLICES, "chunks", "panel_bytes"), "r", align=16)
OUTPUT = (Buffer("y", "f32", ("planes", "rows", "N"), "w", "y_pitch"), Scalar("y_pitch"))
SIZES = (Scalar("rows"), Scalar("N"), Scalar("KB"))

ARGS = (CODES, SCALES, WEIGHTS, WEIGHT_SCALES, *OUTPUT, *SIZES)
ARGS_Q4 = (CODES_A8, SCALES, WEIGHTS_Q4, WEIGHT_SCALES, *OUTPUT, *SIZES)
ARGS_TILED = (CODES, SCALES, TILES, *OUTPUT, *SIZES)


def panel_bytes(bits: int, blocks: int = PANEL_BLOCKS) -> int:
    """Bytes of 16 weight rows of a chunk: codes of so many bits, then float16 scales."""
    return PANEL_ROWS * blocks * (BLOCK * bits // 8 + 2)


def activation_bytes(rows: int, words: int, blocks: int) -> int:
    """Bytes of a chunk of activation rows: codes, then float32 scales."""
    return rows * blocks * (BLOCK * words + 4)


def chunks_of_slice(blocks: int) -> int:
    """Chunks of 4 blocks that the longest of 8 slices has."""
    return ceil_div(ceil_div(blocks, SLICES), PANEL_BLOCKS)


def derived(units: Callable[[Dims], int] | None = None, **fixed: Value) -> Callable[[Dims], Dims]:
    """Dims that follow: blocks, planes, packed pitch, pre-tiled shape; units(dims) is the grid of a block a tile."""

    def derive(dims: Dims) -> Dims:
        K, N = int(dims["K"]), int(dims["N"])
        splits = int(dims.get("splits", 1))
        full: dict[str, Value] = {
            **fixed,
            "KB": K // BLOCK,
            "half": K // 2,
            "units": K // UNIT,
            "scale_rows": scale_rows(int(dims.get("rows", 0))),
            "splits": splits,
            "planes": SLICES if splits > 1 else 1,
            "y_pitch": N,
            "panels": ceil_div(N, PANEL_ROWS),
            "chunks": chunks_of_slice(K // BLOCK),
            "panel_bytes": panel_bytes(int(fixed.get("bits", 8))),
        }
        if units is not None:
            full["grid"] = max(1, units({**full, **dims}))
        return full

    return derive


WEIGHT_RULES = (
    between("N", 1, 2**30, "the outputs that 32-bit row indices can hold"),
    multiple("K", BLOCK, "the elements that share one scale"),
    between("K", BLOCK, 2**24, "the elements whose offsets inside a row fit 32 bits"),
    Rule(lambda d: int(d["KB"]) * BLOCK == int(d["K"]), "KB = {KB} is not K / 32, K = {K}"),
    Rule(lambda d: int(d["half"]) * 2 == int(d["K"]), "half = {half} is not K / 2, K = {K}"),
    Rule(
        lambda d: d["panel_bytes"] == panel_bytes(int(d.get("bits", 8))),
        "panel_bytes = {panel_bytes} is not that of 16 rows of a chunk",
    ),
)
SIZE_RULES = (
    between("rows", 1, 2**24, "the rows that 32-bit tile counts and the third grid axis can hold"),
    *WEIGHT_RULES,
    *row_pitch("y_pitch", "N", 1),
    Rule(
        lambda d: d["chunks"] == chunks_of_slice(int(d["KB"])) and d["panels"] == ceil_div(int(d["N"]), PANEL_ROWS),
        "chunks = {chunks} and panels = {panels} do not follow from {N} rows of K = {K}",
    ),
)
GRID_RULE = between("grid", 1, GRID_X, "the blocks that one grid axis can hold")
ONE_PLANE = Rule(
    lambda d: d["splits"] == 1 and d["planes"] == 1,
    "this kernel does not split K: splits = {splits}, planes = {planes}",
)
SPLIT_RULES = (
    between("splits", 1, SLICES, "the slices of K"),
    Rule(
        lambda d: int(d["planes"]) == (SLICES if int(d["splits"]) > 1 else 1),
        "planes = {planes}: 1 block along K writes 1 plane, {splits} write 8",
    ),
    Rule(
        lambda d: int(d["splits"]) == 1 or int(d["KB"]) >= SLICES,
        "K = {K} has no block in some of the 8 slices, so that a split would leave planes unwritten",
    ),
)


def row_groups(dim: str, step: int) -> Rule:
    """The rows, `step` a block, fit a grid axis of 65,535."""
    return Rule(
        lambda d: ceil_div(int(d["rows"]), step) <= GRID_Y,
        f"rows = {{rows}} exceed {GRID_Y * step}, {step} a block along grid axis {dim}",
    )


def grid_of(d: Dims, rows_of_block: int, threads: int, smem: int = 0) -> Geometry:
    """Tiles of N along x, the split along y, rows along z."""
    return Geometry((int(d["grid"]), int(d["splits"]), ceil_div(int(d["rows"]), rows_of_block)), (threads, 1, 1), smem)
