"""GGUF's element types: what a block holds, and the one step from any of them to float32."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class ElementType:
    """Units: `elements` values of one row share a block of `size` bytes."""

    name: str
    elements: int
    size: int


# type number -> block, as in ggml; a lock compares it with the gguf package's table.
TYPES = {number: ElementType(name, elements, size) for number, name, elements, size in (
    (0, "F32", 1, 4), (1, "F16", 1, 2), (2, "Q4_0", 32, 18), (3, "Q4_1", 32, 20), (6, "Q5_0", 32, 22),
    (7, "Q5_1", 32, 24), (8, "Q8_0", 32, 34), (9, "Q8_1", 32, 40), (10, "Q2_K", 256, 84), (11, "Q3_K", 256, 110),
    (12, "Q4_K", 256, 144), (13, "Q5_K", 256, 176), (14, "Q6_K", 256, 210), (15, "Q8_K", 256, 292),
    (16, "IQ2_XXS", 256, 66), (17, "IQ2_XS", 256, 74), (18, "IQ3_XXS", 256, 98), (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18), (21, "IQ3_S", 256, 110), (22, "IQ2_S", 256, 82), (23, "IQ4_XS", 256, 136),
    (24, "I8", 1, 1), (25, "I16", 1, 2), (26, "I32", 1, 4), (27, "I64", 1, 8), (28, "F64", 1, 8),
    (29, "IQ1_M", 256, 56), (30, "BF16", 1, 2), (34, "TQ1_0", 256, 54), (35, "TQ2_0", 256, 66),
    (39, "MXFP4", 32, 17))}

F32, F16, Q8_0, BF16 = 0, 1, 8, 30


def bf16_to_f32(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """A bf16 is the upper half of a float32.  Shapes: any.  Error: exact."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def dequantise(blocks: NDArray[np.uint8], number: int) -> NDArray[np.float32]:
    """Rows of blocks as float32.

    Shapes: blocks [N, bytes a row] -> [N, K].
    Error:  one float32 rounding an element where the format has a product or a sum; F32, F16 and BF16 are exact.
    Source: ggml's formats, through the gguf package. Raises NotImplementedError for a type it does not convert.
    """
    if number == F32:
        return blocks.view("<f4")
    if number == F16:
        return blocks.view("<f2").astype(np.float32)
    if number == BF16:
        return bf16_to_f32(blocks.view("<u2"))
    # imported here: it takes a third of a second, and most files need none of it.
    from gguf import GGMLQuantizationType, quants

    rows: NDArray[Any] = quants.dequantize(blocks, GGMLQuantizationType(number))
    return np.asarray(rows, dtype=np.float32)
