"""Catalogue entry of the conv room."""

from kernels.entry import Buffer, Dims, Geometry, Kernel, Rule, Scalar, Value
from kernels.rules import IN_REGISTERS, between, ceil_div, row_pitch, rows_f32
from kernels.sequences import CHUNK_RULES, HEAD_DIMS, SEQUENCES, token_dims

RING = 8  # inputs a channel keeps: 3 behind a verify of 5 rows
WARPS = 4
SEGMENT = 8  # tokens of a warp


def _derive(dims: Dims) -> dict[str, Value]:
    return {"x_pitch": dims["C"], "y_pitch": dims["C"], "normed_heads": 0}


def _geometry(dims: Dims) -> Geometry:
    heads = int(dims["C"]) // int(dims["D"])
    segments = ceil_div(int(dims["T"]), SEGMENT)
    return Geometry((ceil_div(heads, WARPS), int(dims["B"]), segments), (32 * WARPS, 1, 1))


CONV = Kernel(
    name="conv",
    room="conv",
    symbol="conv",
    dependent=True,
    params=(HEAD_DIMS,),
    args=(
        *rows_f32("x", "C", "r"),
        Buffer("w", "f32", (4, "C"), "r", align=16),
        Buffer("ring", "f32", ("slots", RING, "C"), "rw", align=16),
        *SEQUENCES,
        *rows_f32("y", "C", "w"),
        Scalar("B"),
        Scalar("C"),
        Scalar("normed_heads"),
    ),
    geometry=_geometry,
    derive=token_dims(_derive),
    rules=(
        *CHUNK_RULES,
        between("T", 1, 65535 * SEGMENT, "the segments that one grid axis can hold"),
        Rule(lambda d: int(d["C"]) > 0 and int(d["C"]) % int(d["D"]) == 0, "C = {C} channels must be heads of D = {D}"),
        Rule(
            lambda d: 0 <= int(d["normed_heads"]) * int(d["D"]) <= int(d["C"]),
            "normed_heads = {normed_heads} exceed C",
        ),
        *row_pitch("x_pitch", "C"),
        *row_pitch("y_pitch", "C"),
    ),
    limits={"registers": 128, "smem": 0, **IN_REGISTERS},
    doc="Causal conv of 4 taps, silu, and L2 norm of the first heads; the ring takes the chunk's last inputs.",
)

KERNELS = (CONV,)
