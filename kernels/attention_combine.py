"""Catalogue entry of the kernel that combines the chunks of attention."""

from collections.abc import Callable

from kernels.attention import CHUNKS_RULE, PARTS, SUMMARIES
from kernels.entry import Buffer, Dims, Geometry, Kernel, Param, Scalar, Value
from kernels.rules import GRID_Y, IN_REGISTERS, between, ceil_div, row_pitch, rows_f32
from kernels.sequences import CHUNK_RULES, HEAD_DIMS, SEQUENCES, token_dims

WARPS = 4
LONG_CHUNKS = 16  # from so many on a lane takes one dim
FAR_CHUNKS = 65  # from so many on a block takes 32 dims
MANY = 256  # threads of that block, and chunks that are on the way to it


def _derive(dims: Dims) -> dict[str, Value]:
    width = int(dims["HQ"]) * int(dims["D"])
    return {"width": width, "out_pitch": width}


def _geometry(dims: Dims) -> Geometry:
    D = int(dims["D"])
    own = 1 if dims["LONG"] else min(4, D // 32)
    warps = int(dims["HQ"]) * (D // 32 // own)
    return Geometry((int(dims["rows"]), ceil_div(warps, WARPS), 1), (32 * WARPS, 1, 1))


def _geometry_far(dims: Dims) -> Geometry:
    return Geometry((int(dims["rows"]), int(dims["HQ"]) * (int(dims["D"]) // 32), 1), (MANY, 1, 1), 2 * MANY * 32 * 4)


def _combine(
    name: str, geometry: Callable[[Dims], Geometry], *params: Param, most: int, limits: dict[str, int], doc: str
) -> Kernel:
    """An entry of the room; `most` query heads fit its grid."""
    return Kernel(
        name=name,
        room="attention_combine",
        symbol=name,
        family="attention",
        dependent=True,
        params=(HEAD_DIMS, *params),
        args=(
            Buffer("parts", "f32", PARTS, "r", align=16),
            Buffer("summaries", "f32", SUMMARIES, "r"),
            *SEQUENCES,
            *rows_f32("out", "width", "w"),
            Scalar("B"),
            Scalar("HQ"),
            Scalar("chunks"),
        ),
        geometry=geometry,
        derive=token_dims(_derive),
        rules=(
            *CHUNK_RULES,
            between("HQ", 1, most, "the query heads that one grid axis can hold"),
            CHUNKS_RULE,
            *row_pitch("out_pitch", "width"),
        ),
        limits={**limits, **IN_REGISTERS},
        doc=doc,
    )


ATTENTION_COMBINE = _combine(
    "attention_combine",
    _geometry,
    Param("LONG", (False, True)),
    most=GRID_Y * WARPS,
    limits={"registers": 64, "smem": 0},
    doc="Adds the chunks that blocks sharing a context left, ascending: the same bits as attention.",
)

ATTENTION_COMBINE_FAR = _combine(
    "attention_combine_far",
    _geometry_far,
    most=GRID_Y // 8,
    limits={"registers": 64, "smem": 4608},
    doc="The same for very many chunks: their factors are found side by side.",
)

KERNELS = (ATTENTION_COMBINE, ATTENTION_COMBINE_FAR)
