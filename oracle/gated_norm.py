"""Norm of the delta rule's output, then its gate."""

from oracle.arrays import F64
from oracle.functions import silu
from oracle.rms_norm import rms_norm


def gated_norm(o: F64, z: F64, w: F64, eps: float) -> F64:
    """Scale each value head to unit root mean square, times w, times silu(z): norm first, gate second.

    Shapes: o, z [..., HV, V], w [V] -> [..., HV, V].
    Units:  eps adds to the mean square.
    Error:  (V + 14) * 2**-53 relative an element.
    Source: the model's definition, GDN step 7. Raises ValueError where shapes differ.
    """
    if o.shape != z.shape:
        raise ValueError(f"shapes {o.shape} and {z.shape} differ")
    return rms_norm(o, w, eps) * silu(z)
