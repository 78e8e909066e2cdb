"""Catalogue entry of the register GEMV."""

from kernels.entry import Dims, Geometry, Kernel, Param
from kernels.projections import ARGS, GRID_RULE, ONE_PLANE, SIZE_RULES, WORDS, derived, row_groups
from kernels.rules import IN_REGISTERS, ceil_div

ROWS_OF_WARP = 4
WARPS = 4
SEQS = (1, 4, 8)


def units(d: Dims) -> int:
    """Blocks that cover the weight rows once."""
    return ceil_div(int(d["N"]), ROWS_OF_WARP * WARPS)


def geometry(d: Dims) -> Geometry:
    """Weight rows along x, groups of sequences along y."""
    return Geometry((int(d["grid"]), ceil_div(int(d["rows"]), int(d["SEQS"])), 1), (32 * WARPS, 1, 1))


GEMV_REGISTER = Kernel(
    name="gemv_register",
    room="gemv_register",
    family="projection",
    symbol="gemv_register",
    params=(WORDS, Param("SEQS", SEQS)),
    args=ARGS,
    geometry=geometry,
    derive=derived(units),
    rules=(*SIZE_RULES, GRID_RULE, ONE_PLANE, row_groups("y", 1)),
    limits={"registers": 255, "smem": 0, **IN_REGISTERS},
    doc="A warp reads 4 weight rows once and uses them for up to SEQS sequences, a slice of a row a lane.",
)

KERNELS = (GEMV_REGISTER,)
