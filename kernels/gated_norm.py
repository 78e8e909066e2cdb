"""Catalogue entry of the gated norm room."""

from kernels.entry import Buffer, Dims, Geometry, Kernel, Param, Scalar
from kernels.rules import (
    COLUMNS,
    GRID_Y,
    IN_REGISTERS,
    ROWS,
    between,
    ceil_div,
    code_buffers,
    order,
    row_pitch,
    rows_f32,
)
from kernels.sequences import HEAD_DIMS

WARPS = 4


def _derive(dims: Dims) -> Dims:
    K = int(dims["HV"]) * int(dims["D"])
    return {"K": K, "blocks": K // 32, **order(dims), "o_pitch": K, "z_pitch": K, "normed_pitch": K}


GATED_NORM_QUANTIZE = Kernel(
    name="gated_norm_quantize",
    room="gated_norm",
    symbol="gated_norm_quantize",
    dependent=True,
    params=(HEAD_DIMS, Param("WORDS", (1, 2))),
    args=(
        *rows_f32("o", "K", "r"),
        *rows_f32("z", "K", "r"),
        Buffer("w", "f32", ("D",), "r", align=16),
        *code_buffers("K"),
        *rows_f32("normed", "K", "w", optional=True),
        Scalar("HV"),
        Scalar("eps", "float"),
    ),
    geometry=lambda d: Geometry((int(d["rows"]), ceil_div(int(d["HV"]), WARPS), 1), (32 * WARPS, 1, 1)),
    derive=_derive,
    rules=(
        ROWS,
        between("HV", 1, GRID_Y, "the heads that one grid axis can hold"),
        *row_pitch("o_pitch", "K"),
        *row_pitch("z_pitch", "K"),
        *row_pitch("normed_pitch", "K"),
        COLUMNS,
    ),
    limits={"registers": 64, "smem": 0, **IN_REGISTERS},
    doc="RMS norm of each value head, times w, times silu(z), as codes; normed takes the float32 rows, or is null.",
)

KERNELS = (GATED_NORM_QUANTIZE,)
