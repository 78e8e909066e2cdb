"""Learning rate and decay of the delta rule."""

import numpy as np

from oracle.arrays import F64
from oracle.functions import sigmoid, softplus


def gates(ba: F64, a: F64, dt: F64) -> tuple[F64, F64]:
    """Beta and the logarithm of the decay, one of each per value head.

    Shapes: ba [..., 2*HV] with b first and a behind it, a = A [HV], dt [HV] -> beta, g, each [..., HV].
    Units:  beta lies in 0..1; g = A * softplus(a + dt) <= 0 is a natural logarithm, alpha = exp(g).
    Error:  beta 4 ulp, g 6 ulp plus that of the sum a + dt.
    Source: the model's definition, GDN step 4. Raises ValueError where the widths differ.
    """
    heads = a.shape[0]
    if ba.shape[-1] != 2 * heads or dt.shape != a.shape:
        raise ValueError(f"{ba.shape[-1]} gate inputs, {heads} decays and {dt.shape[0]} offsets do not fit together")
    g = a * softplus(ba[..., heads:] + dt)
    return sigmoid(ba[..., :heads]), np.asarray(g)
