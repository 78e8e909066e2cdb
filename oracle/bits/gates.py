"""Learning rate and decay of the delta rule."""

import numpy as np

from oracle.bits.fma import F32
from oracle.bits.functions import exp, sigmoid, softplus


def gates(ba: F32, a: F32, dt: F32) -> tuple[F32, F32, F32]:
    """Beta, the log decay g, and the decay alpha, one of each per value head.

    Shapes: ba [..., 2*HV] with b first and a behind it, a = A [HV], dt [HV] -> beta, g, alpha, each [..., HV].
    Units:  beta and alpha lie in 0..1; g is a natural logarithm.
    Error:  none against the contract.
    Source: ARITHMETIC.md, gates.
    """
    heads = a.shape[0]
    with np.errstate(all="ignore"):
        g = np.asarray(a * softplus(ba[..., heads:] + dt))
    return sigmoid(ba[..., :heads]), g, exp(g)
