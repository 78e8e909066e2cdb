"""Catalogue entry of the conversion of Q8_0 weights to Q4."""

from kernels.entry import Buffer, Dims, Geometry, Kernel, Rule, Scalar
from kernels.projections import WEIGHT_RULES, derived
from kernels.rules import GRID_X, IN_REGISTERS, ceil_div

THREADS, LANES = 256, 8  # lanes of a block of 32


def _grid(d: Dims) -> int:
    return ceil_div(int(d["N"]) * int(d["KB"]) * LANES, THREADS)


def _geometry(d: Dims) -> Geometry:
    return Geometry((_grid(d), 1, 1), (THREADS, 1, 1))


Q8_TO_Q4 = Kernel(
    name="q8_to_q4",
    room="q8_to_q4",
    symbol="q8_to_q4",
    args=(
        Buffer("codes", "i8", ("N", "K"), "r"),
        Buffer("scales", "f16", ("N", "KB"), "r"),
        Buffer("packed", "u8", ("N", "half"), "w"),
        Buffer("packed_scales", "f16", ("N", "KB"), "w"),
        Scalar("N"),
        Scalar("KB"),
    ),
    geometry=_geometry,
    derive=derived(),
    rules=(
        *WEIGHT_RULES,
        Rule(lambda d: _grid(d) <= GRID_X, "N = {N} by K = {K} has more blocks than one grid can hold"),
    ),
    limits={"registers": 40, "smem": 0, **IN_REGISTERS},
    doc="Four-bit codes, packed and biased by 8; a block whose codes fit in -8..7 keeps codes and scale.",
)

KERNELS = (Q8_TO_Q4,)
