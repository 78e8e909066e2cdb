"""Catalogue entry of the activation quantiser."""

from kernels.entry import Kernel, Param, Scalar
from kernels.rules import (
    COLUMNS,
    IN_REGISTERS,
    ROWS,
    blocks_of,
    code_buffers,
    defaults,
    pointwise,
    pointwise_width,
    row_pitch,
    rows_f32,
)

QUANTIZE = Kernel(
    name="quantize",
    room="quantize",
    symbol="quantize",
    dependent=True,
    params=(Param("WORDS", (1, 2)),),
    args=(*rows_f32("x", "K", "r"), *code_buffers("K"), Scalar("K")),
    geometry=pointwise("K"),
    derive=defaults("K", "x_pitch"),
    rules=(ROWS, blocks_of("K"), pointwise_width("K"), *row_pitch("x_pitch", "K"), COLUMNS),
    limits={"registers": 48, "smem": 0, **IN_REGISTERS},
    doc="Activation codes of float32 rows: A8 (WORDS 1) or A15 (WORDS 2), one scale per 32 elements.",
)

KERNELS = (QUANTIZE,)
