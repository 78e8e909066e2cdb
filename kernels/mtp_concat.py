"""Catalogue entry of the MTP concatenation room."""

from kernels.entry import Buffer, Dims, Geometry, Kernel, Param, Scalar
from kernels.rules import (
    COLUMNS,
    IN_REGISTERS,
    ROWS,
    between,
    blocks_of,
    ceil_div,
    code_buffers,
    order,
    row_pitch,
    rows_f32,
)

CHUNK = 256  # elements that one warp sums
CHUNKS = 256  # chunk sums that one block holds
WARPS = 32


def _derive(dims: Dims) -> Dims:
    K = int(dims["K"])
    return {"embedded_pitch": K, "hidden_pitch": K, "both": 2 * K, "blocks": 2 * K // 32, **order(dims)}


def _geometry(dims: Dims) -> Geometry:
    warps = min(WARPS, ceil_div(int(dims["K"]), CHUNK))
    return Geometry((int(dims["rows"]), 2, 1), (32 * warps, 1, 1))


MTP_CONCAT_QUANTIZE = Kernel(
    name="mtp_concat_quantize",
    room="mtp_concat",
    symbol="mtp_concat_quantize",
    dependent=True,
    params=(Param("WORDS", (1, 2)),),
    args=(
        *rows_f32("embedded", "K", "r"),
        *rows_f32("hidden", "K", "r"),
        Buffer("enorm", "f32", ("K",), "r", align=16),
        Buffer("hnorm", "f32", ("K",), "r", align=16),
        *code_buffers("both"),
        Scalar("K"),
        Scalar("eps", "float"),
    ),
    geometry=_geometry,
    derive=_derive,
    rules=(
        ROWS,
        blocks_of("K"),
        between("K", 32, CHUNK * CHUNKS, "the chunk sums that one block holds"),
        *row_pitch("embedded_pitch", "K"),
        *row_pitch("hidden_pitch", "K"),
        COLUMNS,
    ),
    limits={"registers": 64, "smem": CHUNKS * 4, **IN_REGISTERS},
    doc="The codes of [RMS norm of the embedding | RMS norm of the hidden state], the draft head's input.",
)

KERNELS = (MTP_CONCAT_QUANTIZE,)
