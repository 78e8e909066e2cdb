"""A8 and A15: activations as integer codes with one float32 scale per 32 elements."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.errors import LanelockError
from oracle.formats.q8_0 import BLOCK

A8_MAX = 127
A15_MAX = 16256  # 128 * 127: the largest whole multiple of 128 whose high word fits in int8
SCALE_FLOOR = np.float32(2.0**-126)  # the smallest normal float32, so that x / scale never divides by zero


@dataclass(frozen=True, slots=True)
class A8:
    """Rows as int8 codes in -127..127. Shapes: codes [..., K], scales float32 [..., K/32]. Element = code * scale."""

    codes: NDArray[np.int8]
    scales: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class A15:
    """Rows as int16 codes in -16256..16256. Shapes: codes [..., K], scales float32 [..., K/32]."""

    codes: NDArray[np.int16]
    scales: NDArray[np.float32]


def a8_encode(x: NDArray[Any]) -> A8:
    """Quantise rows to eight bits.

    Shapes: x [..., K], K a multiple of 32, taken as float32.
    Units:  s = max(amax/127, 2**-126), code = rint(x/s) clamped to +-127, each operation rounded to float32.
    Error:  |x - code * s| <= s/2 * (1 + 2**-16); a block with a NaN or an infinity gets codes 0 and scale NaN.
    Source: the contract. Raises LanelockError where K is not a multiple of 32.
    """
    codes, scales = _encode(x, A8_MAX)
    return A8(codes.astype(np.int8), scales)


def a15_encode(x: NDArray[Any]) -> A15:
    """Quantise rows to fifteen bits.

    Shapes: x [..., K], K a multiple of 32, taken as float32.
    Units:  s = max(amax/16256, 2**-126), code = rint(x/s) clamped to +-16256, each operation rounded to float32.
    Error:  |x - code * s| <= s/2 * (1 + 2**-9); a block with a NaN or an infinity gets codes 0 and scale NaN.
    Source: the contract. Raises LanelockError where K is not a multiple of 32.
    """
    codes, scales = _encode(x, A15_MAX)
    return A15(codes.astype(np.int16), scales)


def a8_decode(a: A8) -> NDArray[np.float64]:
    """Values as float64. Shapes: [..., K]. Units: code * scale. Error: none. Source: the contract."""
    return _decode(a.codes, a.scales)


def a15_decode(a: A15) -> NDArray[np.float64]:
    """Values as float64. Shapes: [..., K]. Units: code * scale. Error: none. Source: the contract."""
    return _decode(a.codes, a.scales)


def a15_split(codes: NDArray[np.int16]) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
    """The two int8 words of fifteen-bit codes.

    Shapes: [..., K] -> hi, lo, each int8 [..., K].
    Units:  code = 128 * hi + lo with lo in -64..63.
    Error:  none.
    Source: the contract.
    """
    wide = codes.astype(np.int32)
    hi = (wide + 64) >> 7
    return hi.astype(np.int8), (wide - 128 * hi).astype(np.int8)


def a15_join(hi: NDArray[np.int8], lo: NDArray[np.int8]) -> NDArray[np.int16]:
    """Codes of two words: the inverse of `a15_split`. Shapes: [..., K]. Units: 128 * hi + lo. Source: the contract."""
    return (128 * hi.astype(np.int32) + lo).astype(np.int16)


def _encode(x: NDArray[Any], top: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    if x.shape[-1] % BLOCK:
        raise LanelockError(f"activations are quantised in blocks of 32; a row of {x.shape[-1]} is not whole blocks.")
    with np.errstate(over="ignore"):
        blocks = x.astype(np.float32).reshape(*x.shape[:-1], -1, BLOCK)
    bad: NDArray[np.bool_] = np.logical_not(np.isfinite(blocks).all(axis=-1))
    safe = np.where(bad[..., None], np.float32(0), blocks)
    scales = np.maximum(np.abs(safe).max(axis=-1) / np.float32(top), SCALE_FLOOR)
    codes = np.clip(np.rint(safe / scales[..., None]), -top, top)
    return codes.reshape(x.shape), np.where(bad, np.float32(np.nan), scales)


def _decode(codes: NDArray[Any], scales: NDArray[np.float32]) -> NDArray[np.float64]:
    blocks = codes.reshape(*scales.shape, BLOCK)
    values: NDArray[np.float64] = blocks * scales.astype(np.float64)[..., None]
    return values.reshape(codes.shape)
