"""Catalogue entry of the small float32 projection."""

from kernels.entry import Buffer, Dims, Geometry, Kernel, Param, Scalar
from kernels.rules import GRID_X, GRID_Y, IN_REGISTERS, between, blocks_of, ceil_div, defaults, row_pitch, rows_f32

CHUNK = 256  # elements that one warp sums, and of K that a plane takes
W_ROWS, WARPS = 4, 4  # weight rows of a warp, and warps of a block
ROWS = 8  # activation rows of a block


def _geometry(d: Dims) -> Geometry:
    warps = min(WARPS, ceil_div(int(d["N"]), W_ROWS))
    grid = (int(d["planes"]), ceil_div(int(d["N"]), W_ROWS * warps), ceil_div(int(d["rows"]), ROWS))
    return Geometry(grid, (32 * warps, 1, 1))


def _derive(d: Dims) -> Dims:
    return {**defaults("K", "x_pitch")(d), "y_pitch": d["N"], "planes": ceil_div(int(d["K"]), CHUNK)}


PROJECTION_F32 = Kernel(
    name="projection_f32",
    room="projection_f32",
    symbol="projection_f32",
    dependent=True,
    early=("w",),
    params=(Param("SEQS", (1, 2, 4, 8)),),
    args=(
        *rows_f32("x", "K", "r"),
        Buffer("w", "f32", ("N", "K"), "r", align=16),
        Buffer("y", "f32", ("planes", "rows", "N"), "w", "y_pitch"),
        Scalar("y_pitch"),
        Scalar("rows"),
        Scalar("N"),
        Scalar("K"),
    ),
    geometry=_geometry,
    derive=_derive,
    rules=(
        between("rows", 1, GRID_Y * ROWS, "the sequences that one grid axis can hold"),
        between("N", 1, GRID_Y * W_ROWS * WARPS, "the outputs that one grid axis can hold"),
        blocks_of("K"),
        between("K", 32, GRID_X, "the elements that 32-bit indices can hold"),
        *row_pitch("x_pitch", "K"),
        *row_pitch("y_pitch", "N", 1),
    ),
    limits={"registers": 128, "smem": 0, **IN_REGISTERS},
    doc="Planes of y = x W^T in float32, a plane a chunk of 256 of K with one tree in it; a reader adds them in order.",
)

KERNELS = (PROJECTION_F32,)
