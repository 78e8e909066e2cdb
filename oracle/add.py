"""Residual add."""

from oracle.arrays import F64


def add(x: F64, y: F64) -> F64:
    """Sum of the residual stream and a block's output.

    Shapes: x and y [..., D] -> [..., D].
    Units:  those of x.
    Error:  2**-53 relative.
    Source: the model's definition. Raises ValueError where shapes differ: nothing is broadcast.
    """
    if x.shape != y.shape:
        raise ValueError(f"shapes {x.shape} and {y.shape} differ")
    return x + y
