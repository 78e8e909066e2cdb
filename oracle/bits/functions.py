"""exp, log1p, sigmoid, silu, softplus of the contract, bit for bit (kernels/ARITHMETIC.md, Functions).

Every operation is NumPy's on float32, or `fma`. Inside a chain of fma the values travel as float64 arrays that hold
float32 values (`fma_wide`), which saves the conversions between them.
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oracle.bits.fma import F32, F64, f32, fma_wide

BLOCK = 1 << 14  # elements worked on at once, so that every temporary stays in the second-level cache


def _hex(*constants: str) -> tuple[float, ...]:
    return tuple(float.fromhex(c) for c in constants)


_EXP = _hex("0x1.6ac6a2p-10", "0x1.123ddap-7", "0x1.555858p-5", "0x1.55548cp-3", "0x1.fffffcp-2", "1", "1")
_LOG1P = _hex("-0x1.796b04p-5", "0x1.b21780p-4", "-0x1.0e9e46p-3", "0x1.28798ep-3", "-0x1.54d606p-3",
              "0x1.9966d4p-3", "-0x1.000082p-2", "0x1.5555acp-2", "-0x1p-1")
_LOG2E, _LN2, _LN2_REST = _hex("0x1.715476p+0", "0x1.62e43p-1", "0x1.05c61p-29")
_ONE = np.float32(1.0)
_FLOOR, _CEILING = np.float32(-120.0), np.float32(89.0)


def exp(x: ArrayLike) -> F32:
    """Exponential.

    Shapes: any.
    Units:  pure numbers.
    Error:  none against the contract; the contract is within 1 ulp of the truth where the result is normal.
    Source: ARITHMETIC.md, Functions.
    """
    return _in_blocks(_exp, x)


def log1p(x: ArrayLike) -> F32:
    """Logarithm of 1 + x. Shapes, units, error, source as `exp`; below -1 a NaN, at -1 minus infinity."""
    return _in_blocks(_log1p, x)


def sigmoid(x: ArrayLike) -> F32:
    """1/(1 + exp(-x)). Shapes, units, source as `exp`; the contract is within 3 ulp of the truth."""
    return _in_blocks(_sigmoid, x)


def silu(x: ArrayLike) -> F32:
    """Input times sigmoid(x). Shapes, source as `exp`. Units: those of x. The contract is within 4 ulp of the truth."""
    return _in_blocks(_silu, x)


def softplus(x: ArrayLike) -> F32:
    """log(1 + exp(x)). Shapes, units, source as `exp`; the contract is within 3 ulp of the truth."""
    return _in_blocks(_softplus, x)


def exp_parts(x: F32) -> tuple[F32, F32]:
    """Two factors whose product, rounded once, is exp(x).

    Shapes: any -> twice the same.
    Units:  pure numbers.
    Error:  none against the contract.
    Source: ARITHMETIC.md, exp_parts. For one block at a time; `exp` cuts long arrays.
    """
    t = np.where(x > _CEILING, _CEILING, np.where(x < _FLOOR, _FLOOR, x))
    n = np.rint(t * np.float32(_LOG2E))
    wide = n.astype(np.float64)
    r = fma_wide(wide, _LN2_REST, fma_wide(wide, -_LN2, t.astype(np.float64)))
    p = _poly(r, _EXP).astype(np.float32)
    k = np.where(np.isnan(n), np.float32(0.0), n).astype(np.int32)
    half = k >> 1
    return np.asarray(p * _power_of_two(half)), _power_of_two(k - half)


def _exp(x: F32) -> F32:
    h, s = exp_parts(x)
    return np.asarray(h * s)


def _log1p(x: F32) -> F32:
    u = _ONE + x
    k = (u.view(np.uint32) - np.float32(0.75).view(np.uint32)) & np.uint32(0xFF800000)
    n = k.view(np.int32) >> 23
    s = _power_of_two(-n, lowest=-128)
    m = fma_wide(x.astype(np.float64), s.astype(np.float64), (s - _ONE).astype(np.float64))
    narrow = m.astype(np.float32)
    y = fma_wide(_poly(m, _LOG1P), (narrow * narrow).astype(np.float64), m)
    y = fma_wide(n.astype(np.float64), _LN2, y).astype(np.float32)
    special = np.where(u == 0, -np.float32(np.inf), np.float32(np.nan))
    return np.where(u > 0, np.where(u < np.inf, y, np.float32(np.inf)), special)


def _sigmoid(x: F32) -> F32:
    e = _exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, _ONE, e) / (_ONE + e))


def _silu(x: F32) -> F32:
    h, s = exp_parts(-np.abs(x))
    d = _ONE + h * s
    t = np.where(x < _FLOOR, _FLOOR, x)
    return np.where(x < 0, ((t * h) / d) * s, x / d)


def _softplus(x: F32) -> F32:
    return np.where(x > 0, x, np.float32(0.0)) + _log1p(_exp(-np.abs(x)))


def _poly(x: F64, coefficients: tuple[float, ...]) -> F64:
    p = fma_wide(coefficients[0], x, coefficients[1])
    for c in coefficients[2:]:
        p = fma_wide(p, x, c)
    return p


def _power_of_two(n: NDArray[np.int32], lowest: int = -126) -> F32:
    """2**n; below -126 the result is subnormal and made from a normal one, exactly."""
    if lowest >= -126:
        return ((n + np.int32(127)) << 23).view(np.float32)
    return ((n + np.int32(129)) << 23).view(np.float32) * np.float32(0.25)


def _in_blocks(function: Callable[[F32], F32], x: ArrayLike) -> F32:
    flat = np.ascontiguousarray(f32(x)).reshape(-1)
    out = np.empty_like(flat)
    with np.errstate(all="ignore"):
        for start in range(0, flat.size, BLOCK):
            part = slice(start, start + BLOCK)
            out[part] = function(flat[part])
    return out.reshape(np.shape(x))


#: Function name -> the contract's function; the order is that of the function ids in kernels/functions.py.
FUNCTIONS: Mapping[str, Callable[[ArrayLike], F32]] = {
    "exp": exp, "log1p": log1p, "sigmoid": sigmoid, "silu": silu, "softplus": softplus,
}
