"""Catalogue entry of the embedding room."""

from kernels.entry import Buffer, Kernel, Scalar
from kernels.rules import (
    IN_REGISTERS,
    ROWS,
    between,
    blocks_of,
    defaults,
    pointwise,
    pointwise_width,
    row_pitch,
    rows_f32,
)

EMBEDDING = Kernel(
    name="embedding",
    room="embedding",
    symbol="embedding",
    dependent=True,
    args=(
        Buffer("tokens", "i32", ("rows",), "r"),
        Buffer("codes", "i8", ("V", "K"), "r", align=4),
        Buffer("weight_scales", "f16", ("V", "blocks"), "r"),
        *rows_f32("y", "K", "w"),
        Scalar("K"),
        Scalar("V"),
    ),
    geometry=pointwise("K"),
    derive=defaults("K", "y_pitch"),
    rules=(
        ROWS,
        blocks_of("K"),
        pointwise_width("K"),
        between("V", 1, 2**31 - 1, "the tokens that an int can name"),
        *row_pitch("y_pitch", "K"),
    ),
    limits={"registers": 32, "smem": 0, **IN_REGISTERS},
    doc="The Q8_0 embedding rows of tokens in float32; a token outside the vocabulary gives a row of NaN.",
)

KERNELS = (EMBEDDING,)
