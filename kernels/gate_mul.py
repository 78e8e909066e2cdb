"""Catalogue entries of the gate multiply room: x * sigmoid(gate), in float32 or quantised at once."""

from kernels.entry import Kernel, Param, Scalar
from kernels.rules import (
    COLUMNS,
    IN_REGISTERS,
    ROWS,
    blocks_of,
    code_buffers,
    defaults,
    multiple,
    pointwise,
    pointwise_width,
    row_pitch,
    rows_f32,
)

INPUTS = (*rows_f32("x", "K", "r"), *rows_f32("gate", "K", "r"))
INPUT_RULES = (ROWS, pointwise_width("K"), *row_pitch("x_pitch", "K"), *row_pitch("gate_pitch", "K"))

GATE_MUL = Kernel(
    name="gate_mul",
    room="gate_mul",
    symbol="gate_mul",
    dependent=True,
    args=(*INPUTS, *rows_f32("y", "K", "w"), Scalar("K")),
    geometry=pointwise("K"),
    derive=defaults("K", "x_pitch", "gate_pitch", "y_pitch"),
    rules=(multiple("K", 4, "the floats of one 16-byte load"), *INPUT_RULES, *row_pitch("y_pitch", "K")),
    limits={"registers": 48, "smem": 0, **IN_REGISTERS},
    doc="y = x * sigmoid(gate).",
)

GATE_MUL_QUANTIZE = Kernel(
    name="gate_mul_quantize",
    room="gate_mul",
    symbol="gate_mul_quantize",
    dependent=True,
    params=(Param("WORDS", (1, 2)),),
    args=(*INPUTS, *code_buffers("K"), Scalar("K")),
    geometry=pointwise("K"),
    derive=defaults("K", "x_pitch", "gate_pitch"),
    rules=(blocks_of("K"), *INPUT_RULES, COLUMNS),
    limits={"registers": 64, "smem": 0, **IN_REGISTERS},
    doc="The codes of x * sigmoid(gate): the same bits as gate_mul followed by quantize.",
)

KERNELS = (GATE_MUL, GATE_MUL_QUANTIZE)
