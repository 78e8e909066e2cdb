"""Cosines and sines of rotary positions, exact to float64 at every position of the context.

Everything after the frequencies is + - * / and comparison in float64, so that the table is the same on every machine.
A pair (hi, lo) is a double-double: the unevaluated sum of two floats, lo at most half a unit of hi.
"""

import mpmath
import numpy as np
from numpy.typing import NDArray

from oracle.arrays import F64, I64
from oracle.config import ModelConfig

DIGITS = 50
SPLIT = 134217729.0  # 2**27 + 1, Dekker's constant: halves a 53-bit product exactly without an fma
TERMS = 9  # of each Taylor series: the next term at pi/4 is below 2**-60


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


def _two_sum(a: F64, b: F64) -> tuple[F64, F64]:
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _two_product(a: F64, b: F64) -> tuple[F64, F64]:
    product = a * b
    a_top = SPLIT * a - (SPLIT * a - a)
    b_top = SPLIT * b - (SPLIT * b - b)
    a_low, b_low = a - a_top, b - b_top
    return product, ((a_top * b_top - product) + a_top * b_low + a_low * b_top) + a_low * b_low


def _product(x: F64, hi: F64, lo: F64) -> tuple[F64, F64]:
    product, rest = _two_product(x, hi)
    return _two_sum(product, rest + x * lo)


def _half_pi() -> tuple[F64, F64]:
    with mpmath.workdps(DIGITS):
        hi = float(mpmath.pi / 2)
        return np.float64(hi) * np.ones(1), np.float64(mpmath.pi / 2 - hi) * np.ones(1)


def _reduce(hi: F64, lo: F64) -> tuple[F64, F64, F64]:
    # the nearest multiple of pi/2 and what is left: the quotient only has to be right to a unit or so at its ties.
    top, low = _half_pi()
    turns = np.floor(hi / top + 0.5)
    multiple, rest = _product(turns, top, low)
    difference, error = _two_sum(hi, -multiple)
    left, left_low = _two_sum(difference, error + (lo - rest))
    return turns, left, left_low


def _cos_sin(hi: F64, lo: F64) -> tuple[F64, F64]:
    turns, x, x_low = _reduce(hi, lo)
    cos, sin = _series(x, 0), x * _series(x, 1)
    # first order in the low part: the second is below 2**-106.
    cos, sin = cos - sin * x_low, sin + cos * x_low
    quarter = turns - 4.0 * np.floor(turns / 4.0)
    swap = (quarter == 1) | (quarter == 3)
    cos, sin = np.where(swap, sin, cos), np.where(swap, cos, sin)
    return np.where((quarter == 1) | (quarter == 2), -cos, cos), np.where(quarter >= 2, -sin, sin)


def _series(x: F64, odd: int) -> F64:
    # cos(x) for odd = 0, sin(x)/x for odd = 1: 1 - x^2/((1 + odd)(2 + odd)) (1 - x^2/((3 + odd)(4 + odd)) (1 - ...)).
    square = x * x
    value = np.ones_like(x)
    for n in range(2 * TERMS, 0, -2):
        value = 1.0 - square * value / ((n + odd) * (n - 1 + odd))
    return value
