"""Catalogue entry of the first tensor-core tile."""

from kernels.entry import Dims, Geometry, Kernel
from kernels.projections import ARGS, GRID_RULE, ONE_PLANE, SIZE_RULES, WORDS, derived, row_groups
from kernels.rules import IN_REGISTERS, ceil_div

WARPS = 4
TILE_N, TILE_M = 64, 16  # weight rows, sequences


def _units(d: Dims) -> int:
    return ceil_div(int(d["N"]), TILE_N)


def _geometry(d: Dims) -> Geometry:
    return Geometry((int(d["grid"]), ceil_div(int(d["rows"]), TILE_M), 1), (32 * WARPS, 1, 1))


GEMM_MMA = Kernel(
    name="gemm_mma",
    room="gemm_mma",
    family="projection",
    symbol="gemm_mma",
    params=(WORDS,),
    args=ARGS,
    geometry=_geometry,
    derive=derived(_units),
    rules=(*SIZE_RULES, GRID_RULE, ONE_PLANE, row_groups("y", TILE_M)),
    limits={"registers": 255, "smem": 0, **IN_REGISTERS},
    doc="16 sequences by 64 weight rows, operands straight from memory to the fragments of m16n8k32.",
)

KERNELS = (GEMM_MMA,)
