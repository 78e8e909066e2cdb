"""e4m3 codes and their values."""

import numpy as np
from numpy.typing import NDArray

from oracle.bits.fma import F32

LARGEST = 448.0
NAN_CODE = 0x7F


def encode(x: F32) -> NDArray[np.uint8]:
    """Nearest code, ties to even, saturating to 448.

    Shapes: any -> uint8.
    Units:  the code's value has those of x.
    Error:  none against the contract. A NaN of either sign is 0x7F.
    Source: OCP 8-bit floating point (OFP8), E4M3; ARITHMETIC.md, e4m3.
    """
    size = np.abs(np.where(np.isnan(x), np.float32(0.0), x)).astype(np.float64)
    size = np.where(size > LARGEST, LARGEST, size)
    exponent = np.where(size < 2.0**-6, -6, np.frexp(size)[1] - 1)  # below 2**-6 the steps stay 2**-9
    steps = np.rint(np.ldexp(size, 3 - exponent)).astype(np.int32)
    # steps counts from the exponent's own zero: 8..16 when normal (16 carries into the next exponent), 0..8 below.
    code = steps + 8 * (exponent + 6)
    return np.where(np.isnan(x), NAN_CODE, code | np.where(np.signbit(x), 0x80, 0)).astype(np.uint8)


def decode(code: NDArray[np.uint8]) -> F32:
    """Value of each code. Shapes: any. Units: as `encode`. Error: none; 0x7F and 0xFF are NaN. Source: as `encode`."""
    exponent, fraction = (code >> 3) & 15, code & 7
    normal = np.ldexp(1.0 + fraction / 8.0, exponent.astype(np.int32) - 7)
    size = np.where(exponent == 0, np.ldexp(fraction.astype(np.float64), -9), normal)
    size = np.where((code & 0x7F) == NAN_CODE, np.nan, size)
    return np.where(code >= 0x80, -size, size).astype(np.float32)
