"""RMS norm of each value head, times silu of its gate."""

import numpy as np

from oracle.bits.fma import F32
from oracle.bits.functions import silu
from oracle.bits.qk_norm_rope import head_norm


def gated_norm(o: F32, z: F32, w: F32, eps: float) -> F32:
    """Norm first, then the gate.

    Shapes: o, z [..., HV, V], w [V], V of 32, 64, 128, 256 -> [..., HV, V].
    Units:  eps adds to the mean square.
    Error:  none against the contract.
    Source: ARITHMETIC.md, gated norm.
    """
    with np.errstate(all="ignore"):
        return np.asarray(head_norm(o, w, eps) * silu(z))
