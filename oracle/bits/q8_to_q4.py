"""Q8_0 to Q4, one float32 operation after the other."""

import numpy as np
from numpy.typing import NDArray

from oracle.bits.fma import f32

BLOCK = 32


def q8_to_q4(codes: NDArray[np.int8], scales: NDArray[np.float16]) -> tuple[NDArray[np.uint8], NDArray[np.float16]]:
    """Packed Q4 codes and their scales; a scale that overflows is stored as infinity, with codes 0.

    Shapes: codes int8 [N, K], scales float16 [N, K/32] -> uint8 [N, K/2], float16 [N, K/32].
    Units:  element = (nibble - 8) * scale.
    Error:  none against the contract.
    Source: ARITHMETIC.md, Q4.
    """
    c = codes.reshape(*scales.shape, BLOCK).astype(np.int32)
    s = f32(scales)[..., None]
    keep = np.asarray(((c >= -8) & (c <= 7)).all(axis=-1, keepdims=True))
    m = f32(np.abs(c).max(axis=-1, keepdims=True))
    with np.errstate(all="ignore"):
        narrow = ((s * m) / np.float32(7)).astype(np.float16)
        quotient = np.where(narrow == 0, np.float32(0), (f32(c) * s) / f32(narrow))
    q = np.clip(np.rint(quotient), np.float32(-8), np.float32(7)).astype(np.int32)
    nibbles = (np.where(keep, c, q) + 8).reshape(codes.shape).astype(np.uint8)
    packed = nibbles[:, 0::2] | nibbles[:, 1::2] << np.uint8(4)
    return packed, np.where(keep[..., 0], scales, narrow[..., 0])
