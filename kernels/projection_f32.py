"""Catalogue entry of the small float32 projection."""

from kernels.entry import Buffer, Dims, Geometry, Kernel, Param, Scalar
from kernels.rules import GRID_Y, IN_REGISTERS, between, blocks_of, ceil_div, defaults, row_pitch, rows_f32

CHUNK, CHUNKS = 256, 128  # elements that one warp sums, and chunk sums that a block holds
W_ROWS = 4
MAX_WARPS = 8


def _geometry(d: Dims) -> Geometry:
    warps = min(MAX_WARPS, ceil_div(int(d["K"]), CHUNK))
    grid = (ceil_div(int(d["N"]), W_ROWS), ceil_div(int(d["rows"]), int(d["SEQS"])), 1)
    return Geometry(grid, (32 * warps, 1, 1))


PROJECTION_F32 = Kernel(
    name="projection_f32",
    room="projection_f32",
    symbol="projection_f32",
    dependent=True,
    params=(Param("SEQS", (1, 8)),),
    args=(
        *rows_f32("x", "K", "r"),
        Buffer("w", "f32", ("N", "K"), "r", align=16),
        Buffer("y", "f32", ("rows", "N"), "w", "y_pitch"),
        Scalar("y_pitch"),
        Scalar("rows"),
        Scalar("N"),
        Scalar("K"),
    ),
    geometry=_geometry,
    derive=lambda d: {**defaults("K", "x_pitch")(d), "y_pitch": d["N"]},
    rules=(
        between("rows", 1, GRID_Y, "the sequences that one grid axis can hold"),
        between("N", 1, 2**30, "the outputs that 32-bit indices can hold"),
        blocks_of("K"),
        between("K", 32, CHUNK * CHUNKS, "the chunk sums that one block holds"),
        *row_pitch("x_pitch", "K"),
        *row_pitch("y_pitch", "N", 1),
    ),
    limits={"registers": 128, "smem": CHUNKS * 32 * 4, **IN_REGISTERS},
    doc="y = x W^T in float32: chunks of 256 of K, one tree in each, added ascending; several warps a row.",
)

KERNELS = (PROJECTION_F32,)
