"""The divisor of every norm."""

import numpy as np

from oracle.bits.fma import F32


def root(a: F32) -> F32:
    """Square root of a finite number, NaN for any other.

    Shapes: any.
    Units:  those of the root of a.
    Error:  none against the contract.
    Source: ARITHMETIC.md, root.
    """
    with np.errstate(all="ignore"):
        return np.where(np.isfinite(a), np.sqrt(a), np.float32(np.nan))
