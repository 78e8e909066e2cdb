"""Catalogue entry of the staged GEMV."""

from kernels.entry import Kernel, Param
from kernels.gemv_register import geometry, units
from kernels.projections import ARGS, GRID_RULE, ONE_PLANE, SIZE_RULES, WORDS, derived, row_groups
from kernels.rules import IN_REGISTERS

GEMV_STAGED = Kernel(
    name="gemv_staged",
    room="gemv_staged",
    family="projection",
    symbol="gemv_staged",
    params=(WORDS, Param("SEQS", (1, 8))),
    args=ARGS,
    geometry=geometry,
    derive=derived(units),
    rules=(*SIZE_RULES, GRID_RULE, ONE_PLANE, row_groups("y", 1)),
    limits={"registers": 255, "smem": 8 * 2 * 8 * 9 * 16 + 8 * 8 * 4 * 4, **IN_REGISTERS},
    doc="The register GEMV with the activations of all its sequences staged in shared memory.",
)

KERNELS = (GEMV_STAGED,)
