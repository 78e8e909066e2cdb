"""Catalogue entry of the kernel that combines the chunks of attention."""

from kernels.attention import CHUNKS_RULE, PARTS, SUMMARIES
from kernels.entry import Buffer, Dims, Geometry, Kernel, Param, Scalar, Value
from kernels.rules import GRID_Y, IN_REGISTERS, between, ceil_div, row_pitch, rows_f32
from kernels.sequences import CHUNK_RULES, HEAD_DIMS, SEQUENCES, token_dims

WARPS = 4
LONG_CHUNKS = 16  # from so many on a lane takes one dim


def _derive(dims: Dims) -> dict[str, Value]:
    width = int(dims["HQ"]) * int(dims["D"])
    return {"width": width, "out_pitch": width}


def _geometry(dims: Dims) -> Geometry:
    D = int(dims["D"])
    own = 1 if dims["LONG"] else min(4, D // 32)
    warps = int(dims["HQ"]) * (D // 32 // own)
    return Geometry((int(dims["rows"]), ceil_div(warps, WARPS), 1), (32 * WARPS, 1, 1))


ATTENTION_COMBINE = Kernel(
    name="attention_combine",
    room="attention_combine",
    symbol="attention_combine",
    family="attention",
    dependent=True,
    params=(HEAD_DIMS, Param("LONG", (False, True))),
    args=(
        Buffer("parts", "f32", PARTS, "r", align=16),
        Buffer("summaries", "f32", SUMMARIES, "r"),
        *SEQUENCES,
        *rows_f32("out", "width", "w"),
        Scalar("B"),
        Scalar("HQ"),
        Scalar("chunks"),
    ),
    geometry=_geometry,
    derive=token_dims(_derive),
    rules=(
        *CHUNK_RULES,
        between("HQ", 1, GRID_Y * WARPS, "the query heads that one grid axis can hold"),
        CHUNKS_RULE,
        *row_pitch("out_pitch", "width"),
    ),
    limits={"registers": 64, "smem": 0, **IN_REGISTERS},
    doc="Adds the chunks that blocks sharing a context left, ascending: the same bits as attention.",
)

KERNELS = (ATTENTION_COMBINE,)
