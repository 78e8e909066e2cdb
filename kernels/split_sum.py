"""Catalogue entry of the split-K reduction."""

from kernels.entry import Buffer, Dims, Geometry, Kernel, Scalar
from kernels.rules import GRID_Y, IN_REGISTERS, ROWS, between, ceil_div, defaults, row_pitch

THREADS = 256


def _geometry(d: Dims) -> Geometry:
    return Geometry((int(d["rows"]), ceil_div(int(d["N"]), THREADS), 1), (THREADS, 1, 1))


SPLIT_SUM = Kernel(
    name="split_sum",
    room="split_sum",
    symbol="split_sum",
    args=(
        Buffer("x", "f32", ("planes", "rows", "N"), "r", "x_pitch"),
        Scalar("x_pitch"),
        Scalar("planes"),
        Buffer("y", "f32", ("rows", "N"), "w", "y_pitch"),
        Scalar("y_pitch"),
        Scalar("rows"),
        Scalar("N"),
    ),
    geometry=_geometry,
    derive=defaults("N", "x_pitch", "y_pitch"),
    rules=(
        ROWS,
        between("planes", 1, 64, "the widest split of a projection"),
        between("N", 1, GRID_Y * THREADS, "the columns that one grid axis can hold"),
        *row_pitch("x_pitch", "N", 1),
        *row_pitch("y_pitch", "N", 1),
    ),
    limits={"registers": 40, "smem": 0, **IN_REGISTERS},
    doc="The planes of a split projection, added ascending from zero.",
)

KERNELS = (SPLIT_SUM,)
