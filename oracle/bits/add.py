"""Residual add and the sum of split-K planes."""

import numpy as np

from oracle.bits.fma import F32


def add(x: F32, y: F32) -> F32:
    """Sum of two rows.

    Shapes: broadcast together.
    Units:  theirs.
    Error:  none against the contract.
    Source: ARITHMETIC.md, add.
    """
    with np.errstate(all="ignore"):
        return np.asarray(x + y)


def sum_planes(planes: F32) -> F32:
    """The planes of a split product added ascending, from zero.

    Shapes: planes [P, ...] -> [...].
    Units:  those of the planes.
    Error:  none against the contract.
    Source: ARITHMETIC.md, planes.
    """
    total = np.zeros(planes.shape[1:], np.float32)
    for plane in planes:
        total = add(total, plane)
    return total
