"""RMS norm of long rows."""

import numpy as np

from oracle.bits.fma import F32, f32
from oracle.bits.root import root
from oracle.bits.tree import dot


def rms_norm(x: F32, w: F32, eps: float) -> F32:
    """Scale each row to unit root mean square, then by w.

    Shapes: x [..., K], w [K] -> [..., K].
    Units:  eps adds to the mean square.
    Error:  none against the contract.
    Source: ARITHMETIC.md, RMS norm.
    """
    with np.errstate(all="ignore"):
        mean = dot(x, x) / np.float32(x.shape[-1])
        return np.asarray((x / root(mean + f32(eps))[..., None]) * w)
