"""A8 and A15: activation codes and scales as kernels store them."""

import numpy as np
from numpy.typing import NDArray

from oracle.bits.fma import F32, f32

BLOCK = 32
TOPS = {1: 127.0, 2: 16256.0}  # int8 words a code -> largest code
_SMALLEST_SCALE = np.float32(2.0**-126)


def quantize(x: F32, words: int) -> tuple[NDArray[np.int8], F32]:
    """Codes and scales of rows.

    Shapes: x [..., K] -> codes int8 [..., words, K] (words 1: A8; 2: A15, hi then lo), scales [..., K/32].
    Units:  element = code * scale, A15's code = 128 * hi + lo.
    Error:  none against the contract. A block that is not finite has codes 0 and scale NaN.
    Source: ARITHMETIC.md, A8 and A15.
    """
    top = f32(TOPS[words])
    blocks = x.reshape(*x.shape[:-1], -1, BLOCK)
    with np.errstate(all="ignore"):
        amax = np.max(np.abs(blocks), axis=-1)
        finite = np.isfinite(amax)
        t = amax / top
        scale = np.where(t > _SMALLEST_SCALE, t, _SMALLEST_SCALE)
        q = np.rint(blocks / scale[..., None])
    code = np.where(finite[..., None], q, np.float32(0.0)).astype(np.int32).reshape(x.shape)
    stored = np.where(finite, scale, np.float32(np.nan))
    if words == 1:
        return code[..., None, :].astype(np.int8), stored
    hi = (code + 64) >> 7
    return np.stack([hi, code - 128 * hi], axis=-2).astype(np.int8), stored
