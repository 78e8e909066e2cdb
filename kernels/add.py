"""Catalogue entry of the add room."""

from kernels.entry import Kernel, Scalar
from kernels.rules import (
    IN_REGISTERS,
    ROWS,
    defaults,
    multiple,
    pointwise,
    pointwise_width,
    row_pitch,
    rows_f32,
)

ADD = Kernel(
    name="add",
    room="add",
    symbol="add",
    args=(*rows_f32("x", "K", "r"), *rows_f32("y", "K", "r"), *rows_f32("z", "K", "w"), Scalar("K")),
    geometry=pointwise("K"),
    derive=defaults("K", "x_pitch", "y_pitch", "z_pitch"),
    rules=(
        ROWS,
        multiple("K", 4, "the floats of one 16-byte load"),
        pointwise_width("K"),
        *row_pitch("x_pitch", "K"),
        *row_pitch("y_pitch", "K"),
        *row_pitch("z_pitch", "K"),
    ),
    limits={"registers": 32, "smem": 0, **IN_REGISTERS},
    doc="z = x + y, row by row.",
)

KERNELS = (ADD,)
