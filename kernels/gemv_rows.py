"""Catalogue entry of the row-parallel GEMV."""

from kernels.entry import Dims, Geometry, Kernel, Param, Rule
from kernels.projections import ARGS, GRID_RULE, ONE_PLANE, SIZE_RULES, SLICES, WORDS, derived
from kernels.rules import IN_REGISTERS, SHARED, ceil_div

PAIR = 2  # weight rows of a block
MAX_WARPS = 8


def smem(d: Dims) -> int:
    """Bytes of the products of all blocks: an odd pitch of floats a block."""
    return int(d["KB"]) * (PAIR * int(d["SEQS"]) + 1) * 4


def _units(d: Dims) -> int:
    return ceil_div(int(d["N"]), PAIR)


def _geometry(d: Dims) -> Geometry:
    warps = min(MAX_WARPS, ceil_div(int(d["KB"]), 32))
    return Geometry((int(d["grid"]), 1, 1), (32 * warps, 1, 1), smem(d))


GEMV_ROWS = Kernel(
    name="gemv_rows",
    room="gemv_rows",
    family="projection",
    symbol="gemv_rows",
    params=(WORDS, Param("SEQS", (1, 2, 4, 8))),
    args=ARGS,
    geometry=_geometry,
    derive=derived(_units),
    rules=(
        *SIZE_RULES,
        GRID_RULE,
        ONE_PLANE,
        Rule(
            lambda d: int(d["rows"]) <= int(d["SEQS"]),
            "rows = {rows} exceed the {SEQS} sequences that this tile holds",
        ),
        Rule(
            lambda d: smem(d) + SLICES * PAIR * int(d["SEQS"]) * 4 <= SHARED,
            "the products of K = {K} for {SEQS} sequences exceed the shared memory of a block",
        ),
    ),
    limits={"registers": 255, "smem": SLICES * PAIR * 8 * 4, **IN_REGISTERS},
    doc="Several warps take the blocks of 2 weight rows side by side; the slices are then added up from shared memory.",
)

KERNELS = (GEMV_ROWS,)
