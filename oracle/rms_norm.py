"""Root-mean-square norm of rows."""

import numpy as np

from oracle.arrays import F64


def rms_norm(x: F64, w: F64, eps: float) -> F64:
    """Scale each row to unit root mean square, then by w.

    Shapes: x [..., D], w [D] -> [..., D].
    Units:  eps adds to the mean square, so it has the unit of x squared.
    Error:  (D + 6) * 2**-53 relative an element.
    Source: Zhang & Sennrich 2019, RMSNorm, eq. 4. Raises ValueError where the last axes differ.
    """
    if x.shape[-1:] != w.shape:
        raise ValueError(f"rows of width {x.shape[-1]} meet norm weights of shape {w.shape}")
    y: F64 = w * (x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps))
    return y
