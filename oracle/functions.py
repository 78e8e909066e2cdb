"""The scalar functions of the model, in the forms that keep float64's accuracy at both ends."""

import numpy as np

from oracle.arrays import F64


def exp(x: F64) -> F64:
    """Exponential.

    Shapes: any.
    Units:  pure numbers.
    Error:  1 ulp of float64 where the result is normal; exp(0) is 1 and exp(-inf) is 0 exactly; NaN stays NaN.
    Source: the C library's exp by way of NumPy, held to mpmath by the locks.
    """
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(np.exp(x), dtype=np.float64)


def log1p(x: F64) -> F64:
    """Logarithm of 1 + x.

    Shapes: any.
    Units:  pure numbers, x > -1.
    Error:  1 ulp of float64, also for tiny x, where log(1 + x) would lose every digit.
    Source: the C library's log1p by way of NumPy, held to mpmath by the locks.
    """
    return np.asarray(np.log1p(x), dtype=np.float64)


def sigmoid(x: F64) -> F64:
    """1/(1 + exp(-x)).

    Shapes: any.
    Units:  pure numbers.
    Error:  4 ulp of float64; saturates to 0 and 1, and is a NaN only for a NaN.
    Source: for x < 0 as exp(x)/(1 + exp(x)), so that no exponential overflows and a small result keeps its digits.
    """
    small = exp(-np.abs(x))
    top: F64 = np.where(np.signbit(x), small, 1.0)
    return top / (1.0 + small)


def silu(x: F64) -> F64:
    """Sigmoid-weighted linear unit, x times sigmoid(x).

    Shapes: any.
    Units:  those of x.
    Error:  5 ulp of float64 where the result is normal; silu(-inf) is 0, its limit.
    Source: Elfwing et al. 2018, SiLU.
    """
    finite = np.where(np.isneginf(x), 0.0, x)
    return finite * sigmoid(finite)


def softplus(x: F64) -> F64:
    """log(1 + exp(x)).

    Shapes: any.
    Units:  pure numbers.
    Error:  4 ulp of float64; x itself when large, exp(x) when very negative.
    Source: max(x, 0) + log1p(exp(-|x|)): log(1 + exp(x)) overflows on the right and loses all digits on the left.
    """
    return np.maximum(x, 0.0) + log1p(exp(-np.abs(x)))
