"""Norm of query and key heads, then their rotation."""

from oracle.arrays import F64
from oracle.rms_norm import rms_norm
from oracle.rope import rope


def qk_norm_rope(x: F64, w: F64, cos: F64, sin: F64, eps: float) -> F64:
    """Scale each head to unit root mean square, times w, then rotate it at its own position.

    Shapes: x [..., H, D], w [D], cos and sin [..., R] -> [..., H, D].
    Units:  eps adds to the mean square.
    Error:  (D + 10) * 2**-53 of the pair's length.
    Source: the model's definition, attention step 1. Raises ValueError where widths do not fit.
    """
    return rope(rms_norm(x, w, eps), cos, sin)
