"""Fused multiply-add of float32, exact for every input, by error-free transformation in float64.

The product of two float32 values is exact in float64 (48 bits). Its sum with a third is rounded to float64 and then
to float32, which differs from one rounding only if the float64 sum lies exactly between two float32 values, or below
float32's normal range, where those midpoints are closer. Only such elements take the long way: the exact error of the
sum (two-sum) turns the float64 rounding into round-to-odd, after which the second rounding is the only one.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

_TAIL = np.uint64(35)  # shift that leaves the 29 bits of a float64 below float32's last
_TIE = np.uint64(1 << 63)
_SMALLEST_NORMAL = 2.0**-126


def f32(x: ArrayLike) -> F32:
    """An array of float32. Shapes: any. Units: those of x. Error: one rounding if x is wider. Source: IEEE 754."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return np.asarray(x, dtype=np.float32)


def fma(a: ArrayLike, b: ArrayLike, c: ArrayLike) -> F32:
    """The value a * b + c with one rounding to nearest even.

    Shapes: a, b, c broadcast together -> float32.
    Units:  those of a * b and c, which are one.
    Error:  none beyond that rounding; subnormals, overflow, infinities and NaN as IEEE 754 (a NaN's payload is open).
    Source: Boldo & Melquiond 2008, emulation of FMA by round-to-odd.
    """
    with np.errstate(invalid="ignore"):  # a signalling NaN
        wide = [np.asarray(f32(v), dtype=np.float64) for v in (a, b, c)]
    return _rounded(*wide)


def fma_wide(a: F64 | float, b: F64 | float, c: F64 | float) -> F64:
    """`fma` on float64 arrays that hold float32 values, so that a chain of them converts nothing in between.

    Shapes, units, error and source as `fma`; the caller vouches that every operand is a float32 value.
    """
    return _rounded(a, b, c).astype(np.float64)


def _rounded(a: Any, b: Any, c: Any) -> F32:
    with np.errstate(all="ignore"):
        product = np.multiply(a, b)
        total = np.asarray(np.add(product, c))
        out = total.astype(np.float32)
        doubtful = np.asarray((total.view(np.uint64) << _TAIL) == _TIE)
        tiny = np.abs(total) < _SMALLEST_NORMAL
        if tiny.any():
            doubtful |= tiny & (total != 0)
        if doubtful.any():
            where = np.nonzero(doubtful)
            p, t = np.broadcast_to(product, total.shape)[where], total[where]
            q = np.broadcast_to(np.asarray(c, dtype=np.float64), total.shape)[where]
            out[where] = _to_odd(p, q, t).astype(np.float32)
        return out


def _to_odd(p: F64, c: F64, total: F64) -> F64:
    """The sum p + c rounded to odd, from total, the same to nearest: exact if it can be, else the odd neighbour."""
    back = total - p
    error = (p - (total - back)) + (c - back)
    move = np.isfinite(total) & (error != 0) & ((total.view(np.uint64) & np.uint64(1)) == 0)
    return np.where(move, np.nextafter(total, np.copysign(np.inf, error)), total)
