"""Q4: four-bit weights made from Q8_0 blocks, with one float16 scale per 32 elements along K."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oracle.errors import LanelockError
from oracle.formats.q8_0 import BLOCK, Q8_0

#: The least Q8_0 scale whose Q4 scale may overflow: 128/7 of the float16 before it is 65499, which rounds to 65504.
LARGE = np.float16(3584)


@dataclass(frozen=True, slots=True)
class Q4:
    """A matrix as codes in -8..7 and one scale per 32 elements along K.

    Shapes: codes int8 [N, K], scales float16 [N, K/32].
    Units:  element = code * scale.
    """

    codes: NDArray[np.int8]
    scales: NDArray[np.float16]


def q4_from_q8_0(q: Q8_0, name: str = "matrix") -> Q4:
    """Four-bit codes of a Q8_0 matrix; a block whose codes all fit in -8..7 is kept as it is.

    Shapes: codes [N, K], scales [N, K/32] -> the same.
    Units:  m = max|c|, s4 = fp16(s*m/7), code = rint(c*s/s4) clamped to -8..7; s*m and c*s are exact in float32,
            each quotient is rounded once to float32.
    Error:  at most half of s4 an element, none in a kept block.
    Source: the contract. Raises LanelockError, naming the matrix, where s4 is infinite in fp16.
    """
    check_q4(q, name)
    codes = q.codes.reshape(*q.scales.shape, BLOCK).astype(np.float32)
    s = q.scales.astype(np.float32)
    keep, s4 = _scales(codes, s)
    scales = np.where(keep, q.scales, s4)
    # s4 is zero only where s is: such a block is zero whatever its codes.
    divisor = np.where(s4 == 0, np.float32(1), s4.astype(np.float32))
    with np.errstate(invalid="ignore"):
        narrow = np.clip(np.rint(codes * s[..., None] / divisor[..., None]), -8, 7)
    chosen = np.where(keep[..., None], codes, narrow)
    return Q4(chosen.astype(np.int8).reshape(q.codes.shape), scales)


def check_q4(q: Q8_0, name: str = "matrix") -> None:
    """Refuse a Q8_0 matrix that has no Q4 form; codes are read only where the scale is large enough to overflow.

    Shapes: codes [N, K], scales [N, K/32].
    Units:  as in `q4_from_q8_0`.
    Error:  none.
    Source: the contract. Raises LanelockError, naming the matrix, where a Q4 scale is infinite in fp16.
    """
    large = np.argwhere(np.abs(q.scales) >= LARGE)
    where = tuple(large.T)
    codes = q.codes.reshape(*q.scales.shape, BLOCK)[where].astype(np.float32)
    keep, s4 = _scales(codes, q.scales[where].astype(np.float32))
    bad = np.isinf(np.where(keep, q.scales[where], s4))
    if bad.any():
        row, block = large[bad][0]
        raise LanelockError(f"{name}: row {row}, block {block} needs a Q4 scale that is infinite in fp16.")


def _scales(codes: NDArray[np.float32], s: NDArray[np.float32]) -> tuple[NDArray[np.bool_], NDArray[np.float16]]:
    """Of blocks [..., 32]: whether every code fits as it is, and the scale where one does not."""
    keep = np.asarray(np.all((codes >= -8) & (codes <= 7), axis=-1))
    m = np.abs(codes).max(axis=-1, initial=np.float32(0))
    with np.errstate(over="ignore"):
        return keep, (s * m / np.float32(7)).astype(np.float16)


def q4_decode(q: Q4) -> NDArray[np.float64]:
    """Values as float64.

    Shapes: codes [N, K], scales [N, K/32] -> [N, K].
    Units:  value = code * scale.
    Error:  none.
    Source: the format's definition.
    """
    blocks = q.codes.reshape(*q.scales.shape, BLOCK)
    values: NDArray[np.float64] = blocks * q.scales.astype(np.float64)[..., None]
    return values.reshape(q.codes.shape)


def q4_pack(codes: NDArray[np.int8]) -> NDArray[np.uint8]:
    """Two codes a byte, biased by 8, K-sequential: byte i holds element 2i low and 2i+1 high.

    Shapes: [N, K] in -8..7 -> uint8 [N, K/2].
    Units:  nibble = code + 8.
    Error:  none; raises LanelockError where a code does not fit.
    Source: the contract.
    """
    if codes.size and (codes.min() < -8 or codes.max() > 7):
        raise LanelockError(f"a Q4 code must lie in -8..7; the matrix holds {codes.min()} to {codes.max()}.")
    biased = (codes.astype(np.int16) + 8).astype(np.uint8)
    return (biased[..., 0::2] + 16 * biased[..., 1::2]).astype(np.uint8)


def q4_unpack(packed: NDArray[np.uint8]) -> NDArray[np.int8]:
    """Codes of packed bytes: the inverse of `q4_pack`.

    Shapes: uint8 [N, K/2] -> int8 [N, K].
    Units:  code = nibble - 8.
    Error:  none.
    Source: the contract.
    """
    nibbles = np.stack([packed & 15, packed >> 4], axis=-1).astype(np.int8) - np.int8(8)
    return nibbles.reshape(*packed.shape[:-1], -1)
