"""Small float32 projection."""

from oracle.bits.fma import F32
from oracle.bits.projection import float_projection


def projection_f32(x: F32, w: F32) -> F32:
    """Activations times the transpose of weights: chunks of 256 of K, one tree in each, added ascending.

    Shapes: x [rows, K], w [N, K] -> [rows, N].
    Units:  those of x times those of w.
    Error:  none against the contract.
    Source: ARITHMETIC.md, small float32 projection.
    """
    return float_projection(w, x)
