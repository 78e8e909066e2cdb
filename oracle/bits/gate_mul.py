"""Attention's output gate."""

import numpy as np

from oracle.bits.fma import F32
from oracle.bits.functions import sigmoid


def gate_mul(x: F32, gate: F32) -> F32:
    """The product x * sigmoid(gate).

    Shapes: equal.
    Units:  those of x.
    Error:  none against the contract.
    Source: ARITHMETIC.md, gate multiply.
    """
    with np.errstate(all="ignore"):
        return np.asarray(x * sigmoid(gate))
