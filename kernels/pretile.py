"""Catalogue entries of weight pre-tiling: Q8_0 and Q4 rows into panels in fragment order."""

from kernels.entry import Buffer, Dims, Geometry, Kernel, Param, Rule, Scalar
from kernels.projections import SLICES, WEIGHT_RULES, WEIGHT_SCALES, derived
from kernels.rules import GRID_X, IN_REGISTERS, ceil_div

WARPS = 8
OUTPUT = Buffer("tiles", "u8", ("panels", SLICES, "chunks", "panel_bytes"), "w", align=16)
SIZES = (Scalar("N"), Scalar("KB"))


def _panels(d: Dims) -> int:
    return int(d["panels"]) * SLICES * int(d["chunks"])


def _geometry(d: Dims) -> Geometry:
    return Geometry((ceil_div(_panels(d), WARPS), 1, 1), (32 * WARPS, 1, 1))


RULES = (
    *WEIGHT_RULES,
    Rule(lambda d: ceil_div(_panels(d), WARPS) <= GRID_X, "N = {N} by K = {K} has more panels than one grid can hold"),
)
LIMITS = {"registers": 64, "smem": 0, **IN_REGISTERS}

PRETILE = Kernel(
    name="pretile",
    room="pretile",
    symbol="pretile",
    params=(Param("BITS", (8,)),),
    args=(Buffer("codes", "u8", ("N", "K"), "r", align=16), WEIGHT_SCALES, OUTPUT, *SIZES),
    geometry=_geometry,
    derive=derived(bits=8),
    rules=RULES,
    limits=LIMITS,
    doc="Q8_0 codes and scales as panels of 16 rows by 4 blocks in the order of mma fragments.",
)

PRETILE_Q4 = Kernel(
    name="pretile_q4",
    room="pretile",
    symbol="pretile",
    params=(Param("BITS", (4,)),),
    args=(Buffer("codes", "u8", ("N", "half"), "r", align=16), WEIGHT_SCALES, OUTPUT, *SIZES),
    geometry=_geometry,
    derive=derived(bits=4),
    rules=RULES,
    limits=LIMITS,
    doc="The same of packed Q4 codes.",
)

KERNELS = (PRETILE, PRETILE_Q4)
