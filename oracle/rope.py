"""Cosines and sines of rotary positions, exact to float64 at every position of the context.

Everything after the frequencies is + - * /, rounding and comparison in float64, so that the table is the same anywhere.
A pair (hi, lo) is a double-double: the unevaluated sum of two floats, lo at most half a unit of hi.
"""

import mpmath
import numpy as np
from numpy.typing import NDArray

from oracle.arrays import F64, I64
from oracle.config import ModelConfig

DIGITS = 50
TERMS = 8  # of each Taylor series: the next term at pi/4 is below 2**-58


def frequencies(dim: int, theta: float) -> tuple[F64, F64]:
    """Angle a position for each pair, as hi + lo.

    Shapes: -> hi, lo, each [dim/2].
    Units:  radians a position, theta**(-2j/dim).
    Error:  2**-106 relative.
    Source: Su et al. 2021, RoFormer; powers by mpmath at 50 digits.
    """
    with mpmath.workdps(DIGITS):
        exact = [mpmath.mpf(theta) ** (mpmath.mpf(-2 * j) / dim) for j in range(dim // 2)]
        hi = [float(f) for f in exact]
        lo = [float(f - h) for f, h in zip(exact, hi, strict=True)]
    return np.array(hi), np.array(lo)


def table(positions: I64, dim: int, theta: float) -> tuple[F64, F64]:
    """Cosine and sine of every pair's angle at the positions asked for.

    Shapes: positions [...] -> cos, sin, each [..., dim/2].
    Units:  pure numbers.
    Error:  2e-16 absolute up to position 2**26 and 1e-12 at 262143 with much to spare; plain float64 reaches 2e-11.
    Source: product and reduction in double-double, Taylor series on -pi/4..pi/4.
    """
    hi, lo = frequencies(dim, theta)
    position = positions.astype(np.float64)[..., None]
    return _cos_sin(*_product(position, hi, lo))


def rope_table(config: ModelConfig, length: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Cosines and sines that devices read, for positions 0 to length - 1.

    Shapes: -> cos, sin, each float32 [length, rope_dim/2].
    Units:  pure numbers.
    Error:  one rounding to float32 of `table`; made once on the host, so both devices read the same bits.
    Source: the contract.
    """
    cos, sin = table(np.arange(length), config.rope_dim, config.rope_theta)
    return cos.astype(np.float32), sin.astype(np.float32)


def rope(x: F64, cos: F64, sin: F64) -> F64:
    """Rotate the first dims of each head, half-split: pair (j, j + dim/2); the others pass untouched.

    Shapes: x [..., H, D], cos and sin [..., R] with 2R <= D -> [..., H, D].
    Units:  those of x.
    Error:  2 * 2**-53 of the pair's length, plus the table's.
    Source: Su et al. 2021, RoFormer, in the half-split order. Raises ValueError where 2R > D.
    """
    half = cos.shape[-1]
    if 2 * half > x.shape[-1]:
        raise ValueError(f"{2 * half} rotated dims do not fit a head of {x.shape[-1]}")
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    c, s = cos[..., None, :], sin[..., None, :]
    return np.concatenate([a * c - b * s, b * c + a * s, rest], axis=-1)


def _product(n: F64, hi: F64, lo: F64) -> tuple[F64, F64]:
    # n times hi + lo as a double-double. n is a whole number below 2**26 and `top` has 24 bits, so n * top, n * low and
    # their difference from the rounded product are all exact.
    product = n * hi
    top = hi.astype(np.float32).astype(np.float64)
    return product, (n * top - product) + n * (hi - top) + n * lo


def _cos_sin(hi: F64, lo: F64) -> tuple[F64, F64]:
    turns, x = _reduce(hi, lo)
    cos, sin = _series(x, 0), x * _series(x, 1)
    quarter = turns - 4.0 * np.floor(turns / 4.0)
    swap = (quarter == 1) | (quarter == 3)
    cos, sin = np.where(swap, sin, cos), np.where(swap, cos, sin)
    return np.where((quarter == 1) | (quarter == 2), -cos, cos), np.where(quarter >= 2, -sin, sin)


def _reduce(hi: F64, lo: F64) -> tuple[F64, F64]:
    # the nearest multiple of pi/2 and the angle past it. hi - multiple is exact: the two lie within a factor of two.
    with mpmath.workdps(DIGITS):
        half_pi = float(mpmath.pi / 2)
        rest_of_half_pi = float(mpmath.pi / 2 - half_pi)
    turns = np.rint(hi / half_pi)
    multiple, rest = _product(turns, np.full(1, half_pi), np.full(1, rest_of_half_pi))
    return turns, (hi - multiple) + (lo - rest)


def _series(x: F64, odd: int) -> F64:
    # cos(x) for odd = 0, sin(x)/x for odd = 1: 1 - x^2/((1 + odd)(2 + odd)) (1 - x^2/((3 + odd)(4 + odd)) (1 - ...)).
    square = x * x
    value = np.ones_like(x)
    for n in range(TERMS, 0, -1):
        value = 1.0 - square * value / ((2 * n + odd) * (2 * n - 1 + odd))
    return value
