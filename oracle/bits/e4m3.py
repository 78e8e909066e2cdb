"""e4m3 codes, and rows or groups scaled into them."""

import numpy as np
from numpy.typing import NDArray

from oracle.bits.fma import F32

LARGEST = 448.0
NAN_CODE = 0x7F
_SMALLEST_SCALE = np.float32(2.0**-126)


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


def quantize_groups(x: F32, width: int) -> tuple[NDArray[np.uint8], F32]:
    """Codes and one scale per `width` elements of a row (the row's own length for a scale a row).

    Shapes: x [..., K], K a multiple of width -> codes uint8 [..., K], scales [..., K/width].
    Units:  element = e4m3(code) * scale.
    Error:  none against the contract. A group that is not finite has codes 0 and scale NaN.
    Source: ARITHMETIC.md, e4m3.
    """
    groups = x.reshape(*x.shape[:-1], -1, width)
    with np.errstate(all="ignore"):
        amax = np.max(np.abs(groups), axis=-1)
        t = amax / np.float32(LARGEST)
        floored = np.where(t > _SMALLEST_SCALE, t, _SMALLEST_SCALE)
        scale = np.where(amax == 0, np.float32(1.0), floored)
        finite = np.isfinite(amax)
        scaled = np.where(finite[..., None], groups / scale[..., None], np.float32(0.0))
    return encode(scaled).reshape(x.shape), np.where(finite, scale, np.float32(np.nan))
