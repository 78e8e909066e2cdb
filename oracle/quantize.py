"""What a lane does to activations before a projection: round them to codes and back."""

from oracle.arrays import F64
from oracle.errors import LanelockError
from oracle.formats import (
    a8_decode,
    a8_encode,
    a15_decode,
    a15_encode,
    e4m3_blocks_decode,
    e4m3_blocks_encode,
    e4m3_rows_decode,
    e4m3_rows_encode,
)

FORMATS = ("none", "a8", "a15", "e4m3_rows", "e4m3_blocks")


def quantize(x: F64, activations: str) -> F64:
    """Values that a projection of this lane reads in place of x.

    Shapes: x [..., K] -> [..., K].
    Units:  those of x; it is rounded to float32 first, as a kernel holds it.
    Error:  the format's: half a step of the row's or block's scale.
    Source: the contract. Raises LanelockError where there is no such format.
    """
    flat = x.reshape(-1, x.shape[-1])
    match activations:
        case "none":
            return x
        case "a8":
            return a8_decode(a8_encode(x))
        case "a15":
            return a15_decode(a15_encode(x))
        case "e4m3_rows":
            return e4m3_rows_decode(e4m3_rows_encode(flat)).reshape(x.shape)
        case "e4m3_blocks":
            return e4m3_blocks_decode(e4m3_blocks_encode(flat)).reshape(x.shape)
        case _:
            raise LanelockError(f"there is no activation format {activations!r}; formats are {', '.join(FORMATS)}.")
