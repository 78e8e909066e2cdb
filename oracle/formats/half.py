"""Half-width floats: f16 (ten stored bits of mantissa) and bf16 (seven)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def f16_encode(x: NDArray[Any]) -> NDArray[np.float16]:
    """Round once to f16, nearest even.

    Shapes: any.
    Units:  those of x; from 65520 on the result is an infinity.
    Error:  2**-11 relative where normal, 2**-25 absolute below 2**-14.
    Source: IEEE 754 binary16.
    """
    with np.errstate(over="ignore"):
        return x.astype(np.float16)


def f16_decode(x: NDArray[np.float16]) -> NDArray[np.float64]:
    """Values as float64. Shapes: any. Units: those of x. Error: none. Source: IEEE 754 binary16."""
    return x.astype(np.float64)


def f16_round(x: NDArray[Any]) -> NDArray[np.float64]:
    """The nearest f16 value as float64. Shapes, units, error and source as `f16_encode`."""
    return f16_decode(f16_encode(x))


def bf16_encode(x: NDArray[Any]) -> NDArray[np.uint16]:
    """Bits of the nearest bf16, ties to even, in one rounding from float64; a NaN becomes 0x7FC0.

    Shapes: any -> uint16.
    Units:  the upper half of a float32.
    Error:  2**-8 relative where normal, 2**-134 absolute below 2**-126; from (2 - 2**-8) * 2**127 on infinite.
    Source: the upper sixteen bits of IEEE 754 binary32.
    """
    bits = bf16_round(x).astype(np.float32).view(np.uint32) >> np.uint32(16)
    return np.where(np.isnan(x), np.uint16(0x7FC0), bits.astype(np.uint16))


def bf16_decode(bits: NDArray[np.uint16]) -> NDArray[np.float64]:
    """Values as float64. Shapes: any. Units: those of the value. Error: none. Source: as `bf16_encode`."""
    with np.errstate(invalid="ignore"):  # a signalling NaN may raise the flag
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)


def bf16_round(x: NDArray[Any]) -> NDArray[np.float64]:
    """The nearest bf16 value as float64. Shapes, units, error and source as `bf16_encode`."""
    wide = np.asarray(x, dtype=np.float64)
    # by way of float32 a value just beside a tie would be rounded twice, so the quantum is set in float64.
    exponent = np.maximum(np.frexp(np.where(np.isfinite(wide), wide, 0.0))[1] - 8, -133)
    rounded = np.ldexp(np.rint(np.ldexp(wide, -exponent)), exponent)
    saturated: NDArray[np.float64] = np.where(np.abs(rounded) >= 2.0**128, np.copysign(np.inf, rounded), rounded)
    return saturated
