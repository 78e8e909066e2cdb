"""Catalogue entries of the SwiGLU room: silu(gate) * up, quantised at once."""

from kernels.entry import Dims, Kernel, Param, Rule, Scalar
from kernels.rules import (
    COLUMNS,
    IN_REGISTERS,
    ROWS,
    between,
    blocks_of,
    code_buffers,
    defaults,
    planes_f32,
    pointwise,
    pointwise_width,
    row_pitch,
)

ARGS = (*planes_f32("x", "both"), *code_buffers("F"), Scalar("F"))


def _derive(dims: Dims) -> Dims:
    both = 2 * int(dims["F"])
    return {**defaults("F")(dims), "both": both, "x_pitch": both}


RULES: tuple[Rule, ...] = (
    ROWS,
    blocks_of("F"),
    pointwise_width("F"),
    Rule(lambda d: int(d["both"]) == 2 * int(d["F"]), "both = {both} is not 2 F, F = {F}"),
    *row_pitch("x_pitch", "both"),
    COLUMNS,
)

SWIGLU_QUANTIZE = Kernel(
    name="swiglu_quantize",
    room="swiglu",
    symbol="swiglu_quantize",
    dependent=True,
    params=(Param("WORDS", (1, 2)), Param("PLANED", (False,))),
    args=ARGS,
    geometry=pointwise("F"),
    derive=_derive,
    rules=(*RULES, between("planes", 1, 1, "the row as it is; swiglu_quantize_planes adds planes")),
    limits={"registers": 64, "smem": 0, **IN_REGISTERS},
    doc="The codes of silu(gate) * up, where a row of x is [gate F | up F].",
)

SWIGLU_QUANTIZE_PLANES = Kernel(
    name="swiglu_quantize_planes",
    room="swiglu",
    symbol="swiglu_quantize",
    dependent=True,
    params=(Param("WORDS", (1, 2)), Param("PLANED", (True,))),
    args=ARGS,
    geometry=pointwise("F"),
    derive=_derive,
    rules=(*RULES, between("planes", 1, 64, "the widest split of a projection")),
    limits={"registers": 64, "smem": 0, **IN_REGISTERS},
    doc="The same from split-K planes, added ascending from zero first: the bits of the reduced row.",
)

KERNELS = (SWIGLU_QUANTIZE, SWIGLU_QUANTIZE_PLANES)
